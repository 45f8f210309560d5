"""The rungs whose operands are tensor maps: right in every tile and edge, benched and explained like the others; and planted
defects are found."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from support.simulated_gpu import SimulatedGpu
from tilewright.errors import UsageError
from tilewright.gpu.planning.choice import choose_gpu
from tilewright.gpu.runtime.launch import mapped_arguments
from tilewright.gpu.runtime.nvrtc import compile_kernel
from tilewright.kernels.catalog import cuda_catalog, load_cuda_file
from tilewright.kernels.cuda_kernel import CudaKernel
from tilewright.lab.bench import device
from tilewright.lab.bench import device as protocol
from tilewright.lab.bench.cells import Cell, Settings
from tilewright.lab.bench.device import DeviceBench, MeasuredCell
from tilewright.lab.explain import checked_launch, stored_launches
from tilewright.lab.explain.checked_launch import operands, verified
from tilewright.lab.explain.cuda import explain
from tilewright.lab.explain.stored_launches import StoredLaunch
from tilewright.simulator.gpus import GpuModel

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: What is found and computed does not depend on the binary.
pytestmark = pytest.mark.usefixtures("without_disassembly")

RUNGS = [kernel for kernel in cuda_catalog().values() if kernel.boxes]


class _Gauge:
    """Instruments that read nothing."""

    def __init__(self, bus: str) -> None: ...

    def facts(self) -> dict[str, object]:
        return {}

    def read(self) -> dict[str, object]:
        return {"clock_mhz": 0, "memory_clock_mhz": 0, "power_w": 0, "temperature_c": 0, "throttled": []}


def benched(monkeypatch: pytest.MonkeyPatch, kernel: CudaKernel, shape: tuple[int, int, int]) -> MeasuredCell:
    monkeypatch.setattr(protocol, "Gauge", _Gauge)
    monkeypatch.setattr(protocol, "LEAST_SAMPLES", 1)
    monkeypatch.setattr(protocol, "CHEAP_S", 0)
    monkeypatch.setattr(device, "LEAST_GUARD", 1024)
    settings = Settings([kernel], [], [shape], [], [1], device="cuda", repeat=1)
    gpu = SimulatedGpu()
    gpu.sms = 4
    bench = DeviceBench(gpu, settings)  # type: ignore[arg-type]
    return bench.measure(Cell(kernel, shape, "bfloat16", 1, {}, "cuda", kernel.precision))


def on_sms(monkeypatch: pytest.MonkeyPatch, sms: int) -> None:
    """Let ``explain`` explain for a GPU of so many multiprocessors."""
    card: GpuModel = dataclasses.replace(checked_launch.find_gpu("H200"), sms=sms)
    monkeypatch.setattr(checked_launch, "find_gpu", lambda name: card)


def planted(tmp_path: Path, kernel: CudaKernel, right: str, wrong: str) -> CudaKernel:
    """The kernel with a line changed, as a user's own file; only the first place is changed."""
    assert right in kernel.source
    path = tmp_path / kernel.path.name
    path.write_text(kernel.source.replace(right, wrong, 1))
    return load_cuda_file(path)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", RUNGS, ids=lambda kernel: kernel.name)
