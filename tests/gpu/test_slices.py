"""The engine's kernels for few rows, a long k and tiny products, which the microscope executes on a simulated GPU."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from support import simulated_libraries as fake
from support.multiplied import by_rows, multiply
from tilewright.gpu.planning.ways import sums_dtype
from tilewright.gpu.runtime.engine_product import EngineProduct
from tilewright.gpu.runtime.layout import Matrix
from tilewright.kernels.catalog import cuda_engine

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Of tables of several axes the default run takes a case for each value.
pytestmark = pytest.mark.each_value

MMA, FMA, COMPLEX = "cuda/slices_mma", "cuda/slices_fma", "cuda/slices_complex"
TINY, TINY_MMA = "cuda/tiny", "cuda/tiny_mma"
CASES = [
    (MMA, "bfloat16", {"WARPS_K": 2}),
    (MMA, "float16", {"WM": 32, "WN": 32, "WARPS_K": 4}),
    (MMA, "float64", {"WN": 16, "WARPS_M": 2, "WARPS_N": 2, "WARPS_K": 2}),
    (FMA, "float32", {"TM": 8, "LM": 2, "LN": 4, "WARPS_K": 2, "BOTH": 1}),
    (FMA, "float32", {"TM": 4, "TN": 2, "LM": 2, "LN": 2, "WARPS_N": 2, "WARPS_K": 2}),
    (FMA, "float64", {"TM": 2, "TN": 2, "LM": 2, "LN": 4, "WARPS_K": 2, "BOTH": 1}),
    (FMA, "float64", {"TM": 1, "TN": 1, "LN": 2, "BUFFERS": 1, "WARPS_K": 2}),
    (COMPLEX, "complex64", {"TM": 8, "LM": 2, "LN": 4, "WARPS_K": 2}),
    (COMPLEX, "complex64", {"TM": 1, "TN": 1, "LM": 1, "LN": 16, "BUFFERS": 1, "WARPS_N": 2, "WARPS_K": 2}),
    (COMPLEX, "complex128", {"TM": 4, "TN": 2, "LM": 2, "LN": 2, "WARPS_K": 2}),
    (COMPLEX, "complex128", {"TM": 1, "TN": 2, "LM": 1, "LN": 8, "BUFFERS": 4, "WARPS_K": 2}),
    (TINY, "float32", {"WARPS": 2}),
    (TINY, "float64", {"TM": 2, "TN": 4, "LM": 4, "LN": 2, "WARPS": 2}),
    (TINY_MMA, "bfloat16", {"WARPS": 2}),
    (TINY_MMA, "float16", {"WM": 16, "WN": 64, "WARPS": 2}),
]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = fake.Gpu(1 << 22)
    fake.install(monkeypatch, [found])
    return found


def stored(values: np.ndarray, down: bool, gap: int) -> tuple[np.ndarray, Matrix]:
    """Matrices of a batch in memory by rows, or ``down`` by columns, after each of which NaN fill a gap."""
    lines = values.swapaxes(-1, -2) if down else values
    memory = np.full((*lines.shape[:-1], lines.shape[-1] + gap), np.nan, values.dtype)
    memory[..., : lines.shape[-1]] = lines
    step = memory.shape[-1]
    following = memory.shape[-2] * step
    alignment = int(np.gcd(16, following * values.itemsize))
    strides = (1, step) if down else (step, 1)
    return memory, Matrix(*values.shape[-2:], *strides, values.dtype.name, alignment, following, down)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], kind: np.dtype[Any]) -> np.ndarray:
    """Whole numbers, and complex ones of two of them, whose products and sums are exact."""
    real = rng.integers(-4, 5, shape)
    return (real + 1j * rng.integers(-4, 5, shape) if kind.kind == "c" else real).astype(kind)


def check(
    gpu: Any, name: str, dtype: str, params: Mapping[str, int], shape: tuple[int, int, int], *,
    batch: int = 1, parts: int = 1,
    down: tuple[bool, bool, bool] = (False, False, False), gaps: tuple[int, int, int] = (0, 0, 0),
) -> None:  # fmt: skip
    """Compare a product by the kernel with NumPy's, and see that nothing around C is written."""
    m, n, k = shape
    kind = np.dtype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
    rng = np.random.default_rng(sum(shape))
    a, b = (numbers(rng, sides, kind) for sides in ((batch, m, k), (batch, k, n)))
    out = dtype if parts == 1 else sums_dtype(dtype)
    empty = np.zeros((batch * parts, m, n), kind if out == dtype else out)
    operands = [stored(x, *each) for x, *each in zip((a, b, empty), down, gaps, strict=True)]
    memory = [gpu.put(x.view(np.uint8)) for x, _ in operands]
    kernel = cuda_engine()[name]
    cut = (parts, -(-k // (kernel.step_of_k(kind.itemsize, kernel.checked(params)) * parts))) if parts > 1 else ()
    what = EngineProduct(dtype, *(laid for _, laid in operands), batch, *cut)
    multiply(gpu, kernel, what, params, [x.pointer for x in memory])
    got = gpu.get(memory[2], empty.dtype, operands[2][0].shape)
    for each in memory:
        each.close()
    c = got[..., : m if down[2] else n]
    wide = np.result_type(np.float64, kind) if dtype.startswith("complex") else np.float64
    c = (c.swapaxes(-1, -2) if down[2] else c).reshape(batch, parts, m, n).astype(wide).sum(1)
    np.testing.assert_array_equal(c, (a.astype(wide) @ b.astype(wide)).astype(empty.dtype).astype(wide))
    assert np.isnan(got[..., m if down[2] else n :].astype(wide)).all()


@pytest.mark.slow_cases("float32", "float16", "cuda/tiny", "cuda/slices_complex-complex64-0-(False, False)")
@pytest.mark.parametrize("down", [*itertools.product((False, True), repeat=2)], ids=str)
@pytest.mark.parametrize(("name", "dtype", "params"), CASES, ids=lambda p: p if isinstance(p, str) else "")
def test_any_layout(gpu: Any, name: str, dtype: str, params: dict[str, int], down: tuple[bool, bool]) -> None:
    if down[0] == down[1]:
        check(gpu, name, dtype, params, (20, 12, 75), down=(*down, False), gaps=(4, 4, 0))
    else:
        check(gpu, name, dtype, params, (17, 35, 21), down=(*down, True), gaps=(5, 2, 1))


@pytest.mark.slow_cases("float64", "float32", "float16", "0")
@pytest.mark.parametrize(("name", "dtype", "params"), CASES, ids=lambda p: p if isinstance(p, str) else "")
def test_batches_and_parts_of_k(gpu: Any, name: str, dtype: str, params: dict[str, int]) -> None:
    check(gpu, name, dtype, params, (9, 20, 17), batch=3, gaps=(1, 0, 0))
    if name in (TINY, TINY_MMA):
        check(gpu, name, dtype, params, (8, 8, 8), batch=40)
    else:
        check(gpu, name, dtype, params, (4, 9, 290), batch=2, parts=2, down=(True, False, False))


@pytest.mark.slow
@pytest.mark.further
@pytest.mark.parametrize(("name", "dtype", "params"), [
    (name, dtype, params)
    for name, dtype in (
        (MMA, "bfloat16"), (FMA, "float32"), (COMPLEX, "complex64"), (TINY, "float32"), (TINY_MMA, "float16"),
    )
    for params in ({}, *(preset.params for preset in cuda_engine()[name].presets))
], ids=lambda p: p if isinstance(p, str) else "-".join(f"{key}{p[key]}" for key in p) or "default")  # fmt: skip
def test_every_tile(gpu: Any, name: str, dtype: str, params: dict[str, int]) -> None:
    width, height = (side(m=1, n=1, k=1, **cuda_engine()[name].checked(params)) for side in cuda_engine()[name].tile)
    check(gpu, name, dtype, params, (height // 2 + 4, width // 2 + 4, 100))


@pytest.mark.slow
def test_a_missing_barrier_is_found(gpu: Any) -> None:
    """A warp must not add sums before all warps have put theirs into shared memory."""
    kernel = cuda_engine()[FMA]
    body, header = ((kernel.path.parent / f"{name}.cuh").read_text() for name in ("slices_fma", "slices"))
    wrong = header.replace("to[i % EACH * STEP] = from[i];\n        __syncthreads();", "to[i % EACH * STEP] = from[i];")
    assert wrong != header
    body = body.replace('#include "slices.cuh"', wrong)
    source = kernel.source.replace('#include "slices_fma.cuh"', body.replace("#pragma once", ""))
    broken = replace(kernel, source=source)
    memory = [gpu.put(np.ones(size, np.float32)) for size in (16 * 64, 64 * 16, 16 * 16)]
    product = EngineProduct("float32", *(by_rows(*shape, "float32") for shape in ((16, 64), (64, 16), (16, 16))))
    with pytest.raises(AssertionError, match="nothing orders"):
        multiply(gpu, broken, product, {"LN": 4, "WARPS_K": 2}, [x.pointer for x in memory])
