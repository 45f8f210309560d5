"""Products by the engine's kernels of pointers and strides, on a simulated GPU, compared with NumPy's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from support.multiplied import multiply
from tilewright.gpu.runtime.engine_product import EngineProduct
from tilewright.gpu.runtime.layout import Matrix
from tilewright.kernels.catalog import cuda_engine
from tilewright.product.problem import itemsize_of


def whole(*shape: int, dtype: str) -> np.ndarray:
    """Small whole numbers, whose sums are exact."""
    rng = np.random.default_rng(sum(shape))
    values = rng.integers(-4, 5, shape)
    return (values + 1j * rng.integers(-4, 5, shape) if "complex" in dtype else values).astype(dtype)


def stored(values: np.ndarray, down: bool, gap: int, dtype: str) -> tuple[np.ndarray, Matrix]:
    """Matrices of a batch in memory by rows, or ``down`` by columns, with a gap after each of these."""
    lines = values.swapaxes(-1, -2) if down else values
    memory = np.full((*lines.shape[:-1], lines.shape[-1] + gap), 99, dtype)
    memory[..., : lines.shape[-1]] = lines
    step = memory.shape[-1]
    following = memory.shape[-2] * step if values.ndim > 2 else 0
    alignment = int(np.gcd(16, following * itemsize_of(dtype)))
    return memory, Matrix(*values.shape[-2:], *((1, step) if down else (step, 1)), dtype, alignment, following, down)


def check(
    gpu: Any, name: str, shape: tuple[int, int, int], params: Mapping[str, int], *, batch: int = 1, parts: int = 1,
    down: tuple[bool, bool] = (False, False), gaps: tuple[int, int, int] = (0, 0, 0),
    padded: tuple[bool, bool] = (False, False),
) -> None:  # fmt: skip
    """Compare a product by the kernel of that name with NumPy's, and see that nothing around C is written."""
    kernel, (m, n, k) = cuda_engine()[name], shape
    dtype = kernel.dtypes[0]
    a, b = whole(batch, m, k, dtype=dtype), whole(batch, k, n, dtype=dtype)
    (of_a, laid_a), (of_b, laid_b) = stored(a, down[0], gaps[0], dtype), stored(b, down[1], gaps[1], dtype)
    of_c, laid_c = stored(np.full((batch * parts, m, n), 7, dtype), False, gaps[2], dtype)
    steps = -(-k // kernel.checked(params)["BK"])
    memory = [gpu.put(x) for x in (of_a, of_b, of_c)]
    cut = parts, -(-steps // parts)
    what = EngineProduct(dtype, laid_a, laid_b, laid_c, batch, *cut, padded)
    multiply(gpu, kernel, what, params, [x.pointer for x in memory])
    got = gpu.get(memory[2], dtype, of_c.shape)
    for each in memory:
        each.close()
    np.testing.assert_array_equal(got[..., :n].reshape(batch, parts, m, n).sum(1), a @ b)
    np.testing.assert_array_equal(got[..., n:], of_c[..., n:])
