"""Lists candidates for a plan: ways to cut a product and to divide the memory among its blocks, and bounds of the time
of each way.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....host.machine import bytes_text
from .cost import Rates
from .grid import Grid, longest_step

#: Slots for blocks of A, of B, and for tiles of C.
Slots = tuple[int, int, int]

#: Sides of tiles of C, and steps of k, that are tried; doubled further where an operand is longer.
SIDES = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152, 65536)
#: Sides of tiles that are tried where no others fit.
SMALL_SIDES = (64, 128)
DEPTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
#: From so many chunks on it matters little that a block cuts those at its edges; where memory is short, from fewer on: then
#: fewer bytes are read though some chunks are read twice.
MANY_CHUNKS, ENOUGH_CHUNKS = 4, 3
#: What threads, their stacks and the plan itself take of a caller's limit: this share of it, and at most these bytes. A plan
#: takes about STEP_BYTES for each step; if this is more than OWN_BYTES, blocks have less.
OWN_SHARE, OWN_BYTES, STEP_BYTES = 8, 16 << 20, 1000
#: A plan of more steps is refused: each also takes 15 µs to plan. Operands that hold no data (sparse files, datasets of one
#: fill value) can be of any shape.
MOST_PLANNED = 500_000


@dataclass(frozen=True)
class Room:
    """The memory within which the blocks of a grid must fit, and rules for the sizes of blocks.

    ``place`` is the number of bytes in the memory where blocks are multiplied, and ``host`` the number of bytes of host
    memory for blocks that are read again. ``place`` is negative if the caller's limit is too small even without any
    blocks. ``reserved`` is the part of the limit that threads and ``buffers`` use. ``workspace(m, n, k)`` is the part
    of ``place`` that the kernel needs for a step of this size. ``planes`` is the number of float16 parts that are
    stored next to each block of A or B.

    The sides of tiles are multiples of ``grain``. Blocks that begin and end at multiples of ``chunk`` are preferred,
    because a chunk of a file that is divided among several blocks is read and decoded once for each block. ``files``
    says that the CPU reads operands from files.

    The order of additions must not depend on the grid that is chosen. For this reason, either a step is a whole number
    of the parts of at most ``kc`` elements that the kernel sums (see ``Grid``), or all grids have the same ``step``. A
    ``step`` of 0 means that any step may be chosen.
    """

    place: int
    host: int = 0
    grain: int = 64
    kc: int = 1
    step: int = 0
    chunk: int = 1
    files: bool = False
    planes: int = 0
    reserved: int = 0
    buffers: int = 0
    workspace: Callable[[int, int, int], int] | None = field(default=None, compare=False)

    @classmethod
    def within(cls, limit: int, buffers: int, **more: Any) -> Room:
        """Return the ``Room`` for blocks that remains of a caller's ``limit`` after ``buffers`` and the memory of
        threads are subtracted.
        """
        reserved = buffers + own_bytes(limit)
        return cls(limit - reserved, reserved=reserved, buffers=buffers, **more)

    @property
    def limit_text(self) -> str:
        """The caller's memory limit, as text for error messages."""
        return f"{bytes_text(self.place + self.reserved)}"

    def needed_text(self, grid: Grid, itemsize: int) -> str:
        """Return the smallest memory limit in which blocks of a grid would fit, as text for error messages.

        >>> grid = Grid(256, 256, 256, 256, 256, 256)
        >>> Room(100).needed_text(grid, 8)
        '1.5 MiB (1572864 bytes)'
        >>> Room.within(100, 1 << 20).needed_text(grid, 8)
        '2.9 MiB (2995931 bytes), of which threads and buffers take 1.4 MiB'
        """
        blocks = self.least_bytes(grid, itemsize)
        total = least_limit(blocks + self.buffers) if self.reserved else blocks
        own = f", of which threads and buffers take {bytes_text(total - blocks)}" if self.reserved else ""
        return f"{bytes_text(total)} ({total} bytes){own}"

    def for_blocks(self, grid: Grid) -> int:
        """Return how many bytes of ``place`` are left for the blocks of a grid."""
        steps = multiplications(grid)
        if self.workspace is None or not steps:
            return self.place
        plan = max(0, STEP_BYTES * min(MOST_PLANNED, steps) - OWN_BYTES)
        return self.place - self.workspace(grid.bm, grid.bn, grid.bk) - plan

    def least_bytes(self, grid: Grid, itemsize: int) -> int:
        """Return how many bytes of ``place`` the fewest possible blocks of a grid and the kernel's workspace need."""
        return place_elements(grid, least_slots(grid), self.planes) * itemsize + self.place - self.for_blocks(grid)

    def host_slots(self, grid: Grid, itemsize: int) -> int:
        """Return the number of blocks that fit in the part of the host's memory that is used as a cache."""
        return self.host // (block_elements(grid) * itemsize)


