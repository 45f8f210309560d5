"""The pictures of an asynchronous kernel, for the page of an explanation and for notebooks."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..pipeline import BarrierEvent, BarrierHistory, Pipeline, SwizzledTile
from .access_picture import WIDTH, Picture, drawing, svg_text, titled_rectangle
from .html import HERE, marked
from .pipeline_picture import pipeline_picture
from .swizzle_picture import swizzle_picture, tile_name
from .words import with_noun

_STEPS = (
    "A step is a copy, or what a warp does between two waits. Steps do not measure time: each event stands at the first "
    "step that the barriers allow. A line leads from what completes a phase to the warps that waited for it."
)
_PHASES = "The first events in the order of the run, and what the phase still lacks after each."
_TILE = (
    "Lines of 128 bytes of shared memory, as the copy engine wrote them. Filled: a chunk of each of eight rows, as tensor "
    "cores read them at once."
)


@dataclass(frozen=True)
class TitledPicture:
    """A picture with its heading and a sentence that says how to read it."""

    title: str
    note: str
    picture: Picture


def pipeline_pictures(pipeline: Pipeline | None, ident: str) -> list[TitledPicture]:
    """Timeline, phases of barriers, and tiles that differ; ``ident`` is an identifier that nothing else of the page has."""
    if pipeline is None:
        return []
    drawn = [("Who waits for whom", _STEPS, pipeline_picture(pipeline, f"{ident}-time"))]
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
    """The pictures as a part of another page, with their own style, for light and for dark paper."""
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


@functools.cache
def _css() -> str:
    return "\n".join((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "explain.css"))


def picture_rules() -> str:
    """The rules of the page's style for pictures; they use the variables of a theme."""
    return "".join(line for line in _css().splitlines() if line.startswith(".access") and "min-width" not in line)


def theme_variables(theme: str) -> dict[str, str]:
    """The variables of the page's style by name: those for light paper, and for ``"dark"`` overlaid by those for dark."""
    dark = "".join(re.findall(r"prefers-color-scheme: dark\) \{\s*:root \{(.*?)\}", _css(), re.DOTALL))
    light = "".join(re.findall(r"^:root \{(.*?)\}", _css(), re.DOTALL | re.MULTILINE))
    return dict(re.findall(r"--([\w-]+): ([^;]+);", light + (dark if theme == "dark" else "")))


def standalone_picture(svg: str, theme: str) -> str:
    """A picture as a file that needs no page: with the page's style in it, its colours resolved for a theme."""
    colours = theme_variables(theme)
    found = re.search(r'viewBox="\S+ \S+ (\S+) (\S+)"', svg)
    assert found is not None
    width, height = int(found[1]) + 2 * MARGIN, float(found[2]) + 2 * MARGIN
    edges = f'viewBox="{-MARGIN} {-MARGIN} {width} {height:g}"'
    paper = f'<rect x="{-MARGIN}" y="{-MARGIN}" width="{width}" height="{height:g}" fill="var(--paper)"/>'
    head = f"<style>{picture_rules()}</style><defs>{HATCHES}</defs>{paper}"
    svg = re.sub(r'viewBox="[^"]*"', f'xmlns="http://www.w3.org/2000/svg" {edges}', svg, count=1)
    svg = svg.replace("</desc>", f"</desc>{head}", 1)
    return re.sub(r"var\(--([\w-]+)\)", lambda match: colours[match[1]].replace('"', "'"), svg) + "\n"


# ---- phase picture ---------------------------------------------------------------------------------------------------
# The phases of an mbarrier: its events from left to right, and below each what the phase still lacks.
#
# The phase is complete when no arrivals and no bytes are pending. Waits name the parity of the phase that must be
# complete.


LEFT = 112
STRIP, BAND = 22, 44
ARRIVALS, BYTES = 58, 122
#: The widest that an event is drawn.
WIDEST = 120


def phase_picture(history: BarrierHistory, ident: str) -> Picture | None:
    """The events of a barrier; None if there are none. ``ident`` is an identifier that no other picture of the page has."""
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
    """A heading for the events of a barrier."""
    return f"The phases of {history.name}{f': {history.role}' if history.role else ''}"


def phase_caption(history: BarrierHistory) -> str:
    """The events in words: what a phase needs, and which phases were completed."""
    done = max(event.phase for event in history.events)
    brought = any(event.what == "bytes" for event in history.events)
    needs = with_noun(history.count, "arrival") + (" and the bytes that were announced" if brought else "")
    last = history.events[-1]
    left = [with_noun(last.pending, "arrival")] * bool(last.pending) + [f"{last.bytes:,} bytes"] * bool(last.bytes)
    after = f"; then phase {done} lacks {' and '.join(left)}" if left else ""
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
