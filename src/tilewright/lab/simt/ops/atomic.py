"""Atomics and reductions in memory (PTX ISA 9.7.13.5, 9.7.13.6): lanes take turns in order of thread."""

# ruff: noqa: ARG001 - every action of a memory access takes what any of them needs

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..memory import Region
from ..ptx import Instruction
from ..shadow import Ints
from ..state import DTYPES, Array, Lanes
from ._table import Step, UnknownInstruction, destination, size_of, step
from .access import address, visit

_KINDS = ("u32", "s32", "u64", "s64", "b32", "b64", "f32", "f64")
_SCOPES = {"relaxed", "acquire", "release", "acq_rel", "cta", "gpu", "sys", "cluster"}
_UFUNCS: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def _swap(old: Array, b: Array, c: Array) -> Array:
    return np.where(old == b, c, old)


_NEW: dict[str, Callable[..., Array]] = {
    **_UFUNCS,
    "exch": lambda old, b: b,
    "cas": _swap,
    "inc": lambda old, b: np.where(old >= b, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, b: np.where((old == 0) | (old > b), b, old - old.dtype.type(1)),
}


@step("atom", _KINDS)
@step("red", _KINDS)
def _atomic(ins: Instruction, lanes: Lanes) -> Step:
    name, kind, flags = ins.parts[0], ins.parts[-1], set(ins.parts[1:-1])
    space = next((f for f in ("global", "shared") if f in flags), "")
    operation = next((f for f in _NEW if f in flags), "")
    unknown = flags - _SCOPES - {space, operation, "ftz"}
    real = kind[0] == "f"
    if not operation or unknown or (real and operation != "add") or (operation in ("inc", "dec") and kind != "u32"):
        raise UnknownInstruction(ins, "is a form of atomic that is not supported")
    first = 2 if name == "atom" else 1
    inputs = [lanes.source(o, kind, ins) for o in ins.operands[first:]]
    out = destination(lanes, ins, ins.operands[0], kind)[0] if name == "atom" else None
    new, dtype = _NEW[operation], DTYPES[kind]
    shift = size_of(kind).bit_length() - 1

    def act(region: Region, offsets: Ints, at: Ints | None, sel: Ints | None) -> None:
        memory, index = region.view(dtype), offsets >> shift
        given = [np.broadcast_to(x if x.ndim == 0 or sel is None else x[sel], index.size) for x in inputs]
        if region.shadow is not None:
            region.shadow.exempt(region.shadow.cells(offsets, size_of(kind), offsets)[0])
        if region.name not in ("shared", "local"):
            lanes.fences[lanes.blocks[lanes.of_block if sel is None else lanes.of_block[sel]]] |= 2
        if out is None and operation in _UFUNCS:
            _UFUNCS[operation].at(memory, index, given[0])  # in order of lane, rounding each sum
            return
        old = np.empty(index.size, dtype)
        for turn in _turns(index):
            place = index[turn]
            old[turn] = memory[place]
            memory[place] = new(old[turn], *[x[turn] for x in given])
        if out is not None:
            out[slice(None) if sel is None else sel] = old

    return visit(
        ins, lanes, space, name, size_of(kind), address(ins.operands[first - 1], lanes, ins, space == "shared"), act
    )


def _turns(index: Ints) -> list[Ints]:
    """Groups of lanes that want different cells; lanes that want the same come in order of lane."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    rank = np.arange(index.size) - np.repeat(starts, np.diff(np.r_[starts, index.size]))
    by_rank = np.argsort(rank, kind="stable")
    return np.split(order[by_rank], np.cumsum(np.bincount(rank))[:-1])
