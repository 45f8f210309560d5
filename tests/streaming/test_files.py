"""Matrices in files: every format by rectangles against NumPy, unfinished files, and what must be refused."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright import multiply
from tilewright.errors import (
    DTypeError,
    FileError,
    ShapeError,
    TilewrightError,
    UnavailableError,
    UsageError,
    how_to_install,
)
from tilewright.large.files import (
    Sink,
    Source,
    array,
    create_matrix,
    formats,
    open_matrix,
    plain,
    positional,
    whole_matrix,
)
from tilewright.large.files import (
    work as work_module,
)
from tilewright.large.files.array import ArraySource
from tilewright.large.files.axes import AxesSource

h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install 'tilewright[files]'")
zarr = pytest.importorskip("zarr", reason="zarr is not installed: pip install 'tilewright[files]'")

DTYPES = ["float32", "float64", "float16", ">f4", ">f8", "int8", "uint16", ">i4", "int64", "bool"]
relaxed = settings(max_examples=40, suppress_health_check=list(HealthCheck))


# ---- a matrix in each format, written by its own library or by hand, never by us -------------------------------------


def as_npy(path: Path, matrix: np.ndarray) -> Source:
    np.save(path.with_suffix(".npy"), matrix)
    return open_matrix(path.with_suffix(".npy"))


def as_fortran_npy(path: Path, matrix: np.ndarray) -> Source:
    np.save(path.with_suffix(".npy"), np.asfortranarray(matrix))
    return open_matrix(str(path.with_suffix(".npy")), shape=matrix.shape)


def as_raw(path: Path, matrix: np.ndarray) -> Source:
    matrix.tofile(path.with_suffix(".raw"))
    return open_matrix(path.with_suffix(".raw"), shape=matrix.shape, dtype=matrix.dtype)


def as_safetensors(path: Path, matrix: np.ndarray) -> Source:
    write_safetensors(path.with_suffix(".safetensors"), {"first": np.ones(3, np.float32), "weight": matrix})
    return open_matrix(f"{path.with_suffix('.safetensors')}:weight")


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    codes = {"f": "F", "i": "I", "u": "U"}
    header, data = {}, b""
    for name, each in tensors.items():
        raw = each.astype(each.dtype.newbyteorder("<")).tobytes()
        code = "BOOL" if each.dtype == bool else f"{codes[each.dtype.kind]}{each.itemsize * 8}"
        header[name] = {"dtype": code, "shape": each.shape, "data_offsets": (len(data), len(data) + len(raw))}
        data += raw
    text = json.dumps({"__metadata__": {"by": "test"}, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def as_hdf5(path: Path, matrix: np.ndarray, **stored: Any) -> Source:
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        file["other"] = 5
        file.create_dataset("group/data", data=matrix, **stored)
    return open_matrix(f"{path.with_suffix('.h5')}:/group/data")


def chunks_of(shape: tuple[int, int]) -> tuple[int, int]:
    """Chunks that fill neither rows nor columns, and some four a side of what is large."""
    m, n = shape
    return min(max(5, m // 4 + 1), m) or 1, min(max(7, n // 4 + 1), n) or 1


def as_chunked_hdf5(path: Path, matrix: np.ndarray) -> Source:
    chunks = None if 0 in matrix.shape else chunks_of(matrix.shape)
    return as_hdf5(path, matrix, chunks=chunks, compression=chunks and "gzip")


def as_zarr(path: Path, matrix: np.ndarray, version: int = 3) -> Source:
    group = zarr.create_group(path.with_suffix(".zarr"), overwrite=True, zarr_format=version)
    group.create_array("inner", shape=matrix.shape, dtype=matrix.dtype, chunks=chunks_of(matrix.shape))[:] = matrix
    return open_matrix(path.with_suffix(".zarr"), name="inner")


def as_old_zarr(path: Path, matrix: np.ndarray) -> Source:
    return as_zarr(path, matrix, version=2)


def as_array(path: Path, matrix: np.ndarray) -> Source:
    return open_matrix(np.repeat(matrix, 2, axis=1)[:, ::2])


def as_map(path: Path, matrix: np.ndarray) -> Source:
    as_npy(path, matrix).close()
    return open_matrix(np.load(path.with_suffix(".npy"), mmap_mode="r"))


PLAIN = [as_npy, as_fortran_npy, as_raw, as_safetensors, as_hdf5]
STORED = [*PLAIN, as_chunked_hdf5, as_zarr, as_old_zarr, as_array]


@st.composite
def rectangles(draw: st.DrawFn, limit: int = 40) -> tuple[tuple[int, int], slice, slice]:
    shape = draw(st.tuples(st.integers(0, limit), st.integers(0, limit)))
    sides = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    return shape, slice(*sides[0]), slice(*sides[1])


def laid_out(shape: tuple[int, int], dtype: str, order: str) -> np.ndarray:
    """An array of 99s of that shape with rows that are contiguous, apart, strided, turned or reversed."""
    m, n = shape
    frames = {
        "C": lambda: np.full((m, n), 99, dtype),
        "F": lambda: np.full((n, m), 99, dtype).T,
        "apart": lambda: np.full((m, n + 3), 99, dtype)[:, :n],
        "strided": lambda: np.full((m, 2 * n), 99, dtype)[:, ::2],
        "reversed": lambda: np.full((m, n), 99, dtype)[::-1, ::-1],
        "upside down": lambda: np.full((m, n), 99, dtype)[::-1],
    }
    return frames[order]()


ORDERS = ["C", "F", "apart", "strided", "reversed", "upside down"]


def numbers(shape: tuple[int, int], dtype: str) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 100, shape).astype(dtype)


@pytest.mark.slow_cases("as_zarr", "as_old_zarr", "as_fortran_npy")
@pytest.mark.parametrize("store", STORED)
@relaxed
@given(where=rectangles(), dtype=st.sampled_from(DTYPES), to=st.sampled_from(["float32", "float64"]), data=st.data())
def test_any_rectangle_is_what_numpy_reads(
    store: Callable[..., Source], tmp_path: Path, where: Any, dtype: str, to: str, data: st.DataObject
) -> None:
    shape, rows, columns = where
    matrix = numbers(shape, dtype)
    out = laid_out(matrix[rows, columns].shape, to, data.draw(st.sampled_from(ORDERS)))
    buffer, short = data.draw(st.sampled_from([8, 100, 1000, 1 << 19])), data.draw(st.sampled_from([0, 64, 4096]))
    with mock.patch.object(positional, "BUFFER", buffer), mock.patch.object(positional, "SHORT_ROW", short):
        source = store(tmp_path / "a", matrix)
        assert source.shape == shape
        source.read(rows, columns, out)
        source.close()
    np.testing.assert_array_equal(out, matrix[rows, columns].astype(to))


@pytest.mark.parametrize("store", STORED)
@pytest.mark.parametrize("dtype", ["float32", "float64", ">f8"])
def test_the_dtype_that_is_stored_is_said(store: Callable[..., Source], tmp_path: Path, dtype: str) -> None:
    source = store(tmp_path / "a", numbers((3, 4), dtype))
    expected = np.dtype(dtype)
    assert source.dtype in (expected, expected.newbyteorder("<"))
    assert store in (as_safetensors, as_zarr) or source.dtype == expected
    assert source.parallel is (store is not as_chunked_hdf5)
    assert (source.grain == (1, 1)) is (store not in (as_chunked_hdf5, as_zarr, as_old_zarr))
    source.close()


def test_bfloat16_weights_are_read_and_written(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: pip install 'tilewright[test]'")
    matrix = numbers((6, 8), "float32")
    sink = create_matrix(tmp_path / "w.safetensors", (6, 8), ml_dtypes.bfloat16)
    sink.write(slice(None), slice(None), matrix)
    sink.finish()
    assert b'"BF16"' in (tmp_path / "w.safetensors").read_bytes()
    out = np.empty((6, 8), np.float32)
    source = open_matrix(tmp_path / "w.safetensors")
    source.read(slice(None), slice(None), out)
    source.close()
    np.testing.assert_array_equal(out, matrix)


@pytest.mark.parametrize("store", STORED)
def test_eight_threads_read_at_once(store: Callable[..., Source], tmp_path: Path) -> None:
    matrix = np.random.default_rng(2).random((300, 211), np.float32)
    source = store(tmp_path / "a", matrix)

    def read(seed: int) -> bool:
        random = np.random.default_rng(seed)
        (r, rows), (c, columns) = (sorted(map(int, random.integers(0, n + 1, 2))) for n in matrix.shape)
        out = np.empty((rows - r, columns - c), random.choice(["f4", "f8"]))
        source.read(slice(r, rows), slice(c, columns), out)
        return bool((out == matrix[r:rows, c:columns]).all())

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(60)))
    source.close()


@pytest.mark.parametrize("store", STORED)
@pytest.mark.parametrize("order", ["C", "F"])
def test_reading_allocates_no_more_than_it_says(store: Callable[..., Source], tmp_path: Path, order: str) -> None:
    source = store(tmp_path / "a", np.ones((1000, 3000), np.float32))
    out = np.empty((1000, 2990), np.float64, order=order)
    part = slice(0, 1000), slice(10, 3000)
    source.read(*part, out)  # what libraries load once
    tracemalloc.start()
    source.read(*part, out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    source.close()
    assert peak <= source.workspace + (1 << 20)
    assert source.workspace <= 14 << 20


@pytest.mark.parametrize("store", [*PLAIN, as_chunked_hdf5, as_zarr, as_old_zarr])
@pytest.mark.parametrize("dtype", ["float64", ">f4"])
def test_another_process_opens_the_same_matrix(store: Callable[..., Source], dtype: str, tmp_path: Path) -> None:
    source = store(tmp_path / "a", numbers((9, 7), dtype))
    opener = source.opener()
    assert opener is not None
    again = pickle.loads(pickle.dumps(opener))()
    assert again.fingerprint() == source.fingerprint()
    assert (again.shape, again.dtype) == (source.shape, source.dtype)
    again.close()
    source.close()


def test_interrupted_and_short_calls_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = as_npy(tmp_path / "a", numbers((50, 60), "float32"))
    whole, preadv = np.empty((50, 60), np.float32), os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, parts, at: preadv(file, [parts[0][:100]], at))
    source.read(slice(0, 50), slice(0, 60), whole)
    monkeypatch.setattr(positional, "_compiled", lambda call: lambda *_: 0)  # every row is cut short
    part = np.empty((50, 40), np.float32)
    monkeypatch.setattr(positional, "SHORT_ROW", 0)
    source.read(slice(0, 50), slice(10, 50), part)
    source.close()
    np.testing.assert_array_equal(whole, numbers((50, 60), "float32"))
    np.testing.assert_array_equal(part, whole[:, 10:50])


# ---- writing ---------------------------------------------------------------------------------------------------------

NAMES = ["c.npy", "c.raw", "c.safetensors", "c.h5", "c.zarr", "c.h5:/deep/c", "c.safetensors:layer.0", "c.zarr:deep/c"]


def load(where: str, shape: tuple[int, int], dtype: Any) -> np.ndarray:
    """What is in a file, as the format's own library or NumPy has it."""
    path, _, name = where.partition(":")
    if path.endswith(".npy"):
        return np.load(path)
    if path.endswith(".raw"):
        return np.fromfile(path, dtype).reshape(shape)
    if path.endswith(".h5"):
        with h5py.File(path) as file:
            return np.asarray(file[name or "matrix"][:])
    if path.endswith(".zarr"):
        found = zarr.open(path, mode="r")
        return np.asarray((found[name] if name else found)[:])
    raw = Path(path).read_bytes()
    data = 8 + int.from_bytes(raw[:8], "little")
    tensor = json.loads(raw[8:data])[name or "matrix"]
    assert data % 64 == 0
    return np.frombuffer(raw[data:], {"F32": "<f4", "F64": "<f8"}[tensor["dtype"]]).reshape(tensor["shape"])


