"""Why results are as far off as they are: orders of addition that give the kernels' bits, and a rule for their errors."""

from __future__ import annotations

import dataclasses
import doctest
import importlib.util
import itertools
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("altair", reason="the report's lab extra is not installed")

from tilewright.cpu.runtime.runner import runner
from tilewright.errors import RecordError
from tilewright.gpu.runtime.nvrtc import compile_kernel
from tilewright.kernels.catalog import catalog, cuda_catalog
from tilewright.lab.bench.cells import Settings, cells
from tilewright.lab.bench.cpu import Bench
from tilewright.lab.explain.checked_launch import operands as cuda_operands
from tilewright.lab.inputs.formats import FORMATS
from tilewright.lab.verify.verify import ErrorSample, Oracle
from tilewright.records.bench import BenchRecord, from_line, read_records, to_line
from tilewright.simulator import RunOptions, simulate

ROOT = Path(__file__).parents[2]
U = {"float32": 2.0**-24, "float64": 2.0**-53}
IN_ONE_SUM = ["naive", "transposed", "ikj", "ikj_threads", "blocked", "aligned", "unrolled"]
RUNGS = [k for k in cuda_catalog().values() if "float32" in k.dtypes and k.precision == "standard"]


@pytest.fixture(scope="module")
def orders() -> ModuleType:
    spec = importlib.util.spec_from_file_location("summation", ROOT / "docs" / "summation.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["summation"] = module  # where doctest looks for it
    spec.loader.exec_module(module)
    return module


def operands(m: int, n: int, k: int, dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return rng.uniform(-1, 1, (m, k)).astype(dtype), rng.uniform(-1, 1, (k, n)).astype(dtype)


def product(name: str, a: np.ndarray, b: np.ndarray, **params: int) -> np.ndarray:
    c = np.full((a.shape[0], b.shape[1]), np.nan, a.dtype)
    runner(catalog()[f"cpu/{name}"], a.dtype, threads=2, params=params)(a, b, c)
    return c


def error_of(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> float:
    """In units of u."""
    error = Oracle(a, b).rms_error(c)
    if error is None and c.dtype == np.float64:
        pytest.skip("long double is no wider than float64 here: nothing tells float64's errors")
    assert error is not None
    return error / U[c.dtype.name]


def committed(name: str) -> list[BenchRecord]:
    return read_records(ROOT / "benchmarks" / f"{name}.jsonl")


# ---- kernels and orders: the same bits -------------------------------------------------------------------------------


@pytest.mark.slow_cases("blocked")
@pytest.mark.parametrize("name", IN_ONE_SUM)
def test_cpu_rungs_that_are_one_running_sum(orders: ModuleType, name: str) -> None:
    a, b = operands(70, 90, 1000)
    assert np.array_equal(product(name, a, b), orders.running(a, b))


@pytest.mark.slow
def test_the_register_tile_adds_up_blocks(orders: ModuleType) -> None:
    a, b = operands(70, 90, 1000)
    c = product("register_tile", a, b)
    assert np.array_equal(c, orders.blocks(a, b, orders.KC))
    for kc in (orders.KC - 1, orders.KC + 1, 1000):
        assert not np.array_equal(c, orders.blocks(a, b, kc)), "any other length gives other bits"


@pytest.mark.slow_cases(
    "cuda/warp_tile",
    "cuda/vectorised",
    "cuda/async_copy",
    "cuda/thread_tile",
    "cuda/register_rows",
    "cuda/double_buffer",
    "cuda/register_banks",
)
@pytest.mark.parametrize("kernel", RUNGS, ids=lambda kernel: kernel.name)
def test_cuda_rungs_are_one_running_sum(orders: ModuleType, kernel) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")
    m, n, k = 33, 20, 100
    a, b, c = cuda_operands(kernel, m, n, k, seed=3)
    compiled, launch = compile_kernel(kernel), kernel.launch(m, n, k)
    given = [a, b, c, m, n, k]
    entry = compiled.entry(kernel.entry)
    done = simulate(
        compiled.ptx, entry, launch.grid, launch.block, given, RunOptions(shared_bytes=launch.shared_bytes, outputs=[2])
    )
    result = done.arrays[2]
    assert result is not None
    assert np.array_equal(result.reshape(m, n), orders.running(a, b))
    assert not np.array_equal(result.reshape(m, n), orders.blocks(a, b, 16)), "cut sums give other bits"


def test_what_the_gpu_measured_is_an_order_to_every_digit(orders: ModuleType) -> None:
    """On the same operands: the rungs and cuBLAS add up as these do."""
    in_float32 = [r for r in committed("cuda-error-h200") if (r.dtype, r.precision) == ("float32", "standard")]
    gpu = {(r.kernel, r.n): r.rms_error for r in in_float32}
    ours = {(r.kernel, r.k): r.rms_error for r in committed("cpu-error-orders")}
    for n in (256, 512):
        assert gpu["ref/cublas", n] == pytest.approx(ours["sum/dealt", n], rel=1e-9)
    for n in (1024, 2048, 4096):
        assert gpu["ref/cublas", n] == pytest.approx(ours["sum/running", n], rel=1e-9)
    for kernel in RUNGS:
        assert gpu[kernel.name, 4096] == pytest.approx(ours["sum/running", 4096], rel=1e-9)


# ---- the rule --------------------------------------------------------------------------------------------------------


def test_doctests(orders: ModuleType) -> None:
    assert doctest.testmod(orders).failed == 0


def test_the_rule_holds_for_every_order_of_the_record() -> None:
    for r in committed("cpu-error-orders"):
        assert r.rms_error == pytest.approx(r.about["expected"] * U["float32"], rel=0.09), (r.kernel, r.k)


def test_the_record_is_what_the_experiment_gives(orders: ModuleType) -> None:
    known = {(r.kernel, r.k): r for r in committed("cpu-error-orders")}
    for order, params in [("sum/running", {}), ("sum/pairwise", {}), ("sum/dealt", {"parts": 4, "slice": 8})]:
        now = orders.record(order, 256, **params)
        assert now.rms_error == pytest.approx(known[order, 256].rms_error, rel=1e-9)
        assert now.about == pytest.approx(known[order, 256].about)


def test_roundings_are_counted(orders: ModuleType) -> None:
    """By the definition: in how many partial sums each product is, on average."""
    assert orders.roundings("sum/running", 5) == (5 + 4 + 3 + 2 + 1) / 5
    assert orders.roundings("sum/blocks", 5, kc=2) == ((2 + 2) + (1 + 2) + (2 + 2) + (1 + 2) + (1 + 1)) / 5
    assert orders.roundings("sum/lanes", 8, count=2) == (4 + 3 + 2 + 1) / 4 + 1
    assert orders.roundings("sum/leaves", 8, leaf=4, kc=2) == ((2 + 1) + (1 + 1)) / 2 + 1
    assert orders.roundings("sum/running", 384) == orders.roundings("sum/blocks", 384, kc=384)


@pytest.mark.parametrize("kernel", ["cpu/strassen", "cpu/strassen_winograd"])
def test_a_scheme_multiplies(orders: ModuleType, kernel: str) -> None:
    """The products and sums that the growth is computed from are those of a product of quarters."""
    a, b, c = (np.array(part) for part in orders.SCHEMES[kernel])
    right = np.zeros((4, 4, 4), int)
    for i, j, p in np.ndindex(2, 2, 2):
        right[2 * i + p, 2 * p + j, 2 * i + j] = 1
    assert np.array_equal(np.einsum("xa,xb,xc->abc", a, b, c), right)
    c[0, 0] = -1
    assert not np.array_equal(np.einsum("xa,xb,xc->abc", a, b, c), right)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", U)
@pytest.mark.parametrize(("name", "grown"), [("strassen", 4), ("strassen_buffer", 4), ("strassen_winograd", 7)])
def test_a_level_of_a_recursion_costs_what_its_scheme_says(name: str, grown: int, dtype: str) -> None:
    a, b = operands(512, 512, 512, dtype)
    errors = [error_of(a, b, product(name, a, b, leaf=leaf)) for leaf in (256, 128, 64)]
    for above, below in itertools.pairwise(errors):
        squared = 2 * (below / above) ** 2  # a leaf of half the length has half the squared error
        assert grown * 0.9 < squared < grown * 1.25, "the additions round too"


def test_the_order_decides_in_float64_too() -> None:
    a, b = operands(64, 64, 1000, "float64")
    assert error_of(a, b, product("naive", a, b)) == pytest.approx(9.5, rel=0.05)
    assert error_of(a, b, product("register_tile", a, b)) == pytest.approx(5.6, rel=0.05)


# ---- the measure -----------------------------------------------------------------------------------------------------


def test_it_does_not_grow_with_what_is_looked_at() -> None:
    small, large = operands(64, 64, 300), operands(700, 600, 300)
    errors = [error_of(a, b, product("ikj", a, b)) for a, b in (small, large)]
    assert errors[0] == pytest.approx(errors[1], rel=0.06)
    worst = [Oracle(a, b).check(product("ikj", a, b)).max_abs_error for a, b in (small, large)]
    assert worst[1] > 1.2 * worst[0], "as the largest error does"


def test_rounded_operands_stand_out() -> None:
    """A kernel that multiplies bfloat16 in secret is thousands of times above one that does not."""
    a, b = operands(100, 100, 256)
    form = FORMATS["bfloat16"]
    in_secret = form.values(form.stored(a)) @ form.values(form.stored(b))
    assert error_of(a, b, in_secret) > 1000 * error_of(a, b, product("ikj", a, b))


def test_where_there_is_no_number_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = operands(5, 6, 7)
    assert Oracle(a, b * 0).rms_error(np.zeros((5, 6), np.float32)) is None
    assert Oracle(a[:, :0], b[:0]).rms_error(np.zeros((5, 6), np.float32)) is None
    sample = ErrorSample(a.astype(np.float64), b.astype(np.float64))
    sample._wide = np.dtype(np.float64)  # as where long double is double
    assert sample.rms_error(np.ones((5, 6))) is None


@pytest.mark.parametrize("scale", [2.0**-400, 2.0**400])
def test_squares_need_not_be_numbers(scale: float) -> None:
    a, b = operands(9, 8, 50, "float64")
    plain = error_of(a, b, product("ikj", a, b))
    assert error_of(a * scale, b * scale, product("ikj", a * scale, b * scale)) == pytest.approx(plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
def test_a_gpus_is_the_hosts(name: str) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")
    from support.simulated_gpu import SimulatedGpu
    from tilewright.lab.verify.device_verify import DeviceChecks, DeviceOracle

    gpu, form = SimulatedGpu(), FORMATS[name]
    a, b = (form.values(form.stored(x)) for x in operands(70, 66, 40, form.working.name))
    c = form.values(form.stored(a @ b))
    given = [gpu.put(form.stored(x)) for x in (a, b)]
    oracle = DeviceOracle(DeviceChecks(gpu, form), (70, 66, 40), *given, (a, b))  # type: ignore[arg-type]
    error = oracle.rms_error(gpu.put(form.stored(c)))
    assert error == Oracle(a, b).rms_error(c)
    assert error is None or error > 0
    c[:, 5] *= 2  # one of the columns that are looked at
    spoilt = oracle.rms_error(gpu.put(form.stored(c)))
    assert error is None or (spoilt is not None and spoilt > 10 * error)


# ---- records ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_bench_records_it_of_right_results_alone() -> None:
    settings = Settings([catalog()["cpu/ikj"]], [], [(40, 50, 60)], ["float32"], [1], repeat=1)
    (cell,) = cells(settings)
    right = Bench(settings, {}).measure(cell)
    assert right.rms_error == pytest.approx(0.3 * 60**0.5 * U["float32"], rel=0.1)
    spoilt = dataclasses.replace(cell.kernel, function=lambda a, b, c: c.fill(0), compiled=False)
    wrong = Bench(settings, {}).measure(dataclasses.replace(cell, kernel=spoilt))
    assert (wrong.verdict, wrong.rms_error) == ("wrong", None)


def test_old_records_load_and_nonsense_does_not() -> None:
    old = json.loads(to_line(committed("cpu-error")[0]))
    del old["rms_error"]
    assert from_line(json.dumps(old)).rms_error is None
    with pytest.raises(RecordError, match="rms_error must be a finite number or null, not negative"):
        from_line(json.dumps(old | {"rms_error": "small"}))
