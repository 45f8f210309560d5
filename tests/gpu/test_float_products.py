"""The engine's kernels for float32, float64 and complex numbers, which the microscope executes on a simulated GPU."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.strided_products import check, stored, whole
from tilewright.errors import OperandError
from tilewright.gpu.arrays.copies import sum_step
from tilewright.gpu.runtime.layout import Matrix
from tilewright.gpu.runtime.steps import A, BufferPlace, C, load
from tilewright.kernels.catalog import cuda_engine

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Of tables of several axes the default run takes a case for each value.
pytestmark = pytest.mark.each_value

KERNELS = {
    "float32": "cuda/simt",
    "float64": "cuda/dmma",
    "complex64": "cuda/simt_complex",
    "complex128": "cuda/dmma_complex",
}
#: Small tiles, which take little time in the microscope.
SMALL = {
    "float32": {"BM": 32, "BN": 64, "BK": 8, "WM": 32, "WN": 16, "TM": 4, "TN": 4, "STAGES": 3},
    "complex64": {"BM": 32, "BN": 32, "BK": 8, "WM": 32, "WN": 16, "TM": 4, "TN": 4, "STAGES": 3},
    "float64": {"BM": 32, "BN": 32, "WM": 16, "WN": 16, "STAGES": 2},
    "complex128": {"BM": 32, "BN": 32, "WM": 16, "WN": 16, "STAGES": 2},
}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = fake.Gpu(1 << 23)
    fake.install(monkeypatch, [found])
    return found


@pytest.mark.slow_cases("(2, 0, 1)")
@pytest.mark.parametrize(("shape", "down", "gaps"), [
    ((32, 63, 19), (False, False), (0, 1, 0)), ((65, 7, 24), (True, False), (3, 1, 2)),
    ((30, 64, 9), (True, True), (2, 0, 1)),
], ids=str)  # fmt: skip
def test_rows_that_are_padded_are_read_in_whole_vectors(gpu: Any, shape: Any, down: Any, gaps: Any) -> None:
    check(gpu, "cuda/simt", shape, SMALL["float32"], down=down, gaps=gaps, padded=(True, True))


@pytest.mark.slow
@pytest.mark.parametrize("down", [*itertools.product((False, True), repeat=2)], ids=str)
@pytest.mark.parametrize("dtype", KERNELS)
def test_any_layout(gpu: Any, dtype: str, down: tuple[bool, bool]) -> None:
    for shape, gaps in (
        ((36, 68, 28), (0, 0, 0)),
        ((33, 35, 21), (0, 0, 0)),
        ((35, 33, 21), (1, 3, 1)),
        ((6, 7, 3), (2, 1, 1)),
    ):
        check(gpu, KERNELS[dtype], shape, SMALL[dtype], down=down, gaps=gaps)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", KERNELS)
def test_batches_and_parts_of_k(gpu: Any, dtype: str) -> None:
    check(gpu, KERNELS[dtype], (20, 36, 100), SMALL[dtype], batch=3, parts=3)
    check(gpu, KERNELS[dtype], (33, 31, 131), SMALL[dtype], batch=2, parts=4, down=(True, True))


@pytest.mark.slow
@pytest.mark.further
@pytest.mark.parametrize(
    ("dtype", "params"),
    [
        (dtype, params)
        for dtype, name in KERNELS.items()
        for params in ({}, *(p.params for p in cuda_engine()[name].presets))
    ],
    ids=lambda p: p if isinstance(p, str) else "-".join(f"{name}{value}" for name, value in p.items()) or "default",
)
def test_every_tile(gpu: Any, dtype: str, params: dict[str, int]) -> None:
    chosen = cuda_engine()[KERNELS[dtype]].checked(params)
    shape = chosen["BM"] + 4, chosen["BN"] + 4, 2 * chosen["BK"] * chosen["STAGES"] + 4
    check(gpu, KERNELS[dtype], shape, params)
    check(gpu, KERNELS[dtype], shape, params, down=(True, True))


@pytest.mark.slow
def test_columns_of_a_large_b_are_copied_into_rows(gpu: Any) -> None:
    check(gpu, "cuda/simt_rows", (132, 260, 36), {})
    gpu.heap, gpu.sms = np.zeros(1 << 26, np.uint8), 132
    x, y = (fake.Tensor.of(gpu, np.zeros((4096, 1024), np.float32)) for _ in range(2))
    plan = tw.plan(x, y.transpose(0, 1), precision="ieee")
    assert plan.kernel.name == "cuda/simt_rows"
    assert [copy[0] for copy in plan.copies] == ["b"]
    small = fake.Tensor.of(gpu, np.zeros((200, 1024), np.float32))
    assert tw.plan(x, small.transpose(0, 1)).kernel.name == "cuda/simt"


# ---- complex arrays


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_arrays(gpu: Any, dtype: str) -> None:
    a, b = whole(2, 3, 1000, dtype=dtype), whole(2, 1000, 5, dtype=dtype)
    x, y = fake.Tensor.of(gpu, a), fake.Tensor.of(gpu, b)
    gpu.sms = 132
    assert tw.plan(x, y).parts > 1
    np.testing.assert_array_equal(tw.matmul(x, y).view, a @ b)
    assert [entry for entry, _ in gpu.launches if entry.startswith("add_")]
    out = fake.Tensor.of(gpu, whole(2, 5, 3, dtype=dtype)).transpose(1, 2)
    assert tw.matmul(x, y, out=out) is out  # its columns follow each other, and so do no rows of the sums
    np.testing.assert_array_equal(out.view, a @ b)


@pytest.mark.slow
def test_real_times_complex(gpu: Any) -> None:
    gpu.executes = True
    a, b = whole(9, 12, dtype="float32"), whole(12, 10, dtype="complex64")
    c = tw.matmul(fake.Tensor.of(gpu, a), fake.Tensor.of(gpu, b)).view
    assert c.dtype == np.complex64
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.slow
def test_conjugates_that_were_not_computed(gpu: Any) -> None:
    """As PyTorch's: the memory has the values before conjugation."""
    a, b = whole(9, 12, dtype="complex64"), whole(12, 10, dtype="complex64")
    x, y = fake.Tensor.of(gpu, a), fake.Tensor.of(gpu, b)
    y.conjugated = True
    np.testing.assert_array_equal(tw.matmul(x, y).view, a @ b.conj())
    out = fake.Tensor.of(gpu, np.zeros((9, 10), np.complex64))
    out.conjugated = True
    with pytest.raises(OperandError, match="conjugated"):
        tw.matmul(x, fake.Tensor.of(gpu, b), out=out)


