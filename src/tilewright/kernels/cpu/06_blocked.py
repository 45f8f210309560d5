"""A block of C of 256×128 elements stays in the cache, and the blocks of A and B that it needs are copied to memory
next to it (row S1.7 of docs/sources.md).

Each element of A that is read from memory is used 128 times, and each element of B 256 times. So about m·n·k/128 +
m·n·k/256 + m·n elements are moved between memory and cache instead of m·n·k. The blocks take 320 KiB in float32 and 640
KiB in float64, and fit into the second-level cache of today's cores. The source of S1.7 used blocks of 64×64. At sizes
where ``ikj`` still finds B in a large last-level cache, copying such blocks costs as much as it saves. The copies of
blocks at the edges are padded with zeros, so the multiplication has no special cases for edges.
"""

import numpy as np

from tilewright.kernels import kernel
from tilewright.kernels.prelude import load_block, multiply_block, store_block

ROWS = 256
BLOCK = 128


@kernel(
    idea="Keep a 256×128 block of C in the cache: each copied element of A is used 128 times, and each of B 256 times.",
    row="S1.7",
    parent="cpu/ikj_threads",
    shared="rows",
    grain=(64, 1),
    params={"rows": ROWS, "block": BLOCK},
    workspace=lambda m, n, k: (2 * ROWS + BLOCK) * BLOCK,
)
def blocked(a, b, c):
    m, k = a.shape
    n = b.shape[1]
    a_block = np.empty((ROWS, BLOCK), dtype=c.dtype)
    b_block = np.empty((BLOCK, BLOCK), dtype=c.dtype)
    c_block = np.empty((ROWS, BLOCK), dtype=c.dtype)
    for i in range(0, m, ROWS):
        rows = min(ROWS, m - i)
        for j in range(0, n, BLOCK):
            c_block[:] = 0
            for p in range(0, k, BLOCK):
                load_block(a, i, p, a_block)
                load_block(b, p, j, b_block)
                multiply_block(rows, BLOCK, a_block, b_block, c_block)
            store_block(c_block, c, i, j)
