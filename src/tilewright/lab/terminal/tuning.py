"""The results of a tuner, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...records.bench import VERDICTS, BenchRecord


def show_tuned(console: Console, finalists: Sequence[BenchRecord], failed: Sequence[BenchRecord], tried: int) -> None:
    """Print the finalists, best first, each with its time relative to the best's; below, the outcomes of the others."""
    table = _table("parameters", "ms", "GFLOPS", "time")
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
    """The same for a CPU kernel: R is the time of the analytic choice, measured in turns, over that of the blocking."""
    names = {"mr": "rows", "nv": "vectors", "unroll": "unroll", "kc": "KC", "kc_of_8_bytes": "KC8"}
    table = _table(*names.values(), "MC", "NC", "ms", "GFLOPS", "R", "")
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


def _table(*columns: str) -> Table:
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
