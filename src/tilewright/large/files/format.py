"""Defines the interfaces of the matrices that products read and write, and how a file format is declared.

A file format is one module of this folder that defines ``FORMAT``: **adding a format means adding one file**.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import numpy as np

from ...errors import DTypeError, UsageError, did_you_mean
from .checks import ArrayShape, Box, Shape, admit_dtype, admit_shape
from .output import Output
from .remote import Remote, is_url, url_parts, without_scheme
from .work import WorkDirectory


class StoredArray(Protocol):
    """An array of any number of axes from which several threads can read boxes at the same time.

    A ``StoredArray`` of two axes is also a ``Source``; methods of the same name have the same meaning in both classes.
    """

    @property
    def shape(self) -> ArrayShape:
        """The size of each axis."""

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the stored elements, including their byte order."""

    @property
    def parallel(self) -> bool:
        """Whether reading this matrix is faster with several threads."""

    @property
    def grain(self) -> ArrayShape:
        """The sides of a chunk."""

    @property
    def workspace(self) -> int:
        """The most bytes that one ``read_box`` allocates, not counting ``out``."""

    def read_box(self, box: Box, out: np.ndarray) -> None:
        """Read a box into ``out``, which may have any strides, as ``Source.read`` does with a rectangle."""

    def opener(self) -> Callable[[], StoredArray] | None:
        """Return a function that opens the same array in another process; see ``Source``."""

    def fingerprint(self) -> str:
        """Return a short text that changes when the contents of the file may have changed; see ``Source``."""

    def close(self) -> None:
        """Release the file."""


class Source(Protocol):
    """A matrix from which several threads can read rectangles at the same time."""

    @property
    def shape(self) -> Shape:
        """The number of rows and columns."""

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the stored elements, including their byte order."""

    @property
    def parallel(self) -> bool:
        """Whether reading this matrix is faster with several threads."""

    @property
    def grain(self) -> Shape:
        """The sides of a chunk. Reads should begin and end at multiples of these sides, because a chunk that is read in
        two parts is decoded twice.
        """

    @property
    def workspace(self) -> int:
        """The most bytes that one ``read`` allocates, not counting ``out``."""

    def read(self, rows: slice, columns: slice, out: np.ndarray) -> None:
        """Read a rectangle into ``out``, which has two axes and any strides, and convert the elements to the dtype of
        ``out``.

        Numbers outside the range of the dtype of ``out`` are converted as by a cast in C: 1e300 becomes inf in float32.
        Raises FileError if the file has become shorter, is damaged or cannot be read.
        """

    def opener(self) -> Callable[[], Source] | None:
        """Return a function that can be pickled and that opens the same matrix in another process, or None for an array
        in this process's memory.
        """

    def fingerprint(self) -> str:
        """Return a short text that changes when the contents of the matrix may have changed.

        The fingerprint of a file is made from its path, size, time of change, inode and layout.
        """

    def close(self) -> None:
        """Release the file."""


class PartWriter(Protocol):
    """Writes rectangles of an unfinished matrix that another process has begun and will finish.

    Different processes must not write parts of the same chunk (``FileFormat.chunk``) at the same time.
    """

    def write(self, rows: slice, columns: slice, block: np.ndarray) -> None:
        """Write ``block`` to a rectangle of the matrix, converted to the stored dtype. Raises FileError if the disk is full
        or fails.
        """

    def flush(self) -> None:
        """Wait until everything that this writer has written is on the disk."""

    def close(self) -> None:
        """Release the file."""


class Sink(Protocol):
    """A matrix to which several threads can write rectangles at the same time, and whose file gets its name when it is
    complete.
    """

    @property
    def shape(self) -> Shape:
        """The number of rows and columns."""

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the stored elements."""

    @property
    def parallel(self) -> bool:
        """Whether writing this matrix is faster with several threads."""

    @property
    def grain(self) -> Shape:
        """The sides of a chunk. Blocks that are written should begin and end at multiples of these sides."""

    @property
    def workspace(self) -> int:
        """The most bytes that one ``write`` allocates, not counting ``block``."""

    @property
    def partial(self) -> Path | None:
        """The path of the unfinished matrix, or None if the matrix is in memory."""

    #: Whether written data are dropped from the page cache once they are on the disk; set before the first ``write``.
    forgets: bool

    @property
    def resumed(self) -> bool:
        """Whether this ``Sink`` continues the unfinished file of an earlier run: False if the ``Sink`` began a new
        file.
        """

    def write(self, rows: slice, columns: slice, block: np.ndarray) -> None:
        """Write ``block`` to a rectangle of the matrix, converted to ``dtype``. Raises FileError if the disk is full or
        fails.
        """

    def flush(self) -> None:
        """Wait until everything that was written to this matrix is on the disk and would survive a power failure."""

    def attachment(self) -> Callable[[], PartWriter] | None:
        """Return a function that can be pickled and that gives another process a writer for the unfinished matrix. The
        result is None for an array in memory.
        """

    def finish(self) -> None:
        """Flush the matrix and give its file the final name, in place of an existing file. After ``finish`` nothing can
        be written to the matrix.
        """

    def close(self) -> None:
        """Release the file. An unfinished file stays on the disk, so that a later run can resume it."""


