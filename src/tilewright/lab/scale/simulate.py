"""Simulates a plan on the workers of a cluster, event by event. The cluster may be larger than any that is available.

The simulation is deterministic, and is checked against measured runs. The tiles come from the queue that a real run
uses, with a simulated clock. The bytes of each tile come from the schedule that its worker would follow. A schedule
depends only on the order of the worker's tiles, not on their position in C. In a large cluster most workers take tiles
in the same order, each in its own region, so that one schedule serves all of them. Time is modelled as follows:

- A worker has three stages that run at the same time, as in ``large.streaming.run.executor``: it loads blocks, multiplies
  them, and stores tiles of C.
- Storage is modelled as one rate (``SharedRate``): all loads under way get equal parts of it, but none is faster than
  its worker's link.
- To get a tile, a worker sends a message to the scheduler, which serves requests one after another, needs ``task_s``
  seconds for each, and sends a message back. A worker has ``in_flight`` tiles: it computes one while the blocks of the
  next are loaded. A worker requests another tile when it has stored one.

If a run has many steps, several steps are simulated as one group, for which blocks arrive in a continuous flow.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any, NamedTuple

from ...errors import UsageError
from ...large.cluster.feed import TILES_ANNOUNCED, TILES_AT_ONCE
from ...large.streaming.plan.cost import Rates
from ...large.streaming.plan.grid import Grid, Tile
from ...large.streaming.plan.plan import StreamPlan
from ...large.streaming.plan.schedule import Schedule
from ...large.streaming.run.executor import Queue
from ...records.scaling import SPENT, WHERE

# ---- the work of a tile ----------------------------------------------------------------------------------------------


class LoadedBlock(NamedTuple):
    """A block of ``"a"`` or ``"b"`` that a tile loads for its step ``step``. The block is number ``p`` of the operand
    along k, and is loaded into a slot that is free after the worker's multiplication number ``after_multiply``."""

    operand: str
    p: int
    step: int
    after_multiply: int


class LoadPiece(NamedTuple):
    """Blocks that are simulated as one load, which consists of ``blocks`` copies and can begin after multiplication
    number ``after_multiply`` of the worker. ``nbytes`` bytes are copied to slots, and ``received`` of these bytes come
    from storage or other workers."""

    nbytes: int
    received: int
    blocks: int
    after_multiply: int


class StepGroup(NamedTuple):
    """Steps of a tile that are simulated as one multiplication. The first step needs the first ``first`` load pieces of
    the tile, and the last step needs the first ``last`` pieces. All steps of the group together take ``seconds``, and
    its last step takes ``last_s``."""

    steps: int
    seconds: float
    last_s: float
    first: int
    last: int


class TileWork(NamedTuple):
    """What must be loaded and multiplied for a tile, and the bytes of its part of C."""

    loads: tuple[LoadPiece, ...]
    groups: tuple[StepGroup, ...]
    out_bytes: int


@dataclass(eq=False)
class History:
    """The sequence of tiles that a worker has taken so far, as a node of a tree. The node has the last tile and the
    blocks that this tile loads. ``parent`` is the sequence without the last tile; ``children`` are sequences with one
    more tile."""

    region: tuple[Tile, ...]
    parent: History | None = None
    tiles: int = 0
    tile: Tile | None = None
    #: The number of tiles of the worker's own region that were left after the last tile.
    left: int = 0
    blocks: tuple[LoadedBlock, ...] = ()
    children: dict[tuple[Tile, int], History] = field(default_factory=dict)
    #: The schedule of exactly these tiles. The first child takes the schedule over and adds its own tile.
    schedule: Schedule | None = None

    def path(self) -> list[History]:
        """The nodes of the tree from the first tile of the history to this node."""
        histories, node = [], self
        while node.parent is not None:
            histories.append(node)
            node = node.parent
        return histories[::-1]


