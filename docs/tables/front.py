"""The README's figure and tables: the library beside its peers at their best."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert
from rich.console import Console

from tilewright.lab.terminal.tables import show_bench
from tilewright.records.report.html import VEGALITE
from tilewright.records.report.palette import DASHES, GREYS_DARK, GREYS_LIGHT, INK, Style, config

from .common import command, linked, records_of, table
from .cpu import beside_the_fastest, threads
from .gpu import gpu_arrays_of

#: The record of the CPU's panel, and that of the GPU's.
CPU, GPU = "cpu-engine", "gpu-matmul-full-h200"
#: Lines of the figure, in the order of the legend, by the kernels of the records.
LINES = {
    "tilewright/matmul": "tilewright.matmul",
    "ref/openblas": "OpenBLAS at its best",
    "ref/openblas_installed": "OpenBLAS as installed",
    "ref/mkl": "MKL",
    "torch.mm": "torch.mm (cuBLAS)",
}
#: What the example of the bench shows.
BENCH, AGAINST = (256, 1000, 4096), "openblas,openblas_installed,mkl"
OUR_LINE = LINES["tilewright/matmul"]
OURS = Style("#b3261e", "#ff7b70", "circle", [1, 0])


def figure(path: Path) -> list[Path]:
    """The figure in both themes: GFLOPS on the CPU and TFLOPS on the GPU over powers of two, in float32."""
    cpu = [r for r in records_of(CPU) if r.dtype == "float32" and r.m == r.n == r.k and r.gflops]
    most = max(r.threads for r in cpu)
    host = [{"n": r.n, "rate": r.gflops, "line": LINES[r.kernel]} for r in cpu if r.threads == most]
    device = [
        {"n": r["n"], "rate": r[rate] / 1000, "line": LINES[line]}
        for r in gpu_arrays_of(GPU)
        if r["dtype"] == "float32"
        for line, rate in (("tilewright/matmul", "gflops"), ("torch.mm", "reference_gflops"))
    ]
    panels = (
        (host, f"{cpu[0].environment['processor']}, {threads(most)}: {_verdict(host)}", "GFLOPS"),
        (device, f"NVIDIA H200: {_verdict(device)}", "TFLOPS"),
    )
    return [_drawn(panels, path, theme) for theme in ("light", "dark")]


def _verdict(rows: list[dict[str, Any]]) -> str:
    """How fast the call is beside the fastest peer at the largest size."""
    largest = max(row["n"] for row in rows)
    rates = {row["line"]: row["rate"] for row in rows if row["n"] == largest}
    ours = rates.pop(OUR_LINE)
    peer = max(rates, key=lambda line: rates[line])
    times = ours / rates[peer]
    name = peer.partition(" ")[0]
    return f"as fast as {name}" if abs(times - 1) < 0.03 else f"{times:.2g} times as fast as {name}"


#: Pixels of a panel, and between two names at the ends of its lines.
PLOT, HEIGHT, APART = 220, 170, 15


def _drawn(panels: Iterable[tuple[list[dict[str, Any]], str, str]], path: Path, theme: str) -> Path:
    """The panels below each other, in a picture that is no wider than a phone."""
    chart = alt.vconcat(*(_panel(*panel, theme) for panel in panels), spacing=26)
    spec = chart.resolve_scale(color="independent", strokeDash="independent").to_dict()
    spec.pop("config", None)
    settings = {**config(theme, {}), "background": INK[theme]["paper"], "padding": 12}
    to = path.with_name(f"{path.stem}{'-dark' if theme == 'dark' else ''}.svg")
    to.write_text(vl_convert.vegalite_to_svg(spec, vl_version=VEGALITE, config=settings), encoding="utf-8")
    return to


def _panel(rows: list[dict[str, Any]], title: str, unit: str, theme: str) -> alt.LayerChart:
    rows = [row for row in rows if row["n"] & (row["n"] - 1) == 0]  # neighbours of a size would make spikes
    greys = GREYS_DARK if theme == "dark" else GREYS_LIGHT
    lines = [line for line in LINES.values() if any(row["line"] == line for row in rows)]
    colour = alt.Scale(domain=lines, range=[OURS.colour(theme), *greys][: len(lines)])
    dash = alt.Scale(domain=lines, range=[OURS.dash, *DASHES][: len(lines)])
    sizes = sorted({row["n"] for row in rows})
    axis = alt.Axis(format=",d", labelFlush=False, values=sizes[::2])
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        x=alt.X("n:Q", title="n (matrices n × n, float32)", scale=alt.Scale(type="log", base=2, nice=False), axis=axis),
        y=alt.Y("rate:Q", title=None, axis=alt.Axis(tickCount=4)),
        color=alt.Color("line:N", title=None, scale=colour, legend=None),
    )
    drawn = base.mark_line(strokeWidth=2.5).encode(strokeDash=alt.StrokeDash("line:N", legend=None, scale=dash))
    layers = drawn + base.mark_point(filled=True, size=36, opacity=1)
    for end in _ends(rows):
        dy = end.pop("dy")
        weight = "bold" if end["line"] == OUR_LINE else "normal"
        name = alt.Chart(alt.InlineData(values=[end])).mark_text(
            align="left", baseline="middle", dx=9, dy=dy, fontSize=12, fontWeight=weight
        )
        layers += name.encode(x="n:Q", y="rate:Q", text="line:N", color=alt.Color("line:N", scale=colour, legend=None))
    head = alt.TitleParams(title, subtitle=f"{unit}: higher is faster", fontSize=13, offset=8)
    return layers.properties(width=PLOT, height=HEIGHT, title=head)


def _ends(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last point of each line, and how far its name is moved down so as not to overlap another name."""
    highest, below, ends = max(row["rate"] for row in rows), float("inf"), []
    last = {row["line"]: row for row in sorted(rows, key=lambda row: row["n"])}
    for row in sorted(last.values(), key=lambda row: (-row["rate"], row["line"] != OUR_LINE)):
        place = HEIGHT * row["rate"] / highest
        below = min(place, below - APART)
        ends.append(row | {"dy": round(place - below)})
    return ends


