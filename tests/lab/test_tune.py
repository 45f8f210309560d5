"""The tuner: what it tries, in which order, what it finds and keeps. A real GPU is tuned in ``test_gpu_bench.py``."""

from __future__ import annotations

import functools
import io
import itertools
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from support.scripted_gpu import Crashes, IsWrong, Script, crash
from tilewright.__main__ import run_command_line as command
from tilewright.errors import UsageError
from tilewright.gpu.planning.choice import best_params
from tilewright.kernels.catalog import cuda_catalog, load_cuda_file
from tilewright.lab.bench import cuda as cuda_bench
from tilewright.lab.bench.cells import Settings
from tilewright.lab.bench.cuda import CudaBench, GpuProcess
from tilewright.lab.terminal import TuneProgress
from tilewright.lab.tune import cuda as tuner
from tilewright.lab.tune import session as tune_session
from tilewright.lab.tune.cuda import cache_best, combinations, compiled_ahead, tune_parameters
from tilewright.records.bench import read_records

SHARED = cuda_catalog()["cuda/shared_tile"]
SHAPE = (64, 64, 64)

TILED = """/*
idea = "For a test."
block = ["BM"]
grid = ["cdiv(m, BM)"]
shared = "BM * BN * 4"
constraints = ["BM % WM == 0", "BM * BN <= 2048"]
[params]
BM = { default = 32, values = [16, 32, 64, 2048] }
BN = { default = 32, values = [16, 32, 64] }
WM = { default = 8, min = 4, max = 16, step = 4 }
*/
extern "C" __global__ void tiled(const float* a, const float* b, float* c, int m, int n, int k) {}
"""

MANY = """/*
idea = "For a test."
block = [32]
grid = [1]
[params]
X = { default = 7, min = 1, max = 1000 }
Y = { default = 7, min = 1, max = 1000 }
*/
extern "C" __global__ void many(const float* a, const float* b, float* c, int m, int n, int k) {}
"""


