"""Generates the innermost loop for narrow elements on tile registers (Intel AMX), where one instruction multiplies two
matrices of 1 KiB.

A tile register has 16 rows of 16 words of 32 bits. ``C += A·B`` for three tile registers computes 16 × 16 sums over 16
words; each word holds a group of steps of k, as in ``cpu/codegen/dots.py``. The tile register A holds rows of the left
operand as they are in memory. The tile register B holds rows of the right operand with a group of steps of k in each
word, as ``word_packers`` packs them. The code refers to each instruction by its name on x86:

    tdpbssd     4 products of signed 8-bit integers for each word; exact modulo 2³²
    tdpbuud     the same of unsigned ones
    tdpbf16ps   2 products of bfloat16 for each word, whose sums are float32

For each sum, ``tdpbf16ps`` adds the products of the first halves of the 16 words in one chain of multiply-adds, and
those of the second halves in another. At the end, ``tdpbf16ps`` adds the two chains of each sum, and adds the result to
C. A product of two bfloat16 numbers is exact in float32. So each element of the result is a sum of exact products in
some order, and each product goes through at most k − 1 rounded additions. Therefore the classical error bound
γ_k·(|A||B|) holds for ``tdpbf16ps``. The last bits of the result of ``tdpbf16ps`` differ from those of a single chain
of float32 multiply-adds.

``tdpbf16ps`` treats denormal operands and sums as zeros in every mode of the processor. Neither operands nor sums are
denormal if no product of two elements has an exponent below −112; the reason that ``cpu/codegen/dots.py`` gives holds
for sums in any order.

``VectorTiles`` computes the same on any processor, with vector instructions and with tiles in memory. ``VectorTiles``
handles denormal numbers correctly; if none occur, its results have the same bits as those of the tile instructions. It
is slow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .sizes import TILE
from .vectors import I8, I32, I64, Vectors, counted_loop

#: Numbers of the tile registers of C, A and B, for a block of 2 × 2 tiles of C.
_C, _A, _B = ((0, 1), (2, 3)), (4, 5), (6, 7)
_POINTER = I8.as_pointer()


class Tiles:
    """Emits AMX instructions for tiles. Methods take tile registers by number; pointers point to words of 32 bits, and
    strides count words."""

    def __init__(self, builder: Any, instruction: str) -> None:
        self.builder, self.instruction = builder, instruction

    def zero(self, tile: int) -> None:
        """Set all elements of a tile to zero."""
        self._call("tilezero", I8(tile))

    def load(self, tile: int, pointer: Any, stride: Any) -> None:
        """Load rows of 16 words, which are ``stride`` words apart, into a tile."""
        self._call("tileloadd64", I8(tile), *self._memory(pointer, stride))

    def store(self, tile: int, pointer: Any, stride: Any) -> None:
        """Write the rows of a tile to memory, ``stride`` words apart."""
        self._call("tilestored64", I8(tile), *self._memory(pointer, stride))

    def multiply_add(self, c: int, a: int, b: int) -> None:
        """C += A·B."""
        self._call(self.instruction, I8(c), I8(a), I8(b))

    def _memory(self, pointer: Any, stride: Any) -> tuple[Any, Any]:
        return self.builder.bitcast(pointer, _POINTER), self.builder.mul(stride, I64(4))

    def _call(self, name: str, *operands: Any) -> None:
        _call_x86(self.builder, name, *operands)


class VectorTiles(Tiles):
    """The same operations by vectors. Tiles that are emulated with vectors: each is 1 KiB on the function's stack."""

    def __init__(self, builder: Any, instruction: str) -> None:
        super().__init__(builder, instruction)
        tiles = ir.ArrayType(ir.ArrayType(I32, TILE * TILE), 8)
        self.memory = cgutils.alloca_once(builder, tiles)
        self.words = Vectors(builder, I32, TILE)
        self.floats = Vectors(builder, ir.FloatType(), TILE)

    def zero(self, tile: int) -> None:
        self._each_row(lambda row: self.words.store(self.words.zero, self._row(tile, row)))

    def load(self, tile: int, pointer: Any, stride: Any) -> None:
        self._each_row(lambda row: self._copy(self._memory_row(pointer, stride, row), self._row(tile, row)))

    def store(self, tile: int, pointer: Any, stride: Any) -> None:
        self._each_row(lambda row: self._copy(self._row(tile, row), self._memory_row(pointer, stride, row)))

    def multiply_add(self, c: int, a: int, b: int) -> None:
        builder, of_row = self.builder, self._float_row if self.instruction == "tdpbf16ps" else self._integer_row

        def row(r: Any) -> None:
            of_c, of_a = self._row(c, r), self._row(a, r)

            def word(k: Any) -> tuple[Any, Any]:
                x = self.words.broadcast(builder.load(builder.gep(of_a, [k])))
                return x, self.words.load(self._row(b, k))

            of_row(of_c, word)

        self._each_row(row)

    def _integer_row(self, of_c: Any, word: Callable[[Any], tuple[Any, Any]]) -> None:
        builder = self.builder
        right = builder.lshr if self.instruction == "tdpbuud" else builder.ashr

        def step(k: Any, sums: list[Any]) -> list[Any]:
            x, y = word(k)
            for place in range(4):
                up, down = (self.words.broadcast(I32(bits)) for bits in (24 - 8 * place, 24))
                product = builder.mul(*(right(builder.shl(value, up), down) for value in (x, y)))
                sums = [builder.add(sums[0], product)]
            return sums

        _, (total,) = counted_loop(builder, I64(0), I64(TILE), 1, [self.words.load(of_c)], step)
        self.words.store(total, of_c)

    def _float_row(self, of_c: Any, word: Callable[[Any], tuple[Any, Any]]) -> None:
        builder, floats = self.builder, self.floats

        def step(k: Any, sums: list[Any]) -> list[Any]:
            x, y = word(k)
            half, upper = self.words.broadcast(I32(16)), self.words.broadcast(I32(0xFFFF0000))
            chains = []
            for part, old in zip((lambda v: builder.shl(v, half), lambda v: builder.and_(v, upper)), sums, strict=True):
                of_x, of_y = (builder.bitcast(part(value), floats.vector) for value in (x, y))
                chains.append(self.multiply_add_floats(of_x, of_y, old))
            return chains

        _, chains = counted_loop(builder, I64(0), I64(TILE), 1, [floats.zero] * 2, step)
        before = builder.bitcast(self.words.load(of_c), floats.vector)
        after = self.add_floats(before, self.add_floats(*chains))
        self.words.store(builder.bitcast(after, self.words.vector), of_c)

    def add_floats(self, x: Any, y: Any) -> Any:
        """Return x + y, rounded to float32."""
        return self.floats.add(x, y)

    def multiply_add_floats(self, x: Any, y: Any, z: Any) -> Any:
        """x·y + z, rounded once."""
        return self.floats.multiply_add(x, y, z)

    def _each_row(self, body: Callable[[Any], Any]) -> None:
        def step(row: Any, values: list[Any]) -> list[Any]:
            body(row)
            return values

        counted_loop(self.builder, I64(0), I64(TILE), 1, [], step)

    def _copy(self, source: Any, target: Any) -> None:
        self.words.store(self.words.load(source), target)

    def _row(self, tile: int, row: Any) -> Any:
        return self.builder.gep(self.memory, [I64(0), I64(tile), self.builder.mul(row, I64(TILE))])

    def _memory_row(self, pointer: Any, stride: Any, row: Any) -> Any:
        words = self.builder.bitcast(pointer, I32.as_pointer())
        return self.builder.gep(words, [self.builder.mul(stride, row)])


