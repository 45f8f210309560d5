"""Threads that work on one product together.

They are Python's own: compiled code releases the GIL, callers on several threads never wait for each other, and a forked
child starts fresh ones. Waking a thread costs 20 to 100 µs, so small products stay on one.

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

Job = Callable[[], None]


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
        workers = _crew.hire(len(jobs) - 1)
        for worker, job in zip(workers, jobs[1:], strict=True):
            worker.inbox.put((job, outcomes))
        try:
            jobs[0]()
        finally:
            errors = outcomes.wait()
            _crew.release(workers)
        for error in errors:
            if error is not None:
                raise error


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


class _Worker(threading.Thread):
    """Does one job after another from its inbox; idle, it sleeps there."""

    def __init__(self) -> None:
        super().__init__(name="tilewright", daemon=True)
        self.inbox: SimpleQueue[tuple[Job, _Outcomes]] = SimpleQueue()
        self.seat: int | None = None
        self.allowed: set[int] = set()
        self.start()

    def run(self) -> None:
        while True:
            job, outcomes = self.inbox.get()
            try:
                if self.seat is not None:
                    os.sched_setaffinity(0, self.allowed)  # awake and seated: from here the scheduler may move it
                job()
                outcomes.put(None)
            except BaseException as error:  # whatever it is, it belongs to the caller
                outcomes.put(error)
            del job, outcomes


class _Crew:
    """The workers of this process: those that are idle, and which processors those at work were seated on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._seated: collections.Counter[int] = collections.Counter()

    def hire(self, count: int) -> list[_Worker]:
        with self._lock:
            workers = [self._idle.pop() if self._idle else _Worker() for _ in range(count)]
            here = _processor()
            if here is not None:
                allowed = os.sched_getaffinity(0)
                for worker in workers:
                    worker.allowed = allowed  # its own: callers on other threads may be allowed other processors
                    self._seat(worker, allowed - {here} or {here})
        return workers

    def _seat(self, worker: _Worker, free: set[int]) -> None:
        seat = min(free, key=lambda processor: (self._seated[processor], processor))
        assert worker.native_id is not None
        try:
            os.sched_setaffinity(worker.native_id, {seat})
        except OSError:  # a container may forbid it: then the scheduler decides alone
            return
        worker.seat = seat
        self._seated[seat] += 1

    def release(self, workers: list[_Worker]) -> None:
        with self._lock:
            for worker in workers:
                if worker.seat is not None:
                    self._seated[worker.seat] -= 1
                    worker.seat = None
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
