"""Threads that work on one product together.

They are Python's own: compiled code releases the GIL, callers on several threads never wait for each other, and a forked
child starts fresh ones. Waking a thread costs 20 to 100 µs, so small products stay on one.

Between products that follow each other closely no thread need be woken: a worker that has done its part of a product stands
by for a millisecond, awake, without the GIL, and takes what is posted in its mailbox in about a microsecond (see
``Standby``). That is all the processor time that is ever spent on waiting for a next product. The caller does not wait for a
late worker: what it has not begun when the caller is done is taken back.

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
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol

import numpy as np

from .interrupts import apart, ensured

Job = Callable[[], None]

#: Words of a worker's mailbox, with a cache line to spare on either side: threads that look at others must not slow it.
_MAILBOX = 48


class Standby(Protocol):
    """How workers wait awake. All three let go of the GIL; the mailbox's first word is 0 while its owner is asleep."""

    def stand_by(self, mailbox: np.ndarray) -> None:
        """Do what is posted in the mailbox, until nothing was posted for a while."""

    def post(self, mailbox: np.ndarray, call: np.ndarray) -> bool:
        """Post a call, if the mailbox's owner stands by."""

    def settle(self, mailbox: np.ndarray) -> None:
        """Take back what was posted and not begun; return when what was begun is done."""


