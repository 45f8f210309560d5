"""Pictures of one warp's access for the course, drawn as the page of ``tilewright explain --report`` draws them."""

from __future__ import annotations

from pathlib import Path

from tilewright.lab.explain.cuda import ExplainRequest, run_explanations
from tilewright.records.explanation import Access
from tilewright.records.report.access_picture import access_picture
from tilewright.records.report.pipeline_section import standalone_picture
from tilewright.records.report.source_view import bank_picture

#: The picture's name → the kernel, the size, and the memory whose costliest load is drawn.
WARPS = {
    "warp-uncoalesced": ("uncoalesced", 32, "global"),
    "warp-coalesced": ("coalesced", 32, "global"),
    "warp-thread-tile": ("thread_tile", 128, "shared"),
    "warp-warp-tile": ("warp_tile", 128, "shared"),
}


def save(folder: Path) -> list[Path]:
    """Writes every picture, for light and for dark paper."""
    written = []
    for name, (kernel, size, space) in WARPS.items():
        (explained,) = run_explanations(ExplainRequest([kernel], size=str(size)))
        loads = [access for access in explained.accesses if (access.space, access.kind) == (space, "ld")]
        for theme in ("light", "dark"):
            path = folder / f"{name}{'-dark' if theme == 'dark' else ''}.svg"
            path.write_text(_standalone(max(loads, key=lambda load: load.cost), theme), encoding="utf-8")
            written.append(path)
    return written


def _standalone(access: Access, theme: str) -> str:
    """A picture that needs no page."""
    draw = bank_picture if access.space == "shared" else access_picture
    picture = draw(access, "warp")
    assert picture is not None
    return standalone_picture(str(picture.svg), theme)
