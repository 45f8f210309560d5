"""Explicit vectors for kernels written in Python: LLVM vector IR behind Numba intrinsics.

Numba has no vector type, so what needs exact control of registers is generated here as LLVM IR and called from a
kernel like any function. The generator knows no machine: it takes the tile (``mr`` rows × ``nv`` vectors) and the
vector width, and serves AVX2, AVX-512 and NEON alike.
"""

from .atomics import fetch_add, wait_for
from .memory import ALIGNMENT, address, aligned_empty, copy, offset
from .peak import fma_chains
from .tile import micro_kernel

__all__ = [
    "ALIGNMENT",
    "address",
    "aligned_empty",
    "copy",
    "fetch_add",
    "fma_chains",
    "micro_kernel",
    "offset",
    "wait_for",
]
