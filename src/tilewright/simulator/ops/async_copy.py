"""Instructions that copy between global and shared memory asynchronously, namely ``cp.async`` and its groups (PTX ISA
9.7.9.25), and bulk copies.

Bulk copies are ``cp.async.bulk``, ``cp.reduce.async.bulk`` and their tensor forms, which the copy engine executes (PTX
ISA 9.7.9.27). The simulator copies the bytes when a copy instruction is issued. ``machine.transfers`` marks the bytes
of a copy as busy until a thread has waited for the barrier or group of the copy, and an access to busy bytes is
reported.

The box of a tensor map lies in shared memory row by row, swizzled as the map says. Rows that are narrower than a
swizzle begin at multiples of the swizzle's width. Loads clip the box at the edge of the tensor, exactly to the element,
and fill the part outside the tensor. Stores and reductions move chunks of 16 bytes, so the last chunk of a row may
overwrite what follows the row. The rules of loads, stores and reductions at the edges of a tensor were observed on an
H200.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ...errors import UsageError
from ...records.pipeline import PATTERN_CHUNKS, PATTERN_ROWS
from ..assembly.instructions import Instruction, operand_tokens
from ..counters.work import NOTHING, UnitWork, copy_work, filled_sectors, multicast_sectors, touched_sectors
from ..findings import NEIGHBOURS
from ..machine.event_log import first_rows
from ..machine.lanes import Lanes
from ..machine.mbarriers import Mbarrier
from ..machine.memory import Region
from ..machine.origins import Box
from ..machine.spaces import OFFSET, WINDOW
from ..machine.tensor_map import MAP_BYTES, SWIZZLES, BoxedTensor
from ..machine.transfers import CHUNK, Transfer, chunks_of
from ..machine.values import DTYPES, Array, Bools, Ints, per_lane
from ._table import Step, UnknownInstruction, number_of, step
from .access import HINTS, Address, Update, address, note_read, note_update, note_work, note_write, reduction, visit
from .descriptor import swizzled
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
    """Execute ``cp.async.mbarrier.arrive``: an arrival when all earlier copies of the thread are complete. Only with
    ``.noinc`` does the arrival count as one of the arrivals that the phase needs."""
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
    """The copies that one execution of an instruction issued: the number of this execution, and for each lane the place
    of its bytes, the lane's number, the group of its copy, and whether the bytes have yet to arrive."""

    number: int
    region: Region
    offsets: Ints
    nbytes: int
    owner: Ints
    group: Ints
    coming: Bools

    def finish(self, which: Bools, stamps: Ints) -> None:
        """Count the bytes of these copies as written by threads with these stamps, unless other threads have written to
        these bytes meanwhile, or copy to them."""
        shadow = self.region.shadow
        self.coming &= ~which
        if shadow is None or not which.any():
            return
        cells, now = shadow.cells(self.offsets[which], self.nbytes, stamps)
        still = (shadow.writer[cells] == 0) & (shadow.copied_cells()[cells] == self.number)
        shadow.writer[cells[still]] = np.broadcast_to(now, cells.shape)[still]


class AsyncCopies:
    """The copies by ``cp.async`` that are not complete yet. No thread may read the bytes of a copy before it has waited
    for the copy's group, or at an mbarrier.

    The bytes of a copy are stored at once, but until the wait the shadow marks them as unwritten, so that an earlier
    read is reported. After the wait, the bytes count as written by the thread that copied them, or by the thread that
    waited at the mbarrier.
    """

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.group = np.zeros(lanes.size, np.int64)
        self.under_way: list[_Copies] = []
        self.issued = 0

    def clear(self) -> None:
        """Forget all copies, because new blocks start."""
        self.group.fill(0)
        self.under_way.clear()
        self.issued = 0

    def start(self, ins: Instruction, region: Region, offsets: Ints, nbytes: int, sel: Ints | None) -> None:
        """Record that these lanes copy to a region; the bytes may not be read before a wait for the copy."""
        if region.shadow is None:
            return
        active = self.lanes.every if sel is None else sel
        # A copy writes when it is issued: a race with a thread that still reads the old bytes shows here.
        settle = note_write(ins, self.lanes, region, offsets, nbytes, sel)
        if settle is not None:
            settle(np.ones(offsets.size, bool))
        self.issued += 1
        cells, _ = region.shadow.cells(offsets, nbytes, offsets)
        region.shadow.writer[cells], region.shadow.copied_cells()[cells] = 0, self.issued
        group, coming = self.group[active].copy(), np.ones(offsets.size, bool)
        self.under_way.append(_Copies(self.issued, region, offsets, nbytes, active, group, coming))

    def turn(self, what: str, keep: int, sel: Ints | None) -> None:
        """Execute ``cp.async.commit_group``, ``cp.async.wait_group`` N or ``cp.async.wait_all`` by these lanes."""
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
        """Return all incomplete copies of these lanes, for threads that wait for them at an mbarrier instead of for a
        group."""
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
    """Copies that are complete when a phase of an mbarrier is complete. Before that phase is complete, threads may have
    waited for some of these copies by other means, and other copies to the same bytes may have begun."""

    entries: list[tuple[_Copies, Bools]]

    def finish(self, stamp: int) -> None:
        """Count the bytes of these copies as written by the thread with this stamp."""
        for copies, which in self.entries:
            which = which & copies.coming
            copies.finish(which, np.full(int(which.sum()), stamp))


