"""Explicit vectors for kernels written in Python: LLVM vector IR behind Numba intrinsics.

Numba has no vector type, so what needs exact control of registers is generated here as LLVM IR and called from a
kernel like any function. The generator knows no machine: it takes the tile (``mr`` rows × ``nv`` vectors) and the
vector width, and serves AVX2, AVX-512 and NEON alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: A cache line, and the widest vector of any machine we know, in bytes: what every buffer is aligned to (S1.1).
ALIGNMENT = 64

_I32 = ir.IntType(32)


@nb.njit(nogil=True)
def aligned_empty(size: int, like: np.ndarray) -> np.ndarray:
    """An uninitialised 1-D array of ``size`` elements of ``like``'s dtype that starts on a 64-byte boundary."""
    itemsize = like.itemsize
    raw = np.empty(size + ALIGNMENT // itemsize, dtype=like.dtype)
    skip = (-raw.ctypes.data % ALIGNMENT) // itemsize
    return raw[skip : skip + size]


@intrinsic
def _address(typingctx: Any, array: Any, row: Any, column: Any) -> Any:  # noqa: ARG001
    """Pointer to ``array[row, column]``, computed from the strides; no bounds are checked."""
    signature = types.CPointer(array.dtype)(array, types.intp, types.intp)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, args[0])
        strides = [builder.extract_value(view.strides, axis) for axis in range(2)]
        offset = builder.add(builder.mul(args[1], strides[0]), builder.mul(args[2], strides[1]))
        start = builder.bitcast(view.data, ir.IntType(8).as_pointer())
        return builder.bitcast(builder.gep(start, [offset]), view.data.type)

    return signature, codegen


