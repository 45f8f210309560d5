"""The ladder: one kernel a file. ``catalog`` finds them; nothing lists them."""

from .catalog import (
    NUMERIC,
    Kernel,
    adding_kernel,
    catalog,
    cuda_catalog,
    find,
    kernel,
    load_cuda_file,
    load_file,
    reference,
)
from .cuda_kernel import CudaKernel

__all__ = [
    "NUMERIC",
    "CudaKernel",
    "Kernel",
    "adding_kernel",
    "catalog",
    "cuda_catalog",
    "find",
    "kernel",
    "load_cuda_file",
    "load_file",
    "reference",
]
