"""``cp.async`` and its groups (PTX ISA 9.7.9.25): copies from global to shared memory that arrive later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..assembly.instructions import Instruction
from ..machine.lanes import Lanes
from ..machine.mbarriers import Mbarrier
from ..machine.memory import Region
from ..machine.values import Bools, Ints
from ._table import Step, UnknownInstruction, number_of, step
from .access import HINTS, address, note_read, note_write, visit
from .bulk import bulk_copy
from .mbarrier import at_barriers


@step("cp")
def _cp(ins: Instruction, lanes: Lanes) -> Step:
    """``cp.async``: the copy is done at once and its bytes count as written when its group is waited for."""
    parts = ins.parts
    if "bulk" in parts:
        return bulk_copy(ins, lanes)
    if parts[:2] != ("cp", "async") or len(parts) < 3:
        raise UnknownInstruction(ins)
    lanes.async_copies = lanes.async_copies or AsyncCopies(lanes)
    if parts[2:4] == ("mbarrier", "arrive"):
        return _arrive(ins, lanes)
    if parts[2] in ("commit_group", "wait_group", "wait_all"):
        # Each thread waits for its own copies; a barrier must still follow before others read them.
        if len(parts) > 3 or len(ins.operands) != (parts[2] == "wait_group"):
            raise UnknownInstruction(ins)
        keep = number_of(ins, ins.operands[0]) if parts[2] == "wait_group" else 0

        def groups(sel: Ints | None) -> None:
            lanes.async_copies.turn(parts[2], keep, sel)

        return groups
    if set(parts[2:]) - {"ca", "cg", "shared", "global", *HINTS} or len(ins.operands) < 3:
        raise UnknownInstruction(ins)
    size = number_of(ins, ins.operands[2])
    if size not in (4, 8, 16):
        raise UnknownInstruction(ins, "must copy 4, 8 or 16 bytes per thread")
    source_size = ins.operands[3] if len(ins.operands) > 3 else ""
    amount = lanes.source(source_size, "u32", ins) if source_size else np.array(size, np.uint32)
    into, out_of = address(ins.operands[0], lanes, ins, True), address(ins.operands[1], lanes, ins, False)
    bytes_of = np.arange(size)

    def copy(sel: Ints | None) -> None:
        target = into(sel)
        data = np.zeros((target.size, size), np.uint8)
        count = np.broadcast_to(amount if amount.ndim == 0 or sel is None else amount[sel], target.size)
        live = np.flatnonzero(count > 0)
        if live.size:
            at = live if sel is None else sel[live]

            def fetch(region: Region, offsets: Ints, place: Ints | None, chosen: Ints | None) -> None:
                note_read(ins, lanes, region, offsets, size, chosen)
                rows = live if place is None else live[place]
                data[rows] = region.data[offsets[:, None] + bytes_of]

            visit(ins, lanes, "global", "cp.async", size, lambda _: out_of(sel)[live], fetch)(at)
            data[bytes_of >= count[:, None]] = 0

        def put(region: Region, offsets: Ints, place: Ints | None, chosen: Ints | None) -> None:
            lanes.async_copies.start(ins, region, offsets, size, chosen)
            region.data[offsets[:, None] + bytes_of] = data if place is None else data[place]

        visit(ins, lanes, "shared", "cp.async", size, lambda _: target, put)(sel)

    return copy


def _arrive(ins: Instruction, lanes: Lanes) -> Step:
    """``cp.async.mbarrier.arrive``: an arrival when all earlier copies of the thread are complete. It counts as one of those
    that the phase needs only with ``.noinc``."""
    flags = set(ins.parts[4:])
    if flags - {"noinc", "shared", "cta", "b64"} or len(ins.operands) != 1:
        raise UnknownInstruction(ins)
    space = "shared" if "shared" in flags else ""

    def arrive(barrier: Mbarrier, some: Ints) -> None:
        barrier.copies.append((barrier.phase, lanes.async_copies.shared_with(some)))
        if "noinc" in flags:
            lanes.mbarriers.arrive(ins, barrier, some, some.size, release=False)

    return at_barriers(ins, lanes, space, address(ins.operands[0], lanes, ins, bool(space)), arrive)


@dataclass(eq=False)
class _Copies:
    """Those of one instruction: where each lane's bytes go, its number and group, and whether they have yet to arrive."""

    ins: Instruction
    region: Region
    offsets: Ints
    nbytes: int
    owner: Ints
    group: Ints
    coming: Bools

    def finish(self, which: Bools, stamps: Ints) -> None:
        """These count as written by threads with these stamps, unless others have written the bytes meanwhile."""
        shadow = self.region.shadow
        self.coming &= ~which
        if shadow is None or not which.any():
            return
        cells, now = shadow.cells(self.offsets[which], self.nbytes, stamps)
        still = (shadow.writer[cells] == 0) & (shadow.by[cells] == self.ins.index)
        shadow.writer[cells[still]] = np.broadcast_to(now, cells.shape)[still]


