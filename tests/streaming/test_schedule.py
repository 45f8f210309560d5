"""The scheduler against a simulated device: a schedule is done as it says, when it was foretold, and nothing is spoilt."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.simulated_place import ITEMSIZE, Device, Failed, SimulatedPlace, Violation, on_a_bus, queue_by_time, replay
from tilewright.large.streaming.plan import schedule
from tilewright.large.streaming.plan.cost import cost
from tilewright.large.streaming.plan.cuts import least_slots, place_elements
from tilewright.large.streaming.plan.grid import ORDERS, Grid, OperandBlock, Tile
from tilewright.large.streaming.plan.host_cache import cache_blocks
from tilewright.large.streaming.plan.partition import PARTITIONS, tiles_of_regions
from tilewright.large.streaming.plan.schedule import Load, Schedule
from tilewright.large.streaming.run import executor as executor_module
from tilewright.large.streaming.run.executor import Queue, execute, execute_on_all

few = settings(max_examples=60)

SIZES = st.sampled_from([1, 2, 3, 5, 7, 11, 12, 13, 17, 24])


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    m, n, k = (draw(SIZES) for _ in range(3))
    return Grid(m, n, k, *(draw(st.integers(1, length)) for length in (m, n, k)))


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    grid = draw(grids())
    slots = draw(st.integers(1, 6)), draw(st.integers(1, 6)), draw(st.integers(1, 3))
    return Schedule.of(grid, slots, ORDERS[draw(st.sampled_from(sorted(ORDERS)))](*grid.tiles))


rates = st.floats(1e3, 1e7)
simulated = st.builds(Device, flops=rates, in_bytes=rates, out_bytes=rates, jitter=st.sampled_from([0.0, 0.05]))


def room_of(grid: Grid, slots: tuple[int, int, int]) -> int:
    return place_elements(grid, slots) * ITEMSIZE


# ---- one place -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@few
@given(schedules(), simulated, st.integers(0, 99))
def test_a_program_is_a_product(planned: Schedule, device: Device, seed: int) -> None:
    device = dataclasses.replace(device, memory=room_of(planned.grid, planned.slots))
    place, told = SimulatedPlace(device, planned.grid, seed=seed), []
    execute(planned, place, told.append)
    assert told == [store.tile for store in planned.stores]
    replay([place], [Tile(*pair) for pair in itertools.product(*map(range, planned.grid.tiles))], seed)


@pytest.mark.slow
@few
@given(schedules(), simulated)
def test_claimed_tiles_are_a_product_too(planned: Schedule, device: Device) -> None:
    """Also where nobody knew beforehand which tiles would come, so that no block was kept on purpose."""
    tiles = [store.tile for store in planned.stores]
    coming = iter(tiles)
    place = SimulatedPlace(dataclasses.replace(device, memory=room_of(planned.grid, planned.slots)), planned.grid)
    grown = Schedule(planned.grid, planned.slots)
    execute(grown, place, claim=lambda: next(((tile, []) for tile in coming), None))
    replay([place], tiles)


def test_claims_that_know_what_follows_load_as_little() -> None:
    grid, slots = Grid(24, 24, 24, 4, 4, 4), (7, 9, 2)
    tiles = ORDERS["rows"](*grid.tiles)
    grown = Schedule(grid, slots)
    for x, tile in enumerate(tiles):
        grown.add(tile, tiles[x + 1 :])
    assert grown == Schedule.of(grid, slots, tiles)


SLOW = Device(flops=1e4, in_bytes=1e6, out_bytes=1e6)
SLOW_OUT = Device(flops=1e6, in_bytes=1e6, out_bytes=1e4)


def busy() -> Schedule:
    grid = Grid(24, 24, 24, 6, 6, 6)
    return Schedule.of(grid, (3, 3, 2), ORDERS["rows"](*grid.tiles))


def without_waiting(planned: Schedule, kind: str) -> None:
    pieces = getattr(planned, kind)
    after = "after_store" if kind == "multiplies" else "after_multiply"
    pieces[:] = [piece._replace(**{after: -1}) if getattr(piece, after) >= 0 else piece for piece in pieces]


def with_another_slot(planned: Schedule) -> None:
    planned.multiplies[20] = planned.multiplies[20]._replace(a=(planned.multiplies[20].a + 1) % 3)


def with_another_c(planned: Schedule) -> None:
    planned.multiplies[21] = planned.multiplies[21]._replace(c=1 - planned.multiplies[21].c)


def with_a_tile_twice(planned: Schedule) -> None:
    planned.add(planned.stores[3].tile)


def with_a_tile_stored_twice(planned: Schedule) -> None:
    planned.stores.insert(4, planned.stores[3]._replace())


def without_a_tile(planned: Schedule) -> None:
    planned.stores.pop()


def with_steps_swapped(planned: Schedule) -> None:
    x, y = planned.multiplies[1], planned.multiplies[2]
    planned.multiplies[1:3] = [y._replace(needs=x.needs, a=y.a, b=y.b), x]


def with_a_step_twice(planned: Schedule) -> None:
    planned.multiplies[2] = planned.multiplies[1]


def with_needs_of_another(planned: Schedule) -> None:
    """It begins before its own blocks have come."""
    planned.multiplies[30] = planned.multiplies[30]._replace(needs=(0, 1))


def with_more_slots(planned: Schedule) -> None:
    planned.loads[5] = planned.loads[5]._replace(slot=7)


def with_wrong_block(planned: Schedule) -> None:
    block = planned.loads[6].block
    planned.loads[6] = planned.loads[6]._replace(block=block._replace(row=(block.row + 1) % 4))


@pytest.mark.parametrize(
    ("broken", "device", "says"),
    [
        (functools.partial(without_waiting, kind="loads"), SLOW, "overwritten while it is used|read before"),
        (functools.partial(without_waiting, kind="multiplies"), SLOW_OUT, "reused before it is stored"),
        (functools.partial(without_waiting, kind="stores"), SLOW, "stored before it is computed"),
        (with_another_slot, SLOW, "read before it is written"),
        (with_another_c, SLOW, "steps out of order"),
        (with_a_tile_twice, SLOW, "stored twice"),
        (with_a_tile_stored_twice, SLOW, "stored twice"),
        (without_a_tile, SLOW, "not stored"),
        (with_steps_swapped, SLOW, "read before|steps out of order"),
        (with_a_step_twice, SLOW, "read before|steps out of order"),
        (with_needs_of_another, dataclasses.replace(SLOW, flops=1e7, in_bytes=1e4), "read before it is written"),
        (with_more_slots, SLOW, "memory|read before"),
        (with_wrong_block, SLOW, "read before it is written"),
    ],
    ids=lambda value: getattr(
        value, "__name__", getattr(getattr(value, "keywords", None), "get", lambda _: None)("kind")
    ),
)
def test_what_is_broken_is_refused(broken: Callable[[Schedule], None], device: Device, says: str) -> None:
    planned = busy()
    tiles = [store.tile for store in planned.stores]
    device = dataclasses.replace(device, memory=room_of(planned.grid, planned.slots))
    broken(planned)
    place = SimulatedPlace(device, planned.grid)
    execute(planned, place)
    with pytest.raises(Violation, match=says):
        replay([place], tiles)


def test_a_device_with_less_memory_refuses() -> None:
    planned = busy()
    need = room_of(planned.grid, planned.slots)
    for memory, works in ((need, True), (need - 1, False)):
        place = SimulatedPlace(dataclasses.replace(SLOW, memory=memory), planned.grid)
        execute(planned, place)
        if works:
            replay([place], [store.tile for store in planned.stores])
        else:
            with pytest.raises(Violation, match="memory"):
                replay([place], None)


def test_tokens_that_are_not_handed_on_are_seen() -> None:
    class Forgetful(SimulatedPlace):
        def multiply(self, step: Any, needs: Any, after: Any) -> Any:  # noqa: ARG002
            return super().multiply(step, needs, None)

    planned = busy()
    place = Forgetful(SLOW_OUT, planned.grid)
    execute(planned, place)
    with pytest.raises(Violation, match="reused before"):
        replay([place], None)


# ---- which blocks stay -----------------------------------------------------------------------------------------------


def uses(planned: Schedule, operand: str) -> list[OperandBlock]:
    """The operand's blocks in the order of the multiplications."""
    return [
        OperandBlock("a", step.tile.i, step.p) if operand == "a" else OperandBlock("b", step.p, step.tile.j)
        for step in planned.multiplies
    ]


