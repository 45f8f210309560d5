"""The page of explanations in headless Chromium: charts are drawn, lines open, and nothing is wider than a phone."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

pytest.importorskip("altair", reason="the report's lab extra is not installed")

from support import browser
from support.explanations import coalesced, line_of, measured, shared_tile, uncoalesced, with_defect
from tilewright.records import report

pytestmark = browser.MARKS

#: What is seen of the page.
PROBE = """
const shown = () => [...document.querySelectorAll("article.view")].filter((a) => !a.hidden);
const visible = (element) => element.checkVisibility({contentVisibilityAuto: true});
const width = () => document.documentElement.scrollWidth;
const [first] = shown();
seen.width = innerWidth;
seen.scroll = [width()];
seen.articles = shown().map((a) => a.id);
seen.charts = Object.fromEntries([...first.querySelectorAll("figure.chart")].map(
  (f) => [f.dataset.chart, f.querySelectorAll(".mark-line path, .mark-symbol path").length]));
seen.outside = [...first.querySelectorAll("figure.chart")].flatMap((f) => {
  const box = f.getBoundingClientRect();
  const beyond = (t) => t.right > box.right + 1 || t.left < box.left - 1;
  return [...f.querySelectorAll("svg text")].filter((t) => beyond(t.getBoundingClientRect())).map((t) => t.textContent);
});
seen.bad = [...first.querySelectorAll(".verdicts span")].map((s) => [s.className, s.textContent]);
const labels = [...first.querySelectorAll(".roofline .mark-text.role-mark text")].map((t) => t.getBoundingClientRect());
const meets = (p, q) => p.left < q.right && q.left < p.right && p.top < q.bottom && q.top < p.bottom;
seen.labels = labels.filter((_, i) => i % 2).length; // each after its halo
seen.meeting = labels.filter((p, i) => i % 2 && labels.some((q, j) => j > i && j % 2 && meets(p, q))).length;
seen.astray = labels.filter((p, i) => i % 2 && Math.abs(p.top - labels[i - 1].top) > 1).length;
const right = (element) => element.getBoundingClientRect().right;
const left = (element) => element.getBoundingClientRect().left;
const below = (one, other) => other.getBoundingClientRect().top >= one.getBoundingClientRect().bottom - 1;
seen.overlapping = [...first.querySelectorAll(".cost")].filter((cost) => {
  const [amount, over] = [cost.querySelector(".amount"), cost.querySelector(".over")];
  const range = document.createRange();
  range.selectNodeContents(amount);
  return over && !below(amount, over) && left(over) < range.getBoundingClientRect().right || right(cost) > innerWidth;
}).length;
const lines = [...first.querySelectorAll("li.line")].filter((l) => l.querySelector("details"));
const pictures = (line) => [...line.querySelectorAll("svg.access")].filter(visible).length;
seen.before = lines.map((l) => [l.id, pictures(l)]);
for (const line of lines) if (!line.querySelector("details").open) line.querySelector("summary").click();
await wait(100);
seen.after = lines.map((l) => [l.id, pictures(l)]);
seen.scroll.push(width());
seen.drawing = Math.max(...lines.map((l) => l.querySelector(".drawing").scrollWidth));
lines[0].querySelector("summary").click();
await wait(100);
seen.closed = pictures(lines[0]);
const header = first.querySelector("li.header");
seen.header = [header.querySelectorAll("li.line").length, [...header.querySelectorAll("li.line")].filter(visible).length];
const second = document.querySelectorAll(".views button")[1];
if (second) {
  second.click();
  await wait(1500);
  seen.second = shown().map((a) => [a.id, a.querySelectorAll("figure.chart svg .mark-symbol path").length > 0]);
  document.querySelector('.comparison a[href="#e2"]').click();
  await wait(1500);
  seen.third = shown().map((a) => a.id);
  location.hash = "#" + lines[0].id;
  await wait(300);
  seen.line = [shown().map((a) => a.id), Math.abs(lines[0].getBoundingClientRect().top) < innerHeight];
  seen.scroll.push(width());
}
"""

THREE = [with_defect(uncoalesced()), measured(coalesced()), shared_tile()]


@pytest.fixture(scope="module")
def page() -> str:
    return report.render_explanation(THREE)


@pytest.fixture(scope="module")
def desk(page, tmp_path_factory) -> dict:
    return browser.look(page, tmp_path_factory.mktemp("desk"), 1280, PROBE)


@pytest.fixture(scope="module")
def phone(page, tmp_path_factory) -> dict:
    return browser.look(page, tmp_path_factory.mktemp("phone"), 390, PROBE)


@pytest.mark.parametrize("where", ["desk", "phone"])
def test_nothing_fails_and_nothing_is_asked_of_the_network(where, request):
    seen = request.getfixturevalue(where)
    browser.check_quiet(seen)


@pytest.mark.parametrize("where", ["desk", "phone"])
def test_every_chart_is_drawn_and_no_word_leaves_it(where, request):
    seen = request.getfixturevalue(where)
    # Two memories' roofs, the arithmetic's and the line that joins two points; a curve and a point each.
    assert seen["charts"] == {"roofline": 6, "registers": 2, "shared": 2}
    assert seen["outside"] == []


@pytest.mark.parametrize("where", ["desk", "phone"])
def test_labels_of_the_roofline_do_not_meet_and_keep_their_halos(where, request):
    seen = request.getfixturevalue(where)
    assert (seen["labels"], seen["meeting"], seen["astray"]) == (5, 0, 0)


def test_labels_give_way_on_a_phone(tmp_path):
    """Three memories see this kernel at much the same intensity."""
    seen = browser.look(report.render_explanation([with_defect(coalesced())]), tmp_path, 390, PROBE)
    assert (seen["labels"], seen["meeting"], seen["astray"]) == (6, 0, 0)


def test_only_what_is_wrong_stands_in_red(desk):
    kinds = [kind for kind, _ in desk["bad"]]
    assert kinds == ["", "bad", ""]
    assert desk["bad"][0][1].startswith("The result is verified")
    assert desk["bad"][1][1] == "Defects: 1 × race."


@pytest.mark.parametrize("where", ["desk", "phone"])
def test_choosing_a_line_shows_its_pictures(where, request):
    seen = request.getfixturevalue(where)
    load, store = (f"e0-{line_of(THREE[0].source, part)}" for part in ("sum +=", "= sum;"))
    assert seen["before"] == [[load, 2], [store, 0]]  # the dearest line is open
    assert seen["after"] == [[load, 2], [store, 1]]
    assert seen["closed"] == 0
    assert seen["header"] == [6, 0]


def test_a_phone_scrolls_the_pictures_and_not_the_page(phone):
    assert phone["width"] == 390
    assert max(phone["scroll"]) <= phone["width"]
    assert phone["drawing"] > phone["width"]


def test_large_counts_run_into_nothing_on_a_phone(tmp_path):
    huge = replace(uncoalesced(), accesses=[replace(a, sectors=a.sectors * 10**5, requests=a.requests * 10**4)
                                            for a in uncoalesced().accesses])  # fmt: skip
    assert browser.look(report.render_explanation([huge]), tmp_path, 390, PROBE)["overlapping"] == 0


def test_tabs_links_and_lines_open_their_kernel(desk):
    assert desk["articles"] == ["e0"]
    assert desk["second"] == [["e1", True]]
    assert desk["third"] == ["e2"]
    assert desk["line"] == [["e0"], True]


def test_everything_but_charts_is_there_without_scripts(page, tmp_path):
    path = tmp_path / "explain.html"
    path.write_text(re.sub(r"<script>.*?</script>", "", page, flags=re.S), encoding="utf-8")
    dom = browser.chromium(tmp_path, "--dump-dom", path.as_uri()).stdout
    assert dom.count('<svg class="access') == sum(len(made.accesses) for made in THREE)
    assert not [tag for tag in re.findall(r"<article[^>]*>", dom) if "hidden" in tag]


def test_hostile_names_stay_text(tmp_path):
    evil = "cuda/<script>document.title='broken'</script>"
    made = replace(uncoalesced(), kernel=evil, source=uncoalesced().source + f"// {evil}\n")
    seen = browser.look(report.render_explanation([made]), tmp_path, 1280, PROBE)
    browser.check_quiet(seen)
    assert seen["charts"]["roofline"] == 6
