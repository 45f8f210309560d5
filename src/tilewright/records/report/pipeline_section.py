"""Draws the pictures of an asynchronous kernel, for the page of an explanation and for notebooks.

The timeline has warps and stages from top to bottom, and ticks from left to right. A line leads from the event that
completes a phase to the warps that waited for it. The phases of each barrier are drawn with the arrivals and bytes that
each phase still needs.

A swizzled tile is drawn as lines of 128 bytes of shared memory, with the chunk of the tile that lies in each 16 bytes.
The eight positions of a line belong to eight groups of four banks. Tensor cores read eight rows of 16 bytes together,
which should lie in eight different groups of banks to be read in one wavefront.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ..pipeline import BarrierEvent, BarrierHistory, Pipeline, PipelineRow, PipelineSpan, SwizzledTile
from .access_picture import LINE, WIDTH, Picture, drawing, svg_text, titled_rectangle
from .html import HERE, marked
from .words import with_noun

# ---- the timeline ----------------------------------------------------------------------------------------------------

LEFT = 112
TIME_TOP, ROW_HEIGHT, ROW_GAP = 24, 22, 9
#: The fewest ticks for which there is room, so that a short run is not drawn large.
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
    "ask": "requests copies",
    "copy": "a copy runs",
    "full": "the stage is full",
    "work": "works with the stage",
    "multiply": "multiplies",
    "wait": "waits",
    "stuck": "waits for ever",
    "early": "works before the copy has arrived",
}


def pipeline_picture(pipeline: Pipeline, ident: str) -> Picture | None:
    """Return the timeline of a pipeline, or None if no warp waited. ``ident`` is an identifier that only this
    picture has."""
    if not pipeline.rows:
        return None
    bottom = TIME_TOP + len(pipeline.rows) * (ROW_HEIGHT + ROW_GAP)
    unit = (WIDTH - LEFT) / max(pipeline.ticks, FEWEST)
    parts = [_ticks(pipeline, unit, bottom)]
    tops: dict[str, float] = {row.name: TIME_TOP + i * (ROW_HEIGHT + ROW_GAP) for i, row in enumerate(pipeline.rows)}
    parts += [_links(row, tops, unit, pipeline.ticks) for row in pipeline.rows]
    for row in pipeline.rows:
        parts.append(svg_text(0, tops[row.name] + 15, _shortened(row.name), "start", "strong"))
        parts += [_span(pipeline, span, tops[row.name], unit) for span in row.spans]
    parts.append(_legend(pipeline, bottom + 22))
    caption = pipeline_caption(pipeline)
    return Picture(drawing(ident, "Which warps wait, and for what", caption, bottom + 34, parts), caption)


def pipeline_caption(pipeline: Pipeline) -> str:
    """Return a text that describes the timeline: the stages, and the part of the ticks that each warp waits."""
    stages = sum(row.kind == "stage" for row in pipeline.rows)
    warps = [row for row in pipeline.rows if row.kind == "warps"]
    ticks = f"{'' if pipeline.whole else 'the first '}{pipeline.ticks:g} ticks"
    waits = [f"{row.name} {_waiting(row, pipeline.ticks):.0%}" for row in warps]
    with_stages = f", with {with_noun(stages, 'stage')}" if stages else ""
    ever = [row.name for row in warps if any(span.end is None for span in row.spans)]
    end = f" These wait for ever: {', '.join(ever)}." if ever else ""
    early = [row.name for row in warps if any(map(pipeline.is_early, row.spans))]
    end += f" These work with a stage that a copy still fills: {', '.join(early)}." if early else ""
    return f"{pipeline.block.capitalize()}{with_stages}. Waiting time in {ticks}: {', '.join(waits)}.{end}"


def _waiting(row: PipelineRow, ticks: float) -> float:
    """The part of the ticks that a row waits."""
    ends = [(span, ticks if span.end is None else min(span.end, ticks)) for span in row.spans if span.kind == "wait"]
    return sum(max(0.0, end - span.begin) for span, end in ends) / ticks if ticks else 0.0


def _ticks(pipeline: Pipeline, unit: float, bottom: float) -> str:
    """A line at every tick, and its number."""
    edges = "".join(
        f"M{LEFT + i * unit:.1f} {TIME_TOP - 4}V{bottom - ROW_GAP / 2:g}" for i in range(int(pipeline.ticks) + 1)
    )
    numbers = [svg_text(LEFT + i * unit, TIME_TOP - 9, str(i), "middle") for i in range(1, int(pipeline.ticks) + 1)]
    return f'<path class="banks" d="{edges}"/>' + svg_text(0, TIME_TOP - 9, "tick", "start") + "".join(numbers)


def _links(row: PipelineRow, tops: dict[str, float], unit: float, ticks: float) -> str:
    """From the rows that complete phases to the ends of this row's waits."""
    path = ""
    for span in row.spans:
        if span.kind == "wait" and span.by in tops and span.end is not None and span.end <= ticks:
            down = tops[span.by] < tops[row.name]
            begin, end = tops[span.by] + (ROW_HEIGHT if down else 0), tops[row.name] + (0 if down else ROW_HEIGHT)
            path += f"M{LEFT + span.end * unit:.1f} {begin:g}V{end:g}"
    return f'<path class="link" d="{path}"/>' if path else ""


