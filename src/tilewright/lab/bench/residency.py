"""What one launch of a kernel needs of a multiprocessor, and how much of it is resident: what a record of the bench says."""

from __future__ import annotations

import contextlib
import re
from typing import Any

from ...errors import UsageError
from ...kernels.cuda_kernel import CudaKernel
from ...simulator.gpus import GPUS
from ...simulator.occupancy import occupancy
from ..inputs.sizes import Shape


def residency(arch: str, threads: int, registers: int, shared: int) -> dict[str, Any]:
    """Resident warps of blocks of ``threads``, the most there can be, and what limits them; nothing for an unknown ``arch``.

    ``registers`` a thread, ``shared`` bytes a block. The limits are those of the compute capability.

    >>> residency("sm_90a", 256, 64, 0)
    {'resident_warps': 32, 'max_warps': 64, 'limited_by': 'registers'}
    >>> residency("sm_11", 256, 64, 0)
    {}
    """
    found = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
    capability = (int(found[1]), int(found[2])) if found else None
    card = next((gpu for gpu in GPUS if gpu.compute_capability == capability), None)
    if card is None:
        return {}
    held = occupancy(card, threads, registers, shared)
    return {"resident_warps": held.warps, "max_warps": held.max_warps, "limited_by": ", ".join(held.limiting)}


def formula_values(kernel: CudaKernel, shape: Shape, params: dict[str, int]) -> dict[str, int]:
    """What the kernel's own formulas count for a shape.

    >>> from tilewright.catalog import cuda_catalog
    >>> formula_values(cuda_catalog()["cuda/coalesced"], (32, 32, 32), {})["global_load_sectors"]
    5120
    """
    values = dict(zip("mnk", shape, strict=True)) | kernel.checked(params)
    found: dict[str, int] = {}
    for name, formula in kernel.formulas.items():
        with contextlib.suppress(UsageError):  # divides by zero: a user's formula costs no measurement
            found[name] = formula(**values)
    return found
