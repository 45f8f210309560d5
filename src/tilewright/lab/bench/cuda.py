"""The bench on a GPU: cells one after another, each predicted from those before it, in a process that may be lost.

What is timed, and what must hold before a time counts, is in ``device``. Here is what a bench on the CPU decides too:
which cells are not worth starting, what becomes of one whose process crashed or hung, and the record.
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
        """What became of a cell, where it is started; ``how`` as ``DeviceBench.measure`` takes it."""
        try:
            measured = self._process.ask("measure", cell, **how)
        except LostError as error:
            if error.doing == FIRST:
                words = (
                    f"one product had not ended after {error.seconds:.3g} s, the limit is {self.settings.limit_s:g} s"
                )
                return MeasuredCell(Outcome("time_limit", words), once_s=error.seconds)
            return MeasuredCell(Outcome("wrong", str(error)))
        except TilewrightError as error:  # unforeseen: the process is in an unknown state
            verdict = "unsupported" if isinstance(error, UnavailableError) else "wrong"
            measured = MeasuredCell(Outcome(verdict, str(error)), lost=True)
        if measured.lost:
            self._process.stop()
        return measured

    def record(self, cell: Cell, measured: MeasuredCell) -> BenchRecord:
        """All that is known of a cell; its first product is what the size after is predicted from."""
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
        """Measured once in a run; None, too, where that fails, which costs no cell its record."""
        if dtype not in self._peaks:
            self._peaks[dtype] = None
            with contextlib.suppress(TilewrightError, LostError):
                self._peaks[dtype] = self._process.ask("peak", dtype)
        return self._peaks[dtype]

    def _whole_cell_s(self, once_s: float) -> float:
        if once_s > self.settings.limit_s:
            return AROUND_S
        loops, samples = 2 if self.settings.references else 1, self.settings.repeat + 4
        return AROUND_S + loops * (WARM_S + samples * max(once_s, SAMPLE_S))

    def close(self) -> None:
        """End the process, and give back the GPU's memory."""
        self._process.stop()
