"""HDF5 files. A contiguous dataset is read and written in place, as in a plain file; a chunked dataset is accessed
through h5py.

The HDF5 library runs only one call at a time in a process. Besides, if the process dies while the HDF5 library writes a
file, the file cannot be opened again. To be safe from both problems, Tilewright lets the library only create the file
of a result, with one contiguous dataset at a fixed offset, and close it. The elements of the result are then written
without the library. An HDF5 file at a URL is read through the library, by ranges of bytes.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...errors import DTypeError, FileError, UsageError
from ...host.disk import fingerprint
from .checks import (
    READABLE,
    Location,
    admit_array_shape,
    admit_dtype,
    listed,
    missing_library,
    one_line,
    os_errors,
    parser_errors,
    pick,
    refuse_empty,
    unreadable_error,
)
from .chunked import TOGETHER, ChunkedSource
from .format import FileFormat, Sink, StoredArray
from .output import Output
from .plain import FileLayout, FindLayout, PlainSink
from .ranged import open_plain, remote_file
from .remote import Remote, resolved
from .work import WorkDirectory

#: Bytes that are read at once from a file at a URL: the library's own data are in many small pieces.
REMOTE_BUFFER = 1 << 20
#: The most groups in each other, and virtual datasets of each other, that are followed.
DEEPEST = 100


class HDF5Source(ChunkedSource):
    """A ``Source`` for a dataset that is not contiguous in its file, for example because it is chunked."""

    parallel = False

    def __init__(self, file: Any, dataset: Any, path: Path | Remote) -> None:
        self._file, self._dataset = file, dataset
        self.path = resolved(path)
        dtype, shape = admit_dtype(dataset.dtype, path), admit_array_shape(dataset.shape, path)
        # Without chunks any rectangle can be read directly. The width is limited: an empty dataset can have any shape.
        width = min(shape[-1], TOGETHER) if shape else 1
        strip = TOGETHER // max(1, 2 * (shape[-1] if shape else 1) * dtype.itemsize)
        sides = dataset.chunks or ((1,) * len(shape) + (strip, width))[-len(shape) :] if shape else ()
        super().__init__(shape, dtype, sides, self._box)

    def _box(self, *box: slice) -> np.ndarray:
        try:
            return np.asarray(self._dataset[box])
        except Exception as error:  # the library may raise anything for a damaged chunk
            raise unreadable_error(self.path, box, error) from error

    def opener(self) -> Callable[[], StoredArray]:
        return functools.partial(_open, self.path, self._dataset.name)

    def fingerprint(self) -> str:
        if isinstance(self.path, Remote):
            changed = self.path.identity()
        else:
            status = os.fstat(self._file.id.get_vfd_handle())
            changed = [str(self.path), status.st_size, status.st_mtime_ns, status.st_ino]
        return fingerprint(*changed, self._dataset.name, self.shape, self.dtype.str)

    def close(self) -> None:
        _close(self._file)


def _library(path: Location) -> Any:
    try:
        import h5py
    except ImportError:
        raise missing_library("h5py", path) from None
    return h5py


def _open_file(path: Path | Remote) -> Any:
    """The file, open for reading."""
    h5py = _library(path)
    if isinstance(path, Remote):
        size = path.size()
        with parser_errors(path, "HDF5 file"):
            return h5py.File(remote_file(path, size, REMOTE_BUFFER), "r", rdcc_nbytes=0)
    with os_errors(path, "read"):
        path.stat()
        if not path.is_file():
            raise FileError(f"{path} is not a file: a matrix is read from a file on a disk")
        refuse_empty(path, path.stat().st_size)
    with parser_errors(path, "HDF5 file"):
        return _unlocked(h5py, path)


def _unlocked(h5py: Any, path: Path) -> Any:
    """The file, open for reading, without the library's lock: a result that is being written is in another file.

    A file that this process has open already is opened with the same locking, because the library refuses any other.
    """
    for locking in (False, None, True, "best-effort"):
        try:
            return h5py.File(path, "r", locking=locking, rdcc_nbytes=0)
        except OSError as error:
            if "already open" in str(error):  # the file says so itself
                raise FileError(
                    f"{path} cannot be read: a program has it open for writing, or did not close it: {one_line(error)}"
                ) from error
            if "file locking" not in str(error):
                raise
    raise FileError(f"{path} cannot be read: this process has it open in another way; close it, or pass its dataset")


def _close(file: Any) -> None:
    """Close a file that was only read. An error here, as of a damaged file, loses nothing and is ignored."""
    with contextlib.suppress(Exception):
        file.close()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The file, open for reading; exceptions of the library become FileError."""
    file = _open_file(path)
    try:
        with parser_errors(path, "HDF5 file"):
            yield file
    finally:
        _close(file)


