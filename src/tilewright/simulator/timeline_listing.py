"""The timeline of a pipeline as text of 80 columns: four characters a step."""

from __future__ import annotations

import textwrap

from ..records.pipeline import ASK, Pipeline, PipelineRow

WIDTH = 80
#: The most characters of a row's name.
LONGEST_NAME = 24
_LETTERS = {"wait": ".", "ask": "+", "copy": "~", "full": "="}
LEGEND = (
    "A step is a copy, or what a warp does between two waits; steps do not measure time. + asks for copies, ~ a copy is "
    "under way, = the stage is full, . waits, ! waits for ever, a digit: the stage with which warps work (# without "
    "one), ? before its copy has come."
)


def timeline_lines(pipeline: Pipeline) -> list[str]:
    """A line for each row of the timeline under a title, and a legend; none if there is no timeline."""
    if not pipeline.rows:
        return []
    name = min(max(len(row.name) for row in pipeline.rows), LONGEST_NAME) + 2
    columns = min(round(pipeline.steps / ASK), WIDTH - name)
    whole = pipeline.whole and columns * ASK >= pipeline.steps
    first = "" if whole else f", the first {columns * ASK:g} steps"
    title = f"pipeline of {pipeline.block}{first}"
    lines = [f"{row.name[:LONGEST_NAME]:<{name}}{_letters(pipeline, row, columns)}".rstrip() for row in pipeline.rows]
    return [title, *lines, *textwrap.wrap(LEGEND, WIDTH)]


def _letters(pipeline: Pipeline, row: PipelineRow, columns: int) -> str:
    """A character for each quarter of a step."""
    letters = [" "] * columns
    for span in row.spans:
        letter = _LETTERS.get(span.kind) or span.stage[-1:] or "#"
        end = columns if span.end is None else round(span.end / ASK)
        for i in range(round(span.begin / ASK), min(end, columns)):
            letters[i] = "!" if span.end is None else letter
        if pipeline.is_early(span) and round(span.begin / ASK) < columns:
            letters[round(span.begin / ASK)] = "?"
    return "".join(letters)
