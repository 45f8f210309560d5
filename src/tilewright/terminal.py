"""Records as tables for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from .lab.stats import Comparison
from .records import VERDICTS, BenchRecord

#: Sizes side by side that fit 80 columns; further ones go into a table below.
_ACROSS = 5
#: What stands in a cell without a time; the words are in records.VERDICTS.
_MARKS = {"wrong": "WRONG", "time_limit": "limit", "out_of_memory": "memory", "unsupported": "n/a"}


def show_bench(console: Console, records: Sequence[BenchRecord]) -> None:
    """A table a dtype: kernels down, sizes across, GFLOPS and R in each cell; below it what the marks mean."""
    for dtype, of_dtype in _grouped(records, lambda r: r.dtype):
        shapes = list(dict.fromkeys(r.shape for r in of_dtype))
        for some in (shapes[i : i + _ACROSS] for i in range(0, len(shapes), _ACROSS)):
            console.print(_bench_table(dtype, some, of_dtype))
    _show_legend(console, records)


def _bench_table(dtype: str, shapes: Sequence[str], records: Sequence[BenchRecord]) -> Table:
    table = Table(title=f"{dtype}: GFLOPS, and R beside it", title_justify="left", box=None, pad_edge=False)
    table.add_column("kernel", no_wrap=True)
    table.add_column("thr", justify="right")
    for shape in shapes:
        table.add_column(shape, justify="right", no_wrap=True)
    cells = {(r.kernel, r.threads, r.shape): r for r in records}
    rows = dict.fromkeys((r.kernel, r.threads) for r in sorted(records, key=_reading_order))
    best = {s: max((r.gflops or 0 for r in records if r.shape == s), default=0) for s in shapes}
    for name, threads in rows:
        found = [cells.get((name, threads, shape)) for shape in shapes]
        table.add_row(name, str(threads), *(_cell(r, best) for r in found))
    return table


def _reading_order(record: BenchRecord) -> tuple[bool, int, str, int]:
    return (record.kernel.startswith("ref/"), record.about.get("order", 0), record.kernel, record.threads)


def _cell(record: BenchRecord | None, best: dict[str, float]) -> str:
    if record is None:
        return ""
    if record.gflops is None or record.median_s is None:
        mark = _MARKS.get(record.verdict, record.verdict)
        return f"[bold red]{mark}[/]" if record.verdict == "wrong" else f"[dim]{mark}[/]"
    rate = f"{record.gflops:,.{1 if record.gflops < 99.95 else 0}f}" if record.gflops >= 0.05 else "0.0"
    if record.gflops == best[record.shape]:
        rate = f"[bold]{rate}[/]"
    return f"{rate} [dim]{record.ratio:5.2f}[/]" if record.ratio is not None else f"{rate} [dim]    –[/]"


def _show_legend(console: Console, records: Sequence[BenchRecord]) -> None:
    reference = next((r.reference for r in records if r.reference), None)
    if reference:
        console.print(f"R: time of {reference} over the kernel's, on equal threads; above 1 the kernel is faster.")
    for verdict, mark in _MARKS.items():
        reasons = [r for r in records if r.verdict == verdict]
        if reasons:
            first = reasons[0]
            example = (
                f", such as {first.kernel} at {first.shape}: {first.reason.splitlines()[0]}" if first.reason else ""
            )
            console.print(f"{mark}: {VERDICTS[verdict]}{example}", highlight=False, markup=False)
    ok = sum(r.verdict == "ok" for r in records)
    wrong = sum(r.verdict == "wrong" for r in records)
    console.print(f"{ok} of {len(records)} cells measured and verified, {wrong} wrong.", highlight=False)


def show_comparison(console: Console, comparison: Comparison) -> None:
    """A line a cell: verdict, change and its interval; then the notes and the counts."""
    table = Table(box=None, pad_edge=False)
    for name in ("kernel", "size", "dtype", "thr", "verdict", "time", "interval"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("size", "thr", "time", "interval") else "left")
    for row in comparison.rows:
        r = row.record
        change = "" if row.change_percent is None else f"{row.change_percent:+.1f}%"
        low_high = row.interval_percent
        interval = "" if low_high is None else f"{low_high[0]:+.1f} … {low_high[1]:+.1f}%"
        style = {"faster": "green", "slower": "red", "wrong": "bold red", "lost": "red"}.get(row.status, "")
        table.add_row(r.kernel, r.shape, r.dtype, str(r.threads), row.status.upper(), change, interval, style=style)
    console.print(table, highlight=False)
    for row in comparison.rows:
        if row.detail and row.status in ("wrong", "lost"):
            console.print(f"{row.record.kernel} at {row.record.shape}: {row.detail}", highlight=False, markup=False)
    for note in comparison.notes:
        console.print(f"note: {note}", highlight=False, markup=False)
    console.print(", ".join(f"{n} {status.upper()}" for status, n in comparison.counts().items()), highlight=False)


def show_facts(console: Console, facts: Iterable[tuple[str, str]], title: str = "") -> None:
    """Label and text, one line each."""
    table = Table(box=None, show_header=False, pad_edge=False, title=title, title_justify="left")
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for label, text in facts:
        table.add_row(label, text)
    console.print(table, highlight=False)


def _grouped(records, key):
    groups: dict[str, list[BenchRecord]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups.items()
