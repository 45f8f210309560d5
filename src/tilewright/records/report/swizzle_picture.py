"""A swizzled tile: shared memory in lines of 128 bytes, and in each place of 16 bytes the chunk of the tile that lies there.

The eight places of a line belong to eight groups of four banks. Tensor cores read eight rows of 16 bytes at once; these
should lie in eight different groups of banks.
"""

from __future__ import annotations

from collections import Counter

from ..pipeline import SwizzledTile
from .access_picture import LINE, WIDTH, Picture, drawing, svg_text, titled_rectangle
from .words import with_noun

LEFT = 112
CHUNK = 16  # bytes
PLACES = LINE // CHUNK
COLUMN = (WIDTH - LEFT) / PLACES
TOP, HEIGHT = 24, 24
#: Lines that are drawn.
MOST = 16


def swizzle_picture(tile: SwizzledTile, ident: str) -> Picture | None:
    """The first rows of a tile as a copy put them; None if there are none. ``ident`` is an identifier that no other picture
    of the page has."""
    held = {at: (row, column) for row, cells in enumerate(tile.cells) for column, at in enumerate(cells)}
    lines = sorted({at // LINE for at in [*held, *tile.reads]})[:MOST]
    if not lines:
        return None
    group = tile.reads or tile.group
    wrong = {at for at, right in zip(tile.reads, tile.group, strict=False) if at != right}
    heads = [
        svg_text(LEFT + (i + 0.5) * COLUMN, TOP - 9, f"banks {4 * i}–{4 * i + 3}", "middle") for i in range(PLACES)
    ]
    parts = [svg_text(0, TOP - 9, "byte", "start"), *heads]
    for i, line in enumerate(lines):
        y = TOP + i * HEIGHT
        parts.append(svg_text(0, y + 16, f"{line * LINE:,}", "start"))
        for place in range(PLACES):
            at = line * LINE + place * CHUNK
            x = LEFT + place * COLUMN
            words = "row {}, chunk {}".format(*held[at]) if at in held else ""
            kind = "word late" if at in wrong else "word" if at in group else "lane" if at in held else "unmoved"
            hover = f"byte {at:,}: {words or 'other data'}"
            parts.append(titled_rectangle(kind, x + 1, y + 1, COLUMN - 2, HEIGHT - 2, hover))
            if words:
                parts.append(svg_text(x + COLUMN / 2, y + 16, words, "middle", "number" + " strong" * (at in group)))
    caption = swizzle_caption(tile)
    return Picture(drawing(ident, tile_name(tile), caption, TOP + len(lines) * HEIGHT + 4, parts), caption)


def bank_turns(places: list[int]) -> int:
    """The turns that chunks at these bytes take: the most of them that lie in one group of four banks.

    >>> bank_turns([0, 144, 288]), bank_turns([0, 128, 256])
    (1, 3)
    """
    return max(Counter(at // CHUNK % PLACES for at in places).values(), default=0)


def swizzle_caption(tile: SwizzledTile) -> str:
    """The picture in words."""
    how = f"with a {tile.swizzle}-byte swizzle" if tile.swizzle else "without a swizzle"
    copy = f"The copy{f' at line {tile.line}' if tile.line else ''} wrote rows of {tile.row_bytes:,} bytes {how}."
    rows = f"rows {tile.row} to {tile.row + max(0, len(tile.group) - 1)}"
    line = f" at line {tile.reader_line}" if tile.reader_line else ""
    if tile.contradicted:
        wrong = sum(at != right for at, right in zip(tile.reads, tile.group, strict=False))
        means = f"chunk {tile.column} of {rows} as one group of {tile.operand}"
        by = f"by a descriptor with {tile.reader_swizzle}"
        return f"{copy} wgmma{line} means to read {means} {by}, and reads {wrong} others."
    turns = bank_turns(tile.group)
    lie = f"in {len({at // CHUNK % PLACES for at in tile.group})} groups of banks: {with_noun(turns, 'turn')}"
    best = "" if turns <= 1 else "; 1 would do"
    if tile.reads:
        read = f"wgmma{line} reads chunk {tile.column} of {rows} as one group of {tile.operand}"
        return f"{copy} {read}. They lie {lie}{best}."
    return f"{copy} Chunk {tile.column} of {rows} lies {lie}{best}."


def tile_name(tile: SwizzledTile) -> str:
    """A heading for a tile."""
    return f"A tile with the {tile.swizzle}-byte swizzle" if tile.swizzle else "A tile without a swizzle"
