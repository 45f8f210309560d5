"""``memory=`` is kept: by planning and measuring, for any product, on any machine; and little of it suffices."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.cpu.choice import choose_adding_cpu
from tilewright.cpu.engine.cuts import PackedBlocks
from tilewright.cpu.runtime import runner as run_cpu
from tilewright.errors import MemoryLimitError
from tilewright.host.machine import described_machine, machine
from tilewright.kernels.blocking import analytic
from tilewright.large.files.array import ArraySource
from tilewright.large.files.chunked import ChunkedSource
from tilewright.large.streaming.places import places, rates
from tilewright.large.streaming.plan.cost import Rates
from tilewright.large.streaming.plan.cuts import may_be_cut
from tilewright.large.streaming.plan.stream import plan_stream
from tilewright.product.problem import Problem

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "memory_limits.py"
MIB = 1 << 20
MACHINES = {
    path.stem: described_machine(path, machine())
    for path in sorted((Path(__file__).parents[1] / "data" / "machines").glob("*.json"))
}


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("memory_limits", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- what a process takes --------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_process_takes_no_more_than_its_limit_and_what_is_stated() -> None:
    """With this machine's own caches; the script asserts it."""
    limits = tuple(mib * MIB for mib in (1, 8, 64))
    found = script().cases("this", "npy", 3, None, limits)
    assert [case["limit"] for case in found] == list(limits)
    assert found[-1]["rss"] > 8 * MIB, "what was measured is the product"


@pytest.mark.thorough
@pytest.mark.each_value  # of which CI runs these, and .ci/nightly all
@pytest.mark.parametrize("name", ["large L3", "no L3", "small"])
@pytest.mark.parametrize("suffix", ["npy", "raw", "zarr", "h5"])
def test_on_other_machines_and_in_every_format(name: str, suffix: str, tmp_path: Path) -> None:
    for number in (0, 3):
        script().cases(name, suffix, number, None, tuple(mib * MIB for mib in (1, 8, 16, 64)))


