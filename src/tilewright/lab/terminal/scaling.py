"""Simulated products on clusters of growing size, as tables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from ...host.machine import bytes_text, seconds_text
from ...records.scaling import ScalingPoint

#: What decides the time, in a table's words.
BINDS = {"balance": "imbalance", "start": "start-up"}


def show_scaling(console: Console, points: Sequence[ScalingPoint]) -> None:
    """Print a table for each series, a row for each number of workers. Bytes are those of a worker that has tiles."""
    for words, series in itertools.groupby(points, _series):
        console.print(words, style="italic", highlight=False, markup=False)
        rows = list(series)
        grows = rows[0].grown_from is not None and all(point.m == point.n == point.k for point in rows)
        table = Table(box=None, pad_edge=False)
        heads = ["workers", "n" if grows else "tiles", "used as", "time", "efficiency", "moves", "least"]
        for head in heads:
            table.add_column(head, justify="right", no_wrap=True)
        table.add_column("bound by", no_wrap=True)
        for point in rows:
            moved, least = (bytes_text(each // point.used) or "" for each in (point.moved_bytes, point.least_bytes))
            table.add_row(
                *(str(point.workers), str(point.n) if grows else "×".join(map(str, point.tiles))),
                *("×".join(map(str, point.parts)), _time(point.total_s), f"{point.efficiency:.1%}", moved, least),
                BINDS.get(point.binds, point.binds),
            )
        console.print(table, highlight=False)


def _time(seconds: float) -> str:
    return seconds_text(seconds) if seconds < 1000 else f"{seconds:,.0f} s"


def _series(point: ScalingPoint) -> str:
    """The products of one table, in words."""
    where = "A and B at the workers" if point.where == "workers" else "A, B and C in storage"
    grown = ", growing with the workers" if point.grown_from else ""
    return f"{point.series} {point.dtype}{grown}; {where}"
