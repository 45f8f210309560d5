"""The copy engine, for one instruction: finds and checks the places that it moves, and completes bytes at barriers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..assembly.instructions import Instruction
from ..counters.work import UnitWork
from ..machine.lanes import Lanes
from ..machine.mbarriers import Mbarrier
from ..machine.memory import Region
from ..machine.shared_space import OFFSET
from ..machine.transfers import CHUNK, Transfer
from ..machine.values import Array, Ints, per_lane
from .access import Address, note_update, note_work


@dataclass(frozen=True)
class SharedRange:
    """Bytes of the shared memory of a block: the offset of the first in the region of all blocks, and the block's start."""

    region: Region
    first: int
    start: int


class CopyEngine:
    """The copy engine, for one instruction: finds and checks the places that it moves, for one lane after the other."""

    def __init__(self, ins: Instruction, lanes: Lanes) -> None:
        self.ins, self.lanes = ins, lanes
        self.shared = lanes.shared

    def report(self, kind: str, lane: int, where: int, text: str) -> None:
        """Report a finding of a lane."""
        at = np.array([where], np.int64)
        self.lanes.reports.report(kind, self.ins, np.array([lane]), np.ones(1, bool), at, f"{text}: {self.ins.text}")

    def aligned(self, what: str, value: int, to: int, lane: int, where: int) -> bool:
        """Whether a number is a multiple of another; reports it if not."""
        if value % to == 0:
            return True
        self.report("misaligned", lane, where, f"{what} is {value % to} off a multiple of {to}")
        return False

    def in_shared(self, at: int, nbytes: int, lane: int, align: int = CHUNK) -> SharedRange | None:
        """The range at an address of shared memory, of the lane's block or of its cluster; None, and a finding, if it is
        misaligned or reaches outside."""
        if not self.shared.names_block(at):
            self.report("out of bounds", lane, at, f"{nbytes} bytes of {self.shared.missing_block(at)}")
            return None
        offset = int(self.shared.offsets(self.shared.region, np.array([at]), np.array([lane]))[0])
        inside = at & OFFSET  # which may lie beyond the block's memory, where the next block's begins in the region
        start = offset - inside
        if not self.aligned(f"the address of {self.shared.describe(inside, 1)}", inside, align, lane, inside):
            return None
        if self.shared.holding(inside, inside + nbytes) is None:
            text = f"{nbytes} bytes at {self.shared.describe(inside, nbytes)}"
            self.report("out of bounds", lane, inside, text)
            return None
        return SharedRange(self.shared.region, offset, start)

    def in_global(self, at: int, nbytes: int, lane: int) -> tuple[Region, int] | None:
        """Region and offset of a range of global memory; None, and a finding, if it is misaligned or reaches outside."""
        space = self.lanes.spaces["global"]
        if not self.aligned(f"the address of {space.describe(at, 1)}", at, CHUNK, lane, at):
            return None
        region = space.holding(at, at + nbytes)
        if region is None:
            self.report("out of bounds", lane, at, f"{nbytes} bytes at {space.describe(at, nbytes)}")
            return None
        space.prepare(self.ins, region)
        return region, at - region.base

    def barrier(self, at: int, lane: int) -> Mbarrier | None:
        """The barrier at an address of shared memory; None, and a finding, if there is none, or the engine cannot see it."""
        place, lanes = self.in_shared(at, 8, lane, 8), np.array([lane])
        if place is None:
            return None
        note_update(self.ins, self.lanes, place.region, np.array([place.first]), 8, lanes)
        barrier = self.lanes.mbarriers.find(self.ins, place.region, place.first, lanes)
        if barrier is not None:
            self.lanes.mbarriers.check_visible(self.ins, barrier, lane)
        return barrier

    def blocks(self, mask: int | None, place: SharedRange, lane: int) -> list[int]:
        """How far the shared memory of each block that receives a copy lies from that of the block of ``place``."""
        if mask is None:
            return [0]
        size, stride = self.lanes.cluster.size, self.shared.stride
        first = int(self.lanes.of_block[lane]) // size * size
        if mask >> size:
            text = f"the mask {mask:#x} names blocks beyond the {size} of the cluster"
            self.report("out of bounds", lane, place.first - place.start, text)
        return [(first + rank) * stride - place.start for rank in range(size) if mask >> rank & 1]

    def load(
        self,
        lane: int,
        place: SharedRange,
        chunks: Ints,
        put: Callable[[int], None],
        barrier: Mbarrier,
        mask: int | None,
        moved: UnitWork,
        reads: Sequence[Transfer] = (),
    ) -> None:
        """Write chunks of shared memory, in every block of a mask, and complete their bytes at the block's barrier, with the
        transfers that the copy ``reads``. ``put`` stores the bytes, displaced by a number of bytes; ``moved`` is what is
        counted of each block's copy."""
        receivers = self.blocks(mask, place, lane)
        if moved.sectors:
            note_work(self.ins, self.lanes, moved.to(len(receivers)), np.array([lane]))
        for far in receivers:
            target = barrier if not far else self.lanes.mbarriers.at.get(barrier.offset + far)
            if target is None:
                self.lanes.mbarriers.find(self.ins, place.region, barrier.offset + far, np.array([lane]))
                continue
            if far:  # that of the lane's own block has been looked at
                note_update(self.ins, self.lanes, target.region, np.array([target.offset]), 8, np.array([lane]))
            transfer = self.lanes.transfers.write(self.ins, place.region, chunks + far, lane, target)
            put(far)
            pending = [*reads, *([transfer] if transfer is not None else [])]
            self.lanes.mbarriers.await_copy(self.ins, target, chunks.size * CHUNK, pending, lane)
            self.shared.visit(self.ins, np.array([lane]), np.array([target.block]))

    def give_up(self, barrier: Mbarrier | None, nbytes: int) -> None:
        """A copy that was reported cannot be done: its bytes count as arrived, so that no wait is reported too."""
        if barrier is not None:
            self.lanes.mbarriers.await_copy(self.ins, barrier, nbytes, [])

    def seen(self, transfer: Transfer | None, lane: int) -> None:
        """Finish a transfer that needs no wait."""
        if transfer is not None:
            transfer.finish(int(self.lanes.clocks.stamp[lane]))


def each(source: Array, active: Ints) -> list[int]:
    """The values of an operand for these lanes."""
    return per_lane(source, active).astype(np.int64).tolist()


def places(where: Address, active: Ints) -> list[int]:
    """The addresses of these lanes."""
    return [int(at) for at in where(active)]
