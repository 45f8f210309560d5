"""float16 and bfloat16 by the rung that packs them: float32's product, rounded once, bit by bit."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from support.matrices import LAYOUTS, SHAPES, Layout, operands
from tilewright.cpu.runtime.runner import runner
from tilewright.kernels.catalog import catalog

HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
#: Kernels get native byte order.
NATIVE = {name: layout for name, layout in LAYOUTS.items() if name != "other byte order"}
every_half = pytest.mark.parametrize("dtype", HALVES, ids=str)


def by_rung(a: np.ndarray, b: np.ndarray, threads: int = 1, c: np.ndarray | None = None) -> np.ndarray:
    c = np.empty((a.shape[0], b.shape[1]), a.dtype) if c is None else c
    c.fill(77)
    runner(catalog()["cpu/half_floats"], a.dtype, threads=threads)(a, b, c)
    return c


def expected(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    wide = np.empty((a.shape[0], b.shape[1]), np.float32)
    runner(catalog()["cpu/packed"], "float32")(a.astype(np.float32), b.astype(np.float32), wide)
    with np.errstate(over="ignore"):
        return wide.astype(a.dtype)


@every_half
@pytest.mark.parametrize("lay", NATIVE.values(), ids=NATIVE.keys())
def test_the_bits_are_float32s_rounded_once(dtype: np.dtype, lay: Layout) -> None:
    for shape in SHAPES:
        a, b = operands(shape, dtype)
        for threads in (1, 3):
            c = by_rung(lay(a), lay(b), threads)
            assert c.tobytes() == expected(a, b).tobytes(), (shape, threads)


@every_half
def test_into_any_c(dtype: np.dtype) -> None:
    a, b = operands((35, 153, 900), dtype)
    for rows, columns in itertools.product((1, 2, -1), (1, 3, -1)):
        large = np.full((35 * abs(rows) + 2, 153 * abs(columns) + 2), 7, dtype)
        c = large[1:-1, 1:-1][::rows, ::columns]
        assert np.array_equal(by_rung(a, b, 2, c), expected(a, b))
        c[...] = 7
        assert (large == 7).all(), "writes beside C"


@every_half
def test_nan_and_infinity_stay_in_their_row(dtype: np.dtype) -> None:
    for row, column, special in [(0, 0, np.nan), (13, 6, np.inf), (24, 44, -np.inf)]:
        a, b = operands((25, 67, 45), dtype)
        a[row, column] = special
        c = by_rung(a, b).astype(np.float32)
        with np.errstate(invalid="ignore"):
            wide = a.astype(np.float32) @ b.astype(np.float32)
        assert np.array_equal(np.isnan(c), np.isnan(wide))
        assert np.array_equal(np.isinf(c) * np.sign(c), np.isinf(wide) * np.sign(wide), equal_nan=True)
        assert np.isfinite(np.delete(c, row, axis=0)).all()


@pytest.mark.slow
def test_bfloat16_through_the_library_call() -> None:
    for shape in [(3, 4, 5), (70, 80, 90), (300, 200, 100)]:
        a, b = operands(shape, "bfloat16")
        wide = tw.matmul(a.astype(np.float32), b.astype(np.float32))
        c = tw.matmul(a, b)
        assert c.dtype == a.dtype
        assert np.abs(c.astype(np.float32) - wide).max() <= 2.0**-8 * np.abs(wide).max()
        assert tw.matmul(a, b, out=np.empty(c.shape, np.float32)).dtype == np.float32
        out = np.empty(c.shape, c.dtype)
        assert tw.matmul(a[::-1].copy()[::-1], np.asfortranarray(b), out=out) is out
        assert np.array_equal(out, c)
        assert tw.matmul(a, b.astype(np.float32)).dtype == np.float32
    assert tw.matmul(a, b.astype(np.float16)).dtype == np.float32


@every_half
def test_overflow_is_infinity(dtype: np.dtype) -> None:
    largest = ml_dtypes.finfo(dtype).max
    a = np.full((20, 300), largest, dtype)
    c = by_rung(a, np.ones((300, 40), dtype))
    assert np.isposinf(c.astype(np.float32)).all()
