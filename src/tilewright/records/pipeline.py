"""The pipeline of an asynchronous kernel as plain data: timelines of warps and stages, phases of barriers, swizzled
tiles.

The microscope records a pipeline in a run of one block. Times are ticks and not seconds: an event is at the first tick
at which the barriers allow it. A copy takes one tick. The work of a warp between two waits takes one tick, and a
request for copies takes ``ASK`` ticks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .json_data import COUNT, OBJECTS, POSITIVE, TEXT, TRUTH, Rule, check_fields, is_count, many, nullable

#: The time of a request for copies, in ticks.
ASK = 0.25
#: The most that is recorded: ticks, rows of a timeline, spans of a row, barriers, events of a barrier, and tiles.
TICKS, ROWS, SPANS, BARRIERS, EVENTS, TILES = 16, 24, 128, 2, 12, 4
#: The rows of a tile that are shown, which are those of one pattern of a swizzle, and the 16-byte chunks that are shown
#: of each row.
PATTERN_ROWS, PATTERN_CHUNKS = 8, 8


@dataclass(frozen=True)
class PipelineSpan:
    """A piece of a row of the timeline, from ``begin`` to ``end``; ``end`` is None for a wait that never ends.

    ``kind`` is "wait", "ask" (for copies), "work" or "multiply" (with tensor cores) for warps, and "copy" (a copy under
    way) or "full" for a stage. ``stage`` is the label of the stage; ``words`` describe the piece in full. ``by`` is the
    row whose event ends a wait.
    """

    kind: str
    begin: float
    end: float | None
    stage: str
    phase: int
    words: str
    line: int = 0
    by: str = ""


@dataclass(frozen=True)
class PipelineRow:
    """A row of the timeline: a stage, or a group of warps that do the same work at the same time."""

    name: str
    kind: str  # "warps" or "stage"
    spans: list[PipelineSpan]


@dataclass(frozen=True)
class BarrierEvent:
    """An event at a barrier, and the barrier's state after it: the arrivals and the bytes that the barrier's phase
    still lacks.

    ``what`` is "init", "wait" (the phase is not complete), "arrive", "expect" (an arrival that announces bytes),
    "bytes", or "pass" (a wait that returned). ``amount`` is a number of arrivals or of bytes; for waits it is the
    parity of the phase.
    """

    what: str
    who: str
    amount: int
    pending: int
    bytes: int
    phase: int
    line: int = 0


@dataclass(frozen=True)
class BarrierHistory:
    """The first events at one barrier, in the order of the run. A phase needs ``count`` arrivals. ``role`` says what
    the barrier is for."""

    name: str
    count: int
    events: list[BarrierEvent]
    role: str = ""


@dataclass(frozen=True)
class SwizzledTile:
    """The first rows of a tile in shared memory: where a copy wrote them, and which of their bytes a product read.

    ``cells`` has, for each row, the positions in the block's shared memory of the row's 16-byte chunks. ``reads`` are
    the positions of the chunks that ``wgmma`` read as one group of eight rows; ``reads`` is empty if no product read
    the tile. A correct product reads chunk ``column`` of rows ``row`` to ``row + 7``.
    """

    line: int
    swizzle: int  # bytes; 0: none
    row_bytes: int
    cells: list[list[int]]
    operand: str = ""
    reader_line: int = 0
    reader_swizzle: str = ""
    reads: list[int] = field(default_factory=list)
    row: int = 0
    column: int = 0

    @property
    def group(self) -> list[int]:
        """The positions of the chunks that a correct product reads as one group of eight rows."""
        return [cells[self.column] for cells in self.cells[self.row : self.row + 8] if self.column < len(cells)]

    @property
    def contradicted(self) -> bool:
        """Whether a product read other chunks than those in ``group``."""
        return bool(self.reads) and self.reads != self.group


@dataclass(frozen=True)
class Pipeline:
    """The recorded pipeline of one block. ``whole`` is False if more happened in the block than the record contains."""

    block: str
    ticks: float
    whole: bool
    rows: list[PipelineRow] = field(default_factory=list)
    barriers: list[BarrierHistory] = field(default_factory=list)
    tiles: list[SwizzledTile] = field(default_factory=list)

    def is_early(self, span: PipelineSpan) -> bool:
        """Whether warps work with a stage while a copy into it is under way, because they have not waited for the
        copy."""
        if span.kind not in ("work", "multiply") or span.end is None:
            return False
        stages = [row for row in self.rows if row.kind == "stage" and row.name == f"stage {span.stage}"]
        copies = [(copy.begin, copy.end) for row in stages for copy in row.spans if copy.kind == "copy"]
        return any(begin < span.end and (end is None or span.begin < end) for begin, end in copies)


# ---- files -----------------------------------------------------------------------------------------------------------

_TICK = Rule("a number of ticks, from 0 to 1000", lambda x: POSITIVE.holds(x) and x <= 1000)
_AMOUNT = Rule("a whole number below 2^31", lambda x: type(x) is int and abs(x) < 1 << 31)
_PLACE = Rule("a byte of shared memory", lambda x: is_count(x) and x < 1 << 24)
_PLACES = many("bytes of shared memory", _PLACE.holds, most=PATTERN_ROWS)
_SMALL = Rule("a whole number from 0 to 1000", lambda x: is_count(x) and x <= 1000)


def _up_to(most: int) -> Rule:
    """The rule for a list of at most so many objects."""
    return Rule(f"a list of {most} objects at most", lambda x: OBJECTS.holds(x) and len(x) <= most)


_RULES: dict[str, Rule] = {
    **{"block": TEXT, "ticks": _TICK, "whole": TRUTH},
    **{"rows": _up_to(ROWS), "barriers": _up_to(BARRIERS), "tiles": _up_to(TILES)},
}
_ROW_RULES = {"name": TEXT, "kind": TEXT, "spans": _up_to(SPANS)}
_SPAN_RULES = {
    **dict.fromkeys(("kind", "stage", "words", "by"), TEXT),
    **{"begin": _TICK, "end": nullable(_TICK), "phase": _AMOUNT, "line": COUNT},
}
_BARRIER_RULES = {"name": TEXT, "role": TEXT, "count": COUNT, "events": _up_to(EVENTS)}
_EVENT_RULES = {
    **{"what": TEXT, "who": TEXT, "line": COUNT},
    **dict.fromkeys(("amount", "pending", "bytes", "phase"), _AMOUNT),
}
_CELLS = many(
    "up to 8 lists of bytes of shared memory", many("", _PLACE.holds, most=PATTERN_CHUNKS).holds, most=PATTERN_ROWS
)
_TILE_RULES = {
    **dict.fromkeys(("line", "reader_line"), COUNT),
    **dict.fromkeys(("operand", "reader_swizzle"), TEXT),
    **{"swizzle": _SMALL, "row_bytes": _PLACE, "cells": _CELLS, "reads": _PLACES, "row": _SMALL, "column": _SMALL},
}


def check_pipeline(data: Mapping[str, Any], where: str, part: str) -> None:
    """Raise RecordError for the first field of a pipeline that breaks its rule; ``where`` names the file."""
    check_fields(data, _RULES, where, part)
    nested: tuple[tuple[str, dict[str, Rule], str, dict[str, Rule]], ...] = (
        ("rows", _ROW_RULES, "spans", _SPAN_RULES),
        ("barriers", _BARRIER_RULES, "events", _EVENT_RULES),
        ("tiles", _TILE_RULES, "", {}),
    )
    for name, rules, inner, inner_rules in nested:
        for i, item in enumerate(data.get(name, ())):
            check_fields(item, rules, where, f"{part}{name}[{i}].")
            for j, each in enumerate(item.get(inner, ())):
                check_fields(each, inner_rules, where, f"{part}{name}[{i}].{inner}[{j}].")


def pipeline_from(data: Mapping[str, Any]) -> Pipeline:
    """Make a pipeline from checked JSON. Raises TypeError or KeyError if a field is missing."""

    def known(kind: Any, item: Mapping[str, Any], **nested: Any) -> Any:
        return kind(**{k: v for k, v in item.items() if k in kind.__dataclass_fields__} | nested)

    rows = [known(PipelineRow, r, spans=[known(PipelineSpan, s) for s in r["spans"]]) for r in data["rows"]]
    barriers = [
        known(BarrierHistory, b, events=[known(BarrierEvent, e) for e in b["events"]]) for b in data["barriers"]
    ]
    tiles = [known(SwizzledTile, tile) for tile in data["tiles"]]
    made: Pipeline = known(Pipeline, data, rows=rows, barriers=barriers, tiles=tiles)
    return made
