"""Plans of products of arrays on a GPU: the layout of the operands, what is copied, and which kernel multiplies."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..errors import DTypeError
from ..host.machine import bytes_text
from ..kernels.cuda_kernel import CudaKernel, Launch
from ..planning.bounds import bound_rows
from ..planning.choice import RESIDUES, ROUNDED, SPLIT, Choice, choose_gpu, engine_on_gpu, takes_fastest
from ..planning.plan import Plan, Rows, rate_text
from ..planning.ways import EngineShape, Way, sums_dtype, ways, why_first
from ..problem import RESIDUES_IN, Problem, itemsize_of
from ..runtime.gpu.device import Device
from ..runtime.gpu.residue_operand import ResidueProduct
from ..runtime.gpu.split_operand import SplitProduct
from ..runtime.gpu.strided_product import vector_bytes
from .copies import copies_seconds, copy_of, sum_seconds
from .dtypes import made_dtype
from .finish import FinishForm, finish_seconds
from .layouts import Layouts, RowMajor, is_down, layouts_of, start_of_lines, strides_of
from .order import Order, OrderedMatrix
from .residues import residues_rows
from .split import can_split, rounded_rows, split_of, split_rows, split_seconds

#: The dtype of the parts of operands, if they are split: with some of these no number is multiplied as it is.
_PARTED = {"float32": SPLIT, "float64": RESIDUES, ROUNDED: ROUNDED} | {dtype: dtype for dtype in RESIDUES_IN}
#: What a kernel computes.
_STRAIGHT, _CHANGED = "C = A·B", "Cᵀ = Bᵀ·Aᵀ"


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
            ("computes", _CHANGED if self.swapped else _STRAIGHT),
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
        ]


#: ``arranged(compute, layouts, swapped, at_once)``: the order of the operands for a kernel, see ``order.arrange``; with
#: ``at_once`` the kernel applies the epilogue. None where it cannot store the result.
Arranged = Callable[[str, Layouts, bool | None, bool], Order | None]


def gpu_plan(
    arranged: Arranged,
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
    by_engine = (_by_engine(arranged, compute, gpu, form, splits) for compute in computes)
    able = (plan for plan in by_engine if plan is not None)
    found = (
        min(able, key=lambda plan: plan.predicted or 0, default=None) if takes_fastest(precision) else next(able, None)
    )
    if found is not None:
        return replace(found, problem=replace(found.problem, precision=precision))
    if form is not None and form.blocks is not None:
        raise DTypeError(
            f"scale_a and scale_b are those of blocks: on a GPU they are for float8, precision 'standard' and compute "
            f"capability 9.0; this is {computes[0]} on {gpu.capability}"
        )
    for compute in computes:
        order = None if compute in _PARTED.values() else arranged(compute, RowMajor(), None, False)
        if order is None:
            continue
        m, n, k = order.mnk
        with contextlib.suppress(*[DTypeError] * (compute != computes[-1])):
            choice = choose_gpu(compute, m, n, k, capability=gpu.capability, sms=gpu.sms, gpu=gpu.name)
            plan = _plan(order, choice, gpu, form=form)
            return replace(plan, problem=replace(plan.problem, precision=precision))
    raise DTypeError(
        f"no kernel for compute capability {gpu.capability} stores products of {computes[0]} in this dtype"
    )


def _by_engine(arranged: Arranged, compute: str, gpu: Device, form: FinishForm | None, splits: bool) -> GpuPlan | None:
    """The plan by the engine's kernels; None if there is none for this product."""
    found: list[tuple[Way, float, tuple[str, ...], Order, bool]] = []
    parted = _PARTED.get(compute, "") if splits else ""
    splitting = engine_on_gpu(RESIDUES if parted in RESIDUES_IN else parted, gpu.capability) if parted else ()
    plain = () if compute == parted else engine_on_gpu(compute, gpu.capability)
    compute = made_dtype(compute) if compute == parted else compute
    for kernel, once, order in _tried((*plain, *splitting), arranged, compute, form):
        m, n, k = order.mnk
        batch = math.prod(order.batch)
        if not min(m, n, k, batch):
            choice = Choice(kernel, compute, kernel.params, "there is nothing to multiply")
            return _plan(order, choice, gpu, form=form)
        if kernel.suits is not None and not kernel.suits(m=m, n=n, k=k, batch=batch):
            continue
        copied, shape = _copies_s(order, form, once, gpu), _shape(order, form, once)
        if kernel in splitting:
            if not can_split(order, parted):
                continue
            copied, shape = copied + split_seconds(order, parted, gpu.card.memory_ratio), replace(shape, dtype=parted)
        words = (
            _CHANGED if order.swapped else _STRAIGHT,
            " and ".join(order.copies) or "no copies",
            "" if form is None else "the epilogue in the same kernel" if once else "the epilogue in another kernel",
        )
        found += [
            (way, way.seconds + copied + _sums_s(order, way, gpu), words, order, once)
            for way in ways(kernel, shape, gpu.card)
        ]
    if not found:
        return None
    found.sort(key=lambda each: each[1])
    way, seconds, _, order, once = found[0]
    why = f"the engine's kernel for {compute} on compute capability {gpu.capability} with the least predicted time"
    computed = parted if way.kernel in splitting else compute
    choice = Choice(way.kernel, computed, way.params, why, why_first([each[:3] for each in found]))
    return _plan(order, choice, gpu, way.parts, seconds, form=form, at_once=once)


