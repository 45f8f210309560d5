"""A product shared out among a team as one list of jobs, for any way of packing the operands.

The loops, their order and their cuts are those of cpu/packed, and are told there. Here they know nothing of dtypes: a
product of complex numbers, or of narrow integers, is a product of what its packing makes of the operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numba as nb

from .. import codegen
from ..host.machine import machine
from ..kernels.blocking import blocking

CHOSEN = blocking()
BITS, MR, NV, UNROLL = CHOSEN.vector_bits, CHOSEN.mr, CHOSEN.nv, CHOSEN.unroll
KC = CHOSEN.kc_of_8_bytes
A_STRIDE = KC + 16
MC = CHOSEN.mc(KC)
NR = NV * BITS // 16  # of 2-byte elements, the widest there is
NC = CHOSEN.nc(KC, NR)
BLOCK = (2 * MC + MR) * A_STRIDE + MR * NR  # of A in 4-byte elements, and a tile behind it
# Every thread of a team has a block of A; who comes when none is left has nothing to do.
BLOCKS = max(4, machine().usable_cores)
# Jobs of a phase for each thread, at least: what one thread has more or less than others is a part of one.
JOBS = 8
# Counters are so many words apart: a cache line each, or who waits for one would slow who counts by another.
LINE = 8

full = codegen.edge_kernel(MR, NV, BITS, A_STRIDE, unroll=UNROLL)
low = codegen.edge_kernel(MR - 1, NV, BITS, A_STRIDE, unroll=UNROLL)
narrow = codegen.edge_kernel(MR, NV - 1, BITS, A_STRIDE, unroll=UNROLL)
low_narrow = codegen.edge_kernel(MR - 1, NV - 1, BITS, A_STRIDE, unroll=UNROLL)


@nb.njit(nogil=True)
def cut(length, parts, index):
    """Where part ``index`` of ``length`` begins: parts differ by one at most, the larger ones come first."""
    return index * (length // parts) + min(index, length % parts)


@nb.njit(nogil=True)
def job_of(number, wide, jobs, before, last):
    """Phase, number within it, and whether it is to pack, of a job of the list: ``wide`` slivers are packed for a phase.

    The first phase's slivers head the list, each next one's come after ``before`` jobs of the phase before.
    """
    if number < wide:
        return 0, number, True
    t = min((number - wide) // (wide + jobs), last)
    index = number - wide - t * (wide + jobs)
    if t == last or index < before:
        return t, index, False
    if index < before + wide:
        return t + 1, index - before, True
    return t, index - wide, False


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
def bands_and_parts(m, n, threads, itemsize):
    """How many bands of rows, and parts of a panel's columns, a phase is cut into; one thread wants them large.

    A thread stays with a band, of which it packs A once, for as long as there are parts. The panel of B streams past
    every band, so there are no more bands than threads need.
    """
    fewest = math.ceil(m * max(4, itemsize) / (8 * MC))
    if threads == 1:
        return fewest, 1
    slivers = math.ceil(min(n, NC) / NR)
    rounds = max(math.ceil(fewest / threads), math.ceil(JOBS / slivers))
    bands = max(fewest, min(math.ceil(m / (4 * MR)), rounds * threads))
    return bands, min(slivers, math.ceil(2 * JOBS * threads / bands))


@nb.njit(nogil=True)
def next_job(counters, taken, bands, parts, home):
    """A job that nobody has: of the band that this thread was last at, or the first behind it that has one left."""
    for x in range(bands):
        band = (home + x) % bands
        part = codegen.take_below(counters, (taken + band) * LINE, parts)
        if part < parts:
            return band, part
    return bands, parts  # the product was stopped


def space_needed(m: int, n: int, k: int) -> int:
    """Elements of the workspace for a product of this shape; like its arguments, as they are packed."""
    blocks = min(BLOCKS, math.ceil(m / MR) * math.ceil(n / NR))
    return 2 * min(k, KC) * (min(n, NC) + NR) + blocks * BLOCK


def counters_needed(m: int, n: int, k: int) -> int:
    """Counters for a product of this shape, as it is packed."""
    bands = max(math.ceil(m / MC), min(math.ceil(m / (4 * MR)), math.ceil(m / MC) + JOBS * BLOCKS))  # at most
    jobs = min(bands * math.ceil(min(n, NC) / NR), bands + 2 * JOBS * BLOCKS)
    phases = (math.ceil(n / NC) + 1) * math.ceil(k / KC)
    return LINE * (2 + jobs + phases * (1 + bands))


def packers(pack: Callable[..., None]) -> tuple[Callable[..., None], Callable[..., None]]:
    """``pack_rows`` and ``pack_columns`` for ``team_product``, where one packer (``codegen.packer``) does it all."""

    @nb.njit(nogil=True, inline="always")
    def pack_rows(a, top, rows, low, kc, block):
        pack(a, top, rows, low, kc, block, 0, A_STRIDE)

    @nb.njit(nogil=True, inline="always")
    def pack_columns(b, low, kc, left, columns, panel, at, width):
        pack(b, low, kc, left, columns, panel, at, width)

    return pack_rows, pack_columns


def team_product(
    pack_rows: Callable[..., None], pack_columns: Callable[..., None], write: Callable[..., None], grain: int = 1
) -> Callable[..., None]:
    """A compiled function ``product(a, b, c, m, n, k, space, counters)``, to be called by every thread of a team.

    ``m``, ``n`` and ``k`` count elements as they are packed, and ``space`` holds such; it is cut along k at multiples of
    ``grain``. What differs between dtypes is in three compiled functions:

    - ``pack_rows(a, top, rows, low, kc, block)`` writes steps ``low`` to ``low + kc`` of rows of A, A_STRIDE apart;
    - ``pack_columns(b, low, kc, left, columns, panel, at, width)`` writes these steps of columns of B, ``width`` apart;
      what lies between may be any numbers;
    - ``write(kc, a, b, c, top, rows, left, columns, vectors, accumulate, ends, corner)`` multiplies packed rows by packed
      columns into a part of C of at most MR rows and ``vectors`` vectors, or adds the product to it where ``accumulate``
      is not 0; it ``ends`` there, or there will be more of k; in ``corner`` is room for a tile.

    None is called for a product without elements or without steps.
    """

    @nb.njit(nogil=True, inline="always")
    def pack_block(a, top, rows, low, kc, block):
        """Where no tile is as low as what is left of the rows, there are rows of zeros behind them."""
        pack_rows(a, top, rows, low, kc, block)
        if rows < MR * (MR - 1):
            for r in range(rows, rows + MR):
                for p in range(kc):
                    block[r * A_STRIDE + p] = 0

    @nb.njit(nogil=True, inline="always")
    def product(a, b, c, m, n, k, space, counters):
        mine = codegen.fetch_add(counters, LINE, 1)
        if m == 0 or n == 0 or k == 0:
            return
        adds = counters[counters.size - 2]
        lanes = BITS // 8 // codegen.itemsize(space)
        vectors = math.ceil(n / lanes)
        slivers = math.ceil(vectors / NV)
        panels = math.ceil(slivers / (NC // (NV * lanes)))
        wide = math.ceil(slivers / panels)
        deep = math.ceil(k / KC)
        tiles = math.ceil(m / MR)
        threads = max(1, min(BLOCKS, counters[counters.size - 1]))
        bands, parts = bands_and_parts(m, n, threads, codegen.itemsize(space))
        if LINE * (2 + bands * parts + panels * deep * (1 + bands)) > counters.size - 2:  # made for more processors
            threads = 1
            bands, parts = bands_and_parts(m, n, threads, codegen.itemsize(space))
        jobs, last = bands * parts, panels * deep - 1
        # One thread packs the next panel over the last one, which may still lie in L2.
        buffers, before = (1, jobs) if threads == 1 else (2, jobs // 2)
        panel_size = math.ceil(k // grain / deep) * grain * wide * NV * lanes
        if mine >= threads or 2 * panel_size + (mine + 1) * BLOCK > space.size:
            return
        block = space[2 * panel_size + mine * BLOCK : 2 * panel_size + (mine + 1) * BLOCK]
        corner = block[BLOCK - MR * NR :]
        done, packed_ = 2, 2 + jobs
        taken = packed_ + last + 1
        phase, band, block_of = -1, 0, -1
        while True:
            t, index, packs = job_of(codegen.fetch_add(counters, 0, 1), wide, jobs, before, last)
            if not packs and index >= jobs:
                return
            j, p = t // deep, t % deep
            low = cut(k // grain, deep, p) * grain
            kc = cut(k // grain, deep, p + 1) * grain - low
            first, end = j * wide, min(slivers, (j + 1) * wide)
            panel = space[t % buffers * panel_size : (t % buffers + 1) * panel_size]
            if packs:
                for x in range(jobs):  # the panel that lies there now is still needed until then
                    codegen.wait_for(counters, (done + x) * LINE, t + 1 - buffers)
                if first + index < end:
                    left, right = cut(vectors, slivers, first + index), cut(vectors, slivers, first + index + 1)
                    width, columns = max(right - left, NV - 1) * lanes, min(n, right * lanes) - left * lanes
                    pack_columns(b, low, kc, left * lanes, columns, panel, index * NV * lanes * kc, width)
                codegen.fetch_add(counters, (packed_ + t) * LINE, 1)
                continue
            # ---- multiply
            if phase != t:
                phase, band = t, mine * bands // threads
            band, part = next_job(counters, taken + t * bands, bands, parts, band)
            if band == bands:
                return
            begin, stop = cut(tiles, bands, band), cut(tiles, bands, band + 1)
            i0 = cut(m, tiles, begin)
            if block_of != t * bands + band:
                block_of = t * bands + band
                pack_block(a, i0, cut(m, tiles, stop) - i0, low, kc, block)
            job = done + band * parts + part
            codegen.wait_for(counters, (packed_ + t) * LINE, wide)
            codegen.wait_for(counters, job * LINE, t)
            for s in range(first + cut(end - first, parts, part), first + cut(end - first, parts, part + 1)):
                left, right = cut(vectors, slivers, s), cut(vectors, slivers, s + 1)
                column, nv = left * lanes, max(right - left, NV - 1)
                columns = min(n, right * lanes) - column
                b_panel = codegen.offset(panel, (s - first) * NV * lanes * kc)
                top = i0
                for x in range(begin, stop):
                    rows = cut(m, tiles, x + 1) - top
                    a_panel = codegen.offset(block, (top - i0) * A_STRIDE)
                    write(kc, a_panel, b_panel, c, top, rows, column, columns, nv, adds + p, p + 1 == deep, corner)
                    top += rows
            if t < last:
                codegen.fetch_add(counters, job * LINE, 1)

    return product