class Histories:
    """The histories of all workers of a plan, as one tree for each region. Tiles are given relative to the first tile
    of the worker's region, so that workers with equal regions have the same histories."""

    def __init__(self, grid: Grid, slots: tuple[int, int, int]) -> None:
        self._grid, self._slots = grid, slots
        self._first: dict[tuple[Tile, ...], History] = {}
        #: Equal lists of blocks are one object.
        self._blocks: dict[tuple[LoadedBlock, ...], tuple[LoadedBlock, ...]] = {}

    def begin(self, region: Sequence[Tile]) -> History:
        """The empty history of a worker with this region."""
        return self._first.setdefault(tuple(region), History(tuple(region)))

    def add(self, history: History, tile: Tile, later: Sequence[Tile]) -> History:
        """The history with one more tile; ``later`` are the tiles of the worker's own region that will follow it."""
        key = (tile, len(later))  # given the earlier tiles, the number of tiles that are left says which ones they are
        if key not in history.children:
            schedule, history.schedule = history.schedule or self._replayed(history), None
            blocks = self._extended(schedule, tile, later)
            blocks = self._blocks.setdefault(blocks, blocks)
            added = History(history.region, history, history.tiles + 1, tile, len(later), blocks, schedule=schedule)
            history.children[key] = added
        return history.children[key]

    def _replayed(self, history: History) -> Schedule:
        """The schedule of a history, computed again because its first child has taken the schedule over."""
        schedule, own = Schedule(self._grid, self._slots), 0
        for each in history.path():
            assert each.tile is not None
            own += own < len(each.region) and each.tile == each.region[own]
            self._extended(schedule, each.tile, each.region[own : own + each.left])
        return schedule

    @staticmethod
    def _extended(schedule: Schedule, tile: Tile, later: Sequence[Tile]) -> tuple[LoadedBlock, ...]:
        """Add a tile to the schedule, and return the blocks that it loads. Afterwards the new entries are replaced by
        the schedule's first entries, which saves most of the memory, because a schedule only needs the number of its
        earlier entries."""
        loads, steps = len(schedule.loads), len(schedule.multiplies)
        schedule.add(tile, later)
        blocks: list[LoadedBlock] = []
        for multiply in schedule.multiplies[steps:]:
            for load in schedule.loads[loads + len(blocks) : max(multiply.needs) + 1]:
                operand, row, column = load.block
                p = column if operand == "a" else row
                blocks.append(LoadedBlock(operand, p, multiply.p, load.after_multiply))
        schedule.loads[loads:] = schedule.loads[:1] * len(blocks)
        schedule.multiplies[steps:] = schedule.multiplies[:1] * (len(schedule.multiplies) - steps)
        return tuple(blocks)


class TileCutter:
    """Divides the work of tiles into at most ``groups`` groups of steps in all, for elements of ``itemsize`` bytes.

    If a group has several steps, the blocks of its first step are loaded one by one, and all its other blocks as one
    piece. If a group has one step, each of its blocks is loaded as a piece of its own.
    """

    def __init__(self, grid: Grid, itemsize: int, groups: int) -> None:
        self._grid, self._itemsize = grid, itemsize
        self.steps_a_group = math.ceil(grid.steps / groups)
        self._depths = [depth.stop - depth.start for depth in map(grid.depth, range(grid.steps))]
        self.cut = functools.cache(self._cut)  # workers with the same history have the same work

    def _cut(
        self, history: History, size: tuple[int, int], rates: Rates, own_a: tuple[int, int], own_b: tuple[int, int]
    ) -> TileWork:
        """The work of a history's last tile, which has ``size``. The worker owns block p of the tile's row of A if p % x is
        y for (x, y) = ``own_a``, and likewise block p of its column of B."""
        grid, depths, (m, n) = self._grid, self._depths, size
        first_step = (history.tiles - 1) * grid.steps
        sides, owned = {"a": m * self._itemsize, "b": n * self._itemsize}, {"a": own_a, "b": own_b}
        computing = functools.cache(functools.partial(rates.compute_s, m, n))  # of few depths
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
            single = sum(block.step == begin for block in blocks)
            loads += [LoadPiece(sizes[x], received[x], 1, blocks[x].after_multiply) for x in range(single)]
            first = len(loads)
            if len(blocks) > single:
                after = min(blocks[single].after_multiply, first_step + begin - 1)
                loads.append(LoadPiece(sum(sizes[single:]), sum(received[single:]), len(blocks) - single, after))
            seconds = [computing(depths[p]) for p in steps]
            total_s = sum(seconds) + rates.copy_s * sum(sizes)
            last_s = seconds[-1] + rates.copy_s * sum(
                nbytes for block, nbytes in zip(blocks, sizes, strict=True) if block.step == steps[-1]
            )
            groups.append(StepGroup(len(steps), total_s, last_s, first, len(loads)))
        return TileWork(tuple(loads), tuple(groups), m * n * self._itemsize)


