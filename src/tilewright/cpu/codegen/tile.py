"""Generates the innermost loop of a matrix product, for any tile and vector width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.extending import intrinsic

from .sizes import ALIGNMENT
from .vectors import I64, Vectors, bits_of


def micro_kernel(mr: int, nv: int, vector_bits: int, a_stride: int, *, unroll: int = 1) -> Callable[..., None]:
    """Return the innermost loop of a matrix product, in which a tile of C of ``mr`` rows × ``nv`` vectors stays in
    registers for all steps of k.

    The result is an intrinsic ``micro(kc, a, b, c, ldc, accumulate)`` for pointers to floats, doubles or integers:

    - ``a`` points to ``mr`` rows of ``kc`` elements, ``a_stride`` elements apart. ``a_stride`` is a constant, so every
      row is an offset in the instruction and needs no register;
    - ``b`` points to a packed panel of ``kc`` × ``nv · lanes`` elements, one row after another;
    - ``c`` points to the first element of the tile, whose rows are ``ldc`` elements apart and have unit stride;
    - ``accumulate`` says what happens to C: 0 overwrites C without reading it, and any other number adds to C. ``kc``
      is at least 1.

    Each step of k loads ``nv`` vectors of B, and for each row of the tile broadcasts one element of A into ``nv`` fused
    multiply-adds. Each step of k is an outer product, which reads memory ``mr + nv`` times for ``mr · nv`` vector
    operations. ``unroll`` steps make one iteration of the loop. Every element of C is one chain of multiply-adds in the
    order of k, so its bits depend neither on the tile nor on its position in the tile.
    """

    @intrinsic
    def micro(typingctx: Any, kc: Any, a: Any, b: Any, c: Any, ldc: Any, accumulate: Any) -> Any:  # noqa: ARG001
        signature = types.void(types.intp, a, a, a, types.intp, types.intp)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            scalar = context.get_data_type(signature.args[1].dtype)
            vectors = Vectors(builder, scalar, vector_bits // bits_of(scalar))
            MicroKernelEmitter(vectors, mr, nv, a_stride, unroll).emit(*args)
            return context.get_dummy_value()

        return signature, codegen

    return micro


def edge_kernel(
    mr: int, nv: int, vector_bits: int, *, unroll: int = 1, near: bool = False, follow: bool = False, pitch: int = 0
) -> Callable[..., None]:
    """Return an intrinsic ``micro(kc, a, a_stride, b, c, ldc, accumulate, columns, ahead)`` like that of
    ``micro_kernel``, for an A with any stride.

    ``columns`` is the number of the tile's columns that are inside C. Rows of the packed panel ``b`` are as wide as the
    whole tile. Elements of ``b`` beyond ``columns`` affect no element of C, and memory outside C is neither read nor
    written. A tile that is completely inside C is written without masks.

    Rows of ``b`` are ``pitch`` vectors apart, by default without gaps.

    ``near`` means that A and B are in L2. If ``near`` is False, each step prefetches a later step of B, and each
    iteration prefetches rows of A below the tile. With ``follow`` each iteration also prefetches a line into L2: the
    line that is ``ahead`` elements after the first element of B that the iteration reads.
    """

    @intrinsic
    def micro(
        typingctx: Any,  # noqa: ARG001
        kc: Any,  # noqa: ARG001
        a: Any,
        a_stride: Any,  # noqa: ARG001
        b: Any,  # noqa: ARG001
        c: Any,  # noqa: ARG001
        ldc: Any,  # noqa: ARG001
        accumulate: Any,  # noqa: ARG001
        columns: Any,  # noqa: ARG001
        ahead: Any,  # noqa: ARG001
    ) -> Any:
        signature = types.void(types.intp, a, types.intp, a, a, types.intp, types.intp, types.intp, types.intp)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            scalar = context.get_data_type(signature.args[1].dtype)
            vectors = Vectors(builder, scalar, vector_bits // bits_of(scalar))
            kc, a, a_stride, *rest, ahead = args
            emitter = MicroKernelEmitter(vectors, mr, nv, a_stride, unroll, near, ahead if follow else None, pitch)
            emitter.emit(kc, a, *rest)
            return context.get_dummy_value()

        return signature, codegen

    return micro


#: Steps of k between the prefetch of the last line of C and its use: some 1,500 cycles. Memory takes a third of that, and
#: lines of B that are prefetched meanwhile arrive first. An iteration prefetches one line of C: a whole row at once would
#: fill the queue of pending loads, and lines of B would wait in it (up to 6 % slower, never faster).
_C_AHEAD = 128
#: Steps of k between the prefetch of a row of B and its use, if it comes from the last cache: some 200 cycles.
_B_AHEAD = 16
#: Of so many rows of A an iteration prefetches one: with 4 steps an iteration, a row of float32 every 16 steps, or line.
_ROWS = 4


class MicroKernelEmitter:
    """Emits one micro-kernel: it zeroes the accumulators, loops over k, and writes the tile back."""

    def __init__(
        self,
        vectors: Vectors,
        mr: int,
        nv: int,
        a_stride: Any,
        unroll: int,
        near: bool = False,
        ahead: Any = None,
        pitch: int = 0,
    ) -> None:
        self.vectors, self.builder, self.lanes = vectors, vectors.builder, vectors.lanes
        self.mr, self.nv, self.a_stride, self.unroll = mr, nv, a_stride, unroll
        self.near, self.ahead, self.pitch = near, ahead, pitch or nv

    def emit(self, kc: Any, a: Any, b: Any, c: Any, ldc: Any, accumulate: Any, columns: Any = None) -> None:
        """Emit the whole tile. With ``columns``, only this many columns of the tile are written."""
        builder, index = self.builder, kc.type
        tile = self._first_sums()
        iterations = builder.udiv(kc, index(self.unroll))
        prefetching = self._least(iterations, index(self.mr * (self.nv + 1)))
        last = self._least(builder.sub(iterations, prefetching), index(_C_AHEAD // self.unroll))
        first = builder.sub(builder.sub(iterations, prefetching), last)
        tile, a, b = self._loop(first, self.unroll, a, b, tile)
        tile, a, b = self._loop(prefetching, self.unroll, a, b, tile, prefetch=(c, ldc))  # a line of C an iteration
        tile, a, b = self._loop(last, self.unroll, a, b, tile)
        if self.unroll > 1:
            tile, a, b = self._loop(builder.urem(kc, index(self.unroll)), 1, a, b, tile)
        whole = [None] * self.nv
        if columns is None:
            self._write(tile, c, ldc, accumulate, whole)
            return
        with builder.if_else(builder.icmp_signed("<", columns, index(self.nv * self.lanes))) as (edge, inside):
            with edge:
                masks = [self.vectors.mask(builder.sub(columns, index(v * self.lanes))) for v in range(self.nv)]
                self._write(tile, c, ldc, accumulate, masks)
            with inside:
                self._write(tile, c, ldc, accumulate, whole)

    def _first_sums(self) -> list[list[Any]]:
        return [[self.vectors.zero] * self.nv for _ in range(self.mr)]

    def _least(self, x: Any, y: Any) -> Any:
        return self.builder.select(self.builder.icmp_signed("<", x, y), x, y)

    def _loop(
        self, iterations: Any, steps: int, a: Any, b: Any, tile: list[list[Any]], prefetch: Any = None
    ) -> tuple[list[list[Any]], Any, Any]:
        """``iterations`` times ``steps`` steps of k, possibly none. Returns the tile, and the pointers to the next step."""
        builder, index = self.builder, iterations.type
        before = builder.block
        loop, done = builder.append_basic_block("k.loop"), builder.append_basic_block("k.done")
        some = builder.icmp_signed(">", iterations, index(0))
        builder.cbranch(some, loop, done)
        builder.position_at_end(loop)
        iteration = builder.phi(index)
        old = [builder.phi(value.type) for value in self._flat(tile, a, b)]
        now, a_now, b_now = self._unflat(old)
        if prefetch is not None:
            c, ldc = prefetch
            lines = index(self.nv + 1)  # of a row, which may begin within a line
            row, column = builder.udiv(iteration, lines), builder.urem(iteration, lines)
            line = builder.add(builder.mul(row, ldc), builder.mul(column, index(self.lanes)))
            self.vectors.prefetch(c, line, write=True)
        if steps > 1 and self.ahead is not None:
            self.vectors.prefetch(b_now, self.ahead, level=2)
        if steps > 1 and not self.near and not isinstance(self.a_stride, int):
            self._prefetch_rows_below(a_now, iteration)
        for step in range(steps):
            now = self._step(now, a_now, b_now, step)
        a_next = builder.gep(a_now, [index(steps)])
        b_next = builder.gep(b_now, [index(steps * self.pitch * self.lanes)])
        following = builder.add(iteration, index(1))
        new = self._flat(now, a_next, b_next)
        for phi, first, next_value in zip(
            [iteration, *old], [index(0), *self._flat(tile, a, b)], [following, *new], strict=True
        ):
            phi.add_incoming(first, before)
            phi.add_incoming(next_value, loop)
        builder.cbranch(builder.icmp_signed("<", following, iterations), loop, done)
        builder.position_at_end(done)
        ended = []
        for first, last in zip(self._flat(tile, a, b), new, strict=True):
            phi = builder.phi(first.type)
            phi.add_incoming(first, before)
            phi.add_incoming(last, loop)
            ended.append(phi)
        return self._unflat(ended)

    def _prefetch_rows_below(self, a: Any, iteration: Any) -> None:
        """Prefetch the rows of A that the tile below will read, into L2: they may come from memory, in streams too short for
        a hardware prefetcher (3 to 13 % of the time of products of 256 to 512). _ROWS iterations take turns."""
        turn = self.builder.and_(iteration, iteration.type(_ROWS - 1))
        row = self.builder.add(turn, iteration.type(self.mr))
        first = self.builder.gep(a, [self.builder.mul(self.a_stride, row)])
        for r in range(0, self.mr, _ROWS):
            self.vectors.prefetch(self._row(first, r), level=2)

    def _step(self, tile: list[list[Any]], a: Any, b: Any, step: int) -> list[list[Any]]:
        vectors = self.vectors
        if not self.near:
            width, line = self.pitch * self.lanes, max(1, ALIGNMENT // vectors.itemsize)
            for at in range(-step * width % line, width, line):  # lines that begin in this step
                vectors.prefetch(b, (step + _B_AHEAD) * width + at)

        def of_a(r: int) -> Any:
            return vectors.broadcast(vectors.scalar_at(self._row(a, r), step))

        def of_b(v: int) -> Any:
            return vectors.load(b, (step * self.pitch + v) * self.lanes)

        # The shorter side stays in registers, the longer one passes through a single one: 3×4 takes 16 registers in all.
        if self.nv <= self.mr:
            shorter = [of_b(v) for v in range(self.nv)]
            return [
                [vectors.multiply_add(x, y, old) for y, old in zip(shorter, row, strict=True)]
                for x, row in ((of_a(r), tile[r]) for r in range(self.mr))
            ]
        shorter = [of_a(r) for r in range(self.mr)]
        columns = []
        for v in range(self.nv):
            y = of_b(v)
            columns.append([vectors.multiply_add(x, y, row[v]) for x, row in zip(shorter, tile, strict=True)])
        return [list(row) for row in zip(*columns, strict=True)]

    def _row(self, a: Any, r: int) -> Any:
        index = I64(r * self.a_stride) if isinstance(self.a_stride, int) else self.builder.mul(self.a_stride, I64(r))
        return self.builder.gep(a, [index])

    def _flat(self, tile: list[list[Any]], a: Any, b: Any) -> list[Any]:
        return [a, b, *(value for row in tile for value in row)]

    def _unflat(self, values: list[Any]) -> tuple[list[list[Any]], Any, Any]:
        a, b, *flat = values
        return [flat[r * self.nv : (r + 1) * self.nv] for r in range(self.mr)], a, b

    def _write(self, tile: list[list[Any]], c: Any, ldc: Any, accumulate: Any, masks: list[Any]) -> None:
        adding = self.builder.icmp_signed("!=", accumulate, accumulate.type(0))
        with self.builder.if_else(adding) as (add, overwrite):
            with add:
                self._write_rows(tile, c, ldc, masks, add=True)
            with overwrite:
                self._write_rows(tile, c, ldc, masks, add=False)

    def _write_rows(self, tile: list[list[Any]], c: Any, ldc: Any, masks: list[Any], *, add: bool) -> None:
        vectors = self.vectors
        for r in range(self.mr):
            row = self.builder.gep(c, [self.builder.mul(ldc, ldc.type(r))])
            for v in range(self.nv):
                value, at, edge = tile[r][v], v * self.lanes, masks[v]
                if add:
                    old = vectors.load(row, at) if edge is None else vectors.load_masked(edge, row, at)
                    value = vectors.add(old, value)
                if edge is None:
                    vectors.store(value, row, at)
                else:
                    vectors.store_masked(edge, value, row, at)
