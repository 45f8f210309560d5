"""Measured peaks: what a busy machine lowered does not count for long, and no measurement takes memory that is not there."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from support.command_line import Answer
from tilewright.cpu.runtime import peaks
from tilewright.host.machine import Cache, machine


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache on disk, a process that measured nothing yet, and a machine of two cores without a quota, whose
    description has no rates."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(peaks, "_doubts", {})
    two = replace(machine(), usable_cores=2, physical_cores=2, quota_cores=None, rates=())
    monkeypatch.setattr(peaks, "machine", lambda: two)
    return tmp_path / "cache" / "peaks"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many threads were measured, one after the other."""
    return []


def say(monkeypatch: pytest.MonkeyPatch, measured: list[int], *answers: tuple[float, float]) -> None:
    """Each measurement of several threads gives the next answer, the last again and again; one thread reaches 100."""
    left = list(answers)

    def measure(dtype: str, threads: int) -> tuple[float, float]:
        measured.append(threads)
        if threads == 1:
            return 100.0, 1.0
        return left.pop(0) if len(left) > 1 else left[0]

    monkeypatch.setattr(peaks, "_measure_peak", measure)


def cached(folder: Path) -> dict[str, object]:
    (path,) = folder.iterdir()
    return json.loads(path.read_text())


def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "_doubts", {})


def test_what_other_programs_lowered_counts_for_a_while(
    cache: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1e9]
    monkeypatch.setattr(peaks.time, "time", lambda: now[0])
    say(monkeypatch, measured, (120.0, 0.55))
    assert peaks.peak_gflops("float32", 2) == 120
    assert measured == [1, 2, 2, 2], "it is tried again"
    assert "the machine is busy, threads ran 55% of the time" in peaks._doubts["fma float32 2"]
    for later in (0, 0, peaks.AGAIN_S - 1):
        now[0] = 1e9 + later
        assert peaks.peak_gflops("float32", 2) == 120
        new_process(monkeypatch)
    assert len(measured) == 4, "no process waits for it again"
    assert "fma float32 2" not in cached(cache)
    now[0] += 2
    say(monkeypatch, measured, (130.0, 0.6), (198.0, 0.97))
    assert peaks.peak_gflops("float32", 2) == 198
    assert cached(cache)["fma float32 2"] == 198
    assert peaks._doubts["fma float32 2"] == ""


