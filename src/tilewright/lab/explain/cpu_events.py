"""Quantities of a product on the CPU: what the model predicts of each, and which of the processor's counters counts it.

What Linux calls cache references are reads of the last-level cache on Intel's processors, and of the second level on AMD's:
there the last level has counters for all cores together alone, none for a single program.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ...cpu.prediction import Prediction
from ...host.machine import Machine
from ...kernels import Kernel
from ...product.problem import Problem
from ..bench.timing import wait_until_quiet
from . import cpu_counts, perf_counters
from .inner_loop import InnerLoop
from .perf_counters import HARDWARE, RAW, SOFTWARE, PerfEvent, System, cache_event

#: Counters run for so long at least, because events may have to take turns.
COUNTED_S = 0.4
#: Bytes of a cache line, where the machine does not report them.
_LINE = 64

#: The quantities in the order of the table, with their units.
UNITS = {
    "multiply-adds": "",
    "instructions": "",
    "loads": "",
    "lines into L1": "",
    "lines into L2": "",
    "lines into L3": "",
    "cycles": "",
    "processor time": "s",
    "page faults": "",
}


@dataclass(frozen=True)
class EventRow:
    """A quantity of one product: predicted by the model (``expected``), and counted by the processor; None is not known.

    ``share`` is the part of the time in which the counter ran, from which the count is scaled; ``reason`` is why there is no
    count.
    """

    what: str
    unit: str
    expected: float | None
    counter: str
    counted: float | None
    share: float = 1.0
    reason: str = ""

    @property
    def ratio(self) -> float | None:
        """Counted over expected."""
        return self.counted / self.expected if self.counted is not None and self.expected else None


def predicted_counts(
    kernel: Kernel, problem: Problem, threads: int, loop: InnerLoop | None, prediction: Prediction | None, here: Machine
) -> dict[str, float]:
    """The quantities that the model predicts.

    Instructions and loads are those of the inner loop, times its turns; without a known loop, loads are those of the tile.
    """
    known: dict[str, float | None] = {"page faults": 0}
    multiplies = cpu_counts.vector_multiplies(kernel, problem, threads)
    if multiplies is not None:
        known["multiply-adds"] = multiplies
        cut = cpu_counts.tiling(kernel, problem, threads)
        known["loads"] = None if cut is None else cut.loads
    if multiplies and loop is not None:
        turns = multiplies / loop.multiplies
        known |= {"instructions": turns * loop.instructions, "loads": turns * loop.reads}
    line = next((cache.line for cache in here.caches if cache.line), _LINE)
    for level in cpu_counts.traffic(kernel, problem, threads, here)[1:]:
        known[f"lines into {level.into}"] = None if level.bytes is None else math.ceil(level.bytes / line)
    known["processor time"] = None if prediction is None else prediction.seconds * threads
    return {what: value for what, value in known.items() if value is not None}


def event_rows(
    job: Callable[[], None],
    seconds: float,
    known: dict[str, float],
    events: list[tuple[str, PerfEvent]],
    system: System | None = None,
) -> list[EventRow]:
    """A row for each event, and for each quantity without one; ``job`` takes about ``seconds``, and is repeated."""
    times = max(1, math.ceil(COUNTED_S / max(seconds, 1e-7)))

    def repeated() -> None:
        for _ in range(times):
            job()

    wait_until_quiet()  # threads of the previous product may still spin
    counts = perf_counters.count_events(repeated, [event for _, event in events], system)
    rows = [
        EventRow(
            what,
            UNITS[what],
            known.get(what),
            count.event.name,
            None if count.value is None else count.value / times,
            count.share,
            count.reason,
        )
        for (what, _), count in zip(events, counts, strict=True)
    ]
    without = UNITS.keys() - {row.what for row in rows}
    rows += [
        EventRow(what, UNITS[what], known.get(what), "", None, reason="no event of it is known here")
        for what in without
    ]
    return sorted(rows, key=lambda row: list(UNITS).index(row.what))


def events_of(here: Machine, dtype: str, vector_bits: int) -> list[tuple[str, PerfEvent]]:
    """The events to count on this processor, each with the quantity that it measures."""
    amd = here.vendor == "AuthenticAMD"
    references, misses = ("lines into L1", "lines into L2") if amd else ("lines into L2", "lines into L3")
    chosen = [
        ("instructions", PerfEvent("instructions", HARDWARE, 1)),
        ("loads", cache_event("L1-dcache-loads", 0)),
        ("lines into L1", cache_event("L1-dcache-load-misses", 0, misses=True)),
        (references, PerfEvent("cache-references", HARDWARE, 2)),
        (misses, PerfEvent("cache-misses", HARDWARE, 3)),
        ("lines into L2", cache_event("LLC-loads", 2)),
        ("lines into L3", cache_event("LLC-load-misses", 2, misses=True)),
        ("cycles", PerfEvent("cycles", HARDWARE, 0)),
        ("processor time", PerfEvent("task-clock", SOFTWARE, 1, each=10**9)),
        ("page faults", PerfEvent("page-faults", SOFTWARE, 2)),
    ]
    arithmetic = _arithmetic(here, dtype, vector_bits)
    return [("multiply-adds", arithmetic), *chosen] if arithmetic else chosen


def _arithmetic(here: Machine, dtype: str, vector_bits: int) -> PerfEvent | None:
    """The processor's event of vector multiply-adds of floats: one adds 2 on Intel's processors, and 2 a lane on AMD's."""
    size = cpu_counts.packed_bytes(dtype)
    if not dtype.startswith(("float", "complex")) or vector_bits not in (128, 256, 512):
        return None
    if here.vendor == "GenuineIntel":
        kind = {128: 0x04, 256: 0x10, 512: 0x40}[vector_bits] << (size == 4)
        return PerfEvent(
            f"fp_arith.{vector_bits}b_{'single' if size == 4 else 'double'}", RAW, kind << 8 | 0xC7, each=2
        )
    if here.vendor == "AuthenticAMD" and (here.family or 0) >= 0x17:
        return PerfEvent("fp_ret_sse_avx_ops.mac", RAW, 0x0803, each=2 * vector_bits // 8 // size)
    return None
