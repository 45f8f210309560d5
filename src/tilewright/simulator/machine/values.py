"""The NumPy types that the simulator uses for registers, lane numbers and addresses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
#: A position in a grid or block, or its size, along x, y, z.
Dim = tuple[int, int, int]

#: The NumPy type with which an instruction of each PTX type works. NumPy has no bfloat16, so its bits are stored.
DTYPES: dict[str, np.dtype[Any]] = {
    **{f"{k}{b}": np.dtype(f"{'i' if k == 's' else 'u'}{b // 8}") for k in "bus" for b in (8, 16, 32, 64)},
    "pred": np.dtype(bool),
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "bf16": np.dtype(np.uint16),
    "tf32": np.dtype(np.float32),
    "f16x2": np.dtype(np.uint32),
    "bf16x2": np.dtype(np.uint32),
    "f32x2": np.dtype(np.uint64),
}


def per_lane(values: Array, lanes: Ints) -> Array:
    """Return the values of an operand (a register or a constant) for these lanes, in the shape of ``lanes``.

    >>> per_lane(np.array(7), np.array([0, 2])).tolist(), per_lane(np.array([5, 6, 7]), np.array([[0, 2]])).tolist()
    ([7, 7], [[5, 7]])
    """
    return values[lanes] if values.ndim else np.broadcast_to(values, lanes.shape)


def split(index: int, shape: Dim) -> Dim:
    """Convert a linear index to (x, y, z).

    >>> split(7, (4, 2, 1))
    (3, 1, 0)
    """
    return index % shape[0], index // shape[0] % shape[1], index // (shape[0] * shape[1])
