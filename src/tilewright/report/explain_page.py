"""The page of ``tilewright explain``: what a kernel does to memory, line by line, and what limits it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import RecordError
from ..records.explanation import Explanation
from . import counter_table, explain_facts, explain_findings, html
from .explain_theme import theme
from .occupancy_chart import occupancy_chart
from .pipeline_section import pipeline_pictures
from .roofline import memory_levels, roofline
from .source_view import source_view
from .words import duration, shortly


def render_explanation(explanations: Sequence[Explanation], *, title: str | None = None) -> str:
    """The page of some explanations as HTML; see ``tilewright.report.render_explanation``."""
    explanations = list(explanations)
    if not explanations:
        raise RecordError("explanations is empty: a page needs at least one; make one with `tilewright explain KERNEL`")
    names = explain_findings.labels(explanations)
    specs = [_charts(e) for e in explanations]
    shown = [_view(*of, f"e{i}") for i, of in enumerate(zip(explanations, names, specs, strict=True))]
    return html.page(
        "explain.html.j2",
        data={"config": {name: theme(name) for name in ("light", "dark")}, "views": specs},
        script="explain.js",
        styles=["page.css", "explain.css"],
        title=title or explain_findings.explanation_title(explanations),
        lead=explain_findings.comparison(explanations, names) if len(shown) > 1 else shown[0]["headline"],
        fastest=max((view["totals"]["gflops"] or 0 for view in shown), default=0),
        views=shown,
    )


def write_explanation(explanations: Sequence[Explanation], path: str | Path, *, title: str | None = None) -> Path:
    """Renders the page into a file; see ``tilewright.report.write_explanation``."""
    return html.write_whole(render_explanation(explanations, title=title), path)


def _charts(e: Explanation) -> dict[str, Any]:
    """Name → specification of each chart that this explanation has data for."""
    made = {
        "roofline": roofline(e),
        "registers": occupancy_chart(e, "registers"),
        "shared": occupancy_chart(e, "shared"),
    }
    return {name: spec for name, spec in made.items() if spec is not None}


def _view(e: Explanation, name: str, specs: dict[str, Any], ident: str) -> dict[str, Any]:
    """What the template needs of one explanation."""
    return {
        "id": ident,
        "name": name,
        "idea": str(e.about.get("idea") or ""),
        "headline": explain_findings.headline(e),
        "verdict": explain_findings.verdict(e),
        "unrated": e.unrated,
        "file": e.file,
        "printed": e.printed,
        "source": source_view(e, ident),
        "pipeline": pipeline_pictures(e.pipeline, f"{ident}-pipeline"),
        "defects": e.defects,
        "totals": explain_facts.totals_row(e),
        "bars": explain_facts.bars(e),
        "predicted": explain_facts.predicted(e),
        "time": duration(e.predicted_seconds) if e.predicted_seconds else "",
        "levels": [(level.name, shortly(level.intensity), level.limits) for level in memory_levels(e)],
        "counters": counter_table.counters(e),
        "measured": e.measured is not None,
        "formulas": counter_table.formulas(e),
        "occupancy": explain_findings.occupancy_sentence(e),
        "limits": explain_facts.occupancy_limits(e),
        "charts": list(specs),
        "facts": explain_facts.facts(e),
        "notes": e.notes,
    }
