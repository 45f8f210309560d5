"""What the commands write to a terminal: no name from elsewhere can command it, or be taken for markup."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TextIO

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from ..records.legible import legible


class Console(rich.console.Console):
    """Rich's console, which shows the control characters of all that is printed as text; its own still work.

    Texts are made legible before they are measured, so that columns fit; ``render`` catches what was no plain text. An
    ``:emoji:`` in a name is a name.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"emoji": False, **settings})

    def render_str(self, text: str, **settings: Any) -> Text:
        """As rich's, with control characters shown."""
        return super().render_str(legible(text), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich's, with control characters shown."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(legible(segment.text), segment.style)


def say(line: str, file: TextIO | None = None) -> None:
    """A line on standard output or ``file``."""
    print(legible(line), file=file)
