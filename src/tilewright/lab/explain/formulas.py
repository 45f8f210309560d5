"""What explanations compute by formula: the operations and the least bytes of a product, and S3.1's cost model."""

from __future__ import annotations

SECTOR = 32


def operations_per_access(w: float, h: float, k: float | None = None) -> float:
    """S3.1: operations an access of a block w x h of C: 2whk/(wh + wk + kh); for large k, 2/(1/w + 1/h).

    >>> operations_per_access(16, 64), round(operations_per_access(16, 64, 1024), 2)
    (25.6, 25.28)
    """
    limit = 2 / (1 / w + 1 / h)
    return limit if k is None else 2 * w * h * k / (w * h + w * k + k * h)


def gemm_flops(m: int, n: int, k: int) -> int:
    """2mnk: the operations that GFLOPS count (S1.2), for every algorithm."""
    return 2 * m * n * k


def gemm_bytes(m: int, n: int, k: int, itemsize: int = 4) -> int:
    """The least traffic of a product: A and B read once, C written once."""
    return itemsize * (m * k + k * n + m * n)
