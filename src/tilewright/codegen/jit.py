"""Whether Numba compiles in this process: ``$NUMBA_DISABLE_JIT`` makes it leave every function as Python."""

from __future__ import annotations

import numba as nb

from ..errors import UnavailableError

VARIABLE = "NUMBA_DISABLE_JIT"


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
