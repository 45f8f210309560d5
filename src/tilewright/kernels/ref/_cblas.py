"""Calling a BLAS through its C interface, found at run time."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tilewright.errors import UnavailableError

_ROW_MAJOR, _NO_TRANS = 101, 111

#: BLAS's own: s, d, c, z.
DTYPES = ("float32", "float64", "complex64", "complex128")


@functools.cache
def gemm(names: tuple[str, ...], install: str) -> Callable[[np.ndarray, np.ndarray, np.ndarray], None]:
    """``gemm(a, b, c)`` of the first library found among ``names``; raises UnavailableError saying how to install it."""
    library = _load(names)
    if library is None:
        raise UnavailableError(f"{names[0]} is not installed here: {install}")
    letters = {"f": "s", "d": "d", "F": "c", "D": "z"}
    return functools.partial(_call, {char: getattr(library, f"cblas_{x}gemm") for char, x in letters.items()})


def _load(names: tuple[str, ...]) -> ctypes.CDLL | None:
    for name in names:
        for candidate in (*beside_python(name), ctypes.util.find_library(name)):
            try:
                library = ctypes.CDLL(str(candidate)) if candidate else None
            except OSError:
                continue
            if library is not None and hasattr(library, "cblas_sgemm"):
                return library
    return None


def beside_python(name: str) -> list[Path]:
    """Shared libraries that a Python package put under this interpreter's prefix, newest name first."""
    folder = Path(sys.prefix) / "lib"
    return sorted([*folder.glob(f"lib{name}.so*"), *folder.glob(f"lib{name}*.dylib")], reverse=True)


def _call(functions: dict[str, Callable[..., None]], a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    (m, k), n = a.shape, b.shape[1]
    if k == 0 or 0 in c.shape:
        c[...] = 0  # some libraries leave C as it was
        return
    one, zero = np.ones(1, c.dtype), np.zeros(1, c.dtype)
    scalar = {"f": ctypes.c_float, "d": ctypes.c_double}.get(c.dtype.char, ctypes.c_void_p)  # complex ones by address
    alpha, beta = (scalar(x.ctypes.data if c.dtype.kind == "c" else x[0]) for x in (one, zero))
    integers = (_ROW_MAJOR, _NO_TRANS, _NO_TRANS, m, n, k)
    functions[c.dtype.char](
        *map(ctypes.c_int, integers),
        alpha,
        *(_pointer(a), _leading(a), _pointer(b), _leading(b)),
        beta,
        *(_pointer(c), _leading(c)),
    )


def _pointer(x: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.ctypes.data)


def _leading(x: np.ndarray) -> ctypes.c_int:
    if x.shape[1] > 1 and x.strides[1] != x.itemsize:
        raise ValueError("the C interface needs rows of unit stride")
    return ctypes.c_int(max(1, x.shape[1], x.strides[0] // x.itemsize))
