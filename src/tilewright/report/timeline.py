"""The page of ``tilewright multiply --timeline``: lanes over time for each place, and the same as a still picture (S3.5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ..errors import RecordError, UsageError, did_you_mean
from ..records.timeline import Lane, Timeline
from . import environment, html, timeline_words
from .palette import DARK, FONT, GREYS_DARK, GREYS_LIGHT, INK, LIGHT
from .timeline_lanes import KINDS, MOST_BARS, WIDTH, DrawnLane, as_data, gaps, lanes, paths, rectangle_path

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
    """The page of some timelines as HTML; see ``tilewright.report.render_timeline``."""
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
        title=title
        or timeline_words.timeline_title(timelines[0]) + (f", and {len(timelines) - 1} more" if timelines[1:] else ""),
        views=[_view(timeline, places) for timeline, places in zip(timelines, drawn, strict=True)],
    )


def write_timeline(timelines: Sequence[Timeline], path: str | Path, *, title: str | None = None) -> Path:
    """Renders the page into a file; see ``tilewright.report.write_timeline``."""
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
        "title": timeline_words.timeline_title(timeline),
        "sentence": timeline_words.sentence(timeline, summaries),
        "stopped": not timeline.complete,
        "predicted": timeline.predicted,
        "names": list(places),
        "table": timeline_words.time_table(timeline, summaries) if summaries else [],
        "places": [
            {"name": place, "lanes": [_lane(timeline, place, lane, summary.lanes[i]) for i, lane in enumerate(drawn)]}
            for (place, drawn), summary in zip(places.items(), summaries, strict=True)
        ],
        "ticks": timeline_words.ticks(timeline.total_s),
        "plan": timeline.plan,
        "facts": environment.items(timeline.environment),
    }


def _lane(timeline: Timeline, place: str, lane: DrawnLane, summary: Lane) -> dict[str, Any]:
    drawn = {"idle": idle(timeline, place, lane)} if lane.name == "compute" else {}
    return {
        "name": lane.name,
        "height": lane.height,
        "share": timeline_words.share(summary.busy_s, timeline.total_s),
        "rate": timeline_words.rate(summary),
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
    """Writes the whole of a timeline as SVG; see ``tilewright.report.save_timeline``."""
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
    parts: list[str] = [_text(_MARGIN, y, timeline_words.timeline_title(timeline), "strong")]
    for place in timeline.places:
        summary = timeline.summary(place)
        words = f"computing {timeline_words.share(summary.compute_s, summary.total_s)} of {summary.total_s:.3g} s"
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
    for share, words in timeline_words.ticks(timeline.total_s):
        parts.append(_text(_MARGIN + _LABEL + share * _PLOT, y, words, "tick"))
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
            f"<title>{html.marked(timeline_words.timeline_title(timeline))}</title><style>{style}</style>"
            f'<rect width="100%" height="100%" fill="{ink["paper"]}"/>{"".join(parts)}</svg>\n'
        )
        .encode("utf-8", "replace")
        .decode()
    )


def _text(x: float, y: float, words: str, kind: str = "") -> Markup:
    classed = Markup(f' class="{kind}"' if kind else "")
    return Markup('<text{} x="{:g}" y="{:g}">{}</text>').format(classed, x, y, html.marked(words))
