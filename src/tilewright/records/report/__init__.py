"""Records, explanations, timelines, points of scaling or accuracies in, one self-contained page out.

Nothing here measures or multiplies: a file from any machine renders on any laptop, so this package imports ``records``,
``errors`` and the verdicts of ``records.compare`` and nothing else of Tilewright. A page holds everything it needs and asks
no network for anything. What draws it (Jinja2, Altair, vl-convert) is in the ``lab`` extra, loaded at the first call.
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
    """The page, as HTML text.

    Records may come from several files, machines, dtypes and thread counts: each machine and dtype becomes a
    section, each thread count a view of it. Raises RecordError for no records, UnavailableError without the
    ``lab`` extra.
    """
    return _lab("page").render(records, title=title)


def write_page(records: Sequence[BenchRecord], path: str | Path, *, title: str | None = None) -> Path:
    """Writes the page to ``path``, whole or not at all, and returns the path.

    Raises what ``render`` raises, and OSError.
    """
    return _lab("page").write_page(records, path, title=title)


def render_explanation(explanations: Sequence[Explanation], *, title: str | None = None) -> str:
    """The page of one or several explanations, as HTML text.

    The source with what each line costs in its margin, a picture of one warp's access behind it, bounds,
    roofline, occupancy, counters and formulas; several are compared at the top. Everything except the charts
    works without JavaScript. Raises RecordError for no explanations, UnavailableError without the ``lab`` extra.
    """
    return _lab("explain_page").render_explanation(explanations, title=title)


def write_explanation(explanations: Sequence[Explanation], path: str | Path, *, title: str | None = None) -> Path:
    """Writes that page to ``path``, whole or not at all, and returns the path.

    Raises what ``render_explanation`` raises, and OSError. From the file that ``tilewright explain --json`` writes:

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
    """Writes the charts as still pictures and returns their paths.

    The first view is ``gflops.svg``, ``ratio.svg``, ``time.svg``, ``ladder.svg`` (and ``shapes.svg`` where
    products were not square); file names of further views end in the view's name, and ``-dark`` marks the theme
    ``"dark"``. Raises RecordError for no records, UsageError for an unknown format or theme, UnavailableError
    without the ``lab`` extra.
    """
    return _lab("figures").save_figures(records, directory, formats, themes=themes)


def pipeline_html(pipeline: Pipeline, ident: str) -> str:
    """The pictures of an asynchronous kernel as a part of another page, such as a notebook's: who waits for whom, the phases
    of barriers, swizzled tiles. Empty if there are none; ``ident`` is an identifier that nothing else of the page has.

    Raises UnavailableError without the ``lab`` extra.
    """
    return _lab("pipeline_section").pipeline_html(pipeline, ident)


def render_timeline(timelines: Sequence[Timeline], *, title: str | None = None) -> str:
    """The page of one or several timelines, as HTML text.

    For each place its tracks over time: what was computed, what was waited for, and measured times next to planned ones.
    The picture needs no JavaScript; with it the reader can zoom in, and point at a bar for its name, time and rate. Raises
    RecordError for no timelines, UnavailableError without the ``lab`` extra.
    """
    return _lab("timeline").render_timeline(timelines, title=title)


def write_timeline(timelines: Sequence[Timeline], path: str | Path, *, title: str | None = None) -> Path:
    """Writes that page to ``path``, whole or not at all, and returns the path.

    Raises what ``render_timeline`` raises, and OSError. From the file that ``tilewright multiply --timeline`` writes:

        from tilewright.records.report import write_timeline
        from tilewright.records.timeline import read_timelines

        write_timeline(read_timelines("run.jsonl"), "run.html")
    """
    return _lab("timeline").write_timeline(timelines, path, title=title)


def save_timeline(timeline: Timeline, path: str | Path, *, themes: Sequence[str] = ("light",)) -> list[Path]:
    """Writes the picture of a timeline, all of its time, as SVG to ``path`` and returns the paths.

    ``-dark`` at the end of the name marks the theme ``"dark"``. Raises UsageError for an unknown theme, UnavailableError
    without the ``lab`` extra, OSError.
    """
    return _lab("timeline").save_timeline(timeline, path, themes=themes)


def render_scaling(points: Sequence[ScalingPoint], *, title: str | None = None) -> str:
    """The page of products that were simulated on clusters of growing size, as HTML text.

    Efficiency, time and bytes over the number of workers, up to how many they scale and what limits them. Raises RecordError
    for no points, UnavailableError without the ``lab`` extra.
    """
    return _lab("scaling").render_scaling(points, title=title)


def write_scaling_page(points: Sequence[ScalingPoint], path: str | Path, *, title: str | None = None) -> Path:
    """Writes that page to ``path``, whole or not at all, and returns the path.

    Raises what ``render_scaling`` raises, and OSError. From the file that ``tilewright scale --json`` writes:

        from tilewright.records.scaling import read_scaling
        from tilewright.records.report import write_scaling_page

        write_scaling_page(read_scaling("scaling.jsonl"), "scaling.html")
    """
    return _lab("scaling").write_scaling_page(points, path, title=title)


def render_accuracy(records: Sequence[AccuracyRecord], *, title: str | None = None) -> str:
    """The page of records of ``benchmarks/record_accuracy.py``, as HTML text.

    For each dtype of each record the errors of every path over size, over span and by distribution, beside the classical
    bound, and the grades. Raises RecordError for no records, UnavailableError without the ``lab`` extra.
    """
    return _lab("accuracy_page").render_accuracy(records, title=title)


def write_accuracy_page(records: Sequence[AccuracyRecord], path: str | Path, *, title: str | None = None) -> Path:
    """Writes that page to ``path``, whole or not at all, and returns the path.

    Raises what ``render_accuracy`` raises, and OSError:

        from tilewright.records.accuracy import read_accuracy
        from tilewright.records.report import write_accuracy_page

        write_accuracy_page([read_accuracy("benchmarks/accuracy-cpu.jsonl")], "accuracy.html")
    """
    return _lab("accuracy_page").write_accuracy_page(records, path, title=title)


def write_trace(timeline: Timeline, path: str | Path) -> Path:
    """Writes a timeline as a trace that https://ui.perfetto.dev opens, and returns the path.

    Raises UnavailableError without the ``lab`` extra, OSError.
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
