"""The engine's GPU kernels by name in the laboratory: ``find``, ``bench``, ``tune`` and ``explain``, on a simulated GPU."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.command_line import is_one_line
from support.simulated_gpu import SimulatedGpu
from tilewright.errors import UsageError
from tilewright.gpu.runtime.engine_product import plain_launch
from tilewright.gpu.runtime.launch import Mapped
from tilewright.kernels.catalog import catalog, cuda_catalog, cuda_engine, find, tunable
from tilewright.kernels.cuda_kernel import CudaKernel
from tilewright.lab.bench import device
from tilewright.lab.bench.cells import Settings, cells
from tilewright.lab.bench.device import DeviceBench
from tilewright.lab.explain import stored_launches
from tilewright.lab.explain.cuda import explain
from tilewright.lab.inputs.formats import FORMATS
from tilewright.lab.tune.cuda import combinations

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Those whose first dtype the bench multiplies, and that have no least size that takes the microscope long.
MEASURED = [k for k in cuda_engine().values() if k.dtypes[0] in FORMATS and k.name != "cuda/simt_rows"]
SHAPE = (16, 24, 32)


def named(kernel: CudaKernel) -> str:
    return kernel.name


def test_they_are_found_by_name_and_are_no_rungs() -> None:
    assert find(["hopper", "cuda/dmma"], device="cuda") == [cuda_engine()["cuda/hopper"], cuda_engine()["cuda/dmma"]]
    assert find([], device="cuda") == list(cuda_catalog().values())
    assert "cuda/hopper" in tunable()
    with pytest.raises(UsageError, match="did you mean cuda/hopper"):
        find(["hoper"], device="cuda")
    with pytest.raises(UsageError, match="runs on device cuda, not on device cpu"):
        find(["cuda/hopper"])


def test_no_kernel_of_the_engine_has_the_name_of_another() -> None:
    others = {name.partition("/")[2] for name in (*catalog(), *cuda_catalog())}
    assert not others & {name.partition("/")[2] for name in cuda_engine()}


@pytest.mark.further
@pytest.mark.parametrize("kernel", MEASURED, ids=named)
def test_each_is_measured_and_verified(monkeypatch: pytest.MonkeyPatch, kernel: CudaKernel) -> None:
    monkeypatch.setattr(device, "LEAST_GUARD", 1024)
    gpu = SimulatedGpu()
    asked = Settings([kernel], [], [SHAPE], [], [1], repeat=1, device="cuda")
    (cell,) = cells(asked)
    measured = DeviceBench(gpu, asked).measure(cell, repeat=1)
    assert measured.outcome.verdict == "ok", measured.outcome.reason
    assert 0 < measured.outcome.error_over_bound <= 1
    assert measured.about["registers"] > 0


@pytest.mark.further
@pytest.mark.parametrize("kernel", MEASURED, ids=named)
def test_each_is_explained(kernel: CudaKernel) -> None:
    found = explain(kernel, *SHAPE)
    assert found.verified["ok"], found.verified["reason"]
    assert found.defects == []
    assert found.run["complete"]
    assert bool(found.pipeline) == (kernel.capability == "9.0a"), "those for Hopper have a ring of stages"


@pytest.mark.slow
def test_the_command_explains_one(cli: Any) -> None:
    answer = cli("explain", "dmma", "--size", "16")
    assert "cuda/dmma" in answer.out
    assert "result    right: every element" in answer.out


@pytest.mark.parametrize(("words", "says"), [
    (("simt_complex", "--size", "16"), "dtype 'complex64'"),
    (("hopper", "--size", "20"), "rows must be multiples of 16 bytes: those of A have 40 bytes"),
    (("tiny", "--size", "100"), "it is for min(m <= 64"),
    (("hopper", "--size", "16x16x0"), "the engine launches no kernel"),
    (("dmma", "--size", "16", "-D", "X=1"), "takes no macros"),
], ids=str)  # fmt: skip
def test_what_cannot_be_explained_is_refused(cli: Any, words: Any, says: str) -> None:
    assert is_one_line(cli("explain", *words), says)


def test_the_search_begins_with_the_sets_between_which_matmul_chooses() -> None:
    kernel = cuda_engine()["cuda/simt"]
    first = list(itertools.islice(combinations(kernel, (512, 512, 512)), 1 + len(kernel.presets)))
    assert first == [kernel.params, *(kernel.params | preset.params for preset in kernel.presets)]


def test_a_launch_for_the_profilers_process_keeps_its_structure(tmp_path: Path) -> None:
    kernel = cuda_engine()["cuda/hopper"]
    plain = plain_launch(kernel, (64, 64, 64), "bfloat16", {}, arch="sm_90a", sms=132)
    arrays = [np.zeros((64, 64), np.uint16) for _ in range(3)]
    given = plain.arguments(arrays)
    maps = {i: each.operand for i, each in enumerate(given) if isinstance(each, Mapped)}
    args = tuple(each.memory if isinstance(each, Mapped) else each for each in given)
    launch = stored_launches.StoredLaunch(plain.entry, plain.launch.grid, plain.launch.block, args, 0, maps)
    stored_launches.save_launches(tmp_path / "one.npz", plain.compiled, [launch])
    _, (read,) = stored_launches.load_launches(tmp_path / "one.npz")
    assert read.args[-1] == args[-1]
    assert isinstance(args[-1], bytes)
    assert dict(read.maps) == maps
    assert plain.places[plain.result][0] == 2
