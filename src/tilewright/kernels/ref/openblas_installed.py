"""NumPy's OpenBLAS as it is installed: what ``a @ b`` runs, with the kernels that OpenBLAS chose for this processor."""

from tilewright.kernels import FLOATS, kernel
from tilewright.kernels.ref.openblas import np_matmul


@kernel(
    idea="NumPy's OpenBLAS as installed, by np.matmul(a, b, out=c).",
    row="S1",
    dtypes=(*FLOATS, "complex64", "complex128"),
    shared="tiles",
    strided=True,
    compiled=False,
)
def openblas_installed(a, b, c):
    np_matmul(a, b, c)
