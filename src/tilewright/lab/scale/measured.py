"""Takes the rates of workers and the bytes moved from a measured run on a cluster, to check the simulation against that
run."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ...large.cluster.feed import TILES_ANNOUNCED, TILES_AT_ONCE
from ...large.streaming.plan.cost import Rates
from ...large.streaming.plan.grid import Tile
from ...large.streaming.plan.plan import StreamPlan
from ...large.streaming.plan.schedule import Schedule
from ...large.streaming.run.executor import Queue
from .simulate import SimulatedWorker, simulate_cluster


class MeasuredRates(NamedTuple):
    """The rates of each worker, and the seconds until the workers requested their first tiles."""

    rates: list[Rates]
    start_s: float


def measured_rates(
    plan: StreamPlan, rates: Rates | Sequence[Rates], stored_s: Sequence[Sequence[float]], where: str = "storage"
) -> MeasuredRates:
    """Find the rates with which ``simulate_cluster`` follows a measured run of ``plan``. ``stored_s`` has for each
    worker the times at which it had stored a tile, in seconds from the start of the run. In ``stored_s``, workers
    without a region of the plan come last.

    ``rates`` were measured before the run, while nothing else ran. A worker's time from its first stored tile to its
    last gives the factor by which all its rates are slower. The time of a worker's first stored tile says when the
    worker began. A worker with fewer than two tiles is assumed to be as slow as the others. By the model, the run takes
    ``simulate_cluster(plan, found.rates, start_s=found.start_s).total_s``, where ``found`` is the result.
    """
    expected = simulate_cluster(plan, rates, workers=len(stored_s), where=where)
    model = [[event.time_s for event in expected.events if event[1:3] == (x, "stored")] for x in range(len(stored_s))]
    paces = [(_pace(measured), _pace(modelled)) for measured, modelled in zip(stored_s, model, strict=True)]
    factors = [measured / modelled if measured and modelled else math.nan for measured, modelled in paces]
    common = statistics.median([each for each in factors if each > 0] or [1.0])
    factors = [each if each > 0 else common for each in factors]
    first = [
        measured[0] - factor * modelled[0]
        for measured, modelled, factor in zip(map(sorted, stored_s), model, factors, strict=True)
        if measured and modelled
    ]
    alone = itertools.repeat(rates) if isinstance(rates, Rates) else rates
    slowed = [slower(each, factor) for each, factor in zip(alone, factors, strict=False)]
    return MeasuredRates(slowed, max(0.0, statistics.median(first or [0.0])))


def replayed_run(plan: StreamPlan, stored: Sequence[tuple[float, int, Tile]], workers: int) -> list[SimulatedWorker]:
    """The tiles of each worker and the bytes that it loaded in a run. ``stored`` has the time, the worker and the tile
    of each store.

    No rates are needed: workers request tiles from the queue in the order of the run, and each worker follows its
    schedule. So the computed bytes are exactly those of the run, even if workers took tiles of other regions, or began
    tiles in another order than they received them.
    """
    now = 0.0
    queue = Queue([*plan.regions, *[()] * (workers - len(plan.regions))], lambda: now)
    told: list[dict[Tile, Sequence[Tile]]] = [{} for _ in range(workers)]
    in_order = sorted(stored, key=lambda each: each[0])
    first = [(0.0, worker) for _ in range(TILES_AT_ONCE) for worker in range(workers)]
    for now, worker in [*first, *((time_s, worker) for time_s, worker, _ in in_order)]:  # noqa: B007  # the queue's clock
        taken = queue.take(worker)
        if taken is not None:
            told[worker][taken[0]] = taken[1][:TILES_ANNOUNCED]
    done = [SimulatedWorker() for _ in range(workers)]
    schedules = [Schedule(plan.grid, plan.slots) for _ in range(workers)]
    for _, worker, tile in in_order:
        schedules[worker].add(tile, told[worker].get(tile, ()))
        done[worker].tiles.append(tile)
        done[worker].out_bytes += math.prod(plan.grid.size(tile)) * plan.itemsize
    for each, schedule in zip(done, schedules, strict=True):
        each.in_bytes = sum(plan.grid.elements(load.block) for load in schedule.loads) * plan.itemsize
        each.received_bytes = each.in_bytes
    return done


def slower(rates: Rates, factor: float) -> Rates:
    """The rates of a worker for which everything takes ``factor`` times as long."""
    return replace(
        rates,
        flops=rates.flops / factor,
        in_bytes=rates.in_bytes / factor,
        out_bytes=rates.out_bytes / factor,
        read_bytes=rates.read_bytes / factor,
        stage_bytes=rates.stage_bytes / factor,
        write_bytes=rates.write_bytes / factor,
        most_read_bytes=rates.most_read_bytes / factor if rates.most_read_bytes else rates.most_read_bytes,
        latency_s=rates.latency_s * factor,
        wave_s=rates.wave_s * factor,
        copy_s=rates.copy_s * factor,
    )


def _pace(stored_s: Sequence[float]) -> float:
    """The mean number of seconds from one tile to the next; 0 if there are fewer than two tiles."""
    return (max(stored_s) - min(stored_s)) / (len(stored_s) - 1) if len(stored_s) > 1 else 0.0
