"""Copies of one vector or one square of elements: transposed, gathered from any stride, or reversed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .vectors import I8, I32, Vectors, bits_of


def square_transpose(vector_bits: int) -> Callable[..., None]:
    """An intrinsic ``transpose(source, stride, target, ld)`` that moves a square through registers.

    The square has as many rows and columns as a vector has lanes. ``source`` points to its first element; elements of a
    column follow each other, columns lie ``stride`` bytes apart. ``target`` receives the rows, ``ld`` elements apart.
    Both numbers may be negative.
    """

    @intrinsic
    def transpose(typingctx: Any, source: Any, stride: Any, target: Any, ld: Any) -> Any:  # noqa: ARG001
        signature = types.void(source, types.intp, target, types.intp)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            scalar = context.get_data_type(signature.args[0].dtype)
            _emit(Vectors(builder, scalar, vector_bits // bits_of(scalar)), *args)
            return context.get_dummy_value()

        return signature, codegen

    return transpose


def _emit(vectors: Vectors, source: Any, stride: Any, target: Any, ld: Any) -> None:
    """Columns are loaded, halves of ever larger blocks are exchanged (Eklundh 1972), and rows are stored."""
    builder, lanes = vectors.builder, vectors.lanes
    start = builder.bitcast(source, I8.as_pointer())
    rows = []
    for column in range(lanes):
        here = builder.gep(start, [builder.mul(stride, stride.type(column))])
        rows.append(vectors.load(builder.bitcast(here, source.type)))
    for i, row in enumerate(exchanged(builder, rows)):
        vectors.store(row, target, builder.mul(ld, ld.type(i)))


def exchanged(builder: Any, columns: list[Any]) -> list[Any]:
    """The rows of a square whose columns are these vectors: as many as each has lanes."""
    rows, lanes, block = list(columns), len(columns), 1
    while block < lanes:
        low, high = exchange(lanes, block)
        for i in (i for i in range(lanes) if not i & block):
            x, y = rows[i], rows[i + block]
            rows[i], rows[i + block] = (builder.shuffle_vector(x, y, _mask(pick)) for pick in (low, high))
        block *= 2
    return rows


def exchange(lanes: int, block: int) -> tuple[list[int], list[int]]:
    """The lanes of two concatenated rows that form the new upper and the new lower row when blocks are exchanged.

    >>> exchange(4, 1), exchange(4, 2)
    (([0, 4, 2, 6], [1, 5, 3, 7]), ([0, 1, 4, 5], [2, 3, 6, 7]))
    """
    low = [lane if not lane & block else lanes + lane - block for lane in range(lanes)]
    high = [lane + block if not lane & block else lanes + lane for lane in range(lanes)]
    return low, high


def _mask(lanes: list[int]) -> Any:
    return ir.Constant(ir.VectorType(I32, len(lanes)), lanes)


def strided_copy(vector_bits: int) -> Callable[..., None]:
    """An intrinsic ``copy(source, stride, target)``: as many elements as a vector has lanes, ``stride`` bytes apart, side by
    side."""

    @intrinsic
    def copy(typingctx: Any, source: Any, stride: Any, target: Any) -> Any:  # noqa: ARG001
        signature = types.void(source, types.intp, target)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            scalar = context.get_data_type(signature.args[0].dtype)
            vectors = Vectors(builder, scalar, vector_bits // bits_of(scalar))
            source, stride, target = args
            start, value = builder.bitcast(source, I8.as_pointer()), vectors.zero
            for lane in range(vectors.lanes):
                here = builder.gep(start, [builder.mul(stride, stride.type(lane))])
                value = builder.insert_element(value, builder.load(builder.bitcast(here, source.type)), I32(lane))
            vectors.store(value, target)
            return context.get_dummy_value()

        return signature, codegen

    return copy


def vector_copy(vector_bits: int, *, backwards: bool = False) -> Callable[..., None]:
    """An intrinsic ``copy(source, target, ahead)`` of one vector, which prefetches what lies ``ahead`` elements after
    ``source``.

    With ``backwards`` it is reversed: ``source`` points to the first element of ``target``; the others precede it in memory.
    """

    @intrinsic
    def copy(typingctx: Any, source: Any, target: Any, ahead: Any) -> Any:  # noqa: ARG001
        signature = types.void(source, target, types.intp)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            scalar = context.get_data_type(signature.args[0].dtype)
            vectors = Vectors(builder, scalar, vector_bits // bits_of(scalar))
            last = vectors.lanes - 1
            vectors.prefetch(args[0], args[2])
            value = vectors.load(args[0], -last if backwards else 0)
            if backwards:
                value = builder.shuffle_vector(value, value, _mask(list(range(last, -1, -1))))
            vectors.store(value, args[1])
            return context.get_dummy_value()

        return signature, codegen

    return copy
