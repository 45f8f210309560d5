"""What every way of multiplying must move at least: the I/O lower bound."""

from __future__ import annotations

import math


def least_elements(m: int, n: int, k: int, room: int) -> int:
    """Elements that pass between a small memory of ``room`` elements and a large one at least, for C[m×n] = A[m×k]·B[k×n]
    by mnk multiply-adds in any order.

    The argument is that of Hong and Kung (STOC 1981) and of Smith, Lowery, Langou and van de Geijn (arXiv:1702.02017), with
    parts of equal work instead of equal I/O. The multiply-adds are cut, in their order, into parts of equal size. A part
    uses ``_elements_of_part`` elements of A, B and C, and at most ``room`` of them are in the small memory when it begins.
    An element of C that is new there was loaded, or its sum begins there and is stored later. One part gives each element
    once. Many give about 2·mnk/√room + room, which exceeds the bound of Smith et al., 2·mnk/√room − 2·room.

    >>> least_elements(100, 100, 100, room=10**6), least_elements(1000, 1000, 1000, room=10000)
    (30000, 20010000)
    >>> round(least_elements(4000, 4000, 4000, room=50 * 2**17) / 4000**2, 2)  # 50 MiB of float64
    3.53
    """
    work, short = m * n * k, max(1, min(m, n, k))
    if not work:
        return m * n
    best = max(1.0, room) * max(math.sqrt(max(1, room)), room / short)  # multiply-adds of a part, for the largest bound
    bounds = []
    for p in {max(1, math.floor(work / best)), math.ceil(work / best)}:
        each, longer = divmod(work, p)  # parts of two sizes, which differ by one
        short_ones, long_ones = (_elements_of_part(m, n, k, x) for x in (each, each + 1))
        bounds.append((p - longer) * short_ones + longer * long_ones - (p - 1) * room)
    return max(m * k + k * n + m * n, math.ceil(max(bounds) * (1 - 1e-12)))  # less than rounding could add


def _elements_of_part(m: int, n: int, k: int, work: int) -> float:
    """The fewest elements of A, B and C that ``work`` multiply-adds use: for x elements of A, y of B and z of C they are at
    most √(xyz) (Loomis and Whitney 1949), and at most xn, ym and zk.

    >>> _elements_of_part(100, 100, 100, 10**6), _elements_of_part(100, 100, 10, 10**3)
    (30000.0, 300.0)
    """
    total, product = 0.0, float(work) ** 2
    for left, side in zip((3, 2, 1), sorted((m, n, k)), strict=True):
        x = max(work / side, product ** (1 / left))
        total, product = total + x, product / x
    return total


def least_side(flops: float, bytes_per_s: float, itemsize: int) -> int:
    """Side b* of square tiles of C from which on computing takes longer than copying: s·R/BW.

    A step of a b×b tile takes 2·b² operations, and 2·b elements, for each unit of k.

    >>> least_side(50e12, 55e9, 4)
    3637
    """
    return math.ceil(itemsize * flops / bytes_per_s)
