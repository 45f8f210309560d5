"""Each pass of the inner loop computes two rows of C with four steps of k, a step of shape 2×4×N (row S1.9 of
docs/sources.md).

The inner loop of the parent loads and stores a vector of C for every multiply-add. One pass of this rung's inner loop
over two rows of C makes eight multiply-adds: it loads four vectors of B, uses each for both rows, and loads and stores
C once for four steps of k. So a multiply-add takes (4 + 2 + 2) / 8 = 1 memory operation instead of 3 (load b, load c,
store c).
"""

from tilewright.cpu.codegen import aligned_buffer, njit
from tilewright.kernels import kernel
from tilewright.kernels.prelude import load_block, store_block

ROWS = 256
BLOCK = 128


@njit(nogil=True, fastmath={"contract"})
def multiply_2x4(rows, a, b, c):
    """Add a·b to a block of C, two rows of C and four steps of k at a time."""
    for i in range(0, rows, 2):
        for p in range(0, BLOCK, 4):
            a00, a01, a02, a03 = a[i, p], a[i, p + 1], a[i, p + 2], a[i, p + 3]
            a10, a11, a12, a13 = a[i + 1, p], a[i + 1, p + 1], a[i + 1, p + 2], a[i + 1, p + 3]
            for j in range(BLOCK):
                b0, b1, b2, b3 = b[p, j], b[p + 1, j], b[p + 2, j], b[p + 3, j]
                upper, lower = c[i, j], c[i + 1, j]
                upper += a00 * b0
                lower += a10 * b0
                upper += a01 * b1
                lower += a11 * b1
                upper += a02 * b2
                lower += a12 * b2
                upper += a03 * b3
                lower += a13 * b3
                c[i, j], c[i + 1, j] = upper, lower


@kernel(
    idea="Unroll 2 rows × 4 steps of k: a vector of B is used for two rows, a vector of C is stored once in 4 steps.",
    row="S1.9",
    parent="cpu/aligned",
    shared="rows",
    grain=(64, 1),
    params={"rows": ROWS, "block": BLOCK},
    workspace=lambda m, n, k: (2 * ROWS + BLOCK) * BLOCK,
)
def unrolled(a, b, c):
    m, k = a.shape
    n = b.shape[1]
    a_block = aligned_buffer(ROWS * BLOCK, c).reshape(ROWS, BLOCK)
    b_block = aligned_buffer(BLOCK * BLOCK, c).reshape(BLOCK, BLOCK)
    c_block = aligned_buffer(ROWS * BLOCK, c).reshape(ROWS, BLOCK)
    for i in range(0, m, ROWS):
        rows = min(ROWS, m - i)
        for j in range(0, n, BLOCK):
            c_block[:] = 0
            for p in range(0, k, BLOCK):
                load_block(a, i, p, a_block)
                load_block(b, p, j, b_block)
                multiply_2x4(rows, a_block, b_block, c_block)
            store_block(c_block, c, i, j)
