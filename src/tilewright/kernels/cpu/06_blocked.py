"""128×128 blocks: a block of C is held while the blocks of A and B that feed it are copied next to it (S1.7).

Each element that is fetched from memory is used 128 times: traffic falls from about m·n·k elements to 2·m·n·k/128 + m·n.
S1.7 took blocks of 64. Three blocks of 128 are 192 KiB in float32 and 384 KiB in float64, still inside the second-level
cache of today's cores, and each row of a block is 512 bytes or more to copy in one piece: with 64, copying costs as much
as it saves wherever ikj still finds B in a large last cache. Blocks at the edges are padded with zeros in the copy, so
the multiplication itself knows no edges.
"""

import numpy as np

from tilewright.kernels import kernel
from tilewright.kernels.prelude import load_block, multiply_block, store_block

BLOCK = 128


@kernel(
    idea="Hold a 128×128 block of C and copy the blocks of A and B it needs, so each fetched element is used 128 times.",
    row="S1.7",
    parent="cpu/ikj_threads",
    shared="rows",
    grain=(BLOCK, 1),
    params={"block": BLOCK},
    workspace=lambda m, n, k: 3 * BLOCK * BLOCK,
)
def blocked(a, b, c):
    m, k = a.shape
    n = b.shape[1]
    a_block = np.empty((BLOCK, BLOCK), dtype=c.dtype)
    b_block = np.empty((BLOCK, BLOCK), dtype=c.dtype)
    c_block = np.empty((BLOCK, BLOCK), dtype=c.dtype)
    for i in range(0, m, BLOCK):
        for j in range(0, n, BLOCK):
            c_block[:] = 0
            for p in range(0, k, BLOCK):
                load_block(a, i, p, a_block)
                load_block(b, p, j, b_block)
                multiply_block(BLOCK, a_block, b_block, c_block)
            store_block(c_block, c, i, j)
