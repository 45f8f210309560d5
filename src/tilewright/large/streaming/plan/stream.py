"""Chooses the plan of a product that is larger than the memory where it is computed, before anything runs.

A tile of C stays in memory until it is summed over all of k. While a step is multiplied, the blocks of A and B for the
next step are copied in, and the previous tile of C is copied out. The best cut, the best order and the best numbers of
blocks in memory are found by trial: the model in ``cost`` predicts the time of each candidate, with the most promising
candidates first. If there are several places, each place computes a region of the tiles. More places are used only if
the model predicts that the product takes less time with them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ....errors import MemoryLimitError, UsageError
from ....product.problem import Problem, itemsize_of
from .cost import Cost, Rates, cost
from .cuts import (
    ENOUGH_CHUNKS,
    MOST_PLANNED,
    Room,
    Slots,
    cuts,
    least_s,
    long_cuts,
    multiplications,
    promised_s,
    shares,
    without_cut_chunks,
)
from .grid import ORDERS, Grid, Tile, below_diagonal
from .host_cache import cache_blocks
from .partition import places_per_block, regions_of, stated_regions, tiles_of_regions
from .plan import StreamPlan
from .schedule import Schedule

#: Candidates are tried that have at most so many steps, or, if that is more, twice the steps of the shortest.
MOST_STEPS = 2000
#: The most multiplications that the model times in each of three searches: one cut for each size of tiles, the other cuts of
#: the best sizes, the other orders and slots of the best cuts.
BUDGET = 8_000
#: Times within this factor count as equal: then the plan that moves fewer bytes is better.
NEARLY = 1.01
#: The same for operands in files: other processes read too, and a cold disk is slower than it was measured to be.
NEARLY_OF_FILES = 1.2
#: The same where the CPU reads files, for a plan that moves more than ENOUGH times the least; then rectangles are tried too.
NEARLY_OF_MANY_BYTES, ENOUGH = 1.1, 1.3
#: Estimates (``promised_s``) within this factor count as equal.
ABOUT = 1.05
#: Tiles that each of several places should have at least: with fewer no place can take over tiles of a slow one.
TILES = 4
#: Fewer tiles are taken if they need less than this share of the time.
MUCH = 0.95
#: More places are used only if they take less than this share of the time of fewer.
WORTH = 0.9
#: The GPU for which the step of k is chosen, whichever GPU is used: operations and bytes a second, by multiply-adds and by
#: tensor cores of operands that became one or two matrices of float16; and the bytes of its memory that are taken where no
#: limit is stated.
TYPICAL = Rates(48e12, 50e9, 50e9, 25e9, latency_s=1e-4, wave=(128, 256, 132), wave_s=1e-5)
TYPICAL_OF_PARTS = {
    1: Rates(5.5e14, 50e9, 50e9, 35e9, latency_s=1e-4, wave=(128, 256, 132), wave_s=1e-5, copy_s=6e-13),
    2: Rates(2e14, 50e9, 50e9, 35e9, latency_s=1e-4, wave=(128, 128, 132), wave_s=1e-5, copy_s=8e-13),
}
TYPICAL_BYTES, TYPICAL_BYTES_OF_PARTS = 16 << 30, 64 << 30


def plan_stream(problem: Problem, room: Room, rates: Rates, most: int = 1, partition: str = "rectangles") -> StreamPlan:
    """Return the plan with the shortest predicted time, on as many of ``most`` places as are useful.

    ``room`` is the memory of each place. ``partition`` says how C is divided among the places; if it states the numbers of
    regions, all places are used. If the problem has a ``symmetry``, so that m = n, one place computes the tiles of one
    triangle. Raises MemoryLimitError if even the smallest blocks do not fit, or if blocks that fit are so small that the
    plan would have more than MOST_PLANNED steps.
    """
    m, n, k, itemsize = problem.m, problem.n, problem.k, problem.itemsize
    all_cuts: list[Grid] = []
    fit: Sequence[Grid] = ()
    for small in (False, True):
        all_cuts += cuts(m, n, k, room, small=small)
        fit = fit or [grid for grid in all_cuts if shares(grid, room, itemsize)]
    if not fit:
        planned = [grid for grid in all_cuts if multiplications(grid) <= MOST_PLANNED]  # with any memory
        least = min(planned or all_cuts, key=lambda grid: room.least_bytes(grid, itemsize))
        raise MemoryLimitError(
            f"{problem} cannot be cut small enough for {room.limit_text}: "
            f"it needs at least {room.needed_text(least, itemsize)}"
        )
    fit = without_cut_chunks(fit, room.chunk)
    steps = min(map(multiplications, fit))
    if steps > MOST_PLANNED:
        raise MemoryLimitError(
            f"{problem} takes {steps:,} steps with blocks that fit {room.limit_text}, and a plan "
            f"has at most {MOST_PLANNED:,}: give more memory, or multiply parts of the operands"
        )
    if problem.symmetry:
        return _PlanSearch(problem.dtype, room, rates, 1, triangle=True).best(fit)
    if stated_regions(partition):
        return _PlanSearch(problem.dtype, room, rates.shared(most), most, partition).best(_with_regions(fit, partition))
    tasks = [
        _PlanSearch(problem.dtype, room, rates.shared(places), places, partition)
        for places in (1, *_place_counts(most))
    ]
    tasks = [task for task in tasks if any(math.prod(grid.tiles) >= task.places for grid in fit)] or tasks[:1]
    best = alone = tasks[0].best(fit)
    if len(tasks) == 1:
        return tasks[0].with_long_cuts(alone)
    widest = tasks[-1].best(fit)
    # Fewer places need no plan if the most places pay even against the lower bound of their time.
    if any(widest.cost.total_s >= WORTH * task.bound_s(fit) for task in tasks[:-1]):
        for task in tasks[1:-1]:
            best = _better(best, task.best(fit), alone)
    return _better(best, widest, alone)


@functools.lru_cache(maxsize=64)  # a search, for each plan of the same product
def typical_step(problem: Problem, *, grain: int, limit: int | None, planes: int = 0) -> int:
    """Return the step of k that is best on a typical GPU, for a kernel that sums a step in registers and then adds it to C.

    The step does not depend on measurements. For this reason the same product with the same memory ``limit`` always has
    the same bits. In the model, plans with this step take up to 7 % longer than plans with the best step; if a disk or
    a limit of 64 MiB is the bottleneck, they take up to 33 % longer. Raises MemoryLimitError as ``plan_stream`` does.
    """
    free, rates = (TYPICAL_BYTES_OF_PARTS, TYPICAL_OF_PARTS[planes]) if planes else (TYPICAL_BYTES, TYPICAL)
    room = Room(free if limit is None else limit, grain=grain, planes=planes)
    return plan_stream(problem, room, rates).grid.bk


def plan_again(
    grid: Grid,
    dtype: str,
    room: Room,
    rates: Rates,
    tiles: Sequence[Tile],
    *,
    most: int = 1,
    partition: str = "rectangles",
    triangle: bool = False,
) -> StreamPlan:
    """Return a plan for the unfinished tiles of a product that was begun with this ``grid``. If only one ``triangle``
    of C is computed, one place computes all tiles.
    """
    itemsize = itemsize_of(dtype)
    slots = shares(grid, room, itemsize)
    if not slots:
        raise MemoryLimitError(
            f"tiles of {grid.bm}×{grid.bn} in steps of {grid.bk}, with which this product was begun, "
            f"need {room.needed_text(grid, itemsize)}; given {room.limit_text}"
        )

    def planned(places: int, regions: Sequence[Sequence[Tile]]) -> StreamPlan:
        task = _PlanSearch(dtype, room, rates.shared(places), places, partition, triangle)
        return min((task.timed(grid, "as begun", each, regions) for each in slots), key=lambda plan: plan.cost.total_s)

    best = alone = planned(1, [tuple(tiles)])
    if triangle:
        return alone
    left = set(tiles)
    counts = _place_counts(min(most, len(tiles)))
    for places in [most] if stated_regions(partition) else counts:
        regions = [
            [tile for tile in region if tile in left]
            for region in tiles_of_regions(*grid.tiles, places, partition=partition)
        ]
        best = _better(best, planned(places, regions), alone)
    return best


def plan_nothing(problem: Problem, room: Room) -> StreamPlan:
    """Return a plan that computes no tile, for a result that is complete already."""
    m, n, k = problem.m, problem.n, problem.k
    grid, idle = Grid(m, n, k, max(1, m), max(1, n), max(1, k)), Rates(math.inf, math.inf, math.inf)
    return StreamPlan(
        grid, problem.dtype, "rows", (0, 0, 0), 0, ((),), Cost([], [], [], 0, 0, 0), idle, replace(room, host=0)
    )


def _with_regions(grids: Sequence[Grid], partition: str) -> list[Grid]:
    """The cuts that have a tile for each of the stated regions. Raises UsageError where there are none."""
    regions = stated_regions(partition)
    assert regions is not None
    enough = [grid for grid in grids if grid.tiles[0] >= regions[0] and grid.tiles[1] >= regions[1]]
    if not enough:
        grid = max(grids, key=lambda grid: math.prod(grid.tiles))
        raise UsageError(
            f"partition {partition}: C has {grid.tiles[0]}×{grid.tiles[1]} tiles at most; ask for fewer regions"
        )
    return enough


def _place_counts(most: int) -> list[int]:
    """Numbers of several places to try: 2, 4, 8 and so on, and ``most``."""
    return sorted({2**power for power in range(1, most.bit_length())} | {most} - {0, 1})


def _better(few: StreamPlan, many: StreamPlan, alone: StreamPlan) -> StreamPlan:
    """``many``, the plan for more places, if it is enough faster (WORTH); otherwise ``few``."""
    worth = many.cost.total_s < WORTH * few.cost.total_s
    return replace(many, alone_s=alone.cost.total_s) if worth else few


def _shortest(sides: Iterable[Sequence[Grid]], promises: Mapping[Grid, float]) -> Iterator[Grid]:
    """For each size of tiles, the cut with the fewest steps among those whose estimate is about that of the best."""
    for cuts_ in sides:
        yield min((grid for grid in cuts_ if promises[grid] <= ABOUT * promises[cuts_[0]]), key=multiplications)


@dataclass(frozen=True)
class _PlanSearch:
    """The search for the best plan, with the values that all candidates share; ``rates`` are the rates of each
    place."""

    dtype: str
    room: Room
    rates: Rates
    places: int
    partition: str = "rectangles"
    triangle: bool = False

    @property
    def itemsize(self) -> int:
        """The number of bytes of one element of a block."""
        return itemsize_of(self.dtype)

    def bound_s(self, grids: Sequence[Grid]) -> float:
        """Return a lower bound of the time that holds for each of these cuts."""
        return min(map(self._least_s, grids))

    def best(self, grids: Sequence[Grid]) -> StreamPlan:
        """Return the fastest of the plans that are tried; among equally fast plans, the one that moves the fewest
        bytes.

        If there are several places, each place has at least TILES tiles, unless fewer and larger tiles are much faster.
        """
        if self.places == 1:
            return self._best(grids)
        many = [grid for grid in grids if math.prod(grid.tiles) >= self.places * TILES]
        few = [grid for grid in grids if self.places <= math.prod(grid.tiles) < self.places * TILES]
        plans = [self._best(some) for some in (many, few) if some]
        return plans[-1] if plans[-1].cost.total_s < MUCH * plans[0].cost.total_s else plans[0]

    def with_long_cuts(self, plan: StreamPlan) -> StreamPlan:
        """Return ``plan``, or a plan with rectangular tiles if it moves enough fewer bytes to be better."""
        if not self._moves_many_bytes(plan):
            return plan
        grid = plan.grid
        cuts_ = dict.fromkeys(long_cuts(grid.m, grid.n, grid.k, self.room, self.itemsize))
        grids = without_cut_chunks(list(cuts_), self.room.chunk, ENOUGH_CHUNKS)
        return self._best_first([plan, self.best(grids)] if grids else [plan])[0]

    def _best(self, grids: Sequence[Grid]) -> StreamPlan:
        most = max(MOST_STEPS, 2 * min(multiplications(grid) for grid in grids))
        short = [grid for grid in grids if multiplications(grid) <= most]
        promises = {grid: self._promised_s(grid) for grid in short}
        of_side: dict[tuple[int, int], list[Grid]] = {}
        for grid in sorted(short, key=promises.__getitem__):
            of_side.setdefault((grid.bm, grid.bn), []).append(grid)
        tried: list[StreamPlan] = []
        self._try(((grid, next(self._orders_and_slots(grid))) for grid in _shortest(of_side.values(), promises)), tried)
        sides = [(plan.grid.bm, plan.grid.bn) for plan in self._best_first(tried)]
        self._try(((grid, next(self._orders_and_slots(grid))) for side in sides for grid in of_side[side]), tried)
        self._try(
            ((plan.grid, way) for plan in self._best_first(tried) for way in self._orders_and_slots(plan.grid)), tried
        )
        return self._best_first(tried)[0]

    def _best_first(self, plans: Sequence[StreamPlan]) -> list[StreamPlan]:
        """Those that are about as fast as the fastest, by the bytes they move; then the others, by time."""
        fastest = min(plans, key=lambda plan: plan.cost.total_s)
        limit_s = fastest.cost.total_s * self._nearly(fastest)

        def rank(plan: StreamPlan) -> tuple[float, ...]:
            cost_ = plan.cost
            near = cost_.total_s <= limit_s
            return (0, cost_.read_bytes, cost_.in_bytes, cost_.total_s) if near else (1, cost_.total_s)

        return sorted(plans, key=rank)

    def _try(self, candidates: Iterator[tuple[Grid, tuple[str, Slots]]], tried: list[StreamPlan]) -> None:
        """Time the candidates that could be better than those tried, until the budget is spent; at least one."""
        left = BUDGET
        known = {(plan.grid, plan.order, plan.slots) for plan in tried}
        limit_s = min(map(self._limit_s, tried), default=math.inf)
        for grid, (order, slots) in candidates:
            if (grid, order, slots) in known or self._least_s(grid) > limit_s:
                continue
            if not tried or multiplications(grid) <= left:
                left -= multiplications(grid)
                tried.append(self.timed(grid, order, slots, self._regions(grid, order)))
                limit_s = min(limit_s, self._limit_s(tried[-1]))

    def _limit_s(self, plan: StreamPlan) -> float:
        """The longest time that a plan better than this one can take."""
        return plan.cost.total_s * (1.0 if plan.comes_once else self._nearly(plan))

    def timed(self, grid: Grid, order: str, slots: Slots, regions: Sequence[Sequence[Tile]]) -> StreamPlan:
        """Return the plan with this grid, order, slots and regions, and the predicted cost of its longest region."""
        longest = max(regions, key=lambda region: sum(math.prod(grid.size(tile)) for tile in region))
        schedule = Schedule.of(grid, slots, longest)
        host_slots = self.room.host_slots(grid, self.itemsize) if self.places == 1 else 0
        cached = cache_blocks(schedule.loads, host_slots) if host_slots else None
        shared = places_per_block(regions, self.rates.peers)
        spent = cost(schedule, self.rates, self.itemsize, cached, shared, triangle=self.triangle)
        every = tuple(tuple(region) for region in regions)
        chosen = grid, self.dtype, order, slots, host_slots, every, spent, self.rates, self.room
        return StreamPlan(*chosen, triangle=self.triangle)

    def _moves_many_bytes(self, plan: StreamPlan) -> bool:
        """Whether fewer bytes are worth more time: they are read from files, and far from the least."""
        moved = plan.cost.in_bytes + plan.cost.out_bytes
        return self.room.files and self.places == 1 and moved > ENOUGH * plan.least_bytes

    def _nearly(self, plan: StreamPlan) -> float:
        if self.room.host:
            return NEARLY_OF_FILES
        return NEARLY_OF_MANY_BYTES if self._moves_many_bytes(plan) else NEARLY

    def _orders_and_slots(self, grid: Grid) -> Iterator[tuple[str, Slots]]:
        orders = ORDERS if math.prod(grid.tiles) > 1 else ["rows"]
        down, across = grid.tiles
        p, q = regions_of(self.partition, down, across, self.places)
        region = math.ceil(down / p), math.ceil(across / q)
        return ((order, slots) for slots in shares(grid, self.room, self.itemsize, region) for order in orders)

    def _regions(self, grid: Grid, order: str) -> list[list[Tile]]:
        regions = tiles_of_regions(*grid.tiles, self.places, order, self.partition)
        return [below_diagonal(region) for region in regions] if self.triangle else regions

    def _least_s(self, grid: Grid) -> float:
        return least_s(grid, self.itemsize, self.rates, self.places) / (1 + self.triangle)

    def _promised_s(self, grid: Grid) -> float:
        return promised_s(grid, self.itemsize, self.room, self.rates, self.places)
