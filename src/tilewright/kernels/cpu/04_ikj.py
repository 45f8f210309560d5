"""The two inner loops are exchanged. Each row of C becomes a sum of multiples of rows of B, and all accesses go along
cache lines (row S1.5 of docs/sources.md).

Nothing is copied and no sum is reordered. Each step of the inner loop adds to another element of C, so there is no
chain of additions and the compiler can vectorise the loop without reordering. If B is larger than the cache, every row
i reads all of B from memory again. From that size on, memory limits the speed.
"""

from tilewright.kernels import kernel


@kernel(
    idea="Exchange the loops to i, p, j: rows of C collect multiples of rows of B, contiguous and vectorised.",
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
