"""The timeline of an asynchronous kernel: warps and stages from top to bottom, steps from left to right.

A line leads from what completes a phase to the warps that waited for it.
"""

from __future__ import annotations

from ..pipeline import Pipeline, PipelineRow, PipelineSpan
from .access_picture import WIDTH, Picture, drawing, svg_text, titled_rectangle
from .words import with_noun

LEFT = 112
TOP, HEIGHT, GAP = 24, 22, 9
#: The fewest steps for which there is room, so that a short run is not drawn large.
FEWEST = 6
_CLASSES = {
    "wait": "waiting",
    "ask": "asked",
    "copy": "copying",
    "full": "word",
    "work": "asked",
    "multiply": "asked",
    "stuck": "waiting stuck",
    "early": "word late",
}
_LEGEND = {
    "ask": "asks for copies",
    "copy": "a copy is under way",
    "full": "the stage is full",
    "work": "works with the stage",
    "multiply": "multiplies",
    "wait": "waits",
    "stuck": "waits for ever",
    "early": "works before the copy has arrived",
}


def pipeline_picture(pipeline: Pipeline, ident: str) -> Picture | None:
    """The timeline of a pipeline; None if nothing waited. ``ident`` is an identifier that only this picture has."""
    if not pipeline.rows:
        return None
    bottom = TOP + len(pipeline.rows) * (HEIGHT + GAP)
    unit = (WIDTH - LEFT) / max(pipeline.steps, FEWEST)
    parts = [_steps(pipeline, unit, bottom)]
    tops: dict[str, float] = {row.name: TOP + i * (HEIGHT + GAP) for i, row in enumerate(pipeline.rows)}
    parts += [_links(row, tops, unit, pipeline.steps) for row in pipeline.rows]
    for row in pipeline.rows:
        parts.append(svg_text(0, tops[row.name] + 15, _shortened(row.name), "start", "strong"))
        parts += [_span(pipeline, span, tops[row.name], unit) for span in row.spans]
    parts.append(_legend(pipeline, bottom + 22))
    caption = pipeline_caption(pipeline)
    return Picture(drawing(ident, "Who waits for whom", caption, bottom + 34, parts), caption)


def pipeline_caption(pipeline: Pipeline) -> str:
    """The timeline in words: who fills and who uses the stages, and for which part of the steps warps wait."""
    stages = sum(row.kind == "stage" for row in pipeline.rows)
    warps = [row for row in pipeline.rows if row.kind == "warps"]
    steps = f"{'' if pipeline.whole else 'the first '}{pipeline.steps:g} steps"
    waits = [f"{row.name} {_waiting(row, pipeline.steps):.0%}" for row in warps]
    with_stages = f", with {with_noun(stages, 'stage')}" if stages else ""
    ever = [row.name for row in warps if any(span.end is None for span in row.spans)]
    end = f" For ever: {', '.join(ever)}." if ever else ""
    early = [row.name for row in warps if any(map(pipeline.is_early, row.spans))]
    end += f" Working with a stage that a copy is still filling: {', '.join(early)}." if early else ""
    return f"{pipeline.block.capitalize()}{with_stages}. Waiting in {steps}: {', '.join(waits)}.{end}"


def _waiting(row: PipelineRow, steps: float) -> float:
    """The part of the steps that a row waits."""
    ends = [(span, steps if span.end is None else min(span.end, steps)) for span in row.spans if span.kind == "wait"]
    return sum(max(0.0, end - span.begin) for span, end in ends) / steps if steps else 0.0


def _steps(pipeline: Pipeline, unit: float, bottom: float) -> str:
    """A line at every step, and its number."""
    edges = "".join(f"M{LEFT + i * unit:.1f} {TOP - 4}V{bottom - GAP / 2:g}" for i in range(int(pipeline.steps) + 1))
    numbers = [svg_text(LEFT + i * unit, TOP - 9, str(i), "middle") for i in range(1, int(pipeline.steps) + 1)]
    return f'<path class="banks" d="{edges}"/>' + svg_text(0, TOP - 9, "step", "start") + "".join(numbers)


def _links(row: PipelineRow, tops: dict[str, float], unit: float, steps: float) -> str:
    """From the rows that complete phases to the ends of this row's waits."""
    path = ""
    for span in row.spans:
        if span.kind == "wait" and span.by in tops and span.end is not None and span.end <= steps:
            down = tops[span.by] < tops[row.name]
            begin, end = tops[span.by] + (HEIGHT if down else 0), tops[row.name] + (0 if down else HEIGHT)
            path += f"M{LEFT + span.end * unit:.1f} {begin:g}V{end:g}"
    return f'<path class="link" d="{path}"/>' if path else ""


def _span(pipeline: Pipeline, span: PipelineSpan, top: float, unit: float) -> str:
    """A bar, with the number of its stage where there is room."""
    end = pipeline.steps if span.end is None else min(span.end, pipeline.steps)
    left, width = LEFT + span.begin * unit, (end - span.begin) * unit
    if width <= 0:
        return ""
    kind = _CLASSES.get(span.kind, "asked") + " stuck" * (span.end is None)
    kind = "word late" if pipeline.is_early(span) else kind
    line = f" (line {span.line})" if span.line else ""
    height = HEIGHT if span.kind != "ask" else HEIGHT - 8
    bar = titled_rectangle(kind, left + 0.5, top + (HEIGHT - height) / 2, width - 1, height, f"{span.words}{line}")
    number = "number on" if kind == "asked" else "number"
    room = span.kind != "wait" and width >= 6.4 * len(span.stage) + 4
    return bar + (svg_text(left + width / 2, top + 15, span.stage, "middle", number) if room and span.stage else "")


def _legend(pipeline: Pipeline, y: float) -> str:
    """What the bars mean, of those that there are."""
    kinds = {span.kind for row in pipeline.rows for span in row.spans}
    kinds |= {"stuck" for row in pipeline.rows for span in row.spans if span.end is None}
    kinds |= {"early" for row in pipeline.rows for span in row.spans if pipeline.is_early(span)}
    drawn, x = [], 0.0
    for kind, words in _LEGEND.items():
        if kind in kinds:
            height = 12 if kind != "ask" else 7
            drawn.append(titled_rectangle(_CLASSES[kind], x, y - 4 - height / 2, 16, height))
            drawn.append(svg_text(x + 22, y, words, "start"))
            x += 46 + 6.2 * len(words)
    return "".join(drawn)


def _shortened(name: str) -> str:
    """A name that fits the room on the left."""
    return name if len(name) <= 18 else f"{name[:17]}…"
