"""The layout of a matrix in a GPU's memory, as one description for the planner, the kernels and the copies."""

from __future__ import annotations

import math
from typing import NamedTuple

from ...product.problem import itemsize_of
from .memory import GRANULE


class Matrix(NamedTuple):
    """A matrix in memory. The next row begins ``row`` elements further, the next column ``column`` elements further,
    and the matrix of the next product of a batch ``next`` elements further; ``next`` is 0 if all products share the
    matrix."""

    rows: int
    columns: int
    row: int
    column: int
    dtype: str
    #: Bytes, at most a granule, of which its address and those of all others of its batch are multiples.
    alignment: int = GRANULE
    next: int = 0
    #: Whether the kernel that it is given to reads or writes columns whose elements follow each other, and not such rows.
    down: bool = False

    @property
    def aligned(self) -> bool:
        """Whether the address of the matrix is a multiple of 16 bytes."""
        return self.alignment == GRANULE

    @property
    def transposed(self) -> Matrix:
        """The transpose of the matrix, in the same memory."""
        rows, columns, row, column, dtype, alignment, following, down = self
        return Matrix(columns, rows, column, row, dtype, alignment, following, down)

    @property
    def step(self) -> int:
        """The distance in elements from one row to the next, or with ``down`` from one column to the next."""
        return self.column if self.down else self.row

    @property
    def vector_bytes(self) -> int:
        """The most bytes that one access may have at the start of every row, or with ``down`` of every column.

        >>> Matrix(8, 20, 24, 1, "bfloat16").vector_bytes, Matrix(8, 20, 20, 1, "bfloat16").vector_bytes
        (16, 8)
        """
        size = itemsize_of(self.dtype)
        outer, inner, along = self.rows, self.columns, self.column
        if self.down:
            outer, inner, along = self.columns, self.rows, self.row
        if along != 1 and inner > 1:
            return size
        return max(size, math.gcd(self.alignment, self.step * size if outer > 1 else 0))

    @property
    def is_row_major(self) -> bool:
        """Whether the rows of the matrix follow one another without a gap, as some kernels require."""
        if not self.rows * self.columns:
            return True
        return (self.columns == 1 or self.column == 1) and (self.rows == 1 or self.row == self.columns)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements of the matrix."""
        return self.rows * self.columns * itemsize_of(self.dtype)

    @property
    def span_bytes(self) -> int:
        """Bytes from the first element to the last, for strides that are not negative."""
        if not self.rows * self.columns:
            return 0
        return ((self.rows - 1) * self.row + (self.columns - 1) * self.column + 1) * itemsize_of(self.dtype)

    @property
    def order(self) -> str:
        """The layout of the matrix as text."""
        if self.is_row_major:
            return "row-major"
        return "column-major" if self.transposed.is_row_major else f"strides of {self.row} and {self.column} elements"


def row_major_matrix(rows: int, columns: int, dtype: str, batch: int = 1) -> Matrix:
    """A matrix whose rows follow one another without a gap. The matrices of a batch also follow one another without a
    gap."""
    alignment = GRANULE if batch == 1 else math.gcd(GRANULE, rows * columns * itemsize_of(dtype))
    return Matrix(rows, columns, columns, 1, dtype, alignment, rows * columns if batch > 1 else 0)
