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
    titles = f"{cpu[0].environment['processor']}, {threads(most)}", "NVIDIA H200"
    return [_drawn(zip((host, device), titles, ("GFLOPS", "TFLOPS"), strict=True), path, t) for t in ("light", "dark")]


def _drawn(panels: Iterable[tuple[list[dict[str, Any]], str, str]], path: Path, theme: str) -> Path:
    chart = alt.hconcat(*(_panel(*panel, theme) for panel in panels), spacing=40).properties(
        title=alt.TitleParams("float32, square matrices: higher is faster", offset=14)
    )
    spec = chart.resolve_scale(color="independent", strokeDash="independent").to_dict()
    spec.pop("config", None)
    settings = {**config(theme, {}), "background": INK[theme]["paper"], "padding": 16}
    to = path.with_name(f"{path.stem}{'-dark' if theme == 'dark' else ''}.svg")
    to.write_text(vl_convert.vegalite_to_svg(spec, vl_version=VEGALITE, config=settings), encoding="utf-8")
    return to


def _panel(rows: list[dict[str, Any]], title: str, unit: str, theme: str) -> alt.LayerChart:
    rows = [row for row in rows if row["n"] & (row["n"] - 1) == 0]  # neighbours of a size would make spikes
    greys = GREYS_DARK if theme == "dark" else GREYS_LIGHT
    lines = [line for line in LINES.values() if any(row["line"] == line for row in rows)]
    colour = alt.Scale(domain=lines, range=[OURS.colour(theme), *greys][: len(lines)])
    dash = alt.Scale(domain=lines, range=[OURS.dash, *DASHES][: len(lines)])
    legend = alt.Legend(orient="bottom", columns=2, columnPadding=24, symbolType="stroke", symbolStrokeWidth=2.5)
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        x=alt.X("n:Q", title="n", scale=alt.Scale(type="log", base=2), axis=alt.Axis(format=",d", labelFlush=False)),
        y=alt.Y("rate:Q", title=unit),
        color=alt.Color("line:N", title=None, scale=colour, legend=legend),
    )
    drawn = base.mark_line(strokeWidth=2.5).encode(strokeDash=alt.StrokeDash("line:N", legend=None, scale=dash))
    return (drawn + base.mark_point(filled=True, size=36)).properties(width=330, height=240, title=title)


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
        f"{table(rows)}\n\nGFLOPS of `tw.matmul(a, b, out=c)`, and in brackets R: the time of the fastest of {names}, on "
        f"the same number of threads, divided by ours. Above 1 ours is faster. A question mark means that the samples "
        f"do not decide between ours and OpenBLAS at its best, which uses the fastest of its kernels for this "
        f"processor. Times are medians. {environment['processor']} ({environment['llvm_cpu']} to LLVM), "
        f"{environment['cores']} cores. Record: {linked(CPU)}, made by `{command(environment)}`."
    )
