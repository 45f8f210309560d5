"""Which blocks stand for a whole grid: corners, edges and the inside, two of each, so that they can be compared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np

from .sectors import WARP, Ints
from .state import Dim

#: Along an axis of this many blocks or fewer, every block is one of its own.
FEW = 4


@dataclass(frozen=True)
class Sample:
    """Blocks of a grid by linear index, ascending, and how many blocks each stands for, by either of two choices.

    A grid is cut along each axis into its first block, its last (which may hang over the edge of a matrix) and those
    between. The two choices differ in the blocks they take from between: where both predict the same counts, blocks of
    one kind do alike.
    """

    blocks: Ints
    weights: tuple[Ints, Ints]
    total: int

    def standing_for(self, choice: int, threads: int) -> _Weights:
        """For :class:`Counters`: warp numbers → how many warps each stands for, in blocks of ``threads``."""
        return _Weights(self.blocks, self.weights[choice], -(-threads // WARP))


@dataclass(frozen=True)
class _Weights:
    blocks: Ints
    weights: Ints
    warps: int  # a block

    def __call__(self, warps: Ints) -> Ints:
        return self.weights[np.searchsorted(self.blocks, warps // self.warps)]


def sample(grid: Dim) -> Sample:
    """The sample of a grid.

    >>> some = sample((100, 50, 1))
    >>> len(some.blocks), *(int(w.sum()) for w in some.weights), some.total
    (14, 5000, 5000, 5000)
    >>> len(sample((4, 3, 1)).blocks)  # so few: all of them
    12
    """
    weights: dict[int, list[int]] = {}
    for choice in (0, 1):
        for z, y, x in product(*(_axis(size, choice) for size in reversed(grid))):
            index = (z[0] * grid[1] + y[0]) * grid[0] + x[0]
            weights.setdefault(index, [0, 0])[choice] = z[1] * y[1] * x[1]
    blocks = sorted(weights)
    first, second = (np.array([weights[b][choice] for b in blocks], np.int64) for choice in (0, 1))
    return Sample(np.array(blocks, np.int64), (first, second), math.prod(grid))


def _axis(size: int, choice: int) -> list[tuple[int, int]]:
    """Positions along an axis, with how many each stands for."""
    if size <= FEW:
        return [(i, 1) for i in range(size)]
    return [(0, 1), (1 if choice == 0 else size // 2, size - 2), (size - 1, 1)]
