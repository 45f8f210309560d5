"""The table: kernels down, shapes across, a time in every cell or the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..lab.compare.reference import against_reference, is_unclear
from ..records.bench import VERDICTS, BenchRecord
from .views import View, is_measured, is_reference, spread, threads_of
from .words import digits, finite, small, table_time, with_noun

#: What the reader can switch the cells to; the key is the TableCell's field.
SHOWN = {"time": "Time", "gflops": "GFLOPS", "ratio": "R", "error": "Error / bound"}


@dataclass(frozen=True)
class TableCell:
    """One cell: the text for each quantity that the reader can switch to (see SHOWN), and the sentence that appears when
    the pointer is over it."""

    mark: str  # "ok", "short", a verdict of records.VERDICTS, or "none"
    time: str = ""
    gflops: str = ""
    ratio: str = ""
    error: str = ""
    hover: str = ""
    best: bool = False


@dataclass(frozen=True)
class KernelRow:
    """A kernel's cells, and its largest error over all of them."""

    kernel: str
    note: str
    reference: bool
    cells: tuple[TableCell, ...]
    max_abs_error: str
    error_over_bound: str
    wrong: bool


@dataclass(frozen=True)
class KernelTable:
    """The table of a view: headings, and a row for each kernel."""

    columns: tuple[str, ...]
    rows: tuple[KernelRow, ...]


def kernel_table(view: View) -> KernelTable:
    """The table of a view. References come first, as the yardstick; then the ladder in its order."""
    shapes = view.shapes
    fastest = {
        shape: min((r.median_s or 0 for r in view.measured if (r.m, r.n, r.k) == shape), default=None)
        for shape in shapes
    }
    kernels = sorted(view.kernels, key=lambda kernel: not is_reference(kernel))
    rows = []
    for kernel in kernels:
        records = {(r.m, r.n, r.k): r for r in view.records if r.kernel == kernel}
        rows.append(_row(kernel, [_cell(records.get(s), fastest[s]) for s in shapes], list(records.values()), view))
    return KernelTable(tuple(_column(shape) for shape in shapes), tuple(rows))


def _column(shape: tuple[int, int, int]) -> str:
    return str(shape[0]) if len(set(shape)) == 1 else " × ".join(map(str, shape))


def _row(kernel: str, cells: list[TableCell], records: list[BenchRecord], view: View) -> KernelRow:
    threads = {r.threads for r in records}
    note = with_noun(max(threads), "thread") if view.threads and threads != {view.threads} else ""
    return KernelRow(
        kernel=kernel,
        note=note,
        reference=is_reference(kernel),
        cells=tuple(cells),
        max_abs_error=_worst(r.max_abs_error for r in records),
        error_over_bound=_worst(r.error_over_bound for r in records),
        wrong=any(r.verdict == "wrong" for r in records),
    )


def _worst(errors: Iterable[float | None]) -> str:
    known = [e for e in map(finite, errors) if e is not None]
    return small(max(known)) if known else "–"


def _cell(record: BenchRecord | None, fastest: float | None) -> TableCell:
    if record is None:
        return TableCell("none", hover="not measured")
    words = VERDICTS.get(record.verdict, record.verdict)
    if not is_measured(record):
        if record.verdict == "ok":
            return TableCell("none", hover="no time recorded")
        hover = f"{record.kernel} at {record.shape}: {words}" + (f": {record.reason}" if record.reason else "")
        return TableCell(record.verdict, words, words, words, _error(record) or words, hover)
    seconds = record.median_s or 0.0
    time = table_time(seconds)
    mark = "short" if time.startswith("<") else "ok"
    ratio = finite(record.ratio)
    return TableCell(
        mark=mark,
        time=time,
        gflops=digits(record.gflops or 0.0),
        ratio="–" if ratio is None else "?" if is_unclear(record) else digits(ratio),
        error=_error(record) or "–",
        hover=_hover(record),
        best=mark == "ok" and seconds == fastest,
    )


def _error(record: BenchRecord) -> str:
    error = finite(record.error_over_bound)
    return "" if error is None else small(error)


def _hover(r: BenchRecord) -> str:
    """All values of a measured cell, a line each."""
    lines = [", ".join(filter(None, [f"{r.kernel} at {r.shape}", threads_of(r)]))]
    lines.append(f"{spread(r.samples_s)} ({with_noun(len(r.samples_s), 'sample')})")
    lines.append(f"{digits(r.gflops or 0.0)} GFLOPS")
    if (fraction := finite(r.peak_fraction)) is not None:
        lines[-1] += f", {fraction:.1%} of the measured peak"
    if (ratio := finite(r.ratio)) is not None:
        unclear = f", UNCLEAR: {against_reference(r)[2]}" if is_unclear(r) else ""
        lines.append(f"R = {digits(ratio)} against {r.reference or 'the reference'}{unclear}")
    if (error := finite(r.max_abs_error)) is not None:
        over = finite(r.error_over_bound)
        lines.append(f"largest error {small(error)}" + (f", {small(over)} of the bound" if over is not None else ""))
    return "\n".join(lines)
