"""Cuts a product for a team of threads: into groups of columns, panels, phases of k, bands of rows, and jobs.

The columns of C are divided among groups of threads. Each group of threads packs its own columns of B, so that a line
of packed B is written and read by a few threads instead of all. When 16 threads of a Xeon shared one panel, packing it
took a fifth of the time of a float64 product of 1,000³. Packing a shared panel is slow because a thread can write a
line only after the caches of all other threads that read the line have dropped it.

The columns of a group are cut into panels, and k into phases, whose sizes NC and KC fit the caches
(``kernels/blocking.py``). The rows of C are cut into bands, and the columns of a panel into parts; a part of a band is
a job. All cuts are balanced: groups differ by at most one vector, and slivers, bands and phases by at most one tile or
one step.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ...host.machine import machine
from ...kernels.blocking import Blocking
from .. import codegen

#: Threads for which there is workspace; of a larger team the others do nothing.
BLOCKS = max(4, machine().usable_cores)
#: Jobs of a phase for each thread, at least: threads end a phase within the time of one job.
JOBS = 8
#: Words from one counter to the next: one counter per cache line avoids false sharing.
LINE = 8
#: How long it takes to pack and read a column of B, in times to read a row of A where it lies, and in times to pack it. On
#: 8 and 16 cores of a Xeon, the groups that follow from 4 were the fastest or within 3 % of the fastest. Where A is packed,
#: two groups of one thread are up to 6 % faster than one of two on Zen 4.
PACKING, PACKING_BOTH = 4.0, 1.5


class PackedBlocks:
    """The block sizes of a kernel whose packed elements have at least ``itemsize`` and at most 8 bytes.

    ``name`` is the prefix of the names under which machine code reads the block sizes. ``chosen`` has the size of the
    tile, and the part of each cache that may be used. A phase has at most ``kc`` steps of k, and at most
    ``chosen.kc_of_8_bytes`` steps if elements have 8 bytes.
    """

    #: Whether a block has fewer rows where A has fewer: what follows its rows must not have a fixed place then.
    shortens = True

    def __init__(self, name: str, chosen: Blocking, kc: int, itemsize: int) -> None:
        self.name = name
        self.chosen, self.kc, self.kc_of_8_bytes = chosen, kc, chosen.kc_of_8_bytes
        self.mr, self.nr = chosen.mr, chosen.nv * chosen.vector_bits // (8 * itemsize)
        self.nr_of_8_bytes = chosen.nv * chosen.vector_bits // 64
        self.mc, self.nc = chosen.mc(kc), chosen.nc(kc, self.nr)
        # Rows of a block of A lie a cache line further apart than they are long: at 512 elements, a power of two, they
        # would all fall into the same sets of the first-level cache.
        self.a_stride = kc + 16
        self.tile_at = (2 * self.mc + self.mr) * self.a_stride  # after a block of A of 4-byte elements
        self.block = self.tile_at + self.mr * self.nr

    @property
    def params(self) -> dict[str, int]:
        """The block sizes of the kernel, by their names, such as ``mc`` and ``kc``."""
        tile = {"mr": self.mr, "nv": self.chosen.nv, "vector_bits": self.chosen.vector_bits}
        return {**tile, "kc": self.kc, "mc": self.mc, "nc": self.nc}

    def number(self, name: str) -> codegen.Setting:
        """Return the ``setting`` of one of the block sizes, for compiled code."""
        return codegen.setting(f"{self.name}.{name}", getattr(self, name))

    @property
    def corner(self) -> int:
        """The number of elements of a block from ``tile_at`` on."""
        return self.block - self.tile_at

    def block_of(self, m: int) -> int:
        """Return the number of elements of the block of A of one thread, for a product with m rows."""
        return min(self.block, (m + self.mr) * self.a_stride + self.corner) if self.shortens else self.block

    def workspace(self, m: int, n: int, k: int, threads: int | None = None) -> int:
        """Return the number of elements of the workspace for a product of this shape. m, n and k count packed
        elements."""
        slivers, threads = -(-n // self.nr), threads or BLOCKS
        blocks = min(threads, -(-m // self.mr) * slivers)
        columns = min(n, self.nc) + min(threads, slivers) * self.nr  # panels of groups may each be wider by a sliver
        return (1 if threads == 1 else 2) * min(k, self.kc) * columns + blocks * self.block_of(m)

    def counters(self, m: int, n: int, k: int) -> int:
        """Return the number of counters for a product of this shape. m, n and k count packed elements."""
        slivers = -(-min(n, self.nc) // self.nr_of_8_bytes)
        groups = min(BLOCKS, slivers) if n <= self.nc or m <= block_rows(self.mc, 4) else 1
        bands = groups * -(-m // self.mc)  # of all groups together
        bands = max(bands, min(groups * most_bands(m, self.mr), bands + JOBS * BLOCKS))
        jobs = min(bands * slivers, bands + 2 * JOBS * BLOCKS)
        widths = self.nr, self.nr_of_8_bytes
        panels = max(panels_of(-(-n // nr), self.nc // nr, g) for nr in widths for g in range(1, max(1, groups) + 1))
        phases = panels * -(-k // self.kc_of_8_bytes)
        return LINE * (1 + groups + jobs + phases * (groups + bands))


@codegen.register_jitable
def part_start(length: int, parts: int, index: int) -> int:
    """Return where part ``index`` begins when ``length`` is cut into ``parts`` parts. The lengths of the parts differ
    by at most one; the longer parts come first."""
    return index * (length // parts) + min(index, length % parts)


@codegen.register_jitable
def block_rows(mc: int, itemsize: int) -> int:
    """Return the number of rows of a block of A whose elements have ``itemsize`` bytes. A block of 8-byte elements has
    ``mc`` rows."""
    return mc * 8 // max(4, itemsize)


@codegen.register_jitable
def most_bands(m: int, mr: int) -> int:
    """Return the largest number of bands into which m rows are cut. The smallest bands have min(4·mr, 32) rows: four
    tiles, or one tile if it has the 32 rows of tile registers.

    With fewer bands, several threads pack the same band: a bfloat16 product of 256³ took a quarter longer on 16 cores
    of a Xeon."""
    return math.ceil(m / min(4 * mr, 32))


@codegen.register_jitable
def bands_and_parts(m: int, slivers: int, threads: int, itemsize: int, mr: int, mc: int) -> tuple[int, int]:
    """Return the numbers of bands of rows, and of parts of a panel's slivers, for a group of threads in a phase. For a
    single thread both numbers are as small as possible.

    A thread continues with one band, whose rows of A it packs once, as long as the band has parts left. Every band
    reads the whole panel of B, so there are no more bands than threads need: with bands of 24 rows, a rate of 150
    GFLOPS reads 12 GB/s of B.
    """
    fewest = math.ceil(m / block_rows(mc, itemsize))
    if threads == 1:
        return fewest, 1
    rounds = max(math.ceil(fewest / threads), math.ceil(JOBS / slivers))
    bands = max(fewest, min(most_bands(m, mr), rounds * threads))
    return bands, min(slivers, math.ceil(2 * JOBS * threads / bands))


@codegen.register_jitable
def groups_of(m: int, vectors: int, lanes: int, threads: int, nv: int, packing: float) -> int:
    """Return the number of groups of equal size into which threads are divided, so that each group has at least ``nv``
    vectors of columns.

    A thread reads m·groups/threads rows of A and n/groups columns of B; a column of B takes ``packing`` times as long
    as a row of A.

    >>> groups_of(1000, 125, 8, 16, 4, 4), groups_of(100_000, 8, 8, 16, 4, 4), groups_of(1000, 125, 8, 2, 4, 4)
    (8, 1, 2)
    """
    best, least = 1, m / threads + packing * vectors * lanes
    for groups in range(2, min(threads, vectors // nv) + 1):
        cost = m * groups / threads + packing * vectors * lanes / groups
        if threads % groups == 0 and cost < least:
            best, least = groups, cost
    return best


@codegen.register_jitable
def panels_of(slivers: int, most: int, groups: int) -> int:
    """Return the number of panels of each group, for a product with this many slivers. If there were a single group,
    its panel would have at most ``most`` slivers.

    >>> panels_of(128, 128, 2), panels_of(129, 128, 1), panels_of(1563, 128, 2)
    (1, 2, 13)
    """
    return math.ceil(math.ceil(slivers / groups) / (most if slivers <= most else max(1, most // groups)))


class Cut(NamedTuple):
    """How a product is cut. The numbers by which a product is cut, which are the same for all groups of threads."""

    groups: int  # of threads
    slivers: int  # of a group
    wide: int  # slivers of a panel; the last panel may have fewer
    bands: int  # of rows of C
    parts: int  # of a band's slivers in a panel; each is a job


@codegen.register_jitable
def cut(
    m: int,
    vectors: int,
    lanes: int,
    threads: int,
    packing: float,
    mr: int,
    nv: int,
    mc: int,
    vector_bytes: int,
    nc: int,
) -> Cut:
    """Return how a product of m rows and ``vectors`` vectors of columns is cut.

    If there are too many columns for one panel, there is one group of threads. But if all rows of A fit into one block,
    there are several groups of threads, with smaller panels. Without groups, a product of 64×50,000×64 took 1.5 times
    as long on two cores of a Zen 4 that share no last-level cache, because each thread waits long for lines that the
    other thread has written.
    """
    most = nc // (nv * lanes)
    one_block = m <= block_rows(mc, vector_bytes // lanes)
    groups = groups_of(m, vectors, lanes, threads, nv, packing) if vectors <= most * nv or one_block else 1
    slivers = math.ceil(math.ceil(vectors / groups) / nv)
    wide = math.ceil(slivers / panels_of(math.ceil(vectors / nv), most, groups))
    bands, parts = bands_and_parts(m, wide, threads // groups, vector_bytes // lanes, mr, mc)
    return Cut(groups, slivers, wide, bands, parts)


@codegen.register_jitable
def phases_of(how: Cut, deep: int) -> int:
    """Return the number of phases of a group, which is ``deep`` for each of the group's panels."""
    return math.ceil(how.slivers / how.wide) * deep


