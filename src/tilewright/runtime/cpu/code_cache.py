"""Machine code cached on disk: Numba's cache, with Tilewright's directory and key."""

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
from typing import Any

import llvmlite
import numba as nb
from llvmlite import binding
from numba.core import bytecode, caching

from ...host import sources
from ...host.disk import fingerprint, give_up, private_directory
from ...host.machine import machine
from ...kernels import Kernel
from ...kernels.blocking import in_force

#: Settings of Numba that change the machine code. The processor is in Numba's own key.
_SETTINGS = ("OPT", "BOUNDSCHECK", "LOOP_VECTORIZE", "SLP_VECTORIZE", "DEBUGINFO_DEFAULT", "ENABLE_PROFILING")


#: Numba's own numbers of functions, which count from 1 in each process.
_numbers_of_numba = bytecode.FunctionIdentity._unique_ids


class _Locator(caching._CacheLocator):
    """Places machine code in the user's private directory, under a key of everything that determines it.

    Numba's own key is the time stamp of one file: it does not notice an edited intrinsic, an edited function in another
    file, or a tile that was chosen for another machine.
    """

    def __init__(self, function: Any, source: str) -> None:
        self._py_file = source  # Numba's message names it if a function cannot be cached
        self._key = fingerprint(_generator(), function.__qualname__, Path(source))
        self._path = private_directory("numba", self._key)

    def ensure_cache_path(self) -> None:
        """Create the directory again if it was removed: Numba would create it with default permissions."""
        private_directory("numba", self._key)

    def get_cache_path(self) -> str:
        return str(self._path or "")

    def get_source_stamp(self) -> str:
        return self._key

    def get_disambiguator(self) -> None:
        return None


@functools.cache
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
    """Numba's files of machine code, each behind its digest: code of which a crash has lost a part would be called."""

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
    """Numba's cache with one index file for each dtype, source and blocking.

    A shared index loses or mixes up entries when two processes write it at once. The source is the one that was loaded:
    the file on disk may have changed since. A tuner makes many blockings.

    A cache that fails costs a compilation, never a product: a file that a crash left incomplete is written again, and a
    failure to write (a full disk) is reported once.

    Numba tells closures of the same function apart by a number in their names. It counts from 1 in each process, so
    machine code from two processes may have two functions of one name, and the linker takes the first for both. Here
    each compilation counts from a number of its own, which its key determines.
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
        """Like Numba's; None for a file that a crash left incomplete. ``on_miss`` is called before a compilation."""
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
        """Like Numba's; a failure to write is reported once."""
        bytecode.FunctionIdentity._unique_ids = _numbers_of_numba
        try:
            super().save_overload(sig, data)
        except FileNotFoundError:  # the directory was removed a moment ago
            pass
        except OSError as error:
            give_up(error)
