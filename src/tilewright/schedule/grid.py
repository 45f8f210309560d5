"""How a product is cut: C into tiles, k into steps, A and B into the blocks that a tile's step multiplies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


class Tile(NamedTuple):
    """A tile of C, by its row and column among the tiles."""

    i: int
    j: int


class Block(NamedTuple):
    """A block of an operand, ``"a"`` or ``"b"``, by its row and column among the operand's blocks."""

    operand: str
    row: int
    column: int


@dataclass(frozen=True)
class Grid:
    """C[m×n] in tiles of bm×bn, which collect products of blocks of bm×bk of A and bk×bn of B; the last ones are smaller.

    >>> grid = Grid(1000, 1000, 1000, 400, 500, 1000)
    >>> grid.tiles, grid.steps, grid.rows(2)
    ((3, 2), 1, slice(800, 1000, None))
    """

    m: int
    n: int
    k: int
    bm: int
    bn: int
    bk: int

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles of C, down and across."""
        return math.ceil(self.m / self.bm), math.ceil(self.n / self.bn)

    @property
    def steps(self) -> int:
        """Steps of k for each tile."""
        return math.ceil(self.k / self.bk)

    def rows(self, i: int) -> slice:
        """Of A and C, those of tiles number ``i`` down."""
        return slice(i * self.bm, min(self.m, (i + 1) * self.bm))

    def columns(self, j: int) -> slice:
        """Of B and C, those of tiles number ``j`` across."""
        return slice(j * self.bn, min(self.n, (j + 1) * self.bn))

    def depth(self, p: int) -> slice:
        """Columns of A and rows of B of step ``p``."""
        return slice(p * self.bk, min(self.k, (p + 1) * self.bk))

    def where(self, block: Block) -> tuple[slice, slice]:
        """Rows and columns of an operand that a block covers."""
        if block.operand == "a":
            return self.rows(block.row), self.depth(block.column)
        return self.depth(block.row), self.columns(block.column)

    def elements(self, block: Block) -> int:
        if block.operand == "a":
            return min(self.bm, self.m - block.row * self.bm) * min(self.bk, self.k - block.column * self.bk)
        return min(self.bk, self.k - block.row * self.bk) * min(self.bn, self.n - block.column * self.bn)

    def size(self, tile: Tile) -> tuple[int, int]:
        """Rows and columns of a tile of C."""
        return min(self.bm, self.m - tile.i * self.bm), min(self.bn, self.n - tile.j * self.bn)


# ---- orders of the tiles ---------------------------------------------------------------------------------------------


def by_rows(down: int, across: int) -> list[Tile]:
    """There and back again: at each turn the blocks of B that were just used are used once more."""
    return [Tile(i, j) for i in range(down) for j in (range(across) if i % 2 == 0 else reversed(range(across)))]


def by_columns(down: int, across: int) -> list[Tile]:
    return [Tile(i, j) for j, i in by_rows(across, down)]


def by_shells(down: int, across: int) -> list[Tile]:
    """A square that grows: after s rows of A and s columns of B have come, s² tiles are computed.

    No order computes more of what has come so far, so none waits less at the start for operands that come once.

    >>> [tuple(tile) for tile in by_shells(2, 3)]
    [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)]
    """
    order = []
    for s in range(max(down, across)):
        if s < across:
            order += [Tile(i, s) for i in range(min(s, down))]
        if s < down:
            order += [Tile(s, j) for j in range(min(s + 1, across))]
    return order


ORDERS = {"rows": by_rows, "columns": by_columns, "shells": by_shells}
