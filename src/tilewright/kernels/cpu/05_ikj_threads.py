"""The loops of ``ikj`` on several threads. The rows of C are independent, so each thread computes a band of
neighbouring rows (row S1.6 of docs/sources.md).

The loops of the parent do not change: ``shared="rows"`` is all that this rung adds. The runner calls the function once
on each thread, with that thread's band of A and of C. For small products, waking the threads takes longer than the time
that they save. For large products, the memory's bandwidth limits the gain, because each thread reads all of B for each
of its rows.
"""

from tilewright.kernels import NUMERIC, kernel


@kernel(
    idea="Give each thread a band of rows of C; nothing else changes.",
    row="S1.6",
    parent="cpu/ikj",
    shared="rows",
    dtypes=NUMERIC,
)
def ikj_threads(a, b, c):
    m, k = a.shape
    n = b.shape[1]
    for i in range(m):
        for j in range(n):
            c[i, j] = 0
        for p in range(k):
            scale = a[i, p]
            for j in range(n):
                c[i, j] += scale * b[p, j]
