"""Who wrote and who read each cell of memory, and whether anything ordered them: races and unwritten reads.

Every thread has a clock, and every cell keeps the clock of its last writer and of two readers, one number each:

- shared memory: ``barriers passed << 32 | warp syncs << 10 | thread``. Accesses of two threads are ordered by a block
  barrier; within one warp also by any warp-wide ``.sync`` instruction (``bar.warp.sync``, ``shfl.sync``, ``mma.sync``,
  …). Nothing else orders the threads of a warp: since Volta they need not run in step.
- global memory: ``(block + 1) << 32 | (barriers + warp syncs) << 10 | thread``. Different blocks are never ordered,
  except that what a block wrote before a device-wide fence is taken as ordered with a block that uses global
  atomics or volatile loads: that is how correct kernels hand data from block to block.

Two conflicting accesses of unordered threads are a race if one writes and the value changes by it; threads that
write the value that is there already (a flag set by all) are left alone. Atomics and volatile accesses take no part.
Of many readers two are remembered, so a write that races only with a third of the same warp can be missed; nothing is
reported that is not there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

EPOCH = np.int64(1 << 32)
SYNC = np.int64(1 << 10)
#: The clock of what was written by an atomic or asynchronously: written, but racing with nothing.
EXEMPT = np.int64(1)


class Shadow:
    """The clocks of ``cells`` cells of ``grain`` bytes."""

    def __init__(self, nbytes: int, grain: int, across_blocks: bool) -> None:
        self.grain, self.across_blocks = grain, across_blocks
        cells = -(-nbytes // grain) + 16
        self.writer = np.zeros(cells, np.int64)
        self.by = np.zeros(cells, np.int32)  # index of the instruction that wrote
        self.reader = np.zeros(cells, np.int64)
        self.other = np.zeros(cells, np.int64)  # a reader unlike ``reader``, of another warp if there is one

    def reset(self) -> None:
        for array in (self.writer, self.by, self.reader, self.other):
            array.fill(0)

    def refine(self, nbytes: int) -> None:
        """Make cells as small as the smallest access seen."""
        times = self.grain // nbytes
        self.grain = nbytes
        for name in ("writer", "by", "reader", "other"):
            setattr(self, name, np.repeat(getattr(self, name), times))

    def cells(self, offsets: Ints, nbytes: int, clock: Ints) -> tuple[Ints, Ints]:
        """The cells of each access, and the clock of its thread, both (n,) or (n, cells of an access)."""
        if nbytes < self.grain:
            self.refine(nbytes)
        first = offsets // self.grain if self.grain > 1 else offsets
        count = nbytes // self.grain
        if count == 1:
            return first, clock
        return first[:, None] + np.arange(count), clock[:, None]

    def unordered(self, then: Ints, now: Ints) -> Bools:
        """Whether an earlier access and one now are of different threads with nothing between to order them."""
        apart = then ^ now
        if self.across_blocks:
            return (then >= EPOCH) & ((apart >= EPOCH) | ((apart < SYNC) & (apart != 0)))
        return (apart < EPOCH) & (((apart & 0x3E0) != 0) | ((apart < SYNC) & (apart != 0)))

    def read(self, cells: Ints, clock: Ints) -> tuple[Bools, Bools]:
        """Note a read; returns which cells nobody wrote, and which another thread writes unordered."""
        written = self.writer[cells]
        race = self.unordered(written, clock)
        before = self.reader[cells]
        self.reader[cells] = clock
        after = self.reader[cells]
        # Where two readers stand, keep one of another warp than the last: it races with whoever writes.
        for candidate in (before, np.broadcast_to(clock, cells.shape)):
            pick = (
                self.unordered(candidate, after) if not self.across_blocks else (candidate != after) & (candidate != 0)
            )
            if pick.any():
                if not self.across_blocks:
                    held = self.unordered(self.other[cells], after)
                    pick &= ((candidate ^ after) & 0x3E0 != 0) | ~held
                self.other[cells[pick]] = candidate[pick]
        return written == 0, race

    def write(self, cells: Ints, clock: Ints, index: int) -> tuple[Bools, Bools]:
        """Note a write; returns which cells another thread wrote or read before, unordered, and which cells another
        thread writes in this very instruction (all but the last find another clock)."""
        before = self.unordered(self.writer[cells], clock)
        before |= self.unordered(self.reader[cells], clock) | self.unordered(self.other[cells], clock)
        self.writer[cells] = clock
        self.by[cells] = index
        return before, self.writer[cells] != clock

    def exempt(self, cells: Ints) -> None:
        """Note that cells were written by an atomic: no longer unwritten."""
        held = self.writer[cells]
        self.writer[cells] = np.where(held == 0, EXEMPT, held)
