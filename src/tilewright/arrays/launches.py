"""A plan of a product of GPU arrays, ready to run: all its copies and launches, compiled and loaded once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..planning.ways import part_steps, sums_dtype
from ..problem import itemsize_of
from ..runtime.gpu.boxed_product import BoxedProduct, Laid, prepare_boxed_product
from ..runtime.gpu.device import Device
from ..runtime.gpu.product import GpuProduct, prepare_gpu_product
from ..runtime.gpu.strided_product import StridedProduct, Strides, prepare_strided_product
from .copies import Copy, prepare_copy, prepare_sum
from .gpu_array import GRANULE, Matrix, collapsed
from .layouts import is_down, strides_of
from .order import Order
from .plan import GpuPlan


@dataclass(frozen=True)
class Launches:
    """All launches of a plan on one GPU, loaded. ``before`` copies operand 0 (P) or 1 (Q) first, ``after`` copies C last.
    ``at_once``: one launch multiplies the whole batch."""

    plan: GpuPlan
    product: GpuProduct
    before: tuple[tuple[int, Copy], ...]
    after: Copy | None
    at_once: bool
    adding: Copy | None
    workspace_bytes: int

    def submit(self, a: int, b: int, c: int, workspace: int, stream: int) -> None:
        """Submit all of it to ``stream``, for arrays and workspace at these addresses. The GPU must be the current one."""
        order = self.plan.order
        p, q = (b, a) if order.swapped else (a, b)
        if self.at_once:
            self._multiply(p, q, c, workspace, stream)
            return
        partial = workspace + order.workspace_bytes
        copied: list[int | None] = [None, None]
        for offsets in _offsets(order):
            original = [p + offsets[0], q + offsets[1], c + offsets[2]]
            used = list(original)
            for i, place in enumerate((order.p, order.q, order.c)):
                if place.at is not None:
                    used[i] = workspace + place.at
            for i, copy in self.before:
                if copied[i] != original[i]:  # a matrix that consecutive products share is copied once
                    copy(original[i], used[i], stream)
                    copied[i] = original[i]
            self._multiply(used[0], used[1], used[2], partial, stream)
            if self.after is not None:
                self.after(used[2], original[2], stream)

    def _multiply(self, p: int, q: int, c: int, partial: int, stream: int) -> None:
        """One launch, and where k is cut, the sum of its parts."""
        if self.adding is None:
            self.product(p, q, c, stream)
        else:
            self.product(p, q, partial, stream)
            self.adding(partial, c, stream)


def prepare_launches(plan: GpuPlan, gpu: Device) -> Launches:
    """Compile and load the copies and kernels of a plan. Raises what ``prepare_gpu_product`` does."""
    order = plan.order
    with gpu:
        in_engine = bool(plan.kernel.boxes or plan.kernel.strides)
        is_empty = not math.prod((*order.mnk, *order.batch))
        steps = _batch_steps(order) if in_engine and not is_empty else None
        at_once = order.workspace_bytes == 0 and (not order.batch or steps is not None)
        if not in_engine:
            product = prepare_gpu_product(gpu, plan.kernel, plan.compute, *order.mnk, params=plan.params)
        elif is_empty:
            product = _cleared(gpu, order.c.used)
        elif plan.kernel.boxes:
            product = prepare_boxed_product(gpu, plan.kernel, _boxed(plan, steps if at_once else None), plan.params)
        else:
            strided = _strided(plan, steps if at_once else None)
            product = prepare_strided_product(gpu, plan.kernel, strided, plan.params)
        sizes = list(steps or (0, 0, 0))
        adding = None
        if plan.parts > 1:
            batch = math.prod(order.batch) if at_once else 1
            sums = sums_dtype(plan.compute)
            adding = prepare_sum(gpu, plan.parts, batch, sums, order.c.used, sizes[2] if at_once else 0)
        before = [(i, place) for i, place in enumerate((order.p, order.q)) if place.is_copied]
        copies = tuple((i, prepare_copy(gpu, place.original, place.used, own=True)) for i, place in before)
        after = prepare_copy(gpu, order.c.used, order.c.original) if order.c.at is not None else None
    return Launches(plan, product, copies, after, at_once, adding, plan.workspace_bytes)


def _boxed(plan: GpuPlan, steps: Sequence[int] | None) -> BoxedProduct:
    """The product for a kernel with boxes: of all the batch, whose operands are ``steps`` apart, or of one of it."""
    order = plan.order
    a, b, c = (place.used for place in (order.p, order.q, order.c))
    nexts, batch = _nexts(order, steps)
    m, n, k = order.mnk
    of_a, of_b = _laid(a, nexts[0]), _laid(b, nexts[1])
    if plan.parts == 1:
        return BoxedProduct(plan.compute, c.dtype, m, n, k, batch, of_a, of_b, Laid(c.row, nexts[2]), c.aligned)
    parts = plan.parts, _part_steps(plan)
    return BoxedProduct(
        plan.compute, sums_dtype(plan.compute), m, n, k, batch, of_a, of_b, Laid(n, m * n), True, *parts
    )


def _strided(plan: GpuPlan, steps: Sequence[int] | None) -> StridedProduct:
    """The same for a kernel of strides."""
    order = plan.order
    a, b, c = (place.used for place in (order.p, order.q, order.c))
    nexts, batch = _nexts(order, steps)
    m, n, k = order.mnk
    of_a, of_b, of_c = (strides_of(*each) for each in zip((a, b, c), nexts, strict=True))
    if plan.parts == 1:
        return StridedProduct(plan.compute, c.dtype, m, n, k, batch, of_a, of_b, of_c)
    sums, parts = sums_dtype(plan.compute), (plan.parts, _part_steps(plan))
    aligned = math.gcd(GRANULE, m * n * itemsize_of(sums))
    return StridedProduct(
        plan.compute, sums, m, n, k, batch, of_a, of_b, Strides(n, 1, m * n, alignment=aligned), *parts
    )


def _nexts(order: Order, steps: Sequence[int] | None) -> tuple[Sequence[int], int]:
    """The elements to the operands of the next product, and the number of products of a launch."""
    if steps is None or not order.batch:
        return (0, 0, 0), 1
    return steps, math.prod(order.batch)


def _part_steps(plan: GpuPlan) -> int:
    return part_steps(plan.kernel, plan.params, plan.compute, plan.order.mnk[2], plan.parts)


def _laid(matrix: Matrix, step: int) -> Laid:
    down = is_down(matrix)
    return Laid(matrix.column if down else matrix.row, step, down)


def _batch_steps(order: Order) -> tuple[int, ...] | None:
    """The elements from one matrix of the batch to the next for P, Q and C; None where an operand has no such step."""
    steps = [collapsed(order.batch, place.steps) for place in (order.p, order.q, order.c)]
    return None if None in steps else tuple(step for step in steps if step is not None)


def _cleared(gpu: Device, c: Matrix) -> GpuProduct:
    """The product of matrices without elements."""

    def clear(a: int, b: int, at: int, stream: Any) -> None:  # noqa: ARG001
        if c.nbytes:
            size = itemsize_of(c.dtype)
            gpu.clear(int(stream), at, c.rows, c.columns * size, c.row * size)

    return clear


def _offsets(order: Order) -> Iterator[tuple[int, int, int]]:
    """The byte offsets of P, Q and C for each product of a batch."""
    columns = []
    for place in (order.p, order.q, order.c):
        total = np.zeros((1,) * len(order.batch), np.int64)
        for axis, (n, step) in enumerate(zip(order.batch, place.steps, strict=True)):
            along = np.arange(n, dtype=np.int64) * step * itemsize_of(place.original.dtype)
            total = total + along.reshape((n,) + (1,) * (len(order.batch) - axis - 1))
        columns.append(np.broadcast_to(total, order.batch).ravel().tolist())
    return zip(*columns, strict=True)
