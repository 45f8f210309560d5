"""Gram matrices of files: every orientation and dtype, small memories, means, and what may go wrong."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.cpu.runtime.machine_code import engine_code
from tilewright.errors import DTypeError, FileError, MemoryLimitError, UsageError
from tilewright.large import gram as gram_module
from tilewright.large.gram import GramJob, gram_job

if engine_code() is None:
    pytest.skip("without machine code no blocks are multiplied", allow_module_level=True)


def matrix(shape: tuple[int, int], dtype: str, mean: float = 0) -> np.ndarray:
    rng = np.random.default_rng(shape)
    x = rng.uniform(-1, 1, shape) + mean
    if dtype.startswith("c"):
        x = x + 1j * rng.uniform(-1, 1, shape)
    return (50 * x).astype(dtype) if np.dtype(dtype).kind in "iu" else x.astype(dtype)


def expected(x: np.ndarray, rows: bool, center: bool) -> np.ndarray:
    wide: Any = x if x.dtype.kind in "iu" else x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    if center:
        wide = wide - wide.mean(axis=1 if rows else 0, keepdims=True)
    return wide @ wide.T.conj() if rows else wide.T.conj() @ wide


def is_right(c: np.ndarray, x: np.ndarray, rows: bool, center: bool) -> bool:
    want = expected(x, rows, center)
    unit = {"float32": 2.0**-18, "complex64": 2.0**-18, "float16": 2.0**-9}.get(c.dtype.name, 2.0**-46)
    near = bool((abs(c - want) <= unit * abs(want).max()).all())
    return np.array_equal(c, c.T.conj()) and (np.array_equal(c, want) if x.dtype.kind in "iu" else near)


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "int16", "float16"])
@pytest.mark.parametrize("rows", [False, True])
def test_gram_matrices_of_files(tmp_path: Path, dtype: str, rows: bool) -> None:
    for number, (shape, memory) in enumerate([((900, 250), None), ((600, 700), "9MiB"), ((3, 200), None)]):
        x = matrix(shape, dtype)
        np.save(tmp_path / "x.npy", x)
        for center in (False, True) if x.dtype.kind not in "iu" else (False,):
            out = tmp_path / f"c{number}{center}.npy"
            assert tw.gram(tmp_path / "x.npy", out, rows=rows, memory=memory, center=center) == out
            assert is_right(np.load(out), x, rows, center)
            assert not (tmp_path / f"{out.name}.tilewright").exists()


def test_the_check_of_this_file_rejects_what_is_wrong() -> None:
    x = matrix((50, 60), "float64")
    c = expected(x, False, False)
    assert is_right(c, x, False, False)
    assert not is_right(c, x, False, True)
    c[3, 5] += 1e-9
    assert not is_right(c, x, False, False)


def test_tiles_are_computed_once_and_read_as_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = matrix((500, 900), "float64")
    np.save(tmp_path / "x.npy", x)
    read: list[int] = []
    with gram_job(tmp_path / "x.npy", tmp_path / "c.npy", memory="8MiB") as job:
        original = job.source.read

        def counted(rows: slice, columns: slice, out: np.ndarray) -> None:
            read.append((rows.stop - rows.start) * (columns.stop - columns.start) * 8)
            original(rows, columns, out)

        monkeypatch.setattr(job.source, "read", counted)
        job.run()
        plan = job.plan
    count = len(plan.panels)
    assert count > 1
    assert len(plan.tiles) == count * (count + 1) // 2
    assert sum(read) == plan.read_bytes == job.read_bytes == count * x.nbytes
    assert is_right(np.load(tmp_path / "c.npy"), x, False, False)
    assert "tiles of" in str(plan)
    assert "nothing" in str(plan) or "ms" in str(plan) or " s" in str(plan)


def test_memory_is_bounded(tmp_path: Path) -> None:
    x = matrix((4000, 900), "float32")
    np.save(tmp_path / "x.npy", x)
    tw.gram(tmp_path / "x.npy", tmp_path / "warm.npy", memory="12MiB")
    mapped: list[int] = []

    def counted(size: int, dtype: np.dtype, real: Any = gram_module.mapped_empty) -> np.ndarray:
        mapped.append(size * np.dtype(dtype).itemsize)
        return real(size, dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gram_module, "mapped_empty", counted)
        tracemalloc.start()
        with gram_job(tmp_path / "x.npy", tmp_path / "c.npy", memory="12MiB", center=True) as job:
            job.run()
            of_tile = sum(mapped) / len(job.plan.tiles)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert of_tile + peak < 12 << 20


def test_means_are_subtracted_without_cancellation() -> None:
    x = matrix((5000, 40), "float64", mean=1e7)
    want = expected(x, False, True)
    error = abs(tw.gram(x, center=True) - want).max() / abs(want).max()
    naive = abs(x.T @ x - len(x) * np.outer(x.mean(0), x.mean(0)) - want).max() / abs(want).max()
    assert error < 1e-8 < 0.1 < naive


@pytest.mark.parametrize("memory", [None, "8MiB"])
def test_means_lose_no_digits_when_they_are_rounded(memory: str | None) -> None:
    for values, dtype in (((1e7, 1e7 + 1), "float32"), ((2.0**53, 2.0**53 + 2), "float64")):
        x = np.tile(np.array(values, dtype), 20_000)[:, None] * np.ones((1, 3), dtype)
        want = (values[1] - values[0]) ** 2 / 4
        assert tw.gram(x, center=True, ddof=0, memory=memory).tolist() == [[want] * 3] * 3


def test_an_infinity_warns_of_nothing() -> None:
    x = np.ones((9, 2))
    x[0, 0] = np.inf
    with np.errstate(all="raise"):
        assert np.isnan(tw.gram(x, center=True)[0]).all()


def test_covariance() -> None:
    x = matrix((300, 20), "float64")
    np.testing.assert_allclose(tw.gram(x, center=True, ddof=1), np.cov(x.T), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(tw.gram(x, center=True, ddof=0, rows=True), np.cov(x, ddof=0), rtol=1e-12, atol=1e-14)
    assert tw.gram(matrix((30, 20), "int8"), dtype="float64", ddof=1).dtype == np.float64


def test_matrices_without_elements(tmp_path: Path) -> None:
    np.save(tmp_path / "none.npy", np.empty((0, 3)))
    assert tw.gram(tmp_path / "none.npy").tolist() == np.zeros((3, 3)).tolist()
    np.save(tmp_path / "narrow.npy", np.empty((3, 0)))
    assert tw.gram(tmp_path / "narrow.npy").shape == (0, 0)


def test_what_is_refused(tmp_path: Path) -> None:
    x = matrix((200, 100), "float64")
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "c.npy", x)
    with pytest.raises(FileError, match="overwrite"):
        tw.gram(tmp_path / "x.npy", tmp_path / "c.npy")
    assert np.array_equal(np.load(tmp_path / "c.npy"), x)
    tw.gram(tmp_path / "x.npy", tmp_path / "c.npy", overwrite=True)
    assert is_right(np.load(tmp_path / "c.npy"), x, False, False)
    for ddof in (200, 1.5, True, "1"):
        with pytest.raises(UsageError, match="ddof must be"):
            tw.gram(x, ddof=ddof)  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="means need floating point"):
        tw.gram(matrix((9, 9), "int32"), center=True)
    with pytest.raises(UsageError, match="has only 'standard'"):
        tw.gram(tmp_path / "x.npy", precision="highest")
    with pytest.raises(UsageError, match="shares memory"):
        tw.gram(x, x[:100], memory="1GiB")
    with pytest.raises(MemoryLimitError, match="blocks need"):
        tw.gram(np.broadcast_to(np.float64(1), (1 << 40, 1 << 18)), tmp_path / "d.npy", memory="8MiB", rows=True)


def test_an_error_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", matrix((3000, 100), "float64"))

    def fails(self: GramJob, *_: Any) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(GramJob, "_compute", fails)
    with pytest.raises(OSError, match="gone"):
        tw.gram(tmp_path / "x.npy", tmp_path / "c.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]
