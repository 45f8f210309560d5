"""NumPy's own product, for what no kernel multiplies. It is not in the catalog: neither a kernel of ours nor a reference."""

from __future__ import annotations

import numpy as np

from ..kernels import NUMERIC, kernel
from ..operands import NUMPY_DTYPES


@kernel(
    idea="NumPy's own matmul.",
    row="",
    name="numpy",
    dtypes=(*NUMERIC, "float16", *NUMPY_DTYPES),
    strided=True,
    compiled=False,
)
def numpy_product(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """Of matrices, or of batches of them."""
    with np.errstate(all="ignore"):  # as every kernel: NaN and infinity propagate without a warning
        np.matmul(a, b, out=c)
