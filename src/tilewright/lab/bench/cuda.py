"""The bench on a GPU: cells one after another, each predicted from those before it, in a process that may be lost.

What is timed, and what is checked before a time counts, is in ``device``. This module decides which cells are not started,
makes the outcome of a cell whose process crashed or hung, and writes the record.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from ...errors import TilewrightError, UnavailableError
from ...records.bench import BenchRecord
from .cells import Cell, Outcome, Settings
from .cuda_process import GpuProcess, LostError
from .device import FIRST, MeasuredCell
from .device_timing import SAMPLE_S, WARM_S
from .prediction import PredictingBench

#: Seconds a cell takes in addition to its samples: compiling, operands, verification.
AROUND_S = 0.5


class CudaBench(PredictingBench):
    """Measures cells on the first GPU. Raises UnavailableError, with the reason, where there is none."""

    telling_s, guessed_flops = 1e-3, 1e12

    def __init__(self, settings: Settings, environment: dict[str, Any], process: GpuProcess | None = None) -> None:
        super().__init__(settings)
        self._process = process or GpuProcess(settings)
        self._peaks: dict[str, float | None] = {}
        try:
            facts = self._process.start()
        except LostError as error:
            raise UnavailableError(f"the GPU cannot be used: {error}") from None
        libraries = environment.get("blas", {}) | {"cublas": facts.pop("cublas")}
        self.environment = environment | facts | {"blas": libraries}

    def measure(self, cell: Cell) -> BenchRecord:
        """Measure one cell, or find out why not. Ctrl-C passes through; everything else ends in the record."""
        skipped = self.over_limit(cell)
        return self.record(cell, self.ask(cell) if skipped is None else MeasuredCell(skipped))

    def ask(self, cell: Cell, **how: Any) -> MeasuredCell:
        """Measure a cell in the process; ``how`` are further arguments of ``DeviceBench.measure``."""
        try:
            measured = self._process.ask("measure", cell, **how)
        except LostError as error:
            if error.doing == FIRST:
                limit = self.settings.limit_s
                reason = f"one product had not ended after {error.seconds:.3g} s, the limit is {limit:g} s"
                return MeasuredCell(Outcome("time_limit", reason), once_s=error.seconds)
            return MeasuredCell(Outcome("wrong", str(error)))
        except TilewrightError as error:  # unforeseen: the process is in an unknown state
            verdict = "unsupported" if isinstance(error, UnavailableError) else "wrong"
            measured = MeasuredCell(Outcome(verdict, str(error)), lost=True)
        if measured.lost:
            self._process.stop()
        return measured

    def record(self, cell: Cell, measured: MeasuredCell) -> BenchRecord:
        """The record of a cell. The time of its first product is remembered, to predict the next size."""
        if measured.once_s is not None:
            self.remember(cell, measured.once_s)
        outcome = measured.outcome
        moment = {"kernel_source": cell.kernel.source_hash} | measured.moment
        record = cell.record(
            peak_gflops=self._peak(cell.dtype) if cell.precision == "standard" else None,
            reference=self.settings.references[0].name if outcome.reference_samples_s else None,
            seed=self.settings.seed,
            environment=self.environment | moment,
            **vars(outcome),
        ).with_rates()
        return dataclasses.replace(record, about=record.about | measured.about)

    def _peak(self, dtype: str) -> float | None:
        """The peak for a dtype, measured once in a run; None, too, if that fails, which does not spoil the record."""
        if dtype not in self._peaks:
            self._peaks[dtype] = None
            with contextlib.suppress(TilewrightError, LostError):
                self._peaks[dtype] = self._process.ask("peak", dtype)
        return self._peaks[dtype]

    def _whole_cell_s(self, cell: Cell, once_s: float) -> float:
        if once_s > self.settings.limit_s:
            return AROUND_S
        samples, loops = self.settings.repeat + 4, [once_s]
        if self.settings.references:
            loops.append(self.reference_s(cell) or once_s)
        return AROUND_S + sum(WARM_S + samples * max(one_s, SAMPLE_S) for one_s in loops)

    def close(self) -> None:
        """End the process, which frees the GPU's memory."""
        self._process.stop()
