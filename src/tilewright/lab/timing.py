"""Samples of time: long enough for the clock, on rotating operands, with nobody else of this process awake."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from ..run.cpu import Product
from .cells import Cell
from .operand_sets import OperandSets

#: A sample lasts at least this long: short products are repeated within it.
SAMPLE_S = 0.01
#: Longest wait for other threads of this process to fall asleep.
QUIET_S = 0.5


class Loop:
    """Samples of one function over rotating operands; each lasts SAMPLE_S at least and is divided by its runs.

    The first samples, which find out how many runs that takes, are dropped (S1.2).
    """

    def __init__(self, run: Product, sets: OperandSets, outputs: list[np.ndarray], threads: int) -> None:
        self._run, self._sets, self._outputs, self._threads = run, sets, outputs, threads
        self.last, self.spent_s, self._inner = -1, 0.0, 1
        once = self.sample()
        if once < SAMPLE_S:
            once = min(once, self.sample())
        self._inner = max(1, math.ceil(SAMPLE_S / max(once, 1e-7)))

    def sample(self) -> float:
        sets, run = self._sets, self._run
        order = [(self.last + 1 + i) % len(sets) for i in range(self._inner)]
        calls = [(sets.a[i], sets.b[i], self._outputs[i]) for i in order]
        if self._threads > 1:
            wait_until_quiet()
            if self.spent_s < 10 * SAMPLE_S:  # a long product wakes its threads in a negligible part of itself
                run(*calls[-1])
        start = time.perf_counter()
        for a, b, c in calls:
            run(a, b, c)
        self.spent_s = time.perf_counter() - start
        self.last = order[-1]
        return self.spent_s / self._inner


def wait_until_quiet() -> None:
    """Sleep until this process uses no processor time.

    A library's idle threads spin for a while before they sleep (numpy's OpenBLAS about 0.1 s), and on few cores they would
    take one from whoever runs next: 0.3 to 0.8 of its speed, seen on 2 cores.
    """
    deadline = time.perf_counter() + QUIET_S
    while time.perf_counter() < deadline:
        before = time.process_time()
        time.sleep(5e-3)
        if time.process_time() - before < 1e-3:
            return


def timed(run: Callable[..., None], *args: np.ndarray) -> float:
    start = time.perf_counter()
    run(*args)
    return time.perf_counter() - start


def band_s(run: Product, cell: Cell, sets: OperandSets) -> float:
    """Predict a product from its first rows, the same B and the same strides: a cliff at this size shows in them too."""
    m = cell.shape[0]
    rows = min(m, max(cell.kernel.grain[0] * cell.threads, m // 32))
    a, b, c = sets.a[0], sets.b[0], sets.c[0]
    return timed(run, a[:rows], b, c[:rows]) * (m / rows if rows else 1)
