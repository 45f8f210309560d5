"""The functions that the three Strassen rungs share: quarters, odd edges and the error bound. Each rung's file has the
order of the scheme's operations.

Strassen's scheme and its variants halve all three dimensions. If a dimension is odd, the scheme multiplies the largest
part of the matrices that has even dimensions. The base kernel computes the remainder as thin products: a column of A
times a row of B, a column of C, and a row of C.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..product.operands import aligned_empty

Quarters = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def quarters(x: np.ndarray) -> Quarters:
    """Return views of the four quarters 11, 12, 21, 22 of a matrix with even dimensions."""
    r, s = x.shape[0] // 2, x.shape[1] // 2
    return x[:r, :s], x[:r, s:], x[r:, :s], x[r:, s:]


def is_leaf(m: int, n: int, k: int, leaf: int) -> bool:
    """Return whether a product is so small that the base kernel computes it, because another level would not be
    faster."""
    return min(m, n, k) <= max(leaf, 1)


def halvings(m: int, n: int, k: int, leaf: int) -> int:
    """Return the number of times that the recursion halves the dimensions.

    >>> halvings(4096, 4096, 4096, 2048), halvings(5000, 100, 5000, 2048)
    (1, 0)
    """
    depth = 0
    while not is_leaf(m, n, k, leaf):
        m, n, k, depth = m // 2, n // 2, k // 2, depth + 1
    return depth


def multiply_peeled(a: np.ndarray, b: np.ndarray, c: np.ndarray, team: Any, multiply_even: Callable[..., None]) -> None:
    """Compute c = a·b: ``multiply_even(a, b, c)`` multiplies the largest part with even dimensions, and thin products
    compute the remainder.

    ``team`` has the functions ``multiply``, ``add`` and ``subtract``; all threads work on each call.
    """
    (m, k), n = a.shape, b.shape[1]
    me, ne, ke = m - m % 2, n - n % 2, k - k % 2
    core = c[:me, :ne]
    multiply_even(a[:me, :ke], b[:ke, :ne], core)
    if ke < k:
        outer = np.empty_like(core)
        team.multiply(a[:me, ke:], b[ke:, :ne], outer)
        team.add(core, outer, core)
    if ne < n:
        team.multiply(a, b[:, ne:], c[:, ne:])
    if me < m:
        team.multiply(a[me:], b[:, :ne], c[me:, :ne])


def normwise_bound(growth: int, linear: int) -> Callable[..., float | None]:
    """Make a function that computes Higham's error bound for a scheme that halves the dimensions (Accuracy and
    Stability of Numerical Algorithms, 2nd ed., section 23.2.2).

    The bound is max|C − Ĉ| ≤ [growth^L · (k₀² + linear·k₀) − linear·k] · u · max|A| · max|B| after L levels down to k₀
    = k/2^L. The function returns the factor of u · max|A| · max|B| without the subtracted term, so the result is
    slightly larger than the bound. ``growth`` is 12 and ``linear`` is 5 for Strassen's scheme; ``growth`` is 18 and
    ``linear`` is 6 for Winograd's. The function returns None if the recursion has no level, because then the classical
    componentwise bound of the base kernel holds.
    """

    def bound(m: int, n: int, k: int, *, leaf: int) -> float | None:
        depth = halvings(m, n, k, leaf)
        if depth == 0:
            return None
        k0 = math.ceil(k / 2**depth)
        return float(growth**depth * (k0**2 + linear * k0))

    return bound


def buffer_size(m: int, n: int, k: int, *, leaf: int) -> int:
    """Return the number of elements of a buffer that holds one half-size temporary each of A, B and C for every level:
    about (mk + kn + mn)/3."""
    total = 0
    while not is_leaf(m, n, k, leaf):
        m, n, k = m // 2, n // 2, k // 2
        total += m * k + k * n + m * n
    return total


def multiply_in_one_buffer(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, team: Any, leaf: int, one_level: Callable[..., None]
) -> None:
    """Compute c = a·b by a scheme whose temporaries, on all levels, lie in one buffer.

    ``one_level(a, b, c, buffer, team, multiply)`` computes one level, for matrices with even dimensions. ``one_level``
    takes its temporaries from the start of ``buffer``. ``one_level`` multiplies quarters, or sums of quarters, by
    ``multiply(x, y, out, rest)``, where ``rest`` is the remainder of the buffer. ``team`` is as in ``multiply_peeled``.
    """

    def multiply(x: np.ndarray, y: np.ndarray, out: np.ndarray, rest: np.ndarray) -> None:
        if is_leaf(out.shape[0], out.shape[1], x.shape[1], leaf):
            team.multiply(x, y, out)
        else:
            multiply_peeled(x, y, out, team, lambda *even: one_level(*even, rest, team, multiply))

    size = buffer_size(c.shape[0], c.shape[1], a.shape[1], leaf=leaf)
    multiply(a, b, c, aligned_empty(size, c.dtype))