@intrinsic
def _offset(typingctx: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    """Pointer to element ``index`` of a contiguous 1-D array."""
    signature = types.CPointer(array.dtype)(array, types.intp)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.gep(view.data, [args[1]])

    return signature, codegen


@intrinsic
def _copy(typingctx: Any, target: Any, source: Any, count: Any) -> Any:  # noqa: ARG001
    """Copy ``count`` elements from one pointer to another; they must not overlap."""
    signature = types.void(target, source, types.intp)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        size = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
        cgutils.raw_memcpy(builder, args[0], args[1], args[2], size)
        return context.get_dummy_value()

    return signature, codegen


# An intrinsic is called without its first parameter, which type checkers cannot know.
address: Callable[..., Any] = _address
offset: Callable[..., Any] = _offset
copy: Callable[..., None] = _copy


def micro_kernel(mr: int, nv: int, vector_bits: int, a_stride: int) -> Callable[..., None]:
    """The innermost loop of a matrix product: an ``mr`` × ``nv``-vector tile of C held in registers over all of k.

    The result is an intrinsic ``micro(kc, a, b, c, ldc, accumulate)`` for float32 or float64 pointers:

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
            bits = 32 if isinstance(scalar, ir.FloatType) else 64
            _Tile(builder, mr, nv, vector_bits // bits, scalar).emit(*args, a_stride=a_stride)
            return context.get_dummy_value()

        return signature, codegen

    return micro


def fma_chains(chains: int, vector_bits: int) -> Callable[..., None]:
    """Nothing but fused multiply-adds: the arithmetic peak of a core, as an intrinsic ``run(steps, x)``.

    ``x`` points to two scalars of float32 or float64, multiplier and addend; the first is overwritten at the end so
    that nothing can be left out. Each step does ``chains`` independent vector FMAs, all operands in registers.
    """

    @intrinsic
    def run(typingctx: Any, steps: Any, x: Any) -> Any:  # noqa: ARG001
        signature = types.void(types.intp, x)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            scalar = context.get_data_type(signature.args[1].dtype)
            bits = 32 if isinstance(scalar, ir.FloatType) else 64
            _Tile(builder, chains, 1, vector_bits // bits, scalar).emit_chains(*args)
            return context.get_dummy_value()

        return signature, codegen

    return run


class _Tile:
    """Emits one micro-kernel: zeroed accumulators → loop over k → write-back."""

    def __init__(self, builder: Any, mr: int, nv: int, lanes: int, scalar: Any) -> None:
        self.builder, self.mr, self.nv, self.lanes, self.scalar = builder, mr, nv, lanes, scalar
        self.vector = ir.VectorType(scalar, lanes)
        self.itemsize = 4 if isinstance(scalar, ir.FloatType) else 8

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
        builder = self.builder
        pointer, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        prefetch = self._declared("llvm.prefetch.p0", ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32]))
        for r in range(self.mr):
            row = builder.gep(c, [builder.mul(ldc, ldc.type(r))])
            for v in range(self.nv):
                line = builder.bitcast(self._vector_at(row, v * self.lanes), pointer)
                builder.call(prefetch, [line, i32(1), i32(3), i32(1)])  # to write, keep in L1, data

    def _declared(self, name: str, kind: Any) -> Any:
        """An LLVM intrinsic by its name: llvmlite's declare_intrinsic knows neither vector nor opaque pointer types."""
        module = self.builder.module
        return module.globals.get(name) or ir.Function(module, kind, name)

    def _k_loop(self, kc: Any, a: Any, b: Any, a_stride: int) -> list[list[Any]]:
        builder, index = self.builder, kc.type
        before = builder.block
        loop, done = builder.append_basic_block("k.loop"), builder.append_basic_block("k.done")
        builder.branch(loop)
        builder.position_at_end(loop)
        step, a_now, b_now = builder.phi(index), builder.phi(a.type), builder.phi(b.type)
        tile = [[builder.phi(self.vector) for _ in range(self.nv)] for _ in range(self.mr)]
        row_of_b = [self._load(b_now, v * self.lanes) for v in range(self.nv)]
        updated = []
        for r in range(self.mr):
            element = self._broadcast(builder.load(builder.gep(a_now, [index(r * a_stride)])))
            updated.append([self._fma(element, row_of_b[v], tile[r][v]) for v in range(self.nv)])
        following = builder.add(step, index(1))
        carried = [
            (step, index(0), following),
            (a_now, a, builder.gep(a_now, [index(1)])),
            (b_now, b, builder.gep(b_now, [index(self.nv * self.lanes)])),
        ]
        zero = ir.Constant(self.vector, None)
        for old, new in zip(tile, updated, strict=True):
            carried += [(old[v], zero, new[v]) for v in range(self.nv)]
        for phi, first, next_value in carried:
            phi.add_incoming(first, before)
            phi.add_incoming(next_value, loop)
        builder.cbranch(builder.icmp_signed("<", following, kc), loop, done)
        builder.position_at_end(done)
        return updated

    def emit_chains(self, steps: Any, x: Any) -> None:
        """acc ← acc·x[0] + x[1] for ``mr`` accumulators that know nothing of each other."""
        builder = self.builder
        factor = self._broadcast(builder.load(x))
        addend = self._broadcast(builder.load(builder.gep(x, [steps.type(1)])))
        before = builder.block
        loop, done = builder.append_basic_block("fma.loop"), builder.append_basic_block("fma.done")
        builder.branch(loop)
        builder.position_at_end(loop)
        step = builder.phi(steps.type)
        chains = [builder.phi(self.vector) for _ in range(self.mr)]
        updated = [self._fma(chain, factor, addend) for chain in chains]
        following = builder.add(step, steps.type(1))
        step.add_incoming(steps.type(0), before)
        step.add_incoming(following, loop)
        for r, (chain, new) in enumerate(zip(chains, updated, strict=True)):
            start = ir.Constant(self.vector, [float(r)] * self.lanes)  # equal chains would be merged into one
            chain.add_incoming(start, before)
            chain.add_incoming(new, loop)
        builder.cbranch(builder.icmp_signed("<", following, steps), loop, done)
        builder.position_at_end(done)
        total = updated[0]
        for chain in updated[1:]:
            total = builder.fadd(total, chain)
        builder.store(builder.extract_element(total, _I32(0)), x)

    def _write(self, tile: list[list[Any]], c: Any, ldc: Any, *, add: bool) -> None:
        builder = self.builder
        for r in range(self.mr):
            row = builder.gep(c, [builder.mul(ldc, ldc.type(r))])
            for v in range(self.nv):
                value = tile[r][v]
                if add:
                    value = builder.fadd(self._load(row, v * self.lanes), value)
                store = builder.store(value, self._vector_at(row, v * self.lanes))
                store.align = self.itemsize  # C is the caller's: no more than its elements are aligned

    def _vector_at(self, pointer: Any, elements: int) -> Any:
        element = self.builder.gep(pointer, [ir.IntType(64)(elements)])
        return self.builder.bitcast(element, self.vector.as_pointer())

    def _load(self, pointer: Any, elements: int) -> Any:
        load = self.builder.load(self._vector_at(pointer, elements))
        load.align = self.itemsize
        return load

    def _broadcast(self, element: Any) -> Any:
        undefined = ir.Constant(self.vector, ir.Undefined)
        lane0 = self.builder.insert_element(undefined, element, _I32(0))
        everywhere = ir.Constant(ir.VectorType(_I32, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(lane0, undefined, everywhere)

    def _fma(self, x: Any, y: Any, z: Any) -> Any:
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        return self.builder.call(self._declared(f"llvm.fma.v{self.lanes}f{8 * self.itemsize}", kind), [x, y, z])
