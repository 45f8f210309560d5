"""The bench on a GPU, seen from outside: predictions, processes that crash or hang, records, resuming, tables, pages."""

from __future__ import annotations

import dataclasses
import io
import multiprocessing
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from support.scripted_gpu import Crashes, Hangs, HangsLater, HasNoPeak, IsLost, Script, absent, dead
from tilewright.errors import UnavailableError, UsageError
from tilewright.gpu.runtime.cublas import CUBLAS
from tilewright.kernels.catalog import cuda_catalog
from tilewright.lab.bench import cuda, session
from tilewright.lab.bench import cuda as cuda_bench
from tilewright.lab.bench.cells import Cell, Settings, cells
from tilewright.lab.bench.cuda import CudaBench, GpuProcess, LostError
from tilewright.lab.bench.session import BenchRequest
from tilewright.lab.terminal import show_bench
from tilewright.records.bench import VOLATILE, BenchRecord, read_records, write_records
from tilewright.records.compare import Status, compare

pytest.importorskip("altair", reason="the report's lab extra is not installed")
from tilewright.records.report import page, views

SHARED = cuda_catalog()["cuda/shared_tile"]


def settings(*sizes: int, **changes: Any) -> Settings:
    asked: dict[str, Any] = {"references": [CUBLAS], "sizes": [(n, n, n) for n in sizes], "dtypes": [], "threads": [1]}
    return Settings([SHARED], device="cuda", **asked | changes)


@pytest.fixture
def bench():
    """Makes a bench on a process of that kind; ends them all."""
    made: list[CudaBench] = []

    def make(kind: Any, asked: Settings) -> CudaBench:
        process = GpuProcess(asked, kind if callable(kind) and not isinstance(kind, type) else kind.serve)
        made.append(CudaBench(asked, {"processor": "Example CPU", "blas": {"openblas": "0.3"}}, process))
        return made[-1]

    yield make
    for one in made:
        one.close()


def measured(bench: CudaBench) -> list[BenchRecord]:
    return [bench.measure(cell) for cell in cells(bench.settings)]


# ---- records


@pytest.mark.slow
def test_a_record_says_what_and_where(bench) -> None:
    ours, its = measured(bench(Script, settings(64)))
    assert (ours.kernel, ours.device, ours.threads, ours.params) == ("cuda/shared_tile", "cuda", 1, {"TILE": 32})
    assert (ours.verdict, ours.dtype, ours.seed, ours.peak_gflops) == ("ok", "float32", 1, 10.0)
    assert ours.median_s == pytest.approx(64**3 * 2 / 1e9 * 1.015 * 2)
    assert ours.gflops == pytest.approx(1 / 1.015 / 2)
    assert ours.reference == "ref/cublas"
    assert ours.ratio == pytest.approx(2 / 1.015)
    assert ours.about["registers"] == 40
    assert ours.about["idea"] == SHARED.idea
    assert ours.environment["gpu"] == "Example GPU"
    assert ours.environment["kernel_source"] == SHARED.source_hash
    assert ours.environment["blas"] == {"openblas": "0.3", "cublas": "13.1.0"}
    assert ours.environment["throttled"] == "power limit"
    assert (its.kernel, its.reference, its.ratio, its.environment["kernel_source"]) == (
        "ref/cublas", None, None, CUBLAS.source_hash,
    )  # fmt: skip


@pytest.mark.slow
def test_cells_of_one_run_share_their_environment(bench) -> None:
    first, *others = (
        {key: value for key, value in record.environment.items() if key not in VOLATILE}
        for record in measured(bench(Script, settings(8, 16)))
    )
    assert others
    assert all(other == first for other in others)


@pytest.mark.slow
def test_one_process_measures_all(bench) -> None:
    found = measured(bench(Script, settings(8, 9, 10)))
    pids = {record.environment["pid"] for record in found}
    assert len(pids) == 1
    assert os.getpid() not in pids


