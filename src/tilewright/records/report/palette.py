"""Colours, marks and themes of charts. A kernel has the same style wherever it appears on a page.

There are eight hues, each with a tone for light paper and one for dark paper. Every tone of a hue has a contrast of at
least 3:1 to its paper, and readers without red, green or blue cones can distinguish the hues. A search found the hues,
and a test checks contrast and distinguishability. Because there are eight hues, the ninth kernel takes the first hue
again, with another mark. The legend highlights any line, so that colour is never the only way to identify a kernel.
References are grey and dashed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .views import is_reference

LIGHT = ("#1836be", "#7e2500", "#007f6b", "#6a3d73", "#8d52f4", "#b48a08", "#bf3818", "#269bc2")
DARK = ("#64abf6", "#eeab6a", "#139431", "#b448aa", "#9e58fe", "#eee40b", "#ee6692", "#40ecf6")
GREYS_LIGHT = ("#4a4d52", "#74787f", "#8c9097")
GREYS_DARK = ("#c6cad0", "#9da2aa", "#80858d")
MARKS = ("circle", "square", "triangle-up", "diamond", "triangle-down")
#: With three greys these five give each of fifteen references a look of its own.
DASHES = ([6, 3], [2, 3], [8, 3, 2, 3], [1, 2], [14, 4])
SOLID = [1, 0]

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', sans-serif"

#: Ink, faint ink, grid, paper and accent of each theme; page.css has the same.
INK = {
    "light": {
        "ink": "#1d1f23",
        "faint": "#62666d",
        "grid": "#e6e3dd",
        "paper": "#fdfcfa",
        "accent": "#b3261e",
    },
    "dark": {
        "ink": "#e8e6e1",
        "faint": "#9b9fa6",
        "grid": "#2c2f35",
        "paper": "#15171a",
        "accent": "#ff7b70",
    },
}


@dataclass(frozen=True)
class Style:
    """The style of one kernel in charts: its colours, mark and dash."""

    light: str
    dark: str
    mark: str
    dash: list[int]

    def colour(self, theme: str) -> str:
        """The colour in a theme."""
        return self.dark if theme == "dark" else self.light


def kernel_styles(kernels: Sequence[str], first: Iterable[str] = ()) -> dict[str, Style]:
    """Return a style for each kernel, by its position among the rungs or among the references. The kernels in the
    argument ``first`` take the first hues.

    >>> drawn = kernel_styles(["cpu/naive", "cpu/ikj", "ref/mkl"])
    >>> drawn["cpu/naive"].light != drawn["cpu/ikj"].light, drawn["ref/mkl"].dash
    (True, [6, 3])
    """
    rungs = [k for k in dict.fromkeys((*first, *kernels)) if not is_reference(k)]
    references = [k for k in kernels if is_reference(k)]
    drawn = {}
    for i, kernel in enumerate(rungs):
        hue, turn = i % len(LIGHT), i // len(LIGHT)
        drawn[kernel] = Style(LIGHT[hue], DARK[hue], MARKS[turn % len(MARKS)], SOLID)
    for i, kernel in enumerate(references):
        grey = i % len(GREYS_LIGHT)
        drawn[kernel] = Style(GREYS_LIGHT[grey], GREYS_DARK[grey], "diamond", DASHES[i % len(DASHES)])
    return {kernel: drawn[kernel] for kernel in kernels}


def config(theme: str, drawn: dict[str, Style]) -> dict[str, Any]:
    """Return Vega-Lite's configuration of a theme. ``range.category`` has the kernels' colours in their order."""
    ink = INK[theme]
    return {
        "background": None,
        "font": FONT,
        "range": {"category": [style.colour(theme) for style in drawn.values()]},
        "view": {"stroke": None},
        "axis": {
            "labelColor": ink["faint"], "titleColor": ink["faint"], "gridColor": ink["grid"],
            "domainColor": ink["grid"], "tickColor": ink["grid"], "labelFontSize": 12, "titleFontSize": 12,
            "titleFontWeight": "normal", "labelPadding": 6, "titlePadding": 10,
        },
        "axisX": {"grid": False, "domainColor": ink["faint"], "tickColor": ink["faint"]},
        "axisY": {"domain": False, "ticks": False},
        "legend": {
            "labelColor": ink["ink"], "titleColor": ink["faint"], "labelFontSize": 12,
            "titleFontWeight": "normal", "symbolSize": 80, "labelLimit": 400, "rowPadding": 4,
        },
        "title": {"color": ink["ink"], "subtitleColor": ink["faint"], "anchor": "start", "fontSize": 15},
        "style": {
            # The halo keeps text readable where lines run behind it.
            "halo": {"stroke": ink["paper"], "strokeWidth": 4, "strokeJoin": "round"},
        },
        "rule": {"color": ink["faint"]},
        "text": {"color": ink["faint"], "fontSize": 12},
    }  # fmt: skip
