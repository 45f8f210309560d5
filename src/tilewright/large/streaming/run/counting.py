"""Counts what a product has read and multiplied so far."""

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
    """A sum to which several threads add; their ``tell`` is called by one thread at a time."""

    def __init__(self) -> None:
        self.count, self._lock = 0, threading.Lock()

    def add(self, more: int, tell: Callable[[int], None] = lambda count: None) -> None:
        """Add ``more`` to the sum, and pass the sum to ``tell``."""
        with self._lock:
            self.count += more
            tell(self.count)

    def take(self) -> int:
        """The sum, which begins anew at 0."""
        with self._lock:
            count, self.count = self.count, 0
        return count


class CountedSource:
    """A source that passes the bytes of each read to ``tell``, in the dtype in which they are stored."""

    def __init__(self, source: Source, tell: Callable[[int], None]) -> None:
        self._source, self._tell = source, tell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def read(self, rows: slice, columns: slice, out: np.ndarray[Any, Any]) -> None:
        """Read from the source, and count the bytes."""
        self._source.read(rows, columns, out)
        self._tell(out.size * self._source.dtype.itemsize)


class CountedPlace:
    """A place that passes the operations of each multiplication to ``tell``, as soon as it is submitted."""

    def __init__(self, place: Place, grid: Grid, tell: Callable[[int], None]) -> None:
        self._place, self._grid, self._tell = place, grid, tell
        self.load, self.store, self.close = place.load, place.store, place.close

    def multiply(self, step: Multiply, needs: tuple[Token, Token], after: Token) -> Token:
        """Multiply in the place, and count the operations."""
        token = self._place.multiply(step, needs, after)
        depth = self._grid.depth(step.p)
        self._tell(2 * math.prod(self._grid.size(step.tile)) * (depth.stop - depth.start))
        return token
