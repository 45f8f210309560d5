"""A place made of numbers: blocks take the time that bandwidths and a rate say, on a clock that nobody waits for.

A call only says when its work would begin and end: its kind is free, and what it waits for is over. ``replay`` then does
the work in the order of that time, in slots of real numbers, and refuses whatever a device would have spoilt.
"""

from __future__ import annotations

import itertools
import math
import random
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.large.streaming.plan.cost import Rates
from tilewright.large.streaming.plan.grid import Grid, OperandBlock, Tile
from tilewright.large.streaming.plan.schedule import Load, Multiply, Store
from tilewright.large.streaming.run.executor import Queue

ITEMSIZE = 8


class Violation(AssertionError):  # noqa: N818  # what a device would have done wrong
    """Something that would have spoilt the result, or taken memory that is not there."""


class Failed(RuntimeError):  # noqa: N818
    """The device died."""


@dataclass(frozen=True)
class Device:
    """Operations and bytes a second, seconds for each piece beside, bytes of memory; pieces take up to ``jitter`` more or
    less, and ways in and out get no more than ``bus_bytes`` a second together."""

    flops: float = 1e6
    in_bytes: float = 1e6
    out_bytes: float = 1e6
    latency_s: float = 1e-4
    memory: float = math.inf
    jitter: float = 0.0
    bus_bytes: float = math.inf
    chunk: int = 512

    @property
    def rates(self) -> Rates:
        return Rates(self.flops, self.in_bytes, self.out_bytes, latency_s=self.latency_s)


@dataclass(eq=False)
class Action:
    """A piece of work: what it waits for, how long it takes, and when it begins and ends."""

    kind: str
    piece: Any
    waits: tuple[Action, ...]
    took_s: float
    start_s: float = 0.0
    end_s: float = 0.0


@dataclass
class SimulatedPlace:
    """For ``execute``. With ``fails_at`` that action, counted over all kinds, raises Failed."""

    device: Device
    grid: Grid
    fails_at: int | None = None
    seed: int = 0
    actions: dict[str, list[Action]] = field(default_factory=lambda: {"load": [], "multiply": [], "store": []})
    closed: bool = False

    def __post_init__(self) -> None:
        self._random, self._count, self._lock = random.Random(self.seed), itertools.count(), threading.Lock()

    def load(self, load: Load, after: Action | None) -> Action:
        nbytes = self.grid.elements(load.block) * ITEMSIZE
        return self._act("load", load, self._copy_s(nbytes, self.device.in_bytes), after)

    def multiply(self, step: Multiply, needs: tuple[Action, Action], after: Action | None) -> Action:
        depth = self.grid.depth(step.p)
        operations = 2 * math.prod(self.grid.size(step.tile)) * (depth.stop - depth.start)
        return self._act("multiply", step, self._varied(operations / self.device.flops), *needs, after)

    def store(self, store: Store, after: Action | None) -> Action:
        nbytes = math.prod(self.grid.size(store.tile)) * ITEMSIZE
        return self._act("store", store, self._copy_s(nbytes, self.device.out_bytes), after)

    def close(self) -> None:
        self.closed = True

    @property
    def now_s(self) -> float:
        """When the last multiplication that was asked for is over."""
        return self.actions["multiply"][-1].end_s if self.actions["multiply"] else 0.0

    @property
    def everything(self) -> list[Action]:
        return [action for kind in self.actions.values() for action in kind]

    @property
    def total_s(self) -> float:
        return max((action.end_s for action in self.everything), default=0.0)

    def _act(self, kind: str, piece: Any, took_s: float, *waits: Action | None) -> Action:
        with self._lock:
            if next(self._count) == self.fails_at:
                raise Failed(f"at {piece}")
        before = self.actions[kind][-1:]
        action = Action(kind, piece, tuple(wait for wait in waits if wait is not None), took_s + self.device.latency_s)
        action.start_s = max((other.end_s for other in (*before, *action.waits)), default=0.0)
        action.end_s = action.start_s + action.took_s
        self.actions[kind].append(action)
        return action

    def _copy_s(self, nbytes: int, bytes_per_s: float) -> float:
        """Chunk by chunk, each a little faster or slower."""
        whole, rest = divmod(nbytes, self.device.chunk)
        return sum(self._varied(size / bytes_per_s) for size in [self.device.chunk] * whole + [rest])

    def _varied(self, seconds: float) -> float:
        with self._lock:
            return seconds * (1 + self.device.jitter * self._random.uniform(-1, 1))