def tiles(shape: tuple[int, int], height: int, width: int) -> Iterator[tuple[slice, slice]]:
    for r in range(0, shape[0], height):
        for c in range(0, shape[1], width):
            yield slice(r, min(shape[0], r + height)), slice(c, min(shape[1], c + width))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@relaxed
@given(data=st.data())
def test_tiles_written_in_any_order_make_the_matrix(name: str, tmp_path: Path, data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(0, 30), st.integers(0, 30)))
    stored, given_as = (
        data.draw(st.sampled_from(["float32", "float64"])),
        data.draw(st.sampled_from(["f4", "f8", ">f4"])),
    )
    matrix = numbers(shape, given_as)
    cuts = list(tiles(shape, data.draw(st.integers(1, 30)), data.draw(st.integers(1, 30))))
    where = str(tmp_path / f"{time.monotonic_ns()}{name}")
    with mock.patch.object(positional, "BUFFER", data.draw(st.sampled_from([8, 100, 1 << 19]))):
        sink = create_matrix(where, shape, stored)
        sink.forgets = data.draw(st.booleans())
        for rows, columns in data.draw(st.permutations(cuts)):
            block = laid_out(matrix[rows, columns].shape, given_as, data.draw(st.sampled_from(ORDERS)))
            block[:] = matrix[rows, columns]
            sink.write(rows, columns, block)
        assert not Path(where.partition(":")[0]).exists()
        sink.finish()
    assert sink.partial is not None
    assert not sink.partial.exists()
    found = load(where, shape, stored)
    assert found.dtype == stored
    np.testing.assert_array_equal(found, matrix)


