"""The page of ``tilewright explain``: what memory accesses a kernel makes, line by line, and what limits it.

The page's sentences say what limits a kernel, what it wastes, whether it is right, and on which GPU it was run. The
charts use named styles, so that one specification serves the light and the dark theme.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt

from ...errors import RecordError
from ..explanation import APPROXIMATELY, Bound, Explanation
from ..unit_counters import UNIT_LABELS
from . import html
from .charts import decades, finished
from .environment import Item, items
from .palette import DARK, INK, LIGHT, config
from .pipeline_section import pipeline_pictures
from .source_view import by_memory, source_view, turns, waste
from .words import digits, duration, finite, shortly, small, with_noun


def render_explanation(explanations: Sequence[Explanation], *, title: str | None = None) -> str:
    """Return the page of explanations as HTML; see ``tilewright.records.report.render_explanation``."""
    explanations = list(explanations)
    if not explanations:
        raise RecordError("explanations is empty: a page needs at least one; make one with `tilewright explain KERNEL`")
    names = labels(explanations)
    specs = [_charts(e) for e in explanations]
    views = [
        _view(e, name, charts, f"e{i}")
        for i, (e, name, charts) in enumerate(zip(explanations, names, specs, strict=True))
    ]
    return html.page(
        "explain.html.j2",
        data={"config": {name: theme(name) for name in ("light", "dark")}, "views": specs},
        script="explain.js",
        styles=["page.css", "explain.css"],
        title=title or explanation_title(explanations),
        lead=comparison(explanations, names) if len(views) > 1 else views[0]["headline"],
        fastest=max((view["totals"]["gflops"] or 0 for view in views), default=0),
        of_products=any(e.is_product for e in explanations),
        views=views,
    )


def write_explanation(explanations: Sequence[Explanation], path: str | Path, *, title: str | None = None) -> Path:
    """Write the page of explanations to a file; see ``tilewright.records.report.write_explanation``."""
    return html.write_whole(render_explanation(explanations, title=title), path)


def _charts(e: Explanation) -> dict[str, Any]:
    """Name → specification of each chart that this explanation has data for."""
    charts = {
        "roofline": roofline(e),
        "registers": occupancy_chart(e, "registers"),
        "shared": occupancy_chart(e, "shared"),
    }
    return {name: spec for name, spec in charts.items() if spec is not None}


def _view(e: Explanation, name: str, specs: dict[str, Any], ident: str) -> dict[str, Any]:
    """What the template needs of one explanation."""
    return {
        "id": ident,
        "name": name,
        "idea": str(e.about.get("idea") or ""),
        "headline": headline(e),
        "verdict": verdict(e),
        "reason_without_rate": e.reason_without_rate,
        "file": e.file,
        "printed": e.printed,
        "source": source_view(e, ident),
        "pipeline": pipeline_pictures(e.pipeline, f"{ident}-pipeline"),
        "defects": e.defects,
        "advice": [each.sentence(duration) for each in e.advice if not each.line],
        "totals": totals_row(e),
        "bars": bars(e),
        "predicted": time_part_rows(e),
        "time": duration(e.predicted_seconds) if e.predicted_seconds else "",
        "levels": [(level.name, shortly(level.intensity), level.is_limit) for level in memory_levels(e)],
        "counters": counters(e),
        "measured": e.measured is not None,
        "formulas": formulas(e),
        "occupancy": occupancy_sentence(e),
        "limits": occupancy_limits(e),
        "charts": list(specs),
        "facts": facts(e),
        "notes": e.notes,
    }


# ---- tables of counters and formulas ---------------------------------------------------------------------------------
# What was counted, next to the value of a formula or the measurement of a GPU.


_OPS = {
    "ld": "loads", "st": "stores", "atom": "atomics", "red": "reductions", "ldgsts": "asynchronous copies",
    "ldsm": "matrix loads", "stsm": "matrix stores",
}  # fmt: skip
#: Part of a counter's name → the quantity that it counts.
_WHAT = {
    "t_requests_": "requests: instructions, counted per warp",
    "inst_executed_op_": "requests: instructions, counted per warp",
    "t_sectors_": "sectors: 32 bytes moved each",
    "data_bytes_mem_": "bytes asked for",
    "wavefronts_mem_": "wavefronts: turns of the 32 banks",
    "data_bank_conflicts_": "bank conflicts: additional turns",
}


@dataclass(frozen=True)
class CounterRow:
    """A row of the table of counters or of formulas: two numbers, of which the ``second`` is compared with the
    ``first``. ``match`` is ✓, a difference, or empty if there is nothing to compare."""

    name: str
    words: str
    text: str
    first: str
    second: str
    match: str

    @property
    def agrees(self) -> bool:
        """Whether there is no difference."""
        return self.match in ("", "✓")


def counters(explanation: Explanation) -> list[CounterRow]:
    """Return a row of the table for each counter.

    ``first`` is the microscope's count, and ``second`` is the count that a GPU measured. Counters without a count of
    the microscope come last.
    """
    measured = (explanation.measured or {}).get("counters") or {}
    names = dict.fromkeys([*explanation.counters, *measured])
    return [
        CounterRow(name, counter_words(name), "", *_marked(name, explanation, measured.get(name))) for name in names
    ]


def _marked(name: str, explanation: Explanation, measured: Any) -> tuple[str, str, str]:
    """``_compared`` of a counter; a count that is not exact is marked."""
    counted, found, match = _compared(explanation.counters.get(name), measured)
    return f"{APPROXIMATELY} {counted}" if name in explanation.approximate else counted, found, match


def formulas(explanation: Explanation) -> list[CounterRow]:
    """Return a row of the table for each formula.

    ``first`` is the formula's value, and ``second`` the microscope's count.
    """
    return [CounterRow(f.row, f.what, f.text, *_compared(f.value, f.counted)) for f in explanation.formulas]


def _compared(first: Any, second: Any) -> tuple[str, str, str]:
    a, b = finite(first), finite(second)
    return _number(a), _number(b), _match(a, b)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) else shortly(value)


def _match(first: float | None, second: float | None) -> str:
    """✓, or by how much the second differs from the first.

    >>> _match(40960, 40960), _match(40960, 42000), _match(40960, 40961), _match(100, 660), _match(0, 3)
    ('✓', '+2.5%', '+1', '×6.6', '+3')
    """
    if first is None or second is None:
        return ""
    if first == second:
        return "✓"
    if not first or abs(second - first) < 0.0005 * abs(first):
        return f"{second - first:+,g}"
    ratio = second / first
    return f"{ratio - 1:+.1%}" if 0.5 < ratio < 2 else f"×{shortly(ratio)}"


def counter_words(name: str) -> str:
    """Return a hardware counter's name in words, or an empty text for an unknown counter.

    >>> counter_words("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum")
    'global loads, sectors: 32 bytes moved each'
    >>> counter_words("dram__bytes_read.sum")
    ''
    """
    if name in UNIT_LABELS:
        return UNIT_LABELS[name]
    what = next((words for part, words in _WHAT.items() if part in name), "")
    found = re.search(r"_(?:mem|op)_(?P<space>global|local|shared)(?:(?:_op)?_(?P<op>[a-z]+))?\.sum$", name)
    if not what:
        return ""
    if found is None:  # cp.async and matrix loads have instruction counters of their own
        own = re.search(r"_op_(ldgsts|ldsm|stsm)\.sum$", name)
        return f"shared {_OPS[own[1]]}, {what}" if own else ""
    if found["op"] is None:
        return f"{found['space']} memory, all accesses, {what.split(':')[0].removeprefix('bank ')}"
    return f"{found['space']} {_OPS.get(found['op'], found['op'])}, {what}"


# ---- facts -----------------------------------------------------------------------------------------------------------
# The comparison of several kernels, the bounds, and the facts of launch, resources and GPU.


def totals_row(e: Explanation) -> dict[str, Any]:
    """Return a row of the table that compares kernels: sums over all accesses, and these sums divided by the
    multiply-adds."""
    sectors, wavefronts = sum(a.sectors for a in e.accesses), sum(a.wavefronts for a in e.accesses)
    steps = e.m * e.n * e.k
    warps, most = finite(e.occupancy.get("warps")), finite(e.occupancy.get("max_warps"))
    used = sum(map(turns, e.accesses))
    return {
        "shape": shape_words(e),
        "sectors": f"{sectors:,}",
        "sectors_each": shortly(sectors / steps) if steps else "",
        "wavefronts": f"{wavefronts:,}",
        "wavefronts_each": shortly(wavefronts / steps) if steps else "",
        "wasted": f"{sum(map(waste, e.accesses)) / used:.0%}" if used else "–",
        "bound": "–" if e.reason_without_rate else e.bound.name if e.bound else "not known",
        "gflops": finite(e.gflops),
        "rate": _at_best(e),
        "occupancy": f"{warps / most:.0%}" if warps is not None and most else "–",
        "wrong": _wrong(e),
    }


def _wrong(e: Explanation) -> str:
    """What is wrong, in a few words; empty where nothing is."""
    words = [with_noun(len(e.defects), "defect")] if e.defects else []
    if e.verified.get("ok") is False:
        words.append("wrong result")
    if e.run.get("complete") is False:
        words.append("stopped")
    return ", ".join([*words, *([] if e.launchable else ["cannot be launched"])])


def bars(e: Explanation) -> list[dict[str, Any]]:
    """Return a bar for each bound, the longest time first, with its length in percent of the longest bar. The list is
    empty if no time is predicted."""
    ordered = sorted([] if e.reason_without_rate else e.bounds, key=lambda bound: -bound.seconds)
    longest = ordered[0].seconds if ordered else 0
    return [
        {
            "name": bound.name,
            "time": duration(bound.seconds),
            "rate": f"{digits(e.flops / bound.seconds / 1e9)} GFLOPS" if bound.seconds and e.is_product else "",
            "words": f"{shortly(bound.amount)} {bound.unit} at {_rate(bound.rate, bound.unit)}",
            "width": round(100 * bound.seconds / longest, 2) if longest else 0,
        }
        for bound in ordered
    ]


def time_part_rows(e: Explanation) -> list[dict[str, Any]]:
    """Return the parts of the predicted time in their order, each with its percentage of the whole time. The list is
    empty if no time is predicted."""
    if not (whole := e.predicted_seconds):
        return []
    return [
        {
            "name": part.name,
            "time": duration(part.seconds),
            "words": part.because,
            "width": round(100 * part.seconds / whole, 2),
        }
        for part in e.predicted
    ]


def _rate(rate: float, unit: str) -> str:
    """A rate with its unit.

    >>> _rate(4.8e12, "bytes"), _rate(2.6136e11, "turns"), _rate(6.69e13, "operations")
    ('4,800 GB/s', '261 billion a second', '66,900 GFLOPS')
    """
    if unit == "bytes":
        return f"{shortly(rate / 1e9)} GB/s"
    return f"{shortly(rate / 1e9)} " + ("GFLOPS" if unit == "operations" else "billion a second")


#: Environment keys that say how the explanation was made; the others describe the machine.
_MADE = ("command", "compiler", "arch", "tilewright", "git", "time", "operands")


def facts(e: Explanation) -> list[tuple[str, tuple[Item, ...]]]:
    """Return the facts of an explanation in groups with headings: launch, resources, GPU, and how the explanation was
    made. Unknown facts are left out."""
    measured = (e.measured or {}).get("environment") or {}
    made = {key: e.environment[key] for key in _MADE if key in e.environment}
    listed = [
        ("Launch", _launch(e)),
        ("Resources", _resources(e)),
        ("GPU", _gpu(e)),
        ("How this was made", {**made, "simulated in": _seconds(e.run.get("seconds"))}),
        ("What it was measured on", measured if isinstance(measured, dict) else {}),
        ("What it was simulated on", {k: v for k, v in e.environment.items() if k not in _MADE}),
    ]
    return [(head, found) for head, values in listed if (found := items(values))]


def _launch(e: Explanation) -> dict[str, Any]:
    blocks, threads = _counted(e.launch.get("blocks"), "block"), _counted(e.launch.get("threads"), "thread")
    return {
        "grid": _extent(e.launch.get("grid"), "blocks"),
        "block": _extent(e.launch.get("block"), "threads"),
        "in all": f"{blocks} of {threads}" if blocks and threads else "",
        "dynamic shared memory": _counted(e.launch.get("shared_bytes"), "byte", " per block"),
        "parameters": ", ".join(f"{name} = {value}" for name, value in e.params.items()),
        "dtype": e.dtype,
    }


def _resources(e: Explanation) -> dict[str, Any]:
    resources = e.resources
    return {
        "registers": _counted(resources.get("registers"), "register", " per thread"),
        "static shared memory": _counted(resources.get("shared_bytes"), "byte", " per block"),
        "local memory": _counted(resources.get("local_bytes"), "byte", " per thread"),
        "largest block": _counted(resources.get("max_threads"), "thread"),
    }


def _gpu(e: Explanation) -> dict[str, Any]:
    peak, bandwidth, clock = (finite(e.gpu.get(key)) for key in ("peak_gflops", "bandwidth_gbs", "clock_mhz"))
    return {
        "name": e.gpu.get("name"),
        "compute capability": e.gpu.get("compute_capability"),
        "multiprocessors": e.gpu.get("sms"),
        "clock": f"{clock:,.0f} MHz" if clock else "",
        "arithmetic": f"{peak:,.0f} GFLOPS of {e.dtype}" if peak else "",
        "device memory": f"{bandwidth:,.0f} GB/s" if bandwidth else "",
    }


def _extent(sizes: Any, noun: str) -> str:
    return f"{' × '.join(map(str, sizes))} {noun}" if sizes else ""


def _counted(value: Any, noun: str, of: str = "") -> str:
    known = finite(value)
    return "" if known is None else with_noun(int(known), noun) + of


def _seconds(value: Any) -> str:
    known = finite(value)
    return duration(known) if known else ""


def occupancy_limits(e: Explanation) -> list[dict[str, Any]]:
    """Return, for each resource, the number of blocks that it alone would allow, and whether it limits the number of
    blocks."""
    limiting = e.occupancy.get("limiting") or []
    return [
        {
            "name": RESOURCES.get(name, str(name)),
            "words": "not used" if finite(value) is None else with_noun(int(value), "block"),
            "is_limit": name in limiting,
        }
        for name, value in (e.occupancy.get("limits") or {}).items()
    ]


# ---- occupancy chart -------------------------------------------------------------------------------------------------
# How many warps would be resident if the kernel needed more or less of a resource, as a Vega-Lite specification.


KIB = 1024

#: For each resource, the title of its axis, and how many registers or bytes are one unit on it.
AXES = {"registers": ("registers per thread", 1), "shared": ("KiB of shared memory per block", KIB)}


def occupancy_chart(explanation: Explanation, resource: str) -> dict[str, Any] | None:
    """Return the chart of resident warps over ``resource``: "registers" of a thread, or "shared" memory of a block. The
    chart marks the number of registers or bytes that the kernel uses. Returns None if the explanation has no data for
    this chart."""
    title, unit = AXES[resource]
    curve = [(finite(at), finite(warps)) for at, warps in explanation.occupancy.get(f"by_{resource}") or []]
    rows = [{"x": at / unit, "y": warps} for at, warps in curve if at is not None and warps is not None]
    if len(rows) < 2:
        return None
    rows.insert(0, {"x": 0.0, "y": rows[0]["y"]})  # a smaller need never lowers the number of warps
    end = rows[-1]["x"]
    most = finite(explanation.occupancy.get("max_warps")) or max(row["y"] for row in rows)
    across = alt.Scale(domain=[0, end], nice=False)
    up = alt.Scale(domain=[0, most * 1.15], nice=False)
    quarters = alt.Axis(values=[most * part / 4 for part in range(5)])
    axes: dict[str, Any] = {
        "x": alt.X("x:Q", title=title, scale=across, axis=alt.Axis(tickCount=6)),
        "y": alt.Y("y:Q", title=None, scale=up, axis=quarters),
    }
    base = alt.Chart(alt.InlineData(values=rows)).encode(**axes)
    # Resources are allocated in whole units: the warps at a value hold for every need between the previous value and it.
    layers = [base.mark_area(style="area", interpolate="step-before", clip=True),
              base.mark_line(style="curve", interpolate="step-before", clip=True)]  # fmt: skip
    taken, warps = _taken(explanation, resource), finite(explanation.occupancy.get("warps"))
    if taken is not None and warps is not None:
        words = f"{shortly(taken / unit)} {'KiB' if resource == 'shared' else 'registers'}, {shortly(warps)} warps"
        row: dict[str, Any] = {"x": taken / unit, "y": warps, "words": words}
        side: dict[str, Any] = {"align": "right", "dx": 4} if row["x"] > end / 2 else {"align": "left", "dx": -4}
        marked = alt.Chart(alt.InlineData(values=[row])).encode(**axes)
        layers += [marked.mark_point(style="limit", size=80), *haloed(row, axes, "strong", dy=-16, **side)]
    return finished(alt.layer(*layers).properties(description=f"Resident warps over {title}"))


def _taken(explanation: Explanation, resource: str) -> float | None:
    """Registers a thread, or bytes of shared memory a block, static and dynamic."""
    if resource == "registers":
        return finite(explanation.resources.get("registers"))
    parts = [finite(of.get("shared_bytes")) for of in (explanation.resources, explanation.launch)]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


# ---- roofline --------------------------------------------------------------------------------------------------------
# The roofline of one explanation, as a Vega-Lite specification.
#
# A roof is what a memory's rate allows at an intensity, in operations for each byte that the kernel moves through that
# memory. The kernel has one rate, and another intensity for each memory, so that its points lie side by side: the point
# that lies on its memory's roof is the limit.


#: Bytes per unit of a bound. A bound whose unit is not here is not a memory.
BYTES = {"bytes": 1, "sectors": 32, "turns": 128, "wavefronts": 128}

#: A memory's name and its GB/s.
Roof = tuple[str, float]
#: The ends of an axis.
Span = tuple[float, float]

#: Two intensities that differ by less than this factor look like one point.
DISTINCT_FACTOR = 1.5


@dataclass(frozen=True)
class Level:
    """The kernel's intensity at one level of memory, in operations per byte, and the level's GB/s (None if it has no
    roof)."""

    name: str
    intensity: float
    gbs: float | None = None
    is_limit: bool = False

    @property
    def short(self) -> str:
        """The first part of a level's name that lists several memories.

        >>> Level("L1 cache and shared memory", 0.4).short
        'L1 cache'
        """
        return self.name.split(",")[0].split(" and ")[0]


def memory_levels(explanation: Explanation) -> list[Level]:
    """Return a level of memory for each bound that counts bytes, sorted by rising intensity.

    The L1 bound counts more bytes than the requested sectors have if it includes accesses to shared memory, or if
    requests do not fill a wavefront. If the intensity of the requested sectors differs from that of every other level
    by more than the factor DISTINCT_FACTOR, the requested sectors are a level of their own, without a roof.
    """
    found = [
        Level(
            bound.name, explanation.flops / (bound.amount * size), bound.rate * size / 1e9, bound == explanation.bound
        )
        for bound in explanation.bounds
        if (size := BYTES.get(bound.unit)) and bound.amount > 0 and bound.rate > 0 and explanation.flops
    ]
    if sectors := sum(access.sectors for access in explanation.accesses):
        requested = explanation.flops / (BYTES["sectors"] * sectors)
        if requested and all(
            max(requested, level.intensity) > DISTINCT_FACTOR * min(requested, level.intensity) for level in found
        ):
            found.append(Level("requested sectors", requested))
    return sorted(found, key=lambda level: level.intensity)


def arithmetic_bound(explanation: Explanation) -> Bound | None:
    """Return the bound that arithmetic sets, which counts operations."""
    return next((b for b in explanation.bounds if b.unit == "operations" and b.rate > 0), None)


def roofline(explanation: Explanation) -> dict[str, Any] | None:
    """Return the roofline chart, with both axes logarithmic, or None if the GPU's rates are not known."""
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
        "x": alt.X("x:Q", title="operations per byte", scale=_log(x), axis=_axis(x)),
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
    """A slanted line for each memory, up to the horizontal line of peak arithmetic."""
    rows = []
    for name, gbs in roofs:
        rows += [{"roof": name, "x": at, "y": at * gbs} for at in (x[0], peak / gbs if peak else x[1])]
    if peak:
        rows += [{"roof": "", "x": at, "y": peak} for at in (peak / roofs[0][1], x[1])]
    lines = alt.Chart(alt.InlineData(values=rows)).mark_line(style="roof", clip=True)
    return lines.encode(**axes, detail="roof:N")


