"""Functions that the kernels for narrow elements (int8, int16, bfloat16, float16) share: the choice of the instruction,
block sizes, and tiles of C. These kernels use dot-product instructions (``cpu.kernels.*_dots``) or tile registers
(``*_tiles``).

A packed element of these kernels is a word of 32 bits, which holds a group of steps of k (``cpu/codegen/dots.py``).

With tile registers, a tile of the driver has 32 rows and 64 columns: two blocks of 2 × 2 tile registers. A block is
always multiplied as a whole, into a buffer; only the part of the buffer that is inside C is written to C. With tile
registers, k is padded with zeros to a multiple of 16 words. A phase of k is up to 1,024 words long, so that C is rarely
read and written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np

from ...host.machine import Machine, machine
from ...kernels.blocking import Blocking, caches
from .. import codegen
from .cuts import PackedBlocks

# ---- dot-product instructions ----------------------------------------------------------------------------------------


class DotBlocks(PackedBlocks):
    """``PackedBlocks`` whose elements are words of 32 bits. After the words, a block of A stores the initial sum of
    each row, which is a correction for unsigned operands and otherwise 0. A block of A ends with the least magnitude of
    the block's elements."""

    shortens = False

    def __init__(self, chosen: Blocking) -> None:
        super().__init__("dots", chosen, chosen.kc, itemsize=4)
        self.start_at = self.block  # of the initial sums; rows of zeros, which fill up the last tile, have one, too
        self.block += 2 * self.mc + self.mr + 1


#: For each dtype its instructions, the best one first: name, feature that the processor needs, and width of vectors in bits
#: (None: any). float16 has none: AVX512-FP16 sums in float16, not in float32.
_INSTRUCTIONS: dict[str, tuple[tuple[str, str, int | None], ...]] = {
    "int8": (("vpdpbusd", "avx512vnni", 512), ("vpdpbusd", "avxvnni", 256), ("vpmaddwd", "sse2", None)),
    "int16": (("vpdpwssd", "avx512vnni", 512), ("vpdpwssd", "avxvnni", 256), ("vpmaddwd", "sse2", None)),
    "bfloat16": (("vdpbf16ps", "avx512bf16", 512),),
    "float16": (),
}


def chosen_instruction(dtype: str, isa: Collection[str], vector_bits: int) -> tuple[str, str]:
    """Return the instruction for a dtype, and the feature that provides it, on a processor with the features ``isa``
    and vectors of ``vector_bits`` bits. The instruction and the feature are empty strings if the processor has no such
    instruction.

    >>> chosen_instruction("int8", {"sse2", "avx2", "fma"}, 256)
    ('vpmaddwd', 'sse2')
    """
    for name, feature, bits in _INSTRUCTIONS[dtype]:
        if feature in isa and bits in (None, vector_bits):
            return name, feature
    return "", ""


def dot_instruction_here(dtype: str) -> str:
    """Return the dot-product instruction for a dtype on this machine.

    >>> dot_instruction_here("int16") in ("vpdpwssd", "vpmaddwd", "")
    True
    """
    return chosen_instruction(dtype, machine().isa, machine().vector_bits or 128)[0]


#: For each dtype the instruction, and the feature that a processor needs.
_TILE_INSTRUCTIONS = {"int8": ("tdpbssd", "amx-int8"), "bfloat16": ("tdpbf16ps", "amx-bf16")}


def tile_instruction(dtype: str, isa: Collection[str]) -> tuple[str, str]:
    """Return the instruction for tiles of a dtype, and the feature that provides it, on a processor with the features
    ``isa``. The instruction and the feature are empty strings if the processor has no such instruction.

    >>> tile_instruction("int8", {"amx-tile", "amx-int8"}), tile_instruction("int16", {"amx-tile", "amx-int8"})
    (('tdpbssd', 'amx-int8'), ('', ''))
    """
    name, feature = _TILE_INSTRUCTIONS.get(dtype, ("", ""))
    return (name, feature) if {"amx-tile", feature} <= set(isa) else ("", "")


def tile_instruction_here(dtype: str) -> str:
    """Return the instruction for tiles of a dtype on this machine. The string is empty if the machine has no such
    instruction, or if Linux does not let this process use it.

    >>> tile_instruction_here("int8") in ("tdpbssd", "")
    True
    """
    return tile_instruction(dtype, machine().isa)[0]


def instruction_names(isa: Collection[str], vector_bits: int) -> str:
    """Return a line of text that names the instructions for narrow elements on a processor with these features, and the
    features that provide them.

    >>> instruction_names({"sse2", "avx2", "avxvnni"}, 256)
    'int8 by vpdpbusd (avxvnni), int16 by vpdpwssd (avxvnni), bfloat16 converted (no avx512bf16), float16 converted'
    """
    parts = []
    for dtype, known in _INSTRUCTIONS.items():
        name, feature = tile_instruction(dtype, isa)
        if not name:
            name, feature = chosen_instruction(dtype, isa, vector_bits)
        lacking = f" (no {known[0][1]})" if known else ""
        parts.append(f"{dtype} by {name} ({feature})" if name else f"{dtype} converted{lacking}")
    return ", ".join(parts)


