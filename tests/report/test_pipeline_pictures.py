"""The pictures of an asynchronous kernel: spans, events and chunks are drawn as recorded, and said in words."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

pytest.importorskip("altair", reason="the report's lab extra is not installed")
pytest.importorskip("jinja2", reason="the report's lab extra is not installed")

from support import browser
from support.explanations import coalesced
from support.pipelines import WRONG_BYTES, WRONG_PARITY, in_code, pipeline, ring, tile
from tilewright.records import report
from tilewright.records.explanation import from_dict
from tilewright.records.pipeline import BarrierEvent, Pipeline
from tilewright.records.report.access_picture import WIDTH, Picture
from tilewright.records.report.pipeline_section import (
    LEFT,
    bank_turns,
    phase_picture,
    pipeline_picture,
    pipeline_pictures,
    swizzle_picture,
)
from tilewright.records.report.words import with_noun


def classes(picture: Picture | None) -> list[str]:
    """The classes of all rectangles of a picture that have a text under the pointer."""
    assert picture is not None
    return [box.get("class", "") for box in ET.fromstring(picture.svg).iter("rect") if box.find("title") is not None]


def test_every_span_is_drawn_from_its_begin_to_its_end() -> None:
    made = pipeline()
    drawn = pipeline_picture(made, "e")
    assert drawn is not None
    boxes = [box for box in ET.fromstring(drawn.svg).iter("rect") if box.find("title") is not None]
    spans = [span for row in made.rows for span in row.spans]
    assert len(boxes) == len(spans)
    unit = (WIDTH - LEFT) / made.ticks
    for box, span in zip(boxes, spans, strict=True):
        assert float(box.get("x", 0)) == pytest.approx(LEFT + span.begin * unit, abs=1)
        assert float(box.get("width", 0)) == pytest.approx(((span.end or 0) - span.begin) * unit, abs=1.5)
        assert (box.findtext("title") or "").startswith(span.words)
    assert drawn.caption == "Block (0, 0, 0), with 2 stages. Waiting time in 9 ticks: warp 4 58%, warps 0–3 22%."


@pytest.mark.slow
def test_mistakes_stand_out_in_the_timeline() -> None:
    right = pipeline_picture(pipeline(), "e")
    assert not {"word late", "waiting stuck"} & set(classes(right))
    early = pipeline_picture(pipeline(7, *WRONG_PARITY), "e")
    assert classes(early).count("word late") == 7, "every row is used before it has come"
    assert early is not None
    assert early.caption.endswith("These work with a stage that a copy still fills: warps 0–3.")
    stuck = pipeline_picture(pipeline(7, *WRONG_BYTES), "e")
    assert classes(stuck).count("waiting stuck") == 2
    assert stuck is not None
    assert stuck.caption.endswith("These wait for ever: warp 4, warps 0–3.")


def test_the_phases_of_a_barrier_are_drawn_with_what_they_lack() -> None:
    full, empty = pipeline().barriers
    drawn = phase_picture(full, "e")
    assert drawn is not None
    words = [text.text for text in ET.fromstring(drawn.svg).iter("text")]
    phases = ["phase 0, parity 0", "phase 1, parity 1", "phase 2, parity 0"]
    assert [word for word in words if word and word.startswith("phase ")] == phases
    assert words.count("512") == sum(event.bytes == 512 for event in full.events)
    assert words.count("goes on") == 2
    assert drawn.caption == (
        "A phase of full[0] needs 1 arrival and the expected bytes. In the first 12 events 3 phases complete; "
        "then phase 3 still needs 1 arrival."
    )
    other = phase_picture(empty, "e")
    assert other is not None
    assert "bytes missing" not in other.svg
    assert [w.text for w in ET.fromstring(other.svg).iter("text") if w.text in "43210"][:7] == list("4443210")


def test_more_bytes_than_expected_are_drawn_in_red() -> None:
    (history,) = in_code().barriers
    wrong = replace(history, events=[*history.events[:2], BarrierEvent("bytes", "copy engine", 528, 0, -16, 0, 7)])
    drawn, right = phase_picture(wrong, "e"), phase_picture(history, "e")
    assert drawn is not None
    assert right is not None
    assert ">-16<" in drawn.svg
    assert "word late" in drawn.svg
    assert "word late" not in right.svg


@pytest.mark.parametrize(("swizzle", "turns"), [(0, 8), (32, 4), (64, 2), (128, 1)])
def test_chunks_of_a_column_lie_in_as_many_banks_as_the_swizzle_allows(swizzle: int, turns: int) -> None:
    """Rows of 128 bytes: without a swizzle a column lies in one group of banks, and each swizzle doubles these."""
    made = tile(swizzle)
    assert bank_turns(made.group) == turns
    drawn = swizzle_picture(made, "e")
    assert drawn is not None
    assert classes(drawn).count("word") == 8
    assert len(classes(drawn)) == 64
    assert f"lies in {with_noun(8 // turns, 'group')} of four banks, which takes {turns} wavefront" in drawn.caption


def test_a_product_that_reads_by_another_swizzle_stands_out() -> None:
    right, wrong = (swizzle_picture(tile(128, read_with=read), "e") for read in (128, 64))
    assert classes(right).count("word") == 8
    assert "word late" not in classes(right)
    assert right is not None
    assert right.caption.endswith("wgmma at line 9 reads chunk 0 of rows 0 to 7 as one group of A. They lie in 8 groups "
                                  "of four banks, which takes 1 wavefront.")  # fmt: skip
    assert (classes(wrong).count("word"), classes(wrong).count("word late")) == (4, 4)
    assert wrong is not None
    assert wrong.caption.endswith("but its descriptor says 64-byte swizzle, so it reads 4 other chunks.")


def test_pictures_have_a_name_and_say_in_words_what_they_draw() -> None:
    shown = pipeline_pictures(in_code(), "e0-pipeline")
    assert [one.title for one in shown] == [
        "Which warps wait, and for what",
        "The phases of <full>: stage 0 is full",
        "A tile with the 128-byte swizzle",
    ]
    names = set()
    for one in shown:
        svg = ET.fromstring(one.picture.svg)
        title, desc = svg.find("title"), svg.find("desc")
        assert title is not None
        assert desc is not None
        assert svg.get("aria-labelledby") == f"{title.get('id')} {desc.get('id')}"
        assert (title.text, desc.text) == (one.title, one.picture.caption)
        names.add(title.get("id"))
    assert len(names) == 3


def test_tiles_that_lie_alike_are_shown_once_and_others_all() -> None:
    alike = replace(in_code(), tiles=[tile(128), tile(128, read_with=128), tile(64, 64)])
    shown = [one.picture.caption for one in pipeline_pictures(alike, "e")][-2:]
    assert ["wgmma" in caption for caption in shown] == [True, False]


@pytest.mark.slow
def test_the_page_shows_the_pipeline_of_those_that_have_one() -> None:
    made = replace(coalesced(), pipeline=in_code())
    page = report.render_explanation([made])
    assert page.count('<section class="pipeline">') == 1
    assert "&lt;full&gt;" in page
    assert '<section class="pipeline">' not in report.render_explanation([coalesced()])
    assert from_dict(json.loads(json.dumps(made.as_dict())), "x").pipeline == in_code()


@pytest.mark.slow
def test_a_record_with_nothing_in_it_is_drawn_too() -> None:
    nothing = Pipeline(
        "", 0, True, [replace(row, spans=[]) for row in in_code().rows], [], [replace(tile(0), cells=[])]
    )
    odd = replace(in_code(), ticks=0.0, tiles=[replace(tile(128), reads=[4, 4096], row=9, column=99)])
    for made in (nothing, odd):
        assert "</html>" in report.render_explanation([replace(coalesced(), pipeline=made)])


def test_a_notebook_shows_the_pictures_with_their_own_style() -> None:
    shown = ring()._repr_html_()
    assert shown.count('<svg class="access') == 3
    rules = re.search(r"<style>(.*?)</style>", shown, re.DOTALL)
    assert rules is not None
    used = set(re.findall(r"var\(--([\w-]+)\)", shown))
    assert all(f"--{name}:" in rules[1] for name in used)
    assert "prefers-color-scheme:dark" in rules[1]


def test_a_notebook_without_the_libraries_shows_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> str:
        raise report.UnavailableError("a report needs jinja2")

    monkeypatch.setattr("tilewright.simulator.microscope.pipeline_html", missing)
    assert "warps 0–3  .....00001111" in ring()._repr_html_()


#: What is seen of the section, on a page as wide as a phone.
PROBE = """
const section = document.querySelector("section.pipeline");
seen.width = innerWidth;
seen.scroll = document.documentElement.scrollWidth;
seen.drawings = [...section.querySelectorAll(".drawing")].map((d) => d.scrollWidth > innerWidth);
const inside = (box, edge) => box.left >= edge.left - 17 && box.right <= edge.right + 17;
seen.outside = [...section.querySelectorAll("svg.access")].flatMap((svg) => [...svg.querySelectorAll("text, rect")].filter(
  (e) => !inside(e.getBoundingClientRect(), svg.getBoundingClientRect())).map((e) => e.textContent));
"""


@pytest.mark.browser
@pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium in PATH: the page was not opened in a browser")
@pytest.mark.parametrize("made", [in_code, pipeline])
def test_a_phone_scrolls_the_pictures_and_not_the_page(made, tmp_path) -> None:
    seen = browser.look(report.render_explanation([replace(coalesced(), pipeline=made())]), tmp_path, 390, PROBE)
    browser.check_quiet(seen)
    assert seen["scroll"] <= seen["width"] == 390
    assert all(seen["drawings"])
    assert seen["outside"] == []