def _names(roofs: Sequence[Roof], peak: float | None, x: Span, y: Span, axes: dict[str, Any]) -> list[alt.Chart]:
    """Name and rate of each roof: left of the fastest memory if there are several, right of the others, above the
    arithmetic."""
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
    """The kernel's point for each memory, joined, with its intensity; labels alternate below and above, so that they do not
    cover the roofs."""
    rows: list[dict[str, Any]] = [
        {"x": level.intensity, "y": gflops, "limits": level.is_limit, "words": f"{level.short}: {shortly(level.intensity)}",
         "memory": level.name, "operations per byte": shortly(level.intensity), "GFLOPS": shortly(gflops)}
        for level in kernel_levels
    ]  # fmt: skip
    base = alt.Chart(alt.InlineData(values=rows)).encode(**axes)
    drawn = [base.mark_line(style="join")]
    tips = [alt.Tooltip(f"{name}:N") for name in ("memory", "operations per byte", "GFLOPS")]
    for style, rule in (("level", "!datum.limits"), ("limit", "datum.limits")):
        drawn.append(base.transform_filter(rule).mark_point(style=style, size=90).encode(tooltip=tips))
    for i, row in enumerate(rows):
        across = math.log(row["x"] / x[0]) / math.log(x[1] / x[0])
        side = "left" if across < (0.35 if i % 2 else 0.6) else "right"
        place = {"align": side, "dx": 6 if side == "left" else -6, "dy": -16 if i % 2 else 18}
        drawn += haloed(row, axes, style="strong", **place)
    return drawn


