"""Manages the threads that compute one product together.

The computing threads are Python threads; compiled code releases the GIL. Calls from several threads never wait for each
other. A forked child process starts new worker threads.

A worker waits for a product in machine code, without the GIL. After its part of a product, a worker polls its mailbox
for a millisecond; while it polls, it begins the next call in less than a microsecond. After a millisecond without a
call the worker sleeps; it then begins the next call after some tens of microseconds, because threads wake each other
(``cpu.codegen.crew``). Jobs that only Python can run reach the worker through its inbox; waking it for such a job takes
20 to 100 µs. The caller does not wait for a late worker: if the caller finishes before the worker has begun, the caller
takes the call back.

If the system allows it, each thread is woken on a different processor. If Linux chooses the processor, it may wake a
worker on the caller's processor and start it 4 ms late, although another processor is idle: on 2 cores products of 6 ms
took 10 ms. For workers that machine code wakes, Linux itself finds an idle processor, because these workers need not
wait for the GIL.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np

from ...errors import MemoryLimitError
from ...host.limits import WORKER, of_this_context
from ...product.operands import aligned_empty
from ..codegen import mailbox as words
from ..codegen.mailbox import HAS_FUTEX, SET_WORDS
from .interrupts import ensured, run_on_thread
from .library import data_address

# ---- workers ---------------------------------------------------------------------------------------------------------

Job = Callable[[], None]

#: Words of a worker's mailbox, in cache lines of its own, and of a spare line on either side, for processors load them in
#: pairs.
_MAILBOX, _SPARE = 24, 8


class Standby(Protocol):
    """The functions by which workers wait without the GIL, each at its own mailbox."""

    def called(self, mailbox: np.ndarray) -> int:
        """Return how many times ``call_back`` has been called for the mailbox."""

    def stand_by(self, mailbox: np.ndarray, called: int, awake: bool) -> None:
        """Run the calls that are posted in the mailbox, until ``call_back`` has been called more than ``called`` times
        for it. With ``awake`` the worker polls for a while before it sleeps. If threads cannot sleep in machine code,
        ``stand_by`` returns when no call was posted for a while."""

    def call_back(self, mailbox: np.ndarray) -> None:
        """Make the mailbox's worker return from ``stand_by``: now, or as soon as it enters ``stand_by``."""

    def begin(self, call: np.ndarray, boxes: np.ndarray, here: int) -> None:
        """Prepare a call for workers before it is posted. ``boxes`` is an array of the addresses of the mailboxes to
        which the call may be posted. No worker should wake on the processor ``here``."""

    def post(self, mailbox: np.ndarray, call: np.ndarray) -> bool:
        """Post a call if the mailbox's worker waits for one. Returns whether it was posted."""

    def wake(self, call: np.ndarray, boxes: np.ndarray) -> None:
        """Wake the first sleeping workers after a call was posted; these workers wake the others."""

    def rouse(self, mailboxes: Sequence[np.ndarray], here: int) -> list[bool]:
        """Make the workers of these mailboxes poll, on processors other than ``here``. The result has one bool for each
        worker, which is False if the worker runs Python code, or must be moved to another processor."""

    def settle(self, mailbox: np.ndarray, call: int) -> None:
        """Take this call back if it was posted and has not begun. If the worker has begun the call, wait until the call
        has ended."""

    def failed(self, call: np.ndarray) -> bool:
        """Return whether a thread found no memory for its part of a call."""


class Task(Protocol):
    """The part of a call of ``Team`` that its workers use."""

    standby: Standby | None
    tried: list[Worker]

    def do(self, job: Job) -> None:
        """Run a job of this call of ``Team``, unless the call has already returned."""


class Worker(threading.Thread):
    """A thread that runs one job after another from its inbox. While the inbox is empty, the worker waits in machine
    code, if a job has given it the code for waiting: it polls for a while, if another product may follow, and then
    sleeps."""

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
        """Run one job after another. Between jobs, wait in machine code, once a job has given the worker the code for
        waiting."""
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
        """Give the worker a job, to be run as soon as it is idle."""
        self.inbox.put((task, job))
        self.call_back()

    def call_back(self) -> None:
        """Make the worker look into its inbox. Calling back may be repeated, for example after an interrupt between the
        two steps of ``give``."""
        standby = self._standby
        if standby is not None and not self.inbox.empty():
            standby.call_back(self.mailbox)