#: Files that are not read, by suffix, and the line of Python that makes one that is: NAME is what the user must fill in.
_CONVERTED = {
    ".npz": "np.save('{stem}.npy', np.load('{name}')['NAME'])",
    ".csv": "np.save('{stem}.npy', np.loadtxt('{name}', delimiter=','))",
    **dict.fromkeys((".txt", ".tsv", ".dat"), "np.save('{stem}.npy', np.loadtxt('{name}'))"),
    ".mat": "np.save('{stem}.npy', scipy.io.loadmat('{name}')['NAME']); of MATLAB 7.3 it is HDF5: rename it {stem}.h5",
    ".parquet": "np.save('{stem}.npy', pandas.read_parquet('{name}').to_numpy())",
    ".feather": "np.save('{stem}.npy', pandas.read_feather('{name}').to_numpy())",
    ".pkl": "np.save('{stem}.npy', pandas.read_pickle('{name}'))",
    **dict.fromkeys(
        (".pt", ".pth"),
        "safetensors.torch.save_file(torch.load('{name}', map_location='cpu'), '{stem}.safetensors'), of one tensor "
        "np.save('{stem}.npy', torch.load('{name}', map_location='cpu').numpy())",
    ),
}


@dataclass(frozen=True)
class FileFormat:
    """A file format, declared by three functions: ``open(path, name, shape, dtype)``, ``create(output, resume, work)`` and
    ``lost(path, output)``.

    The ``path`` of ``open`` is a local file or a file at a URL. ``name`` selects one of several matrices in the file;
    it is None unless the format has ``members``. ``shape`` and ``dtype`` are the shape and dtype that the caller
    states, or None. A raw file needs both.

    ``lost`` returns a text that says what would be lost if a new ``output`` replaced a file (or a directory, if
    ``directory`` is set), such as "holds the array 'x'". ``lost`` returns None if the file holds one such matrix and
    nothing else. For a damaged file ``lost`` may raise any exception.
    """

    suffixes: tuple[str, ...]
    open: Callable[[Path | Remote, str | None, ArrayShape | None, np.dtype | None], StoredArray]
    create: Callable[[Output, bool, WorkDirectory | None], Sink]
    lost: Callable[[Path, Output], str | None]
    members: bool = False
    directory: bool = False
    #: Rows, and columns, of the smallest part that several processes can write at once.
    chunk: int = 1
    #: Whether it holds bfloat16, and says so where it says anything.
    bfloat16: bool = False


@functools.cache  # imports them once
def formats() -> dict[str, FileFormat]:
    """Return a dictionary from each suffix to the file format that a module of this folder declares for it.

    >>> sorted(formats())
    ['.bin', '.h5', '.hdf5', '.npy', '.raw', '.safetensors', '.zarr']
    """
    package = __name__.rpartition(".")[0]
    names = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    declared = [getattr(importlib.import_module(f"{package}.{name}"), "FORMAT", None) for name in names]
    return {suffix: each for each in declared if each for suffix in each.suffixes}