def _at_best(e: Explanation) -> str:
    """The highest rate of a product, or the least time of another kernel, that the slowest resource allows."""
    if e.is_product:
        return digits(e.gflops) if finite(e.gflops) and e.gflops else "–"
    return duration(e.bound.seconds) if e.bound and not e.reason_without_rate else "–"


# ---- sentences -------------------------------------------------------------------------------------------------------


def gpu_name(explanation: Explanation) -> str:
    """Return the name of the GPU for which the explanation was made."""
    return str(explanation.gpu.get("name") or "an unnamed GPU")


def shape_words(explanation: Explanation) -> str:
    """Return the shape of a product as M × N × K, or the blocks and threads of a kernel that is no product."""
    return explanation.shape.replace("x", " × ") if explanation.is_product else explanation.shape


def labels(explanations: Sequence[Explanation]) -> list[str]:
    """Return the shortest names that distinguish the explanations: the kernel, and if necessary its size, GPU and
    parameters."""

    def parts(e: Explanation) -> tuple[str, ...]:
        params = ", ".join(f"{name} {value}" for name, value in e.params.items())
        return e.name, f"at {shape_words(e)}", f"on {gpu_name(e)}", f"with {params}" if params else "", e.dtype

    found = [parts(e) for e in explanations]
    distinguishing = [
        0,
        *(i for i in range(1, 5) if len({p[i] for p in found}) > 1 and not _unique([p[:i] for p in found])),
    ]
    names = [" ".join(p[i] for i in distinguishing if p[i]) for p in found]
    seen: Counter[str] = Counter()
    for i, name in enumerate(names):
        seen[name] += 1
        names[i] = f"{name} ({seen[name]})" if seen[name] > 1 else name
    return names


