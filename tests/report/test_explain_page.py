"""The page of explanations: what it says of them, that every part is there, and what must stay text."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

pytest.importorskip("altair", reason="the report's lab extra is not installed")
pytest.importorskip("vl_convert", reason="the report's lab extra is not installed")
pytest.importorskip("jinja2", reason="the report's lab extra is not installed")

from support.explanations import (
    bare,
    coalesced,
    line_of,
    measured,
    sampled,
    shared_tile,
    uncoalesced,
    unrated,
    with_defect,
)
from tilewright.errors import RecordError
from tilewright.records import report
from tilewright.records.explanation import Access, Bound, Defect, Explanation, Formula, TimePart
from tilewright.records.report import explain_page
from tilewright.records.report.source_view import source_view

THREE = [uncoalesced(), coalesced(), shared_tile()]


def body(page: str) -> str:
    """The page without its scripts, as a reader without JavaScript has it."""
    return re.sub(r"<script.*?</script>", "", page, flags=re.S)


def words(page: str) -> str:
    """What a reader reads: no tags, no entities, single spaces."""
    text = re.sub(r"<style.*?</style>|<title.*?</title>|<desc.*?</desc>", "", body(page), flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", text)).split())


# ---- the sentences ----


def test_headline_says_rate_bound_and_waste():
    assert explain_page.headline(uncoalesced()) == (
        "cuda/uncoalesced at 64 on H200: at best 1,833 GFLOPS (0.286 µs, 2.7% of the arithmetic peak), held back by "
        "L1 and shared memory; line 15 moves 6.6 times as many sectors as necessary."
    )
    assert explain_page.headline(coalesced()).endswith("; no access moves more than its bytes need.")
    assert "takes 16.5 times as many wavefronts as necessary" in explain_page.headline(shared_tile())


@pytest.mark.parametrize(
    ("made", "ending"),
    [
        (
            unrated(coalesced()),
            "rates are not known, so no time is predicted; no access moves more than its bytes need.",
        ),
        (bare(), "cuda/bare at 32 on an unnamed GPU: this GPU’s rates are not known, so no time is predicted."),
        (replace(coalesced(), k=0), "there is nothing to multiply."),
        (replace(coalesced(), m=6, k=4), "cuda/coalesced at 6 × 64 × 4 on H200: at best"),
    ],
)
def test_headline_of_what_has_no_time(made: Explanation, ending: str):
    assert ending in explain_page.headline(made)


def test_comparison_names_the_fastest_and_the_slowest():
    names = explain_page.labels(THREE)
    assert names == ["cuda/uncoalesced", "cuda/coalesced", "cuda/shared_tile"]
    assert explain_page.comparison(THREE, names) == (
        "cuda/coalesced has the highest bound: 8,299 GFLOPS, held back by L1 and shared memory. "
        "This is 17 times the bound of cuda/shared_tile, 487 GFLOPS, held back by the same resource."
    )
    mixed = [uncoalesced(), coalesced(96)]
    said = explain_page.comparison(mixed, explain_page.labels(mixed))
    assert "are not compared" in said
    assert "fastest" not in said, "the larger size would win by its size"


@pytest.mark.slow
def test_what_has_no_rate_is_not_ranked():
    wrong = replace(coalesced(), verified={"ok": False, "reason": "C[0, 0] is off"})
    stopped = replace(coalesced(), run={**coalesced().run, "complete": False})
    none = replace(coalesced(), occupancy={**coalesced().occupancy, "blocks": 0, "limiting": ["shared"]})
    for made, says in ((wrong, "its result is wrong"), (stopped, "stopped"), (none, "too much of shared memory")):
        three = [made, uncoalesced(), shared_tile()]
        said = explain_page.comparison(three, explain_page.labels(three))
        assert said.startswith("cuda/uncoalesced has the highest bound")
        assert f"no rate is given, because {made.reason_without_rate}" in explain_page.headline(made)
        assert says in made.reason_without_rate
        assert made.gflops is None
        assert explain_page.bars(made) == []
        assert f"No time is predicted, because {made.reason_without_rate}." in words(report.render_explanation([made]))


def test_defects_and_a_wrong_result_are_counted_apart():
    made = replace(with_defect(coalesced()), verified={"ok": False, "reason": "C[0, 0] is off"})
    assert explain_page.totals_row(made)["wrong"] == "1 defect, wrong result"
    assert explain_page.totals_row(coalesced())["wrong"] == ""


def test_a_header_below_other_lines_is_folded():
    made = replace(coalesced(), source="// mine\n#pragma once\n" + coalesced().source)
    assert len(source_view(made, "x").header) == len(source_view(coalesced(), "x").header) + 2


def test_labels_say_no_more_than_tells_them_apart():
    labels = explain_page.labels
    assert labels([coalesced(), coalesced(96)]) == ["cuda/coalesced at 64", "cuda/coalesced at 96"]
    other = replace(coalesced(), params={"TILE": 16})
    assert labels([coalesced(), other]) == ["cuda/coalesced with TILE 32", "cuda/coalesced with TILE 16"]
    assert labels([coalesced(), coalesced()]) == ["cuda/coalesced", "cuda/coalesced (2)"]


def test_verdict_counts_defects_and_says_what_was_run():
    verified = "The result is verified, with an error of 0.013 of the bound."
    fine = explain_page.verdict(coalesced())
    assert (fine.words, fine.bad) == (f"{verified} No defect was found. Every block was run.", False)
    said = [(verified, False), ("Defects: 1 × race.", True), ("Every block was run.", False)]
    assert list(explain_page.verdict(with_defect(coalesced())).sentences) == said
    wrong = replace(coalesced(), verified={"ok": False, "reason": "row 3 was never written", "error_over_bound": 1e9})
    assert explain_page.verdict(wrong).words.startswith(
        "The result is wrong: row 3 was never written (error 1e+09 times the bound)."
    )
    assert explain_page.verdict(wrong).bad
    assert (
        "Counts are estimates: 14 of 5,000 blocks were run; blocks of one kind differ"
        in explain_page.verdict(sampled(bare())).words
    )
    assert "The result was not verified." in explain_page.verdict(bare()).words


def test_occupancy_in_words():
    assert explain_page.occupancy_sentence(coalesced()) == (
        "64 of 64 warps are resident (100%): 2 blocks on each multiprocessor, limited by threads and registers."
    )
    too_much = {"warps": 0, "max_warps": 64, "blocks": 0, "limiting": ["shared"]}
    assert explain_page.occupancy_sentence(replace(bare(), occupancy=too_much)) == (
        "This launch does not fit a multiprocessor, limited by shared memory."
    )
    assert explain_page.occupancy_sentence(bare()) == "The occupancy is not known for this GPU."


# ---- the page ----


class Nesting(HTMLParser):
    """Elements that close in the order they opened, and identifiers that are there once."""

    VOID = frozenset({"meta", "link", "br", "wbr"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.wrong: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> at {self.getpos()}")


@pytest.mark.slow_cases("made0", "made1", "made2")
@pytest.mark.parametrize("made", [[bare()], THREE, [with_defect(measured(e)) for e in THREE], [unrated(coalesced())]])
def test_the_page_is_well_formed(made: list[Explanation]):
    nesting = Nesting(body(report.render_explanation(made)))
    assert (nesting.wrong, nesting.open) == ([], [])
    assert len(set(nesting.ids)) == len(nesting.ids)
    assert Nesting("<p><b></p></b>").wrong  # or it could not fail


def test_the_page_of_one_has_every_part():
    text = words(report.render_explanation([measured(with_defect(shared_tile()))]))
    for part in (
        "What limits cuda/shared_tile on H200",
        "race byte 212 of shared a_tile",
        "first seen in block 0, 0, 0, thread 33, 0, 0",
        "32 lanes request 32 different words of 4 bytes; 32 of them lie in bank 0: 32 wavefronts; 1 would be enough.",
        "What limits it",
        "281,216 turns at 261 billion a second",
        "2 blocks on each multiprocessor",
        "shared memory not used",
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
        "cdiv(n, 32) * m * k * 5",
        "32 registers per thread",
        "8,192 bytes per block",
        "2 × 2 × 1 blocks",
        "tilewright explain cuda/shared_tile --size 64",
        "580.159",
        "counts are those of the PTX",
        "TILE = 32",
    ):
        assert part in text, part


@pytest.mark.slow
def test_several_are_compared_and_each_has_its_article():
    page = body(report.render_explanation([with_defect(uncoalesced()), coalesced(), shared_tile()]))
    assert page.count("<article") == 3
    comparison = words(page[page.index('class="table comparison"') : page.index("<nav")])
    for part in ("1 defect", "274,432", "1.05", "78%", "8,299", "278,784", "L1 and shared memory"):
        assert part in comparison, part
    assert [page.index(f'id="e{i}"') for i in range(3)] == sorted(page.index(f'id="e{i}"') for i in range(3))


@pytest.mark.slow
def test_a_defect_is_at_the_top_and_at_its_line():
    page = body(report.render_explanation([with_defect(uncoalesced())]))
    line = line_of(uncoalesced().source, "sum +=")
    assert f'<a href="#e0-{line}">line {line}</a>' in page[page.index('role="alert"') :]
    assert re.search(rf'<li class="line bad" id="e0-{line}">\s*<details open>.*?<span class="defect">', page, re.S)
    assert 'role="alert"' not in body(report.render_explanation([uncoalesced()]))


@pytest.mark.slow
def test_grades_and_the_lines_of_a_library_are_shown():
    made = with_defect(uncoalesced())
    library = [replace(made.accesses[0], inside="cute/copy.hpp:59"), *made.accesses[1:]]
    graded = [replace(made.defects[0], grade="by the letter of PTX")]
    text = words(report.render_explanation([replace(made, defects=graded, accesses=library)]))
    assert text.count(f"{made.defects[0].kind} (by the letter of PTX)") == 2, "at the top and at its line"
    assert "Called from here: cute/copy.hpp:59." in text
    plain = words(report.render_explanation([made]))
    assert "(sure)" not in plain
    assert "Called from here" not in plain


def test_without_measurement_rates_or_anything_the_parts_are_left_out():
    assert "a GPU measured" in words(report.render_explanation([measured(coalesced())]))
    assert "a GPU measured" not in words(report.render_explanation([coalesced()]))
    unknown = words(report.render_explanation([unrated(coalesced())]))
    assert "rates are not known" in unknown
    assert "Roofline" not in unknown
    assert "Roofline" in words(report.render_explanation([coalesced()]))
    nothing = words(report.render_explanation([bare()]))
    assert "Nothing was counted." in nothing
    assert "Formulas" not in nothing


def test_a_sample_is_said_to_be_one():
    assert "Counts are estimates: 14 of 5,000 blocks were run" in words(
        report.render_explanation([sampled(coalesced())])
    )


def test_what_a_gpu_counted_on_a_line_is_shown_there():
    made = measured(coalesced())
    line = line_of(made.source, "sum +=")
    made = replace(made, measured={**(made.measured or {}), "by_line": {str(line): {"sectors": 40961, "note": "odd"}}})
    assert "Measured on this line: sectors 40,961, note odd." in words(report.render_explanation([made]))


EVIL = "</script><script>alert('x')</script><img src=x onerror=alert(1)>&\u2028"


@pytest.mark.slow
def test_text_from_explanations_is_escaped_everywhere():
    evil: dict[str, Any] = {EVIL: EVIL}
    dirty = Explanation(
        kernel=EVIL, file=EVIL, source=f"/* {EVIL} */\n{EVIL}\n// {EVIL}\n\"{EVIL}", m=32, n=32, k=32, dtype=EVIL,
        params={EVIL: 1}, about={"idea": EVIL}, gpu={"name": EVIL, "compute_capability": EVIL, "sms": EVIL},
        launch={"grid": [EVIL]}, resources=evil,
        occupancy={"warps": 1, "max_warps": 2, "limiting": [EVIL], "limits": {EVIL: 1}},
        accesses=[Access(2, EVIL, EVIL, 4, 1, 4, sectors=1, least=1, lanes=[0] * 32),
                  Access(2, "shared", EVIL, 4, 1, 4, wavefronts=1, least=1, lanes=[0] * 32)],
        counters={EVIL: 1}, formulas=[Formula(EVIL, EVIL, EVIL, 1.0, 2.0)], bounds=[Bound(EVIL, 1.0, "bytes", 1.0)],
        defects=[Defect(EVIL, 2, (0, 0, 0), (0, 0, 0), EVIL)],
        predicted=[TimePart(EVIL, 1.0, EVIL)], verified={"ok": True, "of": EVIL, "reason": EVIL},
        run={"words": EVIL, "exact": False}, notes=[EVIL],
        measured={"counters": {EVIL: 1}, "by_line": {"2": {EVIL: EVIL}}, "environment": evil}, environment=evil,
    )  # fmt: skip
    for made in ([dirty], [dirty, coalesced()]):
        page = report.render_explanation(made, title=EVIL)
        assert page.count("<script") == page.count("</script>") == 3  # the data, the libraries, the page's own
        assert "<img" not in body(page)
        data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))  # type: ignore[union-attr]
        assert EVIL.split("&")[0] in json.dumps(data, ensure_ascii=False)


def test_lone_surrogates_do_not_stop_the_page(tmp_path):
    report.write_explanation([replace(coalesced(), kernel="cuda/\ud800")], tmp_path / "explain.html")


@pytest.mark.slow
def test_page_names_no_address_to_fetch_and_forbids_fetching():
    page = report.render_explanation(THREE)
    assert "default-src 'none'" in html.unescape(page)
    assert not re.search(r"<(script|link|img|iframe)[^>]*\b(src|href)=\"(?!data:,)", body(page))
    assert "@import" not in page
    assert len(page.encode()) < 2_000_000


def test_no_explanation_is_an_error_and_leaves_the_file(tmp_path):
    path = tmp_path / "explain.html"
    path.write_text("before")
    with pytest.raises(RecordError, match="explanations is empty"):
        report.write_explanation([], path)
    assert path.read_text() == "before"
    assert report.write_explanation([coalesced()], path, title="Ours") == path
    assert "<h1>Ours</h1>" in path.read_text(encoding="utf-8")
    assert [p.name for p in tmp_path.iterdir()] == ["explain.html"]


@pytest.mark.slow
def test_the_page_imports_neither_numpy_nor_a_kernel():
    code = (
        "import sys, tilewright.records.report.explain_page\n"
        "ours = {name for name in sys.modules if name.startswith('tilewright.')}\n"
        "ours = {name for name in ours if not name.startswith('tilewright.records.report')}\n"
        "print(sorted(ours | ({'numpy', 'numba'} & set(sys.modules))))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    parts = [
        "bench",
        "compare",
        "explanation",
        "json_data",
        "legible",
        "pipeline",
        "source_rows",
        "unit_counters",
    ]
    plain = ["errors", "records", *(f"records.{name}" for name in parts)]
    assert out.stdout.strip() == str([f"tilewright.{name}" for name in plain])


def test_without_the_lab_extra_the_error_names_it():
    code = "import sys; sys.modules['altair'] = None; import tilewright.records.report as r; r.render_explanation([])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "UnavailableError: a report needs altair" in done.stderr
