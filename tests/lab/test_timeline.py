"""Timelines: files, numbers against those added up by hand, and what the commands write."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from support.timelines import check_trace, large_plan, tiny, with_pieces

pytest.importorskip("jinja2", reason="the report's lab extra is not installed")

from tilewright.errors import RecordError
from tilewright.large.streaming.run.job import predicted_pieces
from tilewright.records import report
from tilewright.records.json_data import holds_kind
from tilewright.records.report.timeline import sentence, ticks, time_table
from tilewright.records.timeline import (
    Piece,
    Timeline,
    Work,
    read_timelines,
    union,
    write_timelines,
)


def said(timeline: Timeline) -> str:
    return sentence(timeline, [timeline.summary(place) for place in timeline.places]).replace("\u00a0", " ")


# ---- files -----------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "run.jsonl"
    written = [tiny(), tiny("cuda:0", predicted=True)]
    write_timelines(path, written)
    assert holds_kind(path, "timeline")
    found = read_timelines(path)
    assert [replace(each, blocks=tuple(each.blocks)) for each in found] == written
    assert len(path.read_text().splitlines()) == 2 * (1 + 7)


def test_a_later_version_may_say_more(tmp_path):
    path = tmp_path / "run.jsonl"
    write_timelines(path, [tiny()])
    lines = [json.dumps(json.loads(line) | {"news": 1}) for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines))
    assert len(read_timelines(path)[0].pieces) == 7


@pytest.mark.parametrize(
    ("line", "change", "words"),
    [
        (0, {"kind": "bench"}, "kind must be 'timeline'"),
        (0, {"schema": 1}, "schema 2"),
        (0, {"m": -1}, "m must be a whole number"),
        (0, {"m": 1.5}, "m must be a whole number"),
        (0, {"tiles": True}, "tiles must be a whole number"),
        (0, {"blocks": [1, 2]}, "three positive"),
        (0, {"blocks": [1, 2, 0]}, "three positive"),
        (0, {"dtype": 3}, "must be text"),
        (0, {"expected": {"total_s": "soon"}}, "expected must be an object of finite numbers"),
        (0, {"seconds": float("nan")}, "seconds must be seconds, from 0 on, got nan"),
        (0, {"environment": []}, "environment"),
        (1, {"start_s": 3.0}, "in order"),
        (1, {"start_s": -1.0}, "from 0 on"),
        (1, {"end_s": float("inf")}, "must be seconds"),
        (1, {"track": None}, "must be text"),
        (0, None, "begins with its header"),
        (1, None, "not JSON"),
    ],
)
def test_what_is_damaged_is_refused_and_named(tmp_path, line, change, words):
    path = tmp_path / "run.jsonl"
    write_timelines(path, [tiny()])
    lines = path.read_text().splitlines()
    if change is None and line == 1:
        lines[1] = lines[1][:40]  # torn
    elif change is None:
        del lines[0]
    else:
        lines[line] = json.dumps(json.loads(lines[line]) | change)
    path.write_text("\n".join(lines))
    with pytest.raises(RecordError, match=words) as caught:
        read_timelines(path)
    assert str(caught.value).startswith(f"{path}:{line + 1}")


def test_files_of_other_kinds_are_none(tmp_path):
    other = tmp_path / "other"
    for content in (b"", b"\xff\xfe", b"[1]\n", b'{"kernel": "cpu/ikj"}\n', b"not JSON"):
        other.write_bytes(content)
        assert not holds_kind(other, "timeline")
        with pytest.raises(RecordError):
            read_timelines(other)
    assert not holds_kind(tmp_path / "absent", "timeline")


# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_times_are_those_added_up_by_hand():
    found = tiny().summary("cpu")
    assert (found.total_s, found.compute_s, found.first_s, found.between_s, found.last_s) == (10, 5, 2, 1, 2)
    assert found.exposed_s == found.total_s - found.compute_s
    busy = {track.name: (track.busy_s, track.pieces) for track in found.tracks}
    assert busy == {"copy in": (5, 4), "compute": (5, 2), "copy out": (1, 1)}


def test_work_is_that_of_the_matrices():
    found = {track.name: track.work for track in tiny().summary("cpu").tracks}
    assert found["copy in"] == Work(4 * (100 * 300 + 300 * 200), "bytes")
    assert found["compute"] == Work(2 * 100 * 200 * 300, "operations")
    assert found["copy out"] == Work(4 * 100 * 200, "bytes")
    assert tiny().summary("cpu").tracks[1].rate == 2 * 100 * 200 * 300 / 5


@pytest.mark.parametrize("name", ["A rows 0", "A[7, 0]", "C[0, 0] step 9", "D[0, 0]", "A[0, 0] ", ""])
def test_work_of_other_names_is_not_known(name):
    assert tiny().work(Piece("cpu", "copy in", name, 0, 1)) is None


def test_spans_that_overlap_count_once():
    extra = Piece("cpu", "compute", "C[0, 0] step 0", 3.0, 6.0)
    found = with_pieces(tiny(), extra).summary("cpu")
    assert (found.compute_s, found.between_s) == (6, 0)
    assert union([(0, 4), (1, 2), (6, 7), (4, 5)]) == [(0, 5), (6, 7)]


def test_a_place_that_computes_nothing_and_a_run_in_which_nothing_happened():
    copying = replace(tiny(), pieces=tiny().pieces[:2])
    found = copying.summary("cpu")
    assert (found.compute_s, found.first_s, found.between_s, found.last_s) == (0, 10, 0, 0)
    assert "Nothing was computed." in said(copying)
    empty = replace(tiny(), pieces=[], seconds=0.0, finished=0)
    assert (empty.total_s, empty.places) == (0, [])
    assert "stopped after" in said(empty)
    assert "The record has no events" in report.render_timeline([empty])


def test_the_sentence_says_where_the_time_went():
    words = said(tiny())
    for part in (
        "took 10.0 s",
        "plan predicted 8.00 s",
        "computed for 50.0%",
        "2.00 s before the first",
        "1.00 s between",
    ):
        assert part in words
    stopped = said(replace(tiny(), tiles=12, before=3, finished=4))
    assert "stopped after 10.0 s, with 7 of 12 tiles finished" in stopped
    assert "3 of 12 tiles were finished by an earlier run" in stopped
    assert "Nothing has run" in said(replace(tiny(), predicted=True))


def test_several_places_are_told_apart():
    idle = [Piece("cuda:1", "compute", "C[0, 0] step 0", 0.0, 1.0)]
    both = with_pieces(tiny("cuda:0"), *idle)
    assert "The 2 devices computed for 10.0% to 50.0% of this time" in said(both)
    found = time_table(both, [both.summary(place) for place in both.places])
    assert [cell[0] for cell in next(row for row in found if row.name == "copy in busy").cells] == ["50.0%", "–"]
    page = report.render_timeline([both])
    assert page.count('<div class="place">') == 2


def test_the_table_has_the_plan_beside_what_was_measured():
    found = {row.name: row for row in time_table(tiny(), [tiny().summary("cpu")])}
    assert found["nothing computed"].cells == [("5.00 s", "50.0%")]
    assert found["nothing computed"].expected == ("3.00 s", "37.5%")
    assert found["between steps"].expected == ("0 s", "")
    planned = replace(tiny(), predicted=True)
    assert all(row.expected == ("", "") for row in time_table(planned, [planned.summary("cpu")]))


@pytest.mark.parametrize("total", [3e-6, 0.0021, 0.99, 1.0, 9.99, 10.0, 51.3, 86400.0])
def test_ticks_are_few_apart_and_within(total):
    found = ticks(total)
    assert 2 <= len(found) <= 7
    assert all(0 <= share <= 1 + 1e-9 for share, _ in found)
    values = [float(words.removesuffix(" s")) for _, words in found]
    assert len(set(values)) == len(values)
    assert values == pytest.approx([share * total for share, _ in found])


# ---- from the command line -------------------------------------------------------------------------------------------


#: The program, but each tile that is stored is told, and takes its time.
SLOW = """
import sys, time
from tilewright.large.streaming.places import places