def _unique(items: Sequence[Any]) -> bool:
    return len(set(items)) == len(items)


def explanation_title(explanations: Sequence[Explanation]) -> str:
    """The title of the page."""
    gpus = list(dict.fromkeys(map(gpu_name, explanations)))
    names = {e.name for e in explanations}
    what = names.pop() if len(names) == 1 else f"{len(explanations)} kernels"
    return f"What limits {what} on {gpus[0] if len(gpus) == 1 else f'{len(gpus)} GPUs'}"


def headline(e: Explanation) -> str:
    """Return one sentence: what limits the kernel, the rate that this allows, and what the kernel wastes."""
    where = f"{e.name} at {shape_words(e)} on {gpu_name(e)}"
    bound, gflops = e.bound, finite(e.gflops)
    if e.is_product and not e.flops:
        return f"{where}: there is nothing to multiply."
    if e.reason_without_rate:
        return f"{where}: no rate is given, because {e.reason_without_rate}{_waste(e)}."
    if bound and not e.is_product:
        return f"{where}: at best {duration(bound.seconds)}, held back by {bound.name}{_waste(e)}."
    if bound is None or not gflops:
        return f"{where}: this GPU’s rates are not known, so no time is predicted{_waste(e)}."
    peak = finite(e.gpu.get("peak_gflops"))
    share = f", {_percent(gflops / peak)} of the arithmetic peak" if peak and bound.unit != "operations" else ""
    rate = f"{digits(gflops)} GFLOPS ({duration(bound.seconds)}{share})"
    return f"{where}: at best {rate}, held back by {bound.name}{_waste(e)}."


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.095 else f"{share:.1%}"


