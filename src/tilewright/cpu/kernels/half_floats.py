"""The kernel for float16 and bfloat16, which are multiplied as float32: they are widened while they are packed, and
rounded once at the end.

Between phases of k, the sums of C are kept in the workspace as float32. The last phase of k rounds each tile of C while
the tile is in the cache. So neither A, B nor C is converted as a whole before or after the product. Each element of C
is the element of the float32 product, rounded to the nearest number of C's dtype; beyond the largest number it is
infinity.

Numba has neither dtype. Compiled code sees the elements of float16 as unsigned 16-bit integers, and those of bfloat16
as signed 16-bit integers.
"""

import numpy as np

from tilewright.cpu import codegen
from tilewright.cpu.engine import cuts, edges, jobs, triangle
from tilewright.kernels import kernel
from tilewright.kernels.blocking import blocking

CHOSEN = blocking()
BLOCKS = cuts.PackedBlocks("half_floats", CHOSEN, CHOSEN.kc, itemsize=4)  # as float32: so is k cut, and so are the bits
MR, LANES = CHOSEN.mr, CHOSEN.vector_bits // 32
convert, widen = codegen.row_converter(CHOSEN.vector_bits), codegen.converting_packer(CHOSEN.vector_bits)
tile = edges.compiled_tile(BLOCKS)


@codegen.njit(nogil=True, inline="always")
def write(steps, a, a_stride, b, c, band, sliver, corner, near):
    """Write to the float32 C. When a row of a tile is complete, it is converted and written to the caller's C."""
    (kc, accumulate, ends), (top, tiles, low, higher), (left, columns, vectors) = steps, band, sliver
    narrow, wide = c
    width = vectors * LANES
    for x in range(tiles):
        rows = low + 1 if x < higher else low
        inside = triangle.columns_of_tile(columns, left, top + rows, near.reals)
        if rows >= MR - 1:
            of_c = codegen.address(wide, top, left)
            tile(kc, a, a_stride, b, of_c, wide.shape[1], accumulate, rows, vectors, inside, x, near)
        else:
            tile(kc, a, a_stride, b, codegen.offset(corner, 0), width, 0, MR, vectors, width, x, near)
        for r in range(rows):
            row = codegen.address(wide, top + r, left)
            if rows < MR - 1:
                for s in range(inside):
                    before = wide[top + r, left + s] if accumulate else np.float32(0)
                    wide[top + r, left + s] = before + corner[r * width + s]
            if ends:
                convert(row, wide.itemsize, codegen.address(narrow, top + r, left), narrow.strides[1], inside)
        top += rows
        a = codegen.ahead(a, rows * a_stride)


product = jobs.team_product(BLOCKS, widen, widen, write)


@kernel(
    order=20,
    idea="Multiply float16 and bfloat16 as float32: widened while packing, rounded once when C is written.",
    row="S1.11",
    parent="cpu/packed",
    dtypes=("float16", "bfloat16"),
    shared="team",
    triangle=True,
    grain=(BLOCKS.mr, BLOCKS.nr),
    strided=True,
    params=BLOCKS.params,
    workspace=lambda m, n, k: 2 * (BLOCKS.workspace(m, n, k) + m * n),
    counters=BLOCKS.counters,
    suits=lambda m, n, k: True,
)
def half_floats(a, b, c, space, counters):
    (m, k), n = a.shape, b.shape[1]
    if k == 0:
        c[:] = 0
    floats = space.view(np.float32)
    wide = floats[floats.size - m * n :].reshape(m, n)
    product(a, b, (c, wide), m, n, k, floats[: floats.size - m * n], counters)
