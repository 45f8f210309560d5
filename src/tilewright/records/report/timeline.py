"""A timeline as the page of ``tilewright multiply --timeline``, as a still picture, and as a trace for other viewers
(S3.5).

The page and the picture, 1000 units wide, show for each place (a device that multiplied) its tracks as bars over time.
Each piece of a track is a bar, and overlapping pieces are in different rows. The tracks of staging threads have
thousands of pieces, so these tracks are drawn as the number of threads at work. The page's script draws the same paths
again when the reader zooms.

The trace is in the Trace Event format, which https://ui.perfetto.dev and other viewers open. In the trace, a place is a
process and a track is a thread. Pieces of one thread may not overlap in this format, unless one lies within the other.
So a track with overlapping pieces becomes several threads.
"""

from __future__ import annotations

import heapq
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ...errors import RecordError, UsageError, did_you_mean
from ..timeline import COMPUTE, Piece, Summary, Timeline, Track, union
from . import environment, html
from .html import write_whole
from .palette import DARK, FONT, GREYS_DARK, GREYS_LIGHT, INK, LIGHT
from .words import digits, duration, sentence_list, with_noun

# ---- tracks -----------------------------------------------------------------------------------------------------------

WIDTH = 1000
ROW, GAP = 24, 3
#: A track in which more pieces overlap is drawn as their number over time.
MOST_ROWS = 3
#: Limits of a page: bars of all tracks, and gaps between steps. Above them short bars are merged, short gaps omitted.
MOST_BARS = 30_000
MOST_GAPS = 4000
#: Intervals of time of which a density has a value each.
BINS = 4000

#: The kinds of bars: blocks of A and of B, tiles of C by turns in two tones, and other work.
KINDS = ("a", "b", "c", "d", "x")


@dataclass(frozen=True)
class Bar:
    """A piece of work in a track, or several consecutive pieces that are too short to be drawn separately. ``pieces``
    is their number."""

    start_s: float
    end_s: float
    row: int
    kind: str
    name: str
    amount: int | None = None
    pieces: int = 1


@dataclass(frozen=True)
class DrawnTrack:
    """A track that is drawn either as ``bars`` in ``rows``, or as its ``density``, the number of pieces of each kind
    over time."""

    name: str
    unit: str = ""
    rows: int = 1
    bars: list[Bar] = field(default_factory=list)
    density: dict[str, list[float]] = field(default_factory=dict)
    peak: float = 0.0

    @property
    def height(self) -> int:
        """The height in pixels."""
        return 40 if self.density else self.rows * (ROW + GAP) - GAP


def piece_rows(pieces: Sequence[Piece]) -> list[int]:
    """Return the number of a row for each piece, so that no two pieces of a row overlap. ``pieces`` are sorted by their
    beginnings.

    >>> piece_rows([Piece("cpu", "copy in", "", *span) for span in ((0, 2), (1, 3), (2, 4))])
    [0, 1, 0]
    """
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    assigned = []
    for piece in pieces:
        while busy and busy[0][0] <= piece.start_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        row = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (piece.end_s, row))
        assigned.append(row)
    return assigned


def tracks(timeline: Timeline, place: str, most: int) -> list[DrawnTrack]:
    """Return the tracks of a place in their order, each with at most about ``most`` bars."""
    found = timeline.tracks(place)
    tones = _tones(found.get(COMPUTE, []))
    return [_track_data(timeline, name, pieces, tones, most) for name, pieces in found.items()]


def _track_data(timeline: Timeline, name: str, pieces: list[Piece], tones: dict[str, str], most: int) -> DrawnTrack:
    kinds = [_kind(piece.name, tones) for piece in pieces]
    placed = piece_rows(pieces)
    if name.startswith("stage") or max(placed) >= MOST_ROWS:
        density = {kind: _density(timeline, pieces, kinds, kind) for kind in dict.fromkeys(sorted(kinds))}
        peak = max(map(sum, zip(*density.values(), strict=True)))
        return DrawnTrack(name, density=density, peak=peak)
    works = [timeline.work(piece) for piece in pieces]
    bars = [
        Bar(piece.start_s, piece.end_s, row, kind, piece.name, work.amount if work else None)
        for piece, row, kind, work in zip(pieces, placed, kinds, works, strict=True)
    ]
    if len(bars) > most:
        bars = [bar for row in range(max(placed) + 1) for bar in _thinned(bars, row, timeline.total_s / most)]
    unit = next((work.unit for work in works if work), "")
    return DrawnTrack(name, unit, max(placed) + 1, bars)


