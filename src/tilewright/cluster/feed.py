"""Gives each place of a cluster its tiles, two at a time, and takes them back finished.

Dask runs a tile again on another worker when its worker is lost. What is added here: which tile a place gets next, tiles for
workers that join, and a second copy of a tile that a worker does not finish long after it should have.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import queue
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import ClusterError, TilewrightError
from ..runtime.cpu.stop import Stopped, current_stop
from ..streaming.plan.grid import Grid, Tile
from ..streaming.run.executor import AHEAD
from ..streaming.run.parallel import Queue
from .order import PlannedOrder, RemotePlace, TileReport
from .session import compute_tile, end_sessions

#: Tiles of a place that are under way: the one that is computed, and those of which blocks are loaded ahead.
DEPTH = 1 + AHEAD
#: The tiles that will follow, as far as a place is told of them.
TOLD = 64
#: Seconds between two looks at the workers.
LOOK_S = 2.0
#: How often a tile is tried again after an error of a worker. A worker's death is not counted: Dask counts these.
RETRIES = 2
#: A tile is late after so many times the longest time that a tile took, but not before LATE_S seconds.
LATE, LATE_S = 4.0, 20.0
#: Seconds to wait for a worker when none is left.
ALONE_S = 60.0

#: Returns the places of workers that joined, and can compute this product.
Recruit = Callable[[Sequence[str]], Sequence[RemotePlace]]


@dataclasses.dataclass
class _Flight:
    """A task under way: its tile, the number of the place to which it was given, and when."""

    tile: Tile
    place: int
    begun_s: float
    future: Any


class Feed:
    """The tiles of a product on the places of a cluster; ``finished`` gets the report of each, once."""

    def __init__(
        self,
        client: Any,
        work: PlannedOrder,
        places: Sequence[RemotePlace],
        parts: Sequence[Sequence[Tile]],
        finished: Callable[[TileReport], None],
        recruit: Recruit,
    ) -> None:
        self._client, self._places, self._finished = client, list(places), finished
        self._key = work.order.key
        # A task that only returns it: Dask moves it to each worker once, and makes it again where it is lost.
        self._work = client.submit(_same, work, key=f"tilewright-{self._key}", pure=False)
        self._recruit = recruit
        self._queue = Queue([*parts, *([] for _ in range(len(places) - len(parts)))])
        self._left = {tile for part in parts for tile in part}
        self._flights: dict[str, _Flight] = {}
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lost: set[int] = set()
        self._numbers = itertools.count()
        self._longest_s, self._looked_s, self._alone_since = 0.0, time.monotonic(), math.inf

    def run(self) -> None:
        """Return when every tile is finished. The first error ends it, when no task is left on the cluster."""
        with current_stop().tells(lambda: self._ended.put(None)):
            try:
                for _ in range(DEPTH):
                    for number in range(len(self._places)):
                        self._give(number)
                while self._left:
                    self._take()
                    if time.monotonic() > self._looked_s + LOOK_S:
                        self._look()
            finally:
                self._end()

    def _give(self, number: int) -> None:
        """Give a place its next tile, if there is one for it."""
        if number in self._lost:
            return
        taken = self._queue.take(number)
        if taken is not None:
            self._submit(number, *taken)

    def _submit(self, number: int, tile: Tile, later: Sequence[Tile]) -> None:
        place = self._places[number]
        key = f"tilewright-{self._key}-{tile.i}-{tile.j}-{next(self._numbers)}"
        future = self._client.submit(
            compute_tile,
            self._work,
            tile,
            tuple(later[:TOLD]),
            place.device,
            key=key,
            pure=False,
            retries=RETRIES,
            workers=[place.worker],
            allow_other_workers=True,
        )
        self._flights[key] = _Flight(tile, number, time.monotonic(), future)
        future.add_done_callback(self._ended.put)

    def _take(self) -> None:
        """Wait a little for a task that ends, and deal with it."""
        try:
            future = self._ended.get(timeout=LOOK_S)
        except queue.Empty:
            return
        if future is None:
            raise Stopped
        flight = self._flights.pop(future.key, None)
        if flight is None:
            return
        if future.status != "finished":
            raise self._failure(future, flight.tile)
        if flight.tile in self._left:
            self._left.remove(flight.tile)
            self._longest_s = max(self._longest_s, time.monotonic() - flight.begun_s)
            self._finished(future.result())
        self._give(flight.place)

    def _failure(self, future: Any, tile: Tile) -> BaseException:
        if future.status != "error":
            return ClusterError(
                f"the scheduler lost tile {tuple(tile)} ({future.status}): it was restarted, or is gone"
            )
        error = future.exception()
        if isinstance(error, (TilewrightError, OSError, MemoryError)):
            return error
        if type(error).__name__ == "KilledWorker":
            return ClusterError(
                f"every worker that computed tile {tuple(tile)} died: their logs say why; with less memory it may fit"
            )
        return error

    # ---- workers that leave, join, or are late -----------------------------------------------------------------------

    def _look(self) -> None:
        self._looked_s = time.monotonic()
        if self._client.status not in ("running", "connecting"):
            raise ClusterError(f"the scheduler is gone (the connection is {self._client.status})")
        alive = set(self._client.scheduler_info(n_workers=-1)["workers"])
        for number, place in enumerate(self._places):
            if place.worker not in alive and number not in self._lost:
                self._lost.add(number)
                self._queue.leave(number)
                self._give_all()
        known = {place.worker for place in self._places}
        if new := sorted(alive - known):
            for place in self._recruit(new):
                self._places.append(place)
                self._queue.join()
            self._give_all()
        self._refuse_alone(bool(alive))
        self._copy_late()

    def _give_all(self) -> None:
        """Give every place as many tiles as it may have under way."""
        under_way = collections.Counter(flight.place for flight in self._flights.values())
        for number in range(len(self._places)):
            for _ in range(DEPTH - under_way[number]):
                self._give(number)

    def _refuse_alone(self, workers: bool) -> None:
        self._alone_since = math.inf if workers else min(self._alone_since, time.monotonic())
        if time.monotonic() > self._alone_since + ALONE_S:
            raise ClusterError(f"no worker is left, and none came in {ALONE_S:.0f} s")

    def _copy_late(self) -> None:
        """Submit a late tile to an idle place too: what ends first counts, and both compute the same bits."""
        limit_s = max(LATE_S, LATE * self._longest_s)
        counted = collections.Counter(flight.tile for flight in self._flights.values())
        busy = {flight.place for flight in self._flights.values()}
        idle = [number for number in range(len(self._places)) if number not in busy | self._lost]
        late = [each for each in self._flights.values() if time.monotonic() > each.begun_s + limit_s]
        for flight, number in zip([each for each in late if counted[each.tile] == 1], idle, strict=False):
            self._submit(number, flight.tile, ())

    def _end(self) -> None:
        """Leave nothing on the cluster: no task, no session, no plan that is still wanted."""
        futures = [flight.future for flight in self._flights.values()]
        self._flights.clear()
        if self._client.status != "running":
            return
        try:
            self._client.cancel(futures, force=True)
            self._client.run(end_sessions, self._key, wait=False, on_error="ignore")
        except (OSError, RuntimeError, ValueError):
            pass  # the scheduler is gone: sessions end by themselves


def _same(work: PlannedOrder) -> PlannedOrder:
    return work


def tile_operations(grid: Grid, tile: Tile) -> int:
    """2·m·n·k of a tile."""
    return 2 * grid.k * math.prod(grid.size(tile))
