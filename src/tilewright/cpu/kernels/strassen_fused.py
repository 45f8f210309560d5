"""The kernel of ``algorithm="strassen"``: blocks of A and B are added while they are packed, and products are added
while they are written to C.

The Strassen kernels of the optimisation ladder (S1.13 to S1.15) apply the scheme around complete products, so its
additions cost temporaries and memory traffic. In this kernel the additions are part of memory accesses that the engine
makes anyway. The idea is from Huang, Smith, Henry and van de Geijn, Strassen's algorithm reloaded, 2016. Packing reads
the four quarters of an operand once, and writes the seven sums that are multiplied. A product is added from registers
to the tiles of every quarter of C that the scheme names. With more than one level of the scheme, blocks take the place
of quarters: each term of the outer levels is one more block to read or to write.

    for columns j0, steps of k p0            NC columns of each block, KC steps: a panel of B
      for outer in 7^(levels − 1)            products of the outer levels
        pack B: seven sums                   once for all threads, a phase ahead
        for i0 in steps of MC                a job for one thread
          pack A: seven sums
          for strip in STRIP slivers of B
            for product in seven             a classical block: A in L2, slivers of B from L3
              for tiles of the strip         micro-kernel → tiles of four quarters, which stay in L2
            tiles → C                        once a term of the outer scheme

So a term of the outer levels reads and writes 4 tiles of C for 7 products of blocks; the classical algorithm reads and
writes a tile for each product of blocks. The workspace holds only panels and tiles. The dimensions m and n are cut into
blocks, but k is not: every KC·2^levels steps of k are a separate product, which keeps the error bound low. The sizes m,
n and k need not be even: blocks end at whole tiles, and elements outside A and B are read as zero.
"""

import math

import numpy as np

from tilewright.cpu import codegen
from tilewright.cpu.engine.bilinear import A, B, C, coefficients, scheme_of_levels, tables
from tilewright.host.machine import machine
from tilewright.kernels import kernel