def test_every_block_of_a_small_gpu_takes_several_tiles(kernel: CudaKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """On four multiprocessors a persistent kernel has several tiles for a block, and k goes around the ring."""
    on_sms(monkeypatch, 4)
    found = explain(kernel, 264, 264, 328, whole=True)
    assert found.verified["ok"], found.verified["reason"]
    assert found.defects == []
    assert not kernel.persistent or found.launch["blocks"] == 4


@pytest.mark.slow_cases("cuda/multicast", "cuda/persistent", "cuda/copied_boxes", "cuda/stored_boxes")
@pytest.mark.parametrize("kernel", RUNGS, ids=lambda kernel: kernel.name)
def test_other_parameters_are_right_too(kernel: CudaKernel) -> None:
    """Each at its smallest value, or where that is the default its greatest."""
    params = {p.name: p.values[-1 if p.values[0] == p.default else 0] for p in kernel.parameters}
    found = explain(kernel, 72, 136, 136, params=kernel.checked(params), whole=True)
    assert found.verified["ok"], found.verified["reason"]
    assert found.defects == []


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [RUNGS[0], RUNGS[-1]], ids=lambda kernel: kernel.name)
def test_a_rung_is_benched_with_tensor_maps(kernel: CudaKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = benched(monkeypatch, kernel, (72, 136, 80))
    assert measured.outcome.verdict == "ok", measured.outcome.reason
    assert measured.about["threads"] == kernel.launch(1, 1, 1).threads


@pytest.mark.parametrize(("shape", "which"), [((8, 8, 9), "A"), ((8, 9, 8), "B"), ((8, 8, 0), "A")])
def test_rows_that_no_tensor_map_takes_are_refused(
    shape: tuple[int, int, int], which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=f"takes {which} as a tensor map, whose rows must be multiples of 16 bytes"):
        explain(RUNGS[0], *shape)
    outcome = benched(monkeypatch, RUNGS[0], shape).outcome
    assert (outcome.verdict, f"takes {which} as a tensor map" in outcome.reason) == ("unsupported", True)


def test_another_signature_is_refused(tmp_path: Path) -> None:
    kernel = planted(tmp_path, RUNGS[0], "const __grid_constant__ TensorMap b, unsigned short* c", "unsigned short* c")
    kernel.path.write_text(kernel.source)
    broken = planted(tmp_path, kernel, "load_tile(s.b + i * SLAB, b,", "load_tile(s.b + i * SLAB, a,")
    with pytest.raises(UsageError, match=r"must take \(const __grid_constant__ TensorMap a, const __grid_const"):
        explain(broken, 8, 8, 8)


def test_matmul_does_not_take_them() -> None:
    assert not choose_gpu("bfloat16", 4096, 4096, 4096, capability="9.0").kernel.boxes


DEFECTS = [
    ("first_wgmma", "        publish_shared();", "        ", "missing fence"),
    ("copied_boxes", "barrier_wait(s.full, step % 2)", "barrier_wait(s.full, step % 2 ^ 1)", "wrong parity"),
    ("large_wgmma", "s.a + i * 64 * 128", "s.a + i * 32 * 128", "wrong"),
    ("producer", "        barrier_arrive(s.empty[stage]);\n", "", "endless wait"),
    ("two_consumers", "wgmma_wait<1>();", "wgmma_wait<2>();", "race"),
    ("persistent", "        if (threadIdx.x % 128 == 0) barrier_arrive(s.empty[before]);\n", "", "endless wait"),
    ("multicast", "barrier_init(s.empty[i], 2 * CLUSTER)", "barrier_init(s.empty[i], 2)", "endless wait"),
    ("stored_boxes", "                publish_shared();", "                ", "missing fence"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "right", "wrong", "kind"), DEFECTS, ids=[defect[0] for defect in DEFECTS])
def test_a_planted_defect_is_found(
    name: str, right: str, wrong: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_sms(monkeypatch, 2)
    broken = planted(tmp_path, cuda_catalog()[f"cuda/{name}"], right, wrong)
    found = explain(broken, 200, 264, 264, whole=True)
    kinds = {defect.kind for defect in found.defects} | ({"wrong"} if found.verified["ok"] is False else set())
    assert kind in kinds, (kinds, [d.text for d in found.defects])


@pytest.mark.slow
def test_a_stored_launch_has_its_tensor_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``explain --measure`` launches it in another process."""
    kernel, shape = RUNGS[-1], (72, 136, 80)
    params, launch, compiled = kernel.params, kernel.launch_on(2, *shape), compile_kernel(kernel)
    arrays = operands(kernel, *shape, seed=1)
    maps = {i: each.operand for i, each in enumerate(mapped_arguments(kernel, shape, "bfloat16", params, arrays))}
    stored = StoredLaunch(
        compiled.entry(kernel.entry), launch.grid, launch.block, (*arrays, *shape), launch.shared_bytes, maps
    )
    stored_launches.save_launches(tmp_path / "one.npz", compiled, [stored])
    _, (loaded,) = stored_launches.load_launches(tmp_path / "one.npz")
    assert loaded.maps == maps
    monkeypatch.setattr(stored_launches, "open_device", lambda ordinal: SimulatedGpu())
    ((_, _, c, *_),) = stored_launches.make_launches(compiled, [loaded])
    assert c is not None
    assert verified(kernel, *arrays[:2], c).ok
