"""Products by kernels of pointers and strides: what they are given, whatever the layout, batch and parts of k."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.layouts import laid
from tilewright.errors import UsageError
from tilewright.host.sources import PACKAGE
from tilewright.kernels.catalog import cuda_engine, load_cuda_file

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Of tables of several axes the default run takes a case for each value.
pytestmark = pytest.mark.each_value

#: A thread for each element of C. It checks what its macros say of the operands, and stops the GPU where that is wrong.
KERNEL = """\
/*
idea = "one thread, one element"
dtypes = ["float32", "float64"]
block = [32]
grid = ["cdiv(m * n, 32)"]
step = "4"
suits = "m * n * batch < 100000"

[strides]
a = "either"
b = "any"
c = "any"

[time]
seconds = "1e-7 * part * cdiv(blocks, sms)"
*/
#include "ENGINE/strided.cuh"
#if TYPE == FLOAT64
typedef double T;
#else
typedef float T;
#endif

extern "C" __global__ void plain(const T* a, const T* b, T* c, const __grid_constant__ Call call)
{
    const int each = (call.m * call.n - 1) / 32 + 1, z = blockIdx.x / each, i = blockIdx.x % each * 32 + threadIdx.x;
    if (i >= call.m * call.n) return;
    const int row = i / call.n, col = i % call.n, product = z / call.parts, part = z % call.parts;
    if ((A_DOWN ? call.row_a : call.column_a) != 1 || (C_VECTOR == 16 && (call.next_c * sizeof(T)) % 16)) __trap();
    const long long first = (long long)part * call.part_steps * 4;
    const long long stop = part + 1 == call.parts ? call.k : first + call.part_steps * 4ll;
    const T* x = a + product * call.next_a + row * call.row_a;
    const T* y = b + product * call.next_b + col * call.column_b;
    T sum = 0;
    for (long long p = first; p < stop; p++) sum += x[p * call.column_a] * y[p * call.row_b];
    c[z * call.next_c + row * call.row_c + col * call.column_c] = sum;
}
"""


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    path = tmp_path / "plain.cu"
    path.write_text(KERNEL.replace("ENGINE", str(PACKAGE / "gpu/kernels")))
    plain = load_cuda_file(path)
    found = fake.Gpu(1 << 22)
    found.sms = 8
    fake.install(monkeypatch, [found])
    fake.engine_alone(monkeypatch, plain)
    return found


def whole(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layouts", [*itertools.product(("rows", "columns", "neither"), repeat=2)], ids="-".join)
def test_any_layout_is_read_as_it_lies(gpu: Any, layouts: tuple[str, str], dtype: str) -> None:
    a, b = whole(2, 13, 6, dtype=dtype), whole(2, 6, 11, dtype=dtype)
    x, y = laid(fake.Tensor, gpu, a, layouts[0]), laid(fake.Tensor, gpu, b, layouts[1])
    np.testing.assert_array_equal(tw.matmul(x, y).view, a @ b)
    # Only where A and also Bᵀ lie in neither way, one of them is copied for the kernel.
    copies = ["copy_matrices"] if layouts == ("neither", "neither") else []
    assert [entry for entry, _ in gpu.launches] == [*copies, "plain"]


@pytest.mark.parametrize("shapes", [
    ((7,), (7, 9)), ((5, 8), (8,)), ((3,), (3,)), ((4, 1, 5, 6), (3, 6, 2)), ((4, 5, 6), (6, 2)), ((5, 0), (0, 4)),
    ((0, 4), (4, 5)), ((1, 8), (8, 1)), ((0, 5, 3), (3, 4)),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_shapes_are_those_of_matmul(gpu: Any, shapes: Any, layout: str) -> None:
    a, b = whole(*shapes[0]), whole(*shapes[1])
    layout = layout if min(map(len, shapes)) > 1 else "rows"
    np.testing.assert_array_equal(
        tw.matmul(laid(fake.Tensor, gpu, a, layout), laid(fake.Tensor, gpu, b, layout)).view, a @ b
    )


@pytest.mark.slow_cases("()")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
def test_parts_of_k_are_added_in_the_dtype_of_the_sums(gpu: Any, dtype: str, batch: tuple[int, ...]) -> None:
    gpu.sms = 132
    a, b = whole(*batch, 3, 501, dtype=dtype), whole(*batch, 501, 5, dtype=dtype)
    x, y = laid(fake.Tensor, gpu, a, "rows"), laid(fake.Tensor, gpu, b, "columns")
    plan = tw.plan(x, y)
    assert plan.parts > 1
    np.testing.assert_array_equal(tw.matmul(x, y).view, a @ b)
    assert [entry for entry, _ in gpu.launches] == ["plain", "add_single_parts"]
    out = laid(fake.Tensor, gpu, np.zeros((*batch, 3, 5), dtype), "neither")
    np.testing.assert_array_equal(tw.matmul(x, y, out=out).view, a @ b)
    assert f"whose {dtype} sums" in str(plan)


@pytest.mark.parametrize(
    "shape", [(1, 5, 7), (6, 1, 7), (6, 5, 1), (1, 1, 7), (6, 1, 1), (1, 5, 1), (1, 1, 1)], ids=str
)
@pytest.mark.parametrize("layouts", [*itertools.product(("rows", "columns", "neither"), repeat=2)], ids="-".join)
def test_single_rows_and_columns_in_any_layout(gpu: Any, shape: tuple[int, int, int], layouts: tuple[str, str]) -> None:
    m, k, n = shape
    a, b = whole(m, k), whole(k, n)
    np.testing.assert_array_equal(
        tw.matmul(laid(fake.Tensor, gpu, a, layouts[0]), laid(fake.Tensor, gpu, b, layouts[1])).view, a @ b
    )


def test_a_larger_product_is_left_to_the_rungs(gpu: Any) -> None:
    x, y = laid(fake.Tensor, gpu, whole(1000, 8), "rows"), laid(fake.Tensor, gpu, whole(8, 1000), "rows")
    assert tw.plan(x, y).kernel.name == "cuda/register_banks"


def test_tiles_of_threads_must_fill_those_of_warps() -> None:
    with pytest.raises(UsageError, match="WN % TN == 0 must hold"):
        cuda_engine()["cuda/simt"].checked({"WM": 48, "WN": 64, "BM": 96, "TM": 8, "TN": 12})


def test_out_may_lie_in_any_way(gpu: Any) -> None:
    a, b = whole(6, 9), whole(9, 8)
    out = laid(fake.Tensor, gpu, np.zeros((6, 8), np.float32), "neither")
    tw.matmul(laid(fake.Tensor, gpu, a, "rows"), laid(fake.Tensor, gpu, b, "rows"), out=out)
    np.testing.assert_array_equal(out.view, a @ b)
