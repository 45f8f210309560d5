"""Defines the plan of a product in blocks: how the product is cut, how its blocks are copied, and the predicted
time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....host.cached_property import cached_property
from ....host.machine import bytes_text, seconds_text
from ....product.plan import Choice, Plan, Rows
from ....product.precision import ROUNDED, SPLIT, blocks_bound, dtype_of_blocks
from ....product.problem import Problem, Symmetry, itemsize_of
from .cost import Cost, Rates
from .cuts import Room, Slots, block_elements, place_elements
from .grid import ORDERS, Grid, Tile, below_diagonal
from .host_cache import HostCache, cache_blocks
from .kernel import dtype_in_blocks, result_words, word_of_choice
from .partition import places_per_block
from .schedule import Schedule


@dataclass(frozen=True, repr=False)
class StreamPlan(Plan):
    """How a product larger than memory is cut and copied, and its predicted time; ``print`` shows all of it.

    Attributes
    ----------
    grid : Grid
        The blocks of the operands and the tiles of C.
    dtype : str
        The dtype of the blocks.
    result : str
        The dtype of C.
    stored : tuple of str
        The dtypes of the operands.
    order : str
        The order of the tiles.
    slots : Slots
        The numbers of blocks of A, blocks of B and tiles of C that fit into the memory where blocks are multiplied.
    host_slots : int
        The number of blocks that fit into the cache in the host's memory.
    regions : tuple of tuples of tiles
        The tiles that each device computes.
    cost : Cost
        The predicted bytes and seconds of the device that takes longest.
    rates : Rates
        The measured rates from which the time is predicted.
    room : Room
        The memory that the plan may use.
    alone_s : float or None
        The predicted seconds on a single device; None if the plan has only one device.
    layers : tuple of two int
        The number of layers into which k is cut, and the number of workers that share them. If there is more than one
        layer, ``cost`` is the cost of one worker.
    gram, triangle : bool
        ``gram`` says whether C is known to equal its transpose. ``triangle`` says whether only one triangle of C is
        computed, and then copied to the other triangle.

    See Also
    --------
    plan_multiply : Returns a ``StreamPlan``.
    tilewright.product.plan.Plan : The base class of all plans.
    """

    grid: Grid
    dtype: str
    order: str
    slots: Slots
    host_slots: int
    regions: tuple[tuple[Tile, ...], ...]
    cost: Cost
    rates: Rates
    room: Room
    alone_s: float | None = None
    #: Set by ``on``, when the places are known.
    choice: Any = None
    devices: tuple[str, ...] = ()
    workers: str = ""
    #: Layers of k, and the workers that share them; then ``cost`` is that of one worker.
    layers: tuple[int, int] = (1, 1)
    stored: tuple[str, ...] = ()
    result: str = ""
    #: Whether C is known to equal its transpose; and whether only the tiles of one triangle are computed, and copied.
    gram: bool = False
    triangle: bool = False

    def on(
        self,
        choice: Choice[Any],
        devices: Sequence[str],
        workers: str,
        *,
        stored: Sequence[str],
        result: str,
        gram: bool = False,
    ) -> StreamPlan:
        """Return this plan with a kernel, dtypes and ``devices``. Each device computes one region of C; the first
        devices compute the first regions.

        ``workers`` is a line of text about the workers of a cluster, to which the devices belong.
        """
        named = replace(self, choice=choice, devices=tuple(devices), workers=workers)
        return replace(named, stored=tuple(stored), result=result, gram=gram)

    @property
    def problem(self) -> Problem:
        """The whole product."""
        symmetry: Symmetry = "gram" if self.triangle else ""
        return Problem(self.grid.m, self.grid.n, self.grid.k, self.result or self.dtype, symmetry=symmetry)

    @property
    def every_tile(self) -> list[Tile]:
        """All tiles of C that are computed, including the tiles that earlier runs have finished. If ``triangle`` is
        set, only the tiles on and below the diagonal are computed.
        """
        tiles = ORDERS["rows"](*self.grid.tiles)
        return below_diagonal(tiles) if self.triangle else tiles

    @property
    def itemsize(self) -> int:
        """The number of bytes of one element of a block."""
        return itemsize_of(self.dtype)

    @property
    def device(self) -> str:
        """The devices that compute."""
        return ", ".join(self.devices[: max(1, len(self.regions))])

    @property
    def predicted_s(self) -> float:
        return self.cost.total_s

    @property
    def tiles(self) -> tuple[Tile, ...]:
        """All tiles of C that are still to be computed."""
        return tuple(tile for region in self.regions for tile in region)

    def schedule(self) -> Schedule:
        """Return the schedule of a single device that computes all tiles."""
        return Schedule.of(self.grid, self.slots, self.tiles)

    def host_cache(self, schedule: Schedule) -> HostCache:
        """Return which blocks the host caches while ``schedule`` runs."""
        return cache_blocks(schedule.loads, self.host_slots)

    @property
    def place_bytes(self) -> int:
        """The bytes that blocks and tiles take in the memory where blocks are multiplied."""
        return place_elements(self.grid, self.slots, self.room.planes) * self.itemsize

    @property
    def host_bytes(self) -> int:
        """The bytes that cached blocks take in the host's memory."""
        return self.host_slots * block_elements(self.grid) * self.itemsize

    @property
    def moved_bytes(self) -> list[int]:
        """For each device, the bytes that are copied into and out of its memory if it computes exactly its own
        region.
        """
        if len(self.regions) == 1:
            return [self.cost.in_bytes + self.cost.out_bytes] * self.layers[1]
        return [self._moved(region) * self.itemsize for region in self.regions]

    @property
    def sharers(self) -> dict[str, float]:
        """For each operand, the average number of devices that share one read of a block."""
        return places_per_block(self.regions, self.rates.peers)

    @property
    def read_bytes(self) -> int:
        """The bytes of A and B that all devices together read."""
        if len(self.regions) == 1:
            return self.cost.read_bytes
        shared = self.sharers
        read = (size / shared[operand] for region in self.regions for operand, size in self._loaded(region).items())
        return math.ceil(sum(read)) * self.itemsize

    @property
    def out_bytes(self) -> int:
        """The bytes of the tiles of C that are written."""
        copied = [tile for tile in self.tiles if self.triangle and tile.i != tile.j]
        return (_area(self.grid, self.tiles) + _area(self.grid, copied)) * self.itemsize

    @property
    def least_bytes(self) -> int:
        """The fewest bytes that must be copied into and out of the memories where blocks are multiplied, by the I/O
        lower bound.
        """
        room = self.room.for_blocks(self.grid) // self.itemsize
        return sum(_least(self.grid, region, room) for region in self.regions) * self.itemsize

    @property
    def least_read_bytes(self) -> int:
        """The fewest bytes of A and B that must be read. The number of bytes is the I/O lower bound for the combined
        memory of the device and the host, or of all devices if they exchange blocks.
        """
        if len(self.regions) > 1 and self.rates.peers:
            room = len(self.regions) * self.room.place // self.itemsize
            return _least(self.grid, self.tiles, room) * self.itemsize - self.out_bytes
        room = (self.room.place + (self.room.host if len(self.regions) == 1 else 0)) // self.itemsize
        return sum(_least(self.grid, region, room) for region in self.regions) * self.itemsize - self.out_bytes

    @cached_property
    def comes_once(self) -> bool:
        """Whether the device that computes the most tiles of C loads each block of A and B only once."""
        region = max(self.regions, key=lambda region: _area(self.grid, region))
        rows, columns = _sides(self.grid, region)
        return self.cost.in_bytes == (rows + columns) * self.grid.k * self.itemsize

    @property
    def bound(self) -> str:
        """The kind of work that takes most of the predicted time: "compute", "reading" or "copying"."""
        if self.cost.compute_s >= self.cost.total_s / 2:
            return "compute"
        return "reading" if self.rates.read_bytes < self.rates.in_bytes else "copying"

    @property
    def error_bound(self) -> float:
        """The largest possible error of an element, relative to |A||B|, if nothing overflows or underflows."""
        return blocks_bound(self.stored, self.result, self.compute, self.grid.k, self._part_of_k)

    @property
    def title(self) -> str:
        return f"{self.problem}, in blocks"

    @property
    def all_rows(self) -> Rows:
        """The labels and texts that ``print`` shows below the title. If nothing is left to compute, there are fewer
        labels.
        """
        done = not self.tiles and self.grid.m and self.grid.n
        return [("nothing is left to do", "")] if done else super().all_rows

    def rows(self) -> Rows:
        grid, cost_ = self.grid, self.cost
        down, across = grid.tiles
        a, b, c = self.slots
        order = f"by {self.order}" if self.order in ORDERS else self.order
        steps = f"k in {grid.steps} steps of {grid.bk}" if grid.steps > 1 else "k is not cut"
        moved = sum(self.moved_bytes)
        return [
            *([("workers", self.workers)] if self.workers else [("device", self.device)] if self.devices else []),
            ("tiles", f"{down}×{across} of {grid.bm}×{grid.bn}, {order}; {steps}"),
            (
                "memory",
                f"{bytes_text(self.place_bytes)}: {a} of A's blocks, {b} of B's, {c} of C's tiles{self._host()}",
            ),
            ("moves", f"{bytes_text(moved)}{self._than(self.least_bytes, 'this memory')}"),
            *self._symmetry(),
            *self._places(),
            *self._reads(),
            *self._accuracy(),
            ("predicted", f"{seconds_text(cost_.total_s)}, {self._rate():,.0f} GFLOPS; bound by {self.bound}"),
            (
                "of which",
                f"compute {seconds_text(cost_.compute_s)}, waiting for copies {seconds_text(cost_.exposed_s)}, "
                f"first blocks {seconds_text(cost_.first_s)}, last tile {seconds_text(cost_.last_s)}",
            ),
            ("balance", self._balance()),
        ]

    def _moved(self, tiles: Sequence[Tile]) -> int:
        """Elements that a place moves for its tiles."""
        return sum(self._loaded(tiles).values()) + _area(self.grid, tiles)

    def _loaded(self, tiles: Sequence[Tile]) -> dict[str, int]:
        """Elements of each operand that a place loads for its tiles."""
        elements = {"a": 0, "b": 0}
        for load in Schedule.of(self.grid, self.slots, tiles).loads:
            elements[load.block.operand] += self.grid.elements(load.block)
        return elements

    def _places(self) -> list[tuple[str, str]]:
        if len(self.regions) == 1:
            count, workers = self.layers
            return [("layers", f"{count} of k, which {workers} workers share; their sums are added in a fixed order")][
                : count > 1
            ]
        faster = f"; predicted {self.alone_s / self.cost.total_s:.2f}× as fast as one" if self.alone_s else ""
        tiles, moved = [len(region) for region in self.regions], self.moved_bytes
        each = f"{min(tiles)} to {max(tiles)}" if len(set(tiles)) > 1 else f"{tiles[0]}"
        moves = [str(bytes_text(nbytes)) for nbytes in (min(moved), max(moved))]
        move = f"which move {' to '.join(dict.fromkeys(moves))} each"
        least = (
            max(_least(self.grid, region, self.room.place // self.itemsize) for region in self.regions) * self.itemsize
        )
        down, across = (
            len({min(tile[axis] for tile in region) for region in self.regions if region}) for axis in (0, 1)
        )
        shape = f" in {down}×{across}" if down * across == len(tiles) else ""
        text = f"{len(tiles)}{shape}, of {each} tiles, {move}; the least for one is {bytes_text(least)}{faster}"
        rows = [("places", text)]
        if self.rates.peers:
            a, b = self.sharers.values()
            rows.append(("shared", f"a block of A is read once for {a:.3g} places, one of B for {b:.3g}"))
        return rows

    def _symmetry(self) -> Rows:
        """Whether one triangle is enough, or why not."""
        if not self.gram:
            return []
        if self.triangle:
            return [("triangle", "C equals its transpose: tiles above the diagonal are copied")]
        where = "workers" if self.workers else "GPUs" if self.device != "cpu" else "this kernel and these sizes"
        return [("triangle", f"none: C equals its transpose, but {where} take the general product")]

    def _than(self, least: int, room: str) -> str:
        """The least that a general product moves, to compare with."""
        return "" if self.triangle else f"; the least for {room} is {bytes_text(least)}"

    def _host(self) -> str:
        return f"; on the host {bytes_text(self.host_bytes)} for {self.host_slots} blocks" if self.host_slots else ""

    def _reads(self) -> list[tuple[str, str]]:
        if math.isinf(self.rates.read_bytes):
            return []
        least = self._than(self.least_read_bytes, "both memories")
        return [("reads", f"{bytes_text(self.read_bytes)} of A and B{least}")]

    @property
    def _part_of_k(self) -> int:
        """The longest part of k that the kernel sums before it adds to C."""
        return self.grid.kc if self.grid.kc > 1 else self.grid.bk

    def _bound(self) -> Rows:
        if not self.choice or not self.grid.k:
            return []
        if not self.error_bound:
            return [
                ("error", f"none: products of {self.result} are exact" + ", modulo their size" * ("int" in self.result))
            ]
        parts = -(-self.grid.k // self._part_of_k)
        rounded = f", rounded to {self.result}" if dtype_of_blocks(self.compute) != self.result else ""
        cut = (
            f" in {parts:,} sums of {-(-self.grid.k // parts):,} of k"
            if parts > 1 and "complex" not in self.compute
            else ""
        )
        more = ""
        if (word := word_of_choice(self.compute, self.result)) != (best := result_words(self.result)[-1]):
            bound = blocks_bound(
                self.stored, self.result, dtype_in_blocks(self.result, best), self.grid.k, self._part_of_k
            )
            more = f"; {bound:.2g} with precision {best!r}"
        return [("error", f"at most {self.error_bound:.2g}·|A||B|: {self.compute}{cut}{rounded} ({word}){more}")]

    def _accuracy(self) -> Rows:
        """Rows for the arithmetic of float32 on a GPU, the bound for all operands, and below it that for most operands."""
        dtype, rest = self._float16_rows()[:1], self._float16_rows()[1:]
        return [*dtype, *self._bound(), *(("" if label == "error" else label, text) for label, text in rest)]

    def _float16_rows(self) -> Rows:
        if not self.choice or self.compute not in (ROUNDED, SPLIT):
            return []
        from ....gpu.arrays.split import rounded_rows, split_rows  # not needed on the CPU

        if self.compute == ROUNDED:
            return rounded_rows(self.grid.k)
        return split_rows(self.grid.k, self.params, self.grid.bk)

    def _balance(self) -> str:
        rates = self.rates
        slowest = min(rates.in_bytes, rates.read_bytes)
        side = least_side(rates.flops, slowest, self.itemsize)
        ratio = f"{rates.flops / 1e9:,.0f} GFLOPS over {slowest / 1e9:.3g} GB/s"
        return f"{ratio}: tiles with sides of {side} or more hide their copies"

    def _rate(self) -> float:
        left = _area(self.grid, self.tiles) / max(1, _area(self.grid, self.every_tile))  # of a resumed product
        return left * self.problem.flops / max(self.cost.total_s, 1e-12) / 1e9


def _sides(grid: Grid, tiles: Sequence[Tile]) -> tuple[int, int]:
    """Rows of A and columns of B that these tiles need."""
    rows = {tile.i: grid.size(tile)[0] for tile in tiles}
    columns = {tile.j: grid.size(tile)[1] for tile in tiles}
    return sum(rows.values()), sum(columns.values())


def _area(grid: Grid, tiles: Sequence[Tile]) -> int:
    return sum(math.prod(grid.size(tile)) for tile in tiles)


def _least(grid: Grid, tiles: Sequence[Tile], room: int) -> int:
    """The fewest elements moved for these tiles: the I/O lower bound, or each element once where they are no rectangle."""
    (rows, columns), area = _sides(grid, tiles), _area(grid, tiles)
    if area < rows * columns:
        return (rows + columns) * grid.k + area
    return least_elements(rows, columns, grid.k, room)


# ---- bounds ----------------------------------------------------------------------------------------------------------
# What every way of multiplying must move at least: the I/O lower bound.


def least_elements(m: int, n: int, k: int, room: int) -> int:
    """Return the minimum number of elements that any order of the mnk multiply-adds of C[m×n] = A[m×k]·B[k×n] must move
    between a small memory of ``room`` elements and a large memory.

    The proof follows Hong and Kung (STOC 1981) and Smith, Lowery, Langou and van de Geijn (arXiv:1702.02017), but with
    segments of equal work instead of equal I/O. The sequence of multiply-adds is cut into segments of equal size. A
    segment uses at least ``_elements_of_segment`` elements of A, B and C, and at most ``room`` of these elements are in
    the small memory when the segment begins. An element of C that is not in the small memory when a segment first uses
    it is either loaded then, or its sum begins there and is stored later; in both cases one element is moved. With one
    segment, the bound counts each element once. With many segments the bound is about 2·mnk/√room + room, which is
    larger than the bound of Smith et al., 2·mnk/√room − 2·room.

    >>> least_elements(100, 100, 100, room=10**6), least_elements(1000, 1000, 1000, room=10000)
    (30000, 20010000)
    >>> round(least_elements(4000, 4000, 4000, room=50 * 2**17) / 4000**2, 2)  # 50 MiB of float64
    3.53
    """
    work, short = m * n * k, max(1, min(m, n, k))
    if not work:
        return m * n
    best = max(1.0, room) * max(
        math.sqrt(max(1, room)), room / short
    )  # multiply-adds of a segment, for the largest bound
    bounds = []
    for p in {max(1, math.floor(work / best)), math.ceil(work / best)}:
        each, longer = divmod(work, p)  # segments of two sizes, which differ by one
        short_ones, long_ones = (_elements_of_segment(m, n, k, x) for x in (each, each + 1))
        bounds.append((p - longer) * short_ones + longer * long_ones - (p - 1) * room)
    return max(m * k + k * n + m * n, math.ceil(max(bounds) * (1 - 1e-12)))  # less than rounding could add


def _elements_of_segment(m: int, n: int, k: int, work: int) -> float:
    """The fewest elements of A, B and C that ``work`` multiply-adds use: for x elements of A, y of B and z of C they are at
    most √(xyz) (Loomis and Whitney 1949), and at most xn, ym and zk.

    >>> _elements_of_segment(100, 100, 100, 10**6), _elements_of_segment(100, 100, 10, 10**3)
    (30000.0, 300.0)
    """
    total, product = 0.0, float(work) ** 2
    for left, side in zip((3, 2, 1), sorted((m, n, k)), strict=True):
        x = max(work / side, product ** (1 / left))
        total, product = total + x, product / x
    return total


def least_side(flops: float, bytes_per_s: float, itemsize: int) -> int:
    """Return the side b* of square tiles of C for which computing takes as long as copying: s·R/BW.

    For each unit of k, a step of a b×b tile takes 2·b² operations and copies 2·b elements of s bytes. R is the rate of
    computing in operations a second, and BW the rate of copying in bytes a second.

    >>> least_side(50e12, 55e9, 4)
    3637
    """
    return math.ceil(itemsize * flops / bytes_per_s)
