"""Draws the progress of a command on a terminal; on other outputs it prints only lines of text. Other modules of the
laboratory report progress, and this module draws it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ...host.steps import listening

if TYPE_CHECKING:
    from ...records.bench import BenchRecord
    from ..bench.cells import Cell, TimeLeft

#: Seconds between two drawings of a product's progress bar.
REFRESH_S = 0.2


class _Bar:
    """A progress bar of one task, visible within the ``with`` block.

    Without ``refresh_thread`` the bar is drawn only when it changes: a thread that draws would compete with the kernel.
    """

    def __init__(self, console: Console, *columns: ProgressColumn, refresh_thread: bool = True, **fields: Any) -> None:
        self._bar = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal, auto_refresh=refresh_thread
        )
        self._task = self._bar.add_task(fields.pop("description", ""), total=None, **fields)

    def __enter__(self) -> Any:
        self._bar.start()
        self._steps = listening(self.waiting)
        self._steps.__enter__()
        return self

    @contextlib.contextmanager
    def waiting(self, words: str) -> Iterator[None]:
        """Show a step that takes long in place of the bar's description while the step lasts."""
        before = self._bar.tasks[0].description
        self._bar.update(self._task, description=f"{words} …", refresh=True)
        try:
            yield
        finally:
            self._bar.update(self._task, description=before, refresh=True)

    def __exit__(self, *exception: object) -> None:
        self._steps.__exit__(None, None, None)
        if not self._bar.disable:  # Rich before 14.3 ends a bar that it never drew with an empty line
            self._bar.stop()


@contextlib.contextmanager
def steps_shown(console: Console) -> Iterator[None]:
    """Show steps that take long, such as compiling. On a terminal each step has a line while it lasts, unless a bar
    already shows it."""

    @contextlib.contextmanager
    def shown(words: str) -> Iterator[None]:
        with (
            _Bar(console, TextColumn("{task.description}", markup=False), refresh_thread=False) as line,
            line.waiting(words),
        ):
            yield

    with listening(shown):
        yield


class BenchProgress(_Bar):
    """Shows which cell of a bench is measured, how many cells are done, and the time left."""

    def __init__(self, console: Console) -> None:
        named, left = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[left]}")
        super().__init__(console, named, BarColumn(20), MofNCompleteColumn(), left, refresh_thread=False, left="")

    def begin(self, cell: Cell, done: int, total: int, time_left: Callable[[], TimeLeft]) -> None:
        """Show that ``done`` of ``total`` cells are measured and this cell is next."""
        if not self._bar.disable:
            predicted = time_left()
            left = f"{'about' if predicted.known else 'at least'} {clock(predicted.seconds)} left"
            self._bar.update(self._task, completed=done, total=total, description=cell.label, left=left, refresh=True)

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._bar.console.print(line, highlight=False, markup=False)


class TuneProgress(_Bar):
    """Shows how many combinations of parameters were tried, and the best combination so far."""

    def __init__(self, console: Console) -> None:
        tried = TextColumn("{task.completed} tried {task.description}", markup=False)
        super().__init__(console, SpinnerColumn(), tried, TimeElapsedColumn())
        self._best = 0.0

    def __call__(self, record: BenchRecord) -> None:
        """Count one more combination, which has this record."""
        self._best = max(self._best, record.gflops or 0)
        self._bar.update(self._task, advance=1, description=f"{record.kernel}, best {self._best:,.0f} GFLOPS")


@contextlib.contextmanager
def blocks_progress(console: Console, kernel: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar for the blocks of a simulated launch. Yields a function that takes the number of blocks that have run,
    and the number of all blocks."""
    columns = (
        *(TextColumn("{task.description}", markup=False), BarColumn(20), MofNCompleteColumn()),
        *(TextColumn("blocks"), TimeRemainingColumn()),
    )
    with _Bar(console, *columns, description=kernel) as drawn:
        yield lambda done, total: drawn._bar.update(drawn._task, completed=done, total=total)


class ProductProgress(_Bar):
    """Shows the progress of a streamed product, with its rate and the time left. The line is redrawn only when the
    object is called."""

    def __init__(self, console: Console, expected_s: float) -> None:
        text, step = TextColumn("{task.fields[text]}"), TextColumn("{task.description}", markup=False)
        super().__init__(console, BarColumn(20), TaskProgressColumn(), text, step, refresh_thread=False, text="")
        self._expected_s, self._first, self._begun_s, self._drawn_s = expected_s, -1, 0.0, 0.0

    @contextlib.contextmanager
    def waiting(self, words: str) -> Iterator[None]:
        """Show ``words`` while the product waits for a step that takes long; this time does not count in the rate."""
        start = time.perf_counter()
        with super().waiting(words):
            yield
        self._begun_s += time.perf_counter() - start

    def __call__(self, done: int, total: int) -> None:
        """``done`` of ``total`` operations are done. The operations of the first call were done by an earlier run."""
        now = time.perf_counter()
        if self._first < 0:
            self._first, self._begun_s = done, now
        elif now < self._drawn_s + REFRESH_S:
            return
        self._drawn_s = now
        text = progress_text(done - self._first, total - done, now - self._begun_s, self._expected_s)
        self._bar.update(self._task, completed=done, total=max(total, 1), text=text, refresh=True)


def progress_text(done: int, left: int, seconds: float, expected_s: float) -> str:
    """Rate and time left as text; before anything is measured, the time that the plan predicts.

    >>> progress_text(4 * 10**12, 8 * 10**12, 10.0, 75.0), progress_text(0, 10**12, 0.0, 75.0)
    ('400 GFLOPS, about 20 s left', 'about 75 s left')
    """
    if not done or not seconds:
        return f"about {clock(expected_s)} left"
    return f"{done / seconds / 1e9:,.0f} GFLOPS, about {clock(left * seconds / done)} left"


def clock(seconds: float) -> str:
    """A time in seconds, minutes or hours, as text.

    >>> [clock(seconds) for seconds in (0.2, 12.4, 90, 150.1, 9000)]
    ['1 s', '12 s', '90 s', '3 min', '2.5 h']
    """
    if seconds > 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{round(seconds / 60)} min" if seconds > 90 else f"{max(1, round(seconds))} s"
