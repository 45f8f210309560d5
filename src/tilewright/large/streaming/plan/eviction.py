"""Implements the eviction rule that evicts the block whose next use is farthest in the future (Belady, IBM Systems
Journal 1966).

The memory of a place (``schedule``) and the host's cache (``host_cache``) both use this rule, but rank the next uses
differently.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable
from heapq import heapify, heappop, heappush
from typing import Any

#: The negated next use of a slot's block, numbers that decide ties, and the slot. The block of the least rank is evicted
#: first.
Rank = tuple[float, ...]


class Slots:
    """A fixed number of slots, each of which is empty or holds one block. ``where`` maps a block to its slot."""

    def __init__(self, count: int) -> None:
        self.where: dict[Any, int] = {}
        self._blocks: dict[int, Hashable] = {}
        self._free = list(reversed(range(count)))
        #: Heap of ranks. One that is not its slot's latest is stale, and skipped.
        self._queue: list[Any] = []
        self._latest: dict[float, Rank] = {}

    def rank(self, rank: Rank) -> None:
        """Set the rank of a slot for eviction, in place of its earlier rank."""
        self._latest[rank[-1]] = rank
        heappush(self._queue, rank)

    def rank_all(self, ranks: list[Rank]) -> None:
        """Replace the ranks of all slots."""
        self._latest = {rank[-1]: rank for rank in ranks}
        self._queue = ranks
        heapify(self._queue)

    def blocks(self) -> Iterable[tuple[int, Any]]:
        """Return each slot that is not empty, with its block."""
        return self._blocks.items()

    def take(self, block: Hashable, next_use: float = -math.inf, in_use: Collection[int] = ()) -> int | None:
        """Return a slot for ``block``, or None if no slot is empty and no block may be evicted.

        The returned slot is empty, or else it is the slot whose block has the farthest next use, if that use is after
        ``next_use``. Blocks in slots that are ``in_use`` are not evicted.
        """
        slot = self._free.pop() if self._free else self._victim(next_use, in_use)
        if slot is not None:
            self.replace(slot, block)
        return slot

    def replace(self, slot: int, block: Hashable) -> None:
        """Put ``block`` into ``slot`` in place of its present block. After ``replace``, the caller must call ``rank``
        for the slot.
        """
        old = self._blocks.get(slot)
        if old is not None:
            del self.where[old]
        self.where[block], self._blocks[slot] = slot, block

    def empty(self, slot: int) -> None:
        """Make ``slot`` empty, because its block is not needed any more."""
        del self.where[self._blocks.pop(slot)]
        self._latest.pop(slot, None)
        self._free.append(slot)

    def _victim(self, next_use: float, in_use: Collection[int]) -> int | None:
        skipped, victim, queue, latest = [], None, self._queue, self._latest
        while queue and victim is None and -queue[0][0] > next_use:
            rank = heappop(queue)
            slot = rank[-1]
            if latest.get(slot) is not rank:
                continue
            if slot in in_use:
                skipped.append(rank)
            else:
                victim = slot
        for rank in skipped:
            heappush(queue, rank)
        return victim
