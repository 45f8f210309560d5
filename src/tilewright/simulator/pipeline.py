"""Makes the data of the pipeline's pictures from the log of a run: timeline, phases of barriers, swizzled tiles.

The interpreter's order of warps is one of many that are possible, and its copies arrive as late as they can. So the
timeline does not show this order, but what it proves: which arrivals and bytes completed the phase that a warp waited for.
A warp's run is cut into intervals, each from one wait to the next. An interval begins when the one before it has ended and
the phase is complete; it takes one tick, or ``ASK`` if all that the warp did was to ask for copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..records.pipeline import (
    ASK,
    BARRIERS,
    EVENTS,
    ROWS,
    SPANS,
    TICKS,
    TILES,
    BarrierEvent,
    BarrierHistory,
    Pipeline,
    PipelineRow,
    PipelineSpan,
    SwizzledTile,
)
from .assembly.instructions import Instruction
from .machine.event_log import EventLog, LoggedEvent, LoggedTile
from .ops.descriptor import SWIZZLES

# ---- the timeline ----------------------------------------------------------------------------------------------------


@dataclass
class _Interval:
    """What a warp does from one wait to the next; ``barrier`` is -1 where no wait for an mbarrier came before it."""

    warp: int
    barrier: int = -1
    phase: int = -1
    lanes: int = 0
    event: LoggedEvent | None = None
    copies: list[LoggedEvent] = field(default_factory=list)
    products: int = 0
    arrivals: int = 0
    free: float = 0  # when the interval before it ended
    begin: float = 0
    end: float = 0


@dataclass
class _Copy:
    """Copies into one stage for one phase: when they were asked for, by a warp that had waited for ``freed`` before."""

    barrier: int
    phase: int
    begin: float
    end: float
    freed: tuple[int, int]


class PipelineTiming:
    """Cuts the run into intervals, and gives each its time."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        first = range(log.warps_of_block)  # the warps of the block that is shown
        self.own = {e.barrier for e in log.events if e.what == "init" and any(warp in first for warp in e.warps)}
        self.stages = sorted({e.barrier for e in log.events if e.what == "copy"} & self.own)
        self.with_bytes = {e.barrier for e in log.events if e.what in ("copy", "bytes", "expect")}
        self.intervals: dict[int, list[_Interval]] = {}
        self.of_event: list[list[_Interval]] = [self._join(event) for event in log.events]
        self.done: dict[tuple[int, int], float] = {}  # barrier, phase → when it was complete
        self.copies: dict[int, _Copy] = {}  # by number
        # Barrier, phase → the warp whose arrival completed it, -1 for a copy.
        self.last: dict[tuple[int, int], int] = {}
        self.stuck: list[tuple[int, LoggedEvent]] = []
        self._run()
        self.freed_by = self._pair()

    def _join(self, event: LoggedEvent) -> list[_Interval]:
        """The intervals that an event begins, or to which it belongs."""
        found = []
        for warp, lanes in event.warps.items():
            mine = self.intervals.setdefault(warp, [_Interval(warp)])
            if event.what == "pass":
                last = mine[-1]
                if (last.barrier, last.phase) == (event.barrier, event.phase - 1) and not last.lanes & lanes:
                    last.lanes |= lanes  # other threads of the warp, which wait with it
                    continue
                mine.append(_Interval(warp, event.barrier, event.phase - 1, lanes, event))
            elif event.what == "meet":
                mine.append(_Interval(warp))
            elif event.what == "copy":
                mine[-1].copies.append(event)
            elif event.what == "product":
                mine[-1].products += 1
            elif event.what in ("arrive", "expect"):
                mine[-1].arrivals += 1
            found.append(mine[-1])
        return found

    def _length(self, interval: _Interval) -> float:
        """The ticks that an interval takes."""
        if interval.products:
            return 1
        if interval.copies:
            return ASK
        if interval.barrier < 0:
            return 0
        return 1 if interval.arrivals or interval.barrier in self.with_bytes else ASK

    def _run(self) -> None:
        latest: dict[int, float] = {}  # barrier → the latest arrival of its phase
        phases: dict[int, int] = {}
        last: dict[int, int] = {}  # barrier → whose arrival that is, -1 for a copy
        ends: dict[int, float] = {}  # warp → when its last interval ended
        for intervals in self.intervals.values():
            intervals[0].end = ends[intervals[0].warp] = self._length(intervals[0])
        for event, intervals in zip(self.log.events, self.of_event, strict=True):
            what, barrier = event.what, event.barrier
            if what in ("pass", "meet"):
                ready = max((ends[interval.warp] for interval in intervals), default=0) if what == "meet" else 0
                for interval in intervals:
                    interval.free = ends[interval.warp]
                    interval.begin = max(interval.free, ready, self.done.get((barrier, interval.phase), 0))
                    interval.end = ends[interval.warp] = interval.begin + self._length(interval)
            elif what == "init":
                phases[barrier], latest[barrier] = 0, 0
            elif what == "copy":
                asked = max((interval.end for interval in intervals), default=0)
                freed = max(((interval.barrier, interval.phase) for interval in intervals), default=(-1, -1))
                self.copies[event.copy] = _Copy(barrier, event.phase, asked, asked + 1, freed)
            elif what in ("arrive", "expect", "bytes"):
                copy = self.copies.get(event.copy)
                time = copy.end if copy else max((interval.end for interval in intervals), default=0)
                if time >= latest.get(barrier, 0):
                    latest[barrier] = time
                    last[barrier] = -1 if copy else max((interval.warp for interval in intervals), default=-1)
                if copy:
                    copy.phase = event.phase - (event.phase > phases.get(barrier, 0))
            elif what == "stuck":
                self.stuck += [(warp, event) for warp in event.warps]
            if what in ("arrive", "expect", "bytes") and event.phase > phases.get(barrier, 0):
                self.done[barrier, phases.get(barrier, 0)] = latest[barrier]
                self.last[barrier, phases.get(barrier, 0)] = last[barrier]
                phases[barrier], latest[barrier] = event.phase, 0

    def _pair(self) -> dict[int, int]:
        """Stage → the barrier that its copies wait for, if they wait for another one than their own."""
        found = {}
        for stage in self.stages:
            waited = Counter(c.freed[0] for c in self.copies.values() if c.barrier == stage and c.freed[0] >= 0)
            best = next((barrier for barrier, _ in waited.most_common() if barrier not in self.stages), None)
            if best is not None:
                found[stage] = best
        return found

    # ---- the timeline

    def rows(self) -> tuple[list[PipelineRow], float]:
        """The rows of the timeline, and the ticks that the block takes, as far as it was recorded."""
        own = {warp: intervals for warp, intervals in self.intervals.items() if warp < self.log.warps_of_block}
        spans = {warp: self._spans(warp, intervals) for warp, intervals in own.items()}
        with_products = any(interval.products for intervals in own.values() for interval in intervals)
        groups: dict[tuple[object, ...], list[int]] = {}
        for warp, of_warp in sorted(spans.items()):
            if of_warp:
                alike = tuple((s.kind, s.begin, s.end, s.stage, s.phase) for s, _ in of_warp)
                groups.setdefault((warp // 4 if with_products else 0, alike), []).append(warp)
        names = {warp: _warps(group) for group in groups.values() for warp in group}
        named = [
            PipelineRow(_warps(group), "warps", [self._released(span, where, names) for span, where in spans[group[0]]])
            for group in groups.values()
        ]
        asking = [row for row in named if any(span.kind == "ask" for span in row.spans)]
        stages = [PipelineRow(f"stage {self._label(s)}", "stage", self._stage(s)) for s in self.stages]
        rows = [*asking, *stages, *(row for row in named if row not in asking)]
        ticks = max((s.begin if s.end is None else s.end for row in rows for s in row.spans), default=0)
        shown = [replace(row, spans=[s for s in row.spans if s.begin < TICKS][:SPANS]) for row in rows]
        return shown, ticks + any(span.end is None for row in rows for span in row.spans)

    def _released(self, span: PipelineSpan, where: tuple[int, int], names: dict[int, str]) -> PipelineSpan:
        """A wait for a phase of a barrier, with the row that ends it: the stage, or the warps whose arrival was the last."""
        last = self.last.get(where)
        if span.kind != "wait" or last is None:
            return span
        by = f"stage {self._label(where[0])}" if last < 0 else names.get(last, self._who([last]))
        return replace(span, by=by, words=f"{span.words}, which {by} complete{'s' * (not by.startswith('warps'))}")

    def _spans(self, warp: int, intervals: Sequence[_Interval]) -> list[tuple[PipelineSpan, tuple[int, int]]]:
        """What a warp does, each with the barrier and phase that it waited for before."""
        found: list[tuple[PipelineSpan, tuple[int, int]]] = []
        for interval in intervals:
            line, stage = _line(interval.event), self._label(interval.barrier)
            what = f"phase {interval.phase} (parity {interval.phase & 1}) of {self._name(interval.barrier)}"
            if interval.begin > interval.free and interval.barrier >= 0:
                span = PipelineSpan(
                    "wait", interval.free, interval.begin, stage, interval.phase, f"waits for {what}", line
                )
                found.append((span, (interval.barrier, interval.phase)))
            if interval.end == interval.begin:
                continue
            name = self._name(interval.barrier)
            after = f"after {what}" if interval.phase >= 0 else f"after {name}, which it may pass at once"
            span = PipelineSpan("work", interval.begin, interval.end, stage, interval.phase, f"works {after}", line)
            if interval.products:
                words = f"multiplies ({interval.products} wgmma) {after}" if interval.barrier >= 0 else "multiplies"
                span = PipelineSpan("multiply", interval.begin, interval.end, stage, interval.phase, words, line)
            elif interval.copies:
                into = interval.copies[0]
                nbytes = sum(copy.amount for copy in interval.copies)
                words = f"asks for {nbytes:,} bytes at {self._name(into.barrier)}, phase {into.phase}"
                label = self._label(into.barrier)
                span = PipelineSpan("ask", interval.begin, interval.end, label, into.phase, words, _line(into))
            found.append((span, (interval.barrier, interval.phase)))
        for stuck, event in self.stuck:
            if stuck == warp:
                what = f"phase {event.phase} (parity {event.amount}) of {self._name(event.barrier)}"
                stage = self._label(event.barrier)
                words = f"waits for ever for {what}"
                span = PipelineSpan("wait", intervals[-1].end, None, stage, event.phase, words, _line(event))
                found.append((span, (event.barrier, event.phase)))
        return found

    def _stage(self, stage: int) -> list[PipelineSpan]:
        """When a stage is being filled, and when it is full: until the barrier says that may be filled again."""
        copies: dict[int, list[_Copy]] = {}
        for copy in self.copies.values():
            if copy.barrier == stage:
                copies.setdefault(copy.phase, []).append(copy)
        label, found = self._label(stage), []
        for phase, several in sorted(copies.items()):
            begin, arrived = min(c.begin for c in several), max(c.end for c in several)
            words = f"phase {phase}: {len(several)} cop{'ies' if len(several) > 1 else 'y'} under way"
            complete = self.done.get((stage, phase))
            found.append(PipelineSpan("copy", begin, arrived, label, phase, words))
            if complete is None:
                continue
            end = self._freed(stage, phase, copies.get(phase + 1, []), complete)
            found.append(
                PipelineSpan("full", complete, end, label, phase, f"phase {phase} is complete: the stage is full")
            )
        return found

    def _freed(self, stage: int, phase: int, following: list[_Copy], complete: float) -> float:
        """When a stage may be filled again: the phase that the next copies waited for is complete, or the last interval ends
        that waited for this one."""
        freed = [self.done.get(c.freed, 0) for c in following if c.freed[0] == self.freed_by.get(stage, -2)]
        every = (interval for intervals in self.intervals.values() for interval in intervals)
        used = [interval.end for interval in every if (interval.barrier, interval.phase) == (stage, phase)]
        return max(complete, *(freed or used or [complete]))

    # ---- barriers

    def histories(self) -> list[BarrierHistory]:
        """The first events at the barriers of the first stage; without stages at the first barriers that are waited for."""
        waited = [e.barrier for e in self.log.events if e.what in ("pass", "stuck") and e.barrier in self.own]
        chosen = list(dict.fromkeys(waited))
        if self.stages:
            first = self.stages[0]
            chosen = [first, self.freed_by[first]] if first in self.freed_by else [first]
        return [self._history(barrier) for barrier in chosen[:BARRIERS]]

    def _history(self, barrier: int) -> BarrierHistory:
        events: list[BarrierEvent] = []
        count = 0
        for e in self.log.events:
            if e.barrier != barrier or e.what == "copy":
                continue
            count = max(count, e.amount) if e.what == "init" else count
            who = "copy engine" if e.what == "bytes" and e.copy else self._who(e.warps)
            what = "wait" if e.what == "stuck" else e.what
            event = BarrierEvent(what, who, e.amount, e.pending, e.bytes, e.phase, _line(e))
            if not events or events[-1] != event:
                events.append(event)
        label = self._label(barrier)
        role = f"stage {label} is full" if barrier in self.stages else ""
        role = f"stage {label} may be filled" if barrier in self.freed_by.values() else role
        return BarrierHistory(self._name(barrier), count, events[:EVENTS], role)

    # ---- words

    def _label(self, barrier: int) -> str:
        """The number of the stage to which a barrier belongs; empty for none."""
        if barrier in self.stages:
            return str(self.stages.index(barrier))
        for stage, other in self.freed_by.items():
            if other == barrier:
                return str(self.stages.index(stage))
        name = self._name(barrier)
        return name.rpartition("[")[2].rstrip("]") if name.endswith("]") else ""

    def _name(self, barrier: int) -> str:
        return self.log.names.get(barrier, "a barrier")

    def _who(self, warps: Iterable[int]) -> str:
        """Warps in words, with their block if it is not the one that is shown."""
        by_block: dict[int, list[int]] = {}
        for warp in sorted(warps):
            by_block.setdefault(warp // self.log.warps_of_block, []).append(warp % self.log.warps_of_block)
        texts = [
            _warps(group) + (f" of block {block} of the cluster" if block else "") for block, group in by_block.items()
        ]
        return " and ".join(texts)


def _warps(numbers: Sequence[int]) -> str:
    """Warps in words.

    >>> _warps([4]), _warps([0, 1, 2, 3]), _warps([0, 2])
    ('warp 4', 'warps 0–3', 'warps 0, 2')
    """
    if len(numbers) == 1:
        return f"warp {numbers[0]}"
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"warps {numbers[0]}–{numbers[-1]}"
    return f"warps {', '.join(map(str, numbers))}"


def _line(event: LoggedEvent | None) -> int:
    return 0 if event is None or event.ins is None else source_line(event.ins)


def source_line(ins: Instruction) -> int:
    """The source line of an instruction: that of the call, if it is in a function that was inlined."""
    outer = next((call for call in reversed(ins.calls) if not call.in_library), None)
    return outer.line if outer is not None else ins.users.line


# ---- all pictures ----------------------------------------------------------------------------------------------------


def has_mbarriers(code: Iterable[Instruction]) -> bool:
    """Whether instructions use mbarriers, so that there is a pipeline to record."""
    return any(ins.parts[0] == "mbarrier" for ins in code)


def pipeline_of(log: EventLog) -> Pipeline | None:
    """The data of the pictures; None if the block used no mbarriers and copied no boxes."""
    tiles = [_tile(tile) for tile in log.tiles[:TILES]]
    if not any(event.what in ("pass", "stuck") for event in log.events):
        return Pipeline(log.block, 0, log.whole, [], [], tiles) if tiles else None
    timing = PipelineTiming(log)
    rows, ticks = timing.rows()
    if not any(span.kind != "work" for row in rows for span in row.spans):
        rows, ticks = [], 0  # nothing waited, and nothing was copied or multiplied
    whole = log.whole and ticks <= TICKS and len(rows) <= ROWS
    return Pipeline(log.block, min(ticks, TICKS), whole, rows[:ROWS], timing.histories(), tiles)


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
