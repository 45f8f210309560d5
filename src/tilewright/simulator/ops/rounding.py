"""Computes every bit of the results of floating-point instructions: how PTX rounds, which NaNs a GPU returns, and
formats of 8 bits and less.

Every result is rounded only once, in any direction, to f32, f16, bf16 or f64. The method is rounding to odd: the last
bit of a result in a wider format is set if the result is inexact. Rounding a result that was rounded to odd again, to
nearest or in a direction, gives the same number as rounding the exact value (S. Boldo, G. Melquiond, "Emulation of FMA
and correctly rounded sums: proved algorithms using rounding to odd", IEEE Trans. Computers 57, 2008).

The simulator returns the NaNs that an H200 returns. Arithmetic in f16, bf16 and f32 returns one canonical NaN, whatever
the operands are. abs, neg and conversions among f16, bf16 and f32 also return this canonical NaN. Arithmetic in f64
returns the last operand that is a NaN, as a quiet NaN. If a result in f64 is NaN although no operand is a NaN, it is
the negative NaN with an empty payload. Conversions from or to f64 keep the sign of a NaN and the upper bits of its
payload.

The 8-bit floats are e4m3 and e5m2 (PTX ISA 5.2.3, 9.7.9.21). e4m3 has no infinity and one NaN per sign; its largest
number is 448. e5m2 is half precision with a shorter mantissa; its largest number is 57,344. e2m3, e3m2 and e2m1 have 6,
6 and 4 bits, and neither infinity nor NaN; their largest numbers are 7.5, 28 and 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from ..assembly.instructions import SIZES
from ..machine.values import Array

# ---- rounding once, in any direction ---------------------------------------------------------------------------------

MODES = ("rn", "rz", "rm", "rp")
TINY32 = np.float32(2.0**-126)
#: The smallest normal number of each type.
_TINY = {np.dtype(t): np.finfo(t).smallest_normal for t in (np.float16, np.float32, np.float64)}


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return s and e with a + b = s + e exactly (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return p and e with a·b = p + e exactly, unless the product overflows or underflows (Dekker, with Veltkamp's
    split)."""

    def halves(x: Array) -> tuple[Array, Array]:
        t = x * 134217729.0  # 2**27 + 1
        high = t - (t - x)
        return high, x - high

    p = a * b
    (ah, al), (bh, bl) = halves(a), halves(b)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def to_odd(s: Array, e: Array) -> Array:
    """Return s + e rounded to odd, where s is the sum s + e rounded to nearest. If the sum is inexact, the result is
    the neighbouring float64 whose last bit is set."""
    s = np.asarray(s, np.float64)
    bits = s.view(np.int64)
    fix = (e != 0) & ((bits & 1) == 0) & np.isfinite(s)
    toward_zero = (e < 0) != (s < 0)
    return np.where(fix, bits + np.where(toward_zero, -1, 1), bits).view(np.float64)


def odd_sum(a: Array, b: Array) -> Array:
    """Return a + b in float64, rounded to odd."""
    return to_odd(*two_sum(a, b))


def narrow32(x: Array, mode: str = "rn") -> Array:
    """Convert float64 (exact, or rounded to odd) to float32."""
    x = np.asarray(x, np.float64)
    r = np.asarray(x.astype(np.float32))
    if mode == "rn":
        return r
    back = r.astype(np.float64)
    if mode == "rz":
        wrong, toward = np.abs(back) > np.abs(x), np.float32(0)
    elif mode == "rm":
        wrong, toward = back > x, np.float32(-np.inf)
    else:
        wrong, toward = back < x, np.float32(np.inf)
    stepped = np.nextafter(r, toward)
    return np.where(wrong, np.where((stepped == 0) & (x < 0), np.float32(-0.0), stepped), r)


