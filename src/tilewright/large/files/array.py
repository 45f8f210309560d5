"""Defines matrices in memory that have the interface of a file that is read or written, and copies blocks."""

from __future__ import annotations

import hashlib
import math
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from ...product.operands import admit, admit_out
from .checks import Box, Shape, admit_dtype, corner, rectangle
from .format import Source, locate

#: Rows of a strip, in a copy between row-major and column-major: 16 float32 fill a cache line, which is then written whole.
STRIP = 16
#: Twice the bytes of the buffers in NumPy's casts.
WORKSPACE = 1 << 18
#: Bytes hashed at once for a fingerprint.
_HASHED = 1 << 22


def copy_block(out: np.ndarray, block: np.ndarray) -> None:
    """Copy ``block`` to ``out``, for any strides, and convert the elements if the dtypes differ.

    If one block is row-major and the other is column-major, the elements are copied strip by strip. For blocks of 1 MiB
    or more, copying by strips is about twice as fast as one copy.
    """
    if not out.size:  # one side of an array without elements can be 2^60
        return
    with np.errstate(over="ignore", invalid="ignore"):  # the caller chose the narrower dtype
        if out.ndim != 2:
            np.copyto(out, block, casting="unsafe")
            return
        if abs(block.strides[0]) < abs(block.strides[1]):
            out, block = out.T, block.T
        if abs(out.strides[0]) >= abs(out.strides[1]):
            np.copyto(out, block, casting="unsafe")
            return
        for row in range(0, len(out), STRIP):
            np.copyto(out[row : row + STRIP], block[row : row + STRIP], casting="unsafe")


class ArraySource:
    """A ``Source`` that reads a NumPy array of any strides. The fingerprint of an ``ArraySource`` reads the whole array
    (1 to 2 GiB/s).

    If the array has two axes, the source is a matrix.
    """

    parallel = True
    workspace = WORKSPACE

    def __init__(self, array: Any, where: str = "the array") -> None:
        self.array = admit(array, where)
        self.dtype = admit_dtype(self.array.dtype, where)
        self.shape: Any = self.array.shape
        self.grain: Any = (1,) * self.array.ndim

    @property
    def by_rows(self) -> bool:
        """Whether the elements of each row are contiguous."""
        return self.array.strides[1] == self.array.itemsize

    def read(self, rows: slice, columns: slice, out: np.ndarray) -> None:
        self.read_box((rows, columns), out)

    def read_box(self, box: Box, out: np.ndarray) -> None:
        corner(self.shape, box, out)
        copy_block(out, self.array[box])

    def opener(self) -> None:
        return None

    def fingerprint(self) -> str:
        digest = hashlib.sha256(repr((self.shape, self.dtype.str)).encode())
        array = np.atleast_1d(self.array)
        strip = max(1, _HASHED // max(1, math.prod(array.shape[1:]) * self.dtype.itemsize))
        for row in range(0, len(array) if array.size else 0, strip):
            digest.update(np.ascontiguousarray(array[row : row + strip]).view(np.uint8).data)
        return digest.hexdigest()[:16]

    def close(self) -> None:
        """Do nothing, because the array belongs to the caller."""


class ArraySink:
    """A ``Sink`` that writes to a NumPy array. Every write changes the array at once, before ``finish``."""

    parallel = True
    grain = (1, 1)
    workspace = WORKSPACE
    partial = None
    resumed = False
    forgets = False

    def __init__(self, array: np.ndarray, shape: Shape, dtype: np.dtype) -> None:
        self._array = admit_out(array, shape, dtype, "out")
        self._owner = array
        self.shape, self.dtype = shape, self._array.dtype

    def write(self, rows: slice, columns: slice, block: np.ndarray) -> None:
        rectangle(self.shape, rows, columns, block)
        copy_block(self._array[rows, columns], block)

    def attachment(self) -> None:
        return None

    def flush(self) -> None:
        if isinstance(self._owner, np.memmap):
            self._owner.flush()

    def finish(self) -> None:
        self.flush()

    def close(self) -> None:
        """Do nothing, because the array belongs to the caller."""


def array_behind(source: Any) -> np.ndarray[Any, Any] | None:
    """Return the array in memory that a source reads, or None if the source reads something else.

    The returned array has its own axes, even if the source exchanges or merges them.
    """
    stored = getattr(source, "stored", source)
    return stored.array if isinstance(stored, ArraySource) else None


def whole_matrix(source: Source) -> np.ndarray[Any, Any]:
    """Return all elements of a matrix as an array in memory."""
    matrix = np.empty(source.shape, source.dtype.newbyteorder("="))
    source.read(slice(0, matrix.shape[0]), slice(0, matrix.shape[1]), matrix)
    return matrix


def file_behind(array: np.ndarray) -> Source | None:
    """Return a source that reads the ``.npy`` file of an array that maps the whole file into memory; reading the file
    itself avoids page faults.

    Returns None if it is not certain that the array has the contents of this file, as for private maps (mode "c"), for
    slices, and for maps whose file was replaced later. The system's list of memory maps shows whether the file was
    replaced.
    """
    if type(array) is not np.memmap or array.mode not in ("r", "r+") or not isinstance(array.base, mmap.mmap):
        return None
    path = Path(array.filename or "")
    if path.suffix.lower() != ".npy" or not _is_mapped(path, array):
        return None
    source = locate(str(path))[0].open(path, None, None, None)
    same = source.shape == array.shape and source.dtype == array.dtype and _begins_at(source, array)
    if not same:
        source.close()
    return source if same else None


def _begins_at(source: Any, array: np.memmap) -> bool:
    ordered = array.flags.f_contiguous if source.layout.fortran else array.flags.c_contiguous
    return source.layout.offset == array.offset and ordered


def _is_mapped(path: Path, array: np.ndarray) -> bool:
    """Whether the memory of ``array`` is mapped from this file, by inode (Linux)."""
    try:
        maps = Path("/proc/self/maps").read_text()
        status = path.stat()
    except OSError:
        return False
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    for line in maps.splitlines():
        span, _, _, where, inode, *_ = line.split(maxsplit=5)
        first, end = (int(bound, 16) for bound in span.split("-"))
        if first <= array.ctypes.data < end:
            return where == device and int(inode) == status.st_ino
    return False