@pytest.mark.parametrize("name", ["c.npy", "c.safetensors", "c.raw"])
@pytest.mark.parametrize("width", [1024, 3072])
def test_what_is_on_the_disk_is_forgotten(
    name: str, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte is written, then sent to the disk and waited for, then its memory is given up; never sooner."""
    told: list[tuple[str, int, int]] = []
    sync, forget, move = positional._sync_range, os.posix_fadvise, positional.move_rows

    def syncs(file: int, offset: int, nbytes: int, how: int) -> None:
        told.append(("wait" if how & positional._DONE == positional._DONE else "send", offset, nbytes))
        sync(file, offset, nbytes, how)

    def forgets(file: int, offset: int, nbytes: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        told.append(("forget", offset, nbytes))
        forget(file, offset, nbytes, advice)

    def moves(call: Any, file: int, block: np.ndarray, offset: int, pitch: int) -> None:
        told.append(("write", offset, len(block) * pitch))
        move(call, file, block, offset, pitch)

    monkeypatch.setattr(positional, "_sync_range", syncs)
    monkeypatch.setattr(os, "posix_fadvise", forgets)
    monkeypatch.setattr(positional, "move_rows", moves)
    monkeypatch.setattr(positional, "PIECE", 7 * 4 * 3072)
    matrix = np.random.default_rng(0).random((100, 3072), np.float32)
    sink = create_matrix(tmp_path / name, matrix.shape, "float32")
    sink.forgets = True
    for tile in tiles(matrix.shape, 60, width):
        sink.write(*tile, np.ascontiguousarray(matrix[tile]))
    sink.finish()
    np.testing.assert_array_equal(load(str(tmp_path / name), matrix.shape, "float32"), matrix)
    written = [(offset, nbytes) for what, offset, nbytes in told if what == "write" and nbytes]
    assert len(written) == (9 + 6) * (3072 // width)
    for offset, nbytes in written:
        steps = [what for what, *where in told if where == [offset, nbytes]]
        assert steps == ["write", "send", "wait", "forget"]


@pytest.mark.parametrize(("name", "width"), [("c.npy", 1000), ("c.npy", 1024)])
def test_a_page_that_is_written_twice_is_kept(
    name: str, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 4000 bytes share pages: none is given up, for it would be read again."""
    forgotten: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *asked: forgotten.append(asked[1]))
    sink = create_matrix(tmp_path / name, (20, width), "float32")
    sink.forgets = True
    sink.write(slice(0, 20), slice(0, width), np.ones((20, width), np.float32))
    sink.finish()
    assert bool(forgotten) == (width == 1024)


@pytest.mark.parametrize("name", ["c.npy", "c.safetensors", "c.raw"])
@pytest.mark.parametrize("shape", [(1, 1), (30, 40), (0, 5)])
def test_elements_begin_at_a_page(name: str, shape: tuple[int, int], tmp_path: Path) -> None:
    with contextlib.closing(create_matrix(tmp_path / name, shape, "float64")) as sink:
        assert sink.layout.offset % plain.PAGE == 0  # type: ignore[attr-defined]
        sink.finish()
    assert load(str(tmp_path / name), shape, "float64").shape == shape


@pytest.mark.parametrize("name", NAMES)
def test_eight_threads_write_at_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.large.files import zarr as ours

    monkeypatch.setattr(ours, "CHUNK", 32)
    matrix = np.random.default_rng(3).random((150, 170), np.float32)
    sink = create_matrix(tmp_path / name, matrix.shape, "float32")
    with ThreadPoolExecutor(8) as threads:  # tiles of 50 cut the chunks of 32 in two
        list(threads.map(lambda tile: sink.write(*tile, matrix[tile]), tiles(matrix.shape, 50, 20)))
    sink.finish()
    np.testing.assert_array_equal(load(str(tmp_path / name), matrix.shape, "float32"), matrix)


