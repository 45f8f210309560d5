"""HDF5: a dataset in one piece is read and written in place like any plain file; one in chunks through h5py.

The library locks itself, to do one thing at a time in a process, and a file that it is writing when the process dies cannot
be opened again. So a file that is created here is given all its structure first, with one contiguous dataset whose place
is fixed, and closed; its elements are then written past the library.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..disk import fingerprint
from ..errors import DTypeError, FileError
from .checks import READABLE, admit_dtype, admit_shape, explained, missing, pick
from .chunked import TOGETHER, ChunkedSource
from .format import Format, Shape, Sink, Source
from .plain import Layout, PlainSink, PlainSource


class HDF5Source(ChunkedSource):
    """A dataset in chunks, or any other that is not one piece of this file."""

    parallel = False

    def __init__(self, file: Any, dataset: Any, path: Path) -> None:
        self._file, self._dataset, self._path = file, dataset, Path(os.path.realpath(path))
        dtype, shape = admit_dtype(dataset.dtype, path), admit_shape(dataset.shape, path)
        strip = max(1, TOGETHER // max(1, 2 * shape[1] * dtype.itemsize))
        super().__init__(shape, dtype, dataset.chunks or (strip, max(1, shape[1])), self._rectangle)

    def _rectangle(self, rows: slice, columns: slice) -> np.ndarray:
        with explained(self._path, "read"):
            return self._dataset[rows, columns]

    def fingerprint(self) -> str:
        status = os.fstat(self._file.id.get_vfd_handle())
        changed = (status.st_size, status.st_mtime_ns, status.st_ino)
        return fingerprint(str(self._path), *changed, self._dataset.name, self.shape, self.dtype.str)

    def close(self) -> None:
        self._file.close()


def _library(path: Path) -> Any:
    try:
        import h5py
    except ImportError:
        raise missing("h5py", path) from None
    return h5py


def _open_file(path: Path) -> Any:
    """The file, for reading; it takes no lock of the library's, for one that is being written is another file."""
    h5py = _library(path)
    with explained(path, "read"):
        path.stat()
        try:
            return h5py.File(path, "r", locking=False, rdcc_nbytes=0)
        except OSError as error:
            raise FileError(f"{path} is no HDF5 file, or a truncated or damaged one: {error}") from error


def _dataset(file: Any, name: str | None, path: Path) -> Any:
    names: list[str] = []
    file.visititems(lambda each, thing: names.append(each) if hasattr(thing, "shape") else None)
    chosen = file[pick(names, None if name is None else name.strip("/"), path, "dataset")]
    if chosen.dtype.kind not in "biuf":
        raise DTypeError(f"{path}:{chosen.name} has dtype {chosen.dtype}: it must be {READABLE}")
    return chosen


def _layout(dataset: Any, path: Path) -> Layout | None:
    """The place of a dataset that is one piece of this very file; None for chunks, links to other files and the like."""
    import h5py

    shape, dtype = admit_shape(dataset.shape, path), admit_dtype(dataset.dtype, path)
    stored = dataset.id.get_create_plist()
    as_stored = dataset.id.get_type().equal(
        h5py.h5t.py_create(dtype, logical=True)
    )  # some have bits NumPy has no type for
    if stored.get_layout() != h5py.h5d.CONTIGUOUS or stored.get_external_count() or not as_stored:
        return None
    offset = dataset.id.get_offset()
    if offset is None:  # never written, or empty
        return Layout(shape, dtype) if 0 in shape else None
    return Layout(shape, dtype, offset)


def _open(path: Path, name: str | None, *_: object) -> Source:
    file = _open_file(path)
    try:
        dataset = _dataset(file, name, path)
        layout = _layout(dataset, path)
        if layout is None:
            return HDF5Source(file, dataset, path)
    except BaseException:
        file.close()
        raise
    file.close()
    return PlainSource(path, lambda _, __: layout)


def _find(name: str) -> Any:
    def find(_: BinaryIO, path: Path) -> Layout:
        with _open_file(path) as opened:
            layout = _layout(_dataset(opened, name, path), path)
        if layout is None:
            raise FileError(f"{path}:{name} is not in one piece, so it is not what was begun here: remove it")
        return layout

    return find


def _create(path: Path, name: str | None, shape: Shape, dtype: np.dtype, resume: bool) -> Sink:
    h5py, chosen = _library(path), (name or "matrix").strip("/")

    def begin(partial: Path) -> None:
        stored = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        stored.set_layout(h5py.h5d.CONTIGUOUS)
        stored.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)  # so that it has its place
        stored.set_fill_time(h5py.h5d.FILL_TIME_NEVER)  # and nothing is written there
        with h5py.File(partial, "w", locking=False) as file:
            file.create_dataset(chosen, shape, dtype, dcpl=stored)

    if dtype.name == "bfloat16":
        raise DTypeError(f"{path}: HDF5 has no bfloat16; write float32, or a .safetensors file")
    _refuse_to_lose(path, chosen)
    return PlainSink(path, shape, dtype, resume=resume, begin=begin, find=_find(chosen))


def _refuse_to_lose(path: Path, name: str) -> None:
    """A file is replaced as a whole, so it must hold no dataset but the one that is written."""
    if not path.is_file():
        return
    names: list[str] = []
    with _open_file(path) as file:
        file.visititems(lambda each, thing: names.append(each) if hasattr(thing, "shape") else None)
    others = sorted(set(names) - {name})
    if others:
        raise FileError(f"{path} holds {others[0]} too, which would be lost: choose another file, or remove it")


FORMAT = Format((".h5", ".hdf5"), _open, _create, members=True)
