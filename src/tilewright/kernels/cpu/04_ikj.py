"""The two inner loops exchanged: a row of C collects multiples of rows of B, all of it along cache lines (S1.5).

Nothing is copied and no sum is reordered. The inner loop has no chain of additions (each c[i, j] is another sum), so
it vectorises as it stands. For n beyond the cache every i streams all of B again: memory bound from then on.
"""

from tilewright.kernels import kernel


@kernel(
    idea="Exchange the loops to i, p, j: a row of C is a sum of multiples of rows of B, computed with vectors.",
    row="S1.5",
    parent="cpu/transposed_simd",
)
def ikj(a, b, c):
    m, k = a.shape
    n = b.shape[1]
    for i in range(m):
        for j in range(n):
            c[i, j] = 0
        for p in range(k):
            scale = a[i, p]
            for j in range(n):
                c[i, j] += scale * b[p, j]
