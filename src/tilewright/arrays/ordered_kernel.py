"""The kernels that are tried for a product of arrays on a GPU, each with an order of the operands, and their times.

A new shape waits for these times, so only what a choice needs is computed; what a plan says of others is found again when it
is printed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..kernels.cuda_kernel import CudaKernel
from ..kernels.sets import Column
from ..planning.ways import NAMED, EngineShape, TimedWays, Way, sums_dtype, timed_ways, why_first
from ..problem import itemsize_of
from ..runtime.gpu.device import Device
from ..runtime.gpu.layout import Matrix
from .copies import copies_seconds, copy_of, sum_seconds
from .finish import FinishForm, finish_seconds
from .layouts import given_by_strides, is_down, start_of_lines
from .order import Order, OrderedMatrix

#: What a kernel computes.
STRAIGHT, CHANGED = "C = A·B", "Cᵀ = Bᵀ·Aᵀ"


class OrderedKernel(NamedTuple):
    """A kernel with an order of the operands, the product as it sees it, and the seconds of all copies."""

    kernel: CudaKernel
    once: bool
    order: Order
    shape: EngineShape
    copied: float

    def timed(self, gpu: Device) -> tuple[TimedWays, Column]:
        """The ways of the kernel, and their times with all copies and sums."""
        found, order = timed_ways(self.kernel, self.shape, gpu.card), self.order
        seconds = found.seconds + self.copied
        if not found.is_cut:
            return found, seconds
        m, n, _ = order.mnk
        elements, sums = m * n * math.prod(order.batch), sums_dtype(order.compute)
        adding = sum_seconds(found.parts, elements, sums, order.c.used.dtype, gpu.card.memory_ratio)
        return found, np.where(found.parts > 1, seconds + adding, seconds)


def why_fastest(tried: Sequence[OrderedKernel], gpu: Device, form: FinishForm | None) -> str:
    """Why the fastest of all ways was chosen. The next ones are found when this text is wanted."""
    ranked: list[tuple[Way, float, tuple[str, ...]]] = []
    for each in tried:
        found, totals = each.timed(gpu)
        words = (
            CHANGED if each.order.swapped else STRAIGHT,
            " and ".join(each.order.copies) or "no copies",
            ""
            if form is None
            else "the epilogue in the same kernel"
            if each.once
            else "the epilogue in another kernel",
        )
        fastest = np.lexsort((found.seconds, totals))[:NAMED]
        ranked += [(found.way(number), float(totals[number]), words) for number in fastest]
    return why_first(sorted(ranked, key=lambda each: each[1])[:NAMED])


def shape_of(order: Order, form: FinishForm | None, at_once: bool) -> EngineShape:
    """The product as a kernel sees it, which with ``at_once`` applies the epilogue."""
    p, q, c = (place.used for place in (order.p, order.q, order.c))
    batch = math.prod(order.batch)
    of_p, of_q = given_by_strides(p), given_by_strides(q)
    p_vector, q_vector = _vector(order.p, of_p, across=of_p.down), _vector(order.q, of_q, across=not of_q.down)
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


def _vector(place: OrderedMatrix, given: Matrix, *, across: bool) -> int:
    """The most bytes of an access to a factor. ``across`` k a row has no more than its own elements, unless it is a copy."""
    x, most = place.used, given.vector_bytes
    if not across or place.is_copied:
        return most
    inner = x.rows if is_down(x) else x.columns
    return math.gcd(most, inner * itemsize_of(x.dtype))


def copies_s(order: Order, form: FinishForm | None, at_once: bool, gpu: Device) -> float:
    """Seconds of the copies before and after, of all products, and of the launch that applies the epilogue."""
    ratio = gpu.card.memory_ratio
    before, after = [[copy_of(order, x) for x in places if x.is_copied] for places in ((order.p, order.q), (order.c,))]
    if form is not None and not at_once:
        return copies_seconds(before, ratio) + finish_seconds(after[0], form, ratio)
    return copies_seconds(before, ratio) + copies_seconds(after, ratio)
