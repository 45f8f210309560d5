"""The kernel for small products, which reads operands without packing (S1.10), because packing would take as long as
multiplying.

Operands in the first-level cache are read as fast as a packed panel, so a small product needs no packing, only tiles.
An element of A, with any strides, is broadcast from memory into the multiply-adds with up to NV vectors of a row of B.
There is a tile for every number of rows and of vectors of columns; the last vector is masked. C is cut into tiles of
nearly equal size, so only the masked lanes of the last vector compute unused elements.

Eight accumulators keep two multiply-add units with a latency of four cycles busy, so 8 rows are enough for a tile. But
beginning a tile takes as long as ten steps of k. If k is small, tiles are as high as registers allow, up to 16 rows:
with 8 rows, batches of 12³ and 16³ in float32 took a third longer on Zen 4. If k is large, it is better that a tile
prefetches the rows of the next tile, one cache line at each step. So, for a large k, tiles of one vector have as many
rows as a cache line has elements: 16 for float32.

Operands of a small product may still come from memory. So each tile in the first panel of columns of C prefetches the
rows of A and C for the tile below it, and a part of the other panels of B. A tile prefetches one line at each step of
k, because many prefetches at once would block the loads that the tile waits for. Without prefetching, waiting for
operands from memory takes a third of the time of products of 100³ to 200³. In a batch of small products, tiles prefetch
the operands of a later product instead.

    for j in even steps of ≤ NV vectors       a panel of B's columns: K rows of it stay in the first-level cache
      for i in even steps of ≤ HEIGHTS        tile(rows, vectors): K steps in registers, one write

If B has no unit stride along a row, B is first copied to rows with unit stride. If C has no unit stride along a row,
the product is computed in a buffer and then copied to C. A C of one column would use only one lane of each vector, so
it is computed by dot products instead.
"""

import math
from typing import Any

from numpy.lib.stride_tricks import as_strided

from tilewright.cpu import codegen
from tilewright.cpu.engine.triangle import ADDS, HERMITIAN, LOWER, mirror
from tilewright.host.machine import machine
from tilewright.kernels import NUMERIC, kernel
from tilewright.kernels.blocking import caches

BITS = machine().vector_bits or 128
REGISTERS = machine().vector_registers or 16
L2 = caches(machine())[1]
NV = 4 if REGISTERS > 16 else 2
# mr·nv accumulators, nv vectors of B, an element of A and the mask; complex numbers have two for each vector of B. With more
# than 8 rows of these, LLVM keeps accumulators of NEON on the stack. In 16 registers 6×2 has twelve accumulators, 3×3 nine:
# with tiles of three vectors, too, float32 took 22 to 28 % longer at 100³ and 200³ on Zen 3.
HEIGHTS = (8, 6) if REGISTERS <= 16 else (16, 12, 8, 6) if BITS == 512 else (8, 8, 8, 6)

