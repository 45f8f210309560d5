"""The fast path for small products: one call from Python to C, which reads the arrays itself.

The multiplication of two 4×4 matrices itself takes 10 ns. Reading the shape of an array in Python takes 40 ns, and a
call through Numba, which unpacks arrays, takes 300 ns. So a function of the C front (``native``) reads shape, strides
and flags and makes the checks of the general path. The function of the C front then calls the kernel that the general
path would plan, for one product or a whole batch. The function returns the result, or None for anything unusual: other
types, different dtypes, overlap, an empty axis, a wrong shape, or much work. If the result is None, the general path
computes the product or raises the error.

The fast path is in C for its speed: products of n×n matrices with n from 2 to 16 are 3.5 to 4.3 times as fast as with
``np.matmul``. A simpler design, with checks in Python and a call through Numba, is 1.0 to 1.2 times as fast as
``np.matmul``, and the general path is 0.4 times as fast.

The compiled functions that the C front calls are in ``entries``. If there is no C front, or with
``TILEWRIGHT_EXPRESS=0``, every product takes the general path, with the same results.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from ..native import front
from .library import code_dtype, function_name, products_name
from .machine_code import engine_code

#: The limit of a batch (``facts``) for one times one matrix, which threads may share as a single product; it is looked at in
#: Python first.
MOST_WORK_BY_ONE = 3_000_000

#: ``short(a, b, out)`` checks the operands and returns the product, or None for one that must go the long way. With a fourth
#: argument there is no limit on work, and nothing is checked; with a fifth one, operands are checked.
Short = Callable[..., Any]

#: The environment variable that, set to 0, sends every product the long way.
VARIABLE = "TILEWRIGHT_EXPRESS"


def c_front() -> ModuleType | None:
    """Return the C front, if fast paths are to be used; otherwise None."""
    return None if os.environ.get(VARIABLE) == "0" or engine_code() is None else front()


def take_long_way(a: Any, b: Any, out: Any, *_: Any) -> None:
    """Return None, so that the product takes the general path; replaces the fast path where it is unavailable."""


def multiply_any_work(a: Any, b: Any, out: Any) -> Any:
    """Multiply by the fast path, without its limit on work."""
    return multiply(a, b, out, False, True)


#: The function for small products; ``take_long_way`` until a dtype was learned.
multiply: Short = take_long_way


def learn_dtype(dtype: np.dtype, most_work: int) -> Short:
    """Add ``dtype`` to the dtypes that the C function computes, and return the function.

    The function returns None if all products of a batch together take more than ``most_work`` multiply-adds, because
    several threads may share such a batch.
    """
    global multiply
    c, source = c_front(), engine_code()
    if c is not None and source is not None:
        from .facts import FOR_VECTORS, MOST_WORK_OF_BATCH  # reads headers, which products on a GPU do not need

        alone = "are_small_or_of_vectors" if dtype.name in FOR_VECTORS.dtypes else "are_small"
        names = products_name(code_dtype(dtype).name), function_name("are_small"), function_name(alone)
        c.learn(dtype, *map(source.address, names), most_work, MOST_WORK_OF_BATCH, MOST_WORK_BY_ONE)
        multiply = c.small_product
    return multiply
