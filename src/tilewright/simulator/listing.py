"""The source of a kernel with its counters in the margin, for a terminal of 80 columns and for a notebook."""

from __future__ import annotations

import html as escaping
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..records.explanation import Access
from .counters.tally import LABELS

if TYPE_CHECKING:
    from .microscope import Observation

WIDTH = 80
#: Lines shown around each line that has something to show.
CONTEXT = 1
_KINDS = {"ld": "load", "st": "store", "atom": "atomic", "red": "reduction", "cp.async": "copy"}


@dataclass(frozen=True)
class Row:
    """One source line: sectors of global and local memory, wavefronts of shared memory, and what is wrong there.

    Each beside how many times more it is than the same bytes cost at best; 1 where nothing is wasted.
    """

    number: int
    text: str
    sectors: int
    sectors_waste: float
    wavefronts: int
    wavefronts_waste: float
    wrong: tuple[str, ...] = ()

    @property
    def speaks(self) -> bool:
        return bool(self.sectors or self.wavefronts or self.wrong)


def rows(source: str, accesses: Sequence[Access], wrong: Iterable[tuple[int, str]]) -> list[Row]:
    """Every line of ``source``; ``wrong`` are pairs of a line and what to say there."""
    said: dict[int, list[str]] = {}
    for line, words in wrong:
        said.setdefault(line, []).append(words)
    found = []
    for number, text in enumerate(source.replace("\r\n", "\n").removesuffix("\n").split("\n"), 1):
        here = [access for access in accesses if access.line == number]
        shared = [access for access in here if access.space == "shared"]
        moved = [access for access in here if access.space != "shared"]
        found.append(Row(number, text, *_cost(moved), *_cost(shared), tuple(said.get(number, ()))))
    return found


def _cost(accesses: Sequence[Access]) -> tuple[int, float]:
    """Sectors, or wavefronts, and how many times the least that is."""
    cost, least = (sum(getattr(access, name) for access in accesses) for name in ("cost", "least"))
    return cost, cost / least if least else 1.0


def excerpt(all_rows: Sequence[Row]) -> list[Row | None]:
    """The rows that speak with their neighbours; None stands for a gap."""
    speaking = {row.number for row in all_rows if row.speaks}
    shown: list[Row | None] = []
    for row in all_rows:
        near = range(row.number - CONTEXT, row.number + CONTEXT + 1)
        if speaking.intersection(near):
            shown.append(row)
        elif shown and shown[-1] is not None:
            shown.append(None)
    return shown[:-1] if shown and shown[-1] is None else shown


def margin(row: Row) -> tuple[str, str, str, str]:
    """Sectors and wavefronts as they stand before the line, each with its waste."""

    def cells(cost: int, waste: float) -> tuple[str, str]:
        return f"{cost:,}" if cost else "", f"{waste:.1f}" if waste > 1.005 else ""

    return (*cells(row.sectors, row.sectors_waste), *cells(row.wavefronts, row.wavefronts_waste))


#: What stands above the columns of ``margin``.
HEADS = ("sectors", "×least", "wavefronts", "×least")


@dataclass(frozen=True)
class Line:
    """A line of the listing: what stands in the margin, the source, or in red what is wrong with the line above."""

    margin: str
    source: str
    wrong: str = ""


def lines(all_rows: Sequence[Row]) -> list[Line]:
    """The lines that speak with their neighbours, headings first; nothing where none speaks."""
    shown = excerpt(all_rows)
    if not shown:
        return []
    cells = [margin(row) if row else ("",) * len(HEADS) for row in shown]
    used = [i for i in range(len(HEADS)) if any(cell[i] for cell in cells)]
    widths = {i: max(len(HEADS[i]), *(len(cell[i]) for cell in cells)) for i in used}

    def aligned(values: Sequence[str], number: str) -> str:
        return "".join(f"{values[i].rjust(widths[i])}  " for i in used) + f"{number:>4}"

    found = [Line(aligned(HEADS, "line"), "")]
    for row, cell in zip(shown, cells, strict=True):
        if row is None:
            found.append(Line(aligned(cell, ""), "…"))
            continue
        found.append(Line(aligned(cell, str(row.number)), row.text))
        found += [Line("", "", words) for words in row.wrong]
    return found