# An A of so many rows and columns stays in the second-level cache, beside a panel of B, for each of which it is read again.
# With more columns than 320, rows of B that lie a power of two apart displace each other (512 of float64: half the speed on
# a Xeon); with an L2 of 512 KB, from 256 on (a tenth slower than if packed, on Zen 3).
LARGEST = codegen.setting("direct.largest", min(320, math.isqrt(L2 // 10)))
# Matrices of so many elements together are multiplied here whatever their shape: to plan, pack and multiply 16 rows and
# columns of 2,000 took seven times as long. Vectors and slabs of more have kernels that stream them.
ELEMENTS = codegen.setting("direct.elements", min(L2 // 8, 100_000))
# If C has so many columns, and no fewer rows than the first of these, packing does not pay while all fits the second-level
# cache. On a Xeon, 34 × 39 × 2,548 of float32 takes half the time that it takes packed, 2,000 × 48 × 40 the same. Tiles of
# long rows of C are on many pages: a batch of 57 × 1,518 × 36 takes a quarter longer than packed.
SLIM = 16, 64
ELEMENTS_OF_SLIM = codegen.setting("direct.elements_of_slim", L2 // 8)
# Blocks of which the tiles prefetch B and C, too. Of more the threads take lines from each other's caches: on 16 cores of a
# Xeon products of 160³ to 320³ took a fifth longer with such prefetches. Those of A, which fewer threads read, save 1 to 8 %
# at 200³ to 384³ there.
FEW_BLOCKS = 4
# The parts that a thread takes from its block of C one after the other; other threads take what it does not get to. Each
# part reads all of B, and its last tile prefetches nothing: of few blocks, with four parts, products of 100³ to 200³ took up
# to a quarter longer.
PARTS, PARTS_OF_FEW = 4, 2
# Rows of a part of a symmetric C, which is computed up to its last row's diagonal element.
PART_OF_TRIANGLE = 16
# The fewest rows or columns of a thread's block, and the fewest rows of a part of it.
FEWEST = 8
# A block of h × w elements reads h + w rows and columns. To read one takes about as long as to compute so many elements.
READING = 32
# Steps of k below which a tile does not prefetch. The most bytes between two prefetches: where a matrix is part of a much
# wider one, most lines that they pass belong to the rest of that.
FEW_STEPS, FARTHEST = 32, 2 * codegen.ALIGNMENT
# The product of a batch that tiles prefetch is so many after theirs, but no more than have AHEAD bytes together. On Zen 4,
# batches of 32³ to 100³ that come from memory take a tenth to a fifth less that way.
PRODUCTS_AHEAD, AHEAD = 3, codegen.setting("direct.ahead", L2 // 4)
# Threads that have a block of their own; further ones take parts of these.
MOST_BLOCKS = codegen.setting("direct.blocks", max(4, machine().usable_cores))
LINE = 8  # words from one counter to the next: one counter per cache line avoids false sharing

tile = codegen.direct_tile(HEIGHTS, BITS)
pack = codegen.packer(BITS)


def suits(m: int, n: int, k: int) -> bool:
    """Return whether a product is small: by its sizes, or by the number of elements of A, B and C together."""
    longest = max(m, n, k)  # compared first, for the products of long sides may not fit 64 bits
    most = ELEMENTS_OF_SLIM() if m >= SLIM[0] and SLIM[0] <= n <= SLIM[1] else ELEMENTS()
    return longest <= LARGEST() or (longest <= most and m * k + k * n + m * n <= most)


@codegen.njit(nogil=True)
def even(length, most):
    """Cut ``length`` into the fewest parts of at most ``most``. Returns the length of the shorter parts, the number of
    parts that are longer by one, and the number of the shorter parts."""
    if length <= most:
        return length, 0, 1
    parts = (length + most - 1) // most
    size = length // parts
    longer = length - parts * size
    return size, longer, parts - longer


@codegen.njit(nogil=True)
def most_rows(nv, lanes, k):
    """Return the number of rows of the highest tile with ``nv`` vectors of columns, for k steps."""
    most = max(lanes, codegen.LOW) if nv == 1 else codegen.LOW
    return HEIGHTS[nv - 1] if k < FEW_STEPS else min(HEIGHTS[nv - 1], most)


@codegen.njit(nogil=True)
def unit_stride(x):
    """Return whether the elements of a row are contiguous in memory."""
    return x.shape[1] == 1 or x.strides[1] == codegen.itemsize(x)


@codegen.njit(nogil=True)
def rows_like(x):
    """Return an uninitialised matrix of the shape of ``x``, with unit stride along a row, whose rows begin on cache
    lines."""
    rows, columns = x.shape
    line = codegen.ALIGNMENT // codegen.itemsize(x)
    length = ((columns + line - 1) // line | 1) * line  # an odd number of lines: they fall into all sets of a cache
    return codegen.aligned_buffer(rows * length, x).reshape((rows, length))[:, :columns]


@codegen.njit(nogil=True)
def better_transposed(m, n, a_row, a_column, b_row, b_column, c_row, one):
    """Return whether Cᵀ = Bᵀ·Aᵀ is faster to compute than C = A·B, judged by sizes and strides. Cᵀ is faster for a
    column-major matrix times a vector."""
    by_columns = n == 1 and m > 1 and a_row == one and a_column != one and c_row == one
    return by_columns or (m == 1 and n > 1 and b_row == one and b_column != one)


@codegen.njit(nogil=True)
def pace(rows, row, steps):
    """Return the number of bytes by which a prefetch advances at each of ``steps`` steps, to cover ``rows`` rows that
    are ``row`` bytes apart."""
    step = rows * row // steps
    return step if abs(step) <= FARTHEST else 0


@codegen.njit(nogil=True)
def paces(a, b, c, mr):
    """Return the numbers of bytes by which a tile of ``mr`` rows advances its prefetches in A, B and C at each step.
    The prefetches cover ``mr`` rows of A and of C, and the fraction ``mr`` / m of B."""
    (m, k), (a_row, a_column) = a.shape, a.strides
    # If the rows below are neighbours in memory, they are passed at the same step of k.
    of_a = a_column if abs(a_row) < abs(a_column) else pace(mr, a_row, k)
    return of_a, pace(mr, b.strides[0], m), pace(mr, c.strides[0], k)


@codegen.njit(nogil=True)
def ahead_of(a, b, c, i, top, moves, all_of_b, only_a):
    """Return the addresses from which a tile prefetches, and the bytes by which they advance at each step. The tile
    begins at row ``i`` of the first panel; ``moves`` are the numbers that ``paces`` returned.

    The prefetches of a tile cover A and C from row ``top`` on. The prefetches do not cover B if the panel is
    ``all_of_b``, and with ``only_a`` they cover neither B nor C."""
    of_a, of_b, of_c = moves
    if all_of_b:
        of_b = 0
    # To divide takes as long as a step of k, and most batches have i = 0.
    row = i * a.shape[1] // a.shape[0] if i > 0 else 0
    below, share, out = codegen.address(a, top, 0), codegen.address(b, row, 0), codegen.address(c, top, 0)
    return (below, of_a, below, 0, below, 0) if only_a else (below, of_a, share, of_b, out, of_c)


@codegen.njit(nogil=True)
def tiles_in_batch(a, higher, lower, prefetching):
    """Return the number of the next tiles that are computed as one batch. Tiles of a batch have the same height;
    beginning each tile on its own would take as long as ten steps of k. The next tiles are ``higher`` tiles of one
    height, and then ``lower`` tiles with one row less.

    If the tiles are ``prefetching``, the batch does not contain the lowest tile of C, which has no tile below it. A
    batch of prefetching tiles has only one tile if rows of A are closer together than columns, because each tile then
    prefetches from another place.
    """
    a_row, a_column = a.strides
    if prefetching and abs(a_row) < abs(a_column):
        return 1
    tiles = higher if higher > 0 else lower
    return tiles - 1 if prefetching and tiles > 1 and min(higher, lower) == 0 else tiles


@codegen.njit(stays_apart=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def dots(a, b, c):
    """Multiply a row-major matrix by a column, two rows at a time. Each sum of the product is spread over the lanes of
    vectors."""
    m, k = a.shape
    column, down = codegen.as_row(b, k), a.strides[0]
    for i in range(0, m, 2):
        j = min(i + 1, m - 1)
        upper, lower = codegen.as_row(codegen.moved(a, i * down), k), codegen.as_row(codegen.moved(a, j * down), k)
        above, below = upper[0] * column[0], lower[0] * column[0]
        for p in range(1, k):
            above += upper[p] * column[p]
            below += lower[p] * column[p]
        c[i, 0], c[j, 0] = above, below


def copy_rows(x: Any, rows: int, columns: int, target: Any, ld: int) -> None:
    """Copy rows of x to ``target``, where they are ``ld`` elements apart."""


@codegen.overload(copy_rows)
def _copy_rows(x, rows, columns, target, ld):  # noqa: ARG001  # the two below take them
    def by_vectors(x, rows, columns, target, ld):
        pack(x, 0, rows, 0, columns, target, 0, ld)

    def by_elements(x, rows, columns, target, ld):
        for r in range(rows):
            for s in range(columns):
                target[r * ld + s] = x[r, s]

    return by_elements if x.dtype.name.startswith("complex") else by_vectors


@codegen.njit(nogil=True)
def batch_products(a, b, c, count, step_a, step_b, step_c):
    """Compute ``count`` products of one shape. Each matrix of a product is ``step_…`` bytes after the same matrix of
    the previous product."""
    m = a.shape[0]
    if count > 1 and step_b == 0 and step_a == m * a.strides[0] and step_c == m * c.strides[0]:
        a, c = as_strided(a, (count * m, a.shape[1]), a.strides), as_strided(c, (count * m, c.shape[1]), c.strides)
        count = 1  # one product of all rows
    tiled_products(a, b, c, count, step_a, step_b, step_c, False)


@codegen.njit(nogil=True)
def tiled_products(a, b, c, count, step_a, step_b, step_c, only_a):
    """Compute products as ``batch_products`` does, in tiles that prefetch the data of later tiles; with ``only_a``,
    only data of A."""
    m, k = a.shape
    n = b.shape[1]
    a_row, a_column = a.strides
    one = codegen.itemsize(c)
    lanes = BITS // 8 // one
    straight_b, straight_c = unit_stride(b), unit_stride(c)
    b_rows, c_rows = b if straight_b else rows_like(b), c if straight_c else rows_like(c)
    b_row, c_row = b_rows.strides[0], c_rows.strides[0]
    # With a single step the strides of k mean nothing, and the bits are not to depend on them.
    rows_by_column = n == 1 and k > 1 and a_column == one and b_row == one
    # A tile that covers the whole product computes the whole batch.
    one_tile = straight_b and straight_c and 0 < n <= lanes * NV and m <= most_rows((n - 1) // lanes + 1, lanes, k)
    at_once = count if one_tile and not rows_by_column else 1
    distance = 0  # from a product to the one that its tiles prefetch
    if count > 1 and k >= FEW_STEPS:
        distance = min(PRODUCTS_AHEAD, AHEAD() // max(1, (m * k + k * n + m * n) * one))
    vectors, wider_ones, _ = even((n + lanes - 1) // lanes, NV)
    narrow = even(m, most_rows(max(1, vectors), lanes, k))
    wide = even(m, most_rows(vectors + 1, lanes, k)) if wider_ones > 0 else narrow
    moves, moves_of = (0, 0, 0), 0
    for which in range(0, count, at_once):
        a_now = codegen.moved(a, which * step_a)
        b_now = codegen.moved(b_rows, which * step_b if straight_b else 0)
        c_now = codegen.moved(c_rows, which * step_c if straight_c else 0)
        if not straight_b:
            copy_rows(codegen.moved(b, which * step_b), k, n, codegen.as_row(b_rows, k * b_row // one), b_row // one)
        if rows_by_column:
            dots(a_now, b_now, c_now)
            continue
        wider, j = wider_ones, 0
        while j < n:
            nv = vectors + (wider > 0)
            wider -= 1
            columns = min(nv * lanes, n - j)
            rows, higher, lower = wide if nv > vectors else narrow
            later = j == 0 and 0 < distance < count - which
            prefetching = j == 0 and k >= FEW_STEPS and not later
            i = 0
            while i < m:
                mr = rows + (higher > 0)
                tiles = tiles_in_batch(a, higher, lower, prefetching)
                if higher > 0:
                    higher -= tiles
                else:
                    lower -= tiles
                at_a, at_b, at_c = (
                    codegen.address(a_now, i, 0),
                    codegen.address(b_now, 0, j),
                    codegen.address(c_now, i, j),
                )
                size, down = (mr, nv, columns, k), (tiles, mr * a_row, 0, mr * c_row)
                batch = (at_once, step_a, step_b, step_c) if at_once > 1 else down
                ahead = (at_a, 0, at_a, 0, at_a, 0)
                has_below = prefetching and i + mr < m
                if (later or has_below) and mr != moves_of:
                    moves, moves_of = paces(a, b_rows, c_rows, mr), mr
                if later:
                    x, y, z = (which + distance) * step_a, (which + distance) * step_b, (which + distance) * step_c
                    later_a, later_b, later_c = codegen.moved(a, x), codegen.moved(b, y), codegen.moved(c, z)
                    ahead = ahead_of(later_a, later_b, later_c, i, i, moves, False, False)
                elif has_below:
                    ahead = ahead_of(a_now, b_now, c_now, i, i + mr, moves, columns == n, only_a)
                tile(size, (at_a, a_row, a_column), (at_b, b_row), (at_c, c_row), batch, ahead)
                i += tiles * mr
            j += columns
        if not straight_c:
            c_there = codegen.moved(c, which * step_c)
            for i in range(m):
                for j in range(n):
                    c_there[i, j] = c_rows[i, j]


@codegen.njit(nogil=True)
def triangle_part(a, b, c, i, stop, left, right, how):
    """Compute rows ``i`` to ``stop`` of columns ``left`` to ``right`` of a symmetric C. The square of these rows on the
    diagonal is computed as a whole; the elements left of the square are then mirrored."""
    if left >= right:
        return
    tiled_products(a[i:stop], b[:, left:right], c[i:stop, left:right], 1, 0, 0, 0, stop < c.shape[0])
    if how & LOWER == 0:
        mirror(c, i, stop, left, min(right, i), (how & HERMITIAN) != 0)


@codegen.njit(nogil=True)
def blocks_of(m, n, threads):
    """Return the numbers of blocks of rows and of columns into which C is cut for threads. Square blocks read the
    fewest elements of A and B."""
    best, across, along = m * n + READING * (m + n), 1, 1
    for p in range(1, min(threads, (m + FEWEST - 1) // FEWEST) + 1):
        q = min(threads // p, (n + FEWEST - 1) // FEWEST)
        h, w = (m + p - 1) // p, (n + q - 1) // q
        if h * w + READING * (h + w) < best:
            best, across, along = h * w + READING * (h + w), p, q
    return across, along


@kernel(
    order=21,
    idea="Multiply small matrices where they lie: packing them would cost as much as it saves.",
    row="S1.10, S1.11",
    parent="cpu/register_tile",
    dtypes=NUMERIC,
    shared="team",
    triangle=True,
    strided=True,
    suits=suits,
    params={"mr": HEIGHTS[-1], "nv": NV, "vector_bits": BITS},  # the widest tile
    counters=lambda m, n, k: LINE * (1 + MOST_BLOCKS()),  # the same for every shape
)
def direct(a, b, c, space, counters):  # noqa: ARG001  # it needs no workspace
    m, n = c.shape
    (a_row, a_column), (b_row, b_column) = a.strides, b.strides
    if better_transposed(m, n, a_row, a_column, b_row, b_column, c.strides[0], codegen.itemsize(c)):
        a, b, c, m = b.T, a.T, c.T, n
        n = c.shape[1]
    across, along = blocks_of(m, n, max(1, min(MOST_BLOCKS(), counters[counters.size - 1])))
    blocks = across * along
    few = blocks <= FEW_BLOCKS
    how = counters[counters.size - 2]
    if how > ADDS and not unit_stride(b):  # each part would copy it
        rows = rows_like(b)
        k, ld = b.shape[0], rows.strides[0] // codegen.itemsize(b)
        copy_rows(b, k, n, codegen.as_row(rows, k * ld), ld)
        b = rows
    home = codegen.fetch_add(counters, 0, 1)
    for x in range(blocks):
        block = (home + x) % blocks
        row, column = block // along, block % along
        top, left = row * m // across, column * n // along
        bottom, right = (row + 1) * m // across, (column + 1) * n // along
        parts = min(PARTS_OF_FEW if few else PARTS, (bottom - top + FEWEST - 1) // FEWEST) if blocks > 1 else 1
        if how > ADDS:
            parts = (bottom - top + PART_OF_TRIANGLE - 1) // PART_OF_TRIANGLE
        while True:
            part = codegen.take_below(counters, LINE * (1 + block), parts)
            if part >= parts:
                break
            if how > ADDS:  # the longest rows first, which bring all of B into the caches
                part = parts - 1 - part
            i, stop = top + part * (bottom - top) // parts, top + (part + 1) * (bottom - top) // parts
            if how > ADDS:
                triangle_part(a, b, c, i, stop, left, min(right, stop), how)
                continue
            tiled_products(a[i:stop], b[:, left:right], c[i:stop, left:right], 1, 0, 0, 0, not few)
