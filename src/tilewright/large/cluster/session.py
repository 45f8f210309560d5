"""Defines the code that runs on a worker of a cluster. For each product and device, a session computes the tiles that
tasks give to it.

Each tile is one task of Dask. While a task waits for its tile, it releases its thread of the worker's pool
(``secede``), so that the next task can start. Because several tasks run at once, the session can store one tile,
compute the next tile and load blocks of a third tile at the same time. A session without tiles for IDLE_S ends, because
its client may be gone.

The client submits the tasks ``worker_facts``, ``compute_tile`` and ``end_sessions``, in ``placement`` and ``feed``.
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
from ..streaming.run.computation import CountedSource, SharedCounter, TileFlusher
from ..streaming.run.executor import RunningSchedule
from .order import ChosenKernel, PlannedOrder, ProductOrder, RemotePlace, TaskFailure, TileReport, WorkerFacts

#: SHARE of a worker's memory is for blocks, or for tasks on Dask arrays: chunks, and data in transit, need the rest. The
#: whole process may take MOST_SHARE: above 70 % Dask moves data to the disk, and above 80 % it starts no task. Blocks always
#: get LEAST_SHARE.
SHARE, MOST_SHARE, LEAST_SHARE = 0.4, 0.7, 0.1
#: Seconds without a tile after which a session ends.
IDLE_S = 20.0
#: Seconds that ``end_sessions`` waits for stopped sessions to end.
END_S = 5.0

#: The sessions that have not ended.
_sessions: set[Session] = set()
#: The keys of the last products that ended: a task of one may still arrive.
_ended_keys: collections.deque[str] = collections.deque(maxlen=256)
_lock = threading.Lock()


# ---- tasks -----------------------------------------------------------------------------------------------------------


def worker_facts(order: ProductOrder) -> WorkerFacts | TaskFailure:
    """Return the devices, the memory limits and the measured rates of this worker for a product. ``worker_facts`` opens
    the operands and measures rates with the settings of the product.

    Returns a TaskFailure if an operand cannot be read or is not the file that the client opened.
    """
    from distributed import get_worker, secede

    worker = get_worker()
    secede()  # a chunk that another worker has lost may have to be computed by a thread of the pool
    try:
        return _measured_facts(order, worker)
    except (TilewrightError, OSError, MemoryError) as error:
        return TaskFailure.of(error)


def _measured_facts(order: ProductOrder, worker: Any) -> WorkerFacts:
    threads, limit = worker.state.nthreads, worker.memory_manager.memory_limit
    with contextlib.ExitStack() as stack:
        stack.enter_context(use_threads(threads))
        sources = _open_operands(order, stack, worker.address)
        placement = _place_product(order, sources, threads, limit)
        a, b = sources
        rates = placement.rates(a, b, order.target, dtype_of_blocks(placement.choice.compute))
        # Again, because measuring has compiled code, whose memory is not available to blocks.
        placement = _place_product(order, sources, threads, limit)
    return WorkerFacts(
        worker=worker.address,
        host=socket.gethostname(),
        version=tilewright.__version__,
        devices=tuple(placement.names),
        chosen=ChosenKernel.of(placement.choice),
        kernel=placement.kernel_fact,
        room=placement.room,
        rates=rates,
        memory=limit or available_memory() or 0,
        threads=threads,
        cores=machine().usable_cores,
    )


def compute_tile(work: PlannedOrder, tile: Tile, later: Sequence[Tile], device: str) -> TileReport | TaskFailure:
    """Compute a tile in this worker's session of the product, after the tiles that the session was given before."""
    from distributed import get_worker, secede

    worker = get_worker()
    report = None
    try:
        while report is None:  # the session that was found may end before the tile is added to it
            report = _find_or_start_session(work, device, worker).add(tile, later)
        secede()
        return report.result()
    except Stopped:
        return TaskFailure.of(ClusterError("the product has ended"))
    except (TilewrightError, OSError, MemoryError) as error:
        return TaskFailure.of(error)