# ---- bulk copies -----------------------------------------------------------------------------------------------------

#: The operations of reductions.
_OPERATIONS = {"add", "min", "max", "inc", "dec", "and", "or", "xor"}

# ---- the copy engine -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SharedRange:
    """A range of the shared memory of one block. ``region`` holds the shared memory of all blocks. ``first`` is the
    offset of the range in ``region``, and ``start`` is the offset at which the block's memory begins."""

    region: Region
    first: int
    start: int


class CopyEngine:
    """The copy engine, as one instruction uses it. ``CopyEngine`` checks the ranges of memory that each lane copies,
    and reports invalid ranges."""

    def __init__(self, ins: Instruction, lanes: Lanes) -> None:
        self.ins, self.lanes = ins, lanes
        self.shared = lanes.shared

    def report(self, kind: str, lane: int, where: int, text: str) -> None:
        """Report a finding for a lane."""
        at = np.array([where], np.int64)
        self.lanes.reports.report(kind, self.ins, np.array([lane]), np.ones(1, bool), at, f"{text}: {self.ins.text}")

    def aligned(self, what: str, value: int, to: int, lane: int, where: int) -> bool:
        """Whether ``value`` is a multiple of ``to``; reports a finding if it is not."""
        if value % to == 0:
            return True
        self.report("misaligned", lane, where, f"{what} is {value % to} off a multiple of {to}")
        return False

    def in_shared(self, at: int, nbytes: int, lane: int, align: int = CHUNK) -> SharedRange | None:
        """Return the range at an address of shared memory, in the lane's block or in another block of its cluster. If
        the range is misaligned or out of bounds, reports a finding and returns None."""
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
        """Return the region and the offset of a range of global memory. If the range is misaligned or out of bounds,
        reports a finding and returns None."""
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
        """Return the barrier at an address of shared memory. If the address has no barrier, reports a finding and
        returns None. If the copy engine cannot see the barrier yet, also reports a finding."""
        place, lanes = self.in_shared(at, 8, lane, 8), np.array([lane])
        if place is None:
            return None
        note_update(self.ins, self.lanes, place.region, np.array([place.first]), 8, lanes)
        barrier = self.lanes.mbarriers.find(self.ins, place.region, place.first, lanes)
        if barrier is not None:
            self.lanes.mbarriers.check_visible(self.ins, barrier, lane)
        return barrier

    def blocks(self, mask: int | None, place: SharedRange, lane: int) -> list[int]:
        """Return, for each block that receives a copy, the offset of its shared memory relative to the shared memory of
        the block of ``place``."""
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
        *,
        barrier: Mbarrier,
        mask: int | None,
        work: UnitWork,
        reads: Sequence[Transfer] = (),
        pair: bool = False,
    ) -> None:
        """Write chunks of shared memory in every block of a mask, and complete their bytes at that block's barrier.
        With ``pair``, the bytes for a pair of blocks complete at the barrier of one of the two: the even one if the
        rank of ``barrier``'s block is even, otherwise the odd one. ``put`` stores the bytes in the block at a given
        offset. ``work`` is the work that counters count for each block's copy. ``reads`` are the transfers that read
        the source of the copy; they are pending until the copy is complete."""
        receivers = self.blocks(mask, place, lane)
        if work.sectors:
            note_work(self.ins, self.lanes, work.to(len(receivers)), np.array([lane]))
        for block_offset in receivers:
            shift = block_offset
            if pair and mask is not None:
                block = (place.start + block_offset) // self.shared.stride
                shift = ((block & ~1 | barrier.block & 1) - barrier.block) * self.shared.stride
            target = barrier if not shift else self.lanes.mbarriers.at.get(barrier.offset + shift)
            if target is None:
                self.lanes.mbarriers.find(self.ins, place.region, barrier.offset + shift, np.array([lane]))
                continue
            if block_offset:  # the access to the barrier of the lane's own block is already noted
                note_update(self.ins, self.lanes, target.region, np.array([target.offset]), 8, np.array([lane]))
            transfer = self.lanes.transfers.write(self.ins, place.region, chunks + block_offset, lane, target)
            put(block_offset)
            pending = [*reads, *([transfer] if transfer is not None else [])]
            self.lanes.mbarriers.await_copy(self.ins, target, chunks.size * CHUNK, pending, lane)
            self.shared.visit(self.ins, np.array([lane]), np.array([target.block]))

    def count_as_arrived(self, barrier: Mbarrier | None, nbytes: int) -> None:
        """Count the bytes of a copy as arrived although the copy is not executed, because it was reported as invalid;
        so waits for the copy are not reported, too."""
        if barrier is not None:
            self.lanes.mbarriers.await_copy(self.ins, barrier, nbytes, [])

    def finish_at_once(self, transfer: Transfer | None, lane: int) -> None:
        """Finish a transfer for which no thread has to wait."""
        if transfer is not None:
            transfer.finish(int(self.lanes.clocks.stamp[lane]))


