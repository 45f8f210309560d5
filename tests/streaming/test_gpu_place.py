"""``large.streaming.places.gpu`` on simulated streams: right products, no wait that never ends, everything given back."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.simulated_streams import ANY_KERNEL, SimulatedDevice, SimulatedStream, failing_after, simulated
from tilewright.errors import LaunchError
from tilewright.large import multiply as large
from tilewright.large.files.array import ArraySink, ArraySource
from tilewright.large.streaming.places import places
from tilewright.large.streaming.places.gpu import GpuPlace
from tilewright.large.streaming.places.place import Events
from tilewright.large.streaming.places.staging import CachedSources, Chunks
from tilewright.large.streaming.plan.cost import Rates
from tilewright.large.streaming.plan.cuts import Room
from tilewright.large.streaming.plan.grid import ORDERS, Grid, Tile
from tilewright.large.streaming.plan.host_cache import HostCache, cache_blocks
from tilewright.large.streaming.plan.partition import tiles_of_regions
from tilewright.large.streaming.plan.plan import StreamPlan
from tilewright.large.streaming.plan.schedule import Schedule
from tilewright.large.streaming.plan.stream import plan_again
from tilewright.large.streaming.run import job as job_module
from tilewright.large.streaming.run.executor import execute, execute_on_all
from tilewright.product.plan import Choice

RATES = Rates(1e9, 1e9, 1e9)
GRID = Grid(40, 36, 52, 10, 12, 13)


class Slow(ArraySource):
    """Reads take a while, the first ones longest."""

    def read(self, rows: slice, columns: slice, out: np.ndarray) -> None:
        time.sleep(0.002)
        super().read(rows, columns, out)


class Case:
    """A product on one or several simulated GPUs."""

    def __init__(
        self, grid: Grid = GRID, source: type[ArraySource] = ArraySource, host: int = 0, places: int = 1
    ) -> None:
        rng = np.random.default_rng(0)
        self.a, self.b = (
            rng.integers(-9, 9, (grid.m, grid.k)).astype(float),
            rng.integers(-9, 9, (grid.k, grid.n)).astype(float),
        )
        self.c = np.full((grid.m, grid.n), np.nan)
        tiles = ORDERS["rows"](*grid.tiles)
        block = 8 * max(grid.bm, grid.bn) * grid.bk
        room = Room(3 * block + 3 * block + 2 * 8 * grid.bm * grid.bn, host * block)
        self.plan: StreamPlan = plan_again(grid, "float64", room, RATES, tiles, most=places)
        assert len(self.plan.regions) == places
        self.sources = {"a": source(self.a), "b": source(self.b)}
        self.sink = ArraySink(self.c, self.c.shape, self.c.dtype)

    def place(self, device: SimulatedDevice, chunks: Chunks, events: Events | None = None) -> GpuPlace:
        held = self.plan.host_cache(self.plan.schedule()) if self.plan.host_slots else HostCache({}, {})
        sources = CachedSources(self.plan, held, self.sources)
        options: dict[str, Any] = {
            "gpu": device,
            "choice": ANY_KERNEL,
            "workers": 4,
            "chunks": chunks,
            "events": events,
        }
        return GpuPlace(self.plan, sources, self.sink, **options)

    def check(self) -> None:
        np.testing.assert_array_equal(self.c, self.a @ self.b)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDevice]:
    with simulated(monkeypatch) as device:
        yield device


def ends(case: Case, place: GpuPlace, device: SimulatedDevice, within_s: float) -> bool:
    """Whether the product is done before so long; if not, everybody is freed."""

    def run() -> None:
        with contextlib.suppress(Exception):
            execute(case.plan.schedule(), place)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(within_s)
    done = not thread.is_alive()
    if not done:
        device.abandon()
        thread.join()
    with contextlib.suppress(Exception):
        place.close()
    return done


@pytest.mark.slow_cases("104", "Slow-256-1-1", "Slow-256-2-1", "Slow-256-3-2")
@pytest.mark.parametrize(
    ("size", "incoming", "outgoing"),
    [(256, 1, 1), (256, 2, 1), (256, 3, 2), (512, 5, 2), (4096, 1, 1), (4096, 8, 8), (104, 1, 1)],
    ids=lambda value: str(value),
)
@pytest.mark.parametrize("source", [ArraySource, Slow])
def test_few_chunks_suffice(
    device: SimulatedDevice, size: int, incoming: int, outgoing: int, source: type[ArraySource]
) -> None:
    """A block of A has 1040 bytes: far more than all chunks together, and each is held until its copy is over."""
    case = Case(source=source)
    place = case.place(device, Chunks(size, incoming, outgoing))
    assert ends(case, place, device, 60)
    case.check()
    assert (device.held_bytes, device.open) == (0, 0)


@pytest.mark.slow_cases("8")
@pytest.mark.parametrize("size", [8, 64, 100])
@pytest.mark.parametrize("host", [0, 4])
def test_a_row_may_be_longer_than_a_chunk(device: SimulatedDevice, size: int, host: int) -> None:
    case = Case(Grid(7, 33, 40, 7, 17, 20), host=host)
    place = case.place(device, Chunks(size, 3, 2))
    assert ends(case, place, device, 60)
    case.check()


@pytest.mark.slow_cases("1", "3")
@pytest.mark.parametrize("host", [1, 3, 100])
def test_blocks_are_kept_on_the_host(device: SimulatedDevice, host: int) -> None:
    case = Case(source=Slow, host=host)
    assert cache_blocks(case.plan.schedule().loads, case.plan.host_slots).hits
    place = case.place(device, Chunks(256, 4, 2))
    assert ends(case, place, device, 60)
    case.check()


@pytest.mark.slow_cases("4")
@pytest.mark.parametrize(("chunks", "works"), [(4, False), (8, True)])
def test_chunks_that_were_held_until_their_block_is_there_would_have_to_be_more(
    device: SimulatedDevice, chunks: int, works: bool
) -> None:
    """A block of B, of 1248 bytes, is 7 chunks here: with 4 of them the fifth would never be free."""
    case = Case()
    place = case.place(device, Chunks(208, chunks, 2))
    ring, load = place._rings[0], place.load

    def take() -> np.ndarray:
        if ring._taken < ring._count:
            ring._chunks.append(device.pages.take(ring._size))
        chunk, ring._taken = ring._chunks[ring._taken % ring._count], ring._taken + 1
        while chunk.ctypes.data in ring._busy:
            device.go_on()
            time.sleep(0.001)
        return chunk

    def whole(*args: Any) -> Any:
        block = load(*args)
        block.result().wait()
        ring._busy.clear()
        return block

    ring.take, place.load = take, whole  # type: ignore[method-assign]
    assert ends(case, place, device, 60 if works else 2) == works


@pytest.mark.slow
def test_a_copy_that_is_not_waited_for_spoils_the_product(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimulatedStream, "after", lambda *_: None)
    case = Case(source=Slow)
    assert ends(case, case.place(device, Chunks(256, 2, 2)), device, 60)
    assert not np.array_equal(case.c, case.a @ case.b)


def test_several_gpus(device: SimulatedDevice) -> None:
    case = Case(places=3)
    several = [case.place(device, Chunks(256, 2, 2)) for _ in range(3)]
    told: list[Tile] = []
    try:
        execute_on_all(case.plan.grid, case.plan.slots, several, case.plan.regions, told.append)
    finally:
        for place in several:
            place.close()
    case.check()
    assert sorted(told) == sorted(tile for part in tiles_of_regions(*GRID.tiles, 3) for tile in part)
    assert (device.held_bytes, device.open) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("rates", "used"), [(Rates(1e9, 1e10, 1e10), 4), (Rates(1e16, 1e10, 1e10, 1e8), 1)])
def test_multiply_takes_as_many_gpus_as_pay(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch, rates: Rates, used: int
) -> None:
    """Of four simulated ones: all where multiplying is slow, one where they would all read from the same slow disk."""
    monkeypatch.setattr(places.Placement, "rates", lambda *_: rates)
    kernel: Any = SimpleNamespace(name="simulated", source_hash="0", params={})
    gpus: Any = (device,) * 4
    choice = Choice(kernel, "float64", {}, "")
    placed = places.Placement(choice, Room(4 << 20, grain=64), 1, 1 << 30, gpus, Chunks(1 << 14, 4, 2))
    monkeypatch.setattr(job_module, "place_product", lambda *_: placed)
    rng, made = np.random.default_rng(0), []
    monkeypatch.setattr(GpuPlace, "close", lambda self, close=GpuPlace.close: (made.append(self), close(self)))
    a, b = rng.integers(-9, 9, (1000, 300)).astype(float), rng.integers(-9, 9, (300, 900)).astype(float)
    np.testing.assert_array_equal(large.multiply(a, b), a @ b)
    assert len(made) == used
    assert len(large.plan_multiply(a, b).regions) == used
    assert (device.held_bytes, device.open) == (0, 0)


@pytest.mark.parametrize("reads", [0, 7, 40])
def test_a_source_that_fails(device: SimulatedDevice, reads: int) -> None:
    case, told = Case(source=failing_after(reads)), []
    place = case.place(device, Chunks(256, 2, 2))
    with pytest.raises(OSError, match="the disk is gone"):
        execute(case.plan.schedule(), place, told.append)
    place.close()
    for tile in told:
        where = GRID.rows(tile.i), GRID.columns(tile.j)
        assert np.array_equal(case.c[where], (case.a @ case.b)[where])
    assert (device.held_bytes, device.open) == (0, 0)


@pytest.mark.parametrize("refused", [0, 1])
def test_what_was_taken_is_given_back_where_memory_is_short(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    rings = iter([True] * refused + [False])
    pages = device.pages.take

    def scarce(nbytes: int) -> np.ndarray:
        if next(rings):
            return pages(nbytes)
        raise LaunchError("no page-locked memory is left")

    monkeypatch.setattr(device.pages, "take", scarce)
    case = Case()
    place = case.place(device, Chunks(256, 2, 2))
    with pytest.raises(LaunchError, match="page-locked"):
        execute(case.plan.schedule(), place)
    place.close()
    assert (device.held_bytes, device.open) == (0, 0)


def test_events_tell_every_piece(device: SimulatedDevice) -> None:
    case, events = Case(), Events("cuda:0")
    place = case.place(device, Chunks(256, 4, 4), events)
    planned: Schedule = case.plan.schedule()
    execute(planned, place)
    place.close()
    tracks = [event.track for event in events.events]
    pieces = {"copy in": planned.loads, "compute": planned.multiplies, "copy out": planned.stores}
    assert {track: tracks.count(track) for track in pieces} == {
        track: len(list(part)) for track, part in pieces.items()
    }
    assert all(event.start_s <= event.end_s for event in events.events)
