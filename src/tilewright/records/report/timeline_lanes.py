"""The lanes of a timeline as bars in time, few enough for a page, and as paths of a picture 1000 units wide.

A lane is drawn piece by piece, in as many rows as pieces overlap. The lanes of staging threads have thousands of pieces:
they are drawn as the number of threads at work. The page's script draws the same paths again when the reader zooms.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..timeline import COMPUTE, Piece, Timeline, union

WIDTH = 1000
ROW, GAP = 24, 3
#: A lane in which more pieces overlap is drawn as their number over time.
MOST_ROWS = 3
#: Limits of a page: bars of all lanes, and gaps between steps. Above them short bars are merged, short gaps omitted.
MOST_BARS = 30_000
MOST_GAPS = 4000
#: Intervals of time of which a density has a value each.
BINS = 4000

#: The kinds of bars: blocks of A and of B, tiles of C by turns in two tones, and other work.
KINDS = ("a", "b", "c", "d", "x")


@dataclass(frozen=True)
class Bar:
    """A piece, or several consecutive ones that are too short to be drawn separately; ``pieces`` is their number."""

    start_s: float
    end_s: float
    row: int
    kind: str
    name: str
    amount: int | None = None
    pieces: int = 1


@dataclass(frozen=True)
class DrawnLane:
    """A lane as it is drawn: ``bars`` in ``rows``, or its ``density``, how many pieces of each kind there were at a time."""

    name: str
    unit: str = ""
    rows: int = 1
    bars: list[Bar] = field(default_factory=list)
    density: dict[str, list[float]] = field(default_factory=dict)
    peak: float = 0.0

    @property
    def height(self) -> int:
        """Pixels."""
        return 40 if self.density else self.rows * (ROW + GAP) - GAP


def piece_rows(pieces: Sequence[Piece]) -> list[int]:
    """A row for each piece, so that no two pieces of a row overlap; ``pieces`` are sorted by their beginnings.

    >>> piece_rows([Piece("cpu", "copy in", "", *span) for span in ((0, 2), (1, 3), (2, 4))])
    [0, 1, 0]
    """
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    assigned = []
    for piece in pieces:
        while busy and busy[0][0] <= piece.start_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        row = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (piece.end_s, row))
        assigned.append(row)
    return assigned


def lanes(timeline: Timeline, place: str, most: int) -> list[DrawnLane]:
    """The lanes of a place in their order, each with about ``most`` bars at most."""
    found = timeline.lanes(place)
    tones = _tones(found.get(COMPUTE, []))
    return [_lane(timeline, name, pieces, tones, most) for name, pieces in found.items()]


def _lane(timeline: Timeline, name: str, pieces: list[Piece], tones: dict[str, str], most: int) -> DrawnLane:
    kinds = [_kind(piece.name, tones) for piece in pieces]
    placed = piece_rows(pieces)
    if name.startswith("stage") or max(placed) >= MOST_ROWS:
        density = {kind: _density(timeline, pieces, kinds, kind) for kind in dict.fromkeys(sorted(kinds))}
        peak = max(map(sum, zip(*density.values(), strict=True)))
        return DrawnLane(name, density=density, peak=peak)
    works = [timeline.work(piece) for piece in pieces]
    bars = [
        Bar(piece.start_s, piece.end_s, row, kind, piece.name, work.amount if work else None)
        for piece, row, kind, work in zip(pieces, placed, kinds, works, strict=True)
    ]
    if len(bars) > most:
        bars = [bar for row in range(max(placed) + 1) for bar in _thinned(bars, row, timeline.total_s / most)]
    unit = next((work.unit for work in works if work), "")
    return DrawnLane(name, unit, max(placed) + 1, bars)


def _tones(steps: Iterable[Piece]) -> dict[str, str]:
    """One of two tones for each tile of C, by turns in the order in which they were begun."""
    tiles = dict.fromkeys(piece.name.partition(" step ")[0] for piece in steps)
    return {tile: "cd"[number % 2] for number, tile in enumerate(tiles)}


def _kind(name: str, tones: dict[str, str]) -> str:
    operand = name[:1].lower()
    return tones.get(name.partition(" step ")[0], operand if operand in ("a", "b", "c") else "x")


def _thinned(bars: Iterable[Bar], row: int, least_s: float) -> list[Bar]:
    """The bars of a row; consecutive bars are merged up to a length of ``least_s``."""
    merged: list[Bar] = []
    for bar in bars:
        if bar.row != row:
            continue
        last = merged[-1] if merged else None
        if last is None or bar.end_s - last.start_s > least_s:
            merged.append(bar)
            continue
        known = last.amount is not None and bar.amount is not None
        amount = (last.amount or 0) + (bar.amount or 0) if known else None
        name = f"{last.name.partition(' … ')[0]} … {bar.name}"
        merged[-1] = Bar(last.start_s, bar.end_s, row, last.kind, name, amount, last.pieces + bar.pieces)
    return merged


def _density(timeline: Timeline, pieces: Sequence[Piece], kinds: Sequence[str], kind: str) -> list[float]:
    """The average number of pieces of a kind in each of BINS intervals of time."""
    step = timeline.total_s / BINS or 1.0
    filled, more = (
        [0.0] * BINS,
        [0] * (BINS + 1),
    )  # of intervals that a piece covers partly; and changes of the number of pieces that cover whole ones
    for piece, its_kind in zip(pieces, kinds, strict=True):
        if its_kind != kind:
            continue
        first, last = (min(BINS - 1, int(at / step)) for at in (piece.start_s, piece.end_s))
        for number in {first, last}:
            inside = min(piece.end_s, (number + 1) * step) - max(piece.start_s, number * step)
            filled[number] += max(0.0, inside) / step
        if last > first + 1:
            more[first + 1] += 1
            more[last] -= 1
    return [part + whole for part, whole in zip(filled, itertools.accumulate(more), strict=False)]


def gaps(timeline: Timeline, place: str) -> list[tuple[float, float]]:
    """The gaps in which nothing was computed; where there are many, those too short to be seen are left out."""
    total = timeline.total_s
    steps = union((piece.start_s, piece.end_s) for piece in timeline.lanes(place).get(COMPUTE, []))
    ends = [0.0, *(end for _, end in steps)]
    found = [gap for gap in zip(ends, [*(start for start, _ in steps), total], strict=True) if gap[0] < gap[1]]
    return found if len(found) <= MOST_GAPS else [gap for gap in found if gap[1] - gap[0] > total / MOST_GAPS]


# ---- paths -----------------------------------------------------------------------------------------------------------


def paths(lane: DrawnLane, total_s: float) -> dict[str, str]:
    """Kind → the path of a lane's bars or density, from 0 to WIDTH."""
    return _areas(lane) if lane.density else _boxes(lane, total_s)


