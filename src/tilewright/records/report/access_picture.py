"""Draws one warp's access to memory: its 32 lanes, and below them the memory that they access.

Global and local memory move sectors of 32 bytes, four in each aligned line of 128 bytes. In the picture, requested
bytes are filled, and the other bytes of their sectors are hatched. The colours of the picture are classes of the page's
style. ``bank_picture`` draws shared memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ..explanation import Access
from .html import marked
from .words import with_noun

SECTOR = 32  # bytes
LINE = 128  # bytes: four sectors, one word of each of 32 lanes

WIDTH = 1000
LANE = WIDTH / 32
LANES_TOP, LANES_BOTTOM = 20, 40
SECTORS_TOP, SECTORS_BOTTOM = 118, 144
#: With more lines than this, sectors without a request are left out.
WHOLE_LINES = 8

#: Lane → the ranges (first byte, bytes) that it accesses, None for an inactive lane.
Touched = list[list[tuple[int, int]] | None]


@dataclass(frozen=True)
class Picture:
    """A drawing of a request, a sentence with the same content, and the cost of the request in sectors or wavefronts,
    if any."""

    svg: Markup
    caption: str
    cost: int = 0


def ranges(access: Access) -> Touched:
    """Return the ranges of bytes that each lane accesses, each as its first byte and its length. In local memory, the
    words that have the same number in 32 neighbouring threads lie side by side, and a lane's address counts only the
    bytes of this lane.

    >>> place = dict(line=1, kind="ld", requests=1, bytes=256, lanes=[0, 8, None])
    >>> ranges(Access(space="global", nbytes=8, **place))
    [[(0, 8)], [(8, 8)], None]
    >>> ranges(Access(space="local", nbytes=8, **place))
    [[(0, 4), (128, 4)], [(260, 4), (388, 4)], None]
    """
    if access.space != "local":
        return [None if at is None else [(at, access.nbytes)] for at in access.lanes]
    words = range(max(1, access.nbytes // 4))
    return [
        None if at is None else [((at // 4 + i) * LINE + 4 * lane, 4) for i in words]
        for lane, at in enumerate(access.lanes)
    ]


def asked_bytes(touched: Touched) -> dict[int, list[tuple[int, int]]]:
    """Return for each requested sector its requested parts, as pairs (first, end) in the sector, sorted and disjoint.

    >>> asked_bytes([[(0, 8)], [(4, 8)], [(60, 8)], None])
    {0: [(0, 12)], 1: [(28, 32)], 2: [(0, 4)]}
    """
    parts: dict[int, list[tuple[int, int]]] = {}
    for first, size in sorted(part for lane in touched if lane is not None for part in lane):
        for sector in range(first // SECTOR, (first + size - 1) // SECTOR + 1):
            begin = max(0, first - sector * SECTOR)
            end = min(SECTOR, first + size - sector * SECTOR)
            known = parts.setdefault(sector, [])
            if known and begin <= known[-1][1]:
                known[-1] = (known[-1][0], max(end, known[-1][1]))
            else:
                known.append((begin, end))
    return dict(sorted(parts.items()))


def access_picture(access: Access, ident: str) -> Picture | None:
    """Return the picture of the example request of an access to global or local memory, or None if the access has no
    example.

    ``ident`` is an identifier that no other picture on the page has.
    """
    touched = ranges(access)
    asked = asked_bytes(touched)
    if not asked:
        return None
    caption = _caption(access, touched, asked)
    placed = _place(asked)
    parts = [lane_boxes(access.lanes), _links(touched, placed), *_sectors(asked, placed)]
    name = f"What one warp requests from {access.space} memory"
    kind = "access wasteful" if access.space == "global" and _best(asked) < len(asked) else "access"
    return Picture(drawing(ident, name, caption, SECTORS_BOTTOM + 46, parts, kind), caption, len(asked))


def drawing(ident: str, name: str, caption: str, height: float, parts: Iterable[str], kind: str = "access") -> Markup:
    """Return an SVG element with a name and a description for screen readers. ``parts`` are markup already."""
    head = Markup(
        '<svg class="{kind}" viewBox="0 0 {w} {h:g}" role="img" aria-labelledby="{id}-t {id}-d">'
        '<title id="{id}-t">{name}</title><desc id="{id}-d">{caption}</desc>'
    ).format(kind=kind, w=WIDTH, h=height, id=ident, name=marked(name), caption=marked(caption))
    return head + Markup("".join(parts)) + Markup("</svg>")


def lane_boxes(lanes: Sequence[int | None]) -> str:
    """Return the 32 lanes of a warp as a row of numbered boxes. The box of an inactive lane has no fill."""
    drawn = [svg_text(0, LANES_TOP - 7, "lanes of one warp", "start")]
    for lane, at in enumerate(lanes):
        idle = "" if at is not None else " idle"
        words = "inactive" if at is None else f"byte {at:,}"
        drawn.append(
            titled_rectangle(
                "lane" + idle, lane * LANE + 1, LANES_TOP, LANE - 2, LANES_BOTTOM - LANES_TOP, f"lane {lane}: {words}"
            )
        )
        drawn.append(svg_text((lane + 0.5) * LANE, LANES_BOTTOM - 6, str(lane), "middle", "number" + idle))
    return "".join(drawn)


def titled_rectangle(
    kind: str, x: float, y: float, width: float, height: float, hover: str = "", *, radius: float = 2
) -> str:
    """Return an SVG rectangle with a text that appears under the pointer."""
    title = f"<title>{marked(hover)}</title>" if hover else ""
    shape = f'class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.8):.1f}" height="{height:.1f}"'
    return f'<rect {shape} rx="{radius:g}">{title}</rect>' if title else f'<rect {shape} rx="{radius:g}"/>'


def svg_text(x: float, y: float, words: str, anchor: str, kind: str = "") -> str:
    """An SVG text element."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{marked(words)}</text>'


