"""The names of a library's functions, and the dtypes of their elements."""

from __future__ import annotations

import numpy as np

#: The dtypes that compilers lack reach compiled code as integers with the same bits (``cpu.codegen.row_converter``).
STORAGE = {"float16": np.dtype(np.uint16), "bfloat16": np.dtype(np.int16)}

#: In place of a kernel's name, for the functions that belong to none.
NO_KERNEL = "functions"


def code_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype whose machine code multiplies ``dtype``: itself, and for unsigned integers the signed ones of the same bits.

    Modulo 2^bits the sums of products are the same, so one compilation serves both.

    >>> code_dtype(np.dtype("uint16")), code_dtype(np.dtype("float32"))
    (dtype('int16'), dtype('float32'))
    """
    return np.dtype(code_name(dtype.name)) if dtype.kind == "u" else dtype


def code_name(dtype: str) -> str:
    """The same by names, of which NumPy does not know all."""
    return dtype.removeprefix("u")


def storage(dtype: str) -> np.dtype:
    """The dtype with which compiled code sees elements of a dtype."""
    return STORAGE.get(dtype) or np.dtype(dtype)


def kernel_name(kernel: str, dtype: str, result: str) -> str:
    """A kernel for operands of a dtype and a C of another, or the same.

    >>> kernel_name("cpu/packed", "float32", "float32")
    'kernel cpu/packed float32 float32'
    """
    return f"kernel {kernel} {dtype} {result}"


def products_name(dtype: str) -> str:
    """The loop over a batch of small products."""
    return f"products {dtype}"


def function_name(function: str, dtype: str = "") -> str:
    """A function that Python calls with numbers and arrays."""
    return f"{function} {dtype}".strip()
