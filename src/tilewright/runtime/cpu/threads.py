"""Threads that work on one product together.

They are threads of Python, for compiled code releases the GIL. Callers on several threads never wait for each other, and a
forked child starts new workers. Waking a thread costs 20 to 100 µs, so a small product runs on one.

Products that follow each other closely need not wake threads: a worker that has finished its part of a product stands by for
a millisecond, without sleeping and without the GIL, and takes a call that is posted in its mailbox in about a microsecond
(see ``Standby``). No other processor time is spent on waiting for a next product. The caller does not wait for a late
worker: it takes back a call that the worker has not begun when the caller is done.

Where the system allows, each thread is woken on a processor of its own. Left alone, Linux may wake a worker on the very
processor that the caller computes on and start it 4 ms late, while another is idle: seen on 2 cores after numpy's
OpenBLAS had used them, where it made products of 6 ms take 10.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol, TypeVar

import numpy as np

from .interrupts import ensured, run_on_thread
from .processors import allowed_processors, processor_here

Job = Callable[[], None]
Result = TypeVar("Result")

#: Words of a worker's mailbox, with a spare cache line on either side to avoid false sharing.
_MAILBOX = 48


class Standby(Protocol):
    """How workers wait without sleeping, and without the GIL. A mailbox's first word is 0 while its worker sleeps."""

    def stand_by(self, mailbox: np.ndarray) -> None:
        """Run the calls that are posted in the mailbox, until none was posted for a while."""

    def post(self, mailbox: np.ndarray, call: np.ndarray) -> bool:
        """Post a call if the mailbox's worker stands by; return whether it does."""

    def settle(self, mailbox: np.ndarray) -> bool:
        """Take back a posted call that has not begun; wait for the end of one that has. False if one found no memory."""


