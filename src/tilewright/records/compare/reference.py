"""A kernel against the reference that ran in turns with it: the verdict of ``compare``, within one record.

A busy machine can take most of a library's time on several threads, and then R says nothing of the kernel. Two signs of
it make a verdict UNCLEAR: more threads took longer than fewer (``starved``; the bench writes that into the record), and
samples that scatter too widely for their median to mean anything.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from ..bench import BenchRecord
from .intervals import ratio_interval
from .stats import FEW_SAMPLES, MIN_SAMPLES, THRESHOLD, Status, is_time, judge

#: Threads that take this many times as long as fewer of them do, and WAKE_S longer for each, are starved. On quiet machines
#: libraries were up to 1.21 times as slow on two threads (products bound by memory), and up to 200 µs slower beyond that
#: (small products that are cut into many jobs).
STARVED, WAKE_S = 1.25, 125e-6
#: With this factor between the quartiles of few samples their median is doubtful, and so is R if it may be off by it.
WIDE = 2.0


def against_reference(record: BenchRecord) -> tuple[Status, float | None, str]:
    """The verdict on a record's times against its reference's, the kernel's time over the reference's (1/R), and the doubt.

    The time is None where either has no samples; the doubt is empty unless the verdict is UNCLEAR.

    >>> def record(*samples):
    ...     return BenchRecord("cpu/ikj", "cpu", 64, 64, 64, "float32", "ok", samples_s=list(samples),
    ...                        reference="ref/openblas", reference_samples_s=[1.0, 1.01, 1.02, 1.01])
    >>> status, time, _ = against_reference(record(0.50, 0.51, 0.50, 0.51))
    >>> status.name, round(time, 2)
    ('FASTER', 0.5)
    >>> against_reference(record(0.50, 0.51, 3.50, 0.51))[0].name
    'UNCLEAR'
    """
    ours, theirs = record.samples_s, record.reference_samples_s
    if not all(is_time(t) for t in (*ours, *theirs)):
        return Status.UNCLEAR, None, "some samples are no positive time"
    time = statistics.median(ours) / statistics.median(theirs) if ours and theirs else None
    if why := busy(record):
        return Status.UNCLEAR, time, why
    status, doubt = judge(theirs, ours, THRESHOLD)
    return status, time, doubt


def is_unclear(record: BenchRecord) -> bool:
    """Whether the samples do not tell the kernel from its reference."""
    return against_reference(record)[0] is Status.UNCLEAR


def busy(record: BenchRecord) -> str:
    """Why a record's samples show a machine that was busy, so that its R means nothing; empty if they do not.

    Samples that are scattered do not matter where R is far beyond their scatter.

    >>> def record(*samples):
    ...     return BenchRecord("cpu/ikj", "cpu", 64, 64, 64, "float32", "ok", samples_s=list(samples),
    ...                        reference="ref/openblas", reference_samples_s=[1.0, 1.0, 9.0, 9.0])
    >>> busy(record(2.0, 2.0, 2.0, 2.0))
    'the quartiles of the samples of ref/openblas differ by a factor of 9.0'
    >>> busy(record(900.0, 900.0, 900.0, 900.0))
    ''
    """
    ours, theirs = record.samples_s, record.reference_samples_s
    if not (ours and theirs and all(is_time(t) for t in (*ours, *theirs))):
        return ""
    if why := record.environment.get("starved"):
        return str(why)
    spread, whose = max((_quarters(ours), record.kernel), (_quarters(theirs), record.reference))
    words = f"the quartiles of the samples of {whose} differ by a factor of {spread:.1f}"
    if min(len(ours), len(theirs)) >= FEW_SAMPLES:
        low, high, _ = ratio_interval(theirs, ours)
        spread = math.sqrt(high / low)
        words = f"its {len(ours)} samples tell R only to within a factor of {spread:.1f}"
    ratio = statistics.median(theirs) / statistics.median(ours)
    return "" if spread < WIDE or max(ratio, 1 / ratio) > spread**2 else words


def starved(name: str, threads: int, samples: Sequence[float], on_fewer: Mapping[int, Sequence[float]]) -> str:
    """Whether ``samples`` of a product on ``threads`` threads are proved to be slower than those ``on_fewer``, by more than
    waking threads can cost: a sentence that says so, else an empty text. No thread may lack a core of its own.

    >>> starved("ref/openblas", 2, [0.02, 0.03, 0.02, 0.02], {1: [1e-3, 1.1e-3, 1e-3, 1e-3]})
    'ref/openblas took 20 times as long on 2 threads as on 1'
    >>> starved("ref/openblas", 2, [0.9e-3, 0.8e-3, 0.7e-3, 0.8e-3], {1: [1e-3, 1.1e-3, 1e-3, 1e-3]})
    ''
    """
    for fewer, before in sorted(on_fewer.items()):
        if fewer < threads and min(len(before), len(samples)) >= MIN_SAMPLES and ratio_interval(before, samples)[0] > 1:
            now, then = statistics.median(samples), statistics.median(before)
            if now > STARVED * then + threads * WAKE_S:
                return f"{name} took {now / then:.2g} times as long on {threads} threads as on {fewer}"
    return ""


def _quarters(samples: Sequence[float]) -> float:
    """The upper quartile over the lower one. Unlike the largest sample over the smallest, it does not grow with the number
    of samples, and one of four may be of any size."""
    ordered, count = sorted(samples), len(samples)
    return ordered[math.ceil(0.75 * count) - 1] / ordered[math.ceil(0.25 * count) - 1]
