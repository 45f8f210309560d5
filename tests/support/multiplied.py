"""Products by steps on a GPU that a test simulates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.gpu.runtime.engine_product import EngineProduct, boxed_step, strided_step
from tilewright.gpu.runtime.layout import Matrix
from tilewright.gpu.runtime.steps import BIAS, BufferPlace, C, load
from tilewright.kernels.cuda_kernel import CudaKernel


def by_rows(rows: int, columns: int, dtype: str, step: int = 0, following: int = 0) -> Matrix:
    """A matrix whose rows follow each other, ``step`` elements apart if there is a gap."""
    return Matrix(rows, columns, step or columns, 1, dtype, next=following)


def by_columns(rows: int, columns: int, dtype: str, step: int = 0) -> Matrix:
    """A matrix whose columns follow each other."""
    return Matrix(rows, columns, 1, step or rows, dtype, down=True)


def multiply(
    gpu: Any,
    kernel: CudaKernel,
    product: EngineProduct,
    params: Mapping[str, int],
    addresses: Sequence[int],
    arrays: Sequence[int] = (),
) -> None:
    """Launch a product, of A, B and C at these addresses, and of an epilogue's arrays, 0 for absent ones."""
    make = boxed_step if kernel.boxes else strided_step
    places = [BufferPlace(BIAS + i) if at else BufferPlace(C) for i, at in enumerate(arrays)]
    load(gpu, [make(gpu.sms, kernel, params, product, places)])(*addresses, 0, 0, *arrays)
