"""The kernel for products in which one operand is a vector or a few vectors: the other operand is read once, without
packing, at the speed of memory.

Packing reads a matrix, writes it and reads it again. Packing is faster only if each element is used many times. In
products with a few vectors, each element of the wide operand is used once for every column of the narrow operand. With
six columns of float32 a core does 12 operations for 4 bytes, but it can do 28 operations for each byte that memory
delivers. So the wide operand X of Z = X·Y is read once, in one of two ways; X is A, or Bᵀ if C has fewer rows than
columns:

- If the rows of X have unit stride along k, eight rows at a time (four if Y has several columns) are multiplied, as dot
  products, by the columns of Y, which stay in cache.
- If the columns of X have unit stride, eight columns at a time are scaled and added to a strip of Z that stays in L1.
  If Y has many columns, an X that may be in the last-level cache is read in tiles instead, by ``cpu/direct``.

Each row or column of X is a stream of reads. Hardware prefetchers alone follow four streams best, and leave a fifth to
a third of the bandwidth of one core unused. Prefetch instructions into the second-level cache, 256 elements ahead in
each of eight streams, use the remaining bandwidth. A float32 matrix of 3,000² times one vector took 2.03 ms with four
streams and no prefetch instructions, 1.63 ms with four streams and 1.39 ms with eight. With twelve streams, the product
is slower if the stride is a multiple of 4 KiB, because the streams then share the sets of L1.
"""

import numpy as np

from tilewright.cpu import codegen
from tilewright.cpu.engine.jobs import FAR
from tilewright.cpu.kernels.direct import tiled_products
from tilewright.host.machine import machine
from tilewright.kernels import kernel
from tilewright.kernels.blocking import caches

