"""Draws the figures of the course: bars with the speed of each rung of a page as a percentage of the library's.

A figure is 400 pixels wide, so that a phone shows it in its full size. Its text has at least 12 pixels.
"""

from __future__ import annotations

from pathlib import Path

from tilewright.records.report.html import marked
from tilewright.records.report.palette import DARK, FONT, INK, LIGHT

from . import course

WIDTH, ROW, TOP, NAMES = 400, 24, 58, 122
#: Pixels of a bar of 100 %: the longest bars and their values fit beside the names.
HUNDRED = 168


def save(folder: Path) -> list[Path]:
    """Write the figure of every page, for light and for dark paper."""
    written = []
    for file, page in course.PAGES.items():
        for theme in ("light", "dark"):
            path = folder / f"bars-{file}{'-dark' if theme == 'dark' else ''}.svg"
            path.write_text(drawn(page, theme), encoding="utf-8")
            written.append(path)
    return written


def drawn(page: course.Page, theme: str) -> str:
    """Return the figure of a page as the text of a file."""
    ink, hue = INK[theme], (DARK if theme == "dark" else LIGHT)[0]
    measured = [page.measured[name] for name in page.rungs if name in page.measured]
    bottom = TOP + ROW * len(measured)
    best = max(measured, key=lambda record: record.ratio or 0)
    title = f"From {course.share(measured[0])} to {course.share(best)} of {page.library}"
    unit = "GFLOPS" if page.device == "cpu" else "TFLOPS"
    under = f"{unit} and percent of {page.library} (dashed: 100 %), n = {page.size:,}"
    at_hundred = NAMES + HUNDRED
    parts = [
        f'<rect width="{WIDTH}" height="{bottom + 12}" fill="{ink["paper"]}"/>',
        _text(12, 22, title, ink["ink"], "start", size=15, weight="bold"),
        _text(12, 42, under, ink["faint"]),
        f'<path d="M{at_hundred} {TOP - 4}V{bottom}" stroke="{ink["faint"]}" stroke-dasharray="3 3"/>',
    ]
    for i, record in enumerate(measured):
        y, length = TOP + ROW * i, max(1.5, HUNDRED * (record.ratio or 0))
        parts += [
            _text(NAMES - 8, y + 16, record.kernel.partition("/")[2], ink["ink"], "end"),
            f'<rect x="{NAMES}" y="{y + 4}" width="{length:.1f}" height="{ROW - 8}" rx="2" fill="{hue}"/>',
            _text(
                NAMES + length + 6,
                y + 16,
                f"{course.rate(record)} · {course.share(record)}",
                ink["ink"],
                halo=ink["paper"],
            ),
        ]
    said = f"{title}: " + ", ".join(f"{record.kernel} {course.share(record)}" for record in measured)
    head = (
        f'xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom + 12}" viewBox="0 0 {WIDTH} {bottom + 12}"'
    )
    about = f'role="img" aria-label="{marked(said)}" font-family="{FONT}"'
    return f"<svg {head} {about}>{''.join(parts)}</svg>\n"


def _text(
    x: float,
    y: float,
    words: str,
    fill: str,
    anchor: str = "start",
    *,
    size: int = 12,
    weight: str = "normal",
    halo: str = "",
) -> str:
    around = f' stroke="{halo}" stroke-width="4" stroke-linejoin="round" paint-order="stroke"' if halo else ""
    return (
        f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" fill="{fill}"{around}>'
        f"{marked(words)}</text>"
    )