def _dataset(file: Any, name: str | None, path: Location) -> Any:
    names: list[str] = []

    def note(each: str, thing: Any) -> None:
        if each.count("/") > DEEPEST:  # the library's time grows with the square of the depth
            raise FileError(f"{path} has groups in each other, more than {DEEPEST}: copy the dataset to another file")
        if hasattr(thing, "shape"):
            names.append(each)

    file.visititems(note)
    chosen = file[pick(names, None if name is None else name.strip("/"), path, "dataset")]
    if chosen.dtype.kind not in "biufc":
        raise DTypeError(f"{path}:{chosen.name} has dtype {chosen.dtype}: it must be {READABLE}")
    if isinstance(path, Remote) and (chosen.is_virtual or chosen.external):
        raise FileError(
            f"{path}:{chosen.name} lies in other files, which cannot be read from a URL; copy all to a disk"
        )
    if isinstance(path, Path):
        _refuse_loop(chosen, path, ())
    return chosen


def _refuse_loop(dataset: Any, path: Path, above: tuple[tuple[str, str], ...]) -> None:
    """Raise FileError for a virtual dataset that is a part of itself, which would crash the library, and for data in a pipe
    or a device, for which it would wait. ``above`` are the files and names of the virtual datasets that lead here."""
    here = os.path.realpath(path), dataset.name
    if here in above or len(above) > DEEPEST:
        raise FileError(f"{path}:{dataset.name} is a virtual dataset that is a part of itself: write its data anew")
    sources = {(each.file_name, each.dset_name) for each in (dataset.virtual_sources() if dataset.is_virtual else ())}
    for name in {name for name, _ in sources if name != "."} | {name for name, *_ in dataset.external or ()}:
        for other in (path.parent / name, Path(name)):
            if other.exists() and not other.is_file():
                raise FileError(f"{path}:{dataset.name} lies in {other}, which is not a file: copy the data to a file")
    for file_name, inner in sources:
        other = path if file_name == "." else path.parent / file_name
        if other.is_file():
            with _opened(other) as file:
                found = file.get(inner)
                if hasattr(found, "is_virtual"):
                    _refuse_loop(found, other, (*above, here))


def _layout(dataset: Any, path: Location) -> FileLayout | None:
    """The place of a dataset that is one piece of this file; None for chunks, data in other files and the like."""
    import h5py

    # NumPy has two equal dtypes that print differently; h5py gives the one that becomes the other in a pickle.
    shape, dtype = admit_array_shape(dataset.shape, path), np.dtype(admit_dtype(dataset.dtype, path).str)
    stored = dataset.id.get_create_plist()
    as_stored = dataset.id.get_type().equal(
        h5py.h5t.py_create(dtype, logical=True)
    )  # NumPy has no dtype for some of HDF5's types
    if stored.get_layout() != h5py.h5d.CONTIGUOUS or stored.get_external_count() or not as_stored:
        return None
    offset = dataset.id.get_offset()
    if offset is None:  # never written, or empty
        return FileLayout(shape, dtype) if 0 in shape else None
    return FileLayout(shape, dtype, offset)


