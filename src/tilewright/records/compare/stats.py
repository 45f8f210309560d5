"""Compares two sets of benchmark records by their raw samples: faster, slower, the same, or unclear.

Machines are shared and noisy, and the two files come from different runs, so a verdict needs proof.
Times are first divided by those of the reference that ran interleaved with them, where both files have the
same one: a slower machine slows down both. Intervals are distribution-free (Hodges and
Lehmann, 1963: order statistics of all quotients new/old, with the exact Mann-Whitney distribution), because
four samples have no shape to assume. With few samples the two sets must also not overlap, and the ratio
of their medians must exceed the spread of each, its largest sample over its smallest.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ...errors import RecordError, UsageError
from ..bench import VERDICTS, BenchRecord
from .intervals import ratio_interval

Cell = tuple[Any, ...]

#: Changes within this fraction are none.
THRESHOLD = 0.03
#: With fewer samples on a side there is no verdict: noise alone separates two samples from two in one case of three.
MIN_SAMPLES = 3
#: With fewer samples on a side, the difference must also exceed the spread of each side.
FEW_SAMPLES = 8

#: Environment keys that must agree for times to be comparable, and what they are called.
_MUST_AGREE = {"processor": "processors", "gpu": "GPUs", "cores": "usable cores", "operands": "operands"}
#: Environment keys whose difference is noted, but does not prevent a comparison: it may be what is being compared.
_WORTH_A_NOTE = ("python", "numpy", "numba", "blas", "system", "driver")
#: A clock or a reference that changed by more than this fraction between the runs is noted.
_DRIFT = 0.05


class Status(StrEnum):
    """What became of a cell. ``WRONG`` and ``LOST`` count as regressions, as ``SLOWER`` does."""

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
    """One cell. ``ratio`` is new time over old, above 1 is slower; ``low`` and ``high`` are its interval.

    ``basis`` says which times: "reference" (in units of the reference's time) or "time" (seconds). ``drift`` is the
    reference's own new time over its old one. All are None, or "", where one of the two times is missing.
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
        """The record that says which cell this is: the new one if there is one."""
        record = self.new or self.old
        assert record is not None
        return record

    @property
    def change_percent(self) -> float | None:
        """How much more time the new one takes, in percent: −20 takes a fifth less."""
        return None if self.ratio is None else 100 * (self.ratio - 1)

    @property
    def interval_percent(self) -> tuple[float, float] | None:
        """The interval of ``change_percent``."""
        if self.low is None or self.high is None:
            return None
        return 100 * (self.low - 1), 100 * (self.high - 1)

    def slower_than(self, threshold: float) -> bool:
        """Whether it is proved to be slower, and its ratio exceeds 1 by more than ``threshold``."""
        return self.status is Status.SLOWER and self.ratio is not None and self.ratio > 1 + threshold


@dataclass(frozen=True)
class Comparison:
    """Rows in the order of the old records, then the cells that only the new records have; notes for the reader."""

    rows: tuple[ComparedCell, ...]
    notes: tuple[str, ...]
    threshold: float

    def slower(self, threshold: float | None = None) -> list[ComparedCell]:
        """The regressions: wrong or lost cells, and those slower by more than ``threshold`` (a fraction).

        Raises UsageError for a threshold below that of the comparison, which did not look for such small changes.
        """
        limit = self.threshold if threshold is None else _checked(threshold)
        if limit < self.threshold:
            rule = f"must be at least the comparison's {self.threshold:g}, got {limit:g}"
            raise UsageError(f"threshold: {rule}; give compare() the smaller one")
        failed = (Status.WRONG, Status.LOST)
        return [row for row in self.rows if row.status in failed or row.slower_than(limit)]

    def as_dict(self) -> dict[str, Any]:
        """Rows, notes and threshold as plain JSON values; a cell is named by its kernel, shape, dtype and threads."""
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
        """How many rows have each status that occurs."""
        return {status: n for status in Status if (n := sum(row.status is status for row in self.rows))}


def compare(old: Sequence[BenchRecord], new: Sequence[BenchRecord], *, threshold: float = THRESHOLD) -> Comparison:
    """Every cell of two sets of records with a verdict; a change within ``threshold`` (a fraction) counts as none.

    FASTER and SLOWER need at least three samples on each side, an interval that excludes "no change", a
    change beyond the threshold, and with few samples sets that do not overlap, with a ratio of their medians that
    exceeds the spread of each. SAME needs an interval within the threshold. Everything else is UNCLEAR.

    Raises RecordError if the two are not comparable: no common cell, or another processor, GPU, number of
    usable cores, kind of operands, or version of the reference. Raises UsageError for a threshold outside
    [0, 1).

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
    """The verdict on two sets of positive times, and why it is UNCLEAR."""
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
    """Whether a sample can be the time of a product."""
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
