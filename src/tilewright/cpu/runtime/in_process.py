"""Compiles machine code with Numba in this process: kernels of the ladder, kernels that a tuner tries, and an engine
whose sources have changed."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import itertools
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llvmlite
import numba as nb
import numpy as np
from llvmlite import binding
from numba.core import bytecode, caching
from numba.core.ccallback import CFunc

from ...host import sources
from ...host.cached_property import cached_property
from ...host.disk import fingerprint, give_up, private_directory
from ...host.machine import machine
from ...host.steps import announced
from ...kernels import Kernel
from ...kernels.blocking import in_force
from . import entries
from .entries import Entry
from .facts import BEFORE_VECTORS, FOR_VECTORS, KERNEL
from .interrupts import run_on_thread

#: Machine code to which other machine code points: this list keeps it.
_alive: list[Any] = []


class Compiler:
    """Compiles each function of the engine when it is first requested, and caches it on disk.

    Compilation runs on another thread, because an interrupt would leave the compiler's locks taken and its registries
    half filled. Compiled functions, and the single object of the class ``Compiler``, exist until the process ends.
    """

    @functools.cache  # noqa: B019
    def kernel(self, kernel: Kernel, dtype: str, result: str) -> CompiledKernel:
        """See ``machine_code.CodeSource.kernel``."""
        return run_on_thread(lambda: _kernel(kernel, dtype, result))

    @functools.cache  # noqa: B019
    def function(self, name: str) -> Callable[..., int]:
        """See ``machine_code.CodeSource.function``."""
        dispatcher: Callable[..., int] = run_on_thread(lambda: _compiled(entries.functions()[name]))
        return dispatcher

    @functools.cache  # noqa: B019
    def address(self, name: str) -> int:
        """See ``machine_code.CodeSource.address``."""
        return run_on_thread(lambda: _c_function(entries.c_functions()[name]))


class CompiledKernel:
    """The machine code of a kernel that was compiled in this process; implements ``machine_code.Code``."""

    def __init__(self, dispatcher: Any) -> None:
        self.dispatcher = dispatcher

    def __call__(self, *arrays: np.ndarray, **params: Any) -> None:
        self.dispatcher(*arrays, **params)

    @cached_property
    def address(self) -> int:
        """The address of the machine code."""
        return _address(self.dispatcher)


def _kernel(kernel: Kernel, dtype: str, result: str) -> CompiledKernel:
    entry = entries.kernel_entry(kernel, dtype, result)
    return CompiledKernel(_compiled(entry, CodeCache(kernel, dtype, result), f"{kernel.name} for {dtype}"))


def fresh_assembly(kernel: Kernel, dtype: str) -> str:
    """The assembly of a kernel. The kernel is compiled again, because machine code from the cache cannot be
    disassembled."""
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


# ---- code cache ------------------------------------------------------------------------------------------------------
# Machine code cached on disk: Numba's cache, with Tilewright's directory and key.


#: Settings of Numba that change the machine code. The processor is in Numba's own key.
_SETTINGS = ("OPT", "BOUNDSCHECK", "LOOP_VECTORIZE", "SLP_VECTORIZE", "DEBUGINFO_DEFAULT", "ENABLE_PROFILING")


#: Numba's own numbers of functions, which count from 1 in each process.
_numbers_of_numba = bytecode.FunctionIdentity._unique_ids


class _Locator(caching._CacheLocator):
    """Places machine code in the user's private directory, under a key of everything that determines the code.

    Numba's own key is the time stamp of one file. Numba's key stays the same if an intrinsic or a function in another
    file was edited, or if a tile was chosen for another machine.
    """

    def __init__(self, function: Any, source: str) -> None:
        self._py_file = source  # Numba's message names it if a function cannot be cached
        self._key = fingerprint(_generator(), function.__qualname__, Path(source))
        self._path = private_directory("numba", self._key)

    def ensure_cache_path(self) -> None:
        """Create the cache directory again if it was removed; Numba would create it with default permissions."""
        private_directory("numba", self._key)

    def get_cache_path(self) -> str:
        return str(self._path or "")

    def get_source_stamp(self) -> str:
        return self._key

    def get_disambiguator(self) -> None:
        return None


@functools.cache  # reads all sources
def _generator() -> str:
    """A key of all that determines machine code except the kernel's own file: generators, compilers and their settings,
    and the target machine."""
    here = machine()
    compilers = (nb.__version__, llvmlite.__version__, binding.llvm_version_info)
    settings = [getattr(nb.config, name, None) for name in _SETTINGS]
    processor = (here.isa, here.vector_bits, here.vector_registers, here.l1d, here.l2, here.l3)
    shared = sources.files(sources.SHARED_BY_KERNELS)
    return fingerprint(*compilers, *settings, *processor, in_force(), *shared)


class _Impl(caching.CompileResultCacheImpl):
    def __init__(self, function: Any) -> None:
        """Like the base class, but ``$NUMBA_CACHE_LOCATOR_CLASSES`` cannot put the files elsewhere under another key."""
        source = inspect.getfile(function)
        self._lineno = function.__code__.co_firstlineno
        self._locator = _Locator(function, source)
        name = f"{Path(source).stem}.{function.__qualname__}"
        self._filename_base = self.get_filename_base(name, getattr(sys, "abiflags", ""))


class _CheckedFiles(caching.IndexDataCacheFile):
    """Numba's files of machine code, each with a digest before it. Without the digest, a file that a crash left
    incomplete would be called as machine code."""

    def _save_data(self, name: str, data: Any) -> None:
        dumped = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(hashlib.sha256(dumped).digest() + dumped)

    def _load_data(self, name: str) -> Any:
        data = memoryview(Path(self._data_path(name)).read_bytes())
        size = hashlib.sha256().digest_size
        if hashlib.sha256(data[size:]).digest() != data[:size]:
            raise ValueError(f"{name} is damaged")
        return pickle.loads(data[size:])


class CodeCache(caching.FunctionCache):
    """Numba's cache of compiled code, with a separate index file for each dtype, source and choice of block sizes.

    A single index would lose or mix up entries if two processes wrote it at once. The name of an index identifies the
    source that was loaded, because the file on disk may have changed since. The block sizes are part of the name
    because a tuner tries many block sizes.

    If the cache on disk cannot be read or written, code is compiled again, and no product fails. A file of the cache
    that a crash left incomplete is written again. A failure to write the cache, such as a full disk, is reported once.

    Numba distinguishes closures of the same function by a number in their names, which starts at 1 in each process. So
    machine code from two processes may hold two functions with the same name, and the linker would use the first for
    both. So ``CodeCache`` starts the number of each compilation at a value that is determined by the key of the
    compiled code.
    """

    _impl_class = _Impl

    def __init__(self, kernel: Kernel, dtype: str, result: str = "") -> None:
        super().__init__(kernel.function)
        self.on_miss: Callable[[], object] = lambda: None
        blocking = getattr(kernel, "blocking", None)
        dtypes = dtype if result in ("", dtype) else f"{dtype}-{result}"
        name = f"{self._impl.filename_base}-{kernel.source_hash}-{dtypes}" + (
            f"-{fingerprint(blocking)}" if blocking else ""
        )
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = _CheckedFiles(self._cache_path, name, stamp)
        self._first_number = int(fingerprint(name, stamp)[:12], 16) << 12
        if not self._cache_path:
            self.disable()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load compiled code as Numba's cache does. The result is None if a crash left the file incomplete. If the
        cache does not have the code, ``on_miss`` is called before the code is compiled."""
        try:
            found = super().load_overload(sig, target_context)
        except Exception:  # an incomplete pickle may raise any exception
            with contextlib.suppress(OSError):
                self.flush()
            found = None
        if found is None:
            self.on_miss()
            bytecode.FunctionIdentity._unique_ids = itertools.count(self._first_number)
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save compiled code as Numba's cache does; a failure to write is reported once."""
        bytecode.FunctionIdentity._unique_ids = _numbers_of_numba
        try:
            super().save_overload(sig, data)
        except FileNotFoundError:  # the directory was removed a moment ago
            pass
        except OSError as error:
            give_up(error)
