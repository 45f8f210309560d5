"""The page: one HTML file that holds its data, its charts and the code that draws them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import RecordError
from ..bench import VERDICTS, BenchRecord
from ..compare.reference import against_reference, is_unclear
from . import accuracy, cells, charts, environment, findings, html, sweeps, views
from .ladder import Ladder, Step, ladder_of
from .palette import Style, config, kernel_styles
from .views import View, is_measured, is_reference, spread, threads_of
from .words import digits, finite, small, table_time, with_noun


def render(records: Sequence[BenchRecord], *, title: str | None = None) -> str:
    """The page of some records as HTML; see ``tilewright.records.report.render``."""
    records = list(records)
    if not records:
        raise RecordError("records is empty: a page needs at least one record; measure some with `tilewright bench`")
    sections = views.sections(records)
    shown = [view for section in sections for view in views.views(section)]
    coloured = [kernel for view in shown for kernel in cells.emphasised(view)]
    drawn = kernel_styles(kernels_in_order(shown), coloured)
    swept = [sweeps.sweeps(view) for view in shown]
    specs = [
        charts.charts(view, drawn) | accuracy.error_charts(view, drawn) | sweeps.sweep_charts(found)
        for view, found in zip(shown, swept, strict=True)
    ]
    data = {
        "config": {theme: _config(theme, drawn) for theme in ("light", "dark")},
        "views": [{"cells": cells.chart_rows(v), "charts": made} for v, made in zip(shown, specs, strict=True)],
    }
    machines = len({section.machine for section in sections})
    return html.page(
        "page.html.j2",
        data=data,
        script="page.js",
        styles=["page.css", "sweeps.css"],
        title=title or f"Matrix products on {sections[0].machine}",
        views=[
            _view(view, made, drawn, machines)
            | {"errors": accuracy.error_table(view), "sweeps": sweeps.sweep_views(found)}
            for view, made, found in zip(shown, specs, swept, strict=True)
        ],
        busy=findings.busy_machine(records),
        message=findings.bench_message(shown[0]),
        details=findings.details(shown[0]),
        verdicts=findings.verdicts(records),
        wrong=findings.wrong_results(records),
        machines=environment.machines(records),
        shown=SHOWN,
        drawn_all=drawn,
        index={kernel: f"k{i}" for i, kernel in enumerate(drawn)},
    )


def write_page(records: Sequence[BenchRecord], path: str | Path, *, title: str | None = None) -> Path:
    """Renders the page into a file; see ``tilewright.records.report.write_page``."""
    return html.write_whole(render(records, title=title), path)


def kernels_in_order(shown: Sequence[views.View]) -> list[str]:
    """Every kernel of the page once: a kernel has one colour in all views."""
    first = {r.kernel: r for view in reversed(shown) for r in view.records}
    place = {kernel: i for i, kernel in enumerate(dict.fromkeys(r.kernel for v in shown for r in v.records))}
    return sorted(first, key=lambda k: (views.is_reference(k), views.rungs_order(first[k]), place[k]))


def _config(theme: str, drawn: dict[str, Style]) -> dict[str, Any]:
    """The theme, with colours for kernels and for sets of parameters."""
    made = config(theme, drawn)
    return made | {"range": made["range"] | {"ordinal": sweeps.hues(theme)}}


def _view(view: views.View, made: dict[str, Any], drawn: dict[str, Style], machines: int) -> dict[str, Any]:
    """What the template needs of one view."""
    steps, strong = ladder_of(view), cells.emphasised(view)
    curved = cells.curves(view.measured)
    unjoined = any(r.m == r.n == r.k and (r.kernel, r.n) not in curved for r in view.measured)
    peak = f"Measured peak: {digits(view.peak)} GFLOPS." if view.peak and not charts.peak_in_sight(view) else ""
    return {
        "label": view.label,
        "tab": view.label if machines > 1 else view.what,
        "message": findings.bench_message(view),
        "details": findings.details(view),
        "legend": [(k, drawn[k], k in strong) for k in dict.fromkeys((*strong, *view.kernels))],
        "charts": list(made),
        "reference": view.reference,
        "beside": "Marks beside a line are sizes that share a place with one on it. " if unjoined else "",
        "peak_note": peak,
        "ladder": steps,
        "bars": _bars(steps, view) if steps else None,
        "table": kernel_table(view),
    }


def _bars(steps: Ladder, view: views.View) -> dict[str, Any] | None:
    """Where each step's bar starts and ends, in percent of a logarithmic axis, with the axis's ticks."""
    rates = [r for step in steps.steps for r in (step.before, step.after) if r]
    if not rates:
        return None
    marks = [
        (r.kernel, r.gflops) for r in view.measured
        if views.is_reference(r.kernel) and r.gflops and r.shape.replace("x", " × ") == steps.shape
    ]  # fmt: skip
    low = math.log10(min(rates)) - 0.2  # the first rung needs a bar too
    high = math.log10(max([*rates, *(rate for _, rate in marks)]) * 1.15)

    def place(rate: float) -> float:
        return round(100 * (math.log10(rate) - low) / ((high - low) or 1), 2)

    ticks = [10.0**d for d in range(math.ceil(low), math.floor(high) + 1)]
    return {
        "ticks": [(place(t), digits(t).rstrip("0").rstrip(".") if t < 100 else f"{t:,.0f}") for t in ticks],
        "marks": [(place(rate), name, digits(rate)) for name, rate in marks],
        "spans": {s.kernel: _span(s, place) for s in steps.steps if s.after},
    }


def _span(step: Step, place: Any) -> dict[str, Any]:
    after = place(step.after)
    before = place(step.before) if step.before else 0.0
    return {"left": min(before, after), "width": round(abs(after - before), 2), "down": after < before}


# ---- table -----------------------------------------------------------------------------------------------------------
# The table: kernels down, shapes across, a time in every cell or the reason why there is none.


#: What the reader can switch the cells to; the key is the TableCell's field.
SHOWN = {"time": "Time", "gflops": "GFLOPS", "ratio": "R", "error": "Error / bound"}


@dataclass(frozen=True)
class TableCell:
    """One cell: the text for each quantity that the reader can switch to (see SHOWN), and the sentence that appears when
    the pointer is over it."""

    mark: str  # "ok", "short", a verdict of records.VERDICTS, or "none"
    time: str = ""
    gflops: str = ""
    ratio: str = ""
    error: str = ""
    hover: str = ""
    best: bool = False


@dataclass(frozen=True)
class KernelRow:
    """A kernel's cells, and its largest error over all of them."""

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
    """The table of a view. References come first, as the yardstick; then the ladder in its order."""
    shapes = view.shapes
    fastest = {
        shape: min((r.median_s or 0 for r in view.measured if (r.m, r.n, r.k) == shape), default=None)
        for shape in shapes
    }
    kernels = sorted(view.kernels, key=lambda kernel: not is_reference(kernel))
    rows = []
    for kernel in kernels:
        records = {(r.m, r.n, r.k): r for r in view.records if r.kernel == kernel}
        rows.append(_row(kernel, [_cell(records.get(s), fastest[s]) for s in shapes], list(records.values()), view))
    return KernelTable(tuple(_column(shape) for shape in shapes), tuple(rows))


def _column(shape: tuple[int, int, int]) -> str:
    return str(shape[0]) if len(set(shape)) == 1 else " × ".join(map(str, shape))


def _row(kernel: str, cells: list[TableCell], records: list[BenchRecord], view: View) -> KernelRow:
    threads = {r.threads for r in records}
    note = with_noun(max(threads), "thread") if view.threads and threads != {view.threads} else ""
    return KernelRow(
        kernel=kernel,
        note=note,
        reference=is_reference(kernel),
        cells=tuple(cells),
        max_abs_error=_worst(r.max_abs_error for r in records),
        error_over_bound=_worst(r.error_over_bound for r in records),
        wrong=any(r.verdict == "wrong" for r in records),
    )


def _worst(errors: Iterable[float | None]) -> str:
    known = [e for e in map(finite, errors) if e is not None]
    return small(max(known)) if known else "–"


def _cell(record: BenchRecord | None, fastest: float | None) -> TableCell:
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
