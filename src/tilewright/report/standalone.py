"""Pictures outside their page: the parts of the page's style that they need, and files that need no page."""

from __future__ import annotations

import functools
import re

from .html import HERE

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
