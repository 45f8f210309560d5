"""Records as tables for a terminal of 80 columns."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ...records.bench import VERDICTS, BenchRecord
from ...records.compare import Comparison, is_unclear
from ...records.report.findings import busy_machine
from ...records.report.views import params_text, varied

#: The mark in a cell without a time; ``VERDICTS`` has its meaning.
_MARKS = {"wrong": "WRONG", "time_limit": "limit", "out_of_memory": "memory", "unsupported": "n/a"}


def show_bench(console: Console, records: Sequence[BenchRecord]) -> None:
    """Print a table for each dtype and precision: a row per kernel, a column per size, with GFLOPS and R in each cell.

    A kernel measured with several values of a parameter has a line for each, with the values after its name. A legend
    explains the marks. The first line says if the machine was busy.
    """
    swept = varied(records)
    if busy := busy_machine(records):
        console.print(busy, style="bold yellow", highlight=False, markup=False)
    for dtype, of_dtype in _grouped(records, lambda r: r.dtype + f", {r.precision}" * (r.precision != "standard")):
        ratio = ", and R beside it" if any(r.ratio is not None for r in of_dtype) else ""
        console.print(f"{dtype}: GFLOPS{ratio}", style="italic", highlight=False, markup=False)
        heads, columns = _bench_columns(of_dtype, swept)
        shapes = list(columns)
        while shapes:
            across = _fitting(shapes, columns, console.width - Text.from_markup(heads[0]).cell_len)
            table = Table(box=None, pad_edge=False)
            table.add_column(heads[0], no_wrap=True)
            for shape in shapes[:across]:
                table.add_column(shape, justify="right", no_wrap=True)
            for row in zip(heads[1:], *(columns[shape] for shape in shapes[:across]), strict=True):
                table.add_row(*row)
            console.print(table, highlight=False)
            shapes = shapes[across:]
    _show_legend(console, records, swept)


def _bench_columns(
    records: Sequence[BenchRecord], swept: Mapping[str, Sequence[str]]
) -> tuple[list[str], dict[str, list[str]]]:
    """The first column, its heading included, and the cells of each shape."""
    cells = {(_name(r, swept), r.threads, r.shape): r for r in records}
    rows = list(dict.fromkeys((_name(r, swept), r.threads) for r in sorted(records, key=_reading_order)))
    shapes = dict.fromkeys(r.shape for r in sorted(records, key=lambda r: not r.m == r.n == r.k))
    best = {s: max((r.gflops or 0 for r in records if r.shape == s), default=0) for s in shapes}
    width = max(len(name) for name, _ in rows)
    counted = any(r.device == "cpu" for r in records)  # on a GPU there is no number of threads to show
    heads = [f"{'kernel':{width}}" + " thr" * counted]
    heads += [escape(f"{name:{width}}") + f" {threads:3}" * counted for name, threads in rows]
    ratio_width = max((len(_ratio(r)) for r in records if r.ratio is not None), default=0)
    columns = {s: [_cell(cells.get((*row, s)), best, ratio_width) for row in rows] for s in shapes}
    return heads, columns


def _fitting(shapes: Sequence[str], columns: dict[str, list[str]], room: int) -> int:
    """How many of the shapes fit side by side; at least one."""
    for count, shape in enumerate(shapes):
        room -= 2 + max(len(shape), *(Text.from_markup(cell).cell_len for cell in columns[shape]))
        if room < 0:
            return max(1, count)
    return len(shapes)


def _reading_order(record: BenchRecord) -> tuple[bool, int, str, int]:
    return (record.kernel.startswith("ref/"), record.about.get("order") or 0, record.kernel, record.threads)


def _cell(record: BenchRecord | None, best: dict[str, float], ratio_width: int) -> str:
    if record is None:
        return ""
    if record.gflops is None:
        mark = _MARKS.get(record.verdict, record.verdict)
        return f"[bold red]{mark}[/]" if record.verdict == "wrong" else f"[dim]{mark}[/]"
    rate = f"{record.gflops:,.{1 if record.gflops < 99.95 else 0}f}"
    if record.gflops == best[record.shape]:
        rate = f"[bold]{rate}[/]"
    if not ratio_width:
        return rate
    return f"{rate} [dim]{_ratio(record):>{ratio_width}}[/]"


def _ratio(record: BenchRecord) -> str:
    """R; "?" where its samples are too scattered to say whether the kernel is faster, slower or the same."""
    if record.ratio is None:
        return "–"
    return "?" if is_unclear(record) else f"{record.ratio:.2f}"


def _name(record: BenchRecord, swept: Mapping[str, Sequence[str]]) -> str:
    """The kernel, and the parameters in which its rows differ."""
    return f"{record.kernel} {params_text(record, swept.get(record.kernel, ()))}".rstrip()


def _chosen(records: Sequence[BenchRecord], swept: Mapping[str, Sequence[str]]) -> list[str]:
    """A line for each kernel that chose different parameters at different sizes; kernels in ``swept`` are left out."""
    lines = []
    for kernel, of in _grouped(records, lambda r: r.kernel):
        names = dict.fromkeys(name for r in of for name in r.params)
        differing = [name for name in names if len({r.params.get(name) for r in of}) > 1]
        if differing and kernel not in swept:
            shapes: dict[str, dict[str, None]] = {}
            for r in of:
                shapes.setdefault(params_text(r, differing), {})[r.shape] = None
            lines.append(f"{kernel}: " + "; ".join(f"{words} at {', '.join(at)}" for words, at in shapes.items()))
    return lines


def _show_legend(console: Console, records: Sequence[BenchRecord], swept: Mapping[str, Sequence[str]]) -> None:
    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False)

    reference = next((r.reference for r in records if r.reference), None)
    if reference:
        equal = ", on equal threads" if any(r.device == "cpu" for r in records) else ""
        say(f"R: {reference}'s time over the kernel's{equal}; above 1 is faster.")
        if unclear := [r for r in records if r.ratio is not None and _ratio(r) == "?"]:
            where = f"{len(unclear)} of {len(records)} cells, for example {_place(unclear[0], swept)}"
            say(f"?: UNCLEAR: samples are too few or too scattered, or the machine was busy ({where}).")
    if timed := [r for r in records if r.samples_s and r.peak_fraction and r.peak_gflops]:
        best = max(timed, key=lambda r: r.peak_fraction or 0)
        where = _place(best, swept)
        if (best.peak_fraction or 0) > 1.05:
            peak = f"measured peak of {best.peak_gflops:.0f} GFLOPS"
            say(f"Best: {where} is faster than the {peak}: the machine was probably busy when it was measured.")
        else:
            say(f"Best: {where} reaches {best.peak_fraction:.0%} of the measured {best.peak_gflops:.0f} GFLOPS.")
        spread = {_place(r, swept): max(r.samples_s) / min(r.samples_s) - 1 for r in timed if min(r.samples_s) > 0}
        worst = max(spread, key=lambda place: spread[place])
        middle = statistics.median(spread.values())
        say(f"Spread, slowest sample over fastest: {middle:.0%} in the median, {spread[worst]:.0%} for {worst}.")
    for verdict, mark in _MARKS.items():
        if first := next((r for r in records if r.verdict == verdict), None):
            why = first.reason.strip().splitlines()
            say(f"{mark}: {VERDICTS[verdict]}" + (f", such as {_place(first, swept)}: {why[0]}" if why else ""))
    for line in _chosen(records, swept):
        say(line)
    if throttled := [r for r in records if r.environment.get("throttled")]:
        reasons = sorted({reason for r in throttled for reason in str(r.environment["throttled"]).split(", ")})
        say(f"Clocks were held down in {len(throttled)} of {len(records)} cells: {', '.join(reasons)}.")
    ok = sum(r.verdict == "ok" for r in records)
    wrong = sum(r.verdict == "wrong" for r in records)
    say(f"{ok} of {len(records)} cells measured and verified, {wrong} wrong.")


def _place(record: BenchRecord, swept: Mapping[str, Sequence[str]]) -> str:
    where = f"{_name(record, swept)} at {record.shape}"
    if record.device != "cpu":
        return where
    return f"{where} on {record.threads} thread{'s' if record.threads > 1 else ''}"


def show_comparison(console: Console, comparison: Comparison) -> None:
    """Print a line for each cell: verdict, change and its interval; then the notes and the counts."""
    table = Table(box=None, pad_edge=False)
    for name in ("kernel", "size", "dtype", "thr", "verdict", "time", "interval"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("size", "thr", "time", "interval") else "left")
    swept = varied(row.record for row in comparison.rows)
    for row in comparison.rows:
        r = row.record
        change = "" if row.change_percent is None else f"{row.change_percent:+.1f}%"
        low_high = row.interval_percent
        interval = "" if low_high is None else f"{low_high[0]:+.1f} … {low_high[1]:+.1f}%"
        style = {"faster": "green", "slower": "red", "wrong": "bold red", "lost": "red"}.get(row.status, "")
        cells = (_name(r, swept), r.shape, r.dtype, str(r.threads), row.status.upper(), change, interval)
        table.add_row(*map(escape, cells), style=style)
    console.print(table, highlight=False)
    for row in comparison.rows:
        if row.detail and row.status in ("wrong", "lost"):
            console.print(
                f"{_name(row.record, swept)} at {row.record.shape}: {row.detail}", highlight=False, markup=False
            )
    for note in comparison.notes:
        console.print(f"note: {note}", highlight=False, markup=False)
    console.print(", ".join(f"{n} {status.upper()}" for status, n in comparison.counts().items()), highlight=False)


def _grouped(records, key):
    groups: dict[str, list[BenchRecord]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups.items()
