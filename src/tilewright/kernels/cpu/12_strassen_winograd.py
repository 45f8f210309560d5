"""Winograd's form of Strassen's scheme: the same 7 products, and 15 additions instead of 18 (row S1.15 of
docs/sources.md).

The scheme computes each sum once and uses it in further sums: s2 = s1 − a11, u3 = u2 + p7, and so on. The source of
S1.15 needs six temporaries for a level. The order of steps below needs two temporaries, one as large as a quarter of A
or C and one as large as a quarter of B, and keeps the other products in the quarters of C (Boyer, Dumas, Pernet and
Zhou, Memory efficient scheduling of Strassen-Winograd's matrix multiplication, 2009, table 1).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.kernels import kernel, recursion


@kernel(
    idea="Winograd's variant reuses sums of sums: 15 additions instead of 18, and two temporaries for each level.",
    row="S1.15",
    parent="cpu/strassen_buffer",
    over="cpu/register_tile",
    compiled=False,
    strided=True,
    shared="tiles",
    error_bound=recursion.normwise_bound(growth=18, linear=6),
    workspace=lambda m, n, k: (m * k + k * n + m * n) // 3,
)
def strassen_winograd(a, b, c, team, *, leaf=2048):
    recursion.multiply_in_one_buffer(a, b, c, team, leaf, one_level)


def one_level(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, buffer: np.ndarray, team: Any, multiply: Callable[..., None]
) -> None:
    """Compute one level of the recursion of Winograd's variant. The temporaries of this level are taken from the start
    of ``buffer``; ``multiply`` uses the remainder for the next levels."""
    a11, a12, a21, a22 = recursion.quarters(a)
    b11, b12, b21, b22 = recursion.quarters(b)
    c11, c12, c21, c22 = recursion.quarters(c)
    add, subtract = team.add, team.subtract

    def product(x, y, out):
        multiply(x, y, out, deeper)

    shared = max(a11.size, c11.size)
    end = shared + b11.size
    x, p1 = buffer[: a11.size].reshape(a11.shape), buffer[: c11.size].reshape(c11.shape)
    y, deeper = buffer[shared:end].reshape(b11.shape), buffer[end:]

    subtract(a11, a21, x)  # s3
    subtract(b22, b12, y)  # t3
    product(x, y, c21)  # p7
    add(a21, a22, x)  # s1
    subtract(b12, b11, y)  # t1
    product(x, y, c22)  # p5
    subtract(x, a11, x)  # s2
    subtract(b22, y, y)  # t2
    product(x, y, c12)  # p6
    subtract(a12, x, x)  # s4
    product(x, b22, c11)  # p3
    product(a11, b11, p1)
    add(p1, c12, c12)  # u2
    add(c12, c21, c21)  # u3
    add(c12, c22, c12)  # u4
    add(c21, c22, c22)  # u7, final
    add(c12, c11, c12)  # u5, final
    subtract(y, b21, y)  # t4
    product(a22, y, c11)  # p4
    subtract(c21, c11, c21)  # u6, final
    product(a12, b21, c11)  # p2
    add(p1, c11, c11)  # u1, final
