"""NumPy's matmul, for dtypes that no kernel multiplies. NumPy's matmul is not in the catalog of kernels, because it is
neither a kernel nor a reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import OperandError
from ...kernels import NUMERIC, kernel
from ...product.operands import NUMPY_ONLY_DTYPES


@kernel(
    idea="NumPy's own matmul.",
    row="",
    name="numpy",
    dtypes=(*NUMERIC, "float16", *NUMPY_ONLY_DTYPES),
    strided=True,
    compiled=False,
)
def numpy_product(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """Multiply matrices, or batches of matrices, by NumPy."""
    try:
        with np.errstate(all="ignore"):  # as every kernel: NaN and infinity propagate without a warning
            np.matmul(a, b, out=c)
    except TypeError as error:
        what = "a and b hold Python objects that cannot be multiplied and added up"
        raise OperandError(f"{what}: {error}; convert them, as by a.astype('float64')") from error


def product_by_numpy(a: np.ndarray, b: np.ndarray, c: np.ndarray, *_: Any) -> np.ndarray:
    """Multiply matrices or a whole batch by NumPy in one call, and return ``c``."""
    numpy_product.function(a, b, c)
    return c
