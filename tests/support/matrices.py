"""Operands of every dtype, awkward shapes, and layouts that hold the same matrix."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

SHAPES = [
    *((1, 1, 1), (1, 70, 5), (70, 1, 5), (5, 7, 3), (33, 129, 65), (97, 89, 83), (64, 64, 64), (6, 128, 700)),
    *((0, 3, 4), (3, 0, 4), (3, 4, 0), (129, 257, 400), (13, 40, 3000)),
]


Layout = Callable[[np.ndarray], np.ndarray]


LAYOUTS: dict[str, Layout] = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "every second": lambda x: np.repeat(np.repeat(x, 2, 0), 2, 1)[::2, ::2],
    "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "upside down Fortran": lambda x: np.asfortranarray(x[::-1])[::-1],
    "other byte order": lambda x: x.astype(x.dtype.newbyteorder()),
}


every_layout = pytest.mark.parametrize("lay", LAYOUTS.values(), ids=LAYOUTS.keys())


def numbers(shape: tuple[int, int], dtype: str, seed: int = 0) -> np.ndarray:
    """The whole range of an integer, so that sums overflow; [−1, 1) of floats, real and imaginary parts alike."""
    rng, kind = np.random.default_rng([seed, *shape]), np.dtype(dtype).kind
    if kind in "iu":
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    x = rng.uniform(-1, 1, (2, *shape))
    return (x[0] + 1j * x[1] if kind == "c" else x[0]).astype(dtype)


def operands(shape: tuple[int, int, int], dtype: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    m, n, k = shape
    return numbers((m, k), dtype, seed), numbers((k, n), dtype, seed + 1)
