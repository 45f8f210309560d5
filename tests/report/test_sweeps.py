"""The page's section of parameters: which sets it has, what its charts draw, what its table says, and how it opens."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("altair", reason="the report's lab extra is not installed")
pytest.importorskip("vl_convert", reason="the report's lab extra is not installed")

from support import browser
from support.report_records import ENVIRONMENT, campaign, measured
from tilewright.kernels.catalog import cuda_catalog
from tilewright.lab.bench.device import formula_values, residency
from tilewright.records import report
from tilewright.records.bench import BenchRecord
from tilewright.records.report import page, palette, views
from tilewright.records.report.page import MOST_SETS, Sweep

ROWS = cuda_catalog()["cuda/register_rows"]
COALESCED = cuda_catalog()["cuda/coalesced"]


def cell(kernel: Any, n: int, seconds: float = 1e-3, **params: int) -> BenchRecord:
    """What the bench on a GPU records, with 40 registers."""
    threads = kernel.launch(1, 1, 1, **params).threads
    about = kernel.about | {"registers": 40, "shared_bytes": 8192, "threads": threads, "arch": "sm_90a"}
    about |= residency("sm_90a", threads, 40, 8192) | {"formulas": formula_values(kernel, (n, n, n), params)}
    fields = {"params": params, "about": about, "samples_s": [seconds] * 3, "peak_gflops": 1000.0}
    environment = ENVIRONMENT | {"gpu": "Example GPU"}
    return BenchRecord(kernel.name, "cuda", n, n, n, "float32", "ok", environment=environment, **fields).with_rates()


def blocks(*sizes: int) -> list[BenchRecord]:
    """Nine shapes of block, 32 by 8 the fastest at each size."""
    return [
        cell(COALESCED, n, n**3 * 1e-9 * (1 + y / x), BLOCK_X=x, BLOCK_Y=y)
        for n in sizes for x in (8, 16, 32) for y in (8, 16, 32)
    ]  # fmt: skip


def found(records: list[BenchRecord]) -> list[Sweep]:
    return page.sweeps(views.views(views.sections(records)[0])[0])


def values_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    (rows,) = spec["datasets"].values() if "datasets" in spec else [spec["data"]["values"]]
    return rows


# ---- what is a sweep -------------------------------------------------------------------------------------------------


def test_only_kernels_with_several_sets_in_one_cell() -> None:
    assert found(campaign()) == []
    assert found([cell(ROWS, 64, ROWS=2), cell(ROWS, 128, ROWS=4)]) == [], "chosen by size, not swept"
    (sweep,) = found([*blocks(64), cell(ROWS, 64, ROWS=2)])
    assert (sweep.kernel, sweep.names, len(sweep.sets)) == ("cuda/coalesced", ("BLOCK_X", "BLOCK_Y"), 9)


def test_the_later_record_of_a_cell_counts() -> None:
    (sweep,) = found([cell(ROWS, 64, 1e-6, ROWS=2), cell(ROWS, 64, 2e-3, ROWS=4), cell(ROWS, 64, 4e-3, ROWS=2)])
    assert len(sweep.records) == 2
    assert page.sweep_conclusion(sweep).startswith("At 64, ROWS=4 is fastest, 2.00 times as fast as ROWS=2")


def test_sets_are_in_the_order_of_their_values_the_parameter_with_most_first() -> None:
    (sweep,) = found([cell(ROWS, 64, TILE=t, ROWS=r) for t in (32, 16) for r in (16, 4, 8)])
    assert sweep.names == ("ROWS", "TILE")
    assert sweep.sets == ((4, 16), (4, 32), (8, 16), (8, 32), (16, 16), (16, 32))


def test_of_many_sets_the_fastest_are_shown_and_that_is_said() -> None:
    records = [measured("cpu/strassen", 512, params={"leaf": leaf}) for leaf in range(1, 31)]
    records = [replace(r, median_s=r.params["leaf"], gflops=1 / r.params["leaf"]) for r in records]
    (sweep,) = found(records)
    assert [leaf for (leaf,) in sweep.sets] == list(range(1, MOST_SETS + 1))
    assert f"Only the fastest {MOST_SETS} of 30 combinations are shown." in page.sweep_conclusion(sweep)
    assert "Shown" not in page.sweep_conclusion(found(blocks(64))[0])


# ---- the charts ------------------------------------------------------------------------------------------------------


def test_over_sizes_a_curve_a_set() -> None:
    (sweep,) = found(blocks(64, 128, 256))
    (spec,) = page.sweep_charts([sweep]).values()
    rows = values_of(spec)
    assert len(rows) == 27
    assert len({row["line"] for row in rows}) == 9
    assert {(row["colour"], row["mark"]) for row in rows if row["with"].startswith("BLOCK_X=8 ")} == {
        (0, mark) for mark in palette.MARKS[:3]
    }
    assert spec["layer"][0]["encoding"]["x"]["field"] == "n"
    assert spec["layer"][0]["encoding"]["x"]["scale"]["base"] == 2


def test_at_one_size_over_the_parameter_with_most_values() -> None:
    (sweep,) = found([cell(ROWS, 64, TILE=t, ROWS=r) for t in (16, 32) for r in (4, 8, 16)])
    (spec,) = page.sweep_charts([sweep]).values()
    rows = values_of(spec)
    assert {row["line"] for row in rows} == {"(16,)", "(32,)"}
    assert sorted({row["first"] for row in rows}) == [4, 8, 16]
    assert spec["layer"][0]["encoding"]["x"]["field"] == "first"
    assert [style.light for style in page.set_styles(sweep).values()] == [palette.LIGHT[0], palette.LIGHT[1]] * 3


def test_no_two_sets_of_one_chart_look_the_same() -> None:
    for records in (blocks(64, 128), [cell(ROWS, n, ROWS=r) for n in (64, 128) for r in (2, 4, 8, 16, 32)]):
        (sweep,) = found(records)
        assert len(set(map(str, page.set_styles(sweep).values()))) == len(sweep.sets)


def test_values_that_are_no_numbers_are_places_on_the_axis() -> None:
    records = [measured("cpu/strassen", 512, params={"scheme": name}) for name in ("b", "a", None)]
    (spec,) = page.sweep_charts(found(records)).values()
    assert spec["layer"][0]["encoding"]["x"]["type"] == "nominal"


def test_where_nothing_was_measured_there_is_a_table_and_no_chart() -> None:
    records = [replace(r, verdict="wrong", samples_s=[], gflops=None, median_s=None) for r in blocks(64)]
    (sweep,) = found(records)
    assert page.sweep_charts([sweep]) == {}
    assert {row.rate for row in page.set_table(sweep).rows} == {"wrong result"}
    assert page.sweep_conclusion(sweep) == "None of these has a verified time."
    assert "wrong result" in report.render(records)


# ---- the table -------------------------------------------------------------------------------------------------------


def test_the_table_says_what_a_set_needs_and_does() -> None:
    (sweep,) = found([cell(ROWS, 1024, (3 - r / 8) * 1e-3, TILE=32, ROWS=r) for r in (2, 8)])
    made = page.set_table(sweep)
    assert [(row.values, row.rate, row.best) for row in made.rows] == [
        ((2,), "781 (78%)", False), ((8,), "1,074 (107%)", True),
    ]  # fmt: skip
    assert dict(zip(made.headings, made.rows[1].details, strict=True)) == {
        "threads per block": "128", "registers": "40", "shared bytes": "8,192", "resident warps": "48 of 64",
        "limited by": "registers", "global load sectors": "7.81", "shared load requests": "35.2",
    }  # fmt: skip


def test_a_record_that_does_not_know_leaves_its_place_empty() -> None:
    one, other = cell(ROWS, 64, ROWS=2), cell(ROWS, 64, ROWS=4)
    odd = replace(
        other, about={"registers": "many", "formulas": "none", "resident_warps": float("nan"), "max_warps": 64}
    )
    made = page.set_table(found([one, odd])[0])
    assert set(made.rows[1].details) == {"–"}
    assert "–" not in made.rows[0].details
    on_cpu = [measured("cpu/strassen", 512, params={"leaf": leaf}) for leaf in (32, 64)]
    assert page.set_table(found(on_cpu)[0]).headings == ()


def test_conclusion_says_where_another_set_is_best() -> None:
    records = [cell(ROWS, n, t * 1e-3, ROWS=r) for n, r, t in ((64, 2, 1), (64, 8, 2), (128, 2, 2), (128, 8, 1))]
    assert page.sweep_conclusion(found(records)[0]).endswith("Fastest at each size: ROWS=2 at 64; ROWS=8 at 128.")
    assert "Fastest at each size" not in page.sweep_conclusion(found(blocks(64, 128))[0])


# ---- the page --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_has_the_section_where_there_is_a_sweep() -> None:
    text = html.unescape(re.sub(r"<script.*?</script>", "", report.render(blocks(64, 128)), flags=re.S))
    assert "<h3>Parameters</h3>" in text
    assert 'data-chart="sweep-0"' in text
    assert "At 128, BLOCK_X=32 BLOCK_Y=8 is fastest" in text
    assert text.count("--light:#") == 9
    assert "<h3>Parameters</h3>" not in report.render(campaign())


def test_names_from_elsewhere_stay_text() -> None:
    evil = "<evil-name onerror=alert(1)>"
    records = [measured("cpu/strassen", 512, params={evil: value}) for value in (evil, 2)]
    records = [replace(r, about=r.about | {"limited_by": evil, "resident_warps": 1, "max_warps": 2}) for r in records]
    assert "<evil-name" not in report.render(records)


#: What is seen of the page.
PROBE = """
const figure = document.querySelector('[data-chart="sweep-0"]');
seen.lines = figure.querySelectorAll(".mark-line path").length;
seen.colours = [...new Set([...figure.querySelectorAll(".mark-line path")].map((p) => p.getAttribute("stroke")))];
seen.rows = [...document.querySelectorAll(".sweep tbody tr line")].map((l) => getComputedStyle(l).stroke);
seen.width = innerWidth;
seen.scroll = document.documentElement.scrollWidth;
document.querySelector(".legend [data-kernel]").click();
await wait(300);
"""


@pytest.mark.browser
@pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium in PATH: the page was not opened in a browser")
@pytest.mark.parametrize("width", [390, 1200])
def test_the_rows_are_the_legend_of_the_curves(width: int, tmp_path) -> None:
    seen = browser.look(report.render(blocks(64, 128, 256)), tmp_path, width, PROBE)
    browser.check_quiet(seen)
    assert seen["lines"] == len(seen["rows"]) == 9
    rgb = {f"rgb({', '.join(str(int(c[i : i + 2], 16)) for i in (1, 3, 5))})" for c in seen["colours"]}
    assert rgb == set(seen["rows"])
    assert len(rgb) == 3
    assert seen["scroll"] <= seen["width"] == width
