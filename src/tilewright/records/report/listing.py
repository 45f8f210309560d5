"""Shows the source of a kernel with its counters in the margin, as a table for notebooks that needs no other
library."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..source_rows import HEADS, SourceRow, excerpt, margin

_CELL = "padding:0 .6em;text-align:right;font-family:monospace"
_LEFT = f"{_CELL};text-align:left"


def listing_html(title: str, rows: Sequence[SourceRow], below: Sequence[str]) -> str:
    """Return the source rows that have something to show, as HTML, under a title and above the lines ``below``. The
    colours are the notebook's."""
    lines, file = [], ""
    for row in excerpt(rows):
        if row is None:
            lines.append(f'<tr><td colspan="5"></td><td style="{_LEFT}">…</td></tr>')
            continue
        if row.file != file:
            file = row.file
            lines.append(f'<tr><td colspan="5"></td><td style="{_LEFT}">in {escape(file)}:</td></tr>')
        cells = "".join(f'<td style="{_CELL}">{value}</td>' for value in (*margin(row), str(row.number)))
        lines.append(f'<tr>{cells}<td style="{_LEFT};white-space:pre">{escape(row.text)}</td></tr>')
        if row.called:
            lines.append(f'<tr><td colspan="5"></td><td style="{_LEFT};opacity:.6">{escape(row.called)}</td></tr>')
        lines += [
            f'<tr><td colspan="5"></td><td style="{_LEFT};color:#c33">{escape(words)}</td></tr>' for words in row.wrong
        ]
        lines += [
            f'<tr><td colspan="5"></td><td style="{_LEFT};color:#287">→ {escape(w)}</td></tr>' for w in row.advice
        ]
    heads = "".join(f'<th style="{_CELL}">{head}</th>' for head in (*HEADS, "line", ""))
    rest = "".join(f'<div style="white-space:pre-wrap">{escape(line)}</div>' for line in below)
    return f"<div><b>{escape(title)}</b><table><tr>{heads}</tr>{''.join(lines)}</table>{rest}</div>"