def text(seen: Observation) -> str:
    """The listing, then findings without a line, totals and notes, in 80 columns."""
    written = [f"{seen.kernel}: {summary(seen)}", ""]
    for line in lines(rows(seen.source, seen.accesses, [(f.line, _words(f)) for f in seen.findings])):
        if line.wrong:
            written.append(wrapped(line.wrong, WIDTH))
        else:
            written.append(cut(f"{line.margin}  {line.source}", WIDTH))
    written += [_words(f) for f in seen.findings if not f.line]
    notes = [textwrap.fill(f"note: {note}", WIDTH, subsequent_indent="  ") for note in seen.notes]
    return "\n".join([*written, "", *_totals(seen), *notes])


def wrapped(wrong: str, width: int) -> str:
    """What is wrong with the line above, under a mark."""
    return textwrap.fill(f"^ {wrong}", width, initial_indent="  ", subsequent_indent="    ")


def cut(line: str, width: int) -> str:
    """The line, with "…" at its end where it is too long."""
    line = line.rstrip()
    return line if len(line) <= width else line[: width - 1] + "…"


def _words(finding: object) -> str:
    words = str(finding)
    file, line = getattr(finding, "file", ""), getattr(finding, "line", 0)
    return words.removeprefix(f"{file}:{line}: ")


def _totals(seen: Observation) -> list[str]:
    """Each counter with its words, the hardware's name below."""
    width = max((len(f"{value:,}") for value in seen.counters.values()), default=0)
    return [
        f"{value:>{width},}  {LABELS.get(name, name)}" for name, value in seen.counters.items() if "bytes" not in name
    ]


def summary(seen: Observation) -> str:
    """One line: what ran, how long, and whether anything was found."""
    count = len(seen.findings)
    found = "nothing found" if not count else f"{count} finding{'s' if count > 1 else ''}"
    return f"{found}; {seen.words}"


def describe(access: Access) -> str:
    """An access in a few words: "load of 4 bytes a lane"."""
    return f"{access.space} {_KINDS.get(access.kind, access.kind)} of {access.nbytes} bytes a lane"


def html(seen: Observation) -> str:
    """The listing as a table that notebooks show; colours are the notebook's own."""
    cell = "padding:0 .6em;text-align:right;font-family:monospace"
    lines = []
    for row in excerpt(rows(seen.source, seen.accesses, [(f.line, _words(f)) for f in seen.findings])):
        if row is None:
            lines.append(f'<tr><td colspan="5"></td><td style="{cell};text-align:left">…</td></tr>')
            continue
        cells = "".join(f'<td style="{cell}">{value}</td>' for value in (*margin(row), str(row.number)))
        code = escaping.escape(row.text)
        lines.append(f'<tr>{cells}<td style="{cell};text-align:left;white-space:pre">{code}</td></tr>')
        lines += [
            f'<tr><td colspan="5"></td><td style="{cell};text-align:left;color:#c33">{escaping.escape(words)}</td></tr>'
            for words in row.wrong
        ]
    heads = "".join(f'<th style="{cell}">{head}</th>' for head in (*HEADS, "line", ""))
    rest = [_words(f) for f in seen.findings if not f.line] + _totals(seen) + [f"note: {note}" for note in seen.notes]
    below = "".join(f'<div style="white-space:pre-wrap">{escaping.escape(line)}</div>' for line in rest)
    title = escaping.escape(f"{seen.kernel}: {summary(seen)}")
    return f"<div><b>{title}</b><table><tr>{heads}</tr>{''.join(lines)}</table>{below}</div>"
