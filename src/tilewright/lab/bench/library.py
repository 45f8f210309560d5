"""The library's call as a row of the bench: what users get, compared with kernels and references."""

from __future__ import annotations

import numpy as np

from ...api.matmul import matmul
from ...host import sources
from ...host.disk import fingerprint
from ...kernels import Kernel, kernel
from ...product.operands import DTYPES


@kernel(
    idea="The library call: plan, then run what the plan says, threads as the plan says.",
    row="S1.12",
    name="tilewright/matmul",
    dtypes=DTYPES,
    shared="tiles",
    strided=True,
    compiled=False,
)
def library(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    matmul(a, b, out=c)


def _with_every_source(library_kernel: Kernel) -> Kernel:
    """With a hash of all the library's sources, because a change of any of them can change what the call does."""
    object.__setattr__(library_kernel, "source_hash", fingerprint(*sources.files(sources.LIBRARY)))
    return library_kernel


#: Not in the catalog: the bench shows it after the ladder, and finds it by these names.
LIBRARY = _with_every_source(library)
NAMES = (LIBRARY.name, "matmul")
