"""Operands that the workers hold in chunks: those of a Dask array stay where they are, and an array of the client is handed
out. A worker that needs a chunk of another fetches it from there, block by block, while it multiplies others."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import itertools
import random
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ClusterError
from ..files.array import WORKSPACE, ArraySource, copy_block
from ..files.checks import Shape, rectangle
from ..files.chunked import overlaps
from ..operands import admit
from .connect import wait_until_ended

#: Bytes of a chunk of an array that is handed out.
HANDED_OUT = 32 << 20
#: Chunks of others that a worker keeps while it reads rectangles of them, one after another.
KEPT = 2
#: Seconds between two tries to get a chunk, and until it counts as lost.
AGAIN_S, LOST_S = 0.05, 60.0


class Keys:
    """The keys of chunks, row by row, in an object that Dask does not look into: it would move all chunks to every task."""

    def __init__(self, keys: list[list[Any]]) -> None:
        self._keys = keys

    def at(self, row: int, column: int) -> Any:
        """The key of a chunk."""
        return self._keys[row][column]


@dataclass(frozen=True)
class Held:
    """A matrix in chunks that are on the cluster: where rows and columns of chunks begin and end, and their keys. ``name``
    differs when the contents may."""

    name: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    dtype: np.dtype[Any]
    keys: Keys

    @property
    def shape(self) -> Shape:
        """Rows and columns."""
        return self.rows[-1], self.columns[-1]

    @property
    def largest(self) -> Shape:
        """The sides of the largest chunk."""
        height, width = (max(y - x for x, y in itertools.pairwise(edges)) for edges in (self.rows, self.columns))
        return height, width


class HeldSource:
    """Such a matrix as a worker reads it, or as the client plans for it; see ``files.Source``."""

    parallel = True

    def __init__(self, held: Held, fetch: Callable[[Any], Any] | None) -> None:
        self._held, self._fetch = held, fetch
        self.shape, self.dtype, self.grain = held.shape, held.dtype, held.largest
        self.workspace = (1 + KEPT) * held.largest[0] * held.largest[1] * held.dtype.itemsize + WORKSPACE
        self._kept: collections.OrderedDict[Any, Any] = collections.OrderedDict()
        self._lock = threading.Lock()

    def read(self, rows: slice, columns: slice, out: np.ndarray[Any, Any]) -> None:
        first, column = rectangle(self.shape, rows, columns, out)
        for r, down in overlaps(self._held.rows, first, first + out.shape[0]):
            for c, across in overlaps(self._held.columns, column, column + out.shape[1]):
                chunk = self._chunk(self._held.keys.at(r, c))
                top, left = self._held.rows[r], self._held.columns[c]
                part = chunk[down.start - top : down.stop - top, across.start - left : across.stop - left]
                into = out[down.start - first : down.stop - first, across.start - column : across.stop - column]
                copy_block(into, np.asarray(part))

    def _chunk(self, key: Any) -> Any:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        assert self._fetch is not None, "the client does not read what the workers hold"
        chunk, is_here = self._fetch(key)
        if not is_here:
            with self._lock:
                self._kept[key] = chunk
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
        return chunk

    def opener(self) -> Callable[[], HeldSource]:
        return functools.partial(open_held, self._held)

    def fingerprint(self) -> str:
        return self._held.name

    def close(self) -> None:
        self._kept.clear()


def open_held(held: Held) -> HeldSource:
    """The matrix as the worker reads it whose task calls this."""
    from distributed import get_worker

    worker: Any = get_worker()

    def fetch(key: Any) -> tuple[Any, bool]:
        """A chunk, and whether it was on this worker already."""
        here = worker.data.get(key)
        if here is not None:
            return here, True
        return asyncio.run_coroutine_threadsafe(_from_another(worker, key), worker.loop.asyncio_loop).result(), False

    return HeldSource(held, fetch)


async def _from_another(worker: Any, key: Any) -> Any:
    """A chunk from one of the workers that hold it, which limit how many they serve at once. While none holds it, Dask may
    be computing it again."""
    from distributed.worker import get_data_from_worker

    until = time.monotonic() + LOST_S
    while time.monotonic() < until:
        holders = list((await worker.scheduler.who_has(keys=[key])).get(key, ()))
        for holder in random.sample(holders, len(holders)):
            with contextlib.suppress(OSError):
                answer = await get_data_from_worker(worker.rpc, [key], holder, who=worker.address)
                if answer["status"] == "OK" and key in answer["data"]:
                    return answer["data"][key]
        await asyncio.sleep(AGAIN_S)
    raise ClusterError(f"chunk {key} of an operand was lost with its worker, and was not computed again")


def hold(client: Any, array: Any) -> tuple[HeldSource, Any]:
    """A Dask array or a NumPy array as a source whose chunks are on the cluster, and as the Dask array of these chunks.

    They are there as long as that array is referred to.

    A Dask array is computed there now, unless it was before; its errors are raised here.
    """
    import dask.array as da
    from dask.base import is_dask_collection
    from distributed import futures_of

    if is_dask_collection(array):
        from .lazy import dask_matrix

        kept = client.persist(dask_matrix("the operand", array))
        wait_until_ended(futures_of(kept))
        edges = [(0, *itertools.accumulate(sizes)) for sizes in kept.chunks]
        keys = Keys([list(row) for row in kept.__dask_keys__()])
        return HeldSource(Held(f"dask {kept.name}", edges[0], edges[1], np.dtype(kept.dtype), keys), None), kept
    matrix = admit(array, "the operand")
    source = ArraySource(matrix)
    side = max(1, int((HANDED_OUT / source.dtype.itemsize) ** 0.5))
    rows, columns = ((*range(0, size, side), size) if size else (0, 0) for size in source.shape)
    down, across = (list(itertools.pairwise(edges)) for edges in (rows, columns))
    blocks = [np.ascontiguousarray(matrix[slice(*r), slice(*c)]) for r in down for c in across]
    futures = client.scatter(blocks, hash=False)
    width = len(across)
    keys = Keys([[future.key for future in futures[at : at + width]] for at in range(0, len(futures), width)])
    name = f"tilewright-array-{secrets.token_hex(8)}"
    graph = {(name, *divmod(at, width)): future for at, future in enumerate(futures)}
    chunks = tuple(tuple(stop - start for start, stop in parts) for parts in (down, across))
    kept = da.Array(graph, name, chunks=chunks, dtype=source.dtype)
    return HeldSource(Held(f"array {source.fingerprint()}", rows, columns, source.dtype, keys), None), kept
