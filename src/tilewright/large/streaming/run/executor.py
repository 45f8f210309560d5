"""Runs a schedule in a place. Loads, multiplications and stores run at the same time, each list in order on its own
thread, and wait for each other as the schedule states. If there are several places, each place starts with its own
region of C, and a place that finishes early takes tiles of other places.

A tile passes through the following states, and never returns to an earlier state:

    left       at first: the tile is in the list of the place that has its region
    claimed    after ``Queue.take`` has given the tile to a place, AHEAD tiles before this place computes it
    scheduled  after ``RunningSchedule.add`` has appended the tile's entries to the three lists of the schedule
    stored     after the thread of the stores has written the tile to the result; it then calls ``stored``

An entry of the schedule is *added* with its tile. Each list of the schedule has a thread, which takes an entry when all
earlier entries of the list are submitted. The thread waits until the entries named in ``after_multiply``, ``needs`` and
``after_store`` are submitted too, and then submits the entry to the place with the tokens of these entries. After the
thread has submitted an entry, the entry is called *submitted*, and its own token is stored. The place waits until the
work of the tokens that it gets is done.
"""

from __future__ import annotations

import collections
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from ....cpu.runtime.stop import Stopped, current_stop
from ..places.place import Place, Token
from ..plan.grid import Grid, Tile
from ..plan.schedule import Load, Multiply, Schedule, Store

# ---- one place -------------------------------------------------------------------------------------------------------

Entry = TypeVar("Entry", Load, Multiply, Store)

#: Returns the next tile, and those that will follow it as far as is known; None where no tile is left.
Claim = Callable[[], tuple[Tile, Sequence[Tile]] | None]

#: Tiles that are claimed before the present one is begun, so that the next tile's blocks are loaded while it is computed.
#: Not more: other places cannot take tiles that a slow place has claimed.
AHEAD = 1


class _Ended(Exception):  # noqa: N818  # no error: it ends a thread
    """Ends a thread because another thread failed, or because the run was asked to stop."""


