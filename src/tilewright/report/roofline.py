"""The roofline of one explanation, as a Vega-Lite specification.

A roof is what a memory's rate allows at an intensity, in operations for each byte that the kernel moves through that memory.
The kernel has one rate, and another intensity for each memory, so that its points lie side by side: the point that lies on
its memory's roof is the limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from ..records.explanation import Bound, Explanation
from .charts import decades, finished
from .explain_theme import haloed
from .words import finite, shortly

#: Bytes that one of a bound's units moves; other units are no memory's.
BYTES = {"bytes": 1, "sectors": 32, "turns": 128, "wavefronts": 128}

#: A memory's name and its GB/s.
Roof = tuple[str, float]
#: The ends of an axis.
Span = tuple[float, float]

#: Two intensities less than this factor apart are one point to the eye.
APART = 1.5


@dataclass(frozen=True)
class Level:
    """The kernel's intensity at one memory, in operations a byte, and the memory's GB/s, None where it has no roof."""

    name: str
    intensity: float
    gbs: float | None = None
    limits: bool = False

    @property
    def short(self) -> str:
        """The first part of a name that lists several.

        >>> Level("L1 cache and shared memory", 0.4).short
        'L1 cache'
        """
        return self.name.split(",")[0].split(" and ")[0]


def memory_levels(explanation: Explanation) -> list[Level]:
    """A level for each bound that counts bytes, by rising intensity.

    The L1 cache moves more than the requested sectors where it also serves shared memory, or where a request moves less than
    a turn can. The requested sectors are then a level of their own, without a roof.
    """
    found = [
        Level(
            bound.name, explanation.flops / (bound.amount * size), bound.rate * size / 1e9, bound == explanation.bound
        )
        for bound in explanation.bounds
        if (size := BYTES.get(bound.unit)) and bound.amount > 0 and bound.rate > 0 and explanation.flops
    ]
    if sectors := sum(access.sectors for access in explanation.accesses):
        asked = explanation.flops / (BYTES["sectors"] * sectors)
        if asked and all(max(asked, lv.intensity) > APART * min(asked, lv.intensity) for lv in found):
            found.append(Level("sectors asked for", asked))
    return sorted(found, key=lambda level: level.intensity)


def arithmetic_bound(explanation: Explanation) -> Bound | None:
    """The bound that counts operations."""
    return next((b for b in explanation.bounds if b.unit == "operations" and b.rate > 0), None)


def roofline(explanation: Explanation) -> dict[str, Any] | None:
    """The chart, both axes logarithmic; None where the GPU's rates are not known."""
    kernel_levels, gflops = memory_levels(explanation), finite(explanation.gflops)
    roofs = sorted(((level.short, level.gbs) for level in kernel_levels if level.gbs), key=lambda roof: -roof[1])
    if not roofs or not gflops:
        return None
    top = arithmetic_bound(explanation)
    peak = top.rate / 1e9 if top else None
    ridges = [peak / gbs for _, gbs in roofs] if peak else []
    x = _domain([*(level.intensity for level in kernel_levels), *ridges])
    y = _domain([gflops, peak or 4 * gflops])
    axes: dict[str, Any] = {
        "x": alt.X("x:Q", title="operations a byte", scale=_log(x), axis=_axis(x)),
        "y": alt.Y("y:Q", title="GFLOPS", scale=_log(y), axis=_axis(y, grid=True)),
    }
    layers = [_lines(roofs, peak, x, axes), *_names(roofs, peak, x, y, axes), *_points(kernel_levels, gflops, x, axes)]
    described = f"Roofline: {shortly(gflops)} GFLOPS under the roofs of each memory and of the arithmetic"
    return finished(alt.layer(*layers).properties(description=described))


def _domain(values: Sequence[float]) -> Span:
    return min(values) / 6, max(values) * 3


def _log(domain: Span) -> alt.Scale:
    return alt.Scale(type="log", domain=list(domain), nice=False)


def _axis(domain: Span, *, grid: bool = False) -> alt.Axis:
    ticks = [t for t in decades(*domain) if domain[0] <= t <= domain[1]]
    return alt.Axis(values=ticks, format=",~r", grid=grid)


def _lines(roofs: Sequence[Roof], peak: float | None, x: Span, axes: dict[str, Any]) -> alt.Chart:
    """A slanted line for each memory, up to the flat one of the arithmetic."""
    rows = []
    for name, gbs in roofs:
        rows += [{"roof": name, "x": at, "y": at * gbs} for at in (x[0], peak / gbs if peak else x[1])]
    if peak:
        rows += [{"roof": "", "x": at, "y": peak} for at in (peak / roofs[0][1], x[1])]
    lines = alt.Chart(alt.InlineData(values=rows)).mark_line(style="roof", clip=True)
    return lines.encode(**axes, detail="roof:N")


def _names(roofs: Sequence[Roof], peak: float | None, x: Span, y: Span, axes: dict[str, Any]) -> list[alt.Chart]:
    """Name and rate of each roof: left of the fastest of several memories, right of the others, above the arithmetic."""
    drawn = []
    if peak:
        row = {"words": f"arithmetic, {peak:,.0f} GFLOPS", "x": x[1], "y": peak}
        drawn += haloed(row, axes, align="right", dy=-10)
    for i, (name, gbs) in enumerate(roofs):
        left = i == 0 and len(roofs) > 1
        at = 0.5 * (peak / gbs if peak else x[1]) if left else max(1.7 * y[0] / gbs, x[0])
        place: dict[str, Any] = {"align": "right", "dx": -10, "dy": -12} if left else {"align": "left", "dx": 10}
        drawn += haloed({"words": f"{name}\n{gbs:,.0f} GB/s", "x": at, "y": at * gbs}, axes, **place)
    return drawn


def _points(kernel_levels: Sequence[Level], gflops: float, x: Span, axes: dict[str, Any]) -> list[alt.Chart]:
    """The kernel's point for each memory, joined, with its intensity; labels lie below and above by turns, off the roofs."""
    rows: list[dict[str, Any]] = [
        {"x": level.intensity, "y": gflops, "limits": level.limits, "words": f"{level.short}: {shortly(level.intensity)}",
         "memory": level.name, "operations a byte": shortly(level.intensity), "GFLOPS": shortly(gflops)}
        for level in kernel_levels
    ]  # fmt: skip
    base = alt.Chart(alt.InlineData(values=rows)).encode(**axes)
    drawn = [base.mark_line(style="join")]
    tips = [alt.Tooltip(f"{name}:N") for name in ("memory", "operations a byte", "GFLOPS")]
    for style, rule in (("level", "!datum.limits"), ("limit", "datum.limits")):
        drawn.append(base.transform_filter(rule).mark_point(style=style, size=90).encode(tooltip=tips))
    for i, row in enumerate(rows):
        across = math.log(row["x"] / x[0]) / math.log(x[1] / x[0])
        side = "left" if across < (0.35 if i % 2 else 0.6) else "right"
        place = {"align": side, "dx": 6 if side == "left" else -6, "dy": -16 if i % 2 else 18}
        drawn += haloed(row, axes, style="strong", **place)
    return drawn
