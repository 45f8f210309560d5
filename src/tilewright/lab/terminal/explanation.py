"""Prints an explanation: what limits the kernel, at which source lines, by which counts, and whether its result is
right.

For a kernel on the CPU, this module prints the time and what limits it, the tile and the blocks, and the predicted and
the counted numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ...host.machine import bytes_text, seconds_text
from ...records.explanation import APPROXIMATELY, Defect, Explanation, Formula
from ...records.source_rows import source_rows
from ...simulator import listing
from ...simulator.findings import counted, marked_grade
from ...simulator.listing import timeline_lines
from ...simulator.occupancy import Occupancy
from ..explain.cpu import CpuExplanation
from ..explain.cpu_events import EventRow
from .tables import show_facts

# ---- of a CUDA kernel ------------------------------------------------------------------------------------------------

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def quantity(value: float, unit: str) -> str:
    """Format a value with three digits and a unit prefix.

    >>> quantity(0.000245, "s"), quantity(66908e9, "operations/s"), quantity(0, "s")
    ('245 µs', '66.9 Toperations/s', '0 s')
    """
    scale, prefix = next(((s, p) for s, p in _PREFIXES if abs(value) >= s), (1e-9, "n") if value else (1.0, ""))
    digits = f"{value / scale:.3g}" if value < 1000 * scale else f"{value / scale:,.0f}"
    return f"{digits} {prefix}{unit}"


def show_explanations(console: Console, explanations: Sequence[Explanation], *, brief: bool = False) -> None:
    """Print each explanation in full. Several explanations are also listed in one table; with ``brief``, only that
    table is printed."""
    for explanation in explanations if not brief else ():
        _show(console, explanation)
    if brief or len(explanations) > 1:
        _show_together(console, explanations)


def _show(console: Console, e: Explanation) -> None:
    params = "".join(f", {name}={value}" for name, value in e.params.items())
    at, kind = (f" at {e.shape}", f" ({e.dtype}{params})") if e.is_product else ("", "")
    console.print(f"{e.name}{at} on {e.gpu['name']}{kind}", style="bold", **_PLAIN)
    if e.about["idea"]:
        console.print(e.about["idea"], **_PLAIN)
    found = counted([defect.grade for defect in e.defects])
    cheaper = len({(each.file, each.line) for each in e.advice if each.line})
    more = f" {cheaper} line{'s'[: cheaper > 1]} could be cheaper (→ below)." if cheaper else ""
    console.print(f"{found[:1].upper()}{found[1:]}.{more}", style="bold red" if e.defects else "", **_PLAIN)
    console.print()
    _show_bounds(console, e)
    _show_source(console, e)
    for line in [*timeline_lines(e.pipeline), ""] if e.pipeline else ():
        console.print(line, no_wrap=True, **_PLAIN)
    _show_counts(console, e)
    show_facts(console, _facts(e))
    if e.printed:
        console.print()
        console.print("printed:", **_PLAIN)
        console.print(e.printed.rstrip("\n"), **_PLAIN)
    console.print()


def _show_together(console: Console, explanations: Sequence[Explanation]) -> None:
    """Print a table with one line for each explanation: the parameters that differ, transactions, resident warps and
    the bound, with defects in red.

    Numbers are never cut: if the terminal is too narrow, the name of a file has a line of its own; if it is still too
    narrow, numbers have a unit prefix, and parameters share a column.
    """
    names = dict.fromkeys(name for e in explanations for name in e.params)
    varied = [name for name in names if len({e.params[name] for e in explanations if name in e.params}) > 1]
    of_products = any(e.is_product for e in explanations)
    launch, rate = (["size"], "GFLOPS") if of_products else (["blocks", "threads\na block"], "time\nat best")
    for short, folded in ((False, False), (False, True), (True, True)):
        folding = ["kernel", "with"] if short else []
        table = _table("kernel", *launch, *(["with"] if short and varied else varied), *_COUNTED, "warps", rate)
        for column in table.columns:
            column.no_wrap, column.overflow = column.header not in folding, "fold"
        for e in explanations:
            counts = [_total(e, what, short) for what in ("sectors", "wavefronts", "conflicts")]
            own = [str(e.params.get(name, "")) for name in varied]
            if short and varied:
                own = [" ".join(f"{name}={e.params[name]}" for name in varied if name in e.params)]
            size = [e.shape] if of_products else [f"{e.launch[what]:,}" for what in ("blocks", "threads")]
            table.add_row(_marked(e, folded=folded), *size, *own, *counts, str(e.occupancy["warps"]), _at_best(e))
        if console.measure(table, options=console.options.update(width=10_000)).maximum <= console.width:
            break
    console.print(table, highlight=False)
    gpu = explanations[0].gpu["name"]
    limit = "GFLOPS: an upper bound" if of_products else "Time at best: a lower bound"
    console.print(f"warps: resident on a multiprocessor of the {gpu}. {limit}.", **_PLAIN)
    fewest, most = (chosen(e.busy_multiprocessors for e in explanations) for chosen in (min, max))
    if fewest < most:
        of = f"{fewest[0]} to {most[0]} of {most[1]} multiprocessors"
        what, option = ("GFLOPS", "--size") if of_products else ("times", "--grid")
        words = f"These {what} do not compare: there are blocks for {of}. A larger {option} gives work to all."
        console.print(words, style="yellow", **_PLAIN)
    elif fewest[0] < fewest[1]:
        console.print(f"In each launch there are blocks for {fewest[0]} of {fewest[1]} multiprocessors.", **_PLAIN)


def _at_best(e: Explanation) -> str:
    """The highest rate of a product, or the least time of another kernel, that the slowest resource allows."""
    if e.is_product:
        return f"{e.gflops:,.0f}" if e.gflops else "–"
    return quantity(e.bound.seconds, "s") if e.bound and not e.reason_without_rate else "–"


def _total(e: Explanation, what: str, short: bool) -> str:
    """A sum over all accesses, marked if it is not exact."""
    parts = [(getattr(access, what), access.exact) for access in e.accesses]
    number = sum(amount for amount, _ in parts)
    text = quantity(number, "").strip() if short else f"{number:,}"
    return text if all(exact for amount, exact in parts if amount) else f"{APPROXIMATELY} {text}"


_COUNTED = ("sectors", "shared\nwavefronts", "bank\nconflicts")


def _marked(e: Explanation, *, folded: bool) -> str:
    """The kernel's name, with its file in a line of its own if ``folded``, and with its defects in red."""
    marks = [
        (e.verified["ok"] is False or bool(e.defects), "wrong"),
        (e.run.get("complete") is False, "stopped"),
        (not e.launchable, "cannot launch"),
    ]
    name = escape(e.name.replace("::", "\n::", 1) if folded else e.name)
    return name + "".join(f" [bold red]{mark}[/]" for wrong, mark in marks if wrong)