def test_a_lower_figure_of_a_busy_moment_changes_nothing(
    cache: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    say(monkeypatch, measured, (198.0, 0.97), (60.0, 0.3))
    assert peaks.peak_gflops("float32", 2) == 198
    assert peaks.peak_gflops("float32", 2, fresh=True) == 198
    assert cached(cache)["fma float32 2"] == 198
    assert peaks._doubts["fma float32 2"] == ""


def test_two_threads_that_equal_one_are_measured_again(
    cache: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    say(monkeypatch, measured, (101.0, 1.0), (198.0, 1.0))
    assert peaks.peak_gflops("float32", 2) == 101
    new_process(monkeypatch)
    assert peaks.peak_gflops("float32", 2) == 198
    assert peaks._doubts["fma float32 2"] == "measured again: 101.0 was cached, one thread reaches 100.0"
    new_process(monkeypatch)
    assert peaks.peak_gflops("float32", 2) == 198
    assert measured == [1, 2, 2]


def test_what_two_threads_reach_twice_is_believed(
    cache: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual machine may show one core's hyper-threads as two cores."""
    say(monkeypatch, measured, (101.0, 1.0), (100.5, 1.0))
    for _ in range(4):
        assert peaks.peak_gflops("float32", 2) == 101
        new_process(monkeypatch)
    assert measured == [1, 2, 2]


@pytest.mark.parametrize("changes", [{"physical_cores": 1}, {"quota_cores": 1.1}])
def test_where_two_threads_have_one_core_they_may_equal_one(
    changes: dict[str, float], cache: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = replace(peaks.machine(), **changes)
    monkeypatch.setattr(peaks, "machine", lambda: one)
    say(monkeypatch, measured, (101.0, 0.52))
    for _ in range(3):
        assert peaks.peak_gflops("float32", 2) == 101
        new_process(monkeypatch)
    assert measured == [1, 2]


def test_info_says_so(
    cache: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Answer]
) -> None:
    say(monkeypatch, measured, (120.0, 0.55))
    monkeypatch.setattr(peaks, "_triad_gbs", lambda *_, **__: (20.0, 1.0))
    said = " ".join(cli("info").out.split())
    assert (
        "FMA peak, float32, 2 threads 120.0 GFLOPS (too low, and soon measured again: the machine is busy, threads ran"
        in said
    )
    assert "FMA peak, float32, 1 thread 100.0 GFLOPS FMA peak" in said


def test_the_share_is_that_of_the_threads_own_time() -> None:
    """A thread that sleeps half of the time has a processor for half of it."""
    pause = threading.Event()

    def half() -> None:
        pause.wait(0.05)

    seconds, share = peaks._timed([half, half])
    assert seconds >= 0.05
    assert share < 0.5


@pytest.mark.parametrize("known", ["x", -1.0, 0.0, float("nan"), float("inf"), None, [1], True])
def test_a_cached_peak_that_is_no_figure_is_measured_again(
    known: object, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peaks, "_measure_peak", lambda dtype, threads: (12.5, 1.0))
    assert peaks.peak_gflops("float32", 1) == 12.5
    (path,) = cache.iterdir()
    path.write_text(json.dumps({"fma float32 1": known}))
    assert peaks.peak_gflops("float32", 1) == 12.5
    assert cached(cache) == {"fma float32 1": 12.5}


@pytest.mark.parametrize("known", [[120.0], [120.0, "x"], ["x", 1e9], [120.0, 2e9], [120.0, 1e9 - 1e6], 120.0, None])
def test_a_mark_that_is_none_or_old_does_not_count(known: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks.time, "time", lambda: 1e9)
    assert peaks._recent(known) == 0
    assert peaks._recent([120.0, 1e9 - 1]) == 120


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of all arrays of each measurement of a bandwidth, which reaches 20, on a machine with 260 MiB of L3."""
    sizes: list[int] = []

    def measure(dtype: str, threads: int, nbytes: int) -> tuple[float, float]:
        sizes.append(nbytes)
        return 20.0, 1.0

    large = Cache(3, "Unified", 260 << 20)
    here = replace(machine(), caches=(*(each for each in machine().caches if each.level < 3), large), rates=())
    monkeypatch.setattr(peaks, "machine", lambda: here)
    monkeypatch.setattr(peaks, "available_memory", lambda: 64 << 30)
    monkeypatch.setattr(peaks, "_triad_gbs", measure)
    return sizes


def test_a_bandwidth_is_measured_in_the_room_that_there_is(
    cache: Path, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for room in (1 << 20, 519 << 20):
        assert peaks.bandwidth_gbs("float64", 1, room=room) == peaks.ASSUMED_GBS
    assert not taken, "arrays that the cache holds measure the cache"
    assert peaks.bandwidth_gbs("float64", 1, room=600 << 20) == 20
    assert peaks.bandwidth_gbs("float64", 2) == 20
    assert peaks.bandwidth_gbs("float64", 2, room=1) == 20, "from the cache"
    monkeypatch.setattr(peaks, "available_memory", lambda: 1 << 30)
    assert peaks.bandwidth_gbs("float64", 1, fresh=True) == 20, "not measured anew, and not lost"
    assert taken == [600 << 20, 3 * 260 << 20]


def test_memory_that_another_program_took_first_is_no_error(
    cache: Path, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> tuple[float, float]:
        raise MemoryError

    monkeypatch.setattr(peaks, "_triad_gbs", full)
    assert peaks.bandwidth_gbs("float64", 1) == peaks.ASSUMED_GBS
    assert not cache.exists() or not list(cache.iterdir()), "what was assumed is not cached"
