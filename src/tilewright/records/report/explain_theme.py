"""How the charts of an explanation look: named styles, so that one specification serves light and dark."""

from __future__ import annotations

from typing import Any

import altair as alt

from .palette import DARK, INK, LIGHT, config


def theme(name: str) -> dict[str, Any]:
    """Vega-Lite's configuration of a theme, with a style for roofs, for what limits, for what does not, and for curves."""
    settings = config(name, {})
    ink, asked = INK[name], (DARK if name == "dark" else LIGHT)[0]
    settings["style"] |= {
        "roof": {"color": ink["ink"], "strokeWidth": 1.6},
        "join": {"color": ink["faint"], "strokeWidth": 1, "strokeDash": [2, 3]},
        "limit": {"color": ink["accent"], "filled": True, "opacity": 1},
        "level": {"color": ink["ink"], "filled": False, "strokeWidth": 2, "opacity": 1},
        "curve": {"color": asked, "strokeWidth": 2},
        "area": {"color": asked, "opacity": 0.1},
        "strong": {"color": ink["ink"], "fontWeight": 600},
    }
    return settings


def haloed(row: dict[str, Any], axes: dict[str, Any], style: str = "", **place: Any) -> list[alt.Chart]:
    """The text ``words`` of a row at its place, with a halo of paper so that lines may run behind it."""
    base = alt.Chart(alt.InlineData(values=[row])).encode(**axes, text="words:N")
    place = {"lineBreak": "\n", "baseline": "middle", **place}
    front = {**place, "style": style} if style else place
    return [base.mark_text(**{**place, "style": "halo"}), base.mark_text(**front)]
