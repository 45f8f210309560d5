"""Compilations of kernels on threads of their own, each once: those who need the same one wait for it together."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from ...kernels.cuda_kernel import CudaKernel
from .archive import engine_file, engine_kernel
from .nvrtc import Compiled

#: Parameters, by name.
Chosen = tuple[tuple[str, int], ...]


def chosen_params(params: Mapping[str, int] | None) -> Chosen:
    """Parameters in the order of their names."""
    return tuple(sorted((params or {}).items()))


class Compilations:
    """Compilations by what they depend on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[Hashable, Future[Compiled]] = {}

    def begin(self, key: Hashable, work: Callable[[], Compiled]) -> Future[Compiled]:
        """The compilation named ``key``. It begins once, with ``work`` on a thread of its own, and again only after it has
        failed."""
        job, is_new = self._job(key)
        if is_new:
            threading.Thread(target=_run, args=(job, work), name="compiler").start()
        return job

    def result(self, key: Hashable, work: Callable[[], Compiled]) -> Compiled:
        """What it gives; if it has not begun, ``work`` is done by the calling thread, which takes less time."""
        job, is_new = self._job(key)
        if is_new:
            _run(job, work)
        return job.result()

    def _job(self, key: Hashable) -> tuple[Future[Compiled], bool]:
        with self._lock:
            job = self._jobs.get(key)
            is_new = job is None or (job.done() and job.exception() is not None)
            if job is None or is_new:
                job = self._jobs[key] = Future()
            return job, is_new

    def clear(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._jobs.clear()


class KernelCode(NamedTuple):
    """What is compiled: a kernel of the engine with these parameters, or a file without a header; and the macros."""

    source: CudaKernel | Path
    macros: tuple[tuple[str, object], ...]
    params: Chosen = ()

    def begin(self, arch: str) -> None:
        """Begin to compile it on a thread of its own, unless this has begun before."""
        _compilations.begin((self, arch), functools.partial(self._compile, arch))

    def compiled(self, arch: str) -> Compiled:
        """It, loaded from the archive or compiled when it is first asked for. Raises CompileError."""
        return _compilations.result((self, arch), functools.partial(self._compile, arch))

    def _compile(self, arch: str) -> Compiled:
        macros = dict(self.macros)
        if isinstance(self.source, Path):
            return engine_file(self.source, arch, macros)
        return engine_kernel(self.source, dict(self.params), arch, macros)


_compilations = Compilations()


def _run(job: Future[Compiled], work: Callable[[], Compiled]) -> None:
    try:
        job.set_result(work())
    except BaseException as error:  # raised again by those who wait
        job.set_exception(error)
