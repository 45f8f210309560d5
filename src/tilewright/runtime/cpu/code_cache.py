"""Machine code kept on disk, with Numba's cache in a directory and under a key of our own."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from pathlib import Path
from typing import Any

import llvmlite
import numba as nb
import numpy as np
from llvmlite import binding
from numba.core import caching

from ...host import sources
from ...host.disk import fingerprint, give_up, private_directory
from ...host.machine import machine
from ...kernels import Kernel
from ...kernels.blocking import in_force

#: What a user can set that changes the machine code, beside the processor, which Numba's own key has.
_SETTINGS = ("OPT", "BOUNDSCHECK", "LOOP_VECTORIZE", "SLP_VECTORIZE", "DEBUGINFO_DEFAULT", "ENABLE_PROFILING")


class _Locator(caching._CacheLocator):
    """Keeps machine code in the user's private directory, keyed by everything that shapes it.

    Numba's own key is the one file's time stamp: it does not notice an edited intrinsic, an edited helper in another
    file, or a tile that was chosen for another machine.
    """

    def __init__(self, function: Any, source: str) -> None:
        self._py_file = source  # which Numba names where it cannot cache a function
        self._key = fingerprint(_generator(), function.__qualname__, Path(source))
        self._path = private_directory("numba", self._key)

    def ensure_cache_path(self) -> None:
        """Make it again where it was removed; Numba would, with the rights of any directory."""
        private_directory("numba", self._key)

    def get_cache_path(self) -> str:
        return str(self._path or "")

    def get_source_stamp(self) -> str:
        return self._key

    def get_disambiguator(self) -> None:
        return None


@functools.cache
def _generator() -> str:
    """All that shapes machine code beside the kernel's own file: generators, compilers and their settings, and the machine
    it is made for."""
    here = machine()
    compilers = (nb.__version__, llvmlite.__version__, binding.llvm_version_info)
    settings = [getattr(nb.config, name, None) for name in _SETTINGS]
    processor = (here.llvm_cpu, here.isa, here.vector_bits, here.vector_registers, here.l1d, here.l2, here.l3)
    shared = sources.files(sources.SHARED_BY_KERNELS)
    return fingerprint(*compilers, *settings, *processor, in_force(), *shared)


class _Impl(caching.CompileResultCacheImpl):
    def __init__(self, function: Any) -> None:
        """As the base class, which lets ``$NUMBA_CACHE_LOCATOR_CLASSES`` put the files elsewhere, under another key."""
        source = inspect.getfile(function)
        self._lineno = function.__code__.co_firstlineno
        self._locator = _Locator(function, source)
        name = f"{Path(source).stem}.{function.__qualname__}"
        self._filename_base = self.get_filename_base(name, getattr(sys, "abiflags", ""))


class CodeCache(caching.FunctionCache):
    """One index a dtype, for numba's are lost or crossed when two processes write the same one at once; one a source as it
    was loaded, which the file on disk may no longer be; and one a blocking, of which a tuner makes many.

    A cache that fails costs a compilation, never a product: what a crash has torn is written anew, and where nothing can
    be written (a full disk) that is said, once.
    """

    _impl_class = _Impl

    def __init__(self, kernel: Kernel, dtype: np.dtype) -> None:
        super().__init__(kernel.function)
        blocking = getattr(kernel, "blocking", None)
        name = f"{self._impl.filename_base}-{kernel.source_hash}-{dtype.name}" + (
            f"-{fingerprint(blocking)}" if blocking else ""
        )
        self._cache_file = caching.IndexDataCacheFile(self._cache_path, name, self._impl.locator.get_source_stamp())
        if not self._cache_path:
            self.disable()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """As Numba's; None for what a crash has torn."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # torn pickles raise anything
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """As Numba's; what cannot be written is said once."""
        try:
            super().save_overload(sig, data)
        except FileNotFoundError:  # the directory was removed a moment ago
            pass
        except OSError as error:
            give_up(error)