async def end_sessions(key: str) -> None:
    """End all sessions of a product in this process, and return when they have ended, at the latest after END_S.

    Unfinished tiles are abandoned. This runs on the worker's event loop, because other tasks may use all threads.
    """
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
    """The threads and the memory for blocks that one device of a worker uses for one product."""

    def __init__(self, work: PlannedOrder, place: RemotePlace, threads: int, limit: int | None) -> None:
        self._work, self._place, self._threads, self._limit = work, place, threads, limit
        #: The product and the place.
        self.key = work.order.key, place
        self._read = SharedCounter()
        self._tiles = ReturnedTiles(work.plan.grid, work.order.dtype) if work.attach is None else None
        self._changed = threading.Lock()
        #: The tiles that are not finished; for each the future of its report, and when it was added.
        self._pending: dict[Tile, tuple[Future[TileReport], float]] = {}
        #: None while the operands are opened; the tiles that are added until then wait in ``_early``.
        self._execution: RunningSchedule | None = None
        self._early: list[tuple[Tile, Sequence[Tile]]] = []
        self._idle_since = time.monotonic()
        self._error: BaseException | None = None
        #: Set when the product's threads have ended, and the operands and the result are closed.
        self.ended = threading.Event()
        # The thread runs in a copy of the task's context: opening Dask operands needs the task's worker.
        run = functools.partial(contextvars.copy_context().run, self._run)
        threading.Thread(target=run, name="tilewright session", daemon=True).start()
        threading.Thread(target=self._end_when_idle, name="tilewright idle", daemon=True).start()

    def add(self, tile: Tile, later: Sequence[Tile]) -> Future[TileReport] | None:
        """Add a tile, and return the future of its report. Returns None if the session has ended.

        A tile that is added twice is computed once.
        """
        with self._changed:
            if self._error is not None:
                return None
            if tile not in self._pending:
                self._pending[tile] = Future(), time.monotonic()
                if self._execution is None:
                    self._early.append((tile, later))
                else:
                    self._execution.add(tile, later)
            return self._pending[tile][0]

    @property
    def takes_tiles(self) -> bool:
        """Whether tiles can be added to the session."""
        return self._error is None

    def stop(self, error: BaseException) -> None:
        """End the session when the operations that are in progress have ended. All unfinished tiles fail with
        ``error``.
        """
        with self._changed:
            self._error = self._error or error
            pending, self._pending = self._pending, {}
            execution = self._execution
        for report, _ in pending.values():
            report.set_exception(error)
        if execution is not None:
            execution.stop(error)

    def _run(self) -> None:
        try:
            with contextlib.ExitStack() as stack:
                execution, flusher = self._open_execution(stack)
                try:
                    if self._start_early_tiles(execution):
                        execution.run()
                finally:
                    flusher.close()
        except BaseException as error:  # every tile's task raises it
            self.stop(error)
        finally:
            with _lock:
                _sessions.discard(self)
            self.ended.set()

    def _open_execution(self, stack: contextlib.ExitStack) -> tuple[RunningSchedule, TileFlusher]:
        work, place = self._work, self._place
        sources = _open_operands(work.order, stack, place.worker)
        placement = _place_product(work.order, sources, self._threads, self._limit, place.device)
        if placement.kernel_fact != work.kernel:
            raise ClusterError(f"{place} would multiply by {placement.kernel_fact}, not by {work.kernel}")
        sink: Any = self._tiles or _open_result(work, stack, place.worker)
        a, b = (CountedSource(source, self._read.add) for source in sources)
        (place_runner,) = placement.places(work.plan, a, b, sink, Events())
        stack.callback(place_runner.close)
        flusher = TileFlusher(sink.flush, self._on_tile_flushed, self.stop)
        schedule = Schedule(work.plan.grid, work.plan.slots)
        return RunningSchedule(schedule, place_runner, flusher.stored, self.stop), flusher

    def _start_early_tiles(self, execution: RunningSchedule) -> bool:
        """Add the early tiles; later ones are added to ``execution`` directly. False if the session was stopped
        meanwhile."""
        with self._changed:
            if self._error is not None:
                return False
            for tile, later in self._early:
                execution.add(tile, later)
            self._execution = execution
            return True

    def _on_tile_flushed(self, tile: Tile) -> None:
        """Complete the report of a tile, for which its task waits."""
        elements = None if self._tiles is None else self._tiles.take(tile)
        with self._changed:
            report, begun = self._pending.pop(tile, (None, 0.0))
            self._idle_since = time.monotonic()
        if report is not None:
            seconds = time.monotonic() - begun
            report.set_result(TileReport(tile, self._place, self._read.take(), seconds, elements))

    def _end_when_idle(self) -> None:
        """End the session when it had no tile for IDLE_S, because its client may be gone."""
        while not self.ended.wait(IDLE_S / 4):
            with self._changed:
                if not self._pending and time.monotonic() > self._idle_since + IDLE_S:
                    self._error = self._error or Stopped()  # set under the lock, so that no tile is added any more
            if self._error is not None:
                self.stop(self._error)


def _find_or_start_session(work: PlannedOrder, device: str, worker: Any) -> Session:
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


def _open_operands(order: ProductOrder, stack: contextlib.ExitStack, worker: str) -> list[Source]:
    """Open the operands on this worker. Raises ClusterError if one cannot be read, or is not the client's file."""
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


def _open_result(work: PlannedOrder, stack: contextlib.ExitStack, worker: str) -> Any:
    """Open the unfinished result, which the client began. Raises ClusterError if it cannot be written."""
    assert work.attach is not None
    try:
        writer = work.attach()
    except FileError as error:
        raise ClusterError(f"worker {worker} cannot write the result: {error}") from None
    stack.callback(writer.close)
    return writer


def _place_product(
    order: ProductOrder, sources: Sequence[Source], threads: int, limit: int | None, device: str | None = None
) -> Placement:
    """Where this worker multiplies, with room for blocks as its memory limit allows."""
    options = order.options
    memory = options.memory if options.memory is not None else _block_memory(limit, order.neighbours)
    worker_options = dataclasses.replace(options, memory=memory, device=device or options.device)
    return place_product(sources, order.dtype, worker_options, threads)


def _block_memory(limit: int | None, neighbours: int) -> int:
    """Bytes that blocks may take: a share of the limit, and less if the process has taken much already."""
    if not limit:
        return int(SHARE * (available_memory() or 1 << 30) / neighbours)
    # For several workers in one process the resident size is that of all of them; then blocks get the least share.
    return max(int(LEAST_SHARE * limit), min(int(SHARE * limit), int(MOST_SHARE * limit) - _resident()))


def _resident() -> int:
    """Bytes of memory that this process has now."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * (machine().page_bytes or 4096)
    return 0


# ---- returned --------------------------------------------------------------------------------------------------------
# Tiles of a product that no worker writes: each goes back to the client with the answer of its task.


class ReturnedTiles:
    """A ``Sink`` for a product whose workers return the tiles. Each tile stays in the ``ReturnedTiles`` until its task
    takes it; a tile may be written in pieces.
    """

    #: Whether the page cache is told to drop written bytes; never here.
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
        """Do nothing, because the tiles are in memory."""

    def take(self, tile: Tile) -> np.ndarray[Any, Any]:
        """Remove a tile from the ``ReturnedTiles``, and return the elements of the tile."""
        return self._tiles.pop(tile)
