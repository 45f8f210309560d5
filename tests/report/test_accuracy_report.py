"""The page's section on errors: what it shows, and what has no place in it."""

from __future__ import annotations

import doctest
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("altair", reason="the report's lab extra is not installed")

from support import browser
from support.report_records import campaign, failed, measured
from tilewright.records import report
from tilewright.records.bench import BenchRecord
from tilewright.records.report import accuracy, palette, views

U = 2.0**-24


def errors(kernel: str, *sizes: int, units: float = 4.0, **changes: Any) -> list[BenchRecord]:
    """Cells of a kernel with an error that is the same at every size."""
    return [replace(measured(kernel, n), rms_error=units * U, **changes) for n in sizes]


def view_of(records: list[BenchRecord]) -> views.View:
    return views.views(views.sections(records)[0])[0]


def chart_of(records: list[BenchRecord]) -> dict[str, Any]:
    view = view_of(records)
    return accuracy.error_charts(view, palette.kernel_styles(view.kernels))


def drawn(records: list[BenchRecord]) -> list[tuple[str, int, float]]:
    """Kernel, size and error of each point."""
    rows = values_of(records, "line")[0]
    return [(row["kernel"], row["n"], row["error"]) for row in rows]


def values_of(records: list[BenchRecord], mark: str) -> list[list[dict[str, Any]]]:
    """The data of each layer with such a mark."""
    spec = chart_of(records)["error"]
    found = [layer.get("data", spec.get("data")) for layer in spec["layer"] if layer["mark"]["type"] == mark]
    return [data["values"] if "values" in data else spec["datasets"][data["name"]] for data in found]


def test_doctests() -> None:
    assert doctest.testmod(accuracy).failed == 0


def test_errors_are_in_units_of_u() -> None:
    records = errors("cpu/ikj", 64, 128) + errors("ref/openblas", 64, 128, units=2.5)
    assert drawn(records) == [
        ("cpu/ikj", 64, 4.0),
        ("cpu/ikj", 128, 4.0),
        ("ref/openblas", 64, 2.5),
        ("ref/openblas", 128, 2.5),
    ]
    table = accuracy.error_table(view_of(records))
    assert table is not None
    assert (table.unit, table.columns) == ("2⁻²⁴", ("64", "128"))
    assert table.rows == (("cpu/ikj", ("4.00", "4.00")), ("ref/openblas", ("2.50", "2.50")))
    assert table.running == ("2.40", "3.40")


@pytest.mark.slow
def test_wrong_cells_are_left_out() -> None:
    wrong = failed("cpu/naive", 128, "wrong", "C[0, 0] is off", rms_error=1e6 * U)
    records = [*errors("cpu/ikj", 64, 128), *errors("cpu/naive", 64), wrong]
    assert ("cpu/naive", 64, 4.0) in drawn(records)
    assert not any(n == 128 for kernel, n, _ in drawn(records) if kernel == "cpu/naive")
    assert "1,000,000" not in report.render(records)
    table = accuracy.error_table(view_of(records))
    assert table is not None
    assert dict(table.rows)["cpu/naive"] == ("4.00", "–")


@pytest.mark.parametrize("error", [None, 0.0, float("nan"), float("inf")])
def test_what_is_no_error_is_not_drawn(error: float | None) -> None:
    """A logarithm needs a number above zero."""
    records = [*errors("cpu/ikj", 64, 128), replace(measured("cpu/ikj", 256), rms_error=error)]
    assert [n for _, n, _ in drawn(records)] == [64, 128]


@pytest.mark.slow
def test_records_from_before_have_no_section() -> None:
    assert accuracy.error_table(view_of(campaign())) is None
    assert chart_of(campaign()) == {}
    assert "<h3>Error</h3>" not in report.render(campaign())
    assert "<h3>Error</h3>" in report.render(errors("cpu/ikj", 64, 128))


@pytest.mark.slow
def test_one_size_is_a_table_and_no_chart() -> None:
    records = errors("cpu/ikj", 64)
    assert chart_of(records) == {}
    page = report.render(records)
    assert "<h3>Error</h3>" in page
    assert 'data-chart="error"' not in page


@pytest.mark.parametrize(
    ("changes", "guided", "unit"),
    [
        ({}, True, "2⁻²⁴"),
        ({"dtype": "float64"}, True, "2⁻⁵³"),
        ({"precision": "tf32"}, False, "2⁻²⁴"),
        ({"dtype": "bfloat16"}, False, "2⁻⁸"),
    ],
)
def test_a_running_sum_is_a_guide_where_sums_are_in_the_dtype(changes: dict[str, str], guided: bool, unit: str) -> None:
    records = errors("cpu/ikj", 64, 4096, **changes)
    table = accuracy.error_table(view_of(records))
    assert table is not None
    assert (bool(table.running), table.unit) == (guided, unit)
    ends = [(rule[0]["error"], rule[0]["last_error"]) for rule in values_of(records, "rule")]
    assert ends == ([pytest.approx((2.40, 19.2), rel=0.01)] if guided else [])


def test_a_dtype_from_elsewhere_has_no_units() -> None:
    assert accuracy.error_table(view_of(errors("cpu/ikj", 64, 128, dtype="posit32"))) is None


#: What is seen of the page.
PROBE = """
const figure = document.querySelector('figure[data-chart="error"]');
seen.marks = figure.querySelectorAll(".mark-symbol path").length;
seen.lines = figure.querySelectorAll(".mark-line path").length;
document.querySelector('.legend [data-kernel="cpu/ikj"]').click();
await wait(300);
const faint = (p) => Number(p.getAttribute("opacity") ?? 1) === 0.3;
seen.faint = [...figure.querySelectorAll(".mark-symbol path")].filter(faint).length;
seen.scroll = [document.documentElement.scrollWidth, innerWidth];
"""


@pytest.mark.browser
@pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium in PATH: the page was not opened in a browser")
@pytest.mark.parametrize("width", [390, 1280])
def test_the_chart_is_drawn_and_follows_the_legend(tmp_path, width: int) -> None:
    records = errors("cpu/ikj", 64, 128, 256) + errors("cpu/register_tile", 64, 128, 256, units=6.0)
    seen = browser.look(report.render(records), tmp_path, width, PROBE)
    browser.check_quiet(seen)
    assert (seen["marks"], seen["lines"]) == (2 * 6, 2)  # each point, and its wide unseen target
    assert seen["faint"] == 3
    assert seen["scroll"][0] <= seen["scroll"][1]
