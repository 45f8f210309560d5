"""The page of ``tilewright multiply --timeline``: lanes over time for each place, and the same as a still picture (S3.5)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ...errors import RecordError, UsageError, did_you_mean
from ..timeline import Lane, Summary, Timeline
from . import environment, html
from .palette import DARK, FONT, GREYS_DARK, GREYS_LIGHT, INK, LIGHT
from .timeline_lanes import KINDS, MOST_BARS, WIDTH, DrawnLane, as_data, gaps, lanes, paths, rectangle_path
from .words import digits, duration, sentence_list, with_noun

THEMES = ("light", "dark")


def _mixed(colour: str, other: str, share: float) -> str:
    """A colour with a share of another."""
    parts = [(int(colour[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(x + (y - x) * share):02x}" for x, y in parts)


#: The colour of each kind of bar; timeline.css has the same. The two tones of C distinguish a tile from the next.
COLOURS = {
    theme: dict(zip(KINDS, (*hues[:3], _mixed(hues[2], INK[theme]["ink"], 0.55), grey), strict=True))
    for theme, hues, grey in (("light", LIGHT, GREYS_LIGHT[1]), ("dark", DARK, GREYS_DARK[1]))
}


def render_timeline(timelines: Sequence[Timeline], *, title: str | None = None) -> str:
    """The page of some timelines as HTML; see ``tilewright.records.report.render_timeline``."""
    timelines = list(timelines)
    if not timelines:
        raise RecordError("timelines is empty: a page needs at least one; see `tilewright multiply --timeline`")
    count = sum(len(timeline.lanes(place)) for timeline in timelines for place in timeline.places)
    drawn = [{place: lanes(t, place, MOST_BARS // count) for place in t.places} for t in timelines]
    return html.page(
        "timeline.html.j2",
        data=[_data(timeline, places) for timeline, places in zip(timelines, drawn, strict=True)],
        script="timeline.js",
        styles=["page.css", "timeline.css"],
        charts=False,
        title=title or timeline_title(timelines[0]) + (f", and {len(timelines) - 1} more" if timelines[1:] else ""),
        views=[_view(timeline, places) for timeline, places in zip(timelines, drawn, strict=True)],
    )


def write_timeline(timelines: Sequence[Timeline], path: str | Path, *, title: str | None = None) -> Path:
    """Renders the page into a file; see ``tilewright.records.report.write_timeline``."""
    return html.write_whole(render_timeline(timelines, title=title), path)


def _data(timeline: Timeline, places: dict[str, list[DrawnLane]]) -> dict[str, Any]:
    """What the page's script needs to draw the lanes, in µs."""
    return {
        "total": timeline.total_s * 1e6,
        "places": [
            {
                "lanes": [as_data(lane) for lane in drawn],
                "gaps": [[round(x * 1e6, 1) for x in gap] for gap in gaps(timeline, place)],
            }
            for place, drawn in places.items()
        ],
    }


def _view(timeline: Timeline, places: dict[str, list[DrawnLane]]) -> dict[str, Any]:
    """What the template needs of one timeline."""
    summaries = [timeline.summary(place) for place in places]
    return {
        "title": timeline_title(timeline),
        "sentence": sentence(timeline, summaries),
        "stopped": not timeline.complete,
        "predicted": timeline.predicted,
        "names": list(places),
        "table": time_table(timeline, summaries) if summaries else [],
        "places": [
            {"name": place, "lanes": [_lane(timeline, place, lane, summary.lanes[i]) for i, lane in enumerate(drawn)]}
            for (place, drawn), summary in zip(places.items(), summaries, strict=True)
        ],
        "ticks": ticks(timeline.total_s),
        "plan": timeline.plan,
        "facts": environment.items(timeline.environment),
    }


def _lane(timeline: Timeline, place: str, lane: DrawnLane, summary: Lane) -> dict[str, Any]:
    drawn = {"idle": idle(timeline, place, lane)} if lane.name == "compute" else {}
    return {
        "name": lane.name,
        "height": lane.height,
        "share": share(summary.busy_s, timeline.total_s),
        "rate": rate(summary),
        "peak": f"up to {round(lane.peak)} at once" if lane.density else "",
        "paths": {**drawn, **dict.fromkeys(KINDS, ""), **paths(lane, timeline.total_s)},
    }


