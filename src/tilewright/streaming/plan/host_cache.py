"""Blocks from a disk that are cached in the host's memory, because they will be loaded again: the second tier."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .eviction import Slots
from .grid import OperandBlock
from .schedule import Load


@dataclass(frozen=True)
class HostCache:
    """Slots of the host's memory, by number of the load: ``hits`` find their block there, ``fills`` leave theirs there."""

    hits: dict[int, int]
    fills: dict[int, int]


def cache_blocks(loads: Sequence[Load], slots: int) -> HostCache:
    """The most hits that ``slots`` slots allow: a block is cached if its next load precedes that of a cached one."""
    again = _next_loads(loads)
    hits: dict[int, int] = {}
    fills: dict[int, int] = {}
    cached = Slots(slots)
    for load, next_use in zip(loads, again, strict=True):
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
    """For each load, the number of the next one of the same block."""
    again = [math.inf] * len(loads)
    seen: dict[OperandBlock, int] = {}
    for number in reversed(range(len(loads))):
        again[number] = seen.get(loads[number].block, math.inf)
        seen[loads[number].block] = number
    return again
