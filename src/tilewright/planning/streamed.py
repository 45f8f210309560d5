"""The kernel that multiplies the blocks of a product larger than a GPU's memory: one that can add to C."""

from __future__ import annotations

from ..kernels.cuda_kernel import Card, CudaKernel
from .choice import ROUNDED, SPLIT, Choice, choose_gpu, engine_on_gpu
from .ways import EngineShape, ways

#: The longest side of the blocks for which the kernel's parameters are chosen. The bits of a product do not depend on these.
_SIDE = 16384
#: The parts of float32 numbers that each precision takes.
_PARTED = {"standard": SPLIT, "fast": ROUNDED}


def choose_streamed(
    dtype: str, m: int, n: int, k: int, *, capability: str, sms: int, gpu: str = "", precision: str = "standard"
) -> Choice[CudaKernel]:
    """The kernel for blocks of C[m×n] = A[m×k]·B[k×n] on the GPU named ``gpu``, of that compute capability and with ``sms``
    multiprocessors.

    float32 is computed from float16 parts where the GPU has a kernel for these and the product is large enough: with
    ``precision`` "standard" from two for each number, with "fast" from one, with "ieee" from none. Everything else is
    multiplied by the highest rung that can add to C. The choice depends on the shape of the product and the GPU alone.
    Raises DTypeError where no kernel is for the dtype.

    >>> choose_streamed("float32", 4096, 4096, 4096, capability="9.0", sms=132).compute
    'float16x2'
    >>> choose_streamed("float32", 4096, 4096, 4096, capability="8.0", sms=108).compute
    'float32'
    """
    if dtype == "float32" and precision in _PARTED:
        parted = _PARTED[precision]
        for kernel in engine_on_gpu(parted, capability):
            if kernel.suits is not None and kernel.suits(m=m, n=n, k=k, batch=1):
                block = EngineShape(parted, dtype, min(m, _SIDE), min(n, _SIDE), min(k, _SIDE))
                best = ways(kernel, block, Card(gpu, sms))[0]
                why = f"tensor cores of compute capability {capability} multiply float16 parts faster than float32"
                return Choice(kernel, parted, best.params, why, "predicted to be the fastest for large blocks")
    return choose_gpu(dtype, m, n, k, capability=capability, sms=sms, gpu=gpu, adds=True)