def _tones(steps: Iterable[Piece]) -> dict[str, str]:
    """One of two tones for each tile of C, by turns in the order in which they were begun."""
    tiles = dict.fromkeys(piece.name.partition(" step ")[0] for piece in steps)
    return {tile: "cd"[number % 2] for number, tile in enumerate(tiles)}


def _kind(name: str, tones: dict[str, str]) -> str:
    operand = name[:1].lower()
    return tones.get(name.partition(" step ")[0], operand if operand in ("a", "b", "c") else "x")


def _thinned(bars: Iterable[Bar], row: int, least_s: float) -> list[Bar]:
    """The bars of a row; consecutive bars are merged up to a length of ``least_s``."""
    merged: list[Bar] = []
    for bar in bars:
        if bar.row != row:
            continue
        last = merged[-1] if merged else None
        if last is None or bar.end_s - last.start_s > least_s:
            merged.append(bar)
            continue
        known = last.amount is not None and bar.amount is not None
        amount = (last.amount or 0) + (bar.amount or 0) if known else None
        name = f"{last.name.partition(' … ')[0]} … {bar.name}"
        merged[-1] = Bar(last.start_s, bar.end_s, row, last.kind, name, amount, last.pieces + bar.pieces)
    return merged


def _density(timeline: Timeline, pieces: Sequence[Piece], kinds: Sequence[str], kind: str) -> list[float]:
    """The average number of pieces of a kind in each of BINS intervals of time."""
    step = timeline.total_s / BINS or 1.0
    filled, more = (
        [0.0] * BINS,
        [0] * (BINS + 1),
    )  # of intervals that a piece covers partly; and changes of the number of pieces that cover whole ones
    for piece, its_kind in zip(pieces, kinds, strict=True):
        if its_kind != kind:
            continue
        first, last = (min(BINS - 1, int(at / step)) for at in (piece.start_s, piece.end_s))
        for number in {first, last}:
            inside = min(piece.end_s, (number + 1) * step) - max(piece.start_s, number * step)
            filled[number] += max(0.0, inside) / step
        if last > first + 1:
            more[first + 1] += 1
            more[last] -= 1
    return [part + whole for part, whole in zip(filled, itertools.accumulate(more), strict=False)]


def gaps(timeline: Timeline, place: str) -> list[tuple[float, float]]:
    """Return the gaps in the timeline of a place in which nothing was computed.

    If there are many gaps, those that are too short to be seen are left out.
    """
    total = timeline.total_s
    steps = union((piece.start_s, piece.end_s) for piece in timeline.tracks(place).get(COMPUTE, []))
    ends = [0.0, *(end for _, end in steps)]
    found = [gap for gap in zip(ends, [*(start for start, _ in steps), total], strict=True) if gap[0] < gap[1]]
    return found if len(found) <= MOST_GAPS else [gap for gap in found if gap[1] - gap[0] > total / MOST_GAPS]


# ---- paths -----------------------------------------------------------------------------------------------------------


def paths(track: DrawnTrack, total_s: float) -> dict[str, str]:
    """Return an SVG path for each kind of piece in a track, which draws the track's bars or its density between x = 0
    and WIDTH."""
    return _areas(track) if track.density else _boxes(track, total_s)


def _boxes(track: DrawnTrack, total_s: float) -> dict[str, str]:
    scale = WIDTH / (total_s or 1.0)
    boxes: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for bar in track.bars:
        x, end = bar.start_s * scale, max(bar.end_s * scale, bar.start_s * scale + 0.5)
        known = boxes.setdefault((bar.kind, bar.row), [])
        if end - x > 4:
            end -= 1  # a gap between the steps of one tile
        if known and x - known[-1][1] < 0.25:
            known[-1] = known[-1][0], max(end, known[-1][1])
        else:
            known.append((x, end))
    drawn: dict[str, str] = {}
    for (kind, row), spans in boxes.items():
        drawn[kind] = drawn.get(kind, "") + "".join(
            rectangle_path(x, row * (ROW + GAP), end - x, ROW) for x, end in spans
        )
    return drawn


