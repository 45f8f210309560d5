"""The CPU as a place: blocks are read into the host's memory, and multiplied there by the CPU's kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....cpu.runtime.runner import runner
from ....kernels import Kernel
from ....product.operands import mapped_empty
from ...files import Sink, Source
from ..plan.schedule import Load, Multiply, Store
from ..plan.stream import StreamPlan
from .events import Events


class HostPlace:
    """Slots in this process's memory; ``sources`` are A and B, ``sink`` is C."""

    def __init__(
        self,
        plan: StreamPlan,
        a: Source,
        b: Source,
        sink: Sink,
        *,
        kernel: Kernel,
        threads: int,
        events: Events | None = None,
    ) -> None:
        grid, dtype = plan.grid, np.dtype(plan.dtype)
        self._grid, self._sources, self._sink, self._events = grid, {"a": a, "b": b}, sink, events or Events()
        self._first = runner(kernel, dtype, threads=threads)
        self._more = runner(kernel, dtype, threads=threads, add=True)
        of_a, of_b, of_c = plan.slots
        self._slots = {
            "a": [mapped_empty(grid.bm * grid.bk, dtype) for _ in range(of_a)],
            "b": [mapped_empty(grid.bk * grid.bn, dtype) for _ in range(of_b)],
            "c": [mapped_empty(grid.bm * grid.bn, dtype) for _ in range(of_c)],
        }
        self._views: dict[tuple[str, int], np.ndarray[Any, Any]] = {}

    def load(self, load: Load, after: None) -> None:  # noqa: ARG002  # work is done when it returns: nothing to wait for
        rows, columns = self._grid.where(load.block)
        view = self._view(load.block.operand, load.slot, rows.stop - rows.start, columns.stop - columns.start)
        with self._events.span("copy in", f"{load.block.operand.upper()}[{load.block.row}, {load.block.column}]"):
            self._sources[load.block.operand].read(rows, columns, view)
        self._views[load.block.operand, load.slot] = view

    def multiply(self, step: Multiply, needs: tuple[None, None], after: None) -> None:  # noqa: ARG002
        a, b = self._views["a", step.a], self._views["b", step.b]
        c = self._view("c", step.c, *self._grid.size(step.tile))
        with self._events.span("compute", f"C[{step.tile.i}, {step.tile.j}] step {step.p}"):
            (self._first if step.first else self._more)(a, b, c)

    def store(self, store: Store, after: None) -> None:  # noqa: ARG002
        c = self._view("c", store.c, *self._grid.size(store.tile))
        with self._events.span("copy out", f"C[{store.tile.i}, {store.tile.j}]"):
            self._sink.write(self._grid.rows(store.tile.i), self._grid.columns(store.tile.j), c)

    def close(self) -> None:
        self._slots.clear()
        self._views.clear()

    def _view(self, operand: str, slot: int, rows: int, columns: int) -> np.ndarray[Any, Any]:
        return self._slots[operand][slot][: rows * columns].reshape(rows, columns)