def _boxes(lane: DrawnLane, total_s: float) -> dict[str, str]:
    scale = WIDTH / (total_s or 1.0)
    boxes: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for bar in lane.bars:
        x, end = bar.start_s * scale, max(bar.end_s * scale, bar.start_s * scale + 0.5)
        known = boxes.setdefault((bar.kind, bar.row), [])
        if end - x > 4:
            end -= 1  # a gap between the steps of one tile
        if known and x - known[-1][1] < 0.25:
            known[-1] = known[-1][0], max(end, known[-1][1])
        else:
            known.append((x, end))
    drawn: dict[str, str] = {}
    for (kind, row), spans in boxes.items():
        drawn[kind] = drawn.get(kind, "") + "".join(
            rectangle_path(x, row * (ROW + GAP), end - x, ROW) for x, end in spans
        )
    return drawn


def rectangle_path(x: float, y: float, width: float, height: float) -> str:
    """A rectangle as a path of SVG."""
    return f"M{x:.2f} {y:g}h{width:.2f}v{height:g}h{-width:.2f}z"


def _areas(lane: DrawnLane) -> dict[str, str]:
    """The densities of the kinds, stacked."""
    each = BINS // WIDTH
    below = [0.0] * WIDTH
    drawn = {}
    for kind, filled in lane.density.items():
        above = [low + sum(filled[x * each : (x + 1) * each]) / each for x, low in enumerate(below)]
        top, bottom = ([lane.height * (1 - y / (lane.peak or 1)) for y in edge] for edge in (above, below))
        back = "".join(f"V{y:.1f}h-1" for y in reversed(bottom))
        drawn[kind] = f"M0 {top[0]:.1f}" + "".join(f"V{y:.1f}h1" for y in top) + back + "z"
        below = above
    return drawn


# ---- for the script --------------------------------------------------------------------------------------------------


def as_data(lane: DrawnLane) -> dict[str, Any]:
    """A lane as JSON values: bars as flat lists of µs from the beginning, µs long, row, kind, name, amount and pieces."""
    data: dict[str, Any] = {"name": lane.name, "unit": lane.unit, "height": lane.height, "peak": round(lane.peak, 3)}
    if lane.density:
        return data | {"density": {kind: [round(x, 2) for x in filled] for kind, filled in lane.density.items()}}
    amounts = list(dict.fromkeys(bar.amount for bar in lane.bars))
    index = {amount: number for number, amount in enumerate(amounts)}
    bars = [
        [
            *(round(bar.start_s * 1e6, 1), round((bar.end_s - bar.start_s) * 1e6, 1)),
            *(bar.row, KINDS.index(bar.kind), bar.name, index[bar.amount], bar.pieces),
        ]
        for bar in lane.bars
    ]
    return data | {"amounts": amounts, "bars": bars}
