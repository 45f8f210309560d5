"""The 8-bit floats e4m3 and e5m2: their values, and rounding into them (PTX ISA 5.2.3, 9.7.9.21).

e4m3 has no infinity and one NaN per sign, and reaches 448; e5m2 is half precision with a shorter mantissa, and reaches
57,344.
"""

from __future__ import annotations

import numpy as np

from ..machine.values import Array

#: Bits of the mantissa, the exponent of the least normal number, and the code of the largest finite one.
_FORMATS = {"e4m3": (3, -6, 0x7E), "e5m2": (2, -14, 0x7B)}
_NAN = 0x7F


def _values(kind: str) -> Array:
    """The value of each of the 256 codes, as float64 (256,)."""
    mantissa, least, largest = _FORMATS[kind]
    code = np.arange(128)
    exponent, fraction = code >> mantissa, code & ((1 << mantissa) - 1)
    x = np.ldexp(fraction + (exponent > 0) * (1 << mantissa), np.maximum(exponent, 1) - 1 + least - mantissa)
    x[largest + 1 :] = np.nan
    if kind == "e5m2":
        x[largest + 1] = np.inf
    return np.concatenate([x, -x])


VALUES = {kind: _values(kind) for kind in _FORMATS}


def decode(codes: Array, kind: str) -> Array:
    """Bytes → float64.

    >>> decode(np.array([0x38, 0x7E, 0xC0], np.uint8), "e4m3").tolist()
    [1.0, 448.0, -2.0]
    """
    return VALUES[kind][codes]


def encode(x: Array, kind: str) -> Array:
    """float64 → bytes, to nearest, ties to even; numbers beyond the largest value become that value (``.satfinite``).

    >>> encode(np.array([1.0, -1e9, 1.0625, 0.001]), "e4m3").tolist()
    [56, 254, 56, 1]
    """
    mantissa, least, largest = _FORMATS[kind]
    positive = VALUES[kind][: largest + 1]
    size = np.minimum(np.abs(x), positive[-1])
    step = np.ldexp(1.0, np.maximum(np.frexp(size)[1] - 1, least) - mantissa)
    codes = np.searchsorted(positive, np.minimum(np.rint(size / step) * step, positive[-1])).astype(np.uint8)
    return np.where(np.isnan(x), np.uint8(_NAN), codes | np.signbit(x).astype(np.uint8) << np.uint8(7))