BITS = machine().vector_bits or 128
NV = 4
MR = max(2, ((machine().vector_registers or 16) - 1) // (NV + 1))
NR = NV * BITS // 32  # of 4-byte elements, the widest there is
KC = 512
# Rows of a block of A lie a line further apart than they are long: else they would share sets of the first-level cache.
A_STRIDE = KC + 16
STRIP = 4
# Half of L2 for a sliver of B, a block of A and a strip's tiles, of 8-byte elements: 128 + 192 + 192 KiB of 1 MiB.
HALF_L2 = (machine().l2 or 256 << 10) // 2
MC = codegen.setting(
    "strassen.mc", max(4 * MR, (HALF_L2 - KC * NV * BITS // 8) // (8 * KC + 4 * STRIP * NV * BITS // 8) // MR * MR)
)
# Seven panels of B for this phase and seven for the next: 28 MiB of 8-byte elements.
NC = max(NR, 512 // NR * NR)
# Rows of B that one job packs, and columns that are summed at once: each of 7 panels receives several whole cache lines.
BAND, WIDE = 16, 256
# Every thread of a team has blocks of A; a thread that finds none left does nothing.
SLOTS = codegen.setting("strassen.slots", max(16, machine().usable_cores))
MOST_LEVELS = 3
# Sizes above which two and three levels pay, measured on Zen 5 in float32 and float64. Where one level pays, two do.
TWO_FROM, THREE_FROM = 1280, 7000

# The outer levels of one, two and three levels: product p of l outer levels is number (7^l − 1)/6 + p.
TERMS, COUNTS = tables([scheme_of_levels(levels) for levels in range(MOST_LEVELS)])
# For each of the seven products of the innermost level, to which quarters it is added: the number of the quarter,
# the sign, and 1 if it is the first there and overwrites.
INNER, INNER_COUNTS = tables([scheme_of_levels(1)])
INNER = np.stack([2 * INNER[:, C, :, 0] + INNER[:, C, :, 1], INNER[:, C, :, 2], INNER[:, C, :, 3]], axis=-1).reshape(
    7, -1
)

micro = codegen.spreading_kernel(MR, NV, BITS, A_STRIDE, unroll=2)
add_tile = codegen.tile_adder(MR, NV, BITS)
ask_for_tile = codegen.tile_prefetch(MR, NV, BITS)
add_row = codegen.row_adder(BITS)
sums_of_a = codegen.combiner(coefficients(A), BITS)
sums_of_b = codegen.combiner(coefficients(B), BITS)
copy_in = codegen.packer(BITS)


@codegen.njit(nogil=True)
def levels_of(m, n, k, leaf):
    """Return the number of levels of the scheme. The sizes m, n and k are halved as long as all of them are above
    ``leaf``; if ``leaf`` is 0, the number follows a rule that was measured for this engine."""
    least = min(m, n, k)
    if leaf == 0:
        return 3 if least > THREE_FROM else 2 if least > TWO_FROM else 0
    levels = 0
    while levels < MOST_LEVELS and least > leaf:
        least, levels = least // 2, levels + 1
    return levels


# ---- packing: part = (outer product, 2 or 1 halves, size of a block, start in each block, extent) --------------------


@codegen.njit(nogil=True)
def corner_of(part, side, t, quarter):
    """Return the row and the column of the whole matrix at which a quarter of term ``t`` begins."""
    outer, halves, block, start, _ = part
    down, right = halves * TERMS[outer, side, t, 0] + quarter // 2, halves * TERMS[outer, side, t, 1] + quarter % 2
    return down * block[0] + start[0], right * block[1] + start[1]


@codegen.njit(nogil=True)
def sum_quarters(x, side, part, space, sums, distance):
    """Write the four quarters of a sum of the outer levels to ``sums``. The quarters are ``distance`` elements apart,
    in rows as long as those of the part. Elements outside x are zeros.

    If x has no unit stride along its rows, x is first copied to rows with unit stride, which are stored after the sums.
    """
    outer, halves, (rows, columns) = part[0], part[1], part[4]
    in_rows = x.strides[1] == x.itemsize
    ahead = x.strides[0] // x.itemsize if in_rows else columns
    for quarter in range(halves * halves):
        at, copied = sums + quarter * distance, sums + 4 * distance
        for t in range(COUNTS[outer, side]):
            top, left = corner_of(part, side, t, quarter)
            high, wide = min(rows, x.shape[0] - top), min(columns, x.shape[1] - left)
            inside = high > 0 and wide > 0
            if t == 0 and (high < rows or wide < columns):
                space[at : at + rows * columns] = 0
            if inside and not in_rows:
                copy_in(x, top, high, left, wide, space, copied, columns)
            for i in range(high if inside else 0):
                source = codegen.address(x, top + i, left) if in_rows else codegen.offset(space, copied + i * columns)
                add_row(codegen.offset(space, at + i * columns), source, wide, TERMS[outer, side, t, 2], t == 0, ahead)


@codegen.njit(nogil=True)
def pack_a(a, part, space, sums, at):
    """Pack seven blocks of A, or one if the scheme has no levels, in rows that are A_STRIDE elements apart."""
    outer, halves, block, (top, left), (height, depth) = part
    in_rows = a.strides[1] == a.itemsize
    high, wide = (
        (1, KC) if in_rows else (BAND, WIDE)
    )  # single rows stay in the first-level cache; a column-major A needs squares
    distance = high * wide
    for i in range(0, height, high):
        for p in range(0, depth, wide):
            rows, columns = min(high, height - i), min(wide, depth - p)
            sum_quarters(a, A, (outer, halves, block, (top + i, left + p), (rows, columns)), space, sums, distance)
            for r in range(rows):
                target = codegen.offset(space, at + (i + r) * A_STRIDE + p)
                source = codegen.offset(space, sums + r * columns)
                if halves == 2:
                    sums_of_a(source, distance, target, MC() * A_STRIDE, columns)
                else:
                    codegen.copy(target, source, columns)


@codegen.njit(nogil=True)
def pack_b(b, part, space, sums, at, panel, sliver, nr):
    """Pack BAND rows of seven panels of B, or of one panel if the scheme has no levels. Panels are ``panel`` elements
    apart, slivers ``sliver`` elements, and rows ``nr`` elements."""
    outer, halves, block, (top, left), (height, width) = part
    for j in range(0, width, WIDE):
        columns = min(WIDE, width - j)
        sum_quarters(b, B, (outer, halves, block, (top, left + j), (height, columns)), space, sums, BAND * WIDE)
        for s in range(0, columns, nr):
            for r in range(height):
                target = codegen.offset(space, at + (j + s) // nr * sliver + r * nr)
                source = codegen.offset(space, sums + r * columns + s)
                if halves == 2:
                    sums_of_b(source, BAND * WIDE, target, panel, nr)
                else:
                    codegen.copy(target, source, nr)


# ---- products --------------------------------------------------------------------------------------------------------


@codegen.njit(nogil=True)
def multiply_panels(space, a_at, b_at, panel, tiles_at, c, part, kc, overwrite, nr):
    """Multiply packed blocks of A by packed panels of B. The tiles of C of a strip are summed over all products before
    they are written."""
    outer, halves, block, (top, left), (height, width) = part
    size, high, last = MR * nr, height // MR, 6 if halves == 2 else 0
    for j0 in range(0, width, STRIP * nr):
        wide = min(STRIP, (width - j0) // nr)
        for product in range(last + 1):
            terms, count = codegen.address(INNER, product, 0), INNER_COUNTS[product, C] if halves == 2 else 1
            for j in range(wide):
                for i in range(high):
                    here = (outer, halves, block, (top + i * MR, left + j0 + j * nr), (MR, nr))
                    if product == last:
                        for quarter in range(halves * halves):
                            to_c(space, -1, c, here, quarter, 0)
                    a_panel = codegen.offset(space, a_at + (product * MC() + i * MR) * A_STRIDE)
                    b_panel = codegen.offset(space, b_at + product * panel + (j0 + j * nr) * kc)
                    micro(
                        kc, a_panel, b_panel, codegen.offset(space, tiles_at + (j * high + i) * 4 * size), terms, count
                    )
        for quarter in range(halves * halves):
            for i in range(high):
                for j in range(wide):  # along a row of C: lines of memory that follow each other
                    here = (outer, halves, block, (top + i * MR, left + j0 + j * nr), (MR, nr))
                    to_c(space, tiles_at + ((j * high + i) * 4 + quarter) * size, c, here, quarter, overwrite)


@codegen.njit(nogil=True)
def to_c(space, tile, c, part, quarter, overwrite):
    """Add a tile to its places in C, one for each term of the outer levels' product; if ``tile`` is −1, only prefetch
    these places."""
    outer, (mr, nr) = part[0], part[4]
    ldc = c.strides[0] // c.itemsize
    for t in range(COUNTS[outer, C]):
        row, column = corner_of(part, C, t, quarter)
        sign, fresh = TERMS[outer, C, t, 2], overwrite * TERMS[outer, C, t, 3]
        if c.strides[1] == c.itemsize and row + mr <= c.shape[0] and column + nr <= c.shape[1]:
            if tile < 0:
                ask_for_tile(codegen.address(c, row, column), ldc)
            else:
                add_tile(codegen.offset(space, tile), codegen.address(c, row, column), ldc, sign, fresh)
        elif tile >= 0:
            for r in range(min(mr, c.shape[0] - row)):
                for s in range(min(nr, c.shape[1] - column)):
                    value = sign * space[tile + r * nr + s]
                    c[row + r, column + s] = value if fresh else c[row + r, column + s] + value


# ---- the kernel ------------------------------------------------------------------------------------------------------

# The workspace of a thread: blocks of A, tiles, and rows of sums with room for what the last vector reads beyond them. The
# first two for each row of a block.
BLOCKS, TILES = 7 * A_STRIDE, 4 * STRIP * NR
SUMS = 5 * BAND * WIDE + NR
# Counters: the next job; slots taken; for each buffer, bands packed and jobs done; then, for each job, its phases done.
TICKET, TAKEN, PACKED, DONE, FIRST_JOB = 0, 1, 2, 4, 6


def workspace(m: int, n: int, k: int) -> int:
    """Return the number of workspace elements for two buffers of seven panels of B, and for each thread's blocks of A,
    tiles and sums."""
    return 2 * 7 * min(k, KC) * min(n + NR, NC) + min(SLOTS(), math.ceil(m / MR)) * ((BLOCKS + TILES) * MC() + SUMS)


def error_bound(m: int, n: int, k: int, *, leaf: int) -> float | None:
    """Return the factor of the error bound. Each level replaces one product by at most 12 products with half the k (4 +
    2 + 2 + 4 in C11).

    Each product of elements is rounded once for every step of k in its panel, once for each sum of blocks, and whenever
    it is added to a tile or to C. Higher powers of the unit roundoff u add less than a thousandth to the bound.
    """
    levels = levels_of.py_func(m, n, k, leaf)
    if levels == 0:
        return None
    deep = math.ceil(k / 2**levels)
    steps = math.ceil(deep / KC)
    roundings = math.ceil(deep / steps) + 2 * (2**levels - 1) + 4 + 4 ** (levels - 1) * steps
    return 1.001 * 12**levels * deep * roundings


@codegen.njit(nogil=True)
def strassen_job_of(ticket, bands, jobs):
    """Return the phase of a job, its number within the phase, and whether it packs. The panels of a phase are packed in
    the middle of the phase before it."""
    if ticket < bands:
        return 0, ticket, True
    t, index = (ticket - bands) // (bands + jobs), (ticket - bands) % (bands + jobs)
    if index < jobs // 2:
        return t, index, False
    if index < jobs // 2 + bands:
        return t + 1, index - jobs // 2, True
    return t, index - bands, False


@kernel(
    order=17,
    idea="Strassen's scheme without temporaries: blocks are added when packed, products while in registers.",
    row="S1.14, S1.15",
    parent="cpu/packed",
    shared="team",
    grain=(MR, NR),
    strided=True,
    params={"mr": MR, "nv": NV, "vector_bits": BITS, "kc": KC, "mc": MC(), "nc": NC},
    error_bound=error_bound,
    workspace=workspace,
    counters=lambda m, n, k: FIRST_JOB + math.ceil(m / MR),
)
def strassen_fused(a, b, c, space, counters, *, leaf=0):
    (m, k), n = a.shape, b.shape[1]
    slot = codegen.fetch_add(counters, TAKEN, 1)
    if k == 0 and slot == 0:
        c[:] = 0
    if m == 0 or n == 0 or k == 0 or slot >= min(SLOTS(), math.ceil(m / MR)):
        return
    # ---- blocks of whole tiles; inside them, panels and jobs of nearly equal size
    nr = NV * (BITS // 8 // c.itemsize)
    levels = levels_of(m, n, k, leaf)
    blocks, halves, outers = 1 << levels, min(2, 1 << levels), 7 ** max(0, levels - 1)
    tiles, slivers = math.ceil(m / (blocks * MR)), math.ceil(n / (blocks * nr))
    steps = math.ceil(k / (blocks * KC))
    kc = math.ceil(k / (blocks * steps))
    mc = math.ceil(tiles / math.ceil(tiles * MR / MC())) * MR
    nc = math.ceil(slivers / math.ceil(slivers * nr / NC)) * nr
    jobs, panels, bands = math.ceil(tiles * MR / mc), math.ceil(slivers * nr / nc), math.ceil(kc / BAND)
    # ---- workspace: two buffers for B, then each thread's own
    panel = kc * nc
    buffer = (7 if halves == 2 else 1) * panel
    a_at = 2 * buffer + slot * ((BLOCKS + TILES) * MC() + SUMS)
    tiles_at, sums = a_at + BLOCKS * MC(), a_at + (BLOCKS + TILES) * MC()
    while True:
        t, job, packs = strassen_job_of(codegen.fetch_add(counters, TICKET, 1), bands, jobs)
        if t > panels * steps * outers or (t == panels * steps * outers and not packs):
            return
        if t == panels * steps * outers:
            continue
        j0, p0, side = t // (steps * outers) * nc, t // outers % steps * kc * blocks, t % 2
        outer, width = (outers - 1) // 6 + t % outers, min(nc, slivers * nr - j0)
        if packs:
            codegen.wait_for(counters, DONE + side, t // 2 * jobs)
            p = job * BAND
            part = (outer, halves, (kc, slivers * nr), (p0 + p, j0), (min(BAND, kc - p), width))
            pack_b(b, part, space, sums, side * buffer + p * nr, panel, kc * nr, nr)
            codegen.fetch_add(counters, PACKED + side, 1)
        else:
            i0 = job * mc
            height = min(mc, tiles * MR - i0)
            pack_a(a, (outer, halves, (tiles * MR, kc), (i0, p0), (height, kc)), space, sums, a_at)
            codegen.wait_for(counters, PACKED + side, (t // 2 + 1) * bands)
            codegen.wait_for(counters, FIRST_JOB + job, t)
            part = (outer, halves, (tiles * MR, slivers * nr), (i0, j0), (height, width))
            multiply_panels(space, a_at, side * buffer, panel, tiles_at, c, part, kc, int(p0 == 0), nr)
            codegen.fetch_add(counters, FIRST_JOB + job, 1)
            codegen.fetch_add(counters, DONE + side, 1)
