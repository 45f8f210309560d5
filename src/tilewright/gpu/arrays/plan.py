"""Plans of products of arrays on a GPU: the layout of the operands, the copies, the kernel, and the steps that run.
``choose`` makes these plans."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...host.cached_property import cached_property
from ...host.machine import bytes_text
from ...kernels.cuda_kernel import CudaKernel, Launch
from ...product.plan import INVARIANT_ROW, Choice, Plan, Rows, rate_text
from ...product.precision import (
    COMPLEX_RESIDUES,
    INVARIANT,
    PLANES,
    RESIDUES,
    ROUNDED,
    SPLIT,
    bound_rows,
    takes_fastest,
)
from ...product.problem import Problem, itemsize_of
from ...product.residues import RESIDUES_IN
from ..planning.ways import EngineShape, part_steps, sums_dtype
from ..runtime.compilations import chosen_params
from ..runtime.device import Device, gpu_at
from ..runtime.engine_product import EngineProduct, FinishForm, boxed_step, stores_boxes, strided_step
from ..runtime.layout import row_major_matrix
from ..runtime.residue_product import ResidueProduct, residue_steps
from ..runtime.split_product import PartsOfK, SplitProduct, split_product_steps
from ..runtime.steps import OPERANDS, WORKSPACE, A, B, BufferPlace, C, Clear, GpuStep, RungLaunch, SubmitSteps, load
from .copies import copy_of, copy_steps, finish_steps, mirror_step, sum_step
from .dtypes import made_dtype
from .layouts import Boxes, given_by_strides, layouts_of
from .order import Order
from .split import is_split_once, residues_rows, rounded_rows, split_of, split_rows

#: What a kernel computes.
STRAIGHT, CHANGED = "C = A·B", "Cᵀ = Bᵀ·Aᵀ"


@dataclass(frozen=True, eq=False, repr=False)
class GpuPlan(Plan):
    """The plan of a product of arrays on a GPU. To make a plan allocates and compiles nothing.

    ``order`` says how the kernel sees the operands. ``gpu`` is the name of the GPU, and ``ordinal`` its number.
    """

    problem: Problem
    choice: Choice[CudaKernel]
    order: Order
    gpu: str
    ordinal: int
    #: Parts of k that blocks sum apart from each other, and the prediction by which they were chosen.
    parts: int = 1
    predicted: float | None = None
    #: What becomes of the product before it is stored, and whether the kernel that multiplies does it, or another one.
    finish: FinishForm | None = None
    finished_at_once: bool = False
    #: Of a symmetric C, whether only its lower triangle is computed, and whether another launch copies it to the upper one.
    triangle: bool = False
    mirrored: bool = False
    #: The plans whose steps are those of this one, if it has none of its own, and the steps before them. What a plan says of
    #: one kernel is then that of the first.
    pieces: tuple[PlanPiece, ...] = ()
    before: tuple[GpuStep, ...] = ()
    #: What else it prints.
    notes: tuple[tuple[str, str], ...] = ()

    @property
    def device(self) -> str:
        """The GPU as a device string with its number, such as "cuda:0"."""
        return f"cuda:{self.ordinal}"

    @cached_property
    def launch(self) -> Launch:
        """The launch of the kernel for one product."""
        launch, (m, _, k) = self.kernel.launch(*self.order.mnk, **self.params), self.order.mnk
        if not self.triangle:
            return launch
        return replace(launch, grid=(self.kernel.triangle_blocks(self.kernel.checked(self.params), m, k), 1, 1))

    @property
    def swapped(self) -> bool:
        """Whether the kernel computes Cᵀ = Bᵀ·Aᵀ."""
        return self.order.swapped

    @property
    def copies(self) -> tuple[str, ...]:
        """The copies on the GPU before and after the product, as texts with their bytes."""
        return self.order.copies

    @cached_property
    def workspace_bytes(self) -> int:
        """Bytes of the workspace: for the copies, for split operands, and for the sums of parts of k."""
        if self.pieces:
            return max(buffers[WORKSPACE].offset + plan.workspace_bytes for plan, buffers in self.pieces)
        split = self.split
        return self.order.workspace_bytes + self.parts_bytes + (split.workspace_bytes if split else 0)

    @cached_property
    def split(self) -> SplitProduct | ResidueProduct | None:
        """How float32 operands are split for tensor cores of float16, or float64 and complex128 operands are converted
        to residues for those of int8. None if the operands are multiplied directly."""
        is_split = self.compute in PLANES or self.compute in RESIDUES_IN
        gram = bool(self.problem.symmetry) and is_split_once(self.order)
        return split_of(self.order, self.compute, gram=gram, triangle=self.triangle) if is_split else None

    @property
    def parts_bytes(self) -> int:
        """Bytes for the sums of parts of k; 0 if k is not cut."""
        m, n, _ = self.order.mnk
        size = itemsize_of(sums_dtype(self.compute))
        return size * m * n * self.parts * math.prod(self.order.batch) if self.parts > 1 else 0

    @property
    def predicted_s(self) -> float | None:
        """Predicted seconds on an idle GPU, including copies; None for kernels without a model of time."""
        return self.predicted

    @property
    def steps(self) -> list[GpuStep]:
        """The steps that run: the launches in their order, with the places where their operands begin."""
        return _steps_of(self, gpu_at(self.ordinal))

    def rows(self) -> Rows:
        params = ", ".join(f"{name}={value}" for name, value in self.params.items()) or "none"
        shared = bytes_text(self.launch.shared_bytes)
        rows = [
            ("GPU", f"{self.gpu}, number {self.ordinal}"),
            ("params", f"{params}: {self.choice.why_params}"),
            (
                "launch",
                f"grid {_extent(self.launch.grid)}, block {_extent(self.launch.block)}, {shared} of shared memory",
            ),
            ("computes", CHANGED if self.swapped else STRAIGHT),
        ]
        if self.problem.symmetry:
            rows.append(("symmetric", _SYMMETRIC[self.triangle, self.mirrored]))
        if self.parts > 1:
            rows.append(
                ("k", f"in {self.parts} parts, whose {sums_dtype(self.compute)} sums are added in a fixed order")
            )
        if self.predicted is not None:
            rows.append(("predicted", rate_text(self.problem, self.predicted)))
        if self.compute == SPLIT:
            rows += split_rows(self.order.mnk[2], self.params)
        elif self.compute == ROUNDED:
            rows += rounded_rows(self.order.mnk[2])
        elif isinstance(self.split, ResidueProduct):
            rows += residues_rows(self.split.a)
        elif self.compute != self.problem.dtype or made_dtype(self.compute) != self.order.dtype:
            rows.append(("in", f"{self.compute}; the result is {self.order.dtype}"))
        if takes_fastest(self.problem.precision) and not self.problem.dtype.startswith("float8"):
            own = {SPLIT: "float32", RESIDUES: "float64", COMPLEX_RESIDUES: "complex128"}
            computed = own.get(self.compute, self.compute)
            rows += bound_rows("gpu", self.problem.dtype, computed, self.problem.k)
        if self.problem.precision == INVARIANT:
            rows.append(INVARIANT_ROW)
        if self.finish is not None:
            by = "by the same kernel" if self.finished_at_once else "by one more kernel"
            rows.append(("result", f"{self.finish}, {by}"))
        return [
            *rows,
            ("copies", "; ".join(self.copies) or "none"),
            ("workspace", str(bytes_text(self.workspace_bytes))),
            *self.notes,
        ]


class PlanPiece(NamedTuple):
    """A plan whose steps are a part of another plan's steps, and the places in that plan where its a, b, C and
    workspace begin."""

    plan: GpuPlan
    buffers: tuple[BufferPlace, BufferPlace, BufferPlace, BufferPlace]


def _extent(sizes: tuple[int, int, int]) -> str:
    """The sizes that are not 1, as text; the first size is always included.

    >>> _extent((132, 1, 1)), _extent((32, 8, 1))
    ('132', '32×8')
    """
    used = [size for i, size in enumerate(sizes) if size > 1 or not i]
    return "×".join(map(str, used))


# ---- what runs ----------------------------------------------------------------------------------------------------------


class Launches(NamedTuple):
    """A plan that is ready to run. Its function ``submit(a, b, c, workspace, stream, *arrays)`` submits the launches to
    the stream with that handle.

    The arguments are the addresses of the operands, of the workspace and of the epilogue's arrays. The GPU must be the
    calling thread's current one."""

    plan: GpuPlan
    submit: SubmitSteps


