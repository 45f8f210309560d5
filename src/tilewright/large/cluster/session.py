"""What runs on a worker: one session for each product and device, to which tiles are added while it computes others.

Each tile is a task of Dask, which waits for its tile without holding a thread of the worker's pool, so that the next task
can begin: then the first blocks of that tile are loaded while the one before is still computed, and the one before that is
written. A session that gets no tile for a while ends by itself: nobody may be left to end it.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import contextvars
import dataclasses
import functools
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

import tilewright

from ...cpu.runtime.stop import Stopped
from ...errors import ClusterError, FileError, TilewrightError
from ...host.limits import use_threads
from ...host.machine import available_memory, machine
from ...product.precision import dtype_of_blocks
from ..files import Source
from ..streaming.places.place import Events
from ..streaming.places.places import Placement, place_product
from ..streaming.plan.grid import Grid, Tile
from ..streaming.plan.schedule import Schedule
from ..streaming.run.computation import CountedSource, Durable, SharedCounter
from ..streaming.run.executor import RunningSchedule
from .order import ChosenKernel, PlannedOrder, ProductOrder, RemotePlace, TaskFailure, TileReport, WorkerFacts

#: SHARE of a worker's memory is for blocks, or for tasks on Dask arrays: chunks, and what is being moved, need the rest. The
#: whole process may take MOST of it: from 70 % on Dask moves data to the disk, and at 80 % it begins no task. Blocks always
#: get LEAST_SHARE.
SHARE, MOST, LEAST_SHARE = 0.4, 0.7, 0.1
#: A session ends when it had no tile for so many seconds.
IDLE_S = 20.0
#: Seconds in which a session that was stopped should have ended.
END_S = 5.0

#: All that have not ended.
_sessions: set[Session] = set()
#: The last products that ended: a task of one may still be on its way.
_ended_keys: collections.deque[str] = collections.deque(maxlen=256)
_lock = threading.Lock()


# ---- tasks -----------------------------------------------------------------------------------------------------------


def look(order: ProductOrder) -> WorkerFacts | TaskFailure:
    """What this worker can do for a product: everything that is opened and measured here is what will be used. A failure,
    with the worker's name, where it cannot read an operand, or reads another one than the client."""
    from distributed import get_worker, secede

    worker = get_worker()
    secede()  # a chunk that another worker has lost may have to be computed here
    try:
        return _facts(order, worker)
    except (TilewrightError, OSError, MemoryError) as error:
        return TaskFailure.of(error)


def _facts(order: ProductOrder, worker: Any) -> WorkerFacts:
    threads, limit = worker.state.nthreads, worker.memory_manager.memory_limit
    with contextlib.ExitStack() as stack:
        stack.enter_context(use_threads(threads))
        sources = _opened(order, stack, worker.address)
        placement = _placed(order, sources, threads, limit)
        a, b = sources
        rates = placement.rates(a, b, order.target, dtype_of_blocks(placement.choice.compute))
        # Again: measuring has compiled, which takes memory that stays.
        placement = _placed(order, sources, threads, limit)
    return WorkerFacts(
        worker.address,
        socket.gethostname(),
        tilewright.__version__,
        tuple(placement.names),
        ChosenKernel.of(placement.choice),
        placement.kernel_fact,
        placement.room,
        rates,
        limit or available_memory() or 0,
        threads,
        machine().usable_cores,
    )


def compute_tile(work: PlannedOrder, tile: Tile, later: Sequence[Tile], device: str) -> TileReport | TaskFailure:
    """Compute a tile in this worker's session of the product, after those that it was given before."""
    from distributed import get_worker, secede

    worker = get_worker()
    report = None
    try:
        while report is None:  # the session that was found may end before the tile is added to it
            report = _session(work, device, worker).add(tile, later)
        secede()
        return report.result()
    except Stopped:
        return TaskFailure.of(ClusterError("the product has ended"))
    except (TilewrightError, OSError, MemoryError) as error:
        return TaskFailure.of(error)


async def end_sessions(key: str) -> None:
    """End all sessions of a product in this process at once, and return when they have ended, at the latest after END_S;
    tiles under way are not finished. It runs on the worker's event loop, because all threads may be taken by other tasks."""
    with _lock:
        _ended_keys.append(key)
        ending = [session for session in _sessions if session.key[0] == key]
    for session in ending:
        session.stop(Stopped())
    until = time.monotonic() + END_S
    while time.monotonic() < until and not all(session.ended.is_set() for session in ending):
        await asyncio.sleep(0.01)


