"""Defines how a product is cut: C into tiles, k into steps, and A and B into the blocks that a step multiplies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ....host.cached_property import cached_property


class Tile(NamedTuple):
    """A tile of C, identified by its row and column among the tiles."""

    i: int
    j: int


class OperandBlock(NamedTuple):
    """A block of the operand ``"a"`` or ``"b"``, identified by its row and column among the operand's blocks."""

    operand: str
    row: int
    column: int


@dataclass(frozen=True)
class Grid:
    """Cuts C[m×n] into tiles of bm×bn, A into blocks of bm×bk, and B into blocks of bk×bn; the last tiles and blocks
    may be smaller.

    The kernel sums at most ``kc`` elements of k in registers before it adds the sum to C. The kernel cuts k into ⌈k/kc⌉
    parts whose lengths differ by at most one, with the longer parts first. A step of the grid is a whole number of the
    kernel's parts of k, and the kernel cuts a step into the same parts. With such steps, the terms of every element of
    C are added in the same order for every grid, and the bits of C do not depend on the rates and the memory for which
    the grid was chosen.

    If ``kc`` is 1, steps have the length ``bk``. With a ``kc`` of 1, the bits of C are the same only if all grids of a
    product have the same ``bk`` (``Room.step``).

    >>> grid = Grid(1000, 1000, 1000, 400, 500, 1000)
    >>> grid.tiles, grid.steps, grid.rows(2)
    ((3, 2), 1, slice(800, 1000, None))
    >>> grid = Grid(1000, 1000, 1000, 400, 500, 500, kc=300)  # parts of 250
    >>> grid.steps, grid.depth(1)
    (2, slice(500, 1000, None))
    """

    m: int
    n: int
    k: int
    bm: int
    bn: int
    bk: int
    kc: int = 1

    @property
    def tiles(self) -> tuple[int, int]:
        """The number of rows and the number of columns of tiles. Both numbers are 0 if C has no elements."""
        return (math.ceil(self.m / self.bm), math.ceil(self.n / self.bn)) if self.m and self.n else (0, 0)

    @property
    def steps(self) -> int:
        """The number of steps into which k is cut, which is the number of steps for each tile."""
        return math.ceil(part_count(self.k, self.kc) / self._parts_a_step) if self.k else 0

    def rows(self, i: int) -> slice:
        """Return the rows of A and C that belong to row ``i`` of tiles."""
        return slice(i * self.bm, min(self.m, (i + 1) * self.bm))

    def columns(self, j: int) -> slice:
        """Return the columns of B and C that belong to column ``j`` of tiles."""
        return slice(j * self.bn, min(self.n, (j + 1) * self.bn))

    def depth(self, p: int) -> slice:
        """Return the columns of A and rows of B that belong to step ``p``."""
        return slice(self._edges[p], self._edges[p + 1])

    def depths(self) -> dict[int, int]:
        """Return a dictionary from each length of a step to the number of steps that have this length, computed without
        a loop over all steps.
        """
        longer = self.k % part_count(self.k, self.kc) // self._parts_a_step  # steps of the longer parts alone
        marks = sorted({min(x, self.steps) for x in (0, longer, longer + 1, max(0, self.steps - 1), self.steps)})
        counts: dict[int, int] = {}
        for first, end in itertools.pairwise(marks):
            depth = self._begin(first + 1) - self._begin(first)
            counts[depth] = counts.get(depth, 0) + end - first
        return counts

    def where(self, block: OperandBlock) -> tuple[slice, slice]:
        """Return the rows and columns of an operand that a block contains."""
        if block.operand == "a":
            return self.rows(block.row), self.depth(block.column)
        return self.depth(block.row), self.columns(block.column)

    def elements(self, block: OperandBlock) -> int:
        """Return the number of elements of a block."""
        rows, columns = self.where(block)
        return (rows.stop - rows.start) * (columns.stop - columns.start)

    def size(self, tile: Tile) -> tuple[int, int]:
        """Return the number of rows and columns of a tile of C."""
        return min(self.bm, self.m - tile.i * self.bm), min(self.bn, self.n - tile.j * self.bn)

    @property
    def _parts_a_step(self) -> int:
        return math.ceil(self.bk / self.kc)

    def _begin(self, p: int) -> int:
        """The first element of k in step ``p``; k for ``p`` = ``steps``."""
        parts = part_count(self.k, self.kc)
        return part_edge(self.k, parts, min(parts, p * self._parts_a_step))

    @cached_property
    def _edges(self) -> list[int]:
        """Where each step begins, and where the last one ends."""
        return [self._begin(p) for p in range(self.steps + 1)]


def longest_step(k: int, most: int, kc: int) -> int:
    """Return the length of the longest step if k is cut into as few steps as possible.

    A step has at most ``most // kc`` parts of ``kc`` elements, but at least one. The numbers of parts of all steps are
    nearly equal.

    >>> longest_step(1030, 1024, kc=512), longest_step(1030, 100, kc=512), longest_step(1030, 10**6, kc=512)
    (687, 344, 1030)
    """
    parts = part_count(k, kc)
    steps = math.ceil(parts / max(1, most // kc))
    return max(1, part_edge(k, parts, math.ceil(parts / steps)))


def part_count(k: int, kc: int) -> int:
    """Return the number of parts of at most ``kc`` elements into which the kernels cut k. The number of parts is one if
    k is 0.
    """
    return max(1, math.ceil(k / kc))


def part_edge(k: int, parts: int, number: int) -> int:
    """Return the element of k at which part ``number`` begins, if k is cut as the kernels cut it."""
    return number * (k // parts) + min(number, k % parts)


# ---- orders of the tiles ---------------------------------------------------------------------------------------------


def by_rows(down: int, across: int) -> list[Tile]:
    """Return the tiles row by row, in alternating directions, so that a row begins with the blocks of B that the previous
    row used last.
    """
    return [Tile(i, j) for i in range(down) for j in (range(across) if i % 2 == 0 else reversed(range(across)))]


def by_columns(down: int, across: int) -> list[Tile]:
    """Return the tiles column by column."""
    return [Tile(i, j) for j, i in by_rows(across, down)]


def by_shells(down: int, across: int) -> list[Tile]:
    """Return the tiles in the order of a growing square: when s rows of blocks of A and s columns of blocks of B are
    loaded, s² tiles are computed.

    At every moment, no other order could have computed more tiles from the blocks that are loaded so far. Therefore, if
    every block is loaded once, the multiplications wait least for loads at the start with this order.

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


def below_diagonal(tiles: Iterable[Tile]) -> list[Tile]:
    """Return the tiles on and below the diagonal. If C is symmetric and its tiles are square, only these tiles are
    computed.

    >>> [tuple(tile) for tile in below_diagonal(by_rows(2, 2))]
    [(0, 0), (1, 1), (1, 0)]
    """
    return [tile for tile in tiles if tile.i >= tile.j]


ORDERS = {"rows": by_rows, "columns": by_columns, "shells": by_shells}
