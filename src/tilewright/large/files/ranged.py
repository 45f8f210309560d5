"""Reads a matrix that is contiguous in a file at a URL. Many ranges of bytes are requested at the same time, which hides
the latency.

The formats npy, raw and safetensors use ``RangeSource``. The other formats use ``remote_file``, which opens a buffered
file.
"""

from __future__ import annotations

import functools
import io
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np

from ...host.disk import fingerprint
from .array import WORKSPACE, copy_block
from .checks import Box, corner
from .format import StoredArray
from .plain import FindLayout, PlainSource, refuse_truncated
from .remote import Remote

#: The most bytes of one range, and of all ranges that are requested together.
MOST_RANGE_BYTES, MOST_REQUEST_BYTES = 2 << 20, 16 << 20
#: The most ranges that are requested together: file systems have about as many connections.
MOST_RANGES = 128
#: Rows whose gap is at most this many bytes are read in one range, gaps included: another request would take longer.
GAP = 64 << 10
#: Bytes of the buffer with which a header is read.
_HEADER = 64 << 10


class _Piece(NamedTuple):
    """Rows of a rectangle, or a part of one row, that are read as one range of bytes from ``begin`` to ``end``. The
    rows begin ``pitch`` bytes apart and are copied to ``out``."""

    out: np.ndarray
    pitch: int
    begin: int
    end: int


class RangeSource:
    """A ``Source`` for a matrix or array that is contiguous in a remote file. Any number of threads can read from a
    ``RangeSource``.
    """

    parallel = True

    def __init__(self, remote: Remote, find_layout: FindLayout) -> None:
        self._remote = remote
        size = remote.size()
        with remote_file(remote, size) as file:
            self._layout = find_layout(file, remote)
        refuse_truncated(remote, size, self._layout)
        self.shape, self.dtype = self._layout.shape, self._layout.dtype
        self.grain = (1,) * len(self.shape)
        #: Twice the ranges of a batch, because they are received in parts that are then joined.
        self.workspace = 2 * min(MOST_REQUEST_BYTES, self._layout.end - self._layout.offset) + WORKSPACE

    def read(self, rows: slice, columns: slice, out: np.ndarray) -> None:
        self.read_box((rows, columns), out)

    def read_box(self, box: Box, out: np.ndarray) -> None:
        first, size = corner(self.shape, box, out), self.dtype.itemsize
        if not out.size:
            return
        of_rectangles = (_pieces(part, size, *at) for *at, part in self._layout.rectangles(first, out))
        for batch in _batches(itertools.chain.from_iterable(of_rectangles)):
            parts = self._remote.read([(piece.begin, piece.end) for piece in batch])
            for piece, part in zip(batch, parts, strict=True):
                stored: np.ndarray = np.ndarray(piece.out.shape, self.dtype, part, strides=(piece.pitch, size))
                copy_block(piece.out, stored)

    def opener(self) -> Callable[[], StoredArray]:
        layout = self._layout
        return functools.partial(_open_again, self._remote, layout)

    def fingerprint(self) -> str:
        """Return a digest of the layout, the URL, the size, and the etag or modification time.

        If an HTTP server reports neither an etag nor a modification time, a change of the file that keeps its size is
        not noticed.
        """
        return fingerprint(self._remote.identity(), str(self._layout))

    def close(self) -> None:
        """Do nothing, because the connections belong to the file system object, which is shared with other files."""


def _open_again(remote: Remote, layout: Any) -> RangeSource:
    """The same matrix in another process."""
    return RangeSource(remote, lambda *_: layout)


def open_plain(where: Path | Remote, find_layout: FindLayout) -> StoredArray:
    """Open a matrix that is contiguous in a local file or in a file at a URL."""
    return RangeSource(where, find_layout) if isinstance(where, Remote) else PlainSource(where, find_layout)


def _pieces(out: np.ndarray, itemsize: int, begin: int, pitch: int) -> Iterator[_Piece]:
    """The ranges of a rectangle whose rows are ``pitch`` bytes apart, in order."""
    shape = out.shape
    height, width = shape[0], shape[1] * itemsize
    has_whole_rows = pitch <= MOST_RANGE_BYTES and pitch - width <= GAP
    step = MOST_RANGE_BYTES // pitch if has_whole_rows else 1
    part = shape[1] if has_whole_rows else max(1, MOST_RANGE_BYTES // itemsize)
    for row in range(0, height, step):
        count = min(step, height - row)
        for column in range(0, shape[1], part):
            end = min(column + part, shape[1])
            first = begin + row * pitch
            last = first + (count - 1) * pitch
            yield _Piece(out[row : row + count, column:end], pitch, first + column * itemsize, last + end * itemsize)


def _batches(pieces: Iterator[_Piece]) -> Iterator[list[_Piece]]:
    """The pieces that are requested together."""
    batch: list[_Piece] = []
    nbytes = 0
    for piece in pieces:
        size = piece.end - piece.begin
        if batch and (nbytes + size > MOST_REQUEST_BYTES or len(batch) == MOST_RANGES):
            yield batch
            batch, nbytes = [], 0
        batch.append(piece)
        nbytes += size
    if batch:
        yield batch


def remote_file(remote: Remote, size: int, buffer: int = _HEADER) -> BinaryIO:
    """Open a remote file for buffered random access."""
    return cast(BinaryIO, io.BufferedReader(_RangeFile(remote, size), buffer))


class _RangeFile(io.RawIOBase):
    """A remote file of ``size`` bytes; each read is a request."""

    def __init__(self, remote: Remote, size: int) -> None:
        self._remote, self._size, self._at = remote, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._size, self._at + min(len(buffer), MOST_REQUEST_BYTES))
        if end <= self._at:
            return 0
        (part,) = self._remote.read([(self._at, end)])
        buffer[: len(part)] = part
        self._at = end
        return len(part)
