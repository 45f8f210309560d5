"""What runs on a worker: one session for each product and device, to which tiles are added while it computes others.

Each tile is a task of Dask, which waits for its tile without holding a thread of the worker's pool, so that the next task
can begin: then the first blocks of that tile are loaded while the one before is still computed, and the one before that is
written. A session that gets no tile for a while ends by itself: nobody may be left to end it.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tilewright

from ..errors import ClusterError, FileError, TilewrightError
from ..files import Source
from ..host.limits import use_threads
from ..host.machine import available_memory, machine
from ..runtime.cpu.stop import Stopped
from ..streaming.options import Options
from ..streaming.places.events import Events
from ..streaming.places.places import Placement, place_product
from ..streaming.plan.grid import Tile
from ..streaming.plan.schedule import Schedule
from ..streaming.run.counting import CountedSource, SharedCounter
from ..streaming.run.durable import Durable
from ..streaming.run.executor import RunningSchedule
from .order import ChosenKernel, PlannedOrder, ProductOrder, RemotePlace, TileReport, WorkerFacts

#: Share of a worker's memory limit that blocks take, and the share that all of the process may take: from 70 % on Dask moves
#: data to the disk, and at 80 % it begins no task. Blocks always get the last share.
SHARE, MOST, LEAST_SHARE = 0.4, 0.7, 0.1
#: A session ends when it had no tile for so many seconds.
IDLE_S = 20.0

_Key = tuple[str, str, str]
_sessions: dict[_Key, Session] = {}
_lock = threading.Lock()


# ---- tasks -----------------------------------------------------------------------------------------------------------


def look(order: ProductOrder) -> WorkerFacts:
    """What this worker can do for a product: everything that is opened and measured here is what will be used.

    Raises ClusterError, with the worker's name, where it cannot read an operand, or reads another one than the client.
    """
    from distributed import get_worker, secede

    worker = get_worker()
    secede()  # a chunk that another worker has lost may have to be computed here
    threads, limit = worker.state.nthreads, worker.memory_manager.memory_limit
    with contextlib.ExitStack() as stack:
        stack.enter_context(use_threads(threads))
        sources = _opened(order, stack, worker.address)
        placement = _placed(order, sources, threads, limit)
        a, b = sources
        rates = placement.rates(a, b, order.target, order.dtype.name)
        placement = _placed(
            order, sources, threads, limit
        )  # again: measuring has compiled, which takes memory that stays
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


def compute_tile(work: PlannedOrder, tile: Tile, later: Sequence[Tile], device: str) -> TileReport:
    """Compute a tile in this worker's session of the product, after those that it was given before."""
    from distributed import get_worker, secede

    worker = get_worker()
    session = _session(work, device, worker)
    waiting = session.add(tile, later)
    secede()
    return waiting.report()


async def end_sessions(key: str) -> None:
    """End all sessions of a product in this process at once; tiles under way are not finished. A coroutine, so that the
    client need not wait for it."""
    with _lock:
        ended = [_sessions.pop(each) for each in list(_sessions) if each[0] == key]
    for session in ended:
        session.stop(Stopped())


# ---- sessions --------------------------------------------------------------------------------------------------------


