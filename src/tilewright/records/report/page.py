"""The page of bench records: one HTML file that holds its data, its charts and the code that draws them.

A kernel that was measured with several sets of parameters has a curve and a row of a table for each set. A *set* is one
combination of values of the parameters that vary. The rows of the table are the legend of the chart: each row has the
colour and mark of its set. A row also has the set's resources (registers, shared memory, resident warps, transactions),
which the curve cannot show.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt

from ...errors import RecordError
from ..bench import VERDICTS, BenchRecord
from ..compare import against_reference, is_unclear
from . import accuracy, charts, conclusions, environment, html, views
from .charts import finished, sizes_axis
from .ladder import Ladder, Step, ladder_of
from .palette import DARK, DASHES, LIGHT, MARKS, SOLID, Style, config, kernel_styles
from .views import View, curve_sizes, is_measured, is_reference, params_text, spread, threads_of, varied
from .words import digits, duration, finite, shortly, small, table_time, with_noun


def render(records: Sequence[BenchRecord], *, title: str | None = None) -> str:
    """Return the page of bench records as HTML; see ``tilewright.records.report.render``."""
    records = list(records)
    if not records:
        raise RecordError("records is empty: a page needs at least one record; measure some with `tilewright bench`")
    sections = views.sections(records)
    all_views = [view for section in sections for view in views.views(section)]
    emphasised = [kernel for view in all_views for kernel in views.emphasised(view)]
    styles = kernel_styles(kernels_in_order(all_views), emphasised)
    sweeps_of_views = [sweeps(view) for view in all_views]
    charts_of_views = [
        charts.charts(view, styles) | accuracy.error_charts(view, styles) | sweep_charts(found)
        for view, found in zip(all_views, sweeps_of_views, strict=True)
    ]
    data = {
        "config": {theme: _config(theme, styles) for theme in ("light", "dark")},
        "views": [
            {"cells": views.chart_rows(view), "charts": specs}
            for view, specs in zip(all_views, charts_of_views, strict=True)
        ],
    }
    machines = len({section.machine for section in sections})
    return html.page(
        "page.html.j2",
        data=data,
        script="page.js",
        styles=["page.css", "sweeps.css"],
        title=title or f"Matrix products on {sections[0].machine}",
        views=[
            _view(view, specs, styles, machines) | {"errors": accuracy.error_table(view), "sweeps": sweep_views(found)}
            for view, specs, found in zip(all_views, charts_of_views, sweeps_of_views, strict=True)
        ],
        busy=conclusions.busy_machine(records),
        message=conclusions.bench_message(all_views[0]),
        details=conclusions.details(all_views[0]),
        verdicts=conclusions.verdicts(records),
        wrong=conclusions.wrong_results(records),
        machines=environment.machines(records),
        quantities=QUANTITIES,
        styles_of_kernels=styles,
        index={kernel: f"k{i}" for i, kernel in enumerate(styles)},
    )


def write_page(records: Sequence[BenchRecord], path: str | Path, *, title: str | None = None) -> Path:
    """Write the page of bench records to a file; see ``tilewright.records.report.write_page``."""
    return html.write_whole(render(records, title=title), path)


def kernels_in_order(all_views: Sequence[View]) -> list[str]:
    """Return every kernel of the page once, because a kernel has one colour in all views.

    The rungs of the ladder come first, in its order, then other kernels as they first appear, and references last.
    """
    first = {r.kernel: r for view in reversed(all_views) for r in view.records}
    position = {kernel: i for i, kernel in enumerate(dict.fromkeys(r.kernel for v in all_views for r in v.records))}
    return sorted(first, key=lambda k: (is_reference(k), views.rungs_order(first[k]), position[k]))


def _config(theme: str, styles: dict[str, Style]) -> dict[str, Any]:
    """The theme, with colours for kernels and for sets of parameters."""
    settings = config(theme, styles)
    return settings | {"range": settings["range"] | {"ordinal": hues(theme)}}


def _view(view: View, specs: dict[str, Any], styles: dict[str, Style], machines: int) -> dict[str, Any]:
    """The values of the template for one view; ``specs`` are its charts."""
    ladder, emphasised = ladder_of(view), views.emphasised(view)
    on_curves = views.curves(view.measured)
    has_off_line_marks = any(r.m == r.n == r.k and (r.kernel, r.n) not in on_curves for r in view.measured)
    off_line_note = (
        "Of sizes that lie close together, the line goes through one, and the others are marks without a line. "
        if has_off_line_marks
        else ""
    )
    peak = f"Measured peak: {digits(view.peak)} GFLOPS." if view.peak and not charts.peak_in_sight(view) else ""
    return {
        "label": view.label,
        "tab": view.label if machines > 1 else view.what,
        "message": conclusions.bench_message(view),
        "details": conclusions.details(view),
        "legend": [(k, styles[k], k in emphasised) for k in dict.fromkeys((*emphasised, *view.kernels))],
        "charts": list(specs),
        "reference": view.reference,
        "off_line_note": off_line_note,
        "peak_note": peak,
        "ladder": ladder,
        "bars": _bars(ladder, view) if ladder else None,
        "table": kernel_table(view),
    }


def _bars(ladder: Ladder, view: View) -> dict[str, Any] | None:
    """Where each step's bar starts and ends, in percent of a logarithmic axis, with the axis's ticks."""
    rates = [r for step in ladder.steps for r in (step.before, step.after) if r]
    if not rates:
        return None
    marks = [
        (r.kernel, r.gflops) for r in view.measured
        if is_reference(r.kernel) and r.gflops and r.shape.replace("x", " × ") == ladder.shape
    ]  # fmt: skip
    low = math.log10(min(rates)) - 0.2  # the first rung needs a bar too
    high = math.log10(max([*rates, *(rate for _, rate in marks)]) * 1.15)

    def percent(rate: float) -> float:
        return round(100 * (math.log10(rate) - low) / ((high - low) or 1), 2)

    ticks = [10.0**d for d in range(math.ceil(low), math.floor(high) + 1)]
    return {
        "ticks": [(percent(t), digits(t).rstrip("0").rstrip(".") if t < 100 else f"{t:,.0f}") for t in ticks],
        "marks": [(percent(rate), name, digits(rate)) for name, rate in marks],
        "spans": {s.kernel: _span(s, percent) for s in ladder.steps if s.after},
    }


def _span(step: Step, percent: Any) -> dict[str, Any]:
    after = percent(step.after)
    before = percent(step.before) if step.before else 0.0
    return {"left": min(before, after), "width": round(abs(after - before), 2), "down": after < before}


# ---- table -----------------------------------------------------------------------------------------------------------
# The table: a row for each kernel, a column for each shape, in every cell a time or the reason why there is none.


#: The quantities that the reader can choose for the cells; the key is the TableCell's field.
QUANTITIES = {"time": "Time", "gflops": "GFLOPS", "ratio": "R", "error": "Error / bound"}


@dataclass(frozen=True)
class TableCell:
    """One cell of the table: the text of each of QUANTITIES, and the text that appears when the pointer is over it."""

    mark: str  # "ok", "short", a verdict of records.VERDICTS, or "none"
    time: str = ""
    gflops: str = ""
    ratio: str = ""
    error: str = ""
    hover: str = ""
    best: bool = False


@dataclass(frozen=True)
class KernelRow:
    """A kernel's row of the table: its cells, and its largest error in all these cells."""

    kernel: str
    note: str
    reference: bool
    cells: tuple[TableCell, ...]
    max_abs_error: str
    error_over_bound: str
    wrong: bool