def _call_x86(builder: Any, name: str, *operands: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [operand.type for operand in operands])
    name = f"llvm.x86.{name}"
    builder.call(builder.module.globals.get(name) or ir.Function(builder.module, kind, name), operands)


#: The names for bfloat16, and for signed and unsigned 8-bit integers.
_NAMES = {"bfloat16": "tdpbf16ps", "int8": "tdpbssd", "uint8": "tdpbuud"}


def tile_kernel(kind: type[Tiles]) -> Callable[..., None]:
    """Return an intrinsic ``block(kc, a, a_stride, b, b_stride, c, c_stride, more, down, across)`` that computes up to
    2 × 2 tiles of C.

    ``kc`` and the strides count words of 32 bits; ``kc`` is a multiple of 16. ``down`` and ``across`` are the numbers
    of tiles of C in a column and in a row: 1 or 2.

    - ``a`` points to 16 rows for each of the ``down`` tiles; the elements are 8-bit integers, or 16-bit integers with
      the bits of bfloat16;
    - ``b`` points to ``kc`` rows of 16 words for each of the ``across`` tiles;
    - ``c`` points to sums of 32 bits, to which the products are added; with ``more`` = 0 the products replace the sums.

    All 16 rows and columns of every tile are read and written.
    """

    @intrinsic
    def block(
        typingctx: Any,  # noqa: ARG001
        kc: Any,  # noqa: ARG001
        a: Any,
        a_stride: Any,  # noqa: ARG001
        b: Any,
        b_stride: Any,  # noqa: ARG001
        c: Any,
        c_stride: Any,  # noqa: ARG001
        more: Any,  # noqa: ARG001
        down: Any,  # noqa: ARG001
        across: Any,  # noqa: ARG001
    ) -> Any:
        integers = [types.intp] * 4
        signature = types.void(types.intp, a, types.intp, b, types.intp, c, *integers)
        elements = {types.int8: "int8", types.uint8: "uint8"}.get(a.dtype, "bfloat16")

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            tiles = kind(builder, _NAMES[elements])
            kc, a, a_stride, b, b_stride, c, c_stride, more, down, across = args
            a, b, c = (builder.bitcast(pointer, I32.as_pointer()) for pointer in (a, b, c))
            operands = kc, a, a_stride, b, b_stride, c, c_stride, builder.icmp_signed("!=", more, I64(0))
            one = [builder.icmp_signed("==", count, I64(1)) for count in (down, across)]

            def choose(chosen: tuple[int, ...]) -> None:
                if len(chosen) == 2:
                    _emit_block(tiles, *operands, *chosen)
                    return
                with builder.if_else(one[len(chosen)]) as (single, double):
                    with single:
                        choose((*chosen, 1))
                    with double:
                        choose((*chosen, 2))

            choose(())
            return context.get_dummy_value()

        return signature, codegen

    return block


