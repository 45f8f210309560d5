"""The innermost loop of a matrix product, for any tile and vector width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.extending import intrinsic

from .vectors import Vectors, bits_of


def micro_kernel(mr: int, nv: int, vector_bits: int, a_stride: int) -> Callable[..., None]:
    """The innermost loop of a matrix product: an ``mr`` × ``nv``-vector tile of C held in registers over all of k.

    The result is an intrinsic ``micro(kc, a, b, c, ldc, accumulate)`` for pointers to floats, doubles or integers:

    - ``a``: ``mr`` rows of ``kc`` elements, ``a_stride`` elements apart: a constant, so that every row is an offset in the
      instruction and none needs a register;
    - ``b``: a packed panel, ``kc`` × ``nv · lanes`` elements, one row of the tile after another;
    - ``c``: the tile's first element, rows ``ldc`` elements apart, unit stride along a row;
    - ``accumulate``: 0 overwrites C without reading it, anything else adds to it. ``kc`` is at least 1.

    Each step of k loads ``nv`` vectors of B and, per row, broadcasts one element of A into ``nv`` fused
    multiply-adds: an outer product that touches memory ``mr + nv`` times for ``mr · nv`` vector operations.
    """

    @intrinsic
    def micro(typingctx: Any, kc: Any, a: Any, b: Any, c: Any, ldc: Any, accumulate: Any) -> Any:  # noqa: ARG001
        signature = types.void(types.intp, a, a, a, types.intp, types.intp)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            scalar = context.get_data_type(signature.args[1].dtype)
            _Tile(Vectors(builder, scalar, vector_bits // bits_of(scalar)), mr, nv).emit(*args, a_stride=a_stride)
            return context.get_dummy_value()

        return signature, codegen

    return micro


class _Tile:
    """Emits one micro-kernel: zeroed accumulators → loop over k → write-back."""

    def __init__(self, vectors: Vectors, mr: int, nv: int) -> None:
        self.vectors, self.builder, self.mr, self.nv, self.lanes = vectors, vectors.builder, mr, nv, vectors.lanes

    def emit(self, kc: Any, a: Any, b: Any, c: Any, ldc: Any, accumulate: Any, *, a_stride: int) -> None:
        builder = self.builder
        self._prefetch(c, ldc)
        tile = self._k_loop(kc, a, b, a_stride)
        adding = builder.icmp_signed("!=", accumulate, accumulate.type(0))
        with builder.if_else(adding) as (add, overwrite):
            with add:
                self._write(tile, c, ldc, add=True)
            with overwrite:
                self._write(tile, c, ldc, add=False)

    def _prefetch(self, c: Any, ldc: Any) -> None:
        """Ask for the tile of C now: it is needed when the loop over k is done, and arrives meanwhile."""
        for r in range(self.mr):
            row = self.builder.gep(c, [self.builder.mul(ldc, ldc.type(r))])
            for v in range(self.nv):
                self.vectors.prefetch(row, v * self.lanes, write=True)

    def _k_loop(self, kc: Any, a: Any, b: Any, a_stride: int) -> list[list[Any]]:
        builder, vectors, index = self.builder, self.vectors, kc.type
        before = builder.block
        loop, done = builder.append_basic_block("k.loop"), builder.append_basic_block("k.done")
        builder.branch(loop)
        builder.position_at_end(loop)
        step, a_now, b_now = builder.phi(index), builder.phi(a.type), builder.phi(b.type)
        tile = [[builder.phi(vectors.vector) for _ in range(self.nv)] for _ in range(self.mr)]
        row_of_b = [vectors.load(b_now, v * self.lanes) for v in range(self.nv)]
        updated = []
        for r in range(self.mr):
            element = vectors.broadcast(builder.load(builder.gep(a_now, [index(r * a_stride)])))
            updated.append([vectors.multiply_add(element, row_of_b[v], tile[r][v]) for v in range(self.nv)])
        following = builder.add(step, index(1))
        carried = [
            (step, index(0), following),
            (a_now, a, builder.gep(a_now, [index(1)])),
            (b_now, b, builder.gep(b_now, [index(self.nv * self.lanes)])),
        ]
        for old, new in zip(tile, updated, strict=True):
            carried += [(old[v], vectors.zero, new[v]) for v in range(self.nv)]
        for phi, first, next_value in carried:
            phi.add_incoming(first, before)
            phi.add_incoming(next_value, loop)
        builder.cbranch(builder.icmp_signed("<", following, kc), loop, done)
        builder.position_at_end(done)
        return updated

    def _write(self, tile: list[list[Any]], c: Any, ldc: Any, *, add: bool) -> None:
        for r in range(self.mr):
            row = self.builder.gep(c, [self.builder.mul(ldc, ldc.type(r))])
            for v in range(self.nv):
                value = tile[r][v]
                if add:
                    value = self.vectors.add(self.vectors.load(row, v * self.lanes), value)
                self.vectors.store(value, row, v * self.lanes)
