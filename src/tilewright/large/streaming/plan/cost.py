"""Predicts the time of a schedule from measured rates of copying and multiplying.

A schedule has three ordered lists: loads, multiplications and stores. An entry begins when the previous entry of its
list and all entries that it waits for are done. Because of this order, one pass over the schedule gives the time of the
product.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from .host_cache import HostCache
from .schedule import Schedule


@dataclass(frozen=True)
class Rates:
    """The measured rates of a place: operations and bytes a second, and ``latency_s``, the additional time of each entry of
    the schedule.

    The place receives ``in_bytes`` a second from the host's memory, and copies out ``out_bytes`` a second. Operands are
    read at ``read_bytes`` a second, which is inf if they are in the host's memory. Caching a block in the host's memory
    costs a read and a copy at ``stage_bytes`` a second.

    ``wave`` contains the rows and the columns of the kernel's tiles, and the number of tiles that are computed at the
    same time. A last wave with fewer tiles takes as long as a full wave. For each ``depth`` elements of k, a wave takes
    ``wave_s`` in addition to its operations, for reading and writing C. ``copy_s`` is the computing time that a copied
    byte costs, if the same processors copy and multiply or if blocks are split after the copy. ``row_s`` is the time
    that each row of a tile costs in addition if it is written to a file.

    All places together read at most ``most_read_bytes`` a second, which may be more than one place can read, and write
    at most ``write_bytes`` a second. If ``peers`` is set, the places copy blocks from each other, so that each block is
    read only once.
    """

    flops: float
    in_bytes: float
    out_bytes: float
    read_bytes: float = math.inf
    latency_s: float = 0.0
    wave: tuple[int, int, int] = (1, 1, 1)
    wave_s: float = 0.0
    depth: int | None = None
    copy_s: float = 0.0
    row_s: float = 0.0
    write_bytes: float = math.inf
    most_read_bytes: float | None = None
    stage_bytes: float = math.inf
    peers: bool = False

    def shared(self, places: int) -> Rates:
        """Return the rates of one place if ``places`` places work at the same time."""
        reading = min(self.read_bytes, (self.most_read_bytes or self.read_bytes) / places)
        return replace(self, read_bytes=reading, write_bytes=self.write_bytes / places)

    def compute_s(self, m: int, n: int, k: int) -> float:
        """Return the seconds of one step, which multiplies an m×k block by a k×n block."""
        rows, columns, at_once = self.wave
        waves = math.ceil(math.ceil(m / rows) * math.ceil(n / columns) / at_once)
        passes = 1 if self.depth is None else math.ceil(k / self.depth)
        return waves * (at_once * rows * columns * 2 * k / self.flops + passes * self.wave_s) + self.latency_s


class TimeSpan(NamedTuple):
    """The times at which an entry of the schedule begins and ends, in seconds from the start."""

    start_s: float
    end_s: float


@dataclass(frozen=True)
class Cost:
    """The predicted time of a schedule, and the bytes that the schedule moves.

    ``compute_s`` is the time of the multiplications alone. The first multiplication begins after ``first_s``, and the
    product ends ``last_s`` after the last multiplication. Nothing is multiplied during ``first_s`` and ``last_s``.
    ``read_bytes`` are the bytes that are read from the operands; the rest of ``in_bytes`` comes from the host's cache
    or from other places.
    """

    loads: list[TimeSpan]
    multiplies: list[TimeSpan]
    stores: list[TimeSpan]
    in_bytes: int
    read_bytes: int
    out_bytes: int

    @property
    def total_s(self) -> float:
        """The seconds from the first load to the last store."""
        return max((spans[-1].end_s for spans in (self.loads, self.multiplies, self.stores) if spans), default=0.0)

    @property
    def compute_s(self) -> float:
        """The seconds of all multiplications."""
        return sum(span.end_s - span.start_s for span in self.multiplies)

    @property
    def first_s(self) -> float:
        """The seconds from the first load to the first multiplication."""
        return self.multiplies[0].start_s if self.multiplies else 0.0

    @property
    def last_s(self) -> float:
        """The seconds from the end of the last multiplication to the end of the last store."""
        return self.total_s - self.multiplies[-1].end_s if self.multiplies else self.total_s

    @property
    def exposed_s(self) -> float:
        """The seconds between the first and the last multiplication in which no multiplication runs, because blocks are
        not loaded yet.
        """
        return max(0.0, self.total_s - self.first_s - self.last_s - self.compute_s)


def cost(
    schedule: Schedule,
    rates: Rates,
    itemsize: int,
    cached: HostCache | None = None,
    places_per_block: Mapping[str, float] | None = None,
    *,
    triangle: bool = False,
) -> Cost:
    """Return the cost of a schedule for elements of ``itemsize`` bytes.

    ``cached`` says which blocks are cached on the host. For each operand, ``places_per_block`` is the number of places
    that share one read of a block; of the bytes that are read, only the part of one place is counted. If only a
    ``triangle`` of C is computed, a tile on the diagonal takes half as many operations as another tile and needs no
    blocks of B, and every other tile is written twice.
    """
    grid = schedule.grid
    computing = functools.cache(rates.compute_s)  # of few shapes
    depths = [depth.stop - depth.start for depth in map(grid.depth, range(grid.steps))]
    loads, multiplies, stores = _Spans(), _Spans(), _Spans()
    read, moved, stored = 0.0, 0, 0
    copied = rows = 0  # bytes, and rows of tiles, since the previous multiplication
    out_bytes = min(rates.out_bytes, rates.write_bytes)
    hits, fills = (cached.hits, cached.fills) if cached else ({}, {})
    share = {operand: 1 / places for operand, places in (places_per_block or {"a": 1, "b": 1}).items()}
    for tile_store in schedule.stores:
        m, n = grid.size(tile_store.tile)
        on_diagonal = triangle and tile_store.tile.i == tile_store.tile.j
        for step in schedule.multiplies[len(multiplies.spans) : tile_store.after_multiply + 1]:
            for load in schedule.loads[len(loads.spans) : max(step.needs) + 1]:
                if on_diagonal and load.block.operand == "b":
                    loads.add(rates.latency_s, multiplies.end(load.after_multiply))
                    continue
                size = grid.elements(load.block) * itemsize
                moved, copied, host_s = moved + size, copied + size, 0.0
                if load.number not in hits:
                    own = size * share[load.block.operand]
                    read, host_s = read + own, own / rates.read_bytes
                if load.number in hits or load.number in fills:
                    host_s += size / rates.stage_bytes
                loads.add(max(size / rates.in_bytes, host_s) + rates.latency_s, multiplies.end(load.after_multiply))
            x, y = step.needs
            step_s = computing(m, n, depths[step.p]) / (1 + on_diagonal) + copied * rates.copy_s + rows * rates.row_s
            multiplies.add(step_s, max(loads.end(x), loads.end(y), stores.end(step.after_store)))
            copied = rows = 0
        twice = triangle and not on_diagonal
        size = m * n * itemsize * (1 + twice)
        stored, copied, rows = stored + size, copied + size, rows + m + n * twice
        stores.add(size / out_bytes + rates.latency_s, multiplies.end(tile_store.after_multiply))
    return Cost(loads.spans, multiplies.spans, stores.spans, moved, math.ceil(read), stored)


class _Spans:
    """The time spans of the entries of one list of the schedule, one after another."""

    def __init__(self) -> None:
        self.spans: list[TimeSpan] = []
        self._free_s = 0.0

    def add(self, seconds: float, ready_s: float) -> None:
        start = max(self._free_s, ready_s)
        self._free_s = start + seconds
        self.spans.append(TimeSpan(start, self._free_s))

    def end(self, number: int) -> float:
        return self.spans[number].end_s if number >= 0 else 0.0
