"""What is to be done, in which order, and what must wait for what: loads, multiplications and stores in fixed places.

Each place (a slot) holds one block of A or of B, or one tile of C. Three lanes work through their lists at once, each in
order:

    loads      a block into a slot, when the last multiplication that reads what lies there is done
    multiplies a step of a tile, when its two blocks are there, and what its slot of C held before is stored
    stores     a tile of C, when its last step is done

A block takes the slot whose next use is farthest (``eviction``), which the order of the tiles tells beforehand; but not one
that the step before used, for a load into it could not begin before that multiplication ends. Among all choices that leave
alone what the step before used, none loads fewer blocks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .eviction import Rank, Slots
from .grid import Grid, OperandBlock, Tile

#: Blocks that these last steps used keep their slots: the present step is computed while the next one's blocks come.
RECENT = 1


class Load(NamedTuple):
    """Copy ``block`` to ``slot`` of its operand, after multiplication number ``after`` (−1: at once)."""

    number: int
    block: OperandBlock
    slot: int
    after: int


class Multiply(NamedTuple):
    """Step ``p`` of ``tile``: slots ``a`` times ``b`` into slot ``c``, added to what is there unless it is the first.

    ``needs`` are two loads; the first step of a tile also waits for store number ``after`` (−1: for none).
    """

    number: int
    tile: Tile
    p: int
    a: int
    b: int
    c: int
    needs: tuple[int, int]
    after: int

    @property
    def first(self) -> bool:
        """Whether it is the first step of its tile: then C is written, not added to."""
        return self.p == 0


class Store(NamedTuple):
    """Copy ``tile`` from slot ``c`` to where the result goes, after multiplication number ``after``."""

    number: int
    tile: Tile
    c: int
    after: int


#: Of each row of blocks of A, or column of those of B, the tiles that will use it, by number, the next one last.
_Turns = dict[int, list[int]]


@dataclass
class Schedule:
    """The three lists for one place, which ``add`` makes longer tile by tile.

    ``slots`` are how many blocks of A and of B, and how many tiles of C, there is room for: at least 1 of each.
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
        """Of all these tiles, in this order."""
        schedule = cls(grid, slots)
        schedule._plan(tiles)
        for tile in tiles:
            schedule._append(tile)
        return schedule

    def add(self, tile: Tile, later: Iterable[Tile] = ()) -> None:
        """Append what ``tile`` takes; ``later`` are the tiles that will follow, as far as is known."""
        self._plan([tile, *later])
        self._append(tile)

    def _plan(self, tiles: Sequence[Tile]) -> None:
        """From now on these are the tiles that come."""
        first = len(self.stores)
        self._a.expect([tile.i for tile in tiles], first)
        self._b.expect([tile.j for tile in tiles], first)

    def _append(self, tile: Tile) -> None:
        number = len(self.stores)
        c = number % self.slots[2]
        again = self._a.after(tile.i), self._b.after(tile.j)
        for p in range(self.grid.steps):
            step = len(self.multiplies)
            a, b = self._a.where.get((tile.i, p)), self._b.where.get((tile.j, p))
            if a is None:
                a = self._load(self._a, OperandBlock("a", tile.i, p), (tile.i, p))
            if b is None:
                b = self._load(self._b, OperandBlock("b", p, tile.j), (tile.j, p))
            self._a.use(a, step, again[0], p)
            self._b.use(b, step, again[1], p)
            needs = self._a.load[a], self._b.load[b]
            after = max(-1, number - self.slots[2]) if p == 0 else -1
            self.multiplies.append(Multiply(step, tile, p, a, b, c, needs, after))
        self.stores.append(Store(number, tile, c, len(self.multiplies) - 1))

    def _load(self, pool: _Pool, block: OperandBlock, key: tuple[int, int]) -> int:
        """The slot to which ``block`` will be brought."""
        number = len(self.loads)
        slot, after = pool.take(key, number)
        self.loads.append(Load(number, block, slot, after))
        return slot


class _Pool:
    """The slots of one operand. A block's key is its strip (a row of blocks of A, a column of those of B) and its step."""

    def __init__(self, slots: int, blocks: int) -> None:
        self._slots = Slots(slots)
        self._tight = blocks > slots
        self._last_use: dict[int, int] = {}
        self._recent: deque[int] = deque(maxlen=RECENT)
        self._turns: _Turns = {}
        #: Which slot holds a block, and which load brought what lies in a slot.
        self.where: dict[tuple[int, int], int] = self._slots.where
        self.load: dict[int, int] = {}

    def expect(self, strips: Sequence[int], first: int) -> None:
        """Tile ``first`` will use the first of ``strips``, the next one the second, and so on."""
        self._turns = {}
        for number in reversed(range(len(strips))):
            self._turns.setdefault(strips[number], []).append(first + number)
        ranks: list[Rank] = []
        for slot, (strip, p) in self._slots.blocks():
            again = self._turns[strip][-1] if strip in self._turns else math.inf
            ranks.append((-again, -p if again < math.inf else 0, self._last_use[slot], slot))
        self._slots.rank_all(ranks)

    def after(self, strip: int) -> float:
        """The tile that uses ``strip`` after the present one does."""
        turns = self._turns[strip]
        turns.pop()
        return turns[-1] if turns else math.inf

    def use(self, slot: int, step: int, again: float, p: int) -> None:
        """By multiplication ``step``; and then at step ``p`` of tile ``again``. Of blocks without a next use, the one that
        was used longest ago gives way."""
        self._last_use[slot] = step
        self._recent.append(slot)
        if self._tight:
            self._slots.rank((-again, -p if again < math.inf else 0, step, slot))

    def take(self, key: tuple[int, int], load: int) -> tuple[int, int]:
        """A slot for another block, and the last multiplication that reads what lies there."""
        slot = self._slots.take(key, in_use=self._recent)
        if slot is None:  # all were used a moment ago
            slot = self._recent[0]
            self._slots.replace(slot, key)
        self.load[slot] = load
        return slot, self._last_use.get(slot, -1)
