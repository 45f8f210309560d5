"""The kernel for complex numbers: it computes a real product of twice the size, and only packing treats the numbers as
complex.

    (x + iy)·(u + iv) = [x y] · ⎡ u  v⎤      A stays as it lies: k complex numbers are a row of 2k real ones.
                               ⎣−v  u⎦      Each row of B is packed twice: as it lies, and times i.

The product of the real matrices, m × 2k and 2k × 2n, is an m × 2n matrix of real numbers, which is how C is stored. So
real and imaginary parts are never separated. This kernel uses the 1m method of Van Zee (SIAM J. Sci. Comput. 2020),
with the roles of A and B exchanged because C is row-major. Each product of two complex elements takes four
multiply-adds, as in the formula (x + iy)·(u + iv) = (xu − yv) + i(xv + yu). Each real or imaginary part is one chain of
2k multiply-adds, so γ_2k bounds its error, and NaN and infinity occur where the formula gives them.
"""

import numpy as np

from tilewright.cpu import codegen
from tilewright.cpu.engine import cuts, edges, jobs, triangle
from tilewright.kernels import kernel
from tilewright.kernels.blocking import blocking

CHOSEN = blocking()
BLOCKS = cuts.PackedBlocks("complex", CHOSEN, CHOSEN.kc_of_8_bytes, itemsize=4)
MR, VECTOR_BYTES = CHOSEN.mr, CHOSEN.vector_bits // 8
parts, times_i = codegen.real_parts, codegen.row_times_i(CHOSEN.vector_bits)
pack, tile = codegen.packer(CHOSEN.vector_bits), edges.compiled_tile(BLOCKS)
LINE = codegen.ALIGNMENT // 16  # complex128 numbers in a cache line


@codegen.njit(nogil=True)
def copy_rows(x, top, rows, left, columns, target, at, ld):
    """Copy complex numbers with any strides to rows that are ``ld`` real numbers apart."""
    if x.strides[1] == x.itemsize:
        for r in range(rows):
            codegen.copy(codegen.offset(target, at + r * ld), parts(codegen.address(x, top + r, left)), 2 * columns)
    elif x.itemsize == 8:
        pack(x.view(np.int64), top, rows, left, columns, target.view(np.int64), at // 2, ld // 2)
    else:
        for first in range(0, columns, LINE):
            for r in range(rows):
                for s in range(first, min(columns, first + LINE)):
                    source = codegen.address(x, top + r, left + s)
                    codegen.copy(codegen.offset(target, at + r * ld + 2 * s), parts(source), 2)


@codegen.njit(nogil=True, inline="always")
def pack_rows(a, top, rows, low, kc, target, at, ld):
    """Pack rows of A for ``team_product``, which counts real numbers: a step of k is half a complex number."""
    copy_rows(a, top, rows, low // 2, kc // 2, target, at, ld)


@codegen.njit(nogil=True, inline="always")
def pack_columns(b, low, kc, left, columns, target, at, ld):
    """Pack columns of B for ``team_product``: each row of B is copied unchanged, and, multiplied by i, into the row
    below."""
    copy_rows(b, low // 2, kc // 2, left // 2, columns // 2, target, at, 2 * ld)
    for row in range(at, at + kc * ld, 2 * ld):
        times_i(codegen.offset(target, row), codegen.offset(target, row + ld), ld)


@codegen.njit(nogil=True, inline="always")
def write(steps, a, a_stride, b, c, band, sliver, corner, near):
    """Multiply a band by a sliver for ``team_product``, and write to C as real numbers, directly or through
    ``corner``."""
    (kc, accumulate, _), (top, tiles, low, higher), (left, columns, vectors) = steps, band, sliver
    width = vectors * (VECTOR_BYTES // codegen.itemsize(corner))
    for x in range(tiles):
        rows = low + 1 if x < higher else low
        inside = triangle.columns_of_tile(columns, left, top + rows, near.reals)
        if c.strides[1] == codegen.itemsize(c) and rows >= MR - 1:
            ldc = c.strides[0] // codegen.itemsize(corner)
            of_c = parts(codegen.address(c, top, left // 2))
            tile(kc, a, a_stride, b, of_c, ldc, accumulate, rows, vectors, inside, x, near)
        else:
            tile(kc, a, a_stride, b, codegen.offset(corner, 0), width, 0, MR, vectors, width, x, near)
            add_corner(corner, width, c, top, rows, left // 2, inside // 2, accumulate)
        top += rows
        a = codegen.ahead(a, rows * a_stride)


@codegen.njit(nogil=True)
def add_corner(corner, width, c, top, rows, left, columns, accumulate):
    """Write a finished tile, in rows of ``width`` real numbers, to a C whose strides do not allow stores of vectors."""
    for r in range(rows):
        for s in range(columns):
            element = complex(corner[r * width + 2 * s], corner[r * width + 2 * s + 1])
            c[top + r, left + s] = c[top + r, left + s] + element if accumulate else element


product = jobs.team_product(BLOCKS, pack_rows, pack_columns, write, grain=2)


@kernel(
    order=18,
    idea="Multiply complex matrices with the tile for real ones: each row of B is packed twice, once multiplied by i.",
    row="S1.11",
    parent="cpu/packed",
    dtypes=("complex64", "complex128"),
    shared="team",
    triangle=True,
    grain=(BLOCKS.mr, BLOCKS.nr),
    strided=True,
    params=BLOCKS.params | {"kc": BLOCKS.kc // 2, "nc": BLOCKS.nc // 2},
    workspace=lambda m, n, k, *threads: BLOCKS.workspace(m, 2 * n, 2 * k, *threads) // 2 + 1,
    counters=lambda m, n, k: BLOCKS.counters(m, 2 * n, 2 * k),
    suits=lambda m, n, k: True,
    adds=True,
)
def complex_product(a, b, c, space, counters):
    (m, k), n = a.shape, b.shape[1]
    if k == 0 and not counters[counters.size - 2]:
        c[:] = 0
    product(a, b, c, m, 2 * n, 2 * k, space.view(space.real.dtype), counters)
