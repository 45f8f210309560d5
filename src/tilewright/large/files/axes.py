"""Reads arrays of any number of axes as matrices. Some axes of the array, merged in row-major order, become the rows,
and the other axes become the columns.

A range of merged rows consists of a few boxes of the array, which are read or written in place:

    rows 5 to 17 of axes (4, 6):    ·····▓
                                    ▓▓▓▓▓▓    a part of a row, whole rows, and a part of a row
                                    ▓▓▓▓▓·

With merged axes, a stack of shape (…, m, k) is a matrix with rows (…, m), and a file can be read as the transpose of
its matrix.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import ShapeError, UsageError
from ...host.disk import fingerprint
from .array import ArraySource
from .checks import ArrayShape, Box, Shape, rectangle
from .format import Source


class Axes(NamedTuple):
    """The axes of an array that become the rows of a matrix, and the axes that become the columns, each in the order in
    which they are merged.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]

    @property
    def transposed(self) -> Axes:
        """The ``Axes`` with rows and columns exchanged."""
        return Axes(self.columns, self.rows)


#: Those of a matrix as it is.
MATRIX = Axes((0,), (1,))


def last_axis_as_columns(ndim: int) -> Axes:
    """Return the ``Axes`` that turn a stack of matrices (…, m, k) into one matrix with the rows (…, m) and the columns
    k.
    """
    return Axes(tuple(range(ndim - 1)), (ndim - 1,))


def as_matrix(array: Any, where: object, axes: Any = None) -> Any:
    """Return an array of any number of axes as a ``Source``. ``axes`` are two lists: the axes that become rows, and the
    axes that become columns.

    Raises ShapeError if ``axes`` is missing and the array does not have two axes, and UsageError unless ``axes``
    contains each axis once.
    """
    ndim = len(array.shape)
    if axes is None:
        if ndim != 2:
            raise ShapeError(f"{where} has {ndim} dimensions, shape {tuple(array.shape)}: a matrix has 2")
        return array
    try:
        rows, columns = (tuple(int(axis) for axis in group) for group in axes)
    except (TypeError, ValueError):
        raise UsageError(f"axes {axes!r:.80}: must be two lists, of the axes of rows and of columns") from None
    if sorted(rows + columns) != list(range(ndim)):
        raise UsageError(
            f"axes {(rows, columns)}: {where} has {ndim} axes, shape {tuple(array.shape)}: each must be one of the rows or "
            "of the columns"
        )
    chosen = Axes(rows, columns)
    if chosen == MATRIX.transposed and isinstance(array, ArraySource):
        return ArraySource(array.array.T)
    return array if chosen == MATRIX else AxesSource(array, chosen)


class AxesSource:
    """A ``Source`` whose rows and columns are merged axes of ``array``."""

    def __init__(self, array: Any, axes: Axes) -> None:
        self.stored, self.axes = array, axes
        #: The sizes of the axes of rows, and of columns.
        self.extents = tuple(tuple(array.shape[axis] for axis in group) for group in axes)
        self.shape: Shape = math.prod(self.extents[0]), math.prod(self.extents[1])
        self.dtype, self.parallel = array.dtype, array.parallel
        chunks = [tuple(array.grain[axis] for axis in group) for group in axes]
        self.grain: Shape = merged_grain(self.extents[0], chunks[0]), merged_grain(self.extents[1], chunks[1])
        #: Whether elements of a column follow one another in the array, and are read so.
        self.by_columns = len(array.shape) - 1 in axes.rows
        self._read_box = getattr(array, "read_box", None) or (lambda box, out: array.read(*box, out))
        self._order = [(axes.rows + axes.columns).index(axis) for axis in range(len(array.shape))]

    @property
    def workspace(self) -> int:
        """The most bytes that one ``read`` allocates, not counting ``out``."""
        return int(self.stored.workspace)

    @property
    def path(self) -> Any:
        """The path of the array's file, or None if the array is in memory."""
        return getattr(self.stored, "path", None)

    @property
    def transposed(self) -> Any:
        """The transpose of the matrix, as a source that reads the same array."""
        return as_matrix(self.stored, "the array", self.axes.transposed)

    def read_within(self, nbytes: int) -> None:
        """Limit the bytes of one read to ``nbytes``, by reading fewer chunks at a time. Every read reads at least one
        chunk.
        """
        if hasattr(self.stored, "read_within"):
            self.stored.read_within(nbytes)

    def read(self, rows: slice, columns: slice, out: np.ndarray[Any, Any]) -> None:
        first = rectangle(self.shape, rows, columns, out)
        for box, part in parts_of(self.extents, first, out):
            self._read_box(tuple(box[place] for place in self._order), part.transpose(self._order))

    def opener(self) -> Callable[[], Source] | None:
        opens = self.stored.opener()
        return None if opens is None else functools.partial(_open_again, opens, self.axes)

    def fingerprint(self) -> str:
        return fingerprint(self.stored.fingerprint(), *map(list, self.axes))

    def close(self) -> None:
        self.stored.close()


def _open_again(opens: Callable[[], Any], axes: Axes) -> AxesSource:
    """The same matrix in another process."""
    return AxesSource(opens(), axes)