def _waste(e: Explanation) -> str:
    """The line that wastes most; empty where no accesses are known."""
    if not e.accesses:
        return ""
    worst = max(by_memory(e.accesses), key=lambda access: (waste(access), access.cost - access.least))
    if not worst.cost > worst.least > 0:
        return "; no access moves more than its bytes need"
    verb = "takes" if worst.space == "shared" else "moves"
    return f"; {worst.place} {verb} {shortly(worst.cost / worst.least)} times as many {worst.unit} as necessary"


def comparison(explanations: Sequence[Explanation], names: Sequence[str]) -> str:
    """Return the headline of several kernels of one size: which kernel has the highest bound on its rate, and which the
    lowest."""
    rated = [(rate, e, name) for e, name in zip(explanations, names, strict=True) if (rate := finite(e.gflops))]
    if len({e.shape for _, e, _ in rated}) > 1:
        return "The sizes differ. A larger product keeps more of the GPU busy, so the rates are not compared."
    if not any(e.is_product for e in explanations):
        return f"{len(explanations)} launches of kernels that are not matrix products. The table has the least time of each."
    if len(rated) < 2:
        return " ".join(headline(e) for e in explanations[:1])
    best, worst = max(rated, key=lambda r: r[0]), min(rated, key=lambda r: r[0])
    named = [name for _, _, name in (best, worst)]
    bounds = [e.bound.name if e.bound else "" for _, e, _ in (best, worst)]
    first = f"{named[0]} has the highest bound: {digits(best[0])} GFLOPS, held back by {bounds[0]}."
    if best[0] == worst[0]:
        return f"{first} All others have the same bound."
    by = "the same resource" if bounds[0] == bounds[1] else bounds[1]
    times = shortly(best[0] / worst[0])
    return f"{first} This is {times} times the bound of {named[1]}, {digits(worst[0])} GFLOPS, held back by {by}."


