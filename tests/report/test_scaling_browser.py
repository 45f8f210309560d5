"""The page of scaling in headless Chromium: no network, three charts, at a desk and on a phone."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("altair", reason="the report's lab extra is not installed")

from support import browser
from support.scaling_points import in_storage, series
from tilewright.records import report

pytestmark = browser.MARKS

#: What is seen of the page.
PROBE = """
const article = () => document.querySelector("article:not([hidden])");
const charts = () => [...article().querySelectorAll("figure.chart")];
const count = (selector) => Object.fromEntries(charts().map((f) => [f.dataset.chart, f.querySelectorAll(selector).length]));
seen.width = innerWidth;
seen.scroll = document.documentElement.scrollWidth;
seen.lines = [count(".mark-line path")];
seen.outside = charts().flatMap((f) => {
  const box = f.getBoundingClientRect();
  const texts = [...f.querySelectorAll("svg text")];
  return texts.filter((t) => t.getBoundingClientRect().right > box.right + 1).map((t) => t.textContent);
});
seen.heights = [...article().querySelectorAll(".bars div")].map((bar) => bar.getBoundingClientRect().height);
const bar = article().querySelector(".bars div");
const parts = [...bar.children].map((part) => part.getBoundingClientRect().width);
seen.bar = parts.reduce((sum, width) => sum + width, 0) / bar.getBoundingClientRect().width;
const target = charts()[0].querySelectorAll(".mark-symbol")[1].querySelector("path");
const at = target.getBoundingClientRect();
const where = {bubbles: true, clientX: at.x + at.width / 2, clientY: at.y + at.height / 2};
target.dispatchEvent(new PointerEvent("pointermove", where));
target.dispatchEvent(new MouseEvent("mousemove", where));
await wait(300);
seen.tooltip = document.getElementById("vg-tooltip-element")?.textContent ?? "";
article().querySelector(".legend [data-kernel]").click();
await wait(300);
seen.dimRows = article().querySelectorAll("tr.dim").length;
article().querySelector(".legend .all").click();
document.querySelectorAll(".views button")[1].click();
await wait(1500);
seen.lines.push(count(".mark-line path"));
seen.label = document.querySelector('.views [aria-pressed="true"]').textContent;
"""


def page() -> str:
    small = series("storage", 0.75, 0.9, 0.4)
    large = [replace(point, m=4096, n=4096, k=4096) for point in small]
    return report.render_scaling([*in_storage(small), *in_storage(large), *series("link", 0.9, 0.3)])


@pytest.fixture(scope="module", params=[1280, 390], ids=["desk", "phone"])
def seen(request, tmp_path_factory) -> dict:
    return browser.look(page(), tmp_path_factory.mktemp("page"), request.param, PROBE)


def test_nothing_fails_and_nothing_is_asked_of_the_network(seen):
    browser.check_quiet(seen)


def test_three_charts_are_drawn_with_their_bounds_dashed(seen):
    assert seen["lines"] == [{"efficiency": 2, "time": 4, "bytes": 4}, {"efficiency": 1, "time": 2, "bytes": 2}]
    assert seen["label"] == "Strong scaling, float32, A and B at the workers"
    assert not seen["outside"]


def test_a_point_says_what_it_is(seen):
    for words in ("1,024³", "Workers", "75.0%", "64 MiB"):
        assert words in seen["tooltip"]


def test_a_product_is_singled_out_and_bars_are_full(seen):
    assert seen["dimRows"] == 3
    assert set(seen["heights"]) == {12}
    assert seen["bar"] == pytest.approx(1, abs=0.02)


def test_a_page_is_not_scrolled_sideways(seen):
    assert seen["scroll"] <= seen["width"]
