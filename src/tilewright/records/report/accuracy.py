"""Shows the typical error of results over the size, next to the typical error of one running sum (docs/accuracy.md).

The typical error is ‖C − A·B‖ divided by ‖A·B‖, in units of u, half the distance from 1 to the next larger number of
the dtype. A result that is computed exactly and rounded once has an error of 0.42 u. Only the errors of verified
results are shown. The top of the page lists the wrong results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from ..bench import BenchRecord
from .charts import decades, finished, marks, sizes_axis
from .palette import Style
from .views import View, curves, emphasised
from .words import digits, finite

#: u of each dtype, as a power of two.
UNITS = {"float64": -53, "float32": -24, "float16": -11, "bfloat16": -8}
#: Root mean square of one rounding's relative error, in units of u: 0.425. Between 1 and 2 errors are uniform within ±u,
#: whose mean square is u²/3; significands x are distributed logarithmically, so 1/x² is 3/8/ln 2 = 0.541 on average.
ROUNDING = math.sqrt(3 / 8 / math.log(2) / 3)

TOOLTIP = ("kernel", "shape", "Error")

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class ErrorTable:
    """A table of errors: a row for each kernel, a column for each size.

    ``unit`` is the unit u in words, and ``running`` has the expected errors of one running sum.
    """

    unit: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    running: tuple[str, ...]


def running_sum(k: int) -> float:
    """Return the expected typical error of one running sum over k, in units of u: k/2 roundings affect a term on
    average.

    >>> round(running_sum(1024), 1), round(running_sum(4096), 1)
    (9.6, 19.2)
    """
    return ROUNDING * math.sqrt(k / 2)


def in_units(record: BenchRecord) -> float | None:
    """Return the typical error of a record in units of u of its dtype, or None if the record has no error above
    zero."""
    error = finite(record.rms_error)
    return error * 2.0 ** -UNITS[record.dtype] if error and record.dtype in UNITS else None


def known(view: View) -> list[BenchRecord]:
    """Return the records of verified square products whose error is known."""
    return [r for r in view.measured if r.m == r.n == r.k and in_units(r)]


def unit_text(dtype: str) -> str:
    """Return u as text.

    >>> unit_text("float32")
    '2⁻²⁴'
    """
    return "2" + str(UNITS[dtype]).translate(_RAISED) if dtype in UNITS else "the unit roundoff"


def error_charts(view: View, drawn: dict[str, Style]) -> dict[str, dict[str, Any]]:
    """Return the specification of the chart of errors under the name ``error``, if the errors of at least two sizes are
    known."""
    records = known(view)
    return {"error": finished(_chart(view, records, drawn))} if len({r.n for r in records}) > 1 else {}


def _chart(view: View, records: Sequence[BenchRecord], drawn: dict[str, Style]) -> Any:
    sizes = sorted({r.n for r in records})
    strong, joined = set(emphasised(view)), curves(records)
    rows = [_row(r) | {"strong": r.kernel in strong, "joined": (r.kernel, r.n) in joined} for r in records]
    guide = [{"n": n, "error": running_sum(n)} for n in (sizes[0], sizes[-1])] if _sums_in_dtype(view) else []
    values = [row["error"] for row in (*rows, *guide)]
    domain = [min(values) / 1.4, max(values) * 1.4]
    ticks = sorted(f * d for d in decades(*domain) for f in (1, 2, 5) if domain[0] <= f * d <= domain[1])
    scale = alt.Scale(type="log", domain=domain, nice=False)
    x, y = sizes_axis(sizes), alt.Y("error:Q", title=None, scale=scale, axis=alt.Axis(values=ticks, format="~r"))
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x, y=y)
    layers = [*_guide(guide, x, y), *marks(base, drawn, tooltip=TOOLTIP)]
    return alt.layer(*layers).properties(
        description="Typical error over n on logarithmic axes, with a line for each kernel"
    )


def _sums_in_dtype(view: View) -> bool:
    """Whether sums are rounded to the dtype of the result, so that u applies to them."""
    return view.section.dtype in ("float32", "float64") and view.section.precision in ("", "standard")


def _guide(ends: list[dict[str, float]], x: alt.X, y: alt.Y) -> list[Any]:
    """A broad rule from end to end, behind the kernels' lines, many of which lie on it."""
    if not ends:
        return []
    first, last = ends
    values = alt.InlineData(values=[{**first, "last_n": last["n"], "last_error": last["error"]}])
    rule = alt.Chart(values).encode(x=x, y=y, x2="last_n:Q", y2="last_error:Q")
    return [rule.mark_rule(strokeWidth=9, opacity=0.25)]


def _row(r: BenchRecord) -> dict[str, Any]:
    error = in_units(r) or 0.0
    words = f"{digits(error)} u (relative {r.rms_error:.2g})"
    return {"kernel": r.kernel, "shape": r.shape, "n": r.n, "error": float(f"{error:.7g}"), "Error": words}


def error_table(view: View) -> ErrorTable | None:
    """Return the table of the known errors in units of u, or None if there are none."""
    records = known(view)
    if not records:
        return None
    sizes = sorted({r.n for r in records})
    errors = {(r.kernel, r.n): digits(in_units(r) or 0.0) for r in records}
    kernels = dict.fromkeys(r.kernel for r in records)
    rows = tuple((kernel, tuple(errors.get((kernel, n), "–") for n in sizes)) for kernel in kernels)
    running = tuple(digits(running_sum(n)) for n in sizes) if _sums_in_dtype(view) else ()
    return ErrorTable(unit_text(view.section.dtype), tuple(f"{n:,}" for n in sizes), rows, running)
