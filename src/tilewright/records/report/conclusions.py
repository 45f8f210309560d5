"""The sentences at the top of the page of bench records: which kernel is faster, what is wrong, whether the machine was
busy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..bench import VERDICTS, BenchRecord
from ..compare import MIN_SAMPLES, THRESHOLD, Status, against_reference, busy
from .views import View, best_kernel, best_rung, is_library_call, is_measured, machine_name, spread, threads_of
from .words import digits, finite, with_noun


def subject(view: View) -> BenchRecord | None:
    """What the page is about: the library's call in its largest shape, or else the best rung."""
    return best_kernel(r for r in view.measured if is_library_call(r.kernel)) or best_rung(view)


def bench_message(view: View) -> str:
    """The view's message in one sentence: the subject's time against its reference, or that the samples do not tell."""
    record = subject(view)
    if record is None:
        fastest = max(view.measured, key=lambda r: r.gflops or 0, default=None)
        if fastest is None:
            return "No kernel has a result here."
        return f"Only references were measured; {fastest.kernel} reaches {digits(fastest.gflops or 0)} GFLOPS."
    name, where = record.kernel.replace("tilewright/", "tilewright."), _where(record)
    if finite(record.ratio) is None:
        what = "reaches" if is_library_call(record.kernel) else "is the fastest kernel with"
        return f"{name} {what} {_rate(record)} {where}."
    (status, time, doubt), reference = against_reference(record), _reference(record)
    if status is Status.SAME:
        return f"{name} takes the time of {reference}, to within {THRESHOLD:.0%}, {where}."
    if status is Status.UNCLEAR or time is None:
        if time and not busy(record) and min(len(record.samples_s), len(record.reference_samples_s)) >= MIN_SAMPLES:
            theirs = spread(record.reference_samples_s)
            doubt = f"its samples spread over {spread(record.samples_s)}, the reference’s over {theirs}"
        return f"It is UNCLEAR whether {name} is faster than {reference} {where}: {doubt}."
    share = f"{digits(time)} of" if time < 1 else f"{digits(time)} times"
    return f"{name} takes {share} the time of {reference} {where}."


def details(view: View) -> str:
    """The text below the message: the rate, how often the subject is faster than its reference, and the best rung."""
    record = subject(view)
    if record is None:
        return ""
    said = []
    if finite(record.ratio) is not None:
        proved = against_reference(record)[0] is not Status.UNCLEAR
        said.append(f"It reaches {_rate(record)}" + (f" (R = {digits(record.ratio or 0)})." if proved else "."))
    said.append(_tally(view, record.kernel))
    best = best_rung(view)
    if best and best is not record:
        said.append(f"The best rung is {best.kernel}: {_rate(best)} {_where(best)}.")
    return " ".join(filter(None, said))


def _where(record: BenchRecord) -> str:
    shape = record.shape.replace("x", " × ")
    size = f"at n = {shape}" if record.m == record.n == record.k else f"at {shape} (m × n × k)"
    return f"{size} on {threads_of(record) or machine_name(record)}"


def _reference(record: BenchRecord) -> str:
    """The reference, with the variant of the library that was the fastest at this shape, where several were tried."""
    variants, name = record.environment.get("variants"), record.reference or "the reference"
    return f"{name} at its best ({variants[name]})" if isinstance(variants, dict) and name in variants else name


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
    return f"Of {len(judged)} {what}: {counts}."


def verdicts(records: Sequence[BenchRecord]) -> str:
    """How many results are right, and the verdicts of the others.

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
    """A sentence if the machine was busy: how many cells it affected, and an example; empty otherwise."""
    affected = [(r, why) for r in records if (why := busy(r))]
    if not affected:
        return ""
    record, why = affected[-1]
    cells = f"{len(affected):,} of {with_noun(len(records), 'cell')}"
    return f"The machine was busy: R is unknown (?) for {cells}. Such as {record.kernel} at {record.shape}: {why}."


def wrong_results(records: Sequence[BenchRecord]) -> list[BenchRecord]:
    """The records of wrong results, which the page shows before all others."""
    return [r for r in records if r.verdict == "wrong"]
