"""Samples of time on a GPU: launches back to back on rotating operands, between two events."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from ...gpu.runtime.device import Device
from ...gpu.runtime.launch import Submission
from ...gpu.runtime.memory import Memory
from ..verify.device_verify import DeviceChecks

#: A sample lasts at least this long: short products are repeated within it.
SAMPLE_S = 5e-3
#: Launches of one sample, at most: about 1,000 can wait in the GPU's queue, and a product may take several.
MOST_LAUNCHES = 400
#: A function runs for so long before its first sample that counts, so that clocks rise and settle.
WARM_S = 0.05
#: The GPU is held busy for SLACK times as long as queueing the last sample took, plus 50 µs; at most for MOST_HOLD_S.
SLACK, MOST_HOLD_S = 1.5, 20e-3


class DeviceSampleLoop:
    """Samples of one function: ``launches`` has one launch for each set of operands, and the sets take turns.

    The launches of a sample are queued while the GPU is held busy, and timed by its own clock, so what the host takes to
    launch a short kernel is not measured. ``last`` is the set that was written last.
    """

    def __init__(
        self, gpu: Device, checks: DeviceChecks, launches: Sequence[Submission], outputs: Sequence[Memory]
    ) -> None:
        self._gpu, self._checks, self._launches, self._outputs = gpu, checks, launches, outputs
        self._timer = gpu.timer()
        self._queueing_s = 1e-4
        self._inner = 1
        self.last, self.spent_s = -1, 0.0

    def warm_up(self) -> None:
        """Run it for WARM_S seconds, and find out how many runs a sample takes."""
        warm = 0.0
        while True:
            once = self.sample()
            warm += self.spent_s
            self._inner = min(MOST_LAUNCHES, max(1, math.ceil(SAMPLE_S / max(once, 1e-7))))
            if warm >= WARM_S:
                return

    def sample(self) -> float:
        """Seconds of one product, the mean of a sample. Raises LaunchError if a launch fails."""
        order = [(self.last + 1 + i) % len(self._launches) for i in range(self._inner)]
        self._gpu.fill(self._outputs[order[-1]], 0xFF)  # the result that is verified must come from a timed run
        self._checks.hold(min(MOST_HOLD_S, SLACK * self._queueing_s + 50e-6))()
        self._timer.start()
        start = time.perf_counter()
        for i in order:
            self._launches[i]()
        self._queueing_s = time.perf_counter() - start
        self.spent_s = self._timer.stop()
        self.last = order[-1]
        return self.spent_s / self._inner