class AsyncCopies:
    """Copies under way: bytes that no thread may read before a wait for the group of their copy, or at an mbarrier.

    The data is stored at once, but the shadow says "unwritten" until that wait, so an earlier read is reported. At the
    wait, the bytes count as written by the thread that copied them, or that waited at the mbarrier.
    """

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.group = np.zeros(lanes.size, np.int64)
        self.under_way: list[_Copies] = []

    def clear(self) -> None:
        """Forget all copies: new blocks start."""
        self.group.fill(0)
        self.under_way.clear()

    def start(self, ins: Instruction, region: Region, offsets: Ints, nbytes: int, sel: Ints | None) -> None:
        """Note that these lanes copy to a region; the bytes may not be read before a wait for the copy."""
        if region.shadow is None:
            return
        active = self.lanes.every if sel is None else sel
        # A copy writes when it is issued: a race with a thread that still reads the old bytes shows here.
        settle = note_write(ins, self.lanes, region, offsets, nbytes, sel)
        if settle is not None:
            settle(np.ones(offsets.size, bool))
        cells, _ = region.shadow.cells(offsets, nbytes, offsets)
        region.shadow.writer[cells] = 0
        group, coming = self.group[active].copy(), np.ones(offsets.size, bool)
        self.under_way.append(_Copies(ins, region, offsets, nbytes, active, group, coming))

    def turn(self, what: str, keep: int, sel: Ints | None) -> None:
        """commit_group, wait_group N or wait_all by these lanes."""
        active = self.lanes.every if sel is None else sel
        if what == "commit_group":
            self.group[active] += 1
            return
        waits = self._marked(active)
        for copies in self.under_way:
            done = copies.coming & waits[copies.owner]
            if what != "wait_all":
                done &= copies.group < self.group[copies.owner] - keep
            copies.finish(done, self.lanes.clocks.stamp[copies.owner[done]])
        self._forget_arrived()

    def shared_with(self, lanes: Ints) -> CopiesAtBarrier:
        """All copies under way of these lanes, for threads that wait for an mbarrier in place of a group."""
        self._forget_arrived()
        mine = self._marked(lanes)
        entries = [(copies, copies.coming & mine[copies.owner]) for copies in self.under_way]
        return CopiesAtBarrier([entry for entry in entries if entry[1].any()])

    def _marked(self, lanes: Ints) -> Bools:
        marks = np.zeros(self.lanes.size, bool)
        marks[lanes] = True
        return marks

    def _forget_arrived(self) -> None:
        self.under_way = [copies for copies in self.under_way if copies.coming.any()]


@dataclass(frozen=True)
class CopiesAtBarrier:
    """Copies that are complete when a phase of an mbarrier is. Some of them may have been waited for elsewhere by then, and
    other copies to the same bytes be under way."""

    entries: list[tuple[_Copies, Bools]]

    def finish(self, stamp: int) -> None:
        """The bytes count as written by the thread with this stamp."""
        for copies, which in self.entries:
            which = which & copies.coming
            copies.finish(which, np.full(int(which.sum()), stamp))
