"""Plans of products of arrays on a GPU: the layout of the operands, what is copied, and which kernel multiplies."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..host.machine import bytes_text
from ..kernels.cuda_kernel import CudaKernel, Launch
from ..planning.boxed import BoxedShape, ranked_candidates, why_first
from ..planning.choice import Choice, choose_gpu
from ..planning.plan import Plan, Rows, rate_text
from ..problem import Problem
from ..runtime.gpu.device import Device
from .layouts import starts_lines
from .order import Order


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
        """Bytes for these copies, and for the sums of parts of k."""
        return self.order.workspace_bytes + self.parts_bytes

    @property
    def parts_bytes(self) -> int:
        """Bytes for the sums of parts of k, which are float32; none if k is not cut."""
        m, n, _ = self.order.mnk
        return 4 * m * n * self.parts * self.problem.batch if self.parts > 1 else 0

    @property
    def predicted_s(self) -> float | None:
        """Predicted seconds on an idle GPU, without copies; None for kernels without a model."""
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
            ("computes", "Cᵀ = Bᵀ·Aᵀ, so that less is copied" if self.swapped else "C = A·B"),
        ]
        if self.parts > 1:
            rows.append(("k", f"in {self.parts} parts, whose float32 sums are added in a fixed order"))
        if self.predicted is not None:
            rows.append(("predicted", rate_text(self.problem, self.predicted)))
        if self.compute != self.problem.dtype:
            rows.append(("in", f"{self.compute}, rounded to {self.problem.dtype}"))
        return [
            *rows,
            ("copies", "; ".join(self.copies) or "none"),
            ("workspace", str(bytes_text(self.workspace_bytes))),
        ]


def gpu_plan(order: Order, gpu: Device) -> GpuPlan:
    """The plan for operands in this order on a GPU. Raises DTypeError where no kernel is for them."""
    m, n, k = order.mnk
    shapes = order.shapes
    choice = choose_gpu(order.compute, m, n, k, capability=gpu.capability, sms=gpu.sms, gpu=gpu.name)
    problem = Problem(shapes.m, shapes.n, shapes.k, order.dtype, math.prod(shapes.batch))
    parts, predicted = 1, None
    if choice.kernel.boxes and min(m, n, k, problem.batch):
        lines = all(starts_lines(place.used) for place in (order.p, order.q))
        ways = ranked_candidates(choice.kernel, BoxedShape(order.compute, m, n, k, problem.batch, lines), gpu.sms)
        choice = replace(choice, params=ways[0].params, why_params=why_first(ways))
        parts, predicted = ways[0].parts, ways[0].seconds
    launch = choice.kernel.launch(m, n, k, **choice.params)
    return GpuPlan(problem, choice, launch, order, gpu.name, gpu.ordinal, parts, predicted)


def _extent(sizes: tuple[int, int, int]) -> str:
    """The sizes that are not 1, as text; at least the first.

    >>> _extent((132, 1, 1)), _extent((32, 8, 1))
    ('132', '32×8')
    """
    used = [size for i, size in enumerate(sizes) if size > 1 or not i]
    return "×".join(map(str, used))