def loads_of(planned: Schedule, operand: str) -> int:
    return sum(load.block.operand == operand for load in planned.loads)


def least_recently_used(blocks: Sequence[OperandBlock], slots: int) -> int:
    there: dict[OperandBlock, None] = {}
    count = 0
    for block in blocks:
        count += block not in there
        there.pop(block, None)
        there[block] = None
        if len(there) > slots:
            del there[next(iter(there))]
    return count


def fewest(blocks: Sequence[OperandBlock], slots: int) -> int:
    """Loads of the best of all policies that leave alone what the step before used, where there is a choice."""
    states: dict[frozenset[OperandBlock], int] = {frozenset(): 0}
    for step, block in enumerate(blocks):
        recent = {blocks[step - 1]} if step else set()
        new: dict[frozenset[OperandBlock], int] = {}
        for there, count in states.items():
            if block in there:
                options = [(there, count)]
            elif len(there) < slots:
                options = [(there | {block}, count + 1)]
            else:
                options = [(there - {out} | {block}, count + 1) for out in (there - recent or there)]
            for state, cost_ in options:
                new[state] = min(cost_, new.get(state, cost_))
        states = new
    return min(states.values(), default=0)


@few
@given(st.tuples(*[st.integers(1, 3)] * 3), st.integers(1, 4), st.sampled_from(sorted(ORDERS)))
def test_no_policy_loads_less(tiles: tuple[int, int, int], slots: int, order: str) -> None:
    grid = Grid(*tiles, 1, 1, 1)
    planned = Schedule.of(grid, (slots, slots, 1), ORDERS[order](*grid.tiles))
    for operand in "ab":
        assert loads_of(planned, operand) == fewest(uses(planned, operand), slots)


