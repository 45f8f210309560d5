"""BLIS through its C interface, if it is installed on the system."""

from tilewright.kernels import kernel
from tilewright.kernels.ref import _cblas


@kernel(
    idea="BLIS, by cblas_?gemm.",
    row="S1",
    dtypes=_cblas.DTYPES,
    shared="tiles",
    strided=True,
    compiled=False,
)
def blis(a, b, c):
    _cblas.cblas_gemm(("blis", "blis-mt"), "install your system's BLIS, such as Debian's libblis4-openmp")(a, b, c)
