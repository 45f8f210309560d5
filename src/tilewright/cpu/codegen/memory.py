"""Functions for compiled code that allocate aligned buffers and make pointers into arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic, overload
from numba.np.arrayobj import populate_array

from .sizes import ALIGNMENT
from .vectors import Vectors


@nb.njit(nogil=True)
def aligned_buffer(size: int, like: np.ndarray) -> np.ndarray:
    """Return an uninitialised 1-D array of ``size`` elements of the dtype of ``like``, which begins on a 64-byte
    boundary."""
    itemsize = like.itemsize
    raw = np.empty(size + ALIGNMENT // itemsize, dtype=like.dtype)
    skip = (-raw.ctypes.data % ALIGNMENT) // itemsize
    return raw[skip : skip + size]


@intrinsic
def _address(typingctx: Any, array: Any, row: Any, column: Any) -> Any:  # noqa: ARG001
    """Pointer to ``array[row, column]``, computed from the strides; no bounds are checked."""
    signature = types.CPointer(array.dtype)(array, types.intp, types.intp)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, args[0])
        strides = [builder.extract_value(view.strides, axis) for axis in range(2)]
        offset = builder.add(builder.mul(args[1], strides[0]), builder.mul(args[2], strides[1]))
        start = builder.bitcast(view.data, ir.IntType(8).as_pointer())
        return builder.bitcast(builder.gep(start, [offset]), view.data.type)

    return signature, codegen


@intrinsic
def _offset(typingctx: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    """Pointer to element ``index`` of a contiguous 1-D array."""
    signature = types.CPointer(array.dtype)(array, types.intp)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.gep(view.data, [args[1]])

    return signature, codegen


@intrinsic
def _itemsize(typingctx: Any, array: Any) -> Any:  # noqa: ARG001
    """Bytes of an element: a constant, which ``array.itemsize`` is not, so that dividing by it costs nothing."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        return ir.Constant(ir.IntType(64), context.get_abi_sizeof(context.get_data_type(array.dtype)))

    return types.intp(array), codegen


@intrinsic
def _moved(typingctx: Any, array: Any, distance: Any) -> Any:  # noqa: ARG001
    """The same view, moved by ``distance`` bytes: to the next matrix of a batch."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = context.make_array(signature.return_type)(context, builder, args[0])
        start = builder.bitcast(view.data, ir.IntType(8).as_pointer())
        view.data = builder.bitcast(builder.gep(start, [args[1]]), view.data.type)
        return impl_ret_borrowed(context, builder, signature.return_type, view._getvalue())

    return array(array, types.intp), codegen


@intrinsic
def _as_row(typingctx: Any, matrix: Any, size: Any) -> Any:  # noqa: ARG001
    """``size`` elements from the matrix's first on, whatever its shape says, as a contiguous 1-D array."""
    row = types.Array(matrix.dtype, 1, "C")

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = context.make_array(matrix)(context, builder, args[0])
        result = context.make_array(row)(context, builder)
        strides = cgutils.pack_array(builder, [view.itemsize])
        shape = cgutils.pack_array(builder, [args[1]])
        populate_array(result, view.data, shape, strides, view.itemsize, view.meminfo)
        return impl_ret_borrowed(context, builder, signature.return_type, result._getvalue())

    return row(matrix, types.intp), codegen


@intrinsic
def _copy(typingctx: Any, target: Any, source: Any, count: Any) -> Any:  # noqa: ARG001
    """Copy ``count`` elements from one pointer to another; they must not overlap."""
    signature = types.void(target, source, types.intp)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        size = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
        cgutils.raw_memcpy(builder, args[0], args[1], args[2], size)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def _prefetch_for_write(typingctx: Any, pointer: Any) -> Any:  # noqa: ARG001
    """Prefetch the line of an element, for this processor alone: it will be written soon."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        Vectors(builder, args[0].type.pointee, 1).prefetch(args[0], write=True)
        return context.get_dummy_value()

    return types.void(pointer), codegen


# An intrinsic is called without its first parameter, which type checkers cannot know.
address: Callable[..., Any] = _address
offset: Callable[..., Any] = _offset
copy: Callable[..., None] = _copy
itemsize: Callable[..., int] = _itemsize
moved: Callable[..., np.ndarray] = _moved
as_row: Callable[..., np.ndarray] = _as_row
prefetch_for_write: Callable[..., None] = _prefetch_for_write


def has_rows(matrix: np.ndarray | tuple[np.ndarray, ...]) -> bool:
    """Return whether the elements of a row are closer together in memory than those of a column (for compiled code).
    ``matrix`` is a matrix, or a tuple whose first element is a matrix."""
    raise NotImplementedError


@overload(has_rows)
def _has_rows(matrix):  # Numba compares the arguments with those of what it returns, annotations included
    if isinstance(matrix, types.BaseTuple):
        return lambda matrix: abs(matrix[0].strides[0]) > abs(matrix[0].strides[1])
    return lambda matrix: abs(matrix.strides[0]) > abs(matrix.strides[1])
