"""The page in headless Chromium, from file://, at a desk and on a phone, with every name unresolvable."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("altair", reason="the report's lab extra is not installed")

from support import browser
from support.report_records import campaign, measured, oblong
from tilewright.records import report
from tilewright.records.report import palette

pytestmark = browser.MARKS

#: The kernels of the campaign that are drawn at first: the best rung, and two libraries.
FIRST = ["cpu/strassen_winograd", "ref/openblas", "ref/mkl"]

#: What is seen of the page.
PROBE = """
const visible = [...document.querySelectorAll("article:not([hidden]) figure.chart")];
const paths = (figure) => [...figure.querySelectorAll(".mark-symbol path")];
seen.width = innerWidth;
seen.scroll = document.documentElement.scrollWidth;
seen.table = document.querySelector(".scroll").scrollWidth;
seen.marks = Object.fromEntries(visible.map((f) => [f.dataset.chart, paths(f).length]));
const lines = (figure) => figure.querySelectorAll(".mark-line path").length;
seen.lines = Object.fromEntries(visible.map((f) => [f.dataset.chart, lines(f)]));
seen.outside = visible.flatMap((f) => {
  const box = f.getBoundingClientRect();
  const beyond = (t) => t.right > box.right + 1 || t.left < box.left - 1;
  const texts = [...f.querySelectorAll("svg text")];
  return texts.filter((t) => beyond(t.getBoundingClientRect())).map((t) => t.textContent);
});
const opacity = (p) => Number(p.getAttribute("opacity") ?? 1);
const faint = () => paths(visible[0]).filter((p) => opacity(p) > 0 && opacity(p) < 0.5).length;
const drawn = () => visible[0].querySelectorAll(".mark-line path").length;
const button = document.querySelector(".legend [data-kernel]");
const before = faint();
seen.drawn = [drawn()];
button.click();
await wait(300);
seen.faint = [before, faint()];
seen.dimRows = document.querySelectorAll("article:not([hidden]) tr.dim").length;
const other = document.querySelector(".legend details .other");
seen.closed = other ? !other.checkVisibility() : null;
other?.closest("details").setAttribute("open", "");
other?.focus();
seen.focused = document.activeElement === other;
other?.click();
await wait(300);
seen.drawn.push(drawn());
seen.pressed = [button, other].map((b) => b?.getAttribute("aria-pressed"));
document.querySelector(".legend .all").click();
await wait(300);
seen.faint.push(faint());
seen.drawn.push(drawn());
seen.names = [...visible[0].querySelectorAll(".mark-text text")].map((t) => t.textContent);
const target = visible[0].querySelectorAll(".mark-symbol")[1].querySelector("path");
const at = target.getBoundingClientRect();
const where = {bubbles: true, clientX: at.x + at.width / 2, clientY: at.y + at.height / 2};
target.dispatchEvent(new PointerEvent("pointermove", where));
target.dispatchEvent(new MouseEvent("mousemove", where));
target.dispatchEvent(new MouseEvent("mouseover", where));
await wait(300);
seen.pointed = faint();
seen.tooltip = document.getElementById("vg-tooltip-element")?.textContent ?? "";
target.dispatchEvent(new MouseEvent("mouseout", where));
await wait(300);
seen.faint.push(faint());
const box = document.querySelector('[aria-label="Table of every cell"]');
const hint = () => [getComputedStyle(box).maskImage.startsWith("linear"), box.previousElementSibling.innerText];
seen.more = [hint()];
box.scrollLeft = box.scrollWidth;
box.dispatchEvent(new Event("scroll")); // virtual time draws too few frames for the browser's own
seen.more.push(hint());
document.querySelector('.show [data-show="gflops"]').click();
const cell = document.querySelector("td.ok");
seen.shown = [".time", ".gflops"].map((name) => getComputedStyle(cell.querySelector(name)).display);
const tab = document.querySelectorAll(".views button")[1];
if (tab) { tab.click(); await wait(1500); }
const second = document.querySelectorAll("article")[1];
seen.second = second ? [second.hidden, second.querySelectorAll(".mark-symbol path").length] : null;
"""


@pytest.fixture(scope="module")
def page() -> str:
    return report.render(campaign() + oblong())


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
def test_every_chart_has_its_marks(where, request):
    seen = request.getfixturevalue(where)
    cells = [r for r in campaign() if r.verdict == "ok" and r.kernel in FIRST]
    assert seen["marks"]["gflops"] == 2 * len(cells)  # each point, and its wide unseen target
    assert seen["marks"]["time"] == 2 * len(cells)
    assert seen["marks"]["ratio"] == 2 * sum(r.ratio is not None for r in cells)
    assert seen["marks"]["shapes"] == sum(r.kernel in FIRST for r in oblong())
    assert seen["lines"]["gflops"] == seen["lines"]["time"] == len(FIRST)
    assert seen["outside"] == []


def test_a_phone_scrolls_the_table_and_not_the_page(phone):
    assert phone["width"] == 390
    assert phone["scroll"] <= phone["width"]
    assert phone["table"] > phone["width"]


def test_legend_picks_and_hover_tells(desk):
    before, picked, after, left = desk["faint"]
    others = sum(r.verdict == "ok" and r.kernel in FIRST[1:] for r in campaign())
    assert (before, picked, after, left) == (0, others, 0, 0)
    assert desk["pointed"] > 0
    assert desk["dimRows"] == 13
    for word in ("kernel", "Time", "GFLOPS", "R", "Spread", "Samples"):
        assert word in desk["tooltip"]
    assert desk["shown"] == ["none", "inline"]


@pytest.mark.parametrize("where", ["desk", "phone"])
def test_lines_have_their_names_and_the_other_kernels_are_drawn_when_asked_for(where, request):
    """The others' buttons are in a part that opens; they take the focus, as the keyboard needs."""
    seen = request.getfixturevalue(where)
    assert seen["closed"]
    assert seen["focused"]
    assert seen["pressed"] == ["true", "true"]
    assert seen["drawn"] == [3, 4, 3]
    assert {"strassen_winograd", "OpenBLAS", "MKL"} <= set(seen["names"])