def on_a_bus(place: SimulatedPlace) -> float:
    """When all is over where copies in and out share a bus: both at once are slower than one. Actions get these times."""
    device, left = place.device, {kind: list(reversed(actions)) for kind, actions in place.actions.items()}
    both = min(1.0, device.bus_bytes / (device.in_bytes + device.out_bytes))
    running: dict[str, tuple[Action, float]] = {}
    over: set[int] = set()
    now = 0.0
    while running or any(left.values()):
        for kind, due in left.items():
            if kind not in running and due and all(id(wait) in over for wait in due[-1].waits):
                action = due.pop()
                action.start_s, running[kind] = now, (action, action.took_s)
        if not running:
            raise Violation("nothing can begin: everybody waits for somebody")
        speeds = {kind: both if kind != "multiply" and {"load", "store"} <= set(running) else 1.0 for kind in running}
        passed = min(rest / speeds[kind] for kind, (_, rest) in running.items())
        now += passed
        for kind, (action, rest) in list(running.items()):
            if rest / speeds[kind] <= passed:
                action.end_s = now
                over.add(id(action))
                del running[kind]
            else:
                running[kind] = action, rest - passed * speeds[kind]
    return now


# ---- what a device would have done -----------------------------------------------------------------------------------


@dataclass
class _Slot:
    values: np.ndarray
    holds: Any = None
    steps: int = 0
    stored: bool = True
    users: set[int] = field(default_factory=set)