# ---- sums of parts


def add(gpu: Any, parts: int, batch: int, dtype: str, target: Matrix, sums: int, c: int) -> None:
    load(gpu, [sum_step(gpu.sms, parts, batch, dtype, target, (BufferPlace(A), BufferPlace(C)))])(sums, 0, c, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("gap", [0, 3])
@pytest.mark.parametrize("parts", [2, 3, 13])
@pytest.mark.parametrize(("n", "sms"), [(61, 4), (64, 1), (64, 132)])
def test_parts_are_added_in_the_same_order(gpu: Any, dtype: str, gap: int, parts: int, n: int, sms: int) -> None:
    """Single numbers, and 16 bytes at once, several times where there are many; into rows, and into columns."""
    batch, m, gpu.sms = 2, 37, sms
    sums = np.random.default_rng(5).uniform(-1, 1, (batch, parts, m, n)).astype(dtype)
    of_c, laid = stored(np.full((batch, m, n), 7, dtype), False, gap, dtype)
    memory = [gpu.put(x) for x in (sums, of_c)]
    add(gpu, parts, batch, dtype, laid, memory[0].pointer, memory[1].pointer)
    got = gpu.get(memory[1], dtype, of_c.shape)
    eighths = [sums[:, i * parts // 8 : (i + 1) * parts // 8] for i in range(8)]
    expected = sum(sum(each[:, i] for i in range(each.shape[1])) for each in eighths if each.size)
    np.testing.assert_array_equal(got[..., :n], expected)
    np.testing.assert_array_equal(got[..., n:], of_c[..., n:])
    columns = gpu.put(np.zeros((batch, n, m), dtype))
    add(gpu, parts, batch, dtype, Matrix(m, n, 1, m, dtype, next=m * n), memory[0].pointer, columns.pointer)
    np.testing.assert_array_equal(gpu.get(columns, dtype, (batch, n, m)), expected.swapaxes(1, 2))
    of_many = "many_" * (sms == 1)
    entries = [f"add_{of_many}parts", f"add_{of_many}parts_across"] if n == 64 else ["add_single_parts"] * 2
    assert [entry for entry, _ in gpu.launches] == entries
