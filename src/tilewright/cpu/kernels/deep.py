"""The kernel for a small C and a very long k: k is cut into pieces, which threads share, and the products of the pieces
are added in order.

A C of 32 × 32 elements is too small to be divided among threads. So this kernel cuts k into at most 64 pieces, whose
length depends only on k. The product over each piece of k is written to the workspace. The thread that finishes last
adds the products of the pieces in the order of k, so the bits of C depend neither on the number of threads nor on their
timing. This kernel reads operands without packing if possible:

- Rows of B (or columns of A) of at least half a vector are multiplied in register tiles, with elements of A broadcast
  from memory. Elements of B that are 128 steps of k ahead are prefetched, because hardware prefetchers do not follow
  rows of half a cache line. With these prefetches the loop is 2 to 3 times as fast.
- Rows of less than half a vector are multiplied by dot products along k, with partial sums in the lanes of vectors. Two
  to four adjacent columns of a row-major matrix have no unit stride along k, so shuffles first copy each to contiguous
  memory, for as many steps as L1 can hold.
"""

from tilewright.cpu import codegen
from tilewright.host.machine import machine
from tilewright.kernels import kernel

BITS = machine().vector_bits or 128
MANY = (machine().vector_registers or 16) >= 32
#: The tile of C where rows of B fill vectors; then the tile of dot products.
MR, NV = (8 if MANY else 4), 2
ROWS, COLUMNS = (4 if MANY else 2), 4
#: Steps of k that stay in L1 or L2 while they are read repeatedly; and the distance of prefetches, in steps.
KC, AHEAD = 512, 128
#: The number of pieces of k, at most, steps in one, at least, and the unit of their length: with one of KC, 100,000 steps
#: would be 49 pieces, of which one thread takes the last while 15 others wait.
PIECES, SHORTEST, UNIT = 64, 1024, 128
#: Elements by which a packed column may be overrun.
SPARE = 64

tile_1 = codegen.tile_in_place(MR, 1, BITS, prefetch=True)
tile_2 = codegen.tile_in_place(MR, NV, BITS, prefetch=True)
dots = codegen.row_dots(ROWS, COLUMNS, 1, BITS)
deinterleave_2 = codegen.deinterleave(2, BITS)
deinterleave_3 = codegen.deinterleave(3, BITS)
deinterleave_4 = codegen.deinterleave(4, BITS)
buffer_x = codegen.stack_buffer(ROWS * (KC + SPARE))
buffer_y = codegen.stack_buffer(COLUMNS * (KC + SPARE))