def slowly(self, store, after, stored=places.HostPlace.store):
    stored(self, store, after)
    print("stored", flush=True)
    time.sleep(0.5)

places.HostPlace.store = slowly
from tilewright.__main__ import main
sys.exit(main())
"""


def tilewright(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tilewright", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def matrices(tmp_path_factory):
    folder = tmp_path_factory.mktemp("matrices")
    rng = np.random.default_rng(1)
    for name in "ab":
        np.save(folder / f"{name}.npy", rng.random((1500, 1500), dtype=np.float32))
    return folder / "a.npy", folder / "b.npy"


@pytest.mark.slow
def test_a_run_its_page_and_its_trace(matrices, tmp_path):
    run, page, out = tmp_path / "run.jsonl", tmp_path / "page.html", tmp_path / "c.npy"
    asked = (*matrices, "-o", out, "--device", "cpu", "--memory", "48MiB", "--timeline", run)
    done = tilewright("multiply", *asked)
    assert done.returncode == 0, done.stderr
    (found,) = read_timelines(run)
    assert (found.m, found.n, found.k, found.places, found.complete) == (1500, 1500, 1500, ["cpu"], True)
    by_track = {track.name: track for track in found.summary("cpu").tracks}
    assert by_track["compute"].work == Work(2 * 1500**3, "operations")
    assert by_track["copy out"].work == Work(4 * 1500**2, "bytes")
    assert found.summary("cpu").total_s == found.seconds > by_track["compute"].busy_s
    trace_file = tmp_path / "trace.json"
    done = tilewright("report", run, "-o", page, "--trace", trace_file, "--figures", tmp_path / "figures")
    assert done.returncode == 0, done.stderr
    assert "1500³ float32 on the CPU" in page.read_text()
    check_trace(json.loads(trace_file.read_text()))
    assert (tmp_path / "figures" / "timeline.svg").exists()


@pytest.mark.slow
def test_what_is_planned_can_be_looked_at_before(matrices, tmp_path):
    plan, out = tmp_path / "plan.jsonl", tmp_path / "c.npy"
    asked = (*matrices, "-o", out, "--device", "cpu", "--memory", "48MiB", "--timeline", plan)
    done = tilewright("multiply", *asked, "--dry-run")
    assert done.returncode == 0, done.stderr
    (found,) = read_timelines(plan)
    assert found.predicted
    assert not out.exists()
    assert found.summary("cpu").compute_s == pytest.approx(found.expected["compute_s"])


@pytest.mark.slow
def test_a_run_that_is_stopped_keeps_what_it_did(matrices, tmp_path):
    run, out = tmp_path / "run.jsonl", tmp_path / "c.npy"
    command = [sys.executable, "-c", SLOW, "multiply"]
    asked = (*matrices, "-o", out, "--device", "cpu", "--memory", "32MiB", "--timeline", run)
    with subprocess.Popen(
        [*command, *map(str, asked)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("stored"):
                break
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    (found,) = read_timelines(run)
    assert not found.complete
    assert 0 < found.finished < found.tiles
    assert "stopped after" in said(found)
    assert report.render_timeline([found])


@pytest.mark.slow
def test_files_that_do_not_go_together_are_refused(tmp_path):
    run, other = tmp_path / "run.jsonl", tmp_path / "records.jsonl"
    write_timelines(run, [tiny(), tiny()])
    other.write_text('{"kernel": "x"}\n')
    for arguments, words in (
        ((run, other), "page of their own"),
        ((run, "--trace", tmp_path / "t.json"), "holds one timeline"),
        ((other, "--trace", tmp_path / "t.json"), "only a timeline"),
    ):
        done = tilewright("report", *arguments, "-o", tmp_path / "page.html")
        assert done.returncode == 2, done.stderr
        assert words in done.stderr


def test_the_spans_of_a_plan_are_those_of_its_cost():
    plan = large_plan()
    pieces = predicted_pieces(plan, ["cuda:0"])
    cost = plan.cost
    assert len(pieces) == len(cost.loads) + len(cost.multiplies) + len(cost.stores)
    found = Timeline(
        65536, 65536, 65536, "float32", 4, (plan.grid.bm, plan.grid.bn, plan.grid.bk), pieces, predicted=True
    )
    summary = found.summary("cuda:0")
    assert summary.compute_s == pytest.approx(cost.compute_s)
    assert (summary.first_s, summary.last_s) == pytest.approx((cost.first_s, cost.last_s))
    assert summary.between_s == pytest.approx(cost.exposed_s, abs=1e-6)
    by_track = {track.name: track.work for track in summary.tracks}
    assert by_track["copy in"] == Work(cost.in_bytes, "bytes")
    assert by_track["copy out"] == Work(cost.out_bytes, "bytes")
    assert by_track["compute"] == Work(2 * 65536**3, "operations")


def test_several_places_are_planned_with_their_own_parts():
    plan = large_plan(places=4)
    places = [f"cuda:{number}" for number in range(4)]
    pieces = predicted_pieces(plan, [*places, "cuda:4"])
    assert sorted({piece.place for piece in pieces}) == places
    steps = [piece.name for piece in pieces if piece.track == "compute"]
    assert len(steps) == len(set(steps)) == len(plan.tiles) * plan.grid.steps
    assert max(piece.end_s for piece in pieces) == pytest.approx(plan.cost.total_s)