_HALF = """
import os, signal, sys, numpy as np
from tilewright.large.files import create_matrix
sink = create_matrix(sys.argv[1], (40, 30), "float64")
sink.write(slice(0, 40), slice(0, 15), np.full((40, 15), 7.0))
sink.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_killed_run_leaves_no_target_and_the_next_goes_on(name: str, tmp_path: Path) -> None:
    where = tmp_path / name
    done = subprocess.run([sys.executable, "-c", _HALF, str(where)], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    file = Path(str(where).partition(":")[0])
    assert not file.exists()
    with pytest.raises(FileError, match=r"not .* remove it, or do not resume|truncated|has 9600 bytes"):
        create_matrix(where, (40, 31 if name != "c.raw" else 20), "float64", resume=True)
    if name == "c.zarr":
        (tmp_path / "c.zarr.tilewright" / "data" / "c" / "0" / "0.1234.partial").touch()  # as the library leaves behind
    sink = create_matrix(where, (40, 30), "float64", resume=True)
    assert sink.resumed
    sink.write(slice(0, 40), slice(15, 30), np.full((40, 15), 8.0))
    sink.finish()
    np.testing.assert_array_equal(
        load(str(where), (40, 30), "float64"), np.repeat([[7.0, 8.0]], 15, axis=1).repeat(40, 0)
    )
    assert not [*tmp_path.rglob("*.partial"), *tmp_path.rglob("*.tilewright")]


@pytest.mark.parametrize("name", NAMES)
def test_without_resume_it_begins_again_and_with_nothing_there_too(name: str, tmp_path: Path) -> None:
    sink = create_matrix(tmp_path / name, (3, 4), "float32", resume=True)
    assert not sink.resumed
    sink.write(slice(0, 3), slice(0, 4), np.ones((3, 4)))
    sink.close()
    again = create_matrix(tmp_path / name, (5, 6), "float32")
    assert not again.resumed
    with pytest.raises(FileError, match="being written by another"):
        create_matrix(tmp_path / name, (5, 6), "float32", resume=True)
    again.write(slice(0, 5), slice(0, 6), np.full((5, 6), 2))
    again.finish()
    with pytest.raises(FileError, match="nothing more can be written"):
        again.write(slice(0, 5), slice(0, 6), np.ones((5, 6)))
    assert (load(str(tmp_path / name), (5, 6), "float32") == 2).all()


@pytest.mark.parametrize("name", NAMES[:5])
def test_an_input_can_be_the_output(name: str, tmp_path: Path) -> None:
    for value in (1, 2):  # the second replaces the first, which stays readable until then
        sink = create_matrix(tmp_path / name, (3, 4), "float32", overwrite=value == 2)
        if value == 2:
            source = open_matrix(tmp_path / name, shape=(3, 4), dtype="float32")
            before = np.empty((3, 4))
            source.read(slice(0, 3), slice(0, 4), before)
            assert (before == 1).all()
        sink.write(slice(0, 3), slice(0, 4), np.full((3, 4), value))
        sink.finish()
    if not name.endswith(".zarr"):
        source.read(slice(0, 3), slice(0, 4), before)
        assert (before == 1).all(), "an open file stays what it was"
    source.close()
    assert (load(str(tmp_path / name), (3, 4), "float32") == 2).all()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_link_to_another_disk_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "c.npy").symlink_to(tmp_path / "disk" / "real.npy")
    sink = create_matrix(tmp_path / "c.npy", (2, 2), "float32")
    assert sink.partial == tmp_path / "disk" / "real.npy.tilewright" / "data"
    sink.finish()
    assert (tmp_path / "c.npy").is_symlink()


def test_an_array_is_a_sink() -> None:
    out = np.zeros((4, 3), np.float32)
    sink: Sink = create_matrix(out.T, (3, 4), np.float32)
    sink.write(slice(1, 3), slice(0, 4), np.ones((2, 4)))
    sink.finish()
    assert out.sum() == 8
    with pytest.raises(ShapeError):
        create_matrix(out, (3, 4), np.float32)
    with pytest.raises(DTypeError):
        create_matrix(np.zeros((3, 4), np.int32), (3, 4), np.float32)


# ---- what must be refused --------------------------------------------------------------------------------------------


def test_a_full_disk_is_known_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_module, "free_bytes", lambda directory: 1000)
    for name in NAMES:
        with pytest.raises(FileError, match=r"\d+ bytes \(.*\) are needed, 1000 \(1000 B\) are free; free some space"):
            create_matrix(tmp_path / name, (100, 100), "float64")
    assert not list(tmp_path.iterdir())


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_is_full_all_the_same_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(FileError, match="does not fit its disk"):
        create_matrix(tmp_path / "c.npy", (100, 100), "float64")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["c.npy", "c.h5", "c.safetensors", "c.zarr"])
def test_a_disk_without_room_for_a_header(tmp_path: Path, name: str) -> None:
    """Written for real: h5py turns the system's error into an AttributeError."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, limits[1]))
    try:
        with pytest.raises(FileError, match=r"cannot be written: .*|does not fit its disk"):
            create_matrix(tmp_path / name, (100, 100), "float64").write(
                slice(0, 100), slice(0, 100), np.ones((100, 100))
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_system_that_cannot_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "")

    monkeypatch.setattr(os, "posix_fallocate", unknown)
    sink = create_matrix(tmp_path / "c.npy", (100, 100), "float64")
    sink.finish()
    assert np.load(tmp_path / "c.npy").shape == (100, 100)


def test_a_disk_that_fills_up_keeps_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = create_matrix(tmp_path / "c.npy", (4, 4), "float64")
    sink.write(slice(0, 2), slice(0, 4), np.ones((2, 4)))
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", full)
        with pytest.raises(FileError, match=r"the disk is full .* free some space"):
            sink.write(slice(2, 4), slice(0, 4), np.ones((2, 4)))
    sink.close()
    sink = create_matrix(tmp_path / "c.npy", (4, 4), "float64", resume=True)
    sink.write(slice(2, 4), slice(0, 4), np.ones((2, 4)))
    sink.finish()
    assert np.load(tmp_path / "c.npy").sum() == 16


