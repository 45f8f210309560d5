"""From the log of a run to the data of the pictures: the pipeline's timeline, the phases of barriers, the swizzled tiles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..records.pipeline import ROWS, STEPS, TILES, Pipeline, SwizzledTile
from .assembly.instructions import Instruction
from .machine.event_log import EventLog, LoggedTile
from .ops.descriptor import SWIZZLES
from .pipeline_timing import PipelineTiming, source_line


def has_mbarriers(code: Iterable[Instruction]) -> bool:
    """Whether instructions use mbarriers, so that there is a pipeline to record."""
    return any(ins.parts[0] == "mbarrier" for ins in code)


def pipeline_of(log: EventLog) -> Pipeline | None:
    """The data of the pictures; None if the block used no mbarriers and copied no boxes."""
    tiles = [_tile(tile) for tile in log.tiles[:TILES]]
    if not any(event.what in ("pass", "stuck") for event in log.events):
        return Pipeline(log.block, 0, log.whole, [], [], tiles) if tiles else None
    timing = PipelineTiming(log)
    rows, steps = timing.rows()
    if not any(span.kind != "work" for row in rows for span in row.spans):
        rows, steps = [], 0  # nothing waited, and nothing was copied or multiplied
    whole = log.whole and steps <= STEPS and len(rows) <= ROWS
    return Pipeline(log.block, min(steps, STEPS), whole, rows[:ROWS], timing.histories(), tiles)


def _tile(tile: LoggedTile) -> SwizzledTile:
    """A recorded tile as plain data."""
    box = SwizzledTile(source_line(tile.ins), tile.swizzle, tile.row_bytes, tile.cells.tolist())
    if tile.reader is None:
        return box
    return replace(
        box,
        operand=tile.operand,
        reader_line=source_line(tile.reader),
        reader_swizzle=SWIZZLES[tile.mode],
        reads=tile.reads.tolist(),
        row=tile.row,
        column=tile.column,
    )
