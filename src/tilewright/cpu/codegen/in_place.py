"""A tile of C from operands where they lie, unpacked; and buffers on the stack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .loops import Values, counted_loop, emitted, row_pointers
from .sizes import ALIGNMENT
from .streams import stream_store
from .vectors import I64, Vectors


def tile_in_place(
    rows: int, nv: int, vector_bits: int, *, prefetch: bool = False, stream: bool = False
) -> Callable[..., None]:
    """A tile of ``rows`` × ``nv`` vectors, summed over k in registers, from an A of any strides and a B of unit stride.

    The result is an intrinsic ``tile(kc, a, a_row, a_step, live, b, b_step, columns, c, c_row, accumulate)``:
    ``c[i, j] = Σ a[i, p]·b[p, j]`` for p < ``kc``, i < ``live`` ≤ ``rows`` and j < ``columns`` ≤ nv · lanes, both at least
    1; added to what is there unless ``accumulate`` is 0. Strides count elements. Nothing else is read or written.

    With ``prefetch`` two more arguments, ``a_ahead`` and ``b_ahead``, are the distances of prefetches in elements. With
    ``stream`` C is written past the caches: its rows must begin on multiples of a vector, and ``columns`` fill the tile.
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
    """Rows beyond the live ones repeat the last one: they compute and store the same elements again."""

    vectors: Vectors
    of_a: Values
    a_step: Any
    b: Any
    b_step: Any
    nv: int
    of_c: Values
    accumulate: Any

    def product(self, kc: Any, masks: Values | None, ahead: Sequence[Any]) -> Values:
        """The sums, one row of vectors after another."""
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
        """Prefetch the tile of C: a masked store fetches its line only when it executes, and later stores wait for it."""
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
    """An intrinsic ``buffer(like)``: a pointer to ``size`` elements of ``like``'s dtype on the stack, 64-byte aligned.

    They are uninitialised and last until the calling function returns; for kernels that must not allocate.
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