def idle(timeline: Timeline, place: str, lane: DrawnLane) -> str:
    """The path of the gaps in which nothing was computed; those too short to be seen are left out."""
    scale = WIDTH / (timeline.total_s or 1.0)
    spans = [(start * scale, (end - start) * scale) for start, end in gaps(timeline, place)]
    return "".join(rectangle_path(x, 0, width, lane.height) for x, width in spans if width > 0.3)


# ---- a still picture -------------------------------------------------------------------------------------------------

_MARGIN, _LABEL, _PLOT = 16, 92, 760
_BETWEEN = 8


def save_timeline(timeline: Timeline, path: str | Path, *, themes: Sequence[str] = ("light",)) -> list[Path]:
    """Writes the whole of a timeline as SVG; see ``tilewright.records.report.save_timeline``."""
    path, written = Path(path), []
    for theme in themes:
        if theme not in THEMES:
            raise UsageError(f"themes: {theme!r} is none of them; {did_you_mean(theme, THEMES)}")
        name = path.with_name(path.stem + ("-dark" if theme == "dark" else "") + ".svg")
        written.append(html.write_whole(_still(timeline, theme), name))
    return written


def _still(timeline: Timeline, theme: str) -> str:
    colours, ink = COLOURS[theme], INK[theme]
    y = _MARGIN + 16.0
    parts: list[str] = [_text(_MARGIN, y, timeline_title(timeline), "strong")]
    for place in timeline.places:
        summary = timeline.summary(place)
        words = f"computing {share(summary.compute_s, summary.total_s)} of {summary.total_s:.3g} s"
        y += 28
        parts.append(_text(_MARGIN, y, f"{place}: {words}"))
        y += 10
        for lane in lanes(timeline, place, MOST_BARS):
            parts.append(_text(_MARGIN, y + lane.height / 2 + 4, lane.name, "ink"))
            drawn = paths(lane, timeline.total_s)
            if lane.name == "compute":
                drawn = {"idle": idle(timeline, place, lane)} | drawn
            inside = "".join(f'<path class="{kind}" d="{d}"/>' for kind, d in drawn.items())
            parts.append(f'<g transform="translate({_MARGIN + _LABEL} {y:g}) scale({_PLOT / WIDTH} 1)">{inside}</g>')
            y += lane.height + _BETWEEN
    y += 10
    for part, words in ticks(timeline.total_s):
        parts.append(_text(_MARGIN + _LABEL + part * _PLOT, y, words, "tick"))
    y += 26
    legend = (
        ("a", "blocks of A"),
        ("b", "blocks of B"),
        ("c", "tiles of C, in two tones"),
        ("idle", "nothing computed"),
    )
    for number, (kind, words) in enumerate(legend):
        x = _MARGIN + _LABEL + number * 175
        parts.append(f'<rect class="{kind}" x="{x}" y="{y - 10:g}" width="12" height="12" rx="2"/>')
        parts.append(_text(x + 18, y, words))
    fills = "".join(f".{kind}{{fill:{colour}}}" for kind, colour in colours.items())
    style = (
        f"text{{font:12px {FONT};fill:{ink['faint']}}}.strong{{font-size:15px;font-weight:600;fill:{ink['ink']}}}"
        f".ink{{fill:{ink['ink']}}}.tick{{text-anchor:middle}}.idle{{fill:{ink['accent']};fill-opacity:.25}}{fills}"
    )
    width, height = 2 * _MARGIN + _LABEL + _PLOT, y + _MARGIN
    return (
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" width="{width}" height="{height:g}">'
            f"<title>{html.marked(timeline_title(timeline))}</title><style>{style}</style>"
            f'<rect width="100%" height="100%" fill="{ink["paper"]}"/>{"".join(parts)}</svg>\n'
        )
        .encode("utf-8", "replace")
        .decode()
    )


def _text(x: float, y: float, words: str, kind: str = "") -> Markup:
    classed = Markup(f' class="{kind}"' if kind else "")
    return Markup('<text{} x="{:g}" y="{:g}">{}</text>').format(classed, x, y, html.marked(words))


# ---- timeline words --------------------------------------------------------------------------------------------------
# What a timeline says in words: the sentence above the picture and the table below it.


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
