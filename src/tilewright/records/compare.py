"""Compares samples of times: those of two sets of benchmark records, or those of a kernel and its reference in one
record.

Machines are shared and noisy, and two files come from different runs. So a verdict (faster, slower, the same, or
unclear) needs statistical proof. If both files have the same reference, a kernel's times are first divided by the times
of the reference. The reference ran alternately with the kernel, so a slower machine slows down both. Intervals assume
no distribution of the times, because four samples do not show a distribution. The intervals are order statistics of all
quotients new/old (Hodges and Lehmann, Estimates of location based on rank tests, 1963), and their coverage follows from
the exact distribution of Mann and Whitney's statistic. With few samples, FASTER and SLOWER have two more conditions:
the two sets of times must not overlap, and the ratio of their medians must exceed the spread of each set, which is its
largest sample over its smallest.

On a busy machine, other programs can slow down a library on several threads so much that R, the reference's time
divided by the kernel's, says nothing about the kernel. Either of two signs of a busy machine makes a verdict UNCLEAR.
One sign is that a library took longer on more threads than on fewer (``starved``, which the bench writes into the
record). The other sign of a busy machine is that samples scatter so widely that their median means nothing.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..errors import RecordError, UsageError
from .bench import VERDICTS, BenchRecord

# ---- confidence intervals --------------------------------------------------------------------------------------------

#: The coverage that an interval should have. A few samples cannot reach it: four against four reach at most 97.1 %.
CONFIDENCE = 0.99


def ratio_interval(
    before: Sequence[float], after: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """Return the interval (low, high, coverage) of the factor by which ``after`` exceeds ``before``; both contain
    positive numbers.

    The interval is exact for independent samples of any distribution, if the two distributions differ only by a factor.
    The coverage of the interval is at least ``confidence``. If there are too few samples for this coverage, the
    interval is the widest possible, from the smallest to the largest quotient, and its coverage is smaller.

    >>> low, high, coverage = ratio_interval([1.0, 1.1, 1.2, 1.3], [2.0, 2.2, 2.4, 2.6])
    >>> round(low, 2), round(high, 2), round(coverage, 3)
    (1.54, 2.6, 0.971)
    """
    quotients = sorted(b / a for a in before for b in after)
    drop, coverage = _quotients_to_drop(*sorted((len(before), len(after))), confidence)
    return quotients[drop], quotients[-1 - drop], coverage


@functools.lru_cache(maxsize=256)  # cells of a record have the same numbers of samples
def _quotients_to_drop(n: int, m: int, confidence: float) -> tuple[int, float]:
    """How many of the n·m sorted quotients to leave off at each end, and the coverage that remains."""
    if n * m > 1600:  # with more samples than 40 against 40 the normal distribution is exact enough
        sigma = math.sqrt(n * m * (n + m + 1) / 12)
        z = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
        return max(0, math.floor(n * m / 2 - z * sigma) - 1), confidence
    counts = _mann_whitney_counts(n, m)
    total = math.comb(n + m, n)
    drop, outside = 0, counts[0]
    while 2 * (outside + counts[drop + 1]) <= (1 - confidence) * total:
        drop += 1
        outside += counts[drop]
    return drop, 1 - 2 * outside / total


def _mann_whitney_counts(n: int, m: int) -> list[int]:
    """For u = 0 … n·m: the number of orderings of n and m samples in which u pairs are in reverse order.

    They are the coefficients of the Gaussian binomial, the product over i of (1 − q^(n+i)) / (1 − q^i).
    """
    counts = [1] + [0] * (n * m)
    for i in range(1, m + 1):
        for u in range(n * m, n + i - 1, -1):
            counts[u] -= counts[u - n - i]
        for u in range(i, n * m + 1):
            counts[u] += counts[u - i]
    return counts


# ---- two sets of records ---------------------------------------------------------------------------------------------

Cell = tuple[Any, ...]

#: Changes within this fraction count as no change.
THRESHOLD = 0.03
#: With fewer samples on either side there is no verdict: noise alone separates two samples from two others in one case
#: of three.
MIN_SAMPLES = 3
#: With fewer samples on either side, the difference must also exceed the spread of each side.
FEW_SAMPLES = 8

#: Environment keys that must agree for times to be comparable, and what they are called.
_MUST_AGREE = {"processor": "processors", "gpu": "GPUs", "cores": "usable cores", "operands": "operands"}
#: Environment keys whose difference is noted, but does not prevent a comparison: it may be what is being compared.
_WORTH_A_NOTE = ("python", "numpy", "numba", "blas", "system", "driver")
#: A clock or a reference that changed by more than this fraction between the runs is noted.
_DRIFT = 0.05


class Status(StrEnum):
    """The result of comparing the old and the new record of a cell.

    ``WRONG`` and ``LOST`` count as regressions, as ``SLOWER`` does.
    """

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNCLEAR = "unclear"
    WRONG = "wrong"  # the result is wrong now, and was not before
    LOST = "lost"  # has a time in old, and none in new
    UNMEASURED = "unmeasured"  # no time in old; the result did not become wrong in new
    ONLY_OLD = "only in old"
    ONLY_NEW = "only in new"


@dataclass(frozen=True)
class ComparedCell:
    """One compared cell. ``ratio`` is the new time divided by the old time, so a ratio above 1 means slower; ``low``
    and ``high`` are its interval.

    ``basis`` says how the times were measured: "reference" (in units of the reference's time) or "time" (in seconds).
    ``drift`` is the reference's new time divided by its old time. If the old or the new time is missing, ``basis`` is
    "" and all these numbers are None.
    """

    status: Status
    old: BenchRecord | None
    new: BenchRecord | None
    detail: str = ""
    basis: str = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    drift: float | None = None

    @property
    def record(self) -> BenchRecord:
        """The record that identifies the cell: the new one if there is one, otherwise the old one."""
        record = self.new or self.old
        assert record is not None
        return record

    @property
    def change_percent(self) -> float | None:
        """The change of the time in percent of the old time: −20 means that the new time is a fifth shorter."""
        return None if self.ratio is None else 100 * (self.ratio - 1)

    @property
    def interval_percent(self) -> tuple[float, float] | None:
        """The interval of ``change_percent``."""
        if self.low is None or self.high is None:
            return None
        return 100 * (self.low - 1), 100 * (self.high - 1)

    def slower_than(self, threshold: float) -> bool:
        """Return whether the cell is proved to be slower, with a ratio that exceeds 1 by more than ``threshold``."""
        return self.status is Status.SLOWER and self.ratio is not None and self.ratio > 1 + threshold


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two sets of records.

    ``rows`` has the cells in the order of the old records, and then the cells that only the new records have; ``notes``
    are for the reader.
    """

    rows: tuple[ComparedCell, ...]
    notes: tuple[str, ...]
    threshold: float

    def slower(self, threshold: float | None = None) -> list[ComparedCell]:
        """Return the regressions: cells that are wrong or lost, and cells that are slower by more than ``threshold`` (a
        fraction).

        Raises UsageError for a threshold below that of the comparison, because the comparison did not look for changes
        below its own threshold.
        """
        limit = self.threshold if threshold is None else _checked(threshold)
        if limit < self.threshold:
            rule = f"must be at least the comparison's {self.threshold:g}, got {limit:g}"
            raise UsageError(f"threshold: {rule}; give compare() the smaller one")
        failed = (Status.WRONG, Status.LOST)
        return [row for row in self.rows if row.status in failed or row.slower_than(limit)]

    def as_dict(self) -> dict[str, Any]:
        """Return the cells, notes and threshold of the comparison as plain JSON values. A cell is identified by its
        kernel, shape, dtype and threads."""
        return {
            "threshold": self.threshold,
            "notes": list(self.notes),
            "rows": [
                {
                    **{key: getattr(row.record, key) for key in ("kernel", "shape", "dtype", "threads", "params")},
                    **{key: getattr(row, key) for key in ("status", "detail", "basis", "ratio", "low", "high")},
                }
                for row in self.rows
            ],
        }

    def counts(self) -> dict[Status, int]:
        """The number of cells with each status that occurs."""
        return {status: n for status in Status if (n := sum(row.status is status for row in self.rows))}


def compare(old: Sequence[BenchRecord], new: Sequence[BenchRecord], *, threshold: float = THRESHOLD) -> Comparison:
    """Compare two sets of bench records, and return every cell with a verdict. A change within ``threshold`` (a
    fraction) counts as no change.

    FASTER and SLOWER need at least three samples on each side, an interval that excludes "no change", and a change
    beyond the threshold. With few samples, FASTER and SLOWER also need two sets of times that do not overlap, and a
    ratio of their medians that exceeds the spread of each set. SAME needs an interval that lies within the threshold.
    Everything else is UNCLEAR.

    Raises RecordError if the two sets are not comparable: they have no common cell, or they differ in the processor,
    GPU, number of usable cores, kind of operands, or version of the reference. Raises UsageError for a threshold
    outside [0, 1).

    >>> def cell(*samples):
    ...     return [BenchRecord("cpu/naive", "cpu", 64, 64, 64, "float32", "ok", samples_s=list(samples))]
    >>> row = compare(cell(1.00, 1.01, 1.02, 1.01), cell(0.50, 0.51, 0.50, 0.51)).rows[0]
    >>> row.status.name, round(row.change_percent)
    ('FASTER', -50)
    """
    _checked(threshold)
    (olds, old_notes), (news, new_notes) = _by_cell(old, "old"), _by_cell(new, "new")
    common = [(olds[cell], news[cell]) for cell in olds if cell in news]
    if not common:
        raise RecordError(f"no common cell: old has {_cells(olds.values())}; new has {_cells(news.values())}")
    _check_comparable(common)
    rows = [_row(olds.get(cell), news.get(cell), threshold) for cell in {**olds, **news}]
    notes = [*old_notes, *new_notes, *_environment_notes(common), *_row_notes(rows)]
    return Comparison(tuple(rows), tuple(notes), threshold)


# ---- one cell


def _row(old: BenchRecord | None, new: BenchRecord | None, threshold: float) -> ComparedCell:
    if old is None or new is None:
        return ComparedCell(Status.ONLY_NEW if old is None else Status.ONLY_OLD, old, new)
    was, now = _outcome(old), _outcome(new)
    if was == now == "ok":
        return _timed_row(old, new, threshold)
    detail = f"{_described(was, old)} in old, {_described(now, new)} in new"
    if now == "wrong" and was != "wrong":
        return ComparedCell(Status.WRONG, old, new, detail)
    return ComparedCell(Status.LOST if was == "ok" else Status.UNMEASURED, old, new, detail)


def _outcome(record: BenchRecord) -> str:
    return "no samples" if record.verdict == "ok" and not record.samples_s else record.verdict


def _described(outcome: str, record: BenchRecord) -> str:
    reason = f" ({record.reason})" if record.reason else ""
    return VERDICTS.get(outcome, outcome) + reason


def _timed_row(old: BenchRecord, new: BenchRecord, threshold: float) -> ComparedCell:
    by_reference = _same_reference(old, new)
    basis = "reference" if by_reference else "time"
    before, after = (_normalised(record) if by_reference else record.samples_s for record in (old, new))
    if not all(is_time(sample) for sample in [*before, *after]):
        return ComparedCell(Status.UNCLEAR, old, new, "some samples are no positive time", basis)
    ratio = statistics.median(after) / statistics.median(before)
    low, high, confidence = ratio_interval(before, after)
    drift = None
    if by_reference:
        drift = statistics.median(new.reference_samples_s) / statistics.median(old.reference_samples_s)
    status, detail = judge(before, after, threshold)
    return ComparedCell(status, old, new, detail, basis, ratio, low, high, confidence, drift)


def judge(before: Sequence[float], after: Sequence[float], threshold: float) -> tuple[Status, str]:
    """Return the verdict on two sets of positive times, and the reason if the verdict is UNCLEAR."""
    count = min(len(before), len(after))
    if count < MIN_SAMPLES:
        return Status.UNCLEAR, f"{count} of at least {MIN_SAMPLES} samples needed"
    # The same rule in both directions, so that swapping the files swaps the verdicts exactly.
    if _proved_slower(after, before, threshold):
        return Status.SLOWER, ""
    if _proved_slower(before, after, threshold):
        return Status.FASTER, ""
    widest = max(ratio_interval(before, after)[1], ratio_interval(after, before)[1])
    if widest <= 1 + threshold:
        return Status.SAME, ""
    return Status.UNCLEAR, f"a change of {widest - 1:.1%} cannot be ruled out, and none is proved"


def _proved_slower(slow: Sequence[float], fast: Sequence[float], threshold: float) -> bool:
    ratio = statistics.median(slow) / statistics.median(fast)
    if ratio <= 1 + threshold or ratio_interval(fast, slow)[0] <= 1:
        return False
    count = min(len(slow), len(fast))
    if count >= FEW_SAMPLES:
        return True
    # Noise alone separates four samples from four in one case of 35, and three from three in one of ten.
    spread = max(max(slow) / min(slow), max(fast) / min(fast))
    return min(slow) > max(fast) and ratio > (spread**2 if count == MIN_SAMPLES else spread)


def _same_reference(old: BenchRecord, new: BenchRecord) -> bool:
    named = old.reference is not None and old.reference == new.reference
    return named and bool(old.reference_samples_s) and bool(new.reference_samples_s)


def _normalised(record: BenchRecord) -> list[float]:
    """Times in units of the reference's time, sample by sample: the two i-th samples were taken one after the other.

    Where one list is shorter, samples without a partner are left out.
    """
    pairs = zip(record.samples_s, record.reference_samples_s, strict=False)
    return [ours / its if is_time(ours) and is_time(its) else math.nan for ours, its in pairs]


def is_time(value: object) -> bool:
    """Return whether a sample can be the time of a product."""
    return isinstance(value, int | float) and 0 < value < math.inf


# ---- whether two sets of records may be compared


def _checked(threshold: float) -> float:
    if not 0 <= threshold < 1:
        raise UsageError(f"threshold: must be a fraction from 0 to below 1 (3 % is 0.03), got {threshold!r}")
    return threshold


def _by_cell(records: Sequence[BenchRecord], name: str) -> tuple[dict[Cell, BenchRecord], list[str]]:
    if not records:
        raise RecordError(f"{name}: holds no record to compare")
    cells = {record.cell: record for record in records}
    repeated = len(records) - len(cells)
    return cells, [f"cells measured again in {name}: {repeated} (the last of each counts)"] if repeated else []


def _cells(records: Iterable[BenchRecord]) -> str:
    names = [f"{r.kernel} {r.shape} {r.dtype} threads={r.threads} on {r.device}" for r in records]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _check_comparable(common: Sequence[tuple[BenchRecord, BenchRecord]]) -> None:
    for old, new in common:
        where = f"in {_cells([new])}"
        for key, name in _MUST_AGREE.items():
            if change := _change(old.environment.get(key), new.environment.get(key)):
                raise RecordError(f"not comparable: {name} differ {where}: {change}")
        change = _change(_reference_version(old), _reference_version(new))
        if change and _same_reference(old, new):
            advice = "measure both against one version"
            raise RecordError(f"not comparable: versions of {new.reference} differ {where}: {change}; {advice}")


def _change(before: object, after: object) -> str:
    """The difference as text; empty if they agree or one is not known."""
    return (
        "" if before is None or after is None or before == after else f"{before!s:.200} in old, {after!s:.200} in new"
    )


def _reference_version(record: BenchRecord) -> str | None:
    blas = record.environment.get("blas")
    name = (record.reference or "").removeprefix("ref/")
    version = blas.get(name) if isinstance(blas, dict) else None
    return None if version is None else str(version)


# ---- notes


def _environment_notes(common: Sequence[tuple[BenchRecord, BenchRecord]]) -> list[str]:
    notes: dict[str, None] = {}  # an ordered set: most cells give the same notes
    for old, new in common:
        for key in _WORTH_A_NOTE:
            if change := _change(old.environment.get(key), new.environment.get(key)):
                notes[f"{key} differs: {change}"] = None
        for key in ("processor", "cores", "operands"):
            missing = [name for name, r in (("old", old), ("new", new)) if r.environment.get(key) is None]
            if missing:
                notes[f"{key} not recorded in {' and '.join(missing)}: taken to be the same"] = None
        if _same_reference(old, new) and None in (_reference_version(old), _reference_version(new)):
            notes[f"version of {new.reference} not recorded on both sides: taken to be the same"] = None
        if change := _change(old.seed, new.seed):
            notes[f"seeds differ: {change}"] = None
    before, after = (_median_clock(side) for side in zip(*common, strict=True))
    if before and after and abs(after / before - 1) > _DRIFT:
        notes[f"clock differs: {before:.0f} MHz in old, {after:.0f} MHz in new"] = None
    return list(notes)


def _median_clock(records: Iterable[BenchRecord]) -> float | None:
    values = (r.environment.get(key) for r in records for key in ("clock_mhz_before", "clock_mhz_after"))
    clocks = [value for value in values if isinstance(value, int | float) and value > 0]
    return statistics.median(clocks) if clocks else None


def _row_notes(rows: Sequence[ComparedCell]) -> list[str]:
    notes = []
    if timed := sum(row.basis == "time" for row in rows):
        notes.append(f"cells without a common reference: {timed} (raw times, changes of the machine's speed included)")
    drift = statistics.median([row.drift for row in rows if row.drift] or [1.0])
    if abs(drift - 1) > _DRIFT:
        notes.append(f"the reference's own time changed by {drift - 1:+.0%} in new: times are divided by it")
    for row in rows:
        before, after = (r and r.environment.get("kernel_source") for r in (row.old, row.new))
        if row.status in (Status.FASTER, Status.SLOWER) and before and before == after:
            notes.append(f"{_cells([row.record])} is {row.status}, but its source did not change")
    return notes


# ---- a kernel and its reference --------------------------------------------------------------------------------------

#: Threads are starved if they take STARVED times as long as fewer threads do, and WAKE_S seconds longer for each
#: thread. On quiet machines, libraries were up to 1.21 times as slow on two threads (products that memory limits), and
#: up to 200 µs slower than that (small products that are divided into many jobs).
STARVED, WAKE_S = 1.25, 125e-6
#: If the quartiles of a few samples differ by this factor, their median is doubtful. So is R, if an error of this
#: factor could change its verdict.
WIDE = 2.0


def against_reference(record: BenchRecord) -> tuple[Status, float | None, str]:
    """Compare a record's times with those of its reference. Returns the verdict, the kernel's time divided by the
    reference's (1/R), and the doubt, a text that says why the verdict is UNCLEAR.

    The time is None if the kernel or its reference has no samples; the doubt is empty unless the verdict is UNCLEAR.

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
    """Return True if a record's samples do not show whether the kernel or its reference is faster."""
    return against_reference(record)[0] is Status.UNCLEAR


def busy(record: BenchRecord) -> str:
    """Return the sign in a record's samples that the machine was busy, or an empty text; if it was busy, the record's R
    means nothing.

    Scattered samples are not a sign of a busy machine if R is much further from 1 than the samples scatter.

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
    """Return a sentence if a product is proved to take longer on ``threads`` threads than on fewer, else an empty text.
    ``samples`` are times on ``threads`` threads and ``on_fewer`` those on fewer threads. The difference between these
    times must be larger than the time that waking threads can cost. The comparison is valid only if the machine has a
    core for each of the ``threads`` threads.

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
    """The upper quartile over the lower one. Unlike the largest sample over the smallest, it does not grow with the
    number of samples, and one of four may be of any size."""
    ordered, count = sorted(samples), len(samples)
    return ordered[math.ceil(0.75 * count) - 1] / ordered[math.ceil(0.25 * count) - 1]
