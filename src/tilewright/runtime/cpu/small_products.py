"""The short way for small products: one call from Python into machine code, which reads the arrays itself.

A product of 4×4 matrices takes 10 ns; reading the shape of an array in Python takes 40 ns, and a call through Numba, which
unpacks arrays, 300 ns. So this module makes a function that Python calls like a built-in one (``METH_FASTCALL``). The
function reads shape, strides and flags at the offsets that NumPy's C interface has had since 2006, makes the checks of the
long way, and calls the kernel that the long way would plan, for one product or a whole batch. It returns the result, or
None for anything unusual (other types, different dtypes, overlap, an empty axis, a wrong shape, much work): then the long
way computes the product or raises the error.

Why machine code that reads NumPy's structs: for n from 2 to 16 it is 3.5 to 4.3 times as fast as ``np.matmul``. The simpler
design, checks in Python and a call through Numba, is 1.0 to 1.2 times as fast as ``np.matmul``, and the long way 0.4 times.

``small_products_code`` holds the machine code, and only it imports ``codegen.objects``. Their assumptions are checked before
the first use (``_as_expected``): CPython with its GIL, the layout of objects and arrays, NumPy's C interface of version 2.
If one of them does not hold, as in a free-threaded Python, or with ``TILEWRIGHT_EXPRESS=0``, every product goes the long
way, with the same results.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy._core import _multiarray_umath  # type: ignore[attr-defined]

from . import facts as code
from .facts import FOR_VECTORS, KERNEL
from .interrupts import run_on_thread
from .machine_code import engine_code
from .names import code_dtype

#: The kernels that it calls.
KERNELS = KERNEL, FOR_VECTORS

#: Multiply-adds of a batch up to which this thread computes it at once.
MOST_WORK_OF_BATCH = code.MOST_WORK_OF_BATCH

#: ``short(a, b, out)`` returns the product or None. A fourth argument lifts the limit on work, and says that the operands
#: were checked before, unless there is a fifth.
Short = Callable[..., Any]

#: Objects that machine code points to: this list keeps them alive.
_alive: list[Any] = []
_learning = threading.Lock()


#: The environment variable that, set to 0, sends every product the long way.
VARIABLE = "TILEWRIGHT_EXPRESS"

#: NPY_ABI_VERSION of every NumPy 2. It fixes the positions in NumPy's table of C functions and the fields of an array.
_NUMPY_ABI = 0x02000000


@functools.cache
def _function_and_facts() -> tuple[Short, np.ndarray]:
    """The function, and the array of facts that it reads; it returns None for every dtype that is not in the facts."""
    facts = np.zeros(code.DTYPES // 8 + code.WORDS_OF_DTYPE * code.MOST_DTYPES, np.int64)
    if os.environ.get(VARIABLE) == "0" or not _as_expected():
        return decline, facts
    numpy_functions = _numpy_functions()
    facts[:4] = id(np.ndarray), id(None), numpy_functions[94], numpy_functions[76]  # NewFromDescr, Return
    source = engine_code()
    return (decline if source is None else source.python_function("small_product")(facts)), facts


def c_function(name: str) -> Short:
    """Another function that reads Python's objects by the same facts; ``decline`` where they cannot be read.

    To be called on a thread that no interrupt reaches, because it takes a lock.
    """
    with _learning:
        known_one, facts = _function_and_facts()
        source = engine_code()
        return decline if known_one is decline or source is None else source.python_function(name)(facts)


def decline(a: Any, b: Any, out: Any, *_: Any) -> None:
    """The short way where it is unavailable: every product goes the long way."""


def known_of_any_work(a: Any, b: Any, out: Any) -> Any:
    """The short way without its limit on work."""
    return known(a, b, out, False, True)


#: The function for small products; ``decline`` until a dtype was learned.
known: Short = decline


def _as_expected() -> bool:
    """Whether this is CPython with its GIL and NumPy of that ABI, and an array's fields lie at the assumed offsets."""
    if sys.implementation.name != "cpython" or object.__basicsize__ != 16 or sys.maxsize != 2**63 - 1:
        return False
    if "t" in getattr(sys, "abiflags", ""):  # without a GIL another thread may change an array while we read it
        return False
    if ctypes.CFUNCTYPE(ctypes.c_uint)(_numpy_functions()[0])() != _NUMPY_ABI:  # PyArray_GetNDArrayCVersion
        return False
    x = np.zeros((3, 5, 2), np.float32)[:, ::-2]
    fields = ctypes.string_at(id(x), np.ndarray.__basicsize__)

    def word(at: int) -> int:
        return int.from_bytes(fields[at : at + 8], sys.byteorder)

    all_bits = 2**64 - 1
    expected = (
        *((code.TYPE, id(np.ndarray), all_bits), (code.DATA, x.ctypes.data, all_bits)),
        *((code.BASE, id(x.base), all_bits), (code.DTYPE, id(x.dtype), all_bits)),
        *((code.AXES, x.ndim, 0xFFFF), (code.FLAGS, x.flags.num, 0x7FF)),
    )
    if any((word(at) ^ value) & mask for at, value, mask in expected):
        return False
    return all(
        tuple((ctypes.c_int64 * 3).from_address(word(at))) == sizes
        for at, sizes in ((code.SHAPE, x.shape), (code.STRIDES, x.strides))
    )


def _numpy_functions() -> Any:
    """NumPy's table of C functions, as addresses; the positions in it never change."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return (ctypes.c_int64 * 95).from_address(pointer(_multiarray_umath._ARRAY_API, None))


def _has_vectors(dtype: np.dtype) -> bool:
    return dtype.name in FOR_VECTORS.dtypes


def learn_dtype(dtype: np.dtype, most_work: int) -> Short:
    """Add ``dtype`` to those that the function computes, and return the function; compiled now or loaded from the cache.

    It returns None for more than ``most_work`` multiply-adds in all products of a batch: threads may share those.
    """
    global known
    known = run_on_thread(functools.partial(_learned, dtype, most_work))
    return known


def _learned(dtype: np.dtype, most_work: int) -> Short:
    """Runs on a thread that no interrupt reaches, because it takes a lock."""
    with _learning:
        function, facts = _function_and_facts()
        facts[code.MOST_WORK // 8] = most_work
        dtypes = facts[code.DTYPES // 8 :].reshape(-1, code.WORDS_OF_DTYPE)
        if function is not decline and id(dtype) not in dtypes[:, 0] and not dtypes[-1, 0]:
            source = engine_code()
            assert source is not None
            words = id(dtype), source.products(code_dtype(dtype).name), dtype.itemsize, _has_vectors(dtype)
            dtypes[np.flatnonzero(dtypes[:, 0] == 0)[0]] = words
            _alive.append(dtype)
        return function


def _renew() -> None:
    """A lock that was taken at the fork would never be released in the child."""
    global _learning
    _learning = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
