"""How many warps would be resident if the kernel needed more or less of a resource, as a Vega-Lite specification."""

from __future__ import annotations

from typing import Any

import altair as alt

from ..records.explanation import Explanation
from .charts import finished
from .explain_theme import haloed
from .words import finite, shortly

KIB = 1024

#: For each resource, the title of its axis, and how many registers or bytes are one unit on it.
AXES = {"registers": ("registers a thread", 1), "shared": ("KiB of shared memory a block", KIB)}


def occupancy_chart(explanation: Explanation, resource: str) -> dict[str, Any] | None:
    """Resident warps over ``resource``, "registers" a thread or "shared" memory a block, with the kernel's own need marked.

    None where the explanation has no curve.
    """
    title, unit = AXES[resource]
    curve = [(finite(at), finite(warps)) for at, warps in explanation.occupancy.get(f"by_{resource}") or []]
    rows = [{"x": at / unit, "y": warps} for at, warps in curve if at is not None and warps is not None]
    if len(rows) < 2:
        return None
    rows.insert(0, {"x": 0.0, "y": rows[0]["y"]})  # a smaller need never lowers the number of warps
    end = rows[-1]["x"]
    most = finite(explanation.occupancy.get("max_warps")) or max(row["y"] for row in rows)
    across = alt.Scale(domain=[0, end], nice=False)
    up = alt.Scale(domain=[0, most * 1.15], nice=False)
    quarters = alt.Axis(values=[most * part / 4 for part in range(5)])
    axes: dict[str, Any] = {
        "x": alt.X("x:Q", title=title, scale=across, axis=alt.Axis(tickCount=6)),
        "y": alt.Y("y:Q", title=None, scale=up, axis=quarters),
    }
    base = alt.Chart(alt.InlineData(values=rows)).encode(**axes)
    # Resources are allocated in whole units: the warps at a value hold for every need between the previous value and it.
    layers = [base.mark_area(style="area", interpolate="step-before", clip=True),
              base.mark_line(style="curve", interpolate="step-before", clip=True)]  # fmt: skip
    taken, warps = _taken(explanation, resource), finite(explanation.occupancy.get("warps"))
    if taken is not None and warps is not None:
        words = f"{shortly(taken / unit)} {'KiB' if resource == 'shared' else 'registers'}, {shortly(warps)} warps"
        row: dict[str, Any] = {"x": taken / unit, "y": warps, "words": words}
        side: dict[str, Any] = {"align": "right", "dx": 4} if row["x"] > end / 2 else {"align": "left", "dx": -4}
        marked = alt.Chart(alt.InlineData(values=[row])).encode(**axes)
        layers += [marked.mark_point(style="limit", size=80), *haloed(row, axes, "strong", dy=-16, **side)]
    return finished(alt.layer(*layers).properties(description=f"Resident warps over {title}"))


def _taken(explanation: Explanation, resource: str) -> float | None:
    """Registers a thread, or bytes of shared memory a block, static and dynamic."""
    if resource == "registers":
        return finite(explanation.resources.get("registers"))
    parts = [finite(of.get("shared_bytes")) for of in (explanation.resources, explanation.launch)]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None
