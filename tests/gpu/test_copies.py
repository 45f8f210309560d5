"""Copies of matrices on a GPU, executed by the microscope: any layout, address, batch and type."""

from __future__ import annotations

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from tilewright.gpu.arrays.copies import MatrixCopy, copy_steps
from tilewright.gpu.arrays.layouts import Boxes
from tilewright.gpu.runtime.layout import Matrix
from tilewright.gpu.runtime.steps import WORKSPACE, A, B, BufferPlace, C, load
from tilewright.kernels.catalog import cuda_engine

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Of tables of several axes the default run takes a case for each value.
pytestmark = pytest.mark.each_value

BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = fake.Gpu(1 << 23)
    found.sms = 4
    fake.install(monkeypatch, [found])
    fake.engine_alone(monkeypatch, cuda_engine()["cuda/hopper"])
    return found


def copy_matrices(gpu: Any, copies: list[MatrixCopy], *addresses: int) -> None:
    """Make copies of matrices at the first addresses to the others."""
    given = list(zip(copies, (BufferPlace(A), BufferPlace(B)), (BufferPlace(C), BufferPlace(WORKSPACE)), strict=False))
    a, b, c, workspace = addresses if len(copies) == 2 else (addresses[0], 0, addresses[1], 0)
    load(gpu, copy_steps(given, gpu.card.memory_ratio))(a, b, c, workspace, 7)


def numpy_dtype(name: str) -> np.dtype:
    return BF16 if name == "bfloat16" else np.dtype(name)


def strides(how: str, rows: int, columns: int, gap: int) -> tuple[int, int]:
    """Of rows that follow each other with a gap, of columns, or of elements that are three apart."""
    return {"rows": (columns + gap, 1), "columns": (1, rows + gap), "apart": (3 * (columns + gap), 3)}[how]


def seen(elements: np.ndarray, batch: int, step: int, rows: int, columns: int, laid: tuple[int, int]) -> np.ndarray:
    """The matrices that lie in the elements, as a view."""
    return np.lib.stride_tricks.as_strided(
        elements, (batch, rows, columns), [each * elements.itemsize for each in (step, *laid)]
    )


def values(dtype: str, count: int) -> np.ndarray:
    return (np.random.default_rng(count).standard_normal(count) * 50).astype(numpy_dtype(dtype))


TYPES = [
    ("bfloat16", "bfloat16"), ("float32", "bfloat16"), ("int8", "int8"), ("float16", "float32"), ("float64", "float16"),
    ("float64", "float64"), ("complex64", "complex128"), ("float32", "complex64"), ("complex128", "complex128"),
]  # fmt: skip


