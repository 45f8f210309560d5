"""``tcgen05``: the loads, stores and copies of tensor memory on compute capability 10.0, and their order (PTX ISA
9.7.16).

Each warp of a group of four may access 32 lanes of tensor memory: warp w lanes 32·w to 32·w + 31. In some public
kernels all four warps pass the address of lane 0. GPUs ignore that part of the address, so such an address is a finding
only "by the letter of PTX". Let t be the number of a thread in its warp. Register r of thread t in a load or store
holds the following cell of tensor memory:

- with the shape ``.32x32b``, the cell in lane t and column r
- with the shape ``.16x64b``, the cell in lane t div 4 + 8·(t mod 2) and column 2·r + (t div 2) mod 2
- with the shape ``.16x128b``, the cell in lane t div 4 + 8·(r mod 2) and column t mod 4 + 4·(r div 2)
- with the shape ``.16x256b``, the cell in lane t div 4 + 8·(r div 2 mod 2) and column 2·(t mod 4) + r mod 2 + 8·(r div
  4)
- with the shape ``.16x32bx2``, the cell in lane t mod 16 and column r; for the upper 16 threads of the warp, the last
  operand is added to the column

With ``.pack::16b`` or ``.unpack::16b``, a register holds the lower halves of two columns, 2·c and 2·c + 1. The state of
tensor memory, and the rules about the order of accesses, are in ``machine.tensor_memory``; products are in
``tcgen05_mma``. The simulator cannot run ``tcgen05.shift``, nor copies that decompress, because the PTX ISA describes
their layouts only in figures.
"""

# ruff: noqa: ARG001 - all actions of memory accesses have the same parameters

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ..assembly.instructions import Instruction, elements_of
from ..findings import BY_THE_LETTER, OUT_OF_BOUNDS, TCGEN05_MISUSE
from ..machine.lanes import Lanes
from ..machine.mbarriers import Mbarrier
from ..machine.memory import Region
from ..machine.spaces import WINDOW
from ..machine.tensor_memory import OF_CELL, Cells, TensorMemory, TensorOperation
from ..machine.values import Array, Ints, per_lane
from ..machine.warpgroups import Reading
from ._table import Step, UnknownInstruction, destination, number_of, step
from .access import Address, address, note_write, visit
from .async_copy import words_of
from .descriptor import Descriptor
from .mbarrier import at_barriers
from .mma import warps_of
from .operand_tiles import check_descriptor, read_tile

#: Registers of a load or store of each shape, its lanes, and its columns; each times ``.num``.
_SHAPES = {
    "32x32b": (1, 32, 1),
    "16x64b": (1, 16, 2),
    "16x128b": (2, 16, 4),
    "16x256b": (4, 16, 8),
    "16x32bx2": (1, 16, 1),
}
#: Rows and chunks of 16 bytes that a copy reads, and the lanes to which row r goes.
_COPIES = {
    "128x256b": (128, 2, (0,), 1),
    "128x128b": (128, 1, (0,), 1),
    "4x256b": (4, 2, (0,), 32),
    "64x128b.warpx2::02_13": (64, 1, (0, 64), 1),
    "64x128b.warpx2::01_23": (64, 1, (0, 32), 1),
    "32x128b.warpx4": (32, 1, (0, 32, 64, 96), 1),
}


@step("tcgen05")
def _tcgen05(ins: Instruction, lanes: Lanes) -> Step:
    words = words_of(ins)
    name, rest = (words[1], words[2:]) if len(words) > 1 else ("", [])
    memory: TensorMemory = lanes.use_tensor_memory()
    if name in ("fence::before_thread_sync", "fence::after_thread_sync") and not rest:
        fence = memory.fence_before if name == "fence::before_thread_sync" else memory.fence_after
        return lambda sel: fence(lanes.every if sel is None else sel)
    if name in ("wait::ld", "wait::st") and rest == ["sync", "aligned"]:
        return partial(_wait, lanes, name[-2:])
    if name in ("ld", "st") and rest[:2] == ["sync", "aligned"] and rest[-1] == "b32":
        return _load_or_store(ins, lanes, name, rest[2:-1])
    if name in ("alloc", "dealloc", "relinquish_alloc_permit"):
        return _allocation(ins, lanes, name)
    if name == "commit":
        return _commit(ins, lanes, rest)
    if name == "cp":
        return _copy(ins, lanes, rest)
    raise UnknownInstruction(ins)


def of_pair(ins: Instruction, words: list[str]) -> bool:
    """Whether an instruction is for a pair of blocks. Raises UnknownInstruction if the instruction does not say whether
    it is for a pair."""
    found = [word for word in words if word.startswith("cta_group::")]
    if found not in (["cta_group::1"], ["cta_group::2"]):
        raise UnknownInstruction(ins, "must have .cta_group::1 or .cta_group::2")
    return found == ["cta_group::2"]


