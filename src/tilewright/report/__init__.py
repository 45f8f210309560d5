"""Records or explanations in, one self-contained page out.

Nothing here measures or multiplies: a file from any machine renders on any laptop, so this package imports
``records``, ``explanation`` and ``errors`` and nothing else of Tilewright. A page holds everything it needs
and asks no network for anything. What draws it (Jinja2, Altair, vl-convert) is in the ``lab`` extra, loaded
at the first call.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UnavailableError

if TYPE_CHECKING:
    from types import ModuleType

    from ..explanation import Explanation
    from ..records import BenchRecord

__all__ = ["render", "render_explanation", "save_figures", "write_explanation", "write_page"]


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
    roofline, occupancy, counters and formulas; several are compared at the top. All but the charts is there
    without JavaScript. Raises RecordError for no explanations, UnavailableError without the ``lab`` extra.
    """
    return _lab("explain_page").render_explanation(explanations, title=title)


def write_explanation(explanations: Sequence[Explanation], path: str | Path, *, title: str | None = None) -> Path:
    """Writes that page to ``path``, whole or not at all, and returns the path.

    Raises what ``render_explanation`` raises, and OSError. From the file that ``tilewright explain --json`` writes:

        from tilewright.explanation import read_explanations
        from tilewright.report import write_explanation

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
    products were not square); further views carry their name behind it, and ``-dark`` marks the theme
    ``"dark"``. Raises RecordError for no records, UsageError for an unknown format or theme, UnavailableError
    without the ``lab`` extra.
    """
    return _lab("figures").save_figures(records, directory, formats, themes=themes)


def _lab(module: str) -> ModuleType:
    """The module that draws, or an error that says which extra brings what it needs."""
    from importlib import import_module

    try:
        return import_module(f".{module}", __name__)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tilewright"):
            raise
        raise UnavailableError(
            f"a report needs {error.name}, which is not installed: pip install 'tilewright[lab]'"
        ) from error
