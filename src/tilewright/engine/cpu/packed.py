"""Every thread takes the next piece of one list: panels of B packed once for all, blocks of A by whoever needs them.

The tile is that of cpu/register_tile: four vectors wide and as many rows high as the registers hold. What changes is all
around it. The loops over panels become one flat list of jobs, which the threads of a team share out by a counter:

    pack B₀ | multiply ½ | pack B₁ | multiply ½ | multiply ½ | pack B₂ | multiply ½ | …
            └─── phase 0 ─────────────────────┘ └─── phase 1 ───────────────────┘

A phase is KC steps of k for NC columns of C. Packing B for the next phase stands in the middle of this one, and goes to the
other of two buffers: when somebody needs it, it has long been there, and who comes late finds work, not a barrier. A
job waits only for jobs that were handed out before it, so nobody waits for a thread that never comes. An element of C
gets its phases in order, each one chain of multiply-adds: its bits know neither the threads nor the cuts of m and n.

The jobs of a phase are bands of rows of C, cut into parts of a panel's columns. Whoever comes takes the next part of the
band that it was last at, of which it has packed A, and when that has none left, of one that has.

The cuts KC, MC and NC fit L1, L2 and L3 of the machine (``kernels/blocking.py``). They are balanced: no sliver, band or
phase is more than one tile or one step shorter than the others.
"""

import math

import numba as nb

from tilewright import codegen
from tilewright.engine.jobs import BLOCKS, JOBS, LINE, cut, job_of, next_job
from tilewright.kernels import FLOATS, kernel
from tilewright.kernels.blocking import blocking

CHOSEN = blocking()
BITS, MR, NV, UNROLL = CHOSEN.vector_bits, CHOSEN.mr, CHOSEN.nv, CHOSEN.unroll
KC, KC_OF_8_BYTES = CHOSEN.kc, CHOSEN.kc_of_8_bytes
# Rows of a block of A lie a line further apart than they are long: at 512 elements, a power of two, they would all fall
# into the same sets of the first-level cache.
A_STRIDE = KC + 16
MC = CHOSEN.mc(KC)
NR = NV * BITS // 32  # of 4-byte elements, the widest there is
NC = CHOSEN.nc(KC, NR)
# Steps of k that make a job of packing B: rows of B are read whole, for each may be a page of its own.
STEPS = 32

# Four tiles serve every edge: heights and widths that differ by one make up any C from 20 rows and 6 vectors on.
full = codegen.edge_kernel(MR, NV, BITS, A_STRIDE, unroll=UNROLL)
low = codegen.edge_kernel(MR - 1, NV, BITS, A_STRIDE, unroll=UNROLL)
narrow = codegen.edge_kernel(MR, NV - 1, BITS, A_STRIDE, unroll=UNROLL)
low_narrow = codegen.edge_kernel(MR - 1, NV - 1, BITS, A_STRIDE, unroll=UNROLL)
pack = codegen.packer(BITS)


@nb.njit(nogil=True)
def tile(kc, a, b, c, ldc, accumulate, rows, vectors, columns):
    """One tile of C of MR or MR − 1 rows, NV or NV − 1 vectors, of which ``columns`` elements are inside."""
    if vectors == NV:
        if rows == MR:
            full(kc, a, b, c, ldc, accumulate, columns)
        else:
            low(kc, a, b, c, ldc, accumulate, columns)
    elif rows == MR:
        narrow(kc, a, b, c, ldc, accumulate, columns)
    else:
        low_narrow(kc, a, b, c, ldc, accumulate, columns)


@nb.njit(nogil=True)
def add_corner(corner, width, c, top, rows, left, columns, accumulate):
    """Write a finished tile, in rows of ``width``, to a C that no vector can write, or that is lower than any tile."""
    for r in range(rows):
        for s in range(columns):
            value = corner[r * width + s]
            c[top + r, left + s] = c[top + r, left + s] + value if accumulate else value


