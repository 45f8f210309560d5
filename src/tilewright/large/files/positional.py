"""Moves the rows of a rectangle between a file and memory, with positional system calls in one compiled loop.

A rectangle narrower than the matrix needs one ``pread`` for each row. Reading a row of a few kilobytes takes about as
long as the call of ``pread`` from Python. Threads that release the GIL (Python's global lock) a million times a second
mostly wait for it. For these two reasons the loop over rows is compiled, and releases the GIL once for each rectangle.
On two cores, the compiled loop reads rows of 4 KiB from the page cache 1.4 times as fast as a loop in Python with one
thread, and 2.4 times as fast with two threads. For rows of 16 KiB, the compiled loop is 1.1 times as fast with one
thread and 1.5 times as fast with two threads.

A block that has the stored dtype is moved directly between the file and the caller's memory. A block that must be
converted or transposed goes through a buffer that fits the second-level cache. Blocks with very short rows use the
buffer too, because reading the gaps between rows is then faster than one call for each row.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from ...cpu.runtime.library import support_function
from .array import copy_block
from .checks import ArrayShape

#: Bytes of the buffer for blocks that cannot be moved directly.
BUFFER = 1 << 19
#: Rows of a file of at most this many bytes are read whole, gaps included: one call takes as long as copying 4 KiB.
SHORT_ROW = 4096
#: Bytes that ``write_through`` writes before it sends them to the disk.
PIECE = 8 << 20
#: Flags of sync_file_range(2): start to write the range to the disk; and wait until all of it is written.
_START, _DONE = 2, 1 | 4


class EndOfFile(Exception):  # noqa: N818  # never raised to callers outside this folder
    """Raised if the file ends, at byte ``args[0]``, before the end of the rectangle that is read."""


def read_rows(file: int, out: np.ndarray, dtype: np.dtype[Any], offset: int, pitch: int) -> None:
    """Read rows of ``dtype`` that begin at byte ``offset`` + row·``pitch`` of ``file`` into ``out``, which may have any
    strides.

    The elements are converted to the dtype of ``out``. Raises OSError and EndOfFile.
    """
    short = out.shape[1] * dtype.itemsize < pitch <= SHORT_ROW
    if out.dtype == dtype and rows_are_contiguous(out) and not short:
        move_rows("pread", file, out, offset, pitch)
        return
    piece = pitch // dtype.itemsize if short else min(out.shape[1], BUFFER // dtype.itemsize)
    buffer = _buffer(len(out), piece, dtype)
    for i in range(0, len(out), len(buffer)):
        for j in range(0, out.shape[1], piece):
            part = out[i : i + len(buffer), j : j + piece]
            tight = buffer[: len(part), : part.shape[1]]
            # With the gaps between short rows they are one run, which ends where the last row does.
            run = buffer.reshape(1, -1)[:, : (len(part) - 1) * piece + part.shape[1]]
            move_rows("pread", file, run if short else tight, offset + i * pitch + j * dtype.itemsize, pitch)
            copy_block(part, tight)


def rectangles(
    shape: ArrayShape, first: Sequence[int], block: np.ndarray
) -> Iterator[tuple[int, int, np.ndarray[Any, Any]]]:
    """Yield the rectangles of a row-major array that together form a box.

    The box begins at ``first`` and has the shape of ``block``. For each rectangle, yields the number of its first
    element, the number of elements from one row to the next, and its part of ``block``.

    >>> [(at, pitch, part.shape) for at, pitch, part in rectangles((4, 5, 6), (1, 2, 0), np.empty((2, 3, 6)))]
    [(42, 30, (2, 18))]
    """
    while block.ndim > 2 and block.shape[-1] == shape[-1] and _merge(block):  # whole lines follow one another
        first = *first[:-2], first[-2] * shape[-1]
        shape, block = (*shape[:-2], shape[-2] * shape[-1]), block.reshape(*block.shape[:-2], -1)
    steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    begin = sum(at * step for at, step in zip(first, steps, strict=True))
    if block.ndim < 2:
        yield begin, max(1, block.size), block.reshape(1, -1)
        return
    down = max(range(block.ndim - 1), key=lambda axis: block.shape[axis])
    others = [axis for axis in range(block.ndim - 1) if axis != down]
    for index in np.ndindex(*(block.shape[axis] for axis in others)):
        where: list[Any] = [slice(None)] * block.ndim
        for axis, at in zip(others, index, strict=True):
            where[axis] = at
        yield (
            begin + sum(at * steps[axis] for axis, at in zip(others, index, strict=True)),
            steps[down],
            block[tuple(where)],
        )


def _merge(block: np.ndarray) -> bool:
    """Whether the last two axes of a block are one in its memory, too."""
    return block.shape[-2] == 1 or block.strides[-2] == block.shape[-1] * block.strides[-1]


def write_rows(file: int, block: np.ndarray, dtype: np.dtype[Any], offset: int, pitch: int) -> None:
    """Write ``block``, which may have any strides, as rows of ``dtype`` that begin at byte ``offset`` + row·``pitch`` of
    ``file``.

    Raises OSError.
    """
    if block.dtype == dtype and rows_are_contiguous(block):
        move_rows("pwrite", file, block, offset, pitch)
        return
    piece = min(block.shape[1], BUFFER // dtype.itemsize)
    buffer = _buffer(len(block), piece, dtype)
    for i in range(0, len(block), len(buffer)):
        for j in range(0, block.shape[1], piece):
            part = block[i : i + len(buffer), j : j + piece]
            converted = buffer[: len(part), : part.shape[1]]
            copy_block(converted, part)
            move_rows("pwrite", file, converted, offset + i * pitch + j * dtype.itemsize, pitch)


def _buffer(height: int, width: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Rows of ``width`` elements, as many as ``BUFFER`` holds."""
    return np.empty((min(height, max(1, BUFFER // (width * dtype.itemsize))), width), dtype)


def move_rows(call: Literal["pread", "pwrite"], file: int, block: np.ndarray, offset: int, pitch: int) -> None:
    """Read or write each row of ``block``, whose elements are contiguous, at byte ``offset`` + row·``pitch`` of ``file``.

    A system call that is interrupted, or that moves fewer bytes than requested, is continued. Raises OSError, and
    EndOfFile if the file is too short.
    """
    height, width = block.shape
    nbytes = width * block.itemsize
    if not block.size:
        return
    if block.flags.c_contiguous and (nbytes == pitch or height == 1):
        _complete(call, file, block.reshape(-1).view(np.uint8), offset)
        return
    address, stride, row = block.ctypes.data, block.strides[0], 0
    move = _compiled(call)
    while True:
        row += move(file, address + row * stride, stride, nbytes, offset + row * pitch, pitch, height - row)
        if row == height:
            return
        _complete(call, file, block[row].view(np.uint8), offset + row * pitch)  # completes the row, or raises the error
        row += 1


def write_through(file: int, block: np.ndarray, offset: int, pitch: int) -> None:
    """Write rows as ``move_rows`` does, but in pieces, each of which leaves the page cache as soon as it is on the
    disk.

    If the pieces stayed in the page cache, a result as large as the memory would evict operands that are still to be
    read. Besides, a virtual machine is slow to provide pages that were unused for a while: for 2.4 GB that were written
    during a product, providing the pages took 4.9 s of CPU time.
    """
    rows = max(1, PIECE // pitch)
    before: tuple[int, int] | None = None
    for row in range(0, len(block), rows):
        piece = block[row : row + rows]
        here = offset + row * pitch, len(piece) * pitch
        move_rows("pwrite", file, piece, here[0], pitch)
        _sync_range(file, *here, _START)
        if before is not None:  # that piece was sent to the disk while this one was copied
            _forget(file, *before)
        before = here
    if before is not None:
        _forget(file, *before)


def _forget(file: int, offset: int, nbytes: int) -> None:
    """Wait until that range is on the disk, and drop it from the page cache."""
    _sync_range(file, offset, nbytes, _START | _DONE)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, offset, nbytes, os.POSIX_FADV_DONTNEED)


def _sync_range(file: int, offset: int, nbytes: int, how: int) -> None:
    """Send that range to the disk; nothing where the system or the file system has no such call."""
    call = _sync_file_range()
    if call is not None and call(file, offset, nbytes, how):
        error = ctypes.get_errno()
        if error not in (errno.ENOSYS, errno.EINVAL, errno.ESPIPE):
            raise OSError(error, os.strerror(error))


@functools.cache  # looked up once
def _sync_file_range() -> Any:
    """The call of Linux's C libraries; None elsewhere."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return call


def rows_are_contiguous(block: np.ndarray) -> bool:
    """Whether the elements of each row are contiguous, so that one call can move a row."""
    return block.shape[1] == 1 or block.strides[1] == block.itemsize


def _complete(call: str, file: int, data: np.ndarray, offset: int) -> None:
    """Move contiguous bytes in as many calls as it takes: a call moves 2 GiB at most, and less after a signal."""
    once = os.preadv if call == "pread" else os.pwritev
    done = 0
    while done < data.size:
        moved = once(file, [data[done:].data], offset + done)
        if not moved:
            raise EndOfFile(offset + done) if call == "pread" else OSError(errno.EIO, "nothing was written")
        done += moved


@functools.cache  # looked up once
def _compiled(call: str) -> Callable[..., int]:
    """The loop over rows in C (``prebuilt/support.c``): returns how many rows were moved before a call failed or fell short.
    Where no library was built it moves none, and Python each of them."""
    address = support_function(f"{call}_rows")
    return (lambda *_: 0) if address is None else ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 7)(address)