def odd32(x: Array) -> Array:
    """Convert float64 (exact, or rounded to odd) to float32, rounded to odd."""
    x = np.asarray(x, np.float64)
    r = np.asarray(x.astype(np.float32))
    back, bits = r.astype(np.float64), r.view(np.int32)
    fix = (back != x) & ((bits & 1) == 0) & np.isfinite(back)
    shrink = np.abs(back) > np.abs(x)
    out = np.where(fix, bits + np.where(shrink, -1, 1), bits).astype(np.int32).view(np.float32)
    return np.where(np.isinf(back) & np.isfinite(x), np.copysign(np.float32(3.4028235e38), r), out)


def bf16_to_f32(bits: Array) -> Array:
    """Convert the bits of bfloat16 numbers (uint16) to float32."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(x: Array, mode: str = "rn") -> Array:
    """Convert float32 to the bits of bfloat16, rounded once."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    low, cut = bits & np.uint32(0xFFFF), bits >> np.uint32(16)
    if mode == "rn":
        up: Any = (low > 0x8000) | ((low == 0x8000) & ((cut & np.uint32(1)) == 1))
    elif mode == "rz":
        up = np.zeros(np.shape(bits), bool)
    else:
        up = (low != 0) & ((bits >> np.uint32(31) == 1) == (mode == "rm"))
    up = up & np.isfinite(x)
    return np.where(np.isnan(x), np.uint32(0x7FFF), cut + up).astype(np.uint16)


def narrow16(x: Array, mode: str = "rn") -> Array:
    """Convert float64 (exact, or rounded to odd) to float16."""
    x = np.asarray(x, np.float64)
    r = np.asarray(x.astype(np.float16))
    if mode == "rn":
        return r
    back = r.astype(np.float64)
    wrong = {"rz": np.abs(back) > np.abs(x), "rm": back > x, "rp": back < x}[mode]
    toward = np.float16({"rz": 0.0, "rm": -np.inf, "rp": np.inf}[mode])
    stepped = np.nextafter(r, toward)
    return np.where(wrong, np.where((stepped == 0) & (x < 0), np.float16(-0.0), stepped), r)


def fma32(out: Array, a: Array, b: Array, c: Array) -> None:
    """Return a·b + c in float32, rounded to nearest once.

    The product of two float32 numbers is exact in float64. Rounding the float64 sum again to float32 is wrong only if
    the sum is inexact and lies exactly between two float32 numbers, or if the result is subnormal. The function
    computes only these two cases by rounding to odd.
    """
    p = np.multiply(a, b, dtype=np.float64)
    s = np.asarray(p + c)
    doubtful = (s.view(np.int64) & 0x1FFFFFFF) == 0x10000000
    result = s.astype(np.float32)
    small = np.abs(result) < TINY32
    if small.any():
        doubtful |= small & (s != 0)
    if doubtful.any():
        odd = odd_sum(p, np.asarray(c, np.float64)).astype(np.float32)
        result = np.where(doubtful, odd, result)
    out[...] = result


def fma64(out: Array, a: Array, b: Array, c: Array) -> None:
    """Return a·b + c in float64, rounded to nearest once. If the operands are far from 1, the result is computed by
    exact rational arithmetic."""
    high, low = two_product(a, b)
    th, tl = two_sum(c, low)
    vh, vl = two_sum(high, th)
    result = np.asarray(vh + to_odd(*two_sum(tl, vl)))
    sizes = [np.abs(x) for x in (a, b, high)]
    risky = np.zeros(result.shape, bool)
    for size in sizes:
        risky |= ~((size > 1e-140) & (size < 1e140))
    risky |= ~(np.abs(c) < 1e290) | ((np.abs(result) < 1e-280) & (result != 0))
    zero = ((a == 0) | (b == 0)) | ~(np.isfinite(a) & np.isfinite(b) & np.isfinite(c))
    result = np.where(zero, a * b + c, result)
    # A product of finite numbers that overflows is still finite beside an infinite summand.
    result = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, result)
    for i in np.flatnonzero(risky & ~zero):
        x, y, z = (float(np.broadcast_to(v, result.shape).flat[i]) for v in (a, b, c))
        result.flat[i] = exact_fma(x, y, z)
    out[...] = result


