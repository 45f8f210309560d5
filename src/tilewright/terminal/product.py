"""A large product while it is computed, and when it is done."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from ..host.machine import bytes_text
from ..planning.prediction import seconds_text
from .facts import show_facts

if TYPE_CHECKING:
    from ..streaming.plan.stream import StreamPlan
    from ..streaming.run.job import Job

#: Seconds between two drawings of the bar.
REFRESH_S = 0.2


class ProductProgress:
    """A bar on a terminal, with rate and time left; elsewhere nothing. It is drawn when it is told of progress, for a thread
    that redraws would compete with the kernel."""

    def __init__(self, console: Console, expected_s: float) -> None:
        columns = BarColumn(20), TaskProgressColumn(), TextColumn("{task.fields[told]}")
        self._bar = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal, auto_refresh=False
        )
        self._task = self._bar.add_task("", told="")
        self._expected_s, self._first, self._begun_s, self._drawn_s = expected_s, -1, 0.0, 0.0

    def __enter__(self) -> ProductProgress:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        """So many of so many operations are done; those of the first call by an earlier run."""
        now = time.perf_counter()
        if self._first < 0:
            self._first, self._begun_s = done, now
        elif now < self._drawn_s + REFRESH_S:
            return
        self._drawn_s = now
        told = progress_text(done - self._first, total - done, now - self._begun_s, self._expected_s)
        self._bar.update(self._task, completed=done, total=max(total, 1), told=told, refresh=True)


def progress_text(done: int, left: int, seconds: float, expected_s: float) -> str:
    """Rate and time left; what the plan expects before anything is known.

    >>> progress_text(4 * 10**12, 8 * 10**12, 10.0, 75.0), progress_text(0, 10**12, 0.0, 75.0)
    ('400 GFLOPS, about 20 s left', 'about 75 s left')
    """
    if not done or not seconds:
        return f"about {_clock(expected_s)} left"
    return f"{done / seconds / 1e9:,.0f} GFLOPS, about {_clock(left * seconds / done)} left"


def show_plan(console: Console, plan: StreamPlan) -> None:
    """The plan's own words, folded to the terminal's width."""
    head, *lines = str(plan).splitlines()
    console.print(head, highlight=False, markup=False)
    show_facts(console, [(line[:12].strip(), line[12:].strip()) for line in lines])


def show_product(console: Console, job: Job, out: object) -> None:
    """What became of the plan; nothing where the result was complete before."""
    if job.complete:
        return
    measured, plan = job.measured, job.plan
    grid = plan.grid
    kept = f", {measured.before} of them by an earlier run" if measured.before else ""
    facts = [
        ("result", f"{out}: ({grid.m}, {grid.n}) {plan.dtype}, in {measured.tiles} tiles{kept}"),
        ("time", f"{seconds_text(measured.seconds)}; the plan expected {seconds_text(plan.cost.total_s)}"),
        ("rate", f"{measured.gflops:,.0f} GFLOPS"),
        ("read", f"{bytes_text(measured.read_bytes)}; written {bytes_text(measured.written_bytes)}"),
    ]
    show_facts(console, facts)


def _clock(seconds: float) -> str:
    if seconds > 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{round(seconds / 60)} min" if seconds > 90 else f"{max(1, round(seconds))} s"
