"""Products of float32 in blocks, from float16 parts: each block is split once, and the microscope executes all kernels."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.executing_gpu import ExecutingGpu
from tilewright.errors import CompileError, UsageError
from tilewright.gpu.runtime import compilations
from tilewright.gpu.runtime.compilations import Compilations
from tilewright.gpu.runtime.split_product import allowed_excess, split_bound, split_of_rows, split_step
from tilewright.gpu.runtime.steps import WORKSPACE, A, BufferPlace, load
from tilewright.kernels.catalog import cuda_engine
from tilewright.large import multiply as large
from tilewright.large.cluster.order import ChosenKernel
from tilewright.large.files.array import ArraySink, ArraySource
from tilewright.large.streaming.options import PRECISIONS, Options
from tilewright.large.streaming.places import gpu as gpu_module
from tilewright.large.streaming.places import places
from tilewright.large.streaming.places.gpu import GpuPlace, SplitSteps
from tilewright.large.streaming.places.staging import CachedSources, Chunks
from tilewright.large.streaming.plan.cost import Rates
from tilewright.large.streaming.plan.cuts import Room, least_slots, place_elements
from tilewright.large.streaming.plan.grid import Grid
from tilewright.large.streaming.plan.host_cache import HostCache
from tilewright.large.streaming.plan.kernel import choose_streamed
from tilewright.large.streaming.plan.partition import tiles_of_regions
from tilewright.large.streaming.plan.plan import StreamPlan
from tilewright.large.streaming.plan.schedule import Schedule
from tilewright.large.streaming.plan.stream import plan_again, plan_stream, typical_step
from tilewright.large.streaming.run.executor import execute, execute_on_all
from tilewright.product.plan import Choice
from tilewright.product.precision import ROUNDED, SPLIT
from tilewright.product.problem import Problem

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

KERNEL = cuda_engine()["cuda/split_hopper"]
CHOICE: Choice[Any] = Choice(KERNEL, SPLIT, KERNEL.params, "")
RATES = Rates(1e6, 1e9, 1e9)
U = 2.0**-24
#: Two tiles down, of odd width, and two steps; the second one is too short for tensor cores: all of it is flagged.
GRID = Grid(256, 33, 208, 128, 33, 144)


@pytest.fixture
def gpu() -> Iterator[ExecutingGpu]:
    device = ExecutingGpu()
    yield device
    device.abandon()
    device.end()


def operands(grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(grid.k)
    shapes = (grid.m, grid.k), (grid.k, grid.n)
    return tuple(rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes)  # type: ignore[return-value]


def planned(grid: Grid, slots: tuple[int, int, int] | None = None, count: int = 1) -> StreamPlan:
    room = Room(4 * place_elements(grid, slots or least_slots(grid), planes=2), grain=128, planes=2)
    tiles = [tile for part in tiles_of_regions(*grid.tiles, 1) for tile in part]
    return plan_again(grid, "float32", room, RATES, tiles, most=count)


def product(gpus: list[ExecutingGpu], plan: StreamPlan, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A·B by the places of a plan."""
    c = np.full((len(a), b.shape[1]), np.nan, np.float32)
    sources: Any = {"a": ArraySource(a), "b": ArraySource(b)}
    made = []
    for gpu in gpus:
        given: Any = {"gpu": gpu, "choice": CHOICE, "workers": 2, "chunks": Chunks(1 << 16, 4, 2)}
        cached = CachedSources(plan, HostCache({}, {}), sources)
        made.append(GpuPlace(plan, cached, ArraySink(c, c.shape, c.dtype), **given))
    try:
        if len(made) == 1:
            execute(plan.schedule(), made[0])
        else:
            execute_on_all(plan.grid, plan.slots, made, plan.regions)
    finally:
        for place in made:
            place.close()
    assert not [error for gpu in gpus for error in gpu.errors]
    return c


