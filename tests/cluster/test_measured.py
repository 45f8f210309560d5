"""Rates that a run shows, and its bytes: against simulated runs on workers that are slower than their rates say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.lab.scale.measured import measured_rates, replayed_run, slower
from tilewright.lab.scale.simulate import Simulation, simulate_cluster
from tilewright.large.streaming.plan.cost import Cost, Rates
from tilewright.large.streaming.plan.cuts import Room
from tilewright.large.streaming.plan.grid import Grid
from tilewright.large.streaming.plan.partition import tiles_of_regions
from tilewright.large.streaming.plan.stream import StreamPlan

STATED = Rates(1e9, 1e8, 1e8, latency_s=1e-4, copy_s=1e-10)
NO_OVERHEAD = {"task_s": 0.0, "message_s": 0.0}


def plan_of(size: int, workers: int, k: int = 512) -> StreamPlan:
    grid = Grid(size, size, k, 64, 64, 128)
    parts = tuple(tuple(part) for part in tiles_of_regions(*grid.tiles, workers, "rows"))
    cost = Cost([], [], [], 0, 0, 0)
    return StreamPlan(grid, "float32", "rows", (6, 10, 2), 0, parts, cost, STATED, Room(1 << 30))


def stored_s(run: Simulation) -> list[list[float]]:
    return [
        [event.time_s for event in run.events if (event.what, event.worker) == ("stored", worker)]
        for worker in range(len(run.workers))
    ]


@pytest.mark.slow_cases("factors2", "factors3")
@pytest.mark.parametrize("factors", [(1, 1, 1, 1), (2, 2, 2, 2), (1.5, 1, 2.5, 1.2), (1, 1, 1, 8)])
def test_a_run_shows_how_slow_its_workers_are(factors):
    rates, plan = [slower(STATED, factor) for factor in factors], plan_of(1024, 4)
    run = simulate_cluster(plan, rates, start_s=0.7)
    found = measured_rates(plan, STATED, stored_s(run))
    assert [STATED.flops / each.flops for each in found.rates] == pytest.approx(factors, rel=0.1)
    again = simulate_cluster(plan, found.rates, start_s=found.start_s)
    assert again.total_s == pytest.approx(run.total_s, rel=0.05)
    other = plan_of(1536, 4)  # what one run shows predicts another
    assert simulate_cluster(other, found.rates).total_s == pytest.approx(
        simulate_cluster(other, rates).total_s, rel=0.1
    )


def test_a_run_that_is_as_fast_as_stated_shows_that():
    plan = plan_of(512, 2)
    found = measured_rates(plan, STATED, stored_s(simulate_cluster(plan, STATED)))
    assert found.rates == [STATED, STATED]
    assert found.start_s == 0


def test_a_worker_of_a_few_tiles_is_taken_for_as_slow_as_the_others():
    plan = plan_of(128, 4)
    run = simulate_cluster(plan, slower(STATED, 3))
    found = measured_rates(plan, STATED, [*stored_s(run)[:3], []])
    assert len(found.rates) == 4
    assert found.rates[3] == found.rates[0]


@pytest.mark.parametrize("factors", [(1, 1, 1, 1), (1.5, 1, 2.5, 1.2), (1, 1, 1, 8), (1, 1, 1, 1, 2, 3)])
def test_the_bytes_of_a_run_are_those_of_its_tiles(factors):
    """Two workers more than parts, in one case, take tiles of the others."""
    plan = plan_of(1024, 4)
    run = simulate_cluster(plan, [slower(STATED, factor) for factor in factors], **NO_OVERHEAD)
    stored = [(event.time_s, event.worker, event.tile) for event in run.events if event.what == "stored"]
    replayed = replayed_run(plan, stored, len(factors))
    assert [worker.tiles for worker in replayed] == [worker.tiles for worker in run.workers]
    assert [worker.in_bytes for worker in replayed] == [worker.in_bytes for worker in run.workers]
    assert len({worker.in_bytes for worker in replayed}) > 1 or len(set(factors)) == 1


def test_bytes_of_another_run_are_others():
    plan = plan_of(1024, 4)
    run = simulate_cluster(plan, [slower(STATED, factor) for factor in (1, 1, 2, 2)], **NO_OVERHEAD)
    stored = [(event.time_s, event.worker, event.tile) for event in run.events if event.what == "stored"]
    wrong = [(time_s, 0 if worker == 3 else worker, tile) for time_s, worker, tile in stored]
    replayed = replayed_run(plan, wrong, 4)
    assert [worker.in_bytes for worker in replayed] != [worker.in_bytes for worker in run.workers]


def test_tiles_begun_in_another_order_move_other_bytes():
    """Dask may begin the second tile of a worker first; the replay follows what was stored."""
    plan = replace(plan_of(256, 4, k=2048), slots=(3, 2, 2))
    run = simulate_cluster(plan, STATED, **NO_OVERHEAD)
    stored = [(event.time_s, event.worker, event.tile) for event in run.events if event.what == "stored"]
    (time_s, worker, tile), (later_s, _, other) = [each for each in stored if each[1] == 0][:2]
    swapped = [each for each in stored if each[2] not in (tile, other)]
    swapped += [(time_s, worker, other), (later_s, worker, tile)]
    replayed = replayed_run(plan, swapped, 4)
    assert replayed[0].tiles[:2] == [other, tile]
    assert replayed[1].in_bytes == run.workers[1].in_bytes
    assert replayed[0].in_bytes > run.workers[0].in_bytes


def test_slower_is_slower_in_everything():
    whole = replace(STATED, most_read_bytes=1e9, write_bytes=1e9, read_bytes=1e8)
    twice = slower(whole, 2)
    assert simulate_cluster(plan_of(512, 2), twice, **NO_OVERHEAD).total_s == pytest.approx(
        2 * simulate_cluster(plan_of(512, 2), whole, **NO_OVERHEAD).total_s
    )