def prepare(plan: GpuPlan) -> Launches:
    """Compile and load the steps of a plan. Raises any error of ``load``."""
    with (gpu := gpu_at(plan.ordinal)):
        return Launches(plan, load(gpu, plan.steps))


#: An axis of the batch: its length, and the elements from one P, Q and C to the next.
Axis = tuple[int, ...]


def _steps_of(plan: GpuPlan, gpu: Device) -> list[GpuStep]:
    """The steps that copy the operands, multiply, and finish the product."""
    if plan.pieces:
        return [*plan.before, *(step.moved(at) for piece, at in plan.pieces for step in piece.steps)]
    order, ratio = plan.order, gpu.card.memory_ratio
    given = (BufferPlace(B), BufferPlace(A), BufferPlace(C)) if order.swapped else OPERANDS
    matrices = order.p, order.q, order.c
    used = [at if x.at is None else BufferPlace(WORKSPACE, x.at) for x, at in zip(matrices, given, strict=True)]
    copies = [(copy_of(order, x), at, to) for x, at, to in zip(matrices[:2], given, used, strict=False) if x.is_copied]
    before = copy_steps(copies, ratio) if copies else []
    steps = [*before, *_multiply_steps(plan, gpu, used)]
    if plan.finish is not None and not plan.finished_at_once:
        places = used[2], given[2], *plan.finish.places(given[2])
        return [*steps, *finish_steps(copy_of(order, order.c), plan.finish, places, swapped=order.swapped)]
    return steps + (copy_steps([(copy_of(order, order.c), used[2], given[2])], ratio) if order.c.is_copied else [])


