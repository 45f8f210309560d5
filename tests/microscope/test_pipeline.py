"""What is recorded of mbarriers and tiles in a run, and the timeline that is made of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import tilewright as tw
from microscope.test_asynchronous_defects import tensor_map
from support.async_sources import compiled_async, run_async
from support.asynchronous_kernels import ARCH, KERNELS, TileMap
from support.cuda_sources import HEAD
from support.pipelines import WRONG_BYTES, WRONG_PARITY, pipeline, ring
from tilewright.__main__ import run_command_line
from tilewright.errors import UnavailableError
from tilewright.lab.terminal import show_explanations
from tilewright.records.explanation import read_explanations
from tilewright.records.pipeline import TICKS, Pipeline
from tilewright.simulator.listing import timeline_lines
from tilewright.simulator.machine import event_log
from tilewright.simulator.machine.event_log import EventLog
from tilewright.simulator.microscope import pipeline_of

#: What is found and computed does not depend on the binary.
pytestmark = pytest.mark.usefixtures("without_disassembly")


def drawn(of: Pipeline) -> list[str]:
    """The rows of the timeline as text."""
    return timeline_lines(of)[1 : 1 + len(of.rows)]


def seen(name: str, *, good: str = "", bad: str = "") -> Pipeline:
    """The pipeline of one of the asynchronous kernels, with one text of its source replaced."""
    kernel = KERNELS[name]
    launch, source = kernel.launch(), kernel.path.read_text(encoding="utf-8")
    assert good in source
    args: list[Any] = [tensor_map(arg) if isinstance(arg, TileMap) else arg for arg in launch.args]
    try:
        found = tw.microscope(
            source.replace(good, bad) if good else source, kernel.entry, launch.grid, kernel.block, args, arch=ARCH,
            include=[kernel.path.parent], defines=kernel.defines, shared_bytes=kernel.shared_bytes,
        ).pipeline  # fmt: skip
    except UnavailableError as error:
        pytest.skip(f"no CUDA compiler: {error}")
    assert found is not None
    return found


# ---- the timeline


def test_two_stages_are_filled_while_the_others_are_used() -> None:
    """Copies take one tick, as does the use of a row: with two stages the producer waits, and so do the consumers, for as
    long as it takes to ask for the next copy."""
    assert drawn(pipeline()) == [
        "warp 4     ++.......+...+....+...+....+",
        "stage 0     ~~~~==== ~~~~==== ~~~~==== ~~~~====",
        "stage 1      ~~~~======= ~~~~==== ~~~~====",
        "warps 0–3  .....00001111.00001111.00001111.0000",
    ]
    producer, _, _, consumers = pipeline().rows
    first = next(span for span in producer.spans if span.kind == "wait")
    assert first.words == "waits for phase 0 (parity 0) of empty[0], which warps 0–3 complete"
    assert first.by == "warps 0–3"
    assert consumers.spans[0].by == "stage 0"
    assert {span.line for span in consumers.spans} == {43}, "the line of the call, not that of the function"


def test_every_row_of_the_ring_is_used_once_and_in_order() -> None:
    consumers = pipeline().rows[-1]
    used = [(span.stage, span.phase) for span in consumers.spans if span.kind == "work"]
    assert used == [(str(row % 2), row // 2) for row in range(7)]


def test_a_wrong_parity_shows_as_work_before_the_copy_has_come() -> None:
    right, wrong = pipeline(), pipeline(7, *WRONG_PARITY)
    assert not any(right.is_early(span) for row in right.rows for span in row.spans)
    assert any(wrong.is_early(span) for span in wrong.rows[-1].spans)
    assert drawn(wrong)[-1].startswith("warps 0–3  ?000?111")


def test_a_wait_that_never_ends_reaches_to_the_edge() -> None:
    stuck = pipeline(7, *WRONG_BYTES)
    assert [row.name for row in stuck.rows if row.spans[-1].end is None] == ["warp 4", "warps 0–3"]
    assert drawn(stuck)[-1] == "warps 0–3  !!!!!!!!!!"
    assert stuck.rows[-1].spans[-1].words == "waits for ever for phase 0 (parity 0) of full[0]"
    assert stuck.barriers[0].events[-1].bytes == 16


def test_warp_groups_of_a_product_have_rows_of_their_own() -> None:
    found = seen("product bf16")
    assert drawn(found) == [
        "warp 0      ++++.........+",
        "stage 0      ~~~~======== ~~~~=======",
        "stage 1       ~~~~=======",
        "stage 2        ~~~~==========",
        "stage 3         ~~~~=============",
        "warps 4–7   .....00001111222233330000",
        "warps 8–11  .....00001111222233330000",
    ]
    assert {span.kind for span in found.rows[-1].spans} == {"wait", "multiply"}
    full, empty = found.barriers
    assert (full.name, full.role) == ("the barrier at byte 131,072 of dynamic shared memory", "stage 0 is full")
    assert (empty.count, empty.role) == (2, "stage 0 may be filled")


@pytest.mark.slow
def test_arrivals_from_another_block_of_the_cluster_are_named() -> None:
    found = seen("multicast")
    who = {event.who for history in found.barriers for event in history.events if event.what == "arrive"}
    assert who == {"warp 4", "warp 8", "warp 4 of block 1 of the cluster", "warp 8 of block 1 of the cluster"}
    assert [row.kind for row in found.rows] == ["warps", *["stage"] * 4, "warps", "warps"]


def test_a_ring_without_copies_has_warps_alone() -> None:
    source = """(float* y) {
      __shared__ float buffer[2][32]; __shared__ u64 full[2], empty[2];
      int warp = threadIdx.x / 32, lane = threadIdx.x % 32; float sum = 0;
      if (threadIdx.x == 0) for (int i = 0; i < 2; i++) { INIT(&full[i], 32); INIT(&empty[i], 32); }
      __syncthreads();
      for (int i = 0; i < 3; i++) {
        int s = i % 2, p = i / 2 & 1;
        if (warp == 0) { WAIT(&empty[s], p ^ 1); buffer[s][lane] = i; ARRIVE(&full[s]); }
        else { WAIT(&full[s], p); sum += buffer[s][lane]; ARRIVE(&empty[s]); }
      }
      y[threadIdx.x] = sum;
    }"""
    log = EventLog()
    assert run_async(source, [np.zeros(64, np.float32)], 1, 64, log=log).findings == []
    found = pipeline_of(log)
    assert found is not None
    assert drawn(found) == ["warp 0  000011110000", "warp 1  ....000011110000"]
    assert found.rows[1].spans[0].by == "warp 0"


# ---- barriers


def test_the_phases_of_a_barrier_are_those_of_the_run() -> None:
    full, empty = pipeline().barriers
    assert (full.name, full.count, empty.name, empty.count) == ("full[0]", 1, "empty[0]", 4)
    events = [(e.what, e.who, e.amount, e.pending, e.bytes, e.phase) for e in full.events[:6]]
    assert events == [
        ("init", "warp 0", 1, 1, 0, 0),
        ("expect", "warp 4", 512, 0, 512, 0),
        ("wait", "warps 0–3", 0, 0, 512, 0),
        ("bytes", "copy engine", 512, 1, 0, 1),
        ("pass", "warps 0–3", 0, 1, 0, 1),
        ("wait", "warps 0–3", 1, 1, 0, 1),
    ]
    assert [(e.what, e.who, e.pending, e.phase) for e in empty.events[3:7]] == [
        ("arrive", "warp 0", 3, 0),
        ("arrive", "warp 1", 2, 0),
        ("arrive", "warp 2", 1, 0),
        ("arrive", "warp 3", 4, 1),
    ]


def test_a_wrong_parity_lets_warps_go_on_while_bytes_are_missing() -> None:
    full = pipeline(7, *WRONG_PARITY).barriers[0]
    assert any(event.what == "pass" and event.bytes for event in full.events)
    assert not any(event.what == "pass" and event.bytes for event in pipeline().barriers[0].events)


# ---- tiles


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_a_tile_lies_as_the_copy_engine_swizzles(swizzle: int) -> None:
    """Rule: within 1024 bytes the number of a 16-byte chunk is combined with that of its 128-byte line."""
    (tile,) = seen(f"swizzled copy {swizzle}").tiles
    assert (tile.swizzle, tile.row_bytes, tile.reads) == (swizzle, swizzle or 128, [])
    first = min(tile.cells[0])
    for row, cells in enumerate(tile.cells):
        for column, at in enumerate(cells):
            place = row * tile.row_bytes + 16 * column
            line, chunk = place // 128, place // 16 % 8
            assert at - first == 128 * line + 16 * (chunk ^ line % 8 & max(0, swizzle // 16 - 1))


@pytest.mark.slow
def test_a_descriptor_with_another_swizzle_reads_other_chunks() -> None:
    good = "descriptor(s.a[slot][half * 64], 16, 1024)"
    right = seen("product bf16").tiles
    assert [(tile.operand, tile.contradicted) for tile in right] == [("A", False), ("B", False)]
    assert right[0].reads == right[0].group
    wrong = seen("product bf16", good=good, bad=f"({good} & ~(3ull << 62))").tiles
    assert [(tile.operand, tile.contradicted, tile.reader_swizzle) for tile in wrong] == [
        ("A", True, "no swizzle"),
        ("B", False, "128-byte swizzle"),
    ]
    assert sum(at == other for at, other in zip(wrong[0].reads, wrong[0].group, strict=True)) == 1


# ---- the log


def test_a_log_changes_nothing_and_is_kept_only_if_asked_for() -> None:
    source = """(const float* x, float* y) {
      __shared__ alignas(16) float stage[128]; __shared__ u64 b;
      if (threadIdx.x == 0) { INIT(&b, 1); FENCE_INIT(); ARRIVE_EXPECT(&b, 512); LOAD(stage, x, 512, &b); }
      __syncthreads();
      WAIT(&b, 0);
      y[blockIdx.x * 128 + threadIdx.x] = stage[threadIdx.x];
    }"""
    args = [np.arange(128, dtype=np.float32), np.zeros(3 * 128, np.float32)]
    log = EventLog()
    plain, logged = run_async(source, args, 3), run_async(source, args, 3, log=log)
    assert (plain.steps, plain.findings) == (logged.steps, logged.findings)
    np.testing.assert_array_equal(plain.arrays[1], logged.arrays[1])
    found = pipeline_of(log)
    assert found is not None
    assert (found.block, [row.name for row in found.rows]) == ("block (0, 0, 0)", ["warp 0", "stage 0", "warps 1–3"])
    assert {warp for event in log.events for warp in event.warps} == {0, 1, 2, 3}, "one block of three"


def test_a_kernel_without_barriers_has_no_pipeline() -> None:
    found = tw.microscope(
        compiled_async(HEAD + "(float* y) { y[threadIdx.x] = 1; }"), "k", 1, 32, [np.zeros(32, np.float32)]
    )
    assert found.pipeline is None
    assert "pipeline" not in str(found)


def test_a_barrier_for_which_nothing_waits_has_phases_but_no_timeline() -> None:
    log = EventLog()
    source = "() { __shared__ u64 b; if (!threadIdx.x) { INIT(&b, 1); ARRIVE(&b); WAIT(&b, 0); } }"
    assert run_async(source, [], 1, 32, log=log).findings == []
    found = pipeline_of(log)
    assert found is not None
    assert (found.rows, timeline_lines(found)) == ([], [])
    assert [event.what for event in found.barriers[0].events] == ["init", "arrive", "pass"]


@pytest.mark.slow
def test_a_long_run_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    long = pipeline(60)
    assert (long.whole, long.ticks) == (False, TICKS)
    assert max(span.begin for row in long.rows for span in row.spans) < TICKS
    assert timeline_lines(long)[0] == "pipeline of block (0, 0, 0), the first 16 ticks"
    monkeypatch.setattr(event_log, "MOST_EVENTS", 40)
    ring.cache_clear()
    short = pipeline()
    ring.cache_clear()
    monkeypatch.undo()
    assert not short.whole
    assert short.ticks < pipeline().ticks


def test_the_text_fits_80_columns() -> None:
    named = [replace(row, name=f"warps {', '.join(map(str, range(0, 32, 2)))}") for row in pipeline(60).rows]
    long = replace(pipeline(60), rows=named, whole=True)
    assert timeline_lines(long)[0].endswith(", the first 13.5 ticks")
    for made in (long, pipeline(), pipeline(60), pipeline(7, *WRONG_BYTES), replace(pipeline(), rows=[])):
        assert all(len(line) <= 80 for line in timeline_lines(made))
    assert "warps 0–3  .....00001111" in str(ring())


PRODUCT = """/*
idea = "A warp asks for pieces of a row of A; another multiplies them with columns of B."
block = [64]
grid = ["cdiv(n, 32)", "m"]
*/
typedef unsigned long long Barrier;
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void wait(Barrier& b, int parity)
{
    asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra again; }"
                 :: "r"(at(&b)), "r"(parity) : "memory");
}
extern "C" __global__ void pieces(const float* a, const float* b, float* c, int m, int n, int k)
{
    __shared__ alignas(16) float stage[2][32];
    __shared__ Barrier full[2], empty[2];
    const int lane = threadIdx.x % 32, col = blockIdx.x * 32 + lane;
    if (threadIdx.x == 0) {
        for (int s = 0; s < 2; s++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; mbarrier.init.shared::cta.b64 [%1], 32;"
                         :: "r"(at(&full[s])), "r"(at(&empty[s])) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < k / 32; i++) {
        const int s = i % 2, parity = i / 2 % 2;
        if (threadIdx.x == 32) {
            wait(empty[s], parity ^ 1);
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" :: "r"(at(&full[s])) : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];"
                         :: "r"(at(stage[s])), "l"(a + blockIdx.y * k + 32 * i), "r"(at(&full[s])) : "memory");
        }
        if (threadIdx.x < 32) {
            wait(full[s], parity);
            for (int j = 0; j < 32; j++)
                sum += stage[s][j] * b[(32 * i + j) * n + col];
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at(&empty[s])) : "memory");
        }
    }
    if (threadIdx.x < 32)
        c[blockIdx.y * n + col] = sum;
}
"""


@pytest.mark.slow
def test_the_command_explains_a_pipeline_on_its_page_and_in_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("altair", reason="the report's lab extra is not installed")
    kernel, page, data = tmp_path / "pieces.cu", tmp_path / "page.html", tmp_path / "x.json"
    kernel.write_text(PRODUCT, encoding="utf-8")
    command = ["tilewright", "explain", str(kernel), "--size", "2x32x96", "--json", str(data), "--report", str(page)]
    monkeypatch.setattr("sys.argv", command)
    assert run_command_line() == 1, "without guards it is wrong at an odd size"
    (explanation,) = read_explanations(data)
    assert explanation.pipeline is not None
    rows = [
        "warp 1   ++.......+",
        "stage 0   ~~~~==== ~~~~====",
        "stage 1    ~~~~=======",
        "warp 0   .....00001111.0000",
    ]
    assert drawn(explanation.pipeline) == rows
    show_explanations(Console(width=80), [explanation])
    assert "\n".join(rows) in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert "<h3>The pipeline</h3>" in text
    assert text.count("The phases of full[0]: stage 0 is full</title>") == 1
