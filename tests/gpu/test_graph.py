"""Recorded launches that are submitted as a graph; functions of this process stand in for the driver's."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import pytest

from support.stand_driver import WORD, StandDriver
from tilewright.gpu.runtime import driver as driver_module
from tilewright.gpu.runtime import recording
from tilewright.gpu.runtime.recording import Replay, recorded, recorded_words, recording_with

FIRST, SECOND = (2, 3, 4, 32, 2, 1, 1024), (5, 1, 1, 64, 1, 1, 0)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> StandDriver:
    stand = StandDriver()
    for module in (recording, driver_module):
        monkeypatch.setattr(module, "driver", lambda: stand)
    monkeypatch.setattr(recording, "_graphs", set())
    return stand


def submit(a: int, b: int, stream: int) -> None:
    recording_with(stream).add(recorded_words("first", 7, FIRST, (WORD * 4)(a, a + 8, 3, b), [0, 1, 3]))
    recording_with(stream).add(recorded_words("second", 8, SECOND, (WORD * 1)(b), [0]))


def replay(stream: int = 9) -> Replay:
    return Replay(recorded(submit, (0, 0)), (0, 0), 55, stream)


def launches(a: int, b: int) -> list[Any]:
    first = a, a + 8, b
    x, y, z = (value.to_bytes(8, "little") for value in first)
    return [(7, FIRST, x, y, (3).to_bytes(4, "little"), z), (8, SECOND, z)]


def one_by_one(a: int, b: int, stream: int) -> list[Any]:
    return [(kernel, size, stream, *args) for kernel, size, *args in launches(a, b)]


def test_a_graph_gets_the_arguments_of_each_call(driver: StandDriver) -> None:
    again = replay()
    for a, b in ((4096, 8192), (4112, 8000), (4096, 8192)):
        driver.calls.clear()
        assert again.run(a, b, 9) == 0
        assert driver.calls == [("graph", 9, *launches(a, b))]


def test_a_launch_begins_early_where_its_kernel_waits(driver: StandDriver) -> None:
    """Of three launches the second waits by itself for the end of the first."""

    def three(a: int, b: int, stream: int) -> None:
        for kernel, waits in ((7, True), (8, True), (8, False)):
            launch = recorded_words("each", kernel, FIRST, (WORD * 1)(a + b), [])
            recording_with(stream).add(launch, waits)

    Replay(recorded(three, (0, 0)), (0, 0), 55, 9)
    programmatic, full = (1, 0, 1), (0, 0, 0)
    assert driver.edges == [(2000, 2001, *programmatic), (2001, 2002, *full)]


def test_one_launch_that_waits_is_made_without_a_graph(driver: StandDriver) -> None:
    def one(waits: bool) -> Replay:
        def submit(a: int, b: int, stream: int) -> None:
            recording_with(stream).add(recorded_words(f"at {a}", 8, FIRST, (WORD * 1)(b), [0]), waits)

        return Replay(recorded(submit, (0, 0)), (0, 0), 55, 9, early=True)

    assert one(True).run(16, 32, 9) == 0
    assert driver.calls == [(8, FIRST, 9, (32).to_bytes(8, "little"))]
    assert driver.early == [True], "it may begin before the end of what precedes it"
    assert one(False).run(16, 32, 9) == 0
    assert driver.calls[1][0] == "graph"


def test_other_streams_and_captured_ones_launch_one_by_one(driver: StandDriver) -> None:
    again = replay()
    assert again.run(16, 32, 10) == 0
    driver.captured = 1
    assert again.run(16, 32, 9) == 0
    driver.captured, driver.fails = 0, {"capture": 906}
    assert again.run(16, 32, 9) == 0
    assert driver.calls == [*one_by_one(16, 32, 10), *one_by_one(16, 32, 9) * 2]
    driver.fails = {}
    driver.calls.clear()
    assert again.run(16, 32, 9) == 0
    assert [call[0] for call in driver.calls] == ["graph"]


def test_a_graph_that_a_thread_uses_is_left_to_it(driver: StandDriver) -> None:
    again = replay()
    assert again._graph is not None
    state = ctypes.c_int64.from_address(again._graph.address)
    state.value = 1
    assert again.run(16, 32, 9) == 0
    assert driver.calls == one_by_one(16, 32, 9)
    assert state.value == 1
    state.value = 0
    assert again.run(16, 32, 9) == 0
    assert state.value == 0


@pytest.mark.parametrize("fails", [{2000: 1}, {2001: 1}, {"graph": 1}])
def test_a_graph_that_fails_is_not_used_any_more(driver: StandDriver, fails: Any) -> None:
    again = replay()
    driver.fails = fails
    assert again.run(16, 32, 9) == 0
    assert [call for call in driver.calls if call[0] != "graph"] == one_by_one(16, 32, 9)
    driver.fails = {}
    driver.calls.clear()
    assert again.run(16, 32, 9) == 0
    assert driver.calls == one_by_one(16, 32, 9)


def test_no_graph_in_a_context_that_cannot_be_current(driver: StandDriver) -> None:
    again = Replay(recorded(submit, (0, 0)), (0, 0), 66, 9)
    driver.fails = {"push": 201}
    assert again.run(16, 32, 9) == 2 << 32 | 201
    assert driver.calls == [("push", 66)]


@pytest.mark.slow
def test_where_there_is_no_graph(driver: StandDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.captured = 1
    assert replay()._graph is None
    driver.captured, driver.fails = 0, {"instantiate": 2}
    assert replay()._graph is None
    gc.collect()
    assert (driver.destroyed, driver.mode) == ([999], 0)
    driver.fails = {}
    driver.nodes.clear()
    first = replay()
    monkeypatch.setattr(recording, "_MOST_GRAPHS", 1)
    assert replay()._graph is None
    assert first.run(16, 32, 9) == 0
    del first
    gc.collect()
    assert driver.destroyed[-2:] == [1000, 999]
    driver.nodes.clear()
    assert replay()._graph is not None
    monkeypatch.setattr(recording, "_MOST_IN_GRAPH", 1)
    assert replay()._graph is None
