"""Runs a schedule in a place: three lanes at the same time, each in order, each waiting only for what the schedule says."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from ....cpu.runtime.stop import Stopped, current_stop
from ..places.place import Place, Token
from ..plan.grid import Tile
from ..plan.schedule import Load, Multiply, Schedule, Store

Piece = TypeVar("Piece", Load, Multiply, Store)

#: Returns the next tile, and those that will follow it as far as is known; None where no tile is left.
Claim = Callable[[], tuple[Tile, Sequence[Tile]] | None]

#: Tiles that are claimed before the present one is begun, so that the next tile's blocks are loaded while it is computed.
#: Not more: other places cannot take tiles that a slow place has claimed.
AHEAD = 1


class _Ended(Exception):  # noqa: N818  # no error: the end of a lane
    """Another lane failed, or the run was asked to stop."""


class RunningSchedule:
    """A schedule that runs in a place, and to which tiles are added until ``end`` is called.

    ``stored`` is called with each tile as soon as it is written to the result. The first error of a lane is passed to
    ``failed`` at once.
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
        #: What each lane's finished pieces returned, by number; other lanes wait for them.
        self._tokens: dict[str, list[Token]] = {"load": [], "multiply": [], "store": []}
        self.error: BaseException | None = None

    def add(self, tile: Tile, later: Sequence[Tile] = ()) -> None:
        """Add a tile to the schedule; ``later`` will follow it, as far as is known."""
        with self._changed:
            self._schedule.add(tile, later)
            self._changed.notify_all()

    def end(self) -> None:
        """No tile will be added any more."""
        with self._changed:
            self._complete = True
            self._changed.notify_all()

    def stop(self, error: BaseException) -> None:
        """End all lanes after the piece under way; ``run`` raises ``error``."""
        with self._changed:
            first = self.error is None
            if first:
                self.error = error
            self._changed.notify_all()
        if first:
            self._failed(error)  # without the lock: it may take locks under which tiles are added

    def run(self, begins: Callable[[], None] = lambda: None) -> None:
        """Run all lanes until all tiles are stored; the calling thread submits the multiplications.

        ``begins`` is called when the first step of a tile is about to be submitted. The first error is raised when all lanes
        have stopped; what was stored until then stays. Call this on a thread that receives no interrupts
        (``cpu.runtime.stop.stoppable``), because it holds locks.
        """
        lanes = [
            threading.Thread(target=self._lane, args=(work,), name=work.__name__) for work in (self._load, self._store)
        ]
        with current_stop().tells(lambda: self.stop(Stopped())):
            try:
                for lane in lanes:
                    lane.start()  # may fail: the system limits threads
                self._multiply(begins)
            except _Ended:
                pass
            except BaseException as error:  # the other lanes must end first
                self.stop(error)
            for lane in lanes:
                if lane.ident is not None:
                    lane.join()
        if self.error is not None:
            raise self.error

    def _load(self) -> None:
        for load in self._pieces(self._schedule.loads):
            self._put("load", self._place.load(load, self._get("multiply", load.after)))

    def _multiply(self, begins: Callable[[], None]) -> None:
        for step in self._pieces(self._schedule.multiplies):
            if step.first:
                begins()
            needs = self._get("load", step.needs[0]), self._get("load", step.needs[1])
            self._put("multiply", self._place.multiply(step, needs, self._get("store", step.after)))

    def _store(self) -> None:
        for store in self._pieces(self._schedule.stores):
            self._put("store", self._place.store(store, self._get("multiply", store.after)))
            self._stored(store.tile)

    def _lane(self, work: Callable[[], None]) -> None:
        try:
            work()
        except _Ended:
            pass
        except BaseException as error:  # raised again by ``run``
            self.stop(error)

    def _put(self, lane: str, token: Token) -> None:
        with self._changed:
            self._tokens[lane].append(token)
            self._changed.notify_all()

    def _get(self, lane: str, number: int) -> Token:
        """Wait for the token of piece ``number``, and return it; None for number −1. Raises _Ended."""
        if number < 0:
            return None
        tokens = self._tokens[lane]
        with self._changed:
            self._changed.wait_for(lambda: len(tokens) > number or self.error is not None)
            if self.error is not None:
                raise _Ended
            return tokens[number]

    def _pieces(self, pieces: list[Piece]) -> Iterator[Piece]:
        """All pieces of a lane, also those that are still to be added. Raises _Ended."""
        for number in itertools.count():
            with self._changed:
                self._changed.wait_for(lambda: len(pieces) > number or self._complete or self.error is not None)  # noqa: B023
                if self.error is not None:
                    raise _Ended
                if len(pieces) <= number:
                    return
            yield pieces[number]


def execute(
    schedule: Schedule,
    place: Place,
    stored: Callable[[Tile], None] = lambda tile: None,
    claim: Claim = lambda: None,
    failed: Callable[[BaseException], None] = lambda error: None,
) -> None:
    """Run ``schedule`` in ``place``, and the tiles that ``claim`` returns, which is asked for them AHEAD of the tile that is
    computed; see ``RunningSchedule``."""
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
