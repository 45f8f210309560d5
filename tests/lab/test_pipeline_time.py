"""The predicted time of pipelined kernels: beside an H200's clock, and its parts."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import statistics
from pathlib import Path

import pytest
from typer.testing import CliRunner

from support.asynchronous_kernels import KERNELS, LARGE, MEDIUM
from tilewright.kernels.catalog import load_cuda_file
from tilewright.lab.cli import app
from tilewright.lab.explain.cuda import EXPONENT, LeastWork, PipelineWork, explain, predicted_time, time_bounds
from tilewright.records import report
from tilewright.records.explanation import Access, Explanation, from_dict
from tilewright.simulator.gpus import find_gpu

ROOT = Path(__file__).parents[2]
H200 = find_gpu("H200")
RATES = H200.rates
assert RATES is not None


def rows(name: str) -> list[dict]:
    _, *found = map(json.loads, (ROOT / "benchmarks" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines())
    return found


@functools.cache
def counted() -> dict[tuple[str, str], PipelineWork]:
    """The work of each asynchronous kernel, by name and size."""
    found = {}
    for row in rows("pipeline-work"):
        launch = row.pop("kernel"), row.pop("size")
        found[launch] = PipelineWork(**row)
    return found


@functools.cache
def measured() -> dict[tuple[str, str], float]:
    found = rows("pipeline-rates-h200")
    return {(row["kernel"], row["size"]): row["seconds"] for row in found if row["kind"] == "kernel"}


def seconds(work: PipelineWork) -> float:
    return sum(part.seconds for part in predicted_time(work, H200))


# ---- the rates of the card -------------------------------------------------------------------------------------------


def test_the_rates_are_those_of_the_record() -> None:
    """Each is measured by a kernel that does little else, and not fitted to the kernels that are predicted."""
    found = rows("pipeline-rates-h200")

    def row(kind: str, **wanted: object) -> dict:
        return next(r for r in found if r["kind"] == kind and all(r[key] == value for key, value in wanted.items()))

    def empty(blocks: int) -> float:
        return row("launch", blocks=blocks, threads=128, shared_bytes=0)["seconds"]

    def latency(place: str) -> float:
        return row("latency", bytes=16384, **{"from": place})["cycles"] / H200.clock_mhz / 1e6

    rings = [r for r in found if r["kind"] == "ring"]
    multiplying = [r for r in rings if r["MULTIPLY"] and not r["LOADS"]]
    loading = [r for r in rings if r["LOADS"] and not r["MULTIPLY"]]
    alone = next(r for r in multiplying if (r["GROUPS"], r["PENDING"], r["blocks"]) == (1, 0, 132))
    both = [r["ghz"] for r in rings if r["LOADS"] and r["MULTIPLY"]]
    in_l2 = 16 << 20
    copy = row("copy", bytes=in_l2)["seconds"]
    reading = in_l2 / (RATES.l2_first_gbs * 1e9)
    derived = {
        "launch": empty(1),
        "block_interval": (empty(65536) - empty(8192)) / ((65536 - 8192) / H200.sms),
        "block_start": statistics.median(r["fill_cycles"] / r["ghz"] for r in multiplying) * 1e-9,
        "l2_latency": latency("L2"),
        "memory_latency": latency("HBM") - latency("L2"),
        "hand_over": (alone["step_cycles"] - 4 * 64) / alone["ghz"] * 1e-9,  # four wgmmas with N = 128
        "l2_first_gbs": max(r["tb_per_s"] for r in loading if not r["across"]) * 1e3,
        "l2_gbs": max(r["tb_per_s"] for r in loading) * 1e3,
        "l2_write_gbs": in_l2 / (copy - RATES.launch - RATES.block_start - RATES.l2_latency - reading) / 1e9,
        "memory_gbs": row("copy", bytes=1 << 30)["tb_per_s"] * 1e3,
        "tensor_clock_mhz": statistics.median(both) * 1e3,
    }
    assert dataclasses.asdict(RATES) == pytest.approx(
        {**derived, "l2_bytes": 50_000_000, "instruction_cycles": 4}, rel=0.05
    )


def test_what_the_copy_engine_writes_takes_no_turns() -> None:
    """A step of the ring reads 384 wavefronts by ``wgmma`` and brings 32 KiB, 256 wavefronts: it takes less than both."""
    rings = [r for r in rows("pipeline-rates-h200") if r["kind"] == "ring"]
    steps = [r["step_cycles"] for r in rings if r["LOADS"] and r["MULTIPLY"] and r["GROUPS"] == 2]
    assert 512 < min(steps) < 0.9 * (384 + 256)


# ---- beside the clock ------------------------------------------------------------------------------------------------

#: Launches whose prediction is further off than 20 %, with the reason.
OFF = {
    (
        "product s8",
        LARGE,
    ): "does the same work as product e4m3, to the byte, in 5 % less time: integers take less power, so "
    "that the clock falls less than the one that is assumed for all types",
}


def test_every_kernel_is_there_at_two_sizes() -> None:
    assert set(counted()) == {(name, size) for name in KERNELS for size in (MEDIUM, LARGE)}
    assert len(counted()) == 30


@pytest.mark.parametrize("launch", [(name, size) for name in KERNELS for size in (MEDIUM, LARGE)], ids=" ".join)
def test_the_predicted_time_is_within_20_percent_of_the_measured(launch: tuple[str, str]) -> None:
    off = seconds(counted()[launch]) / measured()[launch] - 1
    assert (abs(off) <= 0.2) != (launch in OFF), f"{off:+.1%}"


def test_why_integers_are_off() -> None:
    for size in (MEDIUM, LARGE):
        assert dataclasses.replace(counted()["product s8", size]) == counted()["product e4m3", size]
    assert measured()["product s8", LARGE] < 0.96 * measured()["product e4m3", LARGE]


def test_what_limits_the_steady_state() -> None:
    def limit(name: str, size: str) -> str:
        return predicted_time(counted()[name, size], H200)[2].because.split(":")[0]

    assert limit("bulk copy", LARGE) == "bound by device memory"
    assert limit("swizzled copy 0", LARGE) == "bound by L1 and shared memory", "32 rows of a column are in one bank"
    assert limit("swizzled copy 32", LARGE) == "bound by latency", "a block copies one KiB"
    assert limit("ring", LARGE) == "bound by latency", "16 KiB are under way on a multiprocessor"
    assert limit("product tf32", LARGE) == "bound by tensor cores"
    assert limit("store epilogue", LARGE) == "bound by L2 cache", "a tile of 64 × 128 reads more for each product"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bulk copy", "swizzled copy 32", "stmatrix"])
def test_the_work_is_what_the_microscope_counts(name: str) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")
    spec = importlib.util.spec_from_file_location("count_pipelines", ROOT / "benchmarks" / "count_pipelines.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    fresh, kept = script.counted(name, MEDIUM), dataclasses.asdict(counted()[name, MEDIUM])
    for key in ("registers", "instructions"):  # those that depend on the compiler's version
        assert fresh.pop(key) == pytest.approx(kept.pop(key), rel=0.2)
    assert fresh == {"kernel": name, "size": MEDIUM, **kept}


# ---- the parts -------------------------------------------------------------------------------------------------------


def ring(**changed: float) -> PipelineWork:
    """One block on each multiprocessor, with a ring of 64 KiB."""
    work = PipelineWork(
        blocks=132, threads=384, registers=168, shared_bytes=131136, groups=0, rounds=11, phases=32, under_way=98304,
        copied=1 << 20, loaded=0, written=65536, turns=0, tensor_cycles=0, instructions=0, busiest=1, read_bytes=1 << 20,
        operand_bytes=1 << 20,
    )  # fmt: skip
    return dataclasses.replace(work, **changed)


def parts(work: PipelineWork) -> dict[str, float]:
    return {part.name: part.seconds for part in predicted_time(work, H200)}


def test_the_parts_of_a_ring() -> None:
    found = parts(ring(copied=0))
    assert list(found) == ["launch", "fill", "steady state", "epilogue"]
    assert found["launch"] == RATES.launch
    assert found["fill"] == pytest.approx(RATES.block_start + RATES.l2_latency)
    assert found["steady state"] == pytest.approx(10 * (RATES.l2_latency + RATES.hand_over), rel=1e-3), (
        "after the first"
    )
    assert found["epilogue"] == pytest.approx(RATES.l2_latency + 132 * 65536 / (RATES.l2_write_gbs * 1e9))


def test_generations_of_large_blocks_fill_and_drain_one_after_the_other() -> None:
    one, two = parts(ring()), parts(ring(blocks=133))
    assert two["fill"] == pytest.approx(2 * one["fill"])
    assert two["epilogue"] == pytest.approx(2 * one["epilogue"])
    # Of small blocks a multiprocessor holds several: they fill while others work.
    small = parts(ring(blocks=132 * 32, shared_bytes=1024, threads=128, registers=32))
    assert small["fill"] == pytest.approx(one["fill"])


def test_operands_that_do_not_fit_come_from_device_memory() -> None:
    fits, just = parts(ring(operand_bytes=RATES.l2_bytes)), parts(ring(operand_bytes=RATES.l2_bytes + 1))
    assert just["fill"] - fits["fill"] == pytest.approx(RATES.memory_latency)
    assert just["steady state"] > fits["steady state"] + 9 * RATES.memory_latency
    large = parts(ring(operand_bytes=10**9))["steady state"]
    assert large == pytest.approx(10**9 / (RATES.memory_gbs * 1e9), rel=0.01)


def test_two_units_that_take_the_same_time_hinder_each_other() -> None:
    cycles = 100_000
    alone = parts(ring(rounds=1, copied=0, turns=cycles))["steady state"]
    assert alone == pytest.approx(cycles / (H200.clock_mhz or 0) / 1e6, rel=1e-3)
    both = parts(ring(rounds=1, copied=0, turns=cycles, instructions=4 * cycles, threads=1024, registers=32))[
        "steady state"
    ]
    assert both == pytest.approx(2 ** (1 / EXPONENT) * alone, rel=0.02)


def test_a_single_group_waits_between_its_products() -> None:
    work = {"rounds": 1, "copied": 0, "tensor_cycles": 4 * 512 * 32}
    one, two = (parts(ring(**work, groups=groups))["steady state"] for groups in (1, 2))
    products = 512 * 32 / RATES.tensor_clock_mhz / 1e6
    assert two == pytest.approx(products, rel=1e-3), "one multiplies while the other waits"
    assert one == pytest.approx(products + 32 * RATES.hand_over, rel=1e-3)


def test_the_busiest_block_counts() -> None:
    even, uneven = parts(ring(turns=1e5)), parts(ring(turns=1e5, busiest=2))
    assert uneven["steady state"] == pytest.approx(2 * even["steady state"], rel=0.1)


def test_nothing_is_predicted_where_rates_are_not_known_or_a_block_does_not_fit() -> None:
    assert predicted_time(ring(), find_gpu("A100")) == []
    assert predicted_time(ring(shared_bytes=1 << 20), H200) == []


# ---- bounds ----------------------------------------------------------------------------------------------------------


def test_bounds_of_tensor_cores_and_of_the_l2_cache() -> None:
    copies = [
        Access(1, "global", "tma load", 0, 10, 3200, sectors=100),
        Access(2, "global", "st", 4, 1, 128, sectors=4),
    ]
    found = {b.name: b for b in time_bounds(H200, None, LeastWork(1, 1), 132, copies, tensor_cycles=4 * 132 * 1980)}
    assert found["tensor cores"].seconds == pytest.approx(1e-6)
    assert found["L2 cache"].amount == 3200, "plain stores may stay in L1"
    assert found["L2 cache"].rate == RATES.l2_gbs * 1e9
    unmeasured = time_bounds(find_gpu("A100"), None, LeastWork(1, 1), 132, copies, tensor_cycles=1)
    assert "L2 cache" not in {bound.name for bound in unmeasured}


# ---- an explanation --------------------------------------------------------------------------------------------------

#: A product whose rows of B come by bulk copies, in a ring of two stages; at sizes whose rows they cannot take, without.
SOURCE = """/*
idea = "Rows of B come by bulk copies, eight at a time, while those before are used."
block = [32]
grid = ["cdiv(n, 32)", "m"]
*/
typedef unsigned long long u64;
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
extern "C" __global__ void bulk_rows(const float* a, const float* b, float* c, int m, int n, int k)
{
    __shared__ alignas(128) float rows[2][8][32];
    __shared__ u64 full[2];
    const int left = blockIdx.x * 32, row = blockIdx.y;
    if (n % 32 || k % 8) {
        float sum = 0;
        if (left + threadIdx.x < n) {
            for (int p = 0; p < k; p++)
                sum += a[row * k + p] * b[p * n + left + threadIdx.x];
            c[row * n + left + threadIdx.x] = sum;
        }
        return;
    }
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(&full[i])) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    float sum = 0;
    for (int step = -1; step < k / 8; step++) {
        const int next = step + 1;
        if (next < k / 8 && threadIdx.x == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" ::"r"(at(&full[next % 2])) : "memory");
            for (int i = 0; i < 8; i++)
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];"
                    ::"r"(at(rows[next % 2][i])), "l"(b + (next * 8 + i) * n + left), "r"(at(&full[next % 2])) : "memory");
        }
        if (step >= 0) {
            int done = 0;
            while (!done)
                asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
                    : "=r"(done) : "r"(at(&full[step % 2])), "r"(step / 2 % 2) : "memory");
            for (int i = 0; i < 8; i++)
                sum += a[row * k + step * 8 + i] * rows[step % 2][i][threadIdx.x];
        }
        __syncwarp();
    }
    c[row * n + left + threadIdx.x] = sum;
}
"""


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Explanation]:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")
    path = tmp_path_factory.mktemp("pipeline") / "bulk_rows.cu"
    path.write_text(SOURCE, encoding="utf-8")
    return path, explain(load_cuda_file(path), 32, 64, 64)


@pytest.mark.slow
def test_an_explanation_has_the_parts(explained: tuple[Path, Explanation]) -> None:
    _, found = explained
    assert found.verified["ok"]
    assert not found.defects
    assert [part.name for part in found.predicted] == ["launch", "fill", "steady state", "epilogue"]
    assert found.predicted_seconds == pytest.approx(sum(part.seconds for part in found.predicted))
    assert "L2 cache" in [bound.name for bound in found.bounds]
    assert found.predicted[2].because.startswith("bound by dependent instructions"), "a warp alone"
    assert from_dict(found.as_dict(), "here") == found
    earlier = {key: value for key, value in found.as_dict().items() if key != "predicted"}
    assert from_dict(earlier, "here").predicted == [], "records of earlier versions have none"


@pytest.mark.slow
def test_page_and_terminal_show_the_parts(explained: tuple[Path, Explanation]) -> None:
    path, found = explained
    page = report.render_explanation([found])
    shown = CliRunner().invoke(app, ["explain", str(path), "--size", "32x64x64"], env={"COLUMNS": "80"}).stdout
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "Predicted: " in shown
    assert "Predicted time: " in page
    for part in found.predicted:
        assert part.name in page
        assert part.name in shown
    stopped = dataclasses.replace(found, run={**found.run, "complete": False})
    assert stopped.predicted_seconds is None
    assert "Predicted time: " not in report.render_explanation([stopped])


@pytest.mark.slow
def test_a_kernel_without_asynchronous_copies_has_no_predicted_time() -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")
    assert explain(load_cuda_file(ROOT / "examples" / "third_try.cu"), 32, 32, 32).predicted == []
