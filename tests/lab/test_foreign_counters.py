"""``foreign_counters.py``: launches of public kernels as data; what is equal, marked and different; a script plays ncu."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import foreign_counters
from foreign_counters import COUNTERS, LEAST, PUBLISHED, Row, cases, predicted, summary, table
from support.scripted_ncu import RESULTS, play
from tilewright.lab.explain import stored_launches
from tilewright.simulator.assembly.disassembly import find_tool

ARCH = "sm_90a"
LOADS, STORES = (f"l1tex__t_sectors_pipe_lsu_mem_global_op_{kind}.sum" for kind in ("ld", "st"))
SOURCE = """
__constant__ float factor[1];
template <int N> __global__ void scale(const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = factor[0] * x[i * N];
}
"""
ARGUMENTS = "--arg x:float32:128:arange --arg y:float32:64:zeros --constant factor:float32:1:ones"
LAUNCH = f"p/k.cu::scale<2> --grid 2 --block 32 {ARGUMENTS}"


def test_the_table_of_launches() -> None:
    listed = list(cases(foreign_counters.LAUNCHES.read_text()))
    assert len({(case.project, case.path, case.kernel) for case in listed}) == len(listed) >= 2 * LEAST
    for case in listed:
        assert case.project in PUBLISHED
        assert case.kernel
        assert case.options.grid
        assert case.options.block
        assert case.options.args


def row(counted: dict[str, float] | None, marked: tuple[str, ...] = (), results: float | None = 0.0) -> Row:
    return Row("p", "a/p", "k.cu", "", "k", "", {LOADS: 8, STORES: 4}, list(marked), counted, results)


def test_equal_marked_and_different() -> None:
    assert row({LOADS: 8, STORES: 4}).verdicts() == {LOADS: "equal", STORES: "equal"}
    assert row({LOADS: 9}, (STORES,)).verdicts() == {LOADS: "different", STORES: "marked"}
    one_more = COUNTERS[0]
    assert row({LOADS: 8, STORES: 4, one_more: 1}).verdicts()[one_more] == "different", "predicted as 0, and is not"
    assert row({LOADS: 8, STORES: 4}, (LOADS,)).verdicts()[LOADS] == "equal"


@pytest.mark.parametrize(
    ("rows", "right"),
    [
        ([row({LOADS: 8, STORES: 4})] * LEAST, True),
        ([row({LOADS: 8, STORES: 4})] * (LEAST - 1) + [row(None)], False),  # too few were counted
        ([row({LOADS: 8, STORES: 4})] * LEAST + [row({LOADS: 8, STORES: 5})], False),
        ([row({LOADS: 8, STORES: 4})] * LEAST + [row({LOADS: 8, STORES: 5}, (STORES,))], True),
        ([row({LOADS: 8, STORES: 5}, (STORES,))] * LEAST, False),  # all are marked, but half are not equal
        ([row({LOADS: 8, STORES: 4})] * LEAST + [row({LOADS: 8, STORES: 4}, results=0.1)], False),
        ([row({LOADS: 8, STORES: 4})] * LEAST + [row({LOADS: 8, STORES: 4}, results=None)], False),
    ],
)
def test_what_is_enough(rows: list[Row], right: bool) -> None:
    assert summary(rows)[1] is right


@pytest.fixture
def project(tmp_path: Path) -> Path:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")
    if find_tool() is None:
        pytest.skip("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "k.cu").write_text(SOURCE)
    return tmp_path


def asked(folder: Path, launch: str = LAUNCH) -> Row:
    return predicted(next(cases(launch)), [folder], ARCH, folder / "0.npz")


@pytest.mark.slow
def test_what_the_microscope_counts(project: Path) -> None:
    found = asked(project)
    assert (found.refused, found.marked, found.findings) == ("", [], [])
    assert (found.predicted[LOADS], found.predicted[STORES]) == (16, 8)
    compiled, (launch,) = stored_launches.load_launches(project / "0.npz")
    assert (launch.entry, launch.grid, launch.constants["factor"].tolist()) == ("_Z5scaleILi2EEvPKfPf", (2, 1, 1), [1])
    assert compiled.arch == ARCH
    assert "none of the folders" in asked(project, "p/absent.cu::k --grid 1").refused
    assert "UsageError: " in asked(project, LAUNCH.replace("scale<2>", "scale<n>")).refused
    assert "UsageError" in asked(project, LAUNCH.replace("factor", "other")).refused


@pytest.mark.slow
def test_a_launch_that_fails_is_refused(tmp_path: Path) -> None:
    """It is not counted, so the launches after it are."""
    (tmp_path / "0.npz").write_text("text")
    refused = foreign_counters.tried(row(None), tmp_path / "0.npz")
    assert "on the GPU: error: " in refused.refused
    assert "is no file of launches" in refused.refused
    assert table([refused]).startswith("refused")


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [None, STORES, "results"])
def test_a_gpu_in_a_script(project: Path, monkeypatch: pytest.MonkeyPatch, wrong: str | None) -> None:
    found = asked(project)
    counts = dict.fromkeys(COUNTERS, 0) | found.predicted
    if wrong == STORES:
        counts[STORES] += 1
    title = ",".join(f'"{name}"' for name in ("ID", "Kernel Name", "Block Size", "Grid Size", *counts))
    values = ",".join(f'"{count:,}"' for count in counts.values())
    raw = f'{title}\n"0","void scale<(int)2>(const float *, float *)","(32, 1, 1)","(2, 1, 1)",{values}\n'
    x, y = np.arange(128, dtype=np.float32), np.arange(0, 128, 2, dtype=np.float32)
    np.savez(project / "left.npz", **{"0.0": x, "0.1": y * (2 if wrong == "results" else 1)})
    play(monkeypatch, project, RESULTS.format(project / "left.npz"), raw)
    foreign_counters.count([found], [project / "0.npz"], project)
    assert found.counted == {name: count for name, count in counts.items() if count}
    assert found.results == (0.0 if wrong != "results" else pytest.approx(np.max(y) / np.sqrt(np.mean(y**2)), rel=0.01))
    assert ("different" in table([found])) is (wrong == STORES)
    assert str(project / "0.npz") in (project / "options").read_text()
    assert summary([found] * LEAST)[1] is (wrong is None)
    foreign_counters.write(project / "out.jsonl", [found], {"gpu": "none"})
    head, line = map(json.loads, (project / "out.jsonl").read_text().splitlines())
    assert head["counters"] == list(COUNTERS)
    assert line["counted"][LOADS] == line["predicted"][LOADS] == 16