@dataclass(frozen=True)
class _Placed:
    """The places of drawn sectors: the left edge of each by its number, the width of a sector, and the lines of the
    sectors."""

    left: dict[int, float]
    width: float
    lines: list[int]

    def x(self, byte: float) -> float:
        """Return the x coordinate of a byte in a sector that is drawn."""
        sector = int(byte // SECTOR)
        return self.left[sector] + self.width * (byte / SECTOR - sector)


def _place(asked: dict[int, list[tuple[int, int]]]) -> _Placed:
    """Places sectors by address, with a space between two lines, a wider one where memory between them is left out."""
    lines = sorted({sector * SECTOR // LINE for sector in asked})
    a_line = LINE // SECTOR
    shown = [s for line in lines for s in range(a_line * line, a_line * (line + 1))]
    if len(lines) > WHOLE_LINES:
        shown = list(asked)
    space = max(2.0, 14 - 0.3 * len(shown))
    gaps = [0.0]
    for before, sector in itertools.pairwise(shown):
        lines_apart = sector // a_line - before // a_line
        gaps.append(0 if not lines_apart else space if lines_apart == 1 else 2 * space)
    width = (WIDTH - sum(gaps)) / len(shown)
    edges = itertools.accumulate(gap + (width if i else 0) for i, gap in enumerate(gaps))
    return _Placed(dict(zip(shown, edges, strict=True)), width, lines)


def _links(touched: Touched, placed: _Placed) -> str:
    drawn = []
    for lane, parts in enumerate(touched):
        top, middle = (lane + 0.5) * LANE, (LANES_BOTTOM + SECTORS_TOP) / 2
        for first, size in parts or []:
            inside = min(size, SECTOR - first % SECTOR)  # a lane across two sectors points to the first
            x = placed.x(first) + inside / 2 * placed.width / SECTOR
            drawn.append(f"M{top:.1f} {LANES_BOTTOM}C{top:.1f} {middle:g} {x:.1f} {middle:g} {x:.1f} {SECTORS_TOP}")
    return f'<path class="link" d="{"".join(drawn)}"/>'


def _sectors(asked: dict[int, list[tuple[int, int]]], placed: _Placed) -> list[str]:
    """The sectors, filled where bytes were requested, with the number of these and the lines' addresses below."""
    drawn = []
    height = SECTORS_BOTTOM - SECTORS_TOP
    for sector, left in placed.left.items():
        if sector not in asked:
            drawn.append(titled_rectangle("unmoved", left + 0.5, SECTORS_TOP, placed.width - 1, height, "not moved"))
            continue
        used = sum(end - begin for begin, end in asked[sector])
        hover = f"sector at byte {sector * SECTOR:,}: {used} of 32 bytes requested"
        if used < SECTOR:
            drawn.append(titled_rectangle("moved", left + 0.5, SECTORS_TOP, placed.width - 1, height, hover))
        for begin, end in asked[sector]:
            x, width = placed.x(sector * SECTOR + begin), (end - begin) / SECTOR * placed.width
            drawn.append(titled_rectangle("asked", x + 0.5, SECTORS_TOP, width - 1, height, hover, radius=0))
        if placed.width >= 90:
            words = f"{used} of 32 bytes"
            drawn.append(svg_text(left + placed.width / 2, SECTORS_BOTTOM + 15, words, "middle"))
    return drawn + _addresses(placed)


def _addresses(placed: _Placed) -> list[str]:
    """A bracket below each line of 128 bytes, and its first byte where there is room for the number."""
    drawn = []
    room = 6.4 * len(f"byte {placed.lines[-1] * LINE:,}") + 8
    every = math.ceil(room * len(placed.lines) / WIDTH)
    level = SECTORS_BOTTOM + (21 if placed.width >= 90 else 5)
    for i, line in enumerate(placed.lines):
        edges = [x for sector, x in placed.left.items() if sector * SECTOR // LINE == line]
        left, right = edges[0], edges[-1] + placed.width
        drawn.append(f'<path class="bracket" d="M{left + 1:.1f} {level}v4H{right - 1:.1f}v-4"/>')
        if i % every == 0:
            words = "128-byte line at byte" if right - left > 200 else "" if i else "byte"
            middle = max((left + right) / 2, room / 2 - 8)
            drawn.append(svg_text(middle, level + 18, f"{words} {line * LINE:,}".strip(), "middle"))
    return drawn + [_left_out(placed)]


def _left_out(placed: _Placed) -> str:
    """Three dots where memory between two lines is not shown."""
    dots, y = [], (SECTORS_TOP + SECTORS_BOTTOM) / 2
    order = list(placed.left)
    for before, after in itertools.pairwise(order):
        if after * SECTOR // LINE - before * SECTOR // LINE > 1:
            middle = (placed.left[before] + placed.width + placed.left[after]) / 2
            dots += [f"M{middle + step:.1f} {y:g}h.01" for step in (-2.5, 0, 2.5)]
    return f'<path class="dots" d="{"".join(dots)}"/>' if dots else ""


def _used(asked: dict[int, list[tuple[int, int]]]) -> int:
    return sum(end - begin for parts in asked.values() for begin, end in parts)


def _best(asked: dict[int, list[tuple[int, int]]]) -> int:
    """The fewest sectors that hold the same number of bytes."""
    return -(-_used(asked) // SECTOR)


def _caption(access: Access, touched: Touched, asked: dict[int, list[tuple[int, int]]]) -> str:
    active = sum(lane is not None for lane in touched)
    used, best = _used(asked), _best(asked)
    sectors = with_noun(len(asked), "sector")
    what = _arrangement(access, with_noun(used, "byte"))
    verdict = ", the fewest possible" if best == len(asked) else f"; {best} would be enough"
    if access.space == "local":
        verdict = ""  # its layout is the hardware's: no other would be better
    return f"{with_noun(active, 'lane')} {'request' if active > 1 else 'requests'} {what} in {sectors}{verdict}."


def _arrangement(access: Access, used: str) -> str:
    """The number of bytes, with the distance between the lanes' addresses where it is the same for all."""
    active = [at for at in access.lanes if at is not None]
    steps = {after - before for before, after in itertools.pairwise(active)}
    if access.space == "local" or len(steps) != 1:
        return used
    step = abs(steps.pop())
    if step == 0:
        return f"the same {used}"
    return f"{used} side by side" if step == access.nbytes else f"{used}, {step:,} bytes apart,"