def boxes(sizes: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """Yield the boxes of an array with axes of these sizes that together contain its elements ``start`` to ``stop``,
    numbered in row-major order.

    >>> [[(part.start, part.stop) for part in box] for box in boxes((4, 6), 5, 17)]
    [[(0, 1), (5, 6)], [(1, 2), (0, 6)], [(2, 3), (0, 5)]]
    """
    if not sizes:
        yield ()
        return
    inner = math.prod(sizes[1:])
    while start < stop:
        index, begin = divmod(start, inner)
        if begin or stop - start < inner:
            end = min(stop, (index + 1) * inner)
            yield from ((slice(index, index + 1), *box) for box in boxes(sizes[1:], begin, begin + end - start))
        else:
            end = stop // inner * inner
            yield slice(index, end // inner), *(slice(0, size) for size in sizes[1:])
        start = end


def parts_of(
    extents: Sequence[Sequence[int]], first: Shape, block: np.ndarray[Any, Any]
) -> Iterator[tuple[Box, np.ndarray[Any, Any]]]:
    """Yield the boxes of an array that a rectangle of a matrix of merged axes covers, each with the part of ``block``
    that has the elements of the box.

    ``extents`` are the sizes of the axes that became rows, and the sizes of the axes that became columns. The rectangle
    begins at ``first``, a row and a column, and has the shape of ``block``. Each part of ``block`` is yielded in the
    shape of its box, with one axis for each axis of the array.
    """
    if not block.size:
        return
    row = 0
    for down in boxes(extents[0], first[0], first[0] + block.shape[0]):
        height, column = _elements(down), 0
        for across in boxes(extents[1], first[1], first[1] + block.shape[1]):
            width, box = _elements(across), down + across
            # To split an axis never needs a copy.
            yield box, block[row : row + height, column : column + width].reshape([x.stop - x.start for x in box])
            column += width
        row += height


def merged_grain(sizes: Sequence[int], chunks: Sequence[int]) -> int:
    """Return a number g such that every merged row whose number is a multiple of g is the first row of the chunks that
    contain it. The merged axes have these ``sizes`` and are stored in chunks of these sides.

    >>> merged_grain((10, 20), (1, 5)), merged_grain((10, 20), (1, 8)), merged_grain((10, 20), (2, 5)), merged_grain((), ())
    (5, 20, 40, 1)
    """
    for axis, (size, chunk) in enumerate(zip(sizes, chunks, strict=True)):
        inner = math.prod(sizes[axis + 1 :])
        if chunk > 1 and size > 1:
            fits = size % chunk == 0 or math.prod(sizes[:axis]) == 1
            return max(1, (chunk if fits else size) * inner)
    return 1


def chunk_sides(sizes: Sequence[int], most: int) -> tuple[int, ...]:
    """Return the sides of chunks that contain about ``most`` consecutive merged rows. Each chunk extends over the full
    length of as many of the last axes as possible.

    >>> chunk_sides((5000,), 1024), chunk_sides((10, 20, 300), 1024), chunk_sides((7, 0), 1024)
    ((1024,), (1, 3, 300), (7, 1))
    """
    sides: list[int] = []
    for size in reversed(sizes):
        sides.append(max(1, min(size, most)))
        most //= sides[-1]
    return tuple(reversed(sides))


def _elements(box: Box) -> int:
    return math.prod(part.stop - part.start for part in box)


def is_transpose(a: Any, b: Any) -> bool:
    """Whether one of two sources is known to be the transpose of the other, because both read the same array or the same
    file.

    Files are compared by their fingerprints. The result is False if it is not known whether a source is the transpose
    of the other.
    """
    (x, of_x), (y, of_y) = (
        (each.stored, each.axes) if isinstance(each, AxesSource) else (each, MATRIX) for each in (a, b)
    )
    one, other = getattr(x, "array", None), getattr(y, "array", None)
    if one is not None and other is not None:
        same = one.ndim == other.ndim and one.dtype == other.dtype
        if same and of_x == of_y == MATRIX:
            other, of_y = other.T, of_y.transposed
        facts = [(z.shape, z.strides, z.__array_interface__["data"][0]) for z in (one, other)]
        return bool(same and of_x == of_y.transposed and facts[0] == facts[1])
    if one is not None or other is not None or of_x != of_y.transposed or x.shape != y.shape:
        return False
    return bool(x is y or x.fingerprint() == y.fingerprint())


def product_extents(a: Source, b: Source) -> tuple[ArrayShape, ArrayShape]:
    """Return the sizes of the axes of a product that form its rows, and the sizes of the axes that form its columns."""
    rows: ArrayShape = getattr(a, "extents", ((a.shape[0],),))[0]
    columns: ArrayShape = getattr(b, "extents", ((), (b.shape[1],)))[1]
    return tuple(rows), tuple(columns)


def joined(extents: Sequence[Sequence[int]]) -> ArrayShape:
    """Return the shape of the array whose row axes and column axes have these sizes."""
    return tuple(itertools.chain.from_iterable(extents))
