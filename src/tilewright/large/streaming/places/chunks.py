"""Staging buffers: page-locked chunks of the host's memory, through which blocks pass to a GPU and back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....gpu.runtime.memory import HostPages
from ....gpu.runtime.stream import Event


@dataclass(frozen=True)
class Chunks:
    """Page-locked memory: bytes of a chunk, and chunks on the way in and on the way out."""

    size: int = 16 << 20
    incoming: int = 24
    outgoing: int = 8

    @classmethod
    def within(cls, limit: int | None) -> Chunks:
        """Chunks that take an eighth of ``limit`` bytes at most, unless they would be smaller than 64 KiB each."""
        chunks = cls()
        while limit is not None and chunks.nbytes > limit // 8 and chunks.size > 1 << 16:
            chunks = cls(chunks.size // 2)
        return chunks

    @property
    def nbytes(self) -> int:
        """Bytes of all chunks together."""
        return self.size * (self.incoming + self.outgoing)


class Ring:
    """Chunks of memory, used in turns and allocated at first use; the thread that uses one page-locks it."""

    def __init__(self, pages: HostPages, count: int, size: int) -> None:
        self._pages, self._count, self._size = pages, count, size
        self._chunks: list[np.ndarray[Any, Any]] = []
        self._taken = 0
        self._busy: dict[int, Future[Any]] = {}

    def take(self) -> np.ndarray[Any, Any]:
        """The next chunk, when its last job is done. Raises the error of that job."""
        number, self._taken = self._taken % self._count, self._taken + 1
        if number == len(self._chunks):
            self._chunks.append(self._pages.take(self._size))
        chunk = self._chunks[number]
        job = self._busy.pop(chunk.ctypes.data, None)
        if job is not None and isinstance(event := job.result(), Event):
            event.wait()
        return chunk

    def give(self, chunk: np.ndarray[Any, Any], job: Future[Any]) -> None:
        """The chunk is free again when ``job`` is done and the event that it returns, if any, is reached."""
        self._busy[chunk.ctypes.data] = job

    def close(self) -> None:
        for job in self._busy.values():
            job.cancel()
        for chunk in self._chunks:
            self._pages.give_back(chunk)


def pieces(rows: slice, columns: slice, itemsize: int, chunk: int) -> Iterator[tuple[slice, slice]]:
    """Parts of a rectangle that fit in a chunk and are contiguous in a slot: whole rows, or pieces of a longer row."""
    width = min(columns.stop - columns.start, max(1, chunk // itemsize))
    step = max(1, chunk // (width * itemsize))
    for top, left in itertools.product(range(rows.start, rows.stop, step), range(columns.start, columns.stop, width)):
        yield slice(top, min(rows.stop, top + step)), slice(left, min(columns.stop, left + width))


def shaped(chunk: np.ndarray[Any, Any], dtype: np.dtype[Any], rows: slice, columns: slice) -> np.ndarray[Any, Any]:
    """The part of a chunk that holds a rectangle, as a matrix."""
    shape = rows.stop - rows.start, columns.stop - columns.start
    return chunk[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
