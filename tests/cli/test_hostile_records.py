"""JSON from elsewhere: numbers that no machine measured, other types, deep values; and the pages drawn of what passes."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("altair", reason="the report's lab extra is not installed")

from support import explanations, pipelines, timelines
from support.report_records import measured
from tilewright.__main__ import run_command_line
from tilewright.errors import RecordError
from tilewright.records import report
from tilewright.records.bench import BenchRecord, from_line, read_records, to_line
from tilewright.records.explanation import _WIDEST, TimePart, from_dict, holds_explanations, read_explanations
from tilewright.records.json_data import DEEPEST, dumped, holds_kind, is_tame
from tilewright.records.report import html, timeline, views
from tilewright.records.report.source_view import source_view
from tilewright.records.timeline import MOST_TRACKS, Piece, read_timelines, write_timelines

NAN, INF, GIANT = float("nan"), float("inf"), 10**400
EVIL = "cpu/\u2028x</script><script>document.title='broken'</script>\u2029'\"\\{{7*7}}\x1b[31m\u202e"


def deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"x": value}
    return value


def line(**changed: Any) -> str:
    return json.dumps(asdict(measured("cpu/ikj", 64)) | changed)


TIMES: list[Any] = [NAN, INF, -1.0, 0.0, None, "1", True, 1e300, 1e-300, GIANT]
RATES: list[Any] = [-1.0, NAN, -INF, GIANT, 1e-320, "fast", []]
#: Values that each field must not have.
FIELDS: dict[str, list[Any]] = {
    **{key: [*([each] for each in TIMES), None, 3, {}, "x"] for key in ("samples_s", "reference_samples_s")},
    "median_s": [0, -1.0, NAN, INF, "1", GIANT],
    **dict.fromkeys(("gflops", "peak_gflops", "peak_fraction", "ratio"), RATES),
    **dict.fromkeys(("max_abs_error", "rms_error", "error_over_bound"), RATES),
    **{key: [-1, 1.5, None, True, 2**64, GIANT, "8"] for key in ("m", "n", "k", "threads")},
    **{key: [None, 3, [], {}] for key in ("kernel", "device", "dtype", "precision", "reason")},
    **{key: [[], None, {"x": NAN}, {"x": [INF]}, {"x": GIANT}, deep(DEEPEST + 1)] for key in ("about", "environment")},
    "params": [[], {"x": []}, {"x": {}}, {"x": NAN}],
    "about.order": ["x", True],
    "about.idea": [3],
    "about.parent": [[]],
    "seed": ["1", 1.5, [], True],
    "verdict": ["great", None, []],
    "kind": ["x" * 10_000, None, GIANT, [[]]],
    "schema": [2, "1", None, GIANT],
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_no_product_has_is_named_with_its_file_and_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    outer, _, inner = name.partition(".")
    for value in FIELDS[name]:
        path.write_text(f"{line()}\n{line(**{outer: {inner: value} if inner else value})}\n")
        with pytest.raises(RecordError) as caught:
            read_records(path)
        text = str(caught.value)
        assert text.startswith(f"{path}:2: {name} must be ")
        assert len(text) < len(str(path)) + 250
        assert "\n" not in text


NO_JSON = [
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"\xff\xfe\x00",
    b"\x00",
    b'{"kind": "bench"',
    b"9" * 10_000,
    b"NaN",
    b"",
]


@pytest.mark.parametrize("data", NO_JSON, ids=lambda data: repr(data[:6]))
def test_what_is_no_json_is_one_line(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(data)
    for reader in (read_records, read_explanations, read_timelines):
        with pytest.raises(RecordError, match=r"x\.jsonl"):
            reader(path)
    assert not holds_explanations(path)
    assert not holds_kind(path, "timeline")
    for words in (["report", str(path)], ["compare", str(path), str(path)]):
        monkeypatch.setattr("sys.argv", ["tilewright", *words])
        assert run_command_line() == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1


def test_the_limits_of_depth_and_numbers() -> None:
    assert is_tame(deep(DEEPEST - 1))
    assert not is_tame(deep(DEEPEST))
    assert not is_tame(deep(100_000))
    assert is_tame({"x": [1, "a", None, True, 1e308, -(10**300)]})
    assert not is_tame({"x": GIANT})


def test_without_the_rules_a_page_would_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the rules are for: the same line taken as it is."""
    monkeypatch.setattr("tilewright.records.bench.check_fields", lambda *_: None)
    record = from_line(line(samples_s=[NAN], gflops=-1.0, m=-64))
    with pytest.raises((ValueError, OverflowError, TypeError)) as caught:
        report.render([record])
    assert not isinstance(caught.value, RecordError)


# ---- explanations ----------------------------------------------------------------------------------------------------


