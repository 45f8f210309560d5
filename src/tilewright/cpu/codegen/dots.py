"""Generates the innermost loop for narrow elements: a word of 32 bits holds a group of steps of k, and one instruction
adds the products of two such groups to a sum of 32 bits.

The code refers to each instruction by its name on x86:

    vpdpbusd    4 products of an unsigned and a signed 8-bit integer (AVX512-VNNI, AVX-VNNI)
    vpdpwssd    2 products of signed 16-bit integers (the same)
    vpmaddwd    the same 2 products, and an addition: any processor has these, by this name or another one
    vdpbf16ps   2 products of bfloat16, one multiply-add after the other, the upper half first (AVX512-BF16)
    vfmadd      the same 2 multiply-adds, of halves that are widened to float32 first

Sums of integers are exact modulo 2³². ``vdpbf16ps`` rounds each multiply-add to nearest, as ``vfmadd`` does. But
``vdpbf16ps`` treats denormal operands as zeros, and returns zero instead of a denormal sum. If no operand and no sum is
denormal, ``vdpbf16ps`` returns the same bits as ``vfmadd``. Neither operands nor sums are denormal if no product of two
elements has an exponent below −112. Each product with an exponent of at least −112 is a multiple of 2⁻¹²⁶, because a
bfloat16 has 7 bits behind the point. So every rounded sum of such products is a multiple of 2⁻¹²⁶, too, and is not
denormal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .tile import MicroKernelEmitter
from .vectors import I32, I64, Vectors, bits_of, sum_of_lanes, vector_loop

I16 = ir.IntType(16)
#: Independent sums or minima of a loop that has no tile.
_CHAINS = 4

#: The name of an instruction, or names by the bits of the elements that they multiply.
Instruction = str | Mapping[int, str]


class DotVectors(Vectors):
    """Vectors of words. ``multiply_add(x, y, z)`` adds the products of the groups in ``x`` and ``y`` to the sums ``z``.

    ``x`` has elements of A, and ``y`` has elements of B. For vpdpbusd the elements of A are signed and those of B
    unsigned; if ``signed_a`` is False, those of A are unsigned and those of B signed.
    """

    def __init__(self, builder: Any, scalar: Any, lanes: int, instruction: str, *, signed_a: bool = True) -> None:
        super().__init__(builder, scalar, lanes)
        self.instruction, self.signed_a = instruction, signed_a

    def multiply_add(self, x: Any, y: Any, z: Any) -> Any:
        """Return the sums ``z``, plus the sum of the products of each group of elements in ``x`` and ``y``."""
        words = Vectors(self.builder, I32, self.lanes)
        x, y = (self.builder.bitcast(value, words.vector) for value in (x, y))
        if self.instruction == "vfmadd":
            upper = words.broadcast(I32(0xFFFF0000))
            for half in (lambda word: self.builder.and_(word, upper), self._lower_half):
                of_x, of_y = (self.builder.bitcast(half(value), self.vector) for value in (x, y))
                z = super().multiply_add(of_x, of_y, z)
            return z
        if self.instruction == "vpmaddwd":
            return self.builder.add(z, self._pair_sums(x, y))
        if self.instruction == "vpdpbusd" and self.signed_a:
            x, y = y, x
        name = {"vpdpbusd": "avx512.vpdpbusd", "vpdpwssd": "avx512.vpdpwssd", "vdpbf16ps": "avx512bf16.dpbf16ps"}
        kind = ir.FunctionType(self.vector, [self.vector, words.vector, words.vector])
        bits = 32 * self.lanes
        return self.builder.call(self.declared(f"llvm.x86.{name[self.instruction]}.{bits}", kind), [z, x, y])

    def _lower_half(self, word: Any) -> Any:
        return self.builder.shl(word, Vectors(self.builder, I32, self.lanes).broadcast(I32(16)))

    def _pair_sums(self, x: Any, y: Any) -> Any:
        """LLVM has an instruction for this pattern on every processor."""
        halves, wide = (ir.VectorType(scalar, 2 * self.lanes) for scalar in (I16, I32))
        product = self.builder.mul(*(self.builder.sext(self.builder.bitcast(v, halves), wide) for v in (x, y)))
        even, odd = (
            self.builder.shuffle_vector(product, product, ir.Constant(ir.VectorType(I32, self.lanes), picked))
            for picked in (list(range(0, 2 * self.lanes, 2)), list(range(1, 2 * self.lanes, 2)))
        )
        return self.builder.add(even, odd)


class _DotEmitter(MicroKernelEmitter):
    """A micro-kernel whose sums begin with those of ``start``, one for each row."""

    start: Any

    def _first_sums(self) -> list[list[Any]]:
        rows = (self.vectors.broadcast(self.vectors.scalar_at(self.start, r)) for r in range(self.mr))
        return [[row] * self.nv for row in rows]


def dot_kernel(mr: int, nv: int, vector_bits: int, instruction: Instruction, *, unroll: int = 1) -> Callable[..., None]:
    """Return ``edge_kernel`` for words: an intrinsic ``micro(kc, a, a_stride, b, c, ldc, accumulate, columns, start)``.

    ``kc``, ``a_stride`` and ``ldc`` count words of 32 bits. ``c`` points to the sums, which are int32, or float32 for
    bfloat16. The sums of row r begin with ``start[r]``. ``a`` may be a pointer to the type of the elements in the words
    (``pointer_as``); the width of the elements then selects the instruction. If the elements of A are unsigned 8-bit
    integers, the elements of B are read as signed, otherwise as unsigned.
    """

    @intrinsic
    def micro(
        typingctx: Any,  # noqa: ARG001
        kc: Any,  # noqa: ARG001
        a: Any,
        a_stride: Any,  # noqa: ARG001
        b: Any,
        c: Any,
        ldc: Any,  # noqa: ARG001
        accumulate: Any,  # noqa: ARG001
        columns: Any,  # noqa: ARG001
        start: Any,
    ) -> Any:
        signature = types.void(types.intp, a, types.intp, b, c, types.intp, types.intp, types.intp, start)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            scalar, elements = context.get_data_type(c.dtype), a.dtype
            name = instruction if isinstance(instruction, str) else instruction[elements.bitwidth]
            signed_a = elements not in (types.uint8, types.uint16)
            vectors = DotVectors(builder, scalar, vector_bits // bits_of(scalar), name, signed_a=signed_a)
            kc, a_pointer, a_stride, *rest, start = args
            emitter = _DotEmitter(vectors, mr, nv, a_stride, unroll)
            emitter.start = start
            emitter.emit(kc, builder.bitcast(a_pointer, rest[1].type), *rest)  # A, as words
            return context.get_dummy_value()

        return signature, codegen

    return micro


def less_dot(vector_bits: int) -> Callable[..., int]:
    """Return an intrinsic ``less(count, words, word, matrix)`` that computes −Σ (``word`` · each of the words) by
    vpdpbusd.

    The words hold elements of the type of ``matrix``, a matrix of 8-bit integers. ``word`` holds four 8-bit integers:
    unsigned if those of ``matrix`` are signed, and signed if they are unsigned. The result of ``less`` is the negative
    of the product of a row of A and a column of equal elements.
    """

    @intrinsic
    def less(typingctx: Any, count: Any, words: Any, word: Any, matrix: Any) -> Any:  # noqa: ARG001
        signature = types.int32(types.intp, words, types.int32, matrix)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            count, pointer, word, _ = args
            vectors = DotVectors(builder, I32, vector_bits // 32, "vpdpbusd", signed_a=matrix.dtype.signed)
            column = vectors.broadcast(word)

            def step(index: Any, sums: list[Any], load: Any, _store: Any, chain: int) -> list[Any]:
                x = load(pointer, index)
                return [vectors.multiply_add(x, column, y) if v == chain else y for v, y in enumerate(sums)]

            sums = vector_loop(vectors, count, _CHAINS, [vectors.zero] * _CHAINS, step)
            return builder.neg(sum_of_lanes(vectors, functools.reduce(vectors.add, sums)))

        return signature, codegen

    return less


def least_magnitude(vector_bits: int) -> Callable[..., int]:
    """Return an intrinsic ``least(count, words)``: the bits of the smallest |x|, minus 1, over all x ≠ 0 of ``count``
    pairs of 16-bit floats; 65,535 if all are zeros.

    Without the sign, the bits of floats have the same order as the floats. Subtracting 1 turns the bits of zero into
    the largest 16-bit number, so the minimum ignores zeros.
    """

    @intrinsic
    def least(typingctx: Any, count: Any, words: Any) -> Any:  # noqa: ARG001
        signature = types.intp(types.intp, words)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            count, pointer = args
            words = Vectors(builder, I32, vector_bits // 32)
            halves = Vectors(builder, I16, vector_bits // 16)
            pointer = builder.bitcast(pointer, I32.as_pointer())

            def smaller(x: Any, y: Any) -> Any:
                return builder.select(builder.icmp_unsigned("<", x, y), x, y)

            def step(index: Any, values: list[Any], load: Any, _store: Any, chain: int) -> list[Any]:
                bits = builder.and_(builder.bitcast(load(pointer, index), halves.vector), halves.broadcast(I16(0x7FFF)))
                less = builder.sub(bits, halves.broadcast(I16(1)))
                return [smaller(less, value) if place == chain else value for place, value in enumerate(values)]

            chains = vector_loop(words, count, _CHAINS, [halves.broadcast(I16(0xFFFF))] * _CHAINS, step)
            lanes = functools.reduce(smaller, chains)
            name = f"llvm.vector.reduce.umin.v{halves.lanes}i16"
            return builder.zext(
                builder.call(halves.declared(name, ir.FunctionType(I16, [halves.vector])), [lanes]), I64
            )

        return signature, codegen

    return least
