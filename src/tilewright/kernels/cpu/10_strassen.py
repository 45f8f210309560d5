"""Strassen's scheme as in textbooks: 7 products and 18 additions, and every temporary is allocated anew (row S1.13 of
docs/sources.md).

One level of the scheme saves an eighth of the multiplications, and needs 18 additions of half-size matrices. An
addition of float32 matrices does one operation for every 12 bytes that it moves, so memory bandwidth alone determines
its time. In addition, temporaries that the operating system has just allocated cost a page fault for each 4 KiB. So the
leaf, the size at which the recursion stops, must be large for the scheme to be faster.
"""

import numpy as np

from tilewright.kernels import kernel, recursion


@kernel(
    idea="Strassen's scheme: 7 half-size products and 18 additions replace 8 products, and need new temporaries.",
    row="S1.13",
    parent="cpu/register_tile",
    over="cpu/register_tile",
    compiled=False,
    strided=True,
    shared="tiles",
    error_bound=recursion.normwise_bound(growth=12, linear=5),
    workspace=lambda m, n, k: 3 * (m * k + k * n) + 4 * m * n,
)
def strassen(a, b, c, team, *, leaf=2048):
    (m, k), n = a.shape, b.shape[1]
    if recursion.is_leaf(m, n, k, leaf):
        team.multiply(a, b, c)
        return

    def even(a, b, c):
        a11, a12, a21, a22 = recursion.quarters(a)
        b11, b12, b21, b22 = recursion.quarters(b)
        c11, c12, c21, c22 = recursion.quarters(c)

        def plus(x, y):
            out = np.empty(x.shape, x.dtype)
            team.add(x, y, out)
            return out

        def minus(x, y):
            out = np.empty(x.shape, x.dtype)
            team.subtract(x, y, out)
            return out

        def product(x, y):
            out = np.empty((x.shape[0], y.shape[1]), x.dtype)
            strassen.function(x, y, out, team, leaf=leaf)
            return out

        m1 = product(plus(a11, a22), plus(b11, b22))
        m2 = product(plus(a21, a22), b11)
        m3 = product(a11, minus(b12, b22))
        m4 = product(a22, minus(b21, b11))
        m5 = product(plus(a11, a12), b22)
        m6 = product(minus(a21, a11), plus(b11, b12))
        m7 = product(minus(a12, a22), plus(b21, b22))
        team.add(plus(m1, m4), minus(m7, m5), c11)
        team.add(m3, m5, c12)
        team.add(m2, m4, c21)
        team.add(minus(m1, m2), plus(m3, m6), c22)

    recursion.multiply_peeled(a, b, c, team, even)