def worst(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """The largest error in units of 2⁻²⁴·|A||B|."""
    exact, size = (f(a.astype(np.float64)) @ f(b.astype(np.float64)) for f in (np.asarray, np.abs))
    return float((abs(c - exact) / size).max() / U)


@pytest.mark.slow
def test_a_sum_of_two_steps(gpu: ExecutingGpu) -> None:
    grid = Grid(40, 33, 256, 40, 33, 128)
    a, b = operands(grid)
    assert worst(product([gpu], planned(grid), a, b), a, b) < 6
    assert Counter(gpu.launches) == {"split_matrices": 4, "split_hopper": 2, "multiply_flagged": 2}
    assert (gpu.held_bytes, gpu.open) == (0, 0)


@pytest.mark.slow
def test_a_block_is_split_once_each_time_it_is_loaded(gpu: ExecutingGpu) -> None:
    """Those of B serve two tiles. Those of A lie in two slots, one after another."""
    plan = planned(GRID)
    a, b = operands(GRID)
    assert worst(product([gpu], plan, a, b), a, b) < 8
    assert plan.slots == (2, 2, 1)
    assert [load.block.operand for load in plan.schedule().loads].count("b") == 2
    assert Counter(gpu.launches) == {"split_matrices": 4 + 2, "split_hopper": 4, "multiply_flagged": 4}


@pytest.mark.slow
def test_parts_of_another_block_spoil_the_product(gpu: ExecutingGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    split = SplitSteps.__call__

    def never_again(self: SplitSteps, step: Any, *rest: Any) -> None:
        split(self, step._replace(needs=(-1, -1)), *rest)

    monkeypatch.setattr(SplitSteps, "__call__", never_again)
    a, b = operands(GRID)
    assert not worst(product([gpu], planned(GRID), a, b), a, b) < GRID.k


@pytest.mark.slow
def test_flagged_parts_are_added(gpu: ExecutingGpu) -> None:
    """A row with an infinity, one with a NaN, and one whose span is too wide in one step alone."""
    a, b = operands(GRID)
    a[3, 170], a[70, 5] = np.inf, np.nan
    a[128, 65:70] *= np.float32(2.0**-60)
    c = product([gpu], planned(GRID), a, b)
    with np.errstate(all="ignore"):
        exact = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    assert np.isnan(c[70]).all()
    np.testing.assert_array_equal(c[3], exact[3])
    fine = [row for row in range(GRID.m) if row not in (3, 70)]
    assert worst(c[fine], a[fine], b) < 8


@pytest.mark.slow
def test_tiles_and_slots_change_no_bit(gpu: ExecutingGpu) -> None:
    grid = Grid(256, 33, 256, 128, 33, 128)
    a, b = operands(grid)
    a[40:50, 150:170] *= np.float32(2.0**-40)
    first = product([gpu], planned(grid), a, b)
    one_tile = Grid(grid.m, grid.n, grid.k, grid.m, grid.n, grid.bk)
    assert product([gpu], planned(one_tile, (9, 9, 2)), a, b).tobytes() == first.tobytes()


@pytest.mark.slow
def test_two_gpus_compute_the_same_bits(gpu: ExecutingGpu) -> None:
    another = ExecutingGpu(ordinal=1)
    a, b = operands(GRID)
    try:
        plan = planned(GRID, (6, 6, 2), count=2)
        assert len(plan.regions) == 2
        both = product([gpu, another], plan, a, b)
    finally:
        another.abandon()
        another.end()
    assert both.tobytes() == product([gpu], planned(GRID), a, b).tobytes()


# ---- the choice and the plan


def test_what_is_computed_from_parts() -> None:
    def compute(dtype: str, *shape: int, capability: str = "9.0", precision: str = "standard") -> str:
        return choose_streamed(dtype, *shape, capability=capability, sms=132, precision=precision).compute

    assert compute("float32", 4096, 4096, 4096) == SPLIT
    for other in ((4096, 4096, 100), (4096, 100, 4096), (256, 256, 256)):
        assert compute("float32", *other) == "float32"
    assert compute("float32", 4096, 4096, 4096, capability="8.0") == "float32"
    assert compute("float32", 4096, 4096, 4096, precision="ieee") == "float32"
    assert compute("float64", 4096, 4096, 4096) == "float64"
    with pytest.raises(UsageError, match="precision 'tf32'"):
        large.plan_multiply(np.ones((2, 2)), np.ones((2, 2)), precision="tf32")


@pytest.mark.slow
def test_the_plan_has_room_for_the_parts_and_says_what_they_are(
    gpu: ExecutingGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ExecutingGpu, "memory_bytes", lambda _: (1 << 34, 1 << 34), raising=False)
    monkeypatch.setattr(ExecutingGpu, "can_reach", lambda *_: True, raising=False)
    monkeypatch.setattr(places, "_gpus", lambda _: (gpu,))
    monkeypatch.setattr(places.Placement, "rates", lambda *_: Rates(2e14, 5e10, 5e10, 3e10))
    a = np.empty((20000, 20000), np.float32)
    plans = {word: large.plan_multiply(a, a, device_memory="1GiB", precision=word) for word in ("standard", "ieee")}
    plan = plans["standard"]
    counted = dict(zip("abc", plan.slots, strict=True))
    blocks = (counted["a"] * plan.grid.bm + counted["b"] * plan.grid.bn) * plan.grid.bk
    least = 4 * (2 * blocks + counted["c"] * plan.grid.bm * plan.grid.bn)
    assert least <= plan.place_bytes <= min(1 << 30, 1.02 * least)
    for words in ("cuda/split_hopper", "two float16", "28 binades", "20000·2⁻²⁴·|A||B|"):
        assert words in str(plan)
        assert words not in str(plans["ieee"])
    assert plans["ieee"].compute == "float32"
    promised = {
        number: large.plan_multiply(a, a, device_memory="1GiB", precision=number) for number in (1e-2, 1e-3, 1e-6)
    }
    for (number, each), compute in zip(promised.items(), (ROUNDED, SPLIT, "float64"), strict=True):
        assert (each.compute, each.error_bound <= number) == (compute, True)
        assert f"at most {each.error_bound:.2g}·|A||B|: {compute} in {each.grid.steps} sums" in str(each)
    labels = [label for label, _ in plan.rows()]
    assert labels[labels.index("in") :][:4] == ["in", "error", "", "flagged"]
    source = [ArraySource(a)] * 2
    facts = [
        places.place_product(source, np.dtype(np.float32), Options(precision=word), 1).kernel_fact for word in plans
    ]
    assert facts[0] != facts[1]


@pytest.mark.slow
def test_the_bound_of_a_sum_of_steps_is_within_the_classical_one() -> None:
    """Each step is within the classical bound of its own k; their sums take one rounding for each further step."""
    for k in (4096, 65536, 100_000):
        step = typical_step(Problem(20000, 20000, k, "float32"), grain=128, limit=1 << 30, planes=2)
        steps = -(-k // step)
        assert split_bound(step, 2, allowed_excess(step, 2)) + steps - 1 <= k


@pytest.mark.slow
def test_copies_hide_behind_faster_multiplications() -> None:
    """With the rates of an H200 and its host, as they were recorded."""
    rates = Rates(2.1e14, 5.5e10, 5.4e10, 3.5e10, 1e-4, (128, 128, 132), 1e-5, copy_s=8e-13)
    for limit, share in ((132 << 30, 0.06), (11 << 30, 0.06)):
        step = typical_step(Problem(65536, 65536, 65536, "float32"), grain=128, limit=limit, planes=2)
        plan = plan_stream(Problem(65536, 65536, 65536, "float32"), Room(limit, 0, 128, step=step, planes=2), rates)
        assert plan.cost.total_s - plan.cost.compute_s < share * plan.cost.compute_s


def test_splitting_takes_time_from_multiplying() -> None:
    room = Room(16 << 30, grain=128, step=8192, planes=2)
    asked = Problem(32768, 32768, 32768, "float32"), room
    fast, slow = (plan_stream(*asked, Rates(2e14, 5e10, 5e10, 3e10, copy_s=x)) for x in (0.0, 1e-11))
    spent = sum(slow.grid.elements(load.block) for load in Schedule.of(slow.grid, slow.slots, slow.tiles).loads) * 4e-11
    assert slow.cost.compute_s - fast.cost.compute_s > 0.5 * spent


@pytest.mark.slow
def test_the_rates_of_a_kernel_of_parts(gpu: ExecutingGpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Measured with real launches, of small matrices; by a clock of which only the order of sizes is checked."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    for name, value in {"SIDE": 128, "DEPTHS_OF_PARTS": (128, 256), "ROUNDS": 1, "COPY_BYTES": 1 << 16}.items():
        monkeypatch.setattr(gpu_module, name, value)
    monkeypatch.setattr(gpu_module, "_stage_rates", lambda _: [1e9, 2e9])
    found = gpu_module.gpu_rates(gpu, CHOICE, "float32", 2 << 30)  # type: ignore[arg-type]
    assert not gpu.errors
    assert min(found.in_bytes, found.out_bytes, found.split_s) > 0
    assert (found.wave, found.most_stage_bytes) == ((128, 128, 4), 2e9)
    assert Counter(gpu.launches) == {"split_matrices": 2 * 2 + 2 * 2, "split_hopper": 4, "multiply_flagged": 4}
    assert (gpu.held_bytes, gpu.open) == (0, 0)
    assert gpu_module.gpu_rates(gpu, CHOICE, "float32", 2 << 30) == found  # type: ignore[arg-type]  # from the cache
    assert gpu.launches.count("split_hopper") == 4


def test_a_kernel_is_compiled_once_for_all_shapes_that_share_it(
    gpu: ExecutingGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of all shapes begin to compile together; those that need the same code wait for the same compilation."""
    begun: list[str] = []
    may_end = threading.Event()

    def compile_slowly(what: Any, *_: Any) -> Any:
        begun.append(getattr(what, "stem", "split_hopper"))
        assert may_end.wait(30)
        raise CompileError("not now")

    monkeypatch.setattr(compilations, "_compilations", Compilations())
    for name in ("engine_file", "engine_kernel"):
        monkeypatch.setattr(compilations, name, compile_slowly)
    steps = SplitSteps(gpu, CHOICE)  # type: ignore[arg-type]
    steps.compile_ahead([(512, 512, 512), (256, 512, 512), (512, 384, 512)])
    may_end.set()
    with pytest.raises(CompileError, match="not now"):
        load(gpu, [split_step((split_of_rows(512, 512, 512).a, BufferPlace(A), BufferPlace(WORKSPACE)))])  # type: ignore[arg-type]
    # Of A and of B; C = A·B and C += A·B; and one more of A, because the first one failed.
    assert Counter(begun) <= Counter(split_matrices=3, split_hopper=2, multiply_flagged=2)


def test_workers_of_a_cluster_choose_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice travels by the kernel's name, and the precision with the order."""
    session = pytest.importorskip("tilewright.large.cluster.session", reason="pip install 'tilewright[cluster]'")
    sent = ChosenKernel.of(CHOICE).choice()
    assert (sent.kernel, sent.compute) == (KERNEL, SPLIT)
    asked: list[Options] = []
    monkeypatch.setattr(session, "place_product", lambda _a, _dtype, options, *_: asked.append(options))
    for precision in PRECISIONS:
        order: Any = SimpleNamespace(
            options=Options(device_memory="1GiB", precision=precision), neighbours=1, dtype=None
        )
        session._place_product(order, [], 1, None, "cuda:1")
    assert [each.precision for each in asked] == list(PRECISIONS)
    assert {(each.device, each.device_memory) for each in asked} == {("cuda:1", "1GiB")}
