"""Prints records and results as tables for a terminal of 80 columns: of a bench, a tuner, simulated clusters, and a
product."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ...host.machine import bytes_text, seconds_text
from ...records.bench import VERDICTS, BenchRecord
from ...records.compare import Comparison, is_unclear
from ...records.report.conclusions import busy_machine
from ...records.report.views import params_text, varied
from ...records.scaling import ScalingPoint

if TYPE_CHECKING:
    from ...large.streaming.run.job import Job
    from ...large.verification import Verification
    from ...product.plan import Plan

# ---- labels and texts ------------------------------------------------------------------------------------------------


def show_facts(console: Console, facts: Iterable[tuple[str, str]], title: str = "") -> None:
    """Print facts, each as a line with label and text."""
    table = Table(box=None, show_header=False, pad_edge=False, title=title, title_justify="left")
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for label, text in facts:
        table.add_row(escape(label), escape(text))
    console.print(table, highlight=False)


# ---- records of the bench --------------------------------------------------------------------------------------------

#: The mark in a cell without a time; ``VERDICTS`` has its meaning.
_MARKS = {"wrong": "WRONG", "time_limit": "limit", "out_of_memory": "memory", "unsupported": "n/a"}


def show_bench(console: Console, records: Sequence[BenchRecord]) -> None:
    """Print a table for each dtype and precision, with a row for each kernel, a column for each size, and in each cell
    GFLOPS and R, the speed relative to the reference.

    A kernel that was measured with several values of a parameter has a row for each value, with the value after its
    name. A legend explains the marks. The first line says whether other programs used the machine meanwhile.
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
    """R as text, or "?" if its samples are too scattered to say whether the kernel is faster, slower or the same."""
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
    """Print a line for each cell with its verdict, its change and the interval of the change; then the notes, and the
    number of cells with each verdict."""
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


# ---- results of a tuner ----------------------------------------------------------------------------------------------


def show_tuned(console: Console, finalists: Sequence[BenchRecord], failed: Sequence[BenchRecord], tried: int) -> None:
    """Print the finalists, best first, each with its time relative to the best one's. Below the finalists, print the
    outcomes of the other combinations."""
    table = _tuning_table("parameters", "ms", "GFLOPS", "time")
    best = finalists[0].median_s if finalists else None
    for record in finalists:
        if record.median_s is None or record.gflops is None or not best:
            table.add_row(escape(_params(record)), "", VERDICTS.get(record.verdict, record.verdict), "")
            continue
        table.add_row(escape(_params(record)), *_rate(record), f"{record.median_s / best - 1:+.1%}")
    console.print(table, highlight=False)
    _say_others(console, failed, tried, "combinations")


def show_tuned_blocking(
    console: Console,
    finalists: Sequence[BenchRecord],
    failed: Sequence[BenchRecord],
    tried: int,
    *,
    analytic: Mapping[str, Any],
    why: str,
) -> None:
    """Print the result of tuning a CPU kernel. R is the time of the analytic choice (the blocking that is computed from
    the caches) divided by the time of a finalist, both measured in alternation."""
    names = {"mr": "rows", "nv": "vectors", "unroll": "unroll", "kc": "KC", "kc_of_8_bytes": "KC8"}
    table = _tuning_table(*names.values(), "MC", "NC", "ms", "GFLOPS", "R", "")
    for record in finalists:
        numbers = (str(record.params[name]) for name in (*names, "mc", "nc"))
        mark = "analytic" if record.params == analytic else ""
        if record.ratio is None:
            table.add_row(*numbers, "", VERDICTS.get(record.verdict, record.verdict), "", mark)
        else:
            table.add_row(*numbers, *_rate(record), f"{record.ratio:.3f}", mark)
    console.print(table, highlight=False)
    _say_others(console, failed, tried, "blockings")
    console.print(why, highlight=False, markup=False)


def _tuning_table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in ("parameters", "") else "right", overflow="fold")
    return table


def _params(record: BenchRecord) -> str:
    return " ".join(f"{name}={value}" for name, value in record.params.items())


def _rate(record: BenchRecord) -> tuple[str, str]:
    return f"{(record.median_s or 0) * 1e3:.4g}", f"{record.gflops or 0:,.0f}"


