"""The page of scaling: what its sentence says, what its table and charts hold, and names from elsewhere."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("altair", reason="the report's lab extra is not installed")

from support.scaling_points import RATES, in_storage, scaled, series
from tilewright.errors import RecordError
from tilewright.records import report
from tilewright.records.report.html import HERE
from tilewright.records.report.palette import DARK, GREYS_DARK, GREYS_LIGHT, LIGHT
from tilewright.records.report.scaling import KEY, LIMITS, MOST_POINTS, scaling_sentence
from tilewright.records.scaling import SPENT, ScalingPoint, read_scaling, write_scaling

HOSTILE = "</script><script>document.title='broken'</script>\u2028\ud800&\"'"


def data_of(page: str) -> dict[str, Any]:
    return json.loads(re.search(r'id="data">(.+?)</script>', page, re.S)[1])


# ---- the sentence ----------------------------------------------------------------------------------------------------


def test_the_points_made_by_hand_are_right(tmp_path):
    """They pass the rules of records, so that the page is tested with what it may get."""
    points = [*series("link", 1.0, 0.9, 0.4), *in_storage(series("storage", 0.9, 0.3)), scaled(16, 0.25, used=4)]
    write_scaling(tmp_path / "s.jsonl", points)
    assert len(read_scaling(tmp_path / "s.jsonl")) == len(points)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            {"1,024³": series("link", 1.0, 0.9, 0.7)},
            "Efficiency stays above 50% up to 16 workers, the most simulated, for 1,024³.",
        ),
        (
            {"1,024³": series("scheduler", 1.0, 0.5, 0.49)},
            f"Efficiency stays above 50% up to 4 workers for 1,024³; beyond that the limit is {LIMITS['scheduler']}.",
        ),
        (
            {"1,024³": in_storage(series("storage", 0.4, 0.3))},
            f"Efficiency is not above 50% even on 1 workers for 1,024³; the limit is {LIMITS['storage']}.",
        ),
        (
            {"a": series("link", 0.9, 0.3), "b": series("link", 0.9, 0.4), "c": series("balance", 0.3)},
            "Efficiency stays above 50% up to 1 workers for a and b, but not even on 1 workers for c; beyond that the "
            f"limit is {LIMITS['link']} for a and b and {LIMITS['balance']} for c.",
        ),
    ],
)
def test_the_sentence_says_where_scaling_stops_and_why(lines, words):
    assert scaling_sentence(lines) == words.replace("1 workers", "1 worker")


def test_a_plan_leaves_workers_unused_because_of_the_storage():
    (point,) = in_storage([scaled(16, 0.2, "link", used=4)])
    assert (point.loss, point.binds) == ("storage", "storage")
    assert scaled(16, 0.2, "link", used=4).loss == "link"


# ---- the page --------------------------------------------------------------------------------------------------------


def page_of_two_views() -> str:
    grown = [replace(point, grown_from=(512, 512, 512)) for point in in_storage(series("storage", 0.9, 0.3))]
    return report.render_scaling([*grown, *series("link", 1.0, 0.9, 0.4)])


@pytest.mark.slow
def test_strong_scaling_comes_first_and_every_point_has_a_row():
    page = page_of_two_views()
    labels = re.findall(r"<h2>(\w+ scaling[^<]+)</h2>", page)
    assert labels == [
        "Strong scaling, float32, A and B at the workers",
        "Weak scaling, float32, A, B and C in storage",
    ]
    strong, weak = data_of(page)["views"]
    assert [cell["workers"] for cell in strong["cells"]] == [1, 4, 16]
    assert [cell["kernel"] for cell in weak["cells"]] == ["512³", "512³"]
    assert set(strong["charts"]) == {"efficiency", "time", "bytes"}
    assert page.count('<tr data-kernel="') == 5
    assert "64 MiB</td><td>32 MiB" in page
    assert "1.00 GB/s for each worker" in page
    assert "768 KiB to 12 MiB, on each worker" in page  # 3·1024² elements, on 16 workers and on one
    assert "tilewright scale 1024" in page


@pytest.mark.slow
def test_bars_add_up_to_the_time_of_all_workers():
    page = report.render_scaling([scaled(16, 0.2, "scheduler", used=4)])
    row = page.partition('<tr data-kernel="')[2]
    widths = {what: float(width) for what, width in re.findall(r'<i class="(\w+)" style="width:([\d.]+)%"', row)}
    assert widths == {"compute": 20.0, "scheduler": 5.0, "unused": 75.0}
    assert 'aria-label="computing 20.0%, waiting for the scheduler 5.0%, not used by the plan 75.0%"' in row


@pytest.mark.slow
def test_storage_of_all_workers_makes_one_view():
    points = [
        replace(point, where="storage", rates=RATES | {"storage_bytes": 8e9}) for point in series("storage", 0.9, 0.3)
    ]
    page = report.render_scaling(points)
    assert page.count('<article class="view"') == 1
    assert "8.00 GB/s for all workers" in page


def test_every_colour_is_one_of_the_palette_and_has_a_meaning():
    light, dark = re.findall(r":root \{ (--compute.+?) \}", (HERE / "scaling.css").read_text())
    for text, hues in ((light, {*LIGHT, *GREYS_LIGHT}), (dark, {*DARK, *GREYS_DARK})):
        found = dict(re.findall(r"--(\w+): (#\w+)", text))
        assert set(found) == set(SPENT)
        assert len(set(found.values())) == len(SPENT)
        assert set(found.values()) <= hues
    assert set(KEY) == {*SPENT, "unused"}
    assert set(LIMITS) == {*SPENT} - {"compute"}


@pytest.mark.slow
def test_names_from_elsewhere_stay_text(tmp_path):
    mean = replace(scaled(4, 0.9), dtype=HOSTILE, order=HOSTILE, environment={HOSTILE: HOSTILE})
    write_scaling(tmp_path / "mean.jsonl", [mean])
    page = report.render_scaling(read_scaling(tmp_path / "mean.jsonl"), title=HOSTILE)
    assert "<script>document" not in page
    assert "\u2028" not in page
    assert "http:" not in page.partition("<body>")[2].partition("<script")[0]


def test_a_page_needs_points_and_not_too_many():
    with pytest.raises(RecordError, match="at least one"):
        report.render_scaling([])
    many: list[ScalingPoint] = [scaled(1, 0.9)] * (MOST_POINTS + 1)
    with pytest.raises(RecordError, match="at most 2,000"):
        report.render_scaling(many)


@pytest.mark.slow
def test_the_command_makes_the_page(cli, tmp_path):
    write_scaling(tmp_path / "s.jsonl", series("link", 1.0, 0.4))
    (tmp_path / "other.jsonl").write_text('{"kind": "bench"}\n')
    answer = cli("report", "s.jsonl", "s.jsonl", "-o", "p.html", "--title", "Mine")
    assert (answer.code, answer.out) == (0, "page: p.html\n")
    assert "<h1>Mine</h1>" in (tmp_path / "p.html").read_text()
    for arguments in (("s.jsonl", "other.jsonl"), ("s.jsonl", "--figures", "f")):
        answer = cli("report", *arguments)
        assert answer.code == 2
        assert "points of scaling make a page of their own" in answer.err
