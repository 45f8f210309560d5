"""Threads that work on one product together.

They are threads of Python, for compiled code releases the GIL. Callers on several threads never wait for each other, and a
forked child starts new workers. Waking a thread costs 20 to 100 µs.

Products that follow each other closely need not wake threads: a worker stands by for a millisecond after its part of a
product, without sleeping and without the GIL, and takes a call from its mailbox in less than a microsecond (see
``Standby``). The caller does not wait for a late worker: it takes back a call that has not begun when the caller is done.

Where the system allows, each thread is woken on a processor of its own. Left alone, Linux may wake a worker on the caller's
and start it 4 ms late, while another is idle: on 2 cores products of 6 ms took 10.
"""

from __future__ import annotations

import collections
import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol

import numpy as np

from ...operands import aligned_empty
from .interrupts import ensured, run_on_thread
from .processors import allowed_processors, processor_here

Job = Callable[[], None]
#: A call in words, for workers that stand by.
Words = np.ndarray | None

#: Words of a worker's mailbox, a cache line (with a spare one on either side, for processors load lines in pairs); and the
#: word that asks the worker to stop standing by.
_MAILBOX, _LEAVE = 8, 1


class Standby(Protocol):
    """How workers wait without sleeping or the GIL. A mailbox's first word is 0 while its worker sleeps; where its second is
    not 0, the worker stops standing by. A call is named by the address of its words."""

    def stand_by(self, mailbox: np.ndarray) -> None:
        """Run the calls that are posted in the mailbox, until none was posted for a while."""

    def post(self, mailbox: np.ndarray, call: int) -> bool:
        """Post a call if the mailbox's worker stands by; return whether it does."""

    def settle(self, mailbox: np.ndarray, call: int) -> None:
        """Take this call back if it was posted and has not begun; wait for its end if it has begun."""

    def failed(self, call: np.ndarray) -> bool:
        """Whether a thread found no memory for its part of a call."""


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
        task = _TeamCall()
        task.stop = stop

        def body() -> None:
            workers = _crew.claim(task, len(jobs) - 1)
            _crew.seat(workers, task.here, task.allowed)
            for worker, job in zip(workers, jobs[1:], strict=True):
                worker.give(task, job)
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

    def rally(self, job: Job, call: Words = None, standby: Standby | None = None) -> None:
        """Run ``job`` on this thread, and on each other thread of the team that begins before this one has finished.

        The job must distribute its own work, so that it is complete even if no other thread begins. ``call`` is the same
        job encoded for ``standby``; workers that stand by receive it. Raises the first error, and an interrupt once no other
        thread is at work.
        """
        if self.threads == 1:
            job()
            return
        task = _TeamCall(job, standby, call)

        def body() -> None:
            task.asleep += [worker for worker in _crew.claim(task, self.threads - 1) if not task.posts_to(worker)]
            task.wake(1)
            job()

        ensured(body, task.settle)
        task.raise_error()

    def wake(self, standby: Standby) -> None:
        """Wake the team's other threads, so that they stand by for the next call; does not wait for them."""
        task = _TeamCall(_nothing, standby)
        task.asleep += _crew.sleeping(self.threads - 1)
        task.wake(1)


class _TeamCall:
    """One call of ``Team``: the workers that it has claimed, and how many have begun and ended their job.

    With ``shared``, the job of ``rally``, each worker that begins first wakes two others (a wake-up tree): waking one takes
    10 to 50 µs, so waking fifteen would take the caller half the time of a product of 1000³.
    """

    def __init__(self, shared: Job | None = None, standby: Standby | None = None, call: Words = None) -> None:
        self.here, self.allowed = (
            processor_here(),
            allowed_processors(),
        )  # the caller's, also when a worker wakes another
        self.standby = standby
        #: Workers that this task tried to claim, in order; those that it did claim are in the crew's ``claims``.
        self.tried: list[_Worker] = []
        self.asleep: list[_Worker] = []
        self._shared = shared
        self.stop: Job | None = None
        self._call, self._call_address = call, 0 if call is None else call.ctypes.data
        self._posted: list[_Worker] = []
        self._begun: list[None] = []
        self._ended: list[BaseException | None] = []
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
            # By the last one only: each ring wakes the caller, which takes the GIL from the workers.
            self._bell.put(None)

    def posts_to(self, worker: _Worker) -> bool:
        """Post the call to a worker, if it stands by where the caller may run."""
        if self.standby is None or self._call is None or worker.allowed != self.allowed:
            return False
        self._posted.append(worker)  # before it is posted, so that ``settle`` finds it
        return self.standby.post(worker.mailbox, self._call_address)

    def wake(self, count: int) -> None:
        """Wake up to ``count`` workers that are still asleep, for the shared job."""
        assert self._shared is not None
        for _ in range(count):
            try:
                worker = self.asleep.pop()
            except IndexError:  # other threads wake workers at the same time
                return
            _crew.seat([worker], self.here, self.allowed)
            worker.give(self, self._shared)

    def wait(self, count: int) -> None:
        """Wait until ``count`` jobs have ended. The list is counted, because an interrupt may swallow a ring of the bell."""
        while len(self._ended) < count:
            self._bell.get()

    def settle(self) -> None:
        """Wait until no thread works for this task and none will begin; then other tasks may claim its workers.

        May be interrupted anywhere and called again.
        """
        self._closed = True
        if self.stop is not None and len(self._ended) < len(self._begun):
            self.stop()
        claimed = [worker for worker in self.tried if _crew.claims.get(worker) is self]
        if self.standby is not None:
            for worker in self._posted:
                self.standby.settle(worker.mailbox, self._call_address)
        while len(self._ended) < len(self._begun):
            self._bell.get()
        for worker in claimed:
            _crew.claims.pop(worker, None)

    def raise_error(self) -> None:
        """Raise the first error of a worker, if there is one."""
        for error in self._ended:
            if error is not None:
                raise error
        if self.standby is not None and self._call is not None and self.standby.failed(self._call):
            raise MemoryError("a thread that shared this product found no memory for its part")


