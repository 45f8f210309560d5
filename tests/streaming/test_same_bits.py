"""The bits of C: whatever was measured, however much memory is free, on however many threads and GPUs, killed or not."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from support.interrupted import interrupted_after
from support.simulated_streams import SimulatedDevice, matrix_at, simulated
from tilewright.cpu.choice import choose_adding_cpu
from tilewright.cpu.runtime.runner import runner
from tilewright.large.streaming.options import Options
from tilewright.large.streaming.places import gpu as gpu_module
from tilewright.large.streaming.places import places
from tilewright.large.streaming.places.rates import kc_of
from tilewright.large.streaming.plan import stream
from tilewright.large.streaming.plan.cost import Rates
from tilewright.large.streaming.plan.cuts import Room, cuts
from tilewright.large.streaming.plan.grid import Grid, longest_step
from tilewright.large.streaming.plan.kernel import dtype_in_blocks
from tilewright.product.operands import DTYPES as ALL_DTYPES
from tilewright.product.problem import Problem

#: Each by factors of 1000: what multiplies, what is read, what is written.
RATES = [
    Rates(flops, read, out, latency_s=latency, copy_s=copy)
    for flops in (1e9, 1e12)
    for read in (1e7, 1e10)
    for out, latency, copy in ((1e7, 5e-4, 0.0), (1e10, 1e-2, 1e-9))
]
DTYPES = ("float32", "float64")


def operands(m: int, n: int, k: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([m, n, k])
    return rng.uniform(-1, 1, (m, k)).astype(dtype), rng.uniform(-1, 1, (k, n)).astype(dtype)


# ---- the cut of k ----------------------------------------------------------------------------------------------------


def parts(k: int, kc: int) -> list[int]:
    """Where the engine's parts of k end (``kernels/cpu/13_packed.py``)."""
    deep = max(1, math.ceil(k / kc))
    return [(p + 1) * (k // deep) + min(p + 1, k % deep) for p in range(deep)]


@pytest.mark.slow
@settings(max_examples=200)
@given(st.integers(1, 5000), st.integers(1, 700), st.integers(1, 6000))
def test_the_engine_cuts_every_step_as_it_cuts_all_of_k(k: int, kc: int, most: int) -> None:
    grid = Grid(1, 1, k, 1, 1, longest_step(k, most, kc) if kc > 1 else min(k, most), kc)
    steps = [grid.depth(p) for p in range(grid.steps)]
    lengths = [step.stop - step.start for step in steps]
    assert [step.start for step in steps] == [0, *(step.stop for step in steps[:-1])]
    assert steps[-1].stop == k
    assert max(lengths) <= grid.bk <= max(most, math.ceil(k / len(parts(k, kc))))
    assert grid.depths() == {length: lengths.count(length) for length in lengths}
    ends = [step.start + end for step in steps for end in parts(step.stop - step.start, kc)]
    assert ends == parts(k, kc)


def test_every_adding_kernel_says_how_it_sums() -> None:
    for dtype in {dtype_in_blocks(name, "standard") for name in (*ALL_DTYPES, "bfloat16")}:
        kernel = choose_adding_cpu(dtype).kernel
        assert kernel is not None
        assert kc_of(kernel, dtype) > 1


# ---- on the CPU ------------------------------------------------------------------------------------------------------


@pytest.fixture
def grids(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Grid]]:
    """The cuts that were multiplied in."""
    seen: set[Grid] = set()
    plan_stream = stream.plan_stream

    def noted(*asked: Any) -> Any:
        plan = plan_stream(*asked)
        seen.add(plan.grid)
        return plan

    monkeypatch.setattr("tilewright.large.streaming.run.job.plan_stream", noted)
    return seen


def on_the_cpu(monkeypatch: pytest.MonkeyPatch, m: int, n: int, k: int, dtype: str) -> set[bytes]:
    """The bits of one product under many rates and limits, on one thread and on two."""
    a, b = operands(m, n, k, dtype)
    found = set()
    for number, rates in enumerate(RATES):
        monkeypatch.setattr(places, "host_rates", lambda *_, rates=rates: rates)
        with tw.use_threads(1 + number % 2):
            found.add(tw.multiply(a, b, device="cpu", memory=(None, "8MiB", "12MiB")[number % 3]).tobytes())
    return found


@pytest.mark.slow_cases("(600, 700, 1701)")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(600, 700, 1701), (70, 900, 2600), (520, 3, 5000), (1, 300, 3333)], ids=str)
def test_nothing_that_is_measured_changes_a_bit(
    monkeypatch: pytest.MonkeyPatch, grids: set[Grid], shape: tuple[int, int, int], dtype: str
) -> None:
    """And they are the bits of one call of the engine."""
    a, b = operands(*shape, dtype)
    whole = np.empty(shape[:2], dtype)
    runner(choose_adding_cpu(dtype).kernel, dtype, threads=2)(a, b, whole)
    assert on_the_cpu(monkeypatch, *shape, dtype) == {whole.tobytes()}
    assert len({grid.bk for grid in grids}) > 1 or min(shape) == 1, "these rates lead to different steps"


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sign_of_a_zero_does_not_depend_on_the_height_of_a_tile(dtype: str) -> None:
    """A sum that underflows is −0, also in a last tile that is lower than any of the engine's."""
    tiny = float(np.finfo(dtype).tiny)
    a, b = np.full((60, 40), -tiny, dtype), np.full((40, 64), tiny, dtype)
    whole, low = np.empty((60, 64), dtype), np.empty((1, 64), dtype)
    run = runner(choose_adding_cpu(dtype).kernel, dtype)
    run(a, b, whole)
    run(a[:1], b, low)
    assert whole[:1].tobytes() == low.tobytes()
    assert np.signbit(whole).all()


