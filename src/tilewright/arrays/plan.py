"""Plans of products of arrays on a GPU: the layout of the operands, what is copied, and which kernel multiplies."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..errors import DTypeError
from ..host.machine import bytes_text
from ..kernels.cuda_kernel import CudaKernel, Launch
from ..planning.bounds import bound_rows
from ..planning.choice import RESIDUES, ROUNDED, SPLIT, Choice, choose_gpu, engine_on_gpu, takes_fastest
from ..planning.plan import Plan, Rows, rate_text
from ..planning.ways import sums_dtype
from ..problem import RESIDUES_IN, Problem, itemsize_of
from ..runtime.gpu.device import Device
from ..runtime.gpu.residue_operand import ResidueProduct
from ..runtime.gpu.split_operand import SplitProduct
from ..runtime.gpu.steps import WORKSPACE, Place, Step
from .dtypes import made_dtype
from .finish import FinishForm
from .layouts import RowMajor, layouts_of
from .order import Operands, Order
from .ordered_kernel import CHANGED, STRAIGHT, OrderedKernel, copies_s, shape_of, why_fastest
from .split import can_split, residues_rows, rounded_rows, split_of, split_rows, split_seconds

#: The dtype of the parts of operands, if they are split: with some of these no number is multiplied as it is.
_PARTED = {"float32": SPLIT, "float64": RESIDUES, ROUNDED: ROUNDED} | {dtype: dtype for dtype in RESIDUES_IN}


@dataclass(frozen=True, eq=False, repr=False)
class GpuPlan(Plan):
    """What a product of arrays on a GPU runs; nothing is allocated or compiled yet.

    ``order`` says how the kernel sees the operands, ``gpu`` is the GPU's name, ``ordinal`` its number.
    """

    problem: Problem
    choice: Choice[CudaKernel]
    launch: Launch
    order: Order
    gpu: str
    ordinal: int
    #: Parts of k that blocks sum apart from each other, and the prediction by which they were chosen.
    parts: int = 1
    predicted: float | None = None
    #: What becomes of the product before it is stored, and whether the kernel that multiplies does it, or another one.
    finish: FinishForm | None = None
    finished_at_once: bool = False
    #: The plans whose steps are those of this one, if it has none of its own, and the steps before them. What a plan says of
    #: one kernel is then that of the first.
    pieces: tuple[PlanPiece, ...] = ()
    before: tuple[Step, ...] = ()
    #: What else it prints.
    notes: tuple[tuple[str, str], ...] = ()

    @property
    def device(self) -> str:
        """The GPU by its number, such as "cuda:0"."""
        return f"cuda:{self.ordinal}"

    @property
    def swapped(self) -> bool:
        """Whether the kernel computes Cᵀ = Bᵀ·Aᵀ."""
        return self.order.swapped

    @property
    def copies(self) -> tuple[str, ...]:
        """The copies on the GPU before and after the product, as texts with bytes."""
        return self.order.copies

    @property
    def workspace_bytes(self) -> int:
        """Bytes for these copies, for operands that are split, and for the sums of parts of k."""
        if self.pieces:
            return max(buffers[WORKSPACE].offset + plan.workspace_bytes for plan, buffers in self.pieces)
        split = self.split
        return self.order.workspace_bytes + self.parts_bytes + (split.workspace_bytes if split else 0)

    @property
    def split(self) -> SplitProduct | ResidueProduct | None:
        """How operands of float32 are split for tensor cores of float16, or those of float64 become residues for those
        of int8; None where they are multiplied as they are."""
        return split_of(self.order, self.compute) if self.compute in _PARTED.values() else None

    @property
    def parts_bytes(self) -> int:
        """Bytes for the sums of parts of k; none if k is not cut."""
        m, n, _ = self.order.mnk
        size = itemsize_of(sums_dtype(self.compute))
        return size * m * n * self.parts * math.prod(self.order.batch) if self.parts > 1 else 0

    @property
    def predicted_s(self) -> float | None:
        """Predicted seconds on an idle GPU, copies included; None for kernels without a model."""
        return self.predicted

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
            rows += residues_rows(self.order.mnk[2], self.split.a.moduli)
        elif self.compute != self.problem.dtype or made_dtype(self.compute) != self.order.dtype:
            rows.append(("in", f"{self.compute}; the result is {self.order.dtype}"))
        if takes_fastest(self.problem.precision) and not self.problem.dtype.startswith("float8"):
            computed = {SPLIT: "float32", RESIDUES: "float64"}.get(self.compute, self.compute)
            rows += bound_rows("gpu", self.problem.dtype, computed, self.problem.k)
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
    """A plan whose steps are some of another one's, and where a, b, C and the workspace begin for it there."""

    plan: GpuPlan
    buffers: tuple[Place, Place, Place, Place]


