"""cvt: between all integer and floating-point types, with PTX's rounding and saturation (PTX ISA 9.7.9.21)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..ptx import Instruction
from ..state import DTYPES, Array, Lanes
from ..variables import SIZES
from ._table import Step, UnknownInstruction, elementwise, step
from .floating import halves, put_halves
from .rounding import MODES, canonical, flush, narrow32

_INTEGERS = tuple(f"{k}{b}" for k in "us" for b in (8, 16, 32, 64))
_REALS = ("f16", "bf16", "f32", "f64")
_TO_INTEGER: dict[str, Callable[[Array], Array]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def _limits(kind: str) -> tuple[int, int]:
    bits = 8 * SIZES[kind]
    return (0, (1 << bits) - 1) if kind[0] == "u" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def _int_to_int(made: str, given: str, saturate: bool) -> Callable[[Array], Array]:
    low, high = _limits(made)
    below, above = _limits(given)
    bounds = (max(low, below), min(high, above))

    def convert(a: Array) -> Array:
        if saturate:
            a = np.clip(a, a.dtype.type(bounds[0]), a.dtype.type(bounds[1]))
        return a.astype(DTYPES[made])

    return convert


def _float_to_int(made: str, given: str, rounding: str) -> Callable[[Array], Array]:
    """Rounds, clamps to the range, and turns NaN into 0."""
    low, high = _limits(made)

    def convert(a: Array) -> Array:
        x = _TO_INTEGER[rounding](halves(a, given) if given in ("f16", "bf16") else a.astype(np.float64))
        inside = np.where((x >= float(low)) & (x < float(high + 1)), x, 0.0).astype(DTYPES[made])
        inside = np.where(x >= float(high + 1), DTYPES[made].type(high), inside)
        return np.where(x < float(low), DTYPES[made].type(low), inside)

    return convert


def _to_float(made: str, mode: str, out: Array, x: Array) -> None:
    """Put exact values (float64, or integers and floats that need no more) into a float type."""
    if made == "f64":
        out[...] = x
    elif made == "f32":
        out[...] = x if mode == "rn" else narrow32(x.astype(np.float64), mode)
    else:
        put_halves(out, x.astype(np.float64), made, mode)


@step("cvt", (*_INTEGERS, *_REALS))
def _cvt(ins: Instruction, lanes: Lanes) -> Step:
    made, given = ins.parts[-2:]
    flags = set(ins.parts[1:-2])
    if flags - {*MODES, *_TO_INTEGER, "ftz", "sat", "rna", "relu"}:
        raise UnknownInstruction(ins)
    if made in ("f16x2", "bf16x2") or made == "tf32":
        return _special(ins, lanes, made, flags)
    if made not in (*_INTEGERS, *_REALS) or flags & {"rna", "relu"}:
        raise UnknownInstruction(ins)
    rounding = next((f for f in flags if f in _TO_INTEGER), "")
    mode = next((f for f in MODES if f in flags), "rn")
    source = lanes.source(ins.operands[1], given, ins)
    compute: Callable[[Array, Array], None]
    if made in _INTEGERS:
        convert = _int_to_int(made, given, "sat" in flags) if given in _INTEGERS else None
        if convert is None:
            if not rounding:
                raise UnknownInstruction(ins, "needs a rounding to integer")
            convert = _float_to_int(made, given, rounding)
        if given == "f32" and "ftz" in flags:
            inner = convert
            convert = lambda a: inner(flush(a))  # noqa: E731

        def compute(out: Array, a: Array) -> None:
            out[...] = convert(a)

    else:
        if given in ("u64", "s64") and mode != "rn":
            raise UnknownInstruction(ins, "is supported with rounding to nearest only")

        def compute(out: Array, a: Array) -> None:
            if given in ("f16", "bf16"):
                a = halves(a, given)
            if given == "f32" and "ftz" in flags:
                a = flush(a)
            if rounding:
                a = _TO_INTEGER[rounding](a)
            if "sat" in flags:
                a = np.where(np.isnan(a), a.dtype.type(0), np.clip(a, 0, 1))
            _to_float(made, mode, out, a)
            if made == "f32":
                if "ftz" in flags:
                    out[...] = flush(out)
                canonical(out)

    return elementwise(lanes, ins, ins.operands[0], made, compute, [source])


def _special(ins: Instruction, lanes: Lanes, made: str, flags: set[str]) -> Step:
    """Pairs of halves from two floats, the first going to the upper half; tf32, which keeps 10 bits of a float."""
    sources = [lanes.source(o, "f32", ins) for o in ins.operands[1:]]
    if made == "tf32":
        if flags - {"rna", "rn"}:
            raise UnknownInstruction(ins)
        nearest_even = "rn" in flags

        def to_tf32(out: Array, a: Array) -> None:
            bits = np.asarray(a).view(np.uint32)
            half = np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1)) if nearest_even else np.uint32(0x1000)
            rounded = (bits + half) & np.uint32(0xFFFFE000)
            out[...] = np.where(np.isfinite(a), rounded, np.where(np.isnan(a), np.uint32(0x7FFFFFFF), bits))

        return elementwise(lanes, ins, ins.operands[0], "b32", to_tf32, sources)
    if ins.parts[-1] != "f32" or len(sources) != 2 or flags - {"rn", "rz", "relu"}:
        raise UnknownInstruction(ins)
    mode = "rz" if "rz" in flags else "rn"

    def pair(out: Array, high: Array, low: Array) -> None:
        both = np.empty((out.size, 2), np.float64)
        both[:, 0], both[:, 1] = low, high
        if "relu" in flags:
            both = np.where(both <= 0, 0.0, both)
        put_halves(out, both.reshape(-1), made, mode)

    return elementwise(lanes, ins, ins.operands[0], made, pair, sources)
