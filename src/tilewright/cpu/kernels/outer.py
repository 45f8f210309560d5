"""The kernel for products with a small k, in which writing C takes most of the time. Each element of C is written once;
if C is larger than the caches, its stores bypass the caches.

At k = 4, each element of C takes 8 operations and the writing of 4 or 8 bytes, so the *writes* to memory determine the
time. A store through the caches first fetches the line that it overwrites, so every byte of C is moved twice. Therefore
a C larger than the caches is written by streaming stores, directly from the accumulators, at 41 GB/s instead of 25
GB/s; NumPy reaches 19 GB/s.

Streaming stores need every row of C to begin at a multiple of the vector size. If C cannot be written by streaming
stores, its rows are prefetched while their sums are computed. Without such a prefetch, a store to a part of a cache
line would fetch the line only when the store executes. Prefetching the rows of C makes the product 2 to 3 times as
fast.

Neither A nor B is packed, because k elements of a row of A and k rows of B stay in L1 or L2. A B that is larger than
these caches is cut into strips of columns, and all columns of C that belong to a strip are computed before the next
strip. Collecting finished tiles in a buffer, and streaming them to C row by row, was no faster than plain stores,
because the core had nothing to compute while it waited for the streaming stores.
"""

from tilewright.cpu import codegen
from tilewright.host.machine import machine
from tilewright.kernels import kernel

BITS = machine().vector_bits or 128
#: The tile: 8 × 2 vectors of sums, or 4 × 2 with 16 registers.
MR = 8 if (machine().vector_registers or 16) >= 32 else 4
NV = 2
#: Bytes of C in a job. Large, because a thread that takes the next job first waits for all its streaming stores.
JOB = 1 << 17
#: Bytes of a strip of B at most: it stays in the second-level cache while jobs go down C.
STRIP = codegen.setting("outer.strip", (machine().l2 or 256 << 10) // 2)
#: C is streamed if it has at least this many bytes: as many as L2 or an eighth of L3, whichever is larger, and at
#: least 1 MiB.
STREAM = codegen.setting("outer.stream", max(machine().l2 or 0, (machine().l3 or 0) // 8, 1 << 20))

# The most elements of a C that stays in the second-level cache, where stores need no prefetch: packing is faster there with
# more than 16 steps (500 × 450 × 28 of float64 on a Xeon: 0.34 ms for 0.84).
SMALL = (machine().l2 or 256 << 10) // 4

tile_1 = codegen.tile_in_place(MR, 1, BITS)
tile_2 = codegen.tile_in_place(MR, NV, BITS)
streamed_1 = codegen.tile_in_place(MR, 1, BITS, stream=True)
streamed_2 = codegen.tile_in_place(MR, NV, BITS, stream=True)
buffer = codegen.stack_buffer(MR * NV * BITS // 32)


def suits(m: int, n: int, k: int) -> bool:
    """Return whether k is small for a C of this size.

    For k above 32, packing is faster if C has few rows or columns; for k above 48, packing is faster for every C. A
    float64 product of 2,600 × 2,304 × 60 on a Xeon took 18.5 ms with packing and 25.7 ms with this kernel."""
    most = 16 if m * n <= SMALL else 32 if min(m, n) < 384 else 48
    return 0 < k <= most and n >= 8 and m * n >= 65536


@kernel(
    order=15,
    idea="For a small k: operands are read where they lie, and C is written once, without passing through the caches.",
    row="S1, S3.1",
    parent="cpu/register_tile",
    shared="team",
    strided=True,
    params={"vector_bits": BITS, "mr": MR, "nv": NV},
    workspace=lambda m, n, k: k * n,
    counters=lambda m, n, k: 3,
    suits=suits,
)
def outer(a, b, c, space, counters):
    m, k = a.shape
    n = b.shape[1]
    if m * n == 0:
        return
    size = codegen.itemsize(c)
    lanes = BITS // 8 // size
    unit, b_in_place = c.strides[1] == size, b.strides[1] == size
    if not b_in_place:
        codegen.copy_together(b, space, counters, 1)
    a_row, a_step = a.strides[0] // size, a.strides[1] // size
    b_step = b.strides[0] // size if b_in_place else n
    c_row = c.strides[0] // size if unit else NV * lanes
    streaming = unit and m * n * size >= STREAM() and (c.ctypes.data | c.strides[0]) % (BITS // 8) == 0
    tile = buffer(c)
    strips = -(-n // (max(1, STRIP() // (max(1, k) * size * NV * lanes)) * NV * lanes))
    wide = -(-n // (strips * NV * lanes)) * NV * lanes
    height = max(1, JOB // (wide * size * MR)) * MR
    bands = -(-m // height)
    while True:
        job = codegen.fetch_add(counters, 0, 1)
        if job >= bands * strips:
            break
        strip, band = job // bands, job % bands
        for i in range(band * height, min(m, (band + 1) * height), MR):
            rows = min(MR, m - i)
            a_part = codegen.address(a, i, 0)
            for j in range(strip * wide, min(n, (strip + 1) * wide), NV * lanes):
                columns = min(NV * lanes, n - j)
                b_part = codegen.address(b, 0, j) if b_in_place else codegen.offset(space, j)
                place = codegen.address(c, i, j) if unit else tile
                if columns == NV * lanes and streaming:
                    streamed_2(k, a_part, a_row, a_step, rows, b_part, b_step, columns, place, c_row, 0)
                elif columns == lanes and streaming:
                    streamed_1(k, a_part, a_row, a_step, rows, b_part, b_step, columns, place, c_row, 0)
                elif columns > lanes:
                    tile_2(k, a_part, a_row, a_step, rows, b_part, b_step, columns, place, c_row, 0)
                else:
                    tile_1(k, a_part, a_row, a_step, rows, b_part, b_step, columns, place, c_row, 0)
                if not unit:
                    copy_tile(tile, c_row, c[i : i + rows, j : j + columns])
    if streaming:
        codegen.settle()


@codegen.njit(nogil=True)
def copy_tile(tile, pitch, c):
    """Write a finished tile, whose rows are ``pitch`` elements apart, to a C without unit stride."""
    rows, columns = c.shape
    for i in range(rows):
        for j in range(columns):
            c[i, j] = tile[i * pitch + j]
