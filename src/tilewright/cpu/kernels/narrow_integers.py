"""The kernel for 8-bit and 16-bit integers, which are multiplied in lanes of 16 bits. 8-bit integers are widened while
they are packed.

Products and sums are computed modulo 2⁸ or 2¹⁶, as in NumPy. The lower 8 bits of a sum modulo 2¹⁶ are the sum modulo
2⁸. So one micro-kernel serves signed and unsigned integers of 8 and 16 bits. x86 processors have no instruction that
multiplies 8-bit integers lane by lane. Widening them at every step of k would be slow; packing widens them only once.
"""

import numpy as np

from tilewright.cpu import codegen
from tilewright.cpu.engine import cuts, edges, jobs, triangle
from tilewright.kernels import kernel
from tilewright.kernels.blocking import blocking

CHOSEN = blocking()
BLOCKS = cuts.PackedBlocks("narrow_integers", CHOSEN, CHOSEN.kc_of_8_bytes, itemsize=2)
MR, LANES = CHOSEN.mr, CHOSEN.vector_bits // 16
convert, widen = codegen.row_converter(CHOSEN.vector_bits), codegen.converting_packer(CHOSEN.vector_bits)
tile = edges.compiled_tile(BLOCKS)


@codegen.njit(nogil=True, inline="always")
def write(steps, a, a_stride, b, c, band, sliver, corner, near):
    """Write a tile through ``corner``, because C may be narrower than the tile. To add the tile to C, C is first
    widened into ``corner``."""
    (kc, accumulate, _), (top, tiles, low, higher), (left, columns, vectors) = steps, band, sliver
    width = vectors * LANES
    for x in range(tiles):
        rows = low + 1 if x < higher else low
        inside = triangle.columns_of_tile(columns, left, top + rows, near.reals)
        if accumulate:
            widen(c, top, rows, left, inside, corner, 0, width)
        tile(
            kc, a, a_stride, b, codegen.offset(corner, 0), width, accumulate, max(rows, MR - 1), vectors, width, x, near
        )
        for r in range(rows):
            row = codegen.offset(corner, r * width)
            convert(row, codegen.itemsize(corner), codegen.address(c, top + r, left), c.strides[1], inside)
        top += rows
        a = codegen.ahead(a, rows * a_stride)


product = jobs.team_product(BLOCKS, widen, widen, write)


@kernel(
    order=19,
    idea="Multiply 8-bit and 16-bit integers in lanes of 16 bits: widened while packing, cut when C is written.",
    row="S1.11",
    parent="cpu/packed",
    dtypes=("int8", "uint8", "int16", "uint16"),
    shared="team",
    triangle=True,
    grain=(BLOCKS.mr, BLOCKS.nr),
    strided=True,
    params=BLOCKS.params,
    workspace=lambda m, n, k, *threads: 2 * BLOCKS.workspace(m, n, k, *threads),
    counters=BLOCKS.counters,
    suits=lambda m, n, k: True,
    adds=True,
)
def narrow_integers(a, b, c, space, counters):
    (m, k), n = a.shape, b.shape[1]
    if k == 0 and not counters[counters.size - 2]:
        c[:] = 0
    product(a, b, c, m, n, k, space.view(np.int16), counters)
