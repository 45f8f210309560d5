"""What the generators of streaming loops share: a function around emitted code, a counted loop, and sums over lanes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .vectors import I32, I64, Vectors, bits_of

Values = list[Any]


def emitted(kinds: str, vector_bits: int, emit: Callable[..., None]) -> Callable[..., None]:
    """An intrinsic whose code ``emit(vectors, *args)`` writes; ``kinds`` says of each argument whether it is an (i)nteger
    or a (p)ointer to elements, all of one type: ``"ip"`` for ``f(count, x)``."""

    def run(typingctx: Any, *argument_types: Any) -> Any:  # noqa: ARG001
        pointer = argument_types[kinds.index("p")]
        signature = types.void(*[pointer if kind == "p" else types.intp for kind in kinds])

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            scalar = context.get_data_type(pointer.dtype)
            emit(Vectors(builder, scalar, vector_bits // bits_of(scalar)), *args)
            return context.get_dummy_value()

        return signature, codegen

    names = ["typingctx", *(f"{kind}{place}" for place, kind in enumerate(kinds))]
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # Numba folds *args into a tuple
    return intrinsic(run)


def counted_loop(
    builder: Any, start: Any, stop: Any, step: int, carried: Sequence[Any], body: Callable[[Any, Values], Values]
) -> tuple[Any, Values]:
    """``body(index, values)`` → new values, for index = start, start + step, … while a whole step fits before ``stop``.

    Returns the index of the first step that did not fit, and the last values: ``carried`` if no step fitted.
    """
    before, head = builder.block, builder.append_basic_block("loop.head")
    inside, done = builder.append_basic_block("loop.body"), builder.append_basic_block("loop.done")
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(I64)
    values = [builder.phi(value.type) for value in carried]
    following = builder.add(index, I64(step))
    builder.cbranch(builder.icmp_signed("<=", following, stop), inside, done)
    builder.position_at_end(inside)
    updated = body(index, values)
    last = builder.block  # the body may have branched
    for phi, first, new in zip([index, *values], [start, *carried], [following, *updated], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(new, last)
    builder.branch(head)
    builder.position_at_end(done)
    return index, values


def vector_loop(
    vectors: Vectors, count: Any, chains: int, carried: Sequence[Any], body: Callable[..., Values]
) -> Values:
    """``body(index, values, load, store, chain)`` over ``count`` elements by vectors, ``chains`` in an iteration.

    ``load(pointer, index)`` and ``store(value, pointer, index)`` are masked for the last vector, if it is partial: elements
    from ``count`` on are not accessed, and zeros are loaded. ``chain`` numbers the vectors of an iteration; those of the
    remainder have chain 0.
    """
    builder, lanes = vectors.builder, vectors.lanes

    def whole(index: Any, values: Values) -> Values:
        for chain in range(chains):
            at = builder.add(index, I64(chain * lanes))
            values = body(at, values, vectors.load, vectors.store, chain)
        return values

    def cut(index: Any, values: Values) -> Values:
        mask = vectors.mask(builder.sub(count, index))

        def load(pointer: Any, at: Any) -> Any:
            return vectors.load_masked(mask, pointer, at)

        def store(value: Any, pointer: Any, at: Any) -> None:
            vectors.store_masked(mask, value, pointer, at)

        return body(index, values, load, store, 0)

    index, values = counted_loop(builder, I64(0), count, chains * lanes, carried, whole)
    return counted_loop(builder, index, builder.add(count, I64(lanes - 1)), lanes, values, cut)[1]


def sum_of_lanes(vectors: Vectors, value: Any) -> Any:
    """The sum of a vector's lanes as a scalar: halves are added until one lane is left, in the same order everywhere."""
    builder, lanes = vectors.builder, vectors.lanes
    while lanes > 1:
        lanes //= 2
        low, high = (
            builder.shuffle_vector(value, value, ir.Constant(ir.VectorType(I32, lanes), list(range(at, at + lanes))))
            for at in (0, lanes)
        )
        value = vectors.add(low, high)
    return builder.extract_element(value, I32(0))


def row_pointers(builder: Any, first: Any, stride: Any, rows: int, live: Any) -> Values:
    """Pointers to ``rows`` rows; those from the ``live``-th on repeat the last live one, so that all may be read."""
    last = builder.sub(live, I64(1))
    pointers = []
    for row in range(rows):
        inside = builder.icmp_signed("<", I64(row), live)
        pointers.append(builder.gep(first, [builder.mul(builder.select(inside, I64(row), last), stride)]))
    return pointers
