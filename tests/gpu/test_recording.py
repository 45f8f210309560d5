"""Recorded launches and the machine code that repeats them: functions of this process stand in for the driver's."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest

from support.stand_driver import WORD, StandDriver
from tilewright.errors import LaunchError
from tilewright.gpu.runtime import launch, recording
from tilewright.gpu.runtime.launch import BoxedArguments, BoxedOperand
from tilewright.gpu.runtime.recording import (
    RecordedLaunch,
    Replay,
    recorded,
    recorded_maps,
    recorded_words,
    recording_with,
)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> StandDriver:
    stand = StandDriver()
    monkeypatch.setattr(recording, "driver", lambda: stand)
    return stand


def number(value: int, width: int = 8) -> bytes:
    return value.to_bytes(width, "little")


SIZE = (2, 3, 4, 32, 2, 1, 1024)


def submit(a: int, b: int, workspace: int, stream: int) -> None:
    """As the launchers submit."""
    to = recording_with(stream)
    words = (WORD * 4)(a, workspace + 256, 0xFFFF_FFFF, b - 48)
    to.add(recorded_words("first", 7, SIZE, words, [0, 1, 3]))
    to.add(recorded_words("second", 8, SIZE[::-1], (WORD * 1)(0), [0]))


def replay(driver: Any, alike: tuple[int, ...] = (4096 + 16, 2 * 4096 + 2, 0), context: int = 55) -> Replay:
    return Replay(recorded(submit, alike), alike, context)


def test_launches_get_the_addresses_of_the_call(driver: StandDriver) -> None:
    done = replay(driver).run(0x7FFF_0000_1010, 0x10_0000_0002, 0x33_0000, 99)
    assert done == 0
    first = number(0x7FFF_0000_1010), number(0x33_0100), number(0xFFFF_FFFF, 4), number(0x10_0000_0002 - 48)
    assert driver.calls == [(7, SIZE, 99, *first), (8, SIZE[::-1], 99, number(0))], "null stays null"


def test_the_context_is_made_current_only_where_it_is_not(driver: StandDriver) -> None:
    run = replay(driver, context=66).run
    assert run(16, 2, 0, 1) == 0
    assert [call if type(call) is str else call[0] for call in driver.calls] == ["push", 7, 8, "pop"]
    driver.current = 66
    driver.calls.clear()
    assert run(16, 2, 0, 1) == 0
    assert [call[0] for call in driver.calls] == [7, 8]


@pytest.mark.parametrize(
    ("fails", "words", "calls"),
    [
        ({7: 700}, "first: CUDA_ERROR_700", ["push", 7, "pop"]),
        ({8: 701}, "second: CUDA_ERROR_701", ["push", 7, 8, "pop"]),
        ({"push": 201}, "make the GPU the current one: CUDA_ERROR_201", ["push"]),
    ],
)
def test_a_failure_ends_the_call_and_has_a_name(driver: StandDriver, fails: Any, words: str, calls: list[Any]) -> None:
    again = replay(driver, context=66)
    driver.fails = fails
    error = again.error(again.run(16, 2, 0, 1))
    assert isinstance(error, LaunchError)
    assert str(error) == words
    assert [call if type(call) is str else call[0] for call in driver.calls] == calls


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ((16, 2, 0), TypeError),
        ((16, 2, 0, 0, 0), TypeError),
        ((16, 2, "0", 0), TypeError),
        ((16, 2, 0, -1), OverflowError),
    ],
)
def test_other_arguments_are_refused(driver: StandDriver, given: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        replay(driver).run(*given)
    assert driver.calls == []


def test_threads_do_not_share_arguments(driver: StandDriver) -> None:
    run = replay(driver).run

    def call(i: int) -> None:
        for _ in range(200):
            assert run(4096 * i + 16, 4096 * i + 2, 4096 * i, i) == 0

    threads = [threading.Thread(target=call, args=(i,)) for i in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    firsts = [call for call in driver.calls if call[0] == 7]
    assert len(firsts) == 800
    for _, _, stream, a, workspace, _, b in firsts:
        want = [4096 * stream + 16, 4096 * stream + 256, 4096 * stream + 2 - 48]
        assert [a, workspace, b] == [number(value) for value in want]


def test_what_is_no_launch_or_too_much_is_incomplete() -> None:
    launch = RecordedLaunch("k", 7, SIZE, bytes(8), (0,), ())
    too_long = launch._replace(arguments=bytes(4104))
    for added in ([None], [too_long], [launch._replace(places=(0,) * 65)], [launch] * 1001):
        found = recorded(lambda stream, added=added: [recording_with(stream).add(each) for each in added], ())
        assert not found.complete


def test_a_function_that_the_driver_lacks(driver: StandDriver) -> None:
    driver.fails = {b"cuLaunchKernelEx": 500}
    with pytest.raises(LaunchError, match="find cuLaunchKernelEx: CUDA_ERROR_NOT_FOUND"):
        replay(driver)


class Map:
    """A tensor map whose address is in the word ``at``."""

    def __init__(self, address: int, at: int = 0) -> None:
        self.words, self.at = (WORD * 16)(*range(100, 116)), at
        self.words[at] = address

    def getPtr(self) -> int:  # noqa: N802 - as NVIDIA's bindings call it
        return ctypes.addressof(self.words)


def replaced(made: Map, address: int) -> tuple[int]:
    made.words[made.at] = address
    return (0,)


def test_tensor_maps_get_their_addresses(driver: StandDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.cuTensorMapReplaceAddress = replaced  # type: ignore[attr-defined]
    monkeypatch.setattr(BoxedOperand, "encoded", lambda _, address: Map(address))
    monkeypatch.setattr(launch, "driver", recording.driver)
    operand = BoxedOperand("float16", 8, 8, 1, 16, 128, (8, 8))

    def boxed(a: int, c: int, stream: int) -> None:
        arguments = BoxedArguments([operand] * 2, b"twelve bytes", [a, a + 512], [c])
        recording_with(stream).add(arguments.recorded("boxed", 9, SIZE))

    found = Replay(recorded(boxed, (16, 32)), (16, 32), 55)
    assert found.run(0x5000_0010, 0x6000_0020, 3) == 0
    ((_, _, stream, first, second, pointer, structure),) = driver.calls
    rest = np.arange(101, 116, dtype=np.uint64).tobytes()
    assert (first, second) == (number(0x5000_0010) + rest, number(0x5000_0210) + rest)
    assert (pointer, structure, stream) == (number(0x6000_0020), b"twelve bytes", 3)


@pytest.mark.parametrize(("at", "recordable"), [(0, True), (1, False)])
def test_maps_of_another_form_are_not_recorded(driver: StandDriver, at: int, recordable: bool) -> None:
    driver.cuTensorMapReplaceAddress = replaced  # type: ignore[attr-defined]
    launch = recorded_maps("k", 9, SIZE, maps=[Map(4096, at)], at=[4096], pointers=[], structure=b"")
    assert (launch is not None) == recordable