class Crew:
    """The workers of this process, and the task that has claimed each of them.

    Claims need no lock, which an interrupt could leave taken: a claim is one operation of a dict. Callers in machine
    code need no claim (``shared_products``): a mailbox takes one call at a time, and a job in the worker's inbox waits
    until that call has ended.
    """

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.mailboxes = np.zeros(0, np.int64)  # their addresses
        self.claims: dict[Worker, Task] = {}

    def claim(self, task: Task, count: int) -> list[Worker]:
        """Claim idle workers. The same workers are claimed each time if they are free, because they may still poll; if
        too few workers are free, new workers are started. Returns fewer than ``count`` workers if the system cannot
        start more threads.

        Each worker is recorded in ``tried`` before it is claimed, so that ``settle`` finds every claim even after an
        interrupt.
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
        """Return the first ``count`` workers, whether they are claimed or not; fewer if the system cannot start more
        threads."""
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
        """Prepare workers for jobs in their inboxes: pin each worker to its seat, the processor on which it is to wake.

        A worker's seat is one of the processors ``allowed`` to the caller, but not the caller's own, ``here``, if there
        is another one. A worker stays pinned after the job, because it may poll on that processor.
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


# ---- the machine code by which workers wait, and how a call is encoded for them --------------------------------------

#: Seconds that a worker stands by. A product that must wake 15 workers takes 0.5 to 0.9 ms on a virtual machine. With less
#: time than that, the first workers to finish would sleep before it ends, and the next product would wake them again.
AWAKE_S = 1e-3


class CompiledStandby:
    """Implements ``threads.Standby`` with the functions of ``cpu.codegen.crew``, which ``machine_code`` gives by
    name."""

    def __init__(self, machine_code: Callable[[str], Callable[..., int]], sleeps: bool = HAS_FUTEX) -> None:
        self.sleeps = sleeps
        names = "stand_by", "post", "ring", "publish", "rouse", "settle"
        self._stand_by, self._post, self._ring, self._publish, self._rouse, self._settle = map(machine_code, names)
        self._looks = self._looks_for(AWAKE_S)

    def called(self, mailbox: np.ndarray) -> int:
        return int(mailbox[words.BELL]) >> 32

    def stand_by(self, mailbox: np.ndarray, called: int, awake: bool) -> None:
        self._stand_by(mailbox, self._looks, self._looks if awake else 0, called, self.sleeps)

    def call_back(self, mailbox: np.ndarray) -> None:
        self._ring(mailbox, words.CALL_BACK)

    def begin(self, call: np.ndarray, boxes: np.ndarray, here: int) -> None:
        call[words.BOXES] = data_address(boxes)
        _add_to_set(call, words.TAKEN, here)

    def post(self, mailbox: np.ndarray, call: np.ndarray) -> bool:
        return bool(self._post(mailbox, call, data_address(call), True) != words.AWAY)

    def rouse(self, mailboxes: Sequence[np.ndarray], here: int) -> list[bool]:
        taken = np.zeros(SET_WORDS, np.int64)
        _add_to_set(taken, 0, here)
        return [bool(self._rouse(mailbox, taken)) for mailbox in mailboxes]

    def wake(self, call: np.ndarray, boxes: np.ndarray) -> None:
        self._publish(call, call.ctypes.data, boxes.size)

    def settle(self, mailbox: np.ndarray, call: int) -> None:
        self._settle(mailbox, call)

    def failed(self, call: np.ndarray) -> bool:
        return bool(call[words.FAILED])

    def _looks_for(self, seconds: float) -> int:
        """How often a worker looks at its mailbox in so many seconds.

        It is measured, because a processor's pause takes 10 to 140 cycles. The fastest of four runs counts, because other
        programs may run meanwhile.
        """
        mailbox, looks = np.zeros(words.MAILBOX_WORDS, np.int64), 1000
        taken = []
        for _ in range(4):
            start = time.perf_counter()
            self._stand_by(mailbox, looks, looks, 0, False)
            taken.append(time.perf_counter() - start)
        return max(1, round(looks * seconds / min(taken)))


def _add_to_set(words: np.ndarray, at: int, processor: int) -> None:
    """Add a processor to the set that begins at word ``at``, as ``cpu.codegen.affinity`` does."""
    if 0 <= processor < 64 * SET_WORDS:
        bit = 1 << (processor & 63)
        words[at + (processor >> 6)] |= bit if bit < 1 << 63 else bit - (1 << 64)


