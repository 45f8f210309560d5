"""What the records say, in sentences: the first thing on the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..records.bench import VERDICTS, BenchRecord
from .views import View, is_measured, is_reference
from .words import digits, finite, with_noun


def best_kernel(view: View) -> BenchRecord | None:
    """The fastest kernel, references aside, in the largest shape that has a result; squares before others."""
    rungs = [r for r in view.measured if not is_reference(r.kernel)]
    if not rungs:
        return None
    largest = max((r.m == r.n == r.k, r.flops) for r in rungs)
    return max((r for r in rungs if (r.m == r.n == r.k, r.flops) == largest), key=lambda r: r.gflops or 0)


def conclusion(view: View) -> str:
    """What this view found, in one or two sentences."""
    best = best_kernel(view)
    if best is None:
        fastest = max(view.measured, key=lambda r: r.gflops or 0, default=None)
        if fastest is None:
            return "No kernel has a result here."
        return f"Only references were measured; {fastest.kernel} reaches {digits(fastest.gflops or 0)} GFLOPS."
    where, rate = best.shape.replace("x", " × "), digits(best.gflops or 0)
    sentence = f"{best.kernel} is the fastest kernel at {where}: {rate} GFLOPS"
    if (fraction := finite(best.peak_fraction)) is not None:
        sentence += f", {fraction:.0%} of the measured peak"
    if (ratio := finite(best.ratio)) is not None:
        sentence += f", {digits(ratio)} times the speed of {best.reference or 'the reference'} (R = {digits(ratio)})"
    return f"{sentence}. {_lead(view)}".rstrip()


def _lead(view: View) -> str:
    """At how many shapes some kernel is ahead of the reference it was measured against."""
    best: dict[str, float] = {}
    for r in view.measured:
        if not is_reference(r.kernel) and (ratio := finite(r.ratio)) is not None:
            best[r.shape] = max(best.get(r.shape, 0), ratio)
    if len(best) < 2:
        return ""
    ahead = sum(ratio > 1 for ratio in best.values())
    where = "every one" if ahead == len(best) else "none" if ahead == 0 else str(ahead)
    what = "sizes" if all(r.m == r.n == r.k for r in view.measured) else "shapes"
    return f"The fastest of these kernels is ahead of {view.reference or 'the reference'} at {where} of {len(best)} {what}."


def verdicts(records: Sequence[BenchRecord]) -> str:
    """How many results are right, and what became of the others.

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


def wrong_results(records: Sequence[BenchRecord]) -> list[BenchRecord]:
    """The records that must be seen before any other."""
    return [r for r in records if r.verdict == "wrong"]
