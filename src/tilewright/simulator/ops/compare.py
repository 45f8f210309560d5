"""Comparisons, selections and moves (PTX ISA 9.7.6, 9.7.9.3)."""

# ruff: noqa: ARG001 - every factory of the table takes the type and its modifiers

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..assembly.instructions import Instruction, operand_tokens
from ..machine.lanes import Lanes
from ..machine.shared_space import RANK_BIT
from ..machine.spaces import WINDOW
from ..machine.values import DTYPES, Array, Ints
from ._table import BITS, INTS, Compute, Step, UnknownInstruction, destination, elementwise, size_of, step, value
from .floating import halves
from .rounding import flush

_ORDERED: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_BOOLEANS = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
_COMPARABLE = (*INTS, *BITS, "f16", "bf16", "f32", "f64")


def compare_values(how: str, a: Array, b: Array) -> Array:
    """PTX's comparisons; with a NaN the plain ones are false, those ending in u true."""
    if how in _ORDERED:
        result = _ORDERED[how](a, b)
        if how == "ne" and a.dtype.kind == "f":
            result = result & ~(np.isnan(a) | np.isnan(b))
        return result
    unordered = np.isnan(a) | np.isnan(b)
    if how in ("num", "nan"):
        return unordered if how == "nan" else ~unordered
    return unordered | _ORDERED[how[:-1]](a, b)


_HOW = {*_ORDERED, "num", "nan", *(f"{x}u" for x in ("eq", "ne", "lt", "le", "gt", "ge"))}


def _comparison(ins: Instruction, lanes: Lanes, skip: int) -> tuple[Callable[..., Array], list[Array]]:
    """The comparison of an instruction as a function of its inputs: a, b and the predicate to combine with, if any."""
    kind, flags = ins.parts[-1], set(ins.parts[1:-skip])
    how = next((f for f in ins.parts[1:] if f in _HOW), "")
    combine = next((f for f in _BOOLEANS if f in flags), "")
    ftz = "ftz" in flags and kind in ("f16", "f32")
    if not how or flags - {how, combine, "ftz" if ftz else ""}:
        raise UnknownInstruction(ins, "has a comparison that is not supported")
    inputs = [lanes.source(o, kind, ins) for o in ins.operands[1:3]]
    negated = False
    if len(ins.operands) != (4 if combine else 3):
        raise UnknownInstruction(ins, "combines with a predicate only where it has .and, .or or .xor")
    if combine:
        negated = ins.operands[3].startswith("!")
        inputs.append(lanes.source(ins.operands[3].lstrip("!"), "pred", ins))

    def run(a: Array, b: Array, c: Array | None = None) -> Array:
        if kind == "bf16":
            a, b = halves(a, kind), halves(b, kind)
        if ftz:
            a, b = flush(a), flush(b)
        result = compare_values(how, a, b)
        return result if c is None else _BOOLEANS[combine](result, ~c if negated else c)

    return run, inputs


@step("setp", _COMPARABLE)
def _setp(ins: Instruction, lanes: Lanes) -> Step:
    compute, inputs = _comparison(ins, lanes, 1)
    targets = ins.operands[0].split("|")
    if len(targets) == 1:
        if len(inputs) == 2 and ins.parts[1] in _ORDERED and ins.parts[-1][0] in "usb" and ins.parts[-1] != "bf16":
            ufunc = _ORDERED[ins.parts[1]]
            return elementwise(lanes, ins, targets[0], "pred", lambda out, a, b: ufunc(a, b, out=out), inputs)  # type: ignore[call-arg]

        def put(out: Array, *values: Array) -> None:
            out[...] = compute(*values)

        return elementwise(lanes, ins, targets[0], "pred", put, inputs)
    # p | q: q gets the opposite comparison, combined with the same predicate.
    opposite: Callable[..., Array]
    if len(inputs) == 3:
        plain, _ = _comparison(_without_boolean(ins), lanes, 1)
        combine = _BOOLEANS[next(f for f in ins.parts if f in _BOOLEANS)]
        negated = ins.operands[3].startswith("!")
        opposite = lambda a, b, c: combine(~plain(a, b), ~c if negated else c)  # noqa: E731
    else:
        opposite = lambda a, b: ~compute(a, b)  # noqa: E731
    p, q = (destination(lanes, ins, t, "pred")[0] for t in targets)

    def run(sel: Ints | None) -> None:
        values = [x if sel is None or x.ndim == 0 else x[sel] for x in inputs]
        first, second = compute(*values), opposite(*values)
        where = slice(None) if sel is None else sel
        p[where], q[where] = first, second

    return run


def _without_boolean(ins: Instruction) -> Instruction:
    opcode = ".".join(x for x in ins.parts if x not in _BOOLEANS)
    return Instruction(ins.index, opcode, ins.operands[:3], ins.guard, ins.where, ins.inlined_at, ins.ptx_line)


#: What set gives for true: all ones, or 1.0.
_TRUE = {k: ~DTYPES[k].type(0) for k in ("u16", "s16", "u32", "s32")}
_TRUE |= {"f16": np.float16(1), "bf16": np.uint16(0x3F80), "f32": np.float32(1)}


