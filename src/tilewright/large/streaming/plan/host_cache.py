"""Decides which blocks of files are cached in the host's memory, because they will be loaded again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .eviction import Slots
from .grid import OperandBlock
from .schedule import Load


@dataclass(frozen=True)
class HostCache:
    """Two dictionaries from the number of a load to a slot of the host's cache. Loads in ``hits`` find their block in
    the cache, and loads in ``fills`` store their block there.
    """

    hits: dict[int, int]
    fills: dict[int, int]


def cache_blocks(loads: Sequence[Load], slots: int) -> HostCache:
    """Return the cache contents that give the most hits with ``slots`` slots.

    A block is cached if a slot is free, or if it will be loaded again earlier than a cached block, which is then evicted.
    """
    hits: dict[int, int] = {}
    fills: dict[int, int] = {}
    cached = Slots(slots)
    for load, next_use in zip(loads, _next_loads(loads), strict=True):
        slot = cached.where.get(load.block)
        if slot is not None:
            hits[load.number] = slot
        elif next_use < math.inf:
            slot = cached.take(load.block, next_use)
            if slot is not None:
                fills[load.number] = slot
        if slot is not None and next_use < math.inf:
            cached.rank((-next_use, slot))
        elif slot is not None:
            cached.empty(slot)
    return HostCache(hits, fills)


def _next_loads(loads: Sequence[Load]) -> list[float]:
    """For each load, the number of the next load of the same block, or inf."""
    next_loads = [math.inf] * len(loads)
    seen: dict[OperandBlock, int] = {}
    for number in reversed(range(len(loads))):
        next_loads[number] = seen.get(loads[number].block, math.inf)
        seen[loads[number].block] = number
    return next_loads
