"""The simulator of a cluster: against times computed by hand, the model of one place, and the schedules of workers."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.errors import UsageError
from tilewright.lab.scale.simulate import SPENT, SharedRate, Simulation, simulate_cluster
from tilewright.large.streaming.plan.cost import Cost, Rates, cost
from tilewright.large.streaming.plan.cuts import Room
from tilewright.large.streaming.plan.grid import Grid, Tile
from tilewright.large.streaming.plan.partition import tiles_of_regions
from tilewright.large.streaming.plan.schedule import Schedule
from tilewright.large.streaming.plan.stream import StreamPlan, plan_stream
from tilewright.product.problem import Problem

ITEMSIZE = 4
NO_OVERHEAD = {"task_s": 0.0, "message_s": 0.0}


def plan_of(grid: Grid, workers: int, slots: tuple[int, int, int], order: str = "rows") -> StreamPlan:
    """A plan that no search has made."""
    parts = tuple(tuple(part) for part in tiles_of_regions(*grid.tiles, workers, order))
    cost_ = Cost([], [], [], 0, 0, 0)
    room = Room(1 << 40)
    return StreamPlan(grid, "float32", order, slots, 0, parts, cost_, Rates(1.0, 1.0, 1.0), room)


def check(simulation: Simulation) -> None:
    """What must hold for every simulation, by other means than its own: tiles, bytes, and times."""
    plan, workers = simulation.plan, simulation.workers
    assert Counter(tile for worker in workers for tile in worker.tiles) == Counter(plan.tiles), "tiles"
    for part, worker in zip(plan.regions, workers, strict=True):
        assert worker.out_bytes == ITEMSIZE * sum(math.prod(plan.grid.size(tile)) for tile in worker.tiles), "C"
        if set(worker.tiles) == set(part):  # no tile was taken by another worker, nor of one
            loads = Schedule.of(plan.grid, plan.slots, worker.tiles).loads
            assert worker.in_bytes == ITEMSIZE * sum(plan.grid.elements(load.block) for load in loads), "bytes"
        assert sum(worker.spent_s.values()) == pytest.approx(simulation.total_s), "time"
        assert min(worker.spent_s.values()) >= -1e-9 * simulation.total_s
    assert sum(simulation.shares.values()) == pytest.approx(1)
    times = [event.time_s for event in simulation.events]
    assert times == sorted(times)
    assert simulation.total_s == max(times)
    for tile in plan.tiles:
        story = [(event.what, event.worker) for event in simulation.events if event.tile == tile]
        assert [what for what, _ in story] == ["given", "begun", "stored"]
        assert len({worker for _, worker in story}) == 1


# ---- computed by hand ------------------------------------------------------------------------------------------------

#: Four tiles of 10×10, k = 10: a block has 400 bytes, which take 1 s; a tile has 2,000 operations, which take 2 s.
FOUR = Grid(20, 20, 10, 10, 10, 10)
SECONDS = Rates(1000.0, 400.0, 400.0)


def times(simulation: Simulation, worker: int) -> list[tuple[str, float]]:
    return [(event.what, event.time_s) for event in simulation.events if event.worker == worker]


def test_two_workers_with_two_tiles_each():
    """A and B are loaded until 2 s, A of the second tile until 3; computed 2–4 and 4–6; stored 4–5 and 6–7."""
    found = simulate_cluster(plan_of(FOUR, 2, (2, 2, 2)), SECONDS, **NO_OVERHEAD)
    check(found)
    story = [("given", 0), ("given", 0), ("begun", 2), ("begun", 4), ("stored", 5), ("stored", 7)]
    assert times(found, 0) == times(found, 1) == story
    assert [worker.in_bytes for worker in found.workers] == [1200, 1200]
    assert found.workers[0].spent_s == {**dict.fromkeys(SPENT, 0.0), "compute": 4.0, "link": 3.0}
    assert (found.workers[0].busy_s, found.workers[0].waiting_s, found.workers[0].idle_s) == (4.0, 3.0, 0.0)
    assert found.binds == "compute"


def test_one_slot_of_c_is_waited_for():
    """The second tile begins when the first is stored, at 5 s."""
    found = simulate_cluster(plan_of(FOUR, 2, (2, 2, 1)), SECONDS, **NO_OVERHEAD)
    assert times(found, 0)[2:] == [("begun", 2), ("stored", 5), ("begun", 5), ("stored", 8)]


def test_the_scheduler_gives_one_tile_after_another():
    """Asked at 0.25 s, it gives tiles at 0.75, 1.25, 1.75 and 2.25; a tile arrives 0.25 s later."""
    found = simulate_cluster(plan_of(FOUR, 2, (2, 2, 2)), SECONDS, task_s=0.5, message_s=0.25)
    check(found)
    assert times(found, 0) == [
        ("given", 0.75),
        ("given", 1.75),
        ("begun", 3),
        ("begun", 5),
        ("stored", 6),
        ("stored", 8),
    ]
    assert times(found, 1)[-1] == ("stored", 8.5)
    assert found.workers[0].spent_s["scheduler"] == 1.0
    assert found.workers[0].spent_s["balance"] == 0.5


def test_a_storage_is_shared():
    """Two workers read 400 bytes a second together, so that blocks come at 2, 4 and 6 s."""
    found = simulate_cluster(plan_of(FOUR, 2, (2, 2, 2)), replace(SECONDS, read_bytes=400.0), **NO_OVERHEAD)
    check(found)
    assert times(found, 0)[2:] == [("begun", 4), ("begun", 6), ("stored", 7), ("stored", 9)]
    assert found.workers[0].spent_s["storage"] == 2.0
    assert found.workers[0].spent_s["link"] == 3.0


def test_blocks_at_their_owners_pass_no_link():
    """2×2 workers with a tile each, k in two steps: each owns one of its two blocks of A, and one of those of B."""
    grid = Grid(20, 20, 20, 10, 10, 10)
    found = simulate_cluster(plan_of(grid, 4, (2, 2, 1)), SECONDS, where="workers", **NO_OVERHEAD)
    check(found)
    assert [worker.in_bytes for worker in found.workers] == [1600] * 4
    assert [worker.received_bytes for worker in found.workers] == [800] * 4
    assert {found.total_s} == {2 + 4 + 1}  # all blocks are copied to slots, own ones too


def test_copies_take_time_from_the_processors():
    found = simulate_cluster(plan_of(FOUR, 2, (2, 2, 2)), replace(SECONDS, copy_s=1 / 400), **NO_OVERHEAD)
    assert found.workers[0].busy_s == 4 + 3 + 1  # three blocks, and the tile that is stored before another


# ---- against the model of one place ----------------------------------------------------------------------------------

SIZES = st.sampled_from([1, 3, 5, 8, 12, 17])


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    m, n, k = (draw(SIZES) for _ in range(3))
    return Grid(m, n, k, *(draw(st.integers(1, length)) for length in (m, n, k)))


rates = st.floats(1e3, 1e6)
places = st.builds(
    Rates, flops=rates, in_bytes=rates, out_bytes=rates, read_bytes=st.one_of(rates, st.just(math.inf)),
    latency_s=st.sampled_from([0.0, 1e-3]), wave=st.just((2, 2, 3)), wave_s=st.sampled_from([0.0, 1e-3]),
    copy_s=st.sampled_from([0.0, 1e-5]),
)  # fmt: skip
slots = st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3))


@pytest.mark.slow
@settings(max_examples=60)
@given(grids(), places, slots)
def test_a_worker_that_has_all_tiles_takes_the_time_of_the_plans_model(grid, rates, slots):
    plan = plan_of(grid, 1, slots)
    found = simulate_cluster(plan, rates, in_flight=len(plan.tiles), **NO_OVERHEAD)
    check(found)
    expected = cost(plan.schedule(), rates, ITEMSIZE)
    assert found.total_s == pytest.approx(expected.total_s)
    assert found.workers[0].in_bytes == expected.in_bytes
    assert found.workers[0].busy_s == pytest.approx(expected.compute_s)


@settings(max_examples=40)
@given(grids(), st.lists(places, min_size=2, max_size=5), slots, st.integers(1, 40))
def test_bytes_do_not_depend_on_times_and_groups(grid, rates, slots, groups):
    """Unequal workers take tiles of others, so that their bytes are those of no plan; but each tile is computed once."""
    plan = plan_of(grid, len(rates), slots)
    found = simulate_cluster(plan, rates, groups=groups)
    check(found)
    schedules = [Schedule.of(grid, slots, worker.tiles) for worker in found.workers]
    least = [ITEMSIZE * sum({load.block: grid.elements(load.block) for load in s.loads}.values()) for s in schedules]
    assert all(worker.in_bytes >= once for worker, once in zip(found.workers, least, strict=True))
    assert found.moved_bytes >= found.least_bytes


@pytest.mark.slow
def test_groups_of_steps_take_the_time_of_their_steps():
    grid = Grid(8 * 64, 8 * 64, 8 * 40, 64, 64, 8)
    plan = plan_of(grid, 4, (4, 6, 2))
    for read_bytes, total in itertools.product((2e5, 1e6, 1e9), (2e5, 8e5)):
        rates = Rates(1e8, 1e6, 1e6, read_bytes, latency_s=1e-5, most_read_bytes=total)
        every, grouped = (simulate_cluster(plan, rates, groups=groups, **NO_OVERHEAD) for groups in (10**6, 64 * 4))
        assert len({step.total_s for step in (every, grouped)}) == 2  # the times are not the same, but nearly
        assert grouped.total_s == pytest.approx(every.total_s, rel=0.05)
        assert [w.in_bytes for w in grouped.workers] == [w.in_bytes for w in every.workers]


# ---- what must come out ----------------------------------------------------------------------------------------------


def h200s(workers: int, **more: float) -> Rates:
    return Rates(50e12, 50e9, 50e9, latency_s=1e-4, wave=(128, 256, 132), wave_s=1e-5, **more)


@pytest.mark.slow
def test_where_computing_dominates_workers_are_nearly_always_busy():
    rates = h200s(16, read_bytes=50e9, most_read_bytes=16 * 50e9)
    plan = plan_stream(Problem(262144, 262144, 262144, "float32"), Room(130 << 30, grain=256), rates, 16)
    found = simulate_cluster(plan, rates)
    check(found)
    assert len(plan.regions) == 16
    assert 0.97 < 2 * 262144**3 / (16 * 50e12 * found.total_s) <= 1
    assert found.binds == "compute"


def test_a_storage_that_binds_decides_the_time():
    grid = Grid(4096, 4096, 4096, 512, 512, 512)
    plan, total = plan_of(grid, 16, (4, 4, 2)), 1e8
    found = simulate_cluster(plan, Rates(1e14, 1e9, 1e9, 1e9, most_read_bytes=total), **NO_OVERHEAD)
    check(found)
    read = sum(worker.received_bytes for worker in found.workers)
    assert found.total_s == pytest.approx(read / total, rel=0.05)
    assert found.total_s > read / total
    assert found.binds == "storage"


def test_a_slow_worker_gets_fewer_tiles():
    plan = plan_of(Grid(1280, 1280, 128, 128, 128, 128), 4, (4, 4, 2))
    fast = Rates(1e9, 1e9, 1e9)
    found = simulate_cluster(plan, [fast, fast, replace(fast, flops=2e8), fast])
    check(found)
    tiles = [len(worker.tiles) for worker in found.workers]
    assert tiles[2] < 15 < 25 < min(tiles[:2] + tiles[3:])
    alone = simulate_cluster(plan, replace(fast, flops=2e8))
    assert found.total_s < 0.4 * alone.total_s


@pytest.mark.slow
def test_many_workers_bind_the_scheduler():
    plan = plan_of(Grid(64, 64, 1, 1, 1, 1), 1024, (1, 1, 1))
    found = simulate_cluster(plan, Rates(1e9, 1e9, 1e9), task_s=1e-3)
    assert found.binds == "scheduler"
    assert found.total_s == pytest.approx(4096 * 1e-3, rel=0.01)


def test_a_start_is_waited_for():
    found = simulate_cluster(plan_of(FOUR, 2, (2, 2, 2)), SECONDS, start_s=3.0, **NO_OVERHEAD)
    check(found)
    assert found.total_s == 10
    assert found.workers[0].spent_s["start"] == 3


@pytest.mark.slow_cases("workers")
@pytest.mark.parametrize("where", ["storage", "workers"])
def test_a_simulation_is_the_same_each_time(where):
    plan = plan_of(Grid(1280, 1280, 1280, 128, 128, 128), 6, (4, 4, 2))
    speeds = [Rates(flops, 1e9, 1e9, 3e8, latency_s=1e-4) for flops in (1e9, 2e9, 3e9, 1e9, 2e9, 5e8)]
    first, second = (simulate_cluster(plan, speeds, where=where) for _ in range(2))
    assert first == second
    check(first)


@pytest.mark.parametrize(
    ("m", "n", "k", "workers"), [(512, 512, 512, 4), (512, 512, 512, 16), (500, 700, 300, 4), (64, 64, 4096, 4)]
)
def test_bytes_received_are_those_of_the_formula(m, n, k, workers):
    """m·k/pr + k·n/pc without its own share, for each worker; the blocks of a step are whole, so shares differ by one."""
    plan = plan_of(Grid(m, n, k, 32, 32, 16), workers, (10**4, 10**4, 2))
    found = simulate_cluster(plan, Rates(1e9, 1e9, 1e9, 1e9), where="workers")
    check(found)
    pr, pc = (len({tile[axis] for tile in (part[0] for part in plan.regions)}) for axis in (0, 1))
    assert pr * pc == workers
    expected = ITEMSIZE * (m * k * (pc - 1) + k * n * (pr - 1))
    assert sum(worker.received_bytes for worker in found.workers) == expected


# ---- results that the checks reject ----------------------------------------------------------------------------------


def wrong(simulation: Simulation, **changes: object) -> Simulation:
    """The simulation with another first worker."""
    first, *others = simulation.workers
    return replace(simulation, workers=(replace(first, **changes), *others))


@pytest.mark.parametrize(
    ("what", "planted"),
    [
        ("bytes", lambda found: wrong(found, in_bytes=found.workers[0].in_bytes - 400)),
        ("C", lambda found: wrong(found, out_bytes=found.workers[0].out_bytes + 400)),
        ("tiles", lambda found: wrong(found, tiles=[Tile(0, 0), Tile(0, 0)])),
        ("time", lambda found: replace(found, total_s=found.total_s * 1.01)),
    ],
)
def test_a_wrong_simulation_is_rejected(what, planted):
    found = simulate_cluster(plan_of(FOUR, 2, (2, 2, 2)), SECONDS)
    check(found)
    with pytest.raises(AssertionError, match=what):
        check(planted(found))


@pytest.mark.slow_cases("arguments2")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"where": "moon"}, "must be storage or workers"),
        ({"rates": [SECONDS]}, "the plan has 2 regions, got the rates of 1 workers"),
        ({"plan": plan_of(Grid(10, 10, 0, 5, 5, 1), 2, (1, 1, 1))}, "has no steps"),
    ],
)
def test_what_cannot_be_simulated_is_refused(arguments, message):
    given = {"plan": plan_of(FOUR, 2, (2, 2, 2)), "rates": SECONDS, **arguments}
    with pytest.raises(UsageError, match=message):
        simulate_cluster(**given)


# ---- a shared rate ---------------------------------------------------------------------------------------------------

transfers = st.lists(
    st.tuples(st.floats(0, 10), st.floats(1, 100), st.sampled_from([1.0, 3.0, 50.0])), min_size=1, max_size=12
)


@pytest.mark.slow
@settings(max_examples=60)
@given(transfers, st.sampled_from([2.0, 10.0, math.inf]))
def test_a_shared_rate_is_neither_exceeded_nor_left_unused(transfers, total):
    """Each end against the same fluid, computed for every transfer by itself, with the shares found by filling up."""
    shared, ends = SharedRate(total), {}
    coming = sorted(((start_s, number) for number, (start_s, _, _) in enumerate(transfers)), reverse=True)
    while coming or shared.next_s < math.inf:
        if coming and coming[-1][0] <= shared.next_s:
            start_s, number = coming.pop()
            shared.start(start_s, *transfers[number][1:], number)
        else:
            now = shared.next_s
            ends |= dict.fromkeys(shared.ended(now), now)
    assert ends == pytest.approx(fluid_ends(transfers, total), rel=1e-6)


def fluid_ends(transfers: list[tuple[float, float, float]], total: float) -> dict[int, float]:
    """When each transfer ends."""
    left = {number: [*transfer] for number, transfer in enumerate(transfers)}
    now, ends = 0.0, {}
    while left:
        active = sorted((limit, number) for number, (start_s, _, limit) in left.items() if start_s <= now)
        speed, room = {}, total
        for place, (limit, number) in enumerate(active):
            speed[number] = min(limit, room / (len(active) - place))
            room -= speed[number] if room < math.inf else 0
        coming = min((start_s for start_s, _, _ in left.values() if start_s > now), default=math.inf)
        step = min([coming - now, *(left[number][1] / speed[number] for number in speed)])
        now += step
        for number in speed:
            left[number][1] -= speed[number] * step
        ends |= {number: now for number, (_, nbytes, _) in left.items() if nbytes < 1e-9}
        left = {number: transfer for number, transfer in left.items() if number not in ends}
    return ends
