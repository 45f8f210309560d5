"""A kernel against the reference that ran in turns with it: the verdict of ``compare``, within one record."""

from __future__ import annotations

import math
import statistics

from ...records.bench import BenchRecord
from .stats import THRESHOLD, Status, judge


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
    if not all(isinstance(t, int | float) and 0 < t < math.inf for t in (*ours, *theirs)):
        return Status.UNCLEAR, None, "some samples are no positive time"
    status, doubt = judge(theirs, ours, THRESHOLD)
    return status, statistics.median(ours) / statistics.median(theirs) if ours and theirs else None, doubt