def locate(
    where: str, name: str | None = None, options: Mapping[str, Any] | None = None, *, writes: bool = False
) -> tuple[FileFormat, Path | Remote, str | None]:
    """Return the format, the file and the member that are named by a text such as "data.h5:/group/a". The member is
    None for a plain path.

    In a URL the name of the member precedes the query. ``options`` are options of the URL's file system, and ``writes``
    says that the text names a result. Raises UsageError for an unknown suffix, for a member in a format without
    members, and for ``options`` with a path that is not a URL.

    >>> locate("runs/model.safetensors:layer.0.weight")[1:]
    (PosixPath('runs/model.safetensors'), 'layer.0.weight')
    >>> locate("https://host:80/a.h5:group/x?v=1")[1:]
    (Remote(url='https://host:80/a.h5?v=1'), 'group/x')
    """
    if "\0" in where:
        raise UsageError(f"{where!r:.200} is not the name of a file: it has a null byte")
    where = without_scheme(where)
    begin, named, end = url_parts(where) if is_url(where) else ("", where, "")

    def file(path: str) -> Path | Remote:
        return Remote(begin + path + end, dict(options or {})) if begin else Path(path)

    if options and not begin:
        raise UsageError(f"{where} is a path, and has no storage_options: they are those of a URL's file system")
    for suffix, each in formats().items():
        before, colon, member = named.partition(f"{suffix}:")
        if each.members and colon and member and (begin or not Path(where).exists()):
            if name not in (None, member):
                raise UsageError(f"{file(named)} names {member!r}, and name is {name!r}: give one of them")
            return each, file(before + suffix), member
    suffix = PurePosixPath(named).suffix.lower()
    if suffix not in formats():
        raise _unknown(file(named), suffix, writes=writes)
    if name is not None and not formats()[suffix].members:
        raise UsageError(f"{file(named)} is one matrix without a name, and name is {name!r}: leave it out")
    return formats()[suffix], file(named), name


def _unknown(file: Path | Remote, suffix: str, *, writes: bool) -> UsageError:
    """The error for a name without the suffix of a format, with the step that works."""
    if isinstance(file, Path) and file.is_dir():
        is_store = any((file / name).exists() for name in ("zarr.json", ".zarray", ".zgroup"))
        hint = f"name a file in it, such as {file / ('c.npy' if writes else 'a.npy')}"
        if is_store and not writes:
            hint = f"it is a zarr store, whose name must end in .zarr: ln -s {file.name} {file.name}.zarr"
        return UsageError(f"{file} is a directory without the suffix of a format: {hint}")
    has = f"{file} has {f'the suffix {suffix}' if suffix else 'no suffix'}, which no format has"
    if suffix in _CONVERTED and not writes:
        line = _CONVERTED[suffix].format(name=file.name, stem=PurePosixPath(file.name).stem)
        return UsageError(f"{has}: convert it in Python, {line}")
    hint = did_you_mean(suffix, formats())
    if writes and not hint.startswith("did"):
        hint = "name it .npy, .safetensors, .h5 or .zarr, or .raw (or .bin) for nothing but the elements, row by row"
    return UsageError(f"{has}; {hint}")


def output_of(
    where: str | os.PathLike[str],
    shape: Shape,
    dtype: np.dtype,
    *,
    overwrite: bool = False,
    extents: tuple[ArrayShape, ArrayShape] | None = None,
) -> Output:
    """Return the description of the result that ``where`` names. With ``extents``, the result is an array whose row
    axes and column axes have these sizes.

    Raises UsageError, ShapeError and DTypeError.
    """
    file_format, path, member = locate(path_of_result(where), writes=True)
    assert isinstance(path, Path)
    what = "the matrix to write"
    shape, dtype = admit_shape(shape, what), admit_dtype(dtype, what)
    if dtype.name == "bfloat16" and not file_format.bfloat16:
        hint = "write it with dtype='float32' (--dtype float32), or to a .safetensors file"
        raise DTypeError(f"{path}: {path.suffix} has no bfloat16: {hint}")
    return Output(path, member, shape, dtype, file_format.directory, file_format.lost, overwrite, extents)


def path_of_result(where: str | os.PathLike[str]) -> str:
    """Return the path of a result whose name is given as a path or a ``file://`` URL.

    Raises UsageError for an unknown suffix and for any other URL, because the unfinished result and its journal need a file
    system with renames and locks.
    """
    path = without_scheme(os.fspath(where))
    if is_url(path):
        raise UsageError(f"{Remote(path)} cannot be written: give a file on a disk as the result, then copy it there")
    locate(path, writes=True)
    return path