@pytest.mark.slow
def test_a_rounded_product_has_a_table_of_its_own_and_no_roof(bench) -> None:
    one = bench(Script, settings(64))
    cell = dataclasses.replace(cells(one.settings)[0], precision="tf32")
    records = [*measured(one), one.measure(cell)]
    assert [r.peak_gflops for r in records] == [10.0, 10.0, None]
    console = Console(file=io.StringIO(), width=80)
    show_bench(console, records)
    assert "float32: GFLOPS" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "float32, tf32: GFLOPS" in console.file.getvalue()  # type: ignore[attr-defined]
    assert [s.precision for s in views.sections(records)] == ["standard", "tf32"]


@pytest.mark.slow
def test_no_peak_costs_no_record(bench) -> None:
    found = measured(bench(HasNoPeak, settings(8)))
    assert [(r.verdict, r.peak_gflops, r.peak_fraction) for r in found] == [("ok", None, None)] * 2


# ---- processes that are lost


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "verdict", "words"),
    [
        (Crashes, "wrong", "the process that ran it ended (exit code 7) while a sample"),
        (Hangs, "time_limit", "one product had not ended after 0.2 s, the limit is 10 s"),
        (HangsLater, "wrong", "a sample did not end within 0.2 s"),
        (IsLost, "wrong", "illegal address"),
        (Script, "wrong", "not foreseen"),
    ],
)
def test_the_bench_goes_on_in_another_process(bench, kind, verdict: str, words: str) -> None:
    before, unlucky, after = measured(bench(kind, settings(12, 13, 14, references=[])))
    assert (unlucky.verdict, unlucky.samples_s) == (verdict, [])
    assert words in unlucky.reason
    assert unlucky.environment["gpu"] == "Example GPU"
    assert [before.verdict, after.verdict] == ["ok", "ok"]
    assert before.environment["pid"] != after.environment["pid"]


@pytest.mark.slow
def test_after_a_hang_larger_sizes_are_predicted(bench) -> None:
    *_, larger = measured(bench(Hangs, settings(13, 130, references=[], limit_s=5)))
    assert larger.verdict == "time_limit"
    assert larger.reason == "predicted 200 s from the size before, the limit is 5 s"