def gpu_plan(
    operands: Operands,
    computes: Sequence[str],
    gpu: Device,
    form: FinishForm | None = None,
    splits: bool = False,
    precision: str | float = "standard",
) -> GpuPlan:
    """The plan on a GPU, with an epilogue of this ``form``: of all ways of the engine's kernels the one that is predicted to
    be the fastest, copies included; else the highest rung. Of the dtypes ``computes`` the first that has a kernel for the
    shape, or if ``precision`` takes the fastest, that one. ``splits``: operands of float32 may be split into float16,
    and those of float64 be residues in int8, where the classical bound of the error holds.

    Raises DTypeError where no kernel is for them.
    """
    by_engine = (_by_engine(operands, compute, gpu, form, splits) for compute in computes)
    able = (plan for plan in by_engine if plan is not None)
    found = (
        min(able, key=lambda plan: plan.predicted or 0, default=None) if takes_fastest(precision) else next(able, None)
    )
    if found is not None:
        return _for_precision(found, precision)
    if form is not None and form.blocks is not None:
        raise DTypeError(
            f"scale_a and scale_b are those of blocks: on a GPU they are for float8, precision 'standard' and compute "
            f"capability 9.0; this is {computes[0]} on {gpu.capability}"
        )
    for compute in computes:
        order = None if compute in _PARTED.values() else operands.arranged(compute, RowMajor(), None, at_once=False)
        if order is None:
            continue
        m, n, k = order.mnk
        with contextlib.suppress(*[DTypeError] * (compute != computes[-1])):
            choice = choose_gpu(compute, m, n, k, capability=gpu.capability, sms=gpu.sms, gpu=gpu.name)
            plan = _plan(order, choice, gpu, form=form)
            return _for_precision(plan, precision)
    raise DTypeError(
        f"no kernel for compute capability {gpu.capability} stores products of {computes[0]} in this dtype"
    )


def _for_precision(plan: GpuPlan, precision: str | float) -> GpuPlan:
    if plan.problem.precision == precision:
        return plan
    return replace(plan, problem=replace(plan.problem, precision=precision))


def _by_engine(operands: Operands, compute: str, gpu: Device, form: FinishForm | None, splits: bool) -> GpuPlan | None:
    """The plan by the engine's kernels; None if there is none for this product."""
    tried, best, least = list[OrderedKernel](), None, math.inf
    parted = _PARTED.get(compute, "") if splits else ""
    splitting = engine_on_gpu(RESIDUES if parted in RESIDUES_IN else parted, gpu.capability) if parted else ()
    plain = () if compute == parted else engine_on_gpu(compute, gpu.capability)
    compute = made_dtype(compute) if compute == parted else compute
    for kernel, once, order in _tried((*plain, *splitting), operands, compute, form):
        if not min(*order.mnk, *order.batch):
            choice = Choice(kernel, compute, kernel.params, "there is nothing to multiply")
            return _plan(order, choice, gpu, form=form)
        copied, shape = copies_s(order, form, once, gpu), shape_of(order, form, once)
        if kernel in splitting:
            if not can_split(order, parted):
                continue
            copied, shape = copied + split_seconds(order, parted, gpu.card.memory_ratio), shape._replace(dtype=parted)
        tried.append(OrderedKernel(kernel, once, order, shape, copied))
        if copied < least:  # else none can be faster
            found, totals = tried[-1].timed(gpu)
            number = int(totals.argmin()) if len(totals) else -1
            if len(totals) and totals[number] < least:
                best, least = (tried[-1], found.way(number)), float(totals[number])
    if best is None:
        return None
    (_, once, order, shape, _), way = best
    why = f"the engine's kernel for {compute} on compute capability {gpu.capability} with the least predicted time"
    choice = Choice(way.kernel, shape.dtype, way.params, why, functools.partial(why_fastest, tried, gpu, form))
    return _plan(order, choice, gpu, way.parts, least, form=form, at_once=once)


