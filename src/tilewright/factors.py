"""alpha and beta of ``gemm``: what counts as a number, and of which dtype it is."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import DTypeError, UsageError


def factor(name: str, value: Any, scaled: np.dtype, c: np.ndarray) -> np.ndarray:
    """The argument ``name``, alpha or beta, as an array without axes, of the dtype that it and what it scales have together.

    Raises DTypeError where that does not cast to the dtype of C, UsageError where ``value`` is no number.
    """
    number = _number(name, value)
    if scaled.kind in "biu" and isinstance(number, float) and number.is_integer() and abs(number) < 2**63:
        number = int(number)  # 2.0 will do where 2 does
    if scaled.kind == "b" and number in (0, 1):
        number = bool(number)
    dtype = np.result_type(scaled, number)
    if not np.can_cast(dtype, c.dtype, casting="same_kind"):
        raise DTypeError(
            f"{name} is {number}: the result is {dtype}, which does not cast to c, {c.dtype}, by same_kind"
        )
    given = np.asarray(value) if isinstance(value, (np.longdouble, np.clongdouble)) else np.asarray(number)
    return given.astype(dtype)


def _number(name: str, value: Any) -> complex:
    """``value`` as an int, a float or a complex; a whole number beyond 64 bits as a float."""
    try:
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            value = float(value)
        array = np.asarray(value)
    except Exception:  # a foreign object may raise anything
        array = np.asarray(None)
    kind = {"b": int, "i": int, "u": int, "f": float, "c": complex}.get(array.dtype.kind)
    if kind is None or array.shape or isinstance(value, np.ma.MaskedArray):
        raise UsageError(f"{name} must be a number, got {type(value).__name__}")
    return kind(array)
