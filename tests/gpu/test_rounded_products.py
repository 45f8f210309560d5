"""float32 with precision "fast": operands rounded to float16, executed by the microscope, and the bound of the error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.layouts import laid
from support.selection import in_turns
from tilewright.gpu.runtime.split_product import parts_steps, split_of_rows, split_product_steps, split_step
from tilewright.gpu.runtime.steps import WORKSPACE, A, B, BufferPlace, load
from tilewright.kernels.catalog import cuda_engine
from tilewright.kernels.cuda_kernel import CudaKernel
from tilewright.large.streaming.plan.kernel import choose_streamed
from tilewright.product.precision import ROUNDED, fast_bound, path_bound

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

KERNEL = cuda_engine()["cuda/rounded_hopper"]
LAUNCHES = ["split_matrices", "split_hopper", "multiply_flagged"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = fake.Gpu(1 << 27)
    found.sms = 4
    fake.install(monkeypatch, [found])
    fake.engine_alone(monkeypatch, replace(KERNEL, suits=None))
    return found


def uniform(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def worst(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """The largest error relative to |A||B|."""
    exact, size = (f(a.astype(np.float64)) @ f(b.astype(np.float64)) for f in (np.asarray, np.abs))
    return float((abs(c - exact) / size).max())


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("layout", ["rows", "columns", "wider"])
@pytest.mark.parametrize(
    "shapes", [((130, 200), (200, 300)), ((1, 150), (150, 129)), ((2, 70, 130), (130, 40))], ids=str
)
def test_products_of_every_layout_keep_the_bound(gpu: Any, shapes: Any, layout: str) -> None:
    a, b = uniform(*shapes[0]), uniform(*shapes[1], seed=2)
    x, y = laid(fake.Tensor, gpu, a, layout), laid(fake.Tensor, gpu, b, layout)
    error = worst(tw.matmul(x, y, precision="fast").view, a, b)
    assert 2.0**-15 < error < path_bound("float32", ROUNDED, b.shape[-2]) < fast_bound(b.shape[-2])
    assert [entry for entry, _ in gpu.launches] == LAUNCHES


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("add", [False, True], ids=["", "added"])
@pytest.mark.parametrize("params", [{}, *(preset.params for preset in KERNEL.presets)], ids=str)
def test_every_set_of_parameters(params: dict[str, int], add: bool) -> None:
    """Of two tiles one half has rows and columns that float16 does not represent: it is multiplied in float32."""
    a, b, c = uniform(200, 160), uniform(160, 300, seed=2), uniform(200, 300, seed=3)
    a[140::32, 7], b[9, 130::32] = 2.0**-40, 2.0**-40
    found = by_kernel(KERNEL, a, b, c, add, params)
    exact = a.astype(np.float64) @ b + add * c
    size = abs(a).astype(np.float64) @ abs(b)
    error = abs(found - exact) / size
    assert 2.0**-15 < error[:128, :128].max() < fast_bound(160)
    assert error[128:192].max() < 2.0**-20
    assert error[:, 128:].max() < 2.0**-20


def by_kernel(
    chosen: CudaKernel, a: np.ndarray, b: np.ndarray, c: np.ndarray, add: bool, params: dict[str, int]
) -> np.ndarray:
    gpu = fake.Gpu(1 << 22)
    gpu.sms = 2
    (m, k), n = a.shape, b.shape[1]
    made = split_of_rows(m, n, k, 1, add)
    x, y = gpu.put(a).pointer, gpu.put(b).pointer
    of_c = gpu.put(c if add else np.full_like(c, np.nan))
    z = of_c.pointer
    steps = split_product_steps(gpu.sms, chosen, params, made)
    if add:  # each operand alone
        parts = BufferPlace(WORKSPACE), BufferPlace(WORKSPACE, made.a.workspace_bytes)
        splits = (
            split_step(each) for each in zip((made.a, made.b), (BufferPlace(A), BufferPlace(B)), parts, strict=True)
        )
        steps = [*splits, *parts_steps(gpu.sms, chosen, params, made, parts)]
    load(gpu, steps)(x, y, z, gpu.allocate(made.workspace_bytes).pointer, 1)
    return gpu.get(of_c, np.float32, (m, n))


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), in_turns([
    ("flagged >> j / FLAGGED_COLUMNS & 1", "flagged >> 0 & 1"), ("step > 0 || q > 0);", "q > 0);"),
    ("v[l] = sum[i + l];", "v[l] = sum[i];"),
], 1))  # fmt: skip
def test_a_wrong_kernel_is_rejected(before: str, after: str) -> None:
    body = (KERNEL.path.parent / "split_hopper.cu").read_text()
    assert body.count(before) == 1
    changed = KERNEL.source.replace('#include "split_hopper.cu"', body.replace(before, after))
    a, b = uniform(128, 160), uniform(160, 256, seed=2)
    b[9, 140::32] = 2.0**-40
    right, wrong = (
        by_kernel(x, a, b, np.zeros((128, 256), np.float32), True, {})
        for x in (KERNEL, replace(KERNEL, source=changed))
    )
    assert worst(right, a, b) < fast_bound(160)
    assert not worst(wrong, a, b) < fast_bound(160)


@pytest.mark.slow
def test_numbers_that_float16_does_not_have(gpu: Any) -> None:
    a, b = uniform(140, 150), uniform(150, 33, seed=2)
    a *= 2.0 ** np.linspace(-100, 60, 140, dtype=np.float32)[:, None]
    a[139, 4], b[5, 3] = np.inf, np.nan
    x, y = fake.Tensor.of(gpu, a), fake.Tensor.of(gpu, b)
    c = tw.matmul(x, y, precision="fast").view
    assert np.isnan(c[:, 3]).all()
    assert np.isinf(np.delete(c[139], 3)).all()
    assert worst(np.delete(c[:139], 3, 1), a[:139], np.delete(b, 3, 1)) < fast_bound(150)


@pytest.mark.slow
def test_the_plan_says_what_becomes_of_the_operands(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    every = cuda_engine().values()
    found = lambda dtype, capability: [x for x in every if dtype in x.dtypes and x.fits(capability)]  # noqa: E731
    monkeypatch.setattr("tilewright.gpu.arrays.choose.engine_on_gpu", found)
    gpu.sms = 132
    x = fake.Tensor.of(gpu, np.zeros((4096, 4096), np.float32))
    plan = tw.plan(x, x, precision="fast")
    assert plan.compute == ROUNDED
    assert "rounded to float16" in str(plan)
    assert f"{path_bound('float32', ROUNDED, 4096):.2g}·|A||B| in {ROUNDED}" in str(plan)
    assert tw.plan(x, x, precision=2e-4).compute != ROUNDED
    assert tw.plan(x, x, precision="tf32").compute == "tf32"
    assert tw.plan(x[:0], x, precision="fast").split is None
    assert tw.plan(x[:100], x, precision="fast").split is None


def test_blocks_are_rounded_where_fast_is_asked_for() -> None:
    choices = {
        word: choose_streamed("float32", 4096, 4096, 4096, capability="9.0", sms=132, precision=word).compute
        for word in ("standard", "ieee", "fast")
    }
    assert choices == {"standard": "float16x2", "ieee": "float32", "fast": ROUNDED}
    assert (
        choose_streamed("float64", 4096, 4096, 4096, capability="9.0", sms=132, precision="fast").compute == "float64"
    )


def test_the_bound_of_long_sums_is_no_wider_than_what_fast_promises() -> None:
    for k in (128, 4096, 65536, 1 << 22):
        assert path_bound("float32", ROUNDED, k) <= max(fast_bound(k), path_bound("float32", "float32", k))
