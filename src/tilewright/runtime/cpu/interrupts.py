"""Work whose clean-up no interrupt can prevent.

Python raises KeyboardInterrupt, and whatever else a signal handler raises, between any two bytecodes: also between a
``try`` and the statement before it, and inside a ``finally``. So no Python code can guarantee that its clean-up runs. One
call of C code can: no bytecode of the caller lies in between. ``ensured`` is that call. ``run_on_thread`` runs a function on
a thread of its own, where no signal handler runs.
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

Result = TypeVar("Result")

#: Keeps the machine code of ``ensured`` in memory.
_engines: list[Any] = []


def ensured(body: Callable[[], Result], cleanup: Callable[[], None]) -> Result:
    """The result of ``body()``, after ``cleanup()`` has run to its end, even if either raised an exception.

    ``cleanup`` is called again each time an interrupt ends it early: it must continue from any state and raise nothing
    itself. Raises the first exception.

    >>> ensured(lambda: 3, lambda: print("cleaned up"))
    cleaned up
    3
    """
    return _ensured()(body, cleanup)


def run_on_thread(function: Callable[[], Result], stop: Callable[[], None] | None = None) -> Result:
    """The result of ``function()``, computed on another thread, in this one's context.

    For code that an interrupt would leave broken: compilers, other libraries' locks, files. An interrupt ends the wait and
    is raised at once, while the function runs on to its end. With ``stop``, an interrupt calls ``stop()`` on another thread,
    which should make the function end soon, and the interrupt is raised when the function has ended. Where the system starts
    no more threads, the function runs on this one.

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
    """A function on a thread of its own. Lists record its events by single operations: an interrupt may come at any time."""

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
        except RuntimeError:
            self._refused.append(None)
        self._wait()

    def _start(self, thread: threading.Thread) -> None:
        try:
            thread.start()
        except RuntimeError:
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


@functools.cache
def _ensured() -> Callable[[Callable[[], Any], Callable[[], None]], Any]:
    work = _ThreadRun(_compiled, lambda start: _thread.start_new_thread(start, ()))
    work.start_and_wait()  # on another thread: an interrupt would leave llvmlite's lock taken
    return work.result()


def _compiled() -> Callable[[Callable[[], Any], Callable[[], None]], Any]:
    """``ensured`` in machine code: compiled once in a process, in 15 ms; a call takes less than a microsecond.

    The same in C:

        PyObject *type, *value, *trace, *settled;
        PyObject *result = PyObject_CallNoArgs(body);
        PyErr_Fetch(&type, &value, &trace);
        while ((settled = PyObject_CallNoArgs(cleanup)) == NULL)
            if (type == NULL) PyErr_Fetch(&type, &value, &trace); else PyErr_Clear();
        Py_DecRef(settled);
        if (type == NULL) return result;
        Py_DecRef(result);
        PyErr_Restore(type, value, trace);
        return NULL;
    """
    from llvmlite import binding, ir

    pointer, nothing = ir.IntType(8).as_pointer(), ir.VoidType()
    module = ir.Module("interrupts")

    def declared(name: str, result: Any, *arguments: Any) -> Any:
        return ir.Function(module, ir.FunctionType(result, arguments), name)

    call = declared("PyObject_CallNoArgs", pointer, pointer)
    fetch = declared("PyErr_Fetch", nothing, *[pointer.as_pointer()] * 3)
    restore = declared("PyErr_Restore", nothing, *[pointer] * 3)
    clear, drop = declared("PyErr_Clear", nothing), declared("Py_DecRef", nothing, pointer)

    function = declared("ensured", pointer, pointer, pointer)
    names = ("start", "clean", "interrupted", "first", "further", "settled", "raise", "return")
    start, clean, interrupted, first, further, settled, raise_, return_ = map(function.append_basic_block, names)
    body, cleanup = function.args

    builder = ir.IRBuilder(start)
    error = [builder.alloca(pointer) for _ in range(3)]
    result = builder.call(call, [body])
    builder.call(fetch, error)
    builder.branch(clean)

    builder.position_at_end(clean)
    answer = builder.call(call, [cleanup])
    builder.cbranch(builder.icmp_unsigned("==", answer, pointer(None)), interrupted, settled)

    builder.position_at_end(interrupted)
    builder.cbranch(builder.icmp_unsigned("==", builder.load(error[0]), pointer(None)), first, further)
    builder.position_at_end(first)
    builder.call(fetch, error)
    builder.branch(clean)
    builder.position_at_end(further)
    builder.call(clear, [])
    builder.branch(clean)

    builder.position_at_end(settled)
    builder.call(drop, [answer])
    builder.cbranch(builder.icmp_unsigned("==", builder.load(error[0]), pointer(None)), return_, raise_)
    builder.position_at_end(raise_)
    builder.call(drop, [result])
    builder.call(restore, [builder.load(part) for part in error])
    builder.ret(pointer(None))
    builder.position_at_end(return_)
    builder.ret(result)

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(str(module)), machine)
    engine.finalize_object()
    _engines.append(engine)
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object)(
        engine.get_function_address("ensured")
    )
