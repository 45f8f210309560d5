"""The pictures of an asynchronous kernel, for the page of an explanation and for notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..records.pipeline import Pipeline, SwizzledTile
from .access_picture import Picture
from .html import marked
from .phase_picture import phase_picture, phase_title
from .pipeline_picture import pipeline_picture
from .standalone import HATCHES, picture_rules, theme_variables
from .swizzle_picture import swizzle_picture, tile_name

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
