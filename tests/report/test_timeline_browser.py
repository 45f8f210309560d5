"""The page of a timeline in headless Chromium: no network, a part of the time is enlarged, bars say what they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("jinja2", reason="the report's lab extra is not installed")

from support import browser
from support.timelines import large, tiny
from tilewright.records import report
from tilewright.records.timeline import Piece

pytestmark = browser.MARKS

#: What is seen of the page.
PROBE = """
const [figure] = document.querySelectorAll(".figure");
const rooms = Object.fromEntries([...figure.querySelector(".place").querySelectorAll(".track")].map(
  (track) => [track.querySelector("b").textContent, track.querySelector(".room")]));
const paths = (room) => [...room.querySelectorAll("path")].map((path) => path.getAttribute("d"));
const boxes = (room) => paths(room).join("").split("M").length - 1;
const counts = () => Object.fromEntries(Object.entries(rooms).map(([name, room]) => [name, boxes(room)]));
const ruler = () => [...figure.querySelectorAll(".ruler span")].map((tick) => tick.textContent);
const press = (name) => { figure.querySelector(`[data-do="${name}"]`).click(); };
const at = (room, share, type, more = {}) => {
  const edges = room.getBoundingClientRect();
  const where = {clientX: edges.left + share * edges.width, clientY: edges.top + 8, bubbles: true, cancelable: true};
  room.dispatchEvent(new (type === "wheel" ? WheelEvent : PointerEvent)(type, {...where, pointerType: "mouse", ...more}));
};
const tip = document.getElementById("tip");
const told = (share, name = "compute") => {
  at(rooms[name], share, "pointermove");
  return tip.hidden ? null : tip.innerText;
};
seen.width = innerWidth;
seen.scroll = document.documentElement.scrollWidth;
const top = (element) => element.getBoundingClientRect().top;
seen.figureFirst = top(figure) < top(document.querySelector(".times"));
const plan = document.querySelector(".environment pre");
seen.plan = [plan.scrollWidth, plan.clientWidth];
seen.counts = [counts()];
seen.characters = Object.values(rooms).flatMap(paths).join("").length;
seen.ruler = [ruler()];
seen.told = [told(0.3), told(0.1), told(0.9, "copy in"), told(0.05, "copy in")];
const edges = tip.getBoundingClientRect();
seen.inside = edges.left >= 0 && edges.right <= innerWidth;
seen.markup = tip.querySelectorAll("script, img").length;
press("in");
press("in");
seen.shown = [figure.querySelector(".shown").textContent];
seen.counts.push(counts());
seen.ruler.push(ruler());
press("all");
at(rooms.compute, 0.5, "pointerdown");
at(rooms.compute, 0.8, "pointermove");
at(rooms.compute, 0.8, "pointerup");
seen.shown.push(figure.querySelector(".shown").textContent);
figure.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowLeft"}));
seen.shown.push(figure.querySelector(".shown").textContent);
figure.dispatchEvent(new KeyboardEvent("keydown", {key: "0"}));
seen.shown.push(figure.querySelector(".shown").textContent);
at(rooms.compute, 0, "wheel", {deltaY: -500, ctrlKey: true});
seen.shown.push(figure.querySelector(".shown").textContent);
for (let i = 0; i < 12; i += 1) press("in");
seen.words = [...figure.querySelectorAll(".word")].map((word) => word.textContent);
seen.title = document.title;
"""


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> dict:
    return browser.look(report.render_timeline([tiny()]), tmp_path_factory.mktemp("desk"), 1280, PROBE)


@pytest.fixture(scope="module")
def phone(tmp_path_factory) -> dict:
    return browser.look(report.render_timeline([large(2)]), tmp_path_factory.mktemp("phone"), 390, PROBE)


@pytest.mark.parametrize("where", ["desk", "phone"])
def test_nothing_fails_and_nothing_is_asked_of_the_network(where, request):
    seen = request.getfixturevalue(where)
    browser.check_quiet(seen)


def test_the_whole_is_drawn_and_a_part_of_it(desk):
    whole, part = desk["counts"]
    assert whole == {"copy in": 4, "compute": 2 + 3, "copy out": 1}  # steps, and gaps
    assert part == {"copy in": 1, "compute": 2 + 1, "copy out": 0}  # from 3.75 s to 6.25 s
    assert desk["ruler"][0] == [f"{x} s" for x in range(0, 11, 2)]
    assert desk["ruler"][1] == ["4.0 s", "4.5 s", "5.0 s", "5.5 s", "6.0 s"]


def test_bars_say_what_they_are(desk):
    step, gap, none, block = desk["told"]
    assert step.split("\n") == ["C[0, 0] step 0", "2.00 s, from 2.00 s on", "10.2 million operations, 0.00512 GFLOPS"]
    assert gap is None
    assert none is None
    assert block.split("\n") == ["A[0, 0]", "1.00 s, from 0 s on", "102 kB, 0.000102 GB/s"]
    assert desk["inside"]


def test_time_is_chosen_by_buttons_dragging_keys_and_wheel(desk):
    buttons, dragged, moved, all_of_it, wheel = desk["shown"]
    assert buttons == "2.50 s from 3.75 s on"
    assert dragged == "3.00 s from 5.00 s on"
    assert moved == "3.00 s from 3.50 s on"
    assert all_of_it == ""
    assert wheel.endswith("from 0 s on")


@pytest.mark.parametrize("where", ["desk", "phone"])
def test_the_picture_stands_above_the_table_and_the_plan_is_whole(where, request):
    seen = request.getfixturevalue(where)
    assert seen["figureFirst"]
    assert seen["plan"][0] <= seen["plan"][1]


def test_a_phone_is_not_scrolled_sideways(phone):
    assert phone["width"] == 390
    assert phone["scroll"] <= phone["width"]
    assert 2 <= len(phone["ruler"][0]) <= 6


def test_a_large_timeline_draws_its_steps_when_they_are_close(phone):
    whole, _ = phone["counts"]
    assert set(whole) == {"stage in", "copy in", "compute", "copy out", "stage out"}
    assert 4 <= whole["compute"] < 1000  # its tiles at least
    assert any("step" in word for word in phone["words"])
    assert phone["characters"] < 100_000  # however many pieces there are


def test_names_from_elsewhere_stay_text(tmp_path):
    name = "<img src=x onerror=\"document.title='broken'\">"
    mean = replace(tiny(), pieces=[*tiny().pieces, Piece("cpu", "copy in", name, 8.5, 9.5)])
    seen = browser.look(report.render_timeline([mean]), tmp_path, 1280, PROBE)
    browser.check_quiet(seen)
    assert seen["told"][2].startswith(name)
    assert seen["markup"] == 0
    assert seen["title"] != "broken"
