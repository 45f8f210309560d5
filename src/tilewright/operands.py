"""What a matrix is to Tilewright: a NumPy array of a dtype we multiply, checked once at the door.

The source's matrix type (S1.1) aligned its storage to 64 bytes and refused, in every function, an object that was not
initialised or already destroyed. Here ``aligned_empty`` and ``aligned_copy`` give such storage, and ``admit`` is the one
place that refuses: by the argument's name, with the reason, before anything is computed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .errors import DTypeError, OperandError, ShapeError

#: Alignment of storage we allocate: a cache line, and the widest vector of any machine we know.
ALIGNMENT = 64


def aligned_empty(shape: int | tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
    """An uninitialised C-ordered array whose first element lies on a 64-byte boundary (S1.1).

    >>> x = aligned_empty((3, 5), np.float32)
    >>> x.shape, x.ctypes.data % 64
    ((3, 5), 0)
    """
    dtype = np.dtype(dtype)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def aligned_copy(array: np.ndarray, dtype: Any = None) -> np.ndarray:
    """A C-ordered, 64-byte aligned copy of ``array``, converted to ``dtype`` where one is given."""
    copy = aligned_empty(array.shape, array.dtype if dtype is None else dtype)
    np.copyto(copy, array, casting="unsafe")
    return copy


def admit(value: Any, name: str) -> np.ndarray:
    """The argument ``name`` as a NumPy array of a numeric dtype, without a copy where it already is one.

    Takes what NumPy takes: arrays, subclasses, nested lists, objects with ``__array__``, the buffer protocol or DLPack.
    Raises OperandError for what holds no usable matrix (text, None, masked, sparse, released, deleted) and DTypeError
    for a dtype that has no product here.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise OperandError(f"{name} is a masked array: the product would ignore its mask; pass {name}.filled(...)")
    try:
        array = _to_numpy(value)
    except Exception as error:  # whatever the foreign object raises: it is refused by name, with its own reason
        raise OperandError(
            f"{name} cannot be used as a matrix: {type(value).__name__} says {error}; pass an array that is alive"
        ) from error
    if array.dtype == object:
        raise OperandError(f"{name} must be numeric: {type(value).__name__} gives an array of Python objects")
    if array.dtype.kind not in "biufc":
        raise DTypeError(f"{name} must be numeric: got {_kind(value)} of dtype {array.dtype}")
    return array


def _to_numpy(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value.view(np.ndarray)
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return np.from_dlpack(value)
    return np.asarray(value)


def _kind(value: Any) -> str:
    return "an array" if isinstance(value, np.ndarray) else type(value).__name__


def admit_out(out: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The argument ``out``, checked against the result it is to hold.

    Raises OperandError unless it is a writeable ndarray, ShapeError unless its shape is ``shape``, DTypeError where
    NumPy's ``same_kind`` rule forbids the cast.
    """
    if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
        raise OperandError(f"out must be a numpy.ndarray, got {type(out).__name__}")
    if out.shape != shape:
        raise ShapeError(f"out is {out.shape}, the product is {shape}: out must have exactly this shape")
    if not out.flags.writeable:
        raise OperandError("out is read-only: pass an array that can be written")
    if not np.can_cast(dtype, out.dtype, casting="same_kind"):
        raise DTypeError(f"out has dtype {out.dtype}: the product is {dtype}, which does not cast to it safely")
    return out


def native(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """``array`` in native byte order, aligned to its elements and of ``dtype``; itself where it already is."""
    if array.dtype == dtype and array.dtype.isnative and array.flags.aligned:
        return array
    return array.astype(dtype.newbyteorder("="))


def row_major(array: np.ndarray) -> np.ndarray:
    """``array`` if it is C-contiguous, else an aligned C-ordered copy."""
    return array if array.flags.c_contiguous else aligned_copy(array)


def writeable_alias(array: np.ndarray) -> np.ndarray:
    """The same memory as ``array`` without its read-only mark, for compiled code that is typed by that mark.

    A kernel never writes its inputs; without this, Numba would compile every kernel once more for read-only arrays.
    """
    return array if array.flags.writeable else np.asarray(_Alias(array))


def load_matrix(path: str | Path) -> np.ndarray:
    """A matrix from a ``.npy`` file, checked to be one; raises OperandError, ShapeError or DTypeError naming the file."""
    path = Path(path)
    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise OperandError(f"{path} does not exist") from None
    except (ValueError, EOFError, OSError) as error:
        raise OperandError(f"{path} is truncated or is no .npy file: {error}") from None
    if not isinstance(array, np.ndarray):
        raise OperandError(f"{path} is an archive of several arrays: save the matrix alone with np.save")
    if array.ndim != 2:
        raise ShapeError(f"{path} is no matrix: it has shape {array.shape}")
    if array.dtype.kind != "f" or array.dtype.itemsize not in (4, 8):
        raise DTypeError(f"{path} has dtype {array.dtype}: it must be float32 or float64")
    bad = np.argwhere(~np.isfinite(array))
    if bad.size:
        row, column = bad[0]
        raise OperandError(f"{path} holds {array[row, column]} at [{row}, {column}]: every element must be finite")
    return array


class _Alias:
    def __init__(self, array: np.ndarray) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self.keeps_alive = array