@dataclass(frozen=True)
class KernelTable:
    """The table of a view: headings, and a row for each kernel."""

    columns: tuple[str, ...]
    rows: tuple[KernelRow, ...]


def kernel_table(view: View) -> KernelTable:
    """Return the table of a view.

    The references come first, for comparison, and then the kernels of the ladder in its order.
    """
    shapes = view.shapes
    fastest = {
        shape: min((r.median_s or 0 for r in view.measured if (r.m, r.n, r.k) == shape), default=None)
        for shape in shapes
    }
    kernels = sorted(view.kernels, key=lambda kernel: not is_reference(kernel))
    rows = []
    for kernel in kernels:
        records = {(r.m, r.n, r.k): r for r in view.records if r.kernel == kernel}
        table_cells = [_table_cell(records.get(shape), fastest[shape]) for shape in shapes]
        rows.append(_row(kernel, table_cells, list(records.values()), view))
    return KernelTable(tuple(_column(shape) for shape in shapes), tuple(rows))


def _column(shape: tuple[int, int, int]) -> str:
    return str(shape[0]) if len(set(shape)) == 1 else " × ".join(map(str, shape))


def _row(kernel: str, table_cells: list[TableCell], records: list[BenchRecord], view: View) -> KernelRow:
    threads = {r.threads for r in records}
    note = with_noun(max(threads), "thread") if view.threads and threads != {view.threads} else ""
    return KernelRow(
        kernel=kernel,
        note=note,
        reference=is_reference(kernel),
        cells=tuple(table_cells),
        max_abs_error=_worst(r.max_abs_error for r in records),
        error_over_bound=_worst(r.error_over_bound for r in records),
        wrong=any(r.verdict == "wrong" for r in records),
    )


