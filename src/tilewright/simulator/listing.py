"""Formats a kernel's source with its counters in the margin, and the timeline of its pipeline, as text for a
terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..records.explanation import APPROXIMATELY
from ..records.pipeline import ASK, Pipeline, PipelineRow
from ..records.source_rows import HEADS, SourceRow, excerpt, margin
from .counters.hardware_names import LABELS

# ---- the source ------------------------------------------------------------------------------------------------------

WIDTH = 80


@dataclass(frozen=True)
class ListingLine:
    """A line of the listing: a source line with counters in the margin, or a finding (printed in red) or advice about
    the source line above it."""

    margin: str
    source: str
    wrong: str = ""
    advice: str = ""


def lines(all_rows: Sequence[SourceRow]) -> list[ListingLine]:
    """Return the lines of a listing: headings, then the source lines with counters or findings and the lines near them.
    The list is empty if no line has counters or findings."""
    shown = excerpt(all_rows)
    if not shown:
        return []
    cells = [margin(row) if row else ("",) * len(HEADS) for row in shown]
    used = [i for i in range(len(HEADS)) if any(cell[i] for cell in cells)]
    widths = {i: max(len(HEADS[i]), *(len(cell[i]) for cell in cells)) for i in used}

    def aligned(values: Sequence[str], number: str) -> str:
        return "".join(f"{values[i].rjust(widths[i])}  " for i in used) + f"{number:>4}"

    listing, file = [ListingLine(aligned(HEADS, "line"), "")], ""
    for row, cell in zip(shown, cells, strict=True):
        if row is not None and row.file != file:
            file = row.file
            listing.append(ListingLine(aligned(("",) * len(HEADS), ""), f"in {file}:"))
        if row is None:
            listing.append(ListingLine(aligned(cell, ""), "…"))
            continue
        listing.append(ListingLine(aligned(cell, str(row.number)), row.text))
        if row.called:
            indent = " " * (len(row.text) - len(row.text.lstrip()))
            listing.append(ListingLine(aligned(("",) * len(HEADS), ""), indent + row.called))
        listing += [ListingLine("", "", finding) for finding in row.wrong]
        listing += [ListingLine("", "", advice=text) for text in row.advice]
    return listing


def listing_text(title: str, shown: Sequence[SourceRow], below: Sequence[str], notes: Sequence[str]) -> str:
    """Return the listing as text in 80 columns: a title, the listing, the lines ``below`` it, and the notes."""
    written = [textwrap.fill(title, WIDTH, subsequent_indent="  "), ""]
    for line in lines(shown):
        written.append(said_of_line(line, WIDTH) or folded_line(line, WIDTH))
    filled = [textwrap.fill(f"note: {note}", WIDTH, subsequent_indent="  ") for note in notes]
    return "\n".join([*written, *below, *filled])


def said_of_line(line: ListingLine, width: int) -> str:
    """Return a finding (marked with ``^``) or advice (marked with ``→``) about the line above, as text of ``width``
    columns. The text is empty for a source line."""
    return wrapped(line.wrong, width) if line.wrong else wrapped(line.advice, width, "→") if line.advice else ""


def wrapped(text: str, width: int, mark: str = "^") -> str:
    """Wrap a text about the source line above; the first line of the result begins with the text's mark."""
    return textwrap.fill(f"{mark} {text}", width, initial_indent="  ", subsequent_indent="    ")


def folded_line(line: ListingLine, width: int) -> str:
    """Return the margin and the source of a line as text; a source line that is too long is continued on further
    lines."""
    source = line.source.expandtabs(4)
    indent = " " * (len(source) - len(source.lstrip()))
    room = max(len(indent) + 24, width - len(line.margin) - 2)
    parts = textwrap.wrap(source, room, subsequent_indent=indent + "    ", break_on_hyphens=False)
    below = " " * len(line.margin)
    return "\n".join(f"{below if i else line.margin}  {part}".rstrip() for i, part in enumerate(parts or [""]))


def counter_lines(counters: Mapping[str, int], approximate: Collection[str] = ()) -> list[str]:
    """Return one text line for each counter, with its value and its label, except for counters of bytes;
    ``approximate`` values are marked."""
    shown = {name: value for name, value in counters.items() if "bytes" not in name}
    values = {
        name: f"{APPROXIMATELY} {value:,}" if name in approximate else f"{value:,}" for name, value in shown.items()
    }
    width = max(map(len, values.values()), default=0)
    return [f"{value:>{width}}  {LABELS.get(name, name)}" for name, value in values.items()]


# ---- the timeline of a pipeline --------------------------------------------------------------------------------------

#: The most characters of the name of a row.
LONGEST_NAME = 24
_LETTERS = {"wait": ".", "ask": "+", "copy": "~", "full": "="}
LEGEND = (
    "A tick is a copy, or what a warp does between two waits; ticks do not measure time. + asks for copies, ~ a copy is "
    "under way, = the stage is full, . waits, ! waits for ever, a digit: the stage with which warps work (# without "
    "one), ? before its copy has come."
)


def timeline_lines(pipeline: Pipeline) -> list[str]:
    """Return the timeline of a pipeline as text lines: a title, a line for each row, and a legend. The list is empty if
    there is no timeline."""
    if not pipeline.rows:
        return []
    name = min(max(len(row.name) for row in pipeline.rows), LONGEST_NAME) + 2
    columns = min(round(pipeline.ticks / ASK), WIDTH - name)
    whole = pipeline.whole and columns * ASK >= pipeline.ticks
    first = "" if whole else f", the first {columns * ASK:g} ticks"
    title = f"pipeline of {pipeline.block}{first}"
    lines = [f"{row.name[:LONGEST_NAME]:<{name}}{_letters(pipeline, row, columns)}".rstrip() for row in pipeline.rows]
    return [title, *lines, *textwrap.wrap(LEGEND, WIDTH)]


def _letters(pipeline: Pipeline, row: PipelineRow, columns: int) -> str:
    """A character for each quarter of a tick."""
    letters = [" "] * columns
    for span in row.spans:
        letter = _LETTERS.get(span.kind) or span.stage[-1:] or "#"
        end = columns if span.end is None else round(span.end / ASK)
        for i in range(round(span.begin / ASK), min(end, columns)):
            letters[i] = "!" if span.end is None else letter
        if pipeline.is_early(span) and round(span.begin / ASK) < columns:
            letters[round(span.begin / ASK)] = "?"
    return "".join(letters)
