"""What the tasks of a product of Dask arrays do: cut a chunk, add products to a tile of C, add the sums of two layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ShapeError
from ..files.array import copy_block
from ..planning.choice import choose_adding_cpu
from ..runtime.cpu.runner import runner
from ..streaming.places.rates import kc_of
from ..streaming.plan.grid import Grid, longest_step
from .lazy_cut import DEPTH

Matrix = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Pieces:
    """How a panel of ``shape`` lies in pieces, which are in a list row by row: where their rows and columns begin and end,
    counted from the panel's first. The pieces at its edges may be larger than the panel."""

    shape: tuple[int, int]
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def check(self, name: str, pieces: Sequence[Matrix]) -> None:
        """Raises ShapeError for a chunk of another shape than its Dask array says, as ``map_blocks`` may return it."""
        heights, widths = ([y - x for x, y in itertools.pairwise(edges)] for edges in (self.rows, self.columns))
        for piece, shape in zip(pieces, itertools.product(heights, widths), strict=True):
            if piece.shape != shape:
                raise ShapeError(f"a chunk of {name} has {piece.shape} elements where its Dask array says {shape}")

    def read(self, pieces: Sequence[Matrix], rows: slice, columns: slice, out: Matrix) -> Matrix:
        """A rectangle of the panel: a view of its only piece if that has the dtype of ``out``, else copied to ``out``."""
        if len(pieces) == 1 and pieces[0].dtype == out.dtype and pieces[0].flags.aligned:
            return pieces[0][_moved(rows, -self.rows[0]), _moved(columns, -self.columns[0])]
        across = len(self.columns) - 1
        for i, (top, bottom) in enumerate(itertools.pairwise(self.rows)):
            high, low = max(top, rows.start), min(bottom, rows.stop)
            for j, (left, right) in enumerate(itertools.pairwise(self.columns)):
                first, last = max(left, columns.start), min(right, columns.stop)
                if high < low and first < last:
                    part = pieces[i * across + j][high - top : low - top, first - left : last - left]
                    into = _moved(slice(high, low), -rows.start), _moved(slice(first, last), -columns.start)
                    copy_block(out[into], part)
        return out


def _moved(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)


def cut_chunk(chunk: Any, rows: slice, columns: slice) -> Any:
    """A part of a chunk. A small one is copied: a view would keep the whole chunk in memory."""
    part = chunk[rows, columns]
    return part if 2 * part.size > chunk.size else part.copy()


def add_product(
    total: Matrix | None, x: list[Any], y: list[Any], of_x: Pieces, of_y: Pieces, dtype: str, kc: int
) -> Matrix:
    """``total`` + A·B in a new array, or A·B: of a panel of A in the pieces ``x`` and one of B in the pieces ``y``.

    ``total`` stays as it is: Dask may run a task again, on the same inputs.
    """
    x, y = [np.asarray(piece) for piece in x], [np.asarray(piece) for piece in y]
    of_x.check("x", x)
    of_y.check("y", y)
    (m, k), n = of_x.shape, of_y.shape[1]
    c = np.empty((m, n), dtype) if total is None else np.array(total, dtype, order="C")
    kernel = choose_adding_cpu(dtype).kernel  # type: ignore[union-attr]  # blocks have one
    steps = Grid(m, n, k, m, n, _step(k, kc, kc_of(kernel, dtype), whole=len(x) == len(y) == 1), kc)
    a, b = (np.empty(math.prod(shape), dtype) for shape in ((m, steps.bk), (steps.bk, n)))
    first = total is None
    for p in range(steps.steps):
        part = steps.depth(p)
        depth = part.stop - part.start
        left = of_x.read(x, slice(0, m), part, a[: m * depth].reshape(m, depth))
        right = of_y.read(y, part, slice(0, n), b[: depth * n].reshape(depth, n))
        runner(kernel, dtype, add=not first)(left, right, c)
        first = False
    return c


def _step(k: int, kc: int, own_kc: int, *, whole: bool) -> int:
    """The longest step of a segment. If this machine's kernel sums other parts than ``kc``, each part is a step: it sums
    them alike unless its own are shorter."""
    return longest_step(k, kc if own_kc != kc else k if whole else DEPTH, kc)


def add_sums(x: Matrix, y: Matrix) -> Matrix:
    """The sum of two layers' tiles."""
    with np.errstate(all="ignore"):
        return np.add(x, y)