def changed_at(data: Any, path: str, value: Any) -> Any:
    """A copy with what a path such as ``accesses.0.lanes`` leads to replaced."""
    first, _, rest = path.partition(".")
    made = list(data) if isinstance(data, list | tuple) else dict(data)
    key: Any = int(first) if isinstance(made, list) else first
    made[key] = changed_at(made[key], rest, value) if rest else value
    return made


EXPLAINED: dict[str, list[Any]] = {
    **{key: [-1, 0.5, None, 2**64, GIANT] for key in ("accesses.0.line", "accesses.0.sectors", "accesses.0.least")},
    "accesses.0.nbytes": [-1, _WIDEST + 1, 2**60, "4"],
    "accesses.0.lanes": [[0] * 33, [-1], ["0"], [0.5], 5, [2**64]],
    **{"predicted.0.seconds": [-1, NAN, "1"], "predicted.0.name": [3], "predicted.0.because": [None]},
    **{"bounds.0.rate": [0, -1, NAN], "bounds.0.amount": [INF], "bounds.0.unit": [3]},
    **{"defects.0.block": [[1]], "defects.0.thread": [5], "defects.0.line": [-1], "defects.0.text": [None]},
    "occupancy.by_registers": [[1, 2], [[1]], [[1, None]], "x"],
    **{"occupancy.limits": [[]], "occupancy.limiting": [5], "occupancy.warps": ["8"]},
    **{key: [5, [5], None, {}] for key in ("accesses", "formulas", "bounds", "defects", "predicted")},
    **{"counters": [{"x": NAN}], "params": [{"x": []}], "notes": [[3]], "source": [None], "m": [-1], "gpu": [[]]},
    **{"launch.grid": [5], "launch.block": [[1, 2, 3, 4]], "launch.threads": [-1]},
    **{
        "pipeline": [5, [], deep(DEEPEST + 1)],
        "pipeline.ticks": [-1, 2000, "x"],
        "pipeline.rows": [5, [{}] * 25, [5]],
    },
    **{"pipeline.rows.0.spans.0.begin": [-1, 1e9], "pipeline.rows.0.spans.0.end": ["x"], "pipeline.rows.0.name": [5]},
    **{"pipeline.barriers.0.count": [-1], "pipeline.barriers.0.events.0.bytes": [2**31, 0.5]},
    **{"pipeline.tiles.0.cells": [[[-1]], [[0] * 9], [[0]] * 9, 5], "pipeline.tiles.0.reads": [[2**24]]},
    **{"run.words": [5], "run.complete": [1], "verified.ok": ["yes"], "environment": [deep(DEEPEST + 1)]},
}


@pytest.mark.parametrize("path", EXPLAINED)
def test_a_field_of_an_explanation_is_named(path: str) -> None:
    made = replace(
        explanations.with_defect(explanations.coalesced()),
        pipeline=pipelines.in_code(),
        predicted=[TimePart("fill", 1e-6)],
    )
    data = json.loads(json.dumps(made.as_dict()))
    assert from_dict(data, "file") == replace(from_dict(data, "file"), pipeline=made.pipeline)
    name = path.replace(".0.", "[0].")
    for value in EXPLAINED[path]:
        with pytest.raises(RecordError, match=re.escape(f"file: {name} must be ")) as caught:
            from_dict(changed_at(data, path, value), "file")
        assert len(str(caught.value)) < 250


def test_accesses_are_not_looked_through_for_every_line() -> None:
    passes = 0

    class Counted(list[Any]):
        def __iter__(self) -> Any:
            nonlocal passes
            passes += 1
            return super().__iter__()

    made = explanations.with_defect(explanations.coalesced())
    many = replace(made, accesses=Counted(made.accesses), defects=Counted(made.defects))
    lines = source_view(many, "e0")
    assert lines == source_view(made, "e0")
    assert passes < 10
    assert sum(bool(line.defects) for line in lines.body) == 1


# ---- timelines -------------------------------------------------------------------------------------------------------


def test_a_timeline_of_too_many_tracks_is_refused(tmp_path: Path) -> None:
    one = timelines.tiny()
    pieces = [Piece(f"place {i}", "compute", "C[0, 0] step 0", 0.0, 1.0) for i in range(MOST_TRACKS + 1)]
    write_timelines(tmp_path / "x.jsonl", [replace(one, pieces=pieces)])
    with pytest.raises(RecordError, match="has 1,001 tracks in all its places, more than 1,000"):
        read_timelines(tmp_path / "x.jsonl")


def test_a_density_is_that_of_its_pieces() -> None:
    """Counted piece by piece and part by part, as it was once done."""
    one = timelines.tiny()
    pieces = [
        Piece("cpu", "stage in", "A", start / 7, start / 7 + length)
        for start, length in ((0, 9.9), (3, 0.0001), (5, 0.004), (69, 0.14), (2, 0), (70, 0))
    ]
    found = timeline._density(one, pieces, ["a"] * len(pieces), "a")
    step = one.total_s / timeline.BINS
    for number in (0, 1, 170, 171, 172, 285, 286, 2000, 3942, 3943, 3999):
        inside = sum(max(0.0, min(p.end_s, (number + 1) * step) - max(p.start_s, number * step)) for p in pieces)
        assert found[number] == pytest.approx(inside / step, abs=1e-9)
    many = [Piece("cpu", "stage in", "A", 0.0, 10.0)] * 20_000
    assert timeline._density(one, many, ["a"] * len(many), "a")[5] == pytest.approx(20_000)