def _span(pipeline: Pipeline, span: PipelineSpan, top: float, unit: float) -> str:
    """A bar, with the number of its stage where there is room."""
    end = pipeline.ticks if span.end is None else min(span.end, pipeline.ticks)
    left, width = LEFT + span.begin * unit, (end - span.begin) * unit
    if width <= 0:
        return ""
    kind = _CLASSES.get(span.kind, "asked") + " stuck" * (span.end is None)
    kind = "word late" if pipeline.is_early(span) else kind
    line = f" (line {span.line})" if span.line else ""
    height = ROW_HEIGHT if span.kind != "ask" else ROW_HEIGHT - 8
    bar = titled_rectangle(kind, left + 0.5, top + (ROW_HEIGHT - height) / 2, width - 1, height, f"{span.words}{line}")
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
            x += 46 + 7.6 * len(words)
    return "".join(drawn)


def _shortened(name: str) -> str:
    """A name that fits the room on the left."""
    return name if len(name) <= 18 else f"{name[:17]}…"


# ---- swizzled tiles --------------------------------------------------------------------------------------------------

CHUNK = 16  # bytes
PLACES = LINE // CHUNK
TILE_COLUMN = (WIDTH - LEFT) / PLACES
TILE_TOP, LINE_HEIGHT = 24, 24
#: Lines that are drawn.
MOST_LINES = 16


