"""Predicts how a product scales. For clusters of growing size, the product is planned by the planner of real runs, and
its run is simulated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...errors import UsageError
from ...large.streaming.plan.cost import Rates
from ...large.streaming.plan.cuts import Room
from ...large.streaming.plan.stream import TYPICAL, plan_stream
from ...product.problem import Problem
from ...records.scaling import WHERE, ScalingPoint
from .simulate import simulate_cluster

#: The sides of tiles are multiples of this number, which suits the kernels of GPUs.
GRAIN = 256
#: The dtypes that can be simulated.
DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class ClusterRates:
    """A cluster of equal workers: each worker's operations a second, its bytes of memory for blocks, and the bytes a
    second of its link in each direction. Storage reads and writes ``storage`` bytes a second for each worker, or for
    all of them together if the storage is ``shared``. The scheduler needs ``task_s`` seconds for each tile, a message
    takes ``message_s``, and workers are ready at ``start_s``."""

    flops: float
    memory: int
    link: float
    storage: float = math.inf
    shared: bool = False
    task_s: float = 1e-3
    message_s: float = 2e-4
    start_s: float = 0.0

    def rates(self, workers: int, where: str) -> Rates:
        """The rates of one worker, in the form that ``plan_stream`` and ``simulate`` need."""
        link = replace(TYPICAL, flops=self.flops, in_bytes=self.link, out_bytes=self.link, read_bytes=self.link)
        if where == "workers":
            return replace(link, most_read_bytes=workers * self.link)
        total = self.storage if self.shared else workers * self.storage
        return replace(link, most_read_bytes=total, write_bytes=total)


def scaling_point(
    shape: tuple[int, int, int],
    dtype: str,
    workers: int,
    cluster: ClusterRates,
    where: str = "storage",
    *,
    grown_from: tuple[int, int, int] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> ScalingPoint:
    """Plan and simulate C[m×n] = A[m×k]·B[k×n] for ``shape`` = (m, n, k) on the given number of workers.

    ``grown_from`` is the shape for the first number of workers, in a series of weak scaling. A plan uses fewer workers
    than given if more would not reduce the time by 10 %. Raises UsageError for an unknown dtype or ``where``, and
    MemoryLimitError in the same cases as ``plan_stream``.
    """
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r}: must be {' or '.join(DTYPES)}")
    if where not in WHERE:
        raise UsageError(f"where {where!r}: must be {' or '.join(WHERE)}")
    (m, n, k), rates = shape, cluster.rates(workers, where)
    plan = plan_stream(Problem(m, n, k, dtype), Room(cluster.memory, grain=GRAIN), rates, workers)
    overheads = {"task_s": cluster.task_s, "message_s": cluster.message_s, "start_s": cluster.start_s}
    run = simulate_cluster(plan, rates, where=where, **overheads)  # type: ignore[arg-type]  # no other keyword is among them
    grid, used = plan.grid, len(plan.regions)
    down = len({min(tile.i for tile in region) for region in plan.regions if region})
    stated = {
        "flops": cluster.flops,
        "link_bytes": cluster.link,
        "latency_s": rates.latency_s,
        "memory": cluster.memory,
    }
    if where == "storage":
        stated["storage_bytes"] = rates.write_bytes
        if not cluster.shared:
            stated["storage_each_bytes"] = cluster.storage
    return ScalingPoint(
        m=m,
        n=n,
        k=k,
        dtype=dtype,
        grown_from=grown_from,
        where=where,
        workers=workers,
        used=used,
        parts=(down, used // down),
        tiles=grid.tiles,
        tile=(grid.bm, grid.bn, grid.bk),
        order=plan.order,
        slots=plan.slots,
        rates=stated | overheads,
        predicted_s=plan.cost.total_s,
        total_s=run.total_s,
        efficiency=2.0 * m * n * k / workers / cluster.flops / run.total_s,
        moved_bytes=run.moved_bytes,
        least_bytes=run.least_bytes,
        received_bytes=sum(worker.received_bytes for worker in run.workers),
        shares=run.shares,
        environment=dict(environment or {}),
    )


def weak_shape(shape: tuple[int, int, int], first: int, workers: int) -> tuple[int, int, int]:
    """The larger shape of a series of weak scaling: its A, B and C take as many bytes for each of ``workers`` workers
    as those of ``shape`` take for each of ``first`` workers.

    >>> weak_shape((1000, 1000, 1000), 4, 64)
    (4000, 4000, 4000)
    """
    m, n, k = (max(1, round(length * math.sqrt(workers / first))) for length in shape)
    return m, n, k
