"""The number formats that are multiplied on a GPU: how they are stored, and how large the error of a correct product
may be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError, did_you_mean

#: The relative error with which a kernel of each precision may round its float32 operands; tensor cores truncate them to
#: fewer bits.
OPERANDS = {"standard": 0.0, "tf32": 2.0**-10, "f16": 2.0**-10, "bf16": 2.0**-7}


@dataclass(frozen=True)
class NumberFormat:
    """A number format of operands and result. NumPy has no bfloat16, so arrays of dtype ``storage`` hold the bits of
    its numbers.

    ``unit`` is the unit roundoff of each addition: 2⁻²³ for the 16-bit formats, because tensor cores sum their products
    in float32 and truncate the sums. ``rounding`` is the unit roundoff of the stored result if it has fewer bits than
    the accumulator, and otherwise 0. ``tiny`` is the smallest positive number of the format. ``operands`` is the
    relative error with which operands may be rounded before they are multiplied.
    """

    name: str
    storage: np.dtype[Any]
    unit: float
    rounding: float
    tiny: float
    operands: float = 0.0

    @property
    def itemsize(self) -> int:
        """The bytes of an element in memory."""
        return self.storage.itemsize

    @property
    def working(self) -> np.dtype[Any]:
        """NumPy's dtype that represents all values of this format exactly."""
        return np.dtype(np.float64 if self.name == "float64" else np.float32)

    def stored(self, x: NDArray[Any]) -> NDArray[Any]:
        """Round numbers to this format; returns their bits as a C-contiguous array of dtype ``storage``."""
        x = np.ascontiguousarray(x, self.working)
        if self.name != "bfloat16":
            return x.astype(self.storage, copy=False)
        bits = x.view(np.uint32)
        # To nearest, ties to even; a NaN must not carry over into infinity.
        rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
        return np.where(np.isnan(x), 0x7FC0, rounded).astype(np.uint16)

    def values(self, stored: NDArray[Any]) -> NDArray[Any]:
        """The exact numbers that ``stored`` represents, in dtype ``working``.

        >>> FORMATS["bfloat16"].values(FORMATS["bfloat16"].stored(np.array([1.0, 1.003, -3.5, np.nan])))
        array([ 1. ,  1. , -3.5,  nan], dtype=float32)
        """
        if self.name != "bfloat16":
            return stored.astype(self.working, copy=False)
        return (stored.astype(np.uint32) << 16).view(np.float32)

    def bound(self, k: int) -> tuple[float, float, float]:
        """The numbers (relative, rounding, tiny) of an error bound. Each element's error is at most relative·|A||B| +
        rounding·|A·B| + tiny, for sums over ``k``.

        The bound allows for γ_k with this format's unit roundoff, the rounding of both operands, the oracle's own γ_k
        in float64, the rounding of the stored result, and one subnormal number for each product. (γ_k = k·u/(1 − k·u)
        for a unit roundoff u.) If k is so large that no bound exists, relative is infinite.
        """
        sums, products = _gamma(k, self.unit), self.operands * (2 + self.operands)
        relative = (sums * (1 + products) + products) * (1 + self.rounding) + _gamma(k, 2.0**-53)
        return relative, self.rounding, max(1, k) * self.tiny


def _gamma(k: int, unit: float) -> float:
    """k·u/(1 − k·u): Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1."""
    ku = max(1, k) * unit
    return ku / (1 - ku) if ku < 1 else np.inf


FORMATS = {
    f.name: f
    for f in (
        NumberFormat("float32", np.dtype(np.float32), 2.0**-24, 0.0, 2.0**-149),
        NumberFormat("float64", np.dtype(np.float64), 2.0**-53, 0.0, 2.0**-1074),
        NumberFormat("float16", np.dtype(np.float16), 2.0**-23, 2.0**-11, 2.0**-24),
        NumberFormat("bfloat16", np.dtype(np.uint16), 2.0**-23, 2.0**-8, 2.0**-133),
    )
}


def format_of(dtype: str, precision: str = "standard") -> NumberFormat:
    """The format of a dtype and a precision. The precision is "standard"; for float32 it may also be the format to
    which operands are rounded.

    Raises UsageError for a dtype or precision that has no format.

    >>> format_of("float32", "tf32").bound(1)[0] > 1000 * format_of("float32").bound(1)[0]
    True
    """
    known = OPERANDS if dtype == "float32" else ["standard"]
    if dtype not in FORMATS or precision not in known:
        what, allowed = ("dtype", FORMATS) if dtype not in FORMATS else (f"precision of {dtype}", known)
        given = dtype if dtype not in FORMATS else precision
        raise UsageError(f"{what} {given!r}: {did_you_mean(given, allowed)}")
    if precision == "standard":
        return FORMATS[dtype]
    return replace(FORMATS[dtype], unit=2.0**-23, operands=OPERANDS[precision])
