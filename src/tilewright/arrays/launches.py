"""A plan of a product of GPU arrays, ready to run: all its copies and launches, compiled and loaded once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..planning.ways import part_steps, sums_dtype
from ..problem import itemsize_of
from ..runtime.gpu.boxed_product import BoxedProduct, Laid, prepare_boxed_product
from ..runtime.gpu.device import Device
from ..runtime.gpu.memory import GRANULE
from ..runtime.gpu.product import GpuProduct, prepare_gpu_product
from ..runtime.gpu.residue_operand import ResidueProduct
from ..runtime.gpu.residue_product import prepare_residue_product
from ..runtime.gpu.split_product import PartsOfK, SplitLaunches, prepare_split_product
from ..runtime.gpu.strided_product import StridedProduct, Strides, prepare_strided_product
from .copies import Add, Copies, copy_of, prepare_copies, prepare_sum
from .finish import Finish, prepare_finish
from .gpu_array import Matrix, merged_axes
from .layouts import Boxes, strides_of
from .order import Order
from .plan import GpuPlan


@dataclass(frozen=True)
class Launches:
    """All launches of a plan on one GPU, loaded: ``before`` copies operands, ``product`` multiplies, ``adding`` adds parts
    of k, ``after`` copies C, or finishes it. ``copied`` are the operands, 0 (P) and 1 (Q), that ``before`` copies.

    ``offsets``: a launch of the product for each, with bytes to add to the addresses of P, Q and C. There is one if the
    strides of the batch are one stride for each operand, or none, and more where they are not.
    """

    plan: GpuPlan
    product: GpuProduct
    before: Copies | None
    copied: tuple[int, ...]
    after: Copies | Finish | None
    offsets: tuple[tuple[int, int, int], ...]
    adding: Add | None
    workspace_bytes: int
    #: Splits operands and multiplies them, in place of ``product``.
    split: SplitLaunches | None = None

    def submit(self, a: int, b: int, c: int, workspace: int, stream: int, *arrays: int) -> None:
        """Submit all of it to ``stream``, for operands, workspace and the epilogue's arrays at these addresses. The GPU must
        be the current one."""
        order = self.plan.order
        p, q = (b, a) if order.swapped else (a, b)
        result, applied = c, tuple[int, ...]()
        if self.plan.finished_at_once or (self.plan.finish is not None and self.plan.finish.blocks is not None):
            bias, scale_a, scale_b = arrays
            applied = (bias, scale_b, scale_a) if order.swapped else arrays
            arrays = () if self.plan.finished_at_once else arrays
        if self.before is not None:
            given = p, q
            p = p if order.p.at is None else workspace + order.p.at
            q = q if order.q.at is None else workspace + order.q.at
            self.before(stream, *(at for i in self.copied for at in (given[i], (p, q)[i])))
        if order.c.at is not None:
            c = workspace + order.c.at
        if self.split is not None:
            self.split(p, q, c, workspace + order.workspace_bytes, stream)
        for to_p, to_q, to_c in self.offsets if self.split is None else ():
            if self.adding is None:
                self.product(p + to_p, q + to_q, c + to_c, stream, *applied)
            else:
                sums = workspace + order.workspace_bytes
                self.product(p + to_p, q + to_q, sums, stream, *applied)
                self.adding(sums, c + to_c, stream)
        if self.after is not None:
            self.after(stream, c, result, *arrays)


def prepare_launches(plan: GpuPlan, gpu: Device) -> Launches:
    """Compile and load the copies and kernels of a plan. Raises what ``prepare_gpu_product`` does."""
    order = plan.order
    with gpu:
        is_empty = not math.prod((*order.mnk, *order.batch))
        in_engine = bool(plan.kernel.boxes or plan.kernel.strides) and not is_empty
        axes = _axes(order)
        inner = max(axes) if axes and in_engine else (1, 0, 0, 0)
        offsets = _offsets(order, [axis for axis in axes if axis is not inner])
        adding = None
        if plan.parts > 1:
            adding = prepare_sum(gpu, plan.parts, inner[0], sums_dtype(plan.compute), order.c.used, inner[3])
        split = None
        if is_empty:
            product = _cleared(gpu, order.c.used)
        elif isinstance(plan.split, ResidueProduct):
            product, split = _nothing, prepare_residue_product(gpu, plan.kernel, plan.split, plan.params)
        elif plan.split is not None:
            pieces = None if adding is None else PartsOfK(plan.parts, _part_steps(plan), adding)
            product, split = _nothing, prepare_split_product(gpu, plan.kernel, plan.split, plan.params, pieces)
        elif not in_engine:
            product = prepare_gpu_product(gpu, plan.kernel, plan.compute, *order.mnk, params=plan.params)
        elif plan.kernel.boxes:
            product = prepare_boxed_product(gpu, plan.kernel, _boxed(plan, inner), plan.params)
        else:
            product = prepare_strided_product(gpu, plan.kernel, _strided(plan, inner), plan.params)
        copied = tuple(i for i, place in enumerate((order.p, order.q)) if place.is_copied and place.matrices)
        before = prepare_copies(gpu, [copy_of(order, (order.p, order.q)[i]) for i in copied]) if copied else None
        after: Copies | Finish | None = None
        if plan.finish is not None and not plan.finished_at_once:
            after = prepare_finish(gpu, copy_of(order, order.c), plan.finish, swapped=order.swapped)
        elif order.c.is_copied:
            after = prepare_copies(gpu, [copy_of(order, order.c)])
    return Launches(plan, product, before, copied, after, offsets, adding, plan.workspace_bytes, split)


#: An axis of the batch: its length, and the elements from one P, Q and C to the next.
_Axis = tuple[int, ...]


def _axes(order: Order) -> list[_Axis]:
    return merged_axes(order.batch, *(place.used_steps for place in (order.p, order.q, order.c)))


def _boxed(plan: GpuPlan, axis: _Axis) -> BoxedProduct:
    """The products along an axis of the batch for a kernel with boxes."""
    order = plan.order
    a, b, c = (place.used for place in (order.p, order.q, order.c))
    batch, *nexts = axis
    m, n, k = order.mnk
    layouts = Boxes(plan.kernel)
    of_a, of_b = layouts.laid(0, a, nexts[0]), layouts.laid(1, b, nexts[1])
    factors = (a.dtype, b.dtype) if plan.compute.startswith("float8") else None
    blocks = plan.finish.blocks if plan.finish else None
    if plan.parts == 1:
        of_c = layouts.laid(2, c, nexts[2])
        epilogue = plan.finish.boxed(swapped=order.swapped) if plan.finish and plan.finished_at_once else None
        given: Any = {"factors": factors, "epilogue": epilogue, "blocks": blocks}
        return BoxedProduct(plan.compute, c.dtype, m, n, k, batch, of_a, of_b, of_c, c.aligned, **given)
    sums, parts = sums_dtype(plan.compute), (plan.parts, _part_steps(plan))
    return BoxedProduct(
        plan.compute, sums, m, n, k, batch, of_a, of_b, Laid(n, m * n), True, *parts, factors, None, blocks
    )


def _strided(plan: GpuPlan, axis: _Axis) -> StridedProduct:
    """The same for a kernel of strides."""
    order = plan.order
    a, b, c = (place.used for place in (order.p, order.q, order.c))
    batch, *nexts = axis
    m, n, k = order.mnk
    of_a, of_b, of_c = (strides_of(*each) for each in zip((a, b, c), nexts, strict=True))
    padded = order.p.is_copied, order.q.is_copied
    if plan.parts == 1:
        return StridedProduct(plan.compute, c.dtype, m, n, k, batch, of_a, of_b, of_c, padded=padded)
    sums, parts = sums_dtype(plan.compute), (plan.parts, _part_steps(plan))
    aligned = math.gcd(GRANULE, m * n * itemsize_of(sums))
    return StridedProduct(
        plan.compute, sums, m, n, k, batch, of_a, of_b, Strides(n, 1, m * n, alignment=aligned), *parts, padded
    )


def _part_steps(plan: GpuPlan) -> int:
    return part_steps(plan.kernel, plan.params, plan.compute, plan.order.mnk[2], plan.parts)


def _cleared(gpu: Device, c: Matrix) -> GpuProduct:
    """The product of matrices without elements."""

    def clear(a: int, b: int, at: int, stream: Any) -> None:  # noqa: ARG001
        if c.nbytes:
            size = itemsize_of(c.dtype)
            gpu.clear(int(stream), at, c.rows, c.columns * size, c.row * size)

    return clear


def _nothing(a: int, b: int, at: int, stream: Any) -> None:
    """In place of the product where operands are split."""


def _offsets(order: Order, axes: Sequence[_Axis]) -> tuple[tuple[int, int, int], ...]:
    """The bytes to P, Q and C of each product along these axes."""
    sizes = [itemsize_of(place.used.dtype) for place in (order.p, order.q, order.c)]
    found = []
    for at in itertools.product(*(range(n) for n, *_ in axes)):
        elements = [sum(i * axis[1 + operand] for i, axis in zip(at, axes, strict=True)) for operand in range(3)]
        p, q, c = (count * size for count, size in zip(elements, sizes, strict=True))
        found.append((p, q, c))
    return tuple(found)
