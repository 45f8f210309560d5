"""What the kernels on tile registers share: the blocks, the packing, and the product of a band with a sliver.

A tile of the driver is 32 rows by 64 columns: two blocks of 2 × 2 tile registers. A block is always multiplied whole, into a
buffer; of the buffer only what lies inside C is written. A packed element is a word of 32 bits, and k is a multiple of 16
words: zeros follow the last step. A phase is up to 1,024 words deep, so that C is read and written seldom.
"""

from __future__ import annotations

from collections.abc import Callable

import numba as nb
from numba.extending import register_jitable

from .. import codegen
from ..host.machine import Machine
from ..kernels.blocking import Blocking, caches
from .cuts import PackedBlocks

#: Rows and columns of a tile of the driver, and words of k in a phase at most.
ROWS, COLUMNS, STEPS = 2 * codegen.TILE, 4 * codegen.TILE, 1024
#: Multiply-adds of the smallest product for which packing pays, and the least m and n.
LEAST_WORK, LEAST_SIDE = 100**3, 16


def pays(m: int, n: int, k: int) -> bool:
    """Whether a product is large enough for whole tiles."""
    return min(m, n) >= LEAST_SIDE and m * n * k >= LEAST_WORK


class TileBlocks(PackedBlocks):
    """``PackedBlocks`` of words, with a buffer for the sums of a band and for two numbers more."""

    def __init__(self, here: Machine) -> None:
        bits = here.vector_bits or 128
        _, l2, l3 = caches(here)
        chosen = Blocking(bits, ROWS, 32 * COLUMNS // bits, 1, STEPS, STEPS, l2 // 2, l3 // 4)
        super().__init__(chosen, STEPS, itemsize=4)
        most_tiles = 2 * self.mc // ROWS + 2
        self.tile_at += ROWS * self.a_stride  # the last tile may begin in any row, and reads 32
        self.sums = most_tiles * ROWS * COLUMNS
        self.block = self.tile_at + self.sums + COLUMNS + 1

    def workspace(self, m: int, n: int, k: int) -> int:
        """Elements of the workspace for a product of this shape; m, n and k count packed elements, or more."""
        return super().workspace(m, n, whole_tiles(k))


@register_jitable
def whole_tiles(words: int) -> int:
    """The least multiple of 16 that is not below a number of words.

    >>> whole_tiles(0), whole_tiles(1), whole_tiles(32)
    (0, 16, 32)
    """
    return -(-words // codegen.TILE) * codegen.TILE


def tile_packers(vector_bits: int) -> tuple[Callable[..., None], Callable[..., None]]:
    """Compiled functions ``pack_rows(a, top, rows, low, kc, target, at)`` and ``pack_columns(b, low, kc, left, columns,
    target, at, ld)``: ``word_packers`` with words of zeros after the last step of k.

    Rows of A lie an odd number of cache lines apart (``apart``), so that they fall into all sets of a cache; what is between
    them is zeros, too.
    """
    pack_a, pack_b = codegen.word_packers(vector_bits)

    @nb.njit(nogil=True)
    def pack_rows(a, top, rows, low, kc, target, at):
        stride, group = apart(kc), 4 // codegen.itemsize(a)
        words = min(kc, -(-a.shape[1] // group) - low)
        if words > 0:
            pack_a(a, top, rows, low, words, target, at, stride)
        for r in range(rows):
            for p in range(max(0, words), stride):
                target[at + r * stride + p] = 0

    @nb.njit(nogil=True)
    def pack_columns(b, low, kc, left, columns, target, at, ld):
        group = 4 // codegen.itemsize(b)
        words = min(kc, -(-b.shape[0] // group) - low)
        if words > 0:
            pack_b(b, 0, low, words, left, columns, target, at, ld)
        for p in range(max(0, words), kc):
            for s in range(columns):
                target[at + p * ld + s] = 0

    return pack_rows, pack_columns


@register_jitable
def apart(kc: int) -> int:
    """Words from one packed row of A to the next."""
    return kc | codegen.TILE


def band_product(kind: type[codegen.Tiles]) -> Callable[..., None]:
    """A compiled function ``multiply(kc, a, b, width, tiles, columns, sums, more, of_a)``.

    ``a`` points to the rows of a band, ``apart(kc)`` words apart, ``b`` to a sliver of ``kc`` rows of ``width`` words, and
    ``sums`` to 32 rows of 64 sums for each tile of ``tiles`` (as in ``team_product``). The products are added to them, or
    replace them where ``more`` is 0. ``of_a`` is an array of the dtype of A.

    Tile registers read 64 bytes in each cycle of arithmetic, which is what the second-level cache delivers. To multiply in
    pieces of k that stay in the first-level cache was no faster, for then sums are read and written again.
    """
    block, tile, height, length = codegen.tile_kernel(kind), codegen.TILE, ROWS, COLUMNS

    @nb.njit(nogil=True)
    def multiply(kc, a, b, width, tiles, columns, sums, more, of_a):
        low, higher, count = tiles
        stride = apart(kc)
        for x in range(count):
            rows = low + 1 if x < higher else low
            down, of_rows = 2 if rows > tile else 1, codegen.pointer_as(a, of_a)
            for s in range(0, columns, 2 * tile):
                across = 2 if columns - s > tile else 1
                to = codegen.ahead(sums, s)
                block(kc, of_rows, stride, codegen.ahead(b, s), width, to, length, more, down, across)
            a, sums = codegen.ahead(a, rows * stride), codegen.ahead(sums, height * length)

    return multiply