@pytest.mark.slow
def test_ctrl_c_ends_the_process(bench, monkeypatch) -> None:
    one = bench(Hangs, settings(13))

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(one._process, "_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured(one)
    process = one._process._process
    one.close()
    assert not process.is_alive()
    one.close()


@pytest.mark.slow
def test_where_there_is_no_gpu(bench) -> None:
    with pytest.raises(UnavailableError, match="GPU 0 cannot be used: none"):
        bench(absent, settings(8))
    with pytest.raises(UnavailableError, match=r"the GPU cannot be used: .*exit code 3\) while opening the GPU"):
        bench(dead, settings(8))


@pytest.mark.slow
def test_a_gpu_that_is_gone_after_a_crash(bench, monkeypatch) -> None:
    one = bench(Crashes, settings(13, 14, 15, references=[]))
    monkeypatch.setattr(one._process, "_target", absent)
    wrong, *others = measured(one)
    assert wrong.verdict == "wrong"
    assert [(r.verdict, r.reason) for r in others] == [("unsupported", "GPU 0 cannot be used: none")] * 2


def test_a_process_that_does_not_start_in_time(monkeypatch) -> None:
    monkeypatch.setattr(cuda, "START_S", 0.0)
    with pytest.raises(LostError, match="opening the GPU did not end within 0 s"):
        GpuProcess(settings(8), Script.serve).start()


# ---- prediction


@pytest.mark.slow
def test_nobody_waits_for_what_is_over_the_limit(bench) -> None:
    """2·n³ operations at 1 GFLOPS: 0.27 s at 512, 2.1 s at 1024."""
    start = time.monotonic()
    found = measured(bench(Script, settings(256, 512, 1024, 2048, references=[], limit_s=1)))
    assert [r.verdict for r in found] == ["ok", "ok", "time_limit", "time_limit"]
    assert "from the size before, the limit is 1 s" in found[-1].reason
    assert time.monotonic() - start < 30


@pytest.mark.slow
def test_overhead_at_a_small_size_says_nothing_about_a_large_one(bench) -> None:
    one = bench(Script, settings(8, 4096, references=[], limit_s=1000))
    small, large = cells(one.settings)
    one.remember(small, one.telling_s / 2)
    assert one.predicted_s(large) > 1000
    assert one.measure(large).verdict == "ok"
    one.remember(small, one.telling_s * 2)
    assert one.measure(large).verdict == "time_limit"


@pytest.mark.slow
def test_time_left_shrinks_and_knows_the_limit(bench) -> None:
    one = bench(Script, settings(64, 8192, 10**6, limit_s=2))
    todo = cells(one.settings)
    times = [one.time_left(todo[index:]).seconds for index in range(len(todo) + 1)]
    assert times == sorted(times, reverse=True)
    assert times[-1] == 0
    assert times[0] < 60


# ---- a whole run


@pytest.fixture
def run(monkeypatch, tmp_path):
    """``tilewright bench --device cuda`` on a scripted GPU; ``kind`` may be changed between runs."""
    state: dict[str, Any] = {"kind": Script, "asked": []}

    class Watched(GpuProcess):
        def __init__(self, asked: Settings) -> None:
            super().__init__(asked, state["kind"].serve)

        def ask(self, method: str, *args: Any, **named: Any) -> Any:
            state["asked"] += [args[0].label] if method == "measure" else []
            return super().ask(method, *args, **named)

    monkeypatch.setattr(cuda_bench, "GpuProcess", Watched)

    def call(resume: bool = False, **changes: Any) -> session.RunRecords:
        state["asked"] = []
        asked = BenchRequest(**{"device": "cuda", "kernels": ["shared_tile"], "sizes": "8,16"} | changes)
        path = tmp_path / "x.jsonl"
        return session.run_bench(asked, json_file=path, resume=resume)

    call.state, call.path = state, tmp_path / "x.jsonl"  # type: ignore[attr-defined]
    return call


def test_defaults(run) -> None:
    settings, _ = session._settings(BenchRequest(device="cuda"))
    assert [k.name for k in settings.kernels] == list(cuda_catalog())
    assert settings.references == [CUBLAS]
    assert settings.sizes == [(n, n, n) for n in (256, 1000, 1024, 2048, 4096)]
    assert (settings.dtypes, settings.threads, settings.device) == ([], [1], "cuda")
    assert session._settings(BenchRequest(device="cuda", against="none"))[0].references == []
    assert session._settings(BenchRequest(device="cuda", against="ref/cublas"))[0].references == [CUBLAS]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"threads": "2"}, "threads '2': a GPU has no such number"),
        ({"against": "openblas"}, "reference 'openblas' is not known on a GPU"),
        ({"dtype": "float64"}, "none of the chosen kernels takes it: cuda/shared_tile float32"),
        ({"dtype": "int8"}, "dtype 'int8'"),
        ({"kernels": ["cpu/ikj"]}, "runs on device cpu, not on device cuda"),
        ({"params": ["BM=3"]}, "param 'BM'"),
        ({"device": "gpu"}, "device 'gpu'"),
    ],
)
def test_errors_name_the_argument_and_what_was_given(changes, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        session._settings(BenchRequest(**{"device": "cuda", "kernels": ["shared_tile"]} | changes))


@pytest.mark.slow
def test_a_run_is_resumed(run) -> None:
    run.state["kind"] = Crashes
    first = run(sizes="8,13,16")
    assert [r.verdict for r in first.records] == ["ok", "ok", "wrong", "wrong", "ok", "ok"]
    assert len(run.state["asked"]) == 6
    run.state["kind"] = Script
    assert run(resume=True, sizes="8,13,16,32").records[-1].n == 32
    assert [label.split()[1] for label in run.state["asked"]] == ["32", "32"], "what is wrong stays wrong"
    run(resume=True, sizes="8,13,16,32", params=["TILE=8"])
    assert len(run.state["asked"]) == 4, "other parameters are other cells; cuBLAS has none"


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{"gpu": "Another GPU"}, {"driver": "2"}, {"nvrtc": "NVRTC 12"}, {"blas": {}}, {"kernel_source": "edited"}],
)
def test_a_cell_falls_when_something_changed_that_shapes_it(run, changes: dict[str, Any]) -> None:
    done = run(sizes="8", against="none")
    (record,) = done.records
    altered = dataclasses.replace(record, environment=record.environment | changes)
    write_records(run.path, [altered])
    run(resume=True, sizes="8", against="none")
    assert len(run.state["asked"]) == 1
    run(resume=True, sizes="8", against="none")
    assert run.state["asked"] == []


