"""The page of accuracy in headless Chromium: no network, three charts in both themes, at a desk and on a phone."""

from __future__ import annotations

import pytest

pytest.importorskip("altair", reason="the report's lab extra is not installed")

from support import browser
from support.accuracies import record
from tilewright.records import report

pytestmark = browser.MARKS

#: What is seen of the page.
PROBE = """
const article = () => document.querySelector("article:not([hidden])");
const charts = () => [...article().querySelectorAll("figure.chart")];
const count = (selector) => Object.fromEntries(charts().map((f) => [f.dataset.chart, f.querySelectorAll(selector).length]));
seen.width = innerWidth;
seen.scroll = document.documentElement.scrollWidth;
seen.lines = count(".mark-line path");
const texts = (f) => [...f.querySelectorAll("svg text")].map((t) => t.textContent);
seen.named = charts().map((f) => texts(f).filter((text) => text === "classical bound").length);
seen.outside = charts().flatMap((f) => {
  const box = f.getBoundingClientRect();
  const inside = (t) => t.getBoundingClientRect().right <= box.right + 1;
  return [...f.querySelectorAll("svg text")].filter((t) => !inside(t)).map((t) => t.textContent);
});
seen.tops = charts().slice(0, 2).map((f) => f.querySelector("svg").getBoundingClientRect().top);
const chart = charts()[2];
seen.rows = ["uniform", "graded", "infinity"].filter((name) => texts(chart).includes(name));
const hit = [...chart.querySelectorAll(".mark-symbol")].at(-1).querySelector("path").getBoundingClientRect();
const where = {bubbles: true, clientX: hit.x + hit.width / 2, clientY: hit.y + hit.height / 2};
const target = [...chart.querySelectorAll(".mark-symbol")].at(-1).querySelector("path");
target.dispatchEvent(new PointerEvent("pointermove", where));
target.dispatchEvent(new MouseEvent("mousemove", where));
await wait(300);
seen.tooltip = document.getElementById("vg-tooltip-element")?.textContent ?? "";
article().querySelector(".legend [data-kernel]").click();
await wait(300);
seen.dimRows = article().querySelectorAll(".grades tr.dim").length;
document.querySelectorAll(".views button")[1].click();
await wait(1500);
seen.label = document.querySelector('.views [aria-pressed="true"]').textContent;
"""


@pytest.fixture(scope="module", params=[(1280, "light"), (1280, "dark"), (390, "light")], ids=["desk", "dark", "phone"])
def seen(request, tmp_path_factory) -> dict:
    width, theme = request.param
    page = report.render_accuracy([record(), record("float64")])
    flags = ["--blink-settings=preferredColorScheme=0"] if theme == "dark" else []
    return browser.look(page, tmp_path_factory.mktemp("page"), width, PROBE, *flags)


def test_nothing_fails_and_nothing_is_asked_of_the_network(seen):
    browser.check_quiet(seen)


def test_three_charts_are_drawn_with_their_bounds_named(seen):
    assert seen["lines"] == {"size": 4, "span": 3, "distribution": 0}
    assert seen["named"] == [2, 2, 2]  # each with a halo behind it
    assert seen["rows"] == ["uniform", "graded", "infinity"]
    assert not seen["outside"]
    assert seen["label"] == "float64, AMD EPYC"


def test_a_point_says_what_it_is_and_a_path_is_singled_out(seen):
    for words in ("Path", "Operands", "n = 256", "Promise"):
        assert words in seen["tooltip"]
    assert seen["dimRows"] == 2


def test_charts_beside_each_other_begin_at_one_height(seen):
    assert seen["width"] < 1000 or seen["tops"][0] == seen["tops"][1]


def test_a_page_is_not_scrolled_sideways(seen):
    assert seen["scroll"] <= seen["width"]
