"""Gram matrices on a GPU, executed by the microscope: one triangle is computed, and C equals its transpose in every bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.changed_kernels import changed
from support.epilogues import BF16, whole
from support.layouts import laid
from support.multiplied import by_columns, by_rows, multiply
from tilewright.gpu.runtime.engine_product import EngineProduct
from tilewright.kernels.catalog import cuda_engine
from tilewright.kernels.cuda_kernel import CudaKernel

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

ENGINE = cuda_engine()
HOPPER = ENGINE["cuda/hopper"]
SMALL = {"BM": 64, "BN": 64, "STAGES": 3}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    return fake.installed(monkeypatch, 1 << 23, sms=4)


def check(
    gpu: Any,
    m: int,
    params: dict[str, int],
    *,
    k: int = 96,
    kernel: CudaKernel = HOPPER,
    down: bool = False,
    out: str = "bfloat16",
) -> None:
    """Compares what the kernel stores of A·Aᵀ with all of it. ``down``: columns of A follow each other in memory."""
    a = whole(m, k, dtype=BF16)
    memory = gpu.put(np.ascontiguousarray(a.T if down else a).view(np.uint16))
    size, dtype = (2, BF16) if out == "bfloat16" else (4, np.dtype(np.float32))
    c = gpu.put(np.full(m * m * size, 0xFF, np.uint8))  # NaN
    x, y = (by_columns, by_rows) if down else (by_rows, by_columns)
    what = EngineProduct("bfloat16", x(m, k, "bfloat16"), y(k, m, "bfloat16"), by_rows(m, m, out), triangle=True)
    multiply(gpu, kernel, what, params, (memory.pointer, memory.pointer, c.pointer))
    exact = a.astype(np.float64) @ a.astype(np.float64).T
    np.testing.assert_array_equal(gpu.get(c, dtype, (m, m)), exact.astype(dtype))


@pytest.mark.slow
@pytest.mark.parametrize("down", [False, True], ids=["along k", "across k"])
@pytest.mark.parametrize("params", [
    SMALL, SMALL | {"GROUP": 2}, SMALL | {"BN": 128, "CLUSTER": 2}, SMALL | {"BM": 128}, SMALL | {"SPLIT": 2},
    SMALL | {"CLUSTER": 2, "BESIDE": 2}, {"BM": 128, "BN": 128, "STAGES": 4, "PINGPONG": 1},
    {"BM": 192, "BN": 96, "STAGES": 3},
], ids=str)  # fmt: skip
def test_tiles_below_the_diagonal_are_stored_twice(gpu: Any, params: dict[str, int], down: bool) -> None:
    check(gpu, 328, params, down=down)
    check(gpu, 136, params, down=down, out="float32")


@pytest.mark.slow
def test_tiles_are_found_in_many_bands(gpu: Any) -> None:
    check(gpu, 776, SMALL | {"BN": 32, "GROUP": 4}, k=8)


@pytest.mark.slow
def test_a_kernel_that_does_not_mirror_is_found(gpu: Any, tmp_path: Path) -> None:
    broken = changed(HOPPER, tmp_path, "hopper_tiles.cuh", (r"TRIANGLE && left / SIDE < top / SIDE", "false"))
    with pytest.raises(AssertionError, match="Mismatched elements"):
        check(gpu, 328, SMALL, kernel=broken)


# ---- by ``matmul``


def values(m: int, k: int, dtype: str) -> np.ndarray:
    x = np.random.default_rng(m + k).uniform(-1, 1, (m, k)).astype(dtype)
    x[3, :4] *= 1e-20 if dtype == "float32" else 1e-200  # a part of C is computed from the operands themselves
    x[m // 2, k // 2] = 1e12
    return x


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype", "m", "layout"), [
    ("split_hopper", "float32", 330, "rows"), ("split_hopper", "float32", 330, "columns"),
    ("dmma_boxes", "float64", 144, "wider"), ("residues_hopper", "float64", 260, "rows"),
    ("simt", "float32", 130, "columns"),
])  # fmt: skip
def test_both_triangles_have_the_same_bits(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, name: str, dtype: str, m: int, layout: str
) -> None:
    """Of kernels that compute a triangle, and of others."""
    monkeypatch.setattr("tilewright.gpu.arrays.split._LEAST", {})
    kernel = replace(ENGINE[f"cuda/{name}"], suits=None)
    # Else all of so small a C is computed by kernels that can sum all elements in the same order.
    fake.engine_alone(monkeypatch, kernel if name == "simt" else replace(kernel, invariant=None))
    k = 130
    a = values(m, k, dtype)
    x = laid(fake.Tensor, gpu, a, layout)
    plan = tw.plan(x, x.transpose(-1, -2))
    assert (plan.problem.symmetry, plan.triangle) == ("gram", name != "simt")
    assert (plan.steps[-1].launch.entry == "mirror") == plan.mirrored == (name != "simt")
    assert ("its lower triangle is computed" if plan.triangle else "all of it is computed") in str(plan)
    c = tw.matmul(x, x.transpose(-1, -2)).view
    np.testing.assert_array_equal(c, c.T)
    exact, most = a.astype(np.longdouble) @ a.T.astype(np.longdouble), np.abs(a).astype(np.longdouble)
    assert (np.abs(c - exact) <= k * np.finfo(dtype).eps / 2 * (most @ most.T)).all()


@pytest.mark.slow
def test_repeated_products_are_told_apart_from_general_ones(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planned, recorded and repeated, in turns with the product of two arrays like these."""
    fake.engine_alone(monkeypatch, HOPPER)
    a, b = whole(72, 40, dtype=BF16), whole(72, 40, dtype=BF16, seed=2)
    x, y = fake.Tensor.of(gpu, a), fake.Tensor.of(gpu, b)
    for _ in range(4):
        for other, right in ((x, a), (y, b)):
            exact = a.astype(np.float64) @ right.astype(np.float64).T
            np.testing.assert_array_equal(tw.matmul(x, other.transpose(-1, -2)).view, exact.astype(BF16))