def values_of(source: Array, active: Ints) -> list[int]:
    """Return the values of an operand for these lanes, as integers."""
    return per_lane(source, active).astype(np.int64).tolist()


def addresses_of(where: Address, active: Ints) -> list[int]:
    """Return the addresses of these lanes, as integers."""
    return [int(at) for at in where(active)]


# ---- boxes of arrays, by tensor maps ---------------------------------------------------------------------------------

_BOX_MODIFIERS = {"tile", "L2::cache_hint"}
#: The addresses of boxes in shared memory must be multiples of this number.
BOX_ALIGN = 128


@dataclass(frozen=True)
class Window:
    """The part of a box that lies inside the tensor, as slices of the tensor in global memory and as slices of the box.
    The innermost dimension is last."""

    region: Region
    first: int  # the byte of the region at which the tensor begins
    inside: tuple[slice, ...]  # of the tensor
    within: tuple[slice, ...]  # of the box

    @property
    def empty(self) -> bool:
        """Whether no part of the box lies inside the tensor."""
        return any(s.start >= s.stop for s in self.within)


class TensorCopy:
    """The operands of one tensor copy: for each lane the tensor map and the coordinates.

    A copy of four rows (``tile::gather4``, ``tile::scatter4``) has one column and four rows as coordinates.
    """

    def __init__(self, ins: Instruction, lanes: Lanes, operand: str, rank: int) -> None:
        self.ins, self.lanes, self.rank = ins, lanes, rank
        self.four = bool({"gather4", "scatter4"} & set(ins.parts))
        found = re.fullmatch(r"\[\s*([^,{]+?)\s*,\s*(\{[^}]*\})\s*\]", operand)
        names = operand_tokens(found[2][1:-1]) if found else []
        if not found or len(names) != (5 if self.four else rank) or (self.four and rank != 2):
            raise UnknownInstruction(ins, f"has no tensor map with {rank} coordinates in {operand}")
        self.map = address(f"[{found[1]}]", lanes, ins, narrow=False)
        self.coordinates = [lanes.source(name, "s32", ins) for name in names]
        self.decoded: dict[bytes, BoxedTensor] = {}

    def tensor(self, at: int, lane: int) -> BoxedTensor:
        """Decode the tensor map at a generic address. Raises UsageError if there is no map of this rank."""
        name = {0: "global", **{base >> 56: name for name, base in WINDOW.items()}}.get(at >> 56, "global")
        generic, space, at = at, self.lanes.spaces[name], at - WINDOW.get(name, 0)
        region = space.holding(at, at + MAP_BYTES)
        data = b""
        if region is not None:
            first = int(space.offsets(region, np.array([at]), np.array([lane]))[0])
            if region.written:
                note_read(self.ins, self.lanes, region, np.array([first]), MAP_BYTES, np.array([lane]))
                self.lanes.tensor_map_edits.check(self.ins, region, first, generic, lane)
            data = bytes(region.data[first : first + MAP_BYTES])
        if data not in self.decoded:
            tensor = BoxedTensor.decode(data) if len(data) == MAP_BYTES else None
            if tensor is None or len(tensor.sizes) != self.rank:
                what = "no tensor map" if tensor is None else f"a tensor map of rank {len(tensor.sizes)}"
                raise UsageError(
                    f"{self.ins.place()}: {space.describe(at, MAP_BYTES)} holds {what} where {self.ins.opcode} needs one "
                    f"of rank {self.rank}: pass a tilewright.TensorMap for the kernel's CUtensorMap"
                )
            self.decoded[data] = tensor
        return self.decoded[data]

    def boxes(self, active: Ints) -> list[tuple[int, BoxedTensor, tuple[int, ...]]]:
        """Return, for each lane, the tensor and the coordinates of its box."""
        columns = [values_of(c, active) for c in self.coordinates]
        lanes = zip(active.tolist(), addresses_of(self.map, active), zip(*columns, strict=True), strict=True)
        return [(lane, self.tensor(at, lane), tuple(place)) for lane, at, place in lanes]

    def parts(
        self, tensor: BoxedTensor, place: tuple[int, ...]
    ) -> tuple[BoxedTensor, list[tuple[BoxedTensor, tuple[int, ...]]]]:
        """Return the box as it lies in shared memory, and the boxes of the tensor of which it consists, with their
        coordinates."""
        if not self.four:
            return tensor, [(tensor, place)]
        row = replace(tensor, box=(tensor.box[0], 1), element_strides=(1, 1))
        return replace(row, box=(tensor.box[0], 4)), [(row, (place[0], y)) for y in place[1:]]

    def window(self, engine: CopyEngine, tensor: BoxedTensor, place: tuple[int, ...], lane: int) -> Window | None:
        """Return the part of a box inside the tensor. Returns None and reports a finding if the tensor extends beyond
        its array, or if the box does not begin at a multiple of 16 bytes of a row."""
        column = place[0] * tensor.itemsize
        if column % CHUNK:
            text = f"the box begins at byte {column} of a row, which is no multiple of {CHUNK}: a GPU stops the kernel there"
            engine.report("misaligned", lane, tensor.address, text)
            return None
        extent = sum((n - 1) * step for n, step in zip(tensor.sizes, tensor.strides, strict=True)) + tensor.itemsize
        found = engine.in_global(tensor.address, extent, lane)
        if found is None:
            return None
        inside, within = [], []
        for at, size, count, stride in zip(place, tensor.sizes, tensor.counts, tensor.element_strides, strict=True):
            first = min(count, max(0, -(at // stride)))
            stop = max(first, min(count, -(-(size - at) // stride)))
            inside.append(slice(at + first * stride, at + (stop - 1) * stride + 1, stride))
            within.append(slice(first, stop))
        return Window(*found, tuple(inside[::-1]), tuple(within[::-1]))

    def begins_outside(self, engine: CopyEngine, tensor: BoxedTensor, place: tuple[int, ...], lane: int) -> bool:
        """Whether a box begins before the tensor; reports a finding if it does, because only boxes of loads may begin
        there."""
        for dimension, at in enumerate(place):
            if at < 0:
                text = (
                    f"the box begins at {at} of dimension {dimension}, before the tensor: a GPU stops the kernel there"
                )
                engine.report("out of bounds", lane, tensor.address, text)
                return True
        return False


def tensor_copy(ins: Instruction, lanes: Lanes) -> Step:
    """Make the step of an instruction of the ``cp.async.bulk.tensor`` family."""
    words = ins.opcode.split(".")
    rank = next((int(w[0]) for w in words if re.fullmatch(r"[1-5]d", w)), 0)
    rest = set(words[words.index("tensor") + 2 :])
    if not rank or any(w.startswith("im2col") for w in rest):
        raise UnknownInstruction(ins, "is a tensor copy of a mode that cannot be run (only .tile can)")
    pair = "cta_group::2" in rest
    rest -= {"cta_group::1", "cta_group::2"} if "mbarrier::complete_tx::bytes" in rest else set()
    rest -= {"tile::gather4"} if "mbarrier::complete_tx::bytes" in rest or "prefetch" in words else {"tile::scatter4"}
    if "prefetch" in words:
        TensorCopy(ins, lanes, ins.operands[0], rank)
        return lambda sel: None
    operation = next(iter(rest & _OPERATIONS), "") if words[1] == "reduce" else ""
    modifiers = rest - _BOX_MODIFIERS - {operation}
    if modifiers == {"global", "shared::cta", "bulk_group"} and len(ins.operands) >= 2:
        return _store_box(ins, lanes, rank, operation)
    loads = {"global", "mbarrier::complete_tx::bytes"}
    into = modifiers - loads - {"multicast::cluster"}
    if (
        operation
        or not loads <= modifiers
        or into not in ({"shared::cluster"}, {"shared::cta"})
        or len(ins.operands) < 3
    ):
        raise UnknownInstruction(ins, "is a form of tensor copy that is not supported")
    return _load_box(ins, lanes, rank, "multicast::cluster" in modifiers, pair)


def _view(region: Region, first: int, tensor: BoxedTensor) -> Array:
    """The tensor in global memory, as words of its elements' size, innermost dimension last."""
    return np.ndarray(tensor.sizes[::-1], f"u{tensor.itemsize}", region.data.data, first, tensor.strides[::-1])


def _chunks(place: SharedRange, tensor: BoxedTensor) -> Ints:
    """Where the chunks of a box lie in the region of shared memory: in order of the box, swizzled by their addresses."""
    across = tensor.counts[0] * tensor.itemsize // CHUNK
    rows, columns = np.divmod(np.arange(tensor.box_bytes // CHUNK, dtype=np.int64), across)
    inside = place.first - place.start + rows * tensor.pitch + columns * CHUNK
    return place.start + swizzled(inside, SWIZZLES.index(tensor.swizzle))


def _chunks_inside(tensor: BoxedTensor, window: Window) -> Bools:
    """Which chunks of a box a store needs: those with an element inside the tensor. Others may hold anything."""
    inside = np.zeros(tensor.counts[::-1], bool)
    inside[window.within] = True
    return np.asarray(inside.reshape(-1, CHUNK // tensor.itemsize).any(axis=1))


def _chunk_rows(region: Region) -> Array:
    """The bytes of a region as an array (n, 16), a row for each chunk."""
    return region.data[: region.data.size // CHUNK * CHUNK].reshape(-1, CHUNK)


def _elements(tensor: BoxedTensor, window: Window, dimensions: int | None = None) -> Ints:
    """The offsets in their region of the elements of a window, or of the parts of its outermost dimensions."""
    offsets = np.array([window.first], np.int64)
    for part, stride in list(zip(window.inside, tensor.strides[::-1], strict=True))[:dimensions]:
        offsets = (offsets[:, None] + np.arange(part.start, part.stop, part.step) * stride).reshape(-1)
    return offsets


def _box_work(kind: str, tensor: BoxedTensor, window: Window | None, multicast: bool = False) -> UnitWork:
    """The work that counters see of the copy of a box, of which ``window`` lies in global memory."""
    size, lines = tensor.itemsize, math.prod(tensor.counts[1:])
    line, starts, span, moved = tensor.counts[0] * size, np.zeros(0, np.int64), 0, 0
    if window is not None and not window.empty:
        inner, within = window.inside[-1], window.within[-1]
        starts = window.region.base + _elements(tensor, window, -1) + inner.start * size
        span, moved = (inner.stop - inner.start) * size, (within.stop - within.start) * size
    sectors = touched_sectors(starts, span)
    if kind == "load":
        if multicast and 0 < moved < line:
            sectors = multicast_sectors(starts.size, line)
            moved = line
        sectors += filled_sectors(lines, line, starts.size, moved)
    return copy_work(kind, starts.size * moved, sectors)


def _load_box(ins: Instruction, lanes: Lanes, rank: int, multicast: bool, pair: bool) -> Step:
    engine, copy = CopyEngine(ins, lanes), TensorCopy(ins, lanes, ins.operands[1], rank)
    into, barriers = (address(ins.operands[i], lanes, ins, narrow=True) for i in (0, 2))
    masks = lanes.source(ins.operands[3], "u16", ins) if multicast else None

    def load(sel: Ints | None) -> None:
        active = lanes.every if sel is None else sel
        chosen = [None] * active.size if masks is None else values_of(masks, active)
        rows = zip(copy.boxes(active), addresses_of(into, active), addresses_of(barriers, active), chosen, strict=True)
        for (lane, given, at), target, wait, mask in rows:
            tensor, parts = copy.parts(given, at)
            place, barrier = engine.in_shared(target, tensor.shared_bytes, lane, BOX_ALIGN), engine.barrier(wait, lane)
            if place is None or barrier is None:
                engine.count_as_arrived(barrier, tensor.box_bytes)
                continue
            windows = [copy.window(engine, part, where, lane) for part, where in parts]
            gathered = [
                _gather(copy, engine, part, window, lane) for (part, _), window in zip(parts, windows, strict=True)
            ]
            chunks, data = _chunks(place, tensor), np.concatenate(gathered).reshape(-1, CHUNK)
            box = Box(ins, tensor.counts[0] * tensor.itemsize // CHUNK, tensor.counts[1] if rank > 1 else 1)
            note = lanes.origins.writer(place.region, box)
            if lanes.mbarriers.log is not None:
                cells = first_rows(chunks - place.start, box.across, box.rows, PATTERN_ROWS, PATTERN_CHUNKS)
                number = len(lanes.origins.boxes)
                lanes.mbarriers.log.box(ins, number, tensor.swizzle, 16 * box.across, cells)
            put = partial(_scatter, _chunk_rows(place.region), chunks, data, note)
            work = _sum_of([_box_work("load", part, w, multicast) for (part, _), w in zip(parts, windows, strict=True)])
            engine.load(lane, place, chunks, put, barrier=barrier, mask=mask, work=work, pair=pair)

    return load


def _sum_of(works: list[UnitWork]) -> UnitWork:
    """The work of one instruction that moves several boxes."""
    return replace(works[0], bytes=sum(w.bytes for w in works), sectors=sum(w.sectors for w in works))


def _scatter(rows: Array, chunks: Ints, data: Array, note: Callable[[Ints], None], block_offset: int) -> None:
    """Store chunks of data in the shared memory of the block at ``block_offset``, and note where they come from."""
    rows[chunks + block_offset >> 4] = data
    note(chunks + block_offset)


def _gather(copy: TensorCopy, engine: CopyEngine, tensor: BoxedTensor, window: Window | None, lane: int) -> Array:
    """The bytes of a box; elements outside the tensor have the fill value."""
    halves = np.full(tensor.box_bytes // 2, NAN_FILL if tensor.fill == "nan" else 0, np.uint16)
    box = halves.view(f"u{tensor.itemsize}").reshape(tensor.counts[::-1])
    if window is not None and not window.empty:
        if window.region.shadow is not None:
            offsets = _elements(tensor, window)
            reading = copy.lanes.transfers.read(copy.ins, window.region, offsets, lane, tensor.itemsize)
            engine.finish_at_once(reading, lane)
        box[window.within] = _converted(_view(window.region, window.first, tensor)[window.inside], tensor.type)
    return box.reshape(-1).view(np.uint8)


def _converted(words: Array, kind: str) -> Array:
    """Loaded words of a type: tf32 is rounded to nearest even, and every NaN becomes NAN_TF32. The types that end in
    ``_ftz`` load the same bits as the others, subnormal ones too."""
    if not kind.startswith("tf32"):
        return words
    finite, nan = words & 0x7F800000 != 0x7F800000, words & 0x7FFFFFFF > 0x7F800000
    rounded = words + (np.uint32(0xFFF) + (words >> 13 & 1)) & np.uint32(0xFFFFE000)
    return np.where(nan, NAN_TF32, np.where(finite, rounded, words))


#: The NaN that replaces every NaN that a copy loads as tf32.
NAN_TF32 = np.uint32(0x7FFFE000)
#: The 16 bits with which ``oob_fill="nan"`` fills, in elements of every type.
NAN_FILL = 0x7FF7


def _store_box(ins: Instruction, lanes: Lanes, rank: int, operation: str) -> Step:
    engine, copy = CopyEngine(ins, lanes), TensorCopy(ins, lanes, ins.operands[0], rank)
    out_of: Address = address(ins.operands[1], lanes, ins, narrow=True)

    def store(sel: Ints | None) -> None:
        active = lanes.every if sel is None else sel
        for (lane, given, at), source in zip(copy.boxes(active), addresses_of(out_of, active), strict=True):
            tensor, parts = copy.parts(given, at)
            place = engine.in_shared(source, tensor.shared_bytes, lane, BOX_ALIGN)
            windows = [copy.window(engine, part, where, lane) for part, where in parts]
            outside = any(copy.begins_outside(engine, part, where, lane) for part, where in parts)
            if place is None or outside:
                continue
            for (part, _), window, chunks in zip(
                parts, windows, np.split(_chunks(place, tensor), len(parts)), strict=True
            ):
                if window is None or window.empty:
                    continue
                read = chunks[_chunks_inside(part, window)]
                lanes.transfers.join(lanes.transfers.read(ins, place.region, read, lane), lane)
                work = _box_work("reduce" if operation else "store", part, window)
                note_work(ins, lanes, work, np.array([lane]))
                box = _chunk_rows(place.region)[chunks >> 4].reshape(-1)
                box = box.view(f"u{part.itemsize}").reshape(part.counts[::-1])
                _put_box(copy, engine, part, window, box, lane=lane, operation=operation)

    return store


def _put_box(
    copy: TensorCopy, engine: CopyEngine, tensor: BoxedTensor, window: Window, box: Array, *, lane: int, operation: str
) -> None:
    """Store or reduce the part of a box that lies inside the tensor, to the end of the last chunk of each row."""
    region, size, ins, lanes = window.region, tensor.itemsize, copy.ins, copy.lanes
    update: Update | None = None
    if operation:
        kind = tensor.type.removesuffix("_ftz")
        known = {"inc": kind == "u32", "dec": kind == "u32", "add": kind != "s64"}.get(operation, True)
        if kind in ("u8", "u16", "tf32") or not known:
            raise UnknownInstruction(ins, f"cannot reduce elements of type {tensor.type} by .{operation}")
        update = reduction(operation, kind)
    window = _with_overwritten_ends(engine, tensor, window, lane)
    offsets, data = _elements(tensor, window), box[window.within].reshape(-1)
    if update is None:
        lanes.transfers.join(lanes.transfers.write(ins, region, offsets, lane, unit=size), lane)
    else:
        note_update(ins, lanes, region, offsets, size, np.full(offsets.size, lane))
    cells, index = region.view(np.dtype(f"u{size}")), offsets // size
    if update is not None:
        dtype = DTYPES[kind]
        data = update(cells[index].view(dtype), data.view(dtype)).view(cells.dtype)
    cells[index] = data


def _with_overwritten_ends(engine: CopyEngine, tensor: BoxedTensor, window: Window, lane: int) -> Window:
    """The window, extended by the elements beyond the ends of rows that a store overwrites; these are reported."""
    size = tensor.itemsize
    last, inner = tensor.sizes[0], window.inside[-1]
    over = -last * size % CHUNK // size  # elements from the end of a row to the end of its last chunk
    more = min(over, tensor.counts[0] - window.within[-1].stop)
    rows = [(part.stop - 1) * step for part, step in zip(window.inside[:-1], tensor.strides[:0:-1], strict=True)]
    end = window.first + sum(rows) + (inner.stop + more) * size
    more -= max(0, end - window.region.nbytes) // size
    if inner.stop != last or more <= 0:
        return window
    where = window.region.base + window.first + sum(rows) + last * size
    text = f"rows of {last * size} bytes are no multiple of {CHUNK}: it overwrites {more * size} bytes after each"
    engine.report(NEIGHBOURS, lane, where, f"{text}, the last at {window.region.words(where)}")
    inside = (*window.inside[:-1], slice(inner.start, inner.stop + more, inner.step))
    within = (*window.within[:-1], slice(window.within[-1].start, window.within[-1].stop + more))
    return Window(window.region, window.first, inside, within)


# ---- ranges of bytes -------------------------------------------------------------------------------------------------

_LOAD = ("shared::cluster", "shared::cta")
_HINTS = {"L2::cache_hint", "noftz"}
#: The types of each reduction.
_KINDS = {
    **dict.fromkeys(("and", "or", "xor"), ("b32", "b64")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64", "f16", "bf16")),
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16"),
}


def words_of(ins: Instruction) -> list[str]:
    """Return the words of an opcode, in which words with ``::`` are not split, as in ``["cp", "async", "bulk",
    "shared::cluster", …]``."""
    return ins.opcode.split(".")


def bulk_copy(ins: Instruction, lanes: Lanes) -> Step:
    """Make the step of an instruction of the ``cp.async.bulk`` family."""
    # After cp.async.bulk or cp.reduce.async.bulk: commit_group | wait_group[.read] | prefetch… | …tensor… |
    # global.shared::cta… (a store) | shared::cluster.global… or shared::cta… (a load).
    words = words_of(ins)
    rest = words[3:] if words[1] == "async" else words[4:]
    if rest[:1] == ["commit_group"] and len(rest) == 1 and not ins.operands:
        return lanes.transfers.commit
    if rest[:1] == ["wait_group"] and rest[1:] in ([], ["read"]) and len(ins.operands) == 1:
        keep = number_of(ins, ins.operands[0])
        return lambda sel: lanes.transfers.wait(keep, sel, only_read=len(rest) == 2)
    if "tensor" in rest:
        return tensor_copy(ins, lanes)
    if rest[:1] == ["prefetch"]:
        return _prefetch(ins, rest)
    reduces = words[1] == "reduce"
    flags, kind = set(rest[2:]) - _HINTS, ""
    if reduces:
        kind = rest[-1]
        operation = next(iter(flags & _OPERATIONS), "")
        flags -= {operation, kind}
        if kind not in _KINDS.get(operation, ()):
            raise UnknownInstruction(ins, "is a form of reduction that is not supported")
        update = reduction(operation, kind)
    else:
        update = None
    if rest[0] == "global" and rest[1:2] == ["shared::cta"] and flags == {"bulk_group"}:
        return _store(ins, lanes, update, kind)
    loads = rest[0] in _LOAD and rest[1:2] in (["global"], ["shared::cta"])
    if not loads or flags - {"multicast::cluster"} != {"mbarrier::complete_tx::bytes"} or len(ins.operands) < 4:
        raise UnknownInstruction(ins, "is a form of bulk copy that is not supported")
    return _load(ins, lanes, rest[1], "multicast::cluster" in flags, update, kind)


def _prefetch(ins: Instruction, rest: list[str]) -> Step:
    if set(rest[1:]) - {"L2", "global", "L2::cache_hint"} or len(ins.operands) < 2:
        raise UnknownInstruction(ins)
    return lambda sel: None


def _amounts(engine: CopyEngine, ins: Instruction, lanes: Lanes) -> Callable[[Ints], list[int]]:
    """The bytes that lanes copy; a size that is no multiple of 16 is reported and rounded up."""
    size = lanes.source(ins.operands[2], "u32", ins)

    def amounts(active: Ints) -> list[int]:
        sizes = values_of(size, active)
        for lane, nbytes in zip(active.tolist(), sizes, strict=True):
            engine.aligned(f"the size of {nbytes} bytes", nbytes, CHUNK, lane, 0)
        return [-(-nbytes // CHUNK) * CHUNK for nbytes in sizes]

    return amounts


def _load(ins: Instruction, lanes: Lanes, space: str, multicast: bool, update: Update | None, kind: str) -> Step:
    """A copy to shared memory, from global memory (``space``) or the block's own shared memory; it completes at a
    barrier."""
    engine = CopyEngine(ins, lanes)
    into = address(ins.operands[0], lanes, ins, narrow=True)
    out_of = address(ins.operands[1], lanes, ins, narrow=space != "global")
    barriers, amounts = address(ins.operands[3], lanes, ins, narrow=True), _amounts(engine, ins, lanes)
    masks = lanes.source(ins.operands[4], "u16", ins) if multicast else None

    def load(sel: Ints | None) -> None:
        active = lanes.every if sel is None else sel
        chosen = [None] * active.size if masks is None else values_of(masks, active)
        for lane, target, source, at, nbytes, mask in zip(
            active.tolist(), *(addresses_of(where, active) for where in (into, out_of, barriers)), amounts(active), chosen,
            strict=True,
        ):  # fmt: skip
            place, barrier = engine.in_shared(target, nbytes, lane), engine.barrier(at, lane)
            if place is None or barrier is None:
                engine.count_as_arrived(barrier, nbytes)
                continue
            data, reads = _read_source(engine, space, source, nbytes, lane)
            put = partial(_put, place.region.data, place.first, data, update, kind)
            work = _range_work("load", source, nbytes) if space == "global" else NOTHING
            chunks = chunks_of(place.first, nbytes)
            engine.load(lane, place, chunks, put, barrier=barrier, mask=mask, work=work, reads=reads)

    return load


def _range_work(kind: str, at: int, nbytes: int) -> UnitWork:
    """The work that counters see of a copy of a range of global memory: bytes and touched sectors."""
    return copy_work(kind, nbytes, touched_sectors(np.array([at]), nbytes))


def _read_source(engine: CopyEngine, space: str, source: int, nbytes: int, lane: int) -> tuple[Array, list[Transfer]]:
    """The bytes of the source (zeros if it is invalid), and the pending transfer that reads shared memory, if any."""
    transfers, reads = engine.lanes.transfers, []
    if space == "global":
        found = engine.in_global(source, nbytes, lane)
        if found is None:
            return np.zeros(nbytes, np.uint8), []
        region, first = found
        engine.finish_at_once(transfers.read(engine.ins, region, chunks_of(first, nbytes), lane), lane)
    else:
        place = engine.in_shared(source, nbytes, lane)
        if place is None:
            return np.zeros(nbytes, np.uint8), []
        region, first = place.region, place.first
        reading = transfers.read(engine.ins, region, chunks_of(first, nbytes), lane)
        reads += [reading] if reading is not None else []
    return region.data[first : first + nbytes].copy(), reads


def _store(ins: Instruction, lanes: Lanes, update: Update | None, kind: str) -> Step:
    """A copy or reduction from shared to global memory; it is complete when the lane has waited for its group."""
    engine, amounts = CopyEngine(ins, lanes), _amounts(CopyEngine(ins, lanes), ins, lanes)
    into, out_of = address(ins.operands[0], lanes, ins, narrow=False), address(ins.operands[1], lanes, ins, narrow=True)

    def store(sel: Ints | None) -> None:
        active = lanes.every if sel is None else sel
        for lane, target, source, nbytes in zip(
            active.tolist(), addresses_of(into, active), addresses_of(out_of, active), amounts(active), strict=True
        ):
            place, found = engine.in_shared(source, nbytes, lane), engine.in_global(target, nbytes, lane)
            if place is None or found is None or not nbytes:
                continue
            region, first = found
            note_work(
                ins, lanes, _range_work("store" if update is None else "reduce", target, nbytes), np.array([lane])
            )
            lanes.transfers.join(lanes.transfers.read(ins, place.region, chunks_of(place.first, nbytes), lane), lane)
            data = place.region.data[place.first : place.first + nbytes]
            cells, chunks = region.data[first : first + nbytes], chunks_of(first, nbytes)
            if update is None:
                lanes.transfers.join(lanes.transfers.write(ins, region, chunks, lane), lane)
                cells[:] = data
            else:
                note_update(ins, lanes, region, chunks, CHUNK, np.full(chunks.size, lane))
                cells[:] = _updated(update, kind, cells, data)

    return store


def _put(memory: Array, first: int, data: Array, update: Update | None, kind: str, block_offset: int) -> None:
    """Store or reduce ``data`` at byte ``first + block_offset``. ``block_offset`` is the offset of the receiving block's
    shared memory from this block's (0: the same block)."""
    cells = memory[first + block_offset : first + block_offset + data.size]
    cells[:] = data if update is None else _updated(update, kind, cells, data)


def _updated(update: Update, kind: str, old: Array, data: Array) -> Array:
    """The bytes of ``old`` after a reduction with ``data``, both of elements of type ``kind``."""
    dtype = DTYPES[kind]
    return update(old.view(dtype), data.view(dtype)).view(np.uint8)
