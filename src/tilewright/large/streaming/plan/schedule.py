"""Makes the schedule of one place: the order of its loads, multiplications and stores, and which entries wait for which
other entries.

A slot is memory for one block of A, one block of B, or one tile of C. Loads, multiplications and stores are three lists
that are processed at the same time, each in order:

    loads      a block into a slot, after the last multiplication that reads the slot's previous block
    multiplies a step of a tile, after both its blocks are loaded and the previous tile in its slot of C is stored
    stores     a tile of C, after its last step

A new block replaces the block whose next use is farthest in the future (``eviction``). The next use of each block is
known from the order of the tiles. A new block is never loaded into a slot that the previous step uses, because such a
load could not begin before the multiplication of that step ends. Under this restriction, no other choice of slots loads
fewer blocks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .eviction import Rank, Slots
from .grid import Grid, OperandBlock, Tile

#: Blocks used by this many last steps keep their slots: the next step's blocks are loaded while the present one is computed.
RECENT = 1


class Load(NamedTuple):
    """The copy of ``block`` to ``slot``. A ``Load`` waits for multiplication number ``after_multiply``, or for no
    multiplication if this number is −1.
    """

    number: int
    block: OperandBlock
    slot: int
    after_multiply: int


class Multiply(NamedTuple):
    """Step ``p`` of ``tile``: the product of the blocks in slots ``a`` and ``b`` is added to the tile in slot ``c``, or
    written to it in the first step.

    ``needs`` are the numbers of the two loads that the multiplication waits for. The first step of a tile also waits
    for store number ``after_store``, or for no store if this number is −1.
    """

    number: int
    tile: Tile
    p: int
    a: int
    b: int
    c: int
    needs: tuple[int, int]
    after_store: int

    @property
    def first(self) -> bool:
        """Whether this multiplication is the first step of its tile, which writes C instead of adding to it."""
        return self.p == 0


class Store(NamedTuple):
    """The copy of ``tile`` from slot ``c`` to the result. A ``Store`` waits for multiplication number
    ``after_multiply``.
    """

    number: int
    tile: Tile
    c: int
    after_multiply: int


#: For each strip (a row of blocks of A, or a column of blocks of B), the numbers of the tiles that will use it, next one
#: last.
_NextTiles = dict[int, list[int]]


@dataclass
class Schedule:
    """The lists of loads, multiplications and stores of one place. ``add`` appends the entries of one tile.

    ``slots`` are the numbers of blocks of A, blocks of B and tiles of C that fit in memory, each at least 1.
    """

    grid: Grid
    slots: tuple[int, int, int]
    loads: list[Load] = field(default_factory=list)
    multiplies: list[Multiply] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)

    def __post_init__(self) -> None:
        (down, across), steps = self.grid.tiles, self.grid.steps
        self._a = _Pool(self.slots[0], down * steps)
        self._b = _Pool(self.slots[1], across * steps)

    @classmethod
    def of(cls, grid: Grid, slots: tuple[int, int, int], tiles: Sequence[Tile]) -> Schedule:
        """Return the schedule that computes ``tiles`` in this order."""
        schedule = cls(grid, slots)
        schedule._plan(tiles)
        for tile in tiles:
            schedule._append(tile)
        return schedule

    def add(self, tile: Tile, later: Iterable[Tile] = ()) -> None:
        """Append the loads, steps and store of ``tile``. ``later`` are the tiles that will follow this tile, if they
        are known.
        """
        self._plan([tile, *later])
        self._append(tile)

    def _plan(self, tiles: Sequence[Tile]) -> None:
        """Set the tiles that follow, on which eviction is based."""
        first = len(self.stores)
        self._a.set_next_strips([tile.i for tile in tiles], first)
        self._b.set_next_strips([tile.j for tile in tiles], first)

    def _append(self, tile: Tile) -> None:
        number = len(self.stores)
        c = number % self.slots[2]
        next_a, next_b = self._a.next_use(tile.i), self._b.next_use(tile.j)
        for p in range(self.grid.steps):
            multiply = len(self.multiplies)
            a, b = self._a.where.get((tile.i, p)), self._b.where.get((tile.j, p))
            if a is None:
                a = self._load(self._a, OperandBlock("a", tile.i, p), (tile.i, p))
            if b is None:
                b = self._load(self._b, OperandBlock("b", p, tile.j), (tile.j, p))
            self._a.record_use(a, multiply, next_a, p)
            self._b.record_use(b, multiply, next_b, p)
            needs = self._a.load[a], self._b.load[b]
            after_store = max(-1, number - self.slots[2]) if p == 0 else -1
            self.multiplies.append(Multiply(multiply, tile, p, a, b, c, needs, after_store))
        self.stores.append(Store(number, tile, c, len(self.multiplies) - 1))

    def _load(self, pool: _Pool, block: OperandBlock, key: tuple[int, int]) -> int:
        """Append a load of ``block``; returns its slot."""
        number = len(self.loads)
        slot, after_multiply = pool.take(key, number)
        self.loads.append(Load(number, block, slot, after_multiply))
        return slot


def _rank(next_tile: float, p: int, last_use: int, slot: int) -> Rank:
    """The least rank is evicted first: the block with the farthest next tile; among equals that with the later step ``p``;
    among blocks that are never used again (``next_tile`` is inf) the one that was used longest ago."""
    return -next_tile, -p if next_tile < math.inf else 0, last_use, slot


class _Pool:
    """The slots of one operand. The key of a block is its strip (a row of blocks of A, or a column of blocks of B) and
    its step."""

    def __init__(self, slots: int, blocks: int) -> None:
        self._slots = Slots(slots)
        self._evicts = blocks > slots
        self._last_use: dict[int, int] = {}
        self._recent: deque[int] = deque(maxlen=RECENT)
        self._next_tiles: _NextTiles = {}
        #: The slot of each block, and the load that filled each slot.
        self.where: dict[tuple[int, int], int] = self._slots.where
        self.load: dict[int, int] = {}

    def set_next_strips(self, strips: Sequence[int], first: int) -> None:
        """Set the future uses of strips: tile number ``first`` uses the first of ``strips``, the next tile uses the
        second, and so on.
        """
        self._next_tiles = {}
        for number in reversed(range(len(strips))):
            self._next_tiles.setdefault(strips[number], []).append(first + number)
        ranks: list[Rank] = []
        for slot, (strip, p) in self._slots.blocks():
            next_tile = self._next_tiles[strip][-1] if strip in self._next_tiles else math.inf
            ranks.append(_rank(next_tile, p, self._last_use[slot], slot))
        self._slots.rank_all(ranks)

    def next_use(self, strip: int) -> float:
        """Return the number of the tile that uses ``strip`` after the present tile, or inf if no later tile uses it."""
        tiles = self._next_tiles[strip]
        tiles.pop()
        return tiles[-1] if tiles else math.inf

    def record_use(self, slot: int, multiply: int, next_tile: float, p: int) -> None:
        """Record that multiplication number ``multiply`` uses ``slot``. The next use of the block in this slot is in
        step ``p`` of tile number ``next_tile``; inf means never.
        """
        self._last_use[slot] = multiply
        self._recent.append(slot)
        if self._evicts:
            self._slots.rank(_rank(next_tile, p, multiply, slot))

    def take(self, key: tuple[int, int], load: int) -> tuple[int, int]:
        """Return a slot for another block, and the number of the last multiplication that reads the block that is now
        in the slot (−1 if none does).
        """
        slot = self._slots.take(key, in_use=self._recent)
        if slot is None:  # the last RECENT steps used all slots
            slot = self._recent[0]
            self._slots.replace(slot, key)
        self.load[slot] = load
        return slot, self._last_use.get(slot, -1)
