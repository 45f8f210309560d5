"""The worker threads of this process: how each waits for work, which call has claimed it, and where it wakes.

Where the system allows, each thread is woken on a processor of its own. Left alone, Linux may wake a worker on the caller's
and start it 4 ms late, while another is idle: on 2 cores products of 6 ms took 10. Workers that machine code wakes are
placed by Linux, which finds an idle processor for them: they need not wait for the GIL.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol

import numpy as np

from ...host.limits import WORKER, of_this_context
from ...product.operands import aligned_empty
from .interrupts import run_on_thread

Job = Callable[[], None]

#: Words of a worker's mailbox, in cache lines of its own, and of a spare line on either side, for processors load them in
#: pairs.
_MAILBOX, _SPARE = 24, 8


class Standby(Protocol):
    """How workers wait without the GIL, each in its mailbox."""

    def called(self, mailbox: np.ndarray) -> int:
        """How often the worker was called back."""

    def stand_by(self, mailbox: np.ndarray, called: int, awake: bool) -> None:
        """Run the calls that are posted in the mailbox, until the worker was called back more often than ``called``. With
        ``awake``, it looks for them for a while before it sleeps. Where no thread can sleep in machine code, this returns
        when none was posted for a while."""

    def call_back(self, mailbox: np.ndarray) -> None:
        """Let the mailbox's worker return from ``stand_by``, now or as soon as it comes there."""

    def begin(self, call: np.ndarray, boxes: np.ndarray, here: int) -> None:
        """Before a call is posted: among which mailboxes, an array of addresses, those will be. No worker is to wake on the
        processor ``here``."""

    def post(self, mailbox: np.ndarray, call: np.ndarray) -> bool:
        """Post a call if the mailbox's worker waits for one; return whether it does."""

    def wake(self, call: np.ndarray, boxes: np.ndarray) -> None:
        """When a call is posted: wake the first workers that sleep; these will wake others."""

    def rouse(self, mailboxes: Sequence[np.ndarray], here: int) -> list[bool]:
        """Let these mailboxes' workers stand by awake, on other processors than ``here``. For each, False if it runs Python
        code, or is to be brought to another processor."""

    def settle(self, mailbox: np.ndarray, call: int) -> None:
        """Take this call back if it was posted and has not begun; wait for its end if it has begun."""

    def failed(self, call: np.ndarray) -> bool:
        """Whether a thread found no memory for its part of a call."""


class Task(Protocol):
    """One call of ``Team``, as its workers see it."""

    standby: Standby | None
    tried: list[Worker]

    def do(self, job: Job) -> None:
        """Run a job for this call, unless the call has returned."""


class Worker(threading.Thread):
    """Runs one job after another from its inbox. When the inbox is empty it waits in machine code if it knows how: awake
    for a while, if another product may follow its job, then asleep."""

    def __init__(self, crew: Crew) -> None:
        super().__init__(name=WORKER, daemon=True)
        self._crew = crew
        self.inbox: SimpleQueue[tuple[Task, Job]] = SimpleQueue()
        self.mailbox = aligned_empty(_MAILBOX + 2 * _SPARE, np.int64)[_SPARE:-_SPARE]
        self.mailbox[:] = 0
        self.address = self.mailbox.ctypes.data
        self.seat: int | None = None
        self.pinned = False
        self.allowed: set[int] | None = None
        #: How it waits in machine code, once it has learned that. It is set before the inbox is looked into, and ``give``
        #: reads it when the job is there: so no job remains in the inbox of a worker that sleeps in machine code.
        self._standby: Standby | None = None
        self.start()

    def run(self) -> None:
        """Do one job after another; between them wait in machine code, once one of them has taught it how."""
        of_this_context.set(1)
        self._crew.workers.append(self)
        while True:
            task, job = self.inbox.get()
            awake = task.standby is not None
            if not awake:
                self._release()  # it runs on its seat: from now on the scheduler may move it
            task.do(job)
            self._release()  # only now: from a wait for the GIL it might wake on the caller's processor, and stand by there
            standby = self._standby = task.standby or self._standby
            del task, job
            if standby is not None:
                called = standby.called(
                    self.mailbox
                )  # before the inbox is looked into: ``give`` calls when the job is there
                if self.inbox.empty():
                    standby.stand_by(self.mailbox, called, awake)

    def _release(self) -> None:
        if self.pinned:
            self.pinned = False
            os.sched_setaffinity(0, self.allowed or ())

    def give(self, task: Task, job: Job) -> None:
        """Let it do a job as soon as it is idle."""
        self.inbox.put((task, job))
        self.call_back()

    def call_back(self) -> None:
        """Let it look into its inbox. May be repeated, as after an interrupt between the two steps of ``give``."""
        standby = self._standby
        if standby is not None and not self.inbox.empty():
            standby.call_back(self.mailbox)


class Crew:
    """The workers of this process, and which task has claimed which of them.

    There is no lock, which an interrupt could leave taken: a claim is one operation of a dict. Callers in machine code need
    no claim (``shared_products``): a mailbox takes one call at a time, and a job in a worker's inbox waits for its end.
    """

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.mailboxes = np.zeros(0, np.int64)  # their addresses
        self.claims: dict[Worker, Task] = {}

    def claim(self, task: Task, count: int) -> list[Worker]:
        """Claim idle workers: the same ones each time if they are free, for they may stand by; new ones if too few are.
        Fewer than ``count`` where the system starts no more threads.

        A worker is noted in ``tried`` before the claim, so that ``settle`` finds every claim even if this is interrupted.
        """
        claimed: list[Worker] = []
        seen = 0
        while len(claimed) < count:
            if seen == len(self.workers):
                # Hired without a claim: if this is interrupted, they are idle workers for the next task.
                run_on_thread(functools.partial(self._hire, count - len(claimed)))
                if seen == len(self.workers):
                    break
            worker = self.workers[seen]
            seen += 1
            task.tried.append(worker)
            if self.claims.setdefault(worker, task) is task:
                claimed.append(worker)
        return claimed

    def first(self, count: int) -> list[Worker]:
        """The first ``count`` workers, whether they are claimed or not; fewer where the system starts no more threads."""
        if len(self.workers) < count:
            run_on_thread(functools.partial(self._hire, count - len(self.workers)))
        return self.workers[:count]

    def _hire(self, count: int) -> None:
        hired = len(self.workers)
        with contextlib.suppress(RuntimeError):  # the system limits threads: products go on with those that there are
            for _ in range(count):
                Worker(self)
                hired += 1
        while len(self.workers) < hired:
            time.sleep(1e-5)  # each enters itself into the list as soon as it runs
        self.mailboxes = np.array([worker.address for worker in self.workers], np.int64)

    def seat(self, workers: list[Worker], here: int | None, allowed: set[int] | None) -> None:
        """Prepare workers for a job in their inboxes: pin each to a processor to wake on.

        That is one of the processors ``allowed`` to the caller, and not its own, ``here``, if there is another. A worker
        keeps its seat after the job, because it may stand by there.
        """
        for worker in workers:
            worker.allowed = allowed  # for each job: callers on other threads may be allowed other processors
            if here is not None and allowed is not None:
                self._seat(worker, allowed - {here} or {here})

    def _seat(self, worker: Worker, free: set[int]) -> None:
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


crew = Crew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=crew.__init__)  # type: ignore[misc]  # threads do not survive a fork