def call_words(
    code: Any, a: np.ndarray, b: np.ndarray, c: np.ndarray, space: np.ndarray, counters: np.ndarray
) -> np.ndarray:
    """Return the words that describe a call of a ``team`` kernel. The arrays of the call must exist as long as the
    words are used."""
    matrices = [number for x in (a, b, c) for number in (x.ctypes.data, *x.shape, *x.strides)]
    numbers = [data_address(space), space.size, data_address(counters), counters.size]
    call = np.zeros(words.WORDS, np.int64)
    call[: words.FAILED] = code.address, a.itemsize, *matrices, *numbers, c.itemsize, space.itemsize
    return call


# ---- teams -----------------------------------------------------------------------------------------------------------

#: A call in words, for workers that wait in machine code.
Words = np.ndarray | None


class Team:
    """A number of threads that compute together; one of them is the calling thread.

    An interrupt may come between any two bytecodes. So each step of a call of ``Team`` is recorded by a single
    operation in C before the step takes effect, and ``ensured`` undoes the recorded steps. Therefore no thread works
    for a call that has returned, and no worker is lost.

    >>> seen = []
    >>> Team(2).run([lambda: seen.append(1), lambda: seen.append(2)])
    >>> sorted(seen)
    [1, 2]
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def run(self, jobs: Sequence[Job], stop: Job | None = None) -> None:
        """Run every job on a thread of its own; the first job runs on the calling thread. Raises the first error of any
        job. If the system starts too few threads, the calling thread runs the remaining jobs, and then the first job.

        After an interrupt, jobs that have not begun are skipped, and ``stop`` is called, which may make the other jobs
        end early. ``stop`` may be called several times. KeyboardInterrupt is raised when all jobs that had begun have
        ended.
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
        """Run ``job`` on this thread, and also on each other thread of the team that begins the job before this thread
        has finished it.

        The job must distribute its work itself, so that all of it is done even if no other thread begins. ``call`` is
        the same job encoded for ``standby``, for workers that wait in machine code. Raises the first error. An
        interrupt is raised when no other thread works on the job any more; ``stop`` makes the other threads end early,
        as in ``run``.
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
        """Wake the team's other threads, so that they poll for the next call. Does not wait for them."""
        task = _TeamCall(_nothing, standby)
        workers = crew.first(self.threads - 1)
        roused = standby.rouse([worker.mailbox for worker in workers], task.place)
        task.asleep += [worker for worker, awake in zip(workers, roused, strict=True) if not awake]
        task.wake(1)


class _TeamCall:
    """One call of ``Team``: the workers that it has claimed, and how many have begun and ended their job.

    If ``shared`` is given, the job of ``rally``, each worker wakes two other workers before it begins the job (a
    wake-up tree). Waking one worker from Python takes 10 to 50 µs, so waking fifteen would take the caller half the
    time of a product of 1000³.
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
        """Run a job, unless the call of ``Team`` has already returned. A worker calls this function; no signal handler
        runs on workers."""
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
        """Post the call to the workers that wait in machine code and may run on the caller's processors; the others
        must be woken."""
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
        """Wake at most ``count`` workers that are still asleep, to run the shared job."""
        assert self._shared is not None
        for _ in range(count):
            try:
                worker = self.asleep.pop()
            except IndexError:  # other threads wake workers at the same time
                return
            crew.seat([worker], self.here, self.allowed)
            self.give(worker, self._shared)

    def wait(self, count: int) -> None:
        """Wait until ``count`` jobs have ended. The ended jobs are counted in their list, because an interrupt may lose
        an item of ``_bell``, the queue that wakes this thread when a job has ended."""
        while len(self._ended) < count:
            self._bell.get()

    def settle(self) -> None:
        """Wait until no thread works for this task and none will begin; then other tasks may claim its workers.

        ``settle`` may be interrupted at any point and called again.
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


@functools.cache  # each call of a team asks; to look it up takes 8 µs
def _sched_getcpu() -> Callable[[], int] | None:
    try:
        return ctypes.CDLL(None).sched_getcpu  # in glibc and musl; nothing like it on macOS
    except (AttributeError, OSError, TypeError):
        return None


def allowed_processors() -> set[int] | None:
    """Return the processors that this thread may run on; None if the system does not report them."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def processor_here() -> int | None:
    """Return the logical processor that this thread runs on now; None if the system does not report it."""
    getcpu = _sched_getcpu()
    return getcpu() if getcpu is not None and hasattr(os, "sched_setaffinity") else None
