"""The commands ``compare`` and ``report``, which read record files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from ...errors import UsageError
from .application import Console, Json, app, check_different_files, check_writeable, fraction, say, write_json


@app.command("compare")
def compare_command(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="The older record file.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The newer record file.")],
    fail_slower: Annotated[
        str,
        typer.Option(
            metavar="PERCENT",
            help="Ignore changes smaller than this. The exit code is 1 if a cell became slower by more than this.",
        ),
    ] = "3%",
    json_file: Json = None,
) -> None:
    """Compare two record files: what became faster or slower.

    A cell is one combination of kernel, size, dtype and number of threads. Each cell that both files have is judged
    from its raw samples: FASTER, SLOWER, SAME or UNCLEAR. Files of different machines are refused. The exit code is 1
    if a cell became slower or wrong, or is missing in the newer file.
    """
    from ...records.bench import read_records
    from ...records.compare import compare
    from ..terminal import show_comparison

    check_writeable("json", json_file, dash=True, spare=[old, new])
    comparison = compare(read_records(old), read_records(new), threshold=fraction("fail-slower", fail_slower))
    if json_file:
        write_json(json_file, comparison.as_dict())
    else:
        show_comparison(Console(), comparison)
    if comparison.slower():
        raise typer.Exit(1)


@app.command("report")
def report_command(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES",
            help="Record files of tilewright bench, from any machines. Or files that one of these wrote: explain "
            "--json, multiply --timeline, scale --json, benchmarks/record_accuracy.py.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write.")] = Path(
        "report.html"
    ),
    figures: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Also write the charts to this folder, as SVG and PNG; a timeline is written as SVG."
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also write a timeline as a trace file, which https://ui.perfetto.dev shows."
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="The title of the page.")] = None,
) -> None:
    """Make one self-contained HTML page from record files.

    The page holds charts, the ladder, the table and the environment, and needs no network. From files that explain
    --json wrote, the page shows the explanations. From files that multiply --timeline wrote, the page shows when each
    read, copy and multiplication ran. Files that scale --json wrote and records of accuracy have their own charts.
    """
    from ...records.accuracy import KIND as ACCURACY
    from ...records.accuracy import read_accuracy
    from ...records.bench import read_records
    from ...records.explanation import holds_explanations, read_explanations
    from ...records.json_data import holds_kind
    from ...records.report import save_figures, write_accuracy_page, write_explanation, write_page, write_scaling_page
    from ...records.scaling import KIND as SCALING
    from ...records.scaling import read_scaling
    from ...records.timeline import KIND as TIMELINE

    check_writeable("output", output, spare=files)
    check_writeable("trace", trace, spare=files)
    check_different_files(output=output, trace=trace)
    if figures is not None and figures.exists() and not figures.is_dir():
        raise UsageError(f"figures: must be a folder, got the file {figures}")
    if _all_are("timelines", files, lambda file: holds_kind(file, TIMELINE)):
        _report_timelines(files, output, figures, trace, title)
        return
    if trace is not None:
        raise UsageError("trace: only a timeline can be written as one; see multiply --timeline")
    if _all_are("points of scaling", files, lambda file: holds_kind(file, SCALING), figures=figures):
        points = [point for file in files for point in read_scaling(file)]
        say(f"page: {write_scaling_page(points, output, title=title)}")
        return
    if _all_are("records of accuracy", files, lambda file: holds_kind(file, ACCURACY), figures=figures):
        accuracies = [read_accuracy(file) for file in files]
        say(f"page: {write_accuracy_page(accuracies, output, title=title)}")
        return
    if _all_are("explanations", files, holds_explanations, figures=figures):
        explanations = [explanation for file in files for explanation in read_explanations(file)]
        say(f"page: {write_explanation(explanations, output, title=title)}")
        return
    records = [record for file in files for record in read_records(file)]
    say(f"page: {write_page(records, output, title=title)}")
    for path in save_figures(records, figures) if figures else []:
        say(f"figure: {path}")


def _all_are(what: str, files: list[Path], holds: Callable[[Path], bool], *, figures: Path | None = None) -> bool:
    """Whether all files hold data of one kind. Raises UsageError if only some of the files hold such data, and for
    ``figures``, which such data do not have."""
    holding = [file for file in files if holds(file)]
    if holding and len(holding) < len(files):
        raise UsageError(f"files: {what} make a page of their own, without other records")
    if holding and figures is not None:
        raise UsageError(f"figures: {what} make a page of their own, without figures")
    return bool(holding)


def _report_timelines(
    files: list[Path], output: Path, figures: Path | None, trace: Path | None, title: str | None
) -> None:
    from ...records.report import save_timeline, write_timeline, write_trace
    from ...records.timeline import read_timelines

    timelines = [timeline for file in files for timeline in read_timelines(file)]
    if trace is not None and len(timelines) > 1:
        raise UsageError(f"trace: holds one timeline, got {len(timelines)}")
    say(f"page: {write_timeline(timelines, output, title=title)}")
    if trace is not None:
        say(f"trace: {write_trace(timelines[0], trace)}")
    if figures is not None:
        figures.mkdir(parents=True, exist_ok=True)
        for number, timeline in enumerate(timelines, 1):
            name = f"timeline-{number}.svg" if len(timelines) > 1 else "timeline.svg"
            for path in save_timeline(timeline, figures / name):
                say(f"figure: {path}")
