"""Stores which threads wrote and read each cell of memory, to find races and reads of bytes that no thread has written.

Every cell has the stamps (see ``clocks``) of its last writer, of two of its readers and of the last atomic or volatile
write, each with its instruction. Two accesses that nothing orders are a race if one of them writes and changes the
value. Writing the value that the cell already has (such as a flag that all threads set) is no race. Atomic and volatile
accesses do not race with one another, but they do race with plain ones. A thread that updates a cell by an atomic is
ordered after all earlier atomics on the cell. The shadow stores only two readers of a cell, so it can miss a write that
races only with a third reader of the same warp. A race that is reported is never false.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .clocks import EPOCH, Clocks, other_thread, other_warp
from .values import Bools, Ints

#: The writer's stamp of a cell that only atomic or volatile writes have changed. Such a cell counts as written, but never
#: races.
EXEMPT = np.int64(1)
#: The bytes of shadow for each cell.
CELL_BYTES = 36


@dataclass(frozen=True)
class Party:
    """The other access of a race: its kind in words, its stamp, the index of its instruction, and the first byte that
    both accesses touch, counted from the first byte of the current access."""

    did: str
    stamp: int
    instruction: int
    byte: int


@dataclass
class Remembered:
    """The last access of one kind to each cell: its stamp and the index of its instruction."""

    did: str
    stamp: Ints
    by: NDArray[np.int32]


class Shadow:
    """The shadow of ``nbytes`` bytes of memory, in cells of ``grain`` bytes."""

    clocks: Clocks  # of the lanes whose accesses it sees; set when a batch begins

    def __init__(self, nbytes: int, grain: int, across_blocks: bool) -> None:
        self.grain, self.across_blocks = grain, across_blocks
        #: Whether the memory has no contents before the first write.
        self.starts_empty = not across_blocks
        cells = -(-nbytes // grain) + 16
        # The last writer, the last reader, another reader (of another warp if there is one), and after the first
        # ``update`` the last atomic or volatile write.
        self.sorts = [
            Remembered(did, np.zeros(cells, np.int64), np.zeros(cells, np.int32)) for did in ("wrote", "read", "read")
        ]
        self.conflict: tuple[list[Remembered], Ints] | None = None
        #: After the first volatile access to shared memory: for each cell the last volatile write and the last volatile
        #: read; and the cells that a loop polls.
        self.volatiles: list[Remembered] = []
        self.polled: NDArray[np.bool_] = np.zeros(0, bool)
        #: For each cell the number of the transfer (see ``transfers``) that currently writes or reads it; 0 for none.
        self.busy: NDArray[np.int32] | None = None
        #: For each cell the number of the last ``cp.async`` to it. It is under way as long as the cell has no writer.
        self.copies: NDArray[np.int32] | None = None

    @property
    def writer(self) -> Ints:
        """The stamp of the last write to each cell; 0 if no write has occurred."""
        return self.sorts[0].stamp

    @property
    def by(self) -> NDArray[np.int32]:
        """The index of the instruction that wrote each cell last."""
        return self.sorts[0].by

    def reset(self) -> None:
        """Forget all accesses."""
        for sort in (*self.sorts, *self.volatiles):
            sort.stamp.fill(0)
            sort.by.fill(0)
        self.polled.fill(False)
        for numbers in (self.busy, self.copies):
            if numbers is not None:
                numbers.fill(0)

    def busy_cells(self) -> NDArray[np.int32]:
        """Return the array ``busy``, which is created at the first use."""
        if self.busy is None:
            self.busy = np.zeros(self.writer.size, np.int32)
        return self.busy

    def copied_cells(self) -> NDArray[np.int32]:
        """Return the array ``copies``, which is created at the first use."""
        if self.copies is None:
            self.copies = np.zeros(self.writer.size, np.int32)
        return self.copies

    def being_copied(self, cells: Ints) -> Bools | None:
        """Return which of these cells a ``cp.async`` is still writing; None if no cell is being written."""
        if self.copies is None:
            return None
        coming = self.writer[cells] == 0
        if coming.any():
            coming &= self.copies[cells] > 0
        return np.asarray(coming) if coming.any() else None

    def refine(self, nbytes: int) -> None:
        """Divide the cells of the shadow until they are as small as the smallest access so far."""
        times, self.grain = self.grain // nbytes, nbytes
        self.polled = np.repeat(self.polled, times)
        for sort in (*self.sorts, *self.volatiles):
            sort.stamp, sort.by = np.repeat(sort.stamp, times), np.repeat(sort.by, times)
        if self.busy is not None:
            self.busy = np.repeat(self.busy, times)
        if self.copies is not None:
            self.copies = np.repeat(self.copies, times)

    def cells(self, offsets: Ints, nbytes: int, clock: Ints) -> tuple[Ints, Ints]:
        """Return the cells of each access, and the stamp of its thread; both arrays are (n,) or (n, cells of an
        access)."""
        if nbytes < self.grain:
            self.refine(nbytes)
        first = offsets // self.grain if self.grain > 1 else offsets
        count = nbytes // self.grain
        if count == 1:
            return first, clock
        return first[:, None] + np.arange(count), clock[:, None]

    def _clashes(self, cells: Ints, clock: Ints, sorts: list[Remembered], other_warps: bool = False) -> Bools:
        """Which cells have accesses of these sorts that are not ordered before the present one; noted for ``party``.

        ``other_warps``: only those by another warp.
        """
        bad = np.zeros(cells.shape, bool)
        before = []
        for sort in sorts:
            then = sort.stamp[cells]
            wrong = self.clocks.unordered(then, clock)
            if other_warps:
                wrong &= other_warp(then, clock)
            if wrong.any():
                bad |= wrong
                before.append(Remembered(sort.did, np.where(wrong, then, 0), sort.by[cells]))
        self.conflict = (before, clock)
        return bad

    def read(self, cells: Ints, clock: Ints, index: int) -> tuple[Bools, Bools]:
        """Record a read by instruction ``index``. Returns which cells no thread has written, and on which cells the
        read races with a write."""
        race = self._clashes(cells, clock, [self.sorts[0], *self.sorts[3:]])
        _, last, second = self.sorts[:3]
        clocks = self.clocks
        before, before_by = last.stamp[cells], last.by[cells]
        last.stamp[cells], last.by[cells] = clock, index
        after = last.stamp[cells]
        # Prefer a second reader of another warp than the last: then any writer is of another warp than one of the two.
        now = np.broadcast_to(clock, cells.shape)
        for stamps, by, live in ((before, before_by, clocks.recent(before, after)), (now, None, None)):
            pick = other_thread(stamps, after) if live is None else live & other_thread(stamps, after)
            if pick.any():
                present = second.stamp[cells]
                pick &= other_warp(stamps, after) | ~(other_warp(present, after) & clocks.recent(present, after))
                second.stamp[cells[pick]] = stamps[pick]
                second.by[cells[pick]] = index if by is None else by[pick]
        return self.writer[cells] == 0, race

    def write(self, cells: Ints, clock: Ints, index: int) -> tuple[Bools, Bools]:
        """Record a write by instruction ``index``. Returns on which cells the write races with an earlier access, and
        which cells another thread writes in the same instruction (every thread but the last one finds there a stamp
        that is not its own)."""
        before = self._clashes(cells, clock, self.sorts)
        self.writer[cells], self.by[cells] = clock, index
        last = self.writer[cells]
        together = last != clock
        if together.any() and self.conflict is not None:
            self.conflict[0].append(Remembered("together", last, self.by[cells]))
        return before, together

    def update(self, cells: Ints, clock: Ints, index: int) -> Bools:
        """Record an atomic or volatile write by instruction ``index``; returns on which cells the write races with a
        plain access."""
        if len(self.sorts) == 3:
            stamp, by = np.zeros_like(self.writer), np.zeros_like(self.by)
            self.sorts.append(Remembered("updated", stamp, by))
        now = np.broadcast_to(clock, cells.shape)
        race = self._clashes(cells, now, self.sorts[:3])
        self.sorts[3].stamp[cells], self.sorts[3].by[cells] = now, index
        writer = self.writer[cells]
        self.writer[cells] = np.where(writer == 0, EXEMPT, writer)
        return race

    def volatile(self, cells: Ints, clock: Ints, index: int, writes: bool) -> tuple[Bools, bool]:
        """Record a volatile access to shared memory by instruction ``index``. Returns the cells on which nothing orders
        this access after a volatile access of another thread, if one of the two is a write. Also returns whether all
        threads with which this access conflicts are in its own warp."""
        self._watch_volatiles()
        wrote, read = self.volatiles
        now, quiet = np.broadcast_to(clock, cells.shape), self.polled[cells]
        sorts = self.volatiles if writes else [wrote]
        race = self._clashes(cells, now, sorts, other_warps=True) & ~quiet
        within_warp = not race.any()
        if within_warp:
            race = self._clashes(cells, now, sorts) & ~quiet
        sort = wrote if writes else read
        sort.stamp[cells], sort.by[cells] = now, index
        return race, within_warp

    def poll(self, cells: Ints) -> None:
        """Record that a loop waits until these cells change. Threads signal one another by volatile accesses to cells
        that a loop polls."""
        self._watch_volatiles()
        self.polled[cells] = True

    def _watch_volatiles(self) -> None:
        if not self.volatiles:
            size = self.writer.size
            self.polled = np.zeros(size, bool)
            self.volatiles = [
                Remembered(did, np.zeros(size, np.int64), np.zeros(size, np.int32)) for did in ("wrote", "read")
            ]

    def party(self, access: int) -> Party | None:
        """Return the other access of a race that the last call of ``read``, ``write``, ``update`` or ``volatile``
        found. ``access`` is the position of the lane that races, in the arrays of that last call."""
        before, clock = self.conflict or ([], np.zeros(0, np.int64))
        for sort in before:
            stamps, by = np.atleast_1d(sort.stamp[access]), np.atleast_1d(sort.by[access])
            found = np.flatnonzero((stamps >= EPOCH) & (stamps != clock[access]))
            if found.size:
                return Party(sort.did, int(stamps[found[0]]), int(by[found[0]]), int(found[0]) * self.grain)
        return None


def by_access(cells: Bools, offsets: Ints) -> Bools:
    """Return, for each access, whether any of its cells is marked."""
    return np.asarray(cells.reshape(offsets.size, -1).any(axis=1))
