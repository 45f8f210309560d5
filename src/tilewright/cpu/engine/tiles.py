"""What the kernels on tile registers share: the blocks, the packing, and the product of a band with a sliver.

A tile of the driver is 32 rows by 64 columns: two blocks of 2 × 2 tile registers. A block is always multiplied whole, into a
buffer; of the buffer only what lies inside C is written. A packed element is a word of 32 bits, and k is a multiple of 16
words: zeros follow the last step. A phase is up to 1,024 words deep, so that C is read and written seldom.
"""

from __future__ import annotations

from collections.abc import Callable

from ...host.machine import Machine
from ...kernels.blocking import Blocking, caches
from .. import codegen
from .cuts import PackedBlocks

#: Rows and columns of a tile of the driver, and words of k in a phase at most.
ROWS, COLUMNS, STEPS = 2 * codegen.TILE, 4 * codegen.TILE, 1024
#: Multiply-adds of the smallest product for which packing pays, and the least m and n.
LEAST_WORK, LEAST_SIDE = 100**3, 16


def pays(m: int, n: int, k: int) -> bool:
    """Whether a product is large enough for whole tiles."""
    return min(m, n) >= LEAST_SIDE and m * n * k >= LEAST_WORK


class TileBlocks(PackedBlocks):
    """``PackedBlocks`` of words, whose buffer for a tile has a row of sums and a number more."""

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
        """Elements of the workspace for a product of this shape; m, n and k count packed elements, or more."""
        return super().workspace(m, n, whole_tiles(k), threads)


@codegen.register_jitable
def whole_tiles(words: int) -> int:
    """The least multiple of 16 that is not below a number of words.

    >>> whole_tiles(0), whole_tiles(1), whole_tiles(32)
    (0, 16, 32)
    """
    return -(-words // codegen.TILE) * codegen.TILE


def tile_packers(vector_bits: int) -> tuple[Callable[..., None], Callable[..., None]]:
    """Compiled functions ``pack_rows(a, top, rows, low, kc, target, at)`` and ``pack_columns(b, low, kc, left, columns,
    target, at, ld)``: ``word_packers`` with words of zeros after the last step of k.

    Rows of A lie an odd number of cache lines apart (``row_words``), so that they fall into all sets of a cache; what is in
    between them is zeros, too.
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
    """Words from one packed row of A to the next."""
    return kc | codegen.TILE


@codegen.njit(nogil=True)
def fetch_rows(c, top, rows, left, columns):
    """Fetch the lines of a tile of C, which may be in the caches of other processors, while the tile is multiplied: int8 and
    bfloat16 of 2,048³ take a twentieth less on 16 cores of a Xeon."""
    itemsize = codegen.itemsize(c)
    if c.strides[1] == itemsize:
        for r in range(top, top + rows):
            for s in range(left, left + columns, codegen.ALIGNMENT // itemsize):
                codegen.prefetch_for_write(codegen.address(c, r, s))


def tile_product(kind: type[codegen.Tiles]) -> Callable[..., None]:
    """A compiled function ``multiply(kc, a, b, width, rows, columns, sums, stride, more, of_a)``.

    ``a`` points to the rows of a tile of the driver, ``row_words(kc)`` words apart, ``b`` to a sliver of ``kc`` rows of
    ``width`` words, and ``sums`` to rows of sums, ``stride`` apart. The products are added to them, or replace them where
    ``more`` is 0; rows and columns are rounded up to multiples of 16. ``of_a`` is an array of the dtype of A.

    Tile registers read 64 bytes in each cycle of arithmetic, which is what the second-level cache delivers. To multiply in
    pieces of k that stay in the first-level cache was no faster, for then sums are read and written again.
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
