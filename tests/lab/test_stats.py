"""Verdicts between two files of records: earned, symmetric, and refused where nothing can be compared."""

from __future__ import annotations

import dataclasses
import doctest
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tilewright.errors import RecordError, UsageError
from tilewright.lab.terminal import show_bench
from tilewright.records import compare as comparison
from tilewright.records.bench import BenchRecord, from_line, to_line
from tilewright.records.compare import (
    Status,
    against_reference,
    busy,
    compare,
    is_unclear,
    judge,
    ratio_interval,
    starved,
)

ENVIRONMENT = {
    "processor": "Example CPU",
    "cores": 4,
    "operands": "uniform[-1,1)",
    "blas": {"openblas": "0.3.29"},
    "kernel_source": "abc",
    "python": "3.12.1",
    "numpy": "2.2.0",
    "numba": "0.61.0",
}


def record(samples: Any = (1.0, 1.01, 1.02, 1.01), reference: Any = (), **changes: Any) -> BenchRecord:
    """A cell of cpu/naive; with ``reference`` samples it was interleaved with OpenBLAS."""
    cell: dict[str, Any] = {
        "kernel": "cpu/naive",
        "device": "cpu",
        "m": 64,
        "n": 64,
        "k": 64,
        "dtype": "float32",
    }
    cell |= {"verdict": "ok", "samples_s": list(samples), "environment": dict(ENVIRONMENT), "seed": 1}
    if len(reference):
        cell |= {"reference": "ref/openblas", "reference_samples_s": list(reference)}
    return BenchRecord(**(cell | changes))


def env(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in {**ENVIRONMENT, **changes}.items() if value is not None}


def status(old: BenchRecord, new: BenchRecord, threshold: float = 0.03) -> Status:
    return compare([old], [new], threshold=threshold).rows[0].status


times = st.floats(1e-6, 1e3)
samples = st.lists(times, min_size=1, max_size=9)
tight = st.lists(st.floats(1.0, 1.01), min_size=3, max_size=12)


@given(samples, samples | st.just([]))
def test_a_file_against_itself_never_differs(ours: list[float], reference: list[float]) -> None:
    same = record(ours, reference)
    assert status(same, same) in (Status.SAME, Status.UNCLEAR)


@given(samples | tight, samples | tight, st.floats(0.5, 2))
def test_swapping_the_files_swaps_the_verdict(before: list[float], after: list[float], factor: float) -> None:
    old, new = record(before), record([factor * sample for sample in after])
    mirror = {Status.FASTER: Status.SLOWER, Status.SLOWER: Status.FASTER}
    there, back = status(old, new), status(new, old)
    assert back == mirror.get(there, there)


@given(tight, tight, st.booleans())
def test_twice_the_time_is_slower(before: list[float], after: list[float], referenced: bool) -> None:
    ones = [1.0] * 12 if referenced else []
    row = compare([record(before, ones)], [record([2 * sample for sample in after], ones)]).rows[0]
    assert row.status is Status.SLOWER
    assert row.basis == ("reference" if referenced else "time")
    assert row.change_percent == pytest.approx(100, abs=3)
    assert row.interval_percent is not None
    assert row.interval_percent[0] <= row.change_percent <= row.interval_percent[1]


@given(samples, samples)
def test_fewer_than_three_samples_never_get_a_verdict(before: list[float], after: list[float]) -> None:
    assert status(record(before[:2]), record(after)) is Status.UNCLEAR
    assert status(record(before), record(after[:2])) is Status.UNCLEAR


@pytest.mark.parametrize("count", [3, 4, 5, 8, 20])
@pytest.mark.parametrize("referenced", [False, True])
def test_noise_rarely_gets_a_verdict(count: int, referenced: bool) -> None:
    rng = np.random.default_rng(20240229)

    def noisy() -> BenchRecord:
        ours, its = np.exp(0.05 * rng.standard_normal((2, count))).tolist()
        return record(ours, its if referenced else ())

    verdicts = [status(noisy(), noisy()) for _ in range(300)]
    wrong = sum(verdict in (Status.FASTER, Status.SLOWER) for verdict in verdicts)
    assert wrong / len(verdicts) <= 0.02