def test_the_limit_of_a_process_is_named(tmp_path: Path) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); import numpy as np;"
        "from tilewright.large.files import create_matrix; create_matrix(sys.argv[1], (100, 100), 'float64')"
    )
    done = subprocess.run([sys.executable, "-B", "-c", code, str(tmp_path / "c.npy")], capture_output=True, text=True)
    assert "FileError" in done.stderr
    assert "ulimit -f" in done.stderr
    assert not list(tmp_path.iterdir())


def test_rows_that_cannot_be_moved_say_why(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(100))
    with (tmp_path / "x").open("rb") as file:
        with pytest.raises(OSError, match="Bad file descriptor"):
            positional.move_rows("pwrite", file.fileno(), np.ones((4, 4)), 0, 64)
        with pytest.raises(positional.EndOfFile):
            positional.move_rows("pread", file.fileno(), np.ones((4, 4)), 0, 64)


@pytest.mark.parametrize("store", PLAIN)
def test_truncation_is_seen_at_opening_and_at_reading(store: Callable[..., Source], tmp_path: Path) -> None:
    matrix = np.ones((50, 60))
    source = store(tmp_path / "a", matrix)
    [path] = tmp_path.iterdir()
    os.truncate(path, path.stat().st_size - 8)
    for columns in (60, 50):
        with pytest.raises(FileError, match=r"ends at byte \d+ of \d+: it was truncated while"):
            source.read(slice(0, 50), slice(60 - columns, 60), np.empty((50, columns)))
    source.close()
    again = f"{path}:{'group/data' if store is as_hdf5 else 'weight'}" if store in (as_hdf5, as_safetensors) else path
    raw = {"shape": (50, 60), "dtype": "f8"} if store is as_raw else {}
    with pytest.raises(FileError, match="truncated"):
        open_matrix(again, **raw)


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    for store, pattern in ((as_zarr, "a.zarr/inner/c/1/1"), (as_chunked_hdf5, "a.h5")):
        source = store(tmp_path / "a", np.random.default_rng(0).random((10, 14)))
        path = tmp_path / pattern
        raw = path.read_bytes()
        path.write_bytes(raw[:9] if store is as_zarr else raw[:3000] + bytes(len(raw) - 3000))
        with pytest.raises(FileError, match="cannot be read"):
            source.read(slice(0, 10), slice(0, 14), np.empty((10, 14)))
        source.close()


def npy(path: Path, value: Any) -> Path:
    np.save(path, value)
    return path


