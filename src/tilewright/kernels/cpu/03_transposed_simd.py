"""The same loops, allowed to add in another order: the compiler keeps many partial sums in vectors (S1.4).

A strict sum is a chain: each addition waits for the one before, 3 to 4 cycles, whatever the vector width. With
``reassoc`` the compiler may split it into independent chains and fold them at the end. NaN and infinity keep their
meaning: only the order of additions is free.
"""

import numpy as np

from tilewright.kernels import kernel


@kernel(
    idea="Let the compiler reorder the sum: one chain of scalar additions becomes many partial sums in vectors.",
    row="S1.4",
    parent="cpu/transposed",
    fastmath=frozenset({"contract", "reassoc"}),
    workspace=lambda m, n, k: n * k,
)
def transposed_simd(a, b, c):
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