def show_occupancy(console: Console, found: Sequence[Occupancy]) -> None:
    """Print a line for each GPU: how many blocks each resource allows, how many are resident, and how many warps these
    have.

    Below the table, list the GPUs that cannot launch the block.
    """
    resources = list(found[0].limits)
    console.print("Blocks that fit on a multiprocessor: by each resource, and by all of them.", **_PLAIN)
    heads = [_BY.get(name, f"by\n{name}") for name in resources]
    table = _table("GPU", *heads, "resident\nblocks", "resident\nwarps", "most\nwarps")
    for o in found:
        if not o.refusal:
            limits = ["–" if o.limits[name] is None else str(o.limits[name]) for name in resources]
            table.add_row(o.gpu, *limits, str(o.blocks), str(o.warps), str(o.max_warps))
    console.print(table, highlight=False)
    for line in refusals(found):
        console.print(f"Cannot launch: {line}.", **_PLAIN)


_BY = {"shared": "by shared\nmemory", "blocks": "by number\nof blocks"}


def refusals(found: Sequence[Occupancy]) -> list[str]:
    """The GPUs that cannot launch the block, grouped by the limit that it exceeds."""
    cards: dict[str, list[str]] = {}
    for o in found:
        if o.refusal:
            cards.setdefault(o.refusal, []).append(o.gpu)
    return [f"{_few(names)}: {why}" for why, names in cards.items()]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"