@pytest.mark.slow
def test_steps_that_cut_the_engines_parts_would(monkeypatch: pytest.MonkeyPatch, grids: set[Grid]) -> None:
    monkeypatch.setattr(places, "kc_of", lambda *_: 1)
    assert len(on_the_cpu(monkeypatch, 600, 700, 1701, "float32")) > 1
    assert len({grid.bk for grid in grids}) > 1


def test_a_product_that_is_taken_up_under_other_rates_has_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, array in zip("ab", operands(1200, 1200, 1701, "float32"), strict=True):
        np.save(f"{name}.npy", array)
    asked: dict[str, Any] = {"device": "cpu", "memory": "10MiB"}
    monkeypatch.setattr(places, "host_rates", lambda *_: RATES[0])
    tw.multiply("a.npy", "b.npy", "whole.npy", device="cpu")
    tiles = math.prod(tw.plan_multiply("a.npy", "b.npy", "c.npy", **asked).grid.tiles)
    with interrupted_after(2), pytest.raises(KeyboardInterrupt):
        tw.multiply("a.npy", "b.npy", "c.npy", **asked)
    for rates in RATES[1 : tiles - 2]:  # each computes a tile, and one is left
        monkeypatch.setattr(places, "host_rates", lambda *_, rates=rates: rates)
        with tw.use_threads(1), interrupted_after(1), pytest.raises(KeyboardInterrupt):
            tw.multiply("a.npy", "b.npy", "c.npy", resume=True, **asked)
    tw.multiply("a.npy", "b.npy", "c.npy", resume=True, **asked)
    assert Path("c.npy").read_bytes() == Path("whole.npy").read_bytes()


# ---- on GPUs ---------------------------------------------------------------------------------------------------------


class Gpu(SimulatedDevice):
    """Sums as the kernels do: a step in the order of k from zero, then added to C."""

    free = 1 << 30

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed=seed)

    def memory_bytes(self) -> tuple[int, int]:
        return self.free, self.free

    def prepared(self, _device: Any, _kernel: Any, dtype: str, *shape: int, add: bool, **_params: Any) -> Any:
        m, n, k = shape

        def product(a: int, b: int, c: int, stream: Any) -> None:
            x, y, z = (matrix_at(at, *size, dtype) for at, size in ((a, (m, k)), (b, (k, n)), (c, (m, n))))

            def work() -> None:
                total = np.zeros((m, n), dtype)
                for p in range(k):
                    total += x[:, p : p + 1] * y[p]
                z[...] = z + total if add else total

            stream.ask(work)

        return product


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Gpu, ...]]:
    several = tuple(Gpu(seed) for seed in range(2))
    with simulated(monkeypatch):
        monkeypatch.setattr(gpu_module, "prepare_gpu_product", several[0].prepared)
        yield several
    for each in several:
        each.abandon()
        each.end()


def on_gpus(monkeypatch: pytest.MonkeyPatch, gpus: tuple[Gpu, ...], a: Any, b: Any) -> set[bytes]:
    """The bits of one product under many rates, with more or less memory free, on one GPU and on two."""
    found = set()
    for number, rates in enumerate(RATES):
        count = 1 + number // 2 % 2
        monkeypatch.setattr(places, "_gpus", lambda _, count=count: gpus[:count])
        monkeypatch.setattr(Gpu, "free", (3 << 20) << number)
        monkeypatch.setattr(places.Placement, "rates", lambda *_, rates=rates: dataclasses.replace(rates, wave_s=1e-5))
        found.add(tw.multiply(a, b, device_memory="3MB", memory=None if number % 2 else "40MB").tobytes())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_that_is_measured_of_gpus_changes_a_bit(
    monkeypatch: pytest.MonkeyPatch, gpus: tuple[Gpu, ...], grids: set[Grid], dtype: str
) -> None:
    a, b = operands(40, 50, 9000, dtype)
    assert len(on_gpus(monkeypatch, gpus, a, b)) == 1
    assert len({grid.bk for grid in grids}) == 1
    assert next(iter(grids)).steps > 2


@pytest.mark.slow
def test_steps_of_gpus_that_follow_measured_rates_would(
    monkeypatch: pytest.MonkeyPatch, gpus: tuple[Gpu, ...], grids: set[Grid]
) -> None:
    monkeypatch.setattr(places, "typical_step", lambda *_: 0)
    assert len(on_gpus(monkeypatch, gpus, *operands(40, 50, 9000, "float32"))) > 1
    assert len({grid.bk for grid in grids}) > 1


@pytest.mark.slow
def test_the_step_on_gpus_depends_on_what_was_asked_alone() -> None:
    for limit in (None, 64 << 20, 2 << 30):
        step = stream.typical_step(Problem(30000, 20000, 10000, "float32"), grain=256, limit=limit)
        for place in (80 << 20, 1 << 30, 100 << 30):
            for grid in cuts(30000, 20000, 10000, Room(place, grain=256, step=step)):
                assert grid.bk == step
                assert all(size % 256 == 0 or size == length for size, length in ((grid.bm, 30000), (grid.bn, 20000)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tiles_on_gpus_are_whole_ones_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch, gpus: tuple[Gpu, ...], dtype: str
) -> None:
    monkeypatch.setattr(places, "_gpus", lambda _: gpus)
    sources = [places.ArraySource(x) for x in operands(300, 300, 300, dtype)]
    placed = places.place_product(sources, np.dtype(dtype), Options(), 1)
    choice = placed.choice
    assert all(placed.room.grain % side(**choice.params) == 0 for side in choice.kernel.tile)
