"""The parameters of CUDA kernels that ``tilewright tune`` found to be the best on a GPU, stored in the user's cache."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from ..host.disk import CacheFile, fingerprint

if TYPE_CHECKING:
    from ..kernels.cuda_kernel import Card, CudaKernel

Shape = tuple[int, int, int]
_FOLDER = CacheFile("tuned", "")


def best_params(kernel: CudaKernel, gpu: str, dtype: str, shape: Shape) -> dict[str, Any] | None:
    """The parameters stored for exactly this source, on a GPU of this name, for sizes within a factor of √2 of the same
    powers of two; None if there are none."""
    file = tuned_file(kernel.source_hash, gpu, dtype, shape)
    return None if file.is_absent else file.read_as(lambda stored: kernel.checked(stored["params"]))


def tuned_card(card: Card) -> Card:
    """The card, without its name if nothing was tuned: one look into the cache for all kernels of a product."""
    return card._replace(name="") if card.name and _FOLDER.is_absent else card


def tuned_file(source_hash: str, gpu: str, dtype: str, shape: Shape) -> CacheFile:
    """The file for (m, n, k) and sizes like it."""
    m, n, k = (round(math.log2(max(1, size))) for size in shape)
    return _file_of(source_hash, gpu, dtype, m, n, k)


@functools.lru_cache(maxsize=4096)
def _file_of(source_hash: str, gpu: str, dtype: str, m: int, n: int, k: int) -> CacheFile:
    return CacheFile("tuned", f"{fingerprint(source_hash, gpu, dtype, [m, n, k])}.json")
