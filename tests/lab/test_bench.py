"""The protocol, watched through kernels that record what is done to them."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.simulated_clock import SimulatedClock
from tilewright.errors import UnavailableError, UsageError
from tilewright.host.limits import get_threads
from tilewright.kernels import Kernel
from tilewright.lab.bench import cpu as protocol
from tilewright.lab.bench import timing
from tilewright.lab.bench.cells import Cell, Settings, cells
from tilewright.lab.bench.cpu import Bench
from tilewright.lab.bench.operand_sets import OperandSets, sets_needed
from tilewright.records.bench import BenchRecord, from_line, to_line
from tilewright.records.compare import is_unclear

ENVIRONMENT = {"processor": "Example CPU"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch, few_operand_sets):
    """Known peak, no waiting for other threads, and a clock on which only pauses take time."""
    SimulatedClock.installed(monkeypatch)
    monkeypatch.setattr(protocol, "peak_gflops", lambda *key, fresh: 10.0)
    monkeypatch.setattr(timing, "wait_until_quiet", lambda: None)


def kernel(function: Any, name: str = "my/fake", **declared: Any) -> Kernel:
    about: dict[str, Any] = {"idea": "", "row": "", "compiled": False, "strided": True}
    return Kernel(name, 1, function, Path(__file__), **about | declared)


def right(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    np.matmul(a, b, out=c)


def settings(*kernels: Kernel, **changes: Any) -> Settings:
    asked: dict[str, Any] = {"references": [], "sizes": [(24, 24, 24)], "dtypes": ["float32"], "threads": [1]}
    return Settings(list(kernels), **asked | changes)


def measured(*kernels: Kernel, **changes: Any) -> list[BenchRecord]:
    asked = settings(*kernels, **changes)
    bench = Bench(asked, ENVIRONMENT)
    return [bench.measure(cell) for cell in cells(asked)]


class Recorder:
    """A kernel, or several, that writes down each call: whose, on which operands, and what C held before."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.calls: list[tuple[str, int, bool]] = []
        self.pause_s = pause_s

    def kernel(self, name: str) -> Kernel:
        def function(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
            if a.shape != (1, 1):  # the first call of all, which finds libraries
                self.calls.append((name, a.ctypes.data, bool(np.isnan(c).all())))
            timing.time.sleep(self.pause_s)
            np.matmul(a, b, out=c)

        return kernel(function, name)


# ---- what is measured ------------------------------------------------------------------------------------------------


def test_the_reference_alternates_with_the_kernel_on_the_same_operands(monkeypatch) -> None:
    recorder = Recorder(pause_s=0.02)
    monkeypatch.setattr(protocol, "CHEAP_S", 0)
    (record, _) = measured(recorder.kernel("my/fake"), references=[recorder.kernel("ref/fake")], sizes=[(64,) * 3])
    names = [name for name, _, _ in recorder.calls]
    until = max(i for i, name in enumerate(names) if name == "my/fake") + 2
    sampled = recorder.calls[until - 6 : until]
    assert [name for name, _, _ in sampled] == ["my/fake", "ref/fake"] * 3
    for ours, its in zip(sampled[::2], sampled[1::2], strict=True):
        assert ours[1] == its[1], "one after the other on the same A"
    addresses = {address for _, address, _ in sampled}
    assert len(addresses) == 3, "small operands rotate"
    assert record.reference == "ref/fake"
    assert len(record.samples_s) == len(record.reference_samples_s) == 3
    assert record.ratio == statistics.median(record.reference_samples_s) / statistics.median(record.samples_s)


def scripted(name: str, *pauses_s: float) -> Kernel:
    """A kernel whose products take these times in turns, from the first that is long on."""
    left: Iterator[float] = itertools.cycle(pauses_s)

    def function(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        timing.time.sleep(next(left))
        np.matmul(a, b, out=c)

    return kernel(function, name, shared="tiles")


def measured_in_time(spare_s: float, *kernels: Kernel, reference: Kernel, **changes: Any) -> tuple[BenchRecord, Bench]:
    """The last record of these kernels, the reference aside, with so much time for further samples."""
    asked = settings(*kernels, references=[reference], **changes)
    bench = Bench(asked, ENVIRONMENT | {"cores": 2})
    bench.spare_s = spare_s
    todo = cells(asked)
    for index, cell in enumerate(todo):
        bench.cells_left = len(todo) - index
        record = bench.measure(cell)
        if cell.kernel is not reference:
            last = record
    return last, bench


STEADY = scripted("ref/steady", 0.05)
#: Faster by a tenth in the median, and by less than its spread.
NOISY = (0.044, 0.052, 0.043, 0.045, 0.046)


def test_a_cell_that_few_samples_decide_gets_no_more() -> None:
    for far in (0.5, 0.005):
        record, bench = measured_in_time(100.0, scripted("my/far", far), reference=STEADY)
        assert (len(record.samples_s), is_unclear(record)) == (3, False)
        assert bench.spare_s == 100


def test_a_cell_that_they_do_not_decide_gets_more_until_they_do() -> None:
    without, _ = measured_in_time(0.0, scripted("my/noisy", *NOISY), reference=STEADY)
    assert (len(without.samples_s), is_unclear(without)) == (3, True)
    record, bench = measured_in_time(100.0, scripted("my/noisy", *NOISY), reference=STEADY)
    assert len(record.samples_s) == len(record.reference_samples_s) == 16
    assert not is_unclear(record)
    assert is_unclear(dataclasses.replace(record, samples_s=record.samples_s[:8])), (
        "eight were asked, and did not decide"
    )
    assert bench.spare_s == pytest.approx(100 - 13 * (0.05 + 0.046), abs=0.05)


def test_a_cell_that_nothing_decides_ends_when_its_part_of_the_time_is_used_up() -> None:
    noise = (0.02, 0.08, 0.03, 0.07, 0.04)
    record, bench = measured_in_time(6.0, scripted("my/noise", *noise), reference=STEADY)
    assert is_unclear(record)
    assert 6.0 - 0.2 < 6.0 - bench.spare_s <= 6.0 + 0.2, "none is left for the reference, which needs none"
    kernels = [scripted(f"my/{i}", *(noise if i % 2 else (0.005,))) for i in range(30)]
    record, bench = measured_in_time(6.0, *kernels, reference=STEADY)
    assert 6 <= len(record.samples_s) <= 12, "first or last, about 0.4 s for each of the cells that nothing decides"
    assert bench.spare_s >= 0


def test_a_reference_that_more_threads_slow_down_decides_nothing() -> None:
    """On two threads it takes 20 times as long: the kernel would seem 20 times as fast."""

    def starving(pauses: dict[int, float]) -> Kernel:
        def function(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
            timing.time.sleep(pauses[get_threads()])
            np.matmul(a, b, out=c)

        return kernel(function, "ref/starving", shared="tiles")

    mine = scripted("my/kernel", 0.05)
    for on_two, words in ((1.0, "ref/starving took 20 times as long on 2 threads as on 1"), (0.03, "")):
        library = starving({1: 0.05, 2: on_two})
        record, bench = measured_in_time(9.0, mine, reference=library, threads=[1, 2])
        assert record.threads == 2
        assert record.environment.get("starved", "") == words
        assert is_unclear(record) == bool(words)
        assert (bench.spare_s < 9) == bool(words), "it is tried again"
        assert from_line(to_line(record)) == record
    more = measured_in_time(0.0, mine, reference=starving({1: 0.05, 4: 1.0}), threads=[1, 4])[0]
    assert "starved" not in more.environment, "four threads on two cores are slow on a quiet machine too"


def slow(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    timing.time.sleep(0.005)
    np.matmul(a, b, out=c)


def test_a_library_is_measured_by_the_fastest_of_its_variants() -> None:
    recorder = Recorder()
    fast = recorder.kernel("fast").function
    library = kernel(slow, "ref/fake", variants=lambda dtype: {"installed": slow, "fast": fast, "other": slow})
    ours, its = measured(recorder.kernel("my/fake"), references=[library], sizes=[(64,) * 3])
    assert ours.environment["variants"] == its.environment["variants"] == {"ref/fake": "fast"}
    assert ours.ratio < 20
    assert its.median_s < 0.005
    assert ours.reference == its.kernel == "ref/fake"


def test_variants_of_a_long_product_are_compared_on_few_of_its_rows(monkeypatch) -> None:
    rows: list[int] = []

    def noted(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        rows.append(len(a))

    def timed(run: Callable[..., None], a: np.ndarray, *others: np.ndarray) -> float:
        run(a, *others)
        return 1e-5 * len(a)

    monkeypatch.setattr(timing, "TRIAL_S", 1e-2)
    monkeypatch.setattr(timing, "timed", timed)
    sets = OperandSets.random((2048, 8, 8), "float32", 1)
    timing.fastest({"a": noted, "b": noted}, sets, 1)
    assert rows[:3] == [2048, 1024, 512]
    assert set(rows[3:]) == {512}


def test_a_sample_of_several_threads_begins_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is slow for five products after a rest is measured without these."""
    slow = 0

    def rested() -> None:
        nonlocal slow
        slow = 5

    def wakes_slowly(*_: np.ndarray) -> None:
        nonlocal slow
        timing.time.sleep(3e-4 if slow > 0 else 1e-5)
        slow -= 1

    monkeypatch.setattr(timing, "wait_until_quiet", rested)
    sets = OperandSets.random((8, 8, 8), "float32", 1)
    warm = timing.SampleLoop(wakes_slowly, sets, sets.c, 2)
    assert warm.sample() < 1.5e-5
    monkeypatch.setattr(timing, "WARM_S", 0.0)
    cold = timing.SampleLoop(wakes_slowly, sets, sets.c, 2)
    assert cold.sample() > 3e-5


def test_every_output_is_poisoned_before_the_kernel_runs() -> None:
    recorder = Recorder()
    measured(recorder.kernel("my/fake"))
    first_on = {}
    for _, address, poisoned in recorder.calls[2:]:  # after the prediction and the verifying run
        first_on.setdefault(address, poisoned)
    assert all(first_on.values())
    assert recorder.calls[1][2], "the run that is verified writes into NaN"


@pytest.mark.parametrize("repeat", [1, 4, 13])
def test_there_are_as_many_samples_as_asked_for(repeat) -> None:
    (record,) = measured(kernel(right), repeat=repeat)
    assert len(record.samples_s) >= repeat
    assert min(record.samples_s) > 0
    assert record.verdict == "ok"


@pytest.mark.slow
def test_a_limit_that_a_product_keeps_does_not_cost_samples() -> None:
    (record,) = measured(Recorder(pause_s=0.03).kernel("my/fake"), limit_s=0.05, sizes=[(1, 24, 24)])
    assert (record.verdict, len(record.samples_s)) == ("ok", 4)


def test_rates_follow_from_the_samples() -> None:
    (record,) = measured(Recorder(pause_s=0.01).kernel("my/fake"), sizes=[(20, 30, 40)])
    assert record.median_s == pytest.approx(np.median(record.samples_s))
    assert record.gflops == pytest.approx(2 * 20 * 30 * 40 / record.median_s / 1e9)
    assert record.peak_fraction == pytest.approx(record.gflops / 10)
    assert record.median_s >= 0.01
    assert record.environment["processor"] == "Example CPU"
    assert record.environment["kernel_source"]


@pytest.mark.slow
def test_a_seed_gives_the_same_operands_and_another_seed_others() -> None:
    shape = (5, 6, 7)
    one, same, other = (OperandSets.random(shape, "float64", seed) for seed in (1, 1, 2))
    assert np.array_equal(one.a[0], same.a[0])
    assert np.array_equal(one.b[-1], same.b[-1])
    assert not np.array_equal(one.a[0], other.a[0])
    assert not np.array_equal(one.a[0], one.a[1])
    assert len(one) == sets_needed(shape, 8)
    everything = np.concatenate([x.ravel() for x in one.a])
    assert everything.min() >= -1
    assert everything.max() < 1
    assert abs(everything.mean()) < 0.05


def test_given_operands_are_what_is_multiplied() -> None:
    seen = []

    def watching(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        seen.append((a.copy(), b.copy()))
        np.matmul(a, b, out=c)

    a, b = np.arange(6, dtype=">f4").reshape(2, 3), np.asfortranarray(np.arange(12.0).reshape(3, 4))
    (record,) = measured(kernel(watching), operands=(a, b), sizes=[(2, 4, 3)], dtypes=["float64"], repeat=1)
    assert record.verdict == "ok"
    assert all(np.array_equal(x, a) and np.array_equal(y, b) for x, y in seen[2:])


# ---- what does not count ---------------------------------------------------------------------------------------------


def changing(name: str) -> Any:
    def function(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        np.matmul(a, b, out=c)
        {"A": a, "B": b}[name][0, 0] += 1

    return function


def later(a: np.ndarray, b: np.ndarray, c: np.ndarray, seen: list[int] = []) -> None:  # noqa: B006
    """Right at first, wrong from the twentieth call on."""
    np.matmul(a, b, out=c)
    seen.append(1)
    if len(seen) > 20:
        c[-1, -1] += 1


def raising(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    raise ArithmeticError("no")


@pytest.mark.slow_cases("later")
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda a, b, c: None, "not written"),
        (lambda a, b, c: c.fill(0), "off by"),
        (lambda a, b, c: np.matmul(a, b, out=c)[-1:, -1:].fill(np.inf), "inf"),
        (changing("A"), "changed A"),
        (changing("B"), "changed B"),
        (later, "off by"),
        (raising, "ArithmeticError: no"),
    ],
)
def test_a_wrong_kernel_gets_no_time_and_harms_nobody(function, words) -> None:
    wrong, after = measured(kernel(function), kernel(right, "my/right"), repeat=12)
    assert (wrong.verdict, wrong.samples_s, wrong.gflops) == ("wrong", [], None)
    assert words in wrong.reason
    assert after.verdict == "ok"


@pytest.mark.parametrize(
    ("error", "verdict"),
    [(UnavailableError("no"), "unsupported"), (UsageError("no"), "unsupported"), (MemoryError(), "out_of_memory")],
)
def test_a_cell_that_cannot_run_says_why(error, verdict) -> None:
    def function(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        raise error

    (record,) = measured(kernel(function))
    assert record.verdict == verdict
    assert record.reason


def test_a_dtype_that_a_kernel_has_not_is_unsupported() -> None:
    one, two = measured(kernel(right, dtypes=("float32",)), dtypes=["float32", "float64"])
    assert [one.verdict, two.verdict] == ["ok", "unsupported"]
    assert "float64" in two.reason


def test_ctrl_c_passes_through() -> None:
    def function(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(kernel(function))


# ---- prediction ------------------------------------------------------------------------------------------------------


class Slow:
    """Takes 10 ns an m·n·k, and remembers the longest call and the sum of all."""

    def __init__(self) -> None:
        self.asked = self.total = 0.0

    def __call__(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        seconds = a.shape[0] * b.size * 1e-8
        self.asked = max(self.asked, seconds)
        self.total += seconds
        timing.time.sleep(seconds)
        np.matmul(a, b, out=c)


@pytest.mark.slow_cases("sizes3")
@pytest.mark.parametrize("sizes", [[64, 128, 256, 512, 1024], [1024], [1024, 64], [8, 1024], [128, 2048]])
def test_nobody_waits_for_what_is_over_the_limit(sizes) -> None:
    slow, limit = Slow(), 0.1
    found = measured(kernel(slow), sizes=[(n, n, n) for n in sizes], limit_s=limit, repeat=1)
    assert slow.total < 4 * limit * len(sizes)
    assert slow.asked <= limit
    for record in found:
        assert record.verdict == ("ok" if record.n <= 128 else "time_limit")
        assert record.verdict == "ok" or "the limit is 0.1 s" in record.reason


@pytest.mark.slow
def test_overhead_at_a_small_size_says_nothing_about_a_large_one() -> None:
    """4 ms at n = 8 are 2 000 s at n = 640 in proportion, and 4 ms in truth."""
    found = measured(Recorder(pause_s=0.004).kernel("my/fake"), sizes=[(8,) * 3, (640,) * 3], limit_s=1, repeat=1)
    assert [record.verdict for record in found] == ["ok", "ok"]


class Compiles:
    """A library that compiles code for 6 s in its first call with ``rows`` rows, or in every call."""

    def __init__(self, rows: int, always: bool = False) -> None:
        self.rows, self.always = rows, always

    def __call__(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        if a.shape[0] == self.rows:
            timing.time.sleep(6.0)
            self.rows = self.rows if self.always else 0
        np.matmul(a, b, out=c)


@pytest.mark.parametrize("rows", [1, 64], ids=["the band that predicts", "the whole product"])
def test_a_first_call_that_compiles_is_no_measure(rows: int) -> None:
    (record,) = measured(kernel(Compiles(rows)), sizes=[(64,) * 3], limit_s=4, repeat=1)
    assert record.verdict == "ok"
    assert record.median_s is not None
    assert record.median_s < 1
    (record,) = measured(kernel(Compiles(rows, always=True)), sizes=[(64,) * 3], limit_s=4, repeat=1)
    assert record.verdict == "time_limit"


def test_what_does_not_fit_is_found_out_before_it_is_allocated(monkeypatch) -> None:
    def never(*arguments: Any) -> Any:
        raise AssertionError("allocated")

    monkeypatch.setattr(protocol, "available_memory", lambda: 1 << 20)
    monkeypatch.setattr(OperandSets, "random", never)
    (record,) = measured(kernel(right), sizes=[(1024, 1024, 1024)])
    assert record.verdict == "out_of_memory"
    assert "1 MiB available" in record.reason
    monkeypatch.setattr(protocol, "available_memory", lambda: 64 << 30)
    (record,) = measured(kernel(right, workspace=lambda m, n, k: 1 << 40), sizes=[(64, 64, 64)])
    assert record.verdict == "out_of_memory", "what a kernel says it allocates counts"


def test_the_largest_size_there_is_allocates_nothing() -> None:
    (record,) = measured(kernel(right), sizes=[(10**9,) * 3])
    assert record.verdict == "out_of_memory"


# ---- cells -----------------------------------------------------------------------------------------------------------


def test_cells_are_in_order_of_size_and_serial_kernels_take_one_thread() -> None:
    serial, tiles, library = (
        kernel(right, "my/serial"),
        kernel(right, "my/tiles", shared="tiles"),
        kernel(right, "ref/x"),
    )
    asked = settings(serial, tiles, references=[library], sizes=[(8,) * 3, (9,) * 3], threads=[2])
    names = [(c.shape[0], c.threads, c.kernel.name) for c in cells(asked)]
    one = [(8, 1, "my/serial"), (8, 1, "ref/x"), (8, 2, "my/tiles"), (8, 2, "ref/x")]
    assert names == one + [(9, *rest) for _, *rest in one]


def test_a_library_can_be_asked_for_as_a_kernel_and_is_measured_once() -> None:
    library = kernel(right, "ref/x", shared="tiles")
    asked = settings(library, references=[library], threads=[2])
    assert [(c.kernel.name, c.threads) for c in cells(asked)] == [("ref/x", 2)]


def test_constants_are_no_part_of_a_cell() -> None:
    def one(kc: int, leaf: int) -> Any:
        fake = kernel(right, params={"KC": kc, "leaf": leaf}, tunable=frozenset({"leaf"}))
        return Cell(fake, (8, 8, 8), "float32", 1, {}).record("ok")

    assert one(256, 64).cell == one(384, 64).cell
    assert one(256, 64).cell != one(256, 128).cell
    assert one(256, 64).about["constants"] == {"KC": 256}
    assert one(256, 64).params == {"leaf": 64}


@pytest.mark.parametrize("changes", [{"repeat": 0}, {"limit_s": 0}, {"limit_s": float("nan")}, {"params": {"leaf": 1}}])
def test_settings_have_rules(changes) -> None:
    with pytest.raises(UsageError, match=next(iter(changes)).removesuffix("_s").removesuffix("s")):
        dataclasses.replace(settings(kernel(right)), **changes)
