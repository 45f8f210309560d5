"""``explain --measure``: what a GPU counts beside what was predicted; a script plays ``ncu``, and a stand-in the GPU.

The tests marked ``gpu`` ask a real one, and hold every counter to the prediction.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support import measured_rungs
from support.scripted_ncu import RESULTS, play
from tilewright.errors import LaunchError, UnavailableError, UsageError
from tilewright.gpu.runtime.device import open_device
from tilewright.gpu.runtime.nvrtc import compile_kernel
from tilewright.kernels.catalog import cuda_catalog, load_cuda_file
from tilewright.kernels.cuda_kernel import CudaKernel
from tilewright.lab.explain import cuda as explain_cuda
from tilewright.lab.explain import measure
from tilewright.lab.explain.checked_launch import operands
from tilewright.lab.explain.cuda import explain
from tilewright.records.explanation import Explanation
from tilewright.simulator.assembly.disassembly import disassemble, find_tool, parse_sass

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

LADDER = list(cuda_catalog().values())
KERNEL = cuda_catalog()["cuda/coalesced"]
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"


@functools.cache
def predicted(kernel: CudaKernel, gpu: str = "H200") -> Explanation:
    return explain(kernel, 64, 64, 64, gpu=gpu)


def stand_in(
    monkeypatch: pytest.MonkeyPatch, folder: Path, c: np.ndarray, printed: str = "", of: CudaKernel = KERNEL
) -> None:
    """A GPU that leaves ``c`` and counted 40,960 sectors, and each instruction as often as it has bytes before it."""
    if find_tool() is None:
        pytest.skip("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
    entry = (compiled := compile_kernel(of, arch="sm_90")).entry(of.entry)
    np.savez(folder / "left.npz", **{"0.2": c})
    raw = f'"ID","Kernel Name","Block Size","Grid Size","{SECTORS}"\n'
    raw += f'"0","{printed or entry}","(32, 32, 1)","(2, 2, 1)","40,960"\n'
    play(monkeypatch, folder, RESULTS.format(folder / "left.npz"), raw)
    code = parse_sass(disassemble(compiled.cubin))[entry]
    title = f"Kernel Name,{printed or entry},\nAddress,Source,Instructions Executed,L2 Theoretical Sectors Global\n"
    rows = [f'{i.offset:#x},"{i.opcode}",{i.offset},{i.offset}\n' for i in code]
    (folder / "source").write_text(title + "".join(rows))
    monkeypatch.setattr(measure, "open_device", lambda: SimpleNamespace(name="NVIDIA H200"))


def product(seed: int) -> np.ndarray:
    a, b, _ = operands(KERNEL, 64, 64, 64, seed)
    return (a.astype(np.float64) @ b).astype(np.float32)


@pytest.mark.slow
def test_what_a_gpu_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, tmp_path, product(seed=3))
    found = measure.measured(KERNEL, predicted(KERNEL), seed=3)
    assert json.loads(json.dumps(found)) == found, "plain JSON values"
    assert found["counters"] == {SECTORS: 40960}
    assert found["verified"]["ok"]
    assert 0 < found["verified"]["error_over_bound"] < 1
    load = next(access.line for access in predicted(KERNEL).accesses if access.kind == "ld")
    assert set(found["by_line"][str(load)]) == {"sectors", "executed"}
    assert set(found["environment"]) == {"gpu", "driver", "ncu", "compiler", "arch", "command"}
    assert found["environment"]["arch"] == "sm_90"
    assert dataclasses.replace(predicted(KERNEL), measured=found).as_dict()["measured"] == found


@pytest.mark.slow
def test_a_wrong_product_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, tmp_path, product(seed=3))
    found = measure.measured(KERNEL, predicted(KERNEL), seed=4)["verified"]
    assert not found["ok"]
    assert "is off by" in found["reason"]
    stand_in(monkeypatch, tmp_path, np.full((64, 64), np.nan, np.float32))
    found = measure.measured(KERNEL, predicted(KERNEL), seed=4)["verified"]
    assert found["error_over_bound"] is None
    assert "never written" in found["reason"]


@pytest.mark.slow
def test_another_kernel_was_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, tmp_path, product(seed=3), printed="other")
    with pytest.raises(LaunchError, match="was launched, but ncu"):
        measure.measured(KERNEL, predicted(KERNEL), seed=3)


@pytest.mark.slow
def test_a_kernel_with_a_name_of_cpp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without ``extern "C"`` the binary has a mangled name, and ncu prints the one of C++, with its types."""
    path = tmp_path / "plain.cu"
    path.write_text(KERNEL.source.replace('extern "C" ', "").replace(KERNEL.entry, "plainName"))
    plain = load_cuda_file(path)
    assert compile_kernel(plain, arch="sm_90").entry("plainName").startswith("_Z9plainName")
    printed = "plainName(const float *, const float *, float *, int, int, int)"
    stand_in(monkeypatch, tmp_path, product(seed=3), printed, plain)
    found = measure.measured(plain, explain(plain, 64, 64, 64), seed=3)
    assert found["counters"] == {SECTORS: 40960}
    assert found["verified"]["ok"]
    assert found["by_line"]
    for wrong in ("plainNames(const float *)", "otherName(const float *)", "plainName"):
        stand_in(monkeypatch, tmp_path, product(seed=3), wrong, plain)
        with pytest.raises(LaunchError, match="was launched, but ncu"):
            measure.measured(plain, explain(plain, 64, 64, 64), seed=3)


