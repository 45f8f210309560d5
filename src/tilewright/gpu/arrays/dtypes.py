"""The dtypes of products on a GPU: the common dtype of both operands, the dtype of the result, and the dtypes of the
operands in memory."""

from __future__ import annotations

import numpy as np

from ...errors import DTypeError
from ...product.residues import RESIDUES_IN

#: The dtypes of arrays on a GPU that can be multiplied, and those that only results have.
DTYPES = (
    "float32",
    "float64",
    "bfloat16",
    "float16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int8",
    "complex64",
    "complex128",
)
RESULTS = ("int32",)

_FLOATS = ("float32", "float64", "bfloat16", "float16")
_COMPLEX = ("complex64", "complex128")
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
#: The dtype of a result, where it is not that in which the operands are multiplied.
_MADE = {
    "tf32": "float32",
    "float16x2": "float32",
    "float16x1": "float32",
    **{name: residues.dtype for name, residues in RESIDUES_IN.items()},
    "float8": "bfloat16",
    "float8_fast": "bfloat16",
}
#: The results that can be asked for. Sums of integers are int32; as int8 they are those modulo 2⁸.
_POSSIBLE = {
    "int8": ("int8", "int32", "float32", "bfloat16", "float16"),
    "float8": ("bfloat16", "float16", "float32"),
    "complex64": ("complex64",),
    "complex128": ("complex128",),
}


def dtype_on_gpu(x: str, y: str) -> str:
    """The common dtype of two operands: the narrowest dtype that represents both, or "float8" for two 8-bit floats.
    Raises DTypeError if no dtype represents both.

    >>> dtype_on_gpu("bfloat16", "float16"), dtype_on_gpu("float16", "float16"), dtype_on_gpu("bfloat16", "float64")
    ('float32', 'float16', 'float64')
    >>> dtype_on_gpu("float8_e5m2", "float8_e4m3fn")
    'float8'
    """
    if x in _FLOAT8 and y in _FLOAT8:
        return "float8"
    if x == y:
        return x
    if not {x, y} <= {*_FLOATS, *_COMPLEX}:
        raise DTypeError(f"a is {x}, b is {y}: on a GPU these are not multiplied with each other; convert one of them")
    return str(np.result_type(*("float32" if name == "bfloat16" else name for name in (x, y)), np.float32))


def made_dtype(compute: str) -> str:
    """The dtype of a result that was computed in the dtype ``compute``.

    >>> made_dtype("float8"), made_dtype("tf32"), made_dtype("int8")
    ('bfloat16', 'float32', 'int8')
    """
    return _MADE.get(compute, compute)


def dtype_in_memory(compute: str, dtype: str) -> str:
    """The dtype in memory of an operand of ``dtype``, for a kernel that computes in ``compute``.

    >>> dtype_in_memory("tf32", "float32"), dtype_in_memory("float8", "float8_e5m2"), dtype_in_memory("float32", "float16")
    ('float32', 'float8_e5m2', 'float32')
    """
    return dtype if compute in ("float8", "float8_fast") else made_dtype(compute)


def result_dtype(dtype: str, asked: str | None) -> str:
    """The dtype of the result for operands of ``dtype``. ``asked`` is the dtype that the caller requests, or None.
    Raises DTypeError.

    >>> result_dtype("float8", None), result_dtype("int8", "int32")
    ('bfloat16', 'int32')
    """
    if asked is None:
        return made_dtype(dtype)
    possible = _POSSIBLE.get(dtype, _FLOATS)
    if asked not in possible:
        raise DTypeError(f"out_dtype is {asked}: a product of {dtype} on a GPU can be {', '.join(possible)}")
    return asked


def casts(dtype: str, out: str) -> bool:
    """Whether a result of ``dtype`` can be stored in an array of the dtype ``out``: both must be floating-point types.

    >>> casts("float32", "float16"), casts("int32", "float32")
    (True, False)
    """
    return dtype == out or {dtype, out} <= set(_FLOATS)


def dtype_name(dtype: object) -> str:
    """The name of a dtype that a caller gives, as a name or as a dtype of NumPy, PyTorch or another library.

    >>> dtype_name(np.float32), dtype_name("bfloat16")
    ('float32', 'bfloat16')
    """
    text = str(dtype).removeprefix("torch.")
    if isinstance(dtype, str) or text != str(dtype):
        return text
    try:
        return np.dtype(dtype).name  # type: ignore[call-overload]
    except TypeError:
        raise DTypeError(f"out_dtype is {dtype!r}: give a dtype or its name, such as 'float32'") from None
