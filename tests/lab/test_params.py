"""Parameters: what --param means, which combinations become cells, what --tuned takes, and what the table says of them."""

from __future__ import annotations

import doctest
import io
import re
from typing import Any

import pytest
from rich.console import Console

from support.report_records import measured
from support.scripted_gpu import Script
from tilewright.errors import UsageError
from tilewright.kernels.catalog import cuda_catalog, find
from tilewright.lab.bench import cuda as cuda_bench
from tilewright.lab.bench import device, session
from tilewright.lab.bench.cells import Settings, cells
from tilewright.lab.bench.cuda import GpuProcess
from tilewright.lab.bench.session import BenchRequest
from tilewright.lab.inputs import options
from tilewright.lab.inputs.options import MOST_SETS, param_sets, parse_params, with_cached
from tilewright.lab.terminal import show_bench
from tilewright.lab.tune.cuda import cache_best
from tilewright.records.bench import BenchRecord, read_records
from tilewright.records.report.views import varied

COALESCED, ROWS, SHARED = (cuda_catalog()[f"cuda/{name}"] for name in ("coalesced", "register_rows", "shared_tile"))


# ---- what was typed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ([], {}),
        (["leaf=512"], {"leaf": [512]}),
        (["TILE=8, 16 ,32", " ROWS = 2"], {"TILE": [8, 16, 32], "ROWS": [2]}),
        (["TILE=16,8,16"], {"TILE": [16, 8]}),
        (["TILE=8", "TILE=16"], {"TILE": [16]}),
    ],
)
def test_each_value_once_in_the_order_given(typed: list[str], expected: dict[str, list[int]]) -> None:
    assert parse_params(typed) == expected


@pytest.mark.parametrize(
    "typed", ["TILE", "TILE=", "TILE=8,", "TILE=,8", "TILE=8,,16", "TILE=8;16", "TILE=8,x", "T=0", "=8"]
)
def test_what_is_no_list_of_values_is_refused(typed: str) -> None:
    with pytest.raises(UsageError, match=r"param must be NAME=NUMBER") as error:
        parse_params([typed])
    assert repr(typed) in str(error.value)


def test_examples() -> None:
    assert doctest.testmod(options).failed == 0
    assert doctest.testmod(device).failed == 0


# ---- which combinations there are ------------------------------------------------------------------------------------


def test_every_combination_that_the_kernel_allows() -> None:
    found = param_sets(ROWS, {"TILE": [8, 32], "ROWS": [8, 16], "BLOCK_X": [8]})
    assert found == [{"TILE": 8, "ROWS": 8}, {"TILE": 32, "ROWS": 8}, {"TILE": 32, "ROWS": 16}]
    assert param_sets(ROWS, {}) == param_sets(ROWS, {"leaf": [3]}) == [{}]


def test_where_none_is_allowed_the_first_says_why() -> None:
    with pytest.raises(UsageError, match="cuda/register_rows: ROWS <= TILE must hold, got TILE=8, ROWS=16"):
        param_sets(ROWS, {"TILE": [8], "ROWS": [16, 32]})
    with pytest.raises(UsageError, match="TILE must be one of 8, 16, 32, got 7"):
        param_sets(SHARED, {"TILE": [7, 9]})


def test_more_than_anybody_measures_are_refused_before_they_are_made() -> None:
    (strassen,) = find(["strassen"])
    assert len(param_sets(strassen, {"leaf": range(1, MOST_SETS + 1)})) == MOST_SETS
    with pytest.raises(
        UsageError, match=r"at most 1,000 combinations in one run, got 1,000,000,000,000 of cuda/coalesced"
    ):
        param_sets(COALESCED, {"BLOCK_X": range(10**6), "BLOCK_Y": range(10**6)})


def test_cells_of_every_size_and_set_and_one_of_the_library() -> None:
    from tilewright.gpu.runtime.cublas import CUBLAS

    sizes, values = [(8, 8, 8), (16, 16, 16)], {"BLOCK_X": [8, 16]}
    settings = Settings([COALESCED, SHARED], [CUBLAS], sizes, [], [1], params=values, device="cuda")
    found = [(cell.shape[0], cell.kernel.name, cell.params) for cell in cells(settings)]
    of = [
        ("cuda/coalesced", {"BLOCK_X": 8}),
        ("cuda/coalesced", {"BLOCK_X": 16}),
        ("cuda/shared_tile", {}),
        ("ref/cublas", {}),
    ]
    assert found == [(n, *one) for n in (8, 16) for one in of]
    labels = [cell.label for cell in cells(settings)]
    assert labels[:2] == ["cuda/coalesced 8 float32 BLOCK_X=8", "cuda/coalesced 8 float32 BLOCK_X=16"]
    assert len({cell.series for cell in cells(settings)}) == 4, "a set is predicted from itself alone"


