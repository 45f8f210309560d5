"""A plan of a product of GPU arrays, ready to run: all its copies and launches, compiled and loaded once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..runtime.gpu.device import Device
from ..runtime.gpu.product import GpuProduct, prepare_gpu_product
from .order import Order
from .plan import GpuPlan
from .strided_copy import Copy, prepare_copy


@dataclass(frozen=True)
class Launches:
    """All launches of a plan on one GPU, loaded. ``before`` copies operand 0 (P) or 1 (Q) first, ``after`` copies C last."""

    plan: GpuPlan
    product: GpuProduct
    before: tuple[tuple[int, Copy], ...]
    after: Copy | None

    def submit(self, a: int, b: int, c: int, workspace: int, stream: int) -> None:
        """Submit all of it to ``stream``, for arrays and workspace at these addresses. The GPU must be the current one."""
        order = self.plan.order
        p, q = (b, a) if order.swapped else (a, b)
        if not order.batch and order.workspace_bytes == 0:
            self.product(p, q, c, stream)
            return
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
            self.product(used[0], used[1], used[2], stream)
            if self.after is not None:
                self.after(used[2], original[2], stream)


def prepare_launches(plan: GpuPlan, gpu: Device) -> Launches:
    """Compile and load the copies and kernels of a plan. Raises what ``prepare_gpu_product`` does."""
    order = plan.order
    with gpu:
        product = prepare_gpu_product(gpu, plan.kernel, plan.compute, *order.mnk, params=plan.params)
        before = [(i, place) for i, place in enumerate((order.p, order.q)) if place.is_copied]
        copies = tuple((i, prepare_copy(gpu, place.original, place.used)) for i, place in before)
        after = prepare_copy(gpu, order.c.used, order.c.original) if order.c.at is not None else None
    return Launches(plan, product, copies, after)


def _offsets(order: Order) -> Iterator[tuple[int, int, int]]:
    """The byte offsets of P, Q and C for each product of a batch."""
    columns = []
    for place in (order.p, order.q, order.c):
        total = np.zeros((1,) * len(order.batch), np.int64)
        for axis, (n, step) in enumerate(zip(order.batch, place.steps, strict=True)):
            along = np.arange(n, dtype=np.int64) * step * np.dtype(place.original.dtype).itemsize
            total = total + along.reshape((n,) + (1,) * (len(order.batch) - axis - 1))
        columns.append(np.broadcast_to(total, order.batch).ravel().tolist())
    return zip(*columns, strict=True)
