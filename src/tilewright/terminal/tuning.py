"""What a tuner found, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..records import VERDICTS, BenchRecord


def show_tuned(console: Console, finalists: Sequence[BenchRecord], failed: Sequence[BenchRecord], tried: int) -> None:
    """The finalists, best first, each with its time beside the best's; below them, what became of the others."""
    table = Table(box=None, pad_edge=False)
    for name in ("parameters", "ms", "GFLOPS", "time"):
        table.add_column(name, justify="left" if name == "parameters" else "right", overflow="fold")
    best = finalists[0].median_s if finalists else None
    for record in finalists:
        params = " ".join(f"{name}={value}" for name, value in record.params.items())
        if record.median_s is None or record.gflops is None or not best:
            table.add_row(escape(params), "", VERDICTS.get(record.verdict, record.verdict), "")
            continue
        cells = (f"{record.median_s * 1e3:.4g}", f"{record.gflops:,.0f}", f"{record.median_s / best - 1:+.1%}")
        table.add_row(escape(params), *cells)
    console.print(table, highlight=False)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False)

    say(f"{tried} combinations tried, {tried - len(failed)} measured and verified.")
    for verdict, words in VERDICTS.items():
        if of_these := [r for r in failed if r.verdict == verdict]:
            first = of_these[0]
            params = " ".join(f"{name}={value}" for name, value in first.params.items())
            reason = first.reason.strip().splitlines()
            say(f"{len(of_these)} {words}, such as {params}" + (f": {reason[0]}" if reason else ""))