@pytest.mark.parametrize(
    ("here", "asked", "kind", "words"),
    [
        ("NVIDIA H200", "H100", UsageError, "counts on this machine's NVIDIA H200: give --gpu H200"),
        ("NVIDIA GeForce RTX 2080 Ti", "H200", UsageError, "2080 Ti: give --gpu 'RTX 2080 Ti'"),
        ("NVIDIA GH200 480GB", "H200", UnavailableError, "of that card nothing is known here"),
    ],
)
def test_another_card(
    monkeypatch: pytest.MonkeyPatch, here: str, asked: str, kind: type[Exception], words: str
) -> None:
    monkeypatch.setattr(measure, "open_device", lambda: SimpleNamespace(name=here))
    monkeypatch.setattr(measure, "find_ncu", lambda: Path("ncu"))
    with pytest.raises(kind, match=words):
        measure.check_gpu(asked)
    for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H100-SXM5-80GB"):
        monkeypatch.setattr(measure, "open_device", lambda name=name: SimpleNamespace(name=name))
        measure.check_gpu("h100")


def test_no_gpu_or_no_ncu_is_said_before_anything_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(what: str) -> Any:
        def refuse(*_: Any) -> None:
            raise UnavailableError(what)

        return refuse

    monkeypatch.setattr(explain_cuda, "explain_launch", lambda *_, **__: pytest.fail("it was run"))
    request = explain_cuda.ExplainRequest(["cuda/coalesced"], measure=True)
    monkeypatch.setattr(measure, "open_device", absent("GPU 0 cannot be used"))
    with pytest.raises(UnavailableError, match="GPU 0 cannot be used"):
        explain_cuda.run_explanations(request)
    monkeypatch.setattr(measure, "open_device", lambda: SimpleNamespace(name="NVIDIA H200"))
    monkeypatch.setattr(measure, "find_ncu", absent("ncu: not found"))
    with pytest.raises(UnavailableError, match="ncu: not found"):
        explain_cuda.run_explanations(request)


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def card() -> str:
    """This machine's card, where it has one that can be profiled."""
    try:
        measure.find_ncu()
        name = open_device().name
    except UnavailableError as error:
        pytest.skip(str(error))
    return name.removeprefix("NVIDIA ")


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", measured_rungs.rungs(), ids=lambda kernel: kernel.name)
def test_predicted_is_counted(kernel: CudaKernel, card: str) -> None:
    """One block of the smallest tile: with several the hardware counts more wavefronts, another number each time.

    Tensor cores and their copies are counted under other names.
    """
    params = measured_rungs.smallest(kernel)
    found = explain(kernel, *measured_rungs.shapes(kernel, params)[-1], gpu=card, params=params)
    seen = measure.measured(kernel, found, seed=1)
    assert seen["verified"]["ok"], seen["verified"]["reason"]
    for name in (*measured_rungs.GLOBAL, *measured_rungs.WAVEFRONTS):
        assert found.counters.get(name, 0) == seen["counters"].get(name, 0), name
    lines: Counter[tuple[str, str]] = Counter()
    for access in found.accesses:
        lines[f"{access.file}:{access.line}" if access.file else str(access.line), access.unit] += access.cost
    copied = {str(access.line) for access in found.accesses if access.kind == "cp.async"}  # counted under other names
    counted = {(line, unit): n for line, by in seen["by_line"].items() for unit, n in by.items() if unit != "executed"}
    lines, counted = ({key: n for key, n in each.items() if key[0] not in copied} for each in (lines, counted))
    assert {key: n for key, n in lines.items() if n} == counted
