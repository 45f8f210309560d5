"""Candidates for a plan: ways to cut a product and to divide a memory among its blocks, and bounds of their times."""

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
    """What a grid must fit: ``place`` bytes where blocks are multiplied, and ``host`` bytes of the host's memory for blocks
    that are read again. The sides of tiles are multiples of ``grain``. Blocks that begin and end at multiples of ``chunk``
    are preferred: a chunk of a file that is cut is read and decoded for each of its parts. ``files``: the CPU
    reads operands from files.

    The order of additions must not depend on the grid that is chosen. So either a step is a whole number of the parts of at
    most ``kc`` elements that the kernel sums (see ``Grid``), or all grids have the same ``step``; 0 leaves it free.

    ``planes``: beside each block of A or B there are so many matrices of float16, for tensor cores.

    ``workspace(m, n, k)`` are the bytes of ``place`` that the kernel takes for a step of these sizes. ``reserved`` more
    bytes of the caller's limit are for threads and buffers: ``buffers``, and what ``own_bytes`` says. ``place`` is negative
    where the limit is smaller than these: then nothing fits.
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
        """The room that a caller's ``limit`` leaves beside ``buffers``."""
        reserved = buffers + own_bytes(limit)
        return cls(limit - reserved, reserved=reserved, buffers=buffers, **more)

    @property
    def limit_text(self) -> str:
        """The caller's limit, for errors."""
        return f"{bytes_text(self.place + self.reserved)}"

    def needed_text(self, grid: Grid, itemsize: int) -> str:
        """The limit within which the smallest blocks of a grid would fit, for errors.

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
        """Bytes of ``place`` that are left for the blocks of a grid."""
        steps = multiplications(grid)
        if self.workspace is None or not steps:
            return self.place
        plan = max(0, STEP_BYTES * min(MOST_PLANNED, steps) - OWN_BYTES)
        return self.place - self.workspace(grid.bm, grid.bn, grid.bk) - plan

    def least_bytes(self, grid: Grid, itemsize: int) -> int:
        """Bytes of ``place`` that the smallest blocks of a grid need, with the kernel's workspace."""
        return place_elements(grid, least_slots(grid), self.planes) * itemsize + self.place - self.for_blocks(grid)

    def host_slots(self, grid: Grid, itemsize: int) -> int:
        """Blocks that the host's memory has room for."""
        return self.host // (block_elements(grid) * itemsize)


def own_bytes(limit: int) -> int:
    """What threads, their stacks and the plan take of a limit."""
    return min(OWN_BYTES, limit // OWN_SHARE)


def least_limit(nbytes: int) -> int:
    """The least limit that leaves ``nbytes`` beside ``own_bytes``.

    >>> [least_limit(nbytes) - own_bytes(least_limit(nbytes)) - nbytes for nbytes in (0, 7, 1000, 200 << 20)]
    [0, 0, 0, 0]
    """
    return min(nbytes + OWN_BYTES, nbytes + nbytes // (OWN_SHARE - 1))


def cuts(m: int, n: int, k: int, room: Room, *, small: bool = False) -> Iterator[Grid]:
    """Even cuts, each once, the largest steps first; ``small`` ones have SMALL_SIDES."""
    seen = set()
    for side in SMALL_SIDES if small else _doubled(SIDES, max(m, n)):
        for grain in _grains(room):
            for step in _steps(k, room):
                cut = Grid(m, n, k, _even(m, side, grain), _even(n, side, grain), step, room.kc)
                if cut not in seen:
                    seen.add(cut)
                    yield cut


def long_cuts(m: int, n: int, k: int, room: Room, itemsize: int) -> Iterator[Grid]:
    """Cuts into rectangles, some of them more than once. For each length of one side the other side is the longest that fits
    beside two blocks of each operand; or beside all blocks of a row of A's, or of a column of B's, which then are loaded
    once."""

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
    """Whether any cut fits that leaves few enough steps to plan."""
    every = (grid for small in (True, False) for grid in cuts(m, n, k, room, small=small))
    return any(multiplications(grid) <= MOST_PLANNED and shares(grid, room, itemsize) for grid in every)


def without_cut_chunks(grids: Sequence[Grid], chunk: int, many: int = MANY_CHUNKS) -> Sequence[Grid]:
    """The grids whose blocks cut few or no chunks of files; all where there are none of these."""

    def keeps(length: int, part: int) -> bool:
        return part >= length or part % chunk == 0 or part >= many * chunk

    whole = [grid for grid in grids if all(map(keeps, (grid.m, grid.n, grid.k), (grid.bm, grid.bn, grid.bk)))]
    return whole or grids


def may_be_cut(grid: Grid, room: Room) -> bool:
    """Whether ``cuts`` can have made this grid, which was read from a file, for a room like this one of any size."""
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
    """Ways to divide the room among blocks of A, blocks of B and tiles of C; none where it does not suffice. ``region`` are
    the tiles of one place, down and across, if it has not all: more blocks than these need are not used."""
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
    """Two for each operand, so that one block is loaded while another is read; one for an operand of a single block."""
    down, across = grid.tiles
    return min(2, down * grid.steps), min(2, across * grid.steps), 1


def multiplications(grid: Grid) -> int:
    """Steps of all tiles; a tile of a product over no k counts as one."""
    return math.prod(grid.tiles) * max(1, grid.steps)


def block_elements(grid: Grid) -> int:
    """Elements of the larger operand's blocks."""
    return max(grid.bm, grid.bn) * grid.bk


def place_elements(grid: Grid, slots: Slots, planes: int = 0) -> int:
    """Elements of all slots together."""
    return sum(count * size for count, size in zip(slots, slot_elements(grid, planes), strict=True))


@functools.lru_cache(maxsize=4096)  # a search for cuts asks again; with ``planes`` 10 µs
def slot_elements(grid: Grid, planes: int = 0) -> tuple[int, int, int]:
    """Elements of a slot for a block of A, for a block of B, and for a tile of C. With ``planes``
    those of A and B have room for so many matrices of float16 too; the block is of float32."""
    a, b = grid.bm * grid.bk, grid.bk * grid.bn
    if planes:
        from ....gpu.runtime.split_product import split_of_rows  # not needed on the CPU

        product = split_of_rows(grid.bm, grid.bn, grid.bk, planes)
        a, b = ((x.own_bytes + x.workspace_bytes) // 4 for x in (product.a, product.b))
    return a, b, grid.bm * grid.bn


# ---- times, estimated without a schedule ------------------------------------------------------------------------------


def least_s(grid: Grid, itemsize: int, rates: Rates, places: int = 1) -> float:
    """A lower bound of the time, for any order and slots. It is the larger of two: all multiplications, the first blocks and
    the last tile; or one copy of all operands and of C.

    ``rates`` are those of each of ``places`` places, which compute equal parts.
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
    """The estimated time of the best order and slots: B is loaded for each row of tiles, except blocks that stay in
    slots."""
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
