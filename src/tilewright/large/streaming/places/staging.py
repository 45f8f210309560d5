"""Manages the host's memory through which blocks pass from files to a GPU: staging buffers and a cache of blocks.

Staging buffers are page-locked chunks, through which blocks are copied to a GPU and back. Blocks of files are cached if
they will be loaded again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....gpu.runtime.memory import Event, HostPages
from ...files import Source
from ..plan.host_cache import HostCache
from ..plan.schedule import Load
from ..plan.stream import StreamPlan

# ---- staging buffers -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chunks:
    """The sizes of the page-locked memory: the bytes of a chunk, the number of chunks for copies to the GPU, and the
    number of chunks for copies from it.
    """

    size: int = 16 << 20
    incoming: int = 24
    outgoing: int = 8

    @classmethod
    def within(cls, limit: int | None) -> Chunks:
        """Return sizes for which all chunks take at most an eighth of ``limit`` bytes, but at least
        64 KiB for each chunk.
        """
        chunks = cls()
        while limit is not None and chunks.nbytes > limit // 8 and chunks.size > 1 << 16:
            chunks = cls(chunks.size // 2)
        return chunks

    @property
    def nbytes(self) -> int:
        """The bytes of all chunks together."""
        return self.size * (self.incoming + self.outgoing)


class Ring:
    """Chunks of memory that are used in turn. A chunk is allocated at its first use and page-locked by the thread that
    uses it.
    """

    def __init__(self, pages: HostPages, count: int, size: int) -> None:
        self._pages, self._count, self._size = pages, count, size
        self._chunks: list[np.ndarray[Any, Any]] = []
        self._taken = 0
        self._busy: dict[int, Future[Any]] = {}

    def take(self) -> np.ndarray[Any, Any]:
        """Wait until the last job that used the next chunk is done, and return this chunk. If this job failed, its
        error is raised.
        """
        number, self._taken = self._taken % self._count, self._taken + 1
        if number == len(self._chunks):
            self._chunks.append(self._pages.take(self._size))
        chunk = self._chunks[number]
        job = self._busy.pop(chunk.ctypes.data, None)
        if job is not None and isinstance(event := job.result(), Event):
            event.wait()
        return chunk

    def give(self, chunk: np.ndarray[Any, Any], job: Future[Any]) -> None:
        """Release a chunk. The chunk is free when ``job`` is done and the event that the job returns, if any, has
        occurred.
        """
        self._busy[chunk.ctypes.data] = job

    def close(self) -> None:
        for job in self._busy.values():
            job.cancel()
        for chunk in self._chunks:
            self._pages.give_back(chunk)


def chunk_parts(rows: slice, columns: slice, itemsize: int, chunk: int) -> Iterator[tuple[slice, slice]]:
    """Yield parts of a rectangle that fit in a chunk and are contiguous in a slot: several whole rows, or a piece of a
    row that is longer than a chunk.
    """
    width = min(columns.stop - columns.start, max(1, chunk // itemsize))
    step = max(1, chunk // (width * itemsize))
    for top, left in itertools.product(range(rows.start, rows.stop, step), range(columns.start, columns.stop, width)):
        yield slice(top, min(rows.stop, top + step)), slice(left, min(columns.stop, left + width))


def shaped(chunk: np.ndarray[Any, Any], dtype: np.dtype[Any], rows: slice, columns: slice) -> np.ndarray[Any, Any]:
    """Return the part of a chunk that holds a rectangle, as a matrix."""
    shape = rows.stop - rows.start, columns.stop - columns.start
    return chunk[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


# ---- cached blocks ---------------------------------------------------------------------------------------------------


class CachedSources:
    """Reads A and B through a cache in the host's memory, so that each block is read from its file as rarely as the cache
    allows.

    ``cached``, which was computed before the product began, says which loads find their block in the cache, and which
    loads store their block there.
    """

    def __init__(self, plan: StreamPlan, cached: HostCache, sources: Mapping[str, Source]) -> None:
        self._grid, self._cached, self._sources = plan.grid, cached, sources
        elements = max(plan.grid.bm, plan.grid.bn) * plan.grid.bk
        count = max((*cached.hits.values(), *cached.fills.values()), default=-1) + 1
        self._slots = [np.empty(elements, plan.dtype) for _ in range(count)]
        self._last: dict[int, list[Future[Any]]] = {}

    def begin(self, load: Load) -> None:
        """Wait until no copy reads or writes the slot of the cache that this load will use. Loads begin in order."""
        slot = self._slot(load)
        if slot is not None:
            wait(self._last.pop(slot, []))

    def began(self, load: Load, copies: list[Future[Any]]) -> None:
        """Record ``copies``, which are all jobs that copy the block of ``load``."""
        slot = self._slot(load)
        if slot is not None:
            self._last[slot] = copies

    def read(self, load: Load, rows: slice, columns: slice, out: np.ndarray[Any, Any]) -> None:
        """Copy some rows of a load's block, or a part of one row, to ``out``, from the cache or from the file."""
        slot = self._slot(load)
        source = self._sources[load.block.operand]
        if slot is None:
            source.read(rows, columns, out)
            return
        all_rows, all_columns = self._grid.where(load.block)
        width = all_columns.stop - all_columns.start
        first = (rows.start - all_rows.start) * width + columns.start - all_columns.start
        part = self._slots[slot][first : first + out.size].reshape(out.shape)
        if load.number in self._cached.fills:
            source.read(rows, columns, part)
        np.copyto(out, part)

    def _slot(self, load: Load) -> int | None:
        return self._cached.hits.get(load.number, self._cached.fills.get(load.number))
