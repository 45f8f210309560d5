"""Threads that work on one product together.

They are Python's own: compiled code releases the GIL, callers on several threads never wait for each other, and a forked
child starts fresh ones. Waking a thread costs 20 to 100 µs, so small products stay on one.

Between products that follow each other closely nobody need be woken: a worker that has done its part of a product stands
by for a millisecond, awake, without the GIL, and takes what is posted in its mailbox in about a microsecond (see
``Standby``). That is all the processor time that is ever spent on waiting for a next product. Nobody waits for a worker that
comes late: what it has not begun when the caller is done is taken back.

Where the system allows, each thread is woken on a processor of its own. Left alone, Linux may wake a worker on the very
processor that the caller computes on and start it 4 ms late, while another is idle: seen on 2 cores after numpy's
OpenBLAS had used them, where it made products of 6 ms take 10.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import itertools
import math
import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np

Job = Callable[[], None]

#: Words of a worker's mailbox, with a cache line to spare on either side: threads that look at others must not slow it.
_MAILBOX = 48


class Standby(Protocol):
    """How workers wait awake. All three let go of the GIL; the mailbox's first word is 0 while its owner is asleep."""

    def stand_by(self, mailbox: np.ndarray) -> None:
        """Do what is posted in the mailbox, until nobody has posted for a while."""

    def post(self, mailbox: np.ndarray, call: np.ndarray) -> bool:
        """Post a call, if the mailbox's owner stands by."""

    def settle(self, mailbox: np.ndarray) -> None:
        """Take back what was posted and not begun; return when what was begun is done."""


class Team:
    """A number of threads, of which the caller is one.

    >>> seen = []
    >>> Team(2).run([lambda: seen.append(1), lambda: seen.append(2)])
    >>> sorted(seen)
    [1, 2]
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def run(self, jobs: Sequence[Job]) -> None:
        """Do every job, the first on the calling thread; returns when all are done, raising the first error.

        Ctrl-C is raised when they are done as well: nobody writes to the caller's arrays after this has returned.
        """
        if len(jobs) == 1:
            jobs[0]()
            return
        outcomes = _Outcomes(len(jobs) - 1)
        workers = _crew.take(len(jobs) - 1)
        _crew.seat(workers, _processor(), _allowed())
        for worker, job in zip(workers, jobs[1:], strict=True):
            worker.inbox.put(functools.partial(_report, job, outcomes))
        try:
            jobs[0]()
        finally:
            errors = outcomes.wait()
            _crew.release(workers)
        for error in errors:
            if error is not None:
                raise error

    def rally(self, job: Job, call: np.ndarray | None = None, standby: Standby | None = None) -> None:
        """Do ``job`` here, and at the same time on as many other threads of the team as come before it is done here.

        It must be a job that shares out work by itself, so that nothing is missing when nobody comes. ``call`` says the same
        job in words that ``standby`` knows: by it workers that stand by are called. Raises the first error, and Ctrl-C when
        nobody is at work any more.
        """
        if self.threads == 1:
            job()
            return
        workers = _crew.take(self.threads - 1)
        errand = _Errand(job, standby)
        try:
            for worker in workers:
                if (
                    standby is None
                    or call is None
                    or worker.allowed != errand.allowed
                    or not standby.post(worker.mailbox, call)
                ):
                    errand.asleep.append(worker)
            errand.wake(1)
            job()
        finally:
            interrupt: KeyboardInterrupt | None = None
            while True:
                try:
                    for worker in workers:
                        if standby is not None:  # who was not called has nothing to settle
                            standby.settle(worker.mailbox)
                    errors = errand.recall()
                    _crew.release(workers)
                    break
                except KeyboardInterrupt as pressed:
                    interrupt = pressed
        for error in [interrupt, *errors]:
            if error is not None:
                raise error


class _Errand:
    """A job that several workers may do and none must: who comes after ``recall`` does nothing.

    Who comes wakes two more before it begins: waking one takes 10 to 50 µs, and 15 of them the caller's time for half a
    product of 1000³.
    """

    def __init__(self, job: Job, standby: Standby | None) -> None:
        self.standby = standby
        self.here, self.allowed = _processor(), _allowed()  # the caller's, whoever wakes
        self.asleep: list[_Worker] = []
        self._job = job
        self._begun: list[None] = []
        self._ended: list[BaseException | None] = []
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._closed = False

    def __call__(self) -> None:
        self._begun.append(None)  # before looking: recall closes first and counts then
        error = None
        try:
            if not self._closed:
                self.wake(2)
                self._job()
        except BaseException as raised:  # whatever it is, it belongs to the caller
            error = raised
        self._ended.append(error)
        if len(self._ended) == len(self._begun):
            self._bell.put(None)  # the last alone: every ring wakes the caller, who takes the GIL from the others

    def wake(self, count: int) -> None:
        """Wake that many of those that are still asleep. Not after ``recall``, which waits for those who do."""
        for _ in range(count):
            try:
                worker = self.asleep.pop()
            except IndexError:  # others wake some at the same time
                return
            _crew.seat([worker], self.here, self.allowed)
            worker.inbox.put(self)

    def recall(self) -> list[BaseException | None]:
        """Wait for those who have begun; what became of them."""
        self._closed = True
        while len(self._ended) < len(self._begun):
            self._bell.get()
        return list(self._ended)


class _Outcomes:
    """What became of the jobs that workers were given: an error or None for each."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._errors: list[BaseException | None] = []
        self._bell: SimpleQueue[None] = SimpleQueue()

    def put(self, error: BaseException | None) -> None:
        self._errors.append(error)
        self._bell.put(None)

    def wait(self) -> list[BaseException | None]:
        """All of them, once all are there, after the Ctrl-C that came meanwhile, if one did.

        They are counted in the list and not by the rings of the bell: an interrupt may swallow a ring that was heard.
        """
        interrupt: KeyboardInterrupt | None = None
        while True:
            try:
                while len(self._errors) < self._count:
                    self._bell.get()
                return [interrupt, *self._errors]
            except KeyboardInterrupt as pressed:
                interrupt = pressed


