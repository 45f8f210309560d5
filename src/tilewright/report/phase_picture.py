"""The phases of an mbarrier: its events from left to right, and below each what the phase still lacks.

The phase is complete when no arrivals and no bytes are pending. Waits name the parity of the phase that must be complete.
"""

from __future__ import annotations

import itertools

from ..records.pipeline import BarrierEvent, BarrierHistory
from .access_picture import WIDTH, Picture, drawing, svg_text, titled_rectangle
from .words import with_noun

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
