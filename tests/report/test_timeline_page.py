"""The page, the still picture and the trace of timelines: what is drawn, documented fields, a small size."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from support.timelines import check_trace, large, tiny, with_pieces

pytest.importorskip("jinja2", reason="the report's lab extra is not installed")

from tilewright.errors import RecordError, UsageError
from tilewright.records import report
from tilewright.records.report.html import HERE
from tilewright.records.report.timeline import BINS, COLOURS, MOST_BARS, paths, piece_rows, trace, tracks
from tilewright.records.timeline import Piece, read_timelines, write_timelines

HOSTILE = "</script><script>document.title='broken'</script>\u2028\ud800&\"'"


# ---- bars ------------------------------------------------------------------------------------------------------------


def test_no_two_pieces_of_a_row_overlap():
    rng = np.random.default_rng(1)
    starts = np.sort(rng.random(300))
    pieces = [Piece("cpu", "x", "", float(s), float(s + d)) for s, d in zip(starts, rng.random(300) / 50, strict=True)]
    placed = piece_rows(pieces)
    for row in range(max(placed) + 1):
        ends = [(piece.start_s, piece.end_s) for piece, its in zip(pieces, placed, strict=True) if its == row]
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
    deepest = max(sum(other.start_s <= p.start_s < other.end_s for other in pieces) for p in pieces)
    assert max(placed) + 1 == deepest


def test_tiles_next_to_each_other_have_two_tones_and_their_stores_the_same():
    names = ["C[0, 0] step 0", "C[0, 0] step 1", "C[0, 1] step 0", "C[1, 1] step 0"]
    pieces = [Piece("cpu", "compute", name, i, i + 1) for i, name in enumerate(names)]
    pieces += [Piece("cpu", "copy out", f"C[{tile}]", i + 4, i + 5) for i, tile in enumerate(("0, 0", "0, 1", "1, 1"))]
    compute, out = tracks(replace(tiny(), pieces=pieces), "cpu", 100)
    assert [bar.kind for bar in compute.bars] == ["c", "c", "d", "c"]
    assert [bar.kind for bar in out.bars] == ["c", "d", "c"]


def test_threads_that_stage_are_a_density_of_all_their_time():
    pieces = [Piece("cpu", "stage in", f"{'AB'[i % 2]} rows {i}", i / 10, i / 10 + 1) for i in range(40)]
    (track,) = tracks(replace(tiny(), pieces=pieces), "cpu", 100)
    assert not track.bars
    assert track.peak == pytest.approx(10, abs=0.1)
    seconds = {kind: sum(filled) * 10 / BINS for kind, filled in track.density.items()}
    assert seconds == pytest.approx({"a": 20, "b": 20})
    assert set(paths(track, 10)) == {"a", "b"}


def test_too_many_bars_are_drawn_together_and_lose_no_work():
    count = 5000
    pieces = [Piece("cpu", "compute", "C[0, 0] step 0", i / 500, (i + 1) / 500) for i in range(count)]
    whole = replace(tiny(), pieces=pieces)
    (track,) = tracks(whole, "cpu", 200)
    assert len(track.bars) <= 220
    assert sum(bar.pieces for bar in track.bars) == count
    assert sum(bar.amount or 0 for bar in track.bars) == whole.summary("cpu").tracks[0].work.amount
    assert (track.bars[0].start_s, track.bars[-1].end_s) == (0, 10)
    (exact,) = tracks(whole, "cpu", count)
    assert len(exact.bars) == count


def test_the_colours_are_the_same_in_the_style_sheet():
    light, dark = re.findall(r":root \{ (--a.+?) \}", (HERE / "timeline.css").read_text())
    for text, theme in ((light, "light"), (dark, "dark")):
        assert dict(re.findall(r"--(\w): (#\w+)", text)) == COLOURS[theme]


# ---- pages and pictures ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("places", "chunks", "memory"), [(1, 64, 11_000_000_000), (8, 4, 2_000_000_000)])
def test_a_large_timeline_makes_a_small_page(places, chunks, memory):
    timeline = large(places, chunks, memory)
    assert len(timeline.pieces) > 20_000
    page = report.render_timeline([timeline])
    assert len(page) < 3_000_000
    data = json.loads(re.search(r'id="data">(.+?)</script>', page, re.S)[1])
    bars = sum(len(track.get("bars", [])) for place in data[0]["places"] for track in place["tracks"])
    assert 100 < bars <= 1.1 * MOST_BARS


def test_the_picture_is_there_without_the_script():
    page = report.render_timeline([tiny()])
    drawn = re.findall(r'<path class="(\w+)" d="(M[^"]+)"/>', page)
    assert [kind for kind, _ in drawn] == ["a", "b", "idle", "c", "c"]
    idle = drawn[2][1]
    assert re.findall(r"M([\d.]+) 0h([\d.]+)", idle) == [("0.00", "200.00"), ("400.00", "100.00"), ("800.00", "200.00")]
    assert "http:" not in page.replace("http://www.w3.org", "")
    assert "https:" not in page


def test_names_from_elsewhere_stay_text(tmp_path):
    mean = replace(tiny(HOSTILE), dtype=HOSTILE, plan=HOSTILE, environment={HOSTILE: HOSTILE})
    mean = with_pieces(mean, Piece(HOSTILE, HOSTILE, HOSTILE, 0.0, 1.0))
    path = tmp_path / "mean.jsonl"
    write_timelines(path, [mean])
    assert len(read_timelines(path)[0].pieces) == 8
    page = report.render_timeline([mean], title=HOSTILE)
    assert "<script>document" not in page
    (still,) = report.save_timeline(mean, tmp_path / "still.svg")
    assert "<script" not in still.read_text()


def test_a_still_picture_for_each_theme(tmp_path):
    light, dark = report.save_timeline(tiny(), tmp_path / "stream.svg", themes=("light", "dark"))
    assert (light.name, dark.name) == ("stream.svg", "stream-dark.svg")
    assert COLOURS["light"]["a"] in light.read_text()
    assert COLOURS["dark"]["a"] in dark.read_text()
    with pytest.raises(UsageError, match="none of them"):
        report.save_timeline(tiny(), tmp_path / "stream.svg", themes=("darc",))


def test_several_timelines_are_one_under_the_other():
    page = report.render_timeline([tiny(), tiny("cuda:0", predicted=True)])
    assert "<h1>100 × 200 × 300 float32 on the CPU, and 1 more</h1>" in page
    assert "<h2>100 × 200 × 300 float32 on cuda:0, as planned</h2>" in page
    assert page.count('<article class="view">') == 2


def test_a_page_needs_a_timeline():
    with pytest.raises(RecordError, match="at least one"):
        report.render_timeline([])


# ---- the trace -------------------------------------------------------------------------------------------------------


def test_the_trace_has_the_fields_that_its_format_asks_for(tmp_path):
    staged = [Piece("cuda:1", "stage in", f"A rows {i}", i / 10, i / 10 + 1) for i in range(20)]
    whole = with_pieces(tiny("cuda:0"), *staged)
    path = report.write_trace(whole, tmp_path / "trace.json")
    data = json.loads(path.read_text())
    check_trace(data)
    events = [event for event in data["traceEvents"] if event["ph"] == "X"]
    assert len(events) == len(whole.pieces)
    step = next(event for event in events if event["name"] == "C[0, 0] step 1")
    assert (step["ts"], step["dur"], step["cat"]) == (5e6, 3e6, "compute")
    assert step["args"] == {"operations": 2 * 100 * 200 * 44}
    names = [event["args"]["name"] for event in data["traceEvents"] if event["name"] == "process_name"]
    assert names == ["cuda:0", "cuda:1"]


def test_a_trace_whose_events_overlap_is_noticed():
    data = trace(tiny())
    for event in data["traceEvents"]:
        event["tid"] = min(event["tid"], 1)
    with pytest.raises(AssertionError):
        check_trace(data)
