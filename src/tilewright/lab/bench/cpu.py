"""Measures a cell on the CPU; decides what is timed, which reference is timed with it, and what is checked before a
time counts.

A cell is one kernel on one shape, dtype and thread count. A cell goes through these steps: is the kernel supported? →
is the predicted time within the limit? → do the operands fit in memory? → run once into an output full of NaN, and
verify the result → take times, in alternation with the reference on the same operands → verify again, and check that
the kernel wrote to C alone → make the record. If a cell fails a step, its record says why. The record of a cell is
returned as soon as the cell is measured, so an interrupted run loses only the cell that is being measured.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import threadpoolctl

from ...cpu.runtime.peaks import peak_gflops
from ...cpu.runtime.runner import Product, call_once, runner
from ...errors import UnavailableError, UsageError
from ...host.limits import use_threads
from ...host.machine import available_memory, bytes_text, current_clock_mhz
from ...kernels import Kernel
from ...records.bench import BenchRecord
from ...records.compare import FEW_SAMPLES, MIN_SAMPLES, is_unclear, starved
from ..inputs.options import Shape
from .cells import Cell, Outcome, PredictingBench, Settings
from .operand_sets import OperandSets, set_bytes, sets_needed
from .timing import SAMPLE_S, SampleLoop, band_s, fastest, timed_again

#: A cell takes more than ``repeat`` samples as long as it has spent fewer seconds on samples than this. Without a
#: reference it takes up to MOST_SAMPLES. With a reference it stops when the samples decide which of the two is faster.
CHEAP_S = 0.1
MOST_SAMPLES = 10
#: If the samples of a cell do not decide, the cell may use this many times an equal part of the time that the run has for
#: further samples. Cells whose samples decide use none of it.
SHARES = 2
#: If a cell is predicted to take more than this many times the limit, it is skipped without timing even a few rows.
FAR = 3
#: The seconds that a skipped cell is assumed to take.
SKIPPED_S = 0.05
#: The part of the available memory that one cell may use.
MEMORY_SHARE = 0.9
#: For each dtype: the real dtype in which it is computed, and the real operations that one of its operations takes.
_COMPUTED_IN = {
    "float32": ("float32", 1),
    "float64": ("float64", 1),
    "complex64": ("float32", 4),
    "complex128": ("float64", 4),
    "float16": ("float32", 1),
}


class Bench(PredictingBench):
    """Measures cells on the CPU one after another, and predicts the time of each cell from those of earlier cells."""

    telling_s, guessed_flops, guessed_prepared_s = 0.01, 20e9, 1.0

    def __init__(self, settings: Settings, environment: dict[str, Any]) -> None:
        super().__init__(settings)
        self.environment = environment
        for library in settings.references:
            if library.variants is not None:
                library.variants("float32")  # loaded before threadpoolctl looks for pools of threads
        self._fastest: dict[tuple[str, Shape, str, int], tuple[str, Product]] = {}
        self._pools = threadpoolctl.ThreadpoolController()
        self._peaks: dict[tuple[str, int], float | None] = {}
        self._key: tuple[Shape, str] | None = None
        self._sets: OperandSets | None = None
        #: For each series and shape: the samples on each number of threads.
        self._by_threads: dict[tuple[Any, ...], dict[int, list[float]]] = defaultdict(dict)

    def measure(self, cell: Cell) -> BenchRecord:
        """Measure one cell, or find out why it cannot be measured. Ctrl-C is passed on to the caller; every other
        failure is described in the record."""
        clock = current_clock_mhz()
        with self._pools.limit(limits=cell.threads), use_threads(cell.threads):  # references' and own threads
            outcome = self._outcome(cell)
        record = self._record(cell, outcome, clock)
        self._note_samples(cell, record)
        return record

    def resume(self, cell: Cell, record: BenchRecord) -> None:
        """Use a record of an earlier run that is still valid, instead of measuring the cell again."""
        super().resume(cell, record)
        self._note_samples(cell, record)

    def close(self) -> None:
        """Does nothing, because this bench holds no process and no device."""

    def _whole_cell_s(self, cell: Cell, once_s: float) -> float:
        if once_s > self.settings.limit_s:
            return SKIPPED_S
        turn_s = max(once_s, SAMPLE_S)
        if self.settings.references:
            # At most the kernel's own: one slow sample of the reference would count in every cell.
            turn_s += max(min(self.reference_s(cell) or once_s, once_s), SAMPLE_S)
        return (self.settings.repeat + 2) * turn_s

    # ---- the steps of a cell -----------------------------------------------------------------------------------------

    def _outcome(self, cell: Cell) -> Outcome:
        try:
            outcome = self._attempt(cell)
        except (UnavailableError, UsageError) as error:
            return Outcome("unsupported", str(error))
        except MemoryError as error:
            return Outcome("out_of_memory", str(error) or "allocation failed")
        except (Exception, SystemExit) as error:  # a user's kernel may raise anything: its result is wrong
            outcome = Outcome("wrong", f"{type(error).__name__}: {error}")
        if outcome.verdict == "wrong":
            self._sets = None  # it may have written to operands too: the next kernel gets new ones
        return outcome

    def _attempt(self, cell: Cell) -> Outcome:
        limit = self.settings.limit_s
        start = time.perf_counter()
        run = runner(cell.kernel, cell.dtype, threads=cell.threads, params=cell.params)
        if not cell.kernel.compiled:
            call_once(run, cell.dtype)  # the cost of its first call must not be timed
        self.prepared_s.setdefault((cell.kernel.name, cell.dtype), time.perf_counter() - start)
        early = self.over_limit(cell, FAR) or self._too_large(cell)
        if early:
            return early
        sets = self._operands(cell)
        predicted = self.predicted_s(cell)
        if predicted is None or predicted > limit / 10:  # time the kernel on a few rows of these operands
            predicted = band_s(run, cell, sets, limit, predicted)
        self.remember(cell, predicted)
        if predicted > limit:
            return Outcome("time_limit", f"predicted {predicted:.3g} s for one product, the limit is {limit:g} s")
        return self._measure(run, cell, sets)

    def _too_large(self, cell: Cell) -> Outcome | None:
        (m, n, k), itemsize = cell.shape, np.dtype(cell.dtype).itemsize
        if self._key != (cell.shape, cell.dtype):
            self._key, self._sets = None, None  # frees the last size's operands first
        present = 0 if self._sets is None else set_bytes(cell.shape, itemsize) * len(self._sets)
        needed = set_bytes(cell.shape, itemsize) * sets_needed(cell.shape, itemsize)
        needed += 2 * m * n  # which elements of C are finite, while it is verified
        copies = 1 if cell.kernel.shared == "team" else cell.threads  # a team shares one workspace
        needed += cell.kernel.workspace_bytes(m, n, k, cell.dtype) * copies
        available = available_memory()
        if available is None or needed - present <= MEMORY_SHARE * available:
            return None
        return Outcome("out_of_memory", f"needs {bytes_text(needed)}, {bytes_text(available + present)} available")

    def _operands(self, cell: Cell) -> OperandSets:
        if self._sets is None:
            seed, operands = self.settings.seed, self.settings.given(cell.shape, cell.dtype)
            self._sets = (
                OperandSets.random(cell.shape, cell.dtype, seed)
                if operands is None
                else OperandSets.from_arrays(*operands, cell.dtype, seed)
            )
            self._key = (cell.shape, cell.dtype)
        return self._sets

    def _measure(self, run: Product, cell: Cell, sets: OperandSets) -> Outcome:
        run = self._fastest_of(cell.kernel, run, cell, sets)
        sets.poison()
        once = timed_again(cell, self.settings.limit_s, run, sets.a[0], sets.b[0], sets.c[0])
        self.remember(cell, once)
        if once > self.settings.limit_s:
            return Outcome("time_limit", f"took {once:.3g} s, the limit is {self.settings.limit_s:g} s")
        outcome = self._verified(cell, sets, 0)
        if outcome.verdict != "ok":
            return outcome
        outcome.rms_error = sets.oracle(0).rms_error(sets.c[0])
        reference = self._reference(cell, sets)
        sets.poison()
        last = self._sample(run, reference, sets, outcome, cell, once)
        self.remember(cell, min(outcome.samples_s))  # the first call may have compiled a kernel for this shape
        last_check = self._verified(cell, sets, last)
        return outcome if last_check.verdict == "ok" else last_check

    def _verified(self, cell: Cell, sets: OperandSets, index: int) -> Outcome:
        if changed := sets.changed():
            return Outcome("wrong", f"the kernel changed {changed}: a kernel writes to C alone")
        kernel = cell.kernel
        normwise = None
        if kernel.error_bound is not None:
            tunables = {key: kernel.params[key] for key in kernel.tunable} | cell.params
            normwise = kernel.error_bound(*cell.shape, **tunables)
        check = sets.oracle(index).check(sets.c[index], normwise=normwise)
        verdict = "ok" if check.ok else "wrong"
        return Outcome(verdict, check.reason, [], [], check.max_abs_error, check.error_over_bound)

    def _reference(self, cell: Cell, sets: OperandSets) -> Product | None:
        """The library that R refers to, unless this cell is that library, or it cannot run or would take too long."""
        if not self.settings.references or cell.kernel is self.settings.references[0]:
            return None
        reference = self.settings.references[0]
        predicted = self.reference_s(cell)
        if predicted is not None and predicted > self.settings.limit_s:
            return None
        try:
            run = runner(reference, cell.dtype, threads=cell.threads)
            call_once(run, cell.dtype)
        except (UnavailableError, UsageError):
            return None
        return self._fastest_of(reference, run, cell, sets)

    def _fastest_of(self, kernel: Kernel, run: Product, cell: Cell, sets: OperandSets) -> Product:
        """Of a library with variants the fastest for this shape, dtype and number of threads; ``run`` of other kernels."""
        if kernel.variants is None:
            return run
        key = (kernel.name, cell.shape, cell.dtype, cell.threads)
        if key not in self._fastest:
            self._fastest[key] = fastest(kernel.variants(cell.dtype), sets, cell.threads)
        return self._fastest[key][1]

    def _sample(
        self, run: Product, reference: Product | None, sets: OperandSets, outcome: Outcome, cell: Cell, once: float
    ) -> int:
        """Alternate samples of the kernel and the reference; returns the set whose output was written last."""
        loop = SampleLoop(run, sets, sets.c, cell.threads, warm_s=once)
        loops = [(loop, outcome.samples_s)]
        if reference is not None:
            loops.append((SampleLoop(reference, sets, sets.reference_c, cell.threads), outcome.reference_samples_s))

        def turn() -> float:
            for each, samples in loops:
                samples.append(each.sample())
            return sum(each.spent_s for each, _ in loops)

        spent = sum(turn() for _ in range(self.settings.repeat))
        if reference is not None:
            self._until_decided(cell, outcome, turn, spent)
        else:
            while spent < CHEAP_S and len(outcome.samples_s) < MOST_SAMPLES:
                spent += turn()
        return loop.last

    def _until_decided(self, cell: Cell, outcome: Outcome, turn: Callable[[], float], spent: float) -> None:
        """Take further samples until they tell the kernel from the reference, or the cell has used its part of the time.

        The verdict is asked for after few numbers of samples, each about twice the one before: a verdict asked for after
        every sample would sooner or later be a wrong one.
        """
        count, begun = len(outcome.samples_s), time.perf_counter()
        now, turn_s = begun, spent / count
        part_s = self.spare_s * min(1.0, SHARES / self.cells_left)
        fourth_s = turn_s if count == MIN_SAMPLES and self.spare_s else 0.0  # one of four samples may be of any length
        end, look = begun + max(part_s, CHEAP_S - spent, fourth_s), count
        while now + turn_s <= end:
            if count == look:
                record = self._judged(cell, outcome)
                starves = record.environment and count >= FEW_SAMPLES  # further samples would not outweigh these
                if starves or not is_unclear(record):
                    break
                # The rule for three samples is much stricter than the one for four.
                look = count + 1 if count <= MIN_SAMPLES else max(FEW_SAMPLES, 2 * count)
            turn()
            count, then, now = count + 1, now, time.perf_counter()
            turn_s = max(turn_s, now - then)
        self.spare_s = max(0.0, self.spare_s - (now - begun))

    def _judged(self, cell: Cell, outcome: Outcome) -> BenchRecord:
        """The record of samples, with all that their verdict depends on."""
        why = self._starved(cell, outcome)
        reference = self.settings.references[0].name if outcome.reference_samples_s else None
        return cell.record(reference=reference, environment={"starved": why} if why else {}, **vars(outcome))

    def _starved(self, cell: Cell, outcome: Outcome) -> str:
        """Why kernel or reference got too little of the processor while it was sampled; empty if neither did."""
        if cell.threads > self.environment.get("cores", cell.threads):
            return ""
        for name, key, samples in self._series(cell, outcome.samples_s, outcome.reference_samples_s):
            if why := starved(name, cell.threads, samples, self._by_threads[key]):
                return why
        return ""

    def _note_samples(self, cell: Cell, record: BenchRecord) -> None:
        for _, key, samples in self._series(cell, record.samples_s, record.reference_samples_s):
            self._by_threads[key].setdefault(cell.threads, []).extend(samples)

    def _series(
        self, cell: Cell, ours: list[float], theirs: list[float]
    ) -> Iterator[tuple[str, tuple[Any, ...], list[float]]]:
        """The name, the key in ``_by_threads`` and the samples of the kernel, and of the reference where it has samples."""
        measured = [(cell, ours)]
        if theirs:
            measured.append((replace(cell, kernel=self.settings.references[0], params={}), theirs))
        for each, samples in measured:
            yield each.kernel.name, (*each.series[:2], each.shape), samples

    def _record(self, cell: Cell, outcome: Outcome, clock: float | None) -> BenchRecord:
        key = (cell.dtype, cell.threads)
        if key not in self._peaks:
            self._peaks[key] = _peak(*key)
        moment = {
            "clock_mhz_before": clock,
            "clock_mhz_after": current_clock_mhz(),
            "kernel_source": cell.kernel.source_hash,
            "variants": {
                name: variant for (name, *of), (variant, _) in self._fastest.items() if of == [cell.shape, *key]
            },
        }
        judged = self._judged(cell, outcome)
        return replace(
            judged,
            peak_gflops=self._peaks[key],
            seed=self.settings.seed,
            environment=self.environment | moment | judged.environment,
        ).with_rates()


def _peak(dtype: str, threads: int) -> float | None:
    """The peak in operations of ``dtype``; None for integers, whose peak is not measured."""
    if dtype not in _COMPUTED_IN:
        return None
    real, operations = _COMPUTED_IN[dtype]
    return peak_gflops(real, threads, fresh=True) / operations