def rectangle_path(x: float, y: float, width: float, height: float) -> str:
    """Return a rectangle as an SVG path."""
    return f"M{x:.2f} {y:g}h{width:.2f}v{height:g}h{-width:.2f}z"


def _areas(track: DrawnTrack) -> dict[str, str]:
    """The densities of the kinds, stacked."""
    each = BINS // WIDTH
    below = [0.0] * WIDTH
    drawn = {}
    for kind, filled in track.density.items():
        above = [low + sum(filled[x * each : (x + 1) * each]) / each for x, low in enumerate(below)]
        top, bottom = ([track.height * (1 - y / (track.peak or 1)) for y in edge] for edge in (above, below))
        back = "".join(f"V{y:.1f}h-1" for y in reversed(bottom))
        drawn[kind] = f"M0 {top[0]:.1f}" + "".join(f"V{y:.1f}h1" for y in top) + back + "z"
        below = above
    return drawn


# ---- for the script --------------------------------------------------------------------------------------------------


def as_data(track: DrawnTrack) -> dict[str, Any]:
    """Return a track as JSON values. In these values each bar is a flat list: µs from the beginning, length in µs, row,
    kind, name, amount and pieces."""
    data: dict[str, Any] = {
        "name": track.name,
        "unit": track.unit,
        "height": track.height,
        "peak": round(track.peak, 3),
    }
    if track.density:
        return data | {"density": {kind: [round(x, 2) for x in filled] for kind, filled in track.density.items()}}
    amounts = list(dict.fromkeys(bar.amount for bar in track.bars))
    index = {amount: number for number, amount in enumerate(amounts)}
    bars = [
        [
            *(round(bar.start_s * 1e6, 1), round((bar.end_s - bar.start_s) * 1e6, 1)),
            *(bar.row, KINDS.index(bar.kind), bar.name, index[bar.amount], bar.pieces),
        ]
        for bar in track.bars
    ]
    return data | {"amounts": amounts, "bars": bars}