@pytest.mark.slow_cases("int8", "False")
@pytest.mark.parametrize("types", TYPES, ids="-".join)
@pytest.mark.parametrize(
    "layouts", [*itertools.product(("rows", "columns", "apart"), ("rows", "columns"))], ids="-".join
)
@pytest.mark.parametrize("own", [True, False])
def test_all_layouts_and_types(gpu: Any, layouts: tuple[str, str], types: tuple[str, str], own: bool) -> None:
    """Into workspace whose rows begin at lines, and into memory of the caller, of which nothing else is written."""
    source, target = map(numpy_dtype, types)
    for (rows, columns), gap, offset in [((37, 70), 3, 1), ((5, 7), 0, 3)]:
        laid = strides(layouts[0], rows, columns, gap)
        step = (rows - 1) * laid[0] + (columns - 1) * laid[1] + 6
        inner, outer = (columns, rows) if layouts[1] == "rows" else (rows, columns)
        row = -(-inner * target.itemsize // 128) * 128 // target.itemsize if own else inner + 1
        to = (row, 1) if layouts[1] == "rows" else (1, row)
        next_to = row * outer + (0 if own else 3)
        x = values(types[0], offset + 2 * step - 5)  # nothing follows the last element
        memory, result = gpu.put(x), gpu.allocate(2 * next_to * target.itemsize)
        aligned = math.gcd(16, offset * source.itemsize)
        copy = MatrixCopy(
            Matrix(rows, columns, *laid, types[0], aligned),
            Matrix(rows, columns, *to, types[1]),
            own,
            ((2, step, next_to),),
        )
        before = gpu.bytes_of(result).copy()
        copy_matrices(gpu, [copy], memory.pointer + offset * source.itemsize, result.pointer)
        expected = seen(x[offset:], 2, step, rows, columns, laid).astype(target)
        got = gpu.get(result, target, -1)
        np.testing.assert_array_equal(seen(got, 2, next_to, rows, columns, to), expected)
        if not own:
            seen(before.view(target), 2, next_to, rows, columns, to)[...] = expected
            np.testing.assert_array_equal(got.view(np.uint8), before)
        memory.close()
        result.close()


@pytest.mark.parametrize("offset", range(8))
@pytest.mark.parametrize(("rows", "columns", "step"), [(1, 1, 1), (3, 1, 2), (5, 7, 7), (4, 130, 131), (2, 4500, 4501)])
def test_rows_are_copied_from_any_address(gpu: Any, rows: int, columns: int, step: int, offset: int) -> None:
    x = values("float16", offset + (rows - 1) * step + columns)
    memory, to = gpu.put(x), -(-columns // 64) * 64
    target = gpu.allocate(rows * to * 2)
    source = Matrix(rows, columns, step, 1, "float16", math.gcd(16, 2 * offset))
    copy = MatrixCopy(source, Matrix(rows, columns, to, 1, "float16"), True)
    copy_matrices(gpu, [copy], memory.pointer + 2 * offset, target.pointer)
    got = gpu.get(target, np.float16, (rows, to))[:, :columns]
    np.testing.assert_array_equal(got, seen(x[offset:], 1, 0, rows, columns, (step, 1))[0])


@pytest.mark.slow_cases("float16")
@pytest.mark.parametrize("source", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("target", ["float32", "float64", "bfloat16", "float16"])
def test_conversions_round_once(gpu: Any, source: str, target: str) -> None:
    rng = np.random.default_rng(5)
    x = (rng.standard_normal((70, 33)) * 2.0 ** rng.integers(-30, 30, (70, 33))).astype(np.float64)
    x[0, :6] = np.nan, np.inf, -np.inf, 0.0, -0.0, 1 + 2.0**-9
    x[1, :3] = 1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-11 + 2.0**-40, 65520.0
    with np.errstate(all="ignore"):
        given = x.astype(numpy_dtype(source))
        expected = given.astype(numpy_dtype(target))
    memory, to = gpu.put(given), gpu.allocate(expected.nbytes)
    copy = MatrixCopy(Matrix(70, 33, 33, 1, source), Matrix(70, 33, 1, 70, target))
    copy_matrices(gpu, [copy], memory.pointer, to.pointer)
    got = gpu.get(to, expected.dtype, (33, 70)).T
    with np.errstate(all="ignore"):
        same = (got == expected) | (np.isnan(got.astype(float)) & np.isnan(expected.astype(float)))
    if (source, target) == ("float64", "bfloat16"):  # ml_dtypes rounds it twice
        twice = given.astype(np.float32).astype(BF16) == expected
        with np.errstate(all="ignore"):
            same |= twice & (abs(got.astype(float) - given) <= abs(expected.astype(float) - given))
    assert same.all()


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_conjugates(gpu: Any, dtype: str) -> None:
    x = values(dtype, 35) + 1j * values(dtype, 35).real.astype(np.float32)
    memory, to = gpu.put(x), gpu.allocate(x.nbytes)
    copy = MatrixCopy(Matrix(5, 7, 7, 1, dtype), Matrix(5, 7, 1, 5, dtype), conjugate=True)
    copy_matrices(gpu, [copy], memory.pointer, to.pointer)
    np.testing.assert_array_equal(gpu.get(to, dtype, (7, 5)).T, x.reshape(5, 7).conj())


@pytest.mark.slow
def test_two_copies_are_one_launch(gpu: Any) -> None:
    """Of different types and layouts, and of a batch whose axes cannot be merged."""
    x, y = values("float32", 2 * 3 * 40 * 9).reshape(2, 3, 40, 9), values("float16", 600).reshape(20, 30)
    first, second, to, other = gpu.put(x), gpu.put(y), gpu.allocate(2 * 2 * 40 * 16 * 2), gpu.allocate(30 * 24 * 4)
    copies = [
        MatrixCopy(
            Matrix(40, 9, 9, 1, "float32"), Matrix(40, 9, 16, 1, "bfloat16"), True, ((2, 1080, 1280), (2, 720, 640))
        ),
        MatrixCopy(Matrix(20, 30, 30, 1, "float16"), Matrix(20, 30, 1, 24, "float32"), True),
    ]
    copy_matrices(gpu, copies, first.pointer, second.pointer, to.pointer, other.pointer)
    assert gpu.launches == [("copy_matrices", 7)]
    np.testing.assert_array_equal(gpu.get(to, BF16, (2, 2, 40, 16))[..., :9], x[:, ::2].astype(BF16))
    np.testing.assert_array_equal(gpu.get(other, np.float32, (30, 24))[:, :20].T, y)


def test_nothing_is_copied_of_matrices_without_elements(gpu: Any) -> None:
    copy = MatrixCopy(Matrix(0, 5, 5, 1, "float32"), Matrix(0, 5, 8, 1, "float32"))
    copy_matrices(gpu, [copy], 1, 2)
    assert gpu.launches == []


# ---- in products


def launched(gpu: Any) -> list[str]:
    return [entry for entry, _ in gpu.launches]


@pytest.mark.slow_cases("((3, 20, 33), (3, 33, 17))", "((2, 3, 9, 15), (2, 3, 15, 33))")
@pytest.mark.parametrize(
    "shapes", [((3, 20, 33), (3, 33, 17)), ((2, 3, 9, 15), (2, 3, 15, 33)), ((3, 9, 15), (15, 7))], ids=str
)
def test_a_batch_is_copied_in_one_launch_and_multiplied_in_one(gpu: Any, shapes: Any) -> None:
    a, b = (np.random.default_rng(1).integers(-4, 5, shape).astype(BF16) for shape in shapes)
    x, y = fake.Tensor.of(gpu, a), fake.Tensor.of(gpu, b)
    c = tw.matmul(x, y).view
    np.testing.assert_array_equal(c, (a.astype(float) @ b.astype(float)).astype(BF16))
    assert launched(gpu) == ["copy_matrices", "hopper"]


@pytest.mark.slow
def test_axes_of_a_batch_that_no_stride_describes(gpu: Any) -> None:
    """A launch for each index of the shorter axis; what several products share is copied once."""
    a, b = (np.random.default_rng(1).integers(-4, 5, shape).astype(BF16) for shape in ((2, 1, 9, 15), (5, 15, 7)))
    x, y = fake.Tensor.of(gpu, a), fake.Tensor.of(gpu, b)
    plan = tw.plan(x, y)
    c = tw.matmul(x, y).view
    np.testing.assert_array_equal(c, (a.astype(float) @ b.astype(float)).astype(BF16))
    assert launched(gpu) == ["copy_matrices", "hopper", "hopper"]
    assert "540 bytes" in plan.copies[0]
    assert "1,050 bytes" in plan.copies[1]


# ---- how copies lie for kernels with boxes


@pytest.mark.parametrize("name", ["cuda/hopper", "cuda/hopper_promoted", "cuda/dmma_boxes"])
@pytest.mark.parametrize("along_k", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (3, 5)], ids=str)
def test_a_kernel_finds_every_element_of_a_copy(name: str, along_k: bool, shape: tuple[int, int]) -> None:
    """Also of single rows and columns, which lie both ways: what the copy writes is where the tensor map says."""
    kernel = cuda_engine()[name]
    layouts, (rows, columns) = Boxes(kernel, along_k=along_k), shape
    dtypes = {"cuda/hopper": ["bfloat16", "int8", "float32"], "cuda/dmma_boxes": ["float64"]}.get(name, ["float8_e5m2"])
    for dtype, steps, operand in itertools.product(dtypes, [(7, 1), (1, 7), (14, 2), (1, 1)], (0, 1)):
        made = layouts.copy(operand, Matrix(rows, columns, *steps, dtype), dtype)
        laid = layouts.given(operand, made)
        for i, j in itertools.product(range(rows), range(columns)):
            by_map = j * laid.step + i if laid.down else i * laid.step + j
            assert by_map == i * made.row + j * made.column, (dtype, steps, operand)
