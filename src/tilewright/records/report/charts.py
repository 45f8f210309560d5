"""Makes the charts as Vega-Lite specifications, with Altair.

Every chart draws the rows of ``views.chart_rows``. The page stores these rows once for each view, under the name
``cells``. Colours come by name from the theme's configuration (``palette.config``), so one specification serves light
and dark. The page's legend sets two parameters: ``picked`` has the kernels that are highlighted, and ``shown`` the
kernels that are drawn in addition to the emphasised ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from ..compare import busy
from .palette import Style
from .views import View, curves, emphasised
from .words import digits, public_name

#: A peak more than this factor above the fastest result would flatten every line: the caption names it instead.
PEAK_IN_SIGHT = 6

TOOLTIP = ["kernel", "shape", "Time", "GFLOPS", "R", "Spread", "Samples"]

SECONDS = (
    "datum.value >= 1 ? format(datum.value, ',~r') + ' s'"
    " : datum.value >= 1e-3 ? format(datum.value * 1e3, '~r') + ' ms'"
    " : datum.value >= 1e-6 ? format(datum.value * 1e6, '~r') + ' µs'"
    " : format(datum.value * 1e9, '~r') + ' ns'"
)


def charts(view: View, drawn: dict[str, Style], *, legend: bool = False) -> dict[str, dict[str, Any]]:
    """Return the specification of each chart that the view has data for, by name: gflops, ratio, time, shapes.

    A curve needs square products of at least two sizes. The chart ``shapes`` shows all other products, shape by shape.
    Emphasised kernels have their names at the ends of their curves. With ``legend`` each chart is for a picture without
    a page: only emphasised kernels have curves, and the chart ``shapes`` has a legend.
    """
    made: dict[str, Any] = {}
    squares = view.squares
    if len(squares) > 1:
        made["gflops"] = _gflops(view, drawn, legend)
        if any(r.ratio and not busy(r) for r in view.measured if r.m == r.n == r.k):
            made["ratio"] = _ratio(view, drawn, legend)
        made["time"] = _time(view, drawn, legend)
    if shapes_without_curve(view):
        made["shapes"] = _shapes(view, drawn, legend)
    return {name: finished(chart) for name, chart in made.items()}


def shapes_without_curve(view: View) -> list[str]:
    """Return the shapes that no curve shows: the shapes that are not square, or all shapes if there is only one
    size."""
    curved = set(view.squares) if len(view.squares) > 1 else set()
    shapes = [s for s in view.shapes if any((r.m, r.n, r.k) == s for r in view.measured)]
    return [str(m) if m == n == k else f"{m} × {n} × {k}" for m, n, k in shapes if not (m == n == k and m in curved)]


def peak_in_sight(view: View) -> bool:
    """Return whether the charts of a view show the measured peak."""
    fastest = max((r.gflops or 0 for r in view.measured), default=0)
    return bool(view.peak) and (view.peak or 0) <= PEAK_IN_SIGHT * fastest


def finished(chart: Any) -> dict[str, Any]:
    """Return the specification of a chart as wide as its container, without the theme's configuration."""
    spec = chart.properties(width="container").to_dict()
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    spec.pop("config", None)  # the theme's, at drawing time
    return spec


