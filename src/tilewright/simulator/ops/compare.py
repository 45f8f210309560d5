"""Instructions that compare and select (PTX ISA 9.7.6)."""

# ruff: noqa: ARG001 - every factory of the table takes the type and its modifiers

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..assembly.instructions import Instruction
from ..machine.lanes import Lanes
from ..machine.values import DTYPES, Array, Ints
from ._table import BITS, INTS, Compute, Step, UnknownInstruction, destination, elementwise, step, value
from .floating import halves
from .rounding import flush

_ORDERED: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_BOOLEANS = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
_COMPARABLE = (*INTS, *BITS, "f16", "bf16", "f32", "f64")


def compare_values(how: str, a: Array, b: Array) -> Array:
    """Compare values as PTX does. If an operand is NaN, plain comparisons are false, and comparisons whose name ends in
    u, such as ``ltu``, are true."""
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