# ---- sessions --------------------------------------------------------------------------------------------------------


class Session:
    """The slots of one place of a worker, and the threads that load, multiply and store."""

    def __init__(self, work: PlannedOrder, place: RemotePlace, threads: int, limit: int | None) -> None:
        self._work, self._place, self._threads, self._limit = work, place, threads, limit
        #: The product and the place.
        self.key = work.order.key, place
        self._read = SharedCounter()
        self._tiles = ReturnedTiles(work.plan.grid, work.order.dtype) if work.attach is None else None
        self._changed = threading.Lock()
        #: The tiles that are not finished; with each its report, and when it was added.
        self._reports: dict[Tile, tuple[Future[TileReport], float]] = {}
        #: None while the operands are opened; the tiles that are added until then wait in ``_early``.
        self._execution: RunningSchedule | None = None
        self._early: list[tuple[Tile, Sequence[Tile]]] = []
        self._idle_since = time.monotonic()
        self._error: BaseException | None = None
        #: Set when all of its threads have ended, and all is closed.
        self.ended = threading.Event()
        # In the context of a task: it opens what Dask holds.
        run = functools.partial(contextvars.copy_context().run, self._run)
        threading.Thread(target=run, name="tilewright session", daemon=True).start()
        threading.Thread(target=self._end_when_idle, name="tilewright idle", daemon=True).start()

    def add(self, tile: Tile, later: Sequence[Tile]) -> Future[TileReport] | None:
        """Add a tile, and return its report; the same tile twice is computed once. None where the session has ended."""
        with self._changed:
            if self._error is not None:
                return None
            if tile not in self._reports:
                self._reports[tile] = Future(), time.monotonic()
                if self._execution is None:
                    self._early.append((tile, later))
                else:
                    self._execution.add(tile, later)
            return self._reports[tile][0]

    @property
    def takes_tiles(self) -> bool:
        """Whether tiles may be added to it."""
        return self._error is None

    def stop(self, error: BaseException) -> None:
        """End it after the pieces under way; all tiles that it has not finished fail with ``error``."""
        with self._changed:
            self._error = self._error or error
            reports, self._reports = self._reports, {}
            execution = self._execution
        for report, _ in reports.values():
            report.set_exception(error)
        if execution is not None:
            execution.stop(error)

    def _run(self) -> None:
        try:
            with contextlib.ExitStack() as stack:
                execution, durable = self._opened(stack)
                try:
                    if self._begun(execution):
                        execution.run()
                finally:
                    durable.close()
        except BaseException as error:  # every tile's task raises it
            self.stop(error)
        finally:
            with _lock:
                _sessions.discard(self)
            self.ended.set()

    def _opened(self, stack: contextlib.ExitStack) -> tuple[RunningSchedule, Durable]:
        work, place = self._work, self._place
        sources = _opened(work.order, stack, place.worker)
        placement = _placed(work.order, sources, self._threads, self._limit, place.device)
        if placement.kernel_fact != work.kernel:
            raise ClusterError(f"{place} would multiply by {placement.kernel_fact}, not by {work.kernel}")
        sink: Any = self._tiles or _attached(work, stack, place.worker)
        a, b = (CountedSource(source, self._read.add) for source in sources)
        (there,) = placement.places(work.plan, a, b, sink, Events())
        stack.callback(there.close)
        durable = Durable(sink.flush, self._finished, self.stop)
        schedule = Schedule(work.plan.grid, work.plan.slots)
        return RunningSchedule(schedule, there, durable.stored, self.stop), durable

    def _begun(self, execution: RunningSchedule) -> bool:
        """Add the early tiles, and take others from now on; False where the session was stopped meanwhile."""
        with self._changed:
            if self._error is not None:
                return False
            for tile, later in self._early:
                execution.add(tile, later)
            self._execution = execution
            return True

    def _finished(self, tile: Tile) -> None:
        elements = None if self._tiles is None else self._tiles.take(tile)
        with self._changed:
            report, begun = self._reports.pop(tile, (None, 0.0))
            self._idle_since = time.monotonic()
        if report is not None:
            seconds = time.monotonic() - begun
            report.set_result(TileReport(tile, self._place, self._read.take(), seconds, elements))

    def _end_when_idle(self) -> None:
        """End it when no tile came for IDLE_S: its client may be gone."""
        while not self.ended.wait(IDLE_S / 4):
            with self._changed:
                if not self._reports and time.monotonic() > self._idle_since + IDLE_S:
                    self._error = self._error or Stopped()  # under the lock: no tile is added any more
            if self._error is not None:
                self.stop(self._error)