def exact_fma(x: float, y: float, z: float) -> float:
    """Return x·y + z of finite numbers, rounded once.

    >>> exact_fma(1 + 2**-52, 1 - 2**-52, -1.0) == -(2.0**-104)
    True
    """
    total = Fraction(x) * Fraction(y) + Fraction(z)
    if total == 0:
        return x * y + z if x * y == 0 or z == 0 else 0.0
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def errors(exact: Callable[..., Fraction], nearest: Array, inputs: tuple[Array, ...]) -> Array:
    """Return the signs of ``exact(*inputs, nearest)``, which computes the exact result minus the nearest float64 result
    in rational arithmetic. The returned sign is 0 if the exact result is infinite or NaN."""
    missing = np.zeros(nearest.shape, np.int8)
    rows = [np.broadcast_to(x, nearest.shape).reshape(-1).tolist() for x in inputs]
    for i, r in enumerate(nearest.reshape(-1).tolist()):
        values = [row[i] for row in rows]
        if not all(map(math.isfinite, values)) or math.isnan(r):
            continue
        try:
            # An infinite result of finite numbers is an overflow, unless something was divided by zero.
            difference = exact(*map(Fraction, values), Fraction(r if math.isfinite(r) else 0))
            missing.flat[i] = (difference > 0) - (difference < 0) if math.isfinite(r) else -1 if r > 0 else 1
        except ZeroDivisionError:
            continue
    return missing


def directed64(nearest: Array, missing: Array, mode: str) -> Array:
    """Convert float64 results that are rounded to nearest to results that are rounded as ``mode`` says. ``missing`` is
    the sign of the exact result minus the result that is rounded to nearest."""
    if mode == "rz":
        wrong, toward = (missing != 0) & (nearest != 0) & ((missing < 0) != np.signbit(nearest)), 0.0
    else:
        wrong, toward = (missing < 0, -np.inf) if mode == "rm" else (missing > 0, np.inf)
    return np.where(wrong, np.nextafter(nearest, toward), nearest)


def zero_of_sum(total: Array, exact_zero: Array, a: Array, b: Array, mode: str) -> Array:
    """Return a sum with the right sign of zero: x - x is -0 if the rounding mode is down (IEEE 754, 6.3), and +0 in all
    other modes, as in NumPy."""
    if mode != "rm":
        return total
    return np.where(exact_zero & (np.signbit(a) != np.signbit(b)), np.copysign(np.zeros((), total.dtype), -1), total)


def flush(x: Array) -> Array:
    """Replace subnormal numbers by zero of the same sign (``.ftz``)."""
    small = np.abs(x) < _TINY[x.dtype]
    return np.where(small, np.copysign(x.dtype.type(0), x), x) if small.any() else x


# ---- sign and payload of NaNs ----------------------------------------------------------------------------------------

#: The NaN that arithmetic returns, as bits, for f16 and bf16 and for f32.
NAN16, NAN32 = np.uint16(0x7FFF), np.uint32(0x7FFFFFFF)
_DEFAULT64 = np.uint64(0xFFF8 << 48)
_MANTISSA = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}
#: All bits of the exponent, and the first of the mantissa, which says that a NaN is quiet.
_QUIET = {"f16": 0x7E00, "bf16": 0x7FC0, "f32": 0x7FC00000, "f64": 0x7FF8 << 48}


def canonical(out: Array) -> None:
    """Replace every NaN of a float32 array by the canonical NaN, in place."""
    nan = np.isnan(out)
    if nan.any():
        out.view(np.uint32)[nan] = NAN32