def bench_output() -> str:
    """What the bench printed for a part of a record, under the command that measures this part."""
    few = [r for r in records_of(CPU) if r.dtype == "float32" and r.threads > 1 and r.m == r.n == r.k and r.n in BENCH]
    out = io.StringIO()
    show_bench(Console(file=out, width=80, no_color=True), few)
    sizes = ",".join(map(str, BENCH))
    head = f"$ tilewright bench matmul --sizes {sizes} --against {AGAINST}"
    shown = out.getvalue().split("\nR: ")[0].rstrip()
    return f"```console\n{head}\n{shown}\n```"


def peers() -> str:
    """Square sizes down, dtypes and threads across: GFLOPS, and R against the fastest peer of each cell."""
    records = [r for r in records_of(CPU) if r.m == r.n == r.k]
    columns = list(dict.fromkeys((r.dtype, r.threads) for r in records))
    rows = [["n", *(f"{dtype}, {threads(count)}" for dtype, count in columns)]]
    for n in dict.fromkeys(r.n for r in records):
        cells = [[r for r in records if (r.n, r.dtype, r.threads) == (n, *column)] for column in columns]
        rows.append([f"{n:,}", *map(beside_the_fastest, cells)])
    environment = records[0].environment
    *most, last = [LINES[k] for k in LINES if any(r.kernel == k for r in records) and k != "tilewright/matmul"]
    names = f"{', '.join(most)} and {last}" if most else last
    return (
        f"{table(rows)}\n\nEach cell has the GFLOPS of `tw.matmul(a, b, out=c)` and, in brackets, the ratio R: the time of "
        f"the fastest library, divided by Tilewright's time on as many threads. The libraries are {names}. If R is above "
        f"1, Tilewright is faster. OpenBLAS at its best uses the fastest of its kernels for this processor. A question "
        f"mark means that the samples do not show whether OpenBLAS at its best or Tilewright is faster.\n\nTimes are "
        f"medians. {environment['processor']}, {environment['cores']} cores. Record: {linked(CPU)}, made by "
        f"`{command(environment)}`."
    )
