"""Products in TF32 whose first operand lies across k, which tensor cores read from registers, executed by the microscope."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.layouts import laid
from support.multiplied import by_columns, by_rows, multiply
from support.selection import in_turns, widest_and_narrowest
from tilewright.gpu.runtime.engine_product import EngineProduct, FinishForm
from tilewright.kernels.catalog import cuda_engine

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

pytestmark = pytest.mark.each_value

HOPPER = cuda_engine()["cuda/hopper"]
WAYS = [{}, *widest_and_narrowest(preset.params for preset in HOPPER.presets)]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = fake.Gpu(1 << 23)
    found.sms = 4
    fake.install(monkeypatch, [found])
    fake.engine_alone(monkeypatch, HOPPER)
    return found


def whole(*shape: int, seed: int = 1) -> np.ndarray:
    """Small whole numbers, whose sums are exact in float32."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


@pytest.mark.slow_cases("(300, 200, 132)")
@pytest.mark.parametrize("layouts", [("rows", "rows"), ("columns", "columns")], ids="-".join)
@pytest.mark.parametrize("shape", [(72, 40, 200), (64, 68, 36), (300, 200, 132)], ids=str)
def test_a_row_major_b_is_not_copied(gpu: Any, shape: tuple[int, int, int], layouts: tuple[str, str]) -> None:
    m, k, n = shape
    a, b = whole(m, k), whole(k, n, seed=2)
    x, y = (laid(fake.Tensor, gpu, each, layout) for each, layout in zip((a, b), layouts, strict=True))
    plan = tw.plan(x, y, precision="tf32")
    assert (plan.copies, plan.swapped) == ((), layouts == ("rows", "rows"))
    np.testing.assert_array_equal(tw.matmul(x, y, precision="tf32").view, a @ b)


@pytest.mark.slow
@pytest.mark.parametrize(
    "params", in_turns(WAYS, 3), ids=lambda p: "-".join(f"{name}{value}" for name, value in p.items()) or "default"
)
@pytest.mark.parametrize(("m", "n", "c_down"), [(300, 264, False), (300, 261, False), (304, 261, True)])
def test_a_block_takes_many_tiles(gpu: Any, params: dict[str, int], m: int, n: int, c_down: bool) -> None:
    """Results by rows in boxes and alone, and by columns."""
    gpu.sms, k = 2, 136
    a, b = whole(m, k), whole(k, n, seed=2)
    memory = [gpu.put(np.ascontiguousarray(x.T)) for x in (a, b)]
    c = gpu.allocate(m * n * 4)
    of_c = (by_columns if c_down else by_rows)(m, n, "float32")
    what = EngineProduct("tf32", by_columns(m, k, "float32"), by_columns(k, n, "float32"), of_c)
    multiply(gpu, HOPPER, what, params, (memory[0].pointer, memory[1].pointer, c.pointer))
    found = gpu.get(c, np.dtype(np.float32), (n, m)).T if c_down else gpu.get(c, np.dtype(np.float32), (m, n))
    np.testing.assert_array_equal(found, a @ b)


@pytest.mark.parametrize("out", ["float32", "bfloat16"])
def test_an_epilogue_finds_its_rows(gpu: Any, out: str) -> None:
    m, n, k = 136, 96, 64
    a, b, bias = whole(m, k), whole(k, n, seed=2), whole(m, seed=3)
    memory = [gpu.put(x) for x in (np.ascontiguousarray(a.T), np.ascontiguousarray(b.T), bias)]
    dtype = np.float32 if out == "float32" else np.uint16
    c = gpu.put(np.zeros((m, n), dtype))
    epilogue = FinishForm(1.0, 0.0, None, ("float32", 1), None, None, m).transposed
    factors = by_columns(m, k, "float32"), by_columns(k, n, "float32")
    what = EngineProduct("tf32", *factors, by_rows(m, n, out), epilogue=epilogue)
    x, y, of_bias = (each.pointer for each in memory)
    multiply(gpu, HOPPER, what, {}, (x, y, c.pointer), (of_bias, 0, 0))
    found = gpu.get(c, np.dtype(dtype), (m, n))
    exact = (a @ b + bias[:, None]).astype(np.float32)
    if out == "bfloat16":
        found = (found.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_allclose(found, exact, rtol=2**-8)
    else:
        np.testing.assert_array_equal(found, exact)
