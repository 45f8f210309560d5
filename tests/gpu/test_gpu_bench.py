"""The bench on a real GPU: what ``test_device_bench.py`` and its siblings hold on a simulated one, and what hardware alone
can tell. Skipped where there is none.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.errors import UnavailableError
from tilewright.gpu.runtime.cublas import CUBLAS, Cublas
from tilewright.gpu.runtime.device import Device, open_device
from tilewright.kernels.catalog import cuda_catalog, load_cuda_file
from tilewright.lab.bench import session
from tilewright.lab.bench.cells import Settings, cells
from tilewright.lab.bench.cuda import CudaBench
from tilewright.lab.bench.device import DeviceBench, DeviceSets, SetLayout, device_peak_gflops, random_values
from tilewright.lab.inputs.formats import FORMATS
from tilewright.lab.tune import session as tune_session
from tilewright.lab.verify.device_verify import DeviceChecks, DeviceOracle
from tilewright.lab.verify.verify import Oracle
from tilewright.records.bench import read_records

pytestmark = pytest.mark.gpu

SHAPES = [(1, 1, 1), (3, 2, 0), (31, 33, 32), (65, 7, 17), (127, 129, 131), (256, 256, 256), (5, 1000, 700)]

SOURCE = """/*
idea = "For a test."
block = [32, 8]
grid = ["cdiv(n, 32)", "min(cdiv(m, 8), 65535)"]
*/
extern "C" __global__ void {name}(float* a, float* b, float* c, int m, int n, int k)
{{
    const int col = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 8 + threadIdx.y;
    if (row >= m || col >= n) return;
    double sum = 0;
    for (int p = 0; p < k; p++) sum += (double)a[row * k + p] * b[p * n + col];
    {body}
}}
"""
RIGHT = "c[row * n + col] = sum;"


@pytest.fixture(scope="module")
def gpu() -> Device:
    try:
        return open_device()
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def cublas(gpu: Device) -> Any:
    try:
        library = Cublas(gpu)
    except UnavailableError as error:
        pytest.skip(str(error))
    yield library
    library.close()


def kernel(tmp_path: Path, body: str, name: str = "mine") -> Any:
    path = tmp_path / f"{name}.cu"
    path.write_text(SOURCE.format(name=name, body=body))
    return load_cuda_file(path)


def settings(*kernels: Any, **changes: Any) -> Settings:
    asked: dict[str, Any] = {"references": [], "sizes": [(100, 90, 80)], "dtypes": [], "threads": [1], "repeat": 1}
    return Settings(list(kernels), device="cuda", **asked | changes)


# ---- the device


def test_memory_keeps_what_it_is_given(gpu: Device) -> None:
    memory = gpu.put(np.arange(100, dtype=np.int32))
    gpu.fill(memory.part(40, 20), 0xFF)
    gpu.copy(memory.part(0, 8), memory.part(392, 8))
    found = gpu.get(memory, np.int32, 100)
    assert found[:2].tolist() == [98, 99]
    assert found[10:15].tolist() == [-1] * 5
    assert found[15:].tolist() == list(range(15, 100))
    free, total = gpu.memory_bytes()
    assert 0 < free <= total


def test_the_gpu_is_held_for_as_long_as_it_was_asked(gpu: Device) -> None:
    timer, checks = gpu.timer(), DeviceChecks(gpu, FORMATS["float32"])
    timer.start()
    start = time.perf_counter()
    checks.hold(0.02)()
    assert time.perf_counter() - start < 0.01, "launching does not wait"
    assert 0.0195 < timer.stop() < 0.2  # processes that use the GPU at the same time take turns with this one


def test_launching_costs_microseconds(gpu: Device) -> None:
    hold = DeviceChecks(gpu, FORMATS["float32"]).hold(0)
    hold()
    gpu.wait()
    start = time.perf_counter()
    for _ in range(500):
        hold()
    assert (time.perf_counter() - start) / 500 < 50e-6
    gpu.wait()


# ---- verification


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_the_oracle_passes_what_is_right_and_finds_what_is_not(gpu: Device, name: str, shape: Any) -> None:
    form, checks = FORMATS[name], DeviceChecks(gpu, FORMATS[name])
    values = a, b = random_values(shape, form, 1)
    memories = [gpu.put(form.stored(x)) for x in values]
    oracle = DeviceOracle(checks, shape, *memories, values)
    c = form.values(form.stored(a.astype(np.float64) @ b)).copy()
    assert oracle.check(gpu.put(form.stored(c))).ok
    m, n, _ = shape
    for at in {(0, 0), (m - 1, n - 1), (m // 2, n // 3)}:
        for wrong in (np.nan, np.inf, c[at] + 0.1 + 0.1 * abs(c[at])):
            spoilt = c.copy()
            spoilt[at] = wrong
            check = oracle.check(gpu.put(form.stored(spoilt)))
            assert not check.ok
            assert check.reason.startswith(f"C[{at[0]}, {at[1]}] ")


def test_a_large_oracle_agrees_with_the_host(gpu: Device) -> None:
    """Its own constructor compares it with the host's; this one must not be so strict that nothing passes."""
    shape, form = (2049, 2047, 2050), FORMATS["float32"]
    values = a, b = random_values(shape, form, 1)
    oracle = DeviceOracle(DeviceChecks(gpu, form), shape, gpu.put(a), gpu.put(b), values)
    c = a @ b
    check, host = oracle.check(gpu.put(c)), Oracle(a, b).check(c)
    assert check.ok
    assert host.ok
    assert check.max_abs_error >= host.max_abs_error * 0.999, "all elements, not a sample of them"