@nb.njit(nogil=True)
def bands_and_parts(m, n, threads, itemsize):
    """How many bands of rows, and parts of a panel's columns, a phase is cut into; one thread wants them large.

    A thread stays with a band, of which it packs A once, for as long as there are parts. The panel of B streams past
    every band, so there are no more bands than threads need: past 24 rows, at 150 GFLOPS, it would run at 12 GB/s.
    """
    fewest = math.ceil(m * itemsize / (8 * MC))
    if threads == 1:
        return fewest, 1
    slivers = math.ceil(min(n, NC) / NR)
    rounds = max(math.ceil(fewest / threads), math.ceil(JOBS / slivers))
    bands = max(fewest, min(math.ceil(m / (4 * MR)), rounds * threads))
    return bands, min(slivers, math.ceil(2 * JOBS * threads / bands))


@nb.njit(nogil=True, inline="always")
def pack_sliver(b, low, kc, first, end, panel, at, width):
    """Columns ``first`` to ``end`` of rows ``low`` to ``low + kc``, in rows of ``width``, which zeros fill."""
    pack(b, low, kc, first, end - first, panel, at, width)
    for p in range(kc):
        for s in range(end - first, width):
            panel[at + p * width + s] = 0


@nb.njit(nogil=True, inline="always")
def pack_rows(a, top, rows, low, kc, block):
    """Rows A_STRIDE apart. Where no tile is as low as what is left of them, there are rows of zeros behind them."""
    pack(a, top, rows, low, kc, block, 0, A_STRIDE)
    if rows < MR * (MR - 1):
        for i in range(rows, rows + MR):
            for p in range(kc):
                block[i * A_STRIDE + p] = 0


