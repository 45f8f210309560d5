"""A streamed product: its plan and its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from ...host.machine import bytes_text, seconds_text
from .facts import show_facts

if TYPE_CHECKING:
    from ...large.streaming.plan.stream import StreamPlan
    from ...large.streaming.run.job import Job
    from ...large.verification import Verification


def show_plan(console: Console, plan: StreamPlan) -> None:
    """Print the plan, folded to the terminal's width."""
    head, *lines = str(plan).splitlines()
    console.print(head, highlight=False, markup=False)
    show_facts(console, [(line[:12].strip(), line[12:].strip()) for line in lines])


def show_product(console: Console, job: Job, out: object, found: Verification | None = None) -> None:
    """Print result, time and rate, but not those of a result that was complete before; and what a verification found."""
    verified = []
    if found is not None and found.ok:
        verified = [("verified", f"the largest error found is {found.error:.2g}·|A||B|, the bound {found.bound:.2g}")]
    if job.complete:
        show_facts(console, verified)
        return
    measured, plan = job.measured, job.plan
    grid = plan.grid
    kept = f", {measured.before} of them by an earlier run" if measured.before else ""
    tiles = f"{measured.tiles} tile{'s' if measured.tiles > 1 else ''}"
    facts = [
        ("result", f"{out}: ({grid.m}, {grid.n}) {job.product.dtype}, in {tiles}{kept}"),
        ("time", f"{seconds_text(measured.seconds)}; the plan predicted {seconds_text(plan.cost.total_s)}"),
        ("rate", f"{measured.gflops:,.3g} GFLOPS" if measured.gflops < 10 else f"{measured.gflops:,.0f} GFLOPS"),
        ("read", f"{bytes_text(measured.read_bytes)}; written {bytes_text(measured.written_bytes)}"),
    ]
    show_facts(console, facts + verified)
