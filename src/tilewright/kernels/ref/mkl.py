"""Intel's Math Kernel Library through its C interface, if the ``mkl`` package of PyPI or conda is installed."""

import os

from tilewright.kernels import kernel
from tilewright.kernels.ref import _cblas

# The library reads these when it is loaded. By default, MKL uses the GNU threads of another library if they are loaded, and
# products of 128 take milliseconds there; its own threads spin for 200 ms after each call and slow what is measured next.
if _cblas.libraries_of_prefix("iomp5"):
    os.environ.setdefault("MKL_THREADING_LAYER", "INTEL")
    os.environ.setdefault("KMP_BLOCKTIME", "10")


@kernel(
    idea="Intel MKL, by cblas_?gemm.",
    row="S1",
    dtypes=_cblas.DTYPES,
    shared="tiles",
    strided=True,
    compiled=False,
)
def mkl(a, b, c):
    _cblas.cblas_gemm(("mkl_rt",), "pip install mkl (x86-64 only)")(a, b, c)