@pytest.mark.parametrize("name", FORMATS)
def test_guards_and_checksums(gpu: Device, name: str) -> None:
    form, checks = FORMATS[name], DeviceChecks(gpu, FORMATS[name])
    shape = (65, 67, 33)
    sets = DeviceSets(gpu, checks, SetLayout.of(shape, form, 1 << 20), random_values(shape, form, 1))
    assert len(sets) > 10
    assert sets.changed() == ""
    for memory, words in ((sets.a[-1].part(2, 1), "it changed A"), (sets.b[3].part(0, 1), "it changed B")):
        before = gpu.get(memory, np.uint8, 1)
        gpu.copy_to(memory, before ^ 1)
        assert sets.changed() == words
        gpu.copy_to(memory, before)
        assert sets.changed() == ""
    name, start, size = sets.layout.guards[3]
    guard = sets._part(start + size - 1, 1, len(sets) - 1)
    gpu.fill(guard, 0)
    assert sets.changed() == f"it wrote memory {name}, byte {size - 1} of {size} there"


# ---- cuBLAS


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_cublas_multiplies_row_major_matrices(gpu: Device, cublas: Cublas, name: str, shape: Any) -> None:
    form = FORMATS[name]
    values = random_values(shape, form, 1)
    a, b = (gpu.put(form.stored(x)) for x in values)
    c = gpu.allocate(shape[0] * shape[1] * form.itemsize)
    gpu.fill(c, 0xFF)
    cublas.gemm(a, b, c, shape, name)()
    check = DeviceOracle(DeviceChecks(gpu, form), shape, a, b, values).check(c)
    assert check.ok, check.reason


def test_float32_is_float32_unless_asked_otherwise(gpu: Device, cublas: Cublas) -> None:
    shape, form = (512, 512, 512), FORMATS["float32"]
    values = random_values(shape, form, 1)
    a, b = (gpu.put(x) for x in values)
    oracle = DeviceOracle(DeviceChecks(gpu, form), shape, a, b, values)
    errors = {}
    for precision in ("standard", "tf32", "bf16"):
        c = gpu.allocate(512 * 512 * 4)
        gpu.fill(c, 0xFF)
        cublas.gemm(a, b, c, shape, precision=precision)()
        errors[precision] = oracle.check(c).max_abs_error
    assert errors["standard"] < 1e-4 < errors["tf32"] <= errors["bf16"] < 1, "cuBLAS may do better than asked"


def test_the_version_of_cublas(cublas: Cublas) -> None:
    assert int(cublas.version.split(".")[0]) >= 11


# ---- cells


@pytest.mark.parametrize("shape", [s for s in SHAPES if s[0] * s[1]], ids=str)
@pytest.mark.parametrize("rung", cuda_catalog().values(), ids=lambda k: k.name)
def test_every_rung_is_right_on_awkward_shapes(gpu: Device, rung: Any, shape: Any) -> None:
    bench = DeviceBench(gpu, settings(rung, sizes=[shape]))
    measured = bench.measure(cells(bench.settings)[0], with_reference=False, repeat=1)
    assert measured.outcome.verdict in ("ok", "unsupported"), measured.outcome.reason
    refused = "compute capability" in measured.outcome.reason
    m, n, k = shape
    if rung.boxes and (m * n * k == 0 or n % 8 or k % 8):  # rows in tensor maps are whole granules
        refused = "16 bytes" in measured.outcome.reason or "empty" in measured.outcome.reason
        assert refused, measured.outcome.reason
    assert measured.outcome.verdict == "ok" or refused
    bench._drop()


def test_the_kernel_and_cublas_are_timed_side_by_side(gpu: Device, cublas: Cublas) -> None:
    bench = DeviceBench(gpu, settings(cuda_catalog()["cuda/shared_tile"], references=[CUBLAS], sizes=[(1024,) * 3]))
    ours, its = (bench.measure(cell) for cell in cells(bench.settings))
    assert (ours.outcome.verdict, its.outcome.verdict) == ("ok", "ok"), (ours.outcome, its.outcome)
    assert len(ours.outcome.samples_s) == len(ours.outcome.reference_samples_s) >= 7
    assert np.median(ours.outcome.samples_s) > np.median(ours.outcome.reference_samples_s)
    least = np.min(its.outcome.samples_s)  # which other tests on the GPU delay the least
    assert least == pytest.approx(np.min(ours.outcome.reference_samples_s), rel=0.3)
    assert 2 * 1024**3 / least / 1e9 < 1.05 * (bench.peak("float32") or 0)
    assert ours.about["registers"] > 0
    bench._drop()


