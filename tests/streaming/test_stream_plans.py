"""Plans: within their memory, above the lower bound, nearly the best there is, soon, and for as many places as pay."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.simulated_place import Device, SimulatedPlace, replay
from tilewright.errors import MemoryLimitError
from tilewright.large.streaming.plan import cuts, stream
from tilewright.large.streaming.plan.cost import Rates, cost
from tilewright.large.streaming.plan.cuts import Room
from tilewright.large.streaming.plan.grid import Grid, Tile
from tilewright.large.streaming.plan.plan import least_elements
from tilewright.large.streaming.plan.stream import StreamPlan, plan_again, plan_stream
from tilewright.large.streaming.run.executor import execute
from tilewright.product.problem import Problem

GIB = 1 << 30
#: About an H200 over its link, from and to memory.
H200 = Rates(48e12, 55e9, 50e9, 40e9, latency_s=1e-4)
FP64 = dataclasses.replace(H200, flops=60e12)
DISK = Rates(48e12, 55e9, 50e9, 2e9, latency_s=1e-4, write_bytes=1.5e9)
CPU = Rates(150e9, 3e9, 1e9, latency_s=5e-4)

#: Problem, room, rates: what is asked for, and shapes that are awkward.
CASES = {
    "65536": (Problem(65536, 65536, 65536, "float32"), Room(132 * GIB, 0, 128), H200),
    "65536 in 11 GB": (Problem(65536, 65536, 65536, "float32"), Room(11 * 10**9, 0, 128), H200),
    "32768 float64": (Problem(32768, 32768, 32768, "float64"), Room(132 * GIB, 0, 128), FP64),
    "131072": (Problem(131072, 131072, 131072, "float32"), Room(132 * GIB, 0, 128), H200),
    "131072 in 11 GB": (Problem(131072, 131072, 131072, "float32"), Room(11 * 10**9, 0, 128), H200),
    "files": (Problem(32768, 32768, 32768, "float32"), Room(2 * GIB, 5 * GIB // 2, 128), DISK),
    "CPU": (Problem(24576, 24576, 24576, "float32"), Room(900 << 20, 0, 64), CPU),
    "little memory": (Problem(32768, 32768, 32768, "float32"), Room(64 << 20, 0, 128), H200),
    "huge k": (Problem(100, 100, 10**8, "float32"), Room(GIB, 0, 128), H200),
    "tall": (Problem(10**7, 64, 512, "float32"), Room(GIB, 0, 128), H200),
    "wide": (Problem(64, 10**7, 512, "float32"), Room(GIB, 0, 128), H200),
    "outer": (Problem(65536, 65536, 1, "float32"), Room(GIB, 0, 128), H200),
    "vector": (Problem(10**7, 1, 1, "float32"), Room(16 << 20, 0, 128), H200),
    "one number": (Problem(1, 1, 10**8, "float32"), Room(64 << 20, 0, 128), H200),
    "primes": (Problem(10007, 20011, 30011, "float64"), Room(GIB, 0, 128), FP64),
    "small": (Problem(1000, 1000, 1000, "float32"), Room(GIB, 0, 128), H200),
}


def right(plan: StreamPlan) -> None:
    """What holds for every plan."""
    grid = plan.grid
    assert plan.place_bytes <= plan.room.place
    assert plan.host_bytes <= plan.room.host
    assert sum(plan.moved_bytes) >= plan.least_bytes
    assert plan.read_bytes >= plan.least_read_bytes
    if len(plan.regions) == 1:
        room = plan.place_bytes // plan.itemsize
        assert plan.moved_bytes[0] >= plan.itemsize * least_elements(grid.m, grid.n, grid.k, room)
    assert plan.cost.total_s >= 2 * grid.m * grid.n * grid.k / plan.rates.flops / len(plan.regions)
    down, across = grid.tiles
    assert sorted(plan.tiles) == [Tile(i, j) for i in range(down) for j in range(across)]


def work_of_planning(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[Grid]]:
    """The steps of each schedule that is timed from now on, and the cuts whose time is estimated."""
    steps: list[int] = []
    cuts_: list[Grid] = []
    timed, promised_s = stream._PlanSearch.timed, stream.promised_s

    def counted(search: Any, grid: Grid, *args: Any) -> StreamPlan:
        steps.append(cuts.multiplications(grid))
        return timed(search, grid, *args)

    def noted(grid: Grid, *args: Any) -> float:
        cuts_.append(grid)
        return promised_s(grid, *args)

    monkeypatch.setattr(stream._PlanSearch, "timed", counted)
    monkeypatch.setattr(stream, "promised_s", noted)
    return steps, cuts_


@pytest.mark.slow
def test_a_search_without_a_budget_does_more(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, _ = work_of_planning(monkeypatch)
    least = 3 * stream.BUDGET
    monkeypatch.setattr(stream, "BUDGET", 4 * stream.BUDGET)
    plan_stream(*CASES["files"])
    assert sum(steps) > least


@pytest.mark.slow_cases("CPU", "files", "outer", "huge k", "65536 in 11 GB", "131072 in 11 GB", "primes")
@pytest.mark.parametrize("case", CASES)
def test_a_plan_is_made_soon_and_keeps_to_its_room(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing else runs, so many steps take a quarter of a second."""
    steps, cuts_ = work_of_planning(monkeypatch)
    plan = plan_stream(*CASES[case])
    assert sum(steps) <= 3 * stream.BUDGET
    assert len(cuts_) < 100
    right(plan)
    m, n, k = plan.grid.m, plan.grid.n, plan.grid.k
    if plan.room.place >= (m * k + k * n + m * n) * plan.itemsize:
        assert plan.cost.in_bytes == (m * k + k * n) * plan.itemsize, "everything fits: it comes once"


