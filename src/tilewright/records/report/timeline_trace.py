"""A timeline in the Trace Event format, which https://ui.perfetto.dev and other viewers of traces open.

A process is a place, a thread is a lane. Pieces of a thread may not overlap there, unless one lies within the other: a lane
in which some do becomes several threads.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..timeline import Piece, Timeline
from .html import write_whole
from .timeline_lanes import piece_rows


def trace(timeline: Timeline) -> dict[str, Any]:
    """The trace as JSON values: complete events ("X"), in µs from the start, and metadata ("M") with the lanes' names."""
    events: list[dict[str, Any]] = []
    tids = itertools.count(1)  # one for each lane of all places: a viewer may take a thread's number for its name
    for pid, place in enumerate(timeline.places, 1):
        events += [
            _metadata("process_name", pid, 0, name=place),
            _metadata("process_sort_index", pid, 0, sort_index=pid),
        ]
        for name, pieces in _threads(timeline, place):
            tid = next(tids)
            events += [_metadata("thread_name", pid, tid, name=name)]
            events += [_metadata("thread_sort_index", pid, tid, sort_index=tid)]
            events += [_complete(timeline, piece, pid, tid) for piece in pieces]
    facts = {"product": f"({timeline.m}×{timeline.k}) · ({timeline.k}×{timeline.n}) {timeline.dtype}"}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts | {"plan": timeline.plan}}


def write_trace(timeline: Timeline, path: str | Path) -> Path:
    """Writes the trace to ``path``, whole or not at all; see ``tilewright.records.report.write_trace``."""
    return write_whole(json.dumps(trace(timeline), separators=(",", ":"), allow_nan=False) + "\n", path)


def _threads(timeline: Timeline, place: str) -> Iterator[tuple[str, Sequence[Piece]]]:
    """The lanes of a place, those with overlapping pieces as several."""
    for name, pieces in timeline.lanes(place).items():
        placed = piece_rows(pieces)
        for row in range(max(placed) + 1):
            label = f"{name} {row + 1}" if max(placed) else name
            yield label, [piece for piece, its_row in zip(pieces, placed, strict=True) if its_row == row]


def _metadata(kind: str, pid: int, tid: int, **values: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": values}


def _complete(timeline: Timeline, piece: Piece, pid: int, tid: int) -> dict[str, Any]:
    work = timeline.work(piece)
    start, end = (round(seconds * 1e6, 3) for seconds in (piece.start_s, piece.end_s))
    return {
        **{"name": piece.name, "cat": piece.lane, "ph": "X", "ts": start, "dur": round(end - start, 3)},
        **{"pid": pid, "tid": tid, "args": {work.unit: work.amount} if work else {}},
    }