def compiled_dots(blocks: DotBlocks, instruction: str | Mapping[int, str]) -> Callable[..., None]:
    """Compile a tile of words like ``edges.compiled_tile``, with one more argument: a pointer to the initial sum of
    each row.

    ``tile(kc, a, a_stride, b, c, ldc, accumulate, rows, vectors, columns, start)``.
    """
    chosen = blocks.chosen
    mr, nv, bits, unroll = chosen.mr, chosen.nv, chosen.vector_bits, chosen.unroll
    full = codegen.dot_kernel(mr, nv, bits, instruction, unroll=unroll)
    low = codegen.dot_kernel(mr - 1, nv, bits, instruction, unroll=unroll)
    narrow = codegen.dot_kernel(mr, nv - 1, bits, instruction, unroll=unroll)
    low_narrow = codegen.dot_kernel(mr - 1, nv - 1, bits, instruction, unroll=unroll)

    @codegen.njit(nogil=True)
    def tile(kc, a, a_stride, b, c, ldc, accumulate, rows, vectors, columns, start):
        if vectors == nv:
            if rows == mr:
                full(kc, a, a_stride, b, c, ldc, accumulate, columns, start)
            else:
                low(kc, a, a_stride, b, c, ldc, accumulate, columns, start)
        elif rows == mr:
            narrow(kc, a, a_stride, b, c, ldc, accumulate, columns, start)
        else:
            low_narrow(kc, a, a_stride, b, c, ldc, accumulate, columns, start)

    return tile


# ---- denormal numbers, which instructions for bfloat16 take for zeros -----------------------------------------------

#: If the exponents of two elements of bfloat16, each with its bias of 127, add up to this or more, no sum of such products
#: is denormal: each product is then a multiple of 2^-126 (``cpu/codegen/dots.py``).
LEAST_EXPONENTS = 2 * 127 - 112
#: The index in ``counters`` of the number of packed pieces of B that have an element whose exponent is less than half of
#: ``LEAST_EXPONENTS``.
SMALL_PIECES = 1


@codegen.register_jitable
def least_exponent(least: int) -> int:
    """Return the biased exponent of a magnitude that ``cpu.codegen.least_magnitude`` returned; 512 if all elements are
    zeros."""
    return (least + 1) >> 7


@codegen.register_jitable
def no_denormals(of_a: int, of_b: int, least_exponents: int) -> bool:
    """Return True if no operand and no sum can be denormal when the elements of A and B have at least these
    magnitudes."""
    of_a, of_b = least_exponent(of_a), least_exponent(of_b)
    return min(of_a, of_b) > 0 and of_a + of_b >= least_exponents


def least_of_rows(vector_bits: int) -> Callable[..., int]:
    """Return a compiled function ``least(rows, count, target, at, ld)``: the least magnitude in rows of ``count``
    words."""
    least = codegen.least_magnitude(vector_bits)

    @codegen.njit(nogil=True)
    def of_rows(rows, count, target, at, ld):
        if count == ld:
            rows, count = 1, rows * count
        smallest = 0xFFFF
        for r in range(rows):
            smallest = min(smallest, least(count, codegen.offset(target, at + r * ld)))
        return smallest

    return of_rows


# ---- what is known of dtypes when a kernel is compiled ---------------------------------------------------------------


def accumulation_buffer(c: np.ndarray, space: np.ndarray) -> np.ndarray:
    """Return the matrix in which sums are accumulated, which is ``c`` if ``c`` has the dtype of the workspace
    ``space``, otherwise ``space`` in the shape of ``c``. For compiled code only."""
    raise NotImplementedError


@codegen.overload(accumulation_buffer)
def _accumulation_buffer(c, space):
    if c.dtype == space.dtype:
        return lambda c, space: c
    return lambda c, space: space.reshape(c.shape)


# ---- tile registers --------------------------------------------------------------------------------------------------

#: Rows and columns of a tile of the driver, and words of k in a phase at most.
ROWS, COLUMNS, STEPS = 2 * codegen.TILE, 4 * codegen.TILE, 1024
#: Multiply-adds of the smallest product for which packing pays, and the least m and n.
LEAST_WORK, LEAST_SIDE = 100**3, 16


def pays(m: int, n: int, k: int) -> bool:
    """Return whether a product is large enough to be faster with tile registers, though whole tiles are computed."""
    return min(m, n) >= LEAST_SIDE and m * n * k >= LEAST_WORK


