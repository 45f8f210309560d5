"""What a product has read and multiplied so far, counted where it passes."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ...files import Source
from ..places.place import Place, Token
from ..plan.grid import Grid
from ..plan.schedule import Multiply


class SharedCounter:
    """A number to which several threads add; ``tell`` is called by one thread at a time."""

    def __init__(self) -> None:
        self.count, self._lock = 0, threading.Lock()

    def add(self, more: int, tell: Callable[[int], None] = lambda count: None) -> None:
        """Count so many more, and tell the sum."""
        with self._lock:
            self.count += more
            tell(self.count)


class CountedSource:
    """A source, and the bytes that are read from it, as they are stored there."""

    def __init__(self, source: Source, tally: SharedCounter) -> None:
        self._source, self._tally = source, tally

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def read(self, rows: slice, columns: slice, out: np.ndarray[Any, Any]) -> None:
        """As the source, counted."""
        self._source.read(rows, columns, out)
        self._tally.add(out.size * self._source.dtype.itemsize)


class CountedPlace:
    """A place that tells the operations of each multiplication that it was asked for."""

    def __init__(self, place: Place, grid: Grid, tell: Callable[[int], None]) -> None:
        self._place, self._grid, self._tell = place, grid, tell
        self.load, self.store, self.close = place.load, place.store, place.close

    def multiply(self, step: Multiply, needs: tuple[Token, Token], after: Token) -> Token:
        """As the place, counted."""
        token = self._place.multiply(step, needs, after)
        depth = self._grid.depth(step.p)
        self._tell(2 * math.prod(self._grid.size(step.tile)) * (depth.stop - depth.start))
        return token
