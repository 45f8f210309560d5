"""What a timeline says in words: the sentence above the picture and the table below it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..records.timeline import Lane, Summary, Timeline
from .words import digits, duration, sentence_list, with_noun

#: The space before a unit, where no line may break.
_UNIT = re.compile(r"(?<=\d) (?=(?:s|ms|µs)\b)")


@dataclass(frozen=True)
class TimeRow:
    """A row of the table: its name, what each place did, and what the plan predicted; ``part`` of the row above it.

    A cell is a value and a note in smaller letters.
    """

    name: str
    cells: list[tuple[str, str]]
    expected: tuple[str, str] = ("", "")
    part: bool = False


def shape(timeline: Timeline) -> str:
    """``3000³`` for a square product, ``6 × 2000 × 4`` (m × n × k) otherwise."""
    m, n, k = timeline.m, timeline.n, timeline.k
    return f"{n}³" if m == n == k else f"{m} × {n} × {k}"


def timeline_title(timeline: Timeline) -> str:
    """The title of the page."""
    where = sentence_list(["the CPU" if place == "cpu" else place for place in timeline.places])
    return f"{shape(timeline)} {timeline.dtype}{' on ' if where else ''}{where}{', as planned' * timeline.predicted}"


def sentence(timeline: Timeline, summaries: Sequence[Summary]) -> str:
    """How long it took, and how much of that nothing was computed."""
    words = [_took(timeline)]
    if timeline.before and not timeline.predicted:
        words.append(f"{timeline.before} of {with_noun(timeline.tiles, 'tile')} were finished by an earlier run.")
    shares = [share(summary.compute_s, summary.total_s) for summary in summaries]
    does = "computes" if timeline.predicted else "computed"
    if len(summaries) == 1:
        words += [f"{_subject(summaries[0])} {does} for {shares[0]} of it.", _exposed(timeline, summaries[0])]
    elif summaries:
        low, high = (share(s.compute_s, s.total_s) for s in _extremes(summaries))
        words.append(f"The {len(summaries)} places {does} for {low} to {high} of it.")
    return _UNIT.sub("\u00a0", " ".join(filter(None, words)))


def _took(timeline: Timeline) -> str:
    expected = timeline.expected.get("total_s")
    if timeline.predicted:
        return f"The plan expects {duration(timeline.total_s)}; nothing has run."
    planned = f" The plan predicted {duration(expected)}." if expected else ""
    if timeline.complete:
        return f"It took {duration(timeline.total_s)}.{planned}"
    done = f"{timeline.before + timeline.finished} of {with_noun(timeline.tiles, 'tile')}"
    return f"It was stopped after {duration(timeline.total_s)}, with {done} finished.{planned}"


def _subject(summary: Summary) -> str:
    return "The CPU" if summary.place == "cpu" else summary.place


def _exposed(timeline: Timeline, summary: Summary) -> str:
    """The time in which nothing was computed, and when that was."""
    if not summary.compute_s:
        return "Nothing was computed."
    parts = (
        (summary.first_s, "before the first step"),
        (summary.between_s, "between steps"),
        (summary.last_s, "after the last"),
    )
    spans = [f"{duration(seconds)} {where}" for seconds, where in parts if seconds > 1e-4 * summary.total_s]
    if not spans:
        return ""
    nothing = "Nothing is computed" if timeline.predicted else "Nothing was computed"
    whole = f" for {duration(summary.exposed_s)}: " if len(spans) > 1 else " for "
    return f"{nothing}{whole}{sentence_list(spans)}."


def _extremes(summaries: Sequence[Summary]) -> tuple[Summary, Summary]:
    ordered = sorted(summaries, key=lambda summary: summary.compute_s)
    return ordered[0], ordered[-1]


def time_table(timeline: Timeline, summaries: Sequence[Summary]) -> list[TimeRow]:
    """Times, then each lane's share of the time and its rate."""
    plan = {} if timeline.predicted else timeline.expected
    exposed = [plan.get(name, 0.0) for name in ("first_s", "exposed_s", "last_s")]
    waited = None if not plan else sum(exposed)

    def row(name: str, values: list[float], expected: float | None, part: bool = False) -> TimeRow:
        cells = [_time(value, s.total_s, part) for value, s in zip(values, summaries, strict=True)]
        planned = ("", "") if expected is None or not plan else _time(expected, plan.get("total_s", 0.0), part)
        return TimeRow(name, cells, planned, part)

    rows = [
        row("whole run", [s.total_s for s in summaries], plan.get("total_s")),
        row("something computed", [s.compute_s for s in summaries], plan.get("compute_s")),
        row("nothing computed", [s.exposed_s for s in summaries], waited),
        row("before the first step", [s.first_s for s in summaries], exposed[0], part=True),
        row("between steps", [s.between_s for s in summaries], exposed[1], part=True),
        row("after the last step", [s.last_s for s in summaries], exposed[2], part=True),
    ]
    names = dict.fromkeys(lane.name for summary in summaries for lane in summary.lanes)
    return rows + [TimeRow(f"{name} busy", [_busy(name, summary) for summary in summaries]) for name in names]


def _time(seconds: float, total_s: float, part: bool) -> tuple[str, str]:
    """A time and its share of the total, unless it is the total or part of another row; a rounding error counts as zero."""
    seconds = seconds if seconds > 1e-9 * total_s else 0.0
    return duration(seconds) if seconds else "0 s", "" if part or seconds == total_s else share(seconds, total_s)


def _busy(name: str, summary: Summary) -> tuple[str, str]:
    lane = next((lane for lane in summary.lanes if lane.name == name), None)
    if lane is None:
        return "–", ""
    return share(lane.busy_s, summary.total_s), ", ".join(filter(None, [rate(lane), with_noun(lane.pieces, "piece")]))


def rate(lane: Lane) -> str:
    """
    >>> from tilewright.records.timeline import Work
    >>> rate(Lane("compute", 2.0, 1, Work(10**12, "operations"))), rate(Lane("copy in", 2.0, 1, Work(10**10, "bytes")))
    ('500 GFLOPS', '5.00 GB/s')
    """
    if lane.rate is None or lane.work is None:
        return ""
    return f"{digits(lane.rate / 1e9)} {'GB/s' if lane.work.unit == 'bytes' else 'GFLOPS'}"


def share(part: float, whole: float) -> str:
    """
    >>> share(0.5, 2.0), share(1.0, 0.0)
    ('25.0%', '0.0%')
    """
    return f"{part / whole if whole else 0:.1%}"


def ticks(total_s: float) -> list[tuple[float, str]]:
    """Round numbers of seconds within a time, as a share of it and in words.

    >>> [words for _, words in ticks(1.0)]
    ['0 s', '0.2 s', '0.4 s', '0.6 s', '0.8 s', '1.0 s']
    """
    if total_s <= 0:
        return [(0.0, "0 s")]
    power = 0
    while total_s / 10.0**power >= 10:
        power += 1
    while total_s / 10.0**power < 1:
        power -= 1
    step = next(each for each in (0.2, 0.5, 1, 2) if total_s / 10.0**power / each <= 6) * 10.0**power
    places = max(0, -power + (step < 10.0**power))
    return [
        (x * step / total_s, f"{x * step:.{places}f} s" if x else "0 s") for x in range(int(total_s / step + 1e-9) + 1)
    ]