class Session:
    """The slots of one place of a worker, and the threads that load, multiply and store."""

    def __init__(self, work: PlannedOrder, place: RemotePlace, threads: int, limit: int | None) -> None:
        self._work, self.place = work, place
        self._read = SharedCounter()
        self._waiting: dict[Tile, Waiting] = {}
        self._changed = threading.Lock()
        self._idle_since = time.monotonic()
        self.error: BaseException | None = None
        self._tiles = ReturnedTiles() if work.attach is None else None
        with contextlib.ExitStack() as stack:
            sources = _opened(work.order, stack, place.worker)
            placement = _placed(work.order, sources, threads, limit, place.device)
            if placement.kernel_fact != work.kernel:
                raise ClusterError(f"{place} would multiply by {placement.kernel_fact}, not by {work.kernel}")
            sink: Any = self._tiles or _attached(work, stack, place.worker)
            a, b = (CountedSource(source, self._read.add) for source in sources)
            (there,) = placement.places(work.plan, a, b, sink, Events())
            stack.callback(there.close)
            self._durable = Durable(sink.flush, self._finished)
            self._execution = RunningSchedule(
                Schedule(work.plan.grid, work.plan.slots), there, self._durable.stored, self._failed
            )
            self._stack = stack.pop_all()
        self._thread = threading.Thread(target=self._run, name="tilewright session", daemon=True)
        self._thread.start()

    def add(self, tile: Tile, later: Sequence[Tile]) -> Waiting:
        """Add a tile; the same one twice is computed once. Raises the error that ended the session."""
        with self._changed:
            if self.error is not None:
                raise self.error
            waiting = self._waiting.get(tile)
            if waiting is None:
                waiting = self._waiting[tile] = Waiting(self, tile)
                self._execution.add(tile, later)
            return waiting

    def stop(self, error: BaseException) -> None:
        """End it after the pieces under way; all tiles that it has not finished fail with ``error``."""
        self._execution.stop(error)

    def end(self) -> None:
        """Release everything when all tiles are stored; none may be added any more."""
        self._execution.end()

    def idle_s(self) -> float:
        """Seconds without a tile."""
        with self._changed:
            return 0.0 if self._waiting else time.monotonic() - self._idle_since

    def taken(self, tile: Tile, begun: float) -> TileReport:
        """The report of a finished tile."""
        with self._changed:
            read_bytes, self._read.count = self._read.count, 0
        elements = None if self._tiles is None else self._tiles.take(self._work.plan, tile)
        return TileReport(tile, self.place, read_bytes, time.monotonic() - begun, elements)

    def _finished(self, tile: Tile) -> None:
        with self._changed:
            waiting = self._waiting.pop(tile)
            self._idle_since = time.monotonic()
        waiting.end(None)

    def _failed(self, error: BaseException) -> None:
        with _lock:
            for key in [key for key, each in _sessions.items() if each is self]:
                del _sessions[key]
        with self._changed:
            self.error = error
            waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            each.end(error)

    def _run(self) -> None:
        with self._stack:
            try:
                self._execution.run()
            except BaseException as error:  # every tile's task raises it
                self._failed(error)
            try:
                self._durable.close()
            except BaseException as error:
                self._failed(error)


class Waiting:
    """A tile that was added, and the task that waits for it."""

    def __init__(self, session: Session, tile: Tile) -> None:
        self._session, self._tile, self._begun = session, tile, time.monotonic()
        self._ended = threading.Event()
        self._error: BaseException | None = None

    def end(self, error: BaseException | None) -> None:
        """The tile is finished, or failed."""
        self._error = error
        self._ended.set()

    def report(self) -> TileReport:
        """Wait for the end. Raises the error."""
        self._ended.wait()
        if isinstance(self._error, Stopped):
            raise ClusterError("the product was stopped")
        if self._error is not None:
            raise self._error
        return self._session.taken(self._tile, self._begun)


class ReturnedTiles:
    """The sink of a product whose tiles are returned: each waits here for its task."""

    forgets = False

    def __init__(self) -> None:
        self._tiles: dict[tuple[int, int], np.ndarray[Any, Any]] = {}

    def write(self, rows: slice, columns: slice, block: np.ndarray[Any, Any]) -> None:
        self._tiles[rows.start, columns.start] = block.copy()

    def flush(self) -> None:
        """Nothing to do: the elements are in memory."""

    def take(self, plan: Any, tile: Tile) -> np.ndarray[Any, Any]:
        """The elements of a tile, which are no longer kept here."""
        return self._tiles.pop((plan.grid.rows(tile.i).start, plan.grid.columns(tile.j).start))


def _session(work: PlannedOrder, device: str, worker: Any) -> Session:
    key = (work.order.key, worker.address, device)
    with _lock:
        session = _sessions.get(key)
        if session is None or session.error is not None:
            place = RemotePlace(worker.address, device)
            session = _sessions[key] = Session(work, place, worker.state.nthreads, worker.memory_manager.memory_limit)
            _end_when_idle(key, session)
    return session


def _end_when_idle(key: _Key, session: Session) -> None:
    """Look at the session now and then, and end it when no tile came for IDLE_S."""

    def look_again() -> None:
        with _lock:
            here = _sessions.get(key) is session
            if here and session.idle_s() >= IDLE_S:
                del _sessions[key]
                session.end()
            elif here:
                _timer(look_again)

    _timer(look_again)


def _timer(function: Any) -> None:
    timer = threading.Timer(IDLE_S / 2, function)
    timer.daemon = True
    timer.start()


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
    there = Options(memory=memory, device=device or options.device, device_memory=options.device_memory)
    return place_product(sources, order.dtype, there, threads)


def _memory(limit: int | None, neighbours: int) -> int:
    """Bytes that blocks may take: a share of the limit, and less where the process has taken much already."""
    if not limit:
        return int(SHARE * (available_memory() or 1 << 30) / neighbours)
    # Workers that are threads of one process cannot tell their memory apart: they get the least share.
    return max(int(LEAST_SHARE * limit), min(int(SHARE * limit), int(MOST * limit) - _resident()))


@functools.cache
def _page() -> int:
    import resource

    return resource.getpagesize()


def _resident() -> int:
    """Bytes of memory that this process has now."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * _page()
    return 0
