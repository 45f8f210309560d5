"""Zarr: a directory with one file a chunk, read and written through the ``zarr`` library (3 or newer).

It is written in format 3, in square chunks, and not compressed: a product of numbers that fill their mantissas hardly
shrinks, and encoding it would take longer than writing it. A store at a URL is read through the library and fsspec.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FileError
from ..host.disk import fingerprint
from .checks import (
    Location,
    Shape,
    admit_dtype,
    admit_shape,
    missing_library,
    os_errors,
    parser_errors,
    pick,
    raised,
    rectangle,
    unreadable_error,
)
from .chunked import TOGETHER, ChunkedSource, chunk_slices
from .format import FileFormat, Source
from .output import Output
from .partial import Partial, sync
from .positional import BUFFER
from .ranged import TOGETHER as TOGETHER_REMOTE
from .raw_chunks import raw_chunks
from .remote import Remote, resolved
from .swap import DATA, inside, refuse_given_up
from .work import WorkDirectory
from .zarr_directory import lost_from

#: Rows, and columns, of a chunk in a new store: 4 MiB of float32.
CHUNK = 1024
#: The files of a store that are not chunks.
_METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")


class ZarrSource(ChunkedSource):
    """An array of a store, in version 2 or 3 of the format."""

    parallel = True

    def __init__(self, array: Any, path: Path | Remote) -> None:
        is_remote = isinstance(path, Remote)
        self._array, self.path = array, resolved(path)
        dtype, shape = admit_dtype(array.dtype, path), admit_shape(array.shape, path)
        if 0 in array.chunks and 0 not in shape:
            raise ValueError(f"its chunks have no elements, {array.chunks}")
        together = TOGETHER_REMOTE if is_remote else TOGETHER  # the library requests several chunks at once
        self._raw = None if is_remote else raw_chunks(array)
        super().__init__(shape, dtype, array.chunks, self._rectangle, together)

    def read_within(self, nbytes: int) -> None:
        super().read_within(nbytes)
        if self._raw is not None:
            self.workspace = 2 * BUFFER

    def read(self, rows: slice, columns: slice, out: np.ndarray) -> None:
        first = rectangle(self.shape, rows, columns, out)
        if self._raw is not None:
            self._raw.read(*first, out)
        else:
            super().read(rows, columns, out)

    def _rectangle(self, rows: slice, columns: slice) -> np.ndarray:
        try:
            return self._array[rows, columns]
        except Exception as error:  # a codec may raise anything for a damaged chunk
            raise unreadable_error(self.path, rows, columns, error) from error

    def opener(self) -> Callable[[], Source]:
        return functools.partial(_open, self.path, self._array.path or None)

    def fingerprint(self) -> str:
        """Covers the file of every chunk: about 10 µs each. At a URL it covers the metadata, and of every chunk what the
        file system lists: S3 and the like list sizes and etags, most HTTP servers only names or nothing. Then a chunk that
        was overwritten is not noticed."""
        if isinstance(self.path, Remote):
            stored = json.dumps(self._array.metadata.to_dict(), sort_keys=True, default=str)
            return fingerprint(self.path.url, self._array.path, stored, self.path.listing(self._array.path))
        changed = []
        for folder, _, names in sorted(os.walk(self.path / self._array.path)):
            status = [(name, (Path(folder) / name).stat()) for name in sorted(names)]
            changed += [(folder, name, each.st_size, each.st_mtime_ns, each.st_ino) for name, each in status]
        return fingerprint(str(self.path), self._array.path, self.shape, self.dtype.str, changed)

    def close(self) -> None:
        self._array.store.close()


class ZarrWriter:
    """Writes rectangles of an array in an unfinished store, at ``root``; see ``PartWriter``."""

    def __init__(self, array: Any, root: Path, path: Path, directory: int = -1) -> None:
        """``directory`` is a descriptor that ``root`` leads through, if any; ``path`` is for errors."""
        self._array, self._root, self._path, self._directory = array, root, path, directory
        self.shape, self.dtype, self.grain = array.shape, array.dtype, array.chunks
        chunks = raw_chunks(array)
        if chunks is None:
            raise FileError(f"{path} has compressed chunks, so it was not begun by Tilewright: remove it")
        self._chunks = chunks
        self._written_lock = threading.Lock()
        self._written: set[Shape] = set()

    def write(self, rows: slice, columns: slice, block: np.ndarray) -> None:
        first = rectangle(self.shape, rows, columns, block)
        if self._directory >= 0:
            refuse_given_up(self._path, os.fstat(self._directory).st_ino)
        with os_errors(self._path, "written"):
            self._chunks.write(*first, block)
        touched = (
            chunk_slices(at, at + size, side) for at, size, side in zip(first, block.shape, self.grain, strict=True)
        )
        with self._written_lock:
            self._written.update(
                (r.start // self.grain[0], c.start // self.grain[1]) for r, c in itertools.product(*touched)
            )

    def flush(self) -> None:
        with self._written_lock:
            written, self._written = self._written, set()
        root = self._root / self._array.path
        chunks = {root / self._array.metadata.encode_chunk_key(chunk) for chunk in written}
        folders = {path.parent for path in chunks} | {root, root / "c", self._root}
        self.sync([*sorted(chunks | {root / "zarr.json"}), *sorted(folders)])

    def sync(self, paths: list[Path]) -> None:
        """Return when these files and directories are on the disk."""
        with os_errors(self._path, "written"):
            for path in paths:
                if path.exists():
                    sync(path)

    def close(self) -> None:
        self._array.store.close()
        if self._directory >= 0:
            os.close(self._directory)
        self._directory = -1


def attach_zarr(path: Path, name: str | None) -> ZarrWriter:
    """A writer of an unfinished store that another process has begun and will finish.

    It is reached through an open directory: what a process writes that was given up can never get into a later store of the
    same path.
    """
    with os_errors(path, "written"):
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        root = inside(directory, path)
        return ZarrWriter(_array(root, name, "r+"), root, path, directory)
    except BaseException:
        os.close(directory)
        raise


class ZarrSink:
    """An array of a new store, in a work directory until it is finished; see ``Sink``."""

    parallel = True
    forgets = False

    def __init__(self, output: Output, resume: bool, work: WorkDirectory | None) -> None:
        zarr = _library(output.path)
        self.shape, self.dtype = output.shape, output.dtype
        self.grain = (max(1, min(CHUNK, self.shape[0])), max(1, min(CHUNK, self.shape[1])))
        self.workspace = 2 * BUFFER
        self._partial = Partial(output, resume, work)
        self.partial, self._root = self._partial.path, self._partial.work.inside(DATA)
        try:
            with os_errors(self.partial, "written"):
                self._name = (output.member or "").strip("/")
                if self._partial.resumed:
                    _clean(self._root)
                self.resumed = (self._root / self._name / "zarr.json").exists()
                array = self._resume() if self.resumed else self._begin(zarr)
        except BaseException:
            self._partial.abandon()
            raise
        self._writer = ZarrWriter(array, self._root, self.partial)

    def _begin(self, zarr: Any) -> Any:
        self._partial.reserve(self.shape[0] * self.shape[1] * self.dtype.itemsize, allocate=False)
        stored = {"shape": self.shape, "dtype": self.dtype, "chunks": self.grain, "compressors": None}
        order = zarr.codecs.BytesCodec(endian=sys.byteorder)
        return zarr.create_array(store=self._root, name=self._name or None, serializer=order, **stored)

    def _resume(self) -> Any:
        array = _array(self._root, self._name or None, "r+")
        if (array.shape, array.dtype, array.chunks) != (self.shape, self.dtype, self.grain):
            layout = f"shape {array.shape}, dtype {array.dtype}, chunks {array.chunks}"
            raise FileError(
                f"{self.partial} is of {layout}, not {self.shape}, {self.dtype}: remove it, or do not resume"
            )
        return array

    def attachment(self) -> Callable[[], ZarrWriter]:
        return functools.partial(attach_zarr, self.partial, self._name or None)

    def write(self, rows: slice, columns: slice, block: np.ndarray) -> None:
        if self._partial.file < 0:
            raise FileError(f"{self._partial.target} is finished or closed: nothing more can be written to it")
        self._writer.write(rows, columns, block)

    def flush(self) -> None:
        self._writer.flush()

    def finish(self) -> None:
        self.flush()
        if self.resumed:  # also what an earlier process wrote and did not flush
            self._writer.sync(sorted(self._root.rglob("*")))
        self._partial.finish()

    def close(self) -> None:
        self._writer.close()
        self._partial.close()


def _library(path: Location) -> Any:
    try:
        import zarr
    except ImportError:
        raise missing_library("zarr", path) from None
    if int(zarr.__version__.split(".")[0]) < 3:
        raise missing_library(f"zarr 3 (this is {zarr.__version__})", path)
    return zarr


def _remote_array(remote: Remote, name: str | None) -> Any:
    """An array of the store at a URL: the store itself, or the array ``name`` in a group.

    The members of a group are listed only where that is needed, because many HTTP servers do not list them.
    """
    zarr = _library(remote)
    with remote.errors():
        remote.connect()  # raises an error of its own for an unknown protocol or a missing library
        store = zarr.storage.FsspecStore.from_url(remote.url, storage_options=dict(remote.options), read_only=True)
        try:
            root = zarr.open(store=store, mode="r")
        except FileNotFoundError:
            raise FileError(f"{remote} cannot be read: no zarr store is there") from None
        if isinstance(root, zarr.Array):
            if name:
                raise FileError(f"{remote} is one array, not a group: leave out :{name}")
            return root
        found = root.get(name.strip("/")) if name else None
        if not isinstance(found, zarr.Array):
            names = [path for path, each in root.members(max_depth=None) if isinstance(each, zarr.Array)]
            if not names:
                hint = "" if name else f"; if its server lists none, name one, as in {remote.name}:NAME"
                raise FileError(f"{remote} holds no array {repr(name) if name else ''}".rstrip() + hint)
            found = root[pick(names, name and name.strip("/"), remote, "array")]
        return found


def _array(path: Path, name: str | None, mode: str) -> Any:
    """An array of the store at ``path``: the store itself, or the array ``name`` in a group."""
    zarr = _library(path)
    with os_errors(path, "read"):
        path.stat()
        if not path.is_dir():
            raise FileError(f"{path} is not a zarr store: it must be a directory")
    with parser_errors(path, "zarr store"):
        names = _array_names(path)
        if names == [""] and name:
            raise FileError(f"{path} is one array, not a group: leave out :{name}")
        if not names:
            zarr.open(store=path, mode=mode)  # raises what is wrong with it, unless it is an empty group
        name = pick(names, name and name.strip("/"), path, "array")
        return zarr.open_array(store=path, path=name, mode=mode)


def _array_names(path: Path) -> list[str]:
    """The paths of the arrays in a store; only "" where the store is itself an array.

    Links are not followed: they can lead in circles.
    """
    paths = []
    for folder, folders, files in os.walk(path, onerror=raised):
        here = Path(folder)
        if pipes := [name for name in files if name in _METADATA and not (here / name).is_file()]:
            raise ValueError(f"{here / pipes[0]} is not a file")  # from a pipe the library would read forever
        if ".zarray" in files or ("zarr.json" in files and _node_type(here / "zarr.json") == "array"):
            paths.append("" if here == path else here.relative_to(path).as_posix())
            folders.clear()  # directories of its chunks
    return paths


def _node_type(metadata: Path) -> Any:
    """The type of a node by its metadata of format 3; None where they are damaged."""
    try:
        node = json.loads(metadata.read_bytes())
    except (ValueError, RecursionError):
        return None
    return node.get("node_type") if isinstance(node, dict) else None


def _open(path: Path | Remote, name: str | None, *_: object) -> Source:
    with parser_errors(path, "zarr store"):
        array = _remote_array(path, name) if isinstance(path, Remote) else _array(path, name, "r")
        return ZarrSource(array, path)


def _clean(root: Path) -> None:
    """Remove the files that the library was writing when a process died.

    Raises FileError for links, and for whatever is neither file nor directory: the library would write through them.
    """
    for path in sorted(root.rglob("*")):
        if not (path.is_dir() or path.is_file()) or path.is_symlink():
            raise FileError(
                f"{path.name} in the unfinished matrix is a link or not a file: remove it, or do not resume"
            )
        if path.name.endswith(".partial"):
            path.unlink()


FORMAT = FileFormat((".zarr",), _open, ZarrSink, lost_from, members=True, directory=True, chunk=CHUNK)
