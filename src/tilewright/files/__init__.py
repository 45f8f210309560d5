"""Matrices in files: read and written by rectangles, without a memory map, so that memory stays what was promised.

``.npy``, raw bytes and ``.safetensors`` are read and written in place by positional system calls, from several threads;
so are HDF5 datasets that lie in one piece. Zarr and chunked HDF5 go through their libraries, piece by piece.
A matrix that is written lies in ``NAME.partial`` beside its name until it is complete; an input of that name can still be
read until then, and a file that is open stays as it was. Only a zarr directory changes under those who keep it open.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .array import ArraySink, ArraySource, file_behind
from .checks import admit_dtype, admit_shape, agree
from .format import Shape, Sink, Source, formats, locate

__all__ = ["Sink", "Source", "create_matrix", "formats", "open_matrix"]


def open_matrix(where: Any, *, shape: Shape | None = None, dtype: Any = None, name: str | None = None) -> Source:
    """A matrix to read: a file by its suffix, or an array in memory.

    ``name``, or what follows a colon ("data.h5:/group/a", "model.safetensors:weight"), says which of several; a file
    with only one needs none. ``shape`` and ``dtype`` are needed for raw files (row-major), and checked for others.
    A memory map of a whole ``.npy`` counts as that file.

    Raises FileError (absent, truncated, damaged), ShapeError (not 2-D), DTypeError, UsageError (a suffix or a name that
    nobody knows) and UnavailableError (the format's library is not installed).

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.npy")
    >>> np.save(path, np.arange(12.0).reshape(3, 4))
    >>> source = open_matrix(path)
    >>> block = np.empty((2, 2), np.float32)
    >>> source.read(slice(1, 3), slice(2, 4), block)
    >>> block.tolist()
    [[6.0, 7.0], [10.0, 11.0]]
    >>> source.close()
    """
    if not isinstance(where, (str, os.PathLike)):
        behind = file_behind(where) if isinstance(where, np.ndarray) else None
        return behind or ArraySource(where)
    found, path, member = locate(os.fspath(where), name)
    wanted_shape = None if shape is None else admit_shape(shape, path)
    wanted = None if dtype is None else admit_dtype(dtype, path)
    source = found.open(path, member, wanted_shape, wanted)
    try:
        agree(path, source.shape, source.dtype, wanted_shape, wanted)
    except BaseException:
        source.close()
        raise
    return source


def create_matrix(where: Any, shape: Shape, dtype: Any, *, resume: bool = False) -> Sink:
    """A matrix to write: a file by its suffix, or an array in memory of that shape.

    The space is taken at once, so that a full disk is known before anything is computed. What an earlier run has left in
    ``NAME.partial`` is taken up with ``resume`` (the sink's ``resumed`` says whether there was any) and lost without.

    Raises FileError (no space, no directory, another process writes it, another matrix to resume, other datasets that
    would be lost), ShapeError, DTypeError, UsageError and UnavailableError.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "c.npy")
    >>> sink = create_matrix(path, (2, 3), np.float32)
    >>> sink.write(slice(0, 2), slice(0, 3), np.ones((2, 3)))
    >>> path.exists(), sink.finish(), np.load(path).sum()
    (False, None, np.float32(6.0))
    """
    admitted, wanted = admit_shape(shape, "the matrix to write"), admit_dtype(dtype, "the matrix to write")
    if not isinstance(where, (str, os.PathLike)):
        return ArraySink(where, admitted, wanted)
    found, path, member = locate(os.fspath(where))
    return found.create(path, member, admitted, wanted, resume)
