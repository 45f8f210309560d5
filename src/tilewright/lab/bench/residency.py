"""Facts about a CUDA kernel for a record of the bench: its resident warps, and what its formulas count."""

from __future__ import annotations

import contextlib
from typing import Any

from ...errors import UsageError
from ...kernels.cuda_kernel import CudaKernel
from ...simulator.gpus import GPUS, capability_of
from ...simulator.occupancy import occupancy
from ..inputs.sizes import Shape


def residency(arch: str, threads: int, registers: int, shared: int) -> dict[str, Any]:
    """Resident warps of blocks of ``threads``, the most there can be, and what limits them; empty for an unknown ``arch``.

    ``registers`` a thread, ``shared`` bytes a block. The limits are those of the compute capability.

    >>> residency("sm_90a", 256, 64, 0)
    {'resident_warps': 32, 'max_warps': 64, 'limited_by': 'registers'}
    >>> residency("sm_11", 256, 64, 0)
    {}
    """
    card = next((gpu for gpu in GPUS if gpu.compute_capability == capability_of(arch)), None)
    if card is None:
        return {}
    resident = occupancy(card, threads, registers, shared)
    limits = ", ".join(resident.limiting)
    return {"resident_warps": resident.warps, "max_warps": resident.max_warps, "limited_by": limits}


def formula_values(kernel: CudaKernel, shape: Shape, params: dict[str, int]) -> dict[str, int]:
    """The values of the kernel's own formulas for a shape.

    >>> from tilewright.catalog import cuda_catalog
    >>> formula_values(cuda_catalog()["cuda/coalesced"], (32, 32, 32), {})["global_load_sectors"]
    5120
    """
    values = dict(zip("mnk", shape, strict=True)) | kernel.checked(params)
    counts: dict[str, int] = {}
    for name, formula in kernel.formulas.items():
        with contextlib.suppress(UsageError):  # a user's formula that divides by zero is left out
            counts[name] = formula(**values)
    return counts
