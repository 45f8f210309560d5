"""The kernel for large products of floats, or of 32-bit or 64-bit integers, with any shape and any strides.

B is packed with vector instructions, without conversion of its elements (``cpu.codegen.packer``). Rows of A with
contiguous elements are read directly, which saves 2 to 7 % of the time of products of sizes 384 to 3,000; other rows
are packed (``jobs.lies_well``). Finished tiles are written directly to C. If vectors cannot write a tile, because rows
of C have no unit stride or C has fewer rows than a tile, the tile is computed in a buffer and copied.
``engine/cuts.py`` explains how the product is cut into jobs and blocks.
"""

from tilewright.cpu import codegen
from tilewright.cpu.engine import cuts, edges, jobs, triangle
from tilewright.kernels import FLOATS, kernel
from tilewright.kernels.blocking import blocking

CHOSEN = blocking()
BLOCKS = cuts.PackedBlocks("packed", CHOSEN, CHOSEN.kc, itemsize=4)
MR, VECTOR_BYTES = CHOSEN.mr, CHOSEN.vector_bits // 8
# Of 4-byte elements, so many threads have so few tiles each of a product of these sizes that to pack B and to wait for each
# other takes longer than packing saves: 5 % of the time of float32 at 384³, on 16 cores of a Xeon, and 10 % at 330³. One
# phase of k has the same bits.
MANY, LARGEST_OF_MANY = 8, 416
pack, tile = codegen.packer(CHOSEN.vector_bits), edges.compiled_tile(BLOCKS)


@codegen.njit(nogil=True, inline="always")
def write(steps, a, a_stride, b, c, band, sliver, corner, near):
    """Multiply a band by a sliver for ``team_product``, and write to C directly, or through ``corner``."""
    (kc, accumulate, _), (top, tiles, low, higher), (left, columns, vectors) = steps, band, sliver
    width = vectors * (VECTOR_BYTES // codegen.itemsize(corner))
    for x in range(tiles):
        rows = low + 1 if x < higher else low
        inside = triangle.columns_of_tile(columns, left, top + rows, near.reals)
        if c.strides[1] == codegen.itemsize(c) and rows >= MR - 1:
            ldc = c.strides[0] // codegen.itemsize(c)
            tile(kc, a, a_stride, b, codegen.address(c, top, left), ldc, accumulate, rows, vectors, inside, x, near)
        else:
            tile(kc, a, a_stride, b, codegen.offset(corner, 0), width, 0, max(rows, MR - 1), vectors, width, x, near)
            add_corner(corner, width, c, top, rows, left, inside, accumulate)
        top += rows
        a = codegen.ahead(a, rows * a_stride)


@codegen.njit(nogil=True)
def add_corner(corner, width, c, top, rows, left, columns, accumulate):
    """Write a finished tile, in rows of ``width`` elements, to C one element at a time. ``add_corner`` is needed if the
    strides of C do not allow stores of vectors, or if C has fewer rows than any tile."""
    for r in range(rows):
        for s in range(columns):
            value = corner[r * width + s]
            c[top + r, left + s] = c[top + r, left + s] + value if accumulate else value


product = jobs.team_product(BLOCKS, pack, pack, write, in_place=True)


@kernel(
    order=13,
    idea="Pack blocks of A and B, share tiles of C among groups of threads, and pack the next columns of B in advance.",
    row="S1.11, S1.12",
    parent="cpu/register_tile",
    dtypes=(*FLOATS, "int32", "int64", "uint32", "uint64"),
    shared="team",
    triangle=True,
    grain=(BLOCKS.mr, BLOCKS.nr),
    strided=True,
    params=BLOCKS.params,
    blocking=CHOSEN,
    workspace=BLOCKS.workspace,
    counters=BLOCKS.counters,
    in_place=True,
    suits=lambda m, n, k: True,
    for_many=(
        "cpu/direct",
        lambda m, n, k, threads, itemsize: (
            threads >= MANY and itemsize <= 4 and max(m, n, k) <= min(LARGEST_OF_MANY, CHOSEN.kc)
        ),
    ),
    adds=True,
)
def packed(a, b, c, space, counters):
    (m, k), n = a.shape, b.shape[1]
    if k == 0 and not counters[counters.size - 2]:
        c[:] = 0
    product(a, b, c, m, n, k, space, counters)