class Team:
    """A number of threads, of which the caller is one.

    An interrupt may come at any bytecode. Each step of a call is recorded before it takes effect, by one operation of C, and
    ``ensured`` undoes the recorded steps: no thread works for a call that has returned, and no worker is lost.

    >>> seen = []
    >>> Team(2).run([lambda: seen.append(1), lambda: seen.append(2)])
    >>> sorted(seen)
    [1, 2]
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def run(self, jobs: Sequence[Job], stop: Job | None = None) -> None:
        """Run every job, each on a thread of its own and the first on the calling one; raises the first error of any.

        An interrupt skips the jobs that have not begun and calls ``stop``, which may make the others end early and must
        allow to be called again. The interrupt is raised when the jobs that had begun have ended.
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
            own_error: Exception | None = None
            try:
                jobs[0]()
            except Exception as error:
                own_error = error
            task.wait(len(workers))
            if own_error is not None:
                raise own_error

        ensured(body, task.settle)
        task.raise_error()

    def rally(self, job: Job, call: np.ndarray | None = None, standby: Standby | None = None) -> None:
        """Run ``job`` on this thread, and on each other thread of the team that begins before this one has finished.

        The job must distribute its own work, so that it is complete even if no other thread begins. ``call`` is the same
        job encoded for ``standby``; workers that stand by receive it. Raises the first error, and an interrupt once no other
        thread is at work.
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

    def with_standing(self, work: Callable[[list[int]], Result]) -> Result | None:
        """``work(mailboxes)`` while the team's other threads stand by and no other call may use them; ``mailboxes`` are the
        addresses of theirs. None, and nothing is done, if too few stand by.

        ``work`` must not leave a call in a mailbox.
        """
        task = _TeamCall()

        def body() -> Result | None:
            workers = _crew.claim_standing(task, self.threads - 1)
            return work([worker.address for worker in workers]) if workers else None

        return ensured(body, task.settle)


class _TeamCall:
    """One call of ``Team``: the workers that it has claimed, and how many have begun and ended their job.

    With ``shared``, the job of ``rally``, each worker that begins first wakes two others (a wake-up tree): waking one takes
    10 to 50 µs, so waking fifteen would take the caller half the time of a product of 1000³.
    """

    def __init__(self, shared: Job | None = None, standby: Standby | None = None, stop: Job | None = None) -> None:
        self.here, self.allowed = (
            processor_here(),
            allowed_processors(),
        )  # of the caller, also when a worker wakes another
        self.standby = standby
        #: Workers that this task tried to claim, in order; those that it did claim are in the crew's ``claims``.
        self.tried: list[_Worker] = []
        self.asleep: list[_Worker] = []
        self._shared, self._stop = shared, stop
        self._begun: list[None] = []
        self._ended: list[BaseException | None] = []
        self._failed: list[None] = []
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._closed = False

    def do(self, job: Job) -> None:
        """Called by a worker, on which no signal handler runs. Does nothing once the task is closed."""
        self._begun.append(None)  # before reading _closed: ``settle`` sets _closed before it counts
        error = None
        try:
            if not self._closed:
                if self._shared is not None:
                    self.wake(2)
                job()
        except BaseException as raised:  # of any kind: it is raised again on the caller's thread
            error = raised
        self._ended.append(error)
        if len(self._ended) == len(self._begun):
            self._bell.put(
                None
            )  # by the last one only: each ring wakes the caller, which takes the GIL from the workers

    def wake(self, count: int) -> None:
        """Wake up to ``count`` workers that are still asleep, for the shared job."""
        assert self._shared is not None
        for _ in range(count):
            try:
                worker = self.asleep.pop()
            except IndexError:  # other threads wake workers at the same time
                return
            _crew.seat([worker], self.here, self.allowed)
            worker.inbox.put((self, self._shared))

    def wait(self, count: int) -> None:
        """Wait until ``count`` jobs have ended. The list is counted, because an interrupt may swallow a ring of the bell."""
        while len(self._ended) < count:
            self._bell.get()

    def settle(self) -> None:
        """Wait until no thread works for this task and none will begin; then other tasks may claim its workers.

        May be interrupted anywhere and called again.
        """
        self._closed = True
        if self._stop is not None and len(self._ended) < len(self._begun):
            self._stop()
        claimed = [worker for worker in self.tried if _crew.claims.get(worker) is self]
        if self.standby is not None:
            for worker in claimed:
                if not self.standby.settle(worker.mailbox):
                    self._failed.append(None)
        while len(self._ended) < len(self._begun):
            self._bell.get()
        for worker in claimed:
            _crew.claims.pop(worker, None)

    def raise_error(self) -> None:
        """Raise the first error of a worker, if there is one."""
        for error in self._ended:
            if error is not None:
                raise error
        if self._failed:
            raise MemoryError("a thread that shared this product found no memory for its part")


class _Worker(threading.Thread):
    """Runs one job after another from its inbox; when the inbox is empty, it stands by for a while and then sleeps."""

    def __init__(self, crew: _Crew) -> None:
        super().__init__(name="tilewright", daemon=True)
        self._crew = crew
        self.inbox: SimpleQueue[tuple[_TeamCall, Job]] = SimpleQueue()
        self.mailbox = np.zeros(_MAILBOX, np.int64)[8:-8]
        self.address = self.mailbox.ctypes.data
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
                os.sched_setaffinity(
                    0, self.allowed or ()
                )  # it runs on its seat: from now on the scheduler may move it
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
        """Claim idle workers: the same ones each time if they are free, for they may stand by; new ones if too few are.

        A worker is noted in ``tried`` before the claim, so that ``settle`` finds every claim even if this is interrupted.
        """
        claimed: list[_Worker] = []
        seen = 0
        while len(claimed) < count:
            if seen == len(self.workers):
                # Hired without a claim: if this is interrupted, they are idle workers for the next task.
                run_on_thread(functools.partial(self._hire, count - len(claimed)))
            worker = self.workers[seen]
            seen += 1
            task.tried.append(worker)
            if self.claims.setdefault(worker, task) is task:
                claimed.append(worker)
        return claimed

    def claim_standing(self, task: _TeamCall, count: int) -> list[_Worker]:
        """Claim as many workers, all of which stand by where the caller may run; none if there are fewer."""
        claimed: list[_Worker] = []
        for worker in self.workers:
            if worker.mailbox[0] and worker.allowed == task.allowed:
                task.tried.append(worker)
                if self.claims.setdefault(worker, task) is task:
                    claimed.append(worker)
                    if len(claimed) == count:
                        return claimed
        return []

    def _hire(self, count: int) -> None:
        before = len(self.workers)
        for _ in range(count):
            _Worker(self)
        while len(self.workers) < before + count:
            time.sleep(1e-5)  # each enters itself into the list as soon as it runs

    def seat(self, workers: list[_Worker], here: int | None, allowed: set[int] | None) -> None:
        """Prepare workers for a job in their inboxes: end their standing by, and pin each to a processor to wake on.

        That is one of the processors ``allowed`` to the caller, and not ``here``, the caller's own, if there is another. A
        worker keeps its seat after the job, because it may stand by there.
        """
        for worker in workers:
            worker.mailbox[0] = 0
            worker.allowed = allowed  # for each job: callers on other threads may be allowed other processors
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


def even_slices(length: int, parts: int, grain: int = 1) -> list[slice]:
    """At most ``parts`` consecutive slices of nearly equal length, all but the last a multiple of ``grain`` long.

    >>> even_slices(10, 3), even_slices(10, 2, grain=4)
    ([slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)], [slice(0, 4, None), slice(4, 10, None)])
    """
    grains = max(1, math.ceil(length / grain))
    parts = min(parts, grains)
    edges = [min(length, (grains * part // parts) * grain) for part in range(parts)] + [length]
    return [slice(low, high) for low, high in itertools.pairwise(edges)]