def test_a_process_that_takes_more_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = script()
    lines = [{"rss": 1, "anonymous": 1}, {"rss": 81 * MIB, "anonymous": 60 * MIB}]
    done = subprocess.CompletedProcess([], 0, "\n".join(map(json.dumps, lines)), "")
    monkeypatch.setattr(found.subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr(found, "check", lambda *_: None)
    with pytest.raises(AssertionError, match="64 MiB"):
        found.cases("this", "npy", 3, None, (64 * MIB,))
    assert len(found.cases("this", "npy", 3, None, (65 * MIB,))) == 1


UNDER_A_LIMIT = """
import resource, sys
import numpy as np, tilewright as tw
from tilewright.cpu.runtime import peaks
a = np.ones((8, 8), np.float32)
tw.multiply(a, a, device="cpu")
lines = open("/proc/self/status").read().splitlines()
taken = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmSize:"))
resource.setrlimit(resource.RLIMIT_AS, (taken + (300 << 20),) * 2)
peaks._figure, peaks._last_cache = lambda known: 0.0, lambda: 260 << 20
a = np.ones((1000, 1000), np.float32)
assert (tw.multiply(a, a, device="cpu", **eval(sys.argv[1])) == 1000).all()
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="limits of an address space are Linux's")
@pytest.mark.parametrize(
    "options", ["{}", *(pytest.param(f"{{'memory': '{x}'}}", marks=pytest.mark.further) for x in ("16MiB", "4GiB"))]
)
def test_what_a_process_may_address_is_a_limit_too(options: str) -> None:
    """On a machine with 260 MiB of L3: the arrays that would measure its memory do not fit."""
    done = subprocess.run([sys.executable, "-c", UNDER_A_LIMIT, options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ---- measuring -------------------------------------------------------------------------------------------------------


class Counted(ArraySource):
    """Notes the bytes of the largest rectangle that is read."""

    most = 0

    def read(self, rows: slice, columns: slice, out: np.ndarray) -> None:
        self.most = max(self.most, out.nbytes)
        super().read(rows, columns, out)


@pytest.mark.parametrize("grain", [(1, 1), (500, 500), (1, 5000)])
def test_a_probe_reads_no_more_than_there_is_room_for(grain: tuple[int, int]) -> None:
    source = Counted(np.ones((3000, 5000)))
    source.grain = grain
    for room in (0, 8, 100_000, 1 << 30):
        source.most = 0
        assert rates.read_rate(source, "float64", 2, room) > 0
        assert 8 <= source.most <= max(8, room // 2)


def test_a_probe_writes_no_more_than_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    monkeypatch.setattr(rates, "write_through", lambda file, block, *_: written.append(block.nbytes))
    sources = [ArraySource(np.ones((4000, 1))), ArraySource(np.ones((1, 5000)))]
    for room in (0, 100_000, 1 << 30):
        rates.write_rate(tmp_path / "c.npy", sources, "float64", room)
        assert max(written) <= max(1, room)
        written.clear()


# ---- the least -------------------------------------------------------------------------------------------------------


def kernel_of(name: str, dtype: str) -> Any:
    """The choice of this machine's kernel, with the blocks that it would have on another one."""
    chosen = analytic(MACHINES[name])
    blocks, choice = PackedBlocks("tests", chosen, chosen.kc, itemsize=4), choose_adding_cpu(dtype)
    assert choice is not None
    changed = {"workspace": blocks.workspace, "counters": blocks.counters, "blocking": chosen}
    return replace(choice, kernel=replace(choice.kernel, **changed))


sides = st.integers(1, 64) | st.integers(1, 1500) | st.sampled_from([5000])


@settings(max_examples=60, deadline=None)
@given(
    sides,
    sides,
    sides,
    st.sampled_from(["float32", "float64"]),
    st.sampled_from([*MACHINES]),
    st.sampled_from([1, 2, 64]),
)
def test_what_numpy_could_hold_is_never_refused(m: int, n: int, k: int, dtype: str, name: str, threads: int) -> None:
    a, b = np.empty((m, k), dtype), np.empty((k, n), dtype)
    with pytest.MonkeyPatch.context() as patch, tw.use_threads(threads):
        patch.setattr(places, "choose_on_cpu", lambda *_: kernel_of(name, dtype))
        patch.setattr(places, "host_rates", lambda *_: Rates(1e11, 1e10, 1e9))
        plan = tw.plan_multiply(a, b, device="cpu", memory=a.nbytes + b.nbytes + m * n * a.itemsize)
    limit = plan.room.place + plan.room.reserved
    assert limit <= max(places.LEAST_LIMIT, a.nbytes + b.nbytes + m * n * a.itemsize)
    assert plan.place_bytes <= plan.room.for_blocks(plan.grid) < limit


@pytest.mark.parametrize("name", MACHINES)
def test_little_memory_suffices_and_fewer_threads_take_less(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a = np.empty((1000, 1000), np.float32)
    monkeypatch.setattr(places, "choose_on_cpu", lambda *_: kernel_of(name, "float32"))
    monkeypatch.setattr(places, "host_rates", lambda *_: Rates(1e11, 1e10, 1e9))
    for memory in ("16MiB", "8MiB", 1):
        with tw.use_threads(64):
            assert tw.plan_multiply(a, a, device="cpu", memory=memory).place_bytes < 16 * MIB
    few, many = (places.place_product([ArraySource(a)] * 2, a.dtype, tw_options(mib), 64).threads for mib in (8, 4096))
    assert few < many == 64


def tw_options(mib: int) -> Any:
    from tilewright.large.streaming.options import Options

    return Options(memory=mib * MIB, device="cpu")


def test_a_plan_of_many_steps_takes_memory_itself() -> None:
    """16,000³ with tiles that fit 8 MiB has a hundred thousand steps of a kilobyte."""
    zeros = np.broadcast_to(np.float64(0), (16000, 16000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "host_rates", lambda *_: Rates(1e11, 1e10, 1e9))
        patch.setattr("tilewright.large.streaming.run.job.array_for", lambda _: None)
        with pytest.raises(MemoryLimitError, match="cannot be cut small enough for 8 MiB"):
            tw.plan_multiply(zeros, zeros, device="cpu", memory="8MiB")
        steps = tw.plan_multiply(zeros, zeros, device="cpu", memory="64MiB").grid
    assert 1000 * steps.steps * steps.tiles[0] * steps.tiles[1] < 32 * MIB


# ---- what is moved ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grain", [(1, 1), (256, 256)])
@pytest.mark.parametrize("name", ["graviton", "laptop-4-cores", "no-l3", "zen4"])
def test_files_are_not_read_much_more_often_than_a_small_memory_needs(
    name: str, grain: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With squares alone it is 1.7 to 2.4 times the least."""
    monkeypatch.setattr(places, "choose_on_cpu", lambda *_: kernel_of(name, "float64"))
    source = ChunkedSource((4000, 4000), np.dtype("float64"), grain, lambda *_: np.empty(0))
    placed = places.place_product([source] * 2, source.dtype, tw_options(64), 2)
    plan = plan_stream(Problem(4000, 4000, 4000, "float64"), placed.room, Rates(1e11, 5e8, 1e9, latency_s=5e-4))
    assert sum(plan.moved_bytes) <= 1.65 * plan.least_bytes
    assert plan.place_bytes <= placed.room.for_blocks(plan.grid) < 64 * MIB
    assert may_be_cut(plan.grid, placed.room), "--resume takes the cut from the journal"


# ---- workspaces ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "int16", "float32", "float64", "complex64"])
def test_a_kernel_takes_no_more_workspace_than_was_planned(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of int8 the workspace has elements of 4 bytes."""
    taken: list[int] = []

    @contextlib.contextmanager
    def counted(nbytes: int, real: Any = run_cpu.take_workspace) -> Iterator[Any]:
        taken.append(nbytes)
        with real(nbytes) as memory:
            yield memory

    choice = places.choose_on_cpu("standard", [dtype] * 2, dtype, 3000)
    m, n, k = 200, 300, 3000
    monkeypatch.setattr(run_cpu, "take_workspace", counted)
    a, b, c = (np.ones(shape, dtype) for shape in ((m, k), (k, n), (m, n)))
    run_cpu.runner(choice.kernel, np.dtype(dtype), threads=2)(a, b, c)
    room = places.place_product([ArraySource(a), ArraySource(b)], a.dtype, tw_options(64), 2).room
    assert room.workspace is not None
    assert max(taken) < room.workspace(m, n, k) < 2 * max(taken)