@nb.njit(nogil=True, inline="always")
def multiply_sliver(kc, block, panel, at, vectors, c, column, columns, begin, end, tiles, accumulate, corner):
    """One sliver of B with a block of A, whose tiles are number ``begin`` to ``end`` of all."""
    low, more = c.shape[0] // tiles, c.shape[0] % tiles
    i = start = cut(c.shape[0], tiles, begin)
    unit_stride = c.strides[1] == c.itemsize
    width = vectors * (BITS // 8 // c.itemsize)
    for t in range(begin, end):
        rows = low + 1 if t < more else low
        inside = unit_stride and rows >= MR - 1
        where = codegen.address(c, i, column) if inside else codegen.offset(corner, 0)
        ldc = c.strides[0] // c.itemsize if inside else width
        a_panel, b_panel = codegen.offset(block, (i - start) * A_STRIDE), codegen.offset(panel, at)
        if inside:
            tile(kc, a_panel, b_panel, where, ldc, accumulate, rows, vectors, columns)
        else:
            tile(kc, a_panel, b_panel, where, ldc, 0, MR, vectors, width)
            add_corner(corner, width, c, i, rows, column, columns, accumulate)
        i += rows


BLOCK = (2 * MC + MR) * A_STRIDE + MR * NR  # of A, and a tile behind it


def workspace(m, n, k):
    blocks = min(BLOCKS, math.ceil(m / MR) * math.ceil(n / NR))
    return 2 * min(k, KC) * (min(n, NC) + NR) + blocks * BLOCK


def counters(m, n, k):
    bands = max(math.ceil(m / MC), min(math.ceil(m / (4 * MR)), math.ceil(m / MC) + JOBS * BLOCKS))  # at most
    jobs = min(bands * math.ceil(min(n, NC) / NR), bands + 2 * JOBS * BLOCKS)
    phases = (math.ceil(n / NC) + 1) * math.ceil(k / KC_OF_8_BYTES)
    return LINE * (2 + jobs + phases * (1 + bands))


@kernel(
    order=13,
    idea="Share one list of jobs: B is packed once for all threads, a phase ahead, and edges have tiles of their own.",
    row="S1.11, S1.12",
    parent="cpu/register_tile",
    dtypes=(*FLOATS, "int32", "int64", "uint32", "uint64"),
    shared="team",
    grain=(MR, NR),
    strided=True,
    params={"mr": MR, "nv": NV, "vector_bits": BITS, "kc": KC, "mc": MC, "nc": NC},
    blocking=CHOSEN,
    workspace=workspace,
    counters=counters,
    suits=lambda m, n, k: True,
    adds=True,
)
def packed(a, b, c, space, counters):
    m, k = a.shape
    n = b.shape[1]
    mine = codegen.fetch_add(counters, LINE, 1)
    adds = counters[counters.size - 2]
    if m == 0 or n == 0 or k == 0:
        if mine == 0 and not adds:
            c[:] = 0
        return
    lanes = BITS // 8 // c.itemsize
    vectors = math.ceil(n / lanes)
    slivers = math.ceil(vectors / NV)
    panels = math.ceil(slivers / (NC // (NV * lanes)))
    wide = math.ceil(slivers / panels)
    deep = math.ceil(k / (KC if c.itemsize == 4 else KC_OF_8_BYTES))
    tiles = math.ceil(m / MR)
    threads = max(1, min(BLOCKS, counters[counters.size - 1]))
    bands, parts = bands_and_parts(m, n, threads, c.itemsize)
    if LINE * (2 + bands * parts + panels * deep * (1 + bands)) > counters.size - 2:  # made for more processors
        threads = 1
        bands, parts = bands_and_parts(m, n, threads, c.itemsize)
    jobs, last = bands * parts, panels * deep - 1
    # One thread packs the next panel over the last one, which may still lie in L2.
    buffers, before = (1, jobs) if threads == 1 else (2, jobs // 2)
    panel_size = math.ceil(k / deep) * wide * NV * lanes
    if mine >= threads or 2 * panel_size + (mine + 1) * BLOCK > space.size:
        return
    block = space[2 * panel_size + mine * BLOCK : 2 * panel_size + (mine + 1) * BLOCK]
    corner = block[BLOCK - MR * NR :]
    done, packed_ = 2, 2 + jobs
    taken = packed_ + last + 1
    by_steps = abs(b.strides[0]) > abs(b.strides[1])
    packings = math.ceil(math.ceil(k / deep) / STEPS) if by_steps else wide
    phase, band, block_of = -1, 0, -1
    while True:
        t, index, packs = job_of(codegen.fetch_add(counters, 0, 1), packings, jobs, before, last)
        if not packs and index >= jobs:
            return
        j, p = t // deep, t % deep
        low, high = cut(k, deep, p), cut(k, deep, p + 1)
        kc = high - low
        first, end = j * wide, min(slivers, (j + 1) * wide)
        panel = space[t % buffers * panel_size : (t % buffers + 1) * panel_size]
        if packs:
            for x in range(jobs):  # the panel that lies there now is still needed until then
                codegen.wait_for(counters, (done + x) * LINE, t + 1 - buffers)
            begin, stop = (cut(kc, packings, index), cut(kc, packings, index + 1)) if by_steps else (0, kc)
            for x in range(first, end) if by_steps else range(first + index, min(end, first + index + 1)):
                left, right = cut(vectors, slivers, x) * lanes, cut(vectors, slivers, x + 1) * lanes
                width = max(right - left, (NV - 1) * lanes)
                at = (x - first) * NV * lanes * kc + begin * width
                pack_sliver(b, low + begin, stop - begin, left, min(n, right), panel, at, width)
            codegen.fetch_add(counters, (packed_ + t) * LINE, 1)
        else:
            if phase != t:
                phase, band = t, mine * bands // threads
            band, part = next_job(counters, taken + t * bands, bands, parts, band)
            if band == bands:
                return
            begin, stop = cut(tiles, bands, band), cut(tiles, bands, band + 1)
            if block_of != t * bands + band:
                block_of = t * bands + band
                top = cut(m, tiles, begin)
                pack_rows(a, top, cut(m, tiles, stop) - top, low, kc, block)
            job = done + band * parts + part
            codegen.wait_for(counters, (packed_ + t) * LINE, packings)
            codegen.wait_for(counters, job * LINE, t)
            for s in range(first + cut(end - first, parts, part), first + cut(end - first, parts, part + 1)):
                left, right = cut(vectors, slivers, s), cut(vectors, slivers, s + 1)
                at, column = (s - first) * NV * lanes * kc, left * lanes
                height, columns = max(right - left, NV - 1), min(n, right * lanes) - column
                multiply_sliver(kc, block, panel, at, height, c, column, columns, begin, stop, tiles, adds + p, corner)
            if t < last:
                codegen.fetch_add(counters, job * LINE, 1)