def _worst(errors: Iterable[float | None]) -> str:
    known = [e for e in map(finite, errors) if e is not None]
    return small(max(known)) if known else "–"


def _table_cell(record: BenchRecord | None, fastest: float | None) -> TableCell:
    if record is None:
        return TableCell("none", hover="not measured")
    words = VERDICTS.get(record.verdict, record.verdict)
    if not is_measured(record):
        if record.verdict == "ok":
            return TableCell("none", hover="no time recorded")
        hover = f"{record.kernel} at {record.shape}: {words}" + (f": {record.reason}" if record.reason else "")
        return TableCell(record.verdict, words, words, words, _error(record) or words, hover)
    seconds = record.median_s or 0.0
    time = table_time(seconds)
    mark = "short" if time.startswith("<") else "ok"
    ratio = finite(record.ratio)
    return TableCell(
        mark=mark,
        time=time,
        gflops=digits(record.gflops or 0.0),
        ratio="–" if ratio is None else "?" if is_unclear(record) else digits(ratio),
        error=_error(record) or "–",
        hover=_hover(record),
        best=mark == "ok" and seconds == fastest,
    )


def _error(record: BenchRecord) -> str:
    error = finite(record.error_over_bound)
    return "" if error is None else small(error)


def _hover(r: BenchRecord) -> str:
    """All values of a measured cell, a line each."""
    lines = [", ".join(filter(None, [f"{r.kernel} at {r.shape}", threads_of(r)]))]
    lines.append(f"{spread(r.samples_s)} ({with_noun(len(r.samples_s), 'sample')})")
    lines.append(f"{digits(r.gflops or 0.0)} GFLOPS")
    if (fraction := finite(r.peak_fraction)) is not None:
        lines[-1] += f", {fraction:.1%} of the measured peak"
    if (ratio := finite(r.ratio)) is not None:
        unclear = f", UNCLEAR: {against_reference(r)[2]}" if is_unclear(r) else ""
        lines.append(f"R = {digits(ratio)} against {r.reference or 'the reference'}{unclear}")
    if (error := finite(r.max_abs_error)) is not None:
        over = finite(r.error_over_bound)
        lines.append(f"largest error {small(error)}" + (f", {small(over)} of the bound" if over is not None else ""))
    return "\n".join(lines)


# ---- several sets of parameters --------------------------------------------------------------------------------------

#: A chart and its table show at most this many sets, the fastest: more curves cannot be told apart.
MOST_SETS = 12
#: Mark and dash that distinguish sets of one colour.
LOOKS = tuple(zip(MARKS, (SOLID, *DASHES[:3], SOLID), strict=True))

TOOLTIP = ("kernel", "with", "shape", "Time", "GFLOPS", "Spread", "Samples")

_Set = tuple[Any, ...]


