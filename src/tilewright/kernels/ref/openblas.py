"""numpy's own BLAS, through ``np.matmul``: what everybody has, and what the ladder climbs towards.

For integers and float16 there is no BLAS: there it is numpy's own loop.
"""

import numpy as np

from tilewright.errors import UnavailableError
from tilewright.kernels import NUMERIC, kernel


@kernel(
    idea="The BLAS behind numpy, by np.matmul(a, b, out=c).",
    row="S1",
    dtypes=(*NUMERIC, "float16"),
    shared="tiles",
    strided=True,
    compiled=False,
)
def openblas(a, b, c):
    if "openblas" not in BUILT_WITH:
        raise UnavailableError(f"openblas: this numpy is built with {BUILT_WITH}; pip's numpy brings OpenBLAS")
    np.matmul(a, b, out=c)


BUILT_WITH = np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
