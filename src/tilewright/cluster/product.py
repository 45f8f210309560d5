"""The job of a ``multiply`` on a cluster: the same plan, journal and result as on one machine, computed by workers."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import TilewrightError, UsageError
from ..files import Sink
from ..files.format import locate
from ..streaming.options import Options
from ..streaming.places.events import Events
from ..streaming.plan.cost import Cost
from ..streaming.plan.grid import Tile
from ..streaming.run.job import Job, Tell, plan_job
from ..streaming.run.opening import check_partition, check_parts, opened_product, refuse_overlap
from .connect import connected
from .feed import Feed, tile_operations
from .order import Order, RemotePlace, TileReport, Work
from .placement import ClusterPlacement, ask_workers, check_alike, place_on, workers_of

_NO_COST = Cost([], [], [], 0, 0, 0)


@contextlib.contextmanager
def open_cluster_job(
    a: Any, b: Any, out: Any, options: Options, cluster: Any, *, only_planned: bool = False
) -> Iterator[Job]:
    """The job of a product on ``cluster`` (see ``connected``), planned and ready to run."""
    with contextlib.ExitStack() as stack:
        product = opened_product(stack, a, b, options.dtype)
        refuse_overlap(out, a=a, b=b)
        check_partition(options.partition)
        client = stack.enter_context(connected(cluster))
        order = _order(product, out, options, client)
        placement = _aligned(place_on(client, order), out)
        check_parts(options.partition, placement.names)
        computation = _Computation(client, order, placement)
        yield plan_job(product, placement, computation, out, options, stack, only_planned=only_planned)


def _order(product: Any, out: Any, options: Options, client: Any) -> Order:
    openers = tuple(source.opener() for source in product.sources)
    for name, opener in zip("ab", openers, strict=True):
        if opener is None:
            raise UsageError(f"{name} is an array in this process's memory: give a file or a Dask array to a cluster")
    hosts = list(workers_of(client.scheduler_info(n_workers=-1)).values())
    target = str(Path(os.fspath(out)).absolute()) if isinstance(out, (str, os.PathLike)) else None
    return Order(
        secrets.token_hex(6),
        openers,
        tuple(source.fingerprint() for source in product.sources),
        product.dtype,
        target,
        Options(options.memory, options.device, options.device_memory),
        neighbours=max(map(hosts.count, hosts)),
    )


def _aligned(placement: ClusterPlacement, out: Any) -> ClusterPlacement:
    """With tiles that begin and end at multiples of the result's chunks: two workers must never write one chunk."""
    if not isinstance(out, (str, os.PathLike)):
        return placement
    grain = math.lcm(placement.room.grain, locate(os.fspath(out))[0].chunk)
    return dataclasses.replace(placement, room=dataclasses.replace(placement.room, grain=grain))


@dataclasses.dataclass(frozen=True)
class _Computation:
    """Computes a job on the workers, and says of each tile that it is finished when a worker has it on the disk."""

    client: Any
    order: Order
    placement: ClusterPlacement

    def __call__(self, job: Job, sink: Sink, tell: Tell, events: Events) -> None:
        plan, by_worker = job.plan, job.measured.read_by
        alone = dataclasses.replace(plan, parts=((),), cost=_NO_COST, choice=None, host_slots=0)
        work = Work(self.order, alone, self.placement.kernel_fact, sink.attachment())

        def finished(report: TileReport) -> None:
            by_worker[str(report.place)] = by_worker.get(str(report.place), 0) + report.read_bytes
            tell.read(report.read_bytes)
            if report.elements is not None:
                sink.write(plan.grid.rows(report.tile.i), plan.grid.columns(report.tile.j), report.elements)
            end_s = events.now()
            events.at(str(report.place)).add("compute", _name(report.tile), max(0.0, end_s - report.seconds), end_s)
            tell.finished(report.tile)
            tell.multiplied(tile_operations(plan.grid, report.tile))

        Feed(self.client, work, self.placement.places, plan.parts, finished, self._recruited).run()

    def _recruited(self, workers: Sequence[str]) -> list[RemotePlace]:
        """The places of workers that joined and would compute the same bits; others are left alone."""
        with contextlib.suppress(TilewrightError):
            facts = ask_workers(self.client, self.order, workers)
            alike = [each for each in facts if each.kernel == self.placement.kernel_fact]
            check_alike([*self.placement.facts[:1], *alike])
            return [RemotePlace(each.worker, device) for each in alike for device in each.devices]
        return []


def _name(tile: Tile) -> str:
    return f"C[{tile.i}, {tile.j}]"
