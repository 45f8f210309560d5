"""Generates code for tiles of C that are computed directly from the operands: nothing is packed, and there is a tile
for every remainder of rows and columns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from . import machine_numbers
from .sizes import ALIGNMENT, LOW
from .vectors import I8, I32, I64, Vectors, bits_of, counted_loop

# ---- complex numbers as pairs of real ones ---------------------------------------------------------------------------


@intrinsic
def _real_parts(typingctx: Any, pointer: Any) -> Any:  # noqa: ARG001
    """Pointer to a complex number → pointer to its real part, which its imaginary part follows."""
    signature = types.CPointer(pointer.dtype.underlying_float)(pointer)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(signature.return_type))

    return signature, codegen


def row_times_i(vector_bits: int) -> Callable[..., None]:
    """Return an intrinsic ``times_i(source, target, count)`` that turns pairs (x, y) of real numbers into (−y, x).

    ``count`` is the number of real numbers: a whole number of vectors. Nothing is rounded, because only signs and
    positions change.
    """

    @intrinsic
    def times_i(typingctx: Any, source: Any, target: Any, count: Any) -> Any:  # noqa: ARG001
        signature = types.void(source, target, types.intp)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            scalar = context.get_data_type(signature.args[0].dtype)
            _emit_row(Vectors(builder, scalar, vector_bits // bits_of(scalar)), *args)
            return context.get_dummy_value()

        return signature, codegen

    return times_i


def _emit_row(vectors: Vectors, source: Any, target: Any, count: Any) -> None:
    def step(index: Any, values: list[Any]) -> list[Any]:
        vectors.store(times_i(vectors, vectors.load(source, index)), target, index)
        return values

    counted_loop(vectors.builder, I64(0), count, vectors.lanes, [], step)


def times_i(vectors: Vectors, pairs: Any) -> Any:
    """Turn pairs (x, y) of one vector into pairs (−y, x). Nothing is rounded, because only signs and positions
    change."""
    lanes, builder = vectors.lanes, vectors.builder
    # −y from the negative, x as it is.
    swapped = [lane ^ 1 if lane % 2 else lanes + (lane ^ 1) for lane in range(lanes)]
    return builder.shuffle_vector(pairs, builder.fneg(pairs), ir.Constant(ir.VectorType(I32, lanes), swapped))


# An intrinsic is called without its first parameter, which type checkers cannot know.
real_parts: Callable[..., Any] = _real_parts


# ---- tiles -----------------------------------------------------------------------------------------------------------

#: The width of vectors, in bits, at which a masked load or store is as fast as any other: AVX-512's. A processor with one
#: unit for such vectors, or that computes them in two halves, computes half a vector in half the time.
MASKS_ARE_FREE = 512
#: How many places a tile prefetches from.
PLACES = 3
#: Rows of B between one that is multiplied and one that is prefetched: some 100 cycles. Where a panel of B is larger than
#: the first-level cache, its rows come from the second one, and processors do not foresee rows that lie far apart. On 16
#: cores of a Xeon products of 256³ to 500³ took 8 % less time, in the mean of ten comparisons.
_ROWS_AHEAD = 8
#: What the names of tables of tiles begin with.
PREFIX = "tilewright.direct."
#: For each table of a library's code: adds it to a module. Several objects use a table, and one of them defines it.
TABLES: dict[str, Callable[[Any], object]] = {}


class _TileArguments(NamedTuple):
    """The arguments of a generated tile, in their order: values, or their types.

    Pointers among the arguments point to floats, doubles or integers. Strides and distances are bytes.
    """

    columns: Any
    k: Any
    a: Any
    a_row: Any
    a_column: Any
    b: Any
    b_row: Any
    c: Any
    c_row: Any
    count: Any  # of products, at least 1
    a_next: Any  # from A of a product to A of the next
    b_next: Any
    c_next: Any
    places: Any  # PLACES pointers: from where the tile prefetches
    paces: Any  # for each of them how far it moves on in a step of k

    @classmethod
    def of(cls, arguments: Sequence[Any]) -> _TileArguments:
        """Make a ``_TileArguments`` from the arguments of a generated function, which takes each place and each pace as
        a separate argument."""
        fields, ahead = arguments[: -2 * PLACES], arguments[-2 * PLACES :]
        return cls._make([*fields, ahead[:PLACES], ahead[PLACES:]])

    @property
    def flat(self) -> list[Any]:
        """As a function takes them."""
        return [*self[:-2], *self.places, *self.paces]


def direct_tile(heights: Sequence[int], vector_bits: int) -> Callable[..., None]:
    """Return an intrinsic that computes any tile of C that fits into the registers, directly from the operands:

        tile(size, (a, a_row, a_column), (b, b_row), (c, c_row), (count, a_next, b_next, c_next), ahead)

    - The tile writes C = A·B for ``size``, which is (rows, vectors, columns, k), and never reads C; k may be 0. The
      columns of the tile take ``vectors`` vectors, the last of which may be partial: 1 ≤ vectors ≤ len(heights), 1 ≤
      rows ≤ heights[vectors − 1].
    - ``a``, ``b`` and ``c`` are pointers, each followed by its strides. A may have any strides; B and C have unit
      stride along a row.
    - The tile also computes ``count`` − 1 further products: the operands of each are ``a_next``, ``b_next`` and
      ``c_next`` bytes after those of the previous product.
    - ``ahead`` has PLACES pairs, each of a pointer and a number of bytes. At each step of k of every product, the line
      at each pointer in ``ahead`` is prefetched into L2, and the pointer advances by its number of bytes. The
      prefetches bring the data of later tiles from memory while this tile is computed. A pointer to be prefetched may
      be outside any array. Tiles of at most half the greatest height, up to LOW, prefetch nothing: when C is cut into
      even steps, such a tile is the only one in its columns. Higher tiles also prefetch rows of B into the first-level
      cache.

    With ``vector_bits`` 512 the last vector is always masked, which takes no extra time; it has half the width if the
    remaining columns fit into that. AVX2's masked loads are slow and NEON has none, so for AVX2 and NEON there are
    tiles of whole vectors besides the masked tiles.

    Each size of tile is a separate function, selected by a table, so no tile computes a row that is not needed. Every
    tile sums an element over k in order, so the element's bits do not depend on how C was cut.
    """

    @intrinsic
    def tile(typingctx: Any, size: Any, a: Any, b: Any, c: Any, batch: Any, ahead: Any) -> Any:  # noqa: ARG001
        pointer, number = a.types[0], types.intp
        rows = types.Tuple((pointer, number))
        four, places = types.UniTuple(number, 4), types.Tuple((pointer, number) * PLACES)
        signature = types.void(four, types.Tuple((pointer, number, number)), rows, rows, four, places)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            size, a, b, c, batch, ahead = (cgutils.unpack_tuple(builder, group) for group in args)
            rows, vectors, columns, k = size
            tile = _TileArguments._make([columns, k, *a, *b, *c, *batch, ahead[::2], ahead[1::2]])
            scalar, pairs = context.get_data_type(pointer.dtype), False
            if isinstance(scalar, ir.BaseStructType):  # complex numbers, as pairs of real ones
                scalar, pairs = scalar.elements[0], True
                as_real = functools.partial(builder.bitcast, typ=scalar.as_pointer())
                tile = tile._replace(
                    columns=builder.shl(columns, I64(1)),
                    a=as_real(tile.a),
                    b=as_real(tile.b),
                    c=as_real(tile.c),
                    places=[as_real(place) for place in tile.places],
                )
            lanes = vector_bits // bits_of(scalar)
            table = _table(builder.module, scalar, lanes, heights, pairs)
            padding = builder.sub(builder.mul(vectors, I64(lanes)), tile.columns)
            if vector_bits == MASKS_ARE_FREE and pairs:
                special = ir.Constant(ir.IntType(1), 0)
            elif vector_bits == MASKS_ARE_FREE:
                special = builder.icmp_signed(">=", padding, I64(lanes // 2))
            else:
                special = builder.icmp_signed("==", padding, I64(0))
            which = [I64(0), builder.zext(special, I64), builder.sub(vectors, I64(1)), builder.sub(rows, I64(1))]
            builder.call(builder.load(builder.gep(table, which)), tile.flat)
            return context.get_dummy_value()

        return signature, codegen

    return tile


def _table(module: Any, scalar: Any, lanes: int, heights: Sequence[int], pairs: bool) -> Any:
    """``table[special][nv − 1][mr − 1]``: the tile of ``mr`` rows × ``nv`` vectors, of which the last is masked. ``special``
    ones have half a vector as the last, where masks are free, or whole vectors only, elsewhere."""
    name = f"{PREFIX}{'pairs.' * pairs}{scalar}x{lanes}." + ".".join(map(str, heights))
    if name in module.globals:
        return module.globals[name]
    pointer = scalar.as_pointer()
    numbers = _TileArguments._make([I64] * len(_TileArguments._fields))
    places, paces = [pointer] * PLACES, [I64] * PLACES
    parameters = numbers._replace(a=pointer, b=pointer, c=pointer, places=places, paces=paces)
    kind = ir.FunctionType(ir.VoidType(), parameters.flat)
    # Not half a vector of complex numbers: with vectors of two widths, tall tiles need more registers than there are.
    special = "half" if lanes * bits_of(scalar) == MASKS_ARE_FREE else "whole"
    lasts = ("masked",) if pairs and special == "half" else ("masked", special)
    vectors = ir.ArrayType(ir.ArrayType(kind.as_pointer(), max(heights)), len(heights))

    def declared(module: Any) -> Any:
        table = ir.GlobalVariable(module, ir.ArrayType(vectors, len(lasts)), name)
        table.global_constant = True
        return table

    def defined(module: Any) -> Any:
        table, none = declared(module), ir.Constant(kind.as_pointer(), None)
        halves = []
        for last in lasts:
            rows = []
            for nv, height in enumerate(heights, 1):
                make = functools.partial(_tile, module, kind, lanes=lanes, last=last, pairs=pairs)
                tiles = [
                    make(f"{name}.{mr}x{nv}", mr, nv, prefetches=2 * mr > min(height, LOW))
                    for mr in range(1, height + 1)
                ]
                rows.append(ir.Constant(vectors.element, tiles + [none] * (max(heights) - height)))
            halves.append(ir.Constant(vectors, rows))
        table.initializer = ir.Constant(table.type.pointee, halves)
        return table

    if not machine_numbers.for_library:
        table = defined(module)
        table.linkage = "internal"
        return table
    TABLES[name] = defined
    return declared(module)


def _tile(
    module: Any, kind: Any, name: str, mr: int, nv: int, *, lanes: int, last: str, pairs: bool, prefetches: bool
) -> Any:
    function = ir.Function(module, kind, name if last == "masked" else f"{name}.{last}")
    function.linkage = "internal"
    function.attributes.add("nounwind")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    given = _TileArguments.of(function.args)
    vectors = Vectors(builder, given.a.type.pointee, lanes)
    complex_tile = _ComplexTile if lanes * vectors.itemsize * 8 == MASKS_ARE_FREE else _ComplexTileByRows
    last_vector = Vectors(builder, vectors.scalar, lanes // 2) if last == "half" else vectors
    row = [vectors] * (nv - 1) + [last_vector]
    (complex_tile if pairs else _DirectTile)(row, mr, given, masked=last != "whole", prefetches=prefetches).products()
    builder.ret_void()
    return function


class _DirectTile:
    """Emits a tile of ``mr`` rows of the vectors ``row``; the last vector is whole, or ``masked`` to the tile's
    columns."""

    def __init__(self, row: list[Vectors], mr: int, given: _TileArguments, *, masked: bool, prefetches: bool) -> None:
        self.row, self.builder, self.mr, self.nv, self.given = row, row[0].builder, mr, len(row), given
        self.starts = [v * row[0].lanes for v in range(self.nv)]
        self.mask = row[-1].mask(self.builder.sub(given.columns, I64(self.starts[-1]))) if masked else None
        self.places: Sequence[Any] = given.places if prefetches else ()
        self.paces: Sequence[Any] = given.paces if prefetches else ()

    def products(self) -> None:
        """Emit the loop over the products of a batch, around the loop over k."""
        builder, given = self.builder, self.given
        rows = self._offsets(given.a_row)
        before = builder.block
        loop, done = builder.append_basic_block("batch"), builder.append_basic_block("batch.done")
        builder.branch(loop)
        builder.position_at_end(loop)
        firsts = [given.count, given.a, given.b, given.c, *self.places]
        left, a, b, c, *places = phis = [builder.phi(first.type) for first in firsts]
        sums, ahead = self._multiply(a, rows, b, places)
        self._write(sums, c)
        following = builder.sub(left, I64(1))
        nexts = [self._after(a, given.a_next), self._after(b, given.b_next), self._after(c, given.c_next)]
        for phi, first, following_value in zip(phis, firsts, [following, *nexts, *ahead], strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(following_value, builder.block)
        builder.cbranch(builder.icmp_signed(">", following, I64(0)), loop, done)
        builder.position_at_end(done)

    def _offsets(self, a_row: Any) -> list[Any]:
        """How far each row of A is from the first. Those of odd rows are in registers; the others are these times 2, 4 or 8,
        which x86 computes in the instruction that reads A."""
        builder, offsets = self.builder, [I64(0)]
        for r in range(1, self.mr):
            if r % 2:
                offsets.append(self._opaque(builder.mul(a_row, I64(r))))
            else:
                power = (r & -r).bit_length() - 1
                offsets.append(builder.shl(offsets[r >> power], I64(power)))
        return offsets

    def _multiply(self, a: Any, rows: list[Any], b: Any, ahead: list[Any]) -> tuple[list[Any], list[Any]]:
        """The loop over k for one product; ``rows`` are the offsets of A's rows. It prefetches from the places ``ahead`` on.
        Returns the accumulators, ``nv`` of the first row, then of the second, …; and the places where it ended."""
        k, a_column, b_row = self.given.k, self.given.a_column, self.given.b_row
        builder, zeros = self.builder, [vectors.zero for vectors in self.row] * self.mr
        rows_ahead = self._opaque(builder.mul(b_row, I64(_ROWS_AHEAD))) if self.places else None
        in_line = max(1, ALIGNMENT // (self.row[0].lanes * self.row[0].itemsize))
        before = builder.block
        loop, done = builder.append_basic_block("k.loop"), builder.append_basic_block("k.done")
        builder.cbranch(builder.icmp_signed(">", k, I64(0)), loop, done)
        builder.position_at_end(loop)
        left, a_now, b_now = builder.phi(I64), builder.phi(a.type), builder.phi(b.type)
        tile = [builder.phi(zero.type) for zero in zeros]
        places = [builder.phi(place.type) for place in ahead]
        for place in places:
            self.row[0].prefetch(place, level=2)
        for start in self.starts[::in_line] if places else ():
            self.row[0].prefetch(self._after(b_now, rows_ahead), start)
        updated = self._step([self._after(a_now, row) for row in rows], b_now, tile)
        following = builder.sub(left, I64(1))
        a_next = self._opaque(self._after(a_now, a_column))
        carried = [(left, k, following), (a_now, a, a_next), (b_now, b, self._after(b_now, b_row))]
        carried += [*zip(tile, zeros, updated, strict=True)]
        moved = [self._after(place, pace) for place, pace in zip(places, self.paces, strict=True)]
        carried += [*zip(places, ahead, moved, strict=True)]
        for phi, first, next_value in carried:
            phi.add_incoming(first, before)
            phi.add_incoming(next_value, loop)
        builder.cbranch(builder.icmp_signed(">", following, I64(0)), loop, done)
        builder.position_at_end(done)
        ends = [builder.phi(first.type) for first in (*zeros, *ahead)]
        for end, first, new in zip(ends, [*zeros, *ahead], [*updated, *moved], strict=True):
            end.add_incoming(first, before)
            end.add_incoming(new, loop)
        return ends[: len(zeros)], ends[len(zeros) :]

    def _write(self, tile: list[Any], c: Any) -> None:
        for r in range(self.mr):
            row = self._after(c, self.builder.mul(self.given.c_row, I64(r)))
            for v, (vectors, value) in enumerate(zip(self.row, tile[r * self.nv : (r + 1) * self.nv], strict=True)):
                if self.mask is None or v < self.nv - 1:
                    vectors.store(value, row, self.starts[v])
                else:
                    vectors.store_masked(self.mask, value, row, self.starts[v])

    def _row_of_b(self, b: Any) -> list[Any]:
        whole = self.nv if self.mask is None else self.nv - 1
        row_of_b = [self.row[v].load(b, self.starts[v]) for v in range(whole)]
        if self.mask is not None:
            row_of_b.append(self.row[-1].load_masked(self.mask, b, self.starts[-1]))
        return row_of_b

    def _step(self, column_of_a: list[Any], b: Any, tile: list[Any]) -> list[Any]:
        row_of_b = self._row_of_b(b)
        updated = []
        for r, place in enumerate(column_of_a):
            updated += self._multiply_add(self.builder.load(place), row_of_b, tile[r * self.nv : (r + 1) * self.nv])
        return updated

    def _multiply_add(self, element: Any, row_of_b: list[Any], sums: list[Any]) -> list[Any]:
        """A row of the tile, plus an element of A times a row of B."""
        row = zip(self.row, row_of_b, sums, strict=True)
        return [vectors.multiply_add(vectors.broadcast(element), vector, old) for vectors, vector, old in row]

    def _opaque(self, value: Any) -> Any:
        """``value``, without LLVM's knowledge of how it was computed.

        Otherwise LLVM computes each row's address from that of the row before, a chain of dependent additions, or unrolls
        the loop and needs a register for each row of each step: both take more cycles than the arithmetic of a narrow tile.
        This way the offset of every other row stays in a register, and only the pointer into A moves.
        """
        return self.builder.asm(ir.FunctionType(value.type, [value.type]), "", "=r,0", [value], side_effect=False)

    def _after(self, pointer: Any, count: Any) -> Any:
        """The address ``count`` bytes after ``pointer``."""
        start = self.builder.bitcast(pointer, I8.as_pointer())
        return self.builder.bitcast(self.builder.gep(start, [count]), pointer.type)


class _ComplexTile(_DirectTile):
    """A tile of complex numbers x + iy, stored as pairs of real lanes: adds x·(row of B), then y·(row of B times i)."""

    def _step(self, column_of_a: list[Any], b: Any, tile: list[Any]) -> list[Any]:
        updated = tile
        for part, row in enumerate(self._rows_of_b(b)):
            elements = [self.row[0].scalar_at(place, part) for place in column_of_a]
            rows = [
                self._multiply_add(x, row, updated[r * self.nv : (r + 1) * self.nv]) for r, x in enumerate(elements)
            ]
            updated = [value for values in rows for value in values]
        return updated

    def _rows_of_b(self, b: Any) -> tuple[list[Any], list[Any]]:
        """A row of B, and the same times i."""
        row_of_b = self._row_of_b(b)
        return row_of_b, [times_i(vectors, vector) for vectors, vector in zip(self.row, row_of_b, strict=True)]


class _ComplexTileByRows(_ComplexTile):
    """A ``_ComplexTile`` that multiplies both parts, real and imaginary, of one row of A before the next row.

    AVX-512's multiply-adds broadcast an element of A from memory; without AVX-512 each element needs a register. If the
    real parts of all rows came before the imaginary parts, LLVM would load the elements of all rows ahead, and 16
    registers have no room for these elements and the accumulators.
    """

    def _step(self, column_of_a: list[Any], b: Any, tile: list[Any]) -> list[Any]:
        factors, updated = self._rows_of_b(b), []
        for r, place in enumerate(column_of_a):
            sums = tile[r * self.nv : (r + 1) * self.nv]
            for part, row in enumerate(factors):
                sums = self._multiply_add(self.row[0].scalar_at(place, part), row, sums)
            updated += sums
        return updated