sides = st.integers(1, 10**5)


@given(sides, sides, sides, st.integers(1000, 10**9))
def test_the_least_is_below_what_known_orders_move_and_above_known_bounds(m: int, n: int, k: int, room: int) -> None:
    least, once = least_elements(m, n, k, room), m * k + k * n + m * n
    assert least >= once
    assert least >= (1 - 1e-6) * (2 * m * n * k / math.sqrt(room) - 2 * room)
    side = math.isqrt(room + 1) - 1  # of a square of C that stays, beside a column of A and a row of B
    assert least <= math.ceil(m / side) * k * n + math.ceil(n / side) * m * k + m * n
    rows = (room - k - 1) // k  # of A that stay, beside a column of B and an element of C
    assert rows < 1 or least <= m * k + math.ceil(m / rows) * k * n + m * n


@pytest.mark.slow_cases("CPU", "tall", "files", "primes", "65536 in 11 GB")
@pytest.mark.parametrize("case", ["65536 in 11 GB", "files", "CPU", "tall", "huge k", "primes", "vector"])
def test_no_candidate_is_much_faster(case: str) -> None:
    """Of all cuts, orders and shares of the room whose schedules are short."""
    problem, room, rates = CASES[case]
    task = stream._PlanSearch(problem.dtype, room, rates, 1)
    best = math.inf
    for grid in cuts.cuts(problem.m, problem.n, problem.k, room):
        if cuts.multiplications(grid) < 700:
            best = min(
                [
                    best,
                    *(
                        task.timed(grid, *way, task._regions(grid, way[0])).cost.total_s
                        for way in task._orders_and_slots(grid)
                    ),
                ]
            )
    nearly = stream.NEARLY_OF_FILES if room.host else 1.0  # given away for fewer bytes
    assert plan_stream(*CASES[case]).cost.total_s <= 1.02 * nearly * best


@pytest.mark.slow
def test_a_search_that_stops_at_once_is_much_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    good = plan_stream(*CASES["files"]).cost.total_s
    monkeypatch.setattr(stream, "BUDGET", 0)
    assert plan_stream(*CASES["files"]).cost.total_s > 1.02 * good


