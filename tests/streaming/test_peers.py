"""Blocks from other GPUs on simulated streams: each is read once, none is overwritten while it is copied, no circle."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from support.simulated_streams import ANY_KERNEL, SimulatedDevice, SimulatedStream, failing_after, simulated
from tilewright.large.files.array import ArraySink, ArraySource
from tilewright.large.streaming.places import gpu as gpu_module
from tilewright.large.streaming.places.gpu import GpuPlace
from tilewright.large.streaming.places.peers import Peers
from tilewright.large.streaming.places.place import Events
from tilewright.large.streaming.places.staging import CachedSources, Chunks
from tilewright.large.streaming.plan.cost import Rates
from tilewright.large.streaming.plan.cuts import Room, Slots, place_elements
from tilewright.large.streaming.plan.grid import Grid, OperandBlock, Tile
from tilewright.large.streaming.plan.host_cache import HostCache
from tilewright.large.streaming.plan.partition import PARTITIONS, tiles_of_regions
from tilewright.large.streaming.plan.plan import StreamPlan
from tilewright.large.streaming.plan.stream import plan_again
from tilewright.large.streaming.run.computation import CountedSource, SharedCounter
from tilewright.large.streaming.run.executor import execute_on_all

GRID = Grid(48, 48, 60, 8, 8, 12)
RATES = Rates(1e9, 1e9, 1e9, peers=True)
#: Of A, B and C: everything fits, a strip of each operand does, hardly anything does.
PLENTY, SOME, LEAST = (30, 30, 2), (6, 6, 2), (2, 2, 1)


class Case:
    """A product on several simulated GPUs, which all reach each other."""

    def __init__(self, parts: Sequence[Sequence[Tile]], slots: Slots, source: type[ArraySource] = ArraySource) -> None:
        rng = np.random.default_rng(0)
        self.a, self.b = (rng.integers(-9, 9, shape).astype(float) for shape in ((GRID.m, GRID.k), (GRID.k, GRID.n)))
        self.c, self.read = np.full((GRID.m, GRID.n), np.nan), SharedCounter()
        room = Room(8 * place_elements(GRID, slots))
        alone = plan_again(GRID, "float64", room, RATES, [tile for part in parts for tile in part])
        self.plan = StreamPlan(GRID, "float64", "rows", slots, 0, tuple(map(tuple, parts)), alone.cost, RATES, room)
        self.sources = {
            "a": CountedSource(source(self.a), self.read.add),
            "b": CountedSource(source(self.b), self.read.add),
        }
        self.events = Events()

    def run(self, *gpus: SimulatedDevice, peers: Peers | None = None) -> BaseException | None:
        """What it raised; fails where it does not end. A single one of ``gpus`` stands for all."""
        sink = ArraySink(self.c, self.c.shape, self.c.dtype)
        count = len(self.plan.regions)
        options: dict[str, Any] = {"choice": ANY_KERNEL, "workers": 3, "peers": peers or Peers()}
        options["chunks"] = Chunks(256, 4, 2)
        places = [
            GpuPlace(
                self.plan,
                CachedSources(self.plan, HostCache({}, {}), self.sources),
                sink,
                **options,
                gpu=gpus[number % len(gpus)],
                events=self.events.at(f"cuda:{number}"),
            )
            for number in range(count)
        ]
        raised: list[BaseException] = []

        def work() -> None:
            try:
                with contextlib.ExitStack() as stack:
                    for place in places:
                        stack.enter_context(contextlib.closing(place))
                    execute_on_all(GRID, self.plan.slots, places, self.plan.regions)
            except BaseException as error:  # looked at by the test
                raised.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(60)
        if thread.is_alive():
            for each in gpus:
                each.abandon()
            pytest.fail("they wait for each other")
        return raised[0] if raised else None

    @property
    def once(self) -> int:
        """Bytes of both operands."""
        return self.a.nbytes + self.b.nbytes

    def check(self) -> None:
        np.testing.assert_array_equal(self.c, self.a @ self.b)


def prepared_by(*gpus: SimulatedDevice) -> Any:
    """Products are asked of the GPU whose memory they are in."""

    def prepared(*asked: Any, **options: Any) -> Any:
        products = {each: each.prepared(*asked, **options) for each in gpus}

        def product(a: int, b: int, c: int, stream: Any) -> None:
            next(of for each, of in products.items() if each.has(c))(a, b, c, stream)

        return product

    return prepared


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDevice]:
    with simulated(monkeypatch) as device:
        yield device


@pytest.mark.slow_cases(
    "least",
    "rectangles-2-some",
    "rectangles-3-some",
    "rectangles-4-some",
    "strips-2-plenty",
    "strips-3-some",
    "strips-4-plenty",
    "strips-4-some",
)
@pytest.mark.parametrize("slots", [PLENTY, SOME, LEAST], ids=["plenty", "some", "least"])
@pytest.mark.parametrize("places", [2, 3, 4])
@pytest.mark.parametrize("partition", PARTITIONS)
def test_products_are_right(device: SimulatedDevice, slots: Slots, places: int, partition: str) -> None:
    case = Case(tiles_of_regions(*GRID.tiles, places, partition=partition), slots)
    assert case.run(device) is None
    case.check()
    assert (device.held_bytes, device.open) == (0, 0)
    assert device.copied_over > 0
    assert case.once <= case.read.count
    tracks = {event.track for event in case.events.events}
    assert tracks == {"stage in", "copy in", "copy over", "compute", "copy out", "stage out"}


@pytest.mark.parametrize("places", [2, 4])
def test_a_block_is_read_once_where_all_fit(device: SimulatedDevice, places: int) -> None:
    case = Case(tiles_of_regions(*GRID.tiles, places), PLENTY)
    assert case.run(device) is None
    stolen = 8 * 2 * 8 * GRID.k * GRID.tiles[0]  # at most: a tile that another GPU takes over may need its own
    assert case.once <= case.read.count <= case.once + stolen
    assert case.plan.read_bytes == case.once


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_no_circle_where_slots_are_few(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Each GPU's next load waits for others that read what lies there, which wait for it."""
    with simulated(monkeypatch, 0.003 * (seed % 3), seed) as device:
        case = Case(tiles_of_regions(*GRID.tiles, 4), (2 + seed % 2, 2, 1))
        assert case.run(device) is None
        case.check()


