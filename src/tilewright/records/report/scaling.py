"""Makes the page of ``tilewright scale``: efficiency, time and bytes over the number of workers, and where scaling
stops."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt

from ...errors import RecordError
from ..scaling import SPENT, ScalingPoint, shape_text
from . import environment, html
from .charts import SECONDS, decades, finished, marks
from .palette import Style, config, kernel_styles
from .words import digits, duration, sentence_list, with_noun

#: An efficiency below this counts as the end of scaling.
HALF = 0.5
#: A page has at most this many points: more cannot be told apart.
MOST_POINTS = 2000
#: What limits a product, in the words of a sentence.
LIMITS = {
    "link": "the workers’ links",
    "storage": "the storage that all workers share",
    "scheduler": "the scheduler, which gives one tile after another",
    "start": "the start of the cluster",
    "balance": "that some workers have no tile left while others compute",
}
#: The same in a table.
BOUND = {name: name for name in SPENT} | {"start": "start of the cluster", "balance": "no tile left"}
#: What the bars show; "unused" are workers that the plan does not use.
KEY = {
    "compute": "computing",
    "link": "waiting for the link",
    "storage": "waiting for storage that others use",
    "scheduler": "waiting for the scheduler",
    "start": "start of the cluster",
    "balance": "no tile left",
    "unused": "not used by the plan",
}
TOOLTIP = ("Product", "Workers", "Time", "Efficiency", "Moved", "Least", "Bound by")

_Lines = dict[str, list[ScalingPoint]]


def render_scaling(points: Sequence[ScalingPoint], *, title: str | None = None) -> str:
    """Return the page of simulated products as HTML; see ``tilewright.records.report.render_scaling``."""
    if not points:
        raise RecordError("points is empty: a page needs at least one; see `tilewright scale`")
    if len(points) > MOST_POINTS:
        raise RecordError(f"points: a page shows at most {MOST_POINTS:,}, got {len(points):,}")
    views: dict[tuple[Any, ...], _Lines] = {}
    for point in sorted(points, key=lambda point: point.workers):
        key = (point.grown_from is not None, point.where, point.dtype, str(_rates(point)))
        views.setdefault(key, {}).setdefault(point.series, []).append(point)
    ordered = [dict(sorted(views[key].items(), key=_size)) for key in sorted(views, key=_strong_first)]
    drawn = kernel_styles(sorted({name for lines in ordered for name in lines}, key=lambda name: (len(name), name)))
    return html.page(
        "scaling.html.j2",
        data={
            "config": {theme: config(theme, drawn) for theme in ("light", "dark")},
            "views": [{"cells": _cells(lines), "charts": _charts(lines, drawn)} for lines in ordered],
        },
        script="page.js",
        styles=["page.css", "scaling.css"],
        title=title or "How products scale on a cluster",
        drawn=drawn,
        index={name: f"k{number}" for number, name in enumerate(drawn)},
        key=KEY,
        views=[_view(lines, drawn) for lines in ordered],
        facts_of_run=environment.items(points[0].environment),
    )


def write_scaling_page(points: Sequence[ScalingPoint], path: str | Path, *, title: str | None = None) -> Path:
    """Write the page of simulated products to a file; see ``tilewright.records.report.write_scaling_page``."""
    return html.write_whole(render_scaling(points, title=title), path)


# ---- in words --------------------------------------------------------------------------------------------------------


def scaling_sentence(lines: _Lines) -> str:
    """Return a sentence that says up to how many workers each product keeps at least half of its efficiency, and what
    limits the product beyond that number."""
    kept: dict[str, list[str]] = {}
    never: dict[str, list[str]] = {}
    limits: dict[str, list[str]] = {}
    for name, points in lines.items():
        end = next((number for number, point in enumerate(points) if point.efficiency < HALF), len(points))
        most = with_noun(points[end - 1].workers, "worker") + ", the most simulated," * (end == len(points))
        if end:
            kept.setdefault(f"up to {most}", []).append(name)
        else:
            never.setdefault(with_noun(points[0].workers, "worker"), []).append(name)
        if end < len(points):
            limits.setdefault(LIMITS[points[end].loss], []).append(name)
    words = ""
    if kept:
        words = f"Efficiency stays above {HALF:.0%} " + sentence_list(
            [f"{end} for {sentence_list(of)}" for end, of in kept.items()]
        )
    if never:
        begins = ", but not even on" if kept else f"Efficiency is not above {HALF:.0%} even on"
        words += f"{begins} " + sentence_list([f"{few} for {sentence_list(of)}" for few, of in never.items()])
    if not limits:
        return words.removesuffix(",") + "."
    causes = [f"{cause} for {sentence_list(of)}" for cause, of in limits.items()] if len(limits) > 1 else list(limits)
    return f"{words}; {'beyond that ' if kept else ''}the limit is {sentence_list(causes)}."


def _label(point: ScalingPoint) -> str:
    kind = "Weak" if point.grown_from else "Strong"
    where = "A and B at the workers" if point.where == "workers" else "A, B and C in storage"
    return f"{kind} scaling, {point.dtype}, {where}"


def _rates(point: ScalingPoint) -> dict[str, str]:
    """The rates of a point in words: the same for all points of a series."""
    rates = point.rates
    found = {
        "worker": f"{digits(rates['flops'] / 1e12)} TFLOPS",
        "link": f"{digits(rates['link_bytes'] / 1e9)} GB/s in each direction",
        "memory for blocks": _bytes(rates.get("memory", 0)),
        "scheduler": f"{duration(rates.get('task_s', 0))} for a tile, {duration(rates.get('message_s', 0))} for a message",
    }
    if "storage_each_bytes" in rates:
        found["storage"] = f"{digits(rates['storage_each_bytes'] / 1e9)} GB/s for each worker"
    elif "storage_bytes" in rates:
        found["storage"] = f"{digits(rates['storage_bytes'] / 1e9)} GB/s for all workers"
    return found


def _bytes(nbytes: float) -> str:
    return environment.value_text("bytes", int(nbytes))


def _size(entry: tuple[str, list[ScalingPoint]]) -> int:
    """The operations of a line's first point."""
    point = entry[1][0]
    return point.m * point.n * point.k


