"""NumPy's OpenBLAS as it is installed: what ``a @ b`` runs, with the kernels that OpenBLAS chose for this processor."""

from tilewright.kernels import kernel
from tilewright.kernels.ref._cblas import DTYPES
from tilewright.kernels.ref.openblas import np_matmul


@kernel(
    idea="NumPy's OpenBLAS as installed, by np.matmul(a, b, out=c).",
    row="S1",
    dtypes=DTYPES,
    shared="tiles",
    strided=True,
    compiled=False,
)
def openblas_installed(a, b, c):
    np_matmul(a, b, c)