@dataclass(frozen=True)
class Verdict:
    """Sentences that say whether the result is right, which defects were found and what was run.

    Each sentence has a flag that says whether it reports a fault.
    """

    sentences: tuple[tuple[str, bool], ...]

    @property
    def words(self) -> str:
        """All sentences."""
        return " ".join(text for text, _ in self.sentences)

    @property
    def bad(self) -> bool:
        """Whether anything is wrong."""
        return any(bad for _, bad in self.sentences)


def verdict(e: Explanation) -> Verdict:
    """Return sentences that say whether the kernel is right, which defects were found, and what was run."""
    kinds = Counter(defect.kind for defect in e.defects)
    wrong = e.verified.get("ok") is False
    error = finite(e.verified.get("error_over_bound"))
    reason = f": {e.verified['reason']}" if e.verified.get("reason") else ""
    if wrong:
        result = f"The result is wrong{reason}" + (f" (error {small(error)} times the bound)" if error else "")
    elif e.verified.get("ok"):
        of = f" in {e.verified['of']}" if e.verified.get("of") else ""
        result = f"The result is verified{of}" + (
            f", with an error of {small(error)} of the bound" if error is not None else ""
        )
    else:
        result = f"The result was not verified{reason}"
    seen = "Defects: " + ", ".join(f"{n} × {kind}" for kind, n in kinds.items()) if kinds else "No defect was found"
    parts = ((result, wrong), (seen, bool(kinds)), (run_words(e), False))
    return Verdict(tuple((f"{text.rstrip('.')}.", bad) for text, bad in parts if text))


