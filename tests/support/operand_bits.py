"""Bits of operands for tensor cores: near 1, of any size, that cancel, at the ends of a type's range, infinite or NaN."""

from __future__ import annotations

import numpy as np

from .opcode_cases.case import Array, raw, words

#: Bits of the exponent and of the mantissa; tf32 has the words of f32.
FORMATS = {
    "f16": (5, 10),
    "bf16": (8, 7),
    "tf32": (8, 23),
    "f32": (8, 23),
    "e4m3": (4, 3),
    "e5m2": (5, 2),
    "f64": (11, 52),
}
BITS = {"s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1, "s32": 32, **{kind: 1 + sum(f) for kind, f in FORMATS.items()}}
#: Operands: near 1; of any size; with short mantissas, so that sums cancel; results too small, or too large, for their
#: type; with infinities, NaNs and the extremes of the type here and there.
HOWS = ("near", "wide", "cancel", "tiny", "huge", "special")


def numbers(kind: str, count: int, how: str, seed: str, of: str = "") -> Array:
    """Bits of ``count`` numbers of a type; those of an accumulator if ``of`` names the type of the factors."""
    if kind not in FORMATS:
        return words(seed, count * BITS[kind] // 32)
    e, m = FORMATS[kind]
    r = raw(f"{kind}{how}{seed}", 3 * count).reshape(3, count)
    low, high = _exponents(kind, how, of)
    exponent = np.uint64(low) + r[0] % np.uint64(high - low + 1)
    mantissa = r[1] & np.uint64((1 << m) - 1)
    if how == "cancel":
        mantissa = mantissa & np.uint64(1) | mantissa & np.uint64(2) << np.uint64(m - 2)
    bits = (r[2] >> np.uint64(63)) << np.uint64(e + m) | exponent << np.uint64(m) | mantissa
    top = ((1 << e) - 1) << m
    if kind == "e4m3":
        bits[(bits & np.uint64(0x7F)) == 0x7F] ^= np.uint64(1)  # no NaN unless wanted
    if how == "special":
        corners = np.array(
            [0, 1 << (e + m), top, top | 1 << (e + m), top | 5, top - 1, 1, top | ((1 << m) - 1)], np.uint64
        )
        where = r[2] % np.uint64(128) == 0
        bits[where] = corners[(r[2][where] >> np.uint64(20)) % np.uint64(8)]
    if how == "wide":
        bits[r[2] % np.uint64(16) == 0] &= np.uint64(1 << (e + m))
    return bits.astype(f"u{BITS[kind] // 8}")


def _exponents(kind: str, how: str, of: str) -> tuple[int, int]:
    """The least and the largest biased exponent."""
    e, _ = FORMATS[kind]
    bias, top = (1 << (e - 1)) - 1, (1 << e) - 2 + (kind == "e4m3")
    if how in ("near", "special"):
        return bias - 2, bias + (4 if of else 2)
    if how == "cancel":
        return bias, bias + (1 if of else 0)
    wide = e == 8 and of in ("", "bf16", "tf32")  # products reach the ends of float32
    if how == "tiny":
        ranges = {True: (bias - 80, bias - 58), False: (0, 4)}
        return ranges[wide] if not of else (0, 12) if wide or kind == "f16" else (bias - 40, bias - 12)
    if how == "huge":
        ranges = {True: (bias + 60, bias + 66), False: (top - 4, top)}
        return ranges[wide] if not of else (top - 3, top) if wide or kind == "f16" else (bias + 24, bias + 34)
    return (0, top) if not of or wide or kind == "f16" else (bias - 40, bias + 36)
