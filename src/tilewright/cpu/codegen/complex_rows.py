"""Complex numbers as pairs of real ones, for kernels that compute with real numbers only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .loops import counted_loop
from .vectors import I32, I64, Vectors, bits_of


@intrinsic
def _real_parts(typingctx: Any, pointer: Any) -> Any:  # noqa: ARG001
    """Pointer to a complex number → pointer to its real part, which its imaginary part follows."""
    signature = types.CPointer(pointer.dtype.underlying_float)(pointer)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(signature.return_type))

    return signature, codegen


def row_times_i(vector_bits: int) -> Callable[..., None]:
    """An intrinsic ``times_i(source, target, count)``: ``count`` real numbers, pairs (x, y), become pairs (−y, x).

    ``count`` is a whole number of vectors. No rounding: only signs and positions change.
    """

    @intrinsic
    def times_i(typingctx: Any, source: Any, target: Any, count: Any) -> Any:  # noqa: ARG001
        signature = types.void(source, target, types.intp)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            scalar = context.get_data_type(signature.args[0].dtype)
            _emit_row(Vectors(builder, scalar, vector_bits // bits_of(scalar)), *args)
            return context.get_dummy_value()

        return signature, codegen

    return times_i


def _emit_row(vectors: Vectors, source: Any, target: Any, count: Any) -> None:
    def step(index: Any, values: list[Any]) -> list[Any]:
        vectors.store(times_i(vectors, vectors.load(source, index)), target, index)
        return values

    counted_loop(vectors.builder, I64(0), count, vectors.lanes, [], step)


def times_i(vectors: Vectors, pairs: Any) -> Any:
    """Pairs (x, y) of one vector → pairs (−y, x): no rounding, only signs and positions change."""
    lanes, builder = vectors.lanes, vectors.builder
    # −y from the negative, x as it is.
    swapped = [lane ^ 1 if lane % 2 else lanes + (lane ^ 1) for lane in range(lanes)]
    return builder.shuffle_vector(pairs, builder.fneg(pairs), ir.Constant(ir.VectorType(I32, lanes), swapped))


# An intrinsic is called without its first parameter, which type checkers cannot know.
real_parts: Callable[..., Any] = _real_parts