class Team:
    """A number of threads, of which the caller is one.

    An interrupt may come at any bytecode. Whatever a call has begun is recorded before it has an effect, in steps that are
    one operation of C each, and ``ensured`` undoes it: no thread works for a call that has returned, and no worker is lost.

    >>> seen = []
    >>> Team(2).run([lambda: seen.append(1), lambda: seen.append(2)])
    >>> sorted(seen)
    [1, 2]
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def run(self, jobs: Sequence[Job], stop: Job | None = None) -> None:
        """Do every job, each on a thread of its own and the first on the calling one; raises the first error of any.

        An interrupt skips the jobs that no thread has begun, calls ``stop``, which may end the others early and must do no
        harm when it is called again, and is raised when those others have ended.
        """
        if len(jobs) == 1:
            jobs[0]()
            return
        task = _TeamCall(stop=stop)

        def body() -> None:
            workers = _crew.claim(task, len(jobs) - 1)
            _crew.seat(workers, task.here, task.allowed)
            for worker, job in zip(workers, jobs[1:], strict=True):
                worker.inbox.put((task, job))
            own: Exception | None = None
            try:
                jobs[0]()
            except Exception as error:
                own = error
            task.wait(len(workers))
            if own is not None:
                raise own

        ensured(body, task.settle)
        task.raise_error()

    def rally(self, job: Job, call: np.ndarray | None = None, standby: Standby | None = None) -> None:
        """Do ``job`` here, and on as many other threads of the team as begin it before it is done here.

        The job must share out its work by itself, so that nothing is missing where no other thread begins it. ``call`` is
        the same job in the words of ``standby``: workers that stand by are called by it. Raises the first error, and an
        interrupt when no other thread is at work.
        """
        if self.threads == 1:
            job()
            return
        task = _TeamCall(job, standby)

        def body() -> None:
            for worker in _crew.claim(task, self.threads - 1):
                if (
                    standby is None
                    or call is None
                    or worker.allowed != task.allowed
                    or not standby.post(worker.mailbox, call)
                ):
                    task.asleep.append(worker)
            task.wake(1)
            job()

        ensured(body, task.settle)
        task.raise_error()


class _TeamCall:
    """One call of ``Team``: the workers that it has claimed, and how many have begun and ended their job.

    With ``shared``, the job of ``rally``, each worker that begins wakes two more first: waking one takes 10 to 50 µs, and
    fifteen of them would take the caller the time of half a product of 1000³.
    """

    def __init__(self, shared: Job | None = None, standby: Standby | None = None, stop: Job | None = None) -> None:
        self.here, self.allowed = _processor(), _allowed()  # the caller's, also where a worker wakes another
        self.standby = standby
        #: Workers that this task tried to claim, in order; those it did claim are in the crew's ``claims``.
        self.tried: list[_Worker] = []
        self.asleep: list[_Worker] = []
        self._shared, self._stop = shared, stop
        self._begun: list[None] = []
        self._ended: list[BaseException | None] = []
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._closed = False

    def do(self, job: Job) -> None:
        """Called by a worker, on which no signal handler runs. Does nothing once the task is closed."""
        self._begun.append(None)  # before looking: ``settle`` closes first and counts then
        error = None
        try:
            if not self._closed:
                if self._shared is not None:
                    self.wake(2)
                job()
        except BaseException as raised:  # whatever it is, it is raised again on the caller's thread
            error = raised
        self._ended.append(error)
        if len(self._ended) == len(self._begun):
            self._bell.put(None)  # the last alone: every ring wakes the caller, who takes the GIL from the others

    def wake(self, count: int) -> None:
        """Wake that many of those that are still asleep, for the shared job."""
        assert self._shared is not None
        for _ in range(count):
            try:
                worker = self.asleep.pop()
            except IndexError:  # other threads wake some at the same time
                return
            _crew.seat([worker], self.here, self.allowed)
            worker.inbox.put((self, self._shared))

    def wait(self, count: int) -> None:
        """Until so many jobs have ended. They are counted in the list: an interrupt may swallow a ring of the bell."""
        while len(self._ended) < count:
            self._bell.get()

    def settle(self) -> None:
        """Until no thread works for this task and none will begin; then its workers are others' to claim.

        May be interrupted anywhere and called again.
        """
        self._closed = True
        if self._stop is not None and len(self._ended) < len(self._begun):
            self._stop()
        claimed = [worker for worker in self.tried if _crew.claims.get(worker) is self]
        if self.standby is not None:
            for worker in claimed:
                self.standby.settle(worker.mailbox)
        while len(self._ended) < len(self._begun):
            self._bell.get()
        for worker in claimed:
            _crew.claims.pop(worker, None)

    def raise_error(self) -> None:
        """Raise what a worker raised first, if any did."""
        for error in self._ended:
            if error is not None:
                raise error


class _Worker(threading.Thread):
    """Does one job after another from its inbox; idle, it stands by for a while and then sleeps there."""

    def __init__(self, crew: _Crew) -> None:
        super().__init__(name="tilewright", daemon=True)
        self._crew = crew
        self.inbox: SimpleQueue[tuple[_TeamCall, Job]] = SimpleQueue()
        self.mailbox = np.zeros(_MAILBOX, np.int64)[8:-8]
        self.seat: int | None = None
        self.pinned = False
        self.allowed: set[int] | None = None
        self.start()

    def run(self) -> None:
        self._crew.workers.append(self)
        while True:
            task, job = self.inbox.get()
            if self.pinned:
                self.pinned = False
                os.sched_setaffinity(0, self.allowed or ())  # awake and seated: from here the scheduler may move it
            task.do(job)
            standby = task.standby
            del task, job
            if standby is not None and self.inbox.empty():
                standby.stand_by(self.mailbox)


class _Crew:
    """The workers of this process, and which task has claimed which of them.

    There is no lock, which an interrupt could leave taken: a claim is one operation of a dict.
    """

    def __init__(self) -> None:
        self.workers: list[_Worker] = []
        self.claims: dict[_Worker, _TeamCall] = {}

    def claim(self, task: _TeamCall, count: int) -> list[_Worker]:
        """Idle workers, the same ones each time where they are free: they may stand by. Where there are too few, new ones.

        A worker that was tried is noted first, so that ``settle`` finds what was claimed even if this is interrupted.
        """
        claimed: list[_Worker] = []
        seen = 0
        while len(claimed) < count:
            if seen == len(self.workers):
                # Unclaimed, for this may be interrupted: then they are idle workers of the next task.
                apart(functools.partial(self._hire, count - len(claimed)))
            worker = self.workers[seen]
            seen += 1
            task.tried.append(worker)
            if self.claims.setdefault(worker, task) is task:
                claimed.append(worker)
        return claimed

    def _hire(self, count: int) -> None:
        before = len(self.workers)
        for _ in range(count):
            _Worker(self)
        while len(self.workers) < before + count:
            time.sleep(1e-5)  # each enters itself into the list as soon as it runs

    def seat(self, workers: list[_Worker], here: int | None, allowed: set[int] | None) -> None:
        """Before a job is put into their inboxes: none stands by any more, and each has a processor to wake on.

        It is one of those ``allowed`` to the caller, who is ``here``. A worker keeps its seat when it is done, for it may
        stand by there.
        """
        for worker in workers:
            worker.mailbox[0] = 0
            worker.allowed = allowed  # its own: callers on other threads may be allowed other processors
            if here is not None and allowed is not None:
                self._seat(worker, allowed - {here} or {here})

    def _seat(self, worker: _Worker, free: set[int]) -> None:
        last, worker.seat = worker.seat, None
        taken = collections.Counter(other.seat for other in self.workers)
        seat = min(free, key=lambda processor: (taken[processor], processor != last, processor))
        assert worker.native_id is not None
        worker.pinned = True
        try:
            os.sched_setaffinity(worker.native_id, {seat})
        except OSError:  # a container may forbid it: then the scheduler decides alone
            worker.pinned = False
            return
        worker.seat = seat


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


def even_slices(length: int, parts: int, grain: int = 1) -> list[slice]:
    """At most ``parts`` consecutive slices of nearly equal length, all but the last a multiple of ``grain`` long.

    >>> even_slices(10, 3), even_slices(10, 2, grain=4)
    ([slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)], [slice(0, 4, None), slice(4, 10, None)])
    """
    grains = max(1, math.ceil(length / grain))
    parts = min(parts, grains)
    edges = [min(length, (grains * part // parts) * grain) for part in range(parts)] + [length]
    return [slice(low, high) for low, high in itertools.pairwise(edges)]
