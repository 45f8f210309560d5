"""Timelines made by hand, with numbers that can be added up in the head, and one of a plan of 65536³."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

from tilewright.large.streaming.plan.cost import Rates
from tilewright.large.streaming.plan.cuts import Room
from tilewright.large.streaming.plan.plan import StreamPlan
from tilewright.large.streaming.plan.stream import plan_stream
from tilewright.large.streaming.run.job import predicted_pieces
from tilewright.product.problem import Problem
from tilewright.records.timeline import Piece, Timeline

#: On a place: what it did from when to when.
SPANS = (
    *(
        ("copy in", "A[0, 0]", 0, 1),
        ("copy in", "B[0, 0]", 1, 2),
        ("copy in", "A[0, 1]", 2, 3),
        ("copy in", "B[1, 0]", 3, 5),
    ),
    *(("compute", "C[0, 0] step 0", 2, 4), ("compute", "C[0, 0] step 1", 5, 8)),
    ("copy out", "C[0, 0]", 8, 9),
)


def tiny(place: str = "cpu", **changed: Any) -> Timeline:
    """C[100×200] = A[100×300]·B[300×200] in one tile and steps of 256: 10 s, of which 5 are computed, and 2, 1 and 2 not."""
    pieces = [Piece(place, track, name, float(start), float(end)) for track, name, start, end in SPANS]
    expected = {"total_s": 8.0, "compute_s": 5.0, "first_s": 2.0, "exposed_s": 0.0, "last_s": 1.0}
    whole = Timeline(100, 200, 300, "float32", 4, (100, 200, 256), pieces, tiles=1, finished=1, seconds=10.0)
    return replace(whole, plan="one tile", expected=expected, environment={"processor": "Made up"}, **changed)


@cache
def large_plan(memory: int = 130 << 30, places: int = 1) -> StreamPlan:
    rates = Rates(53e12, 55e9, 25e9, 30e9, 1e-4, (128, 256, 132))
    return plan_stream(Problem(65536, 65536, 65536, "float32"), Room(memory, 0, 128), rates, places)


def large(places: int = 1, chunks: int = 64, memory: int = 11_000_000_000) -> Timeline:
    """A plan of 65536³ as if it had run on each of ``places``, every block and tile in chunks staged by threads."""
    plan = large_plan(memory)
    grid = plan.grid
    pieces = []
    for number in range(places):
        for piece in predicted_pieces(plan, [f"cuda:{number}"]):
            pieces.append(piece)
            stage = {"copy in": "stage in", "copy out": "stage out"}.get(piece.track)
            step = (piece.end_s - piece.start_s) / chunks
            for chunk in range(chunks if stage else 0):
                start = piece.start_s + chunk * step
                rows = f"{piece.name[0]} rows {chunk * 512}"
                pieces.append(Piece(piece.place, stage or "", rows, start, start + 6 * step))
    blocks = grid.bm, grid.bn, grid.bk
    return Timeline(grid.m, grid.n, grid.k, plan.dtype, 4, blocks, pieces, tiles=1, finished=1, plan=str(plan))


def with_pieces(timeline: Timeline, *more: Piece) -> Timeline:
    return replace(timeline, pieces=[*timeline.pieces, *more])


def check_trace(data: dict) -> None:
    """What the Trace Event format says of complete events and metadata; and what viewers need of those of a thread."""
    assert data["displayTimeUnit"] in ("ms", "ns")
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    named = set()
    for event in data["traceEvents"]:
        assert isinstance(event["name"], str)
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
            value = event["args"]["name" if event["name"].endswith("name") else "sort_index"]
            assert isinstance(value, str if event["name"].endswith("name") else int)
            named.add((event["name"], event["pid"], event["tid"]))
        else:
            assert event["ph"] == "X"
            assert isinstance(event["cat"], str)
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            threads.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for (pid, tid), spans in threads.items():
        assert ("process_name", pid, 0) in named
        assert ("thread_name", pid, tid) in named
        spans.sort()
        assert all(end <= start + 0.01 for (_, end), (start, _) in itertools.pairwise(spans))
