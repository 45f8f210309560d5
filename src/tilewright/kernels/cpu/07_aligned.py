"""The blocks of ``blocked``, each of which now starts on a 64-byte boundary (row S1.8 of docs/sources.md).

A 512-bit vector is a whole cache line. Numba's allocator aligns to 32 bytes only. Without this rung's alignment, every
vector of a row may lie in two cache lines, and the core loads each such vector with two accesses.
"""

from tilewright.cpu.codegen import aligned_buffer
from tilewright.kernels import kernel
from tilewright.kernels.prelude import load_block, multiply_block, store_block

ROWS = 256
BLOCK = 128


@kernel(
    idea="Start every block on a 64-byte boundary, so that no vector straddles two cache lines.",
    row="S1.8",
    parent="cpu/blocked",
    shared="rows",
    grain=(64, 1),
    params={"rows": ROWS, "block": BLOCK},
    workspace=lambda m, n, k: (2 * ROWS + BLOCK) * BLOCK,
)
def aligned(a, b, c):
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
                multiply_block(rows, BLOCK, a_block, b_block, c_block)
            store_block(c_block, c, i, j)
