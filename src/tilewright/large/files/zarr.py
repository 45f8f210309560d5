"""The format of zarr arrays: a directory with one file for each chunk, which is read and written through the ``zarr``
library (version 3 or newer).

Results are written in zarr format 3, in square chunks without compression. The elements of a product use all bits of
their mantissas, so compression would hardly make the files smaller, and it would take longer than writing the files. A
store at a URL is read through the library and fsspec.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import FileError
from ...host.disk import fingerprint
from .axes import chunk_sides, joined, merged_grain, parts_of
from .checks import (
    ArrayShape,
    Box,
    Location,
    Shape,
    admit_array_shape,
    admit_dtype,
    corner,
    listed,
    missing_library,
    os_errors,
    parser_errors,
    pick,
    raised,
    rectangle,
    unreadable_error,
)
from .chunked import TOGETHER, ChunkedSource, pieces
from .format import FileFormat, StoredArray
from .output import Output
from .positional import BUFFER, EndOfFile, read_rows, rectangles, write_rows
from .ranged import MOST_REQUEST_BYTES
from .remote import Remote, resolved
from .swap import DATA, check_not_taken_over, path_through_descriptor
from .work import Partial, WorkDirectory, sync

# ---- zarr directory --------------------------------------------------------------------------------------------------
# What a zarr directory holds besides one matrix, by its metadata and the names of its files, without the library.


#: Keys of metadata that say how an array is stored; a user may have added any other.
_STORED = {
    3: {
        *("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs"),
        *("attributes", "dimension_names", "storage_transformers"),
    },
    2: {
        *("zarr_format", "shape", "chunks", "dtype", "compressor", "fill_value", "order", "filters"),
        "dimension_separator",
    },
}
_OF_A_GROUP = {"zarr_format", "node_type", "attributes"}


def lost_from(path: Path, output: Output) -> str | None:
    """Return a text that says what a directory contains besides one matrix, or None if it contains only the matrix.

    The zarr groups on the path of ``output.member`` count as part of the matrix. Damaged metadata raise FileError or an
    exception of their parser.
    """
    here = path
    for part in [part for part in (output.member or "").strip("/").split("/") if part]:
        lost = _beside_in_group(here, part)
        if lost is not None:
            return lost
        here = here / part
    return _beside_array(here)


def _beside_in_group(group: Path, member: str) -> str | None:
    metadata = _json(group / "zarr.json")
    if metadata.get("node_type") != "group":
        return "is not a group of zarr 3 with one array"
    others = sorted({entry.name for entry in os.scandir(group)} - {"zarr.json", member})
    if others:
        return f"holds {listed(others, 'object')}"
    if not stat.S_ISDIR((group / member).lstat().st_mode):
        return f"holds {member!r}, which is a link or not a directory"
    return _of_a_user(metadata, _OF_A_GROUP)


def _beside_array(root: Path) -> str | None:
    if (root / ".zarray").exists():
        metadata, version, described = _json(root / ".zarray"), 2, {".zarray", ".zattrs"}
        metadata["attributes"] = _json(root / ".zattrs") if (root / ".zattrs").exists() else {}
    else:
        metadata, version, described = _json(root / "zarr.json"), 3, {"zarr.json"}
        if metadata.get("node_type") != "array":
            inside = sorted(entry.name for entry in os.scandir(root) if entry.name != "zarr.json")
            return f"is a group that holds {listed(inside, 'object')}" if inside else "is a group"
    lost = _of_a_user(metadata, _STORED[version] | {"attributes"}) or _no_matrix(metadata, version)
    if lost is not None:
        return lost
    chunk, grid = _chunks(metadata, version)
    for name, is_file in _entries(root):
        match = chunk.fullmatch(name)
        is_chunk = match is not None and all(int(at) < count for at, count in zip(match.groups(), grid, strict=True))
        if not (is_file and (name in described or is_chunk)):
            return f"holds {name!r}, which is not part of its array"
    return None


def _json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises FileError where there is none."""
    try:
        metadata = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise FileError(f"holds no {path.name} of a zarr array") from None
    except (ValueError, RecursionError):
        raise FileError(f"holds a damaged {path.name}") from None
    if not isinstance(metadata, dict):
        raise FileError(f"holds a damaged {path.name}")
    return metadata