@dataclass(frozen=True)
class Sweep:
    """One kernel with several sets of parameters. ``names`` are the parameters that vary, the one with the most values
    first.

    ``sets`` are the sets that are shown, in the order of their values. ``records`` has the latest record of each cell
    of these sets. ``measured_sets`` is the number of all sets that were measured.
    """

    kernel: str
    names: tuple[str, ...]
    sets: tuple[_Set, ...]
    records: tuple[BenchRecord, ...]
    measured_sets: int

    def set_of(self, record: BenchRecord) -> _Set:
        """Return a record's values of the parameters that vary."""
        return tuple(record.params.get(name) for name in self.names)

    @property
    def squares(self) -> list[int]:
        """The sizes of the square products that have a measured result."""
        return sorted({r.n for r in self.records if is_measured(r) and r.m == r.n == r.k})

    @property
    def over_sizes(self) -> bool:
        """Whether the curves run over sizes; if there is only one size, they run over the first parameter."""
        return len(self.squares) > 1

    @property
    def shape(self) -> str:
        """The shape that the table shows: the largest of the shapes in which the most sets were measured."""
        found: dict[str, list[int]] = {}
        for r in self.records:
            found.setdefault(r.shape, []).append(r.m * r.n * r.k if is_measured(r) else 0)
        return max(found, key=lambda shape: (sum(size > 0 for size in found[shape]), max(found[shape])))

    def curve_records(self) -> list[BenchRecord]:
        """Return the records that the curves go through."""
        if self.over_sizes:
            return [r for r in self.records if is_measured(r) and r.m == r.n == r.k]
        return [r for r in self.records if is_measured(r) and r.shape == self.shape]


@dataclass(frozen=True)
class SetRow:
    """A set in the table: its values, the style of its curve, its resources and transactions (``details``, one for each
    heading of details in the table), and its rate."""

    values: _Set
    style: Style
    details: tuple[str, ...]
    rate: str
    best: bool


@dataclass(frozen=True)
class SetTable:
    """The table of a sweep: the headings of the details, and a row for each set."""

    headings: tuple[str, ...]
    rows: tuple[SetRow, ...]


def sweeps(view: View) -> list[Sweep]:
    """Return a sweep for each kernel of a view that was measured with several sets of parameters in one cell."""
    shown = {(r.kernel, r.threads) for r in view.records}
    latest = {r.cell: r for r in view.section.records if (r.kernel, r.threads) in shown}
    found = varied(latest.values())
    return [_sweep(k, found[k], [r for r in latest.values() if r.kernel == k]) for k in view.kernels if k in found]


def _sweep(kernel: str, names: Sequence[str], records: Sequence[BenchRecord]) -> Sweep:
    values = {name: {r.params.get(name) for r in records} for name in names}
    ordered = tuple(sorted(names, key=lambda name: -len(values[name])))
    best: dict[str, float] = {}
    for r in records:
        best[r.shape] = max(best.get(r.shape, 0.0), _rate(r))
    # Rank the sets by the sum, over the shapes, of their rate relative to the best set of the shape.
    score: dict[_Set, float] = {}
    for r in records:
        key = tuple(r.params.get(name) for name in ordered)
        score[key] = score.get(key, 0.0) + (_rate(r) / best[r.shape] if best[r.shape] else 0.0)
    fastest = sorted(score, key=lambda key: -score[key])[:MOST_SETS]
    shown_records = [r for r in records if tuple(r.params.get(name) for name in ordered) in fastest]
    return Sweep(kernel, ordered, tuple(sorted(fastest, key=_order)), tuple(shown_records), len(score))


def _rate(record: BenchRecord) -> float:
    return (record.gflops or 0.0) if is_measured(record) else 0.0


def _order(values: _Set) -> tuple[Any, ...]:
    """Sort key: numbers by size, then whatever else another program's file holds, as text."""
    return tuple((0, value, "") if isinstance(value, int | float) else (1, 0, str(value)) for value in values)


# ---- how sets are drawn ----------------------------------------------------------------------------------------------


def set_styles(sweep: Sweep) -> dict[_Set, Style]:
    """Return the style of each set.

    If the curves run over sizes, the colour shows the first parameter of a set, and mark and dash show its other parameters.
    If the curves run over the first parameter, the colour shows the other parameters.
    """
    firsts = list(dict.fromkeys(key[0] for key in sweep.sets))
    others = sorted(dict.fromkeys(key[1:] for key in sweep.sets), key=_order)
    made = {}
    for key in sweep.sets:
        hue, look = firsts.index(key[0]), others.index(key[1:])
        if not sweep.over_sizes:
            hue, look = look, 0
        mark, dash = LOOKS[look % len(LOOKS)]
        made[key] = Style(LIGHT[hue % len(LIGHT)], DARK[hue % len(DARK)], mark, dash)
    return made