def test_the_roof_is_that_of_the_card(gpu: Device) -> None:
    single, double = device_peak_gflops(gpu, "float32"), device_peak_gflops(gpu, "float64")
    assert single is not None
    assert double is not None
    assert 1e3 < single < 1e6
    assert 10 < double < 2 * single  # no card has more; other tests take a part of each


def test_the_instruments_answer(gpu: Device) -> None:
    facts = DeviceBench(gpu, settings(cuda_catalog()["cuda/coalesced"])).facts()
    assert facts["driver"], "no NVML: the environment of records has no driver, no clocks, no power"
    assert facts["max_clock_mhz"] > 100


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "C[0, 0] is nan: not written"),
        ("if (row < m - 1 || col < n - 1) c[row * n + col] = sum;", "C[99, 89] is nan: not written"),
        ("c[row * n + col] = sum - a[row * k + k - 1] * b[(k - 1) * n + col];", "is off by"),
        ("c[row * n + col] = 0;", "is off by"),
        (RIGHT + " if (row == 3 && col == 5) a[7] += 1;", "it changed A"),
        (RIGHT + " if (row == 3 && col == 5) b[k * n - 1] = 0;", "it changed B"),
        (RIGHT + " if (row == m - 1) c[m * n + col] = sum;", "it wrote memory behind C, byte 0"),
        (RIGHT + " if (row == 0 && col == 0) a[-1] = 0;", "it wrote memory before A"),
        (RIGHT + " if (row == 0 && col == 0) c[-1] = 0;", "it wrote memory behind B"),
        ("c[row * n + col] = sum + 0 * a[m * k];", "nan: not written, or not a number"),
        ("static int runs; if (row + col == 0) atomicAdd(&runs, 1); "
         "c[row * n + col] = runs > 20 ? 0 : sum;", "is off by"),
    ],
)  # fmt: skip
def test_a_wrong_kernel_gets_no_time_and_harms_nobody(gpu: Device, tmp_path, body: str, words: str) -> None:
    bench = DeviceBench(gpu, settings(kernel(tmp_path, body), kernel(tmp_path, RIGHT, "right")))
    one, after = (bench.measure(cell) for cell in cells(bench.settings))
    assert (one.outcome.verdict, one.outcome.samples_s) == ("wrong", [])
    assert words in one.outcome.reason
    assert after.outcome.verdict == "ok", after.outcome.reason
    bench._drop()


@pytest.mark.parametrize(
    ("body", "verdict", "words"),
    [
        (RIGHT + " c[1ll << 40] = 0;", "wrong", "memory that is not there"),
        (RIGHT + " *(float*)((char*)c + 2) = 0;", "wrong", "no multiple of the access"),
        (RIGHT + " while (*(volatile float*)c == *(volatile float*)c) ;", "time_limit", "had not ended"),
    ],
)
def test_the_bench_goes_on_after_a_kernel_that_is_stopped(
    gpu: Device, tmp_path, body: str, verdict: str, words: str
) -> None:
    asked = settings(kernel(tmp_path, body), kernel(tmp_path, RIGHT, "right"), limit_s=0.5)
    bench = CudaBench(asked, {})
    try:
        one, after = (bench.measure(cell) for cell in cells(asked))
    finally:
        bench.close()
    assert (one.verdict, one.samples_s) == (verdict, [])
    assert words in one.reason
    assert after.verdict == "ok", after.reason


def test_what_does_not_fit(gpu: Device) -> None:
    bench = DeviceBench(gpu, settings(cuda_catalog()["cuda/coalesced"], sizes=[(10**6, 10**6, 8)]))
    assert bench.measure(cells(bench.settings)[0]).outcome.verdict == "out_of_memory"


# ---- the commands


def test_a_run_and_its_resumption(gpu: Device, tmp_path) -> None:
    path = tmp_path / "x.jsonl"
    asked = session.BenchRequest(device="cuda", kernels=["shared_tile", "coalesced"], sizes="256,1000")
    done = session.run_bench(asked, json_file=path)
    assert [r.verdict for r in done.records if r.kernel != "ref/cublas"] == ["ok"] * 4
    assert all(r.peak_fraction is not None and 0 < r.peak_fraction < 1.05 for r in done.records if r.verdict == "ok")
    again = session.run_bench(asked, json_file=path, resume=True)
    assert len(read_records(path)) == len(again.records) == 6
    assert [r.samples_s for r in again.records] == [r.samples_s for r in done.records]


def test_tuning(gpu: Device, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    request = tune_session.TuneRequest("shared_tile", size="1024", budget="20s")
    tuned = tune_session.run_on_gpu(request, json_file=tmp_path / "x.jsonl")
    assert tuned.failed == []
    assert {r.params["TILE"] for r in tuned.finalists} == {8, 16, 32}
    times = [r.median_s for r in tuned.finalists]
    assert times == sorted(times)