def _multiply_steps(plan: GpuPlan, gpu: Device, places: Sequence[BufferPlace]) -> list[GpuStep]:
    """The steps that compute all of C from A and B, for a kernel that finds A, B and C at these places."""
    order, axes = plan.order, plan.order.axes
    is_empty = not math.prod((*order.mnk, *order.batch))
    in_engine = bool(plan.kernel.boxes or plan.kernel.strides) and not is_empty
    inner = max(axes) if axes and in_engine else (1, 0, 0, 0)
    each = [GpuStep(Clear(order.c.used), (BufferPlace(C),))] if is_empty else _steps_along(plan, gpu, inner)
    rest = BufferPlace(WORKSPACE, order.workspace_bytes)
    outer = [axis for axis in axes if axis is not inner]
    found = list[GpuStep]()
    for at in itertools.product(*(range(n) for n, *_ in outer)):
        buffers = list[BufferPlace]()
        for i, (x, place) in enumerate(zip((order.p, order.q, order.c), places, strict=True), 1):
            elements = sum(count * axis[i] for count, axis in zip(at, outer, strict=True))
            buffers.append(place.after(elements * itemsize_of(x.used.dtype)))
        found += [step.moved((*buffers, rest)) for step in each]
    return found


def _steps_along(plan: GpuPlan, gpu: Device, axis: Axis) -> list[GpuStep]:
    """The steps of the products along an axis of the batch, with a and b as they are passed to the kernel."""
    order, multiply = plan.order, _general_steps(plan, gpu, axis)
    if not plan.mirrored:
        return multiply
    return [*multiply, mirror_step(order.c.used._replace(next=axis[3]), axis[0], BufferPlace(C))]


#: How a symmetric C is computed: whether only a triangle is, and whether another launch mirrors it.
_SYMMETRIC = {
    (True, False): "its lower triangle is computed, and copied to the upper one by the same kernel",
    (True, True): "its lower triangle is computed, and copied to the upper one by one more kernel",
    (False, True): "all of it is computed, and the lower triangle copied to the upper one by one more kernel",
    (False, False): "all of it is computed; both triangles have sums in the same order, so their bits are equal",
}


