"""The threads that wrote and read each cell of memory: finds races, and reads of bytes that no thread has written.

Every cell keeps the stamps (see ``clocks``) of its last writer, of two of its readers and of the last atomic or
volatile write, each with the instruction that did it. Two conflicting accesses with nothing to order them are a race
if one writes and the value changes by it; threads that write the value that is there already (a flag set by all) are
left alone. Atomics and volatile accesses do not race with one another, but with plain ones they do; a thread that
updates a cell by an atomic has seen all earlier atomics on it. Of many readers two are remembered, so a write that races
only with a third of the same warp can be missed; nothing is reported that is not there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .clocks import EPOCH, Clocks, other_thread, other_warp
from .values import Bools, Ints

#: The stamp of what was written by an atomic or asynchronously: written, but racing with nothing.
EXEMPT = np.int64(1)
#: Bytes of shadow for a cell.
CELL_BYTES = 36


@dataclass(frozen=True)
class Party:
    """The other side of a race: what it did, its stamp, the instruction by its place in the program, and the byte
    of the access that both touch."""

    did: str
    stamp: int
    instruction: int
    byte: int


@dataclass
class Remembered:
    """The accesses of one sort: for each cell the stamp of the last, and the instruction it was."""

    did: str
    stamp: Ints
    by: NDArray[np.int32]


class Shadow:
    """What is remembered of ``nbytes`` bytes of memory, in cells of ``grain`` bytes."""

    clocks: Clocks  # of the lanes whose accesses it sees; set when a batch begins

    def __init__(self, nbytes: int, grain: int, across_blocks: bool) -> None:
        self.grain, self.across_blocks = grain, across_blocks
        cells = -(-nbytes // grain) + 16
        self.sorts = [
            Remembered(did, np.zeros(cells, np.int64), np.zeros(cells, np.int32)) for did in ("wrote", "read", "read")
        ]
        self.conflict: tuple[list[Remembered], Ints] | None = None

    # ``reader`` is the last; ``other`` is one unlike it, of another warp if there is one.

    @property
    def writer(self) -> Ints:
        """The stamp of the last write to each cell; 0 where no thread wrote."""
        return self.sorts[0].stamp

    @property
    def by(self) -> NDArray[np.int32]:
        """The instruction that wrote each cell."""
        return self.sorts[0].by

    def reset(self) -> None:
        """Forget all accesses."""
        for sort in self.sorts:
            sort.stamp.fill(0)
            sort.by.fill(0)

    def refine(self, nbytes: int) -> None:
        """Make cells as small as the smallest access seen."""
        times, self.grain = self.grain // nbytes, nbytes
        for sort in self.sorts:
            sort.stamp, sort.by = np.repeat(sort.stamp, times), np.repeat(sort.by, times)

    def cells(self, offsets: Ints, nbytes: int, clock: Ints) -> tuple[Ints, Ints]:
        """The cells of each access, and the clock of its thread, both (n,) or (n, cells of an access)."""
        if nbytes < self.grain:
            self.refine(nbytes)
        first = offsets // self.grain if self.grain > 1 else offsets
        count = nbytes // self.grain
        if count == 1:
            return first, clock
        return first[:, None] + np.arange(count), clock[:, None]

    def _clashes(self, cells: Ints, clock: Ints, sorts: list[Remembered]) -> Bools:
        """Where nothing orders accesses of these sorts before the one now; ``party`` finds them again."""
        bad = np.zeros(cells.shape, bool)
        before = []
        for sort in sorts:
            then = sort.stamp[cells]
            wrong = self.clocks.unordered(then, clock)
            if wrong.any():
                bad |= wrong
                before.append(Remembered(sort.did, np.where(wrong, then, 0), sort.by[cells]))
        self.conflict = (before, clock)
        return bad

    def read(self, cells: Ints, clock: Ints, index: int) -> tuple[Bools, Bools]:
        """Note a read by instruction ``index``; returns which cells no thread wrote, and which another thread writes
        unordered."""
        race = self._clashes(cells, clock, [self.sorts[0], *self.sorts[3:]])
        _, last, other = self.sorts[:3]
        clocks = self.clocks
        before, before_by = last.stamp[cells], last.by[cells]
        last.stamp[cells], last.by[cells] = clock, index
        after = last.stamp[cells]
        # Of two readers keep one of another warp than the last: it races with every writer.
        mine = np.broadcast_to(clock, cells.shape)
        for stamps, by, live in ((before, before_by, clocks.recent(before, after)), (mine, None, None)):
            pick = other_thread(stamps, after) if live is None else live & other_thread(stamps, after)
            if pick.any():
                held = other.stamp[cells]
                pick &= other_warp(stamps, after) | ~(other_warp(held, after) & clocks.recent(held, after))
                other.stamp[cells[pick]] = stamps[pick]
                other.by[cells[pick]] = index if by is None else by[pick]
        return self.writer[cells] == 0, race

    def write(self, cells: Ints, clock: Ints, index: int) -> tuple[Bools, Bools]:
        """Note a write by instruction ``index``; returns which cells another thread wrote or read before, unordered, and
        which cells another thread writes in this very instruction (all but the last find another clock)."""
        before = self._clashes(cells, clock, self.sorts)
        self.writer[cells], self.by[cells] = clock, index
        last = self.writer[cells]
        together = last != clock
        if together.any() and self.conflict is not None:
            self.conflict[0].append(Remembered("together", last, self.by[cells]))
        return before, together

    def update(self, cells: Ints, clock: Ints, index: int) -> Bools:
        """Note an atomic or volatile write by instruction ``index``; returns which cells others accessed plainly before,
        unordered."""
        if len(self.sorts) == 3:
            stamp, by = np.zeros_like(self.writer), np.zeros_like(self.by)
            self.sorts.append(Remembered("updated", stamp, by))
        now = np.broadcast_to(clock, cells.shape)
        race = self._clashes(cells, now, self.sorts[:3])
        self.sorts[3].stamp[cells], self.sorts[3].by[cells] = now, index
        held = self.writer[cells]
        self.writer[cells] = np.where(held == 0, EXEMPT, held)
        return race

    def party(self, access: int) -> Party | None:
        """The other side of the race that the last access looked at ran into, ``access`` counting its lanes."""
        before, clock = self.conflict or ([], np.zeros(0, np.int64))
        for sort in before:
            stamps, by = np.atleast_1d(sort.stamp[access]), np.atleast_1d(sort.by[access])
            found = np.flatnonzero((stamps >= EPOCH) & (stamps != clock[access]))
            if found.size:
                return Party(sort.did, int(stamps[found[0]]), int(by[found[0]]), int(found[0]) * self.grain)
        return None
