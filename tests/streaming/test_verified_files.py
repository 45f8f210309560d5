"""``multiply(…, verify=True)``: a file that is no product is rejected, whatever its format, within the limit of memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.cpu.runtime.stop import Stop, Stopped, current
from tilewright.errors import DTypeError, MemoryLimitError, ResumeError, UsageError, VerificationError
from tilewright.large.files import create_matrix, open_matrix, whole_matrix
from tilewright.large.files.array import ArraySource
from tilewright.large.streaming.plan.cuts import own_bytes
from tilewright.large.streaming.run.job import Job
from tilewright.large.verification import ELEMENT_BYTES, Budget, parts_to_read, verify_files

M, K, N = 500, 400, 300


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(7)
    for name, shape in (("a", (M, K)), ("b", (K, N))):
        np.save(f"{name}.npy", rng.uniform(-1, 1, shape).astype(np.float32))
    return tmp_path


def corrupted(monkeypatch: pytest.MonkeyPatch, damage: Callable[[], None]) -> None:
    """From now on the finished result is damaged before it is verified."""
    run = Job.run

    def run_and_damage(job: Job, *arguments: Any) -> None:
        run(job, *arguments)
        damage()

    monkeypatch.setattr(Job, "run", run_and_damage)


def change(path: str, row: int, column: int, by: float) -> None:
    """One element of a .npy file, in place."""
    c = np.load(path, mmap_mode="r+")
    c[row, column] += by
    c.flush()


@pytest.mark.parametrize("precision", ["standard", "highest", 1e-4])
@pytest.mark.parametrize("out", ["c.npy", "c.zarr", "c.h5", None])
def test_right_products_pass(folder: Path, out: str | None, precision: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tilewright.verification"):
        tw.multiply("a.npy", "b.npy", out, precision=precision, device="cpu", verify=True)
    (line,) = caplog.messages
    assert line.startswith("verified: 500×400 · 400×300 float32: the largest error found is ")


@pytest.mark.slow
def test_one_corrupted_element_of_a_file_is_rejected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its place; also where it is off by little more than the bound."""
    a, b = (np.load(f"{name}.npy").astype(np.float64) for name in "ab")
    bound = tw.plan_multiply("a.npy", "b.npy", device="cpu").error_bound
    for row, column, factor in ((0, 0, 3), (499, 299, 3), (250, 17, 1e3), (123, 298, -1e6)):
        by = factor * bound * float(np.abs(a[row]) @ np.abs(b[:, column]))
        with monkeypatch.context() as patch:
            corrupted(patch, lambda at=(row, column, by): change("c.npy", *at))
            with pytest.raises(VerificationError, match=rf"wrong: .* at C\[{row}, {column}\], the bound") as found:
                tw.multiply("a.npy", "b.npy", "c.npy", device="cpu", verify=True, overwrite=True)
        assert found.value.error > found.value.bound == bound
    assert Path("c.npy").exists()


@pytest.mark.slow
def test_a_wrong_result_is_not_resumed_and_a_right_one_is_checked_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"device": "cpu", "verify": True, "resume": True}
    tw.multiply("a.npy", "b.npy", "c.npy", **given)
    tw.multiply("a.npy", "b.npy", "c.npy", **given)
    with monkeypatch.context() as patch:
        corrupted(patch, lambda: change("c.npy", 3, 4, 0.5))
        with pytest.raises(VerificationError):
            tw.multiply("a.npy", "b.npy", "c.npy", **given)
    with pytest.raises(ResumeError, match="what it was made from is not known"):
        tw.multiply("a.npy", "b.npy", "c.npy", **given)


