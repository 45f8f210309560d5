"""Gives each device of a cluster its tiles, two at a time, and receives the reports of finished tiles.

Each task is bound to one worker, so the client always knows which worker computes a tile. If a worker is lost, or a
tile fails, its tiles are given to other workers. Workers that join during the product get tiles too. If a worker takes
far longer for a tile than any earlier tile took, another worker computes the tile as well. The two workers write the
same bits to the result.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any

from ...cpu.runtime.stop import Stopped, current_stop
from ...errors import ClusterError
from ..streaming.plan.grid import Grid, Tile
from ..streaming.run.executor import AHEAD, Queue
from .connect import when_ended, workers_alive
from .order import PlannedOrder, RemotePlace, TileReport, WorkerFacts
from .placement import Failure, Looks, explained
from .session import END_S, compute_tile, end_sessions

#: Tiles of a place that are under way: the one that is computed, and those of which blocks are loaded ahead.
TILES_AT_ONCE = 1 + AHEAD
#: The tiles that will follow, as far as a place is told of them.
TILES_ANNOUNCED = 64
#: Seconds between two looks at the workers.
LOOK_S = 1.0
#: How often a tile is tried again after an error. A place that fails more often, one time after the other, gets no more
#: tiles while there are other places.
RETRIES = 3
#: Workers that may die while they compute a tile.
DEATHS = 3
#: A tile is late after so many times the longest time that a tile took, but not before LATE_S seconds.
LATE, LATE_S = 4.0, 20.0
#: Seconds to wait for a worker when none is left.
ALONE_S = 60.0


@dataclasses.dataclass
class _Flight:
    """A task that is under way: its tile, the number of the place that computes it, and the time at which it began."""

    tile: Tile
    place: int
    begun_s: float
    future: Any


@dataclasses.dataclass
class _Seat:
    """A place of the cluster and its state. Only an "open" place gets tiles. After an error a place is "resting" until
    the workers are checked again, or "aside" until the product ends. A place with an overdue tile is "late". A place
    whose worker is lost is "gone". A "spare" place has no region in the plan, because this place would not make the
    product faster; it gets tiles when another place is lost."""

    place: RemotePlace
    state: str = "open"
    #: Errors since it last finished a tile.
    errors: int = 0


class Feed:
    """Distributes the tiles of a product to the devices of a cluster.

    ``finished`` is called once for each tile, with the report of the tile. ``admitted`` is called with the facts about
    a worker that joins, and returns the devices of the worker.
    """

    def __init__(
        self,
        client: Any,
        work: PlannedOrder,
        places: Sequence[RemotePlace],
        regions: Sequence[Sequence[Tile]],
        finished: Callable[[TileReport], None],
        admitted: Callable[[WorkerFacts], Sequence[RemotePlace]],
        *,
        kept: bool = False,
    ) -> None:
        """If regions are ``kept``, no worker takes tiles of another, unless that one is lost or late."""
        self._client, self._finished, self._admitted, self._key = client, finished, admitted, work.order.key
        # A task that only returns it: Dask moves it to each worker once, and makes it again where it is lost.
        self._work = client.submit(_same, work, key=f"tilewright-{self._key}", pure=False)
        self._seats = [_Seat(place) for place in places]
        self._queue = Queue([*regions, *([] for _ in range(len(places) - len(regions)))], kept=kept)
        for number in range(len(regions), len(places)):
            self._seats[number].state = "spare"
            self._queue.leave(number)
        self._left = {tile for region in regions for tile in region}
        #: Tiles that were lost or failed.
        self._again: collections.deque[Tile] = collections.deque()
        self._deaths, self._errors = collections.Counter[Tile](), collections.Counter[Tile]()
        self._flights: dict[str, _Flight] = {}
        self._ended: queue.SimpleQueue[tuple[str, TileReport | Failure]] = queue.SimpleQueue()
        self._joining = Looks(client, work.order, {place.worker for place in places})
        self._numbers = itertools.count()
        self._longest_s, self._looked_s, self._alone_since = 0.0, time.monotonic(), math.inf

    def run(self) -> None:
        """Give tiles to the devices until every tile is finished.

        If a tile fails because a worker is lost, or for another reason that may not repeat, the tile is computed again.
        The first error of any other kind ends the product; ``run`` raises this error when no task of the product is
        left on the cluster.
        """
        with current_stop().tells(lambda: self._ended.put(("", Stopped()))):
            try:
                self._give_all()
                while self._left:
                    self._take()
                    if time.monotonic() > self._looked_s + LOOK_S:
                        self._look()
            finally:
                self._end()

    # ---- tiles -------------------------------------------------------------------------------------------------------

    def _give_all(self) -> None:
        """Give every place as many tiles as it may have under way."""
        under_way = collections.Counter(flight.place for flight in self._flights.values())
        for depth in range(TILES_AT_ONCE):
            for number in range(len(self._seats)):
                if under_way[number] <= depth:
                    self._give(number)

    def _give(self, number: int) -> None:
        """Give a place its next tile, if there is one for it."""
        if self._seats[number].state != "open":
            return
        if self._again:
            self._submit(number, self._again.popleft(), ())
        elif (taken := self._queue.take(number)) is not None:
            self._submit(number, *taken)

    def _submit(self, number: int, tile: Tile, later: Sequence[Tile]) -> None:
        place = self._seats[number].place
        order = next(self._numbers)
        key = f"tilewright-{self._key}-{tile.i}-{tile.j}-{order}"
        what = (compute_tile, self._work, tile, tuple(later[:TILES_ANNOUNCED]), place.device)
        # By priority: a worker that gets two at once must begin with the first, from whose blocks the plan goes on.
        future = self._client.submit(*what, key=key, pure=False, workers=[place.worker], priority=-order)
        self._flights[key] = _Flight(tile, number, time.monotonic(), future)
        when_ended(self._client, future, lambda result: self._ended.put((key, result)))

    def _take(self) -> None:
        """Wait a little for a task that ends, and deal with it."""
        try:
            key, result = self._ended.get(timeout=LOOK_S)
        except queue.Empty:
            return
        if isinstance(result, Stopped):
            raise result
        flight = self._flights.pop(key, None)
        if flight is None:
            return
        flight.future.release()
        seat = self._seats[flight.place]
        if seat.state == "late":
            seat.state = "open"
            self._queue.back(flight.place)
        if not isinstance(result, TileReport):
            self._fail(flight, seat, result)
        elif flight.tile in self._left:
            seat.errors = 0
            self._left.remove(flight.tile)
            self._longest_s = max(self._longest_s, time.monotonic() - flight.begun_s)
            self._finished(result)
        self._give(flight.place)

    def _fail(self, flight: _Flight, seat: _Seat, failure: Failure) -> None:
        """Have a tile computed again, or raise its error."""
        tile = flight.tile
        self._errors[tile] += 1
        seat.errors += 1
        what = explained(failure, f"worker {seat.place.worker} failed at tile {tuple(tile)}")
        hopeless = isinstance(failure, CancelledError) or type(failure).__name__ == "KilledWorker"
        if hopeless or self._errors[tile] > RETRIES:
            raise what
        others = any(each.state not in ("gone", "aside") for each in self._seats if each is not seat)
        if seat.errors > RETRIES and others:
            self._withdraw(flight.place, "aside")
        else:
            seat.state = "resting"
        self._repeat(tile)

    def _repeat(self, tile: Tile) -> None:
        if tile in self._left and tile not in {flight.tile for flight in self._flights.values()}:
            self._again.append(tile)

    # ---- workers that leave, join, or are late -----------------------------------------------------------------------

    def _look(self) -> None:
        alive = workers_alive(self._client)
        self._looked_s = time.monotonic()
        for number, seat in enumerate(self._seats):
            if seat.place.worker not in alive and seat.state != "gone":
                self._lose(number)
            elif seat.state == "resting" or (seat.state == "gone" and seat.place.worker in alive):
                seat.state = "open"
                self._queue.back(number)
        self._joining.ask(alive)
        for _, answer in self._joining.answers():
            for place in self._admitted(answer) if isinstance(answer, WorkerFacts) else ():
                self._seats.append(_Seat(place))
                self._queue.join()
        self._refuse_alone()
        self._copy_late()
        self._give_all()

    def _lose(self, number: int) -> None:
        """A worker is gone: its tiles are for others."""
        self._withdraw(number, "gone")
        lost = [key for key, flight in self._flights.items() if flight.place == number]
        for key in lost:
            flight = self._flights.pop(key)
            flight.future.release()
            self._repeat(flight.tile)
            if key == lost[0]:  # the one that it computed
                self._deaths[flight.tile] += 1
                if self._deaths[flight.tile] > DEATHS:
                    raise ClusterError(
                        f"{self._deaths[flight.tile]} workers died, one after the other, while they computed tile "
                        f"{tuple(flight.tile)}: their logs say why; with less memory it may fit"
                    )

    def _withdraw(self, place: int, state: str) -> None:
        """A place gets no tiles for now; others take its region."""
        self._seats[place].state = state
        self._queue.leave(place)
        for number, seat in enumerate(self._seats):
            if seat.state == "spare":
                seat.state = "open"
                self._queue.back(number)

    def _refuse_alone(self) -> None:
        some = any(seat.state not in ("gone", "aside") for seat in self._seats)
        self._alone_since = math.inf if some else min(self._alone_since, time.monotonic())
        if time.monotonic() > self._alone_since + ALONE_S:
            raise ClusterError(f"no worker is left that can compute this product, and none came in {ALONE_S:.0f} s")

    def _copy_late(self) -> None:
        """Leave the tiles of a late place to others, and give those that it has under way to idle places too: what ends
        first counts."""
        limit_s = time.monotonic() - max(LATE_S, LATE * self._longest_s)
        newest = {flight.tile: flight for flight in self._flights.values()}
        late = [flight for flight in newest.values() if flight.begun_s < limit_s and flight.tile in self._left]
        for number in {flight.place for flight in self._flights.values() if flight.begun_s < limit_s}:
            if self._seats[number].state == "open":
                self._withdraw(number, "late")
        self._give_all()
        busy = {flight.place for flight in self._flights.values()}
        idle = [number for number, seat in enumerate(self._seats) if seat.state == "open" and number not in busy]
        for flight, number in zip(late, idle, strict=False):
            self._submit(number, flight.tile, ())

    def _end(self) -> None:
        """Leave nothing on the cluster: no task, no session, no plan that is still wanted."""
        self._joining.close()
        for flight in self._flights.values():
            flight.future.release()
        self._flights.clear()
        self._work.release()
        try:
            workers = workers_alive(self._client, END_S) & {seat.place.worker for seat in self._seats}
            ending = {"workers": list(workers), "on_error": "ignore", "callback_timeout": END_S + 1}
            self._client.run(end_sessions, self._key, **ending)
        except (ClusterError, OSError, RuntimeError, ValueError):
            pass  # the scheduler is gone, or a worker is paused: sessions end by themselves


def _same(work: PlannedOrder) -> PlannedOrder:
    return work


def tile_operations(grid: Grid, tile: Tile) -> int:
    """Return the number of operations of a tile, 2·m·n·k for a tile of m×n."""
    return 2 * grid.k * math.prod(grid.size(tile))
