"""The processor's counters, with system calls of the test's own, and with this machine's."""

from __future__ import annotations

import errno
import mmap
import threading
from pathlib import Path

import numpy as np
import pytest

from support.scripted_counters import ScriptedCounters
from tilewright.lab.explain import cpu_events
from tilewright.lab.explain.cpu_events import (
    CACHE,
    HARDWARE,
    RAW,
    SOFTWARE,
    PerfEvent,
    cache_event,
    count_events,
    reason_of,
)

CYCLES, INSTRUCTIONS = PerfEvent("cycles", HARDWARE, 0), PerfEvent("instructions", HARDWARE, 1)


def test_threads_are_added_up_and_every_counter_is_closed() -> None:
    fake = ScriptedCounters({"cycles": [(10, 5, 5), (32, 5, 5)], "instructions": [(1, 5, 5), (0, 0, 0)]})
    running = []
    found = count_events(lambda: running.append(len(fake.on)), [CYCLES, INSTRUCTIONS], fake)
    assert [(one.value, one.share, one.reason) for one in found] == [(42, 1, ""), (1, 1, "")]
    assert running == [4], "all of them run while the job does"
    assert not fake.held


def test_a_counter_that_took_turns_is_scaled_to_the_whole_time() -> None:
    (found,) = count_events(lambda: None, [CYCLES], ScriptedCounters({"cycles": [(10, 100, 25), (6, 100, 75)]}))
    assert found.value == 10 * 4 + 6 * 100 / 75
    assert found.share == 0.5


def test_a_counter_that_never_had_a_turn_is_missing_and_not_zero() -> None:
    for one in ((0, 100, 0), (0, 0, 0)):
        (found,) = count_events(lambda: None, [CYCLES], ScriptedCounters({"cycles": [one]}))
        assert found.value is None
        assert found.reason


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errno.ENOENT, "ENOENT"),
        (errno.EACCES, "perf_event_paranoid is 3 (EACCES)"),
        (errno.EPERM, "perf_event_paranoid is 3, and a container may forbid it as well (EPERM)"),
        (errno.EINVAL, "does not know this event (EINVAL)"),
        (errno.EMFILE, "ulimit -n (EMFILE)"),
        (errno.ENOSYS, "no perf_event_open (ENOSYS)"),
        (errno.EIO, "(EIO)"),
    ],
)
def test_a_refusal_is_told_and_the_others_count(
    error: int, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    paranoid = tmp_path / "perf_event_paranoid"
    paranoid.write_text("3\n")
    monkeypatch.setattr(cpu_events, "PARANOID", paranoid)
    fake = ScriptedCounters({"cycles": [(1, 5, 5), error], "instructions": [(7, 5, 5), (7, 5, 5)]})
    found = count_events(lambda: None, [CYCLES, INSTRUCTIONS], fake)
    assert found[0].value is None
    assert words in found[0].reason
    assert found[1].value == 14
    assert not fake.held, "what was opened before the refusal is closed too"


def test_a_machine_without_any_counter_is_told_from_a_missing_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cpu_events, "SOURCES", tmp_path)
    (tmp_path / "software").mkdir()
    assert "no PMU" in reason_of(OSError(errno.ENOENT, ""))
    (tmp_path / "cpu").mkdir()
    assert "no PMU" not in reason_of(OSError(errno.ENOENT, ""))


def test_a_thread_that_ended_meanwhile_is_left_out() -> None:
    (found,) = count_events(lambda: None, [CYCLES], ScriptedCounters({"cycles": [(5, 5, 5), errno.ESRCH]}))
    assert found.value == 5


def test_an_error_of_the_job_is_raised_and_every_counter_closed() -> None:
    fake = ScriptedCounters({"cycles": [(1, 1, 1)]})
    with pytest.raises(ZeroDivisionError):
        count_events(lambda: 1 // 0, [CYCLES], fake)  # type: ignore[arg-type,return-value]
    assert not fake.held
    assert not fake.on


def test_a_count_is_divided_by_what_the_counter_adds_for_each() -> None:
    (found,) = count_events(
        lambda: None, [PerfEvent("flops", RAW, 0x803, each=32)], ScriptedCounters({"flops": [(320, 1, 1)]})
    )
    assert found.value == 10


def test_events_of_caches_have_linux_numbers() -> None:
    # cache, operation << 8 (read is 0), result << 16 (access is 0, miss 1): linux/perf_event.h
    assert cache_event("LLC-load-misses", 2, misses=True) == PerfEvent("LLC-load-misses", CACHE, 0x10002)
    assert cache_event("L1-dcache-loads", 0) == PerfEvent("L1-dcache-loads", CACHE, 0)


def test_elsewhere_than_on_linux_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_events.sys, "platform", "darwin")
    done = []
    (found,) = count_events(lambda: done.append(1), [CYCLES])
    assert done == [1], "the job is done all the same"
    assert found.value is None
    assert "perf_event_open" in found.reason


@pytest.mark.skipif(not hasattr(mmap, "MADV_NOHUGEPAGE"), reason="asks Linux for small pages")
def test_this_machines_own_system_calls_count_page_faults_of_every_thread() -> None:
    """Counters of the kernel's own need no PMU: they show that the system calls are made as they must be."""
    pages, go, done = 2000, threading.Event(), threading.Event()
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    memory.madvise(mmap.MADV_NOHUGEPAGE)

    def touch() -> None:
        go.wait()
        np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1
        done.set()

    worker = threading.Thread(target=touch)
    worker.start()

    def job() -> None:
        go.set()
        assert done.wait(60)

    (found,) = count_events(job, [PerfEvent("page-faults", SOFTWARE, 2)])
    worker.join()
    if "ENOSYS" in found.reason or "not allowed" in found.reason:
        pytest.skip(found.reason)
    assert found.value is not None, found.reason
    assert pages <= found.value < pages + 500
    assert found.share == 1