def copy_over_slowly(self: Any, *copied: Any, over: Any = SimulatedStream.copy_over) -> None:
    self.ask(lambda: time.sleep(0.02))
    over(self, *copied)


class OneWay(Peers):
    """Only the first GPU lends: its first two blocks until the other asks for one; from then on it runs ahead."""

    def __init__(self, *, waits: bool) -> None:
        super().__init__()
        self._waits, self._taken, self._asked = waits, 0, threading.Event()

    def take(self, block: OperandBlock, gpu: Any, *slot: int) -> Any:
        if gpu.ordinal == 0:
            self._taken += 1
            assert self._taken <= 2 or self._asked.wait(30)
            self._lenders.pop(block, None)
        own, lender, readers = super().take(block, gpu, *slot)
        if lender is not None:
            self._asked.set()
        return own, lender, readers if self._waits else []


def copy_over_late(self: Any, to: int, lender: Any, source: int, nbytes: int, over: Any = copy_over_slowly) -> None:
    """When the lender has something else there, or after half a second: it waits for this copy."""

    def late() -> None:
        lent, until_s = ctypes.string_at(source, nbytes), time.monotonic() + 0.5
        while time.monotonic() < until_s and ctypes.string_at(source, nbytes) == lent:
            time.sleep(0.001)

    if not self.gpu.copied_over:  # once is enough
        self.ask(late)
    over(self, to, lender, source, nbytes)


@pytest.mark.slow
@pytest.mark.parametrize("waits", [True, False])
def test_a_reader_that_is_not_waited_for_gets_something_else(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    other = SimulatedDevice(ordinal=1)
    monkeypatch.setattr(SimulatedStream, "copy_over", copy_over_late)
    monkeypatch.setattr(gpu_module, "prepare_gpu_product", prepared_by(device, other))
    case = Case(tiles_of_regions(*GRID.tiles, 2, partition="strips"), LEAST)
    try:
        assert case.run(device, other, peers=OneWay(waits=waits)) is None
    finally:
        other.abandon()
        other.end()
    assert other.copied_over > 0
    assert np.array_equal(case.c, case.a @ case.b) == waits


@pytest.mark.parametrize("reads", [0, 7, 40, 100])
def test_all_end_where_a_source_fails(device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch, reads: int) -> None:
    """And no memory is given back that another GPU still reads."""
    monkeypatch.setattr(SimulatedStream, "copy_over", copy_over_slowly)

    case = Case(tiles_of_regions(*GRID.tiles, 4), SOME, failing_after(reads))
    error = case.run(device)
    assert isinstance(error, OSError)
    assert str(error) == "the disk is gone"
    assert (device.held_bytes, device.open) == (0, 0)
