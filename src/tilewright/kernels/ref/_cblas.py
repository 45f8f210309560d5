"""Calls of a BLAS library, which is found at run time, through its C interface."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import UnavailableError

_ROW_MAJOR, _NO_TRANS = 101, 111

#: The dtypes that BLAS has, in its order s, d, c, z.
DTYPES = ("float32", "float64", "complex64", "complex128")


#: How libraries spell the names of the C interface, and the integers that they take: SciPy's builds are of 64 bits.
_SPELLINGS = (
    ("cblas_", "", ctypes.c_int),
    ("scipy_cblas_", "64_", ctypes.c_int64),
    ("scipy_cblas_", "", ctypes.c_int),
    ("cblas_", "64_", ctypes.c_int64),
)
_LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}

Gemm = Callable[[np.ndarray, np.ndarray, np.ndarray], None]


@functools.cache  # loads it once
def cblas_gemm(names: tuple[str, ...], install: str) -> Gemm:
    """Return the function ``gemm(a, b, c)`` of the first of ``names`` that is found as a library; raises
    UnavailableError, whose message says how to install one."""
    for library in _load(names):
        if (found := gemm_of(library)) is not None:
            return found
    raise UnavailableError(f"{names[0]} is not installed here: {install}")


def gemm_of(library: ctypes.CDLL) -> Gemm | None:
    """Return the function ``gemm(a, b, c)`` of a loaded library; None if the library has no C interface of BLAS."""
    for before, after, integer in _SPELLINGS:
        if hasattr(library, f"{before}sgemm{after}"):
            functions = {char: getattr(library, f"{before}{x}gemm{after}") for char, x in _LETTERS.items()}
            return functools.partial(_call, functions, integer)
    return None


def _load(names: tuple[str, ...]) -> Iterator[ctypes.CDLL]:
    for name in names:
        for candidate in (*libraries_of_prefix(name), ctypes.util.find_library(name)):
            if candidate:
                with contextlib.suppress(OSError):
                    yield ctypes.CDLL(str(candidate))


def libraries_of_prefix(name: str) -> list[Path]:
    """Return the shared libraries that a Python package installed under this interpreter's prefix; the newest name is
    first."""
    folder = Path(sys.prefix) / "lib"
    return sorted([*folder.glob(f"lib{name}.so*"), *folder.glob(f"lib{name}*.dylib")], reverse=True)


def _call(functions: dict[str, Callable[..., None]], integer: Any, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    (m, k), n = a.shape, b.shape[1]
    if k == 0 or 0 in c.shape:
        c[...] = 0  # some libraries do not write C then
        return
    one, zero = np.ones(1, c.dtype), np.zeros(1, c.dtype)
    scalar = {"f": ctypes.c_float, "d": ctypes.c_double}.get(
        c.dtype.char, ctypes.c_void_p
    )  # complex scalars go by address
    alpha, beta = (scalar(x.ctypes.data if c.dtype.kind == "c" else x[0]) for x in (one, zero))
    functions[c.dtype.char](
        *map(ctypes.c_int, (_ROW_MAJOR, _NO_TRANS, _NO_TRANS)),
        *map(integer, (m, n, k)),
        alpha,
        *(_pointer(a), integer(_leading(a)), _pointer(b), integer(_leading(b))),
        beta,
        *(_pointer(c), integer(_leading(c))),
    )


def _pointer(x: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.ctypes.data)


def _leading(x: np.ndarray) -> int:
    if x.shape[1] > 1 and x.strides[1] != x.itemsize:
        raise ValueError("the C interface needs rows of unit stride")
    return max(1, x.shape[1], x.strides[0] // x.itemsize)