def _nothing() -> None:
    """The job of a worker that is only to stand by."""


class _Worker(threading.Thread):
    """Runs one job after another from its inbox; when the inbox is empty, it stands by for a while and then sleeps."""

    def __init__(self, crew: _Crew) -> None:
        super().__init__(name="tilewright", daemon=True)
        self._crew = crew
        self.inbox: SimpleQueue[tuple[_TeamCall, Job]] = SimpleQueue()
        self.mailbox = aligned_empty(3 * _MAILBOX, np.int64)[_MAILBOX : 2 * _MAILBOX]
        self.mailbox[:] = 0
        self.address = self.mailbox.ctypes.data
        self.seat: int | None = None
        self.pinned = False
        self.allowed: set[int] | None = None
        self.start()

    def run(self) -> None:
        self._crew.workers.append(self)
        while True:
            task, job = self.inbox.get()
            standby = task.standby
            if standby is None:
                self._release()  # it runs on its seat: from now on the scheduler may move it
            task.do(job)
            self._release()  # only now: from a wait for the GIL it might wake on the caller's processor, and stand by there
            del task, job
            self.mailbox[_LEAVE] = 0  # before the inbox is looked into: ``give`` sets it when the job is there
            if standby is not None and self.inbox.empty():
                standby.stand_by(self.mailbox)

    def _release(self) -> None:
        if self.pinned:
            self.pinned = False
            os.sched_setaffinity(0, self.allowed or ())

    def give(self, task: _TeamCall, job: Job) -> None:
        """Let it do a job as soon as it is idle; it does not stand by any longer."""
        self.inbox.put((task, job))
        self.mailbox[_LEAVE] = 1


class _Crew:
    """The workers of this process, and which task has claimed which of them.

    There is no lock, which an interrupt could leave taken: a claim is one operation of a dict. Callers in machine code need
    no claim (``shared_products``): a mailbox takes one call at a time, and a job in a worker's inbox waits for its end.
    """

    def __init__(self) -> None:
        self.workers: list[_Worker] = []
        self.mailboxes = np.zeros(0, np.int64)  # their addresses
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

    def sleeping(self, count: int) -> list[_Worker]:
        """Those of the first ``count`` workers that do not stand by, or are to leave a busy processor."""
        if len(self.workers) < count:
            run_on_thread(functools.partial(self._hire, count - len(self.workers)))
        return [worker for worker in self.workers[:count] if not worker.mailbox[0] or worker.mailbox[_LEAVE]]

    def _hire(self, count: int) -> None:
        before = len(self.workers)
        for _ in range(count):
            _Worker(self)
        while len(self.workers) < before + count:
            time.sleep(1e-5)  # each enters itself into the list as soon as it runs
        self.mailboxes = np.array([worker.address for worker in self.workers], np.int64)

    def seat(self, workers: list[_Worker], here: int | None, allowed: set[int] | None) -> None:
        """Prepare workers for a job in their inboxes: pin each to a processor to wake on.

        That is one of the processors ``allowed`` to the caller, and not its own, ``here``, if there is another. A worker
        keeps its seat after the job, because it may stand by there.
        """
        for worker in workers:
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


def mailboxes() -> np.ndarray:
    """The addresses of the mailboxes of all workers of this process; a new array when there are more of them."""
    return _crew.mailboxes


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_crew.__init__)  # type: ignore[misc]  # threads do not survive a fork
