"""The system's OpenBLAS through its C interface: often another version than NumPy's, with other kernels."""

from tilewright.kernels import kernel
from tilewright.kernels.ref import _cblas


@kernel(
    idea="The system's OpenBLAS, by cblas_?gemm.",
    row="S1",
    dtypes=_cblas.DTYPES,
    shared="tiles",
    strided=True,
    compiled=False,
)
def openblas_system(a, b, c):
    _cblas.cblas_gemm(
        ("openblas", "openblaso", "openblasp"),
        "install your system's OpenBLAS, such as Debian's libopenblas0",
    )(a, b, c)