@pytest.mark.slow
def test_no_gpu_costs_no_earlier_records(run, monkeypatch) -> None:
    run()
    before = run.path.read_bytes()
    monkeypatch.setattr(Script, "serve", absent)
    with pytest.raises(UnavailableError):
        run()
    assert run.path.read_bytes() == before


@pytest.mark.slow
def test_the_process_ends_with_the_run(run) -> None:
    run()
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_the_table(run) -> None:
    console = Console(file=io.StringIO(), width=80)
    show_bench(console, run(sizes="64,128").records)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "thr" not in text
    assert "R: ref/cublas's time over the kernel's; above 1 is faster." in text
    assert re.search(r"Best: \S+ at \d+ reaches 5% of the measured 10 GFLOPS", text)
    assert "on 1 thread" not in text
    assert "Clocks were held down in 4 of 4 cells: power limit." in text
    assert "4 of 4 cells measured and verified, 0 wrong." in text


@pytest.mark.slow
def test_the_page_and_the_comparison_take_the_records(run) -> None:
    pytest.importorskip("altair", reason="altair is not installed: pip install 'tilewright[lab]'")
    before = run(sizes="64,128").records
    shown = page.render(read_records(run.path))
    assert "Matrix products on Example GPU" in shown
    assert "1 thread" not in shown
    (section,) = views.sections(before)
    assert (section.machine, section.device) == ("Example GPU", "cuda")
    (view,) = views.views(section)
    assert view.what == "float32 · cuda"
    after = [dataclasses.replace(r, samples_s=[s / 2 for s in r.samples_s], median_s=None) for r in before]
    ours, its = compare(before, after).rows[:2]
    assert (ours.status, its.status) == (Status.FASTER, Status.FASTER)
    assert ours.basis == "reference"


@pytest.mark.slow
def test_a_bench_of_both_devices_makes_two_sections(run) -> None:
    records = run(sizes="64").records
    other = Cell(SHARED, (64, 64, 64), "float32", 1, {}).record("ok", environment=records[0].environment)
    assert [s.device for s in views.sections([*records, other])] == ["cuda", "cpu"]


@pytest.mark.slow
def test_exit_codes_and_words_of_the_command(monkeypatch, tmp_path: Path, capsys) -> None:
    import sys

    from tilewright.__main__ import run_command_line as command

    monkeypatch.setattr(cuda_bench, "GpuProcess", lambda asked: GpuProcess(asked, Crashes.serve))
    monkeypatch.chdir(tmp_path)
    for size, code in (("12", 0), ("13", 1)):
        monkeypatch.setattr(sys, "argv", ["tilewright", "bench", "shared_tile", "--device", "cuda", "--sizes", size])
        assert command() == code
    assert "WRONG" in capsys.readouterr().out