@step("set", _COMPARABLE)
def _set(ins: Instruction, lanes: Lanes) -> Step:
    compute, inputs = _comparison(ins, lanes, 2)
    result_kind = ins.parts[-2]
    if result_kind not in _TRUE:
        raise UnknownInstruction(ins)
    true = _TRUE[result_kind]

    def put(out: Array, *values: Array) -> None:
        out[...] = np.where(compute(*values), true, true.dtype.type(0))

    return elementwise(lanes, ins, ins.operands[0], result_kind, put, inputs)


@value("selp", (*INTS, *BITS, "f32", "f64"), takes=lambda k, f: (k, k, "pred"))
def _selp(kind: str, flags: set[str]) -> Compute:
    def compute(out: Array, a: Array, b: Array, p: Array) -> None:
        out[...] = np.where(p, a, b)

    return compute


@step("slct", ("s32", "f32"))
def _slct(ins: Instruction, lanes: Lanes) -> Step:
    kind, by = ins.parts[-2:]
    if kind not in (*INTS, *BITS, "f32", "f64"):
        raise UnknownInstruction(ins)
    ftz = by == "f32" and "ftz" in ins.parts
    if set(ins.parts[1:-2]) - {"ftz" if ftz else ""}:
        raise UnknownInstruction(ins)
    inputs = [lanes.source(o, t, ins) for o, t in zip(ins.operands[1:], (kind, kind, by), strict=True)]

    def compute(out: Array, a: Array, b: Array, c: Array) -> None:
        out[...] = np.where((flush(c) if ftz else c) >= 0, a, b)

    return elementwise(lanes, ins, ins.operands[0], kind, compute, inputs)


@step("mov", (*INTS, *BITS, "f32", "f64", "pred"))
def _mov(ins: Instruction, lanes: Lanes) -> Step:
    kind, (target, source) = ins.parts[-1], ins.operands
    if len(ins.parts) > 2:
        raise UnknownInstruction(ins)
    if target.startswith("{") or source.startswith("{"):
        return _pack(ins, lanes)

    def copy(out: Array, a: Array) -> None:
        out[...] = a

    return elementwise(lanes, ins, target, kind, copy, [lanes.source(source, kind, ins)])


def _pack(ins: Instruction, lanes: Lanes) -> Step:
    """``mov.b64 %rd1, {%r1, %r2}`` and back: the first element is the lowest."""
    kind, (target, given) = ins.parts[-1], ins.operands
    whole, vector = (given, target) if target.startswith("{") else (target, given)
    names = operand_tokens(vector[1:-1])
    part = size_of(kind) // max(1, len(names))
    if size_of(kind) > 8 or part * len(names) != size_of(kind):
        raise UnknownInstruction(ins, "packs sizes that are not supported")
    if whole is target:
        packed, _, wider = destination(lanes, ins, target, f"b{8 * size_of(kind)}")
        if wider:
            raise UnknownInstruction(ins, "packs into a wider register")
        slots = packed.view(f"u{part}")
        inputs = [lanes.source(n, f"b{8 * part}", ins) for n in names]

        def pack(sel: Ints | None) -> None:
            values = [x if sel is None or x.ndim == 0 else x[sel] for x in inputs]
            values = [np.array(x) for x in values]  # the target may be one of the sources
            for i, x in enumerate(values):
                slots[i :: len(names)][slice(None) if sel is None else sel] = x

        return pack
    source = lanes.source(whole, f"b{8 * size_of(kind)}", ins)
    outs = [destination(lanes, ins, n, f"b{8 * part}")[0] for n in names]
    shifts = [source.dtype.type(8 * part * i) for i in range(len(names))]

    def unpack(sel: Ints | None) -> None:
        value = np.array(source if sel is None or source.ndim == 0 else source[sel])
        for out, shift in zip(outs, shifts, strict=True):
            out[slice(None) if sel is None else sel] = (value >> shift).astype(f"u{part}")

    return unpack


@step("cvta", ("u64",))
def _cvta(ins: Instruction, lanes: Lanes) -> Step:
    """Turn an address of a space into a generic one, or back: add or subtract the base of the space's window."""
    to = "to" in ins.parts
    space = ins.parts[2] if to else ins.parts[1]
    if space not in ("global", *WINDOW):
        raise UnknownInstruction(ins)
    offset = np.int64(WINDOW.get(space, 0))
    source = lanes.source(ins.operands[1], "s64", ins)

    def compute(out: Array, a: Array) -> None:
        np.add(a, -offset if to else offset, out=out)

    return elementwise(lanes, ins, ins.operands[0], "s64", compute, [source])


@step("isspacep")
def _isspacep(ins: Instruction, lanes: Lanes) -> Step:
    space = ins.parts[1] if len(ins.parts) > 1 else ""
    if space not in ("global", *WINDOW):
        raise UnknownInstruction(ins)
    number = WINDOW.get(space, 0) >> 56
    source = lanes.source(ins.operands[1], "s64", ins)
    if space == "shared" and "cluster" not in ins.parts:
        # Of shared memory only the own block's, by its own address or by that in the cluster.
        own = (WINDOW["shared"] >> RANK_BIT) + lanes.cluster.rank + 1

        def compute(out: Array, a: Array, mine: Array) -> None:
            block = a >> np.int64(RANK_BIT)
            out[...] = (block == WINDOW["shared"] >> RANK_BIT) | (block == mine)

        return elementwise(lanes, ins, ins.operands[0], "pred", compute, [source, own])

    def anywhere(out: Array, a: Array) -> None:
        out[...] = (a >> np.int64(56)) == number

    return elementwise(lanes, ins, ins.operands[0], "pred", anywhere, [source])
