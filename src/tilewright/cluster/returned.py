"""Tiles of a product that no worker writes: each goes back to the client with the answer of its task."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from ..streaming.plan.grid import Grid, Tile


class ReturnedTiles:
    """The sink of a product whose tiles are returned: each waits here for its task. A tile may be written in pieces."""

    forgets = False

    def __init__(self, grid: Grid, dtype: np.dtype[Any]) -> None:
        self._grid, self._dtype = grid, dtype
        self._tiles: dict[Tile, np.ndarray[Any, Any]] = {}
        self._lock = threading.Lock()

    def write(self, rows: slice, columns: slice, block: np.ndarray[Any, Any]) -> None:
        tile = Tile(rows.start // self._grid.bm, columns.start // self._grid.bn)
        with self._lock:
            if tile not in self._tiles:
                self._tiles[tile] = np.empty(self._grid.size(tile), self._dtype)
            elements = self._tiles[tile]
        top, left = rows.start - self._grid.rows(tile.i).start, columns.start - self._grid.columns(tile.j).start
        with np.errstate(over="ignore"):  # blocks may have a wider dtype: what C cannot hold is infinite, as in files
            elements[top : top + block.shape[0], left : left + block.shape[1]] = block

    def flush(self) -> None:
        """Nothing to do: the elements are in memory."""

    def take(self, tile: Tile) -> np.ndarray[Any, Any]:
        """The elements of a tile, which are no longer kept here."""
        return self._tiles.pop(tile)
