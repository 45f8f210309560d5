"""Rows of a rectangle, moved between a file and memory by positional system calls without the interpreter between them.

A rectangle narrower than the matrix is one ``pread`` a row, often of a few kilobytes, which takes about as long as Python
needs to make the call; and threads that let go of the interpreter a million times a second wait for it most of the time.
So the loop over rows is compiled, and the interpreter is let go once a rectangle: 4 KiB rows from the page cache came 1.4
times as fast on one thread and 2.4 times on two, of two cores; rows of 16 KiB 1.1 and 1.5 times.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable
from typing import Any, Literal

import numpy as np


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
