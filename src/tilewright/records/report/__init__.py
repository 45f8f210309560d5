"""Makes self-contained HTML pages and pictures from records, explanations, timelines, points of scaling and accuracies.

Nothing in this package measures or multiplies, so a file from any machine can be shown on any other. The package
imports ``records``, ``errors`` and the verdicts of ``records.compare``, and nothing else of Tilewright. A page contains
everything that it needs, and makes no request to a network. The libraries that draw pages (Jinja2, Altair, vl-convert)
belong to the ``lab`` extra, and are imported at the first call.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UnavailableError, how_to_install

if TYPE_CHECKING:
    from types import ModuleType

    from ..accuracy import AccuracyRecord
    from ..bench import BenchRecord
    from ..explanation import Explanation
    from ..pipeline import Pipeline
    from ..scaling import ScalingPoint
    from ..timeline import Timeline

__all__ = [
    "pipeline_html",
    "render",
    "render_accuracy",
    "render_explanation",
    "render_scaling",
    "render_timeline",
    "save_figures",
    "save_timeline",
    "write_accuracy_page",
    "write_explanation",
    "write_page",
    "write_scaling_page",
    "write_timeline",
    "write_trace",
]


def render(records: Sequence[BenchRecord], *, title: str | None = None) -> str:
    """Returns the page of bench records as HTML text.

    Records may come from several files, machines, dtypes and thread counts. Each machine and dtype becomes a section of
    the page, and each thread count becomes a view of its section. Raises RecordError for no records, and
    UnavailableError without the ``lab`` extra.
    """
    return _lab("page").render(records, title=title)


def write_page(records: Sequence[BenchRecord], path: str | Path, *, title: str | None = None) -> Path:
    """Writes the page of bench records to ``path``, whole or not at all, and returns the path.

    Raises what ``render`` raises, and OSError.
    """
    return _lab("page").write_page(records, path, title=title)


def render_explanation(explanations: Sequence[Explanation], *, title: str | None = None) -> str:
    """Returns the page of one or several explanations as HTML text.

    The page shows the source with the cost of each line in its margin, pictures of one warp's accesses, bounds,
    roofline, occupancy, counters and formulas. If there are several explanations, a table at the top compares them.
    Everything on the page except the charts works without JavaScript. Raises RecordError for no explanations, and
    UnavailableError without the ``lab`` extra.
    """
    return _lab("explain_page").render_explanation(explanations, title=title)


def write_explanation(explanations: Sequence[Explanation], path: str | Path, *, title: str | None = None) -> Path:
    """Writes the page of explanations to ``path``, whole or not at all, and returns the path.

    Raises what ``render_explanation`` raises, and OSError. To make the page of a file that ``tilewright explain
    --json`` wrote:

        from tilewright.records.explanation import read_explanations
        from tilewright.records.report import write_explanation

        write_explanation(read_explanations("coalesced.json"), "coalesced.html")
    """
    return _lab("explain_page").write_explanation(explanations, path, title=title)


def save_figures(
    records: Sequence[BenchRecord],
    directory: str | Path,
    formats: Sequence[str] = ("svg", "png"),
    *,
    themes: Sequence[str] = ("light",),
) -> list[Path]:
    """Writes the charts of bench records as still pictures, and returns their paths.

    The pictures of the page's first view are ``gflops.svg``, ``ratio.svg``, ``time.svg`` and ``ladder.svg``, and
    ``shapes.svg`` if products were not square. File names of further views end in the view's name, and ``-dark`` marks
    the theme ``"dark"``. Raises RecordError for no records, UsageError for an unknown format or theme, and
    UnavailableError without the ``lab`` extra.
    """
    return _lab("figures").save_figures(records, directory, formats, themes=themes)


def pipeline_html(pipeline: Pipeline, ident: str) -> str:
    """Returns the pictures of an asynchronous kernel as HTML for another page, such as a notebook's: its timeline, the
    phases of its barriers, and its swizzled tiles.

    The HTML is empty if the kernel has no such pictures. ``ident`` is an identifier that nothing else on the page has.
    Raises UnavailableError without the ``lab`` extra.
    """
    return _lab("pipeline_section").pipeline_html(pipeline, ident)


def render_timeline(timelines: Sequence[Timeline], *, title: str | None = None) -> str:
    """Returns the page of one or several timelines as HTML text.

    For each device that multiplied, the page shows tracks over time: what was computed, what was waited for, and
    measured times next to planned times. The picture needs no JavaScript. With JavaScript the reader can enlarge the
    timeline, and point at a bar to see its name, time and rate. Raises RecordError for no timelines, and
    UnavailableError without the ``lab`` extra.
    """
    return _lab("timeline").render_timeline(timelines, title=title)


def write_timeline(timelines: Sequence[Timeline], path: str | Path, *, title: str | None = None) -> Path:
    """Writes the page of timelines to ``path``, whole or not at all, and returns the path.

    Raises what ``render_timeline`` raises, and OSError. To make the page of a file that ``tilewright multiply
    --timeline`` wrote:

        from tilewright.records.report import write_timeline
        from tilewright.records.timeline import read_timelines

        write_timeline(read_timelines("run.jsonl"), "run.html")
    """
    return _lab("timeline").write_timeline(timelines, path, title=title)


def save_timeline(timeline: Timeline, path: str | Path, *, themes: Sequence[str] = ("light",)) -> list[Path]:
    """Writes the picture of a whole timeline as SVG to ``path``, one file for each theme, and returns the paths.

    ``-dark`` at the end of the file's name marks the theme ``"dark"``. Raises UsageError for an unknown theme,
    UnavailableError without the ``lab`` extra, and OSError.
    """
    return _lab("timeline").save_timeline(timeline, path, themes=themes)


def render_scaling(points: Sequence[ScalingPoint], *, title: str | None = None) -> str:
    """Returns the page of products that were simulated on clusters of growing size, as HTML text.

    The page shows efficiency, time and bytes over the number of workers. The page also says up to how many workers the
    products scale, and what limits the scaling. Raises RecordError for no points, and UnavailableError without the
    ``lab`` extra.
    """
    return _lab("scaling").render_scaling(points, title=title)


def write_scaling_page(points: Sequence[ScalingPoint], path: str | Path, *, title: str | None = None) -> Path:
    """Writes the page of simulated products to ``path``, whole or not at all, and returns the path.

    Raises what ``render_scaling`` raises, and OSError. To make the page of a file that ``tilewright scale --json``
    wrote:

        from tilewright.records.scaling import read_scaling
        from tilewright.records.report import write_scaling_page

        write_scaling_page(read_scaling("scaling.jsonl"), "scaling.html")
    """
    return _lab("scaling").write_scaling_page(points, path, title=title)


def render_accuracy(records: Sequence[AccuracyRecord], *, title: str | None = None) -> str:
    """Returns the page of records that ``benchmarks/record_accuracy.py`` made, as HTML text.

    For each dtype of each record, the page shows the errors of every path (a way to compute a product), compared with
    the classical bound. The errors are shown over the size, over the span (the binades over which the magnitudes of
    graded operands extend along k), and for each distribution of the operands. The page also shows the accuracy grades.
    Raises RecordError for no records, and UnavailableError without the ``lab`` extra.
    """
    return _lab("accuracy_page").render_accuracy(records, title=title)


def write_accuracy_page(records: Sequence[AccuracyRecord], path: str | Path, *, title: str | None = None) -> Path:
    """Writes the page of accuracy records to ``path``, whole or not at all, and returns the path.

    Raises what ``render_accuracy`` raises, and OSError. To make the page of a record:

        from tilewright.records.accuracy import read_accuracy
        from tilewright.records.report import write_accuracy_page

        write_accuracy_page([read_accuracy("benchmarks/accuracy-cpu.jsonl")], "accuracy.html")
    """
    return _lab("accuracy_page").write_accuracy_page(records, path, title=title)


def write_trace(timeline: Timeline, path: str | Path) -> Path:
    """Writes a timeline as a trace that https://ui.perfetto.dev opens, and returns the path.

    Raises UnavailableError without the ``lab`` extra, and OSError.
    """
    return _lab("timeline").write_trace(timeline, path)


def _lab(module: str) -> ModuleType:
    """Imports a module of this package; raises UnavailableError with what to install where a library is missing."""
    from importlib import import_module

    try:
        return import_module(f".{module}", __name__)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tilewright"):
            raise
        raise UnavailableError(
            f"a report needs {error.name}, which is not installed: {how_to_install('lab')}"
        ) from error
