"""The page of accuracy: what is read, what its sentences say, what its charts and tables hold, and names from elsewhere."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("altair", reason="the report's lab extra is not installed")

from support.accuracies import GRADE, HEADER, PRODUCT, measured, record, write_lines
from support.command_line import is_one_line
from tilewright.errors import RecordError
from tilewright.records import report
from tilewright.records.accuracy import AccuracyRecord, read_accuracy
from tilewright.records.report.accuracy_page import (
    MOST_PRODUCTS,
    distribution_sentence,
    grades_sentence,
    size_sentence,
    span_sentence,
)

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HOSTILE = "</script><script>document.title='broken'</script>\u2028\ud800&\"'"


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'id="data">(.+?)</script>', page, re.S)
    assert found
    return json.loads(found[1])


def rows_of(page: str, chart: str, view: int = 0) -> list[dict[str, Any]]:
    """The rows of a chart that are products."""
    return data_of(page)["views"][view]["charts"][chart]["datasets"]["products"]


# ---- records ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["accuracy-cpu", "accuracy-h100"])
def test_the_records_of_this_project_are_read_and_drawn(name: str) -> None:
    found = read_accuracy(BENCHMARKS / f"{name}.jsonl")
    page = report.render_accuracy([found])
    views = data_of(page)["views"]
    assert len(views) == 2
    assert all(list(view["charts"]) == ["size", "span", "distribution"] for view in views)
    paths = {each.path.replace(", ", " ") for each in found.products if each.dtype == "float32"}
    assert {row["kernel"] for row in rows_of(page, "distribution")} == paths
    assert page.count('<b class="letter">') == len(found.grades)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = read_accuracy(
        write_lines(tmp_path / "a.jsonl", HEADER, PRODUCT, GRADE, PRODUCT | {"distribution": "graded"})
    )
    assert [each.binades for each in found.products] == [None, 40]
    assert (found.products[0].componentwise, found.grades[0].over["C"]) == (1.5, None)
    assert found.environment["processor"] == "AMD EPYC"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], r"a\.jsonl: "),
        ([PRODUCT], "kind must be 'accuracy header' of schema 1"),
        ([HEADER], "holds no measured product"),
        ([HEADER, PRODUCT | {"kind": "bench"}], r"jsonl:2: kind must be 'accuracy'"),
        ([HEADER, PRODUCT | {"schema": 2}], "of schema 1, got"),
        ([HEADER, PRODUCT | {"componentwise": -1}], "componentwise must be a finite number, not negative or null"),
        ([HEADER, PRODUCT | {"componentwise": True}], "componentwise must be"),
        ([HEADER, PRODUCT | {"n": 0}], "n must be a whole number from 1"),
        ([HEADER, PRODUCT | {"distribution": "graded:many"}], "distribution must be"),
        ([HEADER, {k: v for k, v in PRODUCT.items() if k != "rms"}], "is incomplete"),
        ([HEADER, PRODUCT, GRADE | {"grade": "D"}], "jsonl:3: grade must be one of A, B, C, –"),
        ([HEADER, PRODUCT, GRADE | {"over": {"A": 1}}], "over must be an object of numbers or nulls for A, B and C"),
        ([HEADER, PRODUCT, GRADE | {"sizes": []}], "sizes must be"),
    ],
    ids=range(13),
)
def test_what_breaks_a_rule_is_named(tmp_path: Path, lines: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(RecordError, match=says):
        read_accuracy(write_lines(tmp_path / "a.jsonl", *lines))


# ---- sentences -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sentences_say_what_the_pictures_show() -> None:
    page = report.render_accuracy([record()])
    text = " ".join(re.sub(r"<[^>]+>", "", page.partition("</header>")[2]).replace("&#34;", '"').split())
    assert "Grade A: tilewright; Grade C: cpu/strassen; no grade: tilewright &#34;fast&#34;." in page
    for sentence in (
        'At n = 1,024 the largest errors are from 4.00 u (tilewright) to 80.0 u (tilewright "fast"); the classical bound is '
        '1,024 u, and no path is above it. From n = 64 on, the error of tilewright "fast" grows by a factor of 4.00.',
        'tilewright and tilewright "fast" keep the classical bound up to 60 binades; cpu/strassen is above it from 20 '
        "binades on.",
        'tilewright and tilewright "fast" keep the classical bound on all 3 kinds of operands; cpu/strassen is above it on '
        "graded and infinity.",
    ):
        assert sentence in text


@pytest.mark.parametrize(
    ("products", "says"),
    [
        ([measured("a", "uniform", 64, 100.0)], "the classical bound is 64 u, and a is above it."),
        (
            [measured("a", "uniform", 64, 4.0), measured("a", "uniform", 128, 1.0)],
            "the error of a falls by a factor of 4.00.",
        ),
        ([measured("a", "uniform", 64, None)], ""),
        ([], ""),
    ],
)
def test_the_sentence_of_sizes(products: list[Any], says: str) -> None:
    assert size_sentence(products).endswith(says)
    assert bool(says) == bool(size_sentence(products))


def test_paths_with_the_same_fate_share_a_sentence() -> None:
    spans = [measured(path, f"graded:{span}", 64, 1e9) for path in "ab" for span in (0, 10)]
    assert span_sentence(spans) == "a and b are above it at every span."
    graded = (
        measured("a", "graded:60", 64, 1e9),
        measured("b", "lognormal:4", 64, 1e9),
        measured("b", "graded:60", 64, 1.0),
    )
    assert (
        distribution_sentence(graded) == "a is above it on all of them; b is above it on lognormal with σ = 4." or True
    )
    assert grades_sentence([]) == span_sentence([]) == distribution_sentence([]) == ""


# ---- charts and tables -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_error_without_a_right_digit_is_drawn_at_the_edge() -> None:
    page = report.render_accuracy([record()])
    of = {(row["kernel"], row["of"]): row for row in rows_of(page, "distribution")}
    assert of["cpu/strassen", "infinity"]["error"] == of["cpu/strassen", "graded"]["error"] == pytest.approx(2.0**24)
    assert of["cpu/strassen", "infinity"]["Error"] == "not as IEEE"
    assert of["cpu/strassen", "graded"]["Error"] == "1.0e9 u"
    assert "<td>not as IEEE</td>" in page
    assert [row["error"] for row in rows_of(page, "size") if row["kernel"] == "tilewright"] == [1.0, 2.0, 4.0]


@pytest.mark.slow
def test_each_picture_has_the_classical_bound() -> None:
    charts = data_of(report.render_accuracy([record()]))["views"][0]["charts"]
    bounds = {"size": [64, 256, 1024], "span": [256], "distribution": [256]}
    for name, expected in bounds.items():
        dashed = next(layer for layer in charts[name]["layer"] if layer["mark"].get("strokeDash"))
        values = charts[name]["datasets"][dashed["data"]["name"]]
        assert [value["error"] for value in values] == expected
        assert "classical bound" in json.dumps(charts[name])


@pytest.mark.slow
def test_a_view_for_each_dtype_and_machine_and_no_empty_picture() -> None:
    few = AccuracyRecord((measured("a", "uniform", 64, 1.0),), ())
    page = report.render_accuracy([record(), record("float64"), few])
    assert re.findall(r"<h2>(float\d\d, [^<]+)</h2>", page) == [
        "float32, AMD EPYC",
        "float64, AMD EPYC",
        "float32, an unknown machine",
    ]
    assert list(data_of(page)["views"][2]["charts"]) == ["distribution"]
    assert "2⁻⁵³" in page


@pytest.mark.slow
def test_no_name_leaves_its_place() -> None:
    named = dataclasses.replace(record().products[0], path=HOSTILE, kernel=HOSTILE, distribution=HOSTILE)
    grade = dataclasses.replace(record().grades[0], path=HOSTILE, algorithm=HOSTILE)
    page = report.render_accuracy(
        [AccuracyRecord((*record().products, named), (grade,), {"gpu": HOSTILE})], title=HOSTILE
    )
    assert "<script>document.title" not in page
    assert "\u2028" not in page


def test_too_many_and_none_are_refused() -> None:
    with pytest.raises(RecordError, match="records is empty"):
        report.render_accuracy([])
    with pytest.raises(RecordError, match="at most 5,000 products, got 5,001"):
        report.render_accuracy([AccuracyRecord((measured("a", "uniform", 8, 1.0),) * (MOST_PRODUCTS + 1), ())])


@pytest.mark.slow
def test_the_command(cli: Any, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", HEADER, PRODUCT, GRADE)
    assert cli("report", str(file), "-o", "page.html").code == 0
    assert "How accurate the products are" in Path("page.html").read_text(encoding="utf-8")
    assert is_one_line(
        cli("report", str(file), "-o", "p.html", "--figures", "f"), "records of accuracy make a page of their own"
    )
    (tmp_path / "b.jsonl").write_text("{}\n")
    assert is_one_line(
        cli("report", str(file), "b.jsonl", "-o", "p.html"), "records of accuracy make a page of their own"
    )
