"""Makes pictures for the course as the page of ``tilewright explain --report`` draws them: accesses of one warp, and
timelines."""

from __future__ import annotations

from pathlib import Path

from tilewright.lab.explain.cuda import ExplainRequest, run_explanations
from tilewright.records.explanation import Access
from tilewright.records.report.access_picture import Picture, access_picture
from tilewright.records.report.pipeline_section import pipeline_picture, standalone_picture
from tilewright.records.report.source_view import bank_picture

#: The picture's name → the kernel, the size, and the memory whose costliest load is drawn.
WARPS = {
    "warp-uncoalesced": ("uncoalesced", 32, "global"),
    "warp-coalesced": ("coalesced", 32, "global"),
    "warp-thread-tile": ("thread_tile", 128, "shared"),
    "warp-warp-tile": ("warp_tile", 128, "shared"),
}
#: The picture's name → the kernel and the shape of a product of one tile, of which one block's timeline is drawn.
TIMELINES = {
    "course-copied-boxes": ("copied_boxes", "64x64x384"),
    "course-producer": ("producer", "128x128x384"),
    "course-stored-boxes": ("stored_boxes", "256x256x384"),
}

#: Pixels of the text: a page shows a picture at about three quarters of its size.
TEXT = 15.5


def save(folder: Path) -> list[Path]:
    """Write every picture, for light and for dark paper."""
    written = []
    for name, (kernel, size, space) in WARPS.items():
        (explained,) = run_explanations(ExplainRequest([kernel], size=str(size)))
        loads = [access for access in explained.accesses if (access.space, access.kind) == (space, "ld")]
        written += _written(folder, name, _of_access(max(loads, key=lambda load: load.cost)))
    for name, (kernel, size) in TIMELINES.items():
        (explained,) = run_explanations(ExplainRequest([kernel], size=size))
        assert explained.pipeline is not None
        written += _written(folder, name, pipeline_picture(explained.pipeline, "timeline"))
    return written


def _of_access(access: Access) -> Picture | None:
    draw = bank_picture if access.space == "shared" else access_picture
    return draw(access, "warp")


def _written(folder: Path, name: str, picture: Picture | None) -> list[Path]:
    """The picture as files that need no page, for light and for dark paper."""
    assert picture is not None
    paths = []
    for theme in ("light", "dark"):
        path = folder / f"{name}{'-dark' if theme == 'dark' else ''}.svg"
        path.write_text(standalone_picture(str(picture.svg), theme, size=TEXT), encoding="utf-8")
        paths.append(path)
    return paths
