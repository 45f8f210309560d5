"""The library call as a row of the bench: what a user gets, to compare with kernels and references."""

from __future__ import annotations

import numpy as np

from ...api import matmul
from ...host import sources
from ...host.disk import fingerprint
from ...kernels import Kernel, kernel
from ...operands import DTYPES


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


def _with_every_source(one: Kernel) -> Kernel:
    """Its own file says nothing of what it does: a record is of all the package's."""
    object.__setattr__(one, "source_hash", fingerprint(*sources.files(sources.LIBRARY)))
    return one


#: In no catalog: the bench shows it after the ladder, and finds it by these names.
LIBRARY = _with_every_source(library)
NAMES = (LIBRARY.name, "matmul")
