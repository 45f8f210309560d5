"""Pictures of one warp's access for the course, drawn as the page of ``tilewright explain --report`` draws them."""

from __future__ import annotations

import re
from pathlib import Path

from tilewright.lab.explain.session import ExplainRequest, run_explanations
from tilewright.records.explanation import Access
from tilewright.report.access_picture import access_picture
from tilewright.report.bank_picture import bank_picture

from .common import ROOT

STYLES = [ROOT / "src" / "tilewright" / "report" / name for name in ("page.css", "explain.css")]
#: The picture's name → the kernel, the size, and the memory whose costliest load is drawn.
WARPS = {
    "warp-uncoalesced": ("uncoalesced", 32, "global"),
    "warp-coalesced": ("coalesced", 32, "global"),
    "warp-thread-tile": ("thread_tile", 128, "shared"),
    "warp-warp-tile": ("warp_tile", 128, "shared"),
}
HATCHES = "".join(
    f'<pattern id="{name}" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<path d="M0 0V5" stroke="var(--{colour})" stroke-width="{width}"/></pattern>'
    for name, colour, width in (("hatch", "accent", 1.6), ("along", "faint", 0.8))
)


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
    """A picture that needs no page: with the page's style in it, its colours resolved."""
    draw = bank_picture if access.space == "shared" else access_picture
    picture = draw(access, "warp")
    assert picture is not None
    css = "\n".join(path.read_text(encoding="utf-8") for path in STYLES)
    colours = _variables(css, theme)
    rules = "".join(line for line in css.splitlines() if line.startswith(".access") and "min-width" not in line)
    _, _, width, height = re.search(r'viewBox="(\S+) (\S+) (\S+) (\S+)"', picture.svg).groups()  # type: ignore[union-attr]
    edges = f'viewBox="-16 -16 {int(width) + 32} {float(height) + 32:g}"'
    paper = f'<rect x="-16" y="-16" width="{int(width) + 32}" height="{float(height) + 32:g}" fill="var(--paper)"/>'
    head = f"<style>{rules}</style><defs>{HATCHES}</defs>{paper}"
    svg = re.sub(r'viewBox="[^"]*"', f'xmlns="http://www.w3.org/2000/svg" {edges}', str(picture.svg), count=1)
    svg = svg.replace("</desc>", f"</desc>{head}", 1)
    return re.sub(r"var\(--([\w-]+)\)", lambda match: colours[match[1]].replace('"', "'"), svg) + "\n"


def _variables(css: str, theme: str) -> dict[str, str]:
    """The variables of the style for light paper, overlaid by those for dark."""
    dark = "".join(re.findall(r"prefers-color-scheme: dark\) \{\s*:root \{(.*?)\}", css, re.DOTALL))
    light = "".join(re.findall(r"^:root \{(.*?)\}", css, re.DOTALL | re.MULTILINE))
    found = re.findall(r"--([\w-]+): ([^;]+);", light + (dark if theme == "dark" else ""))
    return dict(found)
