"""Whether and for what processor Numba compiles in this process.

``$NUMBA_DISABLE_JIT`` makes it leave every function as Python. Where the machine's description takes instruction sets away,
the compiler does without them, too.
"""

from __future__ import annotations

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


def jit_is_disabled() -> bool:
    """Whether Numba leaves functions as Python here."""
    return bool(getattr(nb.config, "DISABLE_JIT", 0)) or not hasattr(_example, "py_func")


def need_jit(what: str) -> None:
    """Raise UnavailableError if ``what`` cannot be compiled."""
    if jit_is_disabled():
        raise UnavailableError(f"{what} must be compiled, and ${VARIABLE} is set: unset it")
