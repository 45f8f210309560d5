"""Reads and writes matrices in files one rectangle at a time and without a memory map, so that the memory that reading
and writing take is known.

``.npy``, raw and ``.safetensors`` files, and HDF5 datasets that are contiguous in their file, are read and written in
place with positional system calls, from several threads. Zarr arrays and chunked HDF5 datasets are read and written
through their libraries, some chunks at a time. Files at URLs can be read in all formats, by ranges of bytes, through
fsspec.

A matrix that is being written is in the directory ``NAME.tilewright`` until it is complete. An existing file with the
name of the result is replaced only if the caller sets ``overwrite``, and can be read as an operand until then. A
program that has the old file open when it is replaced still sees the old contents, but a program that has an old zarr
directory open sees the new contents.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from .array import ArraySink, ArraySource, file_behind, whole_matrix
from .axes import MATRIX, as_matrix, is_transpose
from .checks import ArrayShape, Shape, admit_array_shape, admit_dtype, admit_shape, agree
from .format import PartWriter, Sink, Source, formats, locate, output_of, path_of_result
from .output import Output
from .remote import local_path
from .work import WorkDirectory

__all__ = [
    "Output",
    "PartWriter",
    "Sink",
    "Source",
    "WorkDirectory",
    "as_matrix",
    "create_matrix",
    "formats",
    "local_path",
    "locate",
    "open_array",
    "open_matrix",
    "output_of",
    "path_of_result",
    "whole_matrix",
]


def open_matrix(
    where: Any,
    *,
    shape: ArrayShape | None = None,
    dtype: Any = None,
    name: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    axes: Any = None,
) -> Source:
    """Open a matrix for reading: a file, whose suffix gives its format, or an array in memory.

    A file may be at any URL that fsspec reads, such as "s3://bucket/a.npy" or "https://host/a.zarr"; only the ranges of
    bytes that are needed are read. If the array is a memory map of a whole ``.npy`` file, the file itself is opened.

    Parameters
    ----------
    where : path or array
        The file, or the array. In a path such as "data.h5:/group/a" or "model.safetensors:weight", the text after the
        colon is the ``name``.
    shape : tuple of int, optional
        The shape of the matrix. A shape is required for raw files, which are row-major. For other files ``shape`` is
        compared with the file's shape.
    dtype : dtype or str, optional
        The dtype of the elements. A dtype is required for raw files. For other files ``dtype`` is compared with the
        file's dtype.
    name : str, optional
        The name of the matrix, for a file that holds several.
    storage_options : mapping, optional
        Arguments for fsspec's file system, for a file at a URL. If ``storage_options`` contain no credentials, fsspec
        looks for credentials in its configuration and in the environment.
    axes : two lists of int, optional
        Two lists with which an array of any number of axes is read as a matrix: the axes that become rows, and the axes
        that become columns. The axes of each list are merged in row-major order. ``([1], [0])`` gives the transpose of
        a matrix.

    Returns
    -------
    Source
        An open matrix with ``shape``, ``dtype``, ``read(rows, columns, into)`` and ``close()``. A ``Source`` can be an
        operand of ``multiply``.

    Raises
    ------
    FileError
        A file is missing, truncated, damaged or unreachable, or this process may not read it.
    ShapeError
        The array is not a matrix.
    DTypeError
        The matrix has a dtype that cannot be multiplied.
    UsageError
        The suffix or the name is unknown, or ``axes`` do not fit the array.
    UnavailableError
        The library of the format or of the URL is not installed.

    See Also
    --------
    multiply : Multiplies matrices that ``open_matrix`` has opened.

    Examples
    --------
    >>> import numpy as np, tempfile, pathlib
    >>> from tilewright.files import open_matrix
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.npy")
    >>> np.save(path, np.arange(12.0).reshape(3, 4))
    >>> source = open_matrix(path)
    >>> block = np.empty((2, 2), np.float32)
    >>> source.read(slice(1, 3), slice(2, 4), block)
    >>> block.tolist()
    [[6.0, 7.0], [10.0, 11.0]]
    >>> source.close()
    """
    if axes is None and shape is not None:
        admit_shape(shape, shown(where))
    array = open_array(where, shape=shape, dtype=dtype, name=name, storage_options=storage_options)
    try:
        return as_matrix(array, shown(where), axes)
    except BaseException:
        array.close()
        raise


def open_array(
    where: Any,
    *,
    shape: ArrayShape | None = None,
    dtype: Any = None,
    name: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """Open an array of any number of axes, to be read by ``read_box``. ``as_matrix`` turns the opened array into a
    matrix.

    An opened array of two axes is a matrix already. The arguments and errors are those of ``open_matrix``.
    """
    if not isinstance(where, (str, os.PathLike)):
        array = ArraySource(where)
        whole = getattr(where, "base", None)
        if (behind := file_behind(where)) is not None:
            return behind
        if isinstance(whole, np.memmap) and whole.ndim == 2 and is_transpose(array, ArraySource(whole)):
            behind = file_behind(whole)
        return array if behind is None else as_matrix(behind, "the array", MATRIX.transposed)
    file_format, path, member = locate(os.fspath(where), name, storage_options)
    wanted_shape = None if shape is None else admit_array_shape(shape, path)
    wanted = None if dtype is None else admit_dtype(dtype, path)
    source = file_format.open(path, member, wanted_shape, wanted)
    try:
        agree(path, source.shape, source.dtype, wanted_shape, wanted)
    except BaseException:
        source.close()
        raise
    return source


def shown(where: Any) -> object:
    """Return the name by which messages call an operand: the name of its file."""
    if not isinstance(where, (str, os.PathLike)):
        return "the array"
    _, path, member = locate(os.fspath(where))
    return f"{path}:{member}" if member else path


def create_matrix(
    where: Any,
    shape: Shape,
    dtype: Any,
    *,
    resume: bool = False,
    overwrite: bool = False,
    work: WorkDirectory | None = None,
) -> Sink:
    """Create a matrix to write: a file in the format that its suffix gives, or an array in memory of this shape.

    Disk space is reserved at once, so that a full disk is noticed before anything is computed. With ``resume`` the
    unfinished matrix of an earlier run in ``NAME.tilewright`` is continued, and ``resumed`` of the returned object says
    whether there was such a matrix. Without ``resume`` an unfinished matrix of an earlier run is removed. If a file
    with the name of the result exists, an error is raised. With ``overwrite`` an existing file is accepted, and
    ``finish`` replaces it. ``work`` is the open work directory of a journal for this result.

    Raises FileError if there is no space or no directory, if another process writes the file, if the matrix to resume
    is a different one, if a file of this name exists, or if the work directory contains other files. ``create_matrix``
    also raises ShapeError, DTypeError, UsageError and UnavailableError.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "c.npy")
    >>> sink = create_matrix(path, (2, 3), np.float32)
    >>> sink.write(slice(0, 2), slice(0, 3), np.ones((2, 3)))
    >>> path.exists(), sink.finish(), np.load(path).sum()
    (False, None, np.float32(6.0))
    """
    if not isinstance(where, (str, os.PathLike)):
        what = "the matrix to write"
        return ArraySink(where, admit_shape(shape, what), admit_dtype(dtype, what))
    output = output_of(where, shape, dtype, overwrite=overwrite) if work is None else work.output
    output.check()
    return locate(os.fspath(where))[0].create(output, resume, work)
