"""A clock for the bench and the tuner that a busy machine does not disturb: only what sleeps takes time."""

from __future__ import annotations

import threading

import pytest

#: Seconds between two readings of the clock where nothing sleeps.
TICK_S = 1e-4
#: Every module through which a sample of the bench gets its time.
_MODULES = ("tilewright.lab.bench.timing", "tilewright.lab.bench.cpu", "tilewright.lab.tune.cpu")


class SimulatedClock:
    """Stands in for the module ``time``.

    >>> clock = SimulatedClock()
    >>> start = clock.perf_counter()
    >>> clock.sleep(2)
    >>> round(clock.perf_counter() - start, 3)
    2.0
    """

    def __init__(self) -> None:
        self._now_s, self._lock = 0.0, threading.Lock()

    def perf_counter(self) -> float:
        return self._advance(TICK_S)

    monotonic = perf_counter

    def process_time(self) -> float:
        """This process is never busy."""
        return 0.0

    def sleep(self, seconds: float) -> None:
        self._advance(seconds)

    def _advance(self, seconds: float) -> float:
        with self._lock:  # the tuner compiles on a thread of its own
            self._now_s += seconds
            return self._now_s

    @classmethod
    def installed(cls, monkeypatch: pytest.MonkeyPatch) -> SimulatedClock:
        """A clock that the bench reads until the test ends."""
        clock = cls()
        for module in _MODULES:
            monkeypatch.setattr(f"{module}.time", clock)
        return clock
