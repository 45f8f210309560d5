"""Reads the processor's hardware counters while a product runs, and pairs them with the counts that the model predicts.

``explain.cpu`` uses this module.

The counters are those of Linux's ``perf_event_open``, for every thread of this process. The command ``perf`` would
count a whole process, in which imports and compilation take a thousand times as long as a product. The counters of this
module run only while the product runs, and only in user mode, which a ``perf_event_paranoid`` of 2 still allows. Each
thread that exists at the start of the product has its own counters. The counters of a thread include threads that it
starts later. Run one product before the measurement, so that all threads exist. If there are more events than the
processor has counters, Linux counts them alternately, and each count is scaled to the whole time.

A missing counter is not an error: on a virtual machine most counters are missing. The count of a missing counter is
None, with the reason. Linux's event cache-references counts reads of the last-level cache on Intel's processors. On
AMD's processors it counts reads of the second-level cache, because their last-level counters cannot be read for a
single program.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import platform
import struct
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...cpu.prediction import Prediction
from ...host.machine import Machine
from ...kernels import Kernel
from ...product.problem import Problem
from ..bench.timing import wait_until_quiet
from . import cpu_counts
from .cpu_counts import InnerLoop

# ---- counters of Linux -----------------------------------------------------------------------------------------------

PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
#: Where Linux lists its sources of events; the processor's own are in folders whose names begin with one of these.
SOURCES, _PROCESSOR = Path("/sys/bus/event_source/devices"), ("cpu", "arm")

#: The number of the system call, for which the C library has no function.
_CALLS = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
# linux/perf_event.h: the kinds of events, the first version of struct perf_event_attr (64 bytes), flags, ioctls.
HARDWARE, SOFTWARE, CACHE, RAW = 0, 1, 3, 4
_ATTRIBUTES = struct.Struct("=IIQQQQQIIQ")
_FORMAT = 1 | 2  # with the count, the time for which it was enabled, and for which it ran
_FLAGS = 1 | 2 | 1 << 5 | 1 << 6  # disabled at first, inherited by new threads, neither kernel nor hypervisor
_ENABLE, _DISABLE = 0x2400, 0x2401
_CLOSE_ON_EXEC = 8


@dataclass(frozen=True)
class PerfEvent:
    """An event to count. ``each`` is the amount by which one event increases the counter, such as 32 operations."""

    name: str
    kind: int
    config: int
    each: int = 1


def cache_event(name: str, cache: int, *, misses: bool = False) -> PerfEvent:
    """The event for reads of a cache, or for reads that miss. ``cache`` is 0 for the first-level data cache, and 2 for
    the last level."""
    return PerfEvent(name, CACHE, cache | misses << 16)


@dataclass(frozen=True)
class EventCount:
    """The count of one event, and the fraction of the time in which a counter counted it. A count that is missing is
    None, with the reason."""

    event: PerfEvent
    value: float | None
    share: float = 1.0
    reason: str = ""


class System(Protocol):
    """The system calls of the counters, in a class that a test can replace. All of them raise OSError."""

    def threads(self) -> list[int]:
        """The numbers of the threads of this process."""

    def open(self, event: PerfEvent, thread: int) -> int:
        """Open a counter for a thread; it does not count before it is switched on."""

    def switch(self, counter: int, *, on: bool) -> None:
        """Start or stop a counter."""

    def read(self, counter: int) -> tuple[int, int, int]:
        """The count, the time in ns for which the counter was switched on, and the time for which it counted."""

    def close(self, counter: int) -> None:
        """Close a counter."""


class Linux:
    """The system calls of Linux. On a system other than Linux, the constructor raises OSError with ENOSYS."""

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise OSError(errno.ENOSYS, f"{platform.system()} has no perf_event_open")
        if platform.machine() not in _CALLS:
            raise OSError(errno.ENOSYS, f"the number of perf_event_open on {platform.machine()} is not known here")
        self._library = ctypes.CDLL(None, use_errno=True)

    def threads(self) -> list[int]:
        """See ``System``."""
        return sorted(int(thread.name) for thread in Path("/proc/self/task").iterdir())

    def open(self, event: PerfEvent, thread: int) -> int:
        """See ``System``."""
        attributes = _ATTRIBUTES.pack(event.kind, _ATTRIBUTES.size, event.config, 0, 0, _FORMAT, _FLAGS, 0, 0, 0)
        args = (ctypes.c_long(value) for value in (thread, -1, -1, _CLOSE_ON_EXEC))
        number = ctypes.c_long(_CALLS[platform.machine()])
        counter = self._library.syscall(number, ctypes.create_string_buffer(attributes, len(attributes)), *args)
        if counter < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return int(counter)

    def switch(self, counter: int, *, on: bool) -> None:
        """See ``System``."""
        import fcntl  # Windows has none

        fcntl.ioctl(counter, _ENABLE if on else _DISABLE, 0)

    def read(self, counter: int) -> tuple[int, int, int]:
        """See ``System``."""
        count, enabled, ran = struct.unpack("=QQQ", os.read(counter, 24))
        return count, enabled, ran

    def close(self, counter: int) -> None:
        """See ``System``."""
        os.close(counter)


def count_events(
    job: Callable[[], None], events: Iterable[PerfEvent], system: System | None = None
) -> list[EventCount]:
    """Run ``job`` once, and return the count of each event, in the order given, summed over all threads.

    >>> found = count_events(lambda: None, [PerfEvent("page-faults", SOFTWARE, 2)])[0]
    >>> found.value is not None or bool(found.reason)
    True
    """
    chosen = list(events)
    if system is None:
        try:
            system = Linux()
        except OSError as error:
            job()
            return [EventCount(event, None, reason=str(error.strerror)) for event in chosen]
    opened: list[list[int]] = []
    refused: dict[PerfEvent, str] = {}
    try:
        threads = system.threads()
        for event in chosen:
            opened.append([])
            try:
                _open(event, threads, system, opened[-1])
            except OSError as error:
                refused[event] = reason_of(error)
        ready = [n for event, counters in zip(chosen, opened, strict=True) if event not in refused for n in counters]
        for counter in ready:
            system.switch(counter, on=True)
        try:
            job()
        finally:
            for counter in ready:
                system.switch(counter, on=False)
        return [
            EventCount(event, None, reason=refused[event]) if event in refused else _sum(event, counters, system)
            for event, counters in zip(chosen, opened, strict=True)
        ]
    finally:
        for counter in (n for counters in opened for n in counters):
            system.close(counter)


def _open(event: PerfEvent, threads: list[int], system: System, into: list[int]) -> None:
    for thread in threads:
        try:
            into.append(system.open(event, thread))
        except OSError as error:
            if error.errno != errno.ESRCH:  # a thread that has ended needs no counter
                raise


def _sum(event: PerfEvent, counters: list[int], system: System) -> EventCount:
    """The sum of the scaled counts of all threads. The counter of a thread that did not run was never enabled, and
    counted nothing."""
    total, enabled_all, ran_all = 0.0, 0, 0
    for counter in counters:
        value, enabled, ran = system.read(counter)
        if enabled and not ran:
            return EventCount(event, None, reason="other events use all counters of the processor: it never had a turn")
        total += value * enabled / ran if ran else 0
        enabled_all, ran_all = enabled_all + enabled, ran_all + ran
    if not enabled_all:
        return EventCount(event, None, reason="no thread ran while it was counted")
    return EventCount(event, total / event.each, ran_all / enabled_all)


def reason_of(error: OSError) -> str:
    """The reason why a counter could not be opened, with the name of the error."""
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    reasons = {
        errno.ENOENT: "the processor has no such counter"
        if _has_counters()
        else "this machine has no PMU, as virtual ones often have none",
        errno.EINVAL: "the processor's driver does not know this event",
        errno.EOPNOTSUPP: "the processor cannot count this",
        errno.ENODEV: "the processor cannot count this",
        errno.EACCES: f"not allowed: {_paranoid()}",
        errno.EPERM: f"not allowed: {_paranoid()}, and a container may forbid it as well",
        errno.ENOSYS: "this system has no perf_event_open",
        errno.EMFILE: "too many open files: raise ulimit -n",
        errno.EBUSY: "another program uses it exclusively",
    }
    return f"{reasons.get(error.errno or 0, error.strerror or 'refused')} ({name})"


def _has_counters() -> bool:
    """Whether this machine has hardware counters of the processor."""
    return SOURCES.is_dir() and any(path.name.startswith(_PROCESSOR) for path in SOURCES.iterdir())


def _paranoid() -> str:
    try:
        return f"{PARANOID.name} is {PARANOID.read_text().strip()}"
    except OSError:
        return f"{PARANOID} cannot be read"


# ---- quantities of a product -----------------------------------------------------------------------------------------

#: The least seconds for which the counters run, because events may have to share counters.
COUNTED_S = 0.4
#: The bytes of a cache line, if the machine does not report them.
_LINE = 64

#: The quantities, in the order of the table, and their units.
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
    """A quantity of one product: the count that the model predicts (``expected``, as in records), and the count that
    the processor's counters give (``counted``). A count that is not known is None.

    ``share`` is the fraction of the time in which the counter counted; the count is scaled to the whole time. ``reason``
    says why there is no count.
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
        """The count of the processor over the predicted count."""
        return self.counted / self.expected if self.counted is not None and self.expected else None


