"""The kernel for 8-bit and 16-bit integers that uses instructions which multiply groups of integers and add the
products to 32-bit sums.

C is int32 and exact modulo 2³², as in NumPy; or C is as narrow as the operands, and has the lower bits of the same
sums. In the time of one float32 multiply-add, ``vpdpbusd`` adds four products of 8-bit integers, and ``vpdpwssd`` adds
two products of 16-bit integers. On a processor without these instructions, 8-bit integers are widened while they are
packed, and ``vpmaddwd`` multiplies.

``vpdpbusd`` reads one operand as unsigned and the other as signed. But the operands A and B are both signed, or both
unsigned. So packing inverts the highest bit of every element of B. If the instruction reads the inverted elements of a
signed B as unsigned, each is greater by 128; if it reads those of an unsigned B as signed, each is less by 128. So the
instruction adds to each element of a row of C the product of that row of A and a constant column, whose elements are
all 128 or all −128; the byte 0x80 represents both numbers. The product of a row of A and the constant column is
computed once for each row of a block of A, and the sums of the row begin with its negative.

A row of A that consists of whole words is read without packing (``jobs.lies_well``). Reading rows of A without packing
saves 1 % of the time of products of 1,024³, and up to 8 % at 256³.
"""

from collections.abc import Callable

import numpy as np

from tilewright.cpu import codegen
from tilewright.cpu.engine import dots, jobs
from tilewright.kernels import kernel
from tilewright.kernels.blocking import Blocking, blocking

#: The byte 0x80 in each of the four places of a word.
UPPER_BITS = -0x7F7F7F80
#: Multiply-adds of the smallest product for which packing pays; ``cpu/direct`` multiplies smaller ones.
LEAST_WORK = 100**3


def integer_product(chosen: Blocking, of_bytes: str, of_words: str) -> tuple[dots.DotBlocks, Callable[..., None]]:
    """Return the blocks of the kernel, and its function ``multiply(a, b, c, space, counters)``. The function uses the
    instructions ``of_bytes`` for 8 bits and ``of_words`` for 16 bits."""
    blocks = dots.DotBlocks(chosen)
    mr, lanes = chosen.mr, chosen.vector_bits // 32
    start_of, start_in_corner = blocks.number("start_at"), blocks.start_at - blocks.tile_at
    of_bytes, of_words = of_bytes or "vpmaddwd", of_words or "vpmaddwd"
    quads = of_bytes == "vpdpbusd"
    least_bits = 8 if quads else 16
    pack_a, pack_b = codegen.word_packers(chosen.vector_bits, least_bits=least_bits)
    convert, less = codegen.row_converter(chosen.vector_bits), codegen.less_dot(chosen.vector_bits)
    tile = dots.compiled_dots(blocks, {8: of_bytes, 16: of_words})

    @codegen.njit(nogil=True, inline="always")
    def note_rows(a, rows, kc, words, apart, target):
        """Write the number that the sums of each row begin with; it is 0 for the rows of zeros that may follow the rows
        of A."""
        start_at = start_of()
        for r in range(rows + mr):
            target[start_at + r] = 0
        if quads and codegen.itemsize(a) == 1:
            for r in range(rows):
                target[start_at + r] = less(kc, codegen.ahead(words, r * apart), np.int32(UPPER_BITS), a)

    @codegen.njit(nogil=True, inline="always")
    def pack_rows(a, top, rows, low, kc, target, at, ld):
        pack_a(a, top, rows, low, kc, target, at, ld)
        note_rows(a, rows, kc, codegen.offset(target, at), ld, target)

    @codegen.njit(nogil=True, inline="always")
    def pack_columns(b, low, kc, left, columns, target, at, ld):
        pack_b(b, UPPER_BITS if quads and codegen.itemsize(b) == 1 else 0, low, kc, left, columns, target, at, ld)

    @codegen.njit(nogil=True, inline="always")
    def write(steps, a, a_stride, b, c, band, sliver, corner, near):  # noqa: ARG001
        """Write directly to C if C is int32; otherwise by way of ``corner``, into which C is widened to accumulate."""
        (kc, accumulate, _), (top, tiles, low, higher), (left, columns, vectors) = steps, band, sliver
        c, of_a = c
        width = vectors * lanes
        buffer, start = codegen.offset(corner, 0), codegen.offset(corner, start_in_corner)
        for x in range(tiles):
            rows = low + 1 if x < higher else low
            direct = codegen.itemsize(c) == 4 and c.strides[1] == 4 and rows >= mr - 1
            for r in range(0 if direct or not accumulate else rows):
                row = codegen.address(c, top + r, left)
                convert(row, c.strides[1], codegen.offset(corner, r * width), 4, columns)
            to, ldc, inside = buffer, width, width
            if direct:
                to, ldc, inside = codegen.pointer_as(codegen.address(c, top, left), corner), c.strides[0] // 4, columns
            tile(
                kc,
                codegen.pointer_as(a, of_a),
                a_stride,
                b,
                to,
                ldc,
                accumulate,
                max(rows, mr - 1),
                vectors,
                inside,
                start,
            )
            for r in range(0 if direct else rows):
                row = codegen.address(c, top + r, left)
                convert(codegen.offset(corner, r * width), 4, row, c.strides[1], columns)
            top += rows
            a, start = codegen.ahead(a, rows * a_stride), codegen.ahead(start, rows)

    product = jobs.team_product(
        blocks, pack_rows, pack_columns, write, in_place=True, note_rows=note_rows, whole_bands=True
    )

    @codegen.njit(nogil=True, inline="always")
    def multiply(a, b, c, space, counters):
        (m, k), n = a.shape, b.shape[1]
        if k == 0 and not counters[counters.size - 2]:
            c[:] = 0
        group = 4 // max(least_bits // 8, codegen.itemsize(a))
        product(a, b, (c, a), m, n, -(-k // group), space, counters)

    return blocks, multiply


INSTRUCTIONS = dots.dot_instruction_here("int8"), dots.dot_instruction_here("int16")
BLOCKS, multiply = integer_product(blocking(), *INSTRUCTIONS)


@kernel(
    order=23,
    idea="Multiply 8-bit integers four at a time, 16-bit ones two at a time: one instruction adds their products to a sum.",
    row="S1.11",
    parent="cpu/narrow_integers",
    dtypes=("int8", "uint8", "int16", "uint16"),
    sums={"int8": "int32", "uint8": "int32", "int16": "int32"},
    shared="team",
    triangle=True,
    grain=(BLOCKS.mr, BLOCKS.nr),
    strided=True,
    params={**BLOCKS.params, "least_bits": 8 if INSTRUCTIONS[0] == "vpdpbusd" else 16},
    space="int32",
    workspace=BLOCKS.workspace,
    counters=BLOCKS.counters,
    in_place=True,
    suits=lambda m, n, k: bool(INSTRUCTIONS[0]) and m * n * k >= LEAST_WORK,
    adds=True,
)
def integer_dots(a, b, c, space, counters):
    multiply(a, b, c, space, counters)