def _open(path: Path | Remote, name: str | None, *_: object) -> StoredArray:
    file = _open_file(path)
    try:
        with parser_errors(path, "HDF5 file"):
            dataset = _dataset(file, name, path)
            if file.id.get_intent():  # this process has it open for writing, and may not have written all to the disk
                dataset.flush()
            layout = _layout(dataset, path)
            if layout is None:
                return HDF5Source(file, dataset, path)
    except BaseException:
        _close(file)
        raise
    _close(file)
    return open_plain(path, lambda _, __: layout)


def _find(name: str) -> FindLayout:
    def find(file: BinaryIO, path: Location) -> FileLayout:
        assert isinstance(path, Path)
        with os_errors(path, "read"), parser_errors(path, "HDF5 file"), _library(path).File(file, "r") as opened:
            layout = _layout(_dataset(opened, name, path), path)
        if layout is None:
            raise FileError(f"{path}:{name} is not in one piece, so it was not begun by Tilewright: remove it")
        return layout

    return find


def _create(output: Output, resume: bool, work: WorkDirectory | None) -> Sink:
    h5py, name = _library(output.path), _name(output)
    if not output.array_shape:
        raise UsageError(f"{output.path}: a sum over all axes is one number, which is not written to .h5: use .npy")

    def begin(file: int) -> None:
        stored = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        stored.set_layout(h5py.h5d.CONTIGUOUS)
        stored.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)  # gives the elements their place now
        stored.set_fill_time(h5py.h5d.FILL_TIME_NEVER)  # writes nothing there
        with _Written(os.dup(file), "r+b") as opened:
            with h5py.File(opened, "w") as written:
                written.create_dataset(name, output.array_shape, output.dtype, dcpl=stored)
            if opened.error is not None:
                raise opened.error

    return PlainSink(output, resume, work, begin=begin, find=_find(name))


class _Written(io.FileIO):
    """A file that the HDF5 library writes. The library ignores an OSError, goes on, and fails later with an
    uninformative exception. Therefore ``_Written`` stores the first OSError, which is raised when the library has
    closed the file."""

    error: OSError | None = None

    def write(self, data: Any, /) -> int:
        left, nbytes = memoryview(data).cast("B"), memoryview(data).nbytes
        with self._noted():
            while left and self.error is None:
                left = left[super().write(left) :]
        return nbytes

    def truncate(self, size: int | None = None, /) -> int:
        with self._noted():
            super().truncate(size)
        return size or 0

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = self.error or error


def _name(output: Output) -> str:
    return (output.member or "matrix").strip("/")


def _lost(path: Path, output: Output) -> str | None:
    """What a file holds besides one matrix of that name and the groups that lead to it, as text; None for nothing."""
    with _opened(path) as file:
        if file.userblock_size:
            return f"begins with a block of {file.userblock_size} bytes of a user's own"
        return _beside(file, _name(output).split("/")) if len(file) or len(file.attrs) else None


def _beside(root: Any, parts: list[str]) -> str | None:
    """What a file holds besides the matrix at that path, as text: attributes, links, groups, other datasets and types."""
    import h5py

    here = root
    for part in parts:
        if not isinstance(here, h5py.Group):
            break
        others = sorted(name for name in here if name != part)
        if len(here.attrs):
            return f"holds {listed(sorted(here.attrs), 'attribute')} of {here.name!r}"
        if others:
            return f"holds {listed(others, 'object')} in {here.name!r}"
        if part not in here:
            return f"holds the group {here.name!r}"
        if not isinstance(here.get(part, getlink=True), h5py.HardLink):
            return f"holds the link {part!r} in {here.name!r}"
        here = here[part]
    if here.name.strip("/") != "/".join(parts) or not isinstance(here, h5py.Dataset):
        return f"holds the object {here.name!r}"
    if len(here.attrs):
        return f"holds {listed(sorted(here.attrs), 'attribute')} of {here.name!r}"
    is_matrix = len(here.shape or ()) == 2 and here.dtype.kind in "biufc" and not here.dtype.metadata
    return (
        None if is_matrix and not (here.is_virtual or here.external) else f"holds {here!r}, which is not a plain matrix"
    )


FORMAT = FileFormat((".h5", ".hdf5"), _open, _create, _lost, members=True)
