"""Tracks reads and writes by the asynchronous proxy, and the bytes of incomplete copies (PTX ISA 8.10.3, 9.7.9.27).

The simulator executes a copy of the copy engine when its instruction is issued. Until a thread has waited for a copy,
the bytes that the copy writes count as being written, and the bytes that it reads count as being read. The shadow marks
the cells of bytes that a copy still writes or reads as ``busy``, and an access to a busy cell is reported. Therefore
the findings about a copy do not depend on the time at which the copy completes. Bytes that were copied count as written
by the thread that waited for the copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..assembly.instructions import Instruction
from ..findings import BY_THE_LETTER, MISSING_FENCE
from .clocks import Clocks
from .mbarriers import Mbarrier, Mbarriers
from .memory import Region
from .reports import Reports, in_library_if_both
from .shadow import by_access
from .threads import Threads
from .values import Bools, Ints

#: The bytes of a chunk, the smallest unit that the asynchronous proxy moves.
CHUNK = 16


@dataclass(eq=False)
class Transfer:
    """Chunks of a region that an asynchronous instruction writes or reads; ``chunks`` are the offsets of their first
    bytes.

    ``barrier`` is the mbarrier at which the bytes of the transfer arrive, if there is one.
    """

    transfers: Transfers
    number: int
    ins: Instruction
    region: Region
    chunks: Ints
    unit: int  # bytes of a chunk
    writes: bool
    barrier: Mbarrier | None = None
    #: The numbers of transfers under way that read some of the same bytes and began before this one.
    also_reading: frozenset[int] = frozenset()

    def finish(self, stamp: int) -> None:
        """Complete the transfer; the thread with this stamp has waited for the transfer."""
        self.transfers.finish(self, stamp)


class Transfers:
    """The transfers of a batch of blocks that are not complete yet."""

    def __init__(
        self, threads: Threads, clocks: Clocks, reports: Reports, mbarriers: Mbarriers, code: Sequence[Instruction]
    ) -> None:
        self.threads, self.clocks, self.reports = threads, clocks, reports
        self.mbarriers, self.code = mbarriers, code
        #: For each instruction, by index, whether it writes through the asynchronous proxy.
        self.asynchronous = np.array([_is_asynchronous(ins) for ins in code] or [False])
        self.clear()

    def clear(self) -> None:
        """Forget all transfers, because new blocks start."""
        self.under_way: dict[int, Transfer] = {}
        self.writing = np.zeros(64, bool)  # by number
        self.next = 1
        self.group = np.zeros(self.threads.size, np.int64)
        self.groups: dict[int, list[tuple[int, Transfer]]] = {}  # lane → its transfers and their groups, in order

    # ---- transfers begin and end

    def write(
        self,
        ins: Instruction,
        region: Region,
        chunks: Ints,
        lane: int,
        barrier: Mbarrier | None = None,
        unit: int = CHUNK,
    ) -> Transfer | None:
        """Record that a lane makes the asynchronous proxy write these chunks of ``unit`` bytes. Returns None if the
        region has no shadow, so that races on it are not checked."""
        shadow = region.shadow
        if shadow is None:
            return None
        lanes = np.full(chunks.size, lane)
        cells, now = shadow.cells(chunks, unit, self.clocks.stamp[lanes])
        busy = self.touched(ins, region, cells, chunks, lanes, writes=True)
        race, _ = shadow.write(cells, np.broadcast_to(now, cells.shape), ins.index)
        wrong = by_access(race, chunks)
        if busy is not None:
            wrong &= ~busy
        if wrong.any():
            self.reports.race(ins, region, lanes, wrong, chunks)
            if barrier is not None:
                self.mbarriers.report_waits(barrier)
        return self._begin(ins, region, chunks, unit, cells, barrier, writes=True)

    def read(self, ins: Instruction, region: Region, chunks: Ints, lane: int, unit: int = CHUNK) -> Transfer | None:
        """Record that a lane makes the asynchronous proxy read these chunks of ``unit`` bytes; reports bytes whose
        writes the proxy cannot see yet. The chunks count as busy until the transfer is finished. Returns None if the
        region has no shadow, so that races on it are not checked."""
        shadow = region.shadow
        if shadow is None:
            return None
        lanes = np.full(chunks.size, lane)
        cells, now = shadow.cells(chunks, unit, self.clocks.stamp[lanes])
        busy = self.touched(ins, region, cells, chunks, lanes, writes=False)
        by, then = shadow.by[cells], shadow.writer[cells]
        unwritten, race = shadow.read(cells, now, ins.index)
        unseen = ~race & self.clocks.invisible(then, lane) & ~self.asynchronous[by]
        found = [by_access(x, chunks) for x in (unwritten, race, unseen)]
        if busy is not None:
            found = [x & ~busy for x in found]
        if found[0].any() and shadow.starts_empty:
            self.reports.unwritten_read(ins, region, lanes, found[0], chunks)
        if found[1].any():
            self.reports.race(ins, region, lanes, found[1], chunks)
        if found[2].any():
            at = int(np.argmax(found[2]))
            writer = self.code[int(by[at].reshape(-1)[np.argmax(unseen[at])])]
            self._report_unseen(ins, region, lanes, found[2], chunks, writer)
        return self._begin(ins, region, chunks, unit, cells, None, writes=False)

    def _begin(
        self,
        ins: Instruction,
        region: Region,
        chunks: Ints,
        unit: int,
        cells: Ints,
        barrier: Mbarrier | None,
        *,
        writes: bool,
    ) -> Transfer:
        assert region.shadow is not None
        number, self.next = self.next, self.next + 1
        if number >= self.writing.size:
            self.writing = np.append(self.writing, np.zeros_like(self.writing))
        self.writing[number] = writes
        transfer = self.under_way[number] = Transfer(self, number, ins, region, chunks, unit, writes, barrier)
        busy = region.shadow.busy_cells()
        if not writes:
            transfer.also_reading = self._readers(busy[cells if cells.ndim == 1 else cells[:, 0]])
        busy[cells] = number
        return transfer

    def _readers(self, busy: NDArray[np.int32]) -> frozenset[int]:
        """The transfers under way that read some of the chunks with these numbers."""
        first = int(busy[0])
        numbers = [first] if (busy == first).all() else np.unique(busy).tolist()  # the products of a tile read it whole
        found = {number for number in numbers if number and not self.writing[number]}
        for number in list(found):
            found |= {other for other in self.under_way[number].also_reading if other in self.under_way}
        return frozenset(found)

    def finish(self, transfer: Transfer, stamp: int) -> None:
        """Complete a transfer: its bytes count as written or read by the thread with this stamp (0: by no thread)."""
        if self.under_way.pop(transfer.number, None) is None:
            return
        shadow = transfer.region.shadow
        assert shadow is not None
        cells, _ = shadow.cells(transfer.chunks, transfer.unit, transfer.chunks)
        busy = shadow.busy_cells()
        cells = cells[busy[cells] == transfer.number]
        busy[cells] = 0
        for number in [
            each for each in transfer.also_reading if each in self.under_way
        ]:  # they still read what this one has read
            other = self.under_way[number]
            theirs, _ = shadow.cells(other.chunks, other.unit, other.chunks)
            busy[theirs[busy[theirs] == 0]] = number
        if stamp:
            sort = shadow.sorts[0 if transfer.writes else 1]
            sort.stamp[cells], sort.by[cells] = stamp, transfer.ins.index

    # ---- groups of a thread

    def join(self, transfer: Transfer | None, lane: int) -> None:
        """Add a transfer to the lane's current group."""
        if transfer is not None:
            self.groups.setdefault(lane, []).append((int(self.group[lane]), transfer))

    def commit(self, sel: Ints | None) -> None:
        """Execute ``cp.async.bulk.commit_group`` by these lanes."""
        self.group[slice(None) if sel is None else sel] += 1

    def wait(self, keep: int, sel: Ints | None, only_read: bool) -> None:
        """Execute ``cp.async.bulk.wait_group`` by these lanes: all groups except the latest ``keep`` are complete, or
        with ``only_read`` have at least read all their bytes."""
        if not self.groups:
            return
        active = set((range(self.threads.size)) if sel is None else sel.tolist())
        for lane in [lane for lane in self.groups if lane in active]:
            last, remaining = int(self.group[lane]) - keep, []
            for group, transfer in self.groups.pop(lane):
                if group < last and not (only_read and transfer.writes):
                    transfer.finish(int(self.clocks.stamp[lane]))
                else:
                    remaining.append((group, transfer))
            if remaining:
                self.groups[lane] = remaining

    # ---- findings

    def end(self) -> None:
        """End all transfers at the end of blocks, and report copies that may still read shared memory of their block.

        CUTLASS waits for the last stores before a block ends. DeepGEMM does not wait for the last stores, because GPUs
        keep the block's memory until the stores are complete. Such a copy is therefore a finding only "by the letter of
        PTX".
        """
        for lane, transfers in self.groups.items():
            for _, transfer in transfers:
                if not transfer.writes:
                    where = transfer.region.addresses(transfer.chunks[:1])
                    place = transfer.region.words(int(where[0]))
                    outlives = "PTX does not promise that shared memory outlives its block"
                    text = (
                        f"the block may end while this copy still reads {place}, and {outlives} ({_remedy(transfer)})"
                    )
                    text = f"{text}: {transfer.ins.text}"
                    self.reports.report(
                        "race", transfer.ins, np.array([lane]), np.ones(1, bool), where, text, BY_THE_LETTER
                    )
        for transfer in list(self.under_way.values()):
            self.finish(transfer, 0)

    def touched(
        self, ins: Instruction, region: Region, cells: Ints, offsets: Ints, sel: Ints | None, writes: bool
    ) -> Bools | None:
        """Report accesses to cells that an incomplete transfer writes, and write accesses to cells that such a transfer
        reads. Returns which accesses were reported; None if no access was reported."""
        shadow = region.shadow
        if shadow is None or shadow.busy is None or not self.under_way:
            return None
        numbers = shadow.busy[cells].reshape(offsets.size, -1)
        hit = numbers > 0 if writes else self.writing[numbers] & (numbers > 0)
        bad = np.asarray(hit.any(axis=1))
        if not bad.any():
            return None
        first = int(np.argmax(bad))
        part = int(np.argmax(hit[first]))
        transfer = self.under_way[int(numbers[first, part])]
        addresses = region.addresses(offsets)
        place = region.words(int(addresses[first]) + part * shadow.grain)
        does = "is still writing" if transfer.writes else "still reads"
        text = f"{'writes' if writes else 'reads'} {place}, which {_name(transfer)} at {transfer.ins.place(ins)} {does}"
        kind = "race" if writes else "unwritten read"
        self.reports.report(kind, ins, sel, bad, addresses, f"{text} ({_remedy(transfer)}): {ins.text}")
        lane = first if sel is None else int(sel[first])
        if writes and _is_asynchronous(ins):
            self.mbarriers.report_waits_of(lane)
        elif transfer.barrier is not None:
            self.mbarriers.report_repeated(transfer.barrier, int(self.threads.tid[lane]) // 32)
        return bad

    def _report_unseen(
        self, ins: Instruction, region: Region, lanes: Ints, bad: Bools, chunks: Ints, writer: Instruction
    ) -> None:
        addresses = region.addresses(chunks)
        place = region.words(int(addresses[np.argmax(bad)]))
        text = f"reads {place} asynchronously, which {writer.place(ins)} wrote with no fence.proxy.async after it"
        grade = in_library_if_both(ins, writer)
        self.reports.report(MISSING_FENCE, ins, lanes, bad, addresses, f"{text}: {ins.text}", grade)


def chunks_of(first: int, nbytes: int) -> Ints:
    """Return the offsets of the chunks of a range of bytes.

    >>> chunks_of(32, 48).tolist()
    [32, 48, 64]
    """
    return np.arange(first, first + nbytes, CHUNK, dtype=np.int64)


def _is_asynchronous(ins: Instruction) -> bool:
    return ins.parts[0] == "cp" and "bulk" in ins.parts


def _name(transfer: Transfer) -> str:
    parts = transfer.ins.parts
    return "the copy" if _is_asynchronous(transfer.ins) else ".".join(parts[:2]) if parts[0] == "tcgen05" else parts[0]


def _remedy(transfer: Transfer) -> str:
    if transfer.ins.parts[0] == "tcgen05":
        return "tcgen05.commit and a wait for its mbarrier first"
    if not _is_asynchronous(transfer.ins):
        return f"{transfer.ins.parts[0]}.wait_group first"
    if transfer.writes:
        return "wait for its mbarrier first" if transfer.barrier else "cp.async.bulk.wait_group first"
    return "cp.async.bulk.wait_group.read first"
