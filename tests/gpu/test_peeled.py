"""Products whose C has a few rows or columns more than whole tiles, executed by the microscope."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.layouts import laid
from tilewright.gpu.arrays import choose, matmul
from tilewright.gpu.arrays.gpu_array import GpuArray

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Of tables of several axes the default run takes a case for each value.
pytestmark = pytest.mark.each_value


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A simulated GPU on which all that can be peeled is, whatever its predicted time."""
    found = fake.Gpu(1 << 22)
    fake.install(monkeypatch, [found])
    monkeypatch.setattr(choose, "_GAINS", 1e9)
    monkeypatch.setattr(matmul, "_GAINS", 0)
    matmul._plan.cache_clear()
    yield found
    matmul._plan.cache_clear()


def whole(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Small whole numbers, whose sums are exact."""
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(dtype)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "dtype", "layouts"), [
    ((65, 20, 64), "float32", ("rows", "rows")), ((64, 17, 65), "float32", ("columns", "rows")),
    ((66, 20, 80), "float32", ("wider", "columns")), ((67, 9, 129), "float32", ("strided", "neither")),
    ((65, 12, 65), "float64", ("rows", "columns")), ((80, 33, 66), "float64", ("columns", "wider")),
    ((65, 12, 65), "complex64", ("rows", "rows")),
], ids=str)  # fmt: skip
def test_tiles_and_borders_are_the_product(gpu: Any, shape: Any, dtype: str, layouts: Any) -> None:
    (m, k, n), tensors = shape, []
    a, b = whole(m, k, dtype=dtype), whole(k, n, dtype=dtype)
    tensors = [laid(fake.Tensor, gpu, x, how) for x, how in zip((a, b), layouts, strict=True)]
    plan = tw.plan(*tensors, precision="ieee" if dtype == "float32" else "standard")
    assert plan.pieces
    assert len(plan.pieces) == 1 + (m % 64 > 0) + (n % 64 > 0)
    says: Any = {"precision": "ieee"} if dtype == "float32" else {}
    for _ in range(3):  # planned, recorded and repeated
        np.testing.assert_array_equal(tw.matmul(*tensors, **says).view, a @ b)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["rows", "columns", "wider", "reversed"])
def test_out_is_written_and_nothing_around_it(gpu: Any, layout: str) -> None:
    a, b = whole(66, 20), whole(20, 65)
    out = laid(fake.Tensor, gpu, np.full((66, 65), 7, np.float32), layout)
    memory = out.storage.view.copy()
    tw.matmul(fake.Tensor.of(gpu, a), fake.Tensor.of(gpu, b), out=out, precision="ieee")
    np.testing.assert_array_equal(out.view, a @ b)
    out.view[...] = 7
    np.testing.assert_array_equal(out.storage.view, memory)


@pytest.mark.slow
def test_both_operands_by_columns_give_a_transposed_view(gpu: Any) -> None:
    a, b = whole(65, 20), whole(20, 66)
    x, y = laid(fake.Tensor, gpu, a, "columns"), laid(fake.Tensor, gpu, b, "columns")
    np.testing.assert_array_equal(tw.matmul(x, y, precision="ieee").view, a @ b)


def test_what_has_no_border_is_one_product(gpu: Any) -> None:
    for shape in [
        ((64, 9), (9, 128)),
        ((81, 9), (9, 63)),
        ((9, 70), (70, 9)),
        ((3, 65, 9), (3, 9, 65)),
        ((65,), (65, 65)),
    ]:
        tensors = [fake.Tensor.of(gpu, whole(*each)) for each in shape]
        assert not tw.plan(*tensors, precision="ieee").pieces, shape
    tensors = [fake.Tensor.of(gpu, whole(*each)) for each in ((65, 65), (65, 65))]
    assert tw.plan(*tensors, precision="ieee").pieces
    assert not tw.plan(*tensors, precision="ieee", alpha=2).pieces, "an epilogue needs all of C"
    over = fake.Tensor.of(gpu, whole(65, 65))
    assert not tw.plan(over, tensors[1], out=over, precision="ieee").pieces, "C is an operand"


def test_pieces_are_taken_where_they_are_predicted_to_be_faster(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_GAINS", 0.98)
    gpu.sms, found = 132, {}
    for n in (4096, 4097):
        a, b = GpuArray(0, (n, n), (n, 1), "float32", 0), GpuArray(0, (n, n), (n, 1), "float32", 0)
        found[n] = matmul._plan(matmul._key(a, b, None, True, "ieee", None))
    assert not found[4096].pieces
    assert found[4097].pieces
    assert found[4097].predicted < 0.98 * matmul._planned(a, b, None, "ieee", None, views=True).predicted
    borders = dict(found[4097].rows())["borders"]
    assert "4097×1 by cuda/slices_fma" in borders
    assert "one kernel for all of C" in borders


def test_the_parts_of_c_cover_it_once() -> None:
    for m, n in itertools.product((64, 65, 80, 81, 144), repeat=2):
        rows, columns = choose._inner(m), choose._inner(n)
        count = np.zeros((m, n), int)
        for (top, bottom), (left, right) in choose._border_parts(rows, columns, m, n):
            count[top:bottom, left:right] += 1
        assert (count == 1).all(), (m, n)
