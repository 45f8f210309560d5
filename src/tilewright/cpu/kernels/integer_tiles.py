"""The kernel for 8-bit integers on tile registers: one instruction multiplies 16 rows by 16 columns over 64 steps of k.

As in ``cpu/integer_dots``, C is int32 and exact modulo 2³², or as narrow as the operands. The instruction ``tdpbssd``
takes two signed operands and ``tdpbuud`` takes two unsigned operands, so no sum needs a correction. Each of these
instructions makes 1,024 multiply-adds in a cycle, eight times as many as ``vpdpbusd`` with two vector units. Whole
tiles of an int32 C are summed directly in C. Partial tiles, and all tiles of a C of 8-bit integers, are summed in a
buffer.
"""

from collections.abc import Callable

from tilewright.cpu import codegen
from tilewright.cpu.engine import dots, jobs
from tilewright.host.machine import machine
from tilewright.kernels import kernel

GROUP = 4  # steps of k in a word


def integers_by_tiles(blocks: dots.TileBlocks, kind: type[codegen.Tiles]) -> Callable[..., None]:
    """Return a function ``multiply(a, b, c, space, counters)`` that uses tiles of this kind."""
    bits, length = blocks.chosen.vector_bits, dots.COLUMNS
    lanes, row_words, fetch_rows = bits // 32, dots.row_words, dots.fetch_rows
    packed_rows, pack_columns = dots.tile_packers(bits)
    convert, multiply_tile = codegen.row_converter(bits), dots.tile_product(kind)
    begin, end = codegen.tile_state(kind)

    @codegen.njit(nogil=True, inline="always")
    def pack_rows(a, top, rows, low, kc, target, at, ld):  # noqa: ARG001
        packed_rows(a, top, rows, low, kc, target, at)

    @codegen.njit(nogil=True)
    def move(c, top, rows, left, columns, sums, out):
        """Copy the sums of a tile to C if ``out`` is True, otherwise copy them from C."""
        for r in range(rows):
            row, of_c = codegen.ahead(sums, r * length), codegen.address(c, top + r, left)
            if out:
                convert(row, 4, of_c, c.strides[1], columns)
            else:
                convert(of_c, c.strides[1], row, 4, columns)

    @codegen.njit(nogil=True, inline="always")
    def write(steps, a, a_stride, b, c, band, sliver, corner, near):  # noqa: ARG001
        (kc, accumulate, _), (top, tiles, low, higher), (left, columns, vectors) = steps, band, sliver
        c, of_a = c
        sums, width, itemsize = codegen.offset(corner, 0), vectors * lanes, codegen.itemsize(c)
        words = itemsize == 4 and c.strides[1] == 4 and c.strides[0] % 4 == 0
        for x in range(tiles):
            rows = low + 1 if x < higher else low
            fetch_rows(c, top, rows, left, columns)
            if words and (rows | columns) % codegen.TILE == 0:
                of_c, ldc = codegen.pointer_as(codegen.address(c, top, left), corner), c.strides[0] // 4
                multiply_tile(kc, a, b, width, rows, columns, of_c, ldc, accumulate, of_a)
            else:
                if accumulate:
                    move(c, top, rows, left, columns, sums, False)
                multiply_tile(kc, a, b, width, rows, columns, sums, length, accumulate, of_a)
                move(c, top, rows, left, columns, sums, True)
            top, a = top + rows, codegen.ahead(a, rows * row_words(kc))

    product = jobs.team_product(
        blocks, pack_rows, pack_columns, write, grain=codegen.TILE, any_height=True, whole_bands=True
    )

    @codegen.njit(nogil=True, inline="always")
    def multiply(a, b, c, space, counters):
        (m, k), n = a.shape, b.shape[1]
        if k == 0 and not counters[counters.size - 2]:
            c[:] = 0
        begin()
        product(a, b, (c, a), m, n, dots.whole_tiles(-(-k // GROUP)), space, counters)
        end()

    return multiply


INSTRUCTION = dots.tile_instruction_here("int8")
BLOCKS = dots.TileBlocks(machine())
multiply = integers_by_tiles(BLOCKS, codegen.Tiles if INSTRUCTION else codegen.VectorTiles)


@kernel(
    order=25,
    idea="Multiply 8-bit integers on tile registers: one instruction multiplies two tiles of 1 KiB, 16,384 multiply-adds.",
    row="S1.11",
    parent="cpu/integer_dots",
    dtypes=("int8", "uint8"),
    sums={"int8": "int32", "uint8": "int32"},
    shared="team",
    triangle=True,
    grain=(BLOCKS.mr, BLOCKS.nr),
    strided=True,
    params={**BLOCKS.params, "least_bits": 8},
    space="int32",
    workspace=BLOCKS.workspace,
    counters=BLOCKS.counters,
    available=bool(INSTRUCTION),
    suits=lambda m, n, k: bool(INSTRUCTION) and dots.pays(m, n, k),
    adds=True,
)
def integer_tiles(a, b, c, space, counters):
    multiply(a, b, c, space, counters)