def is_mirrored(kernel: CudaKernel, shape: EngineShape) -> bool:
    """Whether a separate launch copies one triangle of a symmetric C to the other. Kernels that store by tensor maps
    need no such launch: they store each tile of a triangle twice."""
    return not (shape.ordered or (shape.triangle and _stores_twice(kernel)))


def _stores_twice(kernel: CudaKernel) -> bool:
    return "c" in kernel.boxes


def computes_triangle(kernel: CudaKernel, order: Order) -> bool:
    """Whether the kernel can compute only the lower triangle of a symmetric C with the layout of this order."""
    if kernel.triangle is None or not _stores_twice(kernel):
        return kernel.triangle is not None
    boxes, (*_, step) = layouts_of(kernel)[0], max(order.axes, default=(1, 0, 0, 0))
    assert isinstance(boxes, Boxes)
    c = boxes.given(2, order.c.used, step)
    return stores_boxes(c) and not c.down


def _general_steps(plan: GpuPlan, gpu: Device, axis: Axis) -> list[GpuStep]:
    """The steps that multiply."""
    order, kernel, params, split = plan.order, plan.kernel, plan.params, plan.split
    if not (kernel.boxes or kernel.strides):
        return [GpuStep(RungLaunch(kernel, plan.compute, order.mnk, chosen_params(params)), OPERANDS)]
    if isinstance(split, ResidueProduct):
        return residue_steps(gpu.sms, kernel, params, split)
    pieces = _parts_of_k(plan, gpu, axis) if plan.parts > 1 else None
    if split is not None:
        return split_product_steps(gpu.sms, kernel, params, split, pieces)
    make = boxed_step if kernel.boxes else strided_step
    multiply = make(gpu.sms, kernel, params, _multiply(plan, axis, pieces), _applied(plan))
    if pieces is None:
        return [multiply]
    return [multiply.moved((BufferPlace(A), BufferPlace(B), BufferPlace(WORKSPACE))), pieces.add]


def _parts_of_k(plan: GpuPlan, gpu: Device, axis: Axis) -> PartsOfK:
    order, split = plan.order, plan.split
    steps = part_steps(plan.kernel, plan.params, plan.compute, order.mnk[2], plan.parts)
    sums, c = BufferPlace(WORKSPACE, split.workspace_bytes if split else 0), order.c.used._replace(next=axis[3])
    add = sum_step(gpu.sms, plan.parts, axis[0], sums_dtype(plan.compute), c, (sums, BufferPlace(C)))
    return PartsOfK(plan.parts, steps, add)


def _multiply(plan: GpuPlan, axis: Axis, pieces: PartsOfK | None) -> EngineProduct:
    """The products along an axis of the batch, as they are passed to the kernel."""
    order, form, (batch, *nexts) = plan.order, plan.finish, axis
    matrices = zip((order.p.used, order.q.used, order.c.used), nexts, strict=True)
    if plan.kernel.boxes:
        boxes = layouts_of(plan.kernel)[0]
        assert isinstance(boxes, Boxes)
        a, b, c = (boxes.given(i, x, step) for i, (x, step) in enumerate(matrices))
    else:
        a, b, c = (given_by_strides(x, step) for x, step in matrices)
    padded, blocks = (order.p.is_copied, order.q.is_copied), form.blocks if form else None
    if pieces is not None:
        sums = row_major_matrix(c.rows, c.columns, sums_dtype(plan.compute), batch * plan.parts)
        return EngineProduct(
            plan.compute, a, b, sums, batch, plan.parts, pieces.steps, padded, None, blocks, plan.triangle
        )
    epilogue = None
    if form is not None and plan.finished_at_once:
        epilogue = form.transposed if order.swapped else form
    return EngineProduct(
        plan.compute, a, b, c, batch, padded=padded, epilogue=epilogue, blocks=blocks, triangle=plan.triangle
    )


def _applied(plan: GpuPlan) -> tuple[BufferPlace, ...]:
    """The places of the epilogue's arrays that the kernel reads: of bias, and of scales of its rows and of its columns."""
    form = plan.finish
    if form is None or not (plan.finished_at_once or form.blocks is not None):
        return ()
    bias, of_a, of_b = form.places(BufferPlace(C))
    return (bias, of_b, of_a) if plan.order.swapped else (bias, of_a, of_b)
