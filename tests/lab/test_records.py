"""Records as lines of JSON: they come back as they went, and a file holds whole lines whatever happens."""

from __future__ import annotations

import dataclasses
import json
import math
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilewright
from tilewright.errors import RecordError
from tilewright.records import bench as records
from tilewright.records.bench import BenchRecord, Writer, from_line, read_records, to_line

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
TEXT = st.text() | st.sampled_from(["\u2028", "\x85", "\x0b\x0c\x1c", "\udcff", "a\nb"])
PLAIN = st.none() | st.booleans() | st.integers() | NUMBERS | TEXT
VALUES = st.recursive(PLAIN, lambda x: st.dictionaries(TEXT, x), max_leaves=8)  # a record may nest 16 levels
RECORDS = st.builds(
    BenchRecord,
    kernel=TEXT,
    device=TEXT,
    **{name: st.integers(0, 10**9) for name in "mnk"},
    dtype=TEXT,
    verdict=st.sampled_from(list(records.VERDICTS)),
    params=st.dictionaries(TEXT, st.integers()),
    environment=st.dictionaries(TEXT, VALUES),
    reason=TEXT,
    samples_s=st.lists(st.floats(1e-12, 1e12)),
    max_abs_error=st.none() | st.floats(1e-100, 1e100) | st.sampled_from([math.nan, math.inf, 0.0]),
    seed=st.none() | st.integers(0),
)


def cell(**changes: Any) -> BenchRecord:
    return BenchRecord(
        **{"kernel": "cpu/naive", "device": "cpu", "dtype": "float32", "verdict": "ok"}
        | dict.fromkeys("mnk", 8)
        | changes
    )


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


relaxed = settings(suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@relaxed
@given(RECORDS)
def test_a_record_comes_back_as_it_went_and_nan_as_null(record: BenchRecord) -> None:
    line = to_line(record)
    assert "\n" not in line
    assert dataclasses.asdict(from_line(line)) == finite(dataclasses.asdict(record))


@pytest.mark.slow
@relaxed
@given(st.lists(RECORDS, min_size=1, max_size=3))
def test_a_file_comes_back_line_by_line(tmp_path_factory, written: list[BenchRecord]) -> None:
    path = tmp_path_factory.mktemp("records") / "x.jsonl"
    records.write_records(path, written)
    assert [dataclasses.asdict(r) for r in read_records(path)] == [finite(dataclasses.asdict(r)) for r in written]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "tune"}, "kind must be 'bench', got 'tune'"),
        ({"schema": 2}, "schema must be 1, got 2"),
        ({"verdict": "great"}, "verdict must be one of ok, wrong"),
        ({"verdict": ["ok"]}, "verdict"),
        ({"m": -1}, "m must be a whole number from 0 to 2^63 - 1, got -1"),
        ({"n": "8"}, "n must be a whole number from 0 to 2^63 - 1, got '8'"),
        ({"k": True}, "k must be a whole number"),
        ({"kernel": None}, "kernel must be text"),
        ({"samples_s": 1.0}, "samples_s must be a list of finite numbers"),
        ({"samples_s": ["1"]}, "samples_s"),
        ({"environment": []}, "environment must be an object"),
        ({"gflops": "fast"}, "gflops must be a finite number or null"),
        ({"reference": 1}, "reference must be text or null"),
    ],
)
def test_a_field_that_breaks_its_rule_is_named(changes, words) -> None:
    line = json.dumps(dataclasses.asdict(cell()) | changes)
    with pytest.raises(RecordError, match="file:3: ") as caught:
        from_line(line, "file:3")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "line", ["", "null", "[]", "{", "{}", "1" * 5000, "[" * 100_000, '{"kind": "bench", "schema": 1}']
)
def test_what_is_no_record_is_refused(line) -> None:
    with pytest.raises(RecordError):
        from_line(line)


@pytest.mark.parametrize("data", [b"", b"\n \n", b"\xff\xfe", b"text", to_line(cell()).encode()[:-9]])
def test_a_file_without_records_is_refused(tmp_path, data) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(RecordError, match="x"):
        read_records(tmp_path / "x")


