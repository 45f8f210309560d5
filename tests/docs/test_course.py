"""The course: its code, differences and figures are those of the sources and records, and its paragraphs are short."""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
#: The most words of a paragraph or an entry of a list.
MOST_WORDS = 95

pytestmark = pytest.mark.fast


@pytest.fixture
def course(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("tables.course")


def test_counts_are_of_the_sources_that_are_shown(course: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails: ``python benchmarks/record_course.py benchmarks/course-counts.jsonl``."""
    assert course.stale_counts() == []
    edited = {**course.counts(), "cuda/coalesced": {**course.counts()["cuda/coalesced"], "source": "another"}}
    monkeypatch.setattr(course, "counts", lambda: edited)
    assert course.stale_counts() == ["cuda/coalesced"]


def test_every_rung_has_its_loop_and_a_difference_that_can_be_read(course: ModuleType) -> None:
    for name in course.rungs():
        source = course.kernel_of(name).path.read_text(encoding="utf-8")
        loop, changed = course.excerpt(name), course.difference(name)
        assert 1 <= len(loop) <= 32, name
        assert all(line.strip().rstrip("-") in source for line in loop), name
        assert len(changed) <= course.MOST_LINES, name
        assert {line[0] for line in changed} <= set(" +-…"), name
        assert all(line[1:] in source for line in changed if line[0] == "+" and "for" in line), name


def test_an_excerpt_whose_lines_are_gone_is_refused(course: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(course.LOOPS, "cuda/coalesced", ("for (int q = 0", "sum +="))
    with pytest.raises(LookupError, match=r"no line begins with 'for \(int q = 0'"):
        course.excerpt("cuda/coalesced")


def test_the_difference_is_that_of_two_sources(course: ModuleType) -> None:
    changed = course.difference("cpu/ikj_threads")
    assert [line for line in changed if line[0] in "+-"] == ['+    shared="rows",']
    assert course._diff(["a = 1", "b = 2"], ["    a = 1", "    b = 3"]) == ["     a = 1", "-b = 2", "+    b = 3"]
    assert course._diff(["a"], ["b"]) == []


def test_a_gain_is_the_quotient_of_two_rates_and_a_share_that_of_r(course: ModuleType) -> None:
    page = course.PAGES["hopper"]
    own, parent = page.measured["cuda/producer"], page.measured["cuda/large_wgmma"]
    said = course.gain("cuda/producer")
    assert f"{own.gflops / 1000:.0f} TFLOPS, which is {100 * own.ratio:.0f} % of the speed of cuBLAS" in said
    assert f" and {own.gflops / parent.gflops:.2f} times the speed of `cuda/large_wgmma`." in said
    assert "`cuda/tf32` is for float32" in course.gain("cuda/bf16")  # no gain over another dtype


def test_bank_conflicts_are_a_part_of_the_wavefronts_of_reads(course: ModuleType) -> None:
    line, per = course.counts()["cuda/thread_tile"], 1000 / (4096 * 4096 * 512)
    reads, conflicts = (
        per * line["counters"][f"l1tex__data_{name}_mem_shared_op_ld.sum"]
        for name in ("pipe_lsu_wavefronts", "bank_conflicts_pipe_lsu")
    )
    assert f"{reads:.1f} wavefronts to read shared memory, {conflicts:.2f} of them because of" in course.gain(
        line["kernel"]
    )
    assert "bank conflicts of writes to shared memory take 0.98" in course.gain("cuda/dgemm_column")


def test_a_counter_of_matrix_loads_is_not_added_to_that_of_loads(course: ModuleType) -> None:
    """The profiler counts them in both."""
    counters = course.counts()["cuda/bf16"]["counters"]
    (found,) = (name for name in counters if course.WAVEFRONTS.search(name))
    assert found.endswith("mem_shared_op_ld.sum")
    assert any("ldsm" in name for name in counters)


def test_a_rung_is_on_a_page_as_soon_as_it_was_counted(course: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {name: line for name, line in course.counts().items() if name != "cuda/multicast"}
    monkeypatch.setattr(course, "counts", lambda: known)
    page = dataclasses.replace(course.PAGES["hopper"])
    assert page.rungs == [name for name in course.PAGES["hopper"].rungs if name != "cuda/multicast"]


def paragraphs(text: str) -> list[str]:
    """The paragraphs and entries of lists that are written by hand; code, tables, comments and markup are none."""
    text = re.sub(
        r"<!-- generated: .*?<!-- end -->|^```.*?^```|^<picture>.*?</picture>", "\n\n", text, flags=re.DOTALL | re.M
    )
    return [part for part in re.split(r"\n\s*\n|\n(?=- |\d+\. )", text) if part.strip()]


def too_long(text: str) -> list[str]:
    return [part for part in paragraphs(text) if len(part.split()) > MOST_WORDS]


@pytest.mark.parametrize("page", ["index", "cpu", "strassen", "cuda", "hopper"])
def test_no_paragraph_is_long(page: str) -> None:
    assert too_long((ROOT / "docs" / "course" / f"{page}.md").read_text(encoding="utf-8")) == []


def test_a_long_paragraph_is_found() -> None:
    assert too_long("# Title\n\n" + "word " * 96 + "\n\nshort") == ["word " * 96]
    assert too_long("- " + "word " * 60 + "\n- " + "word " * 60) == []


def test_figures_of_the_course_are_those_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no wider than a phone, and their smallest text has 12 pixels."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    bars, course = importlib.import_module("tables.bars"), importlib.import_module("tables.course")
    for file, page in course.PAGES.items():
        for theme in ("light", "dark"):
            path = ROOT / "docs" / "figures" / f"bars-{file}{'-dark' if theme == 'dark' else ''}.svg"
            drawn = bars.drawn(page, theme)
            assert path.read_text(encoding="utf-8") == drawn, f"{path.name}: run python docs/build.py"
            assert 'width="400"' in drawn
            assert min(map(int, re.findall(r'font-size="(\d+)"', drawn))) >= 12
            assert drawn.count("<rect") == 1 + len(page.rungs)