def _emit_block(
    tiles: Tiles,
    kc: Any,
    a: Any,
    a_stride: Any,
    b: Any,
    b_stride: Any,
    c: Any,
    c_stride: Any,
    more: Any,
    down: int,
    across: int,
) -> None:
    builder = tiles.builder
    down_by = builder.mul(a_stride, I64(TILE))
    sums = [
        (_C[i][j], builder.gep(c, [builder.add(builder.mul(c_stride, I64(i * TILE)), I64(j * TILE))]))
        for i in range(down)
        for j in range(across)
    ]
    with builder.if_else(more) as (add, overwrite):
        with add:
            for tile, at in sums:
                tiles.load(tile, at, c_stride)
        with overwrite:
            for tile, _ in sums:
                tiles.zero(tile)

    def load_a(p: Any, i: int) -> None:
        tiles.load(_A[i], builder.gep(a, [builder.add(p, down_by if i else I64(0))]), a_stride)

    def load_b(p: Any, j: int) -> None:
        tiles.load(_B[j], builder.gep(b, [builder.add(builder.mul(b_stride, p), I64(j * TILE))]), b_stride)

    def step(following: Any, values: list[Any]) -> list[Any]:
        # A multiply-add takes 16 cycles and its result 52: four tiles of C hide that. Each operand is loaded for the next
        # step after its last use, as early as may be: on a Xeon steps took 5 % less than with loads at their start, from
        # L2, and a tenth less beside another program on the second thread of the core.
        for j in range(across):
            for i in range(down):
                tiles.multiply_add(_C[i][j], _A[i], _B[j])
                if following is not None and j == across - 1:
                    load_a(following, i)
            if following is not None:
                load_b(following, j)
        return values

    for i in range(down):
        load_a(I64(0), i)
    for j in range(across):
        load_b(I64(0), j)
    counted_loop(builder, I64(TILE), kc, TILE, [], step)
    step(None, [])
    for tile, at in sums:
        tiles.store(tile, at, c_stride)


# ---- the state of a thread -------------------------------------------------------------------------------------------

#: The operand of ldtilecfg: palette 1, then 64 bytes a row and 16 rows for each of 8 registers.
_CONFIGURATION = bytes([1, *[0] * 15, *[4 * TILE, 0] * 8, *[0] * 16, *[TILE] * 8, *[0] * 8])


def tile_state(kind: type[Tiles]) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return the intrinsics ``begin()`` and ``end()``: a thread's tile registers exist between the two calls. While a
    thread's tile registers exist, switching threads on the processor takes longer. Those of ``VectorTiles`` do
    nothing."""

    def emit_begin(builder: Any) -> None:
        data = ir.Constant(ir.ArrayType(I8, len(_CONFIGURATION)), bytearray(_CONFIGURATION))
        place = cgutils.global_constant(builder, "tilewright.tiles", data)
        _call_x86(builder, "ldtilecfg", builder.bitcast(place, _POINTER))

    def emit_end(builder: Any) -> None:
        _call_x86(builder, "tilerelease")

    def emit_nothing(builder: Any) -> None:
        """Emit nothing, because tiles in memory need no state of the processor."""

    if kind is Tiles:
        return _state(emit_begin), _state(emit_end)
    return _state(emit_nothing), _state(emit_nothing)


def _state(emit: Callable[[Any], None]) -> Callable[[], None]:
    @intrinsic
    def change(typingctx: Any) -> Any:  # noqa: ARG001
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            emit(builder)
            return context.get_dummy_value()

        return types.void(), codegen

    run: Any = change
    return run