def test_kernels_on_the_cpu_too() -> None:
    settings, _ = session._settings(
        BenchRequest(["strassen", "ikj"], sizes="8", against="none", threads="1", params=["leaf=4,8"])
    )
    assert [(c.kernel.name, c.params) for c in cells(settings)] == [
        ("cpu/strassen", {"leaf": 4}), ("cpu/strassen", {"leaf": 8}), ("cpu/ikj", {}),
    ]  # fmt: skip
    assert [c.record("ok").params for c in cells(settings)][:2] == [{"leaf": 4}, {"leaf": 8}]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"params": ["BM=8,16"]}, "param 'BM': none of the chosen kernels has it"),
        ({"params": ["TILE=7,9"]}, "TILE must be one of 8, 16, 32, got 7"),
        ({"device": "cpu", "kernels": ["ikj"], "tuned": True}, "tuned: only kernels on a GPU are tuned"),
    ],
)
def test_refused_before_the_gpu_is_opened(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        session._settings(BenchRequest(**{"device": "cuda", "kernels": ["shared_tile"], "against": "none"} | changes))


# ---- a run on a scripted GPU -----------------------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cuda_bench, "GpuProcess", lambda asked: GpuProcess(asked, Script.serve))

    def call(resume: bool = False, **changes: Any) -> tuple[list[BenchRecord], str]:
        asked = BenchRequest(
            **{"device": "cuda", "kernels": ["shared_tile"], "sizes": "8,64", "against": "none"} | changes
        )
        said: list[str] = []
        done = session.run_bench(asked, json_file=tmp_path / "x.jsonl", resume=resume, say=said.append)
        return done.records, "\n".join(said)

    return call


def tiles(records: list[BenchRecord]) -> list[tuple[int, int]]:
    return [(r.n, r.params["TILE"]) for r in records]


@pytest.mark.slow
def test_a_record_for_each_and_resume_tells_them_apart(run, tmp_path) -> None:
    assert tiles(run(params=["TILE=8,16"])[0]) == [(8, 8), (8, 16), (64, 8), (64, 16)]
    before = (tmp_path / "x.jsonl").read_bytes()
    records, _ = run(resume=True, params=["TILE=8,16,32"])
    assert sorted(tiles(records)) == [(8, 8), (8, 16), (8, 32), (64, 8), (64, 16), (64, 32)]
    assert (tmp_path / "x.jsonl").read_bytes().startswith(before)
    assert tiles(read_records(tmp_path / "x.jsonl"))[4:] == [(8, 32), (64, 32)], "only the new value was measured"


@pytest.mark.slow
def test_what_is_left_out_is_said(run) -> None:
    records, said = run(kernels=["register_rows"], params=["TILE=8,16", "ROWS=8,16"])
    assert {(r.params["TILE"], r.params["ROWS"]) for r in records} == {(8, 8), (16, 8), (16, 16)}
    assert "cuda/register_rows: 1 of 4 combinations left out: it does not allow them" in said
    assert "left out" not in run(params=["TILE=8,16"])[1]


@pytest.mark.slow
def test_tuned_takes_what_was_kept_and_the_defaults_elsewhere(run) -> None:
    (best,), _ = run(sizes="64", params=["TILE=8"])
    assert cache_best(best) is not None
    records, said = run(tuned=True, sizes="8,60,64")
    assert tiles(records) == [(8, 32), (60, 8), (64, 8)]
    assert "tuned: cached for cuda/shared_tile" in said
    assert tiles(run(sizes="64")[0]) == [(64, 32)], "not where nobody asks"


@pytest.mark.slow
def test_tuned_where_nothing_is_kept(run) -> None:
    records, said = run(tuned=True)
    assert tiles(records) == [(8, 32), (64, 32)]
    assert "tuned: nothing is cached; tilewright tune KERNEL finds the best" in said


@pytest.mark.slow
def test_a_parameter_goes_before_what_was_kept(run) -> None:
    (best,), _ = run(sizes="64", params=["TILE=8"])
    cache_best(best)
    assert tiles(run(tuned=True, sizes="64", params=["TILE=16,32"])[0]) == [(64, 16), (64, 32)]
    assert with_cached(ROWS, {"TILE": 32, "ROWS": 32}, {"ROWS": 4}) == {"TILE": 32, "ROWS": 4}
    assert with_cached(ROWS, {"TILE": 32, "ROWS": 32}, {"TILE": 8}) == {"TILE": 8}, "both together it does not allow"
    assert with_cached(ROWS, None, {"TILE": 8}) == {"TILE": 8}


# ---- the table -------------------------------------------------------------------------------------------------------


def shown(records: list[BenchRecord], width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    show_bench(console, records)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_line_a_set_with_the_values_that_vary(run) -> None:
    records, _ = run(kernels=["register_rows", "shared_tile"], params=["ROWS=4,8"])
    lines = shown(records)
    rows = [line for line in lines if line.startswith("cuda/")]
    assert [line.split()[:2] for line in rows[:2]] == [
        ["cuda/shared_tile", rows[0].split()[1]],
        ["cuda/register_rows", "ROWS=4"],
    ]
    assert rows[2].startswith("cuda/register_rows ROWS=8 ")
    assert not any("TILE" in line for line in lines), "what does not vary is not said"
    assert all(len(line.split()) == 4 for line in rows[1:])
    assert any(re.search(r"Best: cuda/\S+( ROWS=\d)? at \d+ reaches", line) for line in lines)


def test_all_numbers_of_a_sweep_are_shown() -> None:
    records = [measured("cpu/strassen", n, params={"leaf": leaf}) for n in (256, 512) for leaf in (32, 64, 128)]
    rows = [line for line in shown(records) if line.startswith("cpu/")]
    assert [row.split()[1] for row in rows] == ["leaf=32", "leaf=64", "leaf=128"]
    assert all(len(line) <= 80 for line in shown(records))


def test_one_set_a_size_is_no_sweep_but_is_said() -> None:
    records = [measured("cpu/strassen", n, params={"leaf": leaf}) for n, leaf in ((256, 32), (512, 64), (1024, 64))]
    assert varied(records) == {}
    lines = shown(records)
    assert len([line for line in lines if line.startswith("cpu/strassen ")]) == 1
    assert "cpu/strassen: leaf=32 at 256; leaf=64 at 512, 1024" in lines
    assert varied([*records, measured("cpu/strassen", 256, params={"leaf": 64})]) == {"cpu/strassen": ("leaf",)}


def test_the_same_set_measured_twice_is_no_sweep() -> None:
    assert varied([measured("cpu/strassen", 256, params={"leaf": 32})] * 2) == {}