def run_words(e: Explanation) -> str:
    """Return a sentence that says how much of the launch was run to count its accesses."""
    words = str(e.run.get("words") or "")
    return f"Counts are estimates: {words}" if e.run.get("exact") is False else words[:1].upper() + words[1:]


#: Resources of a multiprocessor in words.
RESOURCES = {"threads": "threads", "registers": "registers", "shared": "shared memory", "blocks": "the most blocks"}


def occupancy_sentence(e: Explanation) -> str:
    """Return a sentence that says how many warps are resident, and what limits them."""
    o = e.occupancy
    warps, most = finite(o.get("warps")), finite(o.get("max_warps"))
    if warps is None or not most:
        return "The occupancy is not known for this GPU."
    limiting = [RESOURCES.get(name, str(name)) for name in o.get("limiting") or []]
    because = f", limited by {' and '.join(limiting)}" if limiting else ""
    if not warps:
        return f"This launch does not fit a multiprocessor{because}."
    blocks = finite(o.get("blocks")) or 0
    held = f"{with_noun(int(blocks), 'block')} on each multiprocessor"
    return f"{warps:.0f} of {most:.0f} warps are resident ({warps / most:.0%}): {held}{because}."


# ---- how charts look -------------------------------------------------------------------------------------------------


def theme(name: str) -> dict[str, Any]:
    """Return Vega-Lite's configuration of a theme, with styles for roofs, for the limiting point, for other points, and
    for curves."""
    settings = config(name, {})
    ink, asked = INK[name], (DARK if name == "dark" else LIGHT)[0]
    settings["style"] |= {
        "roof": {"color": ink["ink"], "strokeWidth": 1.6},
        "join": {"color": ink["faint"], "strokeWidth": 1, "strokeDash": [2, 3]},
        "limit": {"color": ink["accent"], "filled": True, "opacity": 1},
        "level": {"color": ink["ink"], "filled": False, "strokeWidth": 2, "opacity": 1},
        "curve": {"color": asked, "strokeWidth": 2},
        "area": {"color": asked, "opacity": 0.1},
        "strong": {"color": ink["ink"], "fontWeight": 600},
    }
    return settings


def haloed(row: dict[str, Any], axes: dict[str, Any], style: str = "", **place: Any) -> list[alt.Chart]:
    """Return charts that draw the text ``words`` of a row, with a halo of the paper's colour so that lines may run
    behind it."""
    base = alt.Chart(alt.InlineData(values=[row])).encode(**axes, text="words:N")
    place = {"lineBreak": "\n", "baseline": "middle", **place}
    front = {**place, "style": style} if style else place
    return [base.mark_text(**{**place, "style": "halo"}), base.mark_text(**front)]
