"""Products whose C has a few rows or columns more than whole tiles: one kernel computes the tiles, others the borders.

A tile that is almost empty takes as long as a full one. The borders of C are products of few rows or few columns, which
take as long as it takes to read an operand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ...host.machine import seconds_text
from ...product.problem import itemsize_of
from ..runtime.steps import WORKSPACE, A, B, BufferPlace, C
from .gpu_array import GpuArray
from .plan import GpuPlan, PlanPiece

#: The sides of the tiles of most kernels are multiples of this, and a border has so many rows or columns at most.
_TILE, _MOST = 64, 16
#: The most of k with which C of a kernel with boxes is parted, of operands of 16 bits.
_SHORT = 64
#: The share of the time of one kernel that the pieces may take at most: predictions are not better than that.
_GAINS = 0.98


def peeled_plan(
    whole: GpuPlan,
    x: GpuArray,
    y: GpuArray,
    out: GpuArray | None,
    planned: Callable[[GpuArray, GpuArray, GpuArray], GpuPlan],
) -> GpuPlan:
    """The plan in pieces, if that is predicted to take less time than the plan ``whole`` for the same arrays; else that one.
    ``planned`` plans a piece."""
    if len(x.shape) != 2 or len(y.shape) != 2 or whole.predicted is None or whole.finish is not None:
        return whole
    (m, k), n = x.shape, y.shape[1]
    if whole.kernel.boxes and itemsize_of(x.dtype) == 2 and k > _SHORT:
        # Tiles have any eight columns, so little of them is empty: borders gained nothing with thousands of random products.
        return whole
    rows, columns = _inner(m), _inner(n)
    if not rows * columns * k or (rows, columns) == (m, n):
        return whole
    if out is None:
        out = GpuArray(0, (m, n), (1, m) if whole.order.transposed else (n, 1), whole.order.dtype, x.device)
    pieces, seconds = list[PlanPiece](), 0.0
    for (top, bottom), (left, right) in _parts(rows, columns, m, n):
        cut = _part(x, (top, bottom), (0, k)), _part(y, (0, k), (left, right)), _part(out, (top, bottom), (left, right))
        plan = planned(*cut)
        if plan.predicted is None:
            return whole
        to_a, to_b, to_c = (part.pointer - all_of.pointer for part, all_of in zip(cut, (x, y, out), strict=True))
        pieces.append(
            PlanPiece(plan, (BufferPlace(A, to_a), BufferPlace(B, to_b), BufferPlace(C, to_c), BufferPlace(WORKSPACE)))
        )
        seconds += plan.predicted
        if seconds > _GAINS * whole.predicted:
            return whole
    tiles = pieces[0].plan
    of_all = whole.order
    order = tiles.order._replace(shapes=of_all.shapes, shape=of_all.shape, transposed=of_all.transposed)
    borders = [
        f"{each.problem.m}×{each.problem.n} by {each.kernel.name}, {seconds_text(each.predicted or 0)}"
        for each, _ in pieces[1:]
    ]
    note = f"{'; '.join(borders)}; one kernel for all of C: {seconds_text(whole.predicted)}"
    return replace(
        tiles,
        problem=whole.problem,
        order=order,
        predicted=seconds,
        pieces=tuple(pieces),
        notes=(("borders", note),),
    )


def _inner(size: int) -> int:
    """The rows or columns of C that whole tiles have; all of them where the rest is no border.

    >>> _inner(4097), _inner(4096), _inner(4000), _inner(7)
    (4096, 4096, 4000, 0)
    """
    return size - size % _TILE if size % _TILE <= _MOST else size


#: The first row and the one after the last, or those of columns.
_Range = tuple[int, int]


def _parts(rows: int, columns: int, m: int, n: int) -> Iterator[tuple[_Range, _Range]]:
    """The rows and columns of each part of C; the corner belongs to the last columns."""
    yield (0, rows), (0, columns)
    if columns < n:
        yield (0, m), (columns, n)
    if rows < m:
        yield (rows, m), (0, columns)


def _part(x: GpuArray, rows: _Range, columns: _Range) -> GpuArray:
    first = (rows[0] * x.strides[0] + columns[0] * x.strides[1]) * itemsize_of(x.dtype)
    shape = rows[1] - rows[0], columns[1] - columns[0]
    return x._replace(pointer=x.pointer + first, shape=shape)