#: The definition of a turn, printed below the bounds.
TURNS = (
    "A turn is a cycle of a multiprocessor's memory pipe: 4 sectors of global memory, or a wavefront of shared memory."
)
_PLAIN: dict[str, Any] = {"highlight": False, "markup": False}


def _show_bounds(console: Console, e: Explanation) -> None:
    if e.reason_without_rate:
        console.print(f"No rate: {e.reason_without_rate}.", style="bold red", **_PLAIN)
    elif e.bound is None:
        console.print(f"No bound: the rates of the {e.gpu['name']} are not known for {e.dtype}.", **_PLAIN)
    else:
        rate = f"{e.gflops:,.0f} GFLOPS, in " if e.gflops else ""
        limit = f"At best {rate}{quantity(e.bound.seconds, 's')}: held back by {e.bound.name}."
        console.print(limit, **_PLAIN)
        busy, multiprocessors = e.busy_multiprocessors
        if busy < multiprocessors:
            few = f"There are blocks for {busy} of {multiprocessors} multiprocessors"
            larger = "a larger --size" if e.is_product else "a larger --grid"
            console.print(f"{few}: at {larger} something else may limit it.", **_PLAIN)
        table = _table("", "time", "")
        for bound in sorted(e.bounds, key=lambda bound: -bound.seconds):
            rate = quantity(bound.rate, f"{bound.unit}/s")
            table.add_row(
                bound.name, quantity(bound.seconds, "s"), f"[dim]{bound.amount:,.0f} {bound.unit} at {rate}[/]"
            )
        console.print(table, highlight=False)
        if any(bound.unit == "turns" for bound in e.bounds):
            console.print(TURNS, style="dim", **_PLAIN)
        _show_predicted(console, e)
    console.print()


def _show_predicted(console: Console, e: Explanation) -> None:
    """The predicted time of a pipelined kernel, part by part."""
    if e.predicted_seconds is None:
        return
    console.print()
    console.print(f"Predicted: {quantity(e.predicted_seconds, 's')}, part by part:", **_PLAIN)
    table = _table("", "time", "")
    for part in e.predicted:
        table.add_row(part.name, quantity(part.seconds, "s"), Text(part.because, style="dim"))
    console.print(table, highlight=False)


def _show_source(console: Console, e: Explanation) -> None:
    """Print the source lines that access memory, with their cost. If the cost could be lower, print the ratio of the
    cost to the lowest possible cost."""
    wrong = [(d.file, d.line, _defect(d)) for d in e.defects]
    advice = [(each.file, each.line, each.sentence(lambda seconds: quantity(seconds, "s"))) for each in e.advice]
    for line in listing.lines(source_rows(e.source, e.accesses, wrong, e.included, advice)):
        if said := listing.said_of_line(line, console.width):
            console.print(Text(said, style="bold red" if line.wrong else "green"), **_PLAIN)
        else:
            console.print(listing.folded_line(line, console.width), no_wrap=True, **_PLAIN)
    console.print()


def _show_counts(console: Console, e: Explanation) -> None:
    """Print formulas and counts and, if a GPU was measured, its counters and the prediction."""
    if e.formulas:
        table = _table(f"by the formulas ({e.about['row']})" if e.about["row"] else "by formula", "formula", "counted")
        for formula in e.formulas:
            table.add_row(_source_of(formula), _count(formula.value), _count(formula.counted))
        console.print(table, highlight=False)
        console.print()
    if e.measured:
        counters = e.measured["counters"]
        gpu = e.measured["environment"]["gpu"]
        table = _table("counter", "predicted", f"on {gpu}")
        for name in dict.fromkeys([*e.counters, *counters]):
            predicted, count = e.counters.get(name, 0), counters.get(name)
            if count is None or (not predicted and not count):
                continue
            style = "" if predicted == count else "bold yellow"
            table.add_row(
                Text(name.removesuffix(".sum"), overflow="fold"),
                f"{APPROXIMATELY} {predicted:,}" if name in e.approximate else f"{predicted:,}",
                Text(f"{count:,}", style=style),
            )
        console.print(table, highlight=False)
        if not e.measured["verified"]["ok"]:
            console.print(f"WRONG on {gpu}: {e.measured['verified']['reason']}", style="bold red", **_PLAIN)
        console.print()