def swizzle_picture(tile: SwizzledTile, ident: str) -> Picture | None:
    """Return the picture of the first rows of a tile as a copy wrote them, or None if there are no such rows. ``ident``
    is an identifier that no other picture on the page has."""
    held = {at: (row, column) for row, cells in enumerate(tile.cells) for column, at in enumerate(cells)}
    lines = sorted({at // LINE for at in [*held, *tile.reads]})[:MOST_LINES]
    if not lines:
        return None
    group = tile.reads or tile.group
    wrong = {at for at, right in zip(tile.reads, tile.group, strict=False) if at != right}
    heads = [
        svg_text(LEFT + (i + 0.5) * TILE_COLUMN, TILE_TOP - 9, f"banks {4 * i}–{4 * i + 3}", "middle")
        for i in range(PLACES)
    ]
    parts = [svg_text(0, TILE_TOP - 9, "byte", "start"), *heads]
    for i, line in enumerate(lines):
        y = TILE_TOP + i * LINE_HEIGHT
        parts.append(svg_text(0, y + 16, f"{line * LINE:,}", "start"))
        for place in range(PLACES):
            at = line * LINE + place * CHUNK
            x = LEFT + place * TILE_COLUMN
            words = "row {}, chunk {}".format(*held[at]) if at in held else ""
            kind = "word late" if at in wrong else "word" if at in group else "lane" if at in held else "unmoved"
            hover = f"byte {at:,}: {words or 'other data'}"
            parts.append(titled_rectangle(kind, x + 1, y + 1, TILE_COLUMN - 2, LINE_HEIGHT - 2, hover))
            if words:
                parts.append(
                    svg_text(x + TILE_COLUMN / 2, y + 16, words, "middle", "number" + " strong" * (at in group))
                )
    caption = swizzle_caption(tile)
    return Picture(drawing(ident, tile_name(tile), caption, TILE_TOP + len(lines) * LINE_HEIGHT + 4, parts), caption)


def bank_turns(places: list[int]) -> int:
    """Return the number of wavefronts that chunks at these bytes take: the largest number of chunks in one group of
    four banks.

    >>> bank_turns([0, 144, 288]), bank_turns([0, 128, 256])
    (1, 3)
    """
    return max(Counter(at // CHUNK % PLACES for at in places).values(), default=0)


def swizzle_caption(tile: SwizzledTile) -> str:
    """Return a text that describes the picture of a tile."""
    how = f"with a {tile.swizzle}-byte swizzle" if tile.swizzle else "without a swizzle"
    copy = f"The copy{f' at line {tile.line}' if tile.line else ''} wrote rows of {tile.row_bytes:,} bytes {how}."
    rows = f"rows {tile.row} to {tile.row + max(0, len(tile.group) - 1)}"
    line = f" at line {tile.reader_line}" if tile.reader_line else ""
    if tile.contradicted:
        wrong = sum(at != right for at, right in zip(tile.reads, tile.group, strict=False))
        means = f"chunk {tile.column} of {rows} as one group of {tile.operand}"
        why = f"its descriptor says {tile.reader_swizzle}, so it reads {wrong} other chunks"
        return f"{copy} wgmma{line} should read {means}, but {why}."
    turns = bank_turns(tile.group)
    groups = with_noun(len({at // CHUNK % PLACES for at in tile.group}), "group")
    lie = f"in {groups} of four banks, which takes {with_noun(turns, 'wavefront')}"
    best = "" if turns <= 1 else "; 1 would be enough"
    if tile.reads:
        read = f"wgmma{line} reads chunk {tile.column} of {rows} as one group of {tile.operand}"
        return f"{copy} {read}. They lie {lie}{best}."
    return f"{copy} Chunk {tile.column} of {rows} lies {lie}{best}."


def tile_name(tile: SwizzledTile) -> str:
    """Return the heading of a tile's picture."""
    return f"A tile with the {tile.swizzle}-byte swizzle" if tile.swizzle else "A tile without a swizzle"


# ---- all pictures ----------------------------------------------------------------------------------------------------

_TICKS = (
    "A tick is a copy, or what a warp does between two waits. Ticks do not measure time: each event is drawn at the first "
    "tick that the barriers allow. A line leads from the event that completes a phase to the warps that waited for it."
)
_PHASES = "The first events in the order of the run, and the arrivals and bytes that the phase still needs after each."
_TILE = (
    "Lines of 128 bytes of shared memory, as the copy engine wrote them. The filled chunks, one of each of eight rows, are "
    "read by the tensor cores together."
)


@dataclass(frozen=True)
class TitledPicture:
    """A picture with its heading and a sentence that says how to read it."""

    title: str
    note: str
    picture: Picture


def pipeline_pictures(pipeline: Pipeline | None, ident: str) -> list[TitledPicture]:
    """Return the pictures of a pipeline: the timeline, the phases of barriers, and one tile of each kind. ``ident`` is
    an identifier that nothing else on the page has."""
    if pipeline is None:
        return []
    drawn = [("Which warps wait, and for what", _TICKS, pipeline_picture(pipeline, f"{ident}-time"))]
    for i, history in enumerate(pipeline.barriers):
        drawn.append((phase_title(history), _PHASES, phase_picture(history, f"{ident}-phases-{i}")))
    for i, tile in enumerate(_different(pipeline.tiles)):
        drawn.append((tile_name(tile), _TILE, swizzle_picture(tile, f"{ident}-tile-{i}")))
    return [TitledPicture(title, note, picture) for title, note, picture in drawn if picture is not None]


def _different(tiles: list[SwizzledTile]) -> Iterator[SwizzledTile]:
    """Tiles that do not lie as one before; those that a product reads come first."""
    known = set()
    for tile in sorted(tiles, key=lambda tile: not tile.reads):
        first = min((at for cells in tile.cells for at in cells), default=0)
        lie = tuple(tuple(at - first for at in cells) for cells in tile.cells)
        key = (tile.swizzle, lie, tile.contradicted)
        if key not in known:
            known.add(key)
            yield tile


def pipeline_html(pipeline: Pipeline, ident: str) -> str:
    """Return the pictures of a pipeline as a part of another page, with their own style, for light and for dark
    paper."""
    shown = []
    for one in pipeline_pictures(pipeline, ident):
        head = f"<p><b>{marked(one.title)}</b><br>{marked(one.note)}</p>"
        drawing = f"<div style='overflow-x:auto'>{one.picture.svg}</div>"
        shown.append(f"{head}{drawing}<p>{marked(one.picture.caption)}</p>")
    if not shown:
        return ""
    light, dark = ("".join(f"--{k}:{v};" for k, v in theme_variables(name).items()) for name in ("light", "dark"))
    scope = ".tilewright-pictures"
    style = f"{scope}{{{light}background:var(--paper);color:var(--ink);padding:1em}}"
    style += f"@media (prefers-color-scheme:dark){{{scope}{{{dark}}}}}{picture_rules()}"
    defs = f"<svg width='0' height='0' style='position:absolute' aria-hidden='true'><defs>{HATCHES}</defs></svg>"
    return f"<div class='tilewright-pictures'><style>{style}</style>{defs}{''.join(shown)}</div>"


# ---- standalone ------------------------------------------------------------------------------------------------------
# Pictures outside their page: the parts of the page's style that they need, and files that need no page.


#: The patterns of hatched areas, as in the page.
HATCHES = "".join(
    f'<pattern id="{name}" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<path d="M0 0V5" stroke="var(--{colour})" stroke-width="{width}"/></pattern>'
    for name, colour, width in (("hatch", "accent", 1.6), ("along", "faint", 0.8))
)
#: Paper around a picture.
MARGIN = 16


@functools.cache  # every picture asks
def _css() -> str:
    return "\n".join((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "explain.css"))


def picture_rules() -> str:
    """Return the rules for pictures from the page's style. These rules use the variables of a theme."""
    return "".join(line for line in _css().splitlines() if line.startswith(".access") and "min-width" not in line)


def theme_variables(theme: str) -> dict[str, str]:
    """Return the variables of the page's style by name: the variables for light paper, of which some are replaced by
    those for dark paper if the theme is ``"dark"``."""
    dark = "".join(re.findall(r"prefers-color-scheme: dark\) \{\s*:root \{(.*?)\}", _css(), re.DOTALL))
    light = "".join(re.findall(r"^:root \{(.*?)\}", _css(), re.DOTALL | re.MULTILINE))
    return dict(re.findall(r"--([\w-]+): ([^;]+);", light + (dark if theme == "dark" else "")))


def standalone_picture(svg: str, theme: str, *, size: float | None = None) -> str:
    """Return a picture as a file that needs no page: it contains the page's style, with the colours of a theme.

    The picture's text has the page's font size, or ``size`` pixels for a place that shows the picture small.
    """
    colours = theme_variables(theme)
    found = re.search(r'viewBox="\S+ \S+ (\S+) (\S+)"', svg)
    assert found is not None
    width, height = int(found[1]) + 2 * MARGIN, float(found[2]) + 2 * MARGIN
    edges = f'viewBox="{-MARGIN} {-MARGIN} {width} {height:g}"'
    paper = f'<rect x="{-MARGIN}" y="{-MARGIN}" width="{width}" height="{height:g}" fill="var(--paper)"/>'
    larger = f"text{{font-size:{size:g}px !important}}" if size else ""
    head = f"<style>{picture_rules()}{larger}</style><defs>{HATCHES}</defs>{paper}"
    svg = re.sub(r'viewBox="[^"]*"', f'xmlns="http://www.w3.org/2000/svg" {edges}', svg, count=1)
    svg = svg.replace("</desc>", f"</desc>{head}", 1)
    return re.sub(r"var\(--([\w-]+)\)", lambda match: colours[match[1]].replace('"', "'"), svg) + "\n"


# ---- phase picture ---------------------------------------------------------------------------------------------------
# The phases of an mbarrier: its events from left to right, and below each what the phase still lacks.
#
# The phase is complete when no arrivals and no bytes are pending. Waits name the parity of the phase that must be
# complete.


STRIP, BAND = 22, 44
ARRIVALS, BYTES = 58, 122
#: The widest that an event is drawn.
WIDEST = 120


def phase_picture(history: BarrierHistory, ident: str) -> Picture | None:
    """Return the picture of the events of a barrier, or None if the barrier has no events. ``ident`` is an identifier
    that no other picture on the page has."""
    events = history.events
    if not events:
        return None
    column = min(WIDEST, (WIDTH - LEFT) / len(events))
    most = max(max(abs(e.bytes), e.amount if e.what in ("expect", "bytes") else 0) for e in events)
    words = BYTES + 66 if most else BYTES + 2
    parts = [_phases(events, column, words + 34), svg_text(0, ARRIVALS + 30, "arrivals missing", "start")]
    parts += [svg_text(0, BYTES + 30, "bytes missing", "start")] if most else []
    for i, (before, event) in enumerate(zip([None, *events], events, strict=False)):
        x = LEFT + i * column
        # The event that completes a phase leaves nothing pending; what the next phase needs is shown from then on.
        complete = before is not None and event.phase > before.phase
        parts.append(_level(x, ARRIVALS, column, 0 if complete else event.pending, max(1, history.count)))
        parts += [_level(x, BYTES, column, 0 if complete else event.bytes, most)] if most else []
        waits = event.what in ("wait", "pass")
        detail = f"parity {event.amount}" if waits else f"line {event.line}" if event.line else ""
        lines = (_what(event, column), "strong" if waits else "number"), (event.who, ""), (detail, "")
        for row, (text, kind) in enumerate(lines):
            shown = text if _room(text, column) else f"{text[: max(1, int(column / 6) - 1)]}…"
            parts.append(svg_text(x + column / 2, words + 15 * row, shown, "middle", kind))
    caption = phase_caption(history)
    return Picture(drawing(ident, phase_title(history), caption, words + 38, parts), caption)


def phase_title(history: BarrierHistory) -> str:
    """Return the heading of the picture of a barrier's events."""
    return f"The phases of {history.name}{f': {history.role}' if history.role else ''}"


def phase_caption(history: BarrierHistory) -> str:
    """Return a text that describes the events of a barrier: what a phase needs, and which phases were completed."""
    done = max(event.phase for event in history.events)
    brought = any(event.what == "bytes" for event in history.events)
    needs = with_noun(history.count, "arrival") + (" and the expected bytes" if brought else "")
    last = history.events[-1]
    left = [with_noun(last.pending, "arrival")] * bool(last.pending) + [f"{last.bytes:,} bytes"] * bool(last.bytes)
    after = f"; then phase {done} still needs {' and '.join(left)}" if left else ""
    complete = f"{done} phases complete" if done > 1 else "1 phase completes" if done else "no phase completes"
    first = f"In the first {len(history.events)} events" if len(history.events) > 1 else "At its first event"
    return f"A phase of {history.name} needs {needs}. {first} {complete}{after}."


def _phases(events: list[BarrierEvent], column: float, bottom: float) -> str:
    """A box for each phase with its parity, from the event after which it is current."""
    current = [0, *(event.phase for event in events[:-1])]
    drawn, x = [], float(LEFT)
    for phase, group in itertools.groupby(current):
        width = len(list(group)) * column
        words = f"phase {phase}, parity {phase & 1}"
        short = words if width > 6.4 * len(words) else f"{phase}"
        drawn.append(titled_rectangle("lane" if phase & 1 else "word", x + 1, STRIP, width - 2, BAND - STRIP, words))
        drawn.append(svg_text(x + width / 2, BAND - 7, short, "middle", "number"))
        drawn.append(f'<path class="banks" d="M{x + width:.1f} {STRIP - 4}V{bottom:g}"/>')
        x += width
    return svg_text(0, BAND - 7, "phase", "start") + "".join(drawn)


def _level(x: float, top: float, column: float, value: int, most: int) -> str:
    """A number as a bar on its base line; one that is negative in red."""
    height = 34 * min(1.0, abs(value) / most)
    bar = ""
    if value:
        bar = titled_rectangle("word late" if value < 0 else "asked", x + 6, top + 48 - height, column - 12, height)
    base = f'<path class="bracket" d="M{x + 4:.1f} {top + 48:g}H{x + column - 4:.1f}"/>'
    return bar + base + svg_text(x + column / 2, top + 44 - height, f"{value:,}", "middle", "number")


def _what(event: BarrierEvent, column: float) -> str:
    """An event in a word or two, with its number where there is room."""
    words = {"init": "initialised", "arrive": "arrives", "expect": "expects", "wait": "waits", "pass": "goes on"}
    short = words.get(event.what, "bytes come" if event.what == "bytes" else event.what)
    full = {"bytes": f"{event.amount:,} come", "expect": f"expects {event.amount:,}"}.get(event.what, short)
    if event.what == "arrive" and event.amount > 1:
        full = f"arrives ×{event.amount:,}"
    return full if _room(full, column) else short


def _room(words: str, column: float) -> bool:
    """Whether words fit the width of an event."""
    return len(words) * 6 <= column