# ---- page and picture ------------------------------------------------------------------------------------------------

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
    """Return the page of timelines as HTML; see ``tilewright.records.report.render_timeline``."""
    timelines = list(timelines)
    if not timelines:
        raise RecordError("timelines is empty: a page needs at least one; see `tilewright multiply --timeline`")
    count = sum(len(timeline.tracks(place)) for timeline in timelines for place in timeline.places)
    drawn = [{place: tracks(t, place, MOST_BARS // count) for place in t.places} for t in timelines]
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
    """Write the page of timelines to a file; see ``tilewright.records.report.write_timeline``."""
    return html.write_whole(render_timeline(timelines, title=title), path)


def _data(timeline: Timeline, places: dict[str, list[DrawnTrack]]) -> dict[str, Any]:
    """What the page's script needs to draw the tracks, in µs."""
    return {
        "total": timeline.total_s * 1e6,
        "places": [
            {
                "tracks": [as_data(track) for track in drawn],
                "gaps": [[round(x * 1e6, 1) for x in gap] for gap in gaps(timeline, place)],
            }
            for place, drawn in places.items()
        ],
    }


def _view(timeline: Timeline, places: dict[str, list[DrawnTrack]]) -> dict[str, Any]:
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
            {
                "name": place,
                "tracks": [_track(timeline, place, track, summary.tracks[i]) for i, track in enumerate(drawn)],
            }
            for (place, drawn), summary in zip(places.items(), summaries, strict=True)
        ],
        "ticks": ticks(timeline.total_s),
        "plan": timeline.plan,
        "facts": environment.items(timeline.environment),
    }


def _track(timeline: Timeline, place: str, track: DrawnTrack, summary: Track) -> dict[str, Any]:
    drawn = {"idle": idle(timeline, place, track)} if track.name == "compute" else {}
    return {
        "name": track.name,
        "height": track.height,
        "share": share(summary.busy_s, timeline.total_s),
        "rate": rate(summary),
        "peak": f"up to {round(track.peak)} at once" if track.density else "",
        "paths": {**drawn, **dict.fromkeys(KINDS, ""), **paths(track, timeline.total_s)},
    }


def idle(timeline: Timeline, place: str, track: DrawnTrack) -> str:
    """Return the SVG path of the gaps in which nothing was computed.

    Gaps that are too short to be seen are left out.
    """
    scale = WIDTH / (timeline.total_s or 1.0)
    spans = [(start * scale, (end - start) * scale) for start, end in gaps(timeline, place)]
    return "".join(rectangle_path(x, 0, width, track.height) for x, width in spans if width > 0.3)


# ---- a still picture -------------------------------------------------------------------------------------------------

_MARGIN, _LABEL, _PLOT = 16, 92, 760
_BETWEEN = 8


def save_timeline(timeline: Timeline, path: str | Path, *, themes: Sequence[str] = ("light",)) -> list[Path]:
    """Write the picture of a whole timeline as SVG; see ``tilewright.records.report.save_timeline``."""
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
        for track in tracks(timeline, place, MOST_BARS):
            parts.append(_text(_MARGIN, y + track.height / 2 + 4, track.name, "ink"))
            drawn = paths(track, timeline.total_s)
            if track.name == "compute":
                drawn = {"idle": idle(timeline, place, track)} | drawn
            inside = "".join(f'<path class="{kind}" d="{d}"/>' for kind, d in drawn.items())
            parts.append(f'<g transform="translate({_MARGIN + _LABEL} {y:g}) scale({_PLOT / WIDTH} 1)">{inside}</g>')
            y += track.height + _BETWEEN
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
    """A row of the table of times: its name, what each place did, and what the plan predicted.

    ``part`` says whether the row is a part of the row above. Each cell of the row is a value and a note in smaller
    letters.
    """

    name: str
    cells: list[tuple[str, str]]
    expected: tuple[str, str] = ("", "")
    part: bool = False


def shape(timeline: Timeline) -> str:
    """Return the shape as text: ``3000³`` for a square product, otherwise for example ``6 × 2000 × 4`` (m × n × k)."""
    m, n, k = timeline.m, timeline.n, timeline.k
    return f"{n}³" if m == n == k else f"{m} × {n} × {k}"


def timeline_title(timeline: Timeline) -> str:
    """The title of the page."""
    where = sentence_list(["the CPU" if place == "cpu" else place for place in timeline.places])
    return f"{shape(timeline)} {timeline.dtype}{' on ' if where else ''}{where}{', as planned' * timeline.predicted}"


def sentence(timeline: Timeline, summaries: Sequence[Summary]) -> str:
    """Return a sentence that says how long the product took, and for how much of this time nothing was computed."""
    words = [_took(timeline)]
    if timeline.before and not timeline.predicted:
        words.append(f"{timeline.before} of {with_noun(timeline.tiles, 'tile')} were finished by an earlier run.")
    shares = [share(summary.compute_s, summary.total_s) for summary in summaries]
    does = "computes" if timeline.predicted else "computed"
    if len(summaries) == 1:
        words += [f"{_subject(summaries[0])} {does} for {shares[0]} of this time.", _exposed(timeline, summaries[0])]
    elif summaries:
        low, high = (share(s.compute_s, s.total_s) for s in _extremes(summaries))
        words.append(f"The {len(summaries)} devices {does} for {low} to {high} of this time.")
    return _UNIT.sub("\u00a0", " ".join(filter(None, words)))


def _took(timeline: Timeline) -> str:
    expected = timeline.expected.get("total_s")
    if timeline.predicted:
        return f"The plan predicts {duration(timeline.total_s)}. Nothing has run."
    planned = f" The plan predicted {duration(expected)}." if expected else ""
    if timeline.complete:
        return f"The product took {duration(timeline.total_s)}.{planned}"
    done = f"{timeline.before + timeline.finished} of {with_noun(timeline.tiles, 'tile')}"
    return f"The product was stopped after {duration(timeline.total_s)}, with {done} finished.{planned}"


def _subject(summary: Summary) -> str:
    return "The CPU" if summary.place == "cpu" else summary.place


def _exposed(timeline: Timeline, summary: Summary) -> str:
    """The time in which nothing was computed, and when that was."""
    if not summary.compute_s:
        return "Nothing was computed."
    parts = (
        (summary.first_s, "before the first step"),
        (summary.between_s, "between steps"),
        (summary.last_s, "after the last step"),
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
    """Return the table's rows: first the times of each place, then each track's part of the time and its rate."""
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
    names = dict.fromkeys(track.name for summary in summaries for track in summary.tracks)
    return rows + [TimeRow(f"{name} busy", [_busy(name, summary) for summary in summaries]) for name in names]


def _time(seconds: float, total_s: float, part: bool) -> tuple[str, str]:
    """A time and its share of the total, unless it is the total or part of another row; a rounding error counts as
    zero."""
    seconds = seconds if seconds > 1e-9 * total_s else 0.0
    return duration(seconds) if seconds else "0 s", "" if part or seconds == total_s else share(seconds, total_s)


def _busy(name: str, summary: Summary) -> tuple[str, str]:
    track = next((track for track in summary.tracks if track.name == name), None)
    if track is None:
        return "–", ""
    return share(track.busy_s, summary.total_s), ", ".join(
        filter(None, [rate(track), with_noun(track.pieces, "piece")])
    )


def rate(track: Track) -> str:
    """
    >>> from tilewright.records.timeline import Work
    >>> rate(Track("compute", 2.0, 1, Work(10**12, "operations"))), rate(Track("copy in", 2.0, 1, Work(10**10, "bytes")))
    ('500 GFLOPS', '5.00 GB/s')
    """
    if track.rate is None or track.work is None:
        return ""
    return f"{digits(track.rate / 1e9)} {'GB/s' if track.work.unit == 'bytes' else 'GFLOPS'}"


def share(part: float, whole: float) -> str:
    """
    >>> share(0.5, 2.0), share(1.0, 0.0)
    ('25.0%', '0.0%')
    """
    return f"{part / whole if whole else 0:.1%}"


def ticks(total_s: float) -> list[tuple[float, str]]:
    """Return round numbers of seconds within a time, each as a fraction of the time and as text.

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


# ---- trace -----------------------------------------------------------------------------------------------------------


def trace(timeline: Timeline) -> dict[str, Any]:
    """Return the trace as JSON values: complete events ("X") in µs from the start, and metadata ("M") with the names
    of the tracks."""
    events: list[dict[str, Any]] = []
    tids = itertools.count(1)  # one for each track of all places: a viewer may take a thread's number for its name
    for pid, place in enumerate(timeline.places, 1):
        events += [
            _metadata("process_name", pid, 0, name=place),
            _metadata("process_sort_index", pid, 0, sort_index=pid),
        ]
        for name, pieces in _threads(timeline, place):
            tid = next(tids)
            events += [_metadata("thread_name", pid, tid, name=name)]
            events += [_metadata("thread_sort_index", pid, tid, sort_index=tid)]
            events += [_complete(timeline, piece, pid, tid) for piece in pieces]
    facts = {"product": f"({timeline.m}×{timeline.k}) · ({timeline.k}×{timeline.n}) {timeline.dtype}"}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts | {"plan": timeline.plan}}


def write_trace(timeline: Timeline, path: str | Path) -> Path:
    """Write a timeline's trace to ``path``, whole or not at all; see ``tilewright.records.report.write_trace``."""
    return write_whole(json.dumps(trace(timeline), separators=(",", ":"), allow_nan=False) + "\n", path)


def _threads(timeline: Timeline, place: str) -> Iterator[tuple[str, Sequence[Piece]]]:
    """The tracks of a place, those with overlapping pieces as several."""
    for name, pieces in timeline.tracks(place).items():
        placed = piece_rows(pieces)
        for row in range(max(placed) + 1):
            label = f"{name} {row + 1}" if max(placed) else name
            yield label, [piece for piece, its_row in zip(pieces, placed, strict=True) if its_row == row]


def _metadata(kind: str, pid: int, tid: int, **values: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": values}


def _complete(timeline: Timeline, piece: Piece, pid: int, tid: int) -> dict[str, Any]:
    work = timeline.work(piece)
    start, end = (round(seconds * 1e6, 3) for seconds in (piece.start_s, piece.end_s))
    return {
        **{"name": piece.name, "cat": piece.track, "ph": "X", "ts": start, "dur": round(end - start, 3)},
        **{"pid": pid, "tid": tid, "args": {work.unit: work.amount} if work else {}},
    }