def predicted_counts(
    kernel: Kernel, problem: Problem, threads: int, loop: InnerLoop | None, prediction: Prediction | None, here: Machine
) -> dict[str, float]:
    """The counts that the model predicts, by quantity.

    Instructions and loads are those of one iteration of the inner loop, times the number of iterations. If the loop is not
    known, the loads are estimated from the tile.
    """
    known: dict[str, float | None] = {"page faults": 0}
    multiplies = cpu_counts.vector_multiplies(kernel, problem, threads)
    if multiplies is not None:
        known["multiply-adds"] = multiplies
        cut = cpu_counts.tiling(kernel, problem, threads)
        known["loads"] = None if cut is None else cut.loads
    if multiplies and loop is not None:
        iterations = multiplies / loop.multiplies
        known |= {"instructions": iterations * loop.instructions, "loads": iterations * loop.reads}
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
    """A row for each event, and for each predicted quantity that no event measures. ``job`` is run several times; one run
    takes about ``seconds``."""
    times = max(1, math.ceil(COUNTED_S / max(seconds, 1e-7)))

    def repeated() -> None:
        for _ in range(times):
            job()

    wait_until_quiet()  # threads of the previous product may still spin
    counts = count_events(repeated, [event for _, event in events], system)
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
        EventRow(what, UNITS[what], known.get(what), "", None, reason="no event that counts it is known here")
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
    """The processor's event of vector multiply-adds of floats. One multiply-add raises the counter by 2 on Intel's
    processors, and by 2 per lane on AMD's."""
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