def _wait(lanes: Lanes, kind: str, sel: Ints | None) -> None:
    """``tcgen05.wait::ld`` or ``::st``."""
    lanes.sync_warp(sel)
    lanes.use_tensor_memory().wait(kind, lanes.every if sel is None else sel)


# ---- allocation ------------------------------------------------------------------------------------------------------


def _allocation(ins: Instruction, lanes: Lanes, name: str) -> Step:
    pair, memory = of_pair(ins, words_of(ins)), lanes.use_tensor_memory()
    count = lanes.source(ins.operands[1], "u32", ins) if len(ins.operands) > 1 else np.array(0)
    if len(ins.operands) != (0 if name == "relinquish_alloc_permit" else 2):
        raise UnknownInstruction(ins)
    place: Array = np.array(0)
    if name == "dealloc":
        place = lanes.source(ins.operands[0], "u32", ins)
    store = _address_store(ins, lanes) if name == "alloc" else None

    def manage(sel: Ints | None) -> None:
        for lead in warps_of(ins, lanes, sel)[:, :1]:
            lane = int(lead[0])
            memory.check_pair(ins, pair, lane)
            columns = int(per_lane(count, lead)[0])
            if store is not None:
                found = memory.allocate(ins, lane, columns, pair)
                if found is not None:
                    store(lead, found)
            elif name == "dealloc":
                memory.deallocate(ins, lane, int(per_lane(place, lead)[0]), columns)
            else:
                memory.relinquish(ins, lane)
        lanes.sync_warp(sel)

    return manage


def _address_store(ins: Instruction, lanes: Lanes) -> Callable[[Ints, int], None]:
    """A function that stores the address of an allocation in shared memory, for one lane."""
    space = "shared" if "shared" in ins.parts else ""
    value = np.zeros(1, np.uint32)

    def put(region: Region, offsets: Ints, at: Ints | None, chosen: Ints | None) -> None:
        settle = note_write(ins, lanes, region, offsets, 4, chosen)
        region.view(np.dtype(np.uint32))[offsets >> 2] = value
        if settle is not None:
            settle(np.zeros(offsets.size, bool))

    write = visit(ins, lanes, space, "", 4, _in_shared_memory(ins, lanes, space), put)

    def store(lane: Ints, found: int) -> None:
        value[0] = found
        write(lane)

    return store


def _in_shared_memory(ins: Instruction, lanes: Lanes, space: str) -> Address:
    """The address of shared memory that is the first operand. GPUs take its lower half; one that is of another space than
    the instruction says is a finding by the letter of PTX."""
    where, window = address(ins.operands[0], lanes, ins, bool(space)), WINDOW["shared"]

    def place(sel: Ints | None) -> Ints:
        at = where(sel)
        wrong = at >= window if space else at < 1 << 32
        if not wrong.any():
            return at
        text = (
            "a generic address where it names shared memory"
            if space
            else "an address of shared memory, and names no space"
        )
        lanes.reports.report(
            OUT_OF_BOUNDS, ins, sel, wrong, at, f"has {text} (GPUs take its lower half): {ins.text}", BY_THE_LETTER
        )
        return np.where(wrong, at - window if space else at + window, at)

    return place


# ---- loads and stores ------------------------------------------------------------------------------------------------