def test_fields_of_a_later_version_are_ignored() -> None:
    assert from_line(json.dumps(dataclasses.asdict(cell()) | {"new": 1})) == cell()


# ---- resuming --------------------------------------------------------------------------------------------------------

LINE = to_line(cell(reason="×")).encode() + b"\n"


@pytest.mark.parametrize("length", [0, 1, 5, 12, 40, len(LINE) - 1, LINE.index("×".encode()) + 1])
def test_a_torn_last_line_is_cut_off(tmp_path, length) -> None:
    path = tmp_path / "x"
    path.write_bytes(2 * LINE + LINE[:length])
    with Writer(path, resume=True) as writer:
        assert len(writer.done) == 2
        writer.write(cell(reason="×"))
    assert path.read_bytes() == 3 * LINE


@pytest.mark.parametrize(
    "data",
    [
        b"my diary",
        b"my diary\n",
        LINE + b"my diary",
        LINE + b"{broken\n" + LINE,
        LINE[:50] + b"\n" + LINE,
        b'{"kernel": "x"}\n',
        b'{"other": "format"}',
    ],
)
def test_a_damaged_or_foreign_file_is_refused_and_left_alone(tmp_path, data) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(RecordError, match="x"):
        Writer(path, resume=True)
    assert path.read_bytes() == data


def test_without_resume_a_file_is_begun_anew_and_with_it_continued(tmp_path) -> None:
    path = tmp_path / "x"
    for resume, count in ((False, 1), (True, 2), (True, 3), (False, 1)):
        with Writer(path, resume=resume) as writer:
            assert len(writer.done) == (count - 1 if resume else 0)
            writer.write(cell())
        assert len(read_records(path)) == count


def test_each_line_is_whole_on_disk_before_the_next_cell_begins(tmp_path) -> None:
    writer = Writer(tmp_path / "x")
    for count in range(1, 4):
        writer.write(cell(reason="long " * 10_000))
        assert len(read_records(tmp_path / "x")) == count
    writer.close()


def test_a_full_disk_leaves_whole_lines(tmp_path) -> None:
    script = (
        "import resource, sys; from tilewright.records.bench import *; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); w = Writer(sys.argv[1]); "
        "[w.write(BenchRecord('cpu/naive', 'cpu', 8, 8, 8, 'float32', 'ok')) for _ in range(9)]"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)
    source = {"PYTHONPATH": str(Path(tilewright.__file__).parent.parent)}
    answer = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "x"], env=source, capture_output=True, text=True, check=False
    )
    assert "RecordError" in answer.stderr
    assert "its records so far are whole" in answer.stderr
    assert 1 <= len(read_records(tmp_path / "x")) < 9
    assert (tmp_path / "x").read_bytes().endswith(b"}\n")


# ---- derived figures -------------------------------------------------------------------------------------------------


def test_rates_are_the_formulas_of_the_protocol() -> None:
    r = cell(m=10, n=20, k=30, samples_s=[3e-6, 1e-6, 2e-6], reference_samples_s=[4e-6], peak_gflops=12.0).with_rates()
    assert r.median_s == 2e-6
    assert r.gflops == pytest.approx(2 * 10 * 20 * 30 / 2e-6 / 1e9)
    assert r.peak_fraction == pytest.approx(r.gflops / 12)
    assert r.ratio == pytest.approx(2.0)
    assert cell().with_rates() == cell()


def test_a_cell_is_what_was_asked_not_what_the_machine_made_of_it() -> None:
    here = cell(about={"constants": {"KC": 256}}, params={"leaf": 64}, environment={"processor": "one"})
    there = cell(about={"constants": {"KC": 384}}, params={"leaf": 64}, environment={"processor": "two"}, seed=3)
    assert here.cell == there.cell
    assert here.cell != cell(params={"leaf": 128}).cell
    assert cell(threads=2).cell != cell().cell