@pytest.mark.slow
def test_batches_and_other_results(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.engine_alone(monkeypatch, replace(HOPPER, invariant=None))
    a = whole(3, 72, 40, dtype=BF16)
    x = fake.Tensor.of(gpu, a)
    exact = a.astype(np.float64) @ a.astype(np.float64).swapaxes(-1, -2)
    for says, dtype in (({}, BF16), ({"out_dtype": "float32"}, np.float32)):
        plan = tw.plan(x, x.transpose(-1, -2), **says)
        assert plan.triangle
        c = tw.matmul(x, x.transpose(-1, -2), **says)
        np.testing.assert_array_equal(c.view.astype(np.float64), exact.astype(dtype).astype(np.float64))
    odd = fake.Tensor.of(gpu, whole(75, 40, dtype=BF16))  # the copy engine does not store such rows
    assert (tw.plan(odd, odd.transpose(-1, -2)).triangle, tw.plan(odd, odd.transpose(-1, -2)).mirrored) == (False, True)
    c = tw.matmul(odd, odd.transpose(-1, -2)).view
    np.testing.assert_array_equal(c, c.T)


def test_what_is_no_gram_matrix_is_a_general_product(gpu: Any) -> None:
    a = fake.Tensor.of(gpu, whole(128, 128, dtype=np.dtype(np.float32)))
    for x, y, says in [
        (a, a, {}), (a, fake.Tensor.of(gpu, a.view).transpose(-1, -2), {}), (a[:60], a[:60].transpose(-1, -2), {}),
        (a, a.transpose(-1, -2), {"precision": "invariant"}), (a[:, :100], a[:100].transpose(-1, -2)[:, :100], {}),
    ]:  # fmt: skip
        if x.shape[-1] == y.shape[-2]:
            assert tw.plan(x, y, **says).problem.symmetry == "", (x.shape, y.shape, says)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64", "int8"])
def test_gram_matrices_on_this_gpu(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    for _ in range(25):
        n, k = (int(2 ** rng.uniform(6, 12)) for _ in range(2))
        n, batch = n - n % int(rng.choice([1, 8])), (2,) if rng.random() < 0.2 else ()
        x = torch.randint(-4, 5, (*batch, n, k), device="cuda").to(getattr(torch, dtype))
        x = x.mT.contiguous().mT if rng.random() < 0.5 else x
        says: Any = {"out_dtype": "int32"} if dtype == "int8" else {}
        left, right = (x, x.mT) if rng.random() < 0.5 else (x.mT, x)
        for _ in range(3):  # planned, recorded and repeated
            c = tw.matmul(left, right, **says)
            assert torch.equal(c, c.mT), (n, k, batch)
            exact = (left.double() @ right.double()).to(c.dtype)  # sums of whole numbers
            assert torch.equal(c, exact), (n, k, batch)