# ---- a list of jobs --------------------------------------------------------------------------------------------------


class JobCounters(NamedTuple):
    """The positions of the counters of a group's list of jobs. Counter 0 of a group's list is the number of jobs that
    threads have taken from the list."""

    done: int  # of each job that multiplies: the phases that have finished it
    packed: int  # of each phase: its packing jobs that are done
    taken: int  # of each phase, of each of its bands: the parts that are taken
    end: int


@codegen.register_jitable
def job_counters(how: Cut, phases: int) -> JobCounters:
    """Return the counters of a group's list of jobs, each on a cache line of its own."""
    packed = LINE * (1 + how.bands * how.parts)
    taken = packed + LINE * phases
    return JobCounters(LINE, packed, taken, taken + LINE * phases * how.bands)


@codegen.register_jitable
def job_of(number: int, packings: int, jobs: int, before: int, last: int) -> tuple[int, int, bool]:
    """Return the phase of job ``number`` of a list, the job's number within the phase, and whether the job packs.

    A phase has ``packings`` jobs that pack and ``jobs`` jobs that multiply; ``last`` is the last phase. The list of
    jobs begins with the packing jobs of the first phase. The packing jobs of each further phase come after ``before``
    multiplying jobs of the phase before it.
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


@codegen.njit(nogil=True)
def next_job(counters, taken, bands, parts, home):
    """Take the next part of the band ``home``. If the band ``home`` has no part left, take a part of the first later
    band that has one. Returns (band, part)."""
    for x in range(bands):
        band = (home + x) % bands
        part = codegen.take_below(counters, taken + band * LINE, parts)
        if part < parts:
            return band, part
    return bands, parts  # the product was stopped
