"""Makes the ladder on the page of bench records, which compares the rate of each rung (kernel) with the rate of its
parent."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from ..bench import VERDICTS, BenchRecord
from ..compare import is_unclear
from .views import View, best_of_cells, is_library_call, is_measured, is_reference, rungs_order, threads_of
from .words import digits, factor

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Step:
    """One rung.

    ``before`` and ``after`` are the GFLOPS of the parent and of the rung in one shape, or None if they are not known.
    ``unclear`` is True if the samples do not show whether the rung or its parent is faster.
    """

    kernel: str
    idea: str
    parent: str | None
    shape: str = ""
    before: float | None = None
    after: float | None = None
    threads: str = ""
    note: str = ""
    largest: str = ""
    elsewhere: bool = False
    unclear: bool = False

    @property
    def gain(self) -> float | None:
        """The GFLOPS of the rung divided by those of its parent, or None if either is not known."""
        return self.after / self.before if self.before and self.after else None

    @property
    def gain_words(self) -> str:
        """The gain as text."""
        return factor(self.gain) if self.gain else ""


@dataclass(frozen=True)
class Ladder:
    """The steps of the ladder in reading order, and the shape in which most steps are compared."""

    shape: str
    steps: tuple[Step, ...]

    @property
    def has_unclear(self) -> bool:
        """Whether the gain of at least one step is not proved."""
        return any(step.unclear for step in self.steps)

    @property
    def climb(self) -> str:
        """A sentence with the gain from the first rung to the best rung; empty if no two rungs have a shape in
        common."""
        here = [(s.after, s.kernel) for s in self.steps if s.after and not s.elsewhere]
        if not here:
            return ""
        (low, first), (high, best) = here[0], max(here)
        return f"From {first} to {best}: {factor(high / low)} at {self.shape}." if first != best else ""


def ladder_of(view: View) -> Ladder | None:
    """Return the ladder of a view, or None if no record names its kernel's parent or idea.

    A step compares a rung with its parent in the largest shape in which most steps can be compared, at the largest
    number of threads with which both were measured. If the rung runs on more threads than its parent does in any
    record, the step adds threads, and the rung and its parent are each taken at their own largest number of threads. A
    step that cannot be compared in the common shape is compared in its own largest shape, and names that shape.
    """
    limit = view.threads or max(r.threads for r in view.records)
    runs: dict[str, list[BenchRecord]] = {}
    for record in sorted(view.section.records, key=rungs_order):
        if record.threads <= limit and not (is_reference(record.kernel) or is_library_call(record.kernel)):
            runs.setdefault(record.kernel, []).append(record)
    parents = {kernel: _about(group, "parent") for kernel, group in runs.items()}
    if not any(parents.values()) and not any(_about(group, "idea") for group in runs.values()):
        return None
    pairs = {kernel: _pair(group, runs.get(parents[kernel] or "", [])) for kernel, group in runs.items()}
    common = _common_shape(pairs)
    steps = [_step(kernel, group, parents[kernel], pairs[kernel], common) for kernel, group in runs.items()]
    return Ladder(_words(common), tuple(steps))


Pair = dict[Shape, tuple[BenchRecord | None, BenchRecord]]


def _about(group: list[BenchRecord], key: str) -> str | None:
    return next((str(r.about[key]) for r in group if r.about.get(key)), None)


def _pair(group: list[BenchRecord], parents: list[BenchRecord]) -> Pair:
    """Shapes in which the rung and its parent (None for the first rung) both have a right result."""
    own_threads, their_threads = ({r.threads for r in records} for records in (group, parents))
    shared = own_threads & their_threads
    if max(own_threads) > max(their_threads, default=0):
        shared = set()  # the step adds threads: each at its own largest count
    own = _at(group, max(shared or own_threads))
    if not parents:
        return {shape: (None, record) for shape, record in own.items()}
    theirs = _at(parents, max(shared or their_threads))
    return {shape: (theirs[shape], record) for shape, record in own.items() if shape in theirs}


def _at(group: list[BenchRecord], threads: int) -> dict[Shape, BenchRecord]:
    best = best_of_cells(r for r in group if r.threads == threads)
    return {(r.m, r.n, r.k): r for r in best if is_measured(r)}


def _common_shape(pairs: dict[str, Pair]) -> Shape | None:
    """The shape with most comparable steps; of those, square before others and large before small."""
    gains = [shape for pair in pairs.values() for shape, (before, _) in pair.items() if before]
    votes = Counter(gains or [shape for pair in pairs.values() for shape in pair])
    square = {s for s in votes if s[0] == s[1] == s[2]}
    return max(votes, key=lambda s: (votes[s], s in square, s[0] * s[1] * s[2]), default=None)


def _step(kernel: str, group: list[BenchRecord], parent: str | None, pair: Pair, common: Shape | None) -> Step:
    idea = _about(group, "idea") or ""
    if not pair:
        return Step(kernel, idea, parent, note=_why_not(group, parent))
    biggest = max(pair, key=lambda s: s[0] * s[1] * s[2])
    shape = common if common in pair else biggest
    assert shape is not None
    before, after = pair[shape]
    note = "" if before or not parent else f"its parent {parent} is not in these records"
    base = before.gflops if before else None
    threads = threads_of(after)
    if before and before.threads != after.threads:
        threads = f"{before.threads} → {threads}"
    return Step(
        kernel, idea, parent, _words(shape), base, after.gflops, threads, note,
        largest=_gain_at(pair, biggest) if shape != biggest else "", elsewhere=shape != common,
        unclear=bool(before and _is_unclear(before, after)),
    )  # fmt: skip


def _is_unclear(parent: BenchRecord, rung: BenchRecord) -> bool:
    """Whether the samples do not tell; the parent is judged as a reference is."""
    beside = replace(rung, reference=parent.kernel, reference_samples_s=parent.samples_s)
    return is_unclear(beside)


def _gain_at(pair: Pair, shape: Shape) -> str:
    before, after = pair[shape]
    if not before or not before.gflops or not after.gflops:
        return f"{digits(after.gflops or 0)} GFLOPS at {_words(shape)}"
    return f"{factor(after.gflops / before.gflops)} at {_words(shape)}"


def _why_not(group: list[BenchRecord], parent: str | None) -> str:
    if any(is_measured(r) for r in group):
        return f"no shape in which both it and {parent} have a result"
    verdicts = dict.fromkeys(VERDICTS.get(r.verdict, r.verdict) for r in group if r.verdict != "ok")
    return "; ".join(verdicts) or "not measured"


def _words(shape: Shape | None) -> str:
    if shape is None:
        return ""
    return str(shape[0]) if len(set(shape)) == 1 else " × ".join(map(str, shape))
