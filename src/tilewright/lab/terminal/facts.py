"""Labels and texts, a line each."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def show_facts(console: Console, facts: Iterable[tuple[str, str]], title: str = "") -> None:
    """Label and text, one line each."""
    table = Table(box=None, show_header=False, pad_edge=False, title=title, title_justify="left")
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for label, text in facts:
        table.add_row(escape(label), escape(text))
    console.print(table, highlight=False)
