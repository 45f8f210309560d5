"""The parameters of CUDA kernels that ``tilewright tune`` found to be the best on a GPU, stored in the user's cache."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..host.disk import CacheFile, fingerprint

if TYPE_CHECKING:
    from ..kernels.cuda_kernel import CudaKernel

Shape = tuple[int, int, int]


def best_params(kernel: CudaKernel, gpu: str, dtype: str, shape: Shape) -> dict[str, Any] | None:
    """The parameters stored for exactly this source, on a GPU of this name, for sizes within a factor of √2 of the same
    powers of two; None if there are none."""
    return tuned_file(kernel.source_hash, gpu, dtype, shape).read_as(lambda stored: kernel.checked(stored["params"]))


def tuned_file(source_hash: str, gpu: str, dtype: str, shape: Shape) -> CacheFile:
    """The file for (m, n, k) and sizes like it."""
    bucket = [round(math.log2(max(1, size))) for size in shape]
    return CacheFile("tuned", f"{fingerprint(source_hash, gpu, dtype, bucket)}.json")
