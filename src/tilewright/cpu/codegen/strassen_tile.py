"""Generates the inner loops of a scheme such as Strassen's: operands are summed while they are packed, and a finished
tile is added to several tiles of C.

A product of a scheme such as Strassen's is (±A₁ ± A₂ …)·(±B₁ ± B₂ …), which is added with signs to several blocks of C.
Operands are copied into panels anyway, so the sums of their blocks need no further memory. A finished tile is in
registers anyway, and is added from the registers to every block of C that the scheme names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .tile import MicroKernelEmitter
from .vectors import I64, Vectors, bits_of

#: The fields of a term, which says where a product is added: number of a tile, sign, whether it is the first product there.
_TILE, _SIGN, _FIRST = range(3)
_FIELDS = 3


def spreading_kernel(mr: int, nv: int, vector_bits: int, a_stride: int, *, unroll: int = 1) -> Callable[..., None]:
    """Return a micro-kernel whose result is added, with signs, to several tiles in memory.

    The result is an intrinsic ``micro(kc, a, b, tiles, terms, count)``, where ``kc``, ``a`` and ``b`` are those of
    ``micro_kernel``. ``tiles`` are contiguous tiles of mr × nv vectors, one after another. ``terms`` points to three
    64-bit integers for each of ``count`` terms: the number of a tile, the sign (1 or −1), and 1 if the tile is
    overwritten without being read.
    """

    @intrinsic
    def micro(typingctx: Any, kc: Any, a: Any, b: Any, tiles: Any, terms: Any, count: Any) -> Any:  # noqa: ARG001
        signature = types.void(types.intp, a, a, a, terms, types.intp)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            vectors = _vectors(context, builder, signature.args[1], vector_bits)
            _SpreadTile(vectors, mr, nv, a_stride, unroll).spread(*args)
            return context.get_dummy_value()

        return signature, codegen

    return micro


class _SpreadTile(MicroKernelEmitter):
    """A micro-kernel in three steps: it prefetches the tiles, loops over k, and writes the result back to each tile."""

    def spread(self, kc: Any, a: Any, b: Any, tiles: Any, terms: Any, count: Any) -> None:
        builder, index = self.builder, kc.type
        size = self.mr * self.nv * self.lanes

        def tile_of(term: Any) -> Any:
            return builder.gep(tiles, [builder.mul(self._field(terms, term, _TILE), I64(size))])

        with cgutils.for_range(builder, count) as loop:
            place = tile_of(loop.index)
            for at in range(0, size, self.lanes):
                self.vectors.prefetch(place, at, write=True)
        tile = [[self.vectors.zero] * self.nv for _ in range(self.mr)]
        tile, a, b = self._loop(builder.udiv(kc, index(self.unroll)), self.unroll, a, b, tile)
        if self.unroll > 1:
            tile, a, b = self._loop(builder.urem(kc, index(self.unroll)), 1, a, b, tile)
        values = [value for row in tile for value in row]
        with cgutils.for_range(builder, count) as loop:
            sign, first = (self._field(terms, loop.index, field) for field in (_SIGN, _FIRST))
            _signed(self.vectors, values, sign, first, tile_of(loop.index), range(0, size, self.lanes))

    def _field(self, terms: Any, term: Any, field: int) -> Any:
        at = self.builder.add(self.builder.mul(term, I64(_FIELDS)), I64(field))
        return self.builder.load(self.builder.gep(terms, [at]))


def tile_adder(mr: int, nv: int, vector_bits: int) -> Callable[..., None]:
    """Return an intrinsic ``add(tile, c, ldc, sign, overwrite)`` that adds a finished tile to C.

    ``tile`` is contiguous. Rows of C have unit stride and are ``ldc`` elements apart. With ``overwrite`` the tile
    replaces the elements of C, which are not read.
    """

    @intrinsic
    def add(typingctx: Any, tile: Any, c: Any, ldc: Any, sign: Any, overwrite: Any) -> Any:  # noqa: ARG001
        signature = types.void(tile, tile, types.intp, types.intp, types.intp)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            vectors = _vectors(context, builder, signature.args[0], vector_bits)
            tile, c, ldc, sign, overwrite = args
            places = _places(vectors, mr, nv, ldc)
            values = [vectors.load(tile, number * vectors.lanes) for number in range(mr * nv)]
            _signed(vectors, values, sign, overwrite, c, places)
            return context.get_dummy_value()

        return signature, codegen

    return add


def tile_prefetch(mr: int, nv: int, vector_bits: int) -> Callable[..., None]:
    """Return an intrinsic ``prefetch(c, ldc)`` that prefetches a tile of C that will be written soon."""

    @intrinsic
    def prefetch(typingctx: Any, c: Any, ldc: Any) -> Any:  # noqa: ARG001
        signature = types.void(c, types.intp)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            vectors = _vectors(context, builder, signature.args[0], vector_bits)
            for place in _places(vectors, mr, nv, args[1]):
                vectors.prefetch(args[0], place, write=True)
            return context.get_dummy_value()

        return signature, codegen

    return prefetch


def row_adder(vector_bits: int) -> Callable[..., None]:
    """Return an intrinsic ``add(target, source, count, sign, overwrite, ahead)`` that adds one row to a sum of rows.

    For x < ``count`` the intrinsic computes target[x] = sign·source[x], plus the old target[x] if ``overwrite`` is not
    set. The elements of the row that is added next, ``ahead`` elements after those of the source, are prefetched.
    """

    @intrinsic
    def add(typingctx: Any, target: Any, source: Any, count: Any, sign: Any, overwrite: Any, ahead: Any) -> Any:  # noqa: ARG001
        size = types.intp
        signature = types.void(target, target, size, size, size, size)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            vectors = _vectors(context, builder, signature.args[0], vector_bits)
            target, source, count, sign, overwrite, ahead = args
            done: Any = count.type(0)
            for part in (vectors, Vectors(builder, vectors.scalar, 1)):  # whole vectors, then what is left one by one
                lanes = count.type(part.lanes)
                left = builder.sub(count, done)
                with cgutils.for_range(builder, builder.sdiv(left, lanes)) as loop:
                    at = builder.add(done, builder.mul(loop.index, lanes))
                    if part is vectors:
                        part.prefetch(source, builder.add(at, ahead))
                    _signed(part, [part.load(source, at)], sign, overwrite, target, [at])
                done = builder.sub(count, builder.srem(left, lanes))
            return context.get_dummy_value()

        return signature, codegen

    return add


def combiner(coefficients: Sequence[Sequence[int]], vector_bits: int) -> Callable[..., None]:
    """Return an intrinsic ``combine(source, source_ld, target, target_ld, count)`` that computes the sums that a scheme
    multiplies.

    ``coefficients`` has one row for each sum and one column for each term; its numbers are 0, 1 and −1. The terms of
    the sums are rows of ``count`` elements, ``source_ld`` elements apart. The sums are written to rows of ``target``,
    which are ``target_ld`` elements apart. ``count`` is rounded up to whole vectors.
    """

    @intrinsic
    def combine(typingctx: Any, source: Any, source_ld: Any, target: Any, target_ld: Any, count: Any) -> Any:  # noqa: ARG001
        signature = types.void(source, types.intp, source, types.intp, types.intp)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            vectors = _vectors(context, builder, signature.args[0], vector_bits)
            source, source_ld, target, target_ld, count = args
            lanes, index = vectors.lanes, count.type
            whole = builder.sdiv(builder.add(count, index(lanes - 1)), index(lanes))
            with cgutils.for_range(builder, whole) as loop:
                at = builder.mul(loop.index, index(lanes))

                def in_row(ld: Any, number: int, at: Any = at) -> Any:
                    return builder.add(at, builder.mul(ld, index(number)))

                terms = [vectors.load(source, in_row(source_ld, t)) for t in range(len(coefficients[0]))]
                for number, row in enumerate(coefficients):
                    vectors.store(_sum(vectors, row, terms), target, in_row(target_ld, number))
            return context.get_dummy_value()

        return signature, codegen

    return combine


def _sum(vectors: Vectors, signs: Sequence[int], terms: Sequence[Any]) -> Any:
    plus = [term for sign, term in zip(signs, terms, strict=True) if sign > 0]
    total = plus[0]
    for term in plus[1:]:
        total = vectors.add(total, term)
    for term in (term for sign, term in zip(signs, terms, strict=True) if sign < 0):
        total = vectors.builder.fsub(total, term)
    return total


def _vectors(context: Any, builder: Any, pointer: Any, vector_bits: int) -> Vectors:
    scalar = context.get_data_type(pointer.dtype)
    return Vectors(builder, scalar, vector_bits // bits_of(scalar))


def _places(vectors: Vectors, mr: int, nv: int, ldc: Any) -> list[Any]:
    """Where the vectors of a tile lie in C."""
    builder, index = vectors.builder, ldc.type
    rows = [builder.mul(ldc, index(r)) for r in range(mr)]
    return [builder.add(row, index(v * vectors.lanes)) for row in rows for v in range(nv)]


def _signed(vectors: Vectors, values: list[Any], sign: Any, overwrite: Any, target: Any, places: Any) -> None:
    """Store ±values if ``overwrite`` is not 0, else add them to the elements stored there, rounded once."""
    builder = vectors.builder
    factor = vectors.broadcast(builder.sitofp(sign, vectors.scalar))
    with builder.if_else(builder.icmp_signed("!=", overwrite, overwrite.type(0))) as (write, add):
        with write:
            for value, place in zip(values, places, strict=True):
                vectors.store(vectors.multiply_add(factor, value, vectors.zero), target, place)
        with add:
            for value, place in zip(values, places, strict=True):
                vectors.store(vectors.multiply_add(factor, value, vectors.load(target, place)), target, place)
