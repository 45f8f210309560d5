"""Makes Ctrl-C end a long product early. Python raises KeyboardInterrupt only between bytecodes, so not while machine
code runs.

So the thread that calls a long product does not compute: it waits, and Ctrl-C interrupts the wait. After the interrupt,
the calling thread sets every counter by which the computing threads share the work to STOP. With all counters at STOP,
no job is left to take, and every count that a thread waits for is reached. Until they end, the computing threads may
still write to C and to the workspace, and nowhere else. The elements of C are invalid after an interrupt.

A run of many products, such as one from files to a file, runs on another thread (``stoppable``). An interrupt calls the
run's ``Stop``, which calls all its listeners; one of them stops the current product.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TypeVar

import numpy as np

from ...errors import UnavailableError
from .interrupts import run_on_thread
from .threads import Standby, Team

Result = TypeVar("Result")

#: Far above every count of jobs, and small enough that a kernel may multiply it by the size of a block without overflow.
STOP = 1 << 40
#: Operations from which a product is long: a second or two of a fast core. A shorter one is not worth the additional thread
#: that computes for the caller: waking it on a busy processor may take a few milliseconds.
LONG = 400_000_000_000


class Stopped(BaseException):
    """Raised inside a run that was asked to stop. The caller of the run gets KeyboardInterrupt instead."""


class Stop:
    """Asks a run to end early. A Stop may be used from any thread."""

    def __init__(self) -> None:
        self.asked = False
        self._listeners: list[Callable[[], None]] = []

    def ask(self) -> None:
        """Call every listener, in the order in which they were added. ``ask`` may be called several times."""
        self.asked = True
        for listener in list(self._listeners):
            listener()

    @contextlib.contextmanager
    def tells(self, listener: Callable[[], None]) -> Iterator[None]:
        """Return a context manager: within its ``with`` block, ``ask`` calls ``listener``. If the run was already asked
        to stop, ``listener`` is called at once."""
        self._listeners.append(listener)
        try:
            if self.asked:
                listener()
            yield
        finally:
            self._listeners.remove(listener)


#: The Stop of the run that is stoppable in which this is read, if it is in one.
current: contextvars.ContextVar[Stop | None] = contextvars.ContextVar("tilewright_stop", default=None)


def current_stop() -> Stop:
    """Return the Stop of the current run; outside a run, a Stop that never asks for an early end."""
    return current.get() or Stop()


def stoppable(work: Callable[[], Result]) -> Result:
    """Return the result of ``work()``, which runs on a thread that no interrupt reaches. An interrupt asks the work to
    end early, by the run's ``Stop``.

    KeyboardInterrupt is raised when the work has ended. Inside another stoppable run, ``stoppable`` only calls
    ``work``. Raises UnavailableError if the system cannot start the threads.
    """
    if current.get() is not None:
        return work()
    stop = Stop()

    def inside() -> Result:
        current.set(stop)  # in the copy of the context that ``run_on_thread`` makes
        return work()

    try:
        return run_on_thread(inside, stop.ask)
    except RuntimeError as error:
        if not str(error).startswith(("can't start new thread", "can't create new thread")):  # CPython's words
            raise
        raise UnavailableError(
            "the system starts no more threads, and this product needs several: raise the limit of processes (ulimit -u, or "
            "the cgroup's pids.max) or of address space (ulimit -v)"
        ) from None


def run_stoppable(
    team: Team,
    job: Callable[[], None],
    counters: np.ndarray,
    flops: int,
    call: np.ndarray | None = None,
    standby: Standby | None = None,
) -> None:
    """Run ``job`` on every thread of the team. Ctrl-C ends a long product early; during a short product it takes effect
    when the product is done.

    ``call`` is the same job, encoded for workers that wait in machine code (``Team.rally``). Raises KeyboardInterrupt,
    or Stopped inside ``stoppable``, when no thread writes to C or the workspace any more.
    """

    def end() -> None:
        counters.fill(STOP)

    if (stop := current.get()) is not None:
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
