"""One product by a kernel of pointers and strides (``strides`` in its header), prepared once for shapes and layouts."""

from __future__ import annotations

import functools
import math
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...kernels.cuda_kernel import CudaKernel, launched
from ...problem import itemsize_of
from .device import Device
from .product import MOST, Chosen, GpuProduct, compiled_once, stream_handle

#: The last parameter of such a kernel, ``Call`` in ``engine/cuda/strided.cuh``.
_CALL = struct.Struct("<qqqqqqqqqiiiiii")
#: The most bytes of a vector access, and the most blocks of a launch.
_VECTOR, _MOST_BLOCKS = 16, 2**31 - 1

_lock = threading.Lock()


class Strides(NamedTuple):
    """How an operand lies, in elements: to the next row, to the next column, and to the operand of the next product of a
    batch, 0 where all have the same. ``down``: the elements of a column follow each other rather than those of a row.
    ``alignment``: bytes of which the address and all of ``next`` are multiples, at most 16."""

    row: int
    column: int
    next: int = 0
    down: bool = False
    alignment: int = _VECTOR


@dataclass(frozen=True)
class StridedProduct:
    """C[m×n] = A[m×k]·B[k×n] for each product of a batch, and of each of ``parts`` of k, of ``part_steps`` of the kernel's
    steps, whose sums then follow each other like a batch. ``padded``: of A and of B, whether a row (``down``: a column) may
    be read to the end of its last vector."""

    dtype: str
    out: str
    m: int
    n: int
    k: int
    batch: int
    a: Strides
    b: Strides
    c: Strides
    parts: int = 1
    part_steps: int = MOST
    padded: tuple[bool, bool] = (False, False)


def prepare_strided_product(
    device: Device, kernel: CudaKernel, product: StridedProduct, params: Mapping[str, int]
) -> GpuProduct:
    """The product on ``device``: compiled, loaded and checked now, and cached. Sizes are at least 1.

    The device must be the calling thread's current one now and at each call. Raises UsageError for parameters that the
    kernel does not take, CompileError, LaunchError.
    """
    with _lock:
        return _prepared(device, kernel, product, tuple(sorted(params.items())))


@functools.lru_cache(maxsize=4096)
def _prepared(device: Device, kernel: CudaKernel, p: StridedProduct, chosen: Chosen) -> GpuProduct:
    params = kernel.checked(dict(chosen))
    macros: dict[str, object] = {
        "TYPE": p.dtype.upper(),
        "OUT": p.out.upper(),
        "A_DOWN": int(p.a.down),
        "B_ACROSS": int(not p.b.down),
        "A_VECTOR": vector_bytes(p.a, p.dtype, (p.m, p.k)),
        "B_VECTOR": vector_bytes(p.b, p.dtype, (p.k, p.n)),
        "C_VECTOR": _stored_bytes(p),
        **{f"{name}_PADDED": 1 for name, is_padded in zip("AB", p.padded, strict=True) if is_padded},
    }
    compiled = compiled_once(kernel, device.arch, chosen, tuple(macros.items()))
    launch = kernel.launch(p.m, p.n, p.k, **params)
    blocks = launch.blocks * p.batch * p.parts
    if kernel.persistent:
        blocks = launched(blocks, device.sms, params)
    strides = (*p.a[:3], *p.b[:3], *p.c[:3])
    call = _CALL.pack(*strides, p.m, p.n, p.k, p.batch, p.parts, p.part_steps)
    size = min(blocks, _MOST_BLOCKS), launch.threads, launch.shared_bytes
    run = device.boxed_launcher(compiled, compiled.entry(kernel.entry), size, (), call)

    def product(a: int, b: int, c: int, stream: Any) -> None:
        run(stream_handle(stream), (), (a, b, c))

    return product


def _stored_bytes(p: StridedProduct) -> int:
    """The most bytes that are stored at once. 16 bytes of float64 are half a sector: where rows begin at the other half,
    sectors would be stored in parts."""
    most = vector_bytes(p.c, p.out, (p.m, p.n))
    in_two = p.out == "float64" and p.m > 1 and (p.c.row | p.c.next) % 4
    return min(most, 8) if in_two else most


def vector_bytes(laid: Strides, dtype: str, shape: tuple[int, int]) -> int:
    """The most bytes that an access may have at the start of every row, or where ``down`` of every column.

    >>> vector_bytes(Strides(24, 1), "bfloat16", (8, 20)), vector_bytes(Strides(20, 1), "bfloat16", (8, 20))
    (16, 8)
    """
    size = itemsize_of(dtype)
    (outer, step), (inner, along) = ((shape[0], laid.row), (shape[1], laid.column))[:: -1 if laid.down else 1]
    if along != 1 and inner > 1:
        return size
    return max(size, math.gcd(laid.alignment, step * size if outer > 1 else 0))
