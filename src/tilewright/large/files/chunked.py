"""A matrix stored in chunks, each of which must be decoded whole: read through its library, a few megabytes at a time."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from .array import copy_block
from .checks import Shape, rectangle

#: A decoded piece, its chunks as stored, and a copy that a library makes in between.
COPIES = 3
#: Chunks are read together up to this many bytes, because every call of a library is slow.
TOGETHER = 1 << 22


class ChunkedSource:
    """A matrix in chunks of ``grain``; ``fetch(rows, columns)`` returns a rectangle as an array."""

    def __init__(
        self,
        shape: Shape,
        dtype: np.dtype,
        grain: Shape,
        fetch: Callable[[slice, slice], np.ndarray],
        together: int = TOGETHER,
    ) -> None:
        self.shape, self.dtype, self._fetch = shape, dtype, fetch
        self.grain = max(1, grain[0]), max(1, grain[1])
        self._most = together
        self.read_within(COPIES * together)

    def read_within(self, nbytes: int) -> None:
        """Read so few chunks together that a read takes so many bytes at most, but at least one."""
        self._most = min(self._most, nbytes // COPIES)
        self._piece = _together(self.shape, self.grain, self.dtype.itemsize, self._most)
        self.workspace = COPIES * self._piece[0] * self._piece[1] * self.dtype.itemsize

    def read(self, rows: slice, columns: slice, out: np.ndarray) -> None:
        first, column = rectangle(self.shape, rows, columns, out)
        if not out.size:
            return
        for r in chunk_slices(first, first + out.shape[0], self._piece[0]):
            for c in chunk_slices(column, column + out.shape[1], self._piece[1]):
                part = out[r.start - first : r.stop - first, c.start - column : c.stop - column]
                copy_block(part, self._fetch(r, c))


def chunk_slices(start: int, stop: int, step: int) -> Iterator[slice]:
    """``start:stop`` cut at the multiples of ``step``.

    >>> list(chunk_slices(3, 9, 4))
    [slice(3, 4, None), slice(4, 8, None), slice(8, 9, None)]
    """
    while start < stop:
        end = min(stop, start - start % step + step)
        yield slice(start, end)
        start = end


def overlaps(edges: Sequence[int], start: int, stop: int) -> list[tuple[int, slice]]:
    """The chunks that overlap ``start:stop``, and which part of it is in each; chunk i is ``edges[i]:edges[i + 1]``.

    >>> overlaps([0, 4, 4, 8, 12], 3, 8)
    [(0, slice(3, 4, None)), (2, slice(4, 8, None))]
    """
    numbers = range(bisect.bisect_right(edges, start) - 1, bisect.bisect_left(edges, stop))
    parts = ((number, slice(max(start, edges[number]), min(stop, edges[number + 1]))) for number in numbers)
    return [(number, part) for number, part in parts if part.start < part.stop]


def _together(shape: Shape, grain: Shape, itemsize: int, most: int) -> Shape:
    """The sides of the chunks that are read together, at least one: first side by side, then below each other."""
    height, width = grain
    while width < shape[1] and 2 * height * width * itemsize <= most:
        width *= 2
    while height < shape[0] and 2 * height * width * itemsize <= most:
        height *= 2
    return height, width
