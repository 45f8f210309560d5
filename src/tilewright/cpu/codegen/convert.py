"""Conversion of rows to another dtype, because narrow elements are computed in a wider dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .memory import address, offset
from .vectors import I8, I32, I64, Vectors, bits_of, counted_loop


def row_converter(vector_bits: int) -> Callable[..., None]:
    """Return an intrinsic ``convert(source, source_step, target, target_step, count)``: it converts a row to another
    dtype.

    The row has ``count`` elements. ``source`` and ``target`` point to elements; the steps between elements are any
    number of bytes. If both rows have unit stride, whole vectors are converted. Integers are converted to integers
    modulo the target's size. In a conversion between 16-bit integers and float32, the integers are the bits of 16-bit
    floats, because Numba lacks these types: unsigned integers for float16, signed integers for bfloat16. A float32 is
    rounded to the nearest 16-bit float, ties to even; a number beyond the largest one becomes infinity.
    """

    @intrinsic
    def convert(typingctx: Any, source: Any, source_step: Any, target: Any, target_step: Any, count: Any) -> Any:  # noqa: ARG001
        signature = types.void(source, types.intp, target, types.intp, types.intp)
        conversion = _conversion(source.dtype, target.dtype)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            source, source_step, target, target_step, count = args
            rows = (source, source_step), (target, target_step)
            sizes = [bits_of(pointer.type.pointee) // 8 for pointer, _ in rows]
            unit = [builder.icmp_signed("==", step, I64(size)) for (_, step), size in zip(rows, sizes, strict=True)]
            vectors_to = builder.select(builder.and_(*unit), count, I64(0))
            start: Any = I64(0)
            for lanes, stop in ((vector_bits // 8 // max(sizes), vectors_to), (1, count)):
                start, _ = counted_loop(builder, start, stop, lanes, [], _step(builder, conversion, lanes, *rows))
            return context.get_dummy_value()

        return signature, codegen

    return convert


#: Elements of a column that are converted at a time: each goes to a cache line of its own, and these lines stay in L1.
_LINES = 64


def converting_packer(vector_bits: int) -> Callable[..., None]:
    """Return a ``packer``, ``pack(source, top, rows, left, columns, target, at, ld)``, that also converts elements to
    the dtype of the target."""
    convert = row_converter(vector_bits)

    @nb.njit(nogil=True)
    def pack(
        source: np.ndarray, top: int, rows: int, left: int, columns: int, target: np.ndarray, at: int, ld: int
    ) -> None:
        down, along = source.strides
        if abs(along) <= abs(down):
            for r in range(rows):
                row = offset(target, at + r * ld)
                convert(address(source, top + r, left), along, row, target.itemsize, columns)
            return
        for r in range(0, rows, _LINES):
            for s in range(columns):
                column = offset(target, at + r * ld + s)
                convert(address(source, top + r, left + s), down, column, ld * target.itemsize, min(_LINES, rows - r))

    return pack


def _step(builder: Any, conversion: Any, lanes: int, source: Any, target: Any) -> Any:
    def convert(index: Any, values: list[Any]) -> list[Any]:
        x, y = (_element(builder, row, index) for row in (source, target))
        old, new = (Vectors(builder, pointer.type.pointee, lanes) for pointer in (x, y))
        new.store(conversion(old, new, old.load(x)), y)
        return values

    return convert


def _element(builder: Any, row: tuple[Any, Any], index: Any) -> Any:
    pointer, step = row
    start = builder.bitcast(pointer, I8.as_pointer())
    return builder.bitcast(builder.gep(start, [builder.mul(index, step)]), pointer.type)


# ---- one vector ------------------------------------------------------------------------------------------------------


def _conversion(source: Any, target: Any) -> Any:
    narrow = [kind for kind in (source, target) if isinstance(kind, types.Integer)]
    if len(narrow) == 2 or source == target:
        return _integer
    return _bfloat16 if narrow[0] == types.int16 else _float16


def _integer(old: Vectors, new: Vectors, value: Any) -> Any:
    if old.itemsize == new.itemsize:
        return value
    change = old.builder.sext if old.itemsize < new.itemsize else old.builder.trunc
    return change(value, new.vector)


def _float16(old: Vectors, new: Vectors, value: Any) -> Any:
    builder, half = old.builder, ir.VectorType(ir.HalfType(), old.lanes)
    if new.is_float:
        return builder.fpext(builder.bitcast(value, half), new.vector)
    return builder.bitcast(builder.fptrunc(value, half), new.vector)


def _bfloat16(old: Vectors, new: Vectors, value: Any) -> Any:
    """bfloat16 is the upper half of a float32."""
    builder, word = old.builder, Vectors(old.builder, I32, old.lanes)

    def each(number: int) -> Any:
        return ir.Constant(word.vector, [number] * word.lanes)

    if new.is_float:
        return builder.bitcast(builder.shl(builder.zext(value, word.vector), each(16)), new.vector)
    bits = builder.bitcast(value, word.vector)
    upper = builder.lshr(bits, each(16))
    tie = builder.add(each(0x7FFF), builder.and_(upper, each(1)))  # ties to even
    rounded = builder.lshr(builder.add(bits, tie), each(16))
    quiet = builder.or_(upper, each(0x40))  # a NaN must not carry over into infinity
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.select(is_nan, quiet, rounded), new.vector)
