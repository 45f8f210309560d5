"""Computes products whose result stays on the workers as a Dask array, and products whose workers share the sum over a long
k.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.task_spec import Task
from distributed import futures_of

from ...errors import ClusterError
from ..files import Source
from ..streaming.plan.cuts import MANY_CHUNKS
from ..streaming.run.computation import Product, SharedCounter
from .connect import result_of, wait_until_ended
from .lazy import lazy_product

#: Bytes of a chunk of a file, about.
CHUNK_BYTES = 32 << 20

#: The fingerprints of files that this process has opened, and found to be those of the client.
_seen: set[str] = set()
#: Bytes of files that this process has read as chunks.
read = SharedCounter()


def product_on_workers(
    client: Any, product: Product, arrays: Sequence[Any], memory: float | str | None, dtype: str
) -> da.Array:
    """Compute the product now, and return it as a Dask array whose chunks stay on the workers.

    The product is computed in ``dtype`` and then rounded to the dtype of C. The workers keep the chunks as long as a
    reference to the returned array exists. ``arrays`` are the operands as Dask arrays, with None for an operand that is
    in a file that all workers can read.
    """
    operands = zip(product.sources, arrays, strict=True)
    a, b = (file_matrix(source) if array is None else array for source, array in operands)
    in_files = all(array is None for array in arrays)
    with client.as_current():  # its workers' memory is what tasks are sized for
        lazy = lazy_product(a, b, np.dtype(dtype), memory, client.nthreads() if in_files else None)
        lazy = lazy.astype(product.dtype)  # one rounding, if the dtypes differ
    result = client.persist(lazy, optimize_graph=False)  # otherwise Dask would lose where layers are placed
    wait_until_ended(futures_of(result))
    return result


def fetched(client: Any, array: da.Array) -> np.ndarray[Any, Any]:
    """Return a NumPy array with all elements of a Dask array, copied from the workers that hold its chunks."""
    out = np.empty(array.shape, array.dtype)
    futures = {future.key: future for future in futures_of(array)}
    edges = [itertools.accumulate(sizes, initial=0) for sizes in array.chunks]
    parts = [[slice(*ends) for ends in itertools.pairwise(each)] for each in edges]
    for (i, rows), (j, columns) in itertools.product(*map(enumerate, parts)):
        out[rows, columns] = result_of(client, futures[array.name, i, j])
    return out


def file_matrix(source: Source) -> da.Array:
    """Return a lazy Dask array of the matrix in a file that all workers can read.

    The chunks of the returned array hold no elements: each chunk is a ``FileRectangle``. The task that multiplies a
    chunk reads the chunk from the file, so no elements move between workers.
    """
    opener, expected = source.opener(), source.fingerprint()
    assert opener is not None, "an array in memory is no file"
    name = f"tilewright-read-{expected}"
    edges = _edges(source)
    cuts = [[slice(*ends) for ends in itertools.pairwise(each)] for each in edges]
    graph = {
        (name, i, j): Task((name, i, j), FileRectangle, opener, expected, rows, columns, source.dtype)
        for (i, rows), (j, columns) in itertools.product(enumerate(cuts[0]), enumerate(cuts[1]))
    }
    chunks = tuple(tuple(stop - start for start, stop in itertools.pairwise(each)) for each in edges)
    return da.Array(graph, name, chunks=chunks, dtype=source.dtype)


@dataclasses.dataclass(frozen=True)
class FileRectangle:
    """A rectangle of a file that is read only when it is converted to an array. ``expected`` is the fingerprint of the file
    that the client opened.
    """

    opener: Callable[[], Source]
    expected: str
    rows: slice
    columns: slice
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and columns."""
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.shape[0] * self.shape[1]

    def __getitem__(self, part: tuple[slice, slice]) -> FileRectangle:
        rows, columns = (
            slice(span.start + each.indices(length)[0], span.start + each.indices(length)[1])
            for span, each, length in zip((self.rows, self.columns), part, self.shape, strict=True)
        )
        return dataclasses.replace(self, rows=rows, columns=columns)

    def copy(self) -> FileRectangle:
        """Return the object itself, because it holds no elements."""
        return self

    def astype(self, dtype: Any, **_: Any) -> np.ndarray[Any, Any]:
        """Read the elements, and return them in another dtype."""
        return np.asarray(self).astype(dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Its elements. Raises ClusterError where this worker sees another file than the client."""
        source = self.opener()
        try:
            if self.expected not in _seen and source.fingerprint() != self.expected:
                raise ClusterError("a worker reads another file than the client: both must reach the same storage")
            _seen.add(self.expected)
            out = np.empty(self.shape, self.dtype)
            source.read(self.rows, self.columns, out)
            read.add(out.nbytes)
            return out if dtype is None else out.astype(dtype, copy=False)
        finally:
            source.close()


def _edges(source: Source) -> list[list[int]]:
    """Where chunks begin and end: at those of the file, as squares if it has none."""
    elements = CHUNK_BYTES // source.dtype.itemsize
    sides = [min(size, math.isqrt(elements)) for size in source.shape]
    for axis in (0, 1):  # the other side of a thin matrix is longer
        sides[axis] = min(source.shape[axis], max(sides[axis], elements // max(1, sides[1 - axis])))
    return [
        _at_multiples(size, side, grain if grain * MANY_CHUNKS <= size else 1)
        for size, side, grain in zip(source.shape, sides, source.grain, strict=True)
    ]


def _at_multiples(length: int, side: int, grain: int) -> list[int]:
    step = max(grain, side // grain * grain)
    return [*range(0, length, step), length]