# ---- pages -----------------------------------------------------------------------------------------------------------


def test_a_page_has_a_limit_of_cells() -> None:
    records = [replace(measured("cpu/ikj", 64), kernel=f"cpu/k{i}", m=i + 1) for i in range(300)]
    with pytest.raises(RecordError, match="tables of up to 90,000 cells, more than 50,000"):
        report.render(records)
    assert views.MOST_CELLS == 50_000


@cache
def pages() -> dict[str, str]:
    records = [
        replace(measured("cpu/ikj", n), kernel=EVIL, dtype=EVIL, reference=EVIL, environment={EVIL: EVIL})
        for n in (64, 128)
    ]
    swept = [replace(measured("cpu/naive", n), kernel=EVIL, params={EVIL: x}) for n in (64, 128) for x in (EVIL, 2)]
    wrong = replace(measured("cpu/naive", 64), verdict="wrong", reason=EVIL, kernel=EVIL + "2")
    explained = explanations.with_defect(explanations.coalesced())
    evil = replace(
        explained,
        **{"kernel": EVIL, "file": EVIL, "dtype": EVIL, "notes": [EVIL], "params": {EVIL: 1}, "counters": {EVIL: 1}},
        source=explained.source + EVIL,
        gpu=explained.gpu | {"name": EVIL},
        defects=[replace(each, kind=EVIL, text=EVIL) for each in explained.defects],
        accesses=[
            replace(each, space=EVIL, kind=EVIL, file=file)
            for each in explained.accesses
            for file in ("", EVIL, "else")
        ],
        included={EVIL: EVIL},
        bounds=[replace(each, name=EVIL) for each in explained.bounds],
    )
    timeline = timelines.tiny(EVIL)
    timeline = replace(
        timeline, plan=EVIL, pieces=[replace(piece, name=piece.name + EVIL) for piece in timeline.pieces]
    )
    return {
        "records": report.render([*records, *swept, wrong], title=EVIL),
        "explanations": report.render_explanation([evil, explained], title=EVIL),
        "timelines": report.render_timeline([timeline], title=EVIL),
    }


@pytest.mark.parametrize("kind", ["records", "explanations", "timelines"])
def texts(data: Any) -> list[str]:
    """All texts of JSON values, those of keys too."""
    if isinstance(data, dict):
        return texts([*data, *data.values()])
    return [text for item in data for text in texts(item)] if isinstance(data, list) else [str(data)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["records", "explanations", "timelines"])
def test_names_stay_text_wherever_a_page_has_them(kind: str) -> None:
    head, _, script = pages()[kind].partition('<script type="application/json" id="data">')
    data = script.partition("</script>")[0]
    assert "<script>document" not in head + data
    shown = "".join(texts(json.loads(data)))
    for character in "\u2028\u2029\x1b\u202e":
        assert character not in head
        assert character not in shown  # a chart's expressions have the names in them
    assert "\\u2028x</script>" in shown
    assert "{{7*7}}" in head  # no template within a template
    assert "\\u2028" in head


@pytest.mark.slow
def test_pictures_hold_no_control_characters(tmp_path: Path) -> None:
    """SVG is XML, which has no place for them; the charts' expressions neither."""
    from xml.etree import ElementTree

    timeline = replace(timelines.tiny(EVIL), dtype=EVIL)
    ElementTree.parse(report.save_timeline(timeline, tmp_path / "x.svg")[0])
    names = [EVIL, "cpu/naive"]
    records = [replace(measured("cpu/naive", n), kernel=name) for n in (64, 128) for name in names]
    drawn = report.save_figures(records, tmp_path, formats=["svg"])
    assert {path.stem for path in drawn} >= {"gflops", "time"}
    text = (tmp_path / "gflops.svg").read_text()
    assert "\u2028" not in text
    assert "NaN" not in text


def test_json_that_is_written_can_be_shown_and_means_the_same() -> None:
    record = replace(measured("cpu/ikj", 64), kernel=EVIL)
    text = to_line(record)
    assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202e]", text)
    assert from_line(text).kernel == EVIL
    assert dumped({"×": "\x9b"}) == '{"×": "\\u009b"}'
    assert html.legible_data({EVIL: [EVIL]}).keys() == {html.legible(EVIL)}


def test_every_field_of_a_record_has_a_rule() -> None:
    from tilewright.records.bench import _RULES

    assert {field.name for field in dataclasses.fields(BenchRecord)} - set(_RULES) == {"schema", "kind"}