def decades(low: float, high: float) -> list[float]:
    """Return the powers of ten from just below ``low`` to just above ``high``."""
    return [10.0**d for d in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def _kernel(drawn: dict[str, Style], channel: type, values: list[Any] | str, legend: bool) -> Any:
    scale = alt.Scale(domain=list(drawn), range=values)
    return channel("kernel:N", title=None, sort=list(drawn), scale=scale, legend=alt.Legend() if legend else None)


def marks(
    base: alt.Chart, drawn: dict[str, Style], *, still: bool = False, tooltip: Sequence[str] = TOOLTIP
) -> list[alt.Chart]:
    """Return the lines and points of a chart of the rows of ``views.chart_rows``, with wide invisible points that are
    easy to hit with a finger.

    The drawn kernels are the emphasised ones and those in the parameter ``shown``. If any kernel is in the parameter
    ``picked``, all other kernels fade. In a ``still`` picture nothing can be picked.
    """
    colour = _kernel(drawn, alt.Color, "category", False)
    shape = _kernel(drawn, alt.Shape, [s.mark for s in drawn.values()], False)
    dash = _kernel(drawn, alt.StrokeDash, [s.dash for s in drawn.values()], False)
    looks: dict[str, Any] = {"color": colour, "opacity": alt.value(1) if still else _FADED}
    base = base.transform_filter(_STILL if still else _SHOWN)
    lines = base.mark_line(interpolate="linear", strokeWidth=2.2).transform_filter("datum.joined")
    lines = lines.encode(strokeDash=dash, detail="kernel:N", **looks)
    points = base.mark_point(filled=True, size=34).encode(shape=shape, **looks)
    reach = base.mark_point(filled=True, size=420, opacity=0).encode(
        detail="kernel:N", tooltip=[alt.Tooltip(f"{field}:N") for field in tooltip]
    )
    return [lines if still else lines.add_params(*parameters()), points, reach]


_STILL = "datum.strong"
_SHOWN = "datum.strong || indexof(shown, datum.kernel) >= 0"
_FADED = (
    alt.when("picked.length == 0 || indexof(picked, datum.kernel) >= 0").then(alt.value(1)).otherwise(alt.value(0.3))
)


def parameters() -> list[Any]:
    """Return the parameters that the page's script sets in every chart: the highlighted kernels, and the kernels that
    the reader added."""
    return [alt.param(name="picked", value=[]), alt.param(name="shown", value=[])]


#: Pixels at the right of a chart for the names of its curves, between two of these names, and of the height of a chart.
NAMES, APART, HEIGHT = 128, 15, 300


def names_at_ends(view: View, drawn: dict[str, Style], field: str, *, logarithmic: bool = False) -> list[alt.Chart]:
    """Return the names of emphasised kernels next to the last points of their curves, moved apart if they would
    overlap.

    ``field`` is the attribute of a record that is drawn along y.
    """
    strong, joined = emphasised(view), curves(view.measured)
    values = {
        (r.kernel, r.n): float(getattr(r, field) or 0)
        for r in view.measured
        if r.kernel in strong and (r.kernel, r.n) in joined and getattr(r, field) and not (field == "ratio" and busy(r))
    }
    ends = {kernel: max(n for name, n in values if name == kernel) for kernel in dict.fromkeys(k for k, _ in values)}
    if not ends:
        return []
    scaled = math.log if logarithmic else float
    low, high = (scaled(end(values.values())) for end in (min, max))
    span = (high - (low if logarithmic else 0)) or 1
    places = {kernel: HEIGHT * scaled(values[kernel, n]) / span for kernel, n in ends.items()}
    rows, below = [], float("inf")
    for kernel in sorted(ends, key=lambda kernel: -places[kernel]):
        below = min(places[kernel], below - APART)
        dy = round(places[kernel] - below)
        row = {"kernel": kernel, "n": ends[kernel], "y": values[kernel, ends[kernel]], "name": public_name(kernel)}
        rows.append((row | {"strong": True}, dy))
    return [
        alt.Chart(alt.InlineData(values=[row]))
        .mark_text(align="left", baseline="middle", dx=9, dy=dy, fontSize=12)
        .encode(x="n:Q", y="y:Q", text="name:N", color=_kernel(drawn, alt.Color, "category", False))
        for row, dy in rows
    ]


def sizes_axis(squares: list[int], *, names: int = 0) -> alt.X:
    """Return the axis of sizes. The labels of the axis are measured sizes: powers of two, and sizes that are not near a
    power of two. ``names`` pixels to the right of the axis are free for the names of curves.

    >>> sizes_axis([64, 256, 512, 1000, 2047, 2048]).to_dict()["axis"]["values"]
    [64, 256, 512, 1000, 2048]
    """
    powers = [n for n in squares if n & (n - 1) == 0]
    apart = [n for n in squares if all(abs(math.log2(n / power)) > 0.5 for power in powers)]
    values = sorted(powers + apart) if len(powers) > 2 else squares
    axis = alt.Axis(
        values=values,
        labelOverlap="greedy",
        labelSeparation=8,
        labelExpr="datum.value",
        title="n (matrices n × n)",
    )
    inside: Any = [10, {"expr": f"width - {names or 10}"}]
    return alt.X("n:Q", axis=axis, scale=alt.Scale(type="log", base=2, nice=False, range=inside))


def _yardstick(value: float, words: str, layers: list[alt.Chart], *, below: bool = False) -> list[alt.Chart]:
    """Adds a dashed rule behind the layers and its label in front of them."""
    base = alt.Chart(alt.InlineData(values=[{"at": value, "words": words}])).encode(y="at:Q")
    rule = base.mark_rule(strokeDash=[3, 3])
    place: dict[str, Any] = {
        "align": "left",
        "baseline": "top" if below else "bottom",
        "dy": 6 if below else -5,
        "dx": 4,
    }
    label = base.encode(text="words:N", x=alt.value(0))
    return [rule, *layers, label.mark_text(style="halo", **place), label.mark_text(**place)]


def _cells(which: str, view: View, y: alt.Y) -> alt.Chart:
    return (
        alt.Chart(alt.NamedData("cells")).transform_filter(which).encode(x=sizes_axis(view.squares, names=NAMES), y=y)
    )


def _gflops(view: View, drawn: dict[str, Style], legend: bool) -> Any:
    y = alt.Y("gflops:Q", title=None, axis=alt.Axis(tickCount=6, format="~s" if _huge(view) else ",~r"))
    layers = marks(_cells("datum.square", view, y), drawn, still=legend)
    if view.peak and peak_in_sight(view):
        layers = _yardstick(view.peak, f"measured peak, {digits(view.peak)} GFLOPS", layers, below=True)
    return alt.layer(*layers, *names_at_ends(view, drawn, "gflops")).properties(
        description="GFLOPS over n, with a line for each kernel"
    )


def _huge(view: View) -> bool:
    return max((r.gflops or 0 for r in view.measured), default=0) >= 100_000


def _ratio(view: View, drawn: dict[str, Style], legend: bool) -> Any:
    y = alt.Y("ratio:Q", title=None, axis=alt.Axis(tickCount=6), scale=alt.Scale(zero=True))
    layers = marks(_cells("datum.square && isValid(datum.ratio)", view, y), drawn, still=legend)
    words = f"1: as fast as {public_name(view.reference) if view.reference else 'the reference'}"
    return alt.layer(*_yardstick(1, words, layers), *names_at_ends(view, drawn, "ratio")).properties(
        description="R over n, with a line for each kernel"
    )


def _time(view: View, drawn: dict[str, Style], legend: bool) -> Any:
    times = [r.median_s for r in view.measured if r.median_s and r.m == r.n == r.k]
    axis = alt.Axis(values=decades(min(times), max(times)), labelExpr=SECONDS)
    domain = [min(times) / 1.6, max(times) * 1.6]
    y = alt.Y("time:Q", title=None, axis=axis, scale=alt.Scale(type="log", domain=domain, nice=False))
    layers = marks(_cells("datum.square", view, y), drawn, still=legend)
    return alt.layer(*layers, *names_at_ends(view, drawn, "median_s", logarithmic=True)).properties(
        description="Median time over n on logarithmic axes, with a line for each kernel"
    )


def _shapes(view: View, drawn: dict[str, Style], legend: bool) -> Any:
    """One row a shape, with a point for each kernel: shapes that differ in more than size have no common axis."""
    shapes = shapes_without_curve(view)
    field = alt.FieldOneOfPredicate(field="shape", oneOf=shapes)
    y = alt.Y("shape:N", title=None, sort=shapes, axis=alt.Axis(labelLimit=240, grid=True, labelOverlap=False))
    rates = [r.gflops for r in view.measured if r.gflops]
    wide = max(rates) > 30 * min(rates)
    scale = alt.Scale(type="log", nice=False, padding=24) if wide else alt.Scale(zero=True)
    x = alt.X("gflops:Q", title="GFLOPS" + (" (logarithmic)" if wide else ""), scale=scale,
              axis=alt.Axis(tickCount=5, labelOverlap="greedy", format=",~r"))  # fmt: skip
    colour = _kernel(drawn, alt.Color, "category", legend)
    points = (
        alt.Chart(alt.NamedData("cells"))
        .transform_filter(field)
        .transform_filter("true" if legend else _SHOWN)
        .mark_point(filled=True, size=80)
        .encode(
            x=x, y=y,
            color=colour,
            opacity=alt.value(1) if legend else _FADED,
            shape=_kernel(drawn, alt.Shape, [s.mark for s in drawn.values()], legend),
            tooltip=[alt.Tooltip(f"{name}:N") for name in TOOLTIP],
        )
    )  # fmt: skip
    return alt.layer(points.add_params(*parameters())).properties(
        description="GFLOPS of each shape, with a point for each kernel", height=max(80, 34 * len(shapes))
    )