# ---- what a simulation returns ---------------------------------------------------------------------------------------


class TileEvent(NamedTuple):
    """An event of a tile: it was ``given`` to a worker, its first multiplication had ``begun``, or it was
    ``stored``."""

    time_s: float
    worker: int
    what: str
    tile: Tile


@dataclass
class SimulatedWorker:
    """What a worker did in a run. ``in_bytes`` bytes were copied to the worker's slots; ``received_bytes`` of them came
    from storage or from other workers. ``out_bytes`` are the bytes of the worker's tiles of C. ``spent_s`` has the
    seconds that the worker spent for each of the causes in SPENT."""

    tiles: list[Tile] = field(default_factory=list)
    in_bytes: int = 0
    received_bytes: int = 0
    out_bytes: int = 0
    spent_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SPENT, 0.0))

    @property
    def busy_s(self) -> float:
        """The seconds in which the worker computed."""
        return self.spent_s["compute"]

    @property
    def idle_s(self) -> float:
        """The seconds in which the worker had no tile left."""
        return self.spent_s["balance"]

    @property
    def waiting_s(self) -> float:
        """The seconds in which the worker had a tile, or waited to get one, and could not compute."""
        return sum(seconds for what, seconds in self.spent_s.items() if what not in ("compute", "balance"))


@dataclass(frozen=True)
class Simulation:
    """The predicted run of ``plan``: its time, what each worker did, and when each tile was given, begun and stored."""

    plan: StreamPlan
    total_s: float
    workers: tuple[SimulatedWorker, ...]
    events: tuple[TileEvent, ...]

    @property
    def shares(self) -> dict[str, float]:
        """The fraction of all workers' time for each of the causes in SPENT; the sum is 1."""
        whole = self.total_s * len(self.workers) or 1.0
        return {what: sum(worker.spent_s[what] for worker in self.workers) / whole for what in SPENT}

    @property
    def binds(self) -> str:
        """What limits the speed: "compute" if at least half of the time is spent on computing, otherwise the cause that
        takes most of the remaining time."""
        shares = self.shares
        return "compute" if shares["compute"] >= 0.5 else self.loss

    @property
    def loss(self) -> str:
        """The cause that takes most of the time in which workers do not compute."""
        shares = self.shares
        return max((what for what in SPENT if what != "compute"), key=shares.__getitem__)

    @property
    def moved_bytes(self) -> int:
        """The bytes copied into and out of the memories in which blocks are multiplied."""
        return sum(worker.in_bytes + worker.out_bytes for worker in self.workers)

    @property
    def least_bytes(self) -> int:
        """A lower bound on the bytes that must be moved to compute these workers' tiles, in whatever order."""
        regions = tuple(tuple(sorted(worker.tiles)) for worker in self.workers if worker.tiles)
        return replace(self.plan, regions=regions).least_bytes


# ---- the simulation --------------------------------------------------------------------------------------------------

#: The most groups of steps that are simulated; with more tiles there is one group for each tile.
MOST_GROUPS = 100_000


