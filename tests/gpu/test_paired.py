"""Complex products as real ones, executed by the microscope."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.layouts import laid
from tilewright.gpu.arrays import matmul
from tilewright.gpu.arrays.gpu_array import GpuArray
from tilewright.gpu.arrays.plan import GpuPlan

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Of tables of several axes the default run takes a case for each value.
pytestmark = pytest.mark.each_value


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A simulated GPU on which all that can be computed as reals is, whatever its predicted time."""
    found = fake.Gpu(1 << 22)
    fake.install(monkeypatch, [found])
    monkeypatch.setattr(matmul, "_GAINS", 1e9)
    matmul._plan.cache_clear()
    yield found
    matmul._plan.cache_clear()


def whole(*shape: int, dtype: str = "complex64") -> np.ndarray:
    """Small whole numbers, whose sums are exact."""
    rng = np.random.default_rng(sum(shape))
    return (rng.integers(-4, 5, shape) + 1j * rng.integers(-4, 5, shape)).astype(dtype)


def is_paired(*tensors: Any, **says: Any) -> bool:
    return is_of_reals(tw.plan(*tensors, **says))


def is_of_reals(plan: GpuPlan) -> bool:
    return "reals" in dict(plan.rows())


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "dtype", "layouts"), [
    ((5, 7, 9), "complex64", ("rows", "rows")), ((33, 20, 17), "complex64", ("rows", "columns")),
    ((9, 1, 40), "complex64", ("wider", "wider")), ((12, 33, 8), "complex64", ("rows", "strided")),
    ((17, 12, 6), "complex64", ("columns", "columns")), ((1, 300, 20), "complex64", ("rows", "columns")),
    ((5, 7, 9), "complex128", ("rows", "rows")), ((8, 40, 24), "complex128", ("rows", "columns")),
], ids=str)  # fmt: skip
def test_a_complex_product_is_one_of_reals(gpu: Any, shape: Any, dtype: str, layouts: Any) -> None:
    m, k, n = shape
    a, b = whole(m, k, dtype=dtype), whole(k, n, dtype=dtype)
    tensors = [laid(fake.Tensor, gpu, x, how) for x, how in zip((a, b), layouts, strict=True)]
    assert is_paired(*tensors)
    for _ in range(3):  # planned, recorded and repeated
        np.testing.assert_array_equal(tw.matmul(*tensors).view, a @ b)


@pytest.mark.slow_cases("((3,), ())", "((3,), (3,))", "((2, 3), (3,))")
@pytest.mark.parametrize("batch", [((3,), (3,)), ((3,), ()), ((2, 3), (3,)), ((), (3,))], ids=str)
def test_batches(gpu: Any, batch: Any) -> None:
    a, b = whole(*batch[0], 5, 7), whole(*batch[1], 7, 6)
    tensors = [fake.Tensor.of(gpu, x) for x in (a, b)]
    assert is_paired(*tensors)
    np.testing.assert_array_equal(tw.matmul(*tensors).view, a @ b)


@pytest.mark.slow_cases("rows", "columns")
@pytest.mark.parametrize("layout", ["rows", "columns", "wider"])
def test_out_is_written_and_nothing_around_it(gpu: Any, layout: str) -> None:
    a, b = whole(6, 20), whole(20, 9)
    out = laid(fake.Tensor, gpu, np.full((6, 9), 7, np.complex64), layout)
    memory = out.storage.view.copy()
    tensors = [fake.Tensor.of(gpu, a), laid(fake.Tensor, gpu, b, "columns" if layout == "columns" else "rows")]
    assert is_paired(*tensors, out=out)
    tw.matmul(*tensors, out=out)
    np.testing.assert_array_equal(out.view, a @ b)
    out.view[...] = 7
    np.testing.assert_array_equal(out.storage.view, memory)


@pytest.mark.slow
def test_errors_of_both_parts_are_within_the_bound(gpu: Any) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=(*s, 2)).astype(np.float32).view(np.complex64)[..., 0] for s in ((256, 48), (48, 128)))
    tensors = [fake.Tensor.of(gpu, x) for x in (a, b)]
    found = tw.matmul(*tensors).view
    exact = a.astype(complex) @ b.astype(complex)
    bound = 2 * 48 * 2.0**-24 * (abs(a.real) + abs(a.imag)).astype(float) @ (abs(b.real) + abs(b.imag))
    assert (abs((found - exact).real) <= bound).all()
    assert (abs((found - exact).imag) <= bound).all()


@pytest.mark.slow
def test_infinities_and_nans_are_those_of_numpy(gpu: Any) -> None:
    a, b = whole(4, 3), whole(3, 5)
    a[1, 2], b[0, 1], b[2, 3] = complex(np.inf, 1), complex(1, np.nan), complex(-np.inf, np.inf)
    tensors = [fake.Tensor.of(gpu, x) for x in (a, b)]
    assert is_paired(*tensors)
    found = tw.matmul(*tensors).view
    parts = [(x.real, x.imag) for x in (a, b)]
    with np.errstate(invalid="ignore"):
        (ar, ai), (br, bi) = parts
        real = np.array(
            [[sum(x * y for x, y in zip(r, c, strict=True)) for c in np.r_[br, -bi].T] for r in np.c_[ar, ai]]
        )
        imag = np.array(
            [[sum(x * y for x, y in zip(r, c, strict=True)) for c in np.r_[bi, br].T] for r in np.c_[ar, ai]]
        )
    np.testing.assert_array_equal(found.real, real)
    np.testing.assert_array_equal(found.imag, imag)


def test_what_is_not_a_product_of_matrices_alone_is_left_to_complex_kernels(gpu: Any) -> None:
    a, b = whole(5, 7), whole(7, 7)
    tensors = [fake.Tensor.of(gpu, x) for x in (a, b)]
    assert not is_paired(tensors[1], tensors[1], out=tensors[1]), "C is an operand"
    assert not is_paired(fake.Tensor.of(gpu, a.real.copy()), fake.Tensor.of(gpu, b.real.copy())), "they are real"
    assert not is_paired(fake.Tensor.of(gpu, a[0].copy()), tensors[1]), "a vector"
    assert not is_paired(laid(fake.Tensor, gpu, a, "columns"), tensors[1]), "neither lies as reals can be read"


def test_a_plan_says_how_the_numbers_are_written(gpu: Any) -> None:
    rows = dict(tw.plan(*(fake.Tensor.of(gpu, whole(8, 8)) for _ in range(2))).rows())
    assert rows["reals"].startswith(
        "each number of b is written as [[re, im], [−im, re]], 1 KiB; a kernel of complex numbers: "
    )


def test_only_what_gains_is_computed_so(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "_GAINS", 0.95)
    found = {}
    for size in (16, 4096):
        x = GpuArray(0, (size, size), (size, 1), "complex64", 0)
        found[size] = matmul._plan(matmul._key(x, x, None, False, "standard", None))
    assert not is_of_reals(found[16])
    assert is_of_reals(found[4096])
    assert found[4096].predicted_s < 0.5 * matmul._planned(x, x, None, "standard", None).predicted_s


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_for_one_row_nothing_is_written_anew(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """Its product reads B once; to write B as reals would take several times as long."""
    fake.install(monkeypatch, [fake.Gpu(1 << 10)])
    row, b = (GpuArray(1 << 20, shape, (shape[1], 1), dtype, 0) for shape in ((1, 8192), (8192, 8192)))
    matmul._plan.cache_clear()
    plan = matmul._plan(matmul._key(row, b, None, True, "standard", None))
    assert not is_of_reals(plan)
    matmul._plan.cache_clear()