def _strong_first(key: tuple[Any, ...]) -> tuple[bool, str]:
    return key[0], str(key[1:])


# ---- charts and table ------------------------------------------------------------------------------------------------


def _cells(lines: _Lines) -> list[dict[str, Any]]:
    """The rows that charts draw; bytes are those of a worker that has tiles."""
    return [
        {
            **{"kernel": name, "strong": True, "joined": True, "workers": point.workers},
            **{"efficiency": point.efficiency, "time": point.total_s, "ideal": point.ideal_s},
            **{"moved": point.moved_bytes / point.used / 1e9, "least": point.least_bytes / point.used / 1e9},
            **dict(zip(TOOLTIP, _texts(point), strict=True)),
        }
        for name, points in lines.items()
        for point in points
    ]


def _texts(point: ScalingPoint) -> list[str]:
    used = "" if point.used == point.workers else f", of which the plan uses {point.used:,}"
    product = shape_text(point.m, point.n, point.k)
    return [
        *(product, f"{point.workers:,}{used}", duration(point.total_s), f"{point.efficiency:.1%}"),
        *(_bytes(point.moved_bytes / point.used), _bytes(point.least_bytes / point.used)),
        BOUND[point.binds],
    ]


def _charts(lines: _Lines, drawn: dict[str, Style]) -> dict[str, dict[str, Any]]:
    """Efficiency, time and bytes over the number of workers; the last two with a dashed line that nothing can pass."""
    points = [point for each in lines.values() for point in each]
    counts = sorted({point.workers for point in points})
    axis = alt.Axis(values=counts, labelOverlap="greedy", labelSeparation=8, labelExpr="format(datum.value, ',')")
    axis.title = "workers"
    x = alt.X("workers:Q", axis=axis, scale=alt.Scale(type="log", base=2, nice=False, padding=10))
    percent = alt.Axis(tickCount=6, format=".0%")
    seconds = [second for point in points for second in (point.total_s, point.ideal_s)]
    moved = [max(nbytes, 1) / point.used / 1e9 for point in points for nbytes in (point.moved_bytes, point.least_bytes)]
    charts = {
        "efficiency": _layers(
            drawn, x, alt.Y("efficiency:Q", title=None, axis=percent, scale=alt.Scale(domain=[0, 1])), None
        ),
        "time": _layers(
            drawn, x, alt.Y("time:Q", title=None, axis=_logarithmic(seconds, SECONDS), scale=_log(seconds)), "ideal"
        ),
        "bytes": _layers(
            drawn, x, alt.Y("moved:Q", title=None, axis=_logarithmic(moved, _GIGABYTES), scale=_log(moved)), "least"
        ),
    }
    return {name: finished(chart.properties(description=_DESCRIPTIONS[name])) for name, chart in charts.items()}


