"""Rows of a rectangle, moved between a file and memory by positional system calls without the interpreter between them.

A rectangle narrower than the matrix is one ``pread`` a row, often of a few kilobytes, which takes about as long as Python
needs to make the call; and threads that let go of the interpreter a million times a second wait for it most of the time.
So the loop over rows is compiled, and the interpreter is let go once a rectangle: 4 KiB rows from the page cache came 1.4
times as fast on one thread and 2.4 times on two, of two cores; rows of 16 KiB 1.1 and 1.5 times.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

#: Bytes of a file that are written before they are sent to the disk.
PIECE = 8 << 20
#: Flags of sync_file_range(2): send to the disk what is not on its way; and wait until all of it is there.
_START, _DONE = 2, 1 | 4


class EndOfFile(Exception):  # noqa: N818  # as EOFError is no name of an error of ours: it never leaves this folder
    """The file ends before the rectangle does; ``args`` is the byte at which."""


def move_rows(call: Literal["pread", "pwrite"], file: int, block: np.ndarray, offset: int, pitch: int) -> None:
    """Read or write each row of ``block``, contiguous in itself, at ``offset`` + row·``pitch`` bytes of ``file``.

    Raises OSError, and EndOfFile where the file is too short to read; interrupted and short calls are completed.
    """
    height, width = block.shape
    nbytes = width * block.itemsize
    if not block.size:
        return
    if block.flags.c_contiguous and (nbytes == pitch or height == 1):
        _complete(call, file, block.reshape(-1).view(np.uint8), offset)
        return
    address, stride, row = block.ctypes.data, block.strides[0], 0
    many = _compiled(call)
    while True:
        row += many(file, address + row * stride, stride, nbytes, offset + row * pitch, pitch, height - row)
        if row == height:
            return
        _complete(call, file, block[row].view(np.uint8), offset + row * pitch)  # which says what stopped it
        row += 1


def write_through(file: int, block: np.ndarray, offset: int, pitch: int) -> None:
    """As ``move_rows``, but what is written leaves the system's memory as soon as it is on the disk, piece by piece.

    Else a result as large as memory pushes out what is still to be read; and memory that nobody used for a while is slow to
    get, where the system is a guest: of 2.4 GB that were written beside a product, it was 4.9 s of a processor.
    """
    rows = max(1, PIECE // pitch)
    before: tuple[int, int] | None = None
    for row in range(0, len(block), rows):
        piece = block[row : row + rows]
        here = offset + row * pitch, len(piece) * pitch
        move_rows("pwrite", file, piece, here[0], pitch)
        _sync_range(file, *here, _START)
        if before is not None:  # it went to the disk while this one was copied
            _forget(file, *before)
        before = here
    if before is not None:
        _forget(file, *before)


def _forget(file: int, offset: int, nbytes: int) -> None:
    """Once that range is on the disk."""
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


@functools.cache
def _sync_file_range() -> Any:
    """The call of Linux's C libraries; None elsewhere."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return call


def rows_are_contiguous(block: np.ndarray) -> bool:
    """Whether each row can be moved by one call."""
    return block.shape[1] == 1 or block.strides[1] == block.itemsize


def _complete(call: str, file: int, data: np.ndarray, offset: int) -> None:
    """One run of bytes, in as many calls as it takes: the system moves 2 GiB at most, and less after a signal."""
    once = os.preadv if call == "pread" else os.pwritev
    done = 0
    while done < data.size:
        moved = once(file, [data[done:].data], offset + done)
        if not moved:
            raise EndOfFile(offset + done) if call == "pread" else OSError(errno.EIO, "nothing was written")
        done += moved


@functools.cache
def _compiled(call: str) -> Callable[..., int]:
    """The loop over rows: returns how many of them were moved whole before a call did something else (0.2 s, once)."""
    import numba
    from numba import types

    move: Any = types.ExternalFunction(call, types.intp(types.intc, types.uintp, types.uintp, types.int64))
    integers = (types.int64,) * 7

    @numba.njit(types.int64(*integers), nogil=True)
    def rows(file: int, address: int, stride: int, nbytes: int, offset: int, pitch: int, count: int) -> int:
        for row in range(count):
            if move(file, address + row * stride, nbytes, offset + row * pitch) != nbytes:
                return row
        return count

    return rows
