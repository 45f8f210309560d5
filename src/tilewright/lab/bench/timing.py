"""Samples of time: long enough for the clock, on rotating operands, while no other thread of this process runs."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping

import numpy as np

from ...cpu.runtime.runner import Product
from .cells import Cell
from .operand_sets import OperandSets, poison

#: A sample lasts at least this long: short products are repeated within it.
SAMPLE_S = 0.01
#: A product of several threads is repeated for so long before each sample. A processor that has slept is slow at first, and
#: it sleeps longer after a kernel whose idle threads spin: on 2 cores products of 100³ took an eighth longer after OpenBLAS
#: than after themselves.
WARM_S = 0.002
#: A product of this length needs no warm-up of its own.
LONG_S = 0.1
#: Each variant of a library is timed TRIALS times, on so many rows that a product takes about TRIAL_S, at least FEWEST_ROWS.
TRIALS, FEWEST_ROWS, TRIAL_S = 3, 256, 0.05
#: A library's first call for a shape may compile code, for so many seconds at most; a longer call is not repeated.
FIRST_CALL_S = 30.0
#: Longest wait for other threads of this process to fall asleep.
QUIET_S = 0.5


class SampleLoop:
    """Samples of one function over rotating operands; each lasts SAMPLE_S at least and is divided by its runs.

    The first samples, from which the number of runs follows, are dropped (S1.2). A product that has just run for ``warm_s``
    seconds, LONG_S or more, needs none.
    """

    def __init__(
        self, run: Product, sets: OperandSets, outputs: list[np.ndarray], threads: int, warm_s: float = 0.0
    ) -> None:
        self._run, self._sets, self._outputs, self._threads = run, sets, outputs, threads
        self.last, self.spent_s, self._inner = -1, math.inf, 1  # the first sample is dropped: it needs no warm-up
        if warm_s >= LONG_S:
            return
        once = self.sample()
        if once < SAMPLE_S:
            once = min(once, self.sample())
        self._inner = max(1, math.ceil(SAMPLE_S / max(once, 1e-7)))

    def sample(self) -> float:
        """Seconds of one product: the time of a sample over its runs."""
        sets, run = self._sets, self._run
        order = [(self.last + 1 + i) % len(sets) for i in range(self._inner)]
        calls = [(sets.a[i], sets.b[i], self._outputs[i]) for i in order]
        if self._threads > 1:
            wait_until_quiet()
            if self.spent_s < LONG_S:
                warm_up(functools.partial(run, *calls[-1]))
        poison(calls[-1][2])  # the result that is verified afterwards must come from a timed run
        start = time.perf_counter()
        for a, b, c in calls:
            run(a, b, c)
        self.spent_s = time.perf_counter() - start
        self.last = order[-1]
        return self.spent_s / self._inner


def fastest(variants: Mapping[str, Product], sets: OperandSets, threads: int) -> tuple[str, Product]:
    """The name and the function of the fastest variant; the variants are timed in turns, ``TRIALS`` times each, on the first
    rows of the operands."""
    if len(variants) == 1:
        return next(iter(variants.items()))
    a, b, c = sets.a[0], sets.b[0], sets.reference_c[0]
    rows, first = a.shape[0], next(iter(variants.values()))
    while rows > FEWEST_ROWS and timed(first, a[:rows], b, c[:rows]) > TRIAL_S:
        rows //= 2
    part = OperandSets(
        [x[:rows] for x in sets.a], sets.b, [x[:rows] for x in sets.c], [x[:rows] for x in sets.reference_c], 0
    )
    loops = {name: SampleLoop(run, part, part.reference_c, threads) for name, run in variants.items()}
    least = dict.fromkeys(variants, math.inf)
    for _ in range(TRIALS):
        for name, loop in loops.items():
            least[name] = min(least[name], loop.sample())
    best = min(least, key=lambda name: least[name])
    return best, variants[best]


def wait_until_quiet() -> None:
    """Sleep until this process uses no processor time.

    A library's idle threads spin for a while before they sleep (numpy's OpenBLAS about 0.1 s). Where there are few cores,
    they take one from the next product, which then reaches 0.3 to 0.8 of its speed (measured on 2 cores).
    """
    deadline = time.perf_counter() + QUIET_S
    while time.perf_counter() < deadline:
        before = time.process_time()
        time.sleep(5e-3)
        if time.process_time() - before < 1e-3:
            return


def warm_up(run: Callable[[], object]) -> None:
    """Repeat a function for WARM_S, once at least: it wakes its threads, and the processors."""
    until = time.perf_counter() + WARM_S
    run()
    while time.perf_counter() < until:
        run()


def timed(run: Callable[..., None], *args: np.ndarray) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    run(*args)
    return time.perf_counter() - start


def timed_again(cell: Cell, much_s: float, run: Callable[..., None], *args: np.ndarray) -> float:
    """Seconds of one call; of a second call if the first took more than ``much_s``, for it may include what a library does
    once for such shapes. Machine code is compiled before, and called once."""
    seconds = timed(run, *args)
    if not cell.kernel.compiled and much_s < seconds <= FIRST_CALL_S:
        seconds = timed(run, *args)
    return seconds


def band_s(run: Product, cell: Cell, sets: OperandSets, limit_s: float, guess_s: float | None) -> float:
    """Predict a product's seconds from its first rows, with the same B and strides, so that a slowdown at this size shows.

    Few rows predict too much, because a kernel may pack all of B for them. So m/32 rows are timed; fewer if ``guess_s``,
    from another size, is None or too high for that. Rows are doubled while the prediction exceeds the limit and they took at
    most an eighth of it, so that a prediction costs little.
    """
    m = cell.shape[0]
    a, b, c = sets.a[0], sets.b[0], sets.c[0]
    affordable = guess_s is not None and guess_s <= 4 * limit_s
    rows = min(m, max(cell.kernel.grain[0] * cell.threads, m // 32 if affordable else 1))
    while True:
        seconds = timed_again(cell, limit_s / 8, run, a[:rows], b, c[:rows])
        predicted = seconds * (m / rows if rows else 1)
        if predicted <= limit_s or rows == m or seconds > limit_s / 8:
            return predicted
        rows = min(m, 2 * rows)
