"""``multiply`` on a real GPU: every kind of edge, little of its memory, files, and what stands in the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import MemoryLimitError, UnavailableError, UsageError
from tilewright.gpu.runtime.device import open_device
from tilewright.large.streaming.places.place import Events

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def gpu() -> None:
    try:
        open_device(0)
    except UnavailableError as error:
        pytest.skip(str(error))


SHAPES = [(1, 1, 1), (300, 200, 100), (1000, 1100, 1300), (129, 5000, 7001), (5000, 1, 3000), (3, 4, 0), (0, 5, 4)]


def operands(m: int, n: int, k: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m + n + k)
    return rng.integers(-4, 5, (m, k)).astype(dtype), rng.integers(-4, 5, (k, n)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("limit", [None, "4MB"])
def test_exact(shape: tuple[int, int, int], dtype: str, limit: str | None) -> None:
    a, b = operands(*shape, dtype)
    c = np.full((shape[0], shape[1]), np.nan, dtype)
    assert tw.multiply(a, b, c, device="cuda:0", device_memory=limit) is c
    assert np.array_equal(c, a.astype(float) @ b.astype(float))


def test_any_strides() -> None:
    a, b = operands(700, 900, 800, "float32")
    wanted = a.astype(float) @ b.astype(float)
    for x, y in ((np.asfortranarray(a), b[:, ::-1][:, ::-1]), (np.repeat(a, 2, 0)[::2], np.asfortranarray(b))):
        c = np.full((900, 700), np.nan, np.float32).T
        assert np.array_equal(tw.multiply(x, y, c, device="cuda:0", device_memory="3MB"), wanted)


def test_files_through_the_memory_of_the_host(tmp_path: Path) -> None:
    a, b = operands(3000, 2500, 2777, "float64")
    for name, array in (("a", a), ("b", b)):
        np.save(tmp_path / f"{name}.npy", array)
    paths = [tmp_path / f"{name}.npy" for name in "abc"]
    how = {"device": "cuda:0", "device_memory": "20MB", "memory": "80MB"}
    assert tw.plan_multiply(*paths, **how).host_slots > 0
    tw.multiply(paths[0], paths[1], paths[2], **how)
    assert np.array_equal(np.load(paths[2]), a @ b)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "b.npy", "c.npy"]


def test_the_gpus_clock_and_the_hosts_agree() -> None:
    a, b = operands(2000, 2000, 2000, "float32")
    events = Events()
    tw.multiply(a, b, device="cuda:0", events=events)
    assert {event.track for event in events.events} == {"copy in", "stage in", "compute", "copy out", "stage out"}
    assert all(0 <= event.start_s <= event.end_s <= events.now() for event in events.events)
    first = {
        track: min(e.start_s for e in events.events if e.track == track) for track in ("copy in", "compute", "copy out")
    }
    assert first["copy in"] < first["compute"] < first["copy out"]


def test_refusals() -> None:
    a, b = operands(2000, 2000, 2000, "float32")
    with pytest.raises(MemoryLimitError, match="at least"):
        tw.multiply(a, b, device="cuda:0", device_memory=1000)
    with pytest.raises(UsageError, match="device 'gpu'"):
        tw.multiply(a, b, device="gpu")
    assert np.array_equal(tw.multiply(a, b, device="cuda:0"), a.astype(float) @ b.astype(float))


def test_the_callers_gpu_stays_the_callers() -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    x = torch.ones(4, device="cuda")
    a, b = operands(300, 300, 300, "float32")
    tw.multiply(a, b, device="cuda:0")
    assert torch.cuda.current_device() == 0
    assert float((x + 1).sum()) == 8
    taken = []
    for _ in range(5):  # other processes take memory of this GPU, too, but not every time
        free = torch.cuda.mem_get_info()[0]
        for _ in range(50):  # of a megabyte each
            tw.multiply(a, b, device="cuda:0")
        taken.append(free - torch.cuda.mem_get_info()[0])
    assert min(taken) <= 32 << 20


@pytest.mark.parametrize(
    "shapes", [((300, 200), (200, 100)), ((300,), (300, 40)), ((3, 40, 50), (50, 60)), ((5,), (5,))]
)
def test_matmul_of_arrays_of_the_host(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes)
    c = tw.matmul(a, b, device="cuda:0")
    assert type(c) is type(np.matmul(a, b))
    assert np.array_equal(c, np.matmul(a, b))


@pytest.mark.parametrize("precision", ["fast", "standard", "highest", 1e-2, 1e-3, 1e-7])
def test_a_promise_about_the_whole_product(tmp_path: Path, precision: str | float) -> None:
    """Of positive numbers, whose roundings do not cancel, in several steps of k; verified twice."""
    rng = np.random.default_rng(11)
    for name, shape in (("a", (700, 9000)), ("b", (9000, 800))):
        np.save(tmp_path / f"{name}.npy", rng.uniform(0.5, 1, shape).astype(np.float32))
    a, b, c = (tmp_path / f"{name}.npy" for name in "abc")
    how: dict[str, Any] = {"device": "cuda:0", "device_memory": "24MB", "precision": precision}
    plan = tw.plan_multiply(a, b, c, **how)
    assert plan.grid.steps > 1
    assert f"at most {plan.error_bound:.2g}·|A||B|: {plan.compute}" in str(plan)
    tw.multiply(a, b, c, **how, verify=True)
    x, y = (np.load(each).astype(np.float64) for each in (a, b))
    error = (np.abs(np.load(c) - x @ y) / (x @ y)).max()
    assert error <= plan.error_bound <= (precision if isinstance(precision, float) else 1)
