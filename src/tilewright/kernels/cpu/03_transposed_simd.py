"""The loops of ``transposed``, with the permission to add in another order: the compiler keeps many partial sums in
vectors (row S1.4 of docs/sources.md).

A sum in strict order is a chain: each addition waits 3 to 4 cycles for the previous one, however wide the vectors are.
With the flag ``reassoc`` the compiler may split the sum into independent chains, and add these at the end. NaN and
infinity keep their meaning: the compiler may change only the order of additions.
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
