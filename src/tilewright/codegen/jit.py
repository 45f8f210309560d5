"""Whether and for what processor Numba compiles in this process.

``$NUMBA_DISABLE_JIT`` makes it leave every function as Python, and a sub-interpreter cannot call machine code that takes the
GIL. Where the machine's description takes instruction sets away, the compiler does without them, too.
"""

from __future__ import annotations

import ctypes
import functools
import os

import numba as nb
from llvmlite import binding

from ..errors import UnavailableError
from ..host.machine import machine

VARIABLE = "NUMBA_DISABLE_JIT"

if machine().without:
    os.environ["NUMBA_CPU_NAME"] = binding.get_host_cpu_name()
    left_out = [f"-{name}" for name in machine().without]  # last: with a feature LLVM drops all that need it
    os.environ["NUMBA_CPU_FEATURES"] = ",".join([binding.get_host_cpu_features().flatten(), *left_out])
    nb.config.reload_config()


@nb.njit
def _example() -> None:
    """Shows whether functions were compiled when they were decorated: the setting may have changed since."""


@functools.cache
def _is_sub_interpreter() -> bool:
    """Whether this is another interpreter than the process's first, to which machine code of Numba belongs."""
    states = ctypes.pythonapi.PyInterpreterState_Get, ctypes.pythonapi.PyInterpreterState_Main
    for state in states:
        state.restype = ctypes.c_void_p
    here, first = (state() for state in states)
    return bool(here != first)


def jit_is_disabled() -> bool:
    """Whether Numba's machine code cannot be used here."""
    return _is_sub_interpreter() or bool(getattr(nb.config, "DISABLE_JIT", 0)) or not hasattr(_example, "py_func")


def why_disabled() -> str:
    """Why it cannot, where it cannot."""
    return "this is a sub-interpreter" if _is_sub_interpreter() else f"${VARIABLE} is set"


def need_jit(what: str) -> None:
    """Raise UnavailableError if ``what`` cannot be compiled."""
    if jit_is_disabled():
        remedy = "multiply in the first interpreter" if _is_sub_interpreter() else "unset it"
        raise UnavailableError(f"{what} must be compiled, and {why_disabled()}: {remedy}")
