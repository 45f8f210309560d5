"""Gets the engine's machine code for this process: from the library that was built for its processor, or from a
compiler.

With ``$TILEWRIGHT_COMPILE=1`` the engine is compiled in the process even if there is a library. Compiling in the
process is for developers who change the engine's kernels. Numba (``tilewright[lab]``) always compiles the kernels of
the ladder, users' kernels, and tile sizes that ``tilewright tune`` tries. If there is neither a library nor a compiler,
NumPy multiplies.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ...errors import UnavailableError, how_to_install
from ...host.machine import machine
from ...kernels import Kernel
from ...kernels.blocking import has_analytic_tile
from .library import kernel_name

#: Set to 1, the engine is compiled in the process.
VARIABLE = "TILEWRIGHT_COMPILE"
#: Numba's variable that forbids it to compile.
_FORBIDDEN = "NUMBA_DISABLE_JIT"


class Code(Protocol):
    """The machine code of one kernel, which Python calls with arrays, and which other machine code calls at its
    address."""

    @property
    def address(self) -> int:
        """The address of the machine code."""

    def __call__(self, *arrays: np.ndarray, **params: Any) -> None: ...


class CodeSource(Protocol):
    """A source of machine code: a built library, or a compiler. Each method of a ``CodeSource`` always returns the same
    object for the same arguments."""

    def kernel(self, kernel: Kernel, dtype: str, result: str) -> Code:
        """Return the code of a kernel for operands of ``dtype`` and a C of ``result``, both as compiled code sees
        them."""

    def function(self, name: str) -> Callable[..., int]:
        """Return a function that Python calls with numbers and arrays."""

    def address(self, name: str) -> int:
        """Return the address of a function that the C front calls."""


@functools.cache  # stays as it was at first: machine code is loaded, and sizes of workspace follow from it
def engine_code() -> CodeSource | None:
    """Return the source of the engine's machine code; None if NumPy must multiply."""
    if _is_sub_interpreter():
        return None
    if os.environ.get(VARIABLE) != "1" and (found := _library()) is not None:
        return found
    return _compiler()


def why_numpy() -> str:
    """Return the reason why there is no machine code, as text."""
    if _is_sub_interpreter():
        return "this is a sub-interpreter, to which machine code does not belong"
    return f"{_why_no_library()}, and {_why_no_compiler()}"


def kernel_code(kernel: Kernel, dtype: str, result: str) -> Code:
    """Return the machine code of a kernel, from the library or compiled now. Raises UnavailableError if there is
    neither a library nor a compiler."""
    source = engine_code()
    if isinstance(source, BuiltCode) and not source.has(kernel, dtype, result):
        source = _compiler()
    if source is None:
        why = why_numpy() if _is_sub_interpreter() else _why_no_compiler()
        raise UnavailableError(f"{kernel.name} for {dtype} must be compiled, and {why}: {how_to_install('lab')}")
    return source.kernel(kernel, dtype, result)


def need_machine_code(what: str) -> CodeSource:
    """Return the source of machine code. Raise UnavailableError if there is no machine code; ``what`` is the subject of
    the message."""
    source = engine_code()
    if source is None:
        raise UnavailableError(f"{what} must be compiled, and {why_numpy()}: {how_to_install('lab')}")
    return source


def describe_code() -> str:
    """Return a line of text that says which machine code is used, and why."""
    source = engine_code()
    if source is None:
        return f"none: {why_numpy()}; NumPy multiplies"
    if not isinstance(source, BuiltCode):
        return f"compiled in each process: {_why_no_library()}"
    return f"built for {source.level.name}, the best level of this processor"


# ---- the library -----------------------------------------------------------------------------------------------------


@functools.cache  # loads it
def _library() -> BuiltCode | None:
    from .library import BuiltLibrary, built_level, is_current

    level = built_level(machine())
    if level is None or not is_current(level) or not has_analytic_tile():
        return None
    try:
        return BuiltCode(BuiltLibrary(level))
    except OSError as error:
        import logging

        logging.getLogger("tilewright").warning("the library %s cannot be loaded: %s", level.name, error)
        return None


def _why_no_library() -> str:
    from .library import built_level

    if os.environ.get(VARIABLE) == "1":
        return f"${VARIABLE} is set"
    level = built_level(machine())
    if level is None:
        return "no library was built for this processor (python -m tilewright.prebuilt)"
    if not has_analytic_tile():
        return "the tile that was tuned here is not the library's (tilewright tune --reset)"
    return f"the library {level.name} is older than the sources (python -m tilewright.prebuilt)"


class BuiltCode:
    """A built library as a source of machine code."""

    def __init__(self, library: Any) -> None:
        from ...kernels.catalog import engine
        from ..codegen.settings import SETTINGS

        self._library, self.level = library, library.level
        self._kernels = set(engine().values())  # imported now, so that all numbers are known
        library.write_settings(SETTINGS)
        self.run_call = library.function("run_call")

    def has(self, kernel: Kernel, dtype: str, result: str) -> bool:
        """Return whether the library holds this kernel. A library holds neither a changed kernel nor a kernel that was
        loaded again with another tile."""
        return kernel in self._kernels and self._library.has(kernel_name(kernel.name, dtype, result))

    @functools.cache  # noqa: B019  # lives as long as the process
    def kernel(self, kernel: Kernel, dtype: str, result: str) -> BuiltKernel:
        name = kernel_name(kernel.name, dtype, result)
        with_params = self._library.function(f"call {name}") if kernel.tunable else None
        return BuiltKernel(self._library.address(name), self.run_call, with_params)

    def function(self, name: str) -> Callable[..., int]:
        function: Callable[..., int] = self._library.function(name)
        return function

    def address(self, name: str) -> int:
        address: int = self._library.address(name)
        return address


class BuiltKernel:
    """A kernel of a built library, which a team of threads calls."""

    def __init__(self, address: int, run_call: Callable[..., int], with_params: Callable[..., int] | None) -> None:
        self.address, self._run_call, self._with_params = address, run_call, with_params

    def __call__(self, *arrays: np.ndarray, **params: int) -> None:
        if self._with_params is not None:
            self._with_params(*arrays, *params.values())
            return
        from .threads import call_words

        self.run(call_words(self, *arrays))

    def run(self, call: np.ndarray) -> None:
        """Run the kernel for a call that is encoded as an array of words. The arrays of the call must exist until the
        kernel ends. Raises MemoryError if a thread could not allocate its memory."""
        if not self._run_call(call):
            raise MemoryError("the workspace is smaller than one thread needs")


# ---- the compiler ----------------------------------------------------------------------------------------------------


@functools.cache  # one object, which has what it compiled
def _compiler() -> CodeSource | None:
    """Numba, where it is installed and may compile."""
    if os.environ.get(_FORBIDDEN, "0") not in ("", "0") or importlib.util.find_spec("numba") is None:
        return None
    from .in_process import Compiler

    return Compiler()


def _why_no_compiler() -> str:
    return "Numba is not installed" if importlib.util.find_spec("numba") is None else f"${_FORBIDDEN} is set"


def _is_sub_interpreter() -> bool:
    """Whether this is another interpreter than the process's first, to which machine code belongs that takes the GIL."""
    states = ctypes.pythonapi.PyInterpreterState_Get, ctypes.pythonapi.PyInterpreterState_Main
    for state in states:
        state.restype = ctypes.c_void_p
    here, first = (state() for state in states)
    return bool(here != first)