class Replay:
    """Does the actions of a place in the order of their time; ``c`` has the result."""

    def __init__(self, place: SimulatedPlace, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        self._grid, self._memory = place.grid, place.device.memory
        self._operands, self._c = {"a": a, "b": b}, c
        self._slots: dict[tuple[str, int], _Slot] = {}
        self.stored: list[Tile] = []
        self.peak_bytes = 0
        moments = [(action.end_s, 0, action) for action in place.everything]
        moments += [(action.start_s, 1, action) for action in place.everything]
        for _, begins, action in sorted(moments, key=lambda moment: moment[:2]):
            getattr(self, ("_end_" if not begins else "_begin_") + action.kind)(action, action.piece)

    def _slot(self, operand: str, number: int) -> _Slot:
        """Memory for it is taken when it is first used."""
        grid = self._grid
        if (operand, number) not in self._slots:
            shape = {"a": (grid.bm, grid.bk), "b": (grid.bk, grid.bn), "c": (grid.bm, grid.bn)}[operand]
            self._slots[operand, number] = _Slot(np.full(shape, np.nan))
            self.peak_bytes += math.prod(shape) * ITEMSIZE
            if self.peak_bytes > self._memory:
                raise Violation(f"memory: {self.peak_bytes} bytes of {self._memory}")
        return self._slots[operand, number]

    def _begin_load(self, action: Action, load: Load) -> None:
        slot = self._slot(load.block.operand, load.slot)
        if slot.users:
            raise Violation(f"overwritten while it is used: slot {load.slot} by {load.block}")
        slot.holds, slot.values[:] = None, np.nan
        slot.users.add(id(action))

    def _end_load(self, action: Action, load: Load) -> None:
        slot, (rows, columns) = self._slot(load.block.operand, load.slot), self._grid.where(load.block)
        block = self._operands[load.block.operand][rows, columns]
        slot.values[: block.shape[0], : block.shape[1]] = block
        slot.holds = load.block
        slot.users.discard(id(action))

    def _begin_multiply(self, action: Action, step: Multiply) -> None:
        a, b, c = self._operands_of(step)
        for slot, block in ((a, OperandBlock("a", step.tile.i, step.p)), (b, OperandBlock("b", step.p, step.tile.j))):
            if slot.holds != block:
                raise Violation(f"read before it is written: {block} for step {step.p} of {step.tile}: {slot.holds}")
        if step.p == 0:
            if not c.stored or c.users:
                raise Violation(f"reused before it is stored: slot {step.c} by {step.tile}")
            c.holds, c.steps, c.stored = step.tile, 0, False
        if (c.holds, c.steps) != (step.tile, step.p):
            raise Violation(f"steps out of order: {step.p} of {step.tile} after {c.steps} of {c.holds}")
        for slot in (a, b, c):
            slot.users.add(id(action))

    def _end_multiply(self, action: Action, step: Multiply) -> None:
        a, b, c = self._operands_of(step)
        (m, n), depth = self._grid.size(step.tile), self._grid.depth(step.p)
        k = depth.stop - depth.start
        product = a.values[:m, :k] @ b.values[:k, :n]
        c.values[:m, :n] = product if step.p == 0 else c.values[:m, :n] + product
        c.steps += 1
        for slot in (a, b, c):
            slot.users.discard(id(action))

    def _begin_store(self, action: Action, store: Store) -> None:
        slot = self._slot("c", store.c)
        if store.tile in self.stored:
            raise Violation(f"stored twice: {store.tile}")
        if (slot.holds, slot.steps) != (store.tile, self._grid.steps):
            raise Violation(f"stored before it is computed: {store.tile}, {slot.steps} steps of {slot.holds}")
        slot.users.add(id(action))

    def _end_store(self, action: Action, store: Store) -> None:
        slot, (m, n) = self._slot("c", store.c), self._grid.size(store.tile)
        self._c[self._grid.rows(store.tile.i), self._grid.columns(store.tile.j)] = slot.values[:m, :n]
        self.stored.append(store.tile)
        slot.stored = True
        slot.users.discard(id(action))

    def _operands_of(self, step: Multiply) -> tuple[_Slot, _Slot, _Slot]:
        return self._slot("a", step.a), self._slot("b", step.b), self._slot("c", step.c)


def replay(places: Sequence[SimulatedPlace], tiles: Collection[Tile] | None, seed: int = 0) -> None:
    """Of all places: nothing is spoilt, C is what NumPy says, and ``tiles`` (None: any) were stored, each once."""
    grid, rng = places[0].grid, np.random.default_rng(seed)
    a, b = rng.integers(-9, 9, (grid.m, grid.k)).astype(float), rng.integers(-9, 9, (grid.k, grid.n)).astype(float)
    expected, c = a @ b, np.full((grid.m, grid.n), np.nan)
    stored = [tile for place in places for tile in Replay(place, a, b, c).stored]
    if len(stored) != len(set(stored)):
        raise Violation("stored twice, in two places")
    if tiles is not None and set(stored) != set(tiles):
        raise Violation(f"not stored: {set(tiles) - set(stored)}")
    for tile in stored:
        where = grid.rows(tile.i), grid.columns(tile.j)
        if not np.array_equal(c[where], expected[where]):
            raise Violation(f"wrong numbers in {tile}")


# ---- several places, one clock ---------------------------------------------------------------------------------------


def queue_by_time(places: Sequence[SimulatedPlace]) -> Callable[..., Queue]:
    """A Queue whose tiles are taken in the order of the simulated time, whatever the threads' order is."""

    class TimedQueue(Queue):
        def __init__(self, parts: Sequence[Any]) -> None:
            self._now_s = 0.0
            super().__init__(parts, clock=lambda: self._now_s)
            self._turn = threading.Condition()
            self._asking: dict[int, float] = {}
            self._over: set[int] = set()

        def take(self, owner: int) -> tuple[Tile, list[Tile]] | None:
            with self._turn:
                self._asking[owner] = places[owner].now_s
                self._turn.notify_all()
                self._turn.wait_for(lambda: self._is_next(owner))
                self._now_s = self._asking.pop(owner)
                found = super().take(owner)
                if found is None:
                    self._over.add(owner)
                    self._turn.notify_all()
                return found

        def _is_next(self, owner: int) -> bool:
            mine = self._asking[owner], owner
            others = set(range(len(places))) - self._over - {owner}
            return all(other in self._asking and (self._asking[other], other) > mine for other in others)

    return TimedQueue