VERDICTS = {
    "clearly faster": ([1.0, 1.01, 1.02, 1.01], [0.8, 0.81, 0.8, 0.81], Status.FASTER),
    "clearly slower": ([1.0, 1.01, 1.02, 1.01], [1.2, 1.21, 1.2, 1.21], Status.SLOWER),
    "the same": ([1.0, 1.001, 1.002, 1.001], [1.001, 1.0, 1.002, 1.003], Status.SAME),
    "separate, but within the threshold": ([1.0, 1.001, 1.0, 1.001], [1.02, 1.021, 1.02, 1.021], Status.SAME),
    "separate, but closer than the spread": ([1.0, 1.1, 1.2, 1.3], [1.31, 1.4, 1.45, 1.5], Status.UNCLEAR),
    "overlapping by one sample": ([1.0, 1.0, 1.0, 1.6], [1.5, 1.5, 1.5, 1.5], Status.UNCLEAR),
    "two samples, however far": ([1.0, 1.0], [9.0, 9.0], Status.UNCLEAR),
    "three samples, twice the spread apart": ([1.0, 1.0, 1.1], [1.3, 1.35, 1.4], Status.SLOWER),
    "three samples, less than that": ([1.0, 1.0, 1.1], [1.15, 1.18, 1.2], Status.UNCLEAR),
    "many samples and one outlier": ([1.0] * 9 + [3.0], [1.2] * 10, Status.SLOWER),
    "a sample that is no time": ([1.0, 1.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0], Status.UNCLEAR),
    "a sample lost to JSON": ([1.0, 1.0, None, 1.0], [1.0, 1.0, 1.0, 1.0], Status.UNCLEAR),
}


@pytest.mark.parametrize(("before", "after", "expected"), VERDICTS.values(), ids=VERDICTS.keys())
def test_verdicts(before: list[float], after: list[float], expected: Status) -> None:
    row = compare([record(before)], [record(after)]).rows[0]
    assert row.status is expected
    assert row.detail or expected is not Status.UNCLEAR


def test_drift_of_the_machine_is_divided_out() -> None:
    """Everything takes 1.5 times as long in the second run, kernel and reference alike."""
    ours, its = [2.0, 2.01, 2.0, 2.01], [1.0, 1.001, 1.0, 1.001]
    old, new = record(ours, its), record([1.5 * s for s in ours], [1.5 * s for s in its])
    comparison = compare([old], [new])
    assert comparison.rows[0].status is Status.SAME
    assert comparison.rows[0].drift == pytest.approx(1.5)
    assert "the reference's own time changed by +50% in new: times are divided by it" in comparison.notes
    assert status(record(ours), new) is Status.SLOWER  # nothing to divide by


def test_the_noise_of_the_reference_counts() -> None:
    ours = [1.0, 1.0, 1.0, 1.0]
    assert status(record(ours, [1.0, 1.0, 1.0, 1.0]), record(ours, [1.0, 2.0, 1.0, 2.0])) is Status.UNCLEAR


# old verdict and samples, new verdict and samples, status, does it count as a regression
OUTCOMES = [
    ("ok", "wrong", Status.WRONG, True),
    ("time_limit", "wrong", Status.WRONG, True),
    ("wrong", "wrong", Status.UNMEASURED, False),
    ("wrong", "ok", Status.UNMEASURED, False),
    ("ok", "time_limit", Status.LOST, True),
    ("ok", "unsupported", Status.LOST, True),
    ("out_of_memory", "ok", Status.UNMEASURED, False),
]


@pytest.mark.parametrize(("was", "now", "expected", "regression"), OUTCOMES)
def test_outcomes(was: str, now: str, expected: Status, regression: bool) -> None:
    comparison = compare([record(verdict=was)], [record(verdict=now, reason="because")])
    row = comparison.rows[0]
    assert row.status is expected
    assert "(because)" in row.detail
    assert row.change_percent is None
    assert row.interval_percent is None
    assert comparison.slower() == ([row] if regression else [])