few = settings(max_examples=30)
lengths = st.one_of(st.integers(0, 3), st.integers(1, 2000), st.sampled_from([257, 509, 1024, 4099]))


@few
@given(lengths, lengths, lengths, st.integers(0, 1 << 24), st.integers(0, 1 << 24), st.booleans())
@example(1000, 1000, 600, 4608 << 10, 0, True)
def test_any_sizes(m: int, n: int, k: int, place: int, host: int, files: bool) -> None:
    least = min(Room(0).least_bytes(grid, 8) for grid in cuts.cuts(m, n, k, Room(0)))
    plan = plan_stream(Problem(m, n, k, "float64"), Room(max(place, least), host, files=files), CPU)
    right(plan)
    assert str(plan)


@pytest.mark.slow_cases("shape0")
@pytest.mark.parametrize(
    "shape", [(5000, 5000, 5000), (100, 7000, 9000), (9000, 1, 9000), (1, 1, 10**6), (10**5, 300, 2)]
)
def test_the_least_room_that_an_error_names_suffices(shape: tuple[int, int, int]) -> None:
    with pytest.raises(MemoryLimitError, match="cannot be cut small enough") as caught:
        plan_stream(Problem(*shape, "float32"), Room(100), CPU)
    need = int(str(caught.value).rsplit("(", 1)[1].split()[0])
    right(plan_stream(Problem(*shape, "float32"), Room(need), CPU))
    with pytest.raises(MemoryLimitError):
        plan_stream(Problem(*shape, "float32"), Room(need - 1), CPU)


@pytest.mark.slow
def test_a_product_that_was_begun_says_what_it_needs() -> None:
    grid = plan_stream(*CASES["CPU"]).grid
    some = [Tile(1, 2), Tile(0, 0), Tile(2, 1)]
    with pytest.raises(MemoryLimitError, match="with which this product was begun") as caught:
        plan_again(grid, "float32", Room(1 << 20), CPU, some)
    need = int(str(caught.value).split("(")[1].split()[0])
    assert plan_again(grid, "float32", Room(need), CPU, some).tiles == tuple(some)
    with pytest.raises(MemoryLimitError):
        plan_again(grid, "float32", Room(need - 1), CPU, some)
    shared = plan_again(grid, "float32", Room(GIB), CPU, some, most=4)
    assert len(shared.regions) == 3
    assert sorted(shared.tiles) == sorted(some)
    assert len(plan_again(grid, "float32", Room(GIB), CPU, some[:1], most=4).regions) == 1