def simulate_cluster(
    plan: StreamPlan,
    rates: Rates | Sequence[Rates],
    *,
    workers: int = 0,
    where: str = "storage",
    task_s: float = 1e-3,
    message_s: float = 2e-4,
    start_s: float = 0.0,
    in_flight: int = TILES_AT_ONCE,
    groups: int = MOST_GROUPS,
) -> Simulation:
    """Simulate the run of ``plan`` with one worker for each of its regions. ``rates`` is one object for all workers, or
    a list with one object for each worker. If ``workers`` is larger than the number of regions, the additional workers
    have no tiles of their own and take tiles from the other regions.

    ``rates`` are those of a worker that runs alone, in the form that ``plan_stream`` needs. Of these rates,
    ``most_read_bytes`` (``read_bytes`` if it is None) and ``write_bytes`` are the storage's rates for all workers
    together. ``where`` says where the operands are. If ``where`` is "workers", the workers own the blocks: the blocks
    of a row of A belong in turn to the workers whose regions need the row, and the blocks of a column of B belong in
    turn to those that need the column. When workers own the blocks, a worker sends and receives at ``read_bytes``, its
    own blocks need no transfer, and its tiles of C stay in its memory.

    The scheduler needs ``task_s`` seconds for each tile, and a message takes ``message_s``. Workers request their first
    tiles at ``start_s``. At most ``groups`` groups of steps are simulated. If ``groups`` is at least the number of
    steps, the times of every block are simulated.

    Raises UsageError for an unknown ``where``, for a wrong number of rates, and for a plan without steps.
    """
    if where not in WHERE:
        raise UsageError(f"where {where!r}: must be {' or '.join(WHERE)}")
    rates_of_all = [rates] * max(workers, len(plan.regions)) if isinstance(rates, Rates) else list(rates)
    if len(rates_of_all) < len(plan.regions):
        raise UsageError(
            f"rates: the plan has {len(plan.regions)} regions, got the rates of {len(rates_of_all)} workers"
        )
    if not plan.grid.steps or not plan.tiles:
        raise UsageError("plan: has no steps, so that there is nothing to simulate")
    overheads = _Overheads(task_s=task_s, message_s=message_s, start_s=start_s)
    run = _Run(plan, rates_of_all, overheads, at_workers=where == "workers", in_flight=in_flight, groups=groups)
    return run.simulated()


class _Overheads(NamedTuple):
    """The fixed times in seconds: of the scheduler for a tile, of a message, and until workers request their first
    tiles."""

    task_s: float
    message_s: float
    start_s: float


