"""An explanation of a kernel on the CPU: its time and why, its tile and blocks, what was predicted and what was counted."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...host.machine import bytes_text, seconds_text
from ..explain.cpu import CpuExplanation
from ..explain.cpu_events import EventRow
from .explanation import quantity
from .facts import show_facts


def show_cpu_explanation(console: Console, e: CpuExplanation) -> None:
    """Print an explanation in 80 columns; numbers are for one product, all threads together."""
    on = f"{e.threads} thread{'s' if e.threads > 1 else ''}"
    title = f"{e.kernel} at {e.m}×{e.n}×{e.k} ({e.dtype}, {on}) on {e.environment['processor']}"
    console.print(escape(title), style="bold", highlight=False)
    console.print(escape(e.about["idea"]), highlight=False)
    console.print()
    if not e.verified["ok"]:
        console.print(f"wrong: {escape(e.verified['reason'])}", style="bold red", highlight=False)
    show_facts(console, _facts(e))
    console.print()
    _show_traffic(console, e)
    console.print()
    _show_counts(console, e.rows)
    console.print()
    facts = [("not counted", text) for text in _missing(e.rows)] + [("note", note) for note in e.notes]
    show_facts(console, facts)


def _facts(e: CpuExplanation) -> list[tuple[str, str]]:
    seconds = e.measured["seconds"]
    took = f"{seconds_text(seconds)}, {quantity(e.operations / seconds, 'operations/s')}"
    facts = []
    if e.predicted is None:
        facts.append(("predicted", "nothing: no roof for this dtype, or for this algorithm, is measured"))
    else:
        facts.append(("predicted", f"{seconds_text(e.predicted['seconds'])}, bound by {e.predicted['bound']}"))
        took += f"; predicted / measured = {e.ratio:.2f}"
    facts.append(("measured", took))
    if e.verified["ok"]:
        ratio = e.verified["error_over_bound"]
        right = f"right: {e.verified.get('of') or 'every element that is checked'}"
        facts.append(("result", right if ratio is None else f"{right}, at most {ratio:.2g} of the error bound"))
    for label, side, where in (("tile", e.tile, "in registers"), ("block", e.block, "over all of K")):
        if side is not None:
            rate = f"2/(1/w + 1/h) = {side['operations_per_access']:.3g} operations an access"
            facts.append((label, f"{side['h']} × {side['w']} of C {where}: {rate} (S3.1)"))
    if e.loop is not None:
        loop = e.loop
        operations = f"{loop['multiplies']} multiply-adds, {loop['loads']} loads, {loop['prefetches']} prefetches"
        facts.append(("inner loop", f"{operations}; {loop['instructions']} instructions a turn"))
    return facts


def _show_traffic(console: Console, e: CpuExplanation) -> None:
    table = _table("traffic predicted", "bytes", "operations a byte")
    for level in e.traffic:
        amount = level["bytes"]
        rate = f"{e.operations / amount:.3g}" if amount else "–"
        cells = ("not known" if amount is None else "none: it fits" if not amount else bytes_text(amount), rate)
        table.add_row(f"{level['source']} → {level['into']}", *cells)
    console.print(table, highlight=False)


def _show_counts(console: Console, rows: list[EventRow]) -> None:
    table = _table("in one product", "predicted", "counted", "ratio", "counter")
    table.columns[-1].justify = "left"
    for row in rows:
        cells = [_number(row.expected, row.unit), _number(row.counted, row.unit)]
        ratio = "–" if row.ratio is None else f"{row.ratio:.2f}"
        counter = f"{row.counter} ({row.share:.0%} of the time)" if row.counted and row.share < 0.995 else row.counter
        table.add_row(row.what, *cells, ratio, counter)
    console.print(table, highlight=False)


def _number(value: float | None, unit: str) -> str:
    return "–" if value is None else quantity(value, unit).strip()


def _missing(rows: list[EventRow]) -> list[str]:
    """A line for each reason, with the counters to which it applies."""
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        if row.counted is None:
            by_reason.setdefault(row.reason, []).append(row.counter or row.what)
    return [f"{', '.join(dict.fromkeys(names))}: {reason}" for reason, names in by_reason.items()]


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table
