"""Checks and conversions of operands: each becomes a NumPy array of a dtype that can be multiplied, and is checked
once.

The matrix type of S1.1 (docs/sources.md) aligned its storage to 64 bytes, and every function of S1.1 refused a matrix
that was not initialised or already destroyed. In this module ``aligned_empty`` and ``aligned_copy`` return storage
that is aligned to 64 bytes. Only ``admit`` refuses operands, before anything is computed; its error names the argument
and the reason.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import numbers
import operator
import os
import sys
import textwrap
from typing import TYPE_CHECKING, Any, TypeGuard, overload

import numpy as np

from ..errors import DTypeError, OperandError, ReadOnlyError, ShapeError, UnavailableError, UsageError
from .problem import merged_stride

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from .array_types import ScalarT

#: The alignment in bytes of memory that is allocated here: a cache line, which is also the widest vector of the supported
#: machines.
ALIGNMENT = 64

#: Dtypes whose names NumPy knows only after the package ml_dtypes is imported.
ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
#: The dtypes of NumPy that kernels multiply. Kernels also multiply bfloat16 (``is_known``).
DTYPES = (
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
#: The dtypes that NumPy multiplies and no kernel does, by their names on this system.
NUMPY_ONLY_DTYPES = tuple(np.dtype(kind).name for kind in (np.longdouble, np.clongdouble, object))
_KNOWN = frozenset(dtype for name in DTYPES for dtype in (np.dtype(name), np.dtype(name).newbyteorder()))
#: Dtypes that were found to be usable, bfloat16 after its first operand: to look here is faster than to ask NumPy for the
#: name of a dtype, which takes a microsecond.
_ADMITTED = set(_KNOWN)


@overload
def aligned_empty(shape: int | tuple[int, ...]) -> NDArray[np.float64]: ...
@overload
def aligned_empty(shape: int | tuple[int, ...], dtype: type[ScalarT] | np.dtype[ScalarT]) -> NDArray[ScalarT]: ...
@overload
def aligned_empty(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]: ...
def aligned_empty(shape: int | tuple[int, ...], dtype: Any = np.float64) -> NDArray[Any]:
    """Return an uninitialised C-ordered array whose first element is at an address that is a multiple of 64 bytes
    (S1.1).

    Parameters
    ----------
    shape : int or tuple of int
        The shape of the array.
    dtype : dtype or str, default: float64
        The dtype of the array.

    Returns
    -------
    array
        A NumPy array. Its elements have arbitrary values.

    Raises
    ------
    UsageError
        The shape has negative sizes, or needs more bytes than can be addressed.
    DTypeError
        ``dtype`` is a dtype of Python objects, or its elements have no bytes.

    See Also
    --------
    matmul : Can write its result to an aligned array that is passed as ``out``.

    Examples
    --------
    >>> import numpy as np, tilewright as tw
    >>> x = tw.aligned_empty((3, 5), np.float32)
    >>> x.shape, x.ctypes.data % 64
    ((3, 5), 0)
    """
    dtype = np.dtype(dtype)
    try:
        sizes = tuple(map(operator.index, shape if isinstance(shape, (tuple, list)) else (shape,)))
    except TypeError:
        raise UsageError(f"shape must be a size or a tuple of sizes, got {type(shape).__name__}") from None
    size = math.prod(sizes) * dtype.itemsize
    if min(sizes, default=0) < 0 or size > sys.maxsize - ALIGNMENT:
        raise UsageError(f"shape must be sizes from 0 that an address space holds, got {sizes}")
    if dtype.hasobject or not dtype.itemsize:
        raise DTypeError(f"dtype must be of plain bytes, got {dtype}")
    raw = np.empty(size + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(sizes)


def mapped_empty(size: int, dtype: np.dtype) -> np.ndarray:
    """Return a vector in a memory mapping of its own. The memory is returned to the system when the last array over it
    is freed, while memory that ``malloc`` frees may stay allocated to the process. Raises MemoryError."""
    try:
        memory = mmap.mmap(-1, max(1, size * dtype.itemsize), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size * dtype.itemsize} bytes: {error.strerror}") from None
    with contextlib.suppress(AttributeError, OSError):  # as NumPy does
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype, size)


def aligned_copy(array: np.ndarray, dtype: Any = None) -> np.ndarray:
    """Return a C-ordered copy of ``array`` that is aligned to 64 bytes, converted to ``dtype`` if a dtype is given."""
    copy = aligned_empty(array.shape, array.dtype if dtype is None else dtype)
    np.copyto(copy, array, casting="unsafe")
    return copy


def admit(value: Any, name: str, *, by_numpy: bool = False) -> np.ndarray:
    """Return the operand ``value`` as a NumPy array of a numeric dtype. The operand is not copied if it already is a
    NumPy array of a numeric dtype. ``name`` is the argument's name in errors.

    ``admit`` accepts what NumPy accepts: arrays, subclasses, nested lists, and objects with ``__array__``, the buffer
    protocol or DLPack. With ``by_numpy``, ``admit`` also accepts dtypes that only NumPy multiplies. Python objects are
    accepted only in an array or a list, so that an arbitrary object is not taken for a matrix.

    Raises OperandError for an operand that holds no usable matrix (None, masked, sparse, released, closed, on another
    device), ShapeError for a scalar that is a Python object, and DTypeError for a dtype that cannot be multiplied.
    """
    if type(value) is np.ndarray and value.base is None and value.dtype in _ADMITTED and 0 not in value.strides:
        return value  # most operands end here: the checks below would slow small products down
    if is_masked(value):
        raise OperandError(f"{name} is a masked array: the product would ignore its mask; pass {name}.filled(...)")
    try:
        array = _to_numpy(value)
    except MemoryError:
        raise
    except Exception as error:  # a foreign object may raise anything; the message quotes it
        reason = _one_line(error)
        module = type(value).__module__.partition(".")[0]
        advice = "; tilewright.matmul takes tensors" if module == "torch" else ""
        raise OperandError(
            f"{name} cannot be used as a matrix: {type(value).__name__} says {reason}{advice}"
        ) from error
    only_by_numpy = by_numpy and array.dtype.name in NUMPY_ONLY_DTYPES
    if array.dtype.kind == "O" and not (only_by_numpy and array.ndim and isinstance(value, (np.ndarray, list, tuple))):
        raise _objects_error(value, name)
    if not is_known(array.dtype) and not only_by_numpy:
        raise _dtype_error(value, array.dtype, name)
    if not only_by_numpy:
        _ADMITTED.add(array.dtype)
    _refuse_closed(array, name)
    return array


def _objects_error(value: Any, name: str) -> OperandError | ShapeError:
    """The error for a ``value`` that NumPy reads as Python objects, with the step that makes a matrix of it."""
    kind = type(value).__name__
    if value is None:
        return OperandError(f"{name} is None, not an array")
    if isinstance(value, os.PathLike):
        return OperandError(f"{name} is a {kind}, not an array: only tilewright.multiply reads files")
    if isinstance(value, numbers.Number) or (isinstance(value, np.ndarray) and not value.ndim):
        return ShapeError(f"{name} is a scalar: matmul needs at least one axis; multiply by a scalar with *")
    dense = next((word for word in ("toarray", "todense") if hasattr(value, word)), None)
    if dense is not None:
        size = math.prod(value.shape) * np.dtype(value.dtype).itemsize
        return OperandError(f"{name} is sparse, a {kind}: no kernel skips zeros; pass {name}.{dense}(), {size:,} bytes")
    if hasattr(value, "to_numpy") or hasattr(value, "to_pandas"):
        columns = f"{name}.to_pandas()" if hasattr(value, "to_pandas") else name  # those of pandas take a dtype
        step = f"pass {columns}.to_numpy('float64') of its columns of numbers"
        return OperandError(
            f"{name} is a {kind} of text, dates, nullable or mixed dtypes, so of Python objects: {step}"
        )
    of_list = isinstance(value, (np.ndarray, list, tuple))
    step = f"pass numpy.array({name}, 'float64')" if of_list else f"pass its numbers, as by numpy.array(list({name}))"
    return OperandError(f"{name} must be numeric: {kind} gives an array of Python objects; {step}")


def _dtype_error(value: Any, dtype: np.dtype, name: str) -> OperandError | DTypeError:
    """The error for an argument of a ``dtype`` that has no product, with the step that makes one that has."""
    if isinstance(value, str):
        return OperandError(f"{name} is a str, not an array: only tilewright.multiply reads files")
    if dtype.isbuiltin == 2:  # of ml_dtypes
        step = f"pass {name}.astype('float32')"
    elif dtype.names:
        step = f"pass a field, such as {name}[{dtype.names[0]!r}]"
    elif dtype.kind in "Mm":
        step = f"pass {name}.astype('int64'), which counts its units"
    elif dtype.kind in "SUT":
        step = f"if it is of numbers, pass numpy.array({name}, 'float64')"
    else:
        step = _CONVERT
    return DTypeError(f"{name} is {_kind(value)} of dtype {dtype}, which cannot be multiplied: {step}")


_CONVERT = "convert it to bool, integers, float16, float32, float64, complex64 or complex128"


def array_or_shape(value: Any, name: str) -> np.ndarray:
    """Return the operand ``value`` as an array, as ``admit`` does. For a tuple of integers, return a float64 array of
    this shape, whose elements are never read."""
    if not (isinstance(value, tuple) and all(isinstance(size, numbers.Integral) for size in value)):
        return admit(value, name, by_numpy=True)
    shape = tuple(int(size) for size in value)
    if any(size < 0 for size in shape) or math.prod(shape) >= 2**60:
        raise ShapeError(f"{name} is {shape}: a size must be at least 0, and all elements fewer than 2⁶⁰")
    return np.broadcast_to(np.float64(0), shape)


def _to_numpy(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        array = value.view(np.ndarray)
        if 0 in array.strides:  # an array from np.broadcast_arrays warns when asked whether it can be written
            array.flags.writeable = False
        return array
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return np.from_dlpack(value)
    if isinstance(value, memoryview):
        value = memoryview(value)  # raises if it was released; NumPy would wrap it as a Python object
    return np.asarray(value)


def _kind(value: Any) -> str:
    return "an array" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"


def _one_line(error: BaseException) -> str:
    return textwrap.shorten(str(error), 300) or type(error).__name__


def _refuse_closed(array: np.ndarray, name: str) -> None:
    """Raises OperandError for an array in a memory map that was closed or moved: to read it would crash the process."""
    owner = array.base
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if not isinstance(owner, mmap.mmap) or not array.size:
        return
    try:
        mapped = np.lib.array_utils.byte_bounds(np.frombuffer(owner, np.uint8))
    except ValueError:
        raise OperandError(f"{name} lies in a memory map that was closed: map the file again") from None
    first, end = np.lib.array_utils.byte_bounds(array)
    if first < mapped[0] or end > mapped[1]:
        raise OperandError(f"{name} lies in a memory map that was resized since: make the array again")


def admit_out(
    out: Any, shape: tuple[int, ...], dtype: np.dtype, name: str = "out", *, by_numpy: bool = False
) -> np.ndarray:
    """Return the array ``out``, which receives a result of ``shape`` and ``dtype``, as a plain array over the same
    memory. ``name`` is the argument's name in errors.

    With ``by_numpy``, ``out`` may also be an array of Python objects. The function raises OperandError if ``out`` is
    not an ndarray, or if some of its elements share memory. ``admit_out`` raises ReadOnlyError if ``out`` is
    read-only, ShapeError if the shape of ``out`` is not ``shape``, and DTypeError if NumPy's ``same_kind`` rule
    forbids the cast.
    """
    if not isinstance(out, np.ndarray) or is_masked(out):
        raise OperandError(f"{name} must be a numpy.ndarray, got {type(out).__name__}")
    if out.shape != shape:
        raise ShapeError(f"{name} is {out.shape}, the product is {shape}: {name} must have exactly this shape")
    if not out.flags.writeable:
        raise ReadOnlyError(f"{name} is read-only: pass an array that can be written")
    if _overlaps_itself(out):
        raise OperandError(
            f"{name} has strides {out.strides}: several of its elements share one place in memory; pass a copy"
        )
    kinds = "biufcO" if by_numpy else "biufc"
    if out.dtype != dtype and (out.dtype.kind not in kinds or not np.can_cast(dtype, out.dtype, casting="same_kind")):
        rule = "does not cast to it by the same_kind rule"
        raise DTypeError(f"{name} has dtype {out.dtype}: the product is {dtype}, which {rule}")
    _refuse_closed(out, name)
    return out.view(np.ndarray)


def _overlaps_itself(array: np.ndarray) -> bool:
    """Whether elements share bytes of memory."""
    if not array.size:
        return False
    axes = sorted((abs(step), length) for step, length in zip(array.strides, array.shape, strict=True) if length > 1)
    end = array.itemsize
    for step, length in axes:
        if step < end:
            break
        end += step * (length - 1)
    else:
        return False
    if not axes[0][0]:
        return True
    offsets = np.zeros(1, np.int64)  # axes interleave: compare all addresses
    for step, length in axes:
        offsets = (offsets[:, None] + step * np.arange(length)).ravel()
    offsets.sort()
    return bool((np.diff(offsets) < array.itemsize).any())


def is_real(value: object) -> TypeGuard[float]:
    """Return whether ``value`` is a single real number that a float can represent.

    >>> is_real(1), is_real(10**400), is_real(1j), is_real(np.ones(2))
    (True, False, False, False)
    """
    try:
        return isinstance(value, numbers.Real) and isinstance(float(value), float)
    except (OverflowError, TypeError, ValueError):
        return False


def is_masked(value: object) -> bool:
    """Return whether ``value`` is a masked array.

    Importing ``numpy.ma`` takes 0.05 s. So ``is_masked`` does not import ``numpy.ma``: no masked array can exist
    before ``numpy.ma`` is imported.

    >>> is_masked(np.ones(2)), is_masked(np.ma.masked_array([1, 2], [True, False]))
    (False, True)
    """
    module = sys.modules.get("numpy.ma")
    return module is not None and isinstance(value, module.MaskedArray)


def is_known(dtype: np.dtype) -> bool:
    """Return whether kernels can multiply arrays of this dtype, in any byte order.

    >>> is_known(np.dtype(">f4")), is_known(np.dtype("S4"))
    (True, False)
    """
    return dtype in _KNOWN or dtype.name == "bfloat16"


def dtype_of(dtype: Any, where: object) -> np.dtype:
    """Return ``dtype`` as a NumPy dtype; ``dtype`` may be the name of a dtype of ml_dtypes. ``where`` is the beginning
    of an error message.

    The function raises DTypeError if ``dtype`` is not a dtype, and UnavailableError if ``dtype`` is a dtype of
    ml_dtypes and ml_dtypes is not installed."""
    if isinstance(dtype, str) and dtype in ML_DTYPES:
        try:
            import ml_dtypes
        except ImportError:
            raise UnavailableError(f"{where}: {dtype} needs ml_dtypes: pip install ml_dtypes") from None
        return np.dtype(getattr(ml_dtypes, dtype))
    try:
        return np.dtype(dtype)
    except Exception:  # NumPy parses a text, which can fail in many ways
        raise DTypeError(f"{where} {dtype!r:.80} is not a dtype: give one, or its name, such as 'float32'") from None


def promoted(a: np.dtype, b: np.dtype) -> np.dtype:
    """Return the dtype of a product of arrays of dtypes ``a`` and ``b``, by ``numpy.result_type``. If
    ``numpy.result_type`` knows no common dtype, as for bfloat16 and int64, the result is the dtype to which
    ``numpy.matmul`` converts both arrays. Raises DTypeError if no dtype represents both.

    >>> promoted(np.dtype("int8"), np.dtype("float16")), promoted(np.dtype("uint64"), np.dtype("int64"))
    (dtype('float16'), dtype('float64'))
    """
    try:
        return np.result_type(a, b)
    except TypeError:
        for wide in (np.dtype(np.float32), np.dtype(np.float64)):
            if np.can_cast(a, wide) and np.can_cast(b, wide):
                return wide
        raise DTypeError(f"a is {a}, b is {b}: no dtype holds both; convert one of them") from None


def asked_dtype(dtype: Any, product: np.dtype) -> tuple[np.dtype, np.dtype]:
    """Return the dtype that a caller requests as ``out_dtype``, and the dtype in which to multiply. The dtype in which
    to multiply can represent the values of ``out_dtype`` and of ``product``, the promoted dtype of the operands.
    Raises DTypeError if ``product`` cannot be cast to the requested dtype by the ``same_kind`` rule.

    >>> asked_dtype("int32", np.dtype(np.int8)), asked_dtype("float32", np.dtype(np.float64))
    ((dtype('int32'), dtype('int32')), (dtype('float32'), dtype('float64')))
    """
    asked = dtype_of(dtype, "out_dtype")
    if not is_known(asked):
        raise DTypeError(f"out_dtype is {asked}: {_CONVERT}")
    if not (np.can_cast(product, asked, casting="same_kind") or (asked.name == "bfloat16" and product.kind == "f")):
        raise DTypeError(f"out_dtype is {asked}: a product of {product} does not cast to it by the same_kind rule")
    return asked, promoted(product, asked)


def native(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return ``array`` converted to ``dtype``, in native byte order and with aligned elements; ``array`` itself if
    nothing must be converted."""
    if array.dtype == dtype and array.dtype.isnative and array.flags.aligned:
        return array
    return array.astype(dtype if dtype.isnative else dtype.newbyteorder("="))