def hues(theme: str) -> list[str]:
    """Return the colours of sets, which are ``range.ordinal`` in the theme's configuration."""
    return list(DARK if theme == "dark" else LIGHT)


def sweep_charts(found: Sequence[Sweep]) -> dict[str, dict[str, Any]]:
    """Return the specification of each sweep's chart, under the names ``sweep-0``, ``sweep-1`` and so on.

    A sweep without a measured cell has no chart.
    """
    return {f"sweep-{i}": finished(_chart(sweep)) for i, sweep in enumerate(found) if sweep.curve_records()}


def _chart(sweep: Sweep) -> Any:
    sets_with_curve = {sweep.set_of(r) for r in sweep.curve_records()}
    styles = {key: style for key, style in set_styles(sweep).items() if key in sets_with_curve}
    joined = curve_sizes(sweep.squares)
    rows = [
        _chart_row(sweep, r, styles) | {"joined": not sweep.over_sizes or r.n in joined}
        for r in sorted(sweep.curve_records(), key=lambda r: _order(sweep.set_of(r)))
    ]
    marks = {style.mark: style.dash for style in styles.values()}
    colour = alt.Color("colour:O", legend=None, scale=alt.Scale(domain=list(range(len(LIGHT))), range="ordinal"))
    shape = alt.Shape("mark:N", legend=None, scale=alt.Scale(domain=list(marks), range=list(marks)))
    dash = alt.StrokeDash("mark:N", legend=None, scale=alt.Scale(domain=list(marks), range=list(marks.values())))
    y = alt.Y("gflops:Q", title=None, axis=alt.Axis(tickCount=6, format=",~r"))
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=_x(sweep), y=y, detail="line:N")
    lines = base.mark_line(strokeWidth=1.8).transform_filter("datum.joined").encode(color=colour, strokeDash=dash)
    points = base.mark_point(filled=True, size=34, opacity=1).encode(color=colour, shape=shape)
    tooltips = [alt.Tooltip(f"{t}:N") for t in TOOLTIP]
    hover_targets = base.mark_point(filled=True, size=420, opacity=0).encode(tooltip=tooltips)
    over = "n" if sweep.over_sizes else sweep.names[0]
    return alt.layer(lines.add_params(*charts.parameters()), points, hover_targets).properties(
        description=f"GFLOPS of {sweep.kernel} over {over}, with a line for each set of parameters"
    )


def _x(sweep: Sweep) -> alt.X:
    if sweep.over_sizes:
        return sizes_axis(sweep.squares)
    first: list[Any] = sorted(
        {r.params.get(sweep.names[0]) for r in sweep.curve_records()}, key=lambda value: _order((value,))
    )
    if not _is_scale([key[0] for key in sweep.sets]):
        return alt.X("first:N", sort=[str(value) for value in first], axis=alt.Axis(labelAngle=0, title=sweep.names[0]))
    axis = alt.Axis(values=first, labelOverlap="greedy", labelExpr="datum.value", title=sweep.names[0])
    return alt.X("first:Q", axis=axis, scale=alt.Scale(type="log", base=2, nice=False, padding=10))


def _is_scale(values: Sequence[Any]) -> bool:
    """Whether all values are positive integers, as a logarithmic axis needs; another program's file may hold
    anything."""
    return all(isinstance(value, int) and value > 0 for value in values)


def _chart_row(sweep: Sweep, r: BenchRecord, styles: dict[_Set, Style]) -> dict[str, Any]:
    key, fraction = sweep.set_of(r), finite(r.peak_fraction)
    style = styles[key]
    return {
        "kernel": r.kernel,
        "with": params_text(r, sweep.names),
        "shape": r.shape.replace("x", " × "),
        "n": r.n,
        "first": key[0] if _is_scale([s[0] for s in sweep.sets]) else str(key[0]),
        "line": str(key if sweep.over_sizes else key[1:]),
        "colour": LIGHT.index(style.light),
        "mark": style.mark,
        "gflops": round(r.gflops or 0.0, 6),
        "Time": duration(r.median_s or 0.0),
        "GFLOPS": digits(r.gflops or 0.0) + (f" ({fraction:.0%} of peak)" if fraction else ""),
        "Spread": spread([s for s in r.samples_s if finite(s)]),
        "Samples": str(len(r.samples_s)),
    }