class TileBlocks(PackedBlocks):
    """``PackedBlocks`` of words for tile registers. After the buffer for a tile there is one more row, for sums, and
    one more number."""

    shortens = False

    def __init__(self, here: Machine) -> None:
        bits = here.vector_bits or 128
        _, l2, l3 = caches(here)
        chosen = Blocking(bits, ROWS, 32 * COLUMNS // bits, 1, STEPS, STEPS, l2 // 2, l3 // 4)
        super().__init__("tiles", chosen, STEPS, itemsize=4)
        rows_beyond = ROWS * self.a_stride  # the last tile may begin in any row, and reads 32
        self.tile_at += rows_beyond
        self.block += rows_beyond + COLUMNS + 1

    def workspace(self, m: int, n: int, k: int, threads: int | None = None) -> int:
        """Return the number of elements of the workspace for a product of this shape. m, n and k are numbers of packed
        elements, or larger."""
        return super().workspace(m, n, whole_tiles(k), threads)


@codegen.register_jitable
def whole_tiles(words: int) -> int:
    """Return the number of words, rounded up to a multiple of 16.

    >>> whole_tiles(0), whole_tiles(1), whole_tiles(32)
    (0, 16, 32)
    """
    return -(-words // codegen.TILE) * codegen.TILE


def tile_packers(vector_bits: int) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return compiled functions ``pack_rows(a, top, rows, low, kc, target, at)`` and ``pack_columns(b, low, kc, left,
    columns, target, at, ld)``. Both functions are ``word_packers`` that write words of zeros after the last step of k.

    Rows of packed A are an odd number of cache lines apart (``row_words``), so that they are spread over all sets of a
    cache. The gaps between rows of packed A are filled with zeros, too.
    """
    pack_a, pack_b = codegen.word_packers(vector_bits)

    @codegen.njit(nogil=True)
    def pack_rows(a, top, rows, low, kc, target, at):
        stride, group = row_words(kc), 4 // codegen.itemsize(a)
        words = min(kc, -(-a.shape[1] // group) - low)
        if words > 0:
            pack_a(a, top, rows, low, words, target, at, stride)
        for r in range(rows):
            for p in range(max(0, words), stride):
                target[at + r * stride + p] = 0

    @codegen.njit(nogil=True)
    def pack_columns(b, low, kc, left, columns, target, at, ld):
        group = 4 // codegen.itemsize(b)
        words = min(kc, -(-b.shape[0] // group) - low)
        if words > 0:
            pack_b(b, 0, low, words, left, columns, target, at, ld)
        for p in range(max(0, words), kc):
            for s in range(columns):
                target[at + p * ld + s] = 0

    return pack_rows, pack_columns


@codegen.register_jitable
def row_words(kc: int) -> int:
    """Return the number of words from one packed row of A to the next."""
    return kc | codegen.TILE


@codegen.njit(nogil=True)
def fetch_rows(c, top, rows, left, columns):
    """Fetch the lines of a tile of C, which may be in the caches of other processors, while the tile is multiplied.

    With ``fetch_rows``, int8 and bfloat16 products of 2,048³ take 5 % less time on 16 cores of a Xeon."""
    itemsize = codegen.itemsize(c)
    if c.strides[1] == itemsize:
        for r in range(top, top + rows):
            for s in range(left, left + columns, codegen.ALIGNMENT // itemsize):
                codegen.prefetch_for_write(codegen.address(c, r, s))


def tile_product(kind: type[codegen.Tiles]) -> Callable[..., None]:
    """Return a compiled function ``multiply(kc, a, b, width, rows, columns, sums, stride, more, of_a)`` that multiplies
    with tile registers.

    ``a`` points to the rows of a tile of the driver, which are ``row_words(kc)`` words apart; ``b`` points to a sliver
    of ``kc`` rows of ``width`` words; ``sums`` points to rows of sums, ``stride`` sums apart. The products are added to
    the sums, or replace them if ``more`` is 0. The numbers of rows and columns that are multiplied are rounded up to
    multiples of 16. ``of_a`` is an array of the dtype of A.

    Tile registers read 64 bytes in each cycle of arithmetic, as many as the second-level cache delivers. Multiplying in
    pieces of k that stay in the first-level cache was no faster, because each piece reads and writes the sums again.
    """
    block, tile = codegen.tile_kernel(kind), codegen.TILE

    @codegen.njit(nogil=True)
    def multiply(kc, a, b, width, rows, columns, sums, stride, more, of_a):
        a = codegen.pointer_as(a, of_a)
        down = 2 if rows > tile else 1
        for s in range(0, columns, 2 * tile):
            across = 2 if columns - s > tile else 1
            to = codegen.ahead(sums, s)
            block(kc, a, row_words(kc), codegen.ahead(b, s), width, to, stride, more, down, across)

    return multiply
