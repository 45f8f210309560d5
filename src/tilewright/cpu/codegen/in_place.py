"""Generates loops that multiply operands without packing: tiles of C, and loops that read a matrix once, in long runs
of unit stride.

With one multiply-add for each load, the processor executes loads so far ahead that the hardware prefetchers keep up;
prefetch instructions only cost time. With six multiply-adds for each load, the processor's out-of-order window is full
of waiting arithmetic. With six multiply-adds for each load, prefetching the same part of the next few rows raises the
bandwidth by half.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .sizes import ALIGNMENT
from .vectors import I32, I64, Values, Vectors, counted_loop, emitted, row_pointers, sum_of_lanes, vector_loop

# ---- products that memory bounds: loops that read a matrix once ------------------------------------------------------


def row_dots(rows: int, columns: int, chains: int, vector_bits: int, *, ahead: int = 0) -> Callable[..., None]:
    """Return an intrinsic for dot products of rows of X with rows of Y, both with unit stride along k. The partial sums
    of the dot products stay in vector registers.

    The result is an intrinsic ``dots(kc, x, x_row, x_live, y, y_row, y_live, z, z_row, z_column, accumulate)``: ``z[i,
    j] = Σ x[i, p]·y[j, p]`` for i < ``x_live`` ≤ ``rows``, j < ``y_live`` ≤ ``columns`` (both at least 1) and p <
    ``kc``; the old z is added if ``accumulate`` is not 0. Strides count elements. ``chains`` vectors along k are summed
    separately, for tiles in which rows · columns is too small to keep the multipliers busy. If ``ahead`` is not 0, each
    load of X also prefetches the elements that are ``ahead`` elements further into the second-level cache.
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
    """Return an intrinsic that adds scaled rows of X to rows of Z, both with unit stride.

    The result is an intrinsic ``update(count, x, x_row, y, y_row, y_column, z, z_row, live)``: ``z[i, j] += Σ y[i,
    q]·x[q, j]`` for i < ``live`` ≤ ``rows`` (at least 1), q < ``steps`` and j < ``count``. Strides count elements. The
    rows · steps elements of Y stay in registers, and X is read once. ``ahead`` is that of ``row_dots``.
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
    """Return an intrinsic for a store that bypasses the caches, for elements that are written once. The address of the
    store must be a multiple of the vector size.

    Other threads may read the elements once the thread that stored them has called ``settle``.
    """
    store = vectors.builder.store(value, vectors.at(pointer, elements))
    store.align = vectors.lanes * vectors.itemsize
    store.set_metadata("nontemporal", vectors.builder.module.add_metadata([I32(1)]))


def deinterleave(columns: int, vector_bits: int) -> Callable[..., None]:
    """Return an intrinsic that copies a narrow row-major matrix to columns of unit stride, by shuffles.

    The result is an intrinsic ``deinterleave(count, source, target, target_row)``: ``target[j · target_row + p] =
    source[p · columns + j]`` for p < ``count``. The intrinsic writes whole vectors of ``target``, so up to lanes − 1
    elements after the ``count`` elements are overwritten with zeros.
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


# ---- a tile of C; and buffers on the stack ---------------------------------------------------------------------------


def tile_in_place(
    rows: int, nv: int, vector_bits: int, *, prefetch: bool = False, stream: bool = False
) -> Callable[..., None]:
    """Return an intrinsic that multiplies an A with any strides by a B with unit stride, for a tile of C of ``rows``
    rows × ``nv`` vectors that is summed over k in registers.

    The result is an intrinsic ``tile(kc, a, a_row, a_step, live, b, b_step, columns, c, c_row, accumulate)``: ``c[i, j]
    = Σ a[i, p]·b[p, j]`` for p < ``kc``, i < ``live`` ≤ ``rows`` and j < ``columns`` ≤ nv · lanes, with ``live`` and
    ``columns`` at least 1. The old c is added if ``accumulate`` is not 0. Strides count elements. The intrinsic reads
    and writes no other elements.

    With ``prefetch`` the intrinsic has two more arguments, ``a_ahead`` and ``b_ahead``: the distances, in elements, at
    which A and B are prefetched. With ``stream`` the stores to C bypass the caches; the rows of C must begin at
    multiples of the vector size, and ``columns`` must fill the tile.
    """

    def emit(
        vectors: Vectors,
        kc: Any,
        a: Any,
        a_row: Any,
        a_step: Any,
        live: Any,
        b: Any,
        b_step: Any,
        columns: Any,
        *out: Any,
    ) -> None:
        builder = vectors.builder
        c, c_row, accumulate, *ahead = out
        of_c = row_pointers(builder, c, c_row, rows, live)
        tile = _InPlaceTile(
            vectors, row_pointers(builder, a, a_row, rows, live), a_step, b, b_step, nv, of_c, accumulate
        )
        if stream:
            tile.write(tile.product(kc, None, ()), None, stream_store)
            return
        with builder.if_else(builder.icmp_signed("<", columns, I64(nv * vectors.lanes))) as (narrow, full):
            with narrow:
                masks = [vectors.mask(builder.sub(columns, I64(v * vectors.lanes))) for v in range(nv)]
                tile.prefetch_c()
                tile.write(tile.product(kc, masks, ahead), masks, Vectors.store)
            with full:
                tile.prefetch_c()
                tile.write(tile.product(kc, None, ahead), None, Vectors.store)

    return emitted("ipiiipiipii" + "ii" * prefetch, vector_bits, emit)


