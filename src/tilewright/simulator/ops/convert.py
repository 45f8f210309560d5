"""cvt: between all integer and floating-point types, with PTX's rounding and saturation (PTX ISA 9.7.9.21)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..assembly.instructions import Instruction
from ..assembly.variables import SIZES
from ..machine.lanes import Lanes
from ..machine.values import DTYPES, Array
from ._table import Compute, Step, UnknownInstruction, elementwise, step
from .floating import halves, put_halves, saturate
from .nans import NAN32, canonical, converted
from .rounding import MODES, bf16_to_f32, directed64, flush, narrow32, odd_sum, two_sum
from .small_floats import decode, encode

_INTEGERS = tuple(f"{k}{b}" for k in "us" for b in (8, 16, 32, 64))
_REALS = ("f16", "bf16", "f32", "f64")
_BYTES = ("e4m3x2", "e5m2x2")
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
    """Rounds and clamps to the range. NaN becomes 0, or where one of the types has 64 bits the highest bit alone."""
    low, high = _limits(made)
    wide = given == "f64" or made[1:] == "64"
    of_nan = np.array((low or high // 2 + 1) if wide else 0, DTYPES[made])

    def convert(a: Array) -> Array:
        x = _TO_INTEGER[rounding](halves(a, given) if given in ("f16", "bf16") else a.astype(np.float64))
        inside = np.where((x >= float(low)) & (x < float(high + 1)), x, 0.0).astype(DTYPES[made])
        inside = np.where(x >= float(high + 1), DTYPES[made].type(high), inside)
        inside = np.where(x < float(low), DTYPES[made].type(low), inside)
        return np.where(np.isnan(x), of_nan, inside)

    return convert


def _wide_integers(made: str, mode: str, out: Array, a: Array) -> None:
    """64-bit integers into a float type: as the sum of two halves, which float64 holds, rounded to odd."""
    upper, lower = (
        (a >> a.dtype.type(32)).astype(np.float64) * 2.0**32,
        (a & a.dtype.type(0xFFFFFFFF)).astype(np.float64),
    )
    if made == "f64":
        total, missing = two_sum(upper, lower)
        out[...] = total if mode == "rn" else directed64(total, np.sign(missing), mode)
    else:
        _to_float(made, mode, out, odd_sum(upper, lower))


def _to_float(made: str, mode: str, out: Array, x: Array) -> None:
    """Put values (float64, exact or rounded to odd, or integers and floats that need no more) into a float type."""
    if made == "f64":
        out[...] = x
    elif made == "f32":
        out[...] = x if mode == "rn" else narrow32(x.astype(np.float64), mode)
    else:
        put_halves(out, x.astype(np.float64), made, mode)


@step("cvt", (*_INTEGERS, *_REALS, *_BYTES, "f16x2", "b32"))
def _cvt(ins: Instruction, lanes: Lanes) -> Step:
    if "pack" in ins.parts:
        return _pack(ins, lanes)
    made, given = ins.parts[-2:]
    flags = set(ins.parts[1:-2])
    if flags - {*MODES, *_TO_INTEGER, "ftz", "sat", "satfinite", "rna", "relu"}:
        raise UnknownInstruction(ins)
    if made in _BYTES or given in _BYTES:
        return _bytes(ins, lanes, made, given, flags)
    if made in ("f16x2", "bf16x2") or made == "tf32":
        return _special(ins, lanes, made, flags)
    relu = made in ("f16", "bf16") and given == "f32"
    if not {made, given} <= {*_INTEGERS, *_REALS} or flags & {"rna", "satfinite", *(() if relu else ("relu",))}:
        raise UnknownInstruction(ins)
    if len(ins.operands) != 2:
        raise UnknownInstruction(ins)
    source = lanes.source(ins.operands[1], given, ins)
    if made in _INTEGERS:
        convert = _to_integer(ins, made, given, flags)

        def compute(out: Array, a: Array) -> None:
            out[...] = convert(a)

    else:
        compute = _to_real(made, given, flags)
    return elementwise(lanes, ins, ins.operands[0], made, compute, [source])


def _to_integer(ins: Instruction, made: str, given: str, flags: set[str]) -> Callable[[Array], Array]:
    if given in _INTEGERS:
        return _int_to_int(made, given, "sat" in flags)
    rounding = next((f for f in flags if f in _TO_INTEGER), "")
    if not rounding:
        raise UnknownInstruction(ins, "needs a rounding to integer")
    convert = _float_to_int(made, given, rounding)
    return (lambda a: convert(flush(a))) if given == "f32" and "ftz" in flags else convert


def _to_real(made: str, given: str, flags: set[str]) -> Compute:
    if not flags and (made, given) in _MOVED:
        return _move
    rounding = next((f for f in flags if f in _TO_INTEGER), "")
    mode = next((f for f in MODES if f in flags), "rn")
    keeps_nans = "f64" in (made, given) and given in _REALS

    def compute(out: Array, a: Array) -> None:
        if given in ("u64", "s64"):
            _wide_integers(made, mode, out, a)
            return
        if given == "f32" and "ftz" in flags:
            a = np.array(flush(a))
            canonical(a)
        x = halves(a, given) if given in ("f16", "bf16") else a
        if rounding:
            x = _TO_INTEGER[rounding](x)
        if "sat" in flags:
            x = saturate(x)
        if "relu" in flags:
            x = np.where(x <= 0, x.dtype.type(0), x)
        nan = np.isnan(x) if keeps_nans else np.array(False)
        bits = converted(np.asarray(a).view(f"u{SIZES[given]}"), given, made) if nan.any() else None
        _to_float(made, mode, out, x)
        if made == "f32" and "ftz" in flags:
            out[...] = flush(out)
        if bits is not None:
            np.copyto(out.view(bits.dtype), bits, where=nan)
        elif made == "f32":
            canonical(out)

    return compute


#: Conversions that without a modifier are moves: of their NaNs too.
_MOVED = {("f32", "f32"), ("f64", "f64"), ("f32", "bf16")}


def _move(out: Array, a: Array) -> None:
    out[...] = a if a.dtype == out.dtype else bf16_to_f32(a)


def _special(ins: Instruction, lanes: Lanes, made: str, flags: set[str]) -> Step:
    """Pairs of halves from two floats, the first going to the upper half; tf32, which keeps 10 bits of a float."""
    sources = [lanes.source(o, "f32", ins) for o in ins.operands[1:]]
    if made == "tf32":
        if flags - {"rna", "rn", "rz", "relu"} or len(sources) != 1:
            raise UnknownInstruction(ins)

        def to_tf32(out: Array, a: Array) -> None:
            if "relu" in flags:
                a = np.where(a <= 0, np.float32(0), a)
            bits = np.asarray(a).view(np.uint32)
            half: Array = np.array(0 if "rz" in flags else 0x1000, np.uint32)
            if "rn" in flags:
                half = np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
            # Of a NaN, rna cuts the payload, so that infinity may be left; the others give the canonical one, cut.
            if "rna" not in flags:
                bits = np.where(np.isnan(a), NAN32, bits)
            out[...] = np.where(np.isfinite(a), bits + half, bits) & np.uint32(0xFFFFE000)

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


def _bytes(ins: Instruction, lanes: Lanes, made: str, given: str, flags: set[str]) -> Step:
    """Pairs of 8-bit floats from two floats (the first goes to the upper byte) or a pair of halves, and back."""
    pairs = made if made in _BYTES else given
    kind, relu = pairs[:4], "relu" in flags

    def positive(x: Array) -> Array:
        return np.where(x <= 0, 0.0, x) if relu else x

    if given in _BYTES:
        if made != "f16x2" or flags - {"rn", "relu"}:
            raise UnknownInstruction(ins)

        def widen(out: Array, a: Array) -> None:
            x = positive(decode(np.array(a, np.uint16, ndmin=1).view(np.uint8), kind))
            put_halves(out, x, "f16x2")

        return elementwise(lanes, ins, ins.operands[0], "f16x2", widen, [lanes.source(ins.operands[1], "b16", ins)])
    count = {"f32": 2, "f16x2": 1}.get(given)
    if len(ins.operands) - 1 != count or flags - {"rn", "satfinite", "relu"} or "satfinite" not in flags:
        raise UnknownInstruction(ins)

    def narrow(out: Array, *inputs: Array) -> None:
        both = np.empty((out.size, 2))
        if given == "f32":
            both[:, 1], both[:, 0] = inputs
        else:
            both[...] = halves(inputs[0], given).reshape(-1, 2)
        out[...] = encode(positive(both), kind).reshape(-1).view(np.uint16)

    sources = [lanes.source(o, given, ins) for o in ins.operands[1:]]
    return elementwise(lanes, ins, ins.operands[0], "b16", narrow, sources)


def _pack(ins: Instruction, lanes: Lanes) -> Step:
    """``cvt.pack.sat.u8.s32.b32 d, a, b, c``: a and b saturated, b lowest, and below them what c holds."""
    parts = ins.parts
    made = parts[3] if len(parts) > 4 else ""
    more = made in ("u8", "s8")
    if parts[1:3] != ["pack", "sat"] or made not in ("u8", "s8", "u16", "s16") or parts[4:] != ["s32", *["b32"] * more]:
        raise UnknownInstruction(ins)
    bits, (low, high) = 8 * SIZES[made], _limits(made)
    if len(ins.operands) != 3 + more:
        raise UnknownInstruction(ins)
    sources = [lanes.source(o, t, ins) for o, t in zip(ins.operands[1:], ("s32", "s32", "b32"), strict=False)]

    def pack(out: Array, a: Array, b: Array, c: Array | None = None) -> None:
        x, y = (np.clip(v, low, high).astype(np.int64) & ((1 << bits) - 1) for v in (a, b))
        out[...] = x << bits | y if c is None else (c.astype(np.int64) << 2 * bits | x << bits | y) & 0xFFFFFFFF

    return elementwise(lanes, ins, ins.operands[0], "b32", pack, sources)