def as_row_major(array: np.ndarray) -> np.ndarray:
    """Return ``array`` itself if it is C-contiguous, otherwise an aligned C-ordered copy."""
    return array if array.flags.c_contiguous else aligned_copy(array)


def rows_of_batch(a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None) -> np.ndarray | None:
    """Return a view of the batch ``a`` as one tall matrix. One product of the tall matrix by ``b`` computes the whole
    batch.

    The result is None if ``b`` is a batch, too, or if the rows of ``a`` or of ``c``, the result of the product, are
    not equally spaced in memory.

    >>> a, b = np.ones((5, 3, 4)), np.ones((4, 2))
    >>> rows_of_batch(a, b).shape, rows_of_batch(a[:, ::2], b)
    ((15, 4), None)
    """
    axes = a.ndim - 1  # of rows
    if axes < 2 or b.ndim not in (1, 2) or a.shape[-1] != b.shape[0] or not a.size:
        return None
    for x in (a,) if c is None else (a, c):
        if x.shape[:axes] != a.shape[:axes] or merged_stride(x.shape[:axes], x.strides[:axes]) is None:
            return None
    return a.reshape(-1, a.shape[-1])


#: The number of rows of C from which on it is checked whether C is symmetric. The C front has the same number.
GRAM_LEAST = 64


