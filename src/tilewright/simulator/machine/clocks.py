"""Decides whether two memory accesses are ordered. Each thread has a logical clock. Each warp "knows" a time of every
other warp: accesses of the other warp up to this time are ordered before the accesses of this warp.

A stamp, ``(block + 1) << 36 | time << 10 | thread``, is one number that encodes a thread and a time. Blocks are
numbered in the order in which the simulator runs them. Time is a Lamport clock: a synchronisation of threads sets the
clocks of these threads beyond the latest of their times. Of two accesses by different threads, the earlier one is
ordered before the later one in these cases:

- the threads are in the same warp: time has advanced between the accesses, at a warp-wide ``.sync`` or a barrier.
  Nothing else orders the threads of a warp, because since Volta they need not run in step.
- the threads are in the same block: the warp of the later access knows the time of the earlier access. A warp learns
  the times of other warps at a barrier of the whole block (``floor``) or of some warps (``known``). A warp also learns
  times by an atomic or volatile load, if another warp ran a fence and then stored something before that load
  (``posted``).
- the threads are in two blocks of a cluster: the warp of the later access knows the time of the earlier access, from a
  barrier of the cluster or a fence.
- the threads are in any two blocks: after the earlier access, its block has run a device-wide fence and then stored
  something (``handed_over_until``), and before the later access, the other block has run an atomic or volatile load.
  Correct kernels pass data from block to block by such a fence, store and load.

All lanes of a warp share what the warp knows of other warps' times. An access is ordered before accesses of other
threads only if the thread that made the access has since passed a synchronisation or published something; otherwise the
access is ``unpublished``. Therefore the simulator reports an elected lane that arrives at a barrier for its whole warp
without a ``__syncwarp()`` before.

Where these rules are coarser than the memory model of PTX, accesses count as ordered, so that no false race is
reported.

Copies by the copy engine and operands of ``wgmma`` use the asynchronous proxy. The asynchronous proxy sees a plain
write only after a later ``fence.proxy.async``. ``visible`` has for each warp the time up to which its writes are
visible to the asynchronous proxy, because a thread that knew of these writes ran such a fence.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from .values import Bools, Ints

#: Bits of a stamp: ten for the thread, of which the upper five are its warp, 26 for the time, the rest for the block.
_EPOCH_BITS = np.int64(36)
EPOCH, TICK = np.int64(1) << _EPOCH_BITS, np.int64(1 << 10)
_THREAD, _WARP, _LATEST = np.int64(1023), np.int64(992), np.int64((1 << 26) - 1)
_TIME = _LATEST << np.int64(10)
WARPS = 32  # of a block, at most
OBSERVED = 2  # the flag of a block that has run an atomic or a volatile load on global memory


class Clocks:
    """The clocks of a batch of blocks, each of ``threads`` threads.

    For every block of the run, ``handed_over_until`` is the time up to which its accesses are ordered before the
    accesses of blocks that have observed other blocks. ``has_observed_others`` is OBSERVED if the block has run an
    atomic or volatile load on global memory. A row of times has one time for each warp of a cluster of ``together``
    blocks, with WARPS times for each block in order of rank.
    """

    def __init__(
        self,
        copies: int,
        threads: int,
        handed_over_until: NDArray[np.int32],
        has_observed_others: NDArray[np.int8],
        together: int = 1,
    ) -> None:
        self.copies, self.threads, self.first = copies, threads, 0
        self.handed_over_until, self.has_observed_others = handed_over_until, has_observed_others
        self.together, self.columns = together, WARPS * together
        self.warps = -(-threads // 32)
        thread = np.tile(np.arange(threads, dtype=np.int64), copies)
        self.block = np.repeat(np.arange(copies, dtype=np.int64), threads)  # within the batch
        self.warp = self.block * self.warps + thread // 32  # within the batch
        self.thread = thread
        self.column = self.block % together * WARPS + thread // 32
        self.stamp = np.zeros(copies * threads, np.int64)
        self.floor = np.zeros(copies * self.warps, np.int64)
        self.settled = 0  # the least of all floors
        self.known: Ints | None = None  # (warps of the batch, columns)
        self.posted: Ints | None = None  # (blocks of the batch, columns)
        # By block of the batch: what its next store posts to the block, to the cluster, and up to when it hands to the grid.
        self.fenced: dict[int, tuple[Ints, Ints, int]] = {}
        self.secured: Ints | None = None  # like known: what a warp knew at its last cluster-wide fence
        self.ended: Ints | None = None  # like posted: up to when a block knows that others have got, apart from memory
        self.visible = np.zeros((copies, WARPS), np.int64)
        # After lanes of a warp passed a barrier in groups: for each lane the mask of those it met, and the time up to
        # which it knows the other lanes. The mask becomes -1 (all) when its time advances in any other way.
        self.group: Ints | None = None
        self.known_outside = np.zeros(0, np.int64)
        # After lanes have waited for others: for each lane the stamp of the first access that it has not published since,
        # and its stamp when it had waited. If that is another now, it has published everything before.
        self.waited: tuple[Ints, Ints] | None = None

    def place(self, first: int) -> None:
        """Reset the clocks for a batch of blocks that begins with block ``first`` of the run."""
        self.first, self.settled, self.known, self.posted, self.group = first, 0, None, None, None
        self.secured, self.ended, self.waited = None, None, None
        self.fenced.clear()
        self.visible.fill(0)
        self.floor.fill(0)
        self.stamp[:] = (self.block + (first + 1)) * EPOCH + TICK + self.thread

    # ---- what orders threads

    def sync_warps(self, sel: Ints | None) -> None:
        """Order lanes that passed a warp-wide synchronisation: each lane with the other lanes of its warp."""
        self._rejoin(sel)
        if sel is None and self.threads % 32 == 0:
            rows = self.stamp.reshape(-1, 32)
            rows[:] = _after(rows.max(axis=1))[:, None] | (rows & _THREAD)
            return
        active = slice(None) if sel is None else sel
        stamps, warps = self.stamp[active], self.warp[active]
        starts = np.flatnonzero(np.diff(warps, prepend=-1))
        latest = np.maximum.reduceat(stamps, starts)
        counts = np.diff(np.append(starts, stamps.size))
        self.stamp[active] = np.repeat(_after(latest), counts) | (stamps & _THREAD)

    def sync_groups(self, lanes: Ints, groups: Ints) -> None:
        """Order lanes that passed a synchronisation: each lane with the lanes of its warp that have the same group
        number."""
        stamps, bit = self.stamp[lanes], np.int64(1) << (self.thread[lanes] & 31)
        if self.group is None:
            self.group = np.full(self.stamp.size, -1, np.int64)
            self.known_outside = np.zeros(self.stamp.size, np.int64)
        met, latest = (np.zeros(int(groups.max()) + 1, np.int64) for _ in range(2))
        previous = self.group[lanes]
        np.bitwise_or.at(met, groups, np.where(previous < 0, bit, previous | bit))
        np.maximum.at(latest, groups, stamps)
        self.known_outside[lanes] = np.where(previous < 0, _time(stamps) - 1, self.known_outside[lanes])
        self.group[lanes] = met[groups]
        self.stamp[lanes] = _after(latest[groups]) | (stamps & _THREAD)

    def _rejoin(self, lanes: Ints | None) -> None:
        if self.group is not None:
            self.group[slice(None) if lanes is None else lanes] = -1

    def sync_blocks(self, blocks: Ints | None) -> None:
        """Order all threads of these blocks of the batch, because the threads of each block passed a barrier."""
        if self.group is not None:
            self.group.reshape(self.copies, self.threads)[slice(None) if blocks is None else blocks] = -1
        rows = self.stamp.reshape(self.copies, self.threads)
        some = slice(None) if blocks is None else blocks
        latest = _after(rows[some].max(axis=1))
        rows[some] = latest[:, None] | (rows[some] & _THREAD)
        self.floor.reshape(self.copies, self.warps)[some] = (_time(latest) - 1)[:, None]
        self.settled = int(self.floor.min())
        if (
            self.known is not None and self.together > 1
        ):  # what one warp knows of other blocks, all of its block now know
            known = self.known.reshape(self.copies, self.warps, self.columns)
            known[some] = known[some].max(axis=1, keepdims=True)

    def meet(self, lanes: Ints, arrived: Iterable[Ints]) -> None:
        """Order some threads of a block that passed a barrier. ``arrived`` are the times that are known to the threads
        that arrived at the barrier without waiting."""
        known = np.maximum.reduce([self.knowledge(lanes), *arrived])
        self.advance(lanes)  # they have published what they did before
        self.learn(lanes, known)

    def knowledge(self, lanes: Ints) -> Ints:
        """Return the times that these threads of a block know of all warps of their cluster, including their own warps,
        as an array (columns,)."""
        warps = np.unique(self.warp[lanes])
        row, own = np.zeros(self.columns, np.int64), self._columns_of(int(self.block[lanes[0]]))
        row[own] = self.floor[warps].max()
        if self.known is not None:
            np.maximum(row, self.known[warps].max(axis=0), out=row)
        np.maximum.at(row[own], self.thread[lanes] // 32, _time(self.stamp[lanes]))
        return row

    def learn(self, lanes: Ints, row: Ints) -> None:
        """Order these threads of a cluster after the times in ``row``, which has one time for each warp of the cluster:
        (columns,). For threads of several clusters ``row`` is (clusters of the batch, columns)."""
        if self.known is None:
            self.known = np.zeros((self.copies * self.warps, self.columns), np.int64)
        warps = np.unique(self.warp[lanes])
        rows = row if row.ndim == 1 else row[warps // (self.warps * self.together)]
        self.known[warps] = np.maximum(self.known[warps], rows)
        before = self.stamp[lanes]
        self.advance(lanes, int(rows.max()) + 1)
        if self.waited is None:
            self.waited = np.zeros(self.stamp.size, np.int64), np.full(self.stamp.size, -1, np.int64)
        since, then = self.waited
        since[lanes] = np.where(then[lanes] == before, since[lanes], before)
        then[lanes] = self.stamp[lanes]

    def knowledge_of_clusters(self, lanes: Ints, fenced: bool = False) -> Ints:
        """Return the times that threads of any blocks know, combined for each cluster: (clusters of the batch,
        columns). With ``fenced``, return only the times that the threads knew at their last cluster-wide fence."""
        rows = np.zeros((self.copies // self.together, self.columns), np.int64)
        if fenced:
            if self.secured is not None:
                warps = np.unique(self.warp[lanes])
                np.maximum.at(rows, warps // (self.warps * self.together), self.secured[warps])
            return rows
        by_block = rows.reshape(self.copies, WARPS)
        warps = np.unique(self.warp[lanes])
        np.maximum.at(by_block, warps // self.warps, self.floor[warps][:, None])
        if self.known is not None:
            np.maximum.at(rows, warps // (self.warps * self.together), self.known[warps])
        np.maximum.at(by_block, (self.block[lanes], self.thread[lanes] // 32), _time(self.stamp[lanes]))
        return rows

    def outlive(self, blocks: Ints, rows: Ints) -> None:
        """Record what the threads of these blocks of the batch know. ``rows`` (blocks, columns) has one row for each
        block, with the time that each warp of its cluster has reached."""
        if self.ended is None:
            self.ended = np.zeros((self.copies, self.columns), np.int64)
        self.ended[blocks] = np.maximum(self.ended[blocks], rows)

    def known_at_exit(self) -> Ints:
        """Return the times that each block at its end knows of the warps of its cluster: (blocks of the batch,
        columns)."""
        rows = np.zeros((self.copies, self.columns), np.int64) if self.ended is None else self.ended.copy()
        if self.known is not None:
            np.maximum(rows, self.known.reshape(self.copies, self.warps, -1).max(axis=1), out=rows)
        return rows

    def times(self, lanes: Ints) -> Ints:
        """Return the current times of these lanes."""
        return _time(self.stamp[lanes])

    def advance(self, lanes: Ints, least: int = 0) -> None:
        """Advance the time of these lanes by one, or to ``least`` if that is later."""
        self._rejoin(lanes)
        stamps = self.stamp[lanes]
        time = np.minimum(np.maximum(_time(stamps) + 1, least), _LATEST)
        self.stamp[lanes] = (stamps & ~_TIME) | time * TICK

    def fence(self, sel: Ints | None, wide: bool, near: bool = False) -> None:
        """Record that these lanes ran a fence, device-wide if ``wide`` and cluster-wide if ``near``. The next store of
        the lanes' block publishes the times that the lanes know at the fence."""
        if self.posted is None:
            self.posted = np.zeros((self.copies, self.columns), np.int64)
        nothing = np.zeros(self.columns, np.int64)
        for block, lanes in self._by_block(sel):
            known = self.knowledge(lanes)
            row, shared, time = self.fenced.get(block, (known, nothing, 0))
            if wide or near:
                shared = np.maximum(shared, known)
                self._secure(lanes, known)
            own = known[self._columns_of(block)]
            self.fenced[block] = np.maximum(row, known), shared, max(time, int(own.max()) if wide else 0)
            self.advance(lanes)

    def secure(self, sel: Ints | None) -> None:
        """Record that the next arrival of these lanes at a barrier of the cluster, even a relaxed arrival, publishes
        the times that they know now."""
        for _, lanes in self._by_block(sel):
            self._secure(lanes, self.knowledge(lanes))
            self.advance(lanes)

    def _columns_of(self, block: int) -> slice:
        """The columns of a block's own warps in a row of times."""
        first = block % self.together * WARPS
        return slice(first, first + WARPS)

    def _secure(self, lanes: Ints, known: Ints) -> None:
        if self.secured is None:
            self.secured = np.zeros((self.copies * self.warps, self.columns), np.int64)
        self.secured[np.unique(self.warp[lanes])] = known

    def fence_proxy(self, sel: Ints | None) -> None:
        """Record that these lanes ran ``fence.proxy.async``: their own writes, and the writes up to the times that they
        know, are now visible to the asynchronous proxy."""
        for block, lanes in self._by_block(sel):
            row = self.knowledge(lanes)
            np.maximum(self.visible[block], row[self._columns_of(block)], out=self.visible[block])
            self.advance(lanes)

    def invisible(self, then: Ints, lane: int) -> Bools:
        """Return which earlier plain writes by the block of ``lane`` the asynchronous proxy cannot see yet."""
        mine = (then >= EPOCH) & (then // EPOCH == self.stamp[lane] // EPOCH)
        visible = self.visible[self.block[lane]]
        return np.asarray(mine & (_time(then) > visible[(then & _THREAD) >> 5]))

    def signal(self, sel: Ints | None) -> None:
        """Record that these lanes store something. The store publishes the times of earlier fences: to the block of the
        lanes, and after a wider fence to the cluster or the grid."""
        if self.posted is not None and self.fenced:
            for block, _ in self._by_block(sel):
                if block in self.fenced:
                    row, shared, time = self.fenced.pop(block)
                    np.maximum(self.posted[block], row, out=self.posted[block])
                    if self.together > 1:
                        others = self.posted[(first := block - block % self.together) : first + self.together]
                        np.maximum(others, shared, out=others)
                    whole = self.first + block
                    self.handed_over_until[whole] = max(self.handed_over_until[whole], time)

    def look(self, sel: Ints | None) -> None:
        """Record that these lanes run an atomic or volatile load: they learn the times that were published in their
        block."""
        if self.posted is not None:
            for block, lanes in self._by_block(sel):
                if self.posted[block].any():
                    self.learn(lanes, self.posted[block])

    def _by_block(self, sel: Ints | None) -> list[tuple[int, Ints]]:
        active = np.arange(self.stamp.size) if sel is None else sel
        starts = np.flatnonzero(np.diff(self.block[active], prepend=-1))
        return [(int(self.block[lanes[0]]), lanes) for lanes in np.split(active, starts[1:])]

    # ---- what is not ordered

    def unordered(self, then: Ints, now: Ints) -> Bools:
        """Return which of the earlier accesses, with the stamps ``then`` (0: no access), are by other threads and are
        not ordered before the accesses with the stamps ``now``."""
        difference = (then ^ now) & ~_TIME
        maybe = (then >= EPOCH) & (difference != 0)
        maybe &= (difference >= EPOCH) | ((then & _TIME) > self.settled * TICK)
        if maybe.any():
            maybe[maybe] = self._unordered(then[maybe], np.broadcast_to(now, then.shape)[maybe])
        return maybe

    def recent(self, then: Ints, now: Ints) -> Bools:
        """Return which earlier accesses may still race: the accesses of other blocks, and those made since all blocks
        last passed a barrier."""
        return (then >= EPOCH) & (((then ^ now) >= EPOCH) | ((then & _TIME) > self.settled * TICK))

    def _unordered(self, then: Ints, now: Ints) -> Bools:
        late = self._later_than_known(then, now)
        return late if late.all() else late | self.unpublished(then)

    def lacks_only_warp_sync(self, then: int, now: int) -> bool:
        """Return whether the access ``then`` is unordered before ``now`` only because its warp did not synchronise:
        another thread of the same warp has published the time of ``then``, but the thread that made the access has
        not."""
        earlier, later = np.array([then]), np.array([now])
        return bool(other_warp(earlier, later)[0]) and not self._later_than_known(earlier, later)[0]

    def _later_than_known(self, then: Ints, now: Ints) -> Bools:
        """Which accesses ``then`` are later than what the warps of the accesses ``now`` know of theirs."""
        block, own_block = (then >> _EPOCH_BITS) - 1, (now >> _EPOCH_BITS) - 1
        far = block != own_block
        mine = (own_block - self.first) * self.warps + ((now & _THREAD) >> 5)
        bound = np.where(far, 0, self.floor[mine])
        if self.known is not None:
            theirs = block % self.together * WARPS + ((then & _THREAD) >> 5)
            near = block // self.together == own_block // self.together
            bound = np.where(near, np.maximum(bound, self.known[mine, theirs]), bound)
        own = _time(now) - 1
        if self.group is not None:
            lane = (own_block - self.first) * self.threads + (now & _THREAD)
            own = np.where(self.group[lane] >> (then & 31) & 1 == 1, own, self.known_outside[lane])
        bound = np.where(((then ^ now) & (_WARP | ~(EPOCH - 1))) == 0, np.maximum(bound, own), bound)
        observed = self.has_observed_others[own_block] & OBSERVED > 0
        handed_over = far & (_time(then) <= self.handed_over_until[block]) & observed
        return np.asarray((_time(then) > bound) & ~handed_over)

    def unpublished(self, then: Ints) -> Bools:
        """Return which accesses are by threads of the batch that have published nothing since the access. If a thread
        has published nothing since an access, no synchronisation of other threads orders this access before their
        accesses."""
        # A stamp of an earlier batch is less than those of this one; the latest time never advances.
        lane = np.maximum(((then >> _EPOCH_BITS) - (1 + self.first)) * self.threads + (then & _THREAD), 0)
        first = self.stamp[lane]
        if self.waited is not None:
            first = np.where(self.waited[1][lane] == first, self.waited[0][lane], first)
        return np.asarray((then >= first) & (then & _TIME != _TIME))


def stamped_by(stamp: int) -> tuple[int, int]:
    """Return the block of the run and the thread that a stamp encodes."""
    return stamp // int(EPOCH) - 1, stamp & int(_THREAD)


def thread_of(stamp: Ints | int) -> Ints:
    """Remove the times from stamps. Two results of ``thread_of`` are equal if the stamps are of the same thread of the
    same block."""
    return np.asarray(stamp & ~_TIME)


def other_warp(a: Ints, b: Ints) -> Bools:
    """Whether two stamps are of different warps."""
    return np.asarray(((a ^ b) & (_WARP | ~(EPOCH - 1))) != 0)


def other_thread(a: Ints, b: Ints) -> Bools:
    """Whether two stamps are of different threads."""
    return np.asarray(thread_of(a ^ b) != 0)


def _time(stamp: Ints) -> Ints:
    return (stamp >> 10) & _LATEST


def _after(stamp: Ints) -> Ints:
    """The stamp one unit of time later, with the bits of the thread 0."""
    time = np.minimum(_time(stamp) + 1, _LATEST)
    return np.asarray((stamp & ~(EPOCH - 1)) | time * TICK)
