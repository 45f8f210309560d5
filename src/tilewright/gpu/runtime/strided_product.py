"""Products by kernels of pointers and strides (``strides`` in their headers)."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from ...kernels.cuda_kernel import CudaKernel, launched
from .compilations import KernelCode, chosen_params
from .engine_product import EngineProduct
from .layout import Matrix
from .steps import OPERANDS, BufferPlace, GpuStep, KernelLaunch

#: The last parameter of such a kernel, ``Call`` in ``gpu/kernels/strided.cuh``.
_CALL = struct.Struct("<qqqqqqqqqiiiiii")
#: The most blocks of a launch.
_MOST_BLOCKS = 2**31 - 1


def strided_step(
    sms: int, kernel: CudaKernel, params: Mapping[str, int], p: EngineProduct, arrays: Sequence[BufferPlace] = ()
) -> GpuStep:
    """The product on a GPU with so many multiprocessors. Sizes are at least 1. Raises UsageError for parameters that the
    kernel does not take."""
    values, (m, n, k) = kernel.checked(params), p.sizes
    macros: dict[str, object] = {
        "TYPE": p.compute.upper(),
        "OUT": p.c.dtype.upper(),
        "A_DOWN": int(p.a.down),
        "B_ACROSS": int(not p.b.down),
        "A_VECTOR": p.a.vector_bytes,
        "B_VECTOR": p.b.vector_bytes,
        "C_VECTOR": _stored_bytes(p.c),
        **{f"{name}_PADDED": 1 for name, is_padded in zip("AB", p.padded, strict=True) if is_padded},
    }
    launch = kernel.launch_with(values, m, n, k)
    blocks = launch.blocks * p.batch * p.parts
    if kernel.persistent:
        blocks = launched(blocks, sms, values)
    strides = (number for x in (p.a, p.b, p.c) for number in (x.row, x.column, x.next))
    call = _CALL.pack(*strides, m, n, k, p.batch, p.parts, p.part_steps)
    size = min(blocks, _MOST_BLOCKS), launch.threads, launch.shared_bytes
    code = KernelCode(kernel, tuple(macros.items()), chosen_params(params))
    return GpuStep(KernelLaunch(code, kernel.entry, size, call), (*OPERANDS, *arrays))


def _stored_bytes(c: Matrix) -> int:
    """The most bytes that are stored at once. 16 bytes of float64 are half a sector: where rows begin at the other half,
    sectors would be stored in parts."""
    in_two = c.dtype == "float64" and c.rows > 1 and (c.row | c.next) % 4
    return min(c.vector_bytes, 8) if in_two else c.vector_bytes
