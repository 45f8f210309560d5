"""What every way of multiplying must move at least: the I/O lower bound."""

from __future__ import annotations

import math


def least_elements(m: int, n: int, k: int, room: int) -> int:
    """Elements that pass between a small memory of ``room`` elements and a large one at least, for C[m×n] = A[m×k]·B[k×n].

    All of A, B and C pass once, and no more where the smallest of them fits the small memory. Else 2·mnk/√room − 2·room at
    least (Smith, Lowery, Langou, van de Geijn, arXiv:1702.02017): only tiles of C as large as the small memory approach it.

    >>> least_elements(100, 100, 100, room=10**6), least_elements(1000, 1000, 1000, room=10000)
    (30000, 19980000)
    """
    once = m * k + k * n + m * n if m and n else 0
    if room >= min(m * k, k * n, m * n):
        return once
    return max(once, math.ceil(2 * m * n * k / math.sqrt(max(1, room))) - 2 * room)


def least_side(flops: float, bytes_per_s: float, itemsize: int) -> int:
    """Side b* of square tiles of C from which on computing takes longer than copying: s·R/BW.

    A step of a b×b tile takes 2·b² operations, and 2·b elements, for each unit of k.

    >>> least_side(50e12, 55e9, 4)
    3637
    """
    return math.ceil(itemsize * flops / bytes_per_s)