@pytest.mark.slow_cases("13")
@pytest.mark.parametrize("seed", range(30))
def test_plans_take_what_they_foretell(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones, done by a simulated device that has just the room they were given."""
    monkeypatch.setattr(cuts, "SIDES", (4, 8, 12, 16, 24, 32))
    monkeypatch.setattr(cuts, "DEPTHS", (16, 32))
    monkeypatch.setattr(stream, "MOST_STEPS", 300)
    sizes = [(37, 41, 64), (64, 64, 64), (5, 96, 80), (80, 3, 160), (1, 1, 333), (48, 48, 1)]
    m, n, k = sizes[seed % len(sizes)]
    device = Device(
        10 ** (4.5 + seed % 4 / 2),
        10 ** (5 + seed % 3 / 2),
        10 ** (5 + seed % 2 / 2),
        memory=8 * (1000 + 400 * seed),
        jitter=0.05,
    )
    plan = plan_stream(Problem(m, n, k, "float64"), Room(int(device.memory), grain=4), device.rates)
    place = SimulatedPlace(device, plan.grid, seed=seed)
    execute(plan.schedule(), place)
    replay([place], plan.tiles, seed)
    assert plan.cost.total_s == pytest.approx(place.total_s, rel=0.1)


# ---- several places --------------------------------------------------------------------------------------------------


@pytest.mark.slow_cases("131072 in 11 GB", "2-65536")
@pytest.mark.parametrize("case", ["65536", "131072", "131072 in 11 GB"])
@pytest.mark.parametrize("most", [2, 4])
def test_large_products_are_shared(case: str, most: int) -> None:
    from_memory = dataclasses.replace(H200, read_bytes=150e9)
    arguments = *CASES[case][:-1], from_memory
    plan, alone = plan_stream(*arguments, most), plan_stream(*arguments)
    right(plan)
    assert len(plan.regions) == most
    assert plan.alone_s == alone.cost.total_s
    assert 0.85 * most < alone.cost.total_s / plan.cost.total_s <= most * 1.01
    text = str(plan)
    assert f"  places     {most} in " in text
    assert "× as fast as one" in text
    assert len(plan.moved_bytes) == most
    assert max(plan.moved_bytes) == pytest.approx(plan.cost.in_bytes + plan.cost.out_bytes, rel=0.3)


def test_small_products_stay_on_one() -> None:
    for m, n, k in ((1000, 1000, 1000), (1, 1, 10**6), (300, 300, 300), (0, 5, 5)):
        plan = plan_stream(Problem(m, n, k, "float32"), Room(GIB, 0, 128), H200, 4)
        assert len(plan.regions) == 1
        assert "as fast as one" not in str(plan)


@pytest.mark.slow
def test_what_a_disk_bounds_stays_on_one() -> None:
    """More GPUs read no faster; where all share a disk they would only read it more often."""
    problem, room, _ = CASES["files"]
    slow = dataclasses.replace(DISK, read_bytes=0.2e9)
    assert len(plan_stream(problem, room, slow, 4).regions) == 1


def test_rates_that_places_share() -> None:
    shared = DISK.shared(4)
    assert (shared.read_bytes, shared.write_bytes) == (0.5e9, 0.375e9)
    assert (shared.flops, shared.in_bytes, shared.out_bytes) == (DISK.flops, DISK.in_bytes, DISK.out_bytes)


def test_a_result_goes_no_faster_than_it_is_written() -> None:
    plan = plan_stream(*CASES["small"])
    slow = dataclasses.replace(H200, write_bytes=1e6)
    assert cost(plan.schedule(), slow, 4).total_s > 1000 * 1000 * 4 / 1e6


def test_short_rows_of_tiles_take_time() -> None:
    plan = plan_stream(*CASES["CPU"])
    slow = dataclasses.replace(CPU, row_s=1e-3)
    m, n, across = plan.grid.m, plan.grid.n, plan.grid.tiles[1]
    later = cost(plan.schedule(), slow, 4).total_s - plan.cost.total_s
    assert later == pytest.approx(1e-3 * (m * across - plan.grid.size(plan.tiles[-1])[0]), rel=0.1)
    wide = plan_stream(*CASES["CPU"][:-1], slow)
    assert m * n / wide.grid.bn < m * n / plan.grid.bn, "fewer rows, which are longer"


@pytest.mark.slow
def test_strips_read_as_much_and_move_more() -> None:
    """The simplest partition, for comparison: every place needs all of B."""
    rates = dataclasses.replace(H200, most_read_bytes=60e9, write_bytes=60e9, peers=True)
    asked = (Problem(65536, 65536, 65536, "float32"), Room(132 * GIB, 0, 128), rates, 4)
    best, simple = plan_stream(*asked), plan_stream(*asked, partition="strips")
    assert [len(plan.regions) for plan in (best, simple)] == [4, 4]
    assert best.read_bytes == simple.read_bytes == 2 * 65536**2 * 4
    assert sum(simple.moved_bytes) == (1 + 4 + 1) * 65536**2 * 4
    assert sum(best.moved_bytes) == (2 + 2 + 1) * 65536**2 * 4
    assert best.cost.total_s <= 1.02 * simple.cost.total_s  # over fast links it hardly matters
    for part in simple.regions:
        assert {tile.j for tile in part} == set(range(simple.grid.tiles[1]))
