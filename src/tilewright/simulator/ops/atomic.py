"""Atomics and reductions in memory (PTX ISA 9.7.13.5, 9.7.13.6): lanes take turns in order of thread."""

# ruff: noqa: ARG001 - all actions of memory accesses have the same parameters

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..assembly.instructions import Instruction
from ..machine.lanes import Lanes
from ..machine.memory import Region
from ..machine.values import DTYPES, Array, Ints
from ._table import HALVES, Compute, Step, UnknownInstruction, apply_ufunc, destination, size_of, step
from .access import address, note_update, visit
from .floating import halves, on_double, on_halves, on_single
from .nans import hand_on
from .rounding import odd_sum

_KINDS = ("u32", "s32", "u64", "s64", "b16", "b32", "b64", "f32", "f64", *HALVES)
_SCOPES = {"relaxed", "acquire", "release", "acq_rel", "cta", "gpu", "sys", "cluster"}
_HINTS = {"ftz", "noftz", "L2", "cache_hint"}
_UFUNCS: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def _swap(old: Array, b: Array, c: Array) -> Array:
    return np.where(old == b, c, old)


#: The new value of a cell, from the old one and the operands.
UPDATES: dict[str, Callable[..., Array]] = {
    **_UFUNCS,
    "exch": lambda old, b: b,
    "cas": _swap,
    "inc": lambda old, b: np.where(old >= b, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, b: np.where((old == 0) | (old > b), b, old - old.dtype.type(1)),
}


def _form(ins: Instruction) -> tuple[str, str]:
    """Space ("" for generic) and operation."""
    kind, flags = ins.parts[-1], set(ins.parts[1:-1])
    space = next((f for f in ("global", "shared") if f in flags), "")
    operation = next((f for f in UPDATES if f in flags), "")
    unknown = flags - _SCOPES - _HINTS - {space, operation}
    only = {"b16": "cas", "f32": "add", "f64": "add", **dict.fromkeys(HALVES, "add")}.get(kind, operation)
    if not operation or unknown or operation != only or (operation in ("inc", "dec") and kind != "u32"):
        raise UnknownInstruction(ins, "is a form of atomic that is not supported")
    return space, operation


#: New values from the old ones and those that are added, compared or combined.
Update = Callable[[Array, Array], Array]


def float_sum(kind: str, shared: bool) -> Update:
    """Addition of floats: in shared memory by the arithmetic of the threads, elsewhere by the cache, which flushes
    subnormal f32 (PTX ISA 9.7.13.5) and leaves an f64 NaN signalling."""

    def unquieted(out: Array, a: Array, b: Array) -> None:
        np.add(a, b, out=out)
        hand_on(out, [a, b], quiet=False)

    add: Compute
    if kind in HALVES:
        add = on_halves(kind, set(), odd_sum)
    elif kind == "f32":
        add = on_single(set() if shared else {"ftz"}, apply_ufunc(np.add))
    else:
        add = on_double(set(), apply_ufunc(np.add)) if shared else unquieted

    def compute(old: Array, b: Array) -> Array:
        out = np.empty(old.shape, old.dtype)
        add(out, old, b)
        return out

    return compute


def reduction(operation: str, kind: str) -> Update:
    """What the copy engine does to numbers of a type in memory."""
    if operation == "add" and kind in ("f32", "f64", *HALVES):
        return float_sum(kind, shared=False)
    if kind not in HALVES:
        return UPDATES[operation]

    def extreme(old: Array, new: Array) -> Array:
        a, b = halves(old, kind), halves(new, kind)
        better = b < a if operation == "min" else b > a
        return np.where(better | np.isnan(a), new, old)

    return extreme


def _sums_are_normal(kind: str, *values: Array) -> bool:
    """Whether no sum of these floats can be subnormal (all are whole multiples of 2^-123) or NaN (they are finite and far
    from overflow)."""
    if kind in HALVES:
        return False
    sizes = [np.abs(x[x != 0]) for x in values]
    return all(((x > 2.0**-100) & (x < 2.0**100)).all() for x in sizes)


@step("atom", _KINDS)
@step("red", [k for k in _KINDS if k != "b16"])
def _atomic(ins: Instruction, lanes: Lanes) -> Step:
    space, operation = _form(ins)
    name, kind = ins.parts[0], ins.parts[-1]
    first = 2 if name == "atom" else 1
    last = -1 if "cache_hint" in ins.parts else None
    inputs = [lanes.source(o, kind, ins) for o in ins.operands[first:last]]
    if len(inputs) != (count := 1 + (operation == "cas")):
        raise UnknownInstruction(ins, f"has {len(inputs)} values instead of {count}")
    out = destination(lanes, ins, ins.operands[0], kind)[0] if name == "atom" else None
    real, dtype = kind in ("f32", "f64", *HALVES), DTYPES[kind]
    new = {shared: float_sum(kind, shared) if real else UPDATES[operation] for shared in (True, False)}
    shift = size_of(kind).bit_length() - 1

    def act(region: Region, offsets: Ints, at: Ints | None, sel: Ints | None) -> None:
        memory, index = region.view(dtype), offsets >> shift
        values = [np.broadcast_to(x if x.ndim == 0 or sel is None else x[sel], index.size) for x in inputs]
        note_update(ins, lanes, region, offsets, size_of(kind), sel)
        if region.name not in ("shared", "local"):
            lanes.launch.looked[lanes.blocks[lanes.of_block if sel is None else lanes.of_block[sel]]] |= 2
        if out is None and operation in _UFUNCS and (not real or _sums_are_normal(kind, memory[index], values[0])):
            _UFUNCS[operation].at(memory, index, values[0])  # in order of lane, rounding each sum
            return
        update = new[region.name == "shared"]
        old = np.empty(index.size, dtype)
        for turn in _turns(index):
            place = index[turn]
            old[turn] = memory[place]
            memory[place] = update(old[turn], *[x[turn] for x in values])
        if out is not None:
            out[slice(None) if sel is None else sel] = old

    return visit(
        ins, lanes, space, name, size_of(kind), address(ins.operands[first - 1], lanes, ins, space == "shared"), act
    )


def _turns(index: Ints) -> list[Ints]:
    """Groups of lanes that want different cells each; lanes that want the same cell are in successive groups, in order."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    rank = np.arange(index.size) - np.repeat(starts, np.diff(np.r_[starts, index.size]))
    by_rank = np.argsort(rank, kind="stable")
    return np.split(order[by_rank], np.cumsum(np.bincount(rank))[:-1])
