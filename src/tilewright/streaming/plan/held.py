"""The second tier: blocks from a disk that are kept in the host's memory, because they will be loaded again."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from .grid import Block
from .program import Load


@dataclass(frozen=True)
class Held:
    """Which loads find their block in a slot of the host's memory, and which leave theirs in one; by number of the load."""

    hits: dict[int, int]
    kept: dict[int, int]


def hold(loads: Sequence[Load], slots: int) -> Held:
    """The most hits that ``slots`` slots allow: a block is kept if it comes again before one of those there (Belady)."""
    again = _next_loads(loads)
    hits: dict[int, int] = {}
    kept: dict[int, int] = {}
    where: dict[Block, int] = {}
    free = list(range(slots))
    #: Who comes again last comes first: (−number of that load, block). What has come since is stale.
    queue: list[tuple[float, Block]] = []
    due: dict[Block, float] = {}
    for number, load in enumerate(loads):
        block, next_use = load.block, again[number]
        if block in where:
            hits[number] = where[block]
        elif next_use < math.inf:
            if not free:
                _give_way(next_use, queue, due, where, free)
            if free:
                kept[number] = where[block] = free.pop()
        if block in where and next_use < math.inf:
            due[block] = next_use
            heapq.heappush(queue, (-next_use, block))
        elif block in where:
            free.append(where.pop(block))
            del due[block]
    return Held(hits, kept)


def _next_loads(loads: Sequence[Load]) -> list[float]:
    """For each load, the number of the next one of the same block."""
    again = [math.inf] * len(loads)
    seen: dict[Block, int] = {}
    for number in reversed(range(len(loads))):
        again[number] = seen.get(loads[number].block, math.inf)
        seen[loads[number].block] = number
    return again


def _give_way(
    next_use: float,
    queue: list[tuple[float, Block]],
    due: dict[Block, float],
    where: dict[Block, int],
    free: list[int],
) -> None:
    """Free the slot of the block that comes again last, if that is after ``next_use``."""
    while queue and due.get(queue[0][1]) != -queue[0][0]:
        heapq.heappop(queue)
    if queue and -queue[0][0] > next_use:
        _, block = heapq.heappop(queue)
        del due[block]
        free.append(where.pop(block))
