"""Finds the best blocking of a kernel on this CPU: its tile and block sizes. Candidates are measured in alternation
with the blocking that is computed from the caches (the analytic choice).

The method is successive halving. The search tries candidates that differ from the analytic choice in one number before
those that differ in two. Each candidate is compiled from a newly loaded module, verified, and sampled in alternation
with the analytic choice on the same operands, so that other programs on the machine slow both equally. A candidate's
ratio is the analytic choice's time divided by the candidate's time. The best few candidates are then measured in
rounds; after each round the slower half drops out. The analytic choice is also a candidate: its measured difference
from itself is the noise. The best candidate wins only if its advantage over the analytic choice exceeds the noise.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import math
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...cpu.runtime.runner import compiled
from ...errors import UsageError
from ...host.machine import Machine, machine
from ...kernels import FLOATS, Kernel
from ...kernels.blocking import STEPS, Blocking, analytic, in_force, tallest
from ...kernels.catalog import load_file, remade, tunable
from ...records.bench import BenchRecord
from ...records.compare import ratio_interval
from ..bench.cells import Cell, Settings
from ..bench.cpu import Bench
from ..inputs.environment import environment
from ..inputs.options import Shape

#: The number of candidates that enter the rounds.
FINALISTS = 8
#: The samples of a candidate in a trial or a round. Each is paired with a sample of the analytic choice.
PAIRS = 2
#: The most rounds, and the fewest: fewer than ten samples do not suffice for a verdict. The check with other dtypes takes
#: FEWEST_ROUNDS.
ROUNDS, FEWEST_ROUNDS = 12, 5
#: The fraction of the budget that trials may use.
TRIAL_SHARE = 0.6
#: Tiles with more rows are not tried, because they are slow for products of few rows.
MOST_ROWS = 10

#: Factors by which kc and the bytes of blocks and panels differ from the analytic choice.
_KC_PARTS = (1, 1 / 2, 3 / 4, 5 / 4, 3 / 2, 2)
_BLOCK_PARTS = (1, 1 / 2, 3 / 4, 5 / 4, 3 / 2)
_PANEL_PARTS = (1, 1 / 4, 1 / 2, 2)

#: A function that is called with every record as soon as it is known.
Listener = Callable[[BenchRecord], None]


@dataclass(frozen=True)
class TriedBlocking:
    """A blocking, and its record. The samples in the record were taken in alternation with the analytic choice;
    ``ratio`` is the analytic choice's time divided by the blocking's time."""

    blocking: Blocking
    record: BenchRecord

    @property
    def interval(self) -> tuple[float, float]:
        """The confidence interval of the ratio, as (low, high)."""
        return ratio_interval(self.record.samples_s, self.record.reference_samples_s)[:2]


@dataclass(frozen=True)
class TunedBlocking:
    """The result of a search: the finalists, best first, with the analytic choice among them; the number of blockings
    that were tried; and the records of blockings that could not be timed. ``winner`` is a blocking that is measurably
    better than the analytic choice, or None; ``why`` is the reason as text.
    """

    finalists: list[TriedBlocking]
    tried: int
    failed: list[BenchRecord]
    analytic: Blocking
    winner: TriedBlocking | None
    why: str


# ---- candidates ------------------------------------------------------------------------------------------------------


class BlockingChoice(NamedTuple):
    """The differences of a candidate from the analytic choice: its ``nv`` and ``unroll``, and factors for its kc and
    for the bytes of its blocks."""

    nv: int
    unroll: int
    kc_part: float
    block_part: float
    panel_part: float


def candidates(here: Machine, itemsize: int, in_force_blocking: Blocking, seed: int = 1) -> Iterator[Blocking]:
    """Yield the blockings to try, each once. The analytic choice is first, then the blocking that this process uses. Of
    the other blockings, those that differ from the analytic choice in fewer numbers come first, in random order among
    equals.

    Candidates differ in kc for elements of ``itemsize`` bytes; for elements of other sizes kc stays the same if
    possible.
    """
    first = analytic(here)
    widths = sorted((nv for nv in range(2, 7) if tallest(here, nv) <= MOST_ROWS), key=lambda nv: nv != first.nv)
    axes = (widths, (first.unroll, *({1, 2, 4, 8} - {first.unroll})), _KC_PARTS, _BLOCK_PARTS, _PANEL_PARTS)
    choices = [BlockingChoice(*each) for each in itertools.product(*axes)]
    random.Random(seed).shuffle(choices)
    choices.sort(key=lambda choice: sum(x != axis[0] for x, axis in zip(choice, axes, strict=True)))
    seen = set()
    changed = (_candidate(here, itemsize, choice) for choice in choices)
    for blocking in itertools.chain([first, in_force_blocking], changed):
        identity = tuple(blocking.numbers.items())
        if identity not in seen and (blocking == first or blocking.sound(here)):
            yield blocking
        seen.add(identity)


def _candidate(here: Machine, itemsize: int, choice: BlockingChoice) -> Blocking:
    base = analytic(here, nv=choice.nv)
    block, panel = int(base.block_bytes * choice.block_part), int(base.panel_bytes * choice.panel_part)
    blocking = replace(base, unroll=choice.unroll, block_bytes=block, panel_bytes=panel)
    if choice.kc_part == 1:
        return blocking
    if itemsize <= 4:
        kc = max(STEPS, int(base.kc * choice.kc_part) // STEPS * STEPS)
        return replace(blocking, kc=kc, kc_of_8_bytes=min(kc, base.kc_of_8_bytes))
    kc = max(STEPS, int(base.kc_of_8_bytes * choice.kc_part) // STEPS * STEPS)
    return replace(blocking, kc=max(kc, base.kc), kc_of_8_bytes=kc)


@contextlib.contextmanager
def compiled_first(kernel: Kernel, dtype: str, requested: Iterator[Blocking]) -> Iterator[Iterator[Blocking]]:
    """Yield the blockings of ``requested``, each as soon as its machine code is on disk. Other processes compile
    several blockings at the same time, while nothing is measured."""
    workers = min(16, machine().usable_cores)
    if workers < 2 or not kernel.compiled:
        yield requested
        return
    pool = concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
    try:
        yield _in_batches(pool, kernel, dtype, requested, workers)
    finally:
        pool.shutdown(cancel_futures=True)


def _in_batches(
    pool: concurrent.futures.Executor, kernel: Kernel, dtype: str, requested: Iterator[Blocking], count: int
) -> Iterator[Blocking]:
    yield from itertools.islice(requested, 1)  # the analytic choice, which is compiled already
    while batch := list(itertools.islice(requested, count)):
        # If a compiler crashes, the pool is broken; the bench then compiles itself.
        with contextlib.suppress(concurrent.futures.BrokenExecutor):
            concurrent.futures.wait([pool.submit(_compile, kernel.path, dtype, chosen) for chosen in batch])
        yield from batch


def _compile(path: Path, dtype: str, chosen: Blocking) -> None:
    compiled(remade(load_file(path), chosen), np.dtype(dtype))


# ---- the search ------------------------------------------------------------------------------------------------------


def check_tunable(kernel: Kernel, dtype: str) -> None:
    """Raise UsageError for a kernel whose blocking cannot be searched for, and for a dtype that the kernel does not
    multiply."""
    if kernel.blocking is None:
        why = "its tile and its blocks are fixed in its source, or come from another kernel's search"
        raise UsageError(f"{kernel.name} cannot be tuned: {why}; can be: {', '.join(tunable())}")
    if dtype not in kernel.dtypes:
        raise UsageError(f"{kernel.name} has no {dtype}: it takes {', '.join(kernel.dtypes)}")


class Search:
    """Measures blockings of one kernel in alternation with the analytic choice, for one shape, dtype and number of
    threads."""

    def __init__(self, kernel: Kernel, shape: Shape, dtype: str, threads: int, *, limit_s: float, seed: int) -> None:
        self.kernel, self.shape, self.dtype, self.threads, self.seed = kernel, shape, dtype, threads, seed
        self.analytic = analytic(machine())
        base = remade(kernel, self.analytic)
        settings = Settings([kernel], [base], [shape], [dtype], [threads], repeat=PAIRS, limit_s=limit_s, seed=seed)
        self._bench = Bench(settings, environment(operands="uniform[-1,1)"))
        self._kernels: dict[Blocking, Kernel] = {}

    def measure(self, blocking: Blocking, earlier_record: BenchRecord | None = None) -> TriedBlocking:
        """Take PAIRS samples of a blocking, and append them to the samples of its ``earlier_record``. If the result of
        the kernel is wrong, the record has no samples."""
        if blocking not in self._kernels:
            self._kernels[blocking] = remade(self.kernel, blocking)
        record = self._bench.measure(Cell(self._kernels[blocking], self.shape, self.dtype, self.threads, {}))
        if earlier_record is not None and record.verdict == "ok":
            samples = earlier_record.samples_s + record.samples_s
            reference_samples = earlier_record.reference_samples_s + record.reference_samples_s
            record = replace(record, samples_s=samples, reference_samples_s=reference_samples)
        return TriedBlocking(blocking, replace(record, params=blocking.numbers).with_rates())

    def rounds(self, finalists: list[TriedBlocking], end: float) -> list[TriedBlocking]:
        """Measure the finalists in rounds; return the finalists with their new samples, best first. After each round
        the slower half of the finalists drops out, until one is left besides the analytic choice, which stays in every
        round.

        No round begins after the time ``end``, but at least FEWEST_ROUNDS rounds are run.
        """
        dropped: list[TriedBlocking] = []
        left = [self.measure(finalist.blocking) for finalist in finalists]
        for number in range(1, ROUNDS):
            if number >= FEWEST_ROUNDS and time.monotonic() > end:
                break
            left = _best_first(left)
            others = [tried for tried in left if tried.blocking != self.analytic]
            slower = others[max(1, len(others) // 2) :]
            dropped = [*slower, *dropped]
            left = [self._sampled_again(tried) for tried in left if tried not in slower]
        return [*_best_first(left), *dropped]

    def _sampled_again(self, tried: TriedBlocking) -> TriedBlocking:
        return self.measure(tried.blocking, tried.record) if tried.record.verdict == "ok" else tried


def _best_first(all_tried: list[TriedBlocking]) -> list[TriedBlocking]:
    return sorted(all_tried, key=lambda tried: -(tried.record.ratio or -math.inf))


def tune_blocking(
    kernel: Kernel,
    shape: Shape,
    dtype: str,
    *,
    threads: int = 1,
    budget_s: float = 60.0,
    limit_s: float = 10.0,
    seed: int = 1,
    tell: Listener = lambda record: None,
) -> TunedBlocking:
    """Search for about ``budget_s`` seconds. The analytic choice and the blocking that this process uses are always
    tried.

    Raises what ``check_tunable`` raises.
    """
    check_tunable(kernel, dtype)
    start, timed, failed = time.monotonic(), [], []
    search = Search(kernel, shape, dtype, threads, limit_s=limit_s, seed=seed)
    required, end = (search.analytic, in_force()), start + TRIAL_SHARE * budget_s
    ordered = candidates(machine(), np.dtype(dtype).itemsize, in_force(), seed)
    with compiled_first(kernel, dtype, _until(end, ordered, required)) as ready:
        for blocking in _until(end, ready, required):
            tried = search.measure(blocking)
            tell(tried.record)
            if tried.record.verdict == "ok" and tried.record.ratio is not None:
                timed.append(tried)
            else:
                failed.append(tried.record)
    finalists = _best_first(timed)[:FINALISTS]
    finalists += [tried for tried in timed if tried.blocking in required and tried not in finalists]
    ranked = search.rounds(finalists, start + budget_s)
    for tried in ranked:
        tell(tried.record)
    winner, why = _winner(search, ranked, limit_s, tell)
    return TunedBlocking(ranked, len(timed) + len(failed), failed, search.analytic, winner, why)


def _until(end: float, blockings: Iterator[Blocking], required: tuple[Blocking, ...]) -> Iterator[Blocking]:
    """The blockings that are taken before the time ``end``, and the required ones, which come first, in any case."""
    return itertools.takewhile(lambda blocking: blocking in required or time.monotonic() < end, blockings)


def _winner(
    search: Search, ranked: list[TriedBlocking], limit_s: float, tell: Listener
) -> tuple[TriedBlocking | None, str]:
    """The winner and the reason: the best finalist, if it is proved better than the analytic choice, and not proved worse
    with the kernel's other float dtypes; else None."""
    timed = [tried for tried in ranked if tried.record.ratio is not None]
    base = next((tried for tried in timed if tried.blocking == search.analytic), None)
    if base is None:
        return None, "The analytic choice itself could not be measured: nothing to compare with."
    if len(timed) == 1:
        return None, "The budget was too short for any other blocking: raise --budget."
    best, noise = timed[0], max(1.0, base.interval[1])
    if best is base or best.interval[0] <= noise:
        looks = f"measured against itself, the analytic choice may look {noise - 1:.1%} faster"
        return None, f"None is faster than the analytic choice by more than the noise: {looks}."
    for dtype in FLOATS:
        if dtype in search.kernel.dtypes and dtype != search.dtype:
            another = Search(search.kernel, search.shape, dtype, search.threads, limit_s=limit_s, seed=search.seed)
            (other,) = another.rounds([best], 0.0)
            tell(other.record)
            if other.record.ratio is None:
                return None, f"The best one failed with {dtype}: {other.record.reason or other.record.verdict}"
            if other.interval[1] < 1:
                return None, f"The best one is slower with {dtype}: R {other.record.ratio:.3f}."
    low, high = best.interval
    return (
        best,
        f"The best one is faster than the analytic choice: R {best.record.ratio:.3f} ({low:.3f} to {high:.3f}).",
    )
