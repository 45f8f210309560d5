"""Blocks of files that are cached in the host's memory on their way to a GPU, because they will be loaded again."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import Any

import numpy as np

from ...files import Source
from ..plan.host_cache import HostCache
from ..plan.schedule import Load
from ..plan.stream import StreamPlan


class CachedSources:
    """``sources`` by operand, read through slots in the host's memory, so that a block is read from its file as rarely as
    the slots allow. ``cached`` says in advance which loads find their block in a slot, and which put it there."""

    def __init__(self, plan: StreamPlan, cached: HostCache, sources: Mapping[str, Source]) -> None:
        self._grid, self._cached, self._sources = plan.grid, cached, sources
        elements = max(plan.grid.bm, plan.grid.bn) * plan.grid.bk
        count = max((*cached.hits.values(), *cached.fills.values()), default=-1) + 1
        self._slots = [np.empty(elements, plan.dtype) for _ in range(count)]
        self._last: dict[int, list[Future[Any]]] = {}

    def begin(self, load: Load) -> None:
        """Wait until no copy reads or writes the slot that this load will use. Loads begin in order."""
        slot = self._slot(load)
        if slot is not None:
            wait(self._last.pop(slot, []))

    def began(self, load: Load, copies: list[Future[Any]]) -> None:
        """``copies`` are all jobs that copy the block of ``load``."""
        slot = self._slot(load)
        if slot is not None:
            self._last[slot] = copies

    def read(self, load: Load, rows: slice, columns: slice, out: np.ndarray[Any, Any]) -> None:
        """Copy some rows of the load's block, or a part of one row, to ``out``."""
        slot = self._slot(load)
        source = self._sources[load.block.operand]
        if slot is None:
            source.read(rows, columns, out)
            return
        all_rows, all_columns = self._grid.where(load.block)
        width = all_columns.stop - all_columns.start
        first = (rows.start - all_rows.start) * width + columns.start - all_columns.start
        part = self._slots[slot][first : first + out.size].reshape(out.shape)
        if load.number in self._cached.fills:
            source.read(rows, columns, part)
        np.copyto(out, part)

    def _slot(self, load: Load) -> int | None:
        return self._cached.hits.get(load.number, self._cached.fills.get(load.number))
