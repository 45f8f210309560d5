"""Ways to cut a product and to share a memory between its blocks, and what each takes at least: candidates for a plan."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .cost import Rates
from .grid import Grid, longest_step

#: Slots for blocks of A, of B, and for tiles of C.
Slots = tuple[int, int, int]

#: Sides of tiles of C, and steps of k, that are tried; doubled further where an operand is longer.
SIDES = (256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152, 65536)
DEPTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True)
class Room:
    """What a grid must fit. Bytes of memory: where blocks are multiplied, and on the host for blocks that are read again;
    and what tiles should be multiples of, down and across.

    The order of additions must not depend on the grid that is chosen. So either steps are whole parts of ``kc``, in which
    the kernel sums (see ``Grid``), or all grids have the same ``step``; 0 leaves it free.
    """

    place: int
    host: int = 0
    grain: int = 64
    kc: int = 1
    step: int = 0

    def host_slots(self, grid: Grid, itemsize: int) -> int:
        """Blocks that the host's memory has room for."""
        return self.host // (block_elements(grid) * itemsize)


def cuts(m: int, n: int, k: int, room: Room) -> Iterator[Grid]:
    """Even cuts, each once, the largest steps first."""
    seen = set()
    steps = [room.step] if room.step else [_step(k, depth, room.kc) for depth in reversed(_doubled(DEPTHS, k))]
    for side in _doubled(SIDES, max(m, n)):
        for step in steps:
            cut = Grid(m, n, k, _even(m, side, room.grain), _even(n, side, room.grain), step, room.kc)
            if cut not in seen:
                seen.add(cut)
                yield cut


def may_be_cut(grid: Grid, room: Room) -> bool:
    """Whether a grid, read from a file, is one that ``cuts`` may have chosen, for a room like this one of any size."""
    sides = all(
        size == max(1, length) or (SIDES[0] // 2 <= size < length and size % room.grain == 0)
        for length, size in ((grid.m, grid.bm), (grid.n, grid.bn))
    )
    if room.kc > 1:
        steps = grid.bk == longest_step(grid.k, math.ceil(grid.bk / room.kc) * room.kc, room.kc)
    else:
        steps = grid.bk == max(1, grid.k) or (DEPTHS[0] // 2 <= grid.bk < grid.k and grid.bk % 16 == 0)
    return sides and steps and grid.kc == room.kc


def shares(grid: Grid, room: Room, itemsize: int, part: tuple[int, int] | None = None) -> list[Slots]:
    """Ways to share the room; none where it does not suffice. ``part`` are the tiles that a place has, down and across, if
    not all: there is no use for more blocks than these need."""
    down, across = part or grid.tiles
    tiles = down * across
    a_size, b_size = grid.bm * grid.bk, grid.bk * grid.bn
    least_a, least_b, _ = least_slots(grid)
    of_a, of_b = max(least_a, down * grid.steps), max(least_b, across * grid.steps)
    ways: list[Slots] = []
    for c in {1, min(2, tiles)}:
        left = room.place // itemsize - c * grid.bm * grid.bn
        spare = left - least_a * a_size - least_b * b_size
        if spare < 0:
            continue
        for more in dict.fromkeys((of_a, grid.steps, of_a // 2, spare // 2 // a_size, 0)):
            a = min(of_a, least_a + min(more, spare // a_size))
            b = min(of_b, least_b + (spare - (a - least_a) * a_size) // b_size)
            a = min(of_a, a + (spare - (a - least_a) * a_size - (b - least_b) * b_size) // a_size)
            ways.append((a, b, c))
    return sorted(dict.fromkeys(ways), key=lambda way: (-way[2], abs(way[0] - way[1])))


def least_slots(grid: Grid) -> Slots:
    """Two for each operand, so that one block comes while another is read; one where there is but one."""
    down, across = grid.tiles
    return min(2, down * grid.steps), min(2, across * grid.steps), 1


def least_room(grids: Sequence[Grid]) -> int:
    """Elements of memory for the smallest blocks of any of these cuts."""
    return min(place_elements(grid, least_slots(grid)) for grid in grids)


def multiplications(grid: Grid) -> int:
    """Steps of all tiles; a tile of a product over no k counts as one."""
    return math.prod(grid.tiles) * max(1, grid.steps)


def block_elements(grid: Grid) -> int:
    """Elements of the larger operand's blocks."""
    return max(grid.bm, grid.bn) * grid.bk


def place_elements(grid: Grid, slots: Slots) -> int:
    """Elements of all slots together."""
    a, b, c = slots
    return a * grid.bm * grid.bk + b * grid.bk * grid.bn + c * grid.bm * grid.bn


# ---- what they take, without a schedule ------------------------------------------------------------------------------


def least_s(grid: Grid, itemsize: int, rates: Rates, places: int = 1) -> float:
    """What no order and no slots undercut: all multiplications, or all operands once; the first blocks and the last tile.

    ``rates`` are those that each of several places gets, which have an equal part each.
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
    alone = 1 / places if rates.peers else 1  # of the first blocks, what each brings
    first = alone * depth * (rows + columns) * itemsize / slowest + 2 * rates.latency_s
    last = rows * columns * itemsize / out + rates.latency_s
    moved = max((m * k + k * n) * itemsize / slowest, m * n * itemsize / out)
    return max(compute / places + first + last, moved / places)


def promised_s(grid: Grid, itemsize: int, room: Room, rates: Rates, places: int = 1) -> float:
    """About what the best order and slots will take: B passes once for each row of tiles, less what stays of it."""
    (down, across), steps = grid.tiles, grid.steps
    cached = room.host_slots(grid, itemsize)
    least = least_s(grid, itemsize, rates, places)
    best = math.inf
    for a, b, _ in shares(grid, room, itemsize):
        of_b = max(1, across * steps)
        again = (down - 1) * (1 - min(1.0, b / of_b))
        read = (down - 1) * (1 - min(1.0, (b + cached) / of_b))
        a_passes = 1 if a > steps or across == 1 else across
        moved = grid.m * grid.k * a_passes + grid.k * grid.n * (1 + again)
        fetched = grid.m * grid.k * a_passes + grid.k * grid.n * (1 + read)
        waited = max(moved / rates.in_bytes, fetched / rates.read_bytes)
        best = min(best, max(itemsize * waited / places, least + itemsize * moved * rates.copy_s))
    return best


def _sizes(length: int, size: int) -> dict[int, int]:
    """Of equal parts and the last: how many there are of each size."""
    whole, rest = divmod(length, size)
    return {part: count for part, count in ((size, whole), (rest, 1)) if part and count}


def _doubled(sizes: tuple[int, ...], length: int) -> list[int]:
    """``sizes``, and twice the last as often as it takes to reach ``length``: only thin operands can be cut so large."""
    more = list(sizes)
    while more[-1] < length:
        more.append(2 * more[-1])
    return more


def _step(k: int, most: int, kc: int) -> int:
    """Whole parts of k where a kernel sums in parts, else a multiple of 16."""
    return longest_step(k, most, kc) if kc > 1 else _even(k, most, 16)


def _even(length: int, most: int, grain: int) -> int:
    """The size of equal parts of ``length``, no longer than ``most``, in whole ``grain`` where they are several."""
    parts = max(1, math.ceil(length / most))
    return max(1, length) if parts == 1 else math.ceil(length / parts / grain) * grain