def _of_a_user(metadata: dict[str, Any], known: set[str]) -> str | None:
    """What a user has added to metadata, as text; None where there is nothing."""
    if metadata.get("attributes"):
        return f"holds {listed(sorted(metadata['attributes']), 'attribute')}"
    if any(metadata.get("dimension_names") or ()):
        return f"names its dimensions {metadata['dimension_names']}"
    others = sorted(key for key in metadata.keys() - known if metadata[key] is not None)
    others += ["storage_transformers"] * bool(metadata.get("storage_transformers"))
    return f"holds {listed(others, 'metadata entry')}" if others else None


def _no_matrix(metadata: dict[str, Any], version: int) -> str | None:
    dtype, shape = metadata["dtype" if version == 2 else "data_type"], metadata["shape"]
    is_number = dtype == "bfloat16" or np.dtype(dtype).kind in "biufc"
    is_matrix = is_number and len(shape) == 2
    return None if is_matrix else f"holds an array of shape {tuple(shape)} and dtype {dtype}, which is not a matrix"


def _chunks(metadata: dict[str, Any], version: int) -> tuple[re.Pattern[str], list[int]]:
    """A pattern of the names of the chunks, and how many chunks there are along rows and columns."""
    if version == 2:
        sides, prefix, between = metadata["chunks"], "", metadata.get("dimension_separator", ".")
    else:
        sides = metadata["chunk_grid"]["configuration"]["chunk_shape"]
        encoding = metadata["chunk_key_encoding"]
        is_default = encoding["name"] == "default"
        between = encoding.get("configuration", {}).get("separator", "/" if is_default else ".")
        prefix = f"c{between}" if is_default else ""
    number = "(0|[1-9][0-9]{0,18})"
    name = re.escape(prefix) + number + re.escape(between) + number
    return re.compile(name), [-(-size // side) for size, side in zip(metadata["shape"], sides, strict=True)]


def _entries(root: Path, below: str = "") -> Iterator[tuple[str, bool]]:
    """The names below a directory, and whether each is a file. Left out are directories that hold something, and empty
    ones that are named like those of chunks."""
    for entry in sorted(os.scandir(root / below), key=lambda entry: entry.name):
        name = f"{below}{entry.name}"
        if not entry.is_dir(follow_symlinks=False):
            yield name, entry.is_file(follow_symlinks=False)
            continue
        inside = list(_entries(root, f"{name}/"))
        yield from inside
        if not inside and not re.fullmatch(r"c|(c/)?[0-9]+", name):
            yield f"{name}/", False


# ---- zarr ------------------------------------------------------------------------------------------------------------


#: Rows, and columns, of a chunk in a new store: 4 MiB of float32.
CHUNK = 1024
#: The files of a store that are not chunks.
_METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")


class ZarrSource(ChunkedSource):
    """A ``Source`` for an array in a zarr store, in version 2 or 3 of the zarr format."""

    parallel = True

    def __init__(self, array: Any, path: Path | Remote) -> None:
        is_remote = isinstance(path, Remote)
        self._array, self.path = array, resolved(path)
        dtype, shape = admit_dtype(array.dtype, path), admit_array_shape(array.shape, path)
        if 0 in array.chunks and 0 not in shape:
            raise ValueError(f"its chunks have no elements, {array.chunks}")
        together = MOST_REQUEST_BYTES if is_remote else TOGETHER  # the library requests several chunks at once
        self._raw = None if is_remote else raw_chunks(array)
        super().__init__(shape, dtype, array.chunks, self._box, together)

    def read_within(self, nbytes: int) -> None:
        super().read_within(nbytes)
        if self._raw is not None:
            self.workspace = 2 * BUFFER

    def read_box(self, box: Box, out: np.ndarray) -> None:
        first = corner(self.shape, box, out)
        if self._raw is not None:
            self._raw.read(first, out)
        else:
            super().read_box(box, out)

    def _box(self, *box: slice) -> np.ndarray:
        try:
            return np.asarray(self._array[box])
        except Exception as error:  # a codec may raise anything for a damaged chunk
            raise unreadable_error(self.path, box, error) from error

    def opener(self) -> Callable[[], StoredArray]:
        return functools.partial(_open, self.path, self._array.path or None)

    def fingerprint(self) -> str:
        """Return a digest of the metadata and of facts about the file of every chunk, which takes about 10 µs for each
        chunk.

        For a store at a URL, the facts about a chunk are those that the file system lists. S3 and similar services list
        sizes and etags. Most HTTP servers list only names or nothing, so a chunk that is overwritten does not change
        the fingerprint.
        """
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
    """Writes rectangles of an array in the unfinished store at ``root``; see ``PartWriter``."""

    def __init__(
        self,
        array: Any,
        extents: tuple[ArrayShape, ArrayShape],
        root: Path,
        path: Path,
        directory: int = -1,
    ) -> None:
        """``extents`` are the sizes of the axes that are rows, and of those that are columns. ``directory`` is a descriptor
        that ``root`` leads through, if any; ``path`` is for errors."""
        self._array, self._extents, self._root, self._path, self._directory = array, extents, root, path, directory
        self.shape: Shape = math.prod(extents[0]), math.prod(extents[1])
        self.dtype = array.dtype
        chunks = raw_chunks(array)
        if chunks is None:
            raise FileError(f"{path} has compressed chunks, so it was not begun by Tilewright: remove it")
        self._chunks = chunks
        self._written_lock = threading.Lock()
        self._written: set[ArrayShape] = set()

    def write(self, rows: slice, columns: slice, block: np.ndarray) -> None:
        first = rectangle(self.shape, rows, columns, block)
        if self._directory >= 0:
            check_not_taken_over(self._path, os.fstat(self._directory).st_ino)
        with os_errors(self._path, "written"):
            for box, part in parts_of(self._extents, first, block):
                written = self._chunks.write(tuple(each.start for each in box), part)
                with self._written_lock:
                    self._written.update(written)

    def flush(self) -> None:
        with self._written_lock:
            written, self._written = self._written, set()
        root = self._root / self._array.path
        chunks = {root / self._array.metadata.encode_chunk_key(chunk) for chunk in written}
        folders = {path.parent for path in chunks} | {root, root / "c", self._root}
        self.sync([*sorted(chunks | {root / "zarr.json"}), *sorted(folders)])

    def sync(self, paths: list[Path]) -> None:
        """Wait until the given files and directories are on the disk."""
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
    """Return a writer for an unfinished store that another process has begun and will finish.

    The writer reaches the store through the descriptor of an open directory. Because of the descriptor, a process that
    the other processes no longer wait for can never write into a later store with the same path.
    """
    with os_errors(path, "written"):
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        root = path_through_descriptor(directory, path)
        array = _array(root, name, "r+")
        rows, columns = array.shape
        return ZarrWriter(array, ((rows,), (columns,)), root, path, directory)
    except BaseException:
        os.close(directory)
        raise


class ZarrSink:
    """A ``Sink`` for an array of a new store, which stays in a work directory until it is finished."""

    parallel = True
    forgets = False

    def __init__(self, output: Output, resume: bool, work: WorkDirectory | None) -> None:
        zarr = _library(output.path)
        self.shape, self.dtype = output.shape, output.dtype
        extents = output.extents or ((self.shape[0],), (self.shape[1],))
        sides = [chunk_sides(sizes, CHUNK) for sizes in extents]
        self.grain: Shape = merged_grain(extents[0], sides[0]), merged_grain(extents[1], sides[1])
        self._stored_shape, self._chunks = joined(extents), joined(sides)
        self.workspace = 2 * BUFFER
        self._partial = Partial(output, resume, work)
        self.partial, self._root = self._partial.path, self._partial.work.entry_path(DATA)
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
        self._writer = ZarrWriter(array, extents, self._root, self.partial)

    def _begin(self, zarr: Any) -> Any:
        self._partial.reserve(self.shape[0] * self.shape[1] * self.dtype.itemsize, allocate=False)
        stored = {"shape": self._stored_shape, "dtype": self.dtype, "chunks": self._chunks, "compressors": None}
        order = zarr.codecs.BytesCodec(endian=sys.byteorder)
        return zarr.create_array(store=self._root, name=self._name or None, serializer=order, **stored)

    def _resume(self) -> Any:
        array = _array(self._root, self._name or None, "r+")
        if (array.shape, array.dtype, array.chunks) != (self._stored_shape, self.dtype, self._chunks):
            layout = f"shape {array.shape}, dtype {array.dtype}, chunks {array.chunks}"
            raise FileError(
                f"{self.partial} is of {layout}, not {self._stored_shape}, {self.dtype}: remove it, or do not resume"
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


def _open(path: Path | Remote, name: str | None, *_: object) -> StoredArray:
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


# ---- raw chunks ------------------------------------------------------------------------------------------------------
# Chunks of a zarr store that hold their elements as memory does: read and written in place, by positional calls.
#
# The library makes a bytes object of each chunk and an array of each rectangle, and the system maps their memory anew each
# time. Reading in place takes half the processor's time (0.05 against 0.09 s for 256 MiB), which products on a CPU need,
# and no memory beside the rectangle. So a part of a chunk is written without reading the others.


_WRITING = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class RawChunks:
    """The chunk files of an uncompressed array. ``file(*index)`` is the path of a chunk; all chunks have the same size and
    are row-major.

    If a chunk has no file, all its elements have the value ``fill``.
    """

    file: Callable[..., Path]
    sides: ArrayShape
    dtype: np.dtype[Any]
    fill: Any

    def read(self, first: Sequence[int], out: np.ndarray[Any, Any]) -> None:
        """Read the box that begins at ``first`` into ``out``. Raises FileError if a chunk's file has the wrong size or is
        no regular file.
        """
        for box, part in pieces(first, out, self.sides) if out.size else ():
            self._read(box, part)

    def write(self, first: Sequence[int], block: np.ndarray[Any, Any]) -> list[ArrayShape]:
        """Write ``block`` as the box that begins at ``first``, and return the indices of its chunks.

        For a chunk that has no file yet, a file of zeros is created first. Links are not followed. Raises OSError.
        """
        written = []
        for box, part in pieces(first, block, self.sides) if block.size else ():
            index, inside = self._where(box)
            path, size = self.file(*index), self.dtype.itemsize
            nbytes = math.prod(self.sides) * size
            try:
                file = os.open(path, _WRITING, 0o666)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                file = os.open(path, _WRITING, 0o666)
            try:
                if os.fstat(file).st_size != nbytes:
                    os.ftruncate(file, nbytes)
                for begin, pitch, rows in rectangles(self.sides, inside, part):
                    write_rows(file, rows, self.dtype, begin * size, pitch * size)
            finally:
                os.close(file)
            written.append(index)
        return written

    def _where(self, box: Box) -> tuple[ArrayShape, ArrayShape]:
        """The index of the chunk in which a box lies, and where it begins there."""
        places = [divmod(part.start, side) for part, side in zip(box, self.sides, strict=True)]
        return tuple(index for index, _ in places), tuple(inside for _, inside in places)

    def _read(self, box: Box, part: np.ndarray[Any, Any]) -> None:
        """A part of one chunk."""
        (index, inside), size = self._where(box), self.dtype.itemsize
        path = self.file(*index)
        with os_errors(path, "read"):
            try:
                # Without O_NONBLOCK, a pipe would block.
                file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except FileNotFoundError:
                part[...] = self.fill
                return
            try:
                status, expected = os.fstat(file), math.prod(self.sides) * size
                if not stat.S_ISREG(status.st_mode) or status.st_size != expected:
                    what = f"has {status.st_size} bytes" if stat.S_ISREG(status.st_mode) else "is no file"
                    raise FileError(f"{path} {what}, and a chunk has {expected}: it is damaged, copy or write it again")
                for begin, pitch, rows in rectangles(self.sides, inside, part):
                    read_rows(file, rows, self.dtype, begin * size, pitch * size)
            except EndOfFile:
                raise FileError(f"{path} was truncated while it was read") from None
            finally:
                os.close(file)


def raw_chunks(array: Any) -> RawChunks | None:
    """Return the chunk files of a zarr array, or None if they cannot be read directly.

    Chunks cannot be read directly if they are compressed, in shards, in another order of bytes or elements, or not in
    local files.
    """
    from zarr.codecs import BytesCodec
    from zarr.storage import LocalStore

    meta, dtype = array.metadata, np.dtype(array.dtype)
    if not isinstance(array.store, LocalStore) or not dtype.isnative:
        return None
    if meta.zarr_format == 2:
        raw = meta.compressor is None and not meta.filters and meta.order == "C"
    else:
        (codec, *others) = meta.codecs
        endian = getattr(getattr(codec, "endian", None), "value", None)
        raw = not others and isinstance(codec, BytesCodec) and endian in (sys.byteorder, None)
    if not raw:
        return None
    root = Path(array.store.root) / array.path
    fill = array.fill_value
    return RawChunks(
        lambda *index: root / meta.encode_chunk_key(index), tuple(array.chunks), dtype, 0 if fill is None else fill
    )
