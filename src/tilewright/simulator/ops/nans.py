"""Sign and payload of the NaNs that an H200 produces.

Arithmetic in f16, bf16 and f32 gives the one canonical NaN, whatever its operands, and so do abs, neg and conversions
among these formats. Arithmetic in f64 gives the last operand that is a NaN, made quiet; if no operand is one, the NaN
is negative with an empty payload. Conversions from or to f64 keep the sign and the upper bits of the payload.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..assembly.variables import SIZES
from ..machine.values import Array

#: The NaN that arithmetic gives, as bits: of f16 and bf16, and of f32.
NAN16, NAN32 = np.uint16(0x7FFF), np.uint32(0x7FFFFFFF)
_DEFAULT64 = np.uint64(0xFFF8 << 48)
_MANTISSA = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}
#: All bits of the exponent, and the first of the mantissa, which says that a NaN is quiet.
_QUIET = {"f16": 0x7E00, "bf16": 0x7FC0, "f32": 0x7FC00000, "f64": 0x7FF8 << 48}


def canonical(out: Array) -> None:
    """Make every NaN of a float32 array the canonical one, in place."""
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
    """Bits of NaNs of one format → of quiet NaNs of another, with their sign and the upper bits of their payload.

    >>> hex(converted(np.array([0xFC05], np.uint16), "f16", "f64")[0])
    '0xfff8140000000000'
    """
    wide, more = bits.astype(np.uint64), _MANTISSA[target] - _MANTISSA[source]
    sign = wide >> np.uint64(8 * SIZES[source] - 1) << np.uint64(8 * SIZES[target] - 1)
    payload = wide & np.uint64((1 << _MANTISSA[source]) - 1)
    payload = payload << np.uint64(more) if more > 0 else payload >> np.uint64(-more)
    return (sign | payload | np.uint64(_QUIET[target])).astype(f"u{SIZES[target]}")
