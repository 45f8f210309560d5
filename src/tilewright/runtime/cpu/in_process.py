"""Machine code that Numba compiles in this process: the ladder's, that of kernels on trial, and of a changed engine."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba as nb
import numpy as np
from numba.core.ccallback import CFunc

from ...host.cached_property import cached_property
from ...host.steps import announced
from ...kernels import Kernel
from . import entries
from .code_cache import CodeCache
from .entries import Entry
from .facts import BEFORE_VECTORS, FOR_VECTORS, KERNEL
from .interrupts import run_on_thread

#: Machine code to which other machine code points: this list keeps it.
_alive: list[Any] = []


class Compiler:
    """Compiles what the engine calls when it is first asked for, and keeps it on disk.

    All on another thread: an interrupt would leave the compiler's locks taken and its registries half filled.
    """

    @functools.cache  # noqa: B019  # lives as long as the process
    def kernel(self, kernel: Kernel, dtype: str, result: str) -> CompiledKernel:
        """As ``machine_code.CodeSource``."""
        return run_on_thread(lambda: _kernel(kernel, dtype, result))

    @functools.cache  # noqa: B019
    def function(self, name: str) -> Callable[..., int]:
        """As ``machine_code.CodeSource``."""
        dispatcher: Callable[..., int] = run_on_thread(lambda: _compiled(entries.functions()[name]))
        return dispatcher

    @functools.cache  # noqa: B019
    def address(self, name: str) -> int:
        """As ``machine_code.CodeSource``."""
        return run_on_thread(lambda: _c_function(entries.c_functions()[name]))


class CompiledKernel:
    """A kernel's machine code, as ``machine_code.Code``."""

    def __init__(self, dispatcher: Any) -> None:
        self.dispatcher = dispatcher

    def __call__(self, *arrays: np.ndarray, **params: Any) -> None:
        self.dispatcher(*arrays, **params)

    @cached_property
    def address(self) -> int:
        """Where it is."""
        return _address(self.dispatcher)


def _kernel(kernel: Kernel, dtype: str, result: str) -> CompiledKernel:
    entry = entries.kernel_entry(kernel, dtype, result)
    return CompiledKernel(_compiled(entry, CodeCache(kernel, dtype, result), f"{kernel.name} for {dtype}"))


def fresh_assembly(kernel: Kernel, dtype: str) -> str:
    """The assembly of a kernel, which is compiled anew: machine code from the cache cannot be disassembled."""
    entry = entries.kernel_entry(kernel, dtype, dtype)
    dispatcher: Any = nb.njit(nogil=True, **entry.options)(entry.function)
    dispatcher.compile(entry.arguments)
    (text,) = dispatcher.inspect_asm().values()
    return str(text)


def _compiled(entry: Entry, cache: CodeCache | None = None, what: str = "") -> Any:
    njit: Any = nb.njit  # whose stubs lack the wrapper for C, which nothing calls: without it compiling takes 7 % less
    dispatcher = njit(nogil=True, no_cfunc_wrapper=True, **entry.options)(entry.function)
    # As njit(cache=True), with Tilewright's directory and key.
    cache = dispatcher._cache = cache or _cache(entry)
    with contextlib.ExitStack() as step:
        if what:
            cache.on_miss = lambda: step.enter_context(announced(f"compiling {what}"))
        dispatcher.compile(entry.arguments if entry.returns is None else entry.returns(*entry.arguments))
    dispatcher.disable_compile()
    return dispatcher


def _c_function(entry: Entry) -> int:
    compiled: Any = CFunc(entry.function, (entry.arguments, entry.returns), {}, entry.options)
    compiled._cache = _cache(entry)
    compiled.compile()
    _alive.append(compiled)
    return int(compiled.address)


def _cache(entry: Entry) -> CodeCache:
    """The kernels' sources are in the key: what they suit is compiled into functions that multiply small matrices."""
    source = Path(entry.function.__code__.co_filename).stem
    held = (kernel.source_hash for kernel in (KERNEL, FOR_VECTORS, BEFORE_VECTORS))
    about: Any = SimpleNamespace(function=entry.function, source_hash="".join((source, *held)))
    return CodeCache(about, entry.name.rpartition(" ")[2])


def _address(dispatcher: Any) -> int:
    """The address of compiled machine code."""
    (compiled,) = dispatcher.overloads.values()
    _alive.append(dispatcher)
    return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))
