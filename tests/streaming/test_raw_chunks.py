"""Chunks of zarr stores that are read in place: the elements that the library reads, and its refusals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tilewright.errors import FileError
from tilewright.large.files import open_matrix
from tilewright.large.files.zarr import ZarrSource

SHAPE = (25, 37)
A = np.random.default_rng(0).uniform(-1, 1, SHAPE).astype(np.float32)


def store(path: Path, array: np.ndarray[Any, Any] = A, **options: Any) -> Path:
    options = {"chunks": (8, 10), "compressors": None} | options
    zarr.create_array(store=path, data=array, **options)
    return path


def opened(path: Path) -> ZarrSource:
    source = open_matrix(path)
    assert isinstance(source, ZarrSource)
    return source


def read(source: ZarrSource, rows: slice, columns: slice, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    out = np.full((rows.stop - rows.start, columns.stop - columns.start), np.nan, dtype)
    source.read(rows, columns, out)
    return out


@pytest.mark.parametrize("rows", [(0, 25), (3, 5), (7, 17), (8, 16), (24, 25)])
@pytest.mark.parametrize("columns", [(0, 37), (9, 11), (10, 20), (36, 37)])
@pytest.mark.parametrize(
    "layout", [{}, {"zarr_format": 2}, {"chunk_key_encoding": {"name": "default", "separator": "."}}]
)
def test_every_rectangle(
    rows: tuple[int, int], columns: tuple[int, int], layout: dict[str, Any], tmp_path: Path
) -> None:
    source = opened(store(tmp_path / "a.zarr", **layout))
    assert source._raw is not None
    np.testing.assert_array_equal(read(source, slice(*rows), slice(*columns)), A[slice(*rows), slice(*columns)])


@pytest.mark.parametrize(
    "options",
    [
        {"compressors": "auto"},
        {"chunks": (4, 5), "shards": (8, 10)},
        {"filters": [zarr.codecs.TransposeCodec(order=(1, 0))]},
        {"zarr_format": 2, "order": "F"},
    ],
)
def test_chunks_of_another_kind_are_read_by_the_library(options: dict[str, Any], tmp_path: Path) -> None:
    source = opened(store(tmp_path / "a.zarr", **options))
    assert source._raw is None
    np.testing.assert_array_equal(read(source, slice(3, 20), slice(5, 31)), A[3:20, 5:31])


def test_another_order_of_bytes_and_another_dtype(tmp_path: Path) -> None:
    source = opened(store(tmp_path / "a.zarr", A.astype(">f4"), zarr_format=2))
    assert source._raw is None
    np.testing.assert_array_equal(read(source, slice(3, 20), slice(5, 31)), A[3:20, 5:31])
    source = opened(store(tmp_path / "b.zarr"))
    np.testing.assert_array_equal(read(source, slice(3, 20), slice(5, 31), np.float64), A[3:20, 5:31].astype(float))


def test_a_strided_result(tmp_path: Path) -> None:
    source, out = opened(store(tmp_path / "a.zarr")), np.full((25, 80), np.nan, np.float32)
    source.read(slice(0, 25), slice(0, 37), out[:, :37])
    source.read(slice(0, 25), slice(0, 37), out[:, 6::2])
    np.testing.assert_array_equal(out[:, 6::2], A)


@pytest.mark.parametrize("fill", [0, 7.5, np.nan])
def test_a_chunk_that_was_never_written(fill: float, tmp_path: Path) -> None:
    array = zarr.create_array(
        store=tmp_path / "a.zarr", shape=SHAPE, dtype="f4", chunks=(8, 10), compressors=None, fill_value=fill
    )
    array[:8, :10] = A[:8, :10]
    expected = np.full(SHAPE, fill, np.float32)
    expected[:8, :10] = A[:8, :10]
    source = opened(tmp_path / "a.zarr")
    assert source._raw is not None
    np.testing.assert_array_equal(read(source, slice(0, 25), slice(0, 37)), expected)


def test_an_array_in_a_group(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g.zarr")
    group.create_array("x/y", data=A, chunks=(8, 10), compressors=None)
    source = open_matrix(f"{tmp_path / 'g.zarr'}:x/y")
    np.testing.assert_array_equal(read(source, slice(1, 24), slice(2, 30)), A[1:24, 2:30])  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", ["shorter", "longer", "pipe", "directory"])
def test_a_damaged_chunk_is_named(damage: str, tmp_path: Path) -> None:
    source = opened(store(tmp_path / "a.zarr"))
    chunk = tmp_path / "a.zarr" / "c" / "1" / "2"
    content = chunk.read_bytes()
    chunk.unlink()
    if damage == "pipe":
        os.mkfifo(chunk)
    elif damage == "directory":
        chunk.mkdir()
    else:
        chunk.write_bytes(content[:-1] if damage == "shorter" else content + b"\0")
    read(source, slice(0, 8), slice(0, 37))
    with pytest.raises(FileError, match=r"a\.zarr/c/1/2 (has|is)"):
        read(source, slice(0, 25), slice(0, 37))
