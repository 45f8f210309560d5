"""Output to a terminal: a name in it cannot control the terminal and is not taken for markup, whatever it contains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TextIO

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from ...records.legible import legible


class Console(rich.console.Console):
    """Rich's console, which prints control characters in texts as escapes. Rich's own control codes still work.

    Strings are escaped before they are measured, so that columns fit; ``render`` escapes what was not a string. An
    ``:emoji:`` in a name is printed as it is.
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
    """Print a line to standard output or ``file``."""
    print(legible(line), file=file)
