"""Runs work so that no interrupt can prevent its clean-up.

Python raises KeyboardInterrupt, or another exception of a signal handler, between any two bytecodes: also between a
``try`` and the statement before it, and inside a ``finally``. So no Python code can guarantee that its clean-up runs. A
single call of C code can guarantee its clean-up, because no bytecode of the caller runs during the call. ``ensured`` is
such a call. ``run_on_thread`` runs a function on another thread, on which no signal handler runs.
"""

from __future__ import annotations

import _thread
import contextvars
import ctypes
import functools
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from .library import support_function

Result = TypeVar("Result")


def ensured(body: Callable[[], Result], cleanup: Callable[[], None]) -> Result:
    """Return the result of ``body()``, and then run ``cleanup()`` to its end, even if ``body`` or ``cleanup`` raises an
    exception.

    Each time an interrupt ends ``cleanup`` early, ``cleanup`` is called again. So ``cleanup`` must be able to continue
    from any state, and must not raise anything itself. Raises the first exception.

    >>> ensured(lambda: 3, lambda: print("cleaned up"))
    cleaned up
    3
    """
    return _ensured()(body, cleanup)


def run_on_thread(function: Callable[[], Result], stop: Callable[[], None] | None = None) -> Result:
    """Return the result of ``function()``, which runs on another thread with this thread's context variables.

    ``run_on_thread`` is for code that an interrupt would leave in a broken state: compilers, locks of other libraries,
    files. Without ``stop``, an interrupt ends the wait and is raised at once; the function continues to its end. With
    ``stop``, an interrupt calls ``stop()`` on another thread; ``stop`` should make the function end soon. With
    ``stop``, the interrupt is raised only when the function has ended. If the system cannot start a thread, the
    function runs on the calling thread.

    >>> run_on_thread(lambda: threading.current_thread() is threading.main_thread())
    False
    """
    work = _ThreadRun(function, _launch)
    if stop is None:
        work.start_and_wait()
    else:
        ensured(work.start_and_wait, functools.partial(work.settle, stop))
    return work.result()


class _ThreadRun:
    """Runs a function on a thread of its own. Lists record the events of the run, each by a single operation, because
    an interrupt may come at any time."""

    def __init__(self, function: Callable[[], Any], launch: Callable[[Callable[[], None]], object]) -> None:
        self._function, self._launch, self._context = function, launch, contextvars.copy_context()
        self._begun: list[None] = []
        self._ended: list[tuple[Any, BaseException | None]] = []
        #: Set where the system started no thread: limits of processes or memory forbid it, or the interpreter ends.
        self._refused: list[None] = []
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._closed = False

    def _work(self) -> None:
        self._begun.append(None)  # before reading _closed: ``settle`` sets _closed before it reads _begun
        ended: tuple[Any, BaseException | None] = (None, None)
        try:
            if not self._closed:
                ended = self._context.run(self._function), None
        except BaseException as error:  # raised again by the thread that waits
            ended = None, error
        self._ended.append(ended)
        self._bell.put(None)

    def start_and_wait(self) -> None:
        thread = threading.Thread(target=self._work, name="tilewright apart", daemon=True)
        try:
            self._launch(functools.partial(self._start, thread))
        except (RuntimeError, MemoryError):
            self._refused.append(None)
        self._wait()

    def _start(self, thread: threading.Thread) -> None:
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            self._refused.append(None)
            self._bell.put(None)

    def settle(self, stop: Callable[[], None]) -> None:
        self._closed = True
        if self._begun and not self._refused:
            if not self._ended:
                run_on_thread(stop)
            self._wait()

    def _wait(self) -> None:
        while not self._ended:
            if self._refused and not self._begun:
                self._work()
            else:
                self._bell.get()

    def result(self) -> Any:
        ((result, error),) = self._ended
        if error is not None:
            raise error
        return result


def _launch(start: Callable[[], None]) -> None:
    """Start a thread from another thread: an interrupted ``start`` would leave an entry behind in ``threading``.

    Until that other thread runs, CPython delivers to it an exception that was set in its creator. The exception is raised
    before ``start`` begins, so ``ensured`` calls ``start`` as its clean-up, which is repeated.
    """
    _thread.start_new_thread(_ensured(), (int, start))


@functools.cache  # for each shared product
def _ensured() -> Callable[[Callable[[], Any], Callable[[], None]], Any]:
    """``ensured`` as one call of C (``prebuilt/support.c``). Where no library was built, in Python: then it holds unless an
    interrupt comes between two of its bytecodes."""
    address = support_function("ensured")
    if address is None:
        return _ensured_by_python
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object)(address)


def _ensured_by_python(body: Callable[[], Any], cleanup: Callable[[], None]) -> Any:
    errors: list[BaseException] = []
    try:
        return body()
    except BaseException as error:
        errors.append(error)
        raise
    finally:
        while True:
            try:
                cleanup()
                break
            except BaseException as interrupt:  # of a signal handler: the clean-up itself raises nothing
                errors.append(interrupt)
        if errors:
            raise errors[0]