def test_what_cannot_be_verified_is_refused_before_anything_is_written(folder: Path) -> None:
    da = pytest.importorskip("dask.array", reason="pip install 'tilewright[cluster]'")
    x = da.from_array(np.load("a.npy"), chunks=100)
    for call, says in (
        (
            lambda: tw.multiply("a.npy", "b.npy", "a.npy", verify=True),
            "reads a after the product, but out replaces that file",
        ),
        (
            lambda: tw.multiply(x, "b.npy", "c.npy", cluster="local:1", verify=True),
            "a is a Dask array: leave verify out",
        ),
        (lambda: tw.multiply("a.npy", "b.npy", cluster="local:1", verify=True), "pass out"),
    ):
        with pytest.raises(UsageError, match=says):
            call()
    assert sorted(path.name for path in folder.iterdir()) == ["a.npy", "b.npy"]


# ---- memory ----------------------------------------------------------------------------------------------------------


class Watched(ArraySource):
    """Notes how much is read at a time, and in all."""

    def __init__(self, array: np.ndarray, grain: tuple[int, int] = (1, 1)) -> None:
        super().__init__(array)
        self.grain, self.largest, self.all = grain, 0, 0

    def read(self, rows: slice, columns: slice, out: np.ndarray) -> None:
        super().read(rows, columns, out)
        self.largest, self.all = max(self.largest, out.size), self.all + out.size
        for part, grain in zip((rows, columns), self.grain, strict=True):
            if out.shape[0] > 1 and max(self.grain) < 100:
                assert part.start % grain == 0, "no chunk is read in two pieces"


