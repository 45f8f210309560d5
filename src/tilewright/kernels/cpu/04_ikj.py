"""This rung exchanges the two inner loops of the triple loop. Each row of C becomes a sum of multiples of rows of B,
and all accesses go along cache lines (row S1.5 of docs/sources.md).

The rung ``ikj`` copies nothing and reorders no sum. Each step of the inner loop adds to another element of C, so there
is no chain of additions and the compiler can vectorise the loop without reordering. If B is larger than the cache, the
kernel reads all of B from memory again for every row of C, and memory limits the speed.
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
