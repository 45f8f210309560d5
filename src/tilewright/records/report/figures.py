"""Draws the charts as still pictures for a README or a paper, with vl-convert, without a browser or a network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from ...errors import RecordError, UsageError, did_you_mean
from ..bench import BenchRecord
from ..legible import legible
from . import views
from .charts import charts, decades
from .html import VEGALITE, legible_data
from .ladder import Ladder, Step, ladder_of
from .page import kernels_in_order
from .palette import INK, Style, config, kernel_styles
from .words import digits

FORMATS = ("svg", "png")
THEMES = ("light", "dark")
TITLES = {
    "gflops": "GFLOPS (2mnk divided by the median time)",
    "ratio": "R: the reference's median time divided by the kernel's; above 1 the kernel is faster",
    "time": "Median time of one product",
    "shapes": "GFLOPS for each shape m × n × k",
}


def save_figures(
    records: Sequence[BenchRecord], directory: str | Path, formats: Sequence[str] = FORMATS,
    *, themes: Sequence[str] = ("light",),
) -> list[Path]:  # fmt: skip
    """Write every chart of every view as a still picture; see ``tilewright.records.report.save_figures``."""
    records = list(records)
    if not records:
        raise RecordError("records is empty: a figure needs at least one record; measure some with `tilewright bench`")
    for given, known, what in ((formats, FORMATS, "formats"), (themes, THEMES, "themes")):
        for name in given:
            if name not in known:
                raise UsageError(f"{what}: {name!r} is none of them; {did_you_mean(name, known)}")
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    shown = [view for section in views.sections(records) for view in views.views(section)]
    drawn = kernel_styles(kernels_in_order(shown), [kernel for view in shown for kernel in views.emphasised(view)])
    machines = len({view.section.machine for view in shown})
    written = []
    for i, view in enumerate(shown):
        for name, spec in _specs(view, drawn).items():
            for theme in themes:
                stem = (
                    name
                    + (f"-{_slug(view.label if machines > 1 else view.what)}" if i else "")
                    + ("-dark" if theme == "dark" else "")
                )
                written += [_draw(spec, directory / f"{stem}.{kind}", theme, drawn) for kind in formats]
    return written


def _specs(view: views.View, drawn: dict[str, Style]) -> dict[str, dict[str, Any]]:
    here = {kernel: style for kernel, style in drawn.items() if kernel in view.kernels}
    made = {}
    for name, spec in charts(view, here, legend=True).items():
        spec = {**spec, "width": 680, "title": {"text": TITLES[name], "subtitle": view.label, "offset": 14}}
        spec.setdefault("height", 380)
        spec.pop("autosize")
        spec["datasets"] = {**spec.get("datasets", {}), "cells": views.chart_rows(view)}
        made[name] = legible_data(spec)
    stairs = ladder_of(view)
    if stairs and any(step.gain for step in stairs.steps):
        made["ladder"] = legible_data(staircase(stairs, view.label, here))
    return made


def staircase(stairs: Ladder, label: str, drawn: dict[str, Style]) -> dict[str, Any]:
    """Return the chart of the ladder: a bar for each rung, from its parent's rate to its own, with the gain next to
    it."""
    rows: list[dict[str, Any]] = [
        {
            "kernel": step.kernel,
            "before": step.before or step.after,
            "after": step.after,
            "right": max(step.before or 0, step.after),
            "words": _words(step),
        }
        for step in stairs.steps
        if step.after
    ]
    order = [row["kernel"] for row in rows]
    low = min(min(row["before"], row["after"]) for row in rows)
    high = max(row["right"] for row in rows)
    axis = alt.Axis(values=decades(low, high), format=",~r", grid=True)
    x = alt.X("before:Q", title="GFLOPS (logarithmic)", axis=axis,
              scale=alt.Scale(type="log", domain=[low * 0.7, high * 2.2], nice=False))  # fmt: skip
    y = alt.Y("kernel:N", title=None, sort=order, axis=alt.Axis(labelLimit=260))
    scale = alt.Scale(domain=list(drawn), range="category")
    base = alt.Chart(alt.InlineData(values=rows)).encode(y=y)
    bars = base.mark_bar(height=12, cornerRadius=1).encode(
        x=x, x2="after:Q", color=alt.Color("kernel:N", scale=scale, legend=None)
    )
    ends = base.mark_tick(thickness=3, height=18, opacity=1).encode(
        x=alt.X("after:Q"), color=alt.Color("kernel:N", scale=scale, legend=None)
    )
    words = base.mark_text(align="left", dx=8).encode(x=alt.X("right:Q"), text="words:N")
    title = {
        "text": f"What each rung gains over its parent, at {stairs.shape}",
        "subtitle": label,
        "offset": 14,
    }
    chart = alt.layer(bars, ends, words).properties(width=560, height=30 * len(rows), title=title)
    spec = chart.to_dict()
    spec.pop("config", None)
    return spec


def _words(step: Step) -> str:
    gain = step.gain_words or f"{digits(step.after or 0)} GFLOPS"
    return f"{gain} at {step.shape}" if step.elsewhere else gain


def _draw(spec: dict[str, Any], path: Path, theme: str, drawn: dict[str, Style]) -> Path:
    settings = {**_resolved(spec, theme, drawn), "background": INK[theme]["paper"], "padding": 16}
    if path.suffix == ".svg":
        path.write_text(vl_convert.vegalite_to_svg(spec, vl_version=VEGALITE, config=settings), encoding="utf-8")
    else:
        path.write_bytes(vl_convert.vegalite_to_png(spec, vl_version=VEGALITE, config=settings, scale=2))
    return path


def _resolved(spec: dict[str, Any], theme: str, drawn: dict[str, Style]) -> dict[str, Any]:
    """The theme's configuration with the colours of the kernels in this picture, in its own order."""
    domain = _domain(spec)
    return config(theme, {kernel: style for kernel, style in drawn.items() if legible(kernel) in domain})


def _domain(spec: Any) -> list[str]:
    """The kernels of the first colour scale found."""
    if isinstance(spec, dict):
        colour = spec.get("color")
        if isinstance(colour, dict) and "scale" in colour:
            return colour["scale"]["domain"]
    children = spec.values() if isinstance(spec, dict) else spec if isinstance(spec, list) else ()
    return next((found for child in children if (found := _domain(child))), [])


def _slug(label: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:100]  # a file's name has room for 255 bytes
