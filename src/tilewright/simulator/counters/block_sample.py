"""Which blocks represent a whole grid: corners, edges and inner blocks, chosen in two ways whose counts are compared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np

from ..assembly.effects import loads_anew
from ..assembly.program import Program
from ..assembly.provenance import operand_names
from .sectors import WARP, Ints

#: Along an axis of this many blocks or fewer, every block is run.
FEW = 4


@dataclass(frozen=True)
class BlockSample:
    """Blocks of a grid by linear index, ascending, and how many blocks each represents in each of two choices.

    A grid is divided along each axis into its first block, its last (which may extend beyond the edge of a matrix) and
    inner blocks. The two choices take different inner blocks: if both predict the same counts, blocks of one kind behave
    alike, unless :func:`doubt` gives a reason why others may not.
    """

    blocks: Ints
    weights: tuple[Ints, Ints]
    total: int

    def standing_for(self, choice: int, threads: int) -> _Weights:
        """For :class:`Counters`: warp numbers → how many warps each represents, in blocks of ``threads`` threads."""
        return _Weights(self.blocks, self.weights[choice], -(-threads // WARP))


@dataclass(frozen=True)
class _Weights:
    blocks: Ints
    weights: Ints
    warps: int  # per block

    def __call__(self, warps: Ints) -> Ints:
        return self.weights[np.searchsorted(self.blocks, warps // self.warps)]


def sample_blocks(grid: tuple[int, int, int], cluster: tuple[int, int, int] = (1, 1, 1)) -> BlockSample:
    """The sample of a grid, in whole clusters of blocks: clusters at corners and edges, and some inner ones.

    >>> some = sample_blocks((100, 50, 1))
    >>> len(some.blocks), *(int(w.sum()) for w in some.weights), some.total
    (37, 5000, 5000, 5000)
    >>> len(sample_blocks((4, 3, 1)).blocks)  # a small grid: all blocks
    12
    >>> len(sample_blocks((100, 50, 1), (2, 1, 1)).blocks)
    74
    """
    weights: dict[int, list[int]] = {}
    for choice in (0, 1):
        clusters = (_axis(size // of, choice) for size, of in zip(reversed(grid), reversed(cluster), strict=True))
        for (z, y, x), (dz, dy, dx) in product(product(*clusters), product(*map(range, reversed(cluster)))):
            row = (z[0] * cluster[2] + dz) * grid[1] + y[0] * cluster[1] + dy
            index = row * grid[0] + x[0] * cluster[0] + dx
            weights.setdefault(index, [0, 0])[choice] = z[1] * y[1] * x[1]
    blocks = sorted(weights)
    first, second = (np.array([weights[b][choice] for b in blocks], np.int64) for choice in (0, 1))
    return BlockSample(np.array(blocks, np.int64), (first, second), math.prod(grid))


def doubt(program: Program) -> str:
    """Why the counts of the whole grid may differ from what a sample predicts, although its two choices of blocks
    predict the same; empty if there is no reason.

    Work that blocks distribute among themselves by global atomics, or wait for, depends on which blocks run.
    """
    for ins in program.code:
        if not loads_anew(ins) or "shared" in ins.parts or ins.parts[0] == "mbarrier":
            continue
        result = ins.operands[0]
        others = [other for other in program.code if other is not ins]
        operands = (operand for other in others for operand in (*other.operands, *(other.guard or ())[:1]))
        if ins.parts[0] == "ld" or (result != "_" and any(result in operand_names(operand) for operand in operands)):
            return f"the work of a block depends on other blocks, and not all are run ({ins.place()}: {ins.text})"
    return ""


def _axis(size: int, choice: int) -> list[tuple[int, int]]:
    """Positions along an axis, with how many each represents.

    Of the inner blocks, odd ones represent the odd and even ones the even. The first choice takes early ones: 1, and an
    even one that is not a multiple of 4. The second takes late ones: the last, and a power of two. So the choices differ
    if rows begin inside a sector, or if only the first few blocks have work.
    """
    if size <= FEW:
        return [(i, 1) for i in range(size)]
    last, odds, evens = size - 2, (size - 1) // 2, (size - 2) // 2
    if choice == 0:
        picks = {1: odds, size // 12 * 4 + 2: evens}
    else:
        power = 1 << last.bit_length() - 1
        picks = {last - (last % 2 == 0): odds, power: evens}
        if last not in picks:
            picks |= {last: 1, power: evens - 1}
    return [(0, 1), *picks.items(), (size - 1, 1)]