@pytest.mark.parametrize("grain", [(1, 1), (64, 48), (1000, 1000)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rectangles_are_small_and_each_is_read_a_few_times(dtype: str, grain: tuple[int, int]) -> None:
    rng = np.random.default_rng(8)
    a, b = (rng.uniform(-1, 1, shape).astype(dtype) for shape in ((900, 700), (700, 800)))
    sources = [Watched(each, grain) for each in (a, b, a @ b)]
    memory = 7 << 19
    assert verify_files(*sources, 700 * 2.0 ** (-24 if dtype == "float32" else -53), memory).ok
    budget = Budget.within(memory - own_bytes(memory) - (1 << 19), 900, 800, 700)
    assert budget is not None
    assert max(source.largest for source in sources) <= budget.elements < 900 * 700 // 10
    x, y, z = (source.all / (source.shape[0] * source.shape[1]) for source in sources)
    assert 1 <= x < 1.5
    assert 2 <= y <= (2 if dtype == "float32" else 3)
    assert 1 <= z < 1.1


def test_rectangles_cover_each_element_once() -> None:
    for grain, elements in (((1, 1), 50), ((1, 1), 10**6), ((16, 12), 500), ((16, 12), 10), ((64, 64), 700)):
        matrix: Any = Watched(np.zeros((70, 90)), grain)
        count = np.zeros((70, 90), int)
        for rows, columns in parts_to_read(matrix, slice(3, 61), slice(5, 90), elements):
            count[rows, columns] += 1
            assert count[rows, columns].size <= elements
        assert count[3:61, 5:90].min() == count.max() == 1
        assert count.sum() == 58 * 85


def test_with_few_bytes_there_are_fewer_sums_and_then_none() -> None:
    budgets = [Budget.within(nbytes, 10_000, 10_000, 10_000) for nbytes in (1 << 30, 6 << 20, 3 << 20, 1 << 18)]
    assert [budget and budget.blocks for budget in budgets] == [8, 2, 1, None]
    for budget, nbytes in zip(budgets[:3], (1 << 30, 6 << 20, 3 << 20), strict=True):
        assert budget is not None
        assert budget.elements * ELEMENT_BYTES <= nbytes // 2
        assert budget.steps >= 1024
    with pytest.raises(MemoryLimitError, match="too little to verify"):
        verify_files(np.zeros((9, 9)), np.zeros((9, 9)), np.zeros((9, 9)), 1e-9, "512KiB")


@pytest.mark.parametrize("blocks", [1, 8])
def test_every_budget_finds_one_wrong_element(blocks: int) -> None:
    rng = np.random.default_rng(9)
    a, b = (rng.uniform(-1, 1, shape) for shape in ((300, 250), (250, 200)))
    c = a @ b
    from tilewright.large.verification import compare_floats

    budget = Budget(elements=700, blocks=blocks, steps=60)
    assert compare_floats(a, b, c, 1e-13, budget)[0] < 1e-13
    c[280, 150] += 1e-9
    error, where = compare_floats(a, b, c, 1e-13, budget)
    assert (error > 1e-13, where) == (True, (280, 150))
    c[280, 150], c[7, 8], a[5, 5], b[9, 9] = np.nan, np.inf, np.inf, np.nan
    with np.errstate(all="ignore"):
        c[5], c[:, 9] = a[5] @ b, a @ b[:, 9]
    assert compare_floats(a, b, c, 1e-13, budget)[0] == np.inf


@pytest.mark.parametrize("shape", [(5, 0, 3), (0, 4, 3), (4, 3, 0), (1, 1, 1), (1, 900, 1)])
def test_least_shapes(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a, b = np.ones((m, k)), np.ones((k, n))
    c = tw.multiply(a, b, device="cpu", verify=True)
    if c.size:
        assert not verify_files(a, b, c + 1e-3, 1e-9).ok


def test_ctrl_c_ends_it() -> None:
    stop = Stop()
    stop.ask()
    token = current.set(stop)
    try:
        with pytest.raises(Stopped):
            verify_files(np.ones((3, 3)), np.ones((3, 3)), np.full((3, 3), 3.0), 1e-9)
    finally:
        current.reset(token)


def test_files_of_every_format_are_read(folder: Path) -> None:
    a, b = (np.load(f"{name}.npy") for name in "ab")
    for name, matrix in (("a", a), ("b", b), ("c", (a.astype(np.float64) @ b).astype(np.float32))):
        for suffix in ("zarr", "h5", "safetensors"):
            sink = create_matrix(f"{name}.{suffix}", matrix.shape, matrix.dtype)
            sink.write(slice(0, matrix.shape[0]), slice(0, matrix.shape[1]), matrix)
            sink.finish()
            sink.close()
    assert verify_files("a.zarr", "b.h5", "c.safetensors", 1e-6).ok
    c = whole_matrix(open_matrix("c.zarr"))
    c[400, 200] += 1e-3
    assert verify_files("a.h5", "b.safetensors", c, 1e-6).where == (400, 200)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float16", "complex64", "complex128"])
def test_products_of_other_dtypes_are_verified(dtype: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers modulo their size: a single wrong element is always found."""
    rng = np.random.default_rng(1)
    kind = np.dtype(dtype)
    for name, shape in (("x", (40, 700)), ("y", (700, 30))):
        if kind.kind in "iu":
            matrix = rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, shape, kind, endpoint=True)
        else:
            matrix = (rng.uniform(-1, 1, shape) + (1j * rng.uniform(-1, 1, shape) if kind.kind == "c" else 0)).astype(
                kind
            )
        np.save(f"{name}.npy", matrix)
    given: dict[str, Any] = {"device": "cpu", "verify": True, "overwrite": True}
    tw.multiply("x.npy", "y.npy", "z.npy", **given)
    assert np.load("z.npy").dtype == kind
    for row, column in ((0, 0), (39, 29), (17, 5)):
        with monkeypatch.context() as patch:
            corrupted(patch, lambda at=(row, column): change("z.npy", *at, 1))
            with pytest.raises(VerificationError, match=rf"at C\[{row}, {column}\]"):
                tw.multiply("x.npy", "y.npy", "z.npy", **given)


def test_products_of_bool_are_not_verified(folder: Path) -> None:
    np.save("x.npy", np.eye(3, dtype=bool))
    with pytest.raises(DTypeError, match="products of bool cannot be verified"):
        tw.multiply("x.npy", "x.npy", "z.npy", device="cpu", verify=True)
    assert not Path("z.npy").exists()