def is_gram(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether each matrix of ``b`` is the transpose of a matrix of ``a`` in the same memory, so that their
    product is symmetric. The result is False for matrices of fewer than 64 rows, because computing only one triangle
    saves no time for them.

    >>> x = np.ones((100, 200))
    >>> is_gram(x, x.T), is_gram(x.T, x), is_gram(x, x[::-1].T), is_gram(x[:50], x[:50].T)
    (True, True, False, False)
    """
    axes = a.ndim
    if axes < 2 or axes != b.ndim or a.dtype is not b.dtype:
        return False
    (row, column), (of_b, of_b_too) = a.strides[-2:], b.strides[-2:]
    if row != of_b_too or column != of_b or a.shape[-2] < GRAM_LEAST or a.shape[-2] != b.shape[-1]:
        return False
    if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2] or a.strides[:-2] != b.strides[:-2]:
        return False
    return bool(a.__array_interface__["data"][0] == b.__array_interface__["data"][0])


def writeable_alias(array: np.ndarray) -> np.ndarray:
    """Return an array over the memory of ``array`` that is not marked read-only.

    A kernel never writes to its inputs. Without ``writeable_alias``, Numba would compile each kernel a second time for
    arrays that are marked read-only.
    """
    return array if array.flags.writeable else np.asarray(_Alias(array))


class _Alias:
    def __init__(self, array: np.ndarray) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self.keeps_alive = array


def can_write(target: np.ndarray, compute: np.dtype, *operands: np.ndarray) -> bool:
    """Return whether the kernel can write directly into the array ``target``. ``target`` must have the dtype
    ``compute``, native byte order and aligned elements, and must share no memory with the operands."""
    if target.dtype != compute or not target.dtype.isnative or not target.flags.aligned:
        return False
    return not any(np.may_share_memory(target, x) for x in operands)