@pytest.mark.parametrize("where", ["desk", "phone"])
def test_a_table_says_that_columns_follow_until_the_last_is_seen(where, request):
    words = "More columns on the right: scroll →"
    assert request.getfixturevalue(where)["more"] == [[True, words], [False, words]]


NEIGHBOURS = (1024, 2048, 4095, 4096, 4097, 8192)


def test_a_line_goes_through_one_of_sizes_in_one_place_and_the_dark_page_has_its_colours(tmp_path):
    body = """
    const figure = document.querySelector("figure.gflops");
    seen.joints = [...figure.querySelectorAll(".mark-line path")].map((p) => p.getAttribute("d").split(/[ML]/).length - 1);
    seen.marks = figure.querySelectorAll(".mark-symbol path").length;
    seen.strokes = [...figure.querySelectorAll(".mark-line path")].map((p) => p.getAttribute("stroke"));
    const rgb = (e, name) => getComputedStyle(e)[name].match(/\\d+/g).map(Number);
    seen.paper = rgb(document.body, "backgroundColor");
    seen.ink = [...document.querySelectorAll(".message, .details, .legend button, figcaption p, .axis text, td, th")]
      .filter((e) => e.checkVisibility()).map((e) => rgb(e, e.closest("svg") ? "fill" : "color"));
    """
    records = [measured(kernel, n) for kernel in ("cpu/register_tile", "ref/openblas") for n in NEIGHBOURS]
    seen = browser.look(report.render(records), tmp_path, 1280, body, "--blink-settings=preferredColorScheme=0")
    browser.check_quiet(seen)
    assert seen["joints"] == [4, 4]
    assert seen["marks"] == 2 * 2 * len(NEIGHBOURS)
    assert seen["strokes"] == [palette.DARK[0], palette.GREYS_DARK[0]]
    assert "#{:02x}{:02x}{:02x}".format(*seen["paper"]) == palette.INK["dark"]["paper"]
    assert min(sum(colour) for colour in map(tuple, seen["ink"])) > 3 * 0x80 - 0x20  # light on dark


def test_second_view_is_drawn_when_it_is_opened(desk):
    hidden, marks = desk["second"]
    assert not hidden
    assert marks > 0


def test_kernel_names_from_elsewhere_stay_text(tmp_path):
    name = "cpu/<script>document.title='broken'</script>"
    records = [replace(measured("cpu/register_tile", n), kernel=name) for n in (64, 128)]
    records += [measured("cpu/register_tile", n) for n in (64, 128)]
    seen = browser.look(report.render(records), tmp_path, 1280, PROBE)
    browser.check_quiet(seen)
    assert seen["marks"]["gflops"] == 8


SEPARATORS = ["\u2028", "\u2029", "\x1b[31m", "\u202e", "'\"\\", "</script><script>", "]]>", "<!--"]


@pytest.mark.parametrize("separators", [SEPARATORS[::2], SEPARATORS[1::2]], ids=["even", "odd"])
def test_what_kernels_are_called_breaks_no_chart(separators, tmp_path):
    """Names stand in the charts' expressions, which are programs: U+2028 ends a line in the middle of one."""
    names = [f"cpu/a{separator}b{separator}" for separator in separators]
    records = [
        replace(measured("cpu/register_tile", n), kernel=name, reference=name) for name in names for n in (64, 128)
    ]
    records += [measured("cpu/register_tile", n) for n in (64, 128)]
    seen = browser.look(report.render(records, title=" ".join(names)), tmp_path, 1280, PROBE)
    browser.check_quiet(seen)
    assert seen["marks"]["gflops"] == seen["marks"]["time"] == seen["marks"]["ratio"] == 4 * len(names) + 4
    assert seen["lines"]["gflops"] == len(names) + 1
    assert seen["faint"] == [0, 8, 0, 0]  # the other kernels, while one is picked in the legend


def test_a_page_that_asks_the_network_is_not_quiet(tmp_path):
    asking = '<!doctype html><html data-ready="true"><body><script src="http://a.example/a.js"></script></body></html>'
    seen = browser.look(asking, tmp_path, 1280, "await wait(2000);")
    with pytest.raises(AssertionError, match=r"a\.example/a\.js"):
        browser.check_quiet(seen)
