"""Reads and writes, in place, a matrix that is contiguous in its file, after a header of any kind."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ...errors import FileError
from ...host.disk import fingerprint
from ...host.machine import bytes_text
from .checks import ArrayShape, Box, Location, Shape, corner, os_errors, rectangle
from .output import Output
from .positional import (
    BUFFER,
    EndOfFile,
    move_rows,
    read_rows,
    rectangles,
    rows_are_contiguous,
    write_rows,
    write_through,
)
from .swap import DATA, check_not_taken_over
from .work import Partial, WorkDirectory

#: Bytes of a page. Elements begin at a multiple of it in the files written here: before a part of a page is written, the
#: system must read the page.
PAGE = 4096


@dataclass(frozen=True)
class FileLayout:
    """The position of the elements of a matrix or array in a file: from byte ``offset`` on, row by row, or column by
    column if ``fortran`` is set.
    """

    shape: ArrayShape
    dtype: np.dtype
    offset: int = 0
    fortran: bool = False

    @property
    def end(self) -> int:
        """The offset of the first byte after the elements."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize

    def rectangles(self, first: tuple[int, ...], block: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield the rectangles of the file that contain the box that begins at ``first`` and has the shape of ``block``.

        For each rectangle, yields the offset of its first byte, the number of bytes from one row to the next, and its
        part of ``block``.
        """
        shape, size = self.shape, self.dtype.itemsize
        if self.fortran:  # a column-major matrix is its transpose in row-major order
            shape, first, block = shape[::-1], first[::-1], block.T
        for begin, pitch, part in rectangles(shape, first, block):
            yield self.offset + begin * size, pitch * size, part


#: Finds the layout in an open file; the path is for errors.
FindLayout = Callable[[BinaryIO, Location], FileLayout]


class PlainSource:
    """A ``Source`` for a matrix or array that is contiguous in a local file. Any number of threads can read from a
    ``PlainSource``.
    """

    parallel = True
    workspace = 2 * BUFFER

    def __init__(self, path: Path, find_layout: FindLayout) -> None:
        self.path = Path(os.path.realpath(path))
        with os_errors(path, "read"):
            if path.exists() and not path.is_file():
                raise FileError(f"{path} is not a file: a matrix is read from a file on a disk")
            self._file = path.open("rb")
        try:
            self.layout = find_layout(self._file, path)
            refuse_truncated(path, file_size(self._file), self.layout)
        except BaseException:
            self._file.close()
            raise
        self.shape, self.dtype = self.layout.shape, self.layout.dtype
        self.grain = (1,) * len(self.shape)

    def read(self, rows: slice, columns: slice, out: np.ndarray) -> None:
        self.read_box((rows, columns), out)

    def read_box(self, box: Box, out: np.ndarray) -> None:
        first = corner(self.shape, box, out)
        if not out.size:
            return
        try:
            with os_errors(self.path, "read"):
                for begin, pitch, part in self.layout.rectangles(first, out):
                    read_rows(self._file.fileno(), part, self.dtype, begin, pitch)
        except EndOfFile as error:
            size, end = self.layout.end, error.args[0]
            raise FileError(f"{self.path} ends at byte {end} of {size}: it was truncated while it was open") from None

    def opener(self) -> Callable[[], PlainSource]:
        return functools.partial(_open_again, self.path, self.layout)

    def fingerprint(self) -> str:
        status = os.fstat(self._file.fileno())
        return fingerprint(str(self.path), status.st_size, status.st_mtime_ns, status.st_ino, str(self.layout))

    def close(self) -> None:
        self._file.close()


def _open_again(path: Path, layout: FileLayout) -> PlainSource:
    """The same matrix in another process."""
    return PlainSource(path, lambda *_: layout)


class PlainWriter:
    """Writes rectangles of an open file in place, from any number of threads. ``path`` is used in error messages.

    If the file belongs to another process, ``unfinished`` raises an error once that process has finished or removed the
    file.
    """

    forgets = False

    def __init__(
        self, file: int, layout: FileLayout, path: Path, unfinished: Callable[[], None] = lambda: None
    ) -> None:
        self._file, self._layout, self._path, self._unfinished = file, layout, path, unfinished
        rows, columns = layout.shape
        self.shape: Shape = rows, columns
        self.dtype = layout.dtype

    def write(self, rows: slice, columns: slice, block: np.ndarray) -> None:
        row, column = rectangle(self.shape, rows, columns, block)
        pitch = self.shape[1] * self.dtype.itemsize
        if not block.size:
            return
        with os_errors(self._path, "written"):
            self._unfinished()
            self._write(self._layout.offset + row * pitch + column * self.dtype.itemsize, pitch, block)

    def _write(self, begin: int, pitch: int, block: np.ndarray) -> None:
        # A page with a part that is written later must stay in memory, or it would be read from the disk again.
        whole = not (begin | pitch | block.shape[1] * block.itemsize) % PAGE
        if self.forgets and whole and block.dtype == self.dtype and rows_are_contiguous(block):
            write_through(self._file, block, begin, pitch)
        else:
            write_rows(self._file, block, self.dtype, begin, pitch)

    def flush(self) -> None:
        with os_errors(self._path, "written"):
            os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


def attach_plain(path: Path, layout: FileLayout, inode: int) -> PlainWriter:
    """Return a writer for an unfinished matrix that another process has begun and will finish.

    Raises FileError if there is no such file at ``path`` on this machine.
    """
    with os_errors(path, "written"):
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        if os.fstat(file).st_ino != inode:
            os.close(file)
            raise FileError(f"{path} is another file here than in the process that began it")
    return PlainWriter(file, layout, path, functools.partial(check_not_taken_over, path, inode))


class PlainSink:
    """A ``Sink`` for a row-major matrix that is contiguous in its file. Any number of threads can write to a
    ``PlainSink``.

    ``begin(file)`` writes the header into the empty file with the descriptor ``file``. ``find`` reads the layout from
    the header, of a new file and of a file that is resumed.
    """

    parallel = True
    grain = (1, 1)
    workspace = 2 * BUFFER

    def __init__(
        self,
        output: Output,
        resume: bool,
        work: WorkDirectory | None,
        *,
        begin: Callable[[int], object],
        find: FindLayout,
    ) -> None:
        self.shape, self.dtype = output.shape, output.dtype
        self._partial = Partial(output, resume, work)
        self.partial, self.resumed = self._partial.path, self._partial.resumed
        try:
            with os_errors(self.partial, "written"):
                if not self.resumed:
                    begin(self._partial.file)
                with os.fdopen(self._partial.work.open(DATA, os.O_RDONLY), "rb") as file:
                    self.layout = find(file, self.partial)
                    if self.resumed:
                        self._refuse_another(file, output.array_shape)
                    self.layout = replace(self.layout, shape=self.shape)  # merged axes follow one another
            self._partial.reserve(self.layout.end)
        except BaseException:
            self._partial.abandon()
            raise
        self._writer = PlainWriter(self._partial.file, self.layout, self.partial)

    @property
    def forgets(self) -> bool:
        """Whether written data are removed from the page cache as soon as they are on the disk. ``forgets`` must be set
        before the first ``write``.
        """
        return self._writer.forgets

    @forgets.setter
    def forgets(self, value: bool) -> None:
        """Set before the first ``write``."""
        self._writer.forgets = value

    def _refuse_another(self, file: BinaryIO, shape: ArrayShape) -> None:
        expected = FileLayout(shape, self.dtype, self.layout.offset)
        if self.layout != expected:
            raise FileError(
                f"{self.partial} is of shape {self.layout.shape} and dtype {self.layout.dtype}, not {shape} and "
                f"{self.dtype}: remove it, or do not resume"
            )
        refuse_truncated(self.partial, file_size(file), self.layout)

    def attachment(self) -> Callable[[], PlainWriter]:
        return functools.partial(attach_plain, self.partial, self.layout, os.fstat(self._partial.file).st_ino)

    def write(self, rows: slice, columns: slice, block: np.ndarray) -> None:
        self._refuse_finished()
        self._writer.write(rows, columns, block)

    def flush(self) -> None:
        self._refuse_finished()
        self._writer.flush()

    def finish(self) -> None:
        self.flush()
        self._partial.finish()

    def close(self) -> None:
        self._partial.close()

    def _refuse_finished(self) -> None:
        if self._partial.file < 0:
            raise FileError(f"{self._partial.target} is finished or closed: nothing more can be written to it")


def write_header(header: bytes, file: int) -> None:
    """Write all bytes of a header, even if the system writes fewer bytes in one call. Raises OSError."""
    move_rows("pwrite", file, np.frombuffer(header, np.uint8)[None], 0, len(header))


def beyond(path: Path, find: FindLayout, output: Output) -> str | None:
    """Return a text that says how a file differs from one whole array with the axes of ``output``, or None if it is
    one.

    Raises what ``find`` raises.
    """
    with path.open("rb") as file:
        layout, size = find(file, path), file_size(file)
    if len(layout.shape) != len(output.array_shape):
        return f"has {len(layout.shape)} dimensions, shape {layout.shape}"
    if size == layout.end:
        return None
    return f"has {size} bytes, where its matrix of {layout.shape} {layout.dtype} ends at byte {layout.end}"


def file_size(file: BinaryIO) -> int:
    """Return the size of an open file in bytes, without changing the position in the file."""
    here = file.tell()
    size = file.seek(0, os.SEEK_END)
    file.seek(here)
    return size


def refuse_truncated(path: Location, size: int, layout: FileLayout) -> None:
    """Raise FileError if a file of ``size`` bytes is too short for the matrix that its header describes."""
    if size < layout.end:
        raise FileError(
            f"{path} is truncated: shape {layout.shape} of {layout.dtype} needs {layout.end} bytes "
            f"({bytes_text(layout.end)}), the file has {size}; copy or write it again"
        )