@few
@given(schedules())
def test_loads_are_no_more_than_lru_takes(planned: Schedule) -> None:
    for operand, slots in zip("ab", planned.slots, strict=False):
        assert loads_of(planned, operand) <= least_recently_used(uses(planned, operand), slots)


@few
@given(schedules())
def test_a_block_is_never_replaced_while_the_next_one_comes(planned: Schedule) -> None:
    grid = planned.grid
    slots = tuple(max(2, count) for count in planned.slots)
    again = Schedule.of(grid, slots, [store.tile for store in planned.stores])
    assert not late(again)


def late(planned: Schedule) -> list[Load]:
    """Loads that wait for the very step before the one that needs them: nothing would be copied beside that."""
    needed: dict[int, int] = {}
    for step in reversed(planned.multiplies):
        needed.update(dict.fromkeys(step.needs, step.number))
    return [load for load in planned.loads if load.after_multiply == needed[load.number] - 1 >= 0]


def test_without_that_rule_copies_would_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not late(busy())
    monkeypatch.setattr(schedule, "RECENT", 0)
    assert late(busy())


def most_hits(blocks: Sequence[OperandBlock], slots: int) -> int:
    """Of all ways to keep blocks, each of which is kept or not as it comes."""

    @functools.cache
    def best(number: int, there: frozenset[OperandBlock]) -> int:
        if number == len(blocks):
            return 0
        block = blocks[number]
        if block in there:
            return 1 + best(number + 1, there)
        options = [there]
        options += [there | {block}] if len(there) < slots else [there - {out} | {block} for out in there]
        return max(best(number + 1, option) for option in options)

    return best(0, frozenset())


@few
@given(st.lists(st.integers(0, 4), max_size=12), st.integers(0, 3))
def test_no_policy_hits_more_on_the_host(names: list[int], slots: int) -> None:
    loads = [Load(number, OperandBlock("a", name, 0), 0, -1) for number, name in enumerate(names)]
    held = cache_blocks(loads, slots)
    assert len(held.hits) == most_hits([load.block for load in loads], slots)
    content: dict[int, OperandBlock] = {}
    for load in loads:  # what is hit is there
        if load.number in held.fills:
            content[held.fills[load.number]] = load.block
        if load.number in held.hits:
            assert content[held.hits[load.number]] == load.block
    assert {*held.hits.values(), *held.fills.values()} <= set(range(slots))


