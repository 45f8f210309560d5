"""The driver of all kernels that pack: threads take jobs from shared lists, one list for each group of threads.

A tile of C is NV vectors wide and MR rows high, as in cpu/register_tile. The loops over panels around the tile become
one flat list of jobs. Threads of a group get their jobs from a shared counter:

    pack B₀ | multiply ½ | pack B₁ | multiply ½ | multiply ½ | pack B₂ | multiply ½ | …
            └─── phase 0 ─────────────────────┘ └─── phase 1 ───────────────────┘

A phase is KC steps of k for a panel of columns of C. The jobs that pack B for the next phase are in the middle of the
present phase's jobs, and write to the other of two buffers. So a panel of B is packed long before it is needed, and a
late thread finds work instead of waiting at a barrier.

A job waits only for earlier jobs of its list, so threads cannot deadlock. When the list of a group of threads is done,
its threads help with the list of the next group. The sums that the phases of k add to an element of C are added in
order, each as one chain of multiply-adds. So the bits of an element of C depend neither on the number of threads nor on
how m and n are cut.

The jobs of a phase are bands of rows of C, which are cut into parts of a panel's columns. A thread takes the next part
of the band whose rows of A it packed last. If that band has no part left, the thread takes a part of the next band that
has one. ``engine/cuts.py`` computes groups, panels, bands and parts.

The driver does not depend on dtypes: ``team_product`` makes a driver from functions that pack A, pack B and write C.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ...host.machine import machine
from ...kernels.blocking import caches
from .. import codegen
from .cuts import (
    LINE,
    PACKING,
    PACKING_BOTH,
    Cut,
    PackedBlocks,
    block_rows,
    cut,
    job_counters,
    job_of,
    next_job,
    part_start,
    phases_of,
)
from .triangle import ADDS, HERMITIAN, LOWER, matrix_of, mirror_band, part_at

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
    """Return whether rows of A need no packing: the elements of a row are contiguous, and rows consist of whole words
    of ``word`` bytes. ``whole_tiles`` means that no tile has fewer rows than the kernel computes.
    """
    words = (a.ctypes.data | a.strides[0] | a.shape[1] * a.itemsize) % word == 0
    return words and whole_tiles and a.strides[1] == a.itemsize and a.strides[0] > 0


@codegen.register_jitable
def displaced(stride: int, m: int, mc: int, itemsize: int, threads: int) -> bool:
    """Return whether the threads should pack A, because rows of A displace each other from a cache.

    The m rows of A are ``stride`` bytes apart, a multiple of a high power of two. Rows displace each other if a block
    of MC rows of 8-byte elements has more rows in the same sets of the second-level cache than these sets can hold.
    From a fast last-level cache, a few threads read lines as fast as they need them: without packing, products of 512³
    to 4,096³ took up to 8 % less time on Zen 4. If the last-level cache is slow, tiles need rows of A in L2
    (``engine/edges.py``).
    """
    rows = min(m, block_rows(mc, itemsize))
    return threads >= MANY() and rows * min(stride & -stride, WAY) > L2() * 3 // 4


@codegen.register_jitable
def nothing(a, rows, kc, words, apart, target):
    """Do nothing; this is the default of the parameter ``note_rows`` of ``team_product``."""


# ---- what a driver's functions pass to each other --------------------------------------------------------------------
# Machine code has the fields of such tuples as plain values.


class StepsOfK(NamedTuple):
    """The steps of k over which one call of ``write`` multiplies."""

    kc: int
    accumulate: int  # not 0: the product is added to C
    ends: bool  # no more steps follow


class Band(NamedTuple):
    """Rows of C, cut into tiles whose heights differ by at most one row; the higher tiles come first."""

    top: int  # the first row
    tiles: int
    low: int  # rows of a low tile
    higher: int  # tiles that are a row higher


class Sliver(NamedTuple):
    """The columns of C for which one sliver of B is packed."""

    left: int  # the first one
    columns: int  # that lie inside C
    vectors: int  # of packed columns: those beyond C are zeros


class Near(NamedTuple):
    """The data that caches hold, or that should be prefetched into them."""

    cached: bool  # whether the rows of A are in the second-level cache
    ahead: int  # elements from this sliver to the next one, if that should be prefetched, otherwise 0
    reals: int  # packed elements for one of a symmetric C (``triangle.columns_of_tile``), otherwise 0


class _TeamProduct(NamedTuple):
    """The numbers and arrays of a product, which all threads share. ``straight`` means that rows of A are read without
    packing. ``adds`` is 1 to add to C, otherwise 0. ``reals`` is the number of packed elements for one element of a
    symmetric C, otherwise 0. ``conjugated`` means that C is Hermitian. ``mirrors`` means that the elements below the
    diagonal of C are copied to the other side."""

    a: Any
    b: Any
    c: Any
    n: int
    k: int
    deep: int
    straight: bool
    adds: int
    reals: int
    conjugated: bool
    mirrors: bool


class _Division(NamedTuple):
    """How the workspace and the counters are divided among threads. In the workspace, the panels of all groups come
    first, then a block of A for each thread."""

    threads: int
    how: Cut
    buffers: int  # panels of a group: one for a thread by itself, otherwise two
    panel: int  # elements
    block: int  # elements
    counters: int  # of a group


class _Group(NamedTuple):
    """A group of threads: its columns of C, its packed panels of B, and its counters (``cuts.JobCounters``)."""

    left: int  # the first of its vectors of columns
    vectors: int
    buffers: int
    panels: Any
    counters: Any


class _Rows(NamedTuple):
    """A band's rows of A, for one phase."""

    a: Any  # a pointer to the first
    a_stride: int  # elements from one to the next
    cached: bool  # whether they are in the second-level cache


