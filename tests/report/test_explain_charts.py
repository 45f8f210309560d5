"""Counters, formulas and charts of an explanation: what agrees, what limits, and in which colours."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("altair", reason="the report's lab extra is not installed")
pytest.importorskip("vl_convert", reason="the report's lab extra is not installed")
pytest.importorskip("jinja2", reason="the report's lab extra is not installed")

from support.explanations import (
    bare,
    coalesced,
    measured,
    shared_tile,
    uncoalesced,
    unrated,
)
from tilewright.records import report
from tilewright.records.explanation import Bound
from tilewright.records.report import explain_page, palette
from tilewright.simulator.counters.hardware_names import LABELS

THREE = [uncoalesced(), coalesced(), shared_tile()]


# ---- counters and formulas ----


def test_counters_have_the_microscope_s_words():
    assert {name: explain_page.counter_words(name) for name in LABELS} == LABELS


def test_counted_and_measured_are_compared():
    (row, extra) = explain_page.counters(measured(coalesced()))
    assert (row.first, row.second, row.match, row.agrees) == ("40,960", "40,960", "✓", True)
    assert (extra.name, extra.first, extra.second, extra.match) == ("dram__bytes_read.sum", "–", "12,345", "")
    (row, _) = explain_page.counters(measured(coalesced(), off=4096))
    assert (row.match, row.agrees) == ("+10.0%", False)
    (row,) = explain_page.counters(coalesced())
    assert (row.second, row.match) == ("–", "")


def test_formulas_stand_beside_what_was_counted():
    good, uncounted, valueless = explain_page.formulas(coalesced())
    assert (good.name, good.text, good.first, good.second, good.match) == (
        "S0.3", "cdiv(n, 32) * m * k * 5", "40,960", "40,960", "✓",
    )  # fmt: skip
    assert (uncounted.second, uncounted.match, valueless.first) == ("–", "", "–")
    bad = explain_page.formulas(uncoalesced())[0]
    assert (bad.match, bad.agrees) == ("×6.6", False)


# ---- the charts ----


def test_the_limit_lies_on_its_roof_and_the_others_below_theirs():
    for made in THREE:
        seen = explain_page.memory_levels(made)
        assert [level.name for level in seen if level.is_limit] == [made.bound.name if made.bound else ""]
        for level in seen:
            if level.gbs:
                roof = level.intensity * level.gbs
                assert made.gflops == pytest.approx(roof) if level.is_limit else made.gflops < roof


def test_roofline_shows_the_sectors_where_shared_memory_has_its_part():
    asked = {level.name: level for level in explain_page.memory_levels(shared_tile())}["requested sectors"]
    made = shared_tile()
    assert asked.intensity == pytest.approx(made.flops / (32 * sum(a.sectors for a in made.accesses)))
    assert asked.gbs is None
    only = replace(coalesced(), accesses=coalesced().accesses[:1], bounds=coalesced().bounds[1:])
    (full,) = only.accesses
    turns = Bound("L1 and shared memory", full.sectors / 4, "wavefronts", 1e11)
    seen = explain_page.memory_levels(replace(only, bounds=[*only.bounds[:1], turns]))
    assert [level.short for level in seen] == ["L1", "device memory"]  # one point, for all turns move 128 bytes


def test_roofline_needs_rates():
    assert explain_page.roofline(unrated(coalesced())) is None
    assert explain_page.roofline(replace(coalesced(), bounds=[Bound("arithmetic", 1e9, "operations", 1e12)])) is None
    only_memory = replace(coalesced(), bounds=[Bound("device memory", 1e9, "bytes", 1e12)])
    spec = explain_page.roofline(only_memory)
    assert spec is not None
    assert "arithmetic" not in json.dumps([layer.get("data") for layer in spec["layer"]])


def test_occupancy_chart_marks_the_kernel():
    made = replace(coalesced(), resources={"registers": 40, "shared_bytes": 4096}, launch={"shared_bytes": 2048})
    texts = json.dumps(explain_page.occupancy_chart(made, "shared"))
    assert "6 KiB, 64 warps" in texts
    assert "40 registers, 64 warps" in json.dumps(explain_page.occupancy_chart(made, "registers"))
    assert explain_page.occupancy_chart(bare(), "shared") is None


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_of_charts_and_style_sheet_are_the_house_s(theme: str):
    css = (Path(report.__file__).parent / "explain.css").read_text(encoding="utf-8")
    defined = re.findall(r"--asked: (#\w+); --soft: (#\w+); --late: (#\w+); --word: (#\w+); --literal: (#\w+);", css)
    asked, soft, late, word, literal = defined[theme == "dark"]
    assert asked == (palette.DARK if theme == "dark" else palette.LIGHT)[0]
    assert explain_page.theme(theme)["style"]["curve"]["color"] == asked
    ink = palette.INK[theme]
    for text in (asked, word, literal, ink["ink"], ink["faint"], ink["accent"]):
        for paper in (ink["paper"], soft, late):
            assert contrast(text, paper) >= 4.5, f"{text} on {paper} is hard to read"


def contrast(one: str, other: str) -> float:
    """WCAG 2: the ratio of luminances."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