def test_ok_without_samples_has_no_time() -> None:
    assert status(record([]), record()) is Status.UNMEASURED
    assert status(record(), record([])) is Status.LOST


def test_cells_of_one_file_only_are_listed() -> None:
    a, b, c = (record(n=n) for n in (32, 64, 128))
    comparison = compare([a, b], [b, c])
    expected = [(a, Status.ONLY_OLD), (b, Status.SAME), (c, Status.ONLY_NEW)]
    assert [(row.record, row.status) for row in comparison.rows] == expected
    assert comparison.counts() == {Status.SAME: 1, Status.ONLY_OLD: 1, Status.ONLY_NEW: 1}
    assert comparison.slower() == []


def test_regressions_for_an_exit_code() -> None:
    old = [record(n=n) for n in (1, 2, 3, 4)]
    faster, wrong = record([0.5] * 4, n=3), record(n=4, verdict="wrong")
    new = [record([1.1] * 4, n=1), record([1.5] * 4, n=2), faster, wrong]
    comparison = compare(old, new)
    assert [row.record.n for row in comparison.slower()] == [1, 2, 4]
    assert [row.record.n for row in comparison.slower(0.2)] == [2, 4]
    with pytest.raises(UsageError, match=r"at least the comparison's 0\.03, got 0\.01"):
        comparison.slower(0.01)