# ---- the table and the sentence above it -----------------------------------------------------------------------------


def set_table(sweep: Sweep) -> SetTable:
    """Return the table of a sweep: a row for each set at ``sweep.shape``, with its rate, and with the resources and
    transactions that the records contain."""
    record_of_set = {sweep.set_of(r): r for r in sweep.records if r.shape == sweep.shape}
    details_of_set = {key: _details(record) for key, record in record_of_set.items()}
    headings = tuple(dict.fromkeys(heading for details in details_of_set.values() for heading in details))
    fastest, styles = max(map(_rate, record_of_set.values()), default=0.0), set_styles(sweep)
    rows = []
    for key in sweep.sets:
        record, by_heading = record_of_set.get(key), details_of_set.get(key, {})
        details = tuple(by_heading.get(heading, "–") for heading in headings)
        best = record is not None and fastest > 0 and _rate(record) == fastest
        rows.append(SetRow(key, styles[key], details, _rate_text(record), best))
    return SetTable(headings, tuple(rows))


def _details(record: BenchRecord) -> dict[str, str]:
    """By heading: the resources of a record's launch, resident warps, and transactions for 1000 multiply-adds."""
    about, found = record.about, {}
    for name, heading in (
        ("threads", "threads per block"),
        ("registers", "registers"),
        ("shared_bytes", "shared bytes"),
    ):
        if (value := finite(about.get(name))) is not None:
            found[heading] = shortly(value)
    warps, most = finite(about.get("resident_warps")), finite(about.get("max_warps"))
    if warps is not None and most:
        found["resident warps"] = f"{warps:.0f} of {most:.0f}"
        found["limited by"] = str(about.get("limited_by", "–"))
    work, formulas = record.m * record.n * record.k, about.get("formulas")
    for name, value in formulas.items() if isinstance(formulas, dict) else ():
        space, _, rest = str(name).partition("_load_")
        if rest and work and (counted := finite(value)) is not None:
            found[f"{space} load {rest}"] = shortly(1000 * counted / work)
    return found


def _rate_text(record: BenchRecord | None) -> str:
    """The rate of a set, or why there is none."""
    if record is None:
        return "–"
    if not is_measured(record):
        return "–" if record.verdict == "ok" else VERDICTS.get(record.verdict, record.verdict)
    fraction = finite(record.peak_fraction)
    return digits(record.gflops or 0.0) + (f" ({fraction:.0%})" if fraction else "")


def sweep_conclusion(sweep: Sweep) -> str:
    """Return a sentence on a sweep: the fastest set of parameters in the shape with most sets, its speed divided by
    that of the slowest set, and the fastest set at each size."""
    ranked = sorted((r for r in sweep.records if r.shape == sweep.shape and is_measured(r)), key=lambda r: -_rate(r))
    if not ranked:
        return "None of these has a verified time."
    first, last = ranked[0], ranked[-1]
    text = f"At {first.shape}, {params_text(first, sweep.names)} is fastest"
    if len(ranked) > 1:
        text += f", {digits(_rate(first) / _rate(last))} times as fast as {params_text(last, sweep.names)}"
    sizes_of_best: dict[str, list[int]] = {}
    for n in sweep.squares if sweep.over_sizes else ():
        best = max((r for r in sweep.curve_records() if r.n == n), key=_rate)
        sizes_of_best.setdefault(params_text(best, sweep.names), []).append(n)
    if len(sizes_of_best) > 1:
        parts = (f"{params} at {', '.join(map(str, sizes))}" for params, sizes in sizes_of_best.items())
        text += ". Fastest at each size: " + "; ".join(parts)
    if sweep.measured_sets > len(sweep.sets):
        text += f". Only the fastest {len(sweep.sets)} of {with_noun(sweep.measured_sets, 'combination')} are shown"
    return text + "."


def sweep_views(found: Sequence[Sweep]) -> list[dict[str, Any]]:
    """Return the values with which the template is filled, for each sweep."""
    return [
        {
            "chart": f"sweep-{i}",
            "has_chart": bool(s.curve_records()),
            "sweep": s,
            "conclusion": sweep_conclusion(s),
            "table": set_table(s),
        }
        for i, s in enumerate(found)
    ]