def _tried(
    kernels: Sequence[CudaKernel], arranged: Arranged, compute: str, form: FinishForm | None
) -> Iterator[tuple[CudaKernel, bool, Order]]:
    """Every kernel with the orders of operands that it may be given, and whether it then applies the epilogue."""
    in_blocks = form is not None and form.blocks is not None
    for kernel in kernels:
        if in_blocks and kernel.blocks is None:
            continue
        changes: tuple[bool | None, ...] = (None,)
        if in_blocks:
            changes = (False,)
        elif kernel.strides and kernel.strides["c"] != "rows":
            changes = (False, True)
        elif "c_down" in kernel.boxes:
            changes = (None, False, True)
        at_once = (False, True) if form is not None and kernel.finishes is not None else (False,)
        for once in at_once:
            orders = dict.fromkeys(
                arranged(compute, layouts, swapped, once) for swapped in changes for layouts in layouts_of(kernel)
            )
            able = [
                order for order in orders if order is not None and (not once or form is None or _finishes(order, form))
            ]
            for order in able:
                # The first copies least. With boxes another one may have better tiles, but is not worth a copy of C.
                if not kernel.boxes or order is able[0] or not (order.transposed or order.c.is_copied):
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


def _shape(order: Order, form: FinishForm | None, at_once: bool) -> EngineShape:
    """The product as a kernel sees it, which with ``at_once`` applies the epilogue."""
    p, q, c = (place.used for place in (order.p, order.q, order.c))
    batch = math.prod(order.batch)
    of_p, of_q = strides_of(p), strides_of(q)
    p_vector, q_vector = _vector(order.p, across=of_p.down), _vector(order.q, across=not of_q.down)
    vectors = None if form is None or not at_once else form.boxed(swapped=order.swapped).vectors
    m, n, k = order.mnk
    return EngineShape(
        order.compute,
        c.dtype,
        m,
        n,
        k,
        batch,
        start_of_lines(p),
        start_of_lines(q),
        of_p.down,
        not of_q.down,
        p_vector,
        q_vector,
        vectors,
        form is not None and form.blocks is not None,
        is_down(c),
    )


def _vector(place: OrderedMatrix, *, across: bool) -> int:
    """The most bytes of an access to a factor. ``across`` k a row has no more than its own elements, unless it is a copy."""
    x = place.used
    most = vector_bytes(strides_of(x), x.dtype, (x.rows, x.columns))
    if not across or place.is_copied:
        return most
    inner = x.rows if is_down(x) else x.columns
    return math.gcd(most, inner * itemsize_of(x.dtype))


def _copies_s(order: Order, form: FinishForm | None, at_once: bool, gpu: Device) -> float:
    """Seconds of the copies before and after, of all products, and of the launch that applies the epilogue."""
    ratio = gpu.card.memory_ratio
    before, after = [[copy_of(order, x) for x in places if x.is_copied] for places in ((order.p, order.q), (order.c,))]
    if form is not None and not at_once:
        return copies_seconds(before, ratio) + finish_seconds(after[0], form, ratio)
    return copies_seconds(before, ratio) + copies_seconds(after, ratio)


def _sums_s(order: Order, way: Way, gpu: Device) -> float:
    if way.parts == 1:
        return 0
    m, n, _ = order.mnk
    elements, sums = m * n * math.prod(order.batch), sums_dtype(order.compute)
    return sum_seconds(way.parts, elements, sums, order.c.used.dtype, gpu.card.memory_ratio)


def _extent(sizes: tuple[int, int, int]) -> str:
    """The sizes that are not 1, as text; at least the first.

    >>> _extent((132, 1, 1)), _extent((32, 8, 1))
    ('132', '32×8')
    """
    used = [size for i, size in enumerate(sizes) if size > 1 or not i]
    return "×".join(map(str, used))