def hdf5(path: Path, **datasets: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            file[name] = value
    return path


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def safetensors(path: Path, **tensors: np.ndarray) -> Path:
    write_safetensors(path, tensors)
    return path


def lying_safetensors(path: Path) -> Path:
    write_safetensors(path, {"w": np.ones((3, 4), np.float32)})
    return written(path, path.read_bytes().replace(b"[3, 4]", b"[3, 5]"))


def bare_zarr(path: Path, value: np.ndarray) -> Path:
    zarr.create_array(path, data=value)
    return path


REFUSED: list[tuple[Callable[[Path], Any], type[TilewrightError], str]] = [
    (lambda p: p / "none.npy", FileError, "none.npy cannot be read: it does not exist"),
    (lambda p: p / "none" / "a.npy", FileError, "the directory .*none does not exist"),
    (lambda p: p / "none.h5", FileError, "does not exist"),
    (lambda p: p / "none.zarr", FileError, "does not exist"),
    (lambda p: p / "a.nyp", UsageError, "suffix .nyp, which no format has; did you mean .npy?"),
    (lambda p: p / "plain", UsageError, "no suffix"),
    (lambda p: p, UsageError, "is a directory without the suffix"),
    (lambda p: (p / "d.npy").mkdir() or p / "d.npy", FileError, "is not a file"),
    (lambda p: p / "a.raw", UsageError, "give its shape and dtype, in Python tilewright.large.files.open_matrix"),
    (lambda p: npy(p / "a.npy", np.ones(3)), ShapeError, r"1 dimensions, shape \(3,\): a matrix has 2"),
    (lambda p: npy(p / "a.npy", np.ones((1, 2, 3))), ShapeError, "3 dimensions"),
    (
        lambda p: npy(p / "a.npy", np.zeros((2, 2), "M8[s]")),
        DTypeError,
        r"datetime64\[s\]: it must be float16, .* float32",
    ),
    (lambda p: npy(p / "a.npy", np.ones((2, 2), np.longdouble)), DTypeError, "must be"),
    (lambda p: npy(p / "a.npy", np.array([["x"]])), DTypeError, "must be"),
    (lambda p: npy(p / "a.npy", np.zeros((2, 2), "i4,f4")), DTypeError, "must be"),
    (lambda p: npy(p / "a.npy", np.zeros((2, 2), [("ж", "f4")])), DTypeError, "several fields"),
    (lambda p: written(p / "a.npy", b"PK\x03\x04 an archive"), FileError, "no .npy file, or a damaged one"),
    (lambda p: written(p / "a.npy", b""), FileError, "a.npy is empty"),
    (lambda p: written(p / "a.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': boom}\n"), FileError, "damaged"),
    (lambda p: written(p / "a.h5", b"nonsense"), FileError, "no HDF5 file, or a damaged one"),
    (lambda p: hdf5(p / "a.h5"), FileError, "holds no dataset"),
    (lambda p: hdf5(p / "a.h5", x=np.ones((2, 2)), y=[1]), UsageError, "holds 2 datasets: name one, as in a.h5:x"),
    (lambda p: f"{hdf5(p / 'a.h5', weight=np.ones((2, 2)))}:wieght", UsageError, "did you mean weight?"),
    (lambda p: hdf5(p / "a.h5", x=np.ones(3)), ShapeError, "1 dimensions"),
    (lambda p: hdf5(p / "a.h5", x=np.ones((2, 2), [("x", "f4")])), DTypeError, "must be"),
    (lambda p: hdf5(p / "a.h5", x=[["text"]]), DTypeError, "must be"),
    (lambda p: written(p / "a.safetensors", b"\xff" * 20), FileError, "no .safetensors file"),
    (lambda p: written(p / "a.safetensors", b"\x02"), FileError, "no .safetensors file"),
    (lambda p: written(p / "a.safetensors", b"\x04\0\0\0\0\0\0\0[[]]"), FileError, "no .safetensors file"),
    (lambda p: safetensors(p / "a.safetensors", x=np.ones(3)), ShapeError, "1 dimensions"),
    (lambda p: safetensors(p / "a.safetensors", x=np.ones(3), y=np.ones(3)), UsageError, "name one"),
    (lambda p: lying_safetensors(p / "a.safetensors"), FileError, "damaged: 48 bytes for shape"),
    (lambda p: (p / "a.zarr").mkdir() or p / "a.zarr", FileError, "no zarr store"),
    (lambda p: bare_zarr(p / "a.zarr", np.ones(3)), ShapeError, "1 dimensions"),
    (lambda p: bare_zarr(p / "a.zarr", np.zeros((2, 2), "M8[s]")), DTypeError, "must be"),
    (lambda p: f"{bare_zarr(p / 'a.zarr', np.ones((2, 2)))}:inner", FileError, "one array, not a group"),
    (lambda p: np.ones(3), ShapeError, "1 dimensions"),
    (lambda p: np.zeros((2, 2), "M8[s]"), DTypeError, "cannot be multiplied: pass the array.astype"),
    (lambda p: None, TilewrightError, "None"),
]


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_what_is_no_matrix_is_refused_with_the_reason(case: int, tmp_path: Path) -> None:
    make, error, words = REFUSED[case]
    where = make(tmp_path)
    with pytest.raises(error, match=words):
        open_matrix(where)


def test_what_the_caller_says_must_agree(tmp_path: Path) -> None:
    path = npy(tmp_path / "a.npy", np.ones((2, 3)))
    with pytest.raises(ShapeError, match=r"is \(2, 3\), not \(3, 2\)"):
        open_matrix(path, shape=(3, 2))
    with pytest.raises(DTypeError, match="float64, not float32"):
        open_matrix(path, dtype="float32")
    with pytest.raises(UsageError, match="leave it out"):
        open_matrix(path, name="weight")
    with pytest.raises(FileError, match="give its real shape"):
        open_matrix(written(tmp_path / "a.raw", bytes(99)), shape=(2, 3), dtype="float32")
    source = open_matrix(path)
    for rows, columns, shape in ((slice(0, 2), slice(0, 3), (3, 2)), (slice(0, 2, 2), slice(0, 3), (1, 3))):
        with pytest.raises(UsageError, match="does not fit"):
            source.read(rows, columns, np.empty(shape))
    source.close()


@pytest.mark.parametrize("name", ["c.h5:y", "c.safetensors:y", "c.zarr:y", "c.zarr"])
def test_what_else_a_file_holds_is_never_lost(name: str, tmp_path: Path) -> None:
    hdf5(tmp_path / "c.h5", x=np.ones(3))
    write_safetensors(tmp_path / "c.safetensors", {"x": np.ones(3)})
    zarr.create_group(tmp_path / "c.zarr").create_array("x", data=np.ones(3))
    with pytest.raises(FileError, match="choose another"):
        create_matrix(tmp_path / name, (2, 2), "float32")
    assert not list(tmp_path.glob("*.tilewright"))


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "c.npy").mkdir()
    with pytest.raises(FileError, match="exists and is not a file"):
        create_matrix(tmp_path / "c.npy", (2, 2), "float32")
    for name in NAMES:
        with pytest.raises(FileError, match="does not exist"):
            create_matrix(tmp_path / "none" / name, (2, 2), "float32")
    with pytest.raises(ShapeError):
        create_matrix(tmp_path / "d.npy", (2, 2, 2), "float32")  # type: ignore[arg-type]
    with pytest.raises(DTypeError):
        create_matrix(tmp_path / "d.npy", (2, 2), "M8[s]")


@pytest.mark.parametrize(("library", "name"), [("h5py", "a.h5"), ("zarr", "a.zarr")])
def test_a_missing_library_is_named(library: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).touch()
    monkeypatch.setitem(sys.modules, library, None)
    for act in (lambda: open_matrix(tmp_path / name), lambda: create_matrix(tmp_path / f"c{name}", (2, 2), "f4")):
        with pytest.raises(UnavailableError, match=f"needs {library}.*{re.escape(how_to_install('files'))}"):
            act()


# ---- what a file is known by -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", STORED)
def test_the_fingerprint_is_that_of_the_contents(store: Callable[..., Source], tmp_path: Path) -> None:
    def of(matrix: np.ndarray, *, again: bool) -> str:
        if again:
            time.sleep(0.02)  # file systems tell times apart by a tick of the clock
        source = store(tmp_path / "a", matrix)
        try:
            assert source.fingerprint() == source.fingerprint()
            return source.fingerprint()
        finally:
            source.close()

    matrix = numbers((20, 30), "float64")
    before = of(matrix, again=False)
    matrix[13, 17] += 1
    assert of(matrix, again=True) != before


