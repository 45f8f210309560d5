"""A job's timeline, as it was measured or as its plan predicts it, for files and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....records.timeline import Piece, Timeline
from ..places.events import Events
from ..plan.cost import cost
from ..plan.plan import StreamPlan
from ..plan.schedule import Schedule
from .job import Job


def timeline(job: Job, events: Events, environment: Mapping[str, Any]) -> Timeline:
    """What a run of ``job`` did, to its end or until it was stopped."""
    ordered = sorted(events.events, key=lambda event: event.start_s)
    pieces = [
        Piece(event.place, event.lane, event.name, max(0.0, event.start_s), max(0.0, event.start_s, event.end_s))
        for event in ordered
    ]
    return _timeline_of(job, pieces, environment, seconds=job.measured.seconds)


def predicted_timeline(job: Job, environment: Mapping[str, Any]) -> Timeline:
    """What the plan of ``job`` predicts."""
    return _timeline_of(job, predicted_pieces(job.plan, job.placement.names), environment, predicted=True)


def predicted_pieces(plan: StreamPlan, places: Sequence[str]) -> list[Piece]:
    """The spans that a plan was timed with, named as a run names them, in order; each place computes its own part."""
    pieces: list[Piece] = []
    for place, part in zip(places, plan.parts, strict=False):  # the plan may not use every place
        schedule = Schedule.of(plan.grid, plan.slots, part)
        cached = plan.host_cache(schedule) if plan.host_slots else None
        spent = cost(schedule, plan.rates, plan.itemsize, cached, plan.sharers)
        loads = [f"{x.block.operand.upper()}[{x.block.row}, {x.block.column}]" for x in schedule.loads]
        steps = [f"C[{x.tile.i}, {x.tile.j}] step {x.p}" for x in schedule.multiplies]
        stores = [f"C[{x.tile.i}, {x.tile.j}]" for x in schedule.stores]
        for lane, names, spans in (
            ("copy in", loads, spent.loads),
            ("compute", steps, spent.multiplies),
            ("copy out", stores, spent.stores),
        ):
            pieces += [Piece(place, lane, name, *span) for name, span in zip(names, spans, strict=True)]
    return sorted(pieces, key=lambda piece: piece.start_s)


def _timeline_of(job: Job, pieces: list[Piece], environment: Mapping[str, Any], **more: Any) -> Timeline:
    grid, plan, measured = job.plan.grid, job.plan, job.measured
    names = "total_s", "compute_s", "first_s", "exposed_s", "last_s"
    return Timeline(
        *(grid.m, grid.n, grid.k, plan.dtype, plan.itemsize, (grid.bm, grid.bn, grid.bk), pieces),
        *(measured.tiles, measured.before, measured.finished),
        plan=str(plan),
        expected={name: getattr(plan.cost, name) for name in names},
        environment=dict(environment),
        **more,
    )