class _Phase(NamedTuple):
    """A phase of a group: ``kc`` steps of k from ``low`` on, for the slivers ``first`` to ``end``, packed in ``panel``."""

    number: int  # in the group's list
    part: int  # of k
    low: int
    kc: int
    first: int
    end: int
    panel: Any


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
    """Return a compiled function ``product(a, b, c, m, n, k, space, counters)``, which every thread of a team must
    call.

    ``m``, ``n`` and ``k`` count packed elements, and ``space`` holds such elements; k is cut at multiples of ``grain``.
    The last two elements of ``counters`` are the bits of ``triangle`` and the number of threads; all other elements are
    zero at first. Only three compiled functions depend on the dtypes:

    - ``pack_rows(a, top, rows, low, kc, target, at, ld)`` writes steps ``low`` to ``low + kc`` of rows of A to
      ``target``, from element ``at`` on; the rows are then ``ld`` elements apart;
    - ``pack_columns(b, low, kc, left, columns, target, at, ld)`` writes the same steps of columns of B;
    - ``write(steps, a, a_stride, b, c, band, sliver, corner, near)`` multiplies a ``Band`` of rows by a ``Sliver`` of
      packed columns, over the ``StepsOfK``, and stores the product in C or adds it to C. The rows of A begin at the
      pointer ``a`` and are ``a_stride`` elements apart. ``corner`` is a buffer for one tile. ``write`` contains the
      loop over tiles, because each call of an inlined function counts references to its arrays.

    With ``in_place`` the packed elements are elements of A, or whole words of them, and rows of A that need no packing
    are read directly. For rows that are read directly, ``note_rows(a, rows, kc, words, apart, target)`` is called
    instead of ``pack_rows``, to compute the numbers on rows that ``pack_rows`` computes; ``words`` points to the first
    row, and rows are ``apart`` elements apart. ``any_height`` means that ``write`` needs no rows of zeros after the
    rows of tiles that are lower than MR rows. If ``pack_columns`` needs more data than B, ``b`` may be a tuple that
    begins with the matrix B; in the same way ``c`` may be a tuple that begins with C.

    For a symmetric C (``engine/triangle.py``), ``write`` may leave out the first tiles of a band. With ``whole_bands``,
    only whole bands of a symmetric C are left out, because ``write`` needs all tiles of a band.

    Neither ``pack_rows``, ``pack_columns`` nor ``write`` is called for a product without elements or without steps of
    k. Raises MemoryError if ``space`` or ``counters`` is too small for one thread.
    """
    mr, vector_bytes = blocks.chosen.mr, blocks.chosen.vector_bits // 8
    steps_of_phase, steps_of_8_bytes, rows_of_block = (blocks.number(name) for name in ("kc", "kc_of_8_bytes", "mc"))
    divide = _divider(blocks, grain)
    find_rows = _finder_of_rows(blocks, pack_rows, note_rows, in_place, any_height)
    work = _worker(
        blocks,
        grain,
        find_rows,
        _packer_of_columns(blocks, grain, pack_columns),
        _multiplier(blocks, write, whole_bands),
    )

    @codegen.njit(nogil=True, inline="always")
    def product(a, b, c, m, n, k, space, counters):
        mine = codegen.fetch_add(counters, 0, 1)
        if m == 0 or n == 0 or k == 0:
            return
        bits, planned = counters[counters.size - 2], counters[counters.size - 1]
        reals = max(1, n // m) if bits > ADDS else 0
        itemsize = codegen.itemsize(space)
        vectors = math.ceil(n / (vector_bytes // itemsize))
        deep = math.ceil(k / (steps_of_phase() if itemsize <= 4 else steps_of_8_bytes()))
        straight = in_place and k * (itemsize // codegen.itemsize(a)) == a.shape[1]
        straight = straight and lies_well(a, itemsize, m // math.ceil(m / mr) >= mr - 1)
        straight = straight and not displaced(a.strides[0], m, rows_of_block(), itemsize, planned)
        division = divide(m, vectors, k, deep, straight, planned, space, counters)
        if mine >= division.threads:
            return
        how, threads = division.how, division.threads
        blocks_at = how.groups * division.buffers * division.panel
        block = space[blocks_at + mine * division.block : blocks_at + (mine + 1) * division.block]
        own, home = mine * how.groups // threads, mine * how.groups % threads * how.bands // threads
        for turn in range(how.groups):  # a thread whose own group is done helps the next
            g = (own + turn) % how.groups
            left, right = part_start(vectors, how.groups, g), part_start(vectors, how.groups, g + 1)
            panels = space[g * division.buffers * division.panel : (g + 1) * division.buffers * division.panel]
            counted = counters[LINE + g * division.counters : LINE + (g + 1) * division.counters]
            group = _Group(left, right - left, division.buffers, panels, counted)
            work(
                _TeamProduct(
                    a, b, c, n, k, deep, straight, bits & ADDS, reals, (bits & HERMITIAN) != 0, (bits & LOWER) == 0
                ),
                how,
                group,
                home,
                block,
            )

    return product


def _divider(blocks: PackedBlocks, grain: int) -> Callable[..., _Division]:
    chosen, vector_bytes = blocks.chosen, blocks.chosen.vector_bits // 8
    mr, nv, shortens = chosen.mr, chosen.nv, blocks.shortens
    stride, rows_of_block, columns_of_panel, elements_of_block, elements_of_corner = (
        blocks.number(name) for name in ("a_stride", "mc", "nc", "block", "corner")
    )

    @codegen.njit(nogil=True)
    def divide(m, vectors, k, deep, straight, planned, space, counters):
        """Cut a product for as many of the ``planned`` threads as the workspace and the counters have room for."""
        lanes = vector_bytes // codegen.itemsize(space)
        packing = PACKING if straight else PACKING_BOTH
        whole_block = elements_of_block()
        block = min(whole_block, (m + mr) * stride() + elements_of_corner()) if shortens else whole_block
        most_steps = math.ceil(k // grain / deep) * grain  # of a phase
        threads = max(1, min(planned, space.size // block))
        while True:
            how = cut(m, vectors, lanes, threads, packing, mr, nv, rows_of_block(), vector_bytes, columns_of_panel())
            buffers = 1 if threads == how.groups else 2
            panel = most_steps * how.wide * nv * lanes
            counted = job_counters(how, phases_of(how, deep)).end
            fits = how.groups * buffers * panel + threads * block <= space.size
            if fits and LINE + how.groups * counted <= counters.size - 2:
                return _Division(threads, how, buffers, panel, block, counted)
            if threads == 1:
                raise MemoryError("the workspace is smaller than one thread needs")
            threads -= 1

    return divide


def _worker(
    blocks: PackedBlocks,
    grain: int,
    find_rows: Callable[..., Any],
    pack_part: Callable[..., None],
    multiply_part: Callable[..., None],
) -> Callable[..., None]:
    stride, mr, vector_bytes = blocks.number("a_stride"), blocks.chosen.mr, blocks.chosen.vector_bits // 8

    @codegen.njit(nogil=True, inline="always")
    def is_left_out(product, how, group, phase, band, part, lanes):
        """Return whether this part of a band lies above the diagonal of a symmetric C, and so is left out."""
        m, first = product.a.shape[0], phase.first + part_start(phase.end - phase.first, how.parts, part)
        tiles = math.ceil(m / mr)
        bottom = part_start(m, tiles, part_start(tiles, how.bands, band + 1))
        left = (group.left + part_start(group.vectors, how.slivers, first)) * lanes
        return product.reals > 0 and left >= bottom * product.reals

    @codegen.njit(nogil=True, inline="always")
    def phase_of(product, how, group, number):
        """Return phase ``number`` of a list, in which all phases of k for one panel come before those for the next
        panel."""
        j, part = number // product.deep, number % product.deep
        low = part_start(product.k // grain, product.deep, part) * grain
        high = part_start(product.k // grain, product.deep, part + 1) * grain
        size = group.panels.size // group.buffers
        at = number % group.buffers * size
        first, end = j * how.wide, min(how.slivers, (j + 1) * how.wide)
        return _Phase(number, part, low, high - low, first, end, group.panels[at : at + size])

    @codegen.njit(nogil=True)
    def work(product, how, group, home, block):
        """Take jobs from the list of a group until none is left. The thread begins each phase with the band number
        ``home``."""
        phases, jobs = phases_of(how, product.deep), how.bands * how.parts
        places = job_counters(how, phases)
        # A thread by itself packs a panel where the last one was, whose lines may still be in L2: after that one's last job.
        before = jobs if group.buffers == 1 else jobs // 2
        packings = how.wide
        if codegen.has_rows(product.b):
            packings = math.ceil(math.ceil(product.k // grain / product.deep) * grain / STEPS)
        rows = _Rows(codegen.offset(block, 0), stride(), True)
        band, band_of = home, 0  # the band whose parts this thread takes, and its phase
        rows_of = -1  # the phase and band of ``rows``, as one number: they are found once, for all parts that it takes
        while True:
            t, index, packs = job_of(codegen.fetch_add(group.counters, 0, 1), packings, jobs, before, phases - 1)
            if not packs and index >= jobs:
                return
            phase = phase_of(product, how, group, t)
            if packs:
                for x in range(jobs):  # until then the panel in this buffer is in use
                    codegen.wait_for(group.counters, places.done + x * LINE, t + 1 - group.buffers)
                pack_part(product, how, group, phase, packings, index)
                codegen.fetch_add(group.counters, places.packed + t * LINE, 1)
                continue
            if band_of != t:
                band_of, band = t, home
            band, part = next_job(group.counters, places.taken + t * how.bands * LINE, how.bands, how.parts, band)
            if band == how.bands:
                return
            left_out = is_left_out(product, how, group, phase, band, part, vector_bytes // codegen.itemsize(block))
            if left_out:
                pass
            elif rows_of != t * how.bands + band:
                rows_of = t * how.bands + band
                rows = find_rows(product, how, phase, band, block)
            else:
                rows = _Rows(rows.a, rows.a_stride, True)
            job = places.done + (band * how.parts + part) * LINE
            codegen.wait_for(group.counters, places.packed + t * LINE, packings)
            codegen.wait_for(group.counters, job, t)
            if not left_out:
                multiply_part(product, how, group, phase, band, part, rows, block)
            if t < phases - 1:
                codegen.fetch_add(group.counters, job, 1)

    return work


def _packer_of_columns(blocks: PackedBlocks, grain: int, pack_columns: Callable[..., None]) -> Callable[..., None]:
    nv, vector_bytes = blocks.chosen.nv, blocks.chosen.vector_bits // 8

    @codegen.njit(nogil=True, inline="always")
    def pack_sliver(b, low, kc, left, columns, panel, at, width):
        """Pack columns of B as rows of ``width`` elements, filled up with zeros."""
        pack_columns(b, low, kc, left, columns, panel, at, width)
        if columns < width:
            for row in range(at, at + kc * width, width):
                for s in range(row + columns, row + width):
                    panel[s] = 0

    @codegen.njit(nogil=True, inline="always")
    def prefetch_rows(panel, at, size):
        """Fetch the lines of the panel that will be packed next. Other threads read these lines in an earlier phase or
        product, and a line can be written only when the caches of those threads have dropped it: on 16 cores of a Xeon,
        waiting for the lines took six times as long as the copy."""
        for line in range(at, at + size, codegen.ALIGNMENT // codegen.itemsize(panel)):
            codegen.prefetch_for_write(codegen.offset(panel, line))

    @codegen.njit(nogil=True)
    def pack_part(product, how, group, phase, packings, index):
        """Run job ``index`` of the jobs that pack a panel. A job packs some steps of k of all slivers if B is
        row-major, otherwise one sliver."""
        b, panel, lanes = product.b, phase.panel, vector_bytes // codegen.itemsize(phase.panel)
        by_steps = codegen.has_rows(b)
        begin, stop, first, end = 0, phase.kc, phase.first + index, min(phase.end, phase.first + index + 1)
        if by_steps:
            begin = part_start(phase.kc // grain, packings, index) * grain
            stop = part_start(phase.kc // grain, packings, index + 1) * grain
            first, end = phase.first, phase.end
        for x in range(first, end):
            left = (group.left + part_start(group.vectors, how.slivers, x)) * lanes
            right = (group.left + part_start(group.vectors, how.slivers, x + 1)) * lanes
            width = max(right - left, (nv - 1) * lanes)
            at = (x - phase.first) * nv * lanes * phase.kc + begin * width
            if by_steps and group.buffers > 1 and x + 1 < end:
                prefetch_rows(panel, at + nv * lanes * phase.kc, (stop - begin) * width)
            columns = min(product.n, right) - left
            pack_sliver(b, phase.low + begin, stop - begin, left, columns, panel, at, width)

    return pack_part


def _finder_of_rows(
    blocks: PackedBlocks,
    pack_rows: Callable[..., None],
    note_rows: Callable[..., None],
    in_place: bool,
    any_height: bool,
) -> Callable[..., Any]:
    mr, stride = blocks.chosen.mr, blocks.number("a_stride")

    @codegen.njit(nogil=True)
    def find_rows(product, how, phase, band, block):
        """Return a band's rows of A: packed into ``block``, or in A itself if they need no packing."""
        a, low, kc, m = product.a, phase.low, phase.kc, product.a.shape[0]
        tiles = math.ceil(m / mr)
        top = part_start(m, tiles, part_start(tiles, how.bands, band))
        rows = part_start(m, tiles, part_start(tiles, how.bands, band + 1)) - top
        if in_place and product.straight:
            itemsize = codegen.itemsize(block)
            first = codegen.pointer_as(codegen.address(a, top, low * (itemsize // codegen.itemsize(a))), block)
            note_rows(a, rows, kc, first, a.strides[0] // itemsize, block)
            return _Rows(first, a.strides[0] // itemsize, False)
        a_stride = stride()
        pack_rows(a, top, rows, low, kc, block, 0, a_stride)
        if not any_height and rows < mr * (mr - 1):  # the last ones may be fewer than those of the lowest tile
            for r in range(rows, rows + mr):
                for p in range(kc):
                    block[r * a_stride + p] = 0
        return _Rows(codegen.offset(block, 0), a_stride, True)

    return find_rows


def _multiplier(blocks: PackedBlocks, write: Callable[..., None], whole_bands: bool) -> Callable[..., None]:
    chosen, vector_bytes, elements_of_corner = blocks.chosen, blocks.chosen.vector_bits // 8, blocks.number("corner")
    mr, nv = chosen.mr, chosen.nv

    @codegen.njit(nogil=True)
    def multiply_part(product, how, group, phase, band, part, rows, block):
        """Run the job that multiplies ``part`` of a band, one sliver after the other."""
        m, lanes, tiles = (
            product.a.shape[0],
            vector_bytes // codegen.itemsize(block),
            math.ceil(product.a.shape[0] / mr),
        )
        begin, stop = part_start(tiles, how.bands, band), part_start(tiles, how.bands, band + 1)
        # As by ``part_start``, without a division for each tile.
        tiles_of_band = Band(part_start(m, tiles, begin), stop - begin, m // tiles, max(0, m % tiles - begin))
        bottom, reals = part_start(m, tiles, stop), product.reals
        steps = StepsOfK(phase.kc, product.adds + phase.part, phase.part + 1 == product.deep)
        corner = block[block.size - elements_of_corner() :]
        large = phase.panel.size * codegen.itemsize(block) > L2() // 2  # L2 does not keep a sliver until the next band
        slivers, size, cached = phase.end - phase.first, nv * lanes * phase.kc, rows.cached
        beyond = phase.first + part_start(slivers, how.parts, part + 1)
        for s in range(phase.first + part_start(slivers, how.parts, part), beyond):
            left = group.left + part_start(group.vectors, how.slivers, s)
            right = group.left + part_start(group.vectors, how.slivers, s + 1)
            columns, of_a, here = min(product.n, right * lanes) - left * lanes, rows.a, tiles_of_band
            if reals:
                columns = min(columns, bottom * reals - left * lanes)
                if columns <= 0:  # this sliver and the next ones lie above the diagonal
                    break
                x = begin if whole_bands else max(begin, part_at(m, tiles, min(m - 1, left * lanes // reals)))
                here = Band(part_start(m, tiles, x), stop - x, m // tiles, max(0, m % tiles - x))
                of_a = codegen.ahead(rows.a, (here.top - tiles_of_band.top) * rows.a_stride)
            sliver = Sliver(left * lanes, columns, max(right - left, nv - 1))
            near = Near(cached, size if large and s + 1 < beyond else 0, reals)
            packed = codegen.offset(phase.panel, (s - phase.first) * size)
            write(steps, of_a, rows.a_stride, packed, product.c, here, sliver, corner, near)
            cached = True
            if reals and steps.ends and product.mirrors:
                j, units = left * lanes // reals, how.bands if whole_bands else tiles
                mirror_band(
                    matrix_of(product.c), product.conjugated, here.top, bottom, j, j + columns // reals, tiles, units
                )

    return multiply_part
