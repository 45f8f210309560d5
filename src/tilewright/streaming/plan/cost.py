"""How long a schedule takes where copying and multiplying take what they were measured to take.

Each lane works in order, and each of its pieces begins when the lane is free and what it must wait for is done. That is
all: the time follows from the schedule by one pass over it.
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
    """What a place was measured to do: operations and bytes a second, and seconds that each piece takes in addition.

    Into the place come ``in_bytes`` a second from the host's memory, ``read_bytes`` from where the operands lie (a disk, or
    that very memory: then nothing is slower), and ``stage_bytes`` from where blocks are cached on the host, if any are:
    caching a block costs a read and a staging copy. ``out_bytes`` go from it to where the result lies. ``wave`` is what is
    computed at once: so many rows by so many columns, so many times; a last wave that is not full takes as long as others,
    and each takes ``wave_s`` in addition to its operations, for reading and writing C once for each ``depth`` of k.
    ``copy_s`` is what a byte that is copied takes of the time for multiplying, where the same processors do both.
    Several places have a share each of ``write_bytes`` to where the result lies, and of ``most_read_bytes``, which may be
    more than one of them can read; ``peers`` copy blocks from each other, and read each of them once together.
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
    write_bytes: float = math.inf
    most_read_bytes: float | None = None
    stage_bytes: float = math.inf
    peers: bool = False

    def shared(self, places: int) -> Rates:
        """What each of several places gets, which all work at once."""
        reading = min(self.read_bytes, (self.most_read_bytes or self.read_bytes) / places)
        return replace(self, read_bytes=reading, write_bytes=self.write_bytes / places)

    def compute_s(self, m: int, n: int, k: int) -> float:
        """Seconds for a step: a tile of C of m×n, and k."""
        rows, columns, at_once = self.wave
        waves = math.ceil(math.ceil(m / rows) * math.ceil(n / columns) / at_once)
        passes = 1 if self.depth is None else math.ceil(k / self.depth)
        return waves * (at_once * rows * columns * 2 * k / self.flops + passes * self.wave_s) + self.latency_s


class TimeSpan(NamedTuple):
    """When a piece of a lane began and ended, in seconds from the start."""

    start_s: float
    end_s: float


@dataclass(frozen=True)
class Cost:
    """What a schedule is predicted to take and to move.

    ``compute_s`` is the time of the multiplications alone. The first begins after ``first_s``, and after the last come
    ``last_s`` more: nothing hides these two. ``read_bytes`` are those of the ``in_bytes`` that were not yet in the host's
    memory.
    """

    loads: list[TimeSpan]
    multiplies: list[TimeSpan]
    stores: list[TimeSpan]
    in_bytes: int
    read_bytes: int
    out_bytes: int

    @property
    def total_s(self) -> float:
        """Seconds from the first load to the last store."""
        return max((lane[-1].end_s for lane in (self.loads, self.multiplies, self.stores) if lane), default=0.0)

    @property
    def compute_s(self) -> float:
        """Seconds of multiplications."""
        return sum(span.end_s - span.start_s for span in self.multiplies)

    @property
    def first_s(self) -> float:
        """Seconds until the first blocks are there."""
        return self.multiplies[0].start_s if self.multiplies else 0.0

    @property
    def last_s(self) -> float:
        """Seconds that the last tile takes to be stored."""
        return self.total_s - self.multiplies[-1].end_s if self.multiplies else self.total_s

    @property
    def exposed_s(self) -> float:
        """Time between the first multiplication and the last in which none was running: copies were waited for."""
        return max(0.0, self.total_s - self.first_s - self.last_s - self.compute_s)


def cost(
    schedule: Schedule,
    rates: Rates,
    itemsize: int,
    cached: HostCache | None = None,
    sharers: Mapping[str, float] | None = None,
) -> Cost:
    """The cost of a schedule for elements of ``itemsize`` bytes. Some blocks are ``cached`` on the host; a block of an
    operand is read by one of ``sharers`` places for all of them."""
    grid = schedule.grid
    computing = functools.cache(rates.compute_s)
    depths = [depth.stop - depth.start for depth in map(grid.depth, range(grid.steps))]
    loads, multiplies, stores = _Lane(), _Lane(), _Lane()
    read, moved, stored = 0.0, 0, 0
    copied = 0  # since the multiplication before
    out_bytes = min(rates.out_bytes, rates.write_bytes)
    hits, fills = (cached.hits, cached.fills) if cached else ({}, {})
    part = {operand: 1 / places for operand, places in (sharers or {"a": 1, "b": 1}).items()}
    for tile_store in schedule.stores:
        m, n = grid.size(tile_store.tile)
        for step in schedule.multiplies[len(multiplies.spans) : tile_store.after + 1]:
            for load in schedule.loads[len(loads.spans) : max(step.needs) + 1]:
                size = grid.elements(load.block) * itemsize
                moved, copied, brought = moved + size, copied + size, 0.0
                if load.number not in hits:
                    own = size * part[load.block.operand]
                    read, brought = read + own, own / rates.read_bytes
                if load.number in hits or load.number in fills:
                    brought += size / rates.stage_bytes
                loads.add(max(size / rates.in_bytes, brought) + rates.latency_s, multiplies.end(load.after))
            x, y = step.needs
            took = computing(m, n, depths[step.p]) + copied * rates.copy_s
            multiplies.add(took, max(loads.end(x), loads.end(y), stores.end(step.after)))
            copied = 0
        size = m * n * itemsize
        stored, copied = stored + size, copied + size
        stores.add(size / out_bytes + rates.latency_s, multiplies.end(tile_store.after))
    return Cost(loads.spans, multiplies.spans, stores.spans, moved, math.ceil(read), stored)


class _Lane:
    """The spans of a lane, one behind the other."""

    def __init__(self) -> None:
        self.spans: list[TimeSpan] = []
        self._free_s = 0.0

    def add(self, took: float, ready: float) -> None:
        start = max(self._free_s, ready)
        self._free_s = start + took
        self.spans.append(TimeSpan(start, self._free_s))

    def end(self, number: int) -> float:
        return self.spans[number].end_s if number >= 0 else 0.0