class _Run:
    """The state of a simulation: its clock, the events to come, and the workers."""

    def __init__(
        self,
        plan: StreamPlan,
        rates: Sequence[Rates],
        overheads: _Overheads,
        *,
        at_workers: bool,
        in_flight: int,
        groups: int,
    ) -> None:
        self._plan, self._at_workers, self._in_flight, self._overheads = plan, at_workers, in_flight, overheads
        self._now, self._scheduler_free_s, self._event_number = 0.0, 0.0, itertools.count()
        #: A heap of (time, number, function, its arguments); the number decides ties.
        self._coming: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._events: list[TileEvent] = []
        if at_workers:
            self._reading, self._writing = SharedRate(sum(each.read_bytes for each in rates)), SharedRate(math.inf)
        else:
            self._reading = SharedRate(max(each.most_read_bytes or each.read_bytes for each in rates))
            self._writing = SharedRate(max(each.write_bytes for each in rates))
        regions = [*plan.regions, *[()] * (len(rates) - len(plan.regions))]
        self._queue = Queue(regions, lambda: self._now)
        self._histories = Histories(plan.grid, plan.slots)
        self._cutter = TileCutter(plan.grid, plan.itemsize, max(1, min(plan.grid.steps, groups // len(plan.tiles))))
        self._workers = [
            WorkerStages(
                number,
                rates[number],
                region,
                self._histories.begin(_relative(region, region[0] if region else Tile(0, 0))),
            )
            for number, region in enumerate(regions)
        ]
        #: For each row of blocks of A, and each column of blocks of B, the workers whose regions need it. Its blocks are
        #: divided among these workers.
        self._owners: tuple[dict[int, list[int]], dict[int, list[int]]] = ({}, {})
        for axis, number in itertools.product((0, 1), range(len(plan.regions)) if at_workers else ()):
            for strip in sorted({tile[axis] for tile in plan.regions[number]}):
                self._owners[axis].setdefault(strip, []).append(number)

    def simulated(self) -> Simulation:
        """Run the simulation until no event is left."""
        for _ in range(self._in_flight):
            for worker in self._workers:
                self._at(self._overheads.start_s, self._request_tile, worker)
        while True:
            next_s = self._coming[0][0] if self._coming else math.inf
            self._now = min(next_s, self._reading.next_s, self._writing.next_s)
            if self._now == math.inf:
                break
            if self._reading.next_s == self._now:
                for worker in self._reading.ended(self._now):
                    self._received(worker)
            elif self._writing.next_s == self._now:
                for worker in self._writing.ended(self._now):
                    self._bytes_written(worker)
            else:
                _, _, call, arguments = heappop(self._coming)
                call(*arguments)
        total_s = max(worker.stored[-1][0] for worker in self._workers if worker.stored)
        for worker in self._workers:
            end_s, contention = worker.stored[-1] if worker.stored else (0.0, 0.0)
            worker.add_copy_wait(end_s - worker.free_s if worker.stored else 0.0, contention)
            worker.done.spent_s["balance"] = total_s - end_s
        return Simulation(self._plan, total_s, tuple(worker.done for worker in self._workers), tuple(self._events))

    def _at(self, time_s: float, call: Callable[..., None], *arguments: Any) -> None:
        heappush(self._coming, (time_s, next(self._event_number), call, arguments))

    def _note(self, worker: WorkerStages, what: str, tile: Tile) -> None:
        self._events.append(TileEvent(self._now, worker.number, what, tile))

    # ---- the scheduler ------------------------------------------------------------------------------------------------

    def _request_tile(self, worker: WorkerStages) -> None:
        self._at(self._now + self._overheads.message_s, self._request_arrived, worker)

    def _request_arrived(self, worker: WorkerStages) -> None:
        self._scheduler_free_s = max(self._now, self._scheduler_free_s) + self._overheads.task_s
        self._at(self._scheduler_free_s, self._assign_tile, worker)

    def _assign_tile(self, worker: WorkerStages) -> None:
        taken = self._queue.take(worker.number)
        if taken is not None:
            self._note(worker, "given", taken[0])
            self._at(self._now + self._overheads.message_s, self._tile_arrived, worker, *taken)

    def _tile_arrived(self, worker: WorkerStages, tile: Tile, later: Sequence[Tile]) -> None:
        """A tile arrives at its worker: its pieces are appended to the lists of the stages."""
        first_load, (history, corner) = len(worker.loads), (worker.history, worker.corner)
        worker.history = self._histories.add(
            history, _relative([tile], corner)[0], _relative(later[:TILES_ANNOUNCED], corner)
        )
        size = self._plan.grid.size(tile)
        own_a, own_b = (self._ownership(worker.number, axis, tile[axis]) for axis in (0, 1))
        work = self._cutter.cut(worker.history, size, worker.rates, own_a, own_b)
        tile_index = len(worker.works)
        worker.done.tiles.append(tile)
        worker.works.append(ReceivedWork(work, self._now))
        worker.loads += work.loads
        worker.groups += [
            QueuedGroup(group, tile_index, first_load + group.first, first_load + group.last) for group in work.groups
        ]
        self._load(worker)
        self._compute(worker)

    def _ownership(self, number: int, axis: int, strip: int) -> tuple[int, int]:
        """How many workers own this strip of blocks, and which of them this one is; (1, −1) if it owns no block of it."""
        owners = self._owners[axis].get(strip, [])
        return (len(owners), owners.index(number)) if number in owners else (1, -1)

    # ---- the three stages ---------------------------------------------------------------------------------------------

    def _load(self, worker: WorkerStages) -> None:
        if worker.load_began is not None or len(worker.loaded) == len(worker.loads):
            return
        piece = worker.loads[len(worker.loaded)]
        ready_s = self._end_of_step(worker, piece.after_multiply)
        if ready_s > self._now:  # inf: called again when that is known
            if worker.wake_s != ready_s < math.inf:
                worker.wake_s = ready_s
                self._at(ready_s, self._load, worker)
            return
        worker.load_began = self._now
        self._at(self._now + piece.blocks * worker.rates.latency_s, self._transfer, worker, piece)

    def _transfer(self, worker: WorkerStages, piece: LoadPiece) -> None:
        if piece.received and min(worker.rates.read_bytes, self._reading.total) < math.inf:
            self._reading.start(self._now, piece.received, worker.rates.read_bytes, worker)
        else:
            self._received(worker)

    def _received(self, worker: WorkerStages) -> None:
        """Handle the arrival of the bytes of a load. The load ends when its bytes are also copied to slots, which
        happens at the same time."""
        assert worker.load_began is not None
        piece, rates = worker.loads[len(worker.loaded)], worker.rates
        latency_s, copy_s = piece.blocks * rates.latency_s, piece.nbytes / rates.in_bytes
        alone_s = latency_s + max(copy_s, piece.received / rates.read_bytes)
        self._at(max(self._now, worker.load_began + latency_s + copy_s), self._loaded, worker, alone_s)

    def _loaded(self, worker: WorkerStages, alone_s: float) -> None:
        assert worker.load_began is not None
        piece = worker.loads[len(worker.loaded)]
        worker.done.in_bytes += piece.nbytes
        worker.done.received_bytes += piece.received
        worker.loaded.append(Done(self._now, self._contention_share(worker.load_began, alone_s)))
        worker.load_began = None
        self._load(worker)
        self._compute(worker)

    def _contention_share(self, began: float, alone_s: float) -> float:
        """The share of the time since ``began`` by which other workers' copies delayed this one, which would have taken
        ``alone_s``. If operands are on the workers, only links limit copies, and the share is 0."""
        took_s = self._now - began
        return max(0.0, 1 - alone_s / took_s) if took_s > 0 and not self._at_workers else 0.0

    def _compute(self, worker: WorkerStages) -> None:
        """Begin the next group if it is ready; and if all blocks of the current group have arrived, schedule its end."""
        if worker.computed == len(worker.groups) or worker.group_end_known:
            return
        group, tile_index, first, last = worker.groups[worker.computed]
        if worker.group_began is None:
            after_store = tile_index - self._plan.slots[2]
            if len(worker.loaded) < first or len(worker.stored) <= after_store:
                return
            worker.group_began, start_s = self._now, self._overheads.start_s
            if worker.computed == 0 or worker.groups[worker.computed - 1].tile_index != tile_index:
                self._note(worker, "begun", worker.done.tiles[tile_index])
                worker.add_idle_time(self._now, start_s, worker.works[tile_index].at_s, first, after_store)
            else:
                worker.add_idle_time(self._now, start_s, 0.0, first, -1)
        if len(worker.loaded) < last:
            return
        copied_s = worker.rates.copy_s * worker.works[tile_index - 1].work.out_bytes if worker.follows_a_tile else 0.0
        seconds = group.seconds + copied_s
        end_s = worker.group_began + seconds
        if last > first:
            end_s = max(end_s, worker.loaded[last - 1].at_s + group.last_s)
            worker.add_copy_wait(end_s - worker.group_began - seconds, worker.loaded[last - 1].contention)
        worker.done.spent_s["compute"] += seconds
        worker.spans.append((worker.group_began, end_s))
        worker.group_end_known = True
        self._at(end_s, self._multiplied, worker)
        self._load(worker)

    def _multiplied(self, worker: WorkerStages) -> None:
        worker.group_began, worker.group_end_known, worker.free_s = None, False, self._now
        worker.computed += 1
        if worker.computed == len(worker.groups) or worker.groups[worker.computed].tile_index != worker.computed_tiles:
            worker.computed_tiles += 1
            self._store(worker)
        self._compute(worker)

    def _end_of_step(self, worker: WorkerStages, multiply: int) -> float:
        """When multiplication number ``multiply`` ends, if all steps of its group take the same time; inf if that is not
        known yet."""
        if multiply < 0:
            return 0.0
        tile_index, step_of_tile = divmod(multiply, self._plan.grid.steps)
        group_of_tile, step_of_group = divmod(step_of_tile, self._cutter.steps_a_group)
        groups_a_tile = math.ceil(self._plan.grid.steps / self._cutter.steps_a_group)
        number = tile_index * groups_a_tile + group_of_tile
        if number >= len(worker.spans):
            return math.inf
        start_s, end_s = worker.spans[number]
        return start_s + (end_s - start_s) * (step_of_group + 1) / worker.groups[number].group.steps

    def _store(self, worker: WorkerStages) -> None:
        if worker.store_began is not None or len(worker.stored) == worker.computed_tiles:
            return
        worker.store_began = self._now
        nbytes, rates = worker.works[len(worker.stored)].work.out_bytes, worker.rates
        if min(rates.out_bytes, self._writing.total) == math.inf:
            self._at(self._now, self._bytes_written, worker)
        elif self._at_workers:
            self._at(self._now + nbytes / rates.out_bytes, self._bytes_written, worker)
        else:
            self._writing.start(self._now, nbytes, rates.out_bytes, worker)

    def _bytes_written(self, worker: WorkerStages) -> None:
        """Handle the end of the transfer of a tile's bytes. The tile is stored ``latency_s`` later."""
        self._at(self._now + worker.rates.latency_s, self._stored, worker)

    def _stored(self, worker: WorkerStages) -> None:
        assert worker.store_began is not None
        tile_index = len(worker.stored)
        nbytes = worker.works[tile_index].work.out_bytes
        alone_s = nbytes / worker.rates.out_bytes + worker.rates.latency_s
        worker.stored.append(Done(self._now, self._contention_share(worker.store_began, alone_s)))
        worker.store_began = None
        worker.done.out_bytes += nbytes
        self._note(worker, "stored", worker.done.tiles[tile_index])
        self._request_tile(worker)
        self._store(worker)
        self._compute(worker)


def _relative(tiles: Sequence[Tile], corner: Tile) -> list[Tile]:
    """The positions of tiles relative to a corner."""
    return [Tile(tile.i - corner.i, tile.j - corner.j) for tile in tiles]


# ---- stages ----------------------------------------------------------------------------------------------------------
# The three stages of a simulated worker (load, multiply, store), and what its time is spent on.


class ReceivedWork(NamedTuple):
    """The work of a tile, and the time at which the worker received the tile."""

    work: TileWork
    at_s: float


class QueuedGroup(NamedTuple):
    """A group of steps that waits to be computed: its tile as an index into the worker's tiles, and the numbers of load
    pieces that must be complete before its first and its last step."""

    group: StepGroup
    tile_index: int
    first: int
    last: int


class Done(NamedTuple):
    """The end of a copy, and the fraction of its time that is due to other workers' use of the storage."""

    at_s: float
    contention: float


class WorkerStages:
    """The three stages of a worker: what is queued for each stage, and what is done. Load pieces are numbered
    consecutively over all tiles."""

    def __init__(self, number: int, rates: Rates, region: Sequence[Tile], history: History) -> None:
        self.number, self.rates, self.done, self.history = number, rates, SimulatedWorker(), history
        self.corner = region[0] if region else Tile(0, 0)
        self.works: list[ReceivedWork] = []
        self.loads: list[LoadPiece] = []
        self.groups: list[QueuedGroup] = []
        self.loaded: list[Done] = []
        #: The times at which each group began and ended.
        self.spans: list[tuple[float, float]] = []
        self.stored: list[Done] = []
        #: The times at which the current load, group and store began; None for an idle stage.
        self.load_began: float | None = None
        self.group_began: float | None = None
        self.store_began: float | None = None
        #: Whether the end of the current group has been scheduled.
        self.group_end_known = False
        self.computed, self.computed_tiles, self.free_s, self.wake_s = 0, 0, 0.0, -1.0

    @property
    def follows_a_tile(self) -> bool:
        """Whether the current group is the first of its tile and follows another tile. If the group follows another
        tile, the store of that tile takes processor time while the group is computed."""
        return self.computed > 0 and self.groups[self.computed - 1].tile_index != self.groups[self.computed].tile_index

    def add_copy_wait(self, seconds: float, contention: float) -> None:
        """Add the time that the worker waited for a copy. ``contention`` is the fraction of this time that is due to
        other workers' copies."""
        self.done.spent_s["storage"] += seconds * contention
        self.done.spent_s["link"] += seconds * (1 - contention)

    def add_idle_time(self, now: float, start_s: float, arrived_s: float, first: int, after_store: int) -> None:
        """Divide the idle time since ``free_s`` among its causes. Until the tile arrived, the causes are the start of
        the cluster (until ``start_s``) and then the scheduler. After the tile arrived, the cause is the copy that ended
        last: load piece ``first`` − 1 or store ``after_store`` (−1: none)."""
        free_s, spent = self.free_s, self.done.spent_s
        if arrived_s > free_s:
            starting_s = max(0.0, min(start_s, arrived_s) - free_s)
            spent["start"] += starting_s
            spent["scheduler"] += arrived_s - free_s - starting_s
            free_s = arrived_s
        loaded = self.loaded[first - 1] if first else Done(0.0, 0.0)
        stored = self.stored[after_store] if after_store >= 0 else Done(0.0, 0.0)
        self.add_copy_wait(now - free_s, max(loaded, stored).contention)


# ---- sharing ---------------------------------------------------------------------------------------------------------
# A rate that many transfers share: a storage that all workers read, or the links of all owners of blocks.


class SharedRate:
    """A rate of ``total`` bytes a second that all transfers under way share equally. A transfer cannot exceed its own
    limit; the part of the rate that limited transfers leave is divided among the others (max-min fairness).

    Transfers with equal limits always have equal rates. So two things are stored for each limit: the bytes that a
    transfer would have received if it had run since the beginning, and a heap of the byte counts at which transfers
    end. Beginning or ending a transfer among T transfers with L different limits takes a time of O(L + log T).

    >>> storage = SharedRate(10.0)
    >>> storage.start(0.0, 20.0, limit=8.0, token="a"), storage.start(0.0, 20.0, limit=2.0, token="b")
    (None, None)
    >>> storage.next_s, storage.ended(storage.next_s), storage.next_s
    (2.5, ['a'], 10.0)
    """

    def __init__(self, total: float) -> None:
        self.total, self._now, self._started = total, 0.0, 0
        self._limits: dict[float, _Limit] = {}
        #: The time at which the next transfer ends if no other begins before; inf if no transfer is under way.
        self.next_s = math.inf

    def start(self, now: float, nbytes: float, limit: float, token: Any) -> None:
        """Begin a transfer; ``ended`` returns ``token`` when the transfer ends."""
        self._advance(now)
        each = self._limits.setdefault(limit, _Limit(limit))
        self._started += 1
        heappush(each.ends, (each.received + nbytes, self._started, token))
        self._divide_rate()

    def ended(self, now: float) -> list[Any]:
        """The tokens of the transfers that end at ``now``, in the order in which they began; ``now`` must be
        ``next_s``."""
        self._advance(now)
        found: list[tuple[int, Any]] = []
        for each in self._limits.values():
            while each.ends and (each.ends[0][0] <= each.received * (1 + 1e-12) or each.next_s(now) <= now):
                _, number, token = heappop(each.ends)
                found.append((number, token))
        self._limits = {limit: each for limit, each in self._limits.items() if each.ends}
        self._divide_rate()
        return [token for _, token in sorted(found)]

    def _advance(self, now: float) -> None:
        for each in self._limits.values():
            each.received += each.rate * (now - self._now)
        self._now = now

    def _divide_rate(self) -> None:
        """Divide ``total`` among the transfers: those of the lowest limit first, each gets its limit or an equal share."""
        left, transfers = self.total, sum(len(each.ends) for each in self._limits.values())
        for each in sorted(self._limits.values(), key=lambda each: each.limit):
            each.rate = min(each.limit, left / transfers)
            left -= each.rate * len(each.ends) if math.isfinite(left) else 0.0
            transfers -= len(each.ends)
        self.next_s = min((each.next_s(self._now) for each in self._limits.values()), default=math.inf)


class _Limit:
    """The transfers of one limit: their rate, the bytes that each has received since the first began, and their ends."""

    def __init__(self, limit: float) -> None:
        self.limit, self.rate, self.received = limit, 0.0, 0.0
        self.ends: list[tuple[float, int, Any]] = []

    def next_s(self, now: float) -> float:
        return now + max(0.0, self.ends[0][0] - self.received) / self.rate
