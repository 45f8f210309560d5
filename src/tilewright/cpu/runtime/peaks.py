"""Measures the roofs of this machine, which are its highest rates: fused multiply-adds per second, and bytes per second
from memory and the last-level cache.

The actual clock rate of a shared machine differs from the rate in its datasheet. So the rates are measured for each
dtype and number of threads, and cached on disk. A roof is the rate that the machine reaches when no other program runs,
so the best of several short runs counts. No measurement takes more memory than is available.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...host.disk import CacheFile, fingerprint
from ...host.machine import available_memory, machine
from ...host.steps import announced
from ...product.operands import mapped_empty
from .library import function_name
from .machine_code import need_machine_code
from .peaks_code import BITS, CHAINS, multiply_add, triad
from .threads import Team

#: A sample takes so long, at least. There are so many samples, but of long ones no more than fit in so many seconds, and so
#: many at least: a user waits for them, and 8 samples from a cache of 300 MiB took 3 s.
_SAMPLE_S = 0.02
_SAMPLES, _LEAST_SAMPLES, _MOST_S = 8, 3, 0.4
#: A figure is measured so many times while other programs disturb it, if that takes no longer than this.
_ROUNDS, _MOST_S_OF_ROUNDS = 3, 1.0
#: Threads that had a processor for this share of the best sample, or more, were not disturbed.
UNDISTURBED = 0.9
#: Threads on cores of their own reach together at least this share of as many times what one reaches.
SCALES = 0.6
#: A figure that other programs disturbed is measured again after so many seconds, by whichever process needs it then.
AGAIN_S = 600.0
#: The bandwidth of memory, in 1e9 bytes per second, that is assumed where there is no room to measure it: a low one.
ASSUMED_GBS = 8.0
#: The arrays from which it is measured take together so many times the last cache: at most; for caches so large that this is
#: more than 256 MiB; and at least, for of smaller ones much would stay in the cache.
MOST_CACHES, USUAL_CACHES, LEAST_CACHES = 12, 3, 2

#: A figure, and the share of its time in which the threads that reached it had a processor.
Measured = tuple[float, float]
#: What is to be said of a figure that this process measured.
_doubts: dict[str, str] = {}


def peak_gflops(dtype: str = "float32", threads: int = 1, *, fresh: bool = False) -> float:
    """Return the highest rate of fused multiply-adds on this machine, in 1e9 operations per second. A fused
    multiply-add is two operations.

    With ``fresh`` the rate is measured again, which takes about 0.3 s, and the higher of the old and the new figure is
    cached.
    """
    return _cached("fma", dtype, threads, _measure_peak, fresh)


def bandwidth_gbs(dtype: str = "float64", threads: int = 1, *, fresh: bool = False, room: int | None = None) -> float:
    """Return the memory bandwidth of a triad out = x + 3·y over arrays much larger than the last-level cache, in 1e9
    bytes per second.

    Bytes are counted as by the STREAM benchmark: two arrays are read and one is written. The bytes of a cache line that
    is fetched before it is written are not counted. The measurement may allocate ``room`` bytes. If ``room`` is too
    small for a measurement and no figure is cached, the result is ASSUMED_GBS.
    """
    return _cached("triad", dtype, threads, functools.partial(_measure_bandwidth, room), fresh) or ASSUMED_GBS


def cache_bandwidth_gbs(dtype: str = "float64", threads: int = 1, *, fresh: bool = False) -> float:
    """Return the bandwidth of the triad out = x + 3·y over arrays that fill half of the last-level cache, in 1e9 bytes
    per second."""
    return _cached("cached triad", dtype, threads, _measure_cache_bandwidth, fresh)


def roofs(*, fresh: bool = False) -> list[dict[str, Any]]:
    """Return every roof of this machine, on one thread and on all threads. Each roof has its kind, dtype, number of
    threads, value, unit, and a line of text.

    If a figure was measured again, or if other programs disturbed the measurement, the text says so.
    """
    found = []
    for threads in sorted({1, machine().usable_cores}):
        on = f"{threads} thread{'s' if threads > 1 else ''}"
        for dtype in ("float32", "float64"):
            value = peak_gflops(dtype, threads, fresh=fresh)
            found.append(_roof(f"FMA peak, {dtype}, {on}", "fma", dtype, threads, value, "GFLOPS"))
        value = cache_bandwidth_gbs("float64", threads, fresh=fresh)
        found.append(_roof(f"last-level cache triad, {on}", "cached triad", "float64", threads, value, "GB/s"))
        value = bandwidth_gbs("float64", threads, fresh=fresh)
        found.append(_roof(f"memory triad, {on}", "triad", "float64", threads, value, "GB/s"))
    return found


def _roof(what: str, name: str, dtype: str, threads: int, value: float, unit: str) -> dict[str, Any]:
    doubt = _doubts.get(f"{name} {dtype} {threads}", "")
    text = f"{value:.1f} {unit}" + (f" ({doubt})" if doubt else "")
    return {"what": what, "name": name, "dtype": dtype, "threads": threads, "value": value, "unit": unit, "text": text}


def _compiled(function: Callable[..., None], dtype: str) -> Callable[..., Any]:
    return need_machine_code("what measures this machine's peaks").function(function_name(function.__name__, dtype))


def _measure_peak(dtype: str, threads: int) -> Measured:
    lanes = BITS // 8 // np.dtype(dtype).itemsize
    operands = [np.array([0.5, 1.0], dtype) for _ in range(threads)]
    run = _compiled(multiply_add, dtype)
    run(10, operands[0])
    steps, elapsed = 10_000, 0.0
    while elapsed < _SAMPLE_S:
        steps *= 2
        elapsed, _ = _timed([functools.partial(run, steps, operands[0])])
    jobs = [functools.partial(run, steps, x) for x in operands]
    best, share = _best(jobs)
    return 2.0 * CHAINS * lanes * steps * threads / best / 1e9, share


def _measure_bandwidth(room: int | None, dtype: str, threads: int) -> Measured | None:
    last = _last_cache()
    wanted = min(MOST_CACHES * last, max(USUAL_CACHES * last, 256 << 20))
    nbytes = min(wanted, _free(), wanted if room is None else room)
    return _triad_gbs(dtype, threads, nbytes) if nbytes >= LEAST_CACHES * last else None


def _measure_cache_bandwidth(dtype: str, threads: int) -> Measured:
    return _triad_gbs(dtype, threads, min(_last_cache() // 2, _free()))


def _free() -> int:
    """Bytes that a measurement may take, as other programs need memory too."""
    return (available_memory() or 1 << 30) * 3 // 8


def _last_cache() -> int:
    return machine().l3 or machine().l2 or 32 << 20


def _triad_gbs(dtype: str, threads: int, nbytes: int) -> Measured:
    """The bandwidth of the triad over ``nbytes`` in all, in 1e9 bytes per second."""
    kind = np.dtype(dtype)
    size = max(8, nbytes // 3 // kind.itemsize // threads)
    run = _compiled(triad, dtype)
    arrays = [[mapped_empty(size, kind) for _ in range(3)] for _ in range(threads)]
    for x, y, out in arrays:
        x[:], y[:], out[:] = 1.5, 2.5, 0.0  # touch the pages: an untouched page is one shared page of zeros
        run(x[:8], y[:8], out[:8], 1)
    once, _ = _timed([functools.partial(run, *three, 1) for three in arrays])
    repeats = math.ceil(_SAMPLE_S / once)
    best, share = _best([functools.partial(run, *three, repeats) for three in arrays])
    return 3.0 * size * threads * kind.itemsize * repeats / best / 1e9, share


def _best(jobs: Sequence[Callable[[], object]]) -> tuple[float, float]:
    """The fastest of several runs of all jobs: its seconds, and the share of them in which its threads had a processor."""
    found, start = [_timed(jobs)], time.perf_counter()
    while len(found) < _SAMPLES and (len(found) < _LEAST_SAMPLES or time.perf_counter() - start < _MOST_S):
        found.append(_timed(jobs))
    return min(found)


def _timed(jobs: Sequence[Callable[[], object]]) -> tuple[float, float]:
    """Seconds of one run of all jobs, and the share of them in which their threads had a processor."""
    used: list[float] = []

    def timed(job: Callable[[], object]) -> None:
        start = time.thread_time()
        job()
        used.append(time.thread_time() - start)

    start = time.perf_counter()
    Team(len(jobs)).run([functools.partial(timed, job) for job in jobs])
    seconds = time.perf_counter() - start
    return seconds, sum(used) / len(jobs) / seconds


def _cached(what: str, dtype: str, threads: int, measure: Callable[[str, int], Measured | None], fresh: bool) -> float:
    """The figure of the machine's description, else from the cache on disk, else measured: where it is not there,
    ``fresh``, or too low to be believed. 0 where there is not enough memory to measure it.

    A figure that other programs disturbed counts for AGAIN_S seconds, in all processes.
    """
    if (stated := machine().rate(what, dtype, threads)) is not None:
        return stated
    facts = (machine().processor, machine().isa, machine().usable_cores, machine().l3, Path(__file__))
    file = CacheFile("peaks", f"{fingerprint(*facts)}.json")
    one = _cached(what, dtype, 1, measure, False) if what == "fma" and threads > 1 else 0.0
    known, key = file.read_json(), f"{what} {dtype} {threads}"  # after that, which writes too
    on_disk, disturbed = _figure(known.get(key)), _recent(known.get(f"{key} disturbed"))
    best = max(on_disk, disturbed)
    again = bool(best) and not disturbed and not known.get(f"{key} twice") and not _plausible(best, one, threads)
    if not (fresh or not best or again):
        return best
    need_machine_code("what measures this machine's peaks")
    wanted = UNDISTURBED * _cores(threads) / threads
    value, share = _measured(functools.partial(measure, dtype, threads), wanted)
    _doubts[key] = f"measured again: {best:.1f} was cached, one thread reaches {one:.1f}" if again else ""
    if value > on_disk and share < wanted:
        file.write_json(known | {f"{key} disturbed": [max(value, best), time.time()]})
        busy = f"threads ran {int(100 * share)}% of the time"
        _doubts[key] = f"too low, and soon measured again: the machine is busy, {busy}"
    elif value > on_disk or again:
        twice = {f"{key} twice": True} if again and not _plausible(max(value, best), one, threads) else {}
        file.write_json(known | {key: max(value, on_disk)} | twice)
    return max(value, best)


def _measured(measure: Callable[[], Measured | None], wanted: float) -> Measured:
    """The best of _ROUNDS measurements, or the first whose threads had a processor for the share ``wanted``; zeros where
    there is not enough memory."""
    best, start = (0.0, 0.0), time.perf_counter()
    with announced("measuring this machine's peaks"), contextlib.suppress(MemoryError):
        for _ in range(_ROUNDS):
            found = measure()
            best = max(best, found or best)
            if found is None or best[1] >= wanted or time.perf_counter() - start > _MOST_S_OF_ROUNDS:
                break
    return best


def _figure(known: object) -> float:
    """The value that the cache file holds, or 0 where it is not a positive, finite number."""
    return known if isinstance(known, float) and 0 < known < math.inf else 0.0


def _recent(known: object) -> float:
    """The figure of a disturbed measurement, stored with its time, if that is not long ago; otherwise 0."""
    if isinstance(known, list) and len(known) == 2 and _figure(known[1]) and 0 <= time.time() - known[1] < AGAIN_S:
        return _figure(known[0])
    return 0.0


def _plausible(value: float, one: float, threads: int) -> bool:
    """Whether several threads reach more than one does. On cores that are one core's hyper-threads they do not."""
    return value >= SCALES * _cores(threads) * one or _cores(threads) < 2


def _cores(threads: int) -> float:
    """How many cores these threads have: at most the physical ones, and the quota."""
    return min(threads, machine().physical_cores or threads, machine().quota_cores or threads)
