"""Samples of time. Samples are long enough for the clock, use the sets of operands in turn, and are taken while no
other thread of this process runs."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping

import numpy as np

from ...cpu.runtime.runner import Product
from .cells import Cell
from .operand_sets import OperandSets, poison

#: A sample lasts at least this many seconds; short products are repeated within it.
SAMPLE_S = 0.01
#: Before each sample, a product on several threads is repeated for this many seconds. A processor that has slept is slow
#: at first, and it sleeps longer after a kernel whose idle threads spin. On 2 cores, products of 100³ took an eighth
#: longer after OpenBLAS than after products of the same kernel.
WARM_S = 0.002
#: A product that takes at least this many seconds needs no warm-up before its samples.
LONG_S = 0.1
#: To choose a variant of a library, each is timed TRIALS times, on the first rows of A. The number of rows is chosen so
#: that a product takes about TRIAL_S seconds, but is at least FEWEST_ROWS.
TRIALS, FEWEST_ROWS, TRIAL_S = 3, 256, 0.05
#: A library's first call for a shape may compile code. A first call that takes longer than this many seconds is not
#: repeated.
FIRST_CALL_S = 30.0
#: The longest wait, in seconds, until other threads of this process sleep.
QUIET_S = 0.5


class SampleLoop:
    """Takes samples of one function, with the sets of operands in turn. Each sample lasts at least SAMPLE_S seconds;
    its time is divided by its number of runs.

    The first samples only determine the number of runs, and are dropped (row S1.2 of docs/sources.md). The first
    samples are not needed if the product has just run for ``warm_s`` seconds, and ``warm_s`` is at least LONG_S.
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
        """Take one sample; return the seconds of one product: the time of the sample divided by its number of runs."""
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
    """Return the name and the function of the fastest variant. The variants are timed in turn, ``TRIALS`` times each,
    on the first rows of the operands."""
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

    A library's idle threads spin for a while before they sleep (NumPy's OpenBLAS about 0.1 s). On a machine with few
    cores, spinning threads occupy a core that the next product needs. The next product then reaches only 0.3 to 0.8 of
    its speed (measured on 2 cores).
    """
    deadline = time.perf_counter() + QUIET_S
    while time.perf_counter() < deadline:
        before = time.process_time()
        time.sleep(5e-3)
        if time.process_time() - before < 1e-3:
            return


def warm_up(run: Callable[[], object]) -> None:
    """Repeat a function for WARM_S seconds, at least once, so that its threads are awake and the processor's clock has
    risen."""
    until = time.perf_counter() + WARM_S
    run()
    while time.perf_counter() < until:
        run()


def timed(run: Callable[..., None], *args: np.ndarray) -> float:
    """The seconds of one call."""
    start = time.perf_counter()
    run(*args)
    return time.perf_counter() - start


def timed_again(cell: Cell, much_s: float, run: Callable[..., None], *args: np.ndarray) -> float:
    """The seconds of one call. If the first call took more than ``much_s`` seconds, the result is the time of a second
    call, because a library may do some work only once for each shape. Tilewright's own kernels are not called twice,
    because they were compiled before."""
    seconds = timed(run, *args)
    if not cell.kernel.compiled and much_s < seconds <= FIRST_CALL_S:
        seconds = timed(run, *args)
    return seconds


def band_s(run: Product, cell: Cell, sets: OperandSets, limit_s: float, guess_s: float | None) -> float:
    """Predict a product's seconds from the time of its first rows. B and the strides are those of the whole product, so
    that a slowdown at this size affects the prediction.

    A prediction from few rows is too high for a kernel that packs all of B even for few rows. So m/32 rows are timed.
    Fewer rows are timed if ``guess_s``, the prediction from another size, is None or so high that timing m/32 rows
    would take too long. The number of rows is doubled as long as the prediction exceeds the limit and the rows took at
    most an eighth of the limit. So a prediction takes little time compared with the limit.
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
