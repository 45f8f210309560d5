"""The kernel for bfloat16 on tile registers: one instruction multiplies 16 rows by 16 columns over 32 steps of k.

The sums are float32; C is float32, or bfloat16 that is rounded once from these sums. ``tdpbf16ps`` adds exact products
to float32 sums in a particular order. So the error bound of this kernel is that of float32, but its last bits differ
from those of ``cpu/bfloat16_dots``; ``cpu/codegen/tiles.py`` describes the order of additions and the bound. The order
of additions depends only on k.

``tdpbf16ps`` treats denormal operands and sums as zeros. As in ``cpu/bfloat16_dots``, no denormal number can occur if
the least magnitude in a block of A times the least magnitude in a sliver of B is at least a bound, which is very small.
Packing stores the least magnitude of a block of A after the block. For B, packing only notes whether any magnitude is
below the square root of the bound on the product; if one is, a pass over each sliver finds the sliver's least
magnitude.

If the product of the least magnitudes of A and B is below the bound, vector instructions multiply instead of tile
registers, in the same order. Vector instructions give the same bits as ``tdpbf16ps`` unless a number is denormal, so
the bits do not depend on how C is cut.

Between phases of k, the sums of a bfloat16 C are kept in the workspace as float32, as in ``cpu/half_floats``. At the
end of a phase, the phase's sums are added to C by vector instructions, which handle denormal numbers correctly.
"""

from collections.abc import Callable

from tilewright.cpu import codegen
from tilewright.cpu.engine import dots, jobs
from tilewright.host.machine import machine
from tilewright.kernels import kernel

GROUP = 2  # steps of k in a word


def bfloat16_by_tiles(
    blocks: dots.TileBlocks, kind: type[codegen.Tiles], *, least_exponents: int = dots.LEAST_EXPONENTS
) -> Callable[..., None]:
    """Return a function ``multiply(a, b, c, wide, space, counters)`` that uses tiles of this kind. ``wide`` is C as
    float32."""
    bits, length = blocks.chosen.vector_bits, dots.COLUMNS
    lanes, half, row_words, fetch_rows = bits // 32, least_exponents // 2, dots.row_words, dots.fetch_rows
    packed_rows, packed_columns = dots.tile_packers(bits)
    convert, add, least = codegen.row_converter(bits), codegen.row_adder(bits), codegen.least_magnitude(bits)
    least_of_rows = dots.least_of_rows(bits)
    multiply_tile, careful = dots.tile_product(kind), dots.tile_product(codegen.VectorTiles)
    begin, end = codegen.tile_state(kind)

    @codegen.njit(nogil=True, inline="always")
    def pack_rows(a, top, rows, low, kc, target, at, ld):  # noqa: ARG001
        packed_rows(a, top, rows, low, kc, target, at)
        stride = dots.row_words(kc)
        target[target.size - 1] = least_of_rows(rows, stride, target, at, stride)

    @codegen.njit(nogil=True, inline="always")
    def pack_columns(b, low, kc, left, columns, target, at, ld):
        b, counters = b
        packed_columns(b, low, kc, left, columns, target, at, ld)
        if dots.least_exponent(least_of_rows(kc, columns, target, at, ld)) < half:
            codegen.fetch_add(counters, dots.SMALL_PIECES, 1)

    @codegen.njit(nogil=True)
    def finish(wide, target, top, rows, left, columns, sums, beside, accumulate):
        """Add the sums of earlier phases, in ``wide``, to the sums of a tile, and write the results to ``target``."""
        for r in range(rows):
            row = codegen.ahead(sums, r * length)
            if accumulate:
                convert(codegen.address(wide, top + r, left), wide.strides[1], beside, 4, columns)
                add(row, beside, columns, 1, 0, 0)
            convert(row, 4, codegen.address(target, top + r, left), target.strides[1], columns)

    @codegen.njit(nogil=True, inline="always")
    def write(steps, a, a_stride, b, c, band, sliver, corner, near):  # noqa: ARG001
        (kc, accumulate, ends), (top, tiles, low, higher), (left, columns, vectors) = steps, band, sliver
        narrow, wide, of_a, counters = c
        sums, beside = codegen.offset(corner, 0), codegen.offset(corner, corner.size - 1 - length)
        smallest, width = int(corner[corner.size - 1]), vectors * lanes
        exact = counters[dots.SMALL_PIECES] == 0 and dots.least_exponent(smallest) >= half
        exact = exact or dots.no_denormals(smallest, least(kc * width, b), least_exponents)
        for x in range(tiles):
            rows = low + 1 if x < higher else low
            if ends:
                fetch_rows(narrow, top, rows, left, columns)
            else:
                fetch_rows(wide, top, rows, left, columns)
            if exact:
                multiply_tile(kc, a, b, width, rows, columns, sums, length, 0, of_a)
            else:
                careful(kc, a, b, width, rows, columns, sums, length, 0, of_a)
            if ends:
                finish(wide, narrow, top, rows, left, columns, sums, beside, accumulate)
            else:
                finish(wide, wide, top, rows, left, columns, sums, beside, accumulate)
            top, a = top + rows, codegen.ahead(a, rows * row_words(kc))

    product = jobs.team_product(
        blocks, pack_rows, pack_columns, write, grain=codegen.TILE, any_height=True, whole_bands=True
    )

    @codegen.njit(nogil=True, inline="always")
    def multiply(a, b, c, wide, space, counters):
        (m, k), n = a.shape, b.shape[1]
        if k == 0:
            c[:] = 0
        begin()
        words = dots.whole_tiles(-(-k // GROUP))
        product(a, (b, counters), (c, wide, a, counters), m, n, words, space, counters)
        end()

    return multiply


INSTRUCTION = dots.tile_instruction_here("bfloat16")
BLOCKS = dots.TileBlocks(machine())
multiply = bfloat16_by_tiles(BLOCKS, codegen.Tiles if INSTRUCTION else codegen.VectorTiles)


@kernel(
    order=24,
    idea="Multiply bfloat16 on tile registers: one instruction does 8,192 multiply-adds, with sums in float32.",
    row="S1.11",
    parent="cpu/bfloat16_dots",
    dtypes=("bfloat16",),
    sums={"bfloat16": "float32"},
    shared="team",
    triangle=True,
    grain=(BLOCKS.mr, BLOCKS.nr),
    strided=True,
    params={**BLOCKS.params, "least_bits": 16},
    space="float32",
    workspace=lambda m, n, k: BLOCKS.workspace(m, n, k) + m * n,
    counters=BLOCKS.counters,
    available=bool(INSTRUCTION),
    suits=lambda m, n, k: bool(INSTRUCTION) and dots.pays(m, n, k),
)
def bfloat16_tiles(a, b, c, space, counters):
    at = space.size - c.size
    multiply(a, b, c, dots.accumulation_buffer(c, space[at:]), space[:at], counters)
