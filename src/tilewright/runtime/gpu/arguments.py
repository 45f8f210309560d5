"""What a launch is given: blocks and threads as three numbers, and arguments as wide as the kernel's parameters."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import OperandError, UsageError
from .memory import Memory

Extent = int | Sequence[int]


def extent(name: str, value: Extent) -> tuple[int, int, int]:
    """One to three positive numbers as three. Raises UsageError for anything else.

    >>> extent("grid", 7), extent("block", (32, 8))
    ((7, 1, 1), (32, 8, 1))
    """
    try:
        given = tuple(value) if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str) else (value,)
        whole = [int(v) for v in given if int(v) == v and not isinstance(v, bool | str)]
    except (TypeError, ValueError, OverflowError):
        whole, given = [], ()
    if len(whole) != len(given) or not 1 <= len(whole) <= 3 or min(whole) < 1:
        raise UsageError(f"{name} must be one to three positive numbers, given {value!r}")
    x, y, z = (*whole, 1, 1)[:3]
    return x, y, z


def argument(index: int, size: int, value: Any) -> Any:
    """An argument as ``cuda.core`` takes it: an address as an int, a number as the unsigned integer with its bits.

    ``size`` is what the kernel takes there, in bytes. Raises OperandError for a value that does not fit.
    """
    name = f"argument {index}"
    if isinstance(value, Memory):
        if size != 8:
            raise OperandError(f"{name} is memory, but the kernel takes {size} bytes there: give a number")
        return value.pointer
    if isinstance(value, np.generic) and value.dtype.kind in "iufb" and value.itemsize == size:
        return np.frombuffer(value.tobytes(), f"u{size}")[0]
    if isinstance(value, bool | int | np.integer | np.bool_) and size in (1, 2, 4, 8):
        low = -(1 << 8 * size - 1)
        if not low <= int(value) < 1 << 8 * size:
            raise OperandError(f"{name} is {value}: the kernel takes {size} bytes there, which cannot hold it")
        return np.dtype(f"u{size}").type(int(value) & (1 << 8 * size) - 1)
    if isinstance(value, float | np.floating) and size in (2, 4, 8):
        return np.frombuffer(struct.pack({2: "e", 4: "f", 8: "d"}[size], float(value)), f"u{size}")[0]
    raise OperandError(
        f"{name} is a {type(value).__name__}, and the kernel takes {size} bytes there: give memory or a number"
    )
