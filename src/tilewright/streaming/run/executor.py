"""Does what a schedule says, in a place: three lanes at once, each in order, each waiting for exactly what it must."""

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

#: Gives the next tile, and those that will follow it as far as is known; None where there is none left.
Claim = Callable[[], tuple[Tile, Sequence[Tile]] | None]

#: Tiles that are claimed before the present one is begun: the next one's blocks must be on their way by then. Not more: a
#: slow place would keep them from others.
AHEAD = 1


class _Ended(Exception):  # noqa: N818  # no error: the end of a lane
    """Another lane failed, or the run was asked to stop."""


class _Lanes:
    """The tokens of each lane, by number, for the others to wait for; and the schedule, which may still grow."""

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
        """The token of piece ``number`` as soon as there is one; of number −1 None. Raises _Ended."""
        if number < 0:
            return None
        tokens = self._tokens[lane]
        with self._changed:
            self._changed.wait_for(lambda: len(tokens) > number or self.error is not None)
            if self.error is not None:
                raise _Ended
            return tokens[number]

    def grow(self) -> bool:
        """Add the next tile to the schedule, if there is one; whether there was."""
        with self._changed:
            if not self._complete:
                found = self._claim()
                if found is None:
                    self._complete = True
                else:
                    self._schedule.add(*found)
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
    """Run ``schedule`` in ``place``; ``stored`` is told of each tile as soon as it lies where the result goes.

    Tiles that ``claim`` gives are added to the schedule, AHEAD of what is computed. Multiplications are asked for by the
    calling thread. Raises what a lane raised first, when all of them have stopped; what was stored until then stays.
    ``failed`` is told of it at once. To be called where no interrupt comes (``run.stop.stoppable``): there are locks.
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
                worker.start()  # which the system may refuse
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
    except BaseException as error:  # raised again by the thread that asked
        lanes.stop(error)