def test_memory_maps_count_as_their_files_where_that_is_sure(tmp_path: Path) -> None:
    matrix = numbers((20, 30), "float64")
    for order in (np.ascontiguousarray, np.asfortranarray):
        source = as_map(tmp_path / "a", order(matrix))
        assert isinstance(source, plain.PlainSource)
        out = np.empty((20, 30))
        source.read(slice(0, 20), slice(0, 30), out)
        np.testing.assert_array_equal(out, matrix)
        source.close()
    path = tmp_path / "a.npy"
    mapped = np.load(path, mmap_mode="r")
    with contextlib.closing(open_matrix(mapped.T)) as transposed:
        assert isinstance(transposed, AxesSource)
        assert np.array_equal(whole_matrix(transposed), matrix.T)
    arrays = [mapped[:10], mapped[:10].T, mapped[:, ::2], np.load(path, mmap_mode="c"), mapped.view(np.int64)]
    assert all(isinstance(open_matrix(each), ArraySource) for each in arrays)
    np.save(tmp_path / "b.npy", matrix + 1)
    (tmp_path / "b.npy").replace(path)  # the map is of a file that has no name any more
    assert isinstance(open_matrix(mapped), ArraySource)
    changed = np.load(path, mmap_mode="r+")
    changed[0, 0] = -5
    source = open_matrix(changed)
    assert isinstance(source, plain.PlainSource)
    one = np.empty((1, 1))
    source.read(slice(0, 1), slice(0, 1), one)
    source.close()
    assert one == -5


def test_formats_are_found_by_themselves() -> None:
    folder = Path(array.__file__).parent
    with_one = [path.stem for path in folder.glob("*.py") if "\nFORMAT = " in path.read_text()]
    assert sorted(with_one) == ["hdf5", "npy", "raw", "safetensors", "zarr"]
    assert len({id(each) for each in formats().values()}) == len(with_one)


@pytest.mark.slow
def test_threads_that_read_first_compile_once_between_them(tmp_path: Path) -> None:
    code = (
        "import sys, threading, numpy as np; from tilewright.large.files import open_matrix;"
        "s = open_matrix(sys.argv[1]); outs = [np.empty((9, 1500)) for _ in range(4)];"
        "ts = [threading.Thread(target=s.read, args=(slice(0, 9), slice(5, 1505), o)) for o in outs];"
        "[t.start() for t in ts]; [t.join() for t in ts]; assert all((o == 3).all() for o in outs); s.close()"
    )
    npy(tmp_path / "a.npy", np.full((9, 2000), 3.0))
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.npy")], check=True)


# ---- HDF5 files that are open elsewhere ------------------------------------------------------------------------------

MATRIX = np.arange(64.0).reshape(8, 8)


def whole(where: str) -> np.ndarray[Any, Any]:
    with contextlib.closing(open_matrix(where)) as source:
        return whole_matrix(source)


@pytest.mark.slow_cases("None-r-None")
@pytest.mark.parametrize("locking", [None, True, False, "best-effort"])
@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("chunks", [None, (3, 3)])
def test_a_file_that_this_process_has_open_is_read(mode: str, locking: Any, chunks: Any, tmp_path: Path) -> None:
    path = f"{tmp_path}/a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=MATRIX, chunks=chunks)
    with h5py.File(path, mode, locking=locking) as file:
        dataset, expected = file["x"], MATRIX.copy()
        if mode == "r+":
            dataset[1:3] = expected[1:3] = 5  # is in the library's buffers, not on the disk
        assert np.array_equal(whole(path), expected)
        assert np.array_equal(multiply(path, np.eye(8), device="cpu"), expected)
    assert np.array_equal(whole(path), expected)


def test_an_hdf5_file_that_cannot_be_opened_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{tmp_path}/a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["x"] = MATRIX
        file.flush()
        shutil.copy(path, tmp_path / "copy.h5")  # as another process sees it
        with pytest.raises(
            FileError, match=r"copy\.h5 cannot be read: a program has it open for writing, or did not cl"
        ):
            open_matrix(tmp_path / "copy.h5")
    opened = []

    def refused(*_: Any, locking: Any, **__: Any) -> None:
        opened.append(locking)
        raise OSError("Unable to open file (file locking flag values don't match)")

    monkeypatch.setattr(h5py, "File", refused)
    with pytest.raises(
        FileError, match=r"a\.h5 cannot be read: this process has it open in another way; close it, or pa"
    ):
        open_matrix(path)
    assert opened == [False, None, True, "best-effort"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EAGAIN, errno.EMFILE, errno.EIO, errno.ENOMEM, errno.ESTALE])
@pytest.mark.parametrize("name", ["a.npy", "a.safetensors", "a.h5", "a.zarr"])
def test_no_error_of_the_system_is_called_damage(
    name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_matrix(tmp_path / name, (2, 2), "f4").finish()

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(number, "as the library words it")

    monkeypatch.setattr(
        *{
            "a.npy": (np.lib.format, "read_magic", fails),
            "a.safetensors": (json, "loads", fails),
            "a.h5": (h5py, "File", fails),
            "a.zarr": (os, "scandir", fails),
        }[name]
    )
    with pytest.raises(FileError, match=rf"{name} cannot be read: {re.escape(os.strerror(number))}$"):
        open_matrix(tmp_path / name)


@pytest.mark.parametrize("name", ["a.npy", "a.h5", "a.zarr"])
def test_too_many_open_files_are_said(name: str, tmp_path: Path) -> None:
    create_matrix(tmp_path / name, (2, 2), "f4").finish()
    code = (
        "import os, resource, sys; from tilewright.large.files import open_matrix; open_matrix(sys.argv[1]).close();"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)); open_matrix(sys.argv[1])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], capture_output=True, text=True)
    assert f"{name} cannot be read: Too many open files" in done.stderr.splitlines()[-1]


# ---- dtypes that NumPy has from ml_dtypes ----------------------------------------------------------------------------

HALF = [[float(3 * i + j) for j in range(4)] for i in range(3)]
#: Reads a matrix in a process that has not imported ml_dtypes.
BFLOAT16 = """
import sys
assert "ml_dtypes" not in sys.modules
from tilewright.large.files import open_matrix, whole_matrix
source = open_matrix(sys.argv[1], shape=(3, 4), dtype="bfloat16")
print(source.dtype, whole_matrix(source).astype(float).tolist())
"""