_GIGABYTES = "datum.value >= 1000 ? format(datum.value / 1000, ',~r') + ' TB' : format(datum.value, ',~r') + ' GB'"
_DESCRIPTIONS = {
    "efficiency": "Efficiency over the number of workers, with a line for each product",
    "time": "Time over the number of workers, with a line for each product and a dashed line for its ideal time",
    "bytes": "Bytes of a worker over the number of workers, with a line for each product and dashed lines for the fewest",
}


def _layers(drawn: dict[str, Style], x: alt.X, y: alt.Y, dashed: str | None) -> Any:
    base = alt.Chart(alt.NamedData("cells")).encode(x=x, y=y)
    layers = marks(base, drawn, tooltip=TOOLTIP)
    if dashed is not None:
        colour = alt.Color("kernel:N", legend=None, scale=alt.Scale(domain=list(drawn), range="category"))
        line = base.mark_line(strokeDash=[3, 3], strokeWidth=1.4)
        layers = [line.encode(y=alt.Y(f"{dashed}:Q", title=None), color=colour, detail="kernel:N"), *layers]
    return alt.layer(*layers)


def _logarithmic(values: Sequence[float], words: str) -> alt.Axis:
    return alt.Axis(values=decades(min(values), max(values)), labelExpr=words)


def _log(values: Sequence[float]) -> alt.Scale:
    return alt.Scale(type="log", domain=[min(values) / 1.6, max(values) * 1.6], nice=False)


def _view(lines: _Lines, drawn: dict[str, Style]) -> dict[str, Any]:
    """What the template needs of one view."""
    points = [point for each in lines.values() for point in each]
    owned = {}
    if points[0].where == "workers":
        shares = sorted(point.owned_bytes for point in points)
        owned["memory for A, B and C"] = f"{_bytes(shares[0])} to {_bytes(shares[-1])}, on each worker's host"
    return {
        "label": _label(points[0]),
        "sentence": scaling_sentence(lines),
        "legend": [(name, drawn[name]) for name in lines],
        "rates": environment.items(_rates(points[0]) | owned),
        "rows": [_row(name, point) for name, points in lines.items() for point in points],
    }


def _row(name: str, point: ScalingPoint) -> dict[str, Any]:
    used = point.used / point.workers
    shares = {what: point.shares[what] * used for what in SPENT} | {"unused": 1 - used}
    shown = {what: share for what, share in shares.items() if share >= 0.0005}
    return {
        "name": name,
        "product": shape_text(point.m, point.n, point.k),
        "workers": f"{point.workers:,}",
        "cells": [
            *("×".join(map(str, pair)) for pair in (point.parts, point.tiles)),
            *(duration(point.total_s), f"{point.efficiency:.1%}"),
            *(_bytes(point.moved_bytes / point.used), _bytes(point.least_bytes / point.used)),
        ],
        "shares": [(what, round(100 * share, 2)) for what, share in shown.items()],
        "spent": ", ".join(f"{KEY[what]} {share:.1%}" for what, share in shown.items()),
        "binds": BOUND[point.binds],
    }
