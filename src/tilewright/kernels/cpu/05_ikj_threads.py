"""ikj on threads: the rows of C are independent, so each thread takes a band of them (S1.6).

The loops are those of ``ikj``; ``shared="rows"`` is the whole step. The runner calls the function once a thread, each
with its band of A and of C. Small products pay more for waking threads than they win, and large ones only get as many
times faster as the memory can feed: each thread streams all of B for each of its rows.
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