def _session(work: PlannedOrder, device: str, worker: Any) -> Session:
    place = RemotePlace(worker.address, device)
    with _lock:
        if work.order.key in _ended_keys:
            raise ClusterError("the product has ended")
        for session in _sessions:
            if session.key == (work.order.key, place) and session.takes_tiles:
                return session
        session = Session(work, place, worker.state.nthreads, worker.memory_manager.memory_limit)
        _sessions.add(session)
        return session


# ---- what a worker opens ---------------------------------------------------------------------------------------------


def _opened(order: ProductOrder, stack: contextlib.ExitStack, worker: str) -> list[Source]:
    """The operands, as this worker sees them."""
    sources = []
    for name, opener, expected in zip("ab", order.openers, order.fingerprints, strict=True):
        try:
            source = opener()
        except TilewrightError as error:
            raise ClusterError(f"worker {worker} cannot read {name}: {error}") from None
        stack.callback(source.close)
        if source.fingerprint() != expected:
            raise ClusterError(
                f"worker {worker} reads another file as {name} than the client: both must reach the same storage"
            )
        sources.append(source)
    return sources


def _attached(work: PlannedOrder, stack: contextlib.ExitStack, worker: str) -> Any:
    assert work.attach is not None
    try:
        writer = work.attach()
    except FileError as error:
        raise ClusterError(f"worker {worker} cannot write the result: {error}") from None
    stack.callback(writer.close)
    return writer


def _placed(
    order: ProductOrder, sources: Sequence[Source], threads: int, limit: int | None, device: str | None = None
) -> Placement:
    """Where this worker multiplies, with room for blocks as its memory limit allows."""
    options = order.options
    memory = options.memory if options.memory is not None else _memory(limit, order.neighbours)
    there = dataclasses.replace(options, memory=memory, device=device or options.device)
    return place_product(sources, order.dtype, there, threads)


def _memory(limit: int | None, neighbours: int) -> int:
    """Bytes that blocks may take: a share of the limit, and less where the process has taken much already."""
    if not limit:
        return int(SHARE * (available_memory() or 1 << 30) / neighbours)
    # Workers that are threads of one process cannot tell their memory apart: they get the least share.
    return max(int(LEAST_SHARE * limit), min(int(SHARE * limit), int(MOST * limit) - _resident()))


def _resident() -> int:
    """Bytes of memory that this process has now."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * (machine().page_bytes or 4096)
    return 0


# ---- returned --------------------------------------------------------------------------------------------------------
# Tiles of a product that no worker writes: each goes back to the client with the answer of its task.


class ReturnedTiles:
    """The sink of a product whose tiles are returned: each waits here for its task. A tile may be written in pieces."""

    forgets = False

    def __init__(self, grid: Grid, dtype: np.dtype[Any]) -> None:
        self._grid, self._dtype = grid, dtype
        self._tiles: dict[Tile, np.ndarray[Any, Any]] = {}
        self._lock = threading.Lock()

    def write(self, rows: slice, columns: slice, block: np.ndarray[Any, Any]) -> None:
        tile = Tile(rows.start // self._grid.bm, columns.start // self._grid.bn)
        with self._lock:
            if tile not in self._tiles:
                self._tiles[tile] = np.empty(self._grid.size(tile), self._dtype)
            elements = self._tiles[tile]
        top, left = rows.start - self._grid.rows(tile.i).start, columns.start - self._grid.columns(tile.j).start
        with np.errstate(over="ignore"):  # blocks may have a wider dtype: what C cannot hold is infinite, as in files
            elements[top : top + block.shape[0], left : left + block.shape[1]] = block

    def flush(self) -> None:
        """Nothing to do: the elements are in memory."""

    def take(self, tile: Tile) -> np.ndarray[Any, Any]:
        """The elements of a tile, which are no longer kept here."""
        return self._tiles.pop(tile)
