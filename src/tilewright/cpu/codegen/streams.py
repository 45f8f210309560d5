"""Products that memory bounds: loops that read a matrix once, in long runs of unit stride.

With one multiply-add per load, the processor executes loads so far ahead that the hardware prefetchers keep up, and every
prefetch instruction cost time. With six, its out-of-order window is full of arithmetic that waits: then prefetching the same
part of the next few rows raises the bandwidth by half.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .loops import Values, counted_loop, emitted, row_pointers, sum_of_lanes, vector_loop
from .vectors import I32, I64, Vectors


def row_dots(rows: int, columns: int, chains: int, vector_bits: int, *, ahead: int = 0) -> Callable[..., None]:
    """Dot products of rows of X with rows of Y, both of unit stride along k; vectors of partial sums stay in registers.

    The result is an intrinsic ``dots(kc, x, x_row, x_live, y, y_row, y_live, z, z_row, z_column, accumulate)``:
    ``z[i, j] = Σ x[i, p]·y[j, p]`` for i < ``x_live`` ≤ ``rows``, j < ``y_live`` ≤ ``columns`` (both at least 1) and
    p < ``kc``; added to what is there unless ``accumulate`` is 0. Strides count elements. ``chains`` vectors along k are
    summed separately, for tiles whose rows · columns are too few to keep the multipliers busy. What lies ``ahead`` elements
    further in X is prefetched into the second-level cache, if ``ahead`` is not 0.
    """

    def emit(
        vectors: Vectors, kc: Any, x: Any, x_row: Any, x_live: Any, y: Any, y_row: Any, y_live: Any, *out: Any
    ) -> None:
        builder = vectors.builder
        of_x = row_pointers(builder, x, x_row, rows, x_live)
        of_y = row_pointers(builder, y, y_row, columns, y_live)

        def step(at: Any, sums: Values, load: Any, store: Any, chain: int) -> Values:  # noqa: ARG001
            new = list(sums)
            y_now = [load(pointer, at) for pointer in of_y]
            for r, pointer in enumerate(of_x):
                x_now = load(pointer, at)
                if ahead:
                    vectors.prefetch(pointer, builder.add(at, I64(ahead)), level=2)
                for j in range(columns):
                    place = (chain * rows + r) * columns + j
                    new[place] = vectors.multiply_add(x_now, y_now[j], new[place])
            return new

        sums = vector_loop(vectors, kc, chains, [vectors.zero] * (chains * rows * columns), step)
        tile = sums[: rows * columns]
        for chain in range(1, chains):
            part = sums[chain * rows * columns : (chain + 1) * rows * columns]
            tile = [vectors.add(x, y) for x, y in zip(tile, part, strict=True)]
        _write_sums(vectors, tile, (rows, x_live), (columns, y_live), *out)

    return emitted("ipiipiipiii", vector_bits, emit)


def _write_sums(
    vectors: Vectors, tile: Values, rows: Any, columns: Any, z: Any, z_row: Any, z_column: Any, accumulate: Any
) -> None:
    """Rows and columns beyond the live ones repeat the last one: the same element is stored twice."""
    builder = vectors.builder
    places = [
        pointer
        for row in row_pointers(builder, z, z_row, *rows)
        for pointer in row_pointers(builder, row, z_column, *columns)
    ]
    sums = [sum_of_lanes(vectors, value) for value in tile]
    with builder.if_else(builder.icmp_signed("!=", accumulate, I64(0))) as (add, overwrite):
        with add:
            old = [builder.load(place) for place in places]  # all before the first is stored: places repeat
            for place, before, value in zip(places, old, sums, strict=True):
                builder.store(vectors.add(before, value), place)
        with overwrite:
            for place, value in zip(places, sums, strict=True):
                builder.store(value, place)


def row_updates(rows: int, steps: int, vector_bits: int, *, ahead: int = 0) -> Callable[..., None]:
    """Rows of X, scaled, added to rows of Z, both of unit stride.

    The result is an intrinsic ``update(count, x, x_row, y, y_row, y_column, z, z_row, live)``:
    ``z[i, j] += Σ y[i, q]·x[q, j]`` for i < ``live`` ≤ ``rows`` (at least 1), q < ``steps`` and j < ``count``. Strides count
    elements. The rows · steps elements of Y stay in registers, X is read once. ``ahead``: as in ``row_dots``.
    """

    def emit(
        vectors: Vectors,
        count: Any,
        x: Any,
        x_row: Any,
        y: Any,
        y_row: Any,
        y_column: Any,
        z: Any,
        z_row: Any,
        live: Any,
    ) -> None:
        builder = vectors.builder
        of_x = row_pointers(builder, x, x_row, steps, I64(steps))
        of_z = row_pointers(builder, z, z_row, rows, live)
        factors = [
            [
                vectors.broadcast(builder.load(place))
                for place in row_pointers(builder, row, y_column, steps, I64(steps))
            ]
            for row in row_pointers(builder, y, y_row, rows, live)
        ]

        def step(at: Any, values: Values, load: Any, store: Any, chain: int) -> Values:  # noqa: ARG001
            x_now = [load(pointer, at) for pointer in of_x]
            if ahead:
                for pointer in of_x:
                    vectors.prefetch(pointer, builder.add(at, I64(ahead)), level=2)
            sums = [load(pointer, at) for pointer in of_z]  # all before the first is stored: rows repeat
            for i in range(rows):
                for q in range(steps):
                    sums[i] = vectors.multiply_add(factors[i][q], x_now[q], sums[i])
            for pointer, value in zip(of_z, sums, strict=True):
                store(value, pointer, at)
            return values

        vector_loop(vectors, count, 2, [], step)

    return emitted("ipipiipii", vector_bits, emit)


def stream_store(vectors: Vectors, value: Any, pointer: Any, elements: Any) -> None:
    """A store past the caches, for elements that are written once; the address must be a multiple of a vector.

    Other threads may read the elements once the thread that stored them has called ``settle``.
    """
    store = vectors.builder.store(value, vectors.at(pointer, elements))
    store.align = vectors.lanes * vectors.itemsize
    store.set_metadata("nontemporal", vectors.builder.module.add_metadata([I32(1)]))


def deinterleave(columns: int, vector_bits: int) -> Callable[..., None]:
    """Shuffle a narrow row-major matrix into columns of unit stride.

    The result is an intrinsic ``deinterleave(count, source, target, target_row)``: ``target[j · target_row + p] =
    source[p · columns + j]`` for p < ``count``. It writes whole vectors of ``target``: after the ``count`` elements, up to
    lanes − 1 elements are overwritten with zeros.
    """

    def emit(vectors: Vectors, count: Any, source: Any, target: Any, target_row: Any) -> None:
        builder, lanes = vectors.builder, vectors.lanes
        targets = row_pointers(builder, target, target_row, columns, I64(columns))

        def split(index: Any, loaded: Values) -> None:
            for j, pointer in enumerate(targets):
                vectors.store(_every(vectors, loaded, j), pointer, index)

        def whole(index: Any, values: Values) -> Values:
            start = builder.mul(index, I64(columns))
            split(index, [vectors.load(source, builder.add(start, I64(v * lanes))) for v in range(columns)])
            return values

        def cut(index: Any, values: Values) -> Values:
            start = builder.mul(index, I64(columns))
            left = builder.sub(builder.mul(count, I64(columns)), start)
            parts = []
            for v in range(columns):
                mask = vectors.mask(builder.sub(left, I64(v * lanes)))
                parts.append(vectors.load_masked(mask, source, builder.add(start, I64(v * lanes))))
            split(index, parts)
            return values

        index, _ = counted_loop(builder, I64(0), count, lanes, [], whole)
        counted_loop(builder, index, builder.add(count, I64(lanes - 1)), lanes, [], cut)

    return emitted("ippi", vector_bits, emit)


def _every(vectors: Vectors, parts: Values, first: int) -> Any:
    """Every ``len(parts)``-th element of consecutive vectors, from ``first`` on, as one vector: merged two at a time."""
    lanes, step = vectors.lanes, len(parts)
    wanted = [divmod(first + step * lane, lanes) for lane in range(lanes)]  # (which vector, which of its lanes)
    merged = parts[0]
    for number, part in enumerate(parts):
        mask = [
            lanes + place if number == vector else (place if number == 0 else lane)
            for lane, (vector, place) in enumerate(wanted)
        ]
        merged = vectors.builder.shuffle_vector(merged, part, ir.Constant(ir.VectorType(I32, lanes), mask))
    return merged


@intrinsic
def _settle(typingctx: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        module, name = builder.module, "llvm.x86.sse.sfence"
        if module.triple.startswith("x86_64"):  # elsewhere such stores are ordered like any other
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(module.globals.get(name) or ir.Function(module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), codegen


#: Wait until other threads see what this thread has stored past the caches.
settle: Callable[..., None] = _settle
