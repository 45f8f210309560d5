"""The library call as a row of the bench: what a user gets, beside the kernels that it chooses from and the vendors'."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..api import matmul
from ..disk import fingerprint
from ..kernels import Kernel, kernel
from ..operands import DTYPES

_PACKAGE = Path(__file__).parent.parent
#: What a product runs through, from the call to the machine code; the laboratory is not in it.
_PARTS = ("*.py", "kernels/*.py", "kernels/cpu/*.py", "simd/*.py", "run/*.py")


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
    sources = [path for part in _PARTS for path in sorted(_PACKAGE.glob(part))]
    object.__setattr__(one, "source_hash", fingerprint(*sources))
    return one


#: Found by name alone: it is no rung of the ladder.
LIBRARY = _with_every_source(library)
NAMES = (LIBRARY.name, "matmul")
