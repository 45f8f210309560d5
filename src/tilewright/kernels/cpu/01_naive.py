"""The definition of the matrix product as a triple loop. Every other rung is compared with this one (rows S0.1 and S1.3
of docs/sources.md)."""

from tilewright.kernels import kernel


@kernel(
    idea="Three loops i, j, p with a scalar sum: each element of B that the inner loop reads lies in another cache line.",
    row="S1.3",
)
def naive(a, b, c):
    m, k = a.shape
    n = b.shape[1]
    for i in range(m):
        for j in range(n):
            total = a.dtype.type(0)
            for p in range(k):
                total += a[i, p] * b[p, j]
            c[i, j] = total
