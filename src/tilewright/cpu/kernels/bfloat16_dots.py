"""The kernel for bfloat16 that uses an instruction which does two multiply-adds to a float32 sum in the time of one
float32 multiply-add.

The sums are float32; C is float32, or bfloat16 that is rounded once from these sums. ``vdpbf16ps`` rounds each
multiply-add as float32 arithmetic does. Packing puts the first of two steps of k in the half of a word with which the
instruction begins. So, in each phase of k, the sum of an element of C has the same bits as a chain of float32
multiply-adds. A phase of this kernel has as many words as a phase of ``cpu/packed`` has steps of k, and so twice as
many steps.

``vdpbf16ps`` replaces denormal operands and sums by zeros. No denormal number can occur if the least magnitude in a
block of A times the least magnitude in a sliver of B is at least a bound, which is very small (``cpu/codegen/dots.py``
gives the reason). Packing finds the least magnitude of A, and whether any magnitude in B is below the square root of
the bound on their product. Only if a magnitude in B is below that square root, a pass over each sliver finds the least
magnitude of B. If the product of both least magnitudes is below the bound, which is rare in practice, the same words
are multiplied as float32.

Between phases of k, the sums of a bfloat16 C are kept in the workspace as float32, as in ``cpu/half_floats``. If k has
a single phase, tiles of a bfloat16 C are rounded while they are in the first-level cache.
"""

from collections.abc import Callable

import numpy as np

from tilewright.cpu import codegen
from tilewright.cpu.engine import dots, jobs
from tilewright.kernels import kernel
from tilewright.kernels.blocking import Blocking, blocking


def bfloat16_product(
    chosen: Blocking, instruction: str, *, least_exponents: int = dots.LEAST_EXPONENTS
) -> tuple[dots.DotBlocks, Callable[..., None]]:
    """Return the blocks of the kernel, and its function ``multiply(a, b, c, wide, words, counters)``. The function uses
    the instruction with the name ``instruction``, or vfmadd if the name is empty."""
    blocks = dots.DotBlocks(chosen)
    mr, nv, bits = chosen.mr, chosen.nv, chosen.vector_bits
    lanes, start_at = bits // 32, blocks.start_at - blocks.tile_at
    pack_a, pack_b = codegen.word_packers(bits, first_high=True)
    convert, least = codegen.row_converter(bits), codegen.least_magnitude(bits)
    least_of_rows = dots.least_of_rows(bits)
    fast = dots.compiled_dots(blocks, instruction or "vfmadd")
    one_row, one_row_narrow = (codegen.dot_kernel(1, width, bits, "vfmadd") for width in (nv, nv - 1))
    always_exact, half = instruction != "vdpbf16ps", least_exponents // 2

    @codegen.njit(nogil=True, inline="always")
    def pack_rows(a, top, rows, low, kc, target, at, ld):
        pack_a(a, top, rows, low, kc, target, at, ld)
        target[target.size - 1] = least_of_rows(rows, kc, target, at, ld)

    @codegen.njit(nogil=True, inline="always")
    def pack_columns(b, low, kc, left, columns, target, at, ld):
        b, counters = b
        pack_b(b, 0, low, kc, left, columns, target, at, ld)
        if dots.least_exponent(least_of_rows(kc, columns, target, at, ld)) < half:
            codegen.fetch_add(counters, dots.SMALL_PIECES, 1)

    @codegen.njit(nogil=True)
    def careful(kc, a, a_stride, b, c, ldc, accumulate, rows, vectors, columns, start):
        """Compute a tile by multiply-adds of float32, one row after the other."""
        for r in range(rows):
            row, of_a = codegen.ahead(c, r * ldc), codegen.ahead(a, r * a_stride)
            if vectors == nv:
                one_row(kc, of_a, a_stride, b, row, ldc, accumulate, columns, start)
            else:
                one_row_narrow(kc, of_a, a_stride, b, row, ldc, accumulate, columns, start)

    @codegen.njit(nogil=True, inline="always")
    def write(steps, a, a_stride, b, c, band, sliver, corner, near):  # noqa: ARG001
        """Write a tile to the float32 copy of C; when a row of a tile is complete, convert it into the caller's C."""
        (kc, accumulate, ends), (top, tiles, low, higher), (left, columns, vectors) = steps, band, sliver
        narrow, wide, counters = c
        width = vectors * lanes
        start = codegen.offset(corner, start_at)
        for r in range(mr):
            corner[start_at + r] = 0
        smallest = int(corner[corner.size - 1])
        exact = always_exact or (counters[dots.SMALL_PIECES] == 0 and dots.least_exponent(smallest) >= half)
        exact = exact or dots.no_denormals(smallest, least(kc * width, b), least_exponents)
        once = ends and not accumulate and codegen.itemsize(narrow) == 2  # sums need not leave the first-level cache
        for x in range(tiles):
            rows = low + 1 if x < higher else low
            direct = not once and wide.strides[1] == 4 and rows >= mr - 1
            to, ldc, inside = codegen.offset(corner, 0), width, width
            if direct:
                to, ldc, inside = codegen.address(wide, top, left), wide.strides[0] // 4, columns
            adds = accumulate if direct else 0
            if exact:
                fast(kc, a, a_stride, b, to, ldc, adds, max(rows, mr - 1), vectors, inside, start)
            else:
                careful(kc, a, a_stride, b, to, ldc, adds, rows, vectors, inside, start)
            for r in range(rows if once else 0):
                row = codegen.address(narrow, top + r, left)
                convert(codegen.offset(corner, r * width), 4, row, narrow.strides[1], columns)
            for r in range(0 if once else rows):
                for s in range(0 if direct else columns):
                    before = wide[top + r, left + s] if accumulate else np.float32(0)
                    wide[top + r, left + s] = before + corner[r * width + s]
                if ends and codegen.itemsize(narrow) == 2:
                    row = codegen.address(wide, top + r, left)
                    convert(row, wide.strides[1], codegen.address(narrow, top + r, left), narrow.strides[1], columns)
            top += rows
            a = codegen.ahead(a, rows * a_stride)

    product = jobs.team_product(blocks, pack_rows, pack_columns, write, whole_bands=True)

    @codegen.njit(nogil=True, inline="always")
    def multiply(a, b, c, wide, words, counters):
        (m, k), n = a.shape, b.shape[1]
        if k == 0 and not counters[counters.size - 2]:
            c[:] = 0
        product(a, (b, counters), (c, wide, counters), m, n, -(-k // 2), words, counters)

    return blocks, multiply


INSTRUCTION = dots.dot_instruction_here("bfloat16")
BLOCKS, multiply = bfloat16_product(blocking(), INSTRUCTION)


@kernel(
    order=22,
    idea="Multiply bfloat16 in pairs: one instruction adds two products to a sum in float32, which is rounded once.",
    row="S1.11",
    parent="cpu/half_floats",
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
    suits=lambda m, n, k: bool(INSTRUCTION),
)
def bfloat16_dots(a, b, c, space, counters):
    at = space.size - c.size
    multiply(a, b, c, dots.accumulation_buffer(c, space[at:]), space[:at], counters)
