"""Predicts the time of a cell from the previous size, for the bench on the CPU and on a GPU."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from ...records.bench import BenchRecord
from .cells import Cell, Outcome, Settings


@dataclass(frozen=True)
class TimeLeft:
    """Estimated seconds of the cells that are left. ``known`` is False while a kernel among them has no measured time."""

    seconds: float
    known: bool


class PredictingBench(ABC):
    """Remembers the last time of each series of cells, and predicts the next cell of the series at the same rate."""

    #: The time of a product that took at least this long grows with its operations; a shorter time may be all overhead.
    telling_s: ClassVar[float]
    #: Operations per second assumed of a kernel that has not run yet, to guess the time that is left.
    guessed_flops: ClassVar[float]
    #: Seconds assumed to compile a kernel before any was compiled; 0 where every cell's estimate contains them.
    guessed_prepared_s: ClassVar[float] = 0.0
    #: Seconds for each cell of a run that those whose samples do not decide may spend on further ones.
    undecided_s: ClassVar[float] = 0.6
    #: What is left of that time, and the cells that are left, the one to be measured included.
    spare_s: float = 0.0
    cells_left: int = 1

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._last: dict[tuple[str, str, int], tuple[int, float]] = {}
        #: Measured seconds to compile a kernel for a dtype.
        self.prepared_s: dict[tuple[str, str], float] = {}

    def remember(self, cell: Cell, seconds: float) -> None:
        """Note the measured or predicted seconds of one product of this cell."""
        self._last[cell.series] = (cell.flops, seconds)

    def resume(self, cell: Cell, record: BenchRecord) -> None:
        """Note a record of an earlier run that is still valid."""
        if record.median_s:
            self.remember(cell, record.median_s)

    def predicted_s(self, cell: Cell) -> float | None:
        """Seconds of one product at the rate of the previous size; None at the first size."""
        if cell.series not in self._last:
            return None
        flops, seconds = self._last[cell.series]
        return seconds * cell.flops / flops if flops else seconds

    def over_limit(self, cell: Cell, times: float = 1.0) -> Outcome | None:
        """The outcome of a cell predicted to take more than ``times`` the limit; None for one that is to be measured."""
        predicted, limit = self.predicted_s(cell), self.settings.limit_s
        if predicted is None or predicted <= times * limit or self._last[cell.series][1] < min(self.telling_s, limit):
            return None
        self.remember(cell, predicted)
        return Outcome("time_limit", f"predicted {predicted:.3g} s from the size before, the limit is {limit:g} s")

    def time_left(self, todo: Iterable[Cell]) -> TimeLeft:
        """An estimate of the time that cells will take: at measured rates or at ``guessed_flops``, with compilation."""
        seconds, known = 0.0, True
        for cell in (cells := list(todo)):
            once = self.predicted_s(cell)
            known = known and once is not None
            seconds += self._whole_cell_s(cell, cell.flops / self.guessed_flops if once is None else once)
        new = {(cell.kernel.name, cell.dtype) for cell in cells} - self.prepared_s.keys()
        mean = statistics.fmean(self.prepared_s.values()) if self.prepared_s else self.guessed_prepared_s
        return TimeLeft(seconds + mean * len(new), known)

    def reference_s(self, cell: Cell) -> float | None:
        """Seconds of one product of the reference that is measured in turns with a cell; None where that is not known."""
        if not self.settings.references:
            return 0.0
        return self.predicted_s(replace(cell, kernel=self.settings.references[0], params={}))

    @abstractmethod
    def _whole_cell_s(self, cell: Cell, once_s: float) -> float:
        """Seconds of a cell with all its samples, where one product takes ``once_s``."""