@pytest.fixture(autouse=True)
def _private(monkeypatch, tmp_path):
    """A cache of this test's own, and no processes that compile ahead."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tuner, "machine", lambda: type("Machine", (), {"usable_cores": 1}))


@pytest.fixture
def bench():
    made: list[CudaBench] = []

    def make(kind: Any = Script, **changes: Any) -> CudaBench:
        asked = Settings([SHARED], [], [SHAPE], ["float32"], [1], device="cuda", **changes)
        made.append(CudaBench(asked, {}, GpuProcess(asked, kind.serve)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def kernel(tmp_path: Path, name: str, text: str) -> Any:
    path = tmp_path / f"{name}.cu"
    path.write_text(text)
    return load_cuda_file(path)


# ---- what is tried


def test_every_allowed_combination_once_the_defaults_first(tmp_path) -> None:
    tiled = kernel(tmp_path, "tiled", TILED)
    found = [tuple(params.values()) for params in combinations(tiled, SHAPE)]
    assert found[0] == (32, 32, 8)
    right = {(bm, bn, wm) for bm in (16, 32, 64) for bn in (16, 32, 64) for wm in (4, 8, 16) if bm * bn <= 2048}
    assert set(found) == right
    assert len(found) == len(right)
    assert found != sorted(found), "by chance, so that a budget cuts no corner off"
    assert found == [tuple(p.values()) for p in combinations(tiled, SHAPE)], "the same chance for the same seed"
    assert found != [tuple(p.values()) for p in combinations(tiled, SHAPE, seed=2)]


def test_of_many_combinations_some_are_drawn(tmp_path) -> None:
    many = kernel(tmp_path, "many", MANY)
    start = time.monotonic()
    drawn = [tuple(params.values()) for params in itertools.islice(combinations(many, SHAPE), 500)]
    assert time.monotonic() - start < 5
    assert drawn[0] == (7, 7)
    assert len(set(drawn)) == 500
    assert len({x for x, _ in drawn}) > 300, "all over the range"


def test_drawing_ends(monkeypatch) -> None:
    monkeypatch.setattr(tuner, "MOST_LISTED", 1)
    found = [params["TILE"] for params in combinations(SHARED, SHAPE)]
    assert found[0] == 32
    assert len(set(found)) == len(found) <= 3


# ---- what is found


@pytest.mark.slow
def test_the_best_comes_first_with_samples_of_its_own(bench) -> None:
    told = []
    tuned = tune_parameters(bench(), SHARED, SHAPE, "float32", budget_s=30, tell=told.append)
    assert [r.params["TILE"] for r in tuned.finalists] == [32, 16, 8]
    assert all(len(r.samples_s) == tuner.ROUNDS for r in tuned.finalists)
    assert (tuned.tried, tuned.failed) == (3, [])
    assert [len(r.samples_s) for r in told] == [1, 1, 1, 7, 7, 7]
    assert told[0].params == {"TILE": 32}
    assert all(r.reference is None for r in told)


@pytest.mark.slow
def test_only_the_best_reach_the_second_step(bench, monkeypatch) -> None:
    monkeypatch.setattr(tuner, "FINALISTS", 2)
    tuned = tune_parameters(bench(), SHARED, SHAPE, "float32", budget_s=30)
    assert [r.params["TILE"] for r in tuned.finalists] == [32, 16]
    assert tuned.tried == 3


@pytest.mark.slow
def test_finalists_take_turns(bench, monkeypatch) -> None:
    one, asked = bench(), []
    ask = one.ask
    monkeypatch.setattr(one, "ask", lambda cell, **how: (asked.append(cell.params["TILE"]), ask(cell, **how))[1])
    tune_parameters(one, SHARED, SHAPE, "float32", budget_s=30)
    assert asked[3:] == [32, 16, 8] * tuner.ROUNDS


@pytest.mark.slow
def test_a_budget_ends_it_after_the_defaults(bench) -> None:
    tuned = tune_parameters(bench(), SHARED, SHAPE, "float32", budget_s=1e-6)
    assert tuned.tried == 1
    (record,) = tuned.finalists
    assert (record.params, len(record.samples_s)) == ({"TILE": 32}, 1)


@pytest.mark.slow
def test_a_wrong_combination_cannot_win(bench) -> None:
    tuned = tune_parameters(bench(IsWrong), SHARED, SHAPE, "float32", budget_s=30)
    assert [r.params["TILE"] for r in tuned.finalists] == [32, 8]
    assert [(r.params["TILE"], r.verdict) for r in tuned.failed] == [(16, "wrong")]


@pytest.mark.slow
def test_one_that_goes_wrong_in_the_end_loses_its_time(bench, monkeypatch) -> None:
    one, wrong = bench(), bench(IsWrong)
    asked: list[int] = []

    def ask(cell: Any, **how: Any) -> Any:
        asked.append(cell.params["TILE"])
        return CudaBench.ask(wrong if len(asked) > 8 else one, cell, **how)

    monkeypatch.setattr(one, "ask", ask)
    tuned = tune_parameters(one, SHARED, SHAPE, "float32", budget_s=30)
    assert [(r.params["TILE"], r.verdict, len(r.samples_s)) for r in tuned.finalists] == [
        (32, "ok", 7), (8, "ok", 7), (16, "wrong", 0),
    ]  # fmt: skip
    assert asked.count(16) < asked.count(8), "and is not asked again"


@pytest.mark.slow
def test_a_crash_costs_one_combination(bench) -> None:
    tuned = tune_parameters(bench(Crashes), SHARED, (13, 13, 13), "float32", budget_s=30)
    assert tuned.finalists == []
    assert [r.verdict for r in tuned.failed] == ["wrong"] * 3


@pytest.mark.slow
def test_what_cannot_be_tuned(bench, tmp_path) -> None:
    with pytest.raises(UsageError, match="cuda/shared_tile has no float64"):
        tune_parameters(bench(), SHARED, SHAPE, "float64")
    plain = kernel(tmp_path, "many", MANY.split("[params]")[0] + "*/" + MANY.split("*/")[1])
    with pytest.raises(UsageError, match="my/many has no parameters to tune"):
        tune_parameters(bench(), plain, SHAPE, "float32")


# ---- compiled ahead, and kept


@pytest.mark.slow
def test_other_processes_compile_ahead_and_keep_what_they_made(monkeypatch, tmp_path) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")
    monkeypatch.setattr(tuner, "machine", lambda: type("Machine", (), {"usable_cores": 3}))
    wanted = [{"TILE": 8}, {"TILE": 32}, {"TILE": 16}, {"TILE": 7}]
    kept = tmp_path / "cache" / "nvrtc"
    compiling = functools.partial(tuner._compile, SHARED, SHAPE, "float32", arch="sm_90a", sms=132)
    with compiled_ahead(compiling, wanted) as ready:
        assert next(ready) == {"TILE": 8}
        assert list(kept.glob("*.json"))
        assert list(ready) == wanted[1:], "one that does not compile is the bench's to report"
    assert len(list(kept.glob("*.json"))) == 3


@pytest.mark.slow
def test_a_compiler_that_crashes_is_the_benchs_to_meet(monkeypatch) -> None:
    monkeypatch.setattr(tuner, "machine", lambda: type("Machine", (), {"usable_cores": 3}))
    wanted = [{"TILE": tile} for tile in (8, 16, 32)] * 5
    with compiled_ahead(crash, wanted) as ready:
        assert list(ready) == wanted


@pytest.mark.slow
def test_the_best_is_kept_for_this_source_gpu_dtype_and_size(bench) -> None:
    tuned = tune_parameters(bench(IsWrong), SHARED, (1000, 1000, 1000), "float32", budget_s=1e-6)
    best = tuned.finalists[0]
    assert best_params(SHARED, "Example GPU", "float32", (1000, 1000, 1000)) is None
    path = cache_best(best)
    assert path is not None
    assert path.parent.name == "tuned"
    for n in (1000, 1024, 800, 1400):
        assert best_params(SHARED, "Example GPU", "float32", (n, n, n)) == {"TILE": 32}
    for gpu, dtype, n in (
        ("Other", "float32", 1000),
        ("Example GPU", "float64", 1000),
        ("Example GPU", "float32", 2048),
    ):
        assert best_params(SHARED, gpu, dtype, (n, n, n)) is None
    other = cuda_catalog()["cuda/coalesced"]
    assert best_params(other, "Example GPU", "float32", (1000, 1000, 1000)) is None
    for text in ("", "{}", '{"params": {"TILE": 7}}', '{"params": 3}'):
        path.write_text(text)
        assert best_params(SHARED, "Example GPU", "float32", (1000, 1000, 1000)) is None, text


# ---- the command


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(cuda_bench, "GpuProcess", lambda asked: GpuProcess(asked, cli_kind[0].serve))
    monkeypatch.chdir(tmp_path)
    cli_kind: list[Any] = [Script]

    def call(*arguments: str, kind: Any = Script) -> tuple[int, str, str]:
        cli_kind[0] = kind
        monkeypatch.setattr(sys, "argv", ["tilewright", "tune", *arguments])
        code = command()
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.mark.slow
def test_the_table_and_the_records(cli, tmp_path) -> None:
    code, out, _ = cli("shared_tile", "--size", "64", "--json", "tuned.jsonl")
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["TILE=32", "TILE=16", "TILE=8"]
    assert lines[1].split()[-1] == "+0.0%"
    assert "3 combinations tried, 3 measured and verified." in out
    records = read_records(tmp_path / "tuned.jsonl")
    assert [len(r.samples_s) for r in records] == [1, 1, 1, 7, 7, 7]
    assert best_params(SHARED, "Example GPU", "float32", SHAPE) == {"TILE": 32}


@pytest.mark.slow
def test_wrong_results_are_an_exit_code(cli) -> None:
    code, out, _ = cli("shared_tile", "--size", "64", kind=IsWrong)
    assert code == 1
    assert "1 wrong result, such as TILE=16: C[0, 0] is off by 1" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "kernel 'nothing' is not known"),
        (["shared_tile", "--size", "64,128"], "give one size"),
        (["shared_tile", "--dtype", "int8"], "dtype 'int8'"),
        (["shared_tile", "--budget", "soon"], "budget must be a time"),
        (["shared_tile", "--limit", "0"], "limit must be a time"),
        (["shared_tile", "--seed", "-1"], "seed must not be negative"),
        (["shared_tile", "--json", "no/such/folder.jsonl"], "json: "),
    ],
)
def test_errors_name_the_argument_and_what_was_given(cli, arguments: list[str], words: str) -> None:
    code, _, err = cli(*arguments)
    assert code == 2
    assert words in err


@pytest.mark.slow
def test_progress_is_for_a_terminal(monkeypatch) -> None:
    monkeypatch.setattr(cuda_bench, "GpuProcess", lambda asked: GpuProcess(asked, Script.serve))
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with TuneProgress(console) as progress:
        tune_session.run_on_gpu(tune_session.TuneRequest("shared_tile", "64"), tell=progress)
    assert "tried cuda/shared_tile, best" in console.file.getvalue()  # type: ignore[attr-defined]
