"""Compilations of kernels on threads of their own, each once: those who need the same one wait for it together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future

from .nvrtc import Compiled


class Compilations:
    """Compilations by what they depend on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[Hashable, Future[Compiled]] = {}

    def begin(self, key: Hashable, work: Callable[[], Compiled]) -> Future[Compiled]:
        """The compilation named ``key``. It begins once, with ``work`` on a thread of its own, and again only after it has
        failed."""
        with self._lock:
            job = self._jobs.get(key)
            if job is None or (job.done() and job.exception() is not None):
                job = self._jobs[key] = Future()
                threading.Thread(target=_run, args=(job, work), name="compiler").start()
            return job

    def clear(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._jobs.clear()


def _run(job: Future[Compiled], work: Callable[[], Compiled]) -> None:
    try:
        job.set_result(work())
    except BaseException as error:  # raised again by those who wait
        job.set_exception(error)