class RunningSchedule:
    """A schedule that runs in a place, and to which tiles can be added until ``end`` is called.

    ``stored`` is called with each tile as soon as the tile is written to the result. ``failed`` is called at once with the
    first error of a thread.
    """

    def __init__(
        self,
        schedule: Schedule,
        place: Place,
        stored: Callable[[Tile], None] = lambda tile: None,
        failed: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self._schedule, self._place, self._stored, self._failed = schedule, place, stored, failed
        self._complete = False
        self._changed = threading.Condition()
        #: The tokens of submitted entries, by number; other threads wait for them.
        self._tokens: dict[str, list[Token]] = {"load": [], "multiply": [], "store": []}
        self.error: BaseException | None = None

    def add(self, tile: Tile, later: Sequence[Tile] = ()) -> None:
        """Add a tile to the schedule. ``later`` are the tiles that will follow this tile, if they are known."""
        with self._changed:
            self._schedule.add(tile, later)
            self._changed.notify_all()

    def end(self) -> None:
        """Declare that no more tiles will be added."""
        with self._changed:
            self._complete = True
            self._changed.notify_all()

    def stop(self, error: BaseException) -> None:
        """Stop each thread after it has submitted its current entry. ``run`` then raises ``error``."""
        with self._changed:
            first = self.error is None
            if first:
                self.error = error
            self._changed.notify_all()
        if first:
            self._failed(error)  # without the lock: it may take locks under which tiles are added

    def run(self, begins: Callable[[], None] = lambda: None) -> None:
        """Run the lists of loads, multiplications and stores until all tiles are stored. The calling thread submits the
        multiplications.

        ``begins`` is called when the first step of a tile is about to be submitted. The first error is raised as soon
        as all threads have stopped; tiles that were stored before the threads stopped stay in the result. This function
        must be called on a thread that receives no interrupts (``cpu.runtime.stop.stoppable``), because it holds locks.
        """
        threads = [
            threading.Thread(target=self._until_ended, args=(work,), name=work.__name__)
            for work in (self._load, self._store)
        ]
        with current_stop().tells(lambda: self.stop(Stopped())):
            try:
                for thread in threads:
                    thread.start()  # may fail: the system limits threads
                self._multiply(begins)
            except _Ended:
                pass
            except BaseException as error:  # the other threads must end first
                self.stop(error)
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        if self.error is not None:
            raise self.error

    def _load(self) -> None:
        for load in self._entries(self._schedule.loads):
            self._put("load", self._place.load(load, self._get("multiply", load.after_multiply)))

    def _multiply(self, begins: Callable[[], None]) -> None:
        for step in self._entries(self._schedule.multiplies):
            if step.first:
                begins()
            needs = self._get("load", step.needs[0]), self._get("load", step.needs[1])
            self._put("multiply", self._place.multiply(step, needs, self._get("store", step.after_store)))

    def _store(self) -> None:
        for store in self._entries(self._schedule.stores):
            self._put("store", self._place.store(store, self._get("multiply", store.after_multiply)))
            self._stored(store.tile)

    def _until_ended(self, work: Callable[[], None]) -> None:
        try:
            work()
        except _Ended:
            pass
        except BaseException as error:  # raised again by ``run``
            self.stop(error)

    def _put(self, kind: str, token: Token) -> None:
        with self._changed:
            self._tokens[kind].append(token)
            self._changed.notify_all()

    def _get(self, kind: str, number: int) -> Token:
        """Wait for the token of entry ``number``, and return it; None for number −1. Raises _Ended."""
        if number < 0:
            return None
        tokens = self._tokens[kind]
        with self._changed:
            self._changed.wait_for(lambda: len(tokens) > number or self.error is not None)
            if self.error is not None:
                raise _Ended
            return tokens[number]

    def _entries(self, entries: list[Entry]) -> Iterator[Entry]:
        """All entries of a list, also those that are still to be added. Raises _Ended."""
        for number in itertools.count():
            with self._changed:
                self._changed.wait_for(lambda: len(entries) > number or self._complete or self.error is not None)  # noqa: B023
                if self.error is not None:
                    raise _Ended
                if len(entries) <= number:
                    return
            yield entries[number]


def execute(
    schedule: Schedule,
    place: Place,
    stored: Callable[[Tile], None] = lambda tile: None,
    claim: Claim = lambda: None,
    failed: Callable[[BaseException], None] = lambda error: None,
) -> None:
    """Run ``schedule`` in ``place``, together with the tiles that ``claim`` returns; see ``RunningSchedule``.

    ``claim`` is called AHEAD times at the start, and once more whenever a tile is about to begin.
    """
    execution = RunningSchedule(schedule, place, stored, failed)
    left = True

    def grow() -> None:
        nonlocal left
        claimed = claim() if left else None
        if claimed is not None:
            execution.add(*claimed)
        elif left:
            left = False
            execution.end()

    for _ in range(AHEAD):
        grow()
    execution.run(grow)


# ---- several places --------------------------------------------------------------------------------------------------

#: A slow place may be refused a tile only when at most this many tiles for each place are left.
FEW = 8


class Queue:
    """The tiles that are not computed yet, in one list for each place.

    A place takes the tiles of its own list in order. When the list of a place is empty, the place takes the last tile
    of the longest list. If regions are ``kept``, a place takes only tiles of its own list and of places that are lost.
    Near the end, a slow place gets no tile if the other places can finish all remaining tiles before the slow place
    would finish one, because all places would have to wait for it. ``clock`` returns seconds. A place has one of these
    states:

        active   gets tiles    at first; after ``back``; and after "refused" if another place is lost and its tiles are left
        refused  gets no tile  after ``take`` found no tile for it, or found that the other places would finish sooner
        lost     gets no tile  after ``leave``, until ``back`` is called
    """

    def __init__(
        self, regions: Sequence[Iterable[Tile]], clock: Callable[[], float] = time.perf_counter, *, kept: bool = False
    ) -> None:
        self._kept = kept
        self._regions = [collections.deque(region) for region in regions]
        self._lock, self._clock = threading.Lock(), clock
        self._paces = [_Pace() for _ in self._regions]
        #: The least of all paces so far.
        self._least_s = math.inf

    def take(self, owner: int) -> tuple[Tile, list[Tile]] | None:
        """Return a tile for the place ``owner`` and the tiles that it will get next, or None if it gets no more
        tiles.
        """
        with self._lock:
            pace, now = self._paces[owner], self._clock()
            pace.claimed(now)
            self._least_s = min(self._least_s, pace.tile_s)
            if pace.state != "active":
                return None
            own, open_to_it = self._regions[owner], self._regions
            if self._kept:
                open_to_it = [
                    each for each, other in zip(open_to_it, self._paces, strict=True) if other.state == "lost"
                ]
            nothing_left = not own and not any(open_to_it)
            if nothing_left or (not self._kept and self._others_are_sooner(owner, now)):
                pace.state = "refused"
                return None
            if own:
                return own.popleft(), list(own)
            return max(open_to_it, key=len).pop(), []

    def join(self) -> int:
        """Add a place without tiles of its own, and return its number."""
        with self._lock:
            self._regions.append(collections.deque())
            self._paces.append(_Pace())
            return len(self._regions) - 1

    def leave(self, owner: int) -> None:
        """Mark a place as lost. Other places take the tiles of the lost place; even places that were refused a tile
        before may take them.
        """
        with self._lock:
            for pace in self._paces:
                if pace.state == "refused":
                    pace.state = "active"
            self._paces[owner].state = "lost"

    def back(self, owner: int) -> None:
        """Mark a lost place as active again, so that it gets tiles."""
        with self._lock:
            self._paces[owner].state = "active"

    def _others_are_sooner(self, owner: int, now: float) -> bool:
        """True if the others would finish all tiles that are left before ``owner`` finishes one. False if there is too
        little data to tell, or if more than FEW tiles for each place are left."""
        left = sum(map(len, self._regions))
        own = self._paces[owner]
        if left > FEW * len(self._regions) or not own.tiles_s:
            return False
        limit_s = now + (1 + AHEAD) * min(own.tiles_s)
        if len(self._paces) * (limit_s - now) < left * self._least_s:
            return False  # not even if all were as fast as the fastest; for many places this saves the loop below
        finished = 0.0
        for number, pace in enumerate(self._paces):
            if number != owner and pace.state == "active":
                if not pace.tiles_s:
                    return False
                finished += pace.finished(now, limit_s)
        return finished >= left


class _Pace:
    """The state of a place (see ``Queue``), and the time that the place takes for a tile. This time follows from the
    moments at which the place claims tiles: it claims AHEAD tiles in advance, and then one tile whenever it begins
    another."""

    def __init__(self) -> None:
        self.state = "active"
        #: Seconds that each of the last few tiles took.
        self.tiles_s: collections.deque[float] = collections.deque(maxlen=3)
        #: The longest of these; inf where there are none.
        self.tile_s = math.inf
        self._claims, self._last_s = 0, 0.0

    def claimed(self, now: float) -> None:
        if self._claims > AHEAD:
            self.tiles_s.append(now - self._last_s)
            self.tile_s = max(self.tiles_s)
        self._claims, self._last_s = self._claims + 1, now

    def finished(self, now: float, limit_s: float) -> float:
        """Return how many tiles, in addition to the tiles that it has claimed, the place will finish before
        ``limit_s``.
        """
        free_s = max(now, self._last_s + (1 + AHEAD) * self.tile_s)
        if free_s >= limit_s or not self.tile_s:
            return math.inf if free_s < limit_s else 0.0
        return math.ceil((limit_s - free_s) / self.tile_s) - 1


def execute_on_all(
    grid: Grid,
    slots: tuple[int, int, int],
    places: Sequence[Place],
    regions: Sequence[Iterable[Tile]],
    stored: Callable[[Tile], None] = lambda tile: None,
) -> None:
    """Compute the tiles of ``regions`` on all places at the same time, one region for each place.

    ``stored`` is called with each stored tile, by one thread at a time. The first error stops all places; it is raised
    when all places have stopped. This function must be called on a thread that receives no interrupts
    (``cpu.runtime.stop.stoppable``), because it holds locks.
    """
    queue, lock = Queue(regions), threading.Lock()
    errors: list[BaseException] = []

    def stored_in_turn(tile: Tile) -> None:
        with lock:
            stored(tile)

    def work(number: int) -> None:
        def claim() -> tuple[Tile, list[Tile]] | None:
            return None if errors else queue.take(number)

        try:
            execute(Schedule(grid, slots), places[number], stored_in_turn, claim, errors.append)
        except BaseException as error:  # raised again below; most were already added by ``execute``
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,), name=f"place {number}") for number in range(len(places))]
    with current_stop().tells(lambda: errors.append(Stopped())):  # tiles under way are finished, no other is begun
        try:
            for thread in threads:
                thread.start()  # may fail: the system limits threads
        except RuntimeError as error:  # the other places must end first
            errors.append(error)
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    if errors:
        raise errors[0]
