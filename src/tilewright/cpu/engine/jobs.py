"""The driver of every kernel that packs: threads take jobs from lists that they share, one list for each group of threads.

The tile is NV vectors wide and MR rows high, as in cpu/register_tile. Around it, the loops over panels are one flat list
of jobs, and a shared counter gives each thread of a group the next one:

    pack B₀ | multiply ½ | pack B₁ | multiply ½ | multiply ½ | pack B₂ | multiply ½ | …
            └─── phase 0 ─────────────────────┘ └─── phase 1 ───────────────────┘

A phase is KC steps of k for a panel of columns of C. The jobs that pack B for the next phase stand in the middle of this
phase and write to the other of two buffers. So a panel is packed long before it is needed, and a late thread finds work
instead of a barrier. A job waits only for earlier jobs of its list, so threads cannot deadlock; a thread whose list is done
helps with the next group's. The phases of an element of C are added in order, each as one chain of multiply-adds: its bits
depend neither on the number of threads nor on how m and n are cut.

The jobs of a phase are bands of rows of C, cut into parts of a panel's columns. A thread takes the next part of the band
whose rows of A it packed last, and when that band has no part left, of the next band that has one. ``engine/cuts.py``
computes groups, panels, bands and parts.

The driver does not depend on dtypes: ``team_product`` makes it from functions that pack A, pack B and write C.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...host.machine import machine
from ...kernels.blocking import caches
from .. import codegen
from .cuts import (
    LINE,
    PACKING,
    PACKING_BOTH,
    PackedBlocks,
    block_rows,
    counters_of_group,
    cut,
    job_of,
    next_job,
    part_start,
)
from .triangle import ADDS, HERMITIAN, matrix_of, mirror_band, part_at

#: Bytes of all sets of the second-level cache once, and of that cache.
WAY, L2 = 128 << 10, codegen.setting("l2", caches(machine())[1])
#: Whether the last cache is far away, as on Xeons, whose L2 is large for that reason.
FAR = L2.value >= 2 << 20
#: Threads that wait for the last cache if they read rows of A from it.
MANY = codegen.setting("many", 1 if FAR else 8)
#: Steps of k in a job that packs a row-major B: rows are read whole, because each may lie on a page of its own. Processors
#: follow few rows at once: m × n × k of 64 × 50,000 × 64 takes a twelfth less than with 32.
STEPS = 8


@codegen.register_jitable
def lies_well(a: np.ndarray, word: int, whole_tiles: bool) -> bool:
    """Whether rows of A need no packing: elements of a row are neighbours, and rows consist of whole words of ``word``
    bytes. ``whole_tiles``: no tile has fewer rows than a kernel computes.
    """
    words = (a.ctypes.data | a.strides[0] | a.shape[1] * a.itemsize) % word == 0
    return words and whole_tiles and a.strides[1] == a.itemsize and a.strides[0] > 0


@codegen.register_jitable
def displaced(stride: int, m: int, mc: int, itemsize: int, threads: int) -> bool:
    """Whether so many threads had better pack the m rows of A, which lie ``stride`` bytes apart, a multiple of a high power
    of two: of a block, MC rows of 8-byte elements, more fall into the same sets of the second-level cache than these keep.
    From a near last cache few threads get lines as fast as they need them: in place, products of 512³ to 4,096³ took up to
    8 % less on Zen 4. Where it is far, tiles rely on rows in L2 (``engine/edges.py``).
    """
    rows = min(m, block_rows(mc, itemsize))
    return threads >= MANY() and rows * min(stride & -stride, WAY) > L2() * 3 // 4


@codegen.register_jitable
def nothing(a, rows, kc, words, apart, target):
    """The default of ``note_rows``."""


# ---- the driver ------------------------------------------------------------------------------------------------------


def team_product(
    blocks: PackedBlocks,
    pack_rows: Callable[..., None],
    pack_columns: Callable[..., None],
    write: Callable[..., None],
    grain: int = 1,
    in_place: bool = False,
    note_rows: Callable[..., None] = nothing,
    any_height: bool = False,
    whole_bands: bool = False,
) -> Callable[..., None]:
    """A compiled function ``product(a, b, c, m, n, k, space, counters)``, to be called by every thread of a team.

    ``m``, ``n`` and ``k`` count packed elements, and ``space`` holds such elements; k is cut at multiples of ``grain``. Only
    three compiled functions know the dtypes:

    - ``pack_rows(a, top, rows, low, kc, target, at, ld)`` writes steps ``low`` to ``low + kc`` of rows of A to ``target``,
      from element ``at`` on, ``ld`` apart;
    - ``pack_columns(b, low, kc, left, columns, target, at, ld)`` writes these steps of columns of B;
    - ``write(kc, a, a_stride, b, c, top, tiles, left, columns, vectors, accumulate, ends, corner, near)`` multiplies
      a band of rows, from pointer ``a`` on, ``a_stride`` apart, by a sliver of packed columns into C, or adds the product to
      it where ``accumulate`` is not 0.
      ``tiles`` is (rows of a low tile, how many of the first tiles are a row higher, number of tiles). With ``ends`` no more
      steps of k follow; ``corner`` has room for a tile. ``near`` is (whether the rows are in the second-level cache;
      how many elements after this sliver the next one begins, if that should be prefetched, otherwise 0; ``reals`` of
      ``triangle.columns_of_tile``).
      ``write`` contains the loop over tiles, because each call of an inlined function counts references to its arrays.

    With ``in_place`` elements of A are what is packed, or whole words of them, and rows of A that need no packing are read
    where they lie. Then ``note_rows(a, rows, kc, words, apart, target)`` is called instead of ``pack_rows``, for what that
    finds out besides: ``words`` points to the first row, and rows lie ``apart``.
    With ``any_height`` ``write`` needs no rows of zeros after those of low tiles. ``b`` may be a tuple that begins with the
    matrix, if ``pack_columns`` needs more than that, and ``c`` one that begins with C.
    Of a symmetric C (``engine/triangle.py``) the first tiles of a band may be left out; with ``whole_bands`` only bands are,
    as ``write`` counts on all tiles of a band.

    None of them is called for a product without elements or without steps. Raises MemoryError if ``space`` or ``counters``
    is too small for one thread.
    """
    chosen = blocks.chosen
    mr, nv, vector_bytes, shortens = chosen.mr, chosen.nv, chosen.vector_bits // 8, blocks.shortens
    stride, steps_of_phase, steps_of_8_bytes = (blocks.number(name) for name in ("a_stride", "kc", "kc_of_8_bytes"))
    rows_of_block, columns_of_panel, elements_of_block, elements_of_corner = (
        blocks.number(name) for name in ("mc", "nc", "block", "corner")
    )

    @codegen.njit(nogil=True, inline="always")
    def pack_block(a, top, rows, low, kc, block):
        """Pack rows of A; rows of zeros follow where the last rows may be fewer than those of the lowest tile."""
        a_stride = stride()
        pack_rows(a, top, rows, low, kc, block, 0, a_stride)
        if not any_height and rows < mr * (mr - 1):
            for r in range(rows, rows + mr):
                for p in range(kc):
                    block[r * a_stride + p] = 0

    @codegen.njit(nogil=True, inline="always")
    def pack_sliver(b, low, kc, left, columns, panel, at, width):
        """Pack columns of B in rows of ``width``, filled up with zeros."""
        pack_columns(b, low, kc, left, columns, panel, at, width)
        if columns < width:
            for row in range(at, at + kc * width, width):
                for s in range(row + columns, row + width):
                    panel[s] = 0

    @codegen.njit(nogil=True, inline="always")
    def prefetch_rows(panel, at, size):
        """Fetch the lines that will be packed next. Other threads read them in an earlier phase or product, and a line can
        be written only when their caches have dropped it: on 16 cores of a Xeon that took six times as long as the copy."""
        for line in range(at, at + size, codegen.ALIGNMENT // codegen.itemsize(panel)):
            codegen.prefetch_for_write(codegen.offset(panel, line))

    @codegen.njit(nogil=True)
    def work(a, b, c, n, k, left_end, across, cuts, home, straight, how, panels, block, counters):
        """Take jobs from the list of a group until none is left. The group computes ``across`` vectors of columns of C, from
        vector ``left_end`` on; ``cuts`` has its threads, and what ``cut`` returns. A thread begins with band ``home``;
        ``how`` has the bits of ``triangle``."""
        threads, slivers, wide, bands, parts, deep = cuts
        m = a.shape[0]
        adds, symmetric, conjugated, of_c = how & ADDS, how > ADDS, (how & HERMITIAN) != 0, matrix_of(c)
        reals = max(1, n // m) if symmetric else 0  # packed elements for one of C
        itemsize = codegen.itemsize(block)
        lanes = vector_bytes // itemsize
        tiles = math.ceil(m / mr)
        low_rows, higher = m // tiles, m % tiles  # as by ``part_start``, without a division for each tile
        jobs, last = bands * parts, math.ceil(slivers / wide) * deep - 1
        # A thread by itself overwrites the last panel with the next one: its memory may still be in L2.
        buffers, before = (1, jobs) if threads == 1 else (2, jobs // 2)
        panel_size = panels.size // buffers
        large = panel_size * itemsize > L2() // 2  # so L2 does not keep a sliver until the next band reads it
        corner = block[block.size - elements_of_corner() :]
        by_steps = codegen.has_rows(b)
        packings = math.ceil(math.ceil(k // grain / deep) * grain / STEPS) if by_steps else wide
        done, packed = LINE, LINE * (1 + jobs)
        taken = packed + LINE * (last + 1)
        rows, rows_apart = codegen.offset(block, 0), stride()
        phase, band, block_of = -1, 0, -1
        while True:
            t, index, packs = job_of(codegen.fetch_add(counters, 0, 1), packings, jobs, before, last)
            if not packs and index >= jobs:
                return
            j, p = t // deep, t % deep
            low = part_start(k // grain, deep, p) * grain
            kc = part_start(k // grain, deep, p + 1) * grain - low
            first, end = j * wide, min(slivers, (j + 1) * wide)
            panel = panels[t % buffers * panel_size : (t % buffers + 1) * panel_size]
            if packs:
                for x in range(jobs):  # until then the panel in this buffer is in use
                    codegen.wait_for(counters, done + x * LINE, t + 1 - buffers)
                begin, stop = 0, kc
                if by_steps:
                    begin = part_start(kc // grain, packings, index) * grain
                    stop = part_start(kc // grain, packings, index + 1) * grain
                for x in range(first, end) if by_steps else range(first + index, min(end, first + index + 1)):
                    left = (left_end + part_start(across, slivers, x)) * lanes
                    right = (left_end + part_start(across, slivers, x + 1)) * lanes
                    width = max(right - left, (nv - 1) * lanes)
                    at = (x - first) * nv * lanes * kc + begin * width
                    if by_steps and threads > 1 and x + 1 < end:
                        prefetch_rows(panel, at + nv * lanes * kc, (stop - begin) * width)
                    pack_sliver(b, low + begin, stop - begin, left, min(n, right) - left, panel, at, width)
                codegen.fetch_add(counters, packed + t * LINE, 1)
                continue
            # ---- multiply
            if phase != t:
                phase, band = t, home
            band, part = next_job(counters, taken + t * bands * LINE, bands, parts, band)
            if band == bands:
                return
            begin, stop = part_start(tiles, bands, band), part_start(tiles, bands, band + 1)
            i0, cached = part_start(m, tiles, begin), True
            sliver = first + part_start(end - first, parts, part)
            beyond = first + part_start(end - first, parts, part + 1)
            bottom = part_start(m, tiles, stop)
            if symmetric:  # slivers that begin beyond the diagonal are left out
                while (
                    beyond > sliver and (left_end + part_start(across, slivers, beyond - 1)) * lanes >= bottom * reals
                ):
                    beyond -= 1
            if sliver < beyond and block_of != t * bands + band:
                block_of, height = t * bands + band, bottom - i0
                if in_place and straight:
                    rows_apart = a.strides[0] // itemsize
                    rows = codegen.pointer_as(codegen.address(a, i0, low * (itemsize // codegen.itemsize(a))), block)
                    cached = False
                    note_rows(a, height, kc, rows, rows_apart, block)
                else:
                    pack_block(a, i0, height, low, kc, block)
            tiles_here = low_rows, max(0, higher - begin), stop - begin
            job = done + (band * parts + part) * LINE
            codegen.wait_for(counters, packed + t * LINE, packings)
            codegen.wait_for(counters, job, t)
            for s in range(sliver, beyond):
                left = left_end + part_start(across, slivers, s)
                right = left_end + part_start(across, slivers, s + 1)
                column, width = left * lanes, max(right - left, nv - 1)
                columns = min(n, right * lanes) - column
                if symmetric:
                    columns = min(columns, bottom * reals - column)
                b_panel = codegen.offset(panel, (s - first) * nv * lanes * kc)
                top, of_a = i0, rows
                if symmetric and not whole_bands:  # tiles above the diagonal are left out
                    x = max(begin, part_at(m, tiles, min(m - 1, column // reals)))
                    top, tiles_here = part_start(m, tiles, x), (low_rows, max(0, higher - x), stop - x)
                    of_a = codegen.ahead(rows, (top - i0) * rows_apart)
                write(
                    kc,
                    of_a,
                    rows_apart,
                    b_panel,
                    c,
                    top,
                    tiles_here,
                    column,
                    columns,
                    width,
                    adds + p,
                    p + 1 == deep,
                    corner,
                    (cached, nv * lanes * kc if large and s + 1 < beyond else 0, reals),
                )
                cached = True
                if symmetric and p + 1 == deep:
                    j, units = column // reals, bands if whole_bands else tiles
                    mirror_band(of_c, conjugated, top, bottom, j, j + columns // reals, tiles, units)
            if t < last:
                codegen.fetch_add(counters, job, 1)

    @codegen.njit(nogil=True, inline="always")
    def product(a, b, c, m, n, k, space, counters):
        mine = codegen.fetch_add(counters, 0, 1)
        if m == 0 or n == 0 or k == 0:
            return
        how = counters[counters.size - 2]
        itemsize = codegen.itemsize(space)
        lanes = vector_bytes // itemsize
        vectors = math.ceil(n / lanes)
        deep = math.ceil(k / (steps_of_phase() if itemsize <= 4 else steps_of_8_bytes()))
        mc, whole_block = rows_of_block(), elements_of_block()
        steps = math.ceil(k // grain / deep) * grain
        planned = counters[counters.size - 1]
        straight = in_place and k * (itemsize // codegen.itemsize(a)) == a.shape[1]
        straight = straight and lies_well(a, itemsize, m // math.ceil(m / mr) >= mr - 1)
        straight = straight and not displaced(a.strides[0], m, mc, itemsize, planned)
        packing = PACKING if straight else PACKING_BOTH
        block_size = min(whole_block, (m + mr) * stride() + elements_of_corner()) if shortens else whole_block
        threads = max(1, min(planned, space.size // block_size))
        while True:
            groups, slivers, wide, bands, parts = cut(
                m, vectors, lanes, threads, packing, mr, nv, mc, vector_bytes, columns_of_panel()
            )
            counted = counters_of_group(slivers, wide, bands, parts, deep)
            panels = (1 if threads == groups else 2) * steps * wide * nv * lanes
            blocks_at = groups * panels
            fits = blocks_at + threads * block_size <= space.size and LINE + groups * counted <= counters.size - 2
            if fits or threads == 1:
                break
            threads -= 1  # there is not room for all that were planned
        if not fits:
            raise MemoryError("the workspace is smaller than one thread needs")
        if mine >= threads:
            return
        block = space[blocks_at + mine * block_size : blocks_at + (mine + 1) * block_size]
        own, cuts = mine * groups // threads, (threads // groups, slivers, wide, bands, parts, deep)
        home = mine * groups % threads * bands // threads
        for turn in range(groups):  # a thread whose own group is done helps the next
            g = (own + turn) % groups
            left_end, right_end = part_start(vectors, groups, g), part_start(vectors, groups, g + 1)
            work(
                a,
                b,
                c,
                n,
                k,
                left_end,
                right_end - left_end,
                cuts,
                home,
                straight,
                how,
                space[g * panels : (g + 1) * panels],
                block,
                counters[LINE + g * counted : LINE + (g + 1) * counted],
            )

    return product
