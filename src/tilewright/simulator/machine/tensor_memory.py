"""The tensor memory of compute capability 10.0: its contents, its allocation, and the order of accesses (PTX ISA
9.7.16).

The tensor memory of each block has 128 lanes × 512 columns of 32 bits. A cell, in this module, is 16 lanes of a column,
because instructions access 16 lanes together. Products, copies and shifts (``mma``, ``cp``, ``shift``), and loads and
stores (``ld``, ``st``), are asynchronous. The simulator executes an asynchronous operation when it is issued. The rules
of PTX ISA 9.7.16.6 decide whether a later access to the same cells is ordered after the operation:

- Two operations of one thread are in order if they form a pipeline. The pipelines are ``mma`` → ``mma`` on the same
  accumulator with the same shape, ``cp`` → ``mma``, ``shift`` → ``mma``, ``mma`` → ``shift``, ``shift`` →
  ``cp.4x256b``.
- In all other cases the earlier operation must be complete before the later one is issued. ``ld`` and ``st`` are
  complete after ``tcgen05.wait``. Products, copies and shifts are complete when a thread has waited for an mbarrier at
  which a ``tcgen05.commit`` arrived.
- A synchronisation that orders plain accesses (see ``clocks``) also orders another thread after an operation, if
  ``tcgen05.fence::before_thread_sync`` precedes the synchronisation and ``tcgen05.fence::after_thread_sync`` follows
  it. A commit implies ``tcgen05.fence::before_thread_sync``.

The two fences of ``tcgen05`` restrict only the compiler: ptxas 13.0 makes no machine instruction from them. A missing
fence of ``tcgen05`` is therefore a finding "by the letter of PTX". Some orders of products and copies of one thread are
not listed in the PTX ISA, although GPUs keep them: to rely on such an order is also a finding "by the letter of PTX". A
fence by one thread counts for its whole warp.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..assembly.instructions import Instruction
from ..findings import (
    ACCUMULATOR,
    BY_THE_LETTER,
    MISSING_FENCE,
    OUT_OF_BOUNDS,
    RACE,
    SURE,
    TCGEN05_MISUSE,
    UNWRITTEN_READ,
)
from .clocks import Clocks, stamped_by
from .mbarriers import Mbarrier, Mbarriers
from .reports import Reports, in_library_if_both
from .threads import Threads
from .transfers import Transfer
from .values import Ints

#: The lanes and columns of a block's tensor memory, the lanes of a cell, and the numbers of columns that an allocation can
#: have.
LANES, COLUMNS, OF_CELL = 128, 512, 16
ALLOCATIONS = (32, 64, 128, 256, 512)
#: The bytes that the simulator needs for a block's tensor memory, including what it remembers about accesses.
TENSOR_MEMORY_BYTES = LANES * COLUMNS * 5 + LANES // OF_CELL * COLUMNS * 12
#: Waits for the commits of a thread that are remembered.
_MOST_WAITS = 256
#: Operations that the tensor cores and the copy to tensor memory carry out, in the order of their thread.
_BY_COMMIT = ("mma", "cp", "shift")
_PIPELINES = {("mma", "mma"), ("cp", "mma"), ("shift", "mma"), ("mma", "shift")}


class Cells(NamedTuple):
    """Some lanes and columns of one block of the batch. The lanes of ``Cells`` are a range whose ends are multiples of
    16, or every second group of 16 lanes in such a range."""

    block: int
    groups: slice  # of OF_CELL lanes
    columns: slice

    @property
    def lanes(self) -> slice | Ints:
        """The lanes, as an index."""
        first, stop, step = self.groups.start, self.groups.stop, self.groups.step or 1
        if step == 1:
            return slice(first * OF_CELL, stop * OF_CELL)
        return (np.arange(first, stop, step)[:, None] * OF_CELL + np.arange(OF_CELL)).reshape(-1)


@dataclass(eq=False, slots=True)
class TensorOperation:
    """An operation that a lane issued. ``kind`` is "mma", "cp", "shift", "ld" or "st". ``pair`` is true for an
    operation of a pair of blocks. ``form`` has the properties that two products must have in common to form a pipeline.
    ``number`` counts the operations of all lanes. ``turn`` counts the operations of this lane that a commit tracks."""

    ins: Instruction
    kind: str
    lane: int
    warp: int
    pair: bool = False
    form: tuple[object, ...] = ()
    number: int = 0
    turn: int = 0
    # Stamps of the lane: at the issue, after the wait for an ld or st, and at the fence before_thread_sync.
    issued: int = 0
    waited: int = 0
    fenced: int = 0


@dataclass(frozen=True)
class Allocation:
    """Columns that a warp of a block has allocated."""

    ins: Instruction
    lane: int
    first: int
    count: int
    pair: bool


@dataclass(frozen=True)
class _Committed:
    """The operations of a lane up to a ``turn`` that a commit tracks; a thread that waits at the commit's mbarrier
    finishes them."""

    memory: TensorMemory
    lane: int
    turn: int

    def finish(self, stamp: int) -> None:
        """Record that the thread with this stamp knows that the committed operations are complete."""
        self.memory.note_complete(self, stamp)


class TensorMemory:
    """The tensor memory of a batch of blocks. The first instruction that uses tensor memory creates this object."""

    def __init__(self, threads: Threads, clocks: Clocks, reports: Reports, mbarriers: Mbarriers) -> None:
        self.threads, self.clocks, self.reports, self.mbarriers = threads, clocks, reports, mbarriers
        shape = (threads.copies, LANES, COLUMNS)
        self.data, self.written = np.zeros(shape, np.uint32), np.zeros(shape, bool)
        cells = (threads.copies, LANES // OF_CELL, COLUMNS)
        # The number of the operation that wrote each cell last, of the last ld that read it and of the last other that did.
        self.writer, self.loaded, self.consumed = (np.zeros(cells, np.int32) for _ in range(3))
        self.clear()

    def clear(self) -> None:
        """Reset all state of the tensor memory, because new blocks start."""
        for array in (self.written, self.writer, self.loaded, self.consumed):
            array.fill(0)
        self.data.fill(0xFFFFFFFF)  # NaN: what was not written shows in the result too
        self.operations: dict[int, TensorOperation] = {}
        self.issued = 0
        self.owned = np.zeros((self.threads.copies, COLUMNS), bool)
        self.allocations: dict[int, list[Allocation]] = {}  # by block
        self.relinquished: dict[int, Instruction] = {}
        self.pairs: dict[bool, Instruction] = {}  # the first instruction of one block, and of a pair
        self.turns: dict[int, int] = {}  # lane → operations that a commit tracks
        # Lane → what its operations read of shared memory: before a commit; and after one, with the turn and its stamp then.
        self.reading: dict[int, list[Transfer]] = {}
        self.committed: dict[int, list[tuple[int, int, list[Transfer]]]] = {}
        # Lane → turns that are complete, and who has waited for them.
        self.complete: dict[int, list[tuple[int, int]]] = {}
        self.waiting: dict[int, list[TensorOperation]] = {}  # warp → its ld and st before the wait
        # Warp → operations with no fence before_thread_sync after them.
        self.unfenced: dict[int, list[TensorOperation]] = {}
        self.after: dict[int, Ints] = {}  # warp → what it knew at its last fence after_thread_sync
        self.left: dict[int, Ints] = {}  # cluster → what threads knew that have left the kernel

    # ---- allocation

    def report(self, kind: str, ins: Instruction, lane: int, text: str, grade: str = SURE) -> None:
        """Report a finding for a lane."""
        self.reports.report(kind, ins, np.array([lane]), np.ones(1, bool), None, f"{text}: {ins.text}", grade)

    def check_pair(self, ins: Instruction, pair: bool, lane: int) -> None:
        """Report a kernel that mixes ``cta_group::1`` and ``cta_group::2``, and instructions for pairs of blocks in a
        cluster that has no pairs."""
        self.pairs.setdefault(pair, ins)
        if len(self.pairs) == 2:
            other = self.pairs[not pair].place(ins)
            text = f"has cta_group::{1 + pair}, the instruction at {other} has the other: a kernel must have one alone"
            self.report(TCGEN05_MISUSE, ins, lane, text)
        if pair and self.threads.cluster.size % 2:
            text = f"has cta_group::2 in a cluster of {self.threads.cluster.size}, which has no pair of blocks"
            self.report(TCGEN05_MISUSE, ins, lane, text)

    def allocate(self, ins: Instruction, lane: int, count: int, pair: bool) -> int | None:
        """Execute ``tcgen05.alloc`` by the warp of a lane; returns the address of the columns. If the block has not
        enough free columns, reports a finding and returns None."""
        block = int(self.threads.of_block[lane])
        if block in self.relinquished:
            given = self.relinquished[block].place(ins)
            self.report(TCGEN05_MISUSE, ins, lane, f"allocates after tcgen05.relinquish_alloc_permit at {given}")
        if count not in ALLOCATIONS:
            self.report(
                TCGEN05_MISUSE, ins, lane, f"allocates {count} columns, which must be a power of two from 32 to 512"
            )
            return None
        owned = self.owned[block]
        first = next((c for c in range(0, COLUMNS, count) if not owned[c : c + count].any()), None)
        if first is None:
            text = f"waits for ever: {count} columns are not free, {int(owned.sum())} of {COLUMNS} are allocated"
            self.report(TCGEN05_MISUSE, ins, lane, text)
            return None
        owned[first : first + count] = True
        self.allocations.setdefault(block, []).append(Allocation(ins, lane, first, count, pair))
        self.written[block, :, first : first + count] = False
        for cells in (self.writer, self.loaded, self.consumed):
            cells[block, :, first : first + count] = 0
        return first

    def deallocate(self, ins: Instruction, lane: int, address: int, count: int) -> None:
        """Execute ``tcgen05.dealloc`` by the warp of a lane; reports operations that still use these columns."""
        block = int(self.threads.of_block[lane])
        mine = self.allocations.get(block, [])
        found = next((a for a in mine if a.first == address and a.count == count), None)
        if found is None:
            held = ", ".join(f"{a.count} at {a.first}" for a in mine) or "none"
            text = f"gives back {count} columns at {address:#x}, which were not allocated so (the block has {held})"
            self.report(TCGEN05_MISUSE, ins, lane, text)
            return
        operation = TensorOperation(ins, "dealloc", lane, int(self.threads.base_warp[lane]))
        self.access(operation, [Cells(block, slice(0, LANES // OF_CELL), slice(found.first, found.first + count))], [])
        mine.remove(found)
        self.owned[block, found.first : found.first + count] = False

    def leave(self, lanes: Ints) -> None:
        """Record that these lanes leave the kernel."""
        for block in np.unique(self.threads.of_block[lanes]).tolist():
            cluster, row = block // self.clocks.together, self._knowledge(lanes[self.threads.of_block[lanes] == block])
            self.left[cluster] = np.maximum(row, self.left.get(cluster, row))

    def relinquish(self, ins: Instruction, lane: int) -> None:
        """Execute ``tcgen05.relinquish_alloc_permit`` by the warp of a lane."""
        self.relinquished.setdefault(int(self.threads.of_block[lane]), ins)

    def end(self) -> None:
        """Report, at the end of blocks, columns that were not deallocated."""
        for allocations in self.allocations.values():
            for a in allocations:
                text = f"the kernel ends without tcgen05.dealloc of these {a.count} columns"
                self.report(TCGEN05_MISUSE, a.ins, a.lane, text)

    def in_bounds(self, ins: Instruction, lane: int, block: int, first: int, count: int, what: str) -> bool:
        """Whether a block has allocated these columns; reports a finding if the block has not."""
        if first + count <= COLUMNS and self.owned[block, first : first + count].all():
            return True
        held = ", ".join(f"{a.first} to {a.first + a.count - 1}" for a in self.allocations.get(block, []))
        text = f"{what} columns {first} to {first + count - 1} of tensor memory, which are not all allocated"
        self.report(OUT_OF_BOUNDS, ins, lane, f"{text} (the block has {held or 'none'})")
        return False

    # ---- order

    def begin(self, operation: TensorOperation) -> TensorOperation:
        """Record that an operation is issued; returns the operation with its ``number`` and its ``turn``."""
        operation.issued = int(self.clocks.stamp[operation.lane])
        if operation.kind in _BY_COMMIT:
            operation.turn = self.turns[operation.lane] = self.turns.get(operation.lane, 0) + 1
        else:
            self.waiting.setdefault(operation.warp, []).append(operation)
        self.unfenced.setdefault(operation.warp, []).append(operation)
        self.issued += 1
        operation.number = self.issued
        self.operations[self.issued] = operation
        if len(self.operations) > 1 << 15:
            self._forget()
        return operation

    def reads_shared(self, operation: TensorOperation, transfers: Iterable[Transfer | None]) -> None:
        """Record that an operation reads shared memory until a commit of its lane is complete."""
        self.reading.setdefault(operation.lane, []).extend(t for t in transfers if t is not None)

    def commit(self, ins: Instruction, barriers: Iterable[Mbarrier], lane: int) -> None:
        """Execute ``tcgen05.commit``: arrive at each barrier when all operations that the lane has issued are complete.
        A commit also publishes the times that the lane knows, as a ``fence::before_thread_sync`` does."""
        lanes = np.array([lane])
        self.fence_before(lanes)
        turn, stamp = self.turns.get(lane, 0), int(self.clocks.stamp[lane])
        if reading := self.reading.pop(lane, []):
            self.committed.setdefault(lane, []).append((turn, stamp, reading))
        for barrier in barriers:
            barrier.copies.append((barrier.phase, _Committed(self, lane, turn)))
            self.mbarriers.arrive(ins, barrier, lanes, 1)

    def note_complete(self, done: _Committed, stamp: int) -> None:
        """Record that a thread with this stamp has waited for a commit. Reads of shared memory count as made by the
        lane at the time of its first commit after these reads. Every thread that waits for a commit knows the time of
        the commit."""
        waits = self.complete.setdefault(done.lane, [])
        waits.append((done.turn, stamp))
        del waits[:-_MOST_WAITS]
        left = []
        for each in self.committed.get(done.lane, []):
            turn, when, transfers = each
            if turn > done.turn:
                left.append(each)
                continue
            for transfer in transfers:
                transfer.finish(when)
        self.committed[done.lane] = left

    def wait(self, kind: str, lanes: Ints) -> None:
        """Execute ``tcgen05.wait::ld`` or ``::st`` by these lanes."""
        for warp, lane in self._warps(lanes):
            waiting = self.waiting.get(warp, [])
            for operation in waiting:
                if operation.kind == kind:
                    operation.waited = int(self.clocks.stamp[lane])
            self.waiting[warp] = [each for each in waiting if each.kind != kind]

    def fence_before(self, lanes: Ints) -> None:
        """Execute ``tcgen05.fence::before_thread_sync`` by these lanes."""
        for warp, lane in self._warps(lanes):
            left = []
            for operation in self.unfenced.get(warp, []):
                if operation.kind in _BY_COMMIT or operation.waited:
                    operation.fenced = int(self.clocks.stamp[lane])
                else:
                    left.append(operation)
            self.unfenced[warp] = left
        self.clocks.advance(lanes)

    def fence_after(self, lanes: Ints) -> None:
        """Execute ``tcgen05.fence::after_thread_sync`` by these lanes."""
        warps = self.threads.base_warp[lanes]
        for warp, _ in self._warps(lanes):
            self.after[warp] = self._knowledge(lanes[warps == warp])

    def access(self, operation: TensorOperation, writes: Iterable[Cells], reads: Iterable[Cells]) -> None:
        """Record that an operation accesses cells; reports earlier operations on these cells that are not ordered
        before this operation."""
        seen: set[int] = set()
        for cells, stores in (*((each, True) for each in writes), *((each, False) for each in reads)):
            arrays = (self.writer, self.loaded, self.consumed) if stores else (self.writer,)
            for array in arrays:
                for number in _numbers(array[cells]):
                    if number not in seen and number != operation.number:
                        seen.add(number)
                        self._check(self.operations[number], operation, stores, array is self.writer)
        for cells in reads:
            (self.loaded if operation.kind == "ld" else self.consumed)[cells] = operation.number
        for cells in writes:
            self.writer[cells] = operation.number
            self.loaded[cells] = self.consumed[cells] = 0

    def check_written(
        self, operation: TensorOperation, block: int, lanes: slice | Ints, columns: slice, what: str
    ) -> None:
        """Report lanes and columns that an operation reads and that no operation has written.

        A product of 64 rows writes only every second group of 16 lanes. A warp that loads 32 lanes of such a product
        gets 16 lanes with meaningless values; these loads are not reported.
        """
        missing = ~self.written[block, lanes, columns]
        halves = missing.reshape(-1, OF_CELL * missing.shape[1])
        by_design = operation.kind == "ld" and len(halves) == 2 and not (halves.any(axis=1) & ~halves.all(axis=1)).any()
        if missing.any() and not (by_design and not halves.all()):
            row, column = (int(i[0]) for i in np.nonzero(missing))
            lane = np.arange(LANES)[lanes][row]
            place = f"lane {lane}, column {columns.start + column} of tensor memory"
            self.report(
                UNWRITTEN_READ, operation.ins, operation.lane, f"reads {what}at {place}, which nothing has written"
            )

    def _check(self, earlier: TensorOperation, now: TensorOperation, stores: bool, wrote: bool) -> None:
        """Report an earlier operation that is not ordered before the present one."""
        same = earlier.warp == now.warp
        pipeline = self._is_pipeline(earlier, now)
        if same and pipeline:
            return
        if same and earlier.waited:
            return
        known = self._knowledge(np.array([now.lane]))
        after = known if now.kind == "dealloc" else self.after.get(now.warp)
        waits = [earlier.waited] if earlier.waited else []
        if earlier.kind in _BY_COMMIT:
            waits += [stamp for turn, stamp in reversed(self.complete.get(earlier.lane, [])) if turn >= earlier.turn]
        # What a later operation must know, with the fences and without.
        published = [earlier.fenced] if earlier.fenced and (pipeline or earlier.waited) else []
        if earlier.kind in _BY_COMMIT or now.kind == "dealloc":
            published += waits
        if pipeline:
            waits.append(earlier.issued)
        if not any(self._knows(after, stamp, now) for stamp in published):
            done = any(self._knows(known, stamp, now) for stamp in waits)
            left = self.left.get(int(self.threads.of_block[now.lane]) // self.clocks.together)
            gone = now.kind == "dealloc" and any(self._knows(left, stamp, now) for stamp in waits)
            self._report(earlier, now, same=same, done=done, stores=stores, wrote=wrote, gone=gone)

    def _knowledge(self, lanes: Ints) -> Ints:
        """Up to which times these threads of a warp know others, from relaxed barriers too, which order execution."""
        row, ended = self.clocks.knowledge(lanes), self.clocks.ended
        return row if ended is None else np.maximum(row, ended[self.threads.of_block[lanes[0]]])

    def _is_pipeline(self, earlier: TensorOperation, now: TensorOperation) -> bool:
        if (earlier.kind, now.kind) == ("mma", "mma"):
            return earlier.pair == now.pair and earlier.form == now.form
        narrow = now.kind == "cp" and earlier.kind == "shift" and "4x256b" in now.ins.parts
        return ((earlier.kind, now.kind) in _PIPELINES or narrow) and earlier.pair == now.pair

    def _knows(self, row: Ints | None, stamp: int, now: TensorOperation) -> bool:
        """Whether a row of times includes the one of a stamp of the same cluster."""
        if row is None:
            return False
        ordinal, thread = stamped_by(stamp)
        block, together = ordinal - self.clocks.first, self.clocks.together
        if block // together != int(self.threads.of_block[now.lane]) // together:
            return False
        time = (stamp >> 10) & ((1 << 26) - 1)
        return bool(row[block % together * 32 + thread // 32] >= time)

    def _report(
        self,
        earlier: TensorOperation,
        now: TensorOperation,
        *,
        same: bool,
        done: bool,
        stores: bool,
        wrote: bool,
        gone: bool,
    ) -> None:
        """Report that nothing orders an operation after an earlier one; ``done``: only fences are missing; ``gone``: a
        thread that knew that the earlier one is complete has left the kernel."""
        does = "gives back" if now.kind == "dealloc" else "writes" if stores else "reads"
        did = "writes" if wrote else "reads"
        place = f"tcgen05.{earlier.kind} at {earlier.ins.place(now.ins)}"
        in_library = in_library_if_both(now.ins, earlier.ins)
        if done:
            before = earlier.kind not in _BY_COMMIT and not earlier.fenced
            missing = (
                f"tcgen05.fence::before_thread_sync before the threads synchronise, after {place}"
                if before
                else "tcgen05.fence::after_thread_sync after the wait or barrier"
            )
            text = f"{does} tensor memory that {place} {did}, with no {missing}"
            self.report(MISSING_FENCE, now.ins, now.lane, text, BY_THE_LETTER if in_library == SURE else in_library)
            return
        by_tensor_cores = earlier.kind in _BY_COMMIT and now.kind in _BY_COMMIT
        grade = BY_THE_LETTER if same and by_tensor_cores and earlier.pair == now.pair else SURE
        if earlier.kind in _BY_COMMIT:
            remedy = "tcgen05.commit, and a wait for its mbarrier, must come between"
            if same and by_tensor_cores:
                remedy += "; today's GPUs execute both in order, PTX lists no such pipeline"
        else:
            remedy = f"tcgen05.wait::{earlier.kind} must come between"
            if earlier.waited:
                remedy = "nothing orders the two warps after tcgen05.wait: fences and a barrier or an mbarrier would"
        if gone:
            grade, remedy = (
                BY_THE_LETTER,
                "a thread that has left the kernel had waited for it: PTX orders nothing by that",
            )
        text = f"{does} tensor memory that {place} still {did} ({remedy})"
        self.report(ACCUMULATOR if wrote and not stores else RACE, now.ins, now.lane, text, grade)

    def _warps(self, lanes: Ints) -> list[tuple[int, int]]:
        """The warps of lanes, and a lane of each."""
        warps = self.threads.base_warp[lanes]
        first = np.flatnonzero(np.diff(warps, prepend=-1))
        return list(zip(warps[first].tolist(), lanes[first].tolist(), strict=True))

    def _forget(self) -> None:
        """Forget operations that no cell names any more."""
        live = {number for array in (self.writer, self.loaded, self.consumed) for number in np.unique(array).tolist()}
        live |= {each.number for every in (self.waiting, self.unfenced) for some in every.values() for each in some}
        self.operations = {number: each for number, each in self.operations.items() if number in live}


def _numbers(cells: NDArray[np.int32]) -> list[int]:
    """The numbers of cells, without 0."""
    first = int(cells.flat[0])
    if (cells == first).all():
        return [first] if first else []
    return [int(number) for number in np.unique(cells) if number]
