"""Complex products as real ones, whose kernels are faster: float32 from float16 parts, float64 by the copy engine.

A row of complex A is in memory a row of twice as many reals, re and im in turn, and so is one of C. With each number of B as
the matrix [[re, im], [−im, re]], C = A·B is the product of these matrices of reals. It has the same multiply-adds, in the
same precision, and only B is written anew. Where columns of B follow each other in memory, Bᵀ and A change places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..host.machine import bytes_text, seconds_text
from ..runtime.gpu.layout import Matrix
from ..runtime.gpu.steps import WORKSPACE, A, B, BufferPlace, C, GpuStep, KernelLaunch
from .copies import pack_code
from .gpu_array import GpuArray, contiguous_strides
from .plan import GpuPlan, PlanPiece

_REALS = {"complex64": "float32", "complex128": "float64"}
#: Elements of a row that a block writes at once, its threads, and the most blocks.
_CHUNK, _THREADS, _MOST_BLOCKS = 1024, 256, 1 << 16
#: Bytes of which the beginning of the other workspace is a multiple.
_ALIGNMENT = 1024
#: Bytes a second that writing pairs moves, and seconds of its launch. Of an H200.
_MOVED, _LAUNCH_S = 2.6e12, 2.5e-6
#: The share of the time of a complex kernel that the real product may take at most: predictions are not better than that.
_GAINS = 0.95


def paired_plan(
    whole: GpuPlan,
    x: GpuArray,
    y: GpuArray,
    out: GpuArray | None,
    planned: Callable[[GpuArray, GpuArray, GpuArray], GpuPlan],
    *,
    views: bool,
) -> GpuPlan:
    """The plan by reals of a product of complex numbers, if that is predicted to take less time than ``whole``, the plan for
    the same arrays; else that one. ``planned`` plans the product of reals. ``views``: the result may be a transposed
    view."""
    real = _REALS.get(x.dtype)
    if real is None or y.dtype != x.dtype or whole.order.dtype != x.dtype or not whole.predicted or whole.finish:
        return whole
    if min(len(x.shape), len(y.shape)) < 2:
        return whole
    found, least = whole, _GAINS * whole.predicted
    shapes = whole.order.shapes
    for swapped in (False, True):
        p, q = (y.transposed, x.transposed) if swapped else (x, y)
        shape = (*shapes.result[:-2], shapes.n, shapes.m) if swapped else shapes.result
        c = GpuArray(0, shape, contiguous_strides(shape), x.dtype, x.device)
        if out is not None:
            c = out.transposed if swapped else out
        elif swapped and not views:
            continue
        if len(q.shape) > 3 or {p.strides[-1], c.strides[-1]} != {1}:
            continue
        b, batch = _matrices(q)
        nbytes = -(-2 * batch * b.nbytes // _ALIGNMENT) * _ALIGNMENT
        written_s = _LAUNCH_S + 1.5 * nbytes / _MOVED
        if written_s > least:
            continue
        plan = planned(_by_columns(p, real), _as_reals(q, b), _by_columns(c, real))
        if plan.predicted is None or (seconds := plan.predicted + written_s) > least:
            continue
        order = plan.order._replace(shapes=shapes, shape=shape, dtype=x.dtype, operands=x.dtype, transposed=swapped)
        first, second = (BufferPlace(B), BufferPlace(A)) if swapped else (BufferPlace(A), BufferPlace(B))
        piece = PlanPiece(plan, (first, BufferPlace(WORKSPACE), BufferPlace(C), BufferPlace(WORKSPACE, nbytes)))
        written = f"each number of {'ab'[second.buffer]} is written as [[re, im], [−im, re]], {bytes_text(nbytes)}"
        note = f"{written}; a kernel of complex numbers: {seconds_text(whole.predicted)}"
        found = replace(
            plan,
            problem=whole.problem,
            order=order,
            predicted=seconds,
            before=(pairs_step(b, batch, second),),
            pieces=(piece,),
            notes=(("reals", note),),
        )
        least = seconds
    return found


def pairs_step(b: Matrix, batch: int, source: BufferPlace) -> GpuStep:
    """The launch that writes a batch of complex matrices as reals, to the beginning of the workspace."""
    macros = {"DOUBLE": int(b.dtype == "complex128"), "BY_COLUMNS": int(b.down)}
    lines, numbers, number = (b.columns, b.rows, b.row) if b.down else (b.rows, b.columns, b.column)
    jobs = batch * lines * -(-numbers // _CHUNK)
    sizes = tuple(map(np.int64, (lines, numbers, b.step, number, b.next)))
    code, size = pack_code("write_pairs", **macros), (min(jobs, _MOST_BLOCKS), _THREADS, 0)
    return GpuStep(KernelLaunch(code, "write_pairs", size, (*sizes, np.int32(batch))), (source, BufferPlace(WORKSPACE)))


def _matrices(y: GpuArray) -> tuple[Matrix, int]:
    """B as it is read, along its columns if their elements follow each other in memory, and how many there are."""
    (k, n), (row, column) = y.shape[-2:], y.strides[-2:]
    batch, following = (y.shape[0], y.strides[0]) if len(y.shape) == 3 and y.strides[0] else (1, 0)
    return Matrix(k, n, row, column, y.dtype, next=following, down=row == 1 != column), batch


def _as_reals(y: GpuArray, b: Matrix) -> GpuArray:
    """B as it is written."""
    k, n = 2 * b.rows, 2 * b.columns
    strides: tuple[int, ...] = (1, k) if b.down else (n, 1)
    if len(y.shape) == 3:
        strides = (k * n if y.strides[0] else 0, *strides)
    return GpuArray(0, (*y.shape[:-2], k, n), strides, _REALS[b.dtype], y.device)


def _by_columns(x: GpuArray, real: str) -> GpuArray:
    """The same memory as reals, re and im in columns that follow each other."""
    strides = (*(2 * stride for stride in x.strides[:-1]), 1)
    return x._replace(shape=(*x.shape[:-1], 2 * x.shape[-1]), strides=strides, dtype=real)