# ---- several places --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize(("down", "across"), [(1, 1), (1, 7), (5, 3), (8, 8), (13, 2)])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 8])
def test_parts_are_a_partition(partition: str, down: int, across: int, count: int) -> None:
    parts = tiles_of_regions(down, across, count, partition=partition)
    assert len(parts) == count
    every = [tile for part in parts for tile in part]
    assert sorted(every) == [Tile(i, j) for i in range(down) for j in range(across)]


def test_the_queue_gives_each_tile_once() -> None:
    queue = Queue(tiles_of_regions(40, 40, 8))
    taken: list[Tile] = []

    def take(owner: int) -> None:
        while (found := queue.take(owner)) is not None:
            taken.append(found[0])

    threads = [threading.Thread(target=take, args=(owner,)) for owner in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [Tile(i, j) for i in range(40) for j in range(40)]


def test_a_lost_place_is_not_waited_for_when_another_is_lost_too() -> None:
    """Two fast places are lost: the slow one gets all that is left, and never hears that they would be sooner."""
    now = [0.0]
    queue = Queue([[Tile(i, j) for j in range(20)] for i in range(3)], clock=lambda: now[0])
    for _ in range(6):
        now[0] += 1.0
        for place in (1, 2):
            assert queue.take(place) is not None
    for _ in range(3):
        now[0] += 10.0
        assert queue.take(0) is not None
    queue.leave(1)
    queue.leave(2)
    taken = 6 + 6 + 3
    while queue.take(0) is not None:
        now[0] += 10.0
        taken += 1
    assert taken == 60
    queue.back(1)
    assert queue.take(1) is None, "no tile is left"


def test_the_queue_leaves_the_last_tiles_to_who_is_sooner() -> None:
    """Two places, of which the second takes ten times as long."""
    now = [0.0]
    queue = Queue([[Tile(0, j) for j in range(8)], [Tile(1, j) for j in range(2)]], clock=lambda: now[0])
    for _ in range(2):
        assert queue.take(0)
        assert queue.take(1)
    for now[0] in (1.0, 2.0, 3.0, 4.0):
        assert queue.take(0)
    now[0] = 10.0
    assert queue.take(0)
    assert queue.take(1) is None  # with one tile left, until 30; the other will have it done by 13
    assert queue.take(0)
    assert queue.take(0) is None


def others_are_sooner(queue: Queue, owner: int, now: float) -> bool:
    """The queue's rule, tile by tile: each that is left goes to the place that would finish it first."""
    left, own = sum(map(len, queue._regions)), queue._paces[owner]
    others = [pace for number, pace in enumerate(queue._paces) if number != owner and pace.state == "active"]
    if not left or not others or left > executor_module.FEW * len(queue._regions):
        return not left
    if not all(pace.tiles_s for pace in (own, *others)):
        return False
    ahead = 1 + executor_module.AHEAD
    due = [max(now, pace._last_s + ahead * max(pace.tiles_s)) + max(pace.tiles_s) for pace in others]
    for _ in range(left):
        first = min(range(len(due)), key=due.__getitem__)
        end, due[first] = due[first], due[first] + max(others[first].tiles_s)
    return now + ahead * min(own.tiles_s) > end


@few
@given(st.lists(st.sampled_from([1, 1, 2, 3, 8, 40]), min_size=1, max_size=5), st.integers(0, 30), st.randoms())
def test_the_queue_counts_what_others_finish(tiles_s: list[int], count: int, choices: random.Random) -> None:
    """Places of these paces, each now and then faster or slower, take tiles until none gets one."""
    now, turns = [0.0], [(0.0, place) for place in range(len(tiles_s)) for _ in range(2)]
    queue = Queue([[Tile(i, j) for j in range(count)] for i in range(len(tiles_s))], clock=lambda: now[0])
    taken = 0
    while turns:
        now[0], owner = min(turns)
        turns.remove((now[0], owner))
        pace = queue._paces[owner]
        before = pace._claims, pace._last_s, list(pace.tiles_s), pace.tile_s
        pace.claimed(now[0])  # as ``take`` does, before it asks
        expected = pace.state != "active" or others_are_sooner(queue, owner, now[0])
        pace._claims, pace._last_s, recent, pace.tile_s = before
        pace.tiles_s.clear()
        pace.tiles_s.extend(recent)
        found = queue.take(owner)
        assert (found is None) == expected
        if found is not None:
            taken += 1
            turns.append((now[0] + tiles_s[owner] * choices.choice([0.5, 1, 1, 1.5]), owner))
    assert taken == count * len(tiles_s)


@pytest.mark.slow
@few
@given(grids(), st.lists(simulated, min_size=1, max_size=4), st.integers(1, 4), st.booleans())
def test_several_places_compute_one_product(grid: Grid, several: list[Device], slots: int, known: bool) -> None:
    places = [SimulatedPlace(device, grid, seed=seed) for seed, device in enumerate(several)]
    told: list[Tile] = []
    parts = tiles_of_regions(*grid.tiles, len(places))
    execute_on_all(grid, (slots, slots, 1 + known), places, parts, told.append)
    tiles = [tile for part in parts for tile in part]
    assert sorted(told) == sorted(tiles)
    replay(places, tiles)


def makespan(speeds: Sequence[float], monkeypatch: pytest.MonkeyPatch) -> tuple[float, float, float]:
    """Of 12×12 tiles, which compute bounds: how long it took, how long at least, and the slowest's time for one tile."""
    grid = Grid(96, 96, 96, 8, 8, 96)
    several = [Device(flops=1e5 * speed, in_bytes=1e9, out_bytes=1e9, latency_s=1e-7) for speed in speeds]
    places = [SimulatedPlace(device, grid) for device in several]
    monkeypatch.setattr(executor_module, "Queue", queue_by_time(places))
    parts = tiles_of_regions(*grid.tiles, len(places))
    execute_on_all(grid, (24, 24, 2), places, parts)
    replay(places, [tile for part in parts for tile in part])
    work = 2 * grid.m * grid.n * grid.k / 1e5
    return max(place.total_s for place in places), work / sum(speeds), work / math.prod(grid.tiles) / min(speeds)


SPEEDS = [
    (1, 1),
    (1, 1, 1, 1),
    (1, 0.5),
    (1, 1, 1, 0.3),
    (1, 0.1),
    (1, 0.07),
    (1, 0.9, 0.8, 0.05),
    (1, 1, 1, 1, 1, 1, 1, 0.2),
]


@pytest.mark.parametrize("speeds", SPEEDS)
def test_a_slow_place_delays_nobody(speeds: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    took, ideal, tile_s = makespan(speeds, monkeypatch)
    assert ideal * 0.999 <= took <= ideal + tile_s * 1.01


def test_with_parts_of_their_own_only_it_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Queue, "take", lambda self, owner: (self._regions[owner].popleft(), []) if self._regions[owner] else None
    )
    took, ideal, tile_s = makespan((1, 0.5), monkeypatch)
    assert took > ideal + 5 * tile_s


def test_taking_what_others_would_finish_sooner_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "FEW", 0)
    took, ideal, tile_s = makespan((1, 0.07), monkeypatch)
    assert took > ideal + tile_s * 1.4


