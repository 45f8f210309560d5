"""``cp.async.bulk`` and ``cp.reduce.async.bulk``: ranges of bytes that the copy engine moves (PTX ISA 9.7.9.27).

A copy is done when it is issued. ``machine.transfers`` keeps its bytes busy until a thread waits for its barrier or group.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ..assembly.instructions import Instruction
from ..counters.work import NOTHING, UnitWork, copy_work, touched_sectors
from ..machine.lanes import Lanes
from ..machine.transfers import CHUNK, Transfer, chunks_of
from ..machine.values import DTYPES, Array, Ints
from ._table import Step, UnknownInstruction, number_of
from .access import address, note_update, note_work
from .atomic import Update, reduction
from .copy_engine import CopyEngine, each, places
from .tensor_copy import tensor_copy

_LOAD = ("shared::cluster", "shared::cta")
_HINTS = {"L2::cache_hint", "noftz"}
_OPERATIONS = {"add", "min", "max", "inc", "dec", "and", "or", "xor"}
#: The types of each reduction.
_KINDS = {
    **dict.fromkeys(("and", "or", "xor"), ("b32", "b64")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64", "f16", "bf16")),
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16"),
}


def words_of(ins: Instruction) -> list[str]:
    """The words of an opcode, with ``::`` in them: ``["cp", "async", "bulk", "shared::cluster", …]``."""
    return ins.opcode.split(".")


def bulk_copy(ins: Instruction, lanes: Lanes) -> Step:
    """The step of an instruction of the ``cp.async.bulk`` family."""
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
        sizes = each(size, active)
        for lane, nbytes in zip(active.tolist(), sizes, strict=True):
            engine.aligned(f"the size of {nbytes} bytes", nbytes, CHUNK, lane, 0)
        return [-(-nbytes // CHUNK) * CHUNK for nbytes in sizes]

    return amounts


def _load(ins: Instruction, lanes: Lanes, space: str, multicast: bool, update: Update | None, kind: str) -> Step:
    """To shared memory, from global memory or from the block's own shared memory; its bytes complete at a barrier."""
    engine = CopyEngine(ins, lanes)
    into, out_of = address(ins.operands[0], lanes, ins, True), address(ins.operands[1], lanes, ins, space != "global")
    barriers, amounts = address(ins.operands[3], lanes, ins, True), _amounts(engine, ins, lanes)
    masks = lanes.source(ins.operands[4], "u16", ins) if multicast else None

    def load(sel: Ints | None) -> None:
        active = lanes.every if sel is None else sel
        chosen = [None] * active.size if masks is None else each(masks, active)
        for lane, target, source, at, nbytes, mask in zip(
            active.tolist(), *(places(where, active) for where in (into, out_of, barriers)), amounts(active), chosen,
            strict=True,
        ):  # fmt: skip
            place, barrier = engine.in_shared(target, nbytes, lane), engine.barrier(at, lane)
            if place is None or barrier is None:
                engine.give_up(barrier, nbytes)
                continue
            data, reads = _fetch(engine, space, source, nbytes, lane)

            put = partial(_put, place.region.data, place.first, data, update, kind)
            moved = _moved("load", source, nbytes) if space == "global" else NOTHING
            engine.load(lane, place, chunks_of(place.first, nbytes), put, barrier, mask, moved, reads)

    return load


def _moved(kind: str, at: int, nbytes: int) -> UnitWork:
    """What is counted of a copy of a range of global memory."""
    return copy_work(kind, nbytes, touched_sectors(np.array([at]), nbytes))


def _fetch(engine: CopyEngine, space: str, source: int, nbytes: int, lane: int) -> tuple[Array, list[Transfer]]:
    """The bytes that a copy reads, and what it reads of shared memory; zeros where its source is invalid."""
    transfers, reads = engine.lanes.transfers, []
    if space == "global":
        found = engine.in_global(source, nbytes, lane)
        if found is None:
            return np.zeros(nbytes, np.uint8), []
        region, first = found
        engine.seen(transfers.read(engine.ins, region, chunks_of(first, nbytes), lane), lane)
    else:
        place = engine.in_shared(source, nbytes, lane)
        if place is None:
            return np.zeros(nbytes, np.uint8), []
        region, first = place.region, place.first
        reading = transfers.read(engine.ins, region, chunks_of(first, nbytes), lane)
        reads += [reading] if reading is not None else []
    return region.data[first : first + nbytes].copy(), reads


def _store(ins: Instruction, lanes: Lanes, update: Update | None, kind: str) -> Step:
    """From shared to global memory, stored or reduced; complete when the lane has waited for its group."""
    engine, amounts = CopyEngine(ins, lanes), _amounts(CopyEngine(ins, lanes), ins, lanes)
    into, out_of = address(ins.operands[0], lanes, ins, False), address(ins.operands[1], lanes, ins, True)

    def store(sel: Ints | None) -> None:
        active = lanes.every if sel is None else sel
        for lane, target, source, nbytes in zip(
            active.tolist(), places(into, active), places(out_of, active), amounts(active), strict=True
        ):
            place, found = engine.in_shared(source, nbytes, lane), engine.in_global(target, nbytes, lane)
            if place is None or found is None or not nbytes:
                continue
            region, first = found
            note_work(ins, lanes, _moved("store" if update is None else "reduce", target, nbytes), np.array([lane]))
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


def _put(memory: Array, first: int, data: Array, update: Update | None, kind: str, far: int) -> None:
    """Store or reduce data at a byte of memory, displaced by ``far`` bytes."""
    cells = memory[first + far : first + far + data.size]
    cells[:] = data if update is None else _updated(update, kind, cells, data)


def _updated(update: Update, kind: str, old: Array, data: Array) -> Array:
    """Bytes after a reduction of numbers of a type."""
    dtype = DTYPES[kind]
    return update(old.view(dtype), data.view(dtype)).view(np.uint8)
