"""Makes the page of accuracy: the grades of the paths (the ways to compute a product), and their errors for each size,
span and distribution of the operands, compared with the classical bound."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from ...errors import RecordError
from ..accuracy import GRADES, AccuracyGrade, AccuracyRecord, MeasuredAccuracy
from . import environment, html
from .accuracy import UNITS, unit_text
from .charts import decades, finished, marks, parameters, sizes_axis
from .palette import Style, config, kernel_styles
from .words import digits, sentence_list, shortly

#: A page has at most this many products: more cannot be told apart.
MOST_PRODUCTS = 5000
#: The least error that is drawn: an exact result has none, and a logarithmic axis no zero.
LEAST_DRAWN = 1e-6
TOOLTIP = ("Path", "Operands", "Error", "Typical error", "Promise", "Kernel", "Computed again")
#: What a bound is drawn with.
BOUND_DASH = [7, 4]

_Products = Sequence[MeasuredAccuracy]
_Rows = Sequence[dict[str, Any]]


def render_accuracy(records: Sequence[AccuracyRecord], *, title: str | None = None) -> str:
    """Return the page of accuracy records as HTML; see ``tilewright.records.report.render_accuracy``."""
    if not records:
        raise RecordError("records is empty: a page needs at least one; see benchmarks/record_accuracy.py")
    count = sum(len(record.products) for record in records)
    records = [_named(record) for record in records]
    if count > MOST_PRODUCTS:
        raise RecordError(f"records: a page shows at most {MOST_PRODUCTS:,} products, got {count:,}")
    views = [(record, dtype) for record in records for dtype in dict.fromkeys(each.dtype for each in record.products)]
    drawn = kernel_styles(list(dict.fromkeys(each.path for record in records for each in record.products)))
    shown = [(view := _View(record, dtype), view.charts(drawn)) for record, dtype in views]
    return html.page(
        "accuracy_page.html.j2",
        data={
            "config": {theme: config(theme, drawn) for theme in ("light", "dark")},
            "views": [{"cells": [], "charts": made} for _, made in shown],
        },
        script="page.js",
        styles=["page.css", "accuracy.css"],
        title=title or "How accurate the products are",
        drawn=drawn,
        index={name: f"k{number}" for number, name in enumerate(drawn)},
        views=[view.as_values(drawn) | {"charts": list(made)} for view, made in shown],
    )


def write_accuracy_page(records: Sequence[AccuracyRecord], path: str | Path, *, title: str | None = None) -> Path:
    """Write the page of accuracy records to a file; see ``tilewright.records.report.write_accuracy_page``."""
    return html.write_whole(render_accuracy(records, title=title), path)


def _named(record: AccuracyRecord) -> AccuracyRecord:
    """The same with paths as the page names them."""
    products = [dataclasses.replace(each, path=path_text(each.path)) for each in record.products]
    grades = [dataclasses.replace(each, path=path_text(each.path)) for each in record.grades]
    return AccuracyRecord(tuple(products), tuple(grades), record.environment)


class _View:
    """The products of one dtype in one record."""

    def __init__(self, record: AccuracyRecord, dtype: str) -> None:
        self.dtype, self._record = dtype, record
        self._products = [each for each in record.products if each.dtype == dtype]
        self._grades = [each for each in record.grades if each.dtype == dtype]
        self._sizes = [each for each in self._products if each.distribution == "uniform"]
        others = [each for each in self._products if each.distribution != "uniform"]
        #: That of the products over distributions: the others are of uniform operands.
        self._size = max((each.k for each in others), default=max(each.k for each in self._products))
        at_size = [each for each in self._products if each.k == self._size]
        self._spans = [each for each in at_size if each.binades is not None]
        self._distributions = [each for each in at_size if ":" not in each.distribution or each.binades is None]

    def charts(self, drawn: dict[str, Style]) -> dict[str, dict[str, Any]]:
        """Return the specifications of the charts; a chart over size or over span needs at least two points of a
        line."""
        made: dict[str, Any] = {}
        if len({each.n for each in self._sizes}) > 1:
            made["size"] = _over_size, self._sizes
        if len({each.binades for each in self._spans}) > 1:
            made["span"] = _over_span, self._spans
        if self._distributions:
            made["distribution"] = _by_distribution, self._distributions
        return {name: _specification(draw, products, drawn) for name, (draw, products) in made.items()}

    def as_values(self, drawn: dict[str, Style]) -> dict[str, Any]:
        """What the template needs."""
        known = self._record.environment
        where = known.get("gpu") or known.get("processor") or "an unknown machine"
        return {
            "label": f"{self.dtype}, {where}",
            "sentence": grades_sentence(self._grades) or size_sentence(self._sizes),
            "legend": [(path, drawn[path]) for path in dict.fromkeys(each.path for each in self._products)],
            "unit": unit_text(self.dtype),
            "size": f"{self._size:,}",
            "sizes": size_sentence(self._sizes),
            "spans": span_sentence(self._spans),
            "distributions": distribution_sentence(self._distributions),
            "grades": [_grade_row(each) for each in self._grades],
            "of_sizes": ", ".join(f"{n:,}" for n in self._grades[0].sizes) if self._grades else "",
            "table": _table(self._distributions),
            "facts": environment.items(known),
        }


# ---- charts ----------------------------------------------------------------------------------------------------------


def _specification(draw: Callable[..., Any], products: _Products, drawn: dict[str, Style]) -> dict[str, Any]:
    """A chart with its rows, which Altair would check one by one."""
    rows = [_row(each) for each in products]
    spec = finished(draw(rows, max(each.k for each in products), alt.Chart(alt.NamedData("products")), drawn))
    return spec | {"datasets": spec.get("datasets", {}) | {"products": rows}}


def no_digit(dtype: str) -> float:
    """Return the smallest error, in units of u, with which no digit of an element is right: an error as large as
    |A||B|. Larger errors are drawn at this value."""
    return 2.0 ** -UNITS.get(dtype, -24)


def _row(each: MeasuredAccuracy) -> dict[str, Any]:
    most = no_digit(each.dtype)
    error = most if each.componentwise is None or not each.as_ieee else each.componentwise
    promise = "" if each.over_promise is None else f"{shortly(each.over_promise)} of its own bound"
    again = f"{each.flagged / each.parts:.1%} of C" if each.flagged is not None and each.parts else ""
    texts = [each.path, f"{distribution_text(each.distribution)}, n = {each.n:,}", error_text(each)]
    texts += [
        f"{digits(each.rms)} u" if each.rms is not None else "–",
        promise or "–",
        each.kernel or "–",
        again or "–",
    ]
    row: dict[str, Any] = {"kernel": each.path, "strong": True, "joined": True}
    row |= {"n": each.n, "k": each.k, "binades": each.binades}
    row |= {"error": float(f"{min(max(error, LEAST_DRAWN), most):.6g}"), "of": distribution_text(each.distribution)}
    return row | dict(zip(TOOLTIP, texts, strict=True))


def error_text(each: MeasuredAccuracy) -> str:
    """Return the largest error as text for the tooltip and the table."""
    if not each.as_ieee:
        return "not as IEEE"
    if each.componentwise is None:
        return "no number"
    return f"{number_text(each.componentwise)} u"


def _scale(rows: Iterable[dict[str, Any]], *bounds: float) -> tuple[alt.Scale, alt.Axis]:
    """The logarithmic axis of errors."""
    values = [*(row["error"] for row in rows), *bounds]
    domain = [min(values) / 1.6, max(values) * 1.6]
    ticks = [value for value in decades(*domain) if domain[0] <= value <= domain[1]]
    while len(ticks) > 9:
        ticks = ticks[::2]
    power = "replace(format(datum.value, '.0e'), 'e+', 'e')"
    words = f"datum.value >= 1e6 || datum.value < 1e-3 ? {power} : format(datum.value, ',~r')"
    axis = alt.Axis(values=ticks, labelExpr=words, title=None)
    return alt.Scale(type="log", domain=domain, nice=False), axis


def _over_size(rows: _Rows, _: int, base: alt.Chart, drawn: dict[str, Style]) -> Any:
    bounds = {row["n"]: row["k"] for row in rows}
    sizes = sorted(bounds)
    scale, axis = _scale(rows, *bounds.values())
    x, y = sizes_axis(sizes), alt.Y("error:Q", scale=scale, axis=axis)
    bound = alt.Chart(alt.InlineData(values=[{"n": n, "error": bounds[n]} for n in sizes])).encode(x=x, y=y)
    layers = [
        _dashed(bound.mark_line),
        *marks(base.encode(x=x, y=y), drawn, tooltip=TOOLTIP),
        *_named_bound(bound.transform_filter(f"datum.n == {sizes[0]}"), align="left", dx=2, dy=14),
    ]
    return alt.layer(*layers).properties(
        description="Largest error over n on logarithmic axes, with a line for each path, and the classical bound dashed"
    )


def _over_span(rows: _Rows, k: int, base: alt.Chart, drawn: dict[str, Style]) -> Any:
    scale, axis = _scale(rows, k)
    spans = sorted({row["binades"] for row in rows})
    x = alt.X("binades:Q", scale=alt.Scale(nice=False, padding=10), title="binades along k",
              axis=alt.Axis(values=spans, labelOverlap="greedy", labelSeparation=8))  # fmt: skip
    y = alt.Y("error:Q", scale=scale, axis=axis)
    bound = alt.Chart(alt.InlineData(values=[{"error": k}])).encode(y=y)
    layers = marks(base.encode(x=x, y=y), drawn, tooltip=TOOLTIP)
    named = _named_bound(bound.encode(x=alt.value("width")), align="right", dx=-4, dy=-8)
    return alt.layer(_dashed(bound.mark_rule), *layers, *named).properties(
        description="Largest error over binades, with a line for each path, and the classical bound dashed"
    )


def _by_distribution(rows: _Rows, k: int, base: alt.Chart, drawn: dict[str, Style]) -> Any:
    """A row for each distribution, and in it a thin row for each path: points with one error do not hide each other."""
    names, paths = (list(dict.fromkeys(row[key] for row in rows)) for key in ("of", "kernel"))
    scale, axis = _scale(rows, k)
    axis.title = "largest error, in units of u·|A||B|"
    x = alt.X("error:Q", scale=scale, axis=axis)
    y = alt.Y("of:N", title=None, sort=names, scale=alt.Scale(padding=0),
              axis=alt.Axis(labelLimit=200, labelOverlap=False, ticks=False, grid=True, tickBand="extent"))  # fmt: skip
    offset = alt.YOffset("kernel:N", sort=paths, scale=alt.Scale(domain=paths, paddingOuter=0.5, align=1))
    _, points, reach = marks(base.encode(x=x, y=y, yOffset=offset), drawn, tooltip=TOOLTIP)
    bound = alt.Chart(alt.InlineData(values=[{"error": k}])).encode(x=x)
    named = _named_bound(bound.encode(y=alt.value(0)), align="center", dy=-9)
    layers = [_dashed(bound.mark_rule), points.add_params(*parameters()), reach, *named]
    return alt.layer(*layers).properties(
        description="Largest error of each path for each distribution, and the classical bound dashed",
        height=len(names) * max(26, 9 * len(paths)),
    )


def _named_bound(at: alt.Chart, **place: Any) -> list[alt.Chart]:
    """The name of the bound beside its line."""
    words = at.encode(text=alt.value("classical bound"))
    return [words.mark_text(style="halo", **place), words.mark_text(**place)]


def _dashed(mark: Callable[..., alt.Chart]) -> alt.Chart:
    return mark(strokeDash=BOUND_DASH, strokeWidth=1.6, color="#8a8d93")


# ---- tables ----------------------------------------------------------------------------------------------------------


def _grade_row(each: AccuracyGrade) -> dict[str, Any]:
    over = [each.over[bound] for bound in GRADES[:3]]
    texts = ["–" if value is None else number_text(value) for value in over]
    slope = "–" if each.slope is None or math.isnan(each.slope) else f"{each.slope + 0.0:z.2f}"
    return {"path": each.path, "letter": each.grade, "cells": [each.algorithm, slope, *texts]}


def _table(products: _Products) -> dict[str, Any]:
    """Distributions down, paths across."""
    of = {(each.distribution, each.path): each for each in products}
    names, paths = (list(dict.fromkeys(keys)) for keys in zip(*of, strict=True))
    rows = [
        (
            distribution_text(name),
            [error_text(of[name, path]).removesuffix(" u") if (name, path) in of else "" for path in paths],
        )
        for name in names
    ]
    return {"paths": paths, "rows": rows}


# ---- sentences -------------------------------------------------------------------------------------------------------


def distribution_text(name: str) -> str:
    """
    >>> distribution_text("graded_rows"), distribution_text("graded:60"), distribution_text("lognormal:4")
    ('graded rows', 'graded, 60 binades', 'lognormal, σ = 4')
    """
    what, _, number = name.replace("_", " ").partition(":")
    if not number:
        return what
    return f"{what}, {number} binades" if what == "graded" else f"{what}, σ = {number}"


def path_text(path: str) -> str:
    """Return a path's name without a comma, so that a list in a sentence can contain it.

    >>> path_text('tilewright, "highest"')
    'tilewright "highest"'
    """
    return path.replace(", ", " ")


def number_text(value: float) -> str:
    """Return a number with three digits, or as a power of ten if that is shorter.

    >>> [number_text(value) for value in (0.0641, 1024.0, 1.9e12, 4.46e-5)]
    ['0.0641', '1,024', '1.9e12', '4.5e-5']
    """
    if 1e-3 <= value < 1e6 or not value:
        return digits(value)
    mantissa, _, power = f"{value:.1e}".partition("e")
    return f"{mantissa}e{int(power)}"


def grades_sentence(grades: Sequence[AccuracyGrade]) -> str:
    """Return a sentence that says which path has which grade."""
    of = {letter: [each.path for each in grades if each.grade == letter] for letter in GRADES}
    said = [f"Grade {letter}: {sentence_list(of[letter])}" for letter in GRADES[:3] if of[letter]]
    if of["–"]:
        said.append(f"no grade: {sentence_list(of['–'])}")
    return "; ".join(said) + "." if said else ""


def size_sentence(products: _Products) -> str:
    """Return a sentence on the errors of the largest products, compared with the classical bound and with the
    smallest products."""
    known = [each for each in products if each.componentwise is not None]
    if not known:
        return ""
    first, last = min(each.n for each in known), max(each.n for each in known)
    largest = sorted((each for each in known if each.n == last), key=_error)
    best, worst = largest[0], largest[-1]
    bound = max(each.k for each in largest)
    low, high = number_text(_error(best)), number_text(_error(worst))
    text = f"At n = {last:,} the largest errors are from {low} u ({best.path}) to {high} u ({worst.path})"
    above = [each.path for each in largest if _error(each) > bound] or ["no path"]
    text += f"; the classical bound is {bound:,} u, and {sentence_list(above)} {_are(above)} above it."
    before = next((each for each in known if each.n == first and each.path == worst.path), worst)
    if before.n == last or not before.componentwise:
        return text
    grown = _error(worst) / before.componentwise
    how = (
        f"grows by a factor of {number_text(grown)}" if grown >= 1 else f"falls by a factor of {number_text(1 / grown)}"
    )
    return f"{text} From n = {first:,} on, the error of {worst.path} {how}."


def span_sentence(products: _Products) -> str:
    """Return a sentence that says which paths keep the classical bound at every span, and from which span on the other
    paths exceed it."""
    widest = max((each.binades or 0 for each in products), default=0)
    keep, lose = _kept(products)
    said = [f"{sentence_list(keep)} {_keeps(keep)} the classical bound up to {widest} binades"] if keep else []
    above: dict[str, list[str]] = {}
    for path in lose:
        first = min(each.binades or 0 for each in products if each.path == path and not keeps_bound(each))
        above.setdefault(f"from {first} binades on" if first else "at every span", []).append(path)
    said += [f"{sentence_list(paths)} {_are(paths)} above it {where}" for where, paths in above.items()]
    return "; ".join(said) + "." if said else ""


def distribution_sentence(products: _Products) -> str:
    """Return a sentence that says which paths keep the classical bound for all operands, and for which operands the
    other paths exceed it."""
    keep, lose = _kept(products)
    count = len({each.distribution for each in products})
    said = (
        [f"{sentence_list(keep)} {_keeps(keep)} the classical bound on all {count} kinds of operands"] if keep else []
    )
    above: dict[str, list[str]] = {}
    for path in lose:
        wrong = [each for each in products if each.path == path and not keeps_bound(each)]
        names = sentence_list([distribution_text(each.distribution).replace(",", " with") for each in wrong])
        above.setdefault("all of them" if len(wrong) == count else names, []).append(path)
    said += [f"{sentence_list(paths)} {_are(paths)} above it on {where}" for where, paths in above.items()]
    return "; ".join(said) + "." if said else ""


def keeps_bound(each: MeasuredAccuracy) -> bool:
    """Return whether every error is at most k·u·(|A||B|), and infinities and NaN are in the elements in which IEEE
    arithmetic has them."""
    return each.as_ieee and each.componentwise is not None and each.componentwise <= each.k


def _kept(products: _Products) -> tuple[list[str], list[str]]:
    """The paths that keep the classical bound in all products, and the others."""
    lose = dict.fromkeys(each.path for each in products if not keeps_bound(each))
    return [path for path in dict.fromkeys(each.path for each in products) if path not in lose], list(lose)


def _keeps(paths: Sequence[str]) -> str:
    return "keeps" if len(paths) == 1 else "keep"


def _are(paths: Sequence[str]) -> str:
    return "is" if len(paths) == 1 else "are"


def _error(each: MeasuredAccuracy) -> float:
    return each.componentwise or 0.0
