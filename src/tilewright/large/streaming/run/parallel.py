"""Several places at once: each starts with its own part of C's tiles; one that finishes early takes tiles of the others."""

from __future__ import annotations

import collections
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from ....cpu.runtime.stop import Stopped, current_stop
from ..places.place import Place
from ..plan.grid import Grid, Tile
from ..plan.schedule import Schedule
from .executor import AHEAD, execute

#: A slow place may be refused a tile only when at most this many tiles for each place are left.
FEW = 8


class Queue:
    """The tiles that are not begun, one list for each place. A place takes its own tiles in order; when it has none left,
    it takes the last tile of the longest list.

    Near the end a place gets no tile if the others can finish all tiles that are left before this place would finish
    one: otherwise all would wait for it. ``clock`` returns seconds. If the parts are ``kept``, a place takes tiles of
    others only if these are lost.
    """

    def __init__(
        self, parts: Sequence[Iterable[Tile]], clock: Callable[[], float] = time.perf_counter, *, kept: bool = False
    ) -> None:
        self._kept = kept
        self._parts = [collections.deque(part) for part in parts]
        self._lock, self._clock = threading.Lock(), clock
        self._paces = [_Pace() for _ in self._parts]
        #: The least of all paces so far.
        self._least_s = math.inf

    def take(self, owner: int) -> tuple[Tile, list[Tile]] | None:
        """A tile for ``owner``, and the tiles that it will get next; None when it gets no more."""
        with self._lock:
            pace, now = self._paces[owner], self._clock()
            pace.claimed(now)
            self._least_s = min(self._least_s, pace.tile_s)
            own = self._parts[owner]
            if self._kept and not pace.lost:
                others = [part for part, other in zip(self._parts, self._paces, strict=True) if part and other.lost]
                if not own and not others:
                    return None
            else:
                if pace.done or self._others_are_sooner(owner, now):
                    pace.done = True
                    return None
                others = self._parts
            if own:
                return own.popleft(), list(own)
            return max(others, key=len).pop(), []

    def join(self) -> int:
        """The number of another place, which has no tiles of its own."""
        with self._lock:
            self._parts.append(collections.deque())
            self._paces.append(_Pace())
            return len(self._parts) - 1

    def leave(self, owner: int) -> None:
        """A place is lost: others take its tiles, also those that were refused one before."""
        with self._lock:
            for pace in self._paces:
                pace.done = pace.lost
            self._paces[owner].done = self._paces[owner].lost = True

    def back(self, owner: int) -> None:
        """A place that was lost takes tiles again."""
        with self._lock:
            self._paces[owner].done = self._paces[owner].lost = False

    def _others_are_sooner(self, owner: int, now: float) -> bool:
        """True if no tile is left, or if the others would finish all that are left before ``owner`` finishes one. False
        if there is too little data to tell."""
        left = sum(map(len, self._parts))
        own = self._paces[owner]
        if not left or left > FEW * len(self._parts) or not own.tiles_s:
            return not left
        limit_s = now + (1 + AHEAD) * min(own.tiles_s)
        if len(self._paces) * (limit_s - now) < left * self._least_s:
            return False  # they could not, even if all were as fast as the fastest: with many places this is soon said
        finished = 0.0
        for number, pace in enumerate(self._paces):
            if number != owner and not pace.done:
                if not pace.tiles_s:
                    return False
                finished += pace.finished(now, limit_s)
        return finished >= left


class _Pace:
    """How fast a place works, from the times at which it claims tiles: AHEAD in advance, then one as it begins each."""

    def __init__(self) -> None:
        #: It gets no more tiles; and it is lost, so that this stays when another is lost.
        self.done = self.lost = False
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
        """Tiles beyond those that it claimed which it will finish before ``limit_s``."""
        free_s = max(now, self._last_s + (1 + AHEAD) * self.tile_s)
        if free_s >= limit_s or not self.tile_s:
            return math.inf if free_s < limit_s else 0.0
        return math.ceil((limit_s - free_s) / self.tile_s) - 1


def execute_on_all(
    grid: Grid,
    slots: tuple[int, int, int],
    places: Sequence[Place],
    parts: Sequence[Iterable[Tile]],
    stored: Callable[[Tile], None] = lambda tile: None,
) -> None:
    """Compute the tiles of ``parts``, one part a place, in all places at once.

    ``stored`` is called with each tile, by one thread at a time. The first error stops all places, and is raised when they
    have stopped. Call this on a thread that receives no interrupts (``cpu.runtime.stop.stoppable``), because it holds locks.
    """
    queue, lock = Queue(parts), threading.Lock()
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