def _places(shape: str, registers: int, split: int, wide: int) -> tuple[Ints, Ints]:
    """Lane and column of each register of each thread of a warp, (32, registers); of the first of its ``wide`` columns."""
    t, r = np.arange(32)[:, None], np.arange(registers)
    rows, columns = {
        "32x32b": (t, r),
        "16x64b": (t // 4 + 8 * (t % 2), 2 * r + t // 2 % 2),
        "16x128b": (t // 4 + 8 * (r % 2), t % 4 + 4 * (r // 2)),
        "16x256b": (t // 4 + 8 * (r // 2 % 2), 2 * (t % 4) + r % 2 + 8 * (r // 4)),
        "16x32bx2": (t % 16, r),
    }[shape]
    columns = columns * wide + (t // 16 * split if shape == "16x32bx2" else 0)
    return np.broadcast_to(rows, (32, registers)), np.broadcast_to(columns, (32, registers))


def _load_or_store(ins: Instruction, lanes: Lanes, name: str, words: list[str]) -> Step:
    memory, loads = lanes.use_tensor_memory(), name == "ld"
    shape, number, packs = words[0], words[1] if len(words) > 1 else "", words[2:]
    times = int(number[1:]) if number in [f"x{1 << i}" for i in range(8)] else 0
    operands = list(ins.operands)
    halves = operands.pop(2 if loads else 1) if shape == "16x32bx2" and len(operands) == 3 else "0"
    if (
        shape not in _SHAPES
        or not times
        or packs not in ([], ["pack::16b" if loads else "unpack::16b"])
        or len(operands) != 2
    ):
        raise UnknownInstruction(ins, "is a form of access to tensor memory that is not supported")
    of_one, of_lanes, of_columns = _SHAPES[shape]
    registers, split, wide = times * of_one, number_of(ins, halves), 1 + len(packs)
    given, at = operands if loads else operands[::-1]
    names = elements_of(given)
    if len(names) != registers:
        raise UnknownInstruction(ins, f"names {len(names)} registers instead of {registers}")
    outs = [destination(lanes, ins, n, "b32")[0] for n in names] if loads else []
    inputs = [] if loads else [lanes.source(n, "b32", ins) for n in names]
    where, (rows, columns) = address(at, lanes, ins, narrow=True), _places(shape, registers, split, wide)
    starts = (0, split) if shape == "16x32bx2" and split else (0,)

    def access(lane: int, base: int) -> bool:
        """Check and record the access of one warp; returns whether the access can be executed."""
        first_lane, first = base >> 16, base & 0xFFFF
        own = int(lanes.tid[lane]) // 32 % 4
        if first_lane // 32 != own:
            text = (
                f"names lane {first_lane} of tensor memory, and warp {own} of a warp group may access lanes {32 * own}"
            )
            memory.report(OUT_OF_BOUNDS, ins, lane, f"{text} to {32 * own + 31} (GPUs take those)", BY_THE_LETTER)
            first_lane = 32 * own + first_lane % 32
        if first_lane % 16 or first_lane % 32 + of_lanes > 32:
            text = f"begins at lane {first_lane} of tensor memory, which is no multiple of {of_lanes}"
            memory.report(OUT_OF_BOUNDS, ins, lane, text)
            return False
        block, count = int(lanes.of_block[lane]), times * of_columns * wide
        groups = slice(first_lane // OF_CELL, (first_lane + of_lanes) // OF_CELL)
        parts = [slice(first + s, first + s + count) for s in starts]
        does = "loads" if loads else "stores"
        if not all(memory.in_bounds(ins, lane, block, p.start, count, does) for p in parts):
            return False
        operation = memory.begin(TensorOperation(ins, name, lane, int(lanes.base_warp[lane])))
        cells = [Cells(block, groups, part) for part in parts]
        if loads:
            for part in parts:
                memory.check_written(operation, block, cells[0].lanes, part, "")
            memory.access(operation, [], cells)
        else:
            memory.access(operation, cells, [])
        return True

    def run(sel: Ints | None) -> None:
        warps = warps_of(ins, lanes, sel)
        if not warps.size:
            return
        lanes.sync_warp(warps.reshape(-1))
        bases = where(warps.reshape(-1)).reshape(-1, 32)
        mixed = (bases != bases[:, :1]).any(axis=1)
        if mixed.any():
            mixed_lane = int(warps[int(np.argmax(mixed)), 0])
            memory.report(
                TCGEN05_MISUSE, ins, mixed_lane, "the threads of a warp name different addresses of tensor memory"
            )
        good = [i for i, warp in enumerate(warps) if access(int(warp[0]), int(bases[i, 0]))]
        if not good:
            return
        some, base = warps[good], bases[good, :1, None]
        own = lanes.tid[some[:, :1, None]] // 32 % 4
        block, lane = lanes.of_block[some[:, :1, None]], 32 * own + (base >> 16) % 32 + rows
        column = (base & 0xFFFF) + columns
        if loads:
            values = memory.data[block, lane, column]
            if packs:
                values = values & np.uint32(0xFFFF) | memory.data[block, lane, column + 1] << np.uint32(16)
            for r, out in enumerate(outs):
                out[some] = values[:, :, r]
            return
        values = np.stack([per_lane(x, some) for x in inputs], axis=-1)
        if packs:
            memory.data[block, lane, column + 1] = values >> np.uint32(16)
            memory.written[block, lane, column + 1] = True
            values = values & np.uint32(0xFFFF)
        memory.data[block, lane, column] = values
        memory.written[block, lane, column] = True

    return run


# ---- copies from shared memory, and commits --------------------------------------------------------------------------


def leaders(ins: Instruction, lanes: Lanes, sel: Ints | None) -> Ints:
    """Return the lanes that issue an operation that a single thread must issue: the first active lane of each warp.
    Reports warps in which several lanes issue the operation."""
    active = lanes.every if sel is None else sel
    warps = lanes.base_warp[active]
    first = np.flatnonzero(np.diff(warps, prepend=-1))
    counts = np.diff(np.append(first, active.size))
    if (counts > 1).any():
        at = int(np.argmax(counts > 1))
        text = f"{int(counts[at])} threads of a warp issue it, and each starts the whole operation (elect.sync chooses one)"
        lanes.use_tensor_memory().report(TCGEN05_MISUSE, ins, int(active[first[at]]), text)
    return active[first]


def blocks_used(lanes: Lanes, lane: int, pair: bool) -> list[int]:
    """Return the blocks of the batch whose tensor memory an operation of a lane uses: the lane's own block, or both
    blocks of its pair in order."""
    block = int(lanes.of_block[lane])
    return [block & ~1, block | 1] if pair and lanes.cluster.size % 2 == 0 else [block]


def _commit(ins: Instruction, lanes: Lanes, words: list[str]) -> Step:
    pair, memory = of_pair(ins, words), lanes.use_tensor_memory()
    rest = [w for w in words if not w.startswith("cta_group") and w not in ("shared::cluster", "shared::cta")]
    multicast = "multicast::cluster" in rest
    if rest != ["mbarrier::arrive::one", *["multicast::cluster"] * multicast, "b64"]:
        raise UnknownInstruction(ins, "is a form of commit that is not supported")
    if len(ins.operands) != 1 + multicast:
        raise UnknownInstruction(ins)
    masks = lanes.source(ins.operands[1], "u16", ins) if multicast else None
    space = "shared" if "shared" in ins.parts else ""

    def arrive(barrier: Mbarrier, some: Ints) -> None:
        for lane in some.tolist():
            memory.check_pair(ins, pair, lane)
            if masks is None:
                memory.commit(ins, [barrier], lane)
                continue
            mask, own = int(per_lane(masks, np.array([lane]))[0]), int(lanes.of_block[lane])
            size, stride = lanes.cluster.size, lanes.shared.stride
            inside = barrier.offset - barrier.block * stride
            blocks = [own - own % size + rank for rank in range(size) if mask >> rank & 1]
            lanes.shared.visit(ins, np.full(len(blocks), lane), np.array(blocks))
            found = [
                lanes.mbarriers.find(ins, barrier.region, block * stride + inside, np.array([lane])) for block in blocks
            ]
            memory.commit(ins, [target for target in found if target is not None], lane)

    look = at_barriers(ins, lanes, space, _in_shared_memory(ins, lanes, space), arrive)
    return lambda sel: look(leaders(ins, lanes, sel))


def _copy(ins: Instruction, lanes: Lanes, words: list[str]) -> Step:
    """``tcgen05.cp``: rows of shared memory, by a descriptor, to lanes of tensor memory."""
    pair, memory = of_pair(ins, words), lanes.use_tensor_memory()
    form = ".".join(w for w in words if not w.startswith("cta_group"))
    if form not in _COPIES or len(ins.operands) != 2:
        raise UnknownInstruction(ins, "is a form of copy to tensor memory that is not supported")
    count, chunks, copies, apart = _COPIES[form]
    where: Address = address(ins.operands[0], lanes, ins, narrow=True)
    descriptors = lanes.source(ins.operands[1], "u64", ins)
    rows = np.arange(count) * apart
    if form.endswith("01_23"):
        rows = rows + rows // 32 * 32  # rows from 32 on go to the second pair of warps

    def copy(sel: Ints | None) -> None:
        some = leaders(ins, lanes, sel)
        for lane, base, bits in zip(
            some.tolist(), where(some).tolist(), per_lane(descriptors, some).tolist(), strict=True
        ):
            memory.check_pair(ins, pair, lane)
            d = Descriptor.of_tcgen05(bits)
            lead = np.array([lane])
            check_descriptor(ins, lanes, d, lead, side="the copy", shape=(count, chunks), transposed=False)
            first, operation = base & 0xFFFF, TensorOperation(ins, "cp", lane, int(lanes.base_warp[lane]), pair)
            blocks = blocks_used(lanes, lane, pair)
            if not all(memory.in_bounds(ins, lane, b, first, 4 * chunks, "copies to") for b in blocks):
                continue
            memory.begin(operation)
            columns, groups = slice(first, first + 4 * chunks), slice(0, 8)
            memory.access(operation, [Cells(block, groups, columns) for block in blocks], [])
            for block in blocks:
                away = block - int(lanes.of_block[lane])
                reading: Reading = []
                data = read_tile(
                    ins, lanes, d.chunks(count, chunks, False), lead, reading, side="S", mode=d.mode, away=away
                )
                memory.reads_shared(operation, [t for _, t in reading])
                numbers = data.reshape(count, chunks * 16).view(np.uint32)
                for start in copies:
                    at = (base >> 16) + rows + start
                    memory.data[block, at, columns] = numbers
                    memory.written[block, at, columns] = True

    return copy
