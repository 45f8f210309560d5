"""Strassen's scheme with all temporaries in one buffer: three half-size temporaries, then the three of the next level,
and so on (row S1.14 of docs/sources.md).

The buffer is allocated once. The buffer holds a third as many elements as A, B and C together: for square matrices as
many as one n×n matrix, which is also what the source of S1.14 uses. Products are written to the quarters of C where
possible. Each product is added as soon as it is computed, so that a temporary is still in the cache when it is used.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.kernels import kernel, recursion


@kernel(
    idea="Take the temporaries of all levels from one buffer, and add each product as soon as it is computed.",
    row="S1.14",
    parent="cpu/strassen",
    over="cpu/register_tile",
    compiled=False,
    strided=True,
    shared="tiles",
    error_bound=recursion.normwise_bound(growth=12, linear=5),
    workspace=lambda m, n, k: (m * k + k * n + m * n) // 3,
)
def strassen_buffer(a, b, c, team, *, leaf=2048):
    recursion.multiply_in_one_buffer(a, b, c, team, leaf, one_level)


def one_level(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, buffer: np.ndarray, team: Any, multiply: Callable[..., None]
) -> None:
    """Compute one level of the recursion of Strassen's scheme. The temporaries of this level are taken from the start
    of ``buffer``; ``multiply`` uses the remainder for the next levels."""
    a11, a12, a21, a22 = recursion.quarters(a)
    b11, b12, b21, b22 = recursion.quarters(b)
    c11, c12, c21, c22 = recursion.quarters(c)
    add, subtract = team.add, team.subtract

    def product(x, y, out):
        multiply(x, y, out, deeper)

    of_a, of_b = a11.size, a11.size + b11.size
    end = of_b + c11.size
    s, t = buffer[:of_a].reshape(a11.shape), buffer[of_a:of_b].reshape(b11.shape)
    p, deeper = buffer[of_b:end].reshape(c11.shape), buffer[end:]

    add(a11, a22, s)
    add(b11, b22, t)
    product(s, t, c11)  # M1, in C11 and C22
    add(a21, a22, s)
    product(s, b11, c21)  # M2, in C21
    subtract(c11, c21, c22)
    subtract(b12, b22, t)
    product(a11, t, c12)  # M3, in C12
    add(c22, c12, c22)
    subtract(b21, b11, t)
    product(a22, t, p)  # M4
    add(c11, p, c11)
    add(c21, p, c21)
    add(a11, a12, s)
    product(s, b22, p)  # M5
    subtract(c11, p, c11)
    add(c12, p, c12)
    subtract(a21, a11, s)
    add(b11, b12, t)
    product(s, t, p)  # M6
    add(c22, p, c22)
    subtract(a12, a22, s)
    add(b21, b22, t)
    product(s, t, p)  # M7
    add(c11, p, c11)
