"""The driver of every kernel that packs: a product is one list of jobs, and each thread of a team takes the next one.

The tile is that of cpu/register_tile: NV vectors wide and MR rows high. Around it, the loops over panels are one flat list
of jobs, and a shared counter gives each thread the next one:

    pack B₀ | multiply ½ | pack B₁ | multiply ½ | multiply ½ | pack B₂ | multiply ½ | …
            └─── phase 0 ─────────────────────┘ └─── phase 1 ───────────────────┘

A phase is KC steps of k for NC columns of C. The jobs that pack B for the next phase stand in the middle of this phase and
write to the other of two buffers. So a panel is packed long before it is needed, and a late thread finds work instead of a
barrier. A job waits only for earlier jobs of the list, so threads cannot deadlock. The phases of an element of C are added
in order, each as one chain of multiply-adds: its bits depend neither on the number of threads nor on how m and n are cut.

The jobs of a phase are bands of rows of C, cut into parts of a panel's columns. A thread takes the next part of the band
whose rows of A it packed last, and when that band has no part left, of the next band that has one.

The cuts KC, MC and NC fit L1, L2 and L3 of the machine (``kernels/blocking.py``). They are balanced: slivers, bands and
phases differ by one tile or one step at most.

The driver does not depend on dtypes: ``team_product`` makes it from functions that pack A, pack B and write C.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numba as nb
import numpy as np
from numba.extending import register_jitable

from .. import codegen
from ..host.machine import machine
from ..kernels.blocking import Blocking

#: Threads that can have a block of A; further threads of a team do nothing.
BLOCKS = max(4, machine().usable_cores)
#: Jobs of a phase for each thread, at least: threads end a phase within the time of one job.
JOBS = 8
#: Words from one counter to the next: one counter per cache line avoids false sharing.
LINE = 8
#: Bytes of a page, and of all sets of a first-level cache.
PAGE = 4096
#: Steps of k in a job that packs a row-major B: rows are read whole, because each may lie on a page of its own. Processors
#: follow few rows at once: m × n × k of 64 × 50,000 × 64 takes a twelfth less than with 32.
STEPS = 8


class PackedBlocks:
    """The block sizes of a kernel whose packed elements have ``itemsize`` bytes or more.

    ``chosen`` has the tile, and how much of each cache may be used. A phase has at most ``kc`` steps, and no more than
    ``chosen.kc_of_8_bytes`` if elements have 8 bytes.
    """

    def __init__(self, chosen: Blocking, kc: int, itemsize: int) -> None:
        self.chosen, self.kc, self.kc_of_8_bytes = chosen, kc, chosen.kc_of_8_bytes
        self.mr, self.nr = chosen.mr, chosen.nv * chosen.vector_bits // (8 * itemsize)
        self.mc, self.nc = chosen.mc(kc), chosen.nc(kc, self.nr)
        # Rows of a block of A lie a cache line further apart than they are long: at 512 elements, a power of two, they
        # would all fall into the same sets of the first-level cache.
        self.a_stride = kc + 16
        self.tile_at = (2 * self.mc + self.mr) * self.a_stride  # after a block of A of 4-byte elements
        self.block = self.tile_at + self.mr * self.nr

    @property
    def params(self) -> dict[str, int]:
        """The numbers of the kernel, as the field names them."""
        tile = {"mr": self.mr, "nv": self.chosen.nv, "vector_bits": self.chosen.vector_bits}
        return {**tile, "kc": self.kc, "mc": self.mc, "nc": self.nc}

    def workspace(self, m: int, n: int, k: int) -> int:
        """Elements of the workspace for a product of this shape; m, n and k count packed elements, too."""
        blocks = min(BLOCKS, -(-m // self.mr) * -(-n // self.nr))
        return 2 * min(k, self.kc) * (min(n, self.nc) + self.nr) + blocks * self.block

    def counters(self, m: int, n: int, k: int) -> int:
        """The number of counters for a product of this shape; m, n and k count packed elements."""
        fewest = -(-m // self.mc)
        bands = max(fewest, min(most_bands(m, self.mr), fewest + JOBS * BLOCKS))  # at most
        jobs = min(bands * -(-min(n, self.nc) // self.nr), bands + 2 * JOBS * BLOCKS)
        phases = (1 - -n // self.nc) * -(-k // self.kc_of_8_bytes)
        return LINE * (2 + jobs + phases * (1 + bands))


# ---- the list of jobs ------------------------------------------------------------------------------------------------


@register_jitable
def part_start(length: int, parts: int, index: int) -> int:
    """Where part ``index`` of ``length`` begins: parts differ by one at most, the larger ones come first."""
    return index * (length // parts) + min(index, length % parts)


@register_jitable
def job_of(number: int, packings: int, jobs: int, before: int, last: int) -> tuple[int, int, bool]:
    """The phase of a job of the list, its number within the phase, and whether it packs.

    A phase has ``packings`` jobs that pack and ``jobs`` that multiply. The list begins with the packing jobs of the first
    phase; those of each further phase come after ``before`` multiplying jobs of the phase before.
    """
    if number < packings:
        return 0, number, True
    t = min((number - packings) // (packings + jobs), last)
    index = number - packings - t * (packings + jobs)
    if t == last or index < before:
        return t, index, False
    if index < before + packings:
        return t + 1, index - before, True
    return t, index - packings, False


@register_jitable
def most_bands(m: int, mr: int) -> int:
    """Into how many bands m rows are cut at most: of four tiles each, or of one, if that has the 32 rows of tile registers.
    With fewer bands several threads pack the same one: bfloat16 of 256³ took a quarter longer on 16 cores of a Xeon."""
    return math.ceil(m / min(4 * mr, 32))


@register_jitable
def bands_and_parts(m: int, n: int, threads: int, itemsize: int, mr: int, nr: int, mc: int, nc: int) -> tuple[int, int]:
    """How many bands of rows, and parts of a panel's columns, a phase is cut into; for one thread, as few as possible.

    A thread stays with a band, whose rows of A it packs once, while the band has parts left. Every band reads the whole
    panel of B, so there are no more bands than threads need: with bands of 24 rows, 150 GFLOPS take 12 GB/s of B.
    """
    fewest = math.ceil(m * max(4, itemsize) / (8 * mc))
    if threads == 1:
        return fewest, 1
    slivers = math.ceil(min(n, nc) / nr)
    rounds = max(math.ceil(fewest / threads), math.ceil(JOBS / slivers))
    bands = max(fewest, min(most_bands(m, mr), rounds * threads))
    return bands, min(slivers, math.ceil(2 * JOBS * threads / bands))


@nb.njit(nogil=True)
def next_job(counters, taken, bands, parts, home):
    """Take the next part of the band ``home``, or of the first band after it that has one left: (band, part)."""
    for x in range(bands):
        band = (home + x) % bands
        part = codegen.take_below(counters, (taken + band) * LINE, parts)
        if part < parts:
            return band, part
    return bands, parts  # the product was stopped


@register_jitable
def lies_well(a: np.ndarray, word: int, whole_tiles: bool) -> bool:
    """Whether rows of A need no packing: elements of a row are neighbours, rows consist of whole words of ``word`` bytes,
    and they do not all fall into the same few sets of the second-level cache, where a block of them stays.
    ``whole_tiles``: no tile has fewer rows than a kernel computes.
    """
    words = (a.ctypes.data | a.strides[0] | a.shape[1] * a.itemsize) % word == 0
    return words and whole_tiles and a.strides[1] == a.itemsize and a.strides[0] > 0 and a.strides[0] % PAGE != 0


@register_jitable
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
) -> Callable[..., None]:
    """A compiled function ``product(a, b, c, m, n, k, space, counters)``, to be called by every thread of a team.

    ``m``, ``n`` and ``k`` count packed elements, and ``space`` holds such elements; k is cut at multiples of ``grain``. Only
    three compiled functions know the dtypes:

    - ``pack_rows(a, top, rows, low, kc, target, at, ld)`` writes steps ``low`` to ``low + kc`` of rows of A to ``target``,
      from element ``at`` on, ``ld`` apart;
    - ``pack_columns(b, low, kc, left, columns, target, at, ld)`` writes these steps of columns of B;
    - ``write(kc, a, a_stride, b, c, top, tiles, left, columns, vectors, accumulate, ends, corner)`` multiplies a band of
      rows, from pointer ``a`` on, ``a_stride`` apart, by a sliver of packed columns into C, or adds the product to it where
      ``accumulate`` is not 0.
      ``tiles`` is (rows of a low tile, how many of the first tiles are a row higher, number of tiles). With ``ends`` no more
      steps of k follow; ``corner`` has room for a tile. ``write`` contains the loop over tiles, because each call of an
      inlined function counts references to its arrays.

    With ``in_place`` elements of A are what is packed, or whole words of them, and rows of A that need no packing are read
    where they lie. Then ``note_rows(a, rows, kc, words, apart, target)`` is called instead of ``pack_rows``, for what that
    finds out besides: ``words`` points to the first row, and rows lie ``apart``.
    With ``any_height`` ``write`` needs no rows of zeros after those of low tiles. ``b`` may be a tuple that begins with the
    matrix, if ``pack_columns`` needs more than that.

    None of them is called for a product without elements or without steps.
    """
    chosen = blocks.chosen
    mr, nv, vector_bytes, a_stride = chosen.mr, chosen.nv, chosen.vector_bits // 8, blocks.a_stride
    most_steps, most_steps_of_8_bytes = blocks.kc, chosen.kc_of_8_bytes
    nr, mc, nc, tile_at, block_size = blocks.nr, blocks.mc, blocks.nc, blocks.tile_at, blocks.block

    @nb.njit(nogil=True, inline="always")
    def pack_block(a, top, rows, low, kc, block):
        """Pack rows of A; rows of zeros follow where the last rows may be fewer than those of the lowest tile."""
        pack_rows(a, top, rows, low, kc, block, 0, a_stride)
        if not any_height and rows < mr * (mr - 1):
            for r in range(rows, rows + mr):
                for p in range(kc):
                    block[r * a_stride + p] = 0

    @nb.njit(nogil=True, inline="always")
    def pack_sliver(b, low, kc, left, columns, panel, at, width):
        """Pack columns of B in rows of ``width``, filled up with zeros."""
        pack_columns(b, low, kc, left, columns, panel, at, width)
        if columns < width:
            for row in range(at, at + kc * width, width):
                for s in range(row + columns, row + width):
                    panel[s] = 0

    @nb.njit(nogil=True, inline="always")
    def prefetch_rows(panel, at, size):
        """Fetch the lines that will be packed next. Other threads read them in an earlier phase or product, and a line can
        be written only when their caches have dropped it: on 16 cores of a Xeon that took six times as long as the copy."""
        for line in range(at, at + size, codegen.ALIGNMENT // codegen.itemsize(panel)):
            codegen.prefetch_for_write(panel, line)

    @nb.njit(nogil=True, inline="always")
    def product(a, b, c, m, n, k, space, counters):
        mine = codegen.fetch_add(counters, LINE, 1)
        if m == 0 or n == 0 or k == 0:
            return
        adds = counters[counters.size - 2]
        itemsize = codegen.itemsize(space)
        lanes = vector_bytes // itemsize
        vectors = math.ceil(n / lanes)
        slivers = math.ceil(vectors / nv)
        panels = math.ceil(slivers / (nc // (nv * lanes)))
        wide = math.ceil(slivers / panels)
        deep = math.ceil(k / (most_steps if itemsize <= 4 else most_steps_of_8_bytes))
        tiles = math.ceil(m / mr)
        low_rows, higher = m // tiles, m % tiles  # as by ``part_start``, without a division for each tile
        threads = max(1, min(BLOCKS, counters[counters.size - 1]))
        bands, parts = bands_and_parts(m, n, threads, itemsize, mr, nr, mc, nc)
        if LINE * (2 + bands * parts + panels * deep * (1 + bands)) > counters.size - 2:  # compiled for more processors
            threads = 1
            bands, parts = bands_and_parts(m, n, threads, itemsize, mr, nr, mc, nc)
        jobs, last = bands * parts, panels * deep - 1
        # A single thread overwrites the last panel with the next one: its memory may still be in L2.
        buffers, before = (1, jobs) if threads == 1 else (2, jobs // 2)
        steps = math.ceil(k // grain / deep) * grain
        panel_size = steps * wide * nv * lanes
        if mine >= threads or 2 * panel_size + (mine + 1) * block_size > space.size:
            return
        block = space[2 * panel_size + mine * block_size : 2 * panel_size + (mine + 1) * block_size]
        corner = block[tile_at:]
        done, packed = 2, 2 + jobs
        taken = packed + last + 1
        by_steps = codegen.has_rows(b)
        packings = math.ceil(steps / STEPS) if by_steps else wide
        group = itemsize // codegen.itemsize(a)  # elements of A in a packed one, if A is read in place
        straight = in_place and k * group == a.shape[1] and lies_well(a, itemsize, low_rows >= mr - 1)
        rows, rows_apart = codegen.offset(block, 0), a_stride
        phase, band, block_of = -1, 0, -1
        while True:
            t, index, packs = job_of(codegen.fetch_add(counters, 0, 1), packings, jobs, before, last)
            if not packs and index >= jobs:
                return
            j, p = t // deep, t % deep
            low = part_start(k // grain, deep, p) * grain
            kc = part_start(k // grain, deep, p + 1) * grain - low
            first, end = j * wide, min(slivers, (j + 1) * wide)
            panel = space[t % buffers * panel_size : (t % buffers + 1) * panel_size]
            if packs:
                for x in range(jobs):  # until then the panel in this buffer is in use
                    codegen.wait_for(counters, (done + x) * LINE, t + 1 - buffers)
                begin, stop = 0, kc
                if by_steps:
                    begin = part_start(kc // grain, packings, index) * grain
                    stop = part_start(kc // grain, packings, index + 1) * grain
                for x in range(first, end) if by_steps else range(first + index, min(end, first + index + 1)):
                    left, right = part_start(vectors, slivers, x) * lanes, part_start(vectors, slivers, x + 1) * lanes
                    width = max(right - left, (nv - 1) * lanes)
                    at = (x - first) * nv * lanes * kc + begin * width
                    if by_steps and threads > 1 and x + 1 < end:
                        prefetch_rows(panel, at + nv * lanes * kc, (stop - begin) * width)
                    pack_sliver(b, low + begin, stop - begin, left, min(n, right) - left, panel, at, width)
                codegen.fetch_add(counters, (packed + t) * LINE, 1)
                continue
            # ---- multiply
            if phase != t:
                phase, band = t, mine * bands // threads
            band, part = next_job(counters, taken + t * bands, bands, parts, band)
            if band == bands:
                return
            begin, stop = part_start(tiles, bands, band), part_start(tiles, bands, band + 1)
            i0 = part_start(m, tiles, begin)
            if block_of != t * bands + band:
                block_of, height = t * bands + band, part_start(m, tiles, stop) - i0
                if in_place and straight:
                    rows_apart = a.strides[0] // itemsize
                    rows = codegen.pointer_as(codegen.address(a, i0, low * group), block)
                    note_rows(a, height, kc, rows, rows_apart, block)
                else:
                    pack_block(a, i0, height, low, kc, block)
            tiles_here = low_rows, max(0, higher - begin), stop - begin
            job = done + band * parts + part
            codegen.wait_for(counters, (packed + t) * LINE, packings)
            codegen.wait_for(counters, job * LINE, t)
            for s in range(
                first + part_start(end - first, parts, part), first + part_start(end - first, parts, part + 1)
            ):
                left, right = part_start(vectors, slivers, s), part_start(vectors, slivers, s + 1)
                column, width = left * lanes, max(right - left, nv - 1)
                columns = min(n, right * lanes) - column
                b_panel = codegen.offset(panel, (s - first) * nv * lanes * kc)
                write(
                    kc,
                    rows,
                    rows_apart,
                    b_panel,
                    c,
                    i0,
                    tiles_here,
                    column,
                    columns,
                    width,
                    adds + p,
                    p + 1 == deep,
                    corner,
                )
            if t < last:
                codegen.fetch_add(counters, job * LINE, 1)

    return product
