"""PyTorch's product on the CPU: on x86-64 PyTorch contains oneMKL, with threads of its own."""

import importlib

from tilewright.errors import UnavailableError
from tilewright.host.limits import get_threads
from tilewright.kernels import FLOATS, kernel
from tilewright.product.operands import writeable_alias


@kernel(
    idea="PyTorch, by torch.mm(a, b, out=c); on x86-64 that is oneMKL.",
    row="S1",
    dtypes=FLOATS,
    shared="tiles",
    strided=True,
    compiled=False,
)
def torch(a, b, c):
    try:
        library = importlib.import_module("torch")
    except ImportError:
        raise UnavailableError("torch is not installed here: pip install torch") from None
    threads = get_threads()
    if library.get_num_threads() != threads:  # PyTorch has its own limit, which those of other libraries do not change
        library.set_num_threads(threads)
    x, y, out = (library.from_numpy(writeable_alias(matrix)) for matrix in (a, b, c))
    library.mm(x, y, out=out)
