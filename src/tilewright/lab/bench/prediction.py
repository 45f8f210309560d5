"""Predicts the time of a cell from the previous size, for the bench on the CPU and on a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from .cells import Cell, Outcome, Settings


class PredictingBench(ABC):
    """Remembers the last time of each series of cells, and predicts the next cell of the series at the same rate."""

    #: The time of a product that took at least this long grows with its operations; a shorter time may be all overhead.
    telling_s: ClassVar[float]
    #: Operations per second assumed of a kernel that has not run yet, to guess the time that is left.
    guessed_flops: ClassVar[float]

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._last: dict[tuple[str, str, int], tuple[int, float]] = {}

    def remember(self, cell: Cell, seconds: float) -> None:
        """Note the measured or predicted seconds of one product of this cell."""
        self._last[cell.series] = (cell.flops, seconds)

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

    def remaining_s(self, todo: Iterable[Cell]) -> float:
        """An estimate of the time that cells will take: at measured rates, or else at ``guessed_flops``."""
        total = 0.0
        for cell in todo:
            once = self.predicted_s(cell)
            total += self._whole_cell_s(cell.flops / self.guessed_flops if once is None else once)
        return total

    @abstractmethod
    def _whole_cell_s(self, once_s: float) -> float:
        """Seconds of a cell with all its samples, where one product takes ``once_s``."""