def test_claiming_far_ahead_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "AHEAD", 8)
    took, ideal, tile_s = makespan((1, 1, 1, 0.3), monkeypatch)
    assert took > ideal + 2 * tile_s


# ---- what fails ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@few
@given(schedules(), st.data())
def test_a_place_that_fails_ends_everything(planned: Schedule, data: st.DataObject) -> None:
    count = len(planned.loads) + len(planned.multiplies) + len(planned.stores)
    place = SimulatedPlace(SLOW, planned.grid, fails_at=data.draw(st.integers(0, count - 1)))
    told: list[Tile] = []
    before = threading.active_count()
    with pytest.raises(Failed):
        execute(planned, place, told.append)
    assert threading.active_count() == before
    replay([place], None)
    assert told == [action.piece.tile for action in place.actions["store"]]


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("fails_at", [0, 1, 5])
def test_one_of_several_that_fails_ends_all(count: int, fails_at: int) -> None:
    """The others finish what they have claimed: a tile that is begun and one ahead, and that is kept."""
    failed = threading.Event()

    class Dying(SimulatedPlace):
        def _act(self, *args: Any) -> Any:
            try:
                return super()._act(*args)
            except Failed:
                threading.Timer(0.1, failed.set).start()  # when it is known
                raise

    class Slower(SimulatedPlace):
        def load(self, load: Load, after: Any) -> Any:
            assert failed.wait(60)
            return super().load(load, after)

    grid = busy().grid
    places = [Dying(SLOW, grid, fails_at=fails_at), *(Slower(SLOW, grid) for _ in range(count - 1))]
    told: list[Tile] = []
    before = threading.active_count()
    with pytest.raises(Failed):
        execute_on_all(grid, (2, 2, 1), places, tiles_of_regions(*grid.tiles, count), told.append)
    assert threading.active_count() <= before + 1  # the timer's
    replay(places, None)
    assert sorted(told) == sorted(action.piece.tile for place in places for action in place.actions["store"])
    assert len(told) <= (count - 1) * (1 + executor_module.AHEAD + 1)


