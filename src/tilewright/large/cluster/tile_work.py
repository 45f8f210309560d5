"""What a worker does for a tile, in a few pieces: bytes from the real schedule, seconds from the worker's rates.

The schedule of a worker depends on the order of its tiles alone, not on where in C they lie. In a large cluster most workers
take tiles in the same order, each in its own part, so that one schedule serves all of them.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..streaming.plan.cost import Rates
from ..streaming.plan.grid import Grid, Tile
from ..streaming.plan.schedule import Schedule


class LoadedBlock(NamedTuple):
    """A block of ``"a"`` or ``"b"`` that a tile loads for its step ``step``: step ``p`` of the operand, into a slot that is
    free after the worker's multiplication number ``after``."""

    operand: str
    p: int
    step: int
    after: int


class LoadPiece(NamedTuple):
    """Blocks that are loaded as one, in ``blocks`` copies, after multiplication number ``after`` of the worker: ``nbytes``
    are copied to slots, and ``received`` of them come from elsewhere."""

    nbytes: int
    received: int
    blocks: int
    after: int


class StepGroup(NamedTuple):
    """Steps of a tile that are computed as one. The first needs the first ``first`` load pieces of the tile and the last
    needs ``last`` of them; all steps take ``seconds``, the last one ``last_s``."""

    steps: int
    seconds: float
    last_s: float
    first: int
    last: int


class TileWork(NamedTuple):
    """The pieces of a tile, and the bytes of the tile of C."""

    loads: tuple[LoadPiece, ...]
    groups: tuple[StepGroup, ...]
    out_bytes: int


@dataclass(eq=False)
class History:
    """The tiles that a worker took so far, and the blocks that the last of them loads; other histories ``follow`` it."""

    part: tuple[Tile, ...]
    parent: History | None = None
    tiles: int = 0
    tile: Tile | None = None
    #: Tiles of the worker's own part that were left after the last one.
    left: int = 0
    blocks: tuple[LoadedBlock, ...] = ()
    follow: dict[tuple[Tile, int], History] = field(default_factory=dict)
    #: The schedule that has just these tiles, until another tile is added to it.
    schedule: Schedule | None = None

    def path(self) -> list[History]:
        """All histories that lead to this one and itself, without the empty one."""
        found, here = [], self
        while here.parent is not None:
            found.append(here)
            here = here.parent
        return found[::-1]


class Histories:
    """The histories of all workers of a plan. Tiles are relative to the first tile of the worker's part."""

    def __init__(self, grid: Grid, slots: tuple[int, int, int]) -> None:
        self._grid, self._slots = grid, slots
        self._first: dict[tuple[Tile, ...], History] = {}
        #: Equal lists of blocks are one object.
        self._blocks: dict[tuple[LoadedBlock, ...], tuple[LoadedBlock, ...]] = {}

    def begin(self, part: Sequence[Tile]) -> History:
        """The empty history of a worker with this part."""
        return self._first.setdefault(tuple(part), History(tuple(part)))

    def add(self, history: History, tile: Tile, later: Sequence[Tile]) -> History:
        """The history with one more tile, where ``later`` are the tiles of the worker's own part that will follow."""
        key = (tile, len(later))  # with the tiles before, the number of those left says which ones are left
        if key not in history.follow:
            schedule, history.schedule = history.schedule or self._replayed(history), None
            blocks = self._extended(schedule, tile, later)
            blocks = self._blocks.setdefault(blocks, blocks)
            added = History(history.part, history, history.tiles + 1, tile, len(later), blocks, schedule=schedule)
            history.follow[key] = added
        return history.follow[key]

    def _replayed(self, history: History) -> Schedule:
        """The schedule of a history from which another one already follows."""
        schedule, own = Schedule(self._grid, self._slots), 0
        for each in history.path():
            assert each.tile is not None
            own += own < len(each.part) and each.tile == each.part[own]
            self._extended(schedule, each.tile, each.part[own : own + each.left])
        return schedule

    @staticmethod
    def _extended(schedule: Schedule, tile: Tile, later: Sequence[Tile]) -> tuple[LoadedBlock, ...]:
        """Add a tile to the schedule, and return what it loads. As a schedule only counts its earlier entries, they are
        replaced by its first ones: that saves most of the memory."""
        loads, steps = len(schedule.loads), len(schedule.multiplies)
        schedule.add(tile, later)
        blocks: list[LoadedBlock] = []
        for multiply in schedule.multiplies[steps:]:
            for load in schedule.loads[loads + len(blocks) : max(multiply.needs) + 1]:
                operand, row, column = load.block
                blocks.append(LoadedBlock(operand, column if operand == "a" else row, multiply.p, load.after))
        schedule.loads[loads:] = schedule.loads[:1] * len(blocks)
        schedule.multiplies[steps:] = schedule.multiplies[:1] * (len(schedule.multiplies) - steps)
        return tuple(blocks)


class TileCutter:
    """Cuts the work of tiles into at most ``groups`` groups of steps each, for elements of ``itemsize`` bytes.

    Where a group has several steps, their loads are two kinds of pieces: the blocks of its first step, one by one, and all
    others together. Otherwise each block is a piece.
    """

    def __init__(self, grid: Grid, itemsize: int, groups: int) -> None:
        self._grid, self._itemsize = grid, itemsize
        self.steps_a_group = math.ceil(grid.steps / groups)
        self._depths = [depth.stop - depth.start for depth in map(grid.depth, range(grid.steps))]
        self.cut = functools.cache(self._cut)

    def _cut(
        self, history: History, size: tuple[int, int], rates: Rates, own_a: tuple[int, int], own_b: tuple[int, int]
    ) -> TileWork:
        """The work of a history's last tile, which has ``size``. The worker owns block p of the tile's row of A if p % x is
        y for (x, y) = ``own_a``, and likewise block p of its column of B."""
        grid, depths, (m, n) = self._grid, self._depths, size
        first_step = (history.tiles - 1) * grid.steps
        sides, owned = {"a": m * self._itemsize, "b": n * self._itemsize}, {"a": own_a, "b": own_b}
        computing = functools.cache(functools.partial(rates.compute_s, m, n))
        loads: list[LoadPiece] = []
        groups: list[StepGroup] = []
        done = 0
        for begin in range(0, grid.steps, self.steps_a_group):
            steps = range(begin, min(grid.steps, begin + self.steps_a_group))
            blocks = list(itertools.takewhile(lambda block: block.step < steps.stop, history.blocks[done:]))  # noqa: B023
            done += len(blocks)
            sizes = [depths[block.p] * sides[block.operand] for block in blocks]
            received = [
                0 if block.p % owned[block.operand][0] == owned[block.operand][1] else nbytes
                for block, nbytes in zip(blocks, sizes, strict=True)
            ]
            head = sum(block.step == begin for block in blocks)
            loads += [LoadPiece(sizes[x], received[x], 1, blocks[x].after) for x in range(head)]
            first = len(loads)
            if len(blocks) > head:
                after = min(blocks[head].after, first_step + begin - 1)
                loads.append(LoadPiece(sum(sizes[head:]), sum(received[head:]), len(blocks) - head, after))
            seconds = [computing(depths[p]) for p in steps]
            total_s = sum(seconds) + rates.copy_s * sum(sizes)
            last_s = seconds[-1] + rates.copy_s * sum(
                nbytes for block, nbytes in zip(blocks, sizes, strict=True) if block.step == steps[-1]
            )
            groups.append(StepGroup(len(steps), total_s, last_s, first, len(loads)))
        return TileWork(tuple(loads), tuple(groups), m * n * self._itemsize)