def _tried(
    kernels: Sequence[CudaKernel], operands: Operands, compute: str, form: FinishForm | None
) -> Iterator[tuple[CudaKernel, bool, Order]]:
    """Every kernel with the orders of operands that it may be given and suits, and whether it then applies the epilogue."""
    in_blocks = form is not None and form.blocks is not None
    for kernel in kernels:
        if in_blocks and kernel.blocks is None:
            continue
        suiting = tuple(swapped for swapped in (False, True) if operands.suits(kernel, swapped))
        if not suiting:
            continue
        changes: tuple[bool | None, ...] = (None,)
        if in_blocks:
            changes = (False,)
        elif kernel.strides and kernel.strides["c"] != "rows":
            changes = suiting
        elif "c_down" in kernel.boxes:
            changes = (None, False, True)
        at_once = (False, True) if form is not None and kernel.finishes is not None else (False,)
        for once in at_once:
            orders = list[Order]()
            for swapped in changes:
                for layouts in layouts_of(kernel):
                    order = operands.arranged(compute, layouts, swapped, at_once=once)
                    if order is not None and order not in orders:
                        orders.append(order)
                    if order is not None and kernel.boxes and not (order.p.is_copied or order.q.is_copied):
                        break  # its layouts differ in how copies of factors lie
            able = [order for order in orders if not once or form is None or _finishes(order, form)]
            for order in able:
                # The first copies least. With boxes another one may have better tiles, but is not worth a copy of C.
                is_able = not kernel.boxes or order is able[0] or not (order.transposed or order.c.is_copied)
                if is_able and order.swapped in suiting:
                    yield kernel, once, order


def _finishes(order: Order, form: FinishForm) -> bool:
    """Whether a kernel that applies epilogues can apply this one: the result is rounded once, and C before is where the
    kernel reads it; the rows of a batch that became one product do not have scales of their own."""
    c = order.c
    rows = order.mnk[1] if order.swapped else order.mnk[0]
    return (
        c.used.dtype == c.original.dtype
        and sums_dtype(order.compute) in ("float32", "int32")
        and not (form.beta != 0 and c.is_copied)
        and (not form.scale_a or rows == form.rows)
    )


def _plan(
    order: Order,
    choice: Choice[CudaKernel],
    gpu: Device,
    parts: int = 1,
    predicted: float | None = None,
    *,
    form: FinishForm | None = None,
    at_once: bool = False,
) -> GpuPlan:
    shapes = order.shapes
    problem = Problem(shapes.m, shapes.n, shapes.k, order.operands, math.prod(shapes.batch))
    launch = choice.kernel.launch(*order.mnk, **choice.params)
    return GpuPlan(problem, choice, launch, order, gpu.name, gpu.ordinal, parts, predicted, form, at_once)


def _extent(sizes: tuple[int, int, int]) -> str:
    """The sizes that are not 1, as text; at least the first.

    >>> _extent((132, 1, 1)), _extent((32, 8, 1))
    ('132', '32×8')
    """
    used = [size for i, size in enumerate(sizes) if size > 1 or not i]
    return "×".join(map(str, used))
