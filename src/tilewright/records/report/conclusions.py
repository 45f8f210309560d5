"""Writes the sentences at the top of the page of bench records: which kernel is faster, what is wrong, and whether
the machine was busy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ..bench import VERDICTS, BenchRecord
from ..compare import MIN_SAMPLES, THRESHOLD, Status, against_reference, busy
from .views import (
    View,
    best_kernel,
    best_rung,
    is_library_call,
    is_measured,
    is_reference,
    machine_name,
    spread,
    threads_of,
)
from .words import digits, finite, public_name, with_noun


def subject(view: View) -> BenchRecord | None:
    """Return the record that the page is about: the library's call in its largest shape, or else the best rung."""
    return best_kernel(r for r in view.measured if is_library_call(r.kernel)) or best_rung(view)


def bench_message(view: View) -> str:
    """Return the view's message: how fast the view's subject is compared with its reference, or what is known if the
    samples do not show which of them is faster."""
    record = subject(view)
    if record is None:
        fastest = max(view.measured, key=lambda r: r.gflops or 0, default=None)
        if fastest is None:
            return "No kernel has a result here."
        return f"Only references were measured; {_name(fastest)} reaches {digits(fastest.gflops or 0)} GFLOPS."
    name, where = _name(record), _where(record)
    if finite(record.ratio) is None:
        what = "reaches" if is_library_call(record.kernel) else "is the fastest kernel with"
        return f"{name} {what} {_rate(record)} {where}."
    (status, time, doubt), reference = against_reference(record), _reference(record)
    if status is Status.SAME:
        return f"{name} is as fast as {reference}, to within {THRESHOLD:.0%}, {where}."
    if status is Status.UNCLEAR or time is None:
        if time and not busy(record) and min(len(record.samples_s), len(record.reference_samples_s)) >= MIN_SAMPLES:
            theirs = spread(record.reference_samples_s)
            doubt = f"{name} took {spread(record.samples_s)}, and {public_name(record.reference or 'it')} {theirs}"
        return f"{name} reaches {_rate(record)} {where}. Whether {reference} is slower is unclear: {doubt}."
    if time < 1:
        return f"{name} is {digits(1 / time)} times as fast as {reference} {where}."
    return f"{name} reaches {1 / time:.0%} of the speed of {reference} {where}."


def details(view: View) -> str:
    """Return the text below the message: the rate, how often the view's subject is faster than its reference, and the
    best rung."""
    record = subject(view)
    if record is None:
        return ""
    said = []
    status = against_reference(record)[0]
    if finite(record.ratio) is not None and status is not Status.UNCLEAR:
        said.append(f"It reaches {_rate(record)} (R = {digits(record.ratio or 0)}).")
    said.append(_tally(view, record.kernel))
    best = best_rung(view)
    if best and best is not record:
        said.append(f"The best rung is {best.kernel}: {_rate(best)} {_where(best)}.{_beside_the_call(best, record)}")
    return " ".join(filter(None, said))


def _beside_the_call(rung: BenchRecord, call: BenchRecord) -> str:
    """Why a rung has a higher rate than the library's call at the same shape; empty where it has none."""
    if rung.shape != call.shape or (rung.gflops or 0) <= (call.gflops or 0):
        return ""
    together = replace(rung, reference=call.kernel, reference_samples_s=call.samples_s)
    status, time, _ = against_reference(together)
    said = f" Its rate is higher than that of {_name(call)}, {digits(call.gflops or 0)} GFLOPS"
    if status in (Status.UNCLEAR, Status.SAME) or time is None:
        many = min(len(rung.samples_s), len(call.samples_s))
        return (
            f"{said}, but {many} samples of each do not prove a difference: they took {spread(rung.samples_s)} and "
            f"{spread(call.samples_s)}, and the two were not measured alternately."
        )
    return (
        f"{said}, even if the scatter of both is taken into account. So the call does not choose the best kernel here."
    )


def _where(record: BenchRecord) -> str:
    shape = record.shape.replace("x", " × ")
    size = f"at n = {shape}" if record.m == record.n == record.k else f"at {shape} (m × n × k)"
    return f"{size} on {threads_of(record) or machine_name(record)}"


def _name(record: BenchRecord) -> str:
    """The call and libraries as their users know them, a rung by its whole name."""
    known = is_library_call(record.kernel) or is_reference(record.kernel)
    return public_name(record.kernel) if known else record.kernel


def _reference(record: BenchRecord) -> str:
    """The reference, with the variant of the library that was the fastest at this shape, where several were tried."""
    variants, name = record.environment.get("variants"), record.reference
    if name is None:
        return "the reference"
    if isinstance(variants, dict) and name in variants:
        return f"{public_name(name)} at its best ({variants[name]})"
    return public_name(name)


def _rate(record: BenchRecord) -> str:
    fraction = finite(record.peak_fraction)
    return f"{digits(record.gflops or 0)} GFLOPS" + (f", {fraction:.0%} of the measured peak" if fraction else "")


def _tally(view: View, kernel: str) -> str:
    """At how many shapes a kernel is faster than its reference, as fast, and slower."""
    judged = [against_reference(r)[0] for r in view.measured if r.kernel == kernel and finite(r.ratio) is not None]
    if len(judged) < 2:
        return ""
    counts = ", ".join(f"{status} at {number}" for status in Status if (number := judged.count(status)))
    what = "sizes" if all(r.m == r.n == r.k for r in view.measured) else "shapes"
    return f"Verdicts at {len(judged)} {what}: {counts}."


def verdicts(records: Sequence[BenchRecord]) -> str:
    """Return a sentence with the number of results that are right, and the verdicts of the other results.

    >>> from tilewright.records.bench import BenchRecord
    >>> done = BenchRecord("cpu/ikj", "cpu", 8, 8, 8, "float32", "ok", median_s=1e-6, gflops=1.0)
    >>> verdicts([done])
    'The one result is verified.'
    """
    tally = Counter(r.verdict for r in records)
    right = sum(is_measured(r) for r in records)
    wrong = tally.pop("wrong", 0)
    tally.pop("ok", None)
    if wrong:
        first = f"{with_noun(wrong, 'result')} of {right + wrong:,} {'is' if wrong == 1 else 'are'} wrong."
    elif right == 1:
        first = "The one result is verified."
    else:
        first = f"All {right:,} results are verified." if right else "Nothing was measured."
    others = [f"{number:,} {VERDICTS.get(verdict, verdict)}" for verdict, number in tally.most_common()]
    return f"{first} Cells without a result: {', '.join(others)}." if others else first


def busy_machine(records: Sequence[BenchRecord]) -> str:
    """Return a sentence if the machine was busy: how many cells this affected, and an example of such a cell.

    The sentence is empty if the machine was not busy.
    """
    affected = [(r, why) for r in records if (why := busy(r))]
    if not affected:
        return ""
    record, why = affected[-1]
    cells = f"{len(affected):,} of {with_noun(len(records), 'cell')}"
    return f"The machine was busy: R is unknown (?) for {cells}. For example, {record.kernel} at {record.shape}: {why}."


def wrong_results(records: Sequence[BenchRecord]) -> list[BenchRecord]:
    """Return the records of wrong results, which the page shows before all other results."""
    return [r for r in records if r.verdict == "wrong"]
