"""Tiles of fewer than 64 columns, of which few rows have enough for all multiprocessors without parts of k."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from support import simulated_libraries as fake
from support.multiplied import by_columns, by_rows, multiply
from tilewright.gpu.planning.ways import EngineShape, ways
from tilewright.gpu.runtime.engine_product import EngineProduct
from tilewright.kernels.catalog import cuda_engine
from tilewright.kernels.cuda_kernel import Card

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

HOPPER = cuda_engine()["cuda/hopper"]
BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    return fake.installed(monkeypatch, 1 << 22, sms=4)


@pytest.mark.parametrize(
    ("bm", "bn", "m", "n", "out", "b_down", "c_down"),
    [
        (64, 32, 5, 100, "bfloat16", True, False),
        (64, 32, 64, 97, "bfloat16", False, False),
        (64, 48, 40, 104, "bfloat16", True, True),
        (64, 48, 70, 61, "float32", True, False),
        (128, 32, 136, 72, "bfloat16", False, True),
        (128, 48, 100, 50, "float32", False, False),
    ],
)
def test_every_way_of_storing(gpu: Any, bm: int, bn: int, m: int, n: int, out: str, b_down: bool, c_down: bool) -> None:
    k, steps = 200, {True: (m + 7) // 8 * 8, False: n}
    rng = np.random.default_rng(bn)
    a, b = (rng.integers(-4, 5, shape).astype(BF16) for shape in ((m, k), (k, n)))
    step_b = k if b_down else (n + 7) // 8 * 8
    laid_b = np.zeros((n, k) if b_down else (k, step_b), BF16)
    laid_b[:, : (k if b_down else n)] = b.T if b_down else b
    dtype, step_c = BF16 if out == "bfloat16" else np.dtype(np.float32), steps[c_down]
    memory, size = [gpu.put(x.view(np.uint16)) for x in (a, laid_b)], (n if c_down else m) * step_c
    c = gpu.allocate(size * dtype.itemsize)
    gpu.fill(c, 0xFF)
    of_b = (by_columns if b_down else by_rows)(k, n, "bfloat16", step_b)
    of_c = (by_columns if c_down else by_rows)(m, n, out, step_c)._replace(alignment=16 if c_down or n % 8 == 0 else 2)
    what, params = EngineProduct("bfloat16", by_rows(m, k, "bfloat16"), of_b, of_c), {"BM": bm, "BN": bn, "STAGES": 3}
    multiply(gpu, HOPPER, what, params, (memory[0].pointer, memory[1].pointer, c.pointer))
    found = gpu.get(c, np.dtype(np.uint16) if out == "bfloat16" else dtype, (size,)).view(dtype)
    found = found.reshape(n if c_down else m, step_c).astype(np.float64)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(found.T[:m] if c_down else found[:, :n], expected.astype(dtype).astype(np.float64))


def test_they_are_tried_where_rows_are_few() -> None:
    few = EngineShape("float16", "float16", 22, 2432, 1152, b_across=False)
    tried, of_many = (
        {way.params["BN"] for way in ways(HOPPER, shape, Card())} for shape in (few, few._replace(m=4096))
    )
    assert 48 in tried
    assert min(of_many) >= 64