BITS = machine().vector_bits or 128
#: Rows of X at a time: 4 · 6 sums fill 32 registers, 2 · 6 fill 16. One vector has room for twice as many, in two chains.
ROWS = 4 if (machine().vector_registers or 16) >= 32 else 2
ROWS_OF_ONE = 2 * ROWS
#: Columns of X at a time, and where fewer are left.
STEPS, FEW_STEPS = 8, 4
#: Elements of a row or column that are prefetched ahead.
AHEAD = 256
#: An X of at most so many bytes may be in a near last cache, and is read without prefetches: each takes the place of a load.
#: With one vector or two, products of 1,000² elements to 2,000² take up to a fifth less on Zen 4 that way.
NEAR = codegen.setting("vector.near", 0 if FAR else caches(machine())[2] // 2)
#: With so many vectors, an X of at most so many bytes is read by the tiles of ``cpu/direct``, in blocks of so many bytes of
#: a row: Z is written once. With 17 vectors and 1,000² numbers it takes half the time on Zen 4, and less on a Xeon, if X is
#: in the last cache, and a fifth less if it comes from memory. With 8 it takes a fifth longer from there: long rows are
#: read faster, and so is an X that no last cache holds.
TILED_FROM, TILED_BLOCK = 13, 1024
TILED = codegen.setting("vector.tiled", min(caches(machine())[2] // 2, 32 << 20))
#: Most steps of k between additions to Z.
KC = 2048
#: Rows of X that a thread takes at once.
BAND = 32
#: Bytes of a row of X that are read before the next rows: many for one vector, fewer for more.
DOTS_STRETCH, DOTS_STRETCH_OF_ONE = 4096, 8192
#: The same of a column of X, and of Z, whose strip stays in L1, or with many vectors in the second-level cache.
UPDATE_STRETCH, UPDATE_STRETCH_OF_ONE = 8192, 16384
#: With several vectors, the strips into which Z is cut at least, and the fewest bytes of a row of one: the pieces of k that
#: threads would share instead are written, read and added up.
STRIPS, UPDATE_SHORTEST = 2, 4096
#: Rows of Z that lie a multiple of so many bytes apart share sets of L1 with each other and with those of X, which displaces
#: both: they are computed in the workspace, in rows that are so many bytes longer. With 8 rows and 4,096² numbers of float32
#: it takes half the time on Zen 4, where C begins like B in a page.
DISPLACING, SPARE = 2048, 320
#: Jobs for threads to share: with fewer strips than this, k is cut as well; and the fewest steps of k in a piece.
JOBS, SHORTEST = 16, 128

near_dots_1 = codegen.row_dots(ROWS_OF_ONE, 1, 2, BITS)
near_dots_2 = codegen.row_dots(ROWS, 2, 1, BITS)
dots_1 = codegen.row_dots(ROWS_OF_ONE, 1, 2, BITS, ahead=AHEAD)
dots_2 = codegen.row_dots(ROWS, 2, 1, BITS, ahead=AHEAD)
dots_4 = codegen.row_dots(ROWS, 4, 1, BITS, ahead=AHEAD)
dots_6 = codegen.row_dots(ROWS, 6, 1, BITS, ahead=AHEAD)
near_update_1 = codegen.row_updates(1, STEPS, BITS)
near_update_2 = codegen.row_updates(2, STEPS, BITS)
update_1 = codegen.row_updates(1, STEPS, BITS, ahead=AHEAD)
update_2 = codegen.row_updates(2, STEPS, BITS, ahead=AHEAD)
update_4 = codegen.row_updates(4, STEPS, BITS, ahead=AHEAD)
update_6 = codegen.row_updates(6, STEPS, BITS, ahead=AHEAD)
update_few = codegen.row_updates(6, FEW_STEPS, BITS)
update_last = codegen.row_updates(6, 1, BITS)
buffer = codegen.stack_buffer(ROWS * KC)


@codegen.njit(stays_apart=True, nogil=True)
def dot(near, kc, x, x_row, x_live, y, y_row, y_live, z, z_row, z_column, accumulate):
    """Compute dot products of rows of X with ``y_live`` columns of Y, by the smallest generated loop for at least
    ``y_live`` columns. ``near`` means that X is in a near cache."""
    if y_live == 1 and near:
        near_dots_1(kc, x, x_row, x_live, y, y_row, y_live, z, z_row, z_column, accumulate)
    elif y_live == 2 and near:
        near_dots_2(kc, x, x_row, x_live, y, y_row, y_live, z, z_row, z_column, accumulate)
    elif y_live == 1:
        dots_1(kc, x, x_row, x_live, y, y_row, y_live, z, z_row, z_column, accumulate)
    elif y_live == 2:
        dots_2(kc, x, x_row, x_live, y, y_row, y_live, z, z_row, z_column, accumulate)
    elif y_live <= 4:
        dots_4(kc, x, x_row, x_live, y, y_row, y_live, z, z_row, z_column, accumulate)
    else:
        dots_6(kc, x, x_row, x_live, y, y_row, y_live, z, z_row, z_column, accumulate)


@codegen.njit(stays_apart=True, nogil=True)
def update(near, steps, count, x, x_row, y, y_row, y_column, z, z_row, live):
    """Add ``steps`` scaled columns of X to ``live`` rows of Z, by the smallest generated loop for at least ``live``
    rows."""
    if steps == 1:
        update_last(count, x, x_row, y, y_row, y_column, z, z_row, live)
    elif steps == FEW_STEPS:
        update_few(count, x, x_row, y, y_row, y_column, z, z_row, live)
    elif live == 1 and near:
        near_update_1(count, x, x_row, y, y_row, y_column, z, z_row, live)
    elif live == 2 and near:
        near_update_2(count, x, x_row, y, y_row, y_column, z, z_row, live)
    elif live == 1:
        update_1(count, x, x_row, y, y_row, y_column, z, z_row, live)
    elif live == 2:
        update_2(count, x, x_row, y, y_row, y_column, z, z_row, live)
    elif live <= 4:
        update_4(count, x, x_row, y, y_row, y_column, z, z_row, live)
    else:
        update_6(count, x, x_row, y, y_row, y_column, z, z_row, live)


@codegen.njit(nogil=True)
def columns_at_once(t):
    """Return the number of columns of Y that are multiplied at a time: at most 6. If Y has more columns, about the same
    number is multiplied each time."""
    passes = -(-t // 6)
    return max(1, -(-t // passes))


@codegen.njit(nogil=True)
def by_dots(x, y, z, space, counters):
    """Compute dot products along k. Columns of Y without unit stride are copied to ``space``, and rows of X without
    unit stride to the stack."""
    f, k = x.shape
    t = y.shape[1]
    size = codegen.itemsize(x)
    x_in_place, y_in_place = x.strides[1] == size, y.strides[0] == size
    y_row = y.strides[1] // size if y_in_place else k
    x_row = x.strides[0] // size if x_in_place else KC
    copied = buffer(space)
    if not y_in_place:
        codegen.copy_together(y.T, space, counters, 1)
    columns, bands, near = columns_at_once(t), -(-f // BAND), f * k * size <= NEAR()
    at_once = ROWS_OF_ONE if t == 1 and x_in_place else ROWS
    stretch = min(KC, (DOTS_STRETCH if t > 1 else DOTS_STRETCH_OF_ONE) // size)
    while True:
        band = codegen.fetch_add(counters, 0, 1)
        if band >= bands:
            break
        first = band * BAND
        last = min(f, first + BAND)
        for p0 in range(0, max(k, 1), stretch):
            kc = min(stretch, k - p0)
            for i in range(first, last, at_once):
                rows = min(at_once, last - i)
                if not x_in_place:
                    copy_rows(x[i : i + rows, p0 : p0 + kc], copied)
                x_part = codegen.address(x, i, p0) if x_in_place else copied
                for j in range(0, t, columns):
                    live = min(columns, t - j)
                    y_part = codegen.address(y, p0, j) if y_in_place else codegen.offset(space, j * k + p0)
                    z_row, z_column = z.strides[0] // size, z.strides[1] // size
                    of_z = codegen.address(z, i, j)
                    dot(near, kc, x_part, x_row, rows, y_part, y_row, live, of_z, z_row, z_column, p0)


@codegen.njit(nogil=True)
def copy_rows(x, target):
    """Copy rows without unit stride to rows of KC elements on the stack."""
    rows, kc = x.shape
    for i in range(rows):
        for p in range(kc):
            target[i * KC + p] = x[i, p]


@codegen.njit(nogil=True)
def strip_width(f, t, size):
    """Return the number of elements of a row of a strip of Z: whole cache lines."""
    if t == 1:
        return UPDATE_STRETCH_OF_ONE // size
    line = codegen.ALIGNMENT // size
    even = -(-f // (STRIPS * line)) * line
    return max(UPDATE_SHORTEST // size, min(UPDATE_STRETCH // size, even))


@codegen.njit(nogil=True)
def by_updates(x, y, z, space, counters):
    """Add scaled columns of X, which have unit stride, to Z. Z is cut into strips; if there are few strips, k is cut
    into pieces.

    The pieces of a strip are computed in ``space``. A strip is also computed in ``space`` if its part of Z has no unit
    stride, or has rows that displace each other from the cache. The thread that finishes the last piece of a strip adds
    the pieces in the order of k.
    """
    f, k = x.shape
    t = y.shape[1]
    size = codegen.itemsize(x)
    width = strip_width(f, t, size)
    strips = -(-f // width)
    pieces = max(1, min(JOBS // max(1, strips), k // SHORTEST))
    length = -(-k // (pieces * FEW_STEPS)) * FEW_STEPS
    displacing, near = t > 1 and z.strides[1] % DISPLACING == 0, f * k * size <= NEAR()
    in_place, spare = z.strides[0] == size and pieces == 1 and not displacing, SPARE // size
    while True:
        job = codegen.fetch_add(counters, 0, 1)
        if job >= strips * pieces:
            break
        strip, piece = job // pieces, job % pieces
        first = strip * width
        count = min(width, f - first)
        part = slice(min(k, piece * length), min(k, (piece + 1) * length))
        z_row = z.strides[1] // size if in_place else count + spare
        of_strip = t * pieces * (first + strip * spare)
        place = codegen.address(z, first, 0) if in_place else codegen.offset(space, of_strip + t * piece * z_row)
        update_strip(near, x[first : first + count, part], y[part], place, z_row)
        if not in_place and codegen.fetch_add(counters, 3 + strip, 1) == pieces - 1:
            add_pieces(codegen.offset(space, of_strip), pieces, z_row, z[first : first + count])


@codegen.njit(nogil=True)
def by_tiles(x, y, z, counters):
    """Compute Zᵀ = Yᵀ·Xᵀ, one block of columns of Zᵀ after another. The columns of X have unit stride, and Y has
    several columns."""
    f = x.shape[0]
    width = TILED_BLOCK // codegen.itemsize(x)
    while True:
        first = codegen.fetch_add(counters, 0, 1) * width
        if first >= f:
            break
        block = slice(first, min(f, first + width))
        tiled_products(y.T, x[block].T, z[block].T, 1, 0, 0, 0, False)


@codegen.njit(nogil=True)
def update_strip(near, x, y, z, z_row):
    """Compute Z = X·Y for one strip of X's rows and one piece of k. ``near`` means that the whole of X is in a near
    cache."""
    count, k = x.shape
    t = y.shape[1]
    size = codegen.itemsize(x)
    x_row, y_row, y_column = x.strides[1] // size, y.strides[1] // size, y.strides[0] // size
    rows = columns_at_once(t)
    for i in range(t):
        for j in range(count):
            z[i * z_row + j] = 0
    p = 0
    while p < k:
        steps = STEPS if p + STEPS <= k else FEW_STEPS if p + FEW_STEPS <= k else 1
        for i in range(0, t, rows):
            x_part, y_part, place = codegen.address(x, 0, p), codegen.address(y, p, i), codegen.ahead(z, i * z_row)
            update(near, steps, count, x_part, x_row, y_part, y_row, y_column, place, z_row, min(rows, t - i))
        p += steps


@codegen.njit(nogil=True)
def add_pieces(parts, pieces, row, z):
    """Add up the pieces of a strip in the order of k, and write the sum to Z. The rows of the strip's pieces are
    ``row`` elements apart."""
    count, t = z.shape
    for i in range(t):
        for piece in range(1, pieces):
            other = (piece * t + i) * row
            for j in range(count):
                parts[i * row + j] += parts[other + j]
        for j in range(count):
            z[j, i] = parts[i * row + j]


@codegen.register_jitable
def workspace(m: int, n: int, k: int) -> int:
    """Return the number of workspace elements for copied columns of Y, for Z, or for the pieces of Z's strips. If the
    strips have many pieces, there are few strips."""
    f, t = max(m, n), min(m, n)
    width = (UPDATE_STRETCH if t > 1 else UPDATE_STRETCH_OF_ONE) // 4
    return t * max(k, max(f, min(f, width) * JOBS) + SPARE // 4 * max(JOBS, 1 + f // (UPDATE_STRETCH // 8)))


@codegen.register_jitable
def counters_of(m: int, n: int, k: int) -> int:  # noqa: ARG001  # as of every kernel
    """Return the number of counters: for jobs, for copies, and for the finished pieces of each strip."""
    return 4 + STRIPS + max(m, n) // (UPDATE_STRETCH // 8)


@codegen.njit(nogil=True)
def streamed_product(a, b, c, space, counters):
    """Compute C = A·B; every thread of a team calls this function of the kernel."""
    few_columns = b.shape[1] <= a.shape[0]
    x = a if few_columns else b.T
    y = b if few_columns else a.T
    z = c if few_columns else c.T
    if z.shape[1] == 0:
        return
    size = codegen.itemsize(x)
    if x.strides[0] == size and x.strides[1] != size:
        if z.shape[1] >= TILED_FROM and x.size * size <= TILED():
            by_tiles(x, y, z, counters)
        else:
            by_updates(x, y, z, space, counters)
    else:
        by_dots(x, y, z, space, counters)


@codegen.njit(nogil=True)
def streamed_product_alone(a, b, c):
    """Compute C = A·B on one thread, with a workspace of its own."""
    (m, k), n = a.shape, b.shape[1]
    streamed_product(a, b, c, codegen.aligned_buffer(workspace(m, n, k), c), np.zeros(counters_of(m, n, k), np.int64))


@kernel(
    order=14,
    idea="Multiply by a vector, or by a few: the matrix is read once, where it lies, at eight places at the same time.",
    row="S1, S3.1",
    parent="cpu/register_tile",
    shared="team",
    strided=True,
    params={"vector_bits": BITS, "rows": ROWS_OF_ONE, "steps": STEPS, "stretch": KC},
    workspace=workspace,
    counters=counters_of,
    suits=lambda m, n, k: (0 < m <= 24 or 0 < n <= 12) and k >= 64 and max(m, n) * k >= 100_000,
)
def vector(a, b, c, space, counters):
    streamed_product(a, b, c, space, counters)
