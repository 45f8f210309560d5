"""The steps of a plan of a product of GPU arrays, and all of them ready to run: compiled and loaded once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from ..planning.ways import part_steps, sums_dtype
from ..problem import itemsize_of
from ..runtime.gpu.boxed_product import boxed_step
from ..runtime.gpu.compilations import chosen_params
from ..runtime.gpu.device import Device
from ..runtime.gpu.engine_product import EngineProduct
from ..runtime.gpu.layout import row_major_matrix
from ..runtime.gpu.residue_operand import ResidueProduct
from ..runtime.gpu.residue_product import residue_steps
from ..runtime.gpu.split_product import PartsOfK, split_product_steps
from ..runtime.gpu.steps import OPERANDS, WORKSPACE, A, B, C, Clear, Place, RungLaunch, Step, SubmitSteps, load
from ..runtime.gpu.strided_product import strided_step
from .copies import copy_of, copy_steps, sum_step
from .finish import finish_steps
from .layouts import Boxes, given_by_strides
from .plan import GpuPlan

#: An axis of the batch: its length, and the elements from one P, Q and C to the next.
Axis = tuple[int, ...]


class Launches(NamedTuple):
    """A plan, and ``submit(a, b, c, workspace, stream, *arrays)``, which submits all of it to the stream of that handle, for
    operands, workspace and the epilogue's arrays at these addresses. The GPU must be the current one."""

    plan: GpuPlan
    submit: SubmitSteps


def prepare(plan: GpuPlan, gpu: Device) -> Launches:
    """Compile and load the steps of a plan. Raises what ``load`` does."""
    with gpu:
        return Launches(plan, load(gpu, steps_of(plan, gpu)))


def steps_of(plan: GpuPlan, gpu: Device) -> list[Step]:
    """The steps of a plan on a GPU like this one: copies of operands, the product, and what becomes of it."""
    if plan.pieces:
        return [*plan.before, *(step.moved(at) for piece, at in plan.pieces for step in steps_of(piece, gpu))]
    order, ratio = plan.order, gpu.card.memory_ratio
    given = (Place(B), Place(A), Place(C)) if order.swapped else OPERANDS
    matrices = order.p, order.q, order.c
    used = [at if x.at is None else Place(WORKSPACE, x.at) for x, at in zip(matrices, given, strict=True)]
    copies = [(copy_of(order, x), at, to) for x, at, to in zip(matrices[:2], given, used, strict=False) if x.is_copied]
    before = copy_steps(copies, ratio) if copies else []
    steps = [*before, *_multiply_steps(plan, gpu, used)]
    if plan.finish is not None and not plan.finished_at_once:
        places = used[2], given[2], *plan.finish.places(given[2])
        return [*steps, *finish_steps(copy_of(order, order.c), plan.finish, places, swapped=order.swapped)]
    return steps + (copy_steps([(copy_of(order, order.c), used[2], given[2])], ratio) if order.c.is_copied else [])


def _multiply_steps(plan: GpuPlan, gpu: Device, places: Sequence[Place]) -> list[Step]:
    """The steps that compute all of C from A and B, for a kernel that finds the three at these places."""
    order, axes = plan.order, plan.order.axes
    is_empty = not math.prod((*order.mnk, *order.batch))
    in_engine = bool(plan.kernel.boxes or plan.kernel.strides) and not is_empty
    inner = max(axes) if axes and in_engine else (1, 0, 0, 0)
    each = [Step(Clear(order.c.used), (Place(C),))] if is_empty else _steps_along(plan, gpu, inner)
    rest = Place(WORKSPACE, order.workspace_bytes)
    outer = [axis for axis in axes if axis is not inner]
    found = list[Step]()
    for at in itertools.product(*(range(n) for n, *_ in outer)):
        buffers = list[Place]()
        for i, (x, place) in enumerate(zip((order.p, order.q, order.c), places, strict=True), 1):
            elements = sum(count * axis[i] for count, axis in zip(at, outer, strict=True))
            buffers.append(place.after(elements * itemsize_of(x.used.dtype)))
        found += [step.moved((*buffers, rest)) for step in each]
    return found


def _steps_along(plan: GpuPlan, gpu: Device, axis: Axis) -> list[Step]:
    """The steps of the products along an axis of the batch, of a and b as the kernel is given them."""
    order, kernel, params, split = plan.order, plan.kernel, plan.params, plan.split
    if not (kernel.boxes or kernel.strides):
        return [Step(RungLaunch(kernel, plan.compute, order.mnk, chosen_params(params)), OPERANDS)]
    if isinstance(split, ResidueProduct):
        return residue_steps(gpu.sms, kernel, params, split)
    pieces = _parts_of_k(plan, gpu, axis) if plan.parts > 1 else None
    if split is not None:
        return split_product_steps(gpu.sms, kernel, params, split, pieces)
    make = boxed_step if kernel.boxes else strided_step
    multiply = make(gpu.sms, kernel, params, _multiply(plan, axis, pieces), _applied(plan))
    return [multiply] if pieces is None else [multiply.moved((Place(A), Place(B), Place(WORKSPACE))), pieces.add]


def _parts_of_k(plan: GpuPlan, gpu: Device, axis: Axis) -> PartsOfK:
    order, split = plan.order, plan.split
    steps = part_steps(plan.kernel, plan.params, plan.compute, order.mnk[2], plan.parts)
    sums, c = Place(WORKSPACE, split.workspace_bytes if split else 0), order.c.used._replace(next=axis[3])
    add = sum_step(gpu.sms, plan.parts, axis[0], sums_dtype(plan.compute), c, (sums, Place(C)))
    return PartsOfK(plan.parts, steps, add)


def _multiply(plan: GpuPlan, axis: Axis, pieces: PartsOfK | None) -> EngineProduct:
    """The products along an axis of the batch, as the kernel is given them."""
    order, form, (batch, *nexts) = plan.order, plan.finish, axis
    matrices = zip((order.p.used, order.q.used, order.c.used), nexts, strict=True)
    if plan.kernel.boxes:
        layouts = Boxes(plan.kernel)
        a, b, c = (layouts.given(i, x, step) for i, (x, step) in enumerate(matrices))
    else:
        a, b, c = (given_by_strides(x, step) for x, step in matrices)
    padded, blocks = (order.p.is_copied, order.q.is_copied), form.blocks if form else None
    if pieces is not None:
        sums = row_major_matrix(c.rows, c.columns, sums_dtype(plan.compute), batch * plan.parts)
        return EngineProduct(plan.compute, a, b, sums, batch, plan.parts, pieces.steps, padded, None, blocks)
    epilogue = form.boxed(swapped=order.swapped) if form and plan.finished_at_once else None
    return EngineProduct(plan.compute, a, b, c, batch, padded=padded, epilogue=epilogue, blocks=blocks)


def _applied(plan: GpuPlan) -> tuple[Place, ...]:
    """The places of the epilogue's arrays that the kernel reads: of bias, and of scales of its rows and of its columns."""
    form = plan.finish
    if form is None or not (plan.finished_at_once or form.blocks is not None):
        return ()
    bias, of_a, of_b = form.places(Place(C))
    return (bias, of_b, of_a) if plan.order.swapped else (bias, of_a, of_b)