def _source_of(formula: Formula) -> Text:
    return Text.assemble(formula.what, ("\n  " + formula.text, "dim"))


def _count(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _facts(e: Explanation) -> list[tuple[str, str]]:
    o, needs = e.occupancy, e.resources
    resident = (
        f"{o['blocks']} block{'s' * (o['blocks'] != 1)} = {o['warps']} of {o['max_warps']} warps a multiprocessor "
        f"({o['fraction']:.0%}), limited by {' and '.join(o['limiting']).replace('shared', 'shared memory')}"
        if o["blocks"]
        else e.reason_without_rate
    )
    local = f", {needs['local_bytes']} bytes of local memory" if needs["local_bytes"] else ""
    shared = f"; {o['shared']:,} bytes of shared memory a block" if o["shared"] else ""
    grid = " × ".join(str(size) for size in e.launch["grid"] if size > 1) or "1"
    block = " × ".join(str(size) for size in e.launch["block"] if size > 1) or "1"
    return [
        ("launch", f"{grid} block{'s' if e.launch['blocks'] > 1 else ''} of {block} threads"),
        ("needs", f"{needs['registers']} registers a thread{local}{shared}"),
        ("resident", resident),
        ("counted", e.run["words"]),
        ("result", _result(e)),
        *(("wrong", _defect(d)) for d in e.defects if not d.line),
        *(("advice", each.sentence(lambda seconds: quantity(seconds, "s"))) for each in e.advice if not each.line),
        *(("note", note) for note in e.notes),
    ]


def _result(e: Explanation) -> str:
    if not e.verified["ok"]:
        return f"{'' if e.verified['ok'] is None else 'WRONG: '}{e.verified['reason']}"
    worst = e.verified["error_over_bound"]
    within = "" if worst is None else f", at most {worst:.2g} of the error bound"
    return f"right: {e.verified['of']}{within}"


def _defect(d: Defect) -> str:
    return f"{d.kind}{marked_grade(d.grade)}, block {tuple(d.block)}, thread {tuple(d.thread)}: {d.text}"


def _table(*heads: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, head in enumerate(heads):
        table.add_column(
            escape(head), justify="right" if place and head else "left", no_wrap=bool(head) and head != "formula"
        )
    return table


# ---- of a kernel on the CPU ------------------------------------------------------------------------------------------


def show_cpu_explanation(console: Console, e: CpuExplanation) -> None:
    """Print the explanation of a kernel on the CPU in 80 columns. The printed numbers are for one product, with all
    threads together."""
    on = f"{e.threads} thread{'s' if e.threads > 1 else ''}"
    title = f"{e.kernel} at {e.m}×{e.n}×{e.k} ({e.dtype}, {on}) on {e.environment['processor']}"
    console.print(escape(title), style="bold", highlight=False)
    console.print(escape(e.about["idea"]), highlight=False)
    console.print()
    if not e.verified["ok"]:
        console.print(f"wrong: {escape(e.verified['reason'])}", style="bold red", highlight=False)
    show_facts(console, _cpu_facts(e))
    console.print()
    _show_cpu_traffic(console, e)
    console.print()
    _show_cpu_counts(console, e.rows)
    console.print()
    facts = [("not counted", text) for text in _missing(e.rows)] + [("note", note) for note in e.notes]
    show_facts(console, facts)


def _cpu_facts(e: CpuExplanation) -> list[tuple[str, str]]:
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


def _show_cpu_traffic(console: Console, e: CpuExplanation) -> None:
    table = _cpu_table("traffic predicted", "bytes", "operations a byte")
    for level in e.traffic:
        amount = level["bytes"]
        rate = f"{e.operations / amount:.3g}" if amount else "–"
        cells = ("not known" if amount is None else "none: it fits" if not amount else bytes_text(amount), rate)
        table.add_row(f"{level['source']} → {level['into']}", *cells)
    console.print(table, highlight=False)


def _show_cpu_counts(console: Console, rows: list[EventRow]) -> None:
    table = _cpu_table("in one product", "predicted", "counted", "ratio", "counter")
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


def _cpu_table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table