@dataclass
class _InPlaceTile:
    """A tile in place; its rows from ``live`` on repeat the last live row: they compute and store the same elements
    again."""

    vectors: Vectors
    of_a: Values
    a_step: Any
    b: Any
    b_step: Any
    nv: int
    of_c: Values
    accumulate: Any

    def product(self, kc: Any, masks: Values | None, ahead: Sequence[Any]) -> Values:
        """Return the sums of the tile, one row of vectors after another."""
        builder, height = self.vectors.builder, len(self.of_a)
        sums = [self.vectors.zero] * (height * self.nv)
        start = I64(0)

        def steps(p: Any, sums: Values) -> Values:
            for number, row in enumerate(self.of_a):  # as many steps as rows: each step prefetches one row of A
                at = builder.add(p, I64(number))
                self._prefetch(at, row, *ahead)
                sums = self._step(at, sums, masks)
            return sums

        if ahead:
            start, sums = counted_loop(builder, start, kc, height, sums, steps)
        return counted_loop(builder, start, kc, 1, sums, lambda p, sums: self._step(p, sums, masks))[1]

    def _step(self, p: Any, sums: Values, masks: Values | None) -> Values:
        vectors, builder, nv = self.vectors, self.vectors.builder, self.nv
        row_of_b, offset = builder.gep(self.b, [builder.mul(p, self.b_step)]), builder.mul(p, self.a_step)
        b_now = [self._load(row_of_b, v, masks) for v in range(nv)]
        new = []
        for r, row in enumerate(self.of_a):
            element = vectors.broadcast(builder.load(builder.gep(row, [offset])))
            new += [vectors.multiply_add(element, b_now[v], sums[r * nv + v]) for v in range(nv)]
        return new

    def _load(self, row: Any, v: int, masks: Values | None) -> Any:
        if masks is None:
            return self.vectors.load(row, v * self.vectors.lanes)
        return self.vectors.load_masked(masks[v], row, v * self.vectors.lanes)

    def _prefetch(self, p: Any, row_of_a: Any, a_ahead: Any, b_ahead: Any) -> None:
        builder = self.vectors.builder
        self.vectors.prefetch(row_of_a, builder.add(builder.mul(p, self.a_step), a_ahead))
        row_of_b = builder.add(builder.mul(p, self.b_step), b_ahead)
        for v in range(self.nv):
            self.vectors.prefetch(self.b, builder.add(row_of_b, I64(v * self.vectors.lanes)))

    def prefetch_c(self) -> None:
        """Prefetch the tile of C: without a prefetch, a masked store fetches its line only when it executes, and later
        stores wait."""
        for row in self.of_c:
            for v in range(self.nv):
                self.vectors.prefetch(row, v * self.vectors.lanes, write=True)

    def write(self, sums: Values, masks: Values | None, store: Callable[..., None]) -> None:
        vectors, builder = self.vectors, self.vectors.builder
        places = [(row, v) for row in self.of_c for v in range(self.nv)]

        def put(values: Values) -> None:
            for value, (row, v) in zip(values, places, strict=True):
                if masks is None:
                    store(vectors, value, row, I64(v * vectors.lanes))
                else:
                    vectors.store_masked(masks[v], value, row, v * vectors.lanes)

        with builder.if_else(builder.icmp_signed("!=", self.accumulate, I64(0))) as (add, overwrite):
            with add:  # all are read before the first is stored: rows repeat
                old = [self._load(row, v, masks) for row, v in places]
                put([vectors.add(before, value) for before, value in zip(old, sums, strict=True)])
            with overwrite:
                put(sums)


def stack_buffer(size: int) -> Callable[..., Any]:
    """Return an intrinsic ``buffer(like)``: a 64-byte aligned pointer to ``size`` elements of the dtype of ``like`` on
    the stack.

    The buffer's elements are uninitialised and exist until the calling function returns. The buffer is for kernels that
    must not allocate memory.
    """

    @intrinsic
    def buffer(typingctx: Any, like: Any) -> Any:  # noqa: ARG001
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            scalar = context.get_data_type(signature.return_type.dtype)
            with builder.goto_entry_block():
                memory = builder.alloca(ir.ArrayType(scalar, size))
                memory.align = ALIGNMENT
            return builder.bitcast(memory, scalar.as_pointer())

        return types.CPointer(like.dtype)(like), codegen

    return buffer


@intrinsic
def _ahead(typingctx: Any, pointer: Any, elements: Any) -> Any:  # noqa: ARG001
    """Pointer to the element that lies ``elements`` after ``pointer``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        return builder.gep(args[0], [args[1]])

    return pointer(pointer, types.intp), codegen


ahead: Callable[..., Any] = _ahead
