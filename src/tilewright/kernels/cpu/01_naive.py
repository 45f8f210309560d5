"""The definition, as a triple loop: every other rung is measured from here (S0.1, S1.3)."""

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