REFUSALS = {
    "processor": (
        {"environment": env(processor="Another CPU")},
        "processors differ .*Example CPU in old, Another CPU",
    ),
    "cores": (
        {"environment": env(cores=8)},
        "usable cores differ in cpu/naive 64 float32 .*4 in old, 8 in new",
    ),
    "operands": ({"environment": env(operands="zeros")}, "operands differ"),
    "reference": (
        {"environment": env(blas={"openblas": "0.4"})},
        r"versions of ref/openblas differ .*0\.3\.29 in old",
    ),
    "threads": ({"threads": 2}, "no common cell: old has .*threads=1 on cpu; new has .*threads=2"),
    "device": ({"device": "cuda"}, "no common cell"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refusals(changes: dict[str, Any], message: str) -> None:
    ones = [1.0] * 4
    with pytest.raises(RecordError, match=message):
        compare([record(reference=ones)], [record(reference=ones, **changes)])


def test_refuses_nothing_to_compare_and_other_gpus() -> None:
    with pytest.raises(RecordError, match="new: holds no record"):
        compare([record()], [])
    with pytest.raises(RecordError, match="GPUs differ"):
        compare([record(environment=env(gpu="A"))], [record(environment=env(gpu="B"))])


@pytest.mark.parametrize("threshold", [-0.01, 1.0, 3, math.nan])
def test_refuses_thresholds_that_are_no_fraction(threshold: float) -> None:
    with pytest.raises(UsageError, match="fraction"):
        compare([record()], [record()], threshold=threshold)


def test_one_cell_in_many_is_enough_to_refuse() -> None:
    cells = [record(n=n) for n in (32, 48)]
    other = dataclasses.replace(cells[1], environment=env(cores=2))
    with pytest.raises(RecordError, match="usable cores differ in cpu/naive 64x48x64"):
        compare(cells, [cells[0], other])


NOTES = {
    "numba": ({"environment": env(numba="0.62")}, "numba differs: 0.61.0 in old, 0.62 in new"),
    "blas without reference": ({"environment": env(blas={})}, "blas differs"),
    "seed": ({"seed": 2}, "seeds differ: 1 in old, 2 in new"),
    "no processor": (
        {"environment": env(processor=None)},
        "processor not recorded in new: taken to be the same",
    ),
    "no reference": ({}, "cells without a common reference: 1 (raw times"),
    "same source": ({"samples_s": [9.0] * 4}, "is slower, but its source did not change"),
}


@pytest.mark.parametrize(("changes", "note"), NOTES.values(), ids=NOTES.keys())
def test_notes(changes: dict[str, Any], note: str) -> None:
    notes = compare([record()], [record(**changes)]).notes
    assert any(note in line for line in notes), notes


def test_more_notes() -> None:
    ones = [1.0] * 4
    unknown = record(reference=ones, environment={})
    notes = compare([unknown], [unknown]).notes
    assert "version of ref/openblas not recorded on both sides: taken to be the same" in notes
    assert "cores not recorded in old and new: taken to be the same" in notes
    slow, fast = (record(environment=env(clock_mhz_before=mhz, clock_mhz_after=mhz)) for mhz in (2000, 3000.0))
    assert "clock differs: 2000 MHz in old, 3000 MHz in new" in compare([slow], [fast]).notes
    again = compare([record(), record([3.0] * 4)], [record()])
    assert "cells measured again in old: 1 (the last of each counts)" in again.notes
    assert again.rows[0].status is Status.FASTER


def test_records_survive_the_file() -> None:
    old, new = (from_line(to_line(r)) for r in (record([1.0, 2.0, 1.0]), record()))
    assert status(old, new) == status(record([1.0, 2.0, 1.0]), record())
    with pytest.raises(RecordError, match="samples_s must be a list of finite numbers above 0"):
        from_line(to_line(record([1.0, math.nan, 1.0])))


# n, m, how many quotients fall off at 99 %, coverage in all orders of n + m samples
INTERVALS = [
    (1, 1, 0, 0.0),
    (3, 3, 0, 1 - 2 / 20),
    (4, 4, 0, 1 - 2 / 70),
    (5, 5, 0, 1 - 2 / 252),
    (6, 6, 2, 1 - 8 / 924),
]


@pytest.mark.parametrize(("n", "m", "drop", "coverage"), INTERVALS)
def test_intervals_are_exact(n: int, m: int, drop: int, coverage: float) -> None:
    before, after = [2.0**i for i in range(n)], [3.0**i for i in range(m)]
    quotients = sorted(b / a for a in before for b in after)
    low, high, covered = ratio_interval(before, after)
    assert (low, high) == (quotients[drop], quotients[-1 - drop])
    assert covered == pytest.approx(coverage)


def test_mann_whitney_counts_every_order_once() -> None:
    assert comparison._mann_whitney_counts(2, 2) == [1, 1, 2, 1, 1]
    assert sum(comparison._mann_whitney_counts(4, 7)) == math.comb(11, 4)


def test_many_samples_use_the_normal_distribution_and_stay_conservative() -> None:
    exact, _ = comparison._quotients_to_drop(40, 40, 0.99)
    approximate, _ = comparison._quotients_to_drop(40, 41, 0.99)
    assert exact * 0.97 < approximate < exact * 1.05


def test_examples() -> None:
    assert doctest.testmod(comparison).failed == 0


# ---- a kernel against its reference ----------------------------------------------------------------------------------


def test_an_r_of_scattered_samples_is_unclear_on_the_terminal() -> None:
    steady = record([0.5, 0.51, 0.5, 0.51], [1.0, 1.01, 1.02, 1.01], kernel="cpu/packed", gflops=2.0).with_rates()
    torn = record([0.5, 3.5, 0.52, 0.51], [1.0, 1.01, 1.02, 7.0], gflops=2.0).with_rates()
    assert torn.ratio == pytest.approx(steady.ratio, rel=0.05), "the medians alone do not tell"
    console = Console(width=80)
    with console.capture() as captured:
        show_bench(console, [steady, torn])
    text = " ".join(captured.get().split())
    assert "cpu/naive 1 0.0 ? " in text
    assert "cpu/packed 1 0.0 2.00 " in text
    doubt = "?: UNCLEAR: samples are too few or too scattered, or the machine was busy (1 of 2 cells, for example "
    assert f"{doubt}cpu/naive at 64 on 1 thread)." in text
    assert "The machine was busy" not in text, "one sample of four may be of any size"
    with console.capture() as captured:
        show_bench(console, [steady])
    assert "UNCLEAR" not in captured.get()


ON_ONE, SLOWER = [1e-3, 1.1e-3, 1.05e-3, 1e-3], [2e-2, 3e-2, 2.5e-2, 2e-2]


@pytest.mark.parametrize(
    ("on_two", "on_one", "expected"),
    [
        (SLOWER, ON_ONE, "x took 22 times as long on 2 threads as on 1"),
        ([0.6e-3, 0.7e-3, 0.6e-3, 0.7e-3], ON_ONE, ""),
        ([1.1e-3, 1.2e-3, 1.15e-3, 1.2e-3], ON_ONE, ""),  # bound by memory
        ([9e-5, 9.1e-5, 9e-5, 9.2e-5], [1e-5, 1.1e-5, 1e-5, 1.2e-5], ""),  # what waking a thread costs
        ([0.9e-3, 2e-2, 1e-3, 2e-2], ON_ONE, ""),  # not decided
        (SLOWER[:2], ON_ONE, ""),
        (SLOWER, [], ""),
        ([6e-3, 7e-3, 6.5e-3], [*ON_ONE * 5, 5e-3, 4e-3], "x took 6.2 times as long on 2 threads as on 1"),  # scattered
    ],
)
def test_more_threads_that_take_longer_than_fewer_are_starved(on_two, on_one, expected) -> None:
    assert starved("x", 2, on_two, {1: on_one} if on_one else {}) == expected
    assert starved("x", 1, on_two, {2: on_one}) == "", "of fewer threads nothing follows"


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        ([9.0, 9.0, 9.0, 9.0], [40.0, 20.0, 60.0, 50.0], "the samples of ref/openblas differ by a factor of 2.5"),
        ([40.0, 20.0, 60.0, 50.0], [9.0, 9.0, 9.0, 9.0], "the samples of cpu/naive differ by a factor of 2.5"),
        ([900.0, 901.0, 900.0, 902.0], [4.0, 2.0, 6.0, 5.0], ""),  # 1/R is 200: slower whatever the scatter
        ([1.0, 1.0, 1.0, 1.0], [55.0, 56.0, 55.0, 56.0], ""),
        ([9.0, 9.0, 9.0, 9.0], [40.0, 40.0, 41.0, 60.0], ""),  # one sample of four
        (
            [9.0] * 8,
            [40.0, 12.0, 60.0, 50.0, 14.0, 70.0, 45.0, 13.0],
            "its 8 samples tell R only to within a factor of 2.4",
        ),
        ([9.0] * 32, [40.0, 12.0, 60.0, 50.0, 14.0, 70.0, 45.0, 13.0] * 4, ""),  # so many tell more
    ],
)
def test_an_r_of_widely_scattered_samples_is_unknown_unless_it_is_far_from_1(ours, theirs, why) -> None:
    found = record(ours, theirs)
    assert busy(found).endswith(why)
    assert is_unclear(found) == bool(busy(found)) == bool(why)
    assert judge(theirs, ours, 0.03)[0] in (Status.FASTER, Status.SLOWER), "their order alone would prove it"


def test_a_starved_library_makes_r_unknown_and_the_first_line_says_so() -> None:
    samples = {"samples": [1.0, 1.0, 1.0, 1.0], "reference": [55.0, 56.0, 55.5, 56.0]}
    quiet = record(*samples.values(), gflops=2.0).with_rates()
    why = "ref/openblas took 23 times as long on 2 threads as on 1"
    starving = dataclasses.replace(quiet, kernel="cpu/packed", environment={"starved": why})
    assert against_reference(quiet)[0] is Status.FASTER
    assert against_reference(starving)[::2] == (Status.UNCLEAR, why)

    def shown(*records: BenchRecord) -> list[str]:
        console = Console(width=200)
        with console.capture() as captured:
            show_bench(console, records)
        return captured.get().splitlines()

    first, *rest = shown(quiet, starving)
    assert first == f"The machine was busy: R is unknown (?) for 1 of 2 cells. For example, cpu/packed at 64: {why}."
    assert any(line.split()[:4] == ["cpu/packed", "1", "0.0", "?"] for line in rest)
    assert any(line.split()[:4] == ["cpu/naive", "1", "0.0", "55.75"] for line in rest)
    assert not any("busy" in line for line in shown(quiet))