@codegen.register_jitable
def piece_length(k):
    """Return the number of steps of k in a piece: a multiple of UNIT, at least SHORTEST, and a function of k alone."""
    return max(SHORTEST, -(-k // (PIECES * UNIT)) * UNIT)


@codegen.register_jitable
def piece_count(k):
    """Return the number of pieces into which k is cut."""
    return max(1, -(-k // piece_length(k)))


@codegen.register_jitable
def area(m, n):
    """Return the number of elements of a partial product, rounded up to whole tiles both for C and for its
    transpose."""
    return -(-m // 16) * 16 * (-(-n // 16) * 16)


@codegen.njit(nogil=True)
def tiled(x, y, partial, pitch):
    """Compute partial = X·Y in register tiles; the rows of Y must have unit stride."""
    m, k = x.shape
    n = y.shape[1]
    size = codegen.itemsize(x)
    lanes = BITS // 8 // size
    x_row, x_step, y_step = x.strides[0] // size, x.strides[1] // size, y.strides[0] // size
    x_ahead = AHEAD * x_step
    for p in range(0, max(k, 1), KC):
        kc = min(KC, k - p)
        for j in range(0, n, NV * lanes):
            y_part, columns = codegen.address(y, p, j), min(n - j, NV * lanes)
            for i in range(0, m, MR):
                x_part, to, live = codegen.address(x, i, p), codegen.ahead(partial, i * pitch + j), min(MR, m - i)
                y_ahead = AHEAD * y_step if i == 0 else 0  # the first tile prefetches Y for the tiles below it
                if columns > lanes:
                    tile_2(kc, x_part, x_row, x_step, live, y_part, y_step, columns, to, pitch, p, x_ahead, y_ahead)
                else:
                    tile_1(kc, x_part, x_row, x_step, live, y_part, y_step, columns, to, pitch, p, x_ahead, y_ahead)


@codegen.njit(nogil=True)
def columns_to_rows(y, target):
    """Copy columns of ``y`` (kc × 1 to 4) to columns of unit stride, which are KC + SPARE elements apart."""
    kc, t = y.shape
    dense = y.strides[1] == codegen.itemsize(y) and y.strides[0] == t * codegen.itemsize(y)
    if dense and t == 2:
        deinterleave_2(kc, codegen.address(y, 0, 0), target, KC + SPARE)
    elif dense and t == 3:
        deinterleave_3(kc, codegen.address(y, 0, 0), target, KC + SPARE)
    elif dense and t == 4:
        deinterleave_4(kc, codegen.address(y, 0, 0), target, KC + SPARE)
    else:
        for p in range(kc):
            for j in range(t):
                target[j * (KC + SPARE) + p] = y[p, j]


@codegen.njit(nogil=True)
def dotted(x, y, partial, pitch):
    """Compute partial = X·Y by dot products along k. An operand without unit stride along k is first copied to
    contiguous memory."""
    m, k = x.shape
    n = y.shape[1]
    size = codegen.itemsize(x)
    x_in_place, y_in_place = x.strides[1] == size, y.strides[0] == size
    x_row = x.strides[0] // size if x_in_place else KC + SPARE
    y_row = y.strides[1] // size if y_in_place else KC + SPARE
    x_copy, y_copy = buffer_x(x), buffer_y(x)
    for p in range(0, max(k, 1), KC):
        kc = min(KC, k - p)
        for j in range(0, n, COLUMNS):
            columns = min(COLUMNS, n - j)
            if not y_in_place:
                columns_to_rows(y[p : p + kc, j : j + columns], y_copy)
            y_part = codegen.address(y, p, j) if y_in_place else y_copy
            for i in range(0, m, ROWS):
                rows = min(ROWS, m - i)
                if not x_in_place:
                    columns_to_rows(x[i : i + rows, p : p + kc].T, x_copy)
                x_part = codegen.address(x, i, p) if x_in_place else x_copy
                dots(
                    kc, x_part, x_row, rows, y_part, y_row, columns, codegen.ahead(partial, i * pitch + j), pitch, 1, p
                )


@kernel(
    order=16,
    idea="For a small C and a long k: k is cut into pieces of a fixed length, and their products are added in order.",
    row="S1, S3.1",
    parent="cpu/register_tile",
    shared="team",
    strided=True,
    params={"vector_bits": BITS, "mr": MR, "nv": NV, "steps": KC, "pieces": PIECES},
    workspace=lambda m, n, k: piece_count(k) * area(m, n),
    counters=lambda m, n, k: 2,
    suits=lambda m, n, k: 0 < max(m, n) <= 96 and k >= 2048 and (m + n) * k >= 65536,
)
def deep(a, b, c, space, counters):
    size = codegen.itemsize(c)
    lanes = BITS // 8 // size
    wide_b = b.strides[1] == size and (b.shape[1] > 4 or 2 * b.shape[1] >= lanes)
    wide_a = a.strides[0] == size and (a.shape[0] > 4 or 2 * a.shape[0] >= lanes)
    transposed = wide_a and not wide_b
    x = b.T if transposed else a
    y = a.T if transposed else b
    z = c.T if transposed else c
    (m, k), n = x.shape, y.shape[1]
    length, pieces, pitch = piece_length(k), piece_count(k), -(-n // 16) * 16
    elements = area(m, n)
    if m * n == 0:
        return
    while True:
        piece = codegen.fetch_add(counters, 0, 1)
        if piece >= pieces:
            return
        steps = slice(piece * length, min(k, (piece + 1) * length))
        partial = codegen.offset(space, piece * elements)
        if wide_a or wide_b:
            tiled(x[:, steps], y[steps], partial, pitch)
        else:
            dotted(x[:, steps], y[steps], partial, pitch)
        if codegen.fetch_add(counters, 1, 1) == pieces - 1:
            break
    for i in range(m):
        for other in range(1, pieces):
            for j in range(n):
                space[i * pitch + j] += space[other * elements + i * pitch + j]
        for j in range(n):
            z[i, j] = space[i * pitch + j]