def own_bytes(limit: int) -> int:
    """Return how many bytes of a memory limit are reserved for threads, their stacks and the plan."""
    return min(OWN_BYTES, limit // OWN_SHARE)


def least_limit(nbytes: int) -> int:
    """Return the smallest memory limit that leaves ``nbytes`` bytes after ``own_bytes`` are subtracted.

    >>> [least_limit(nbytes) - own_bytes(least_limit(nbytes)) - nbytes for nbytes in (0, 7, 1000, 200 << 20)]
    [0, 0, 0, 0]
    """
    return min(nbytes + OWN_BYTES, nbytes + nbytes // (OWN_SHARE - 1))


def cuts(m: int, n: int, k: int, room: Room, *, small: bool = False) -> Iterator[Grid]:
    """Yield ways to cut a product into tiles of nearly equal sizes, each way once, with the largest steps first. If
    ``small`` is set, the sides of the tiles are those in SMALL_SIDES.
    """
    seen = set()
    for side in SMALL_SIDES if small else _doubled(SIDES, max(m, n)):
        for grain in _grains(room):
            for step in _steps(k, room):
                cut = Grid(m, n, k, _even(m, side, grain), _even(n, side, grain), step, room.kc)
                if cut not in seen:
                    seen.add(cut)
                    yield cut


def long_cuts(m: int, n: int, k: int, room: Room, itemsize: int) -> Iterator[Grid]:
    """Yield ways to cut a product into rectangular tiles, some of the ways more than once.

    For each length of one side, the other side is the longest for which a tile and its blocks fit in memory, in two
    cases. In the first case, the memory holds two blocks of each operand. In the second case, the memory holds all
    blocks of a row of A or of a column of B, which are then loaded only once.
    """

    def fits(cut: Grid, slots: Slots) -> bool:
        return place_elements(cut, slots, room.planes) * itemsize <= room.for_blocks(cut)

    rows, columns = (
        sorted({_even(length, side, grain) for side in _doubled(SIDES, length) for grain in _grains(room)})
        for length in (m, n)
    )
    for step in _steps(k, room):
        steps = max(2, Grid(m, n, k, m, n, step, room.kc).steps)
        by_rows = ([Grid(m, n, k, x, y, step, room.kc) for y in columns] for x in rows)
        by_columns = ([Grid(m, n, k, x, y, step, room.kc) for x in rows] for y in columns)
        for lines, resident in ((by_rows, (steps, 2, 1)), (by_columns, (2, steps, 1))):
            for line, slots in itertools.product(lines, ((2, 2, 1), resident)):
                count = bisect.bisect_left(line, True, key=lambda cut: not fits(cut, slots))
                yield from line[max(0, count - 1) : count]


def _steps(k: int, room: Room) -> list[int]:
    return [room.step] if room.step else [_step(k, depth, room.kc) for depth in reversed(_doubled(DEPTHS, k))]


def _grains(room: Room) -> Iterable[int]:
    return dict.fromkeys((room.grain, math.lcm(room.grain, room.chunk)))


def can_be_cut(m: int, n: int, k: int, room: Room, itemsize: int) -> bool:
    """Whether at least one way to cut the product fits in memory and has few enough steps to be planned."""
    every = (grid for small in (True, False) for grid in cuts(m, n, k, room, small=small))
    return any(multiplications(grid) <= MOST_PLANNED and shares(grid, room, itemsize) for grid in every)


def without_cut_chunks(grids: Sequence[Grid], chunk: int, many: int = MANY_CHUNKS) -> Sequence[Grid]:
    """Return the grids whose blocks divide few or no chunks of files, or all grids if every grid divides many
    chunks.
    """

    def keeps(length: int, part: int) -> bool:
        return part >= length or part % chunk == 0 or part >= many * chunk

    whole = [grid for grid in grids if all(map(keeps, (grid.m, grid.n, grid.k), (grid.bm, grid.bn, grid.bk)))]
    return whole or grids


def may_be_cut(grid: Grid, room: Room) -> bool:
    """Whether ``cuts`` could have made this grid with the rules of ``room``, for a memory of any size.

    ``may_be_cut`` checks a grid that was read from a file.
    """
    sides = all(
        size == max(1, length) or (SMALL_SIDES[0] // 2 <= size < length and size % room.grain == 0)
        for length, size in ((grid.m, grid.bm), (grid.n, grid.bn))
    )
    if room.kc > 1:
        steps = grid.bk == longest_step(grid.k, math.ceil(grid.bk / room.kc) * room.kc, room.kc)
    else:
        steps = grid.bk == max(1, grid.k) or (DEPTHS[0] // 2 <= grid.bk < grid.k and grid.bk % 16 == 0)
    return sides and steps and grid.kc == room.kc


def shares(grid: Grid, room: Room, itemsize: int, region: tuple[int, int] | None = None) -> list[Slots]:
    """Return ways to divide the memory among blocks of A, blocks of B and tiles of C. The list is empty if the memory
    is too small for any way.

    ``region`` is the height and the width, in tiles, of the part of C that one place computes, or None if it computes
    all of C. Blocks that the region does not need get no memory.
    """
    down, across = region or grid.tiles
    tiles = down * across
    a_size, b_size, c_size = slot_elements(grid, room.planes)
    least_a, least_b, _ = least_slots(grid)
    of_a, of_b = max(least_a, down * grid.steps), max(least_b, across * grid.steps)
    ways: list[Slots] = []
    for c in {1, min(2, tiles)}:
        free = room.for_blocks(grid) // itemsize - c * c_size
        spare = free - least_a * a_size - least_b * b_size
        if spare < 0:
            continue
        for more in dict.fromkeys((of_a, grid.steps, of_a // 2, spare // 2 // a_size, 0)):
            a = min(of_a, least_a + min(more, spare // a_size))
            b = min(of_b, least_b + (spare - (a - least_a) * a_size) // b_size)
            a = min(of_a, a + (spare - (a - least_a) * a_size - (b - least_b) * b_size) // a_size)
            ways.append((a, b, c))
    return sorted(dict.fromkeys(ways), key=lambda way: (-way[2], abs(way[0] - way[1])))


def least_slots(grid: Grid) -> Slots:
    """Return the smallest useful numbers of blocks of A, blocks of B and tiles of C in memory.

    The memory holds two blocks of each operand, so that one block is loaded while the other is multiplied, or one block
    if the operand has only one.
    """
    down, across = grid.tiles
    return min(2, down * grid.steps), min(2, across * grid.steps), 1


def multiplications(grid: Grid) -> int:
    """Return the total number of steps of all tiles. If k is 0, a tile counts as one step."""
    return math.prod(grid.tiles) * max(1, grid.steps)


def block_elements(grid: Grid) -> int:
    """Return the number of elements of a block of A or of a block of B, whichever is larger."""
    return max(grid.bm, grid.bn) * grid.bk


def place_elements(grid: Grid, slots: Slots, planes: int = 0) -> int:
    """Return the number of elements of all slots together."""
    return sum(count * size for count, size in zip(slots, slot_elements(grid, planes), strict=True))


@functools.lru_cache(maxsize=4096)  # a search for cuts asks again; with ``planes`` 10 µs
def slot_elements(grid: Grid, planes: int = 0) -> tuple[int, int, int]:
    """Return the number of elements in a slot for a block of A, for a block of B, and for a tile of C.

    With ``planes``, slots for blocks of A and B also have memory for this number of float16 parts; the block itself is
    float32.
    """
    a, b = grid.bm * grid.bk, grid.bk * grid.bn
    if planes:
        from ....gpu.runtime.split_product import split_of_rows  # not needed on the CPU

        product = split_of_rows(grid.bm, grid.bn, grid.bk, planes)
        a, b = ((x.own_bytes + x.workspace_bytes) // 4 for x in (product.a, product.b))
    return a, b, grid.bm * grid.bn


# ---- times, estimated without a schedule ------------------------------------------------------------------------------


def least_s(grid: Grid, itemsize: int, rates: Rates, places: int = 1) -> float:
    """Return a lower bound of the product's time that holds for any order of tiles and any numbers of blocks in memory.

    The bound is the larger of two times: the time of all multiplications, the first loads and the last store; and the
    time for copying the operands and C once. ``rates`` are the rates of each of ``places`` places, which compute equal
    parts.
    """
    m, n, k = grid.m, grid.n, grid.k
    parts = [_sizes(m, grid.bm), _sizes(n, grid.bn), grid.depths()]
    compute = sum(
        x * y * z * rates.compute_s(rows, columns, depth)
        for (rows, x), (columns, y), (depth, z) in itertools.product(*(part.items() for part in parts))
    )
    smallest = [min(part, default=0) for part in parts]
    rows, columns, depth = smallest
    slowest, out = min(rates.in_bytes, rates.read_bytes), min(rates.out_bytes, rates.write_bytes)
    own_share = 1 / places if rates.peers else 1  # of the first blocks: what each place reads itself
    first = own_share * depth * (rows + columns) * itemsize / slowest + 2 * rates.latency_s
    last = rows * columns * itemsize / out + rates.latency_s
    moved = max((m * k + k * n) * itemsize / slowest, m * n * itemsize / out)
    return max(compute / places + first + last, moved / places)


def promised_s(grid: Grid, itemsize: int, room: Room, rates: Rates, places: int = 1) -> float:
    """Return an estimate of the product's time with the best order of tiles and the best numbers of blocks in memory.

    The estimate assumes that B is loaded again for each row of tiles, except for blocks that stay in memory.
    """
    (down, across), steps = grid.tiles, grid.steps
    cached = room.host_slots(grid, itemsize)
    least = least_s(grid, itemsize, rates, places)
    written = grid.m * across * rates.row_s
    best = math.inf
    for a, b, _ in shares(grid, room, itemsize):
        of_b = max(1, across * steps)
        b_loads = 1 + (down - 1) * (1 - min(1.0, b / of_b))
        b_reads = 1 + (down - 1) * (1 - min(1.0, (b + cached) / of_b))
        a_passes = 1 if a > steps or across == 1 else across
        moved = grid.m * grid.k * a_passes + grid.k * grid.n * b_loads
        fetched = grid.m * grid.k * a_passes + grid.k * grid.n * b_reads
        waited = max(moved / rates.in_bytes, fetched / rates.read_bytes)
        best = min(best, max(itemsize * waited / places, least + itemsize * moved * rates.copy_s + written))
    return best


def _sizes(length: int, size: int) -> dict[int, int]:
    """How many parts there are of each size: equal ones, and a smaller last one."""
    whole, rest = divmod(length, size)
    return {part: count for part, count in ((size, whole), (rest, 1)) if part and count}


def _doubled(sizes: tuple[int, ...], length: int) -> list[int]:
    """``sizes``, continued by doubling the last one until it reaches ``length``. Cuts larger than the listed sizes fit
    in memory only for thin operands."""
    more = list(sizes)
    while more[-1] < length:
        more.append(2 * more[-1])
    return more


def _step(k: int, most: int, kc: int) -> int:
    """Whole parts of k where a kernel sums in parts, else a multiple of 16."""
    return longest_step(k, most, kc) if kc > 1 else _even(k, most, 16)


def _even(length: int, most: int, grain: int) -> int:
    """The size of equal parts of ``length``, no longer than ``most``; a multiple of ``grain`` if there are several."""
    parts = max(1, math.ceil(length / most))
    return max(1, length) if parts == 1 else math.ceil(length / parts / grain) * grain