def _report(job: Job, outcomes: _Outcomes) -> None:
    try:
        job()
        outcomes.put(None)
    except BaseException as error:  # whatever it is, it belongs to the caller
        outcomes.put(error)


class _Worker(threading.Thread):
    """Does one job after another from its inbox; idle, it stands by for a while and then sleeps there."""

    def __init__(self) -> None:
        super().__init__(name="tilewright", daemon=True)
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self.mailbox = np.zeros(_MAILBOX, np.int64)[8:-8]
        self.seat: int | None = None
        self.pinned = False
        self.allowed: set[int] | None = None
        self.start()

    def run(self) -> None:
        while True:
            task = self.inbox.get()
            if self.pinned:
                self.pinned = False
                os.sched_setaffinity(0, self.allowed or ())  # awake and seated: from here the scheduler may move it
            task()
            standby = task.standby if isinstance(task, _Errand) else None
            del task
            if standby is not None and self.inbox.empty():
                standby.stand_by(self.mailbox)


class _Crew:
    """The workers of this process: those that are idle, and how many were last seated on each processor.

    A worker keeps its seat when it is done, for it may stand by there.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._seated: collections.Counter[int] = collections.Counter()

    def take(self, count: int) -> list[_Worker]:
        """Idle workers, those first that were busy last: they may stand by."""
        with self._lock:
            return [self._idle.pop() if self._idle else _Worker() for _ in range(count)]

    def seat(self, workers: list[_Worker], here: int | None, allowed: set[int] | None) -> None:
        """Before a job is put into their inboxes: nobody stands by any more, and each has a processor to wake on.

        It is one of those ``allowed`` to the caller, who is ``here``.
        """
        with self._lock:
            for worker in workers:
                worker.mailbox[0] = 0
                worker.allowed = allowed  # its own: callers on other threads may be allowed other processors
                if here is not None and allowed is not None:
                    self._seat(worker, allowed - {here} or {here})

    def _seat(self, worker: _Worker, free: set[int]) -> None:
        last, worker.seat = worker.seat, None
        if last is not None:
            self._seated[last] -= 1
        seat = min(free, key=lambda processor: (self._seated[processor], processor != last, processor))
        assert worker.native_id is not None
        try:
            os.sched_setaffinity(worker.native_id, {seat})
        except OSError:  # a container may forbid it: then the scheduler decides alone
            return
        worker.seat, worker.pinned = seat, True
        self._seated[seat] += 1

    def release(self, workers: list[_Worker]) -> None:
        with self._lock:
            self._idle += workers


_crew = _Crew()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_crew.__init__)  # type: ignore[misc]  # threads do not survive a fork


@functools.cache
def _sched_getcpu() -> Callable[[], int] | None:
    try:
        return ctypes.CDLL(None).sched_getcpu  # in glibc and musl; nothing like it on macOS
    except (AttributeError, OSError, TypeError):
        return None


def _allowed() -> set[int] | None:
    """The processors that this thread may run on, None where the system does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def _processor() -> int | None:
    """The logical processor that this thread runs on now, None where the system does not say."""
    getcpu = _sched_getcpu()
    return getcpu() if getcpu is not None and hasattr(os, "sched_setaffinity") else None


def cuts(length: int, parts: int, grain: int = 1) -> list[slice]:
    """At most ``parts`` consecutive slices of nearly equal length, all but the last a multiple of ``grain`` long.

    >>> cuts(10, 3), cuts(10, 2, grain=4)
    ([slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)], [slice(0, 4, None), slice(4, 10, None)])
    """
    grains = max(1, math.ceil(length / grain))
    parts = min(parts, grains)
    edges = [min(length, (grains * part // parts) * grain) for part in range(parts)] + [length]
    return [slice(low, high) for low, high in itertools.pairwise(edges)]