def test_what_is_told_may_fail_as_well() -> None:
    def full(tile: Tile) -> None:
        raise OSError("disk full")

    planned = busy()
    place = SimulatedPlace(SLOW, planned.grid)
    with pytest.raises(OSError, match="disk full"):
        execute(planned, place, full)
    assert len(place.actions["store"]) == 1


# ---- the model -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@few
@given(schedules(), simulated)
def test_the_model_is_what_happens_without_jitter(planned: Schedule, device: Device) -> None:
    device = dataclasses.replace(device, jitter=0.0)
    place = SimulatedPlace(device, planned.grid)
    execute(planned, place)
    foretold = cost(planned, device.rates, ITEMSIZE)
    assert foretold.total_s == pytest.approx(place.total_s)
    assert foretold.in_bytes == sum(planned.grid.elements(load.block) for load in planned.loads) * ITEMSIZE
    assert foretold.out_bytes == planned.grid.m * planned.grid.n * ITEMSIZE
    parts = foretold.first_s + foretold.compute_s + foretold.exposed_s + foretold.last_s
    assert parts == pytest.approx(foretold.total_s)


def some_program(rng: random.Random) -> tuple[Schedule, Device]:
    m, n, k = (rng.randint(8, 40) for _ in range(3))
    grid = Grid(m, n, k, *(max(2, rng.randint(length // 6, length // 2)) for length in (m, n, k)))
    a, b, c = least_slots(grid)
    slots = a + rng.randint(0, 5), b + rng.randint(0, 5), rng.randint(1, 2) * c
    ways = 10 ** rng.uniform(4, 6), 10 ** rng.uniform(4, 6)
    device = Device(10 ** rng.uniform(5, 7), *ways, jitter=0.05, bus_bytes=0.9 * sum(ways), chunk=256)
    return Schedule.of(grid, slots, ORDERS[rng.choice(sorted(ORDERS))](*grid.tiles)), device


@pytest.mark.parametrize("seed", range(40))
def test_the_model_foretells_a_device_that_is_not_quite_like_it(seed: int) -> None:
    """Chunks that vary by 5 %, and ways in and out that disturb each other."""
    planned, device = some_program(random.Random(seed))
    place = SimulatedPlace(device, planned.grid, seed=seed)
    execute(planned, place)
    took = on_a_bus(place)
    replay([place], [store.tile for store in planned.stores])
    assert cost(planned, device.rates, ITEMSIZE).total_s == pytest.approx(took, rel=0.1)


def test_a_wrong_rate_does_not() -> None:
    planned, device = some_program(random.Random(3))
    place = SimulatedPlace(device, planned.grid)
    execute(planned, place)
    wrong = dataclasses.replace(device.rates, flops=device.flops / 1.5, in_bytes=device.in_bytes / 1.5)
    assert cost(planned, wrong, ITEMSIZE).total_s != pytest.approx(on_a_bus(place), rel=0.1)


def test_parts_that_are_kept_are_left_to_their_places_unless_these_are_lost() -> None:
    parts = tiles_of_regions(4, 4, 4)
    queue = Queue(parts, clock=lambda: 0.0, kept=True)
    taken = [queue.take(0) for _ in range(5)]
    assert [each[0] for each in taken if each] == parts[0]
    assert taken[-1] is None
    queue.leave(1)
    assert {queue.take(0)[0] for _ in parts[1]} == set(parts[1])  # type: ignore[index]
    assert queue.take(0) is None
    assert queue.take(2)[0] == parts[2][0]  # type: ignore[index]
