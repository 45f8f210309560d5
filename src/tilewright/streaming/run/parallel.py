"""Several places at once: each starts with its own part of C's tiles; one that finishes early takes tiles of the others."""

from __future__ import annotations

import collections
import heapq
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from ...runtime.cpu.stop import Stopped, current_stop
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
    one: otherwise all would wait for it. ``clock`` returns seconds.
    """

    def __init__(self, parts: Sequence[Iterable[Tile]], clock: Callable[[], float] = time.perf_counter) -> None:
        self._parts = [collections.deque(part) for part in parts]
        self._lock, self._clock = threading.Lock(), clock
        self._paces = [_Pace() for _ in self._parts]

    def take(self, owner: int) -> tuple[Tile, list[Tile]] | None:
        """A tile for ``owner``, and the tiles that it will get next; None when it gets no more."""
        with self._lock:
            pace, now = self._paces[owner], self._clock()
            pace.claimed(now)
            if pace.done or self._others_are_sooner(owner, now):
                pace.done = True
                return None
            own = self._parts[owner]
            if own:
                return own.popleft(), list(own)
            return max(self._parts, key=len).pop(), []

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
                pace.done = False
            self._paces[owner].done = True

    def _others_are_sooner(self, owner: int, now: float) -> bool:
        """True if no tile is left, or if the others would finish all that are left before ``owner`` finishes one. False
        if there is too little data to tell."""
        left = sum(map(len, self._parts))
        own, others = self._paces[owner], [pace for x, pace in enumerate(self._paces) if x != owner and not pace.done]
        if not left or not others or left > FEW * len(self._parts):
            return not left
        if not all(pace.tiles_s for pace in (own, *others)):
            return False
        due = [(pace.free_s(now) + max(pace.tiles_s), max(pace.tiles_s)) for pace in others]
        heapq.heapify(due)
        for _ in range(left):
            end, tile_s = due[0]
            heapq.heapreplace(due, (end + tile_s, tile_s))
        return now + (1 + AHEAD) * min(own.tiles_s) > end


class _Pace:
    """How fast a place works, from the times at which it claims tiles: AHEAD in advance, then one as it begins each."""

    def __init__(self) -> None:
        self.done = False
        #: Seconds that each of the last few tiles took.
        self.tiles_s: collections.deque[float] = collections.deque(maxlen=3)
        self._claims, self._last_s = 0, 0.0

    def claimed(self, now: float) -> None:
        if self._claims > AHEAD:
            self.tiles_s.append(now - self._last_s)
        self._claims, self._last_s = self._claims + 1, now

    def free_s(self, now: float) -> float:
        """The time at which it will have finished the tiles that it claimed."""
        return max(now, self._last_s + (1 + AHEAD) * max(self.tiles_s))


def execute_on_all(
    grid: Grid,
    slots: tuple[int, int, int],
    places: Sequence[Place],
    parts: Sequence[Iterable[Tile]],
    stored: Callable[[Tile], None] = lambda tile: None,
) -> None:
    """Compute the tiles of ``parts``, one part a place, in all places at once.

    ``stored`` is called with each tile, by one thread at a time. The first error stops all places, and is raised when they
    have stopped. Call this on a thread that receives no interrupts (``runtime.cpu.stop.stoppable``), because it holds locks.
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
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