def hand_on(out: Array, inputs: Sequence[Array], *, quiet: bool = True) -> None:
    """Replace every NaN of a float64 result by the last input that is NaN, in place; ``inputs`` must not overlap ``out``.

    >>> a, b = np.array([0x7FF8000000000001, 0xFFF0000000000002], np.uint64).view(np.float64).reshape(2, 1)
    >>> out = np.array([np.nan])
    >>> hand_on(out, [a, b])
    >>> hex(out.view(np.uint64)[0])
    '0xfff8000000000002'
    """
    nan = np.isnan(out)
    if not nan.any():
        return
    bits: Array = np.asarray(_DEFAULT64)
    for x in inputs:
        input_bits = np.asarray(x).view(np.uint64)
        bits = np.where(np.isnan(x), input_bits | np.uint64(_QUIET["f64"] if quiet else 0), bits)
    out.view(np.uint64)[nan] = np.broadcast_to(bits, out.shape)[nan]


def converted(bits: Array, source: str, target: str) -> Array:
    """Convert the bits of NaNs of one format to quiet NaNs of another, with their sign and the upper bits of their
    payload.

    >>> hex(converted(np.array([0xFC05], np.uint16), "f16", "f64")[0])
    '0xfff8140000000000'
    """
    wide, more = bits.astype(np.uint64), _MANTISSA[target] - _MANTISSA[source]
    sign = wide >> np.uint64(8 * SIZES[source] - 1) << np.uint64(8 * SIZES[target] - 1)
    payload = wide & np.uint64((1 << _MANTISSA[source]) - 1)
    payload = payload << np.uint64(more) if more > 0 else payload >> np.uint64(-more)
    return (sign | payload | np.uint64(_QUIET[target])).astype(f"u{SIZES[target]}")


# ---- floats of 8 bits and fewer --------------------------------------------------------------------------------------

#: Bits of the mantissa, the exponent of the least normal number, the code of the largest finite one, and all bits.
_FORMATS = {
    "e4m3": (3, -6, 0x7E, 8),
    "e5m2": (2, -14, 0x7B, 8),
    "e2m3": (3, 0, 0x1F, 6),
    "e3m2": (2, -2, 0x1F, 6),
    "e2m1": (1, 0, 0x7, 4),
}
_NAN = 0x7F


def _values(kind: str) -> Array:
    """The value of each code, as float64: (256,), (64,) or (16,)."""
    mantissa, least, largest, bits = _FORMATS[kind]
    code = np.arange(1 << (bits - 1))
    exponent, fraction = code >> mantissa, code & ((1 << mantissa) - 1)
    x = np.ldexp(fraction + (exponent > 0) * (1 << mantissa), np.maximum(exponent, 1) - 1 + least - mantissa)
    x[largest + 1 :] = np.nan
    if kind == "e5m2":
        x[largest + 1] = np.inf
    return np.concatenate([x, -x])


VALUES = {kind: _values(kind) for kind in _FORMATS}


def decode(codes: Array, kind: str) -> Array:
    """Convert bytes of a format to float64.

    >>> decode(np.array([0x38, 0x7E, 0xC0], np.uint8), "e4m3").tolist()
    [1.0, 448.0, -2.0]
    """
    return VALUES[kind][codes]


def encode(x: Array, kind: str) -> Array:
    """Convert float64 to bytes of a format, to nearest, ties to even. Numbers beyond the largest value of the format
    become that value (``.satfinite``). In a format without NaN, a NaN becomes the largest value of the format.

    >>> encode(np.array([1.0, -1e9, 1.0625, 0.001]), "e4m3").tolist()
    [56, 254, 56, 1]
    """
    mantissa, least, largest, bits = _FORMATS[kind]
    positive = VALUES[kind][: largest + 1]
    size = np.minimum(np.abs(x), positive[-1])
    step = np.ldexp(1.0, np.maximum(np.frexp(size)[1] - 1, least) - mantissa)
    codes = np.searchsorted(positive, np.minimum(np.rint(size / step) * step, positive[-1])).astype(np.uint8)
    nan = np.uint8(_NAN if bits == 8 else largest)
    return np.where(np.isnan(x), nan, codes | np.signbit(x).astype(np.uint8) << np.uint8(bits - 1))
