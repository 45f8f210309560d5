"""Ctrl-C during a long product: Python can raise it only between steps of Python, and machine code takes none.

So the caller of a long product does not compute. It waits, which Ctrl-C interrupts, and then tells the threads to stop by
the counters through which they share out the work: every counter is set to STOP, after which nothing is left to take and
everything waited for is there. What they still write is inside C and the workspace, and C is lost anyway.

A run of many products, from files to a file, is on a thread of its own altogether (``stoppable``): an interrupt asks its
``Stop``, which tells the product under way and whatever else listens.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TypeVar

import numpy as np

from .interrupts import apart
from .threads import Standby, Team

Result = TypeVar("Result")

#: Far above every count of jobs, and so small that a kernel may multiply it by the size of a block without overflow.
STOP = 1 << 40
#: Operations from which a product is long: a second or two of a fast core. Below, the few milliseconds that it may take to
#: wake one thread more, on a processor that is taken, are not worth it.
LONG = 400_000_000_000


class Stopped(BaseException):
    """Raised inside a run that was asked to stop. Its caller gets the interrupt instead."""


class Stop:
    """Asks a run to end early, from any thread."""

    def __init__(self) -> None:
        self.asked = False
        self._listeners: list[Callable[[], None]] = []

    def ask(self) -> None:
        """Tell every listener, in the order in which they began to listen. May be called again."""
        self.asked = True
        for listener in list(self._listeners):
            listener()

    @contextlib.contextmanager
    def tells(self, listener: Callable[[], None]) -> Iterator[None]:
        """Within the block ``listener`` is told, at once where the run was asked to stop before."""
        self._listeners.append(listener)
        try:
            if self.asked:
                listener()
            yield
        finally:
            self._listeners.remove(listener)


_current: contextvars.ContextVar[Stop | None] = contextvars.ContextVar("tilewright_stop", default=None)


def current_stop() -> Stop:
    """That of the run in which this is called; outside of one, a Stop that is never asked."""
    return _current.get() or Stop()


def stoppable(work: Callable[[], Result]) -> Result:
    """The result of ``work()``, which runs where no interrupt reaches it and ends early when one comes.

    An interrupt is raised when the work has ended. Within a run that is stoppable already, this only calls ``work``.
    """
    if _current.get() is not None:
        return work()
    stop = Stop()

    def inside() -> Result:
        _current.set(stop)  # in a context of its own
        return work()

    return apart(inside, stop.ask)


def run_stoppable(
    team: Team,
    job: Callable[[], None],
    counters: np.ndarray,
    flops: int,
    call: np.ndarray | None = None,
    standby: Standby | None = None,
) -> None:
    """Run ``job`` on every thread of the team; Ctrl-C ends a long product soon, a short one when it is done.

    ``call`` says the same job to workers that stand by (``Team.rally``). Raises KeyboardInterrupt, or Stopped inside of
    ``stoppable``, when no thread writes to C or the workspace any more.
    """

    def end() -> None:
        counters.fill(STOP)

    if (stop := _current.get()) is not None:
        with stop.tells(end):
            team.rally(job, call, standby)
        if stop.asked:
            raise Stopped
        return
    if flops < LONG or threading.current_thread() is not threading.main_thread():
        team.rally(job, call, standby)
        return
    finished: SimpleQueue[None] = SimpleQueue()

    def work() -> None:
        try:
            job()
        finally:
            finished.put(None)

    def watch() -> None:
        for _ in range(team.threads):
            finished.get()

    Team(team.threads + 1).run([watch] + [work] * team.threads, stop=end)
