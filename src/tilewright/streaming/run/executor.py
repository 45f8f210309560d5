"""Runs a schedule in a place: three lanes at the same time, each in order, each waiting only for what the schedule says."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from ...runtime.cpu.stop import Stopped, current_stop
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


class _Lanes:
    """The tokens of each lane, by number, for which other lanes wait; and the schedule, to which tiles are still added."""

    def __init__(self, schedule: Schedule, claim: Claim, failed: Callable[[BaseException], None]) -> None:
        self._schedule, self._claim, self._failed = schedule, claim, failed
        self._complete = False
        self._changed = threading.Condition()
        self._tokens: dict[str, list[Token]] = {"load": [], "multiply": [], "store": []}
        self.error: BaseException | None = None

    def put(self, lane: str, token: Token) -> None:
        with self._changed:
            self._tokens[lane].append(token)
            self._changed.notify_all()

    def get(self, lane: str, number: int) -> Token:
        """Wait for the token of piece ``number``, and return it; None for number −1. Raises _Ended."""
        if number < 0:
            return None
        tokens = self._tokens[lane]
        with self._changed:
            self._changed.wait_for(lambda: len(tokens) > number or self.error is not None)
            if self.error is not None:
                raise _Ended
            return tokens[number]

    def grow(self) -> bool:
        """Add the next tile to the schedule. Returns False if no tile is left."""
        with self._changed:
            if not self._complete:
                claimed = self._claim()
                if claimed is None:
                    self._complete = True
                else:
                    self._schedule.add(*claimed)
                self._changed.notify_all()
            return not self._complete

    def pieces(self, pieces: list[Piece]) -> Iterator[Piece]:
        """All pieces of a lane, also those that are still to be added. Raises _Ended."""
        for number in itertools.count():
            with self._changed:
                while len(pieces) <= number and not self._complete and self.error is None:
                    self._changed.wait()
                if self.error is not None:
                    raise _Ended
                if len(pieces) <= number:
                    return
            yield pieces[number]

    def stop(self, error: BaseException) -> None:
        with self._changed:
            if self.error is None:
                self.error = error
                self._failed(error)
            self._changed.notify_all()


def execute(
    schedule: Schedule,
    place: Place,
    stored: Callable[[Tile], None] = lambda tile: None,
    claim: Claim = lambda: None,
    failed: Callable[[BaseException], None] = lambda error: None,
) -> None:
    """Run ``schedule`` in ``place``; ``stored`` is called with each tile as soon as it is written to the result.

    Tiles that ``claim`` returns are added to the schedule, AHEAD of the one that is computed. The calling thread submits the
    multiplications. The first error of a lane is passed to ``failed`` at once, and raised when all lanes have stopped; what
    was stored until then stays. Call this on a thread that receives no interrupts (``runtime.cpu.stop.stoppable``), because
    it holds locks.
    """
    lanes = _Lanes(schedule, claim, failed)

    def loading() -> None:
        for load in lanes.pieces(schedule.loads):
            lanes.put("load", place.load(load, lanes.get("multiply", load.after)))

    def storing() -> None:
        for store in lanes.pieces(schedule.stores):
            lanes.put("store", place.store(store, lanes.get("multiply", store.after)))
            stored(store.tile)

    workers = [threading.Thread(target=_lane, args=(lanes, work), name=work.__name__) for work in (loading, storing)]
    with current_stop().tells(lambda: lanes.stop(Stopped())):
        try:
            for worker in workers:
                worker.start()  # may fail: the system limits threads
            _multiply(lanes, schedule, place)
        except _Ended:
            pass
        except BaseException as error:  # the other lanes must end first
            lanes.stop(error)
        for worker in workers:
            if worker.ident is not None:
                worker.join()
    if lanes.error is not None:
        raise lanes.error


def _multiply(lanes: _Lanes, schedule: Schedule, place: Place) -> None:
    for _ in range(AHEAD):
        lanes.grow()
    for step in lanes.pieces(schedule.multiplies):
        if step.first:
            lanes.grow()
        needs = lanes.get("load", step.needs[0]), lanes.get("load", step.needs[1])
        lanes.put("multiply", place.multiply(step, needs, lanes.get("store", step.after)))


def _lane(lanes: _Lanes, work: Callable[[], None]) -> None:
    try:
        work()
    except _Ended:
        pass
    except BaseException as error:  # raised again by ``execute``
        lanes.stop(error)
