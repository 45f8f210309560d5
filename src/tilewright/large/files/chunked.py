"""Reads a chunked matrix a few megabytes at a time, through the library of its file format, which must decode each
chunk as a whole.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .array import copy_block
from .checks import ArrayShape, Box, corner

#: A decoded piece, its chunks as stored, and a copy that a library makes in between.
COPIES = 3
#: Chunks are read together up to this many bytes, because every call of a library is slow.
TOGETHER = 1 << 22


class ChunkedSource:
    """A matrix, or an array of any number of axes, that is stored in chunks with the sides ``grain``.

    ``fetch`` gets one slice for each axis, which together select a box, and returns the elements of the box as an
    array.
    """

    def __init__(
        self,
        shape: ArrayShape,
        dtype: np.dtype,
        grain: ArrayShape,
        fetch: Callable[..., np.ndarray],
        together: int = TOGETHER,
    ) -> None:
        self.shape, self.dtype, self._fetch = shape, dtype, fetch
        self.grain = tuple(max(1, side) for side in grain)
        self._most = together
        self.read_within(COPIES * together)

    def read_within(self, nbytes: int) -> None:
        """Limit the bytes of one read to ``nbytes``, by reading fewer chunks at a time. Every read reads at least one
        chunk.
        """
        self._most = min(self._most, nbytes // COPIES)
        self._piece = _together(self.shape, self.grain, self.dtype.itemsize, self._most)
        self.workspace = COPIES * math.prod(self._piece) * self.dtype.itemsize

    def read(self, rows: slice, columns: slice, out: np.ndarray) -> None:
        self.read_box((rows, columns), out)

    def read_box(self, box: Box, out: np.ndarray) -> None:
        first = corner(self.shape, box, out)
        for piece, part in pieces(first, out, self._piece) if out.size else ():
            copy_block(part, self._fetch(*piece))


def chunk_slices(start: int, stop: int, step: int) -> Iterator[slice]:
    """Cut the range ``start:stop`` at the multiples of ``step``.

    >>> list(chunk_slices(3, 9, 4))
    [slice(3, 4, None), slice(4, 8, None), slice(8, 9, None)]
    """
    while start < stop:
        end = min(stop, start - start % step + step)
        yield slice(start, end)
        start = end


def pieces(first: Sequence[int], block: np.ndarray, sides: ArrayShape) -> Iterator[tuple[Box, np.ndarray[Any, Any]]]:
    """Cut a box, which begins at ``first`` and has the shape of ``block``, at the edges of chunks. Yields each piece of
    the box with its part of ``block``.
    """
    cuts = [chunk_slices(at, at + size, side) for at, size, side in zip(first, block.shape, sides, strict=True)]
    for box in itertools.product(*cuts):
        where: list[Any] = [slice(part.start - at, part.stop - at) for part, at in zip(box, first, strict=True)]
        yield box, block[(*where, ...)]  # also without axes a view


def overlaps(edges: Sequence[int], start: int, stop: int) -> list[tuple[int, slice]]:
    """Return the number of each chunk that overlaps ``start:stop``, with the range of the chunk's elements that are in
    ``start:stop``.

    Chunk i contains the elements ``edges[i]:edges[i + 1]``.

    >>> overlaps([0, 4, 4, 8, 12], 3, 8)
    [(0, slice(3, 4, None)), (2, slice(4, 8, None))]
    """
    numbers = range(bisect.bisect_right(edges, start) - 1, bisect.bisect_left(edges, stop))
    parts = ((number, slice(max(start, edges[number]), min(stop, edges[number + 1]))) for number in numbers)
    return [(number, part) for number, part in parts if part.start < part.stop]


def _together(shape: ArrayShape, grain: ArrayShape, itemsize: int, most: int) -> ArrayShape:
    """The sides of the chunks that are read together, at least one: first side by side, then below each other."""
    sides = list(grain)
    for axis in reversed(range(len(sides))):
        while sides[axis] < shape[axis] and 2 * math.prod(sides) * itemsize <= most:
            sides[axis] *= 2
    return tuple(sides)
