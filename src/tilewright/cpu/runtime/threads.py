"""Threads that work on one product together.

They are threads of Python, for compiled code releases the GIL. Callers on several threads never wait for each other, and a
forked child starts new workers.

A worker waits for a product in machine code, without the GIL: it stands by for a millisecond after its part of a product,
and takes a call from its mailbox in less than a microsecond; then it sleeps, and takes a call in some tens of microseconds,
for threads wake each other (``cpu.codegen.crew``). Jobs that only Python can run reach it through its inbox; to wake it for
those costs 20 to 100 µs. The caller does not wait for a late worker: it takes back a call that has not begun when the caller
is done.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from queue import SimpleQueue

import numpy as np

from ...errors import MemoryLimitError
from .interrupts import ensured
from .workers import Job, Standby, Worker, crew

#: A call in words, for workers that wait in machine code.
Words = np.ndarray | None


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
        """Run every job, each on a thread of its own and the first on the calling one; raises the first error of any. If the
        system starts fewer threads, the calling one runs the jobs that are left, and then the first.

        An interrupt skips the jobs that have not begun and calls ``stop``, which may make the others end early and must
        allow to be called again. The interrupt is raised when the jobs that had begun have ended.
        """
        if len(jobs) == 1:
            jobs[0]()
            return
        task = _TeamCall()
        task.stop = stop

        def body() -> None:
            workers = crew.claim(task, len(jobs) - 1)
            crew.seat(workers, task.here, task.allowed)
            for worker, job in zip(workers, jobs[1:], strict=False):
                task.give(worker, job)
            own_error: Exception | None = None
            for job in (*jobs[1 + len(workers) :], jobs[0]):
                try:
                    job()
                except Exception as error:
                    own_error = own_error or error
            task.wait(len(workers))
            if own_error is not None:
                raise own_error

        ensured(body, task.settle)
        task.raise_error()

    def rally(self, job: Job, call: Words = None, standby: Standby | None = None, stop: Job | None = None) -> None:
        """Run ``job`` on this thread, and on each other thread of the team that begins before this one has finished.

        The job must distribute its own work, so that it is complete even if no other thread begins. ``call`` is the same
        job encoded for ``standby``; workers that wait in machine code receive it. Raises the first error, and an interrupt
        once no other thread is at work; ``stop``, as for ``run``, makes them end early.
        """
        if self.threads == 1:
            job()
            return
        task = _TeamCall(job, standby, call)
        task.stop = stop

        def body() -> None:
            task.post(crew.claim(task, self.threads - 1))
            task.wake(1)
            job()

        ensured(body, task.settle)
        task.raise_error()

    def wake(self, standby: Standby) -> None:
        """Wake the team's other threads, so that they stand by for the next call; does not wait for them."""
        task = _TeamCall(_nothing, standby)
        workers = crew.first(self.threads - 1)
        roused = standby.rouse([worker.mailbox for worker in workers], task.place)
        task.asleep += [worker for worker, awake in zip(workers, roused, strict=True) if not awake]
        task.wake(1)


class _TeamCall:
    """One call of ``Team``: the workers that it has claimed, and how many have begun and ended their job.

    With ``shared``, the job of ``rally``, each worker that begins first wakes two others (a wake-up tree): waking one from
    Python takes 10 to 50 µs, so waking fifteen would take the caller half the time of a product of 1000³.
    """

    def __init__(self, shared: Job | None = None, standby: Standby | None = None, call: Words = None) -> None:
        self.here, self.allowed = (
            processor_here(),
            allowed_processors(),
        )  # the caller's, also when a worker wakes another
        #: The same as a number: −1 where the system does not say.
        self.place = -1 if self.here is None else self.here
        self.standby = standby
        #: Workers that this task tried to claim, in order; those that it did claim are in the crew's ``claims``.
        self.tried: list[Worker] = []
        self.asleep: list[Worker] = []
        self._shared = shared
        self.stop: Job | None = None
        self._call, self._call_address = call, 0 if call is None else call.ctypes.data
        self._boxes = crew.mailboxes
        self._given: list[Worker] = []
        self._posted: list[Worker] = []
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

    def give(self, worker: Worker, job: Job) -> None:
        """Give a job to a worker that this task has claimed."""
        self._given.append(worker)  # before it is given, so that ``settle`` finds it
        worker.give(self, job)

    def post(self, workers: list[Worker]) -> None:
        """Post the call to those workers that wait in machine code, where the caller may run; the others are to be woken."""
        if self.standby is None or self._call is None:
            self.asleep += workers
            return
        self._boxes = crew.mailboxes
        self.standby.begin(self._call, self._boxes, self.place)
        for worker in workers:
            self._posted.append(worker)  # before it is posted, so that ``settle`` finds it
            if worker.allowed != self.allowed or not self.standby.post(worker.mailbox, self._call):
                self.asleep.append(worker)
        self.standby.wake(self._call, self._boxes)

    def wake(self, count: int) -> None:
        """Wake up to ``count`` workers that are still asleep, for the shared job."""
        assert self._shared is not None
        for _ in range(count):
            try:
                worker = self.asleep.pop()
            except IndexError:  # other threads wake workers at the same time
                return
            crew.seat([worker], self.here, self.allowed)
            self.give(worker, self._shared)

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
        claimed = [worker for worker in self.tried if crew.claims.get(worker) is self]
        for worker in self._given:
            worker.call_back()  # or a job that was given, and is to be skipped now, might keep its arrays alive
        if self.standby is not None:
            for worker in self._posted:
                self.standby.settle(worker.mailbox, self._call_address)
        while len(self._ended) < len(self._begun):
            self._bell.get()
        for worker in claimed:
            crew.claims.pop(worker, None)

    def raise_error(self) -> None:
        """Raise the first error of a worker, if there is one."""
        for error in self._ended:
            if error is not None:
                raise error
        if self.standby is not None and self._call is not None and self.standby.failed(self._call):
            raise MemoryLimitError("a thread that shared this product found no memory for its part")


def _nothing() -> None:
    """The job of a worker that is only to stand by."""


# ---- processors ------------------------------------------------------------------------------------------------------
# Which logical processors a thread may run on, and on which one it runs.


@functools.cache
def _sched_getcpu() -> Callable[[], int] | None:
    try:
        return ctypes.CDLL(None).sched_getcpu  # in glibc and musl; nothing like it on macOS
    except (AttributeError, OSError, TypeError):
        return None


def allowed_processors() -> set[int] | None:
    """The processors that this thread may run on, None where the system does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def processor_here() -> int | None:
    """The logical processor that this thread runs on now, None where the system does not say."""
    getcpu = _sched_getcpu()
    return getcpu() if getcpu is not None and hasattr(os, "sched_setaffinity") else None
