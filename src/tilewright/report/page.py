"""The page: one HTML file that holds its data, its charts and the code that draws them."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import vl_convert
from markupsafe import Markup, escape

from ..errors import RecordError
from ..records import BenchRecord
from . import charts, environment, findings, table, views
from .ladder import Ladder, Step, ladder
from .palette import Style, config, styles
from .words import digits

HERE = Path(__file__).parent

#: Altair 6 writes Vega-Lite 6.
VEGALITE = "6.4"


def render(records: Sequence[BenchRecord], *, title: str | None = None) -> str:
    """The page of some records as HTML; see ``tilewright.report.render``."""
    records = list(records)
    if not records:
        raise RecordError("records is empty: a page needs at least one record; measure some with `tilewright bench`")
    sections = views.sections(records)
    shown = [view for section in sections for view in views.views(section)]
    drawn = styles(kernels_in_order(shown))
    specs = [charts.charts(view, drawn) for view in shown]
    data = {
        "config": {theme: config(theme, drawn) for theme in ("light", "dark")},
        "views": [{"cells": views.cells(v), "charts": made} for v, made in zip(shown, specs, strict=True)],
    }
    machines = len({section.machine for section in sections})
    scripts = [_libraries(), _own("page.js")]
    page = _template().render(
        title=title or f"Matrix products on {sections[0].machine}",
        views=[_view(view, made, drawn, machines) for view, made in zip(shown, specs, strict=True)],
        finding=findings.finding(shown[0]),
        verdicts=findings.verdicts(records),
        wrong=findings.wrong_results(records),
        machines=environment.machines(records),
        shown=table.SHOWN,
        drawn_all=drawn,
        index={kernel: f"k{i}" for i, kernel in enumerate(drawn)},
        data=_json(data),
        css=_own("page.css"),
        scripts=scripts,
        policy=_policy(scripts),
    )
    # A lone surrogate in a name from outside has no UTF-8; everything else has.
    return page.encode("utf-8", "replace").decode("utf-8")


def write_page(records: Sequence[BenchRecord], path: str | Path, *, title: str | None = None) -> Path:
    """Renders into a file beside ``path``, then moves it there: a reader never sees half a page."""
    path = Path(path)
    page = render(records, title=title)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(page)
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)  # mkstemp's 0600 is for secrets
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
    return path


def kernels_in_order(shown: Sequence[views.View]) -> list[str]:
    """Every kernel of the page once: a kernel has one colour in all views."""
    first = {r.kernel: r for view in reversed(shown) for r in view.records}
    place = {kernel: i for i, kernel in enumerate(dict.fromkeys(r.kernel for v in shown for r in v.records))}
    return sorted(first, key=lambda k: (views.is_reference(k), views.rungs_order(first[k]), place[k]))


def _view(view: views.View, made: dict[str, Any], drawn: dict[str, Style], machines: int) -> dict[str, Any]:
    """What the template needs of one view."""
    steps = ladder(view)
    peak = f"Measured peak: {digits(view.peak)} GFLOPS." if view.peak and not charts.peak_in_sight(view) else ""
    return {
        "label": view.label,
        "tab": view.label if machines > 1 else view.what,
        "finding": findings.finding(view),
        "kernels": [(kernel, drawn[kernel]) for kernel in view.kernels],
        "charts": list(made),
        "reference": view.reference,
        "peak_note": peak,
        "ladder": steps,
        "bars": _bars(steps, view) if steps else None,
        "table": table.table(view),
    }


def _bars(steps: Ladder, view: views.View) -> dict[str, Any] | None:
    """Where each step's bar starts and ends, in percent of a logarithmic axis, with the axis's ticks."""
    rates = [r for step in steps.steps for r in (step.before, step.after) if r]
    if not rates:
        return None
    marks = [
        (r.kernel, r.gflops) for r in view.measured
        if views.is_reference(r.kernel) and r.gflops and r.shape.replace("x", " × ") == steps.shape
    ]  # fmt: skip
    low = math.log10(min(rates)) - 0.2  # the first rung needs a bar too
    high = math.log10(max([*rates, *(rate for _, rate in marks)]) * 1.15)

    def place(rate: float) -> float:
        return round(100 * (math.log10(rate) - low) / ((high - low) or 1), 2)

    ticks = [10.0**d for d in range(math.ceil(low), math.floor(high) + 1)]
    return {
        "ticks": [(place(t), digits(t).rstrip("0").rstrip(".") if t < 100 else f"{t:,.0f}") for t in ticks],
        "marks": [(place(rate), name, digits(rate)) for name, rate in marks],
        "spans": {s.kernel: _span(s, place) for s in steps.steps if s.after},
    }


def _span(step: Step, place: Any) -> dict[str, Any]:
    after = place(step.after)
    before = place(step.before) if step.before else 0.0
    return {"left": min(before, after), "width": round(abs(after - before), 2), "down": after < before}


def _json(data: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever a kernel is called."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@functools.cache
def _libraries() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script, from vl-convert's own copy: nothing is fetched."""
    bundle = vl_convert.javascript_bundle(vl_version=VEGALITE)  # type: ignore[call-arg]  # its stub is wrong
    # In a function, for its top level has hundreds of short names; "</script" may stand in its strings.
    return "(()=>{" + bundle.replace("</script", "<\\/script").replace("\r", "") + "\n})()"


def _own(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str]) -> str:
    """Content-Security-Policy: these scripts by their hashes, inline styles, and no request to anywhere."""
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _breakable(name: str) -> Markup:
    """A kernel's name that may be broken after its slash and underscores where a phone has no room."""
    return Markup(str(escape(name)).replace("/", "/<wbr>").replace("_", "_<wbr>"))


@functools.cache
def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(HERE)
    world = jinja2.Environment(
        loader=loader,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    world.filters["breakable"] = _breakable
    return world.get_template("page.html.j2")
