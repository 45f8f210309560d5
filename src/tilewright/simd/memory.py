"""Aligned buffers, and pointers into arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: A cache line, and the widest vector of any machine we know, in bytes: what every buffer is aligned to (S1.1).
ALIGNMENT = 64


@nb.njit(nogil=True)
def aligned_empty(size: int, like: np.ndarray) -> np.ndarray:
    """An uninitialised 1-D array of ``size`` elements of ``like``'s dtype that starts on a 64-byte boundary."""
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
def _copy(typingctx: Any, target: Any, source: Any, count: Any) -> Any:  # noqa: ARG001
    """Copy ``count`` elements from one pointer to another; they must not overlap."""
    signature = types.void(target, source, types.intp)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        size = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
        cgutils.raw_memcpy(builder, args[0], args[1], args[2], size)
        return context.get_dummy_value()

    return signature, codegen


# An intrinsic is called without its first parameter, which type checkers cannot know.
address: Callable[..., Any] = _address
offset: Callable[..., Any] = _offset
copy: Callable[..., None] = _copy