def bfloat16_files(folder: Path) -> np.ndarray[Any, Any]:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: pip install ml_dtypes")
    matrix = np.array(HALF, ml_dtypes.bfloat16)
    np.save(folder / "w.npy", matrix)
    matrix.tofile(folder / "w.raw")
    matrix.tofile(folder / "w.bin")
    return matrix


@pytest.mark.parametrize("name", ["w.npy", "w.raw", "w.bin"])
def test_a_stated_bfloat16_needs_no_import_before(name: str, tmp_path: Path) -> None:
    bfloat16_files(tmp_path)
    done = subprocess.run([sys.executable, "-c", BFLOAT16, str(tmp_path / name)], capture_output=True, text=True)
    assert done.stdout == f"bfloat16 {HALF}\n", done.stderr


def test_a_npy_of_bfloat16_says_how_it_is_opened(tmp_path: Path) -> None:
    """NumPy writes nothing but the size of a dtype that is not its own."""
    bfloat16_files(tmp_path)
    for stated in ({}, {"dtype": "float32"}, {"dtype": "int8"}):
        with pytest.raises(
            DTypeError, match=r"w\.npy has dtype \|V2: if that is bfloat16, .* w\.npy:bfloat16 on the comm"
        ):
            open_matrix(tmp_path / "w.npy", **stated)
    np.save(tmp_path / "v.npy", np.zeros((3, 4), "V3"))
    with pytest.raises(DTypeError, match=r"v\.npy has dtype \|V3: it must be"):
        open_matrix(tmp_path / "v.npy", dtype="bfloat16")
    with pytest.raises(ShapeError, match="leave shape out"):
        open_matrix(tmp_path / "w.npy", shape=(4, 3), dtype="bfloat16")


@pytest.mark.parametrize("name", ["w.npy", "w.raw", "w.safetensors"])
def test_bfloat16_without_its_package_is_said_with_the_remedy(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_matrix(tmp_path / "w.safetensors", (3, 4), bfloat16_files(tmp_path).dtype).finish()
    stated = {} if name == "w.safetensors" else {"shape": (3, 4), "dtype": "bfloat16"}
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(UnavailableError, match=rf"{name}: bfloat16 needs ml_dtypes: pip install ml_dtypes$"):
        open_matrix(tmp_path / name, **stated)


# ---- errors that give the step that works ----------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".txt", ".mat", ".parquet", ".feather", ".pkl", ".pt", ".pth"])
def test_what_is_not_read_is_said_with_a_line_that_converts_it(suffix: str, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=rf"has the suffix \{suffix}, which no format has: convert it in Py"
    ) as refused:
        open_matrix(tmp_path / f"w{suffix}")
    line = str(refused.value).partition("in Python, ")[2]
    assert f"'w{suffix}'" in line
    assert "'w.npy'" in line or "'w.safetensors'" in line
    assert "\n" not in line


def test_lines_that_convert_do_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("w.npz", x=HALF)
    np.savetxt("w.csv", HALF, delimiter=",")
    np.savetxt("w.txt", HALF)
    for name in ("w.npz", "w.csv", "w.txt"):
        with pytest.raises(UsageError) as refused:
            open_matrix(name)
        exec(str(refused.value).partition("in Python, ")[2].replace("NAME", "x"), {"np": np})  # ours
        assert whole("w.npy").tolist() == HALF
        Path("w.npy").unlink()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("c", "c has no suffix, which no format has; name it .npy, .safetensors, .h5 or .zarr, or .raw (or .bin) for"),
        ("c.csv", "c.csv has the suffix .csv, which no format has; name it .npy"),
        ("c.nyp", "which no format has; did you mean .npy?"),
        ("folder", "folder is a directory without the suffix of a format: name a file in it, such as folder/c.npy"),
    ],
)
def test_an_output_without_a_known_suffix_says_which_are(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    for call in (
        lambda: create_matrix(name, (2, 2), "f4"),
        lambda: multiply(MATRIX, MATRIX, name, device="cpu"),
        lambda: multiply(MATRIX, MATRIX, name, device="cpu", resume=True, overwrite=True),
    ):
        with pytest.raises(UsageError, match=re.escape(words)):
            call()


def test_directories_and_empty_files_say_what_to_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    with pytest.raises(UsageError, match=r"folder is a directory without .*: name a file in it, such as folder/a\.npy"):
        open_matrix("folder")
    zarr.create_array("store", data=MATRIX)
    with pytest.raises(
        UsageError, match=r"it is a zarr store, whose name must end in \.zarr: ln -s store store\.zarr$"
    ):
        open_matrix("store")
    Path("store.zarr").symlink_to("store")
    assert np.array_equal(whole("store.zarr"), MATRIX)
    for name in ("e.npy", "e.safetensors", "e.h5"):
        Path(name).touch()
        with pytest.raises(
            FileError, match=rf"{name} is empty: a file with a matrix begins with a header; write it again"
        ):
            open_matrix(name)
    Path("e.raw").touch()
    with pytest.raises(FileError, match="is truncated"):
        open_matrix("e.raw", shape=(2, 2), dtype="f4")
    open_matrix("e.raw", shape=(0, 2), dtype="f4").close()


@pytest.mark.parametrize(
    "shape", ["(np.int64(3), np.int64(4))", "(np.int32(3), 4)", "(numpy.uint16(3), np.intp(4))", "(3, np.longlong(4),)"]
)
def test_a_header_with_scalars_of_numpy_2_is_read(shape: str, tmp_path: Path) -> None:
    """As a program writes it that formats a header by hand from ``array.shape`` or a product of sizes."""
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    header = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    (tmp_path / "a.npy").write_bytes(header + np.array(HALF).tobytes())
    assert whole(str(tmp_path / "a.npy")).tolist() == HALF
