"""Operands at URLs: every format by rectangles against NumPy, how few requests that takes, and what must be refused."""

from __future__ import annotations

import io
import json
import pickle
import re
import socket
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilewright as tw
from support.command_line import is_one_line
from support.file_server import FileServer, file_server
from support.interrupted import interrupted_after
from tilewright.errors import FileError, ResumeError, ShapeError, UnavailableError, UsageError, how_to_install
from tilewright.large.files import Source, create_matrix, local_path, open_matrix, path_of_result, ranged, remote
from tilewright.large.files import hdf5 as hdf5_files
from tilewright.large.files.format import locate
from tilewright.large.files.remote import Remote
from tilewright.large.multiply import job_on
from tilewright.large.streaming.options import Options
from tilewright.large.streaming.places import places

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'tilewright[cluster]'")
h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install 'tilewright[files]'")
zarr = pytest.importorskip("zarr", reason="zarr is not installed: pip install 'tilewright[files]'")

relaxed = settings(max_examples=15, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def memory() -> Iterator[Any]:
    """The file system in memory, empty."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


@pytest.fixture
def server() -> Iterator[FileServer]:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install 'fsspec[http]'")
    with file_server() as server:
        yield server


# ---- a matrix in each format, written by its own library or by hand --------------------------------------------------


def npy(matrix: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, matrix)
    return file.getvalue()


def safetensors(matrix: np.ndarray) -> bytes:
    header = {"other": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    code = {"f4": "F32", "f8": "F64", "i2": "I16"}[matrix.dtype.str[1:]]
    header["weight"] = {"dtype": code, "shape": [*matrix.shape], "data_offsets": [8, 8 + matrix.nbytes]}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(8) + matrix.tobytes()


def hdf5(matrix: np.ndarray, **stored: Any) -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w") as written:
        written["other"] = 5
        written.create_dataset("group/data", data=matrix, **stored)
    return file.getvalue()


def chunked_hdf5(matrix: np.ndarray) -> bytes:
    m, n = matrix.shape
    return hdf5(matrix, chunks=(min(m, 5), min(n, 7)), compression="gzip") if matrix.size else hdf5(matrix)


def zarr_files(matrix: np.ndarray, version: int = 3, name: str | None = None) -> dict[str, bytes]:
    """The files of a store, by their paths in it; about nine chunks."""
    store: dict[str, Any] = {}
    stored: dict[str, Any] = {"shape": matrix.shape, "dtype": matrix.dtype, "zarr_format": version}
    stored["chunks"] = tuple(max(4, size // 3 + 1) for size in matrix.shape)
    if name is not None:
        zarr.create_group(zarr.storage.MemoryStore(store), zarr_format=version)
    zarr.create_array(zarr.storage.MemoryStore(store), name=name, **stored)[:] = matrix
    return {path: content.to_bytes() for path, content in store.items()}


STORED = {
    "a.npy": lambda matrix: {"": npy(matrix)},
    "fortran.npy": lambda matrix: {"": npy(np.asfortranarray(matrix))},
    "a.raw": lambda matrix: {"": matrix.tobytes()},
    "a.safetensors:weight": lambda matrix: {"": safetensors(matrix)},
    "a.h5:/group/data": lambda matrix: {"": hdf5(matrix)},
    "chunked.h5:group/data": lambda matrix: {"": chunked_hdf5(matrix)},
    "a.zarr": zarr_files,
    "old.zarr": lambda matrix: zarr_files(matrix, 2),
    "group.zarr:deep/x": lambda matrix: zarr_files(matrix, 3, "deep/x"),
}


def put(system: Any, where: str, files: dict[str, bytes]) -> None:
    """Write files of one matrix to a file system, or to the server."""
    for name, content in files.items():
        path = f"{where}/{name}" if name else where
        if isinstance(system, FileServer):
            system.files[path] = content
        else:
            system.pipe_file(f"/{path}", content)


def numbers(shape: tuple[int, int], dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(1).integers(0, 100, shape).astype(dtype)


def all_of(source: Source) -> np.ndarray:
    out = np.empty(source.shape, source.dtype.newbyteorder("="))
    source.read(slice(0, out.shape[0]), slice(0, out.shape[1]), out)
    return out


@st.composite
def rectangles(draw: st.DrawFn) -> tuple[tuple[int, int], slice, slice]:
    shape = draw(st.tuples(st.integers(0, 40), st.integers(0, 40)))
    sides = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    return shape, slice(*sides[0]), slice(*sides[1])


@pytest.mark.parametrize("name", STORED)
@relaxed
@given(where=rectangles(), dtype=st.sampled_from(["f4", ">f4", "f8", "i2"]), to=st.sampled_from("fd"), data=st.data())
def test_any_rectangle_is_what_numpy_reads(name: str, memory: Any, where: Any, dtype: str, to: str, data: Any) -> None:
    shape, rows, columns = where
    matrix = numbers(shape, dtype.replace(">", "<") if "safetensors" in name else dtype)
    memory.store.clear()
    put(memory, f"folder/{name.partition(':')[0]}", STORED[name](matrix))
    stated = {"shape": shape, "dtype": matrix.dtype} if name.endswith(".raw") else {}
    out = np.full((columns.stop - columns.start, rows.stop - rows.start), 99, to).T
    out = out if data.draw(st.booleans()) else np.ascontiguousarray(out)
    sizes = {
        "MOST_RANGE_BYTES": [8, 100, 1 << 21],
        "GAP": [0, 20, 1 << 16],
        "MOST_REQUEST_BYTES": [200, 1 << 24],
        "MOST_RANGES": [1, 128],
    }
    with mock.patch.multiple(ranged, **{each: data.draw(st.sampled_from(sizes[each])) for each in sizes}):
        source = open_matrix(f"memory://folder/{name}", **stated)
        assert source.shape == shape
        source.read(rows, columns, out)
        source.close()
    np.testing.assert_array_equal(out, matrix[rows, columns].astype(to))


@pytest.mark.slow_cases("a.zarr", "old.zarr", "group.zarr:deep/x")
@pytest.mark.parametrize("name", STORED)
def test_a_server_is_read_by_eight_threads_and_reopened_from_a_pickle(name: str, server: FileServer) -> None:
    matrix = np.random.default_rng(2).random((90, 70))
    put(server, f"odd%20n%C3%A4me+/{name.partition(':')[0]}", STORED[name](matrix))
    stated = {"shape": matrix.shape, "dtype": matrix.dtype} if name.endswith(".raw") else {}
    source = open_matrix(f"{server.url}odd näme+/{name}", **stated)

    def read(seed: int) -> bool:
        random = np.random.default_rng(seed)
        (r, rows), (c, columns) = (sorted(map(int, random.integers(0, n + 1, 2))) for n in matrix.shape)
        out = np.empty((rows - r, columns - c), random.choice(["f4", "f8"]))
        source.read(slice(r, rows), slice(c, columns), out)
        return bool((out == matrix[r:rows, c:columns].astype(out.dtype)).all())

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(24)))
    opener = source.opener()
    assert opener is not None
    again = pickle.loads(pickle.dumps(opener))()
    np.testing.assert_array_equal(all_of(again), matrix)
    assert again.fingerprint() == source.fingerprint()
    again.close()
    source.close()


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "url", "member"),
    [
        ("s3://bucket/a.npy", "s3://bucket/a.npy", None),
        ("s3://bucket.zarr", "s3://bucket.zarr", None),
        ("s3://bucket/a.zarr/", "s3://bucket/a.zarr/", None),
        ("s3://bucket/a.zarr:deep/x", "s3://bucket/a.zarr", "deep/x"),
        ("s3://bucket/a.npy?versionId=x:1", "s3://bucket/a.npy?versionId=x:1", None),
        ("s3://bucket/a#1.h5:x#y", "s3://bucket/a#1.h5", "x#y"),
        ("memory://a.h5:x", "memory://a.h5", "x"),
        ("memory://a.h5:x/y", "memory://a.h5", "x/y"),
        ("https://host:8080/a.NPY", "https://host:8080/a.NPY", None),
        ("https://me:pass@host.zarr:80/a.h5:/x?sig=b.npy:c", "https://me:pass@host.zarr:80/a.h5?sig=b.npy:c", "/x"),
        ("https://host/model.safetensors#top", "https://host/model.safetensors#top", None),
        ("sftp://me@host.h5:22/a.zarr:b", "sftp://me@host.h5:22/a.zarr", "b"),
        ("simplecache::https://host/a.h5:x?y", "simplecache::https://host/a.h5?y", "x"),
        ("zip://in/a.npy::s3://bucket/b.zip", "zip://in/a.npy::s3://bucket/b.zip", None),
    ],
)
def test_a_url_is_told_from_its_member(where: str, url: str, member: str | None) -> None:
    _, found, name = locate(where)
    assert isinstance(found, Remote)
    assert (found.url, name) == (url, member)
    assert found.suffix.lower() in (".npy", ".zarr", ".h5", ".safetensors")


def test_a_url_of_a_local_file_is_its_path(tmp_path: Path) -> None:
    path = tmp_path / "my a.npy"
    np.save(path, numbers((3, 4)))
    for where in (path.as_uri(), f"file://{path}", f"file://localhost{path}", f"local://{path}"):
        assert local_path(where) == path
        source = open_matrix(where)
        np.testing.assert_array_equal(all_of(source), numbers((3, 4)))
        source.close()
    out = (tmp_path / "my c.npy").as_uri()
    assert tw.multiply(path.as_uri(), np.eye(4, dtype="f4"), out, device="cpu") == out
    np.testing.assert_array_equal(np.load(tmp_path / "my c.npy"), numbers((3, 4)))
    mapped = np.lib.format.open_memmap(tmp_path / "square.npy", "w+", "f4", (4, 4))
    with pytest.raises(UsageError, match="shares memory"):
        tw.multiply((tmp_path / "square.npy").as_uri(), np.eye(4, dtype="f4"), mapped, device="cpu")
    with pytest.raises(UsageError, match="no storage_options"):
        open_matrix(path, storage_options={"anon": True})


@pytest.mark.parametrize("where", ["a.npy", "odd:name.npy", "http:a.npy", "a::b.npy"])
def test_other_names_stay_paths(where: str) -> None:
    assert local_path(where) == Path(where)
    assert path_of_result(where) == where


def test_chained_urls_are_read(memory: Any) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("in/a.npy", npy(numbers((9, 8))))
        file.writestr("in/b.h5", hdf5(numbers((9, 8))))
    memory.pipe_file("/archive.zip", archive.getvalue())
    put(memory, "a.npy", {"": npy(numbers((9, 8)))})
    chain = "::memory://archive.zip"
    for where in ("simplecache::memory://a.npy", f"zip://in/a.npy{chain}", f"zip://in/b.h5:group/data{chain}"):
        source = open_matrix(where)
        np.testing.assert_array_equal(all_of(source), numbers((9, 8)))
        assert source.fingerprint() == source.fingerprint()
        source.close()


# ---- few requests ----------------------------------------------------------------------------------------------------


def ranges_of(server: FileServer) -> list[int]:
    """The bytes of each range that was asked for since the last call."""
    spans = [wanted.removeprefix("bytes=").split("-") for _, _, wanted in server.asked if wanted]
    server.asked.clear()
    return [int(end) + 1 - int(begin) for begin, end in spans]


@pytest.mark.slow
def test_narrow_rows_are_read_with_their_gaps_and_wide_ones_without(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranged, "RANGE", 64 << 10)
    matrix = np.random.default_rng(3).random((400, 512), np.float32)
    server.files["a.npy"] = npy(matrix)
    source = open_matrix(f"{server.url}a.npy")
    assert sum(ranges_of(server)) <= 1 + (64 << 10)  # whether it serves parts, and the header
    out = np.empty((400, 2), np.float32)
    source.read(slice(0, 400), slice(100, 102), out)
    np.testing.assert_array_equal(out, matrix[:, 100:102])
    assert len(ranges_of(server)) == -(-400 // 32)
    monkeypatch.setattr(ranged, "GAP", 100)
    source.read(slice(0, 50), slice(100, 102), out[:50])
    source.read(slice(0, 30), slice(0, 500), np.empty((30, 500), np.float32))
    assert ranges_of(server) == [8] * 50 + [29 * 2048 + 2000]
    source.close()


@pytest.mark.parametrize("where", ["memory", "server"])
def test_reading_allocates_no_more_than_it_says(
    where: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = request.getfixturevalue(where)
    monkeypatch.setattr(ranged, "MOST_REQUEST_BYTES", 4 << 20)
    put(system, "a.npy", {"": npy(np.ones((1000, 4000), np.float32))})
    source = open_matrix(f"{system.url if where == 'server' else 'memory://'}a.npy")
    out = np.empty((1000, 3990), np.float64)
    source.read(slice(0, 1), slice(10, 4000), out[:1])
    tracemalloc.start()
    source.read(slice(0, 1000), slice(10, 4000), out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    source.close()
    assert (out == 1).all()
    own = (2 << 20) if where == "server" else 0  # what sockets hold at both ends, in this process
    assert peak <= source.workspace + own + (1 << 20)
    assert source.workspace <= 9 << 20


# ---- products --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("a.npy", "a.zarr"), ("fortran.npy", "a.safetensors:weight"), ("a.zarr", "a.h5")])
def test_a_product_of_matrices_on_a_server(names: tuple[str, str], server: FileServer, tmp_path: Path) -> None:
    a, b = numbers((40, 50)), numbers((50, 30))
    for folder, name, matrix in zip("ab", names, (a, b), strict=True):
        key = name if name in STORED else "a.h5:/group/data"
        put(server, f"{folder}/{name.partition(':')[0]}", STORED[key](matrix))
    if names[1] == "a.h5":
        server.files["b/a.h5"] = chunked_hdf5(b)
    wheres = [f"{server.url}{folder}/{name}?token=x" for folder, name in zip("ab", names, strict=True)]
    wheres = [where.removesuffix("?token=x") if ".zarr" in where else where for where in wheres]
    if names[1] == "a.h5":
        wheres[1] = f"{server.url}b/a.h5:group/data"
    tw.multiply(*wheres, tmp_path / "c.npy", device="cpu")
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), a @ b)


def test_the_command_takes_urls(server: FileServer, cli: Callable[..., Any], tmp_path: Path) -> None:
    a, b = numbers((30, 40)), numbers((40, 20))
    server.files |= {"a.npy": npy(a), "b.raw": b.tobytes()}
    long_query = f"?signature={'x' * 3000}"
    raw = f"{server.url}b.raw?v=1:40x20:float32"
    answer = cli(
        "multiply", f"{server.url}a.npy{long_query}", raw, "-o", (tmp_path / "c.npy").as_uri(), "--json", "r.json"
    )
    assert answer.code == 0, answer.err
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), a @ b)
    assert is_one_line(cli("multiply", f"{server.url}b.raw?v=1", raw, "-o", "c.npy"), "does not say what it holds")
    refused = cli("multiply", f"{server.url}a.npy", raw, "-o", "s3://bucket/c.npy")
    assert is_one_line(refused, "s3://bucket/c.npy cannot be written", "then copy it there")
    assert is_one_line(cli("multiply", f"{server.url}none.npy", raw, "-o", "c.npy"), "none.npy", "does not exist")


def test_a_result_at_a_url_is_refused_before_anything_is_read(server: FileServer) -> None:
    server.files["a.npy"] = npy(np.eye(3))
    for call in (tw.multiply, tw.plan_multiply):
        with pytest.raises(UsageError, match="give a file on a disk as the result, then copy it there"):
            call(f"{server.url}a.npy", f"{server.url}a.npy", f"{server.url}c.zarr", device="cpu")
    with pytest.raises(UsageError, match="give a file on a disk"):
        create_matrix("memory://c.npy", (3, 3), "f4")
    assert not server.asked


@pytest.mark.parametrize("name", ["a.npy", "chunked.h5:group/data", "a.zarr"])
@pytest.mark.parametrize("where", ["memory", "server"])
def test_a_matrix_that_changes_while_it_is_multiplied_is_noticed(
    name: str, where: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    system = request.getfixturevalue(where)
    file, matrix = f"x/{name.partition(':')[0]}", numbers((30, 30))
    put(system, file, STORED[name](matrix))
    url = f"{system.url if where == 'server' else 'memory://'}x/{name}"

    def change(done: int, total: int) -> None:
        if done == total:
            put(system, file, STORED[name](matrix + 1))
            if where == "server" and name == "a.zarr":  # it states no sizes: only a new chunk is noticed
                system.files[f"{file}/c/0/9"] = b""

    with pytest.raises(ResumeError, match="a was changed while it was multiplied"):
        tw.multiply(url, np.eye(30, dtype="f4"), tmp_path / "c.npy", device="cpu", progress=change)
    assert not (tmp_path / "c.npy").exists()


@pytest.mark.slow_cases("a.h5:group/data")
@pytest.mark.parametrize("name", ["a.npy", "a.h5:group/data"])
def test_an_interrupted_product_is_resumed_with_another_signature(
    name: str, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_left", lambda *_: 2 << 20)  # room for a part of C
    a, b = numbers((1200, 50)), numbers((50, 1200))
    file = name.partition(":")[0]
    server.files[file] = npy(a) if name == "a.npy" else chunked_hdf5(a)
    options = {"device": "cpu", "memory": "64MiB"}
    with interrupted_after(1), pytest.raises(KeyboardInterrupt):
        tw.multiply(f"{server.url}{name}?sig=1", b, tmp_path / "c.npy", **options)
    assert not (tmp_path / "c.npy").exists()
    with job_on(None, f"{server.url}{name}?sig=2", b, tmp_path / "c.npy", Options(**options, resume=True)) as job:
        assert job.measured.before == 1
        job.run()
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), a @ b)
    server.files[file] = npy(a + 1) if name == "a.npy" else chunked_hdf5(a + 1)
    with pytest.raises(ResumeError, match="a changed since it was made"):
        tw.multiply(f"{server.url}{name}?sig=3", b, tmp_path / "c.npy", **options, resume=True)


# ---- what must be refused --------------------------------------------------------------------------------------------


def refused(url: str, **options: Any) -> str:
    """The message of the FileError for a URL, which has one line."""
    with pytest.raises(FileError) as error:
        open_matrix(url, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", ["a.npy", "a.h5", "a.zarr", "a.safetensors"])
def test_what_is_not_there_is_one_line(name: str, server: FileServer) -> None:
    for where in (f"{server.url}{name}", f"memory://{name}"):
        message = refused(where)
        assert message.startswith(f"{where} cannot be read: ")
        assert "does not exist" in message or "no zarr store is there" in message
    server.status = 403
    assert "permission denied" in refused(f"{server.url}{name}")
    server.status = 500
    assert "its server answers 500" in refused(f"{server.url}{name}")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        assert "Cannot connect" in refused(f"http://127.0.0.1:{silent.getsockname()[1]}/{name}")


@pytest.mark.parametrize("name", ["a.npy", "a.raw", "a.safetensors:weight", "a.h5:group/data"])
def test_a_server_without_parts_or_lengths_is_refused(name: str, server: FileServer) -> None:
    put(
        server, name.partition(":")[0], STORED[{"a.h5:group/data": "a.h5:/group/data"}.get(name, name)](numbers((9, 9)))
    )
    stated = {"shape": (9, 9), "dtype": "f4"} if name == "a.raw" else {}
    server.parts = False
    assert "its server sends no parts of files; copy it to a disk" in refused(f"{server.url}{name}", **stated)
    server.lengths = False
    assert "its server does not say how long it is; copy it to a disk" in refused(f"{server.url}{name}", **stated)


def test_a_zarr_store_needs_no_parts(server: FileServer) -> None:
    server.parts = False
    put(server, "a.zarr", zarr_files(numbers((9, 9))))
    source = open_matrix(f"{server.url}a.zarr")
    np.testing.assert_array_equal(all_of(source), numbers((9, 9)))
    source.close()


@pytest.mark.parametrize("where", ["memory", "server"])
def test_truncated_files_are_refused(where: str, request: pytest.FixtureRequest) -> None:
    system, matrix = request.getfixturevalue(where), numbers((50, 60))
    begin = system.url if where == "server" else "memory://"
    for name, content in {"a.npy": npy(matrix), "a.safetensors": safetensors(matrix)}.items():
        put(system, name, {"": content[:-1]})
        member = ":weight" if name == "a.safetensors" else ""
        assert "is truncated" in refused(f"{begin}{name}{member}")
        put(system, name, {"": content[:5]})
        assert "cannot be read" in refused(f"{begin}{name}{member}") or "damaged" in refused(f"{begin}{name}{member}")
        put(system, name, {"": content})
        source = open_matrix(f"{begin}{name}{member}")
        put(system, name, {"": content[:-100]})
        with pytest.raises(FileError, match=r"truncated while it was open|answers 416"):
            all_of(source)
        source.close()
    put(system, "b.h5", {"": chunked_hdf5(matrix)})
    with mock.patch.object(hdf5_files, "REMOTE_BUFFER", 100):
        source = open_matrix(f"{begin}b.h5:group/data")
    put(system, "b.h5", {"": b"short"})
    with pytest.raises(FileError, match="cannot be read at rows"):
        all_of(source)
    source.close()


def test_a_server_that_sends_less_than_asked_is_not_believed(server: FileServer) -> None:
    server.files["a.npy"] = npy(numbers((50, 60)))
    source = open_matrix(f"{server.url}a.npy")
    for rows in (1, 50):
        server.short = 1
        with pytest.raises(FileError, match="truncated while it was open"):
            source.read(slice(0, rows), slice(0, 20), np.empty((rows, 20), "f4"))
        server.short, server.parts = 0, False
        with pytest.raises(FileError, match="sends no parts"):
            source.read(slice(0, rows), slice(0, 20), np.empty((rows, 20), "f4"))
        server.parts = True
    source.close()


def test_wrong_contents_and_names_are_refused(memory: Any, server: FileServer) -> None:
    memory.pipe_file("/bad.npy", b"no matrix at all")
    assert "is no .npy file" in refused("memory://bad.npy")
    memory.pipe_file("/bad.h5", b"no matrix at all" * 99)
    assert "is no HDF5 file" in refused("memory://bad.h5")
    memory.pipe_file("/bad.zarr/zarr.json", b"{")
    assert "cannot be read" in refused("memory://bad.zarr")
    memory.pipe_file("/folder.npy/a", b"")
    assert "is not a file" in refused("memory://folder.npy")
    memory.pipe_file("/cube.npy", npy(np.ones((2, 2, 2))))
    with pytest.raises(ShapeError, match="3 dimensions"):
        open_matrix("memory://cube.npy")
    put(memory, "one.zarr", zarr_files(numbers((3, 3))))
    assert "is one array, not a group" in refused("memory://one.zarr:x")
    put(memory, "group.zarr", zarr_files(numbers((3, 3)), 3, "x"))
    with pytest.raises(UsageError, match="has no array 'y'"):
        open_matrix("memory://group.zarr:y")
    put(memory, "group.zarr", {key: each for key, each in zarr_files(numbers((3, 3)), 3, "z").items() if "z/" in key})
    with pytest.raises(UsageError, match=r"holds 2 arrays: name one, as in group\.zarr:x"):
        open_matrix("memory://group.zarr")
    with pytest.raises(UsageError, match=r"has the suffix \.txt, which no format has"):
        open_matrix("memory://a.txt")
    put(server, "group.zarr", zarr_files(numbers((3, 3)), 3, "x"))
    server.lists = False
    assert "name one, as in group.zarr:NAME" in refused(f"{server.url}group.zarr")
    source = open_matrix(f"{server.url}group.zarr:x")
    assert source.fingerprint() == source.fingerprint()
    source.close()


def test_a_dataset_in_other_files_is_refused(memory: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(400))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (10, 10), "f4", external=[(str(tmp_path / "secret"), 0, 400)])
        layout = h5py.VirtualLayout((10, 10), "f4")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", (10, 10))
        file.create_virtual_dataset("y", layout)
    memory.pipe_file("/a.h5", (tmp_path / "a.h5").read_bytes())
    for name in "xy":
        assert f"a.h5:/{name} lies in other files" in refused(f"memory://a.h5:{name}")


def test_libraries_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    for name in ("a.npy", "a.zarr", "a.h5"):
        with pytest.raises(UnavailableError, match=r"^s3://bucket/a\.\w+ needs a library for s3: .*s3fs"):
            open_matrix(f"s3://bucket/{name}")
        with pytest.raises(UsageError, match="no file system is named memry; did you mean memory"):
            open_matrix(f"memry://{name}")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    for name in ("a.npy", "a.zarr", "a.h5"):
        with pytest.raises(UnavailableError, match=f"needs fsspec, .* {re.escape(how_to_install('cluster'))}"):
            open_matrix(f"memory://{name}")


def test_secrets_are_in_no_message(server: FileServer, tmp_path: Path) -> None:
    begin = server.url.replace("://", "://me:p@ssw0rd@")
    for name in ("a.npy", "a.h5", "a.zarr", "a.safetensors:x", "a.txt"):
        for status in (None, 403, 500):
            server.status = status
            with pytest.raises((FileError, UsageError)) as error:
                open_matrix(f"{begin}{name}?sig=s3cr3t", storage_options={"headers": {"key": "s3cr3t"}})
            assert server.url.rstrip("/").removeprefix("http://") in str(error.value)
            assert "s3cr3t" not in str(error.value)
            assert "ssw0rd" not in str(error.value)
    with pytest.raises(UsageError) as refusal:
        tw.multiply(np.eye(2), np.eye(2), f"{begin}c.npy?sig=s3cr3t")
    assert "s3cr3t" not in str(refusal.value)
    remote_file = Remote(f"{begin}a.npy", {"key": "s3cr3t"})
    assert "s3cr3t" not in repr(remote_file)
    assert remote.is_url(remote_file.url)


@pytest.mark.parametrize("name", ["a.npy", "a.zarr"])
def test_options_reach_the_file_system_in_every_process(name: str, server: FileServer) -> None:
    put(server, name, STORED[name](numbers((5, 6))))
    server.key = "me"
    assert "permission denied" in refused(f"{server.url}{name}")
    source = open_matrix(f"{server.url}{name}", storage_options={"headers": {"X-Key": "me"}})
    opener = source.opener()
    assert opener is not None
    for each in (source, pickle.loads(pickle.dumps(opener))()):
        np.testing.assert_array_equal(all_of(each), numbers((5, 6)))
        each.close()


@pytest.mark.slow
def test_importing_the_files_loads_no_fsspec() -> None:
    command = "import sys, tilewright.large.files; assert 'fsspec' not in sys.modules"
    subprocess.run([sys.executable, "-c", command], check=True)
