"""B is transposed once, which copies n·k elements. With the transposed copy, all m·n·k inner steps read both operands
along cache lines (row S1.4 of docs/sources.md)."""

import numpy as np

from tilewright.kernels import kernel


@kernel(
    idea="Transpose B into a copy first, so that the inner loop reads both operands along cache lines.",
    row="S1.4",
    parent="cpu/naive",
    workspace=lambda m, n, k: n * k,
)
def transposed(a, b, c):
    m, k = a.shape
    n = b.shape[1]
    bt = np.empty((n, k), dtype=b.dtype)
    for p in range(k):
        for j in range(n):
            bt[j, p] = b[p, j]
    for i in range(m):
        for j in range(n):
            total = a.dtype.type(0)
            for p in range(k):
                total += a[i, p] * bt[j, p]
            c[i, j] = total