def _say_others(console: Console, failed: Sequence[BenchRecord], tried: int, what: str) -> None:
    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False)

    say(f"{tried} {what} tried, {tried - len(failed)} measured and verified.")
    for verdict, words in VERDICTS.items():
        if of_these := [r for r in failed if r.verdict == verdict]:
            reason = of_these[0].reason.strip().splitlines()
            say(f"{len(of_these)} {words}, such as {_params(of_these[0])}" + (f": {reason[0]}" if reason else ""))


# ---- products on clusters --------------------------------------------------------------------------------------------

#: Names in the column "bound by" for what decides the time.
LIMIT_NAMES = {"balance": "imbalance", "start": "start-up"}


def show_scaling(console: Console, points: Sequence[ScalingPoint]) -> None:
    """Print a table for each series of clusters, with a row for each number of workers. A row shows the grid of regions
    into which C is divided. For a worker that has tiles it shows the bytes that it moves, and the fewest that it could
    move."""
    for title, series in itertools.groupby(points, _title_of_series):
        console.print(title, style="italic", highlight=False, markup=False)
        rows = list(series)
        grows = rows[0].grown_from is not None and all(point.m == point.n == point.k for point in rows)
        table = Table(box=None, pad_edge=False)
        heads = ["workers", "n" if grows else "tiles", "grid", "time", "efficiency", "moved each", "least each"]
        for head in heads:
            table.add_column(head, justify="right", no_wrap=True)
        table.add_column("bound by", no_wrap=True)
        for point in rows:
            moved, least = (bytes_text(each // point.used) or "" for each in (point.moved_bytes, point.least_bytes))
            table.add_row(
                *(str(point.workers), str(point.n) if grows else "×".join(map(str, point.tiles))),
                *("×".join(map(str, point.parts)), _long_time(point.total_s), f"{point.efficiency:.1%}", moved, least),
                LIMIT_NAMES.get(point.binds, point.binds),
            )
        console.print(table, highlight=False)


def _long_time(seconds: float) -> str:
    return seconds_text(seconds) if seconds < 1000 else f"{seconds:,.0f} s"


def _title_of_series(point: ScalingPoint) -> str:
    """The title of a table: its products, and where their operands are."""
    where = "A and B at the workers" if point.where == "workers" else "A, B and C in storage"
    grown = ", growing with the workers" if point.grown_from else ""
    return f"{point.series} {point.dtype}{grown}; {where}"


# ---- a streamed product ----------------------------------------------------------------------------------------------


def show_plan(console: Console, plan: Plan) -> None:
    """Print the plan, wrapped to the terminal's width."""
    head, *lines = str(plan).splitlines()
    console.print(head, highlight=False, markup=False)
    show_facts(console, [(line[:12].strip(), line[12:].strip()) for line in lines])


def show_product(console: Console, job: Job, out: object, found: Verification | None = None) -> None:
    """Print a product's result, time and rate, and what a verification found. If the result was complete before the
    run, time and rate are left out."""
    verified = []
    if found is not None and found.ok:
        # Nobody knows how an earlier run cut k, so its result is held to the bound for every cut.
        cut = "for any cut of k" if job.complete else "of this plan"
        text = f"the largest error found is {found.error:.2g}·|A||B|; the bound {cut} is {found.bound:.2g}"
        verified = [("verified", text)]
    if job.complete:
        show_facts(console, verified)
        return
    measured, plan = job.measured, job.plan
    kept = f", {measured.before} of them by an earlier run" if measured.before else ""
    tiles = f"{measured.tiles} tile{'s' if measured.tiles > 1 else ''}"
    facts = [
        ("result", f"{out}: {job.product.result_shape} {job.product.dtype}, in {tiles}{kept}"),
        ("time", f"{seconds_text(measured.seconds)}; the plan predicted {seconds_text(plan.cost.total_s)}"),
        ("rate", f"{measured.gflops:,.3g} GFLOPS" if measured.gflops < 10 else f"{measured.gflops:,.0f} GFLOPS"),
        ("read", f"{bytes_text(measured.read_bytes)}; written {bytes_text(measured.written_bytes)}"),
    ]
    show_facts(console, facts + verified)
