"""Which layouts of operands a kernel can read directly, and which layout a copy has if an operand must be copied.

The operands are numbered: 0 and 1 are the factors, as the kernel sees them, and 2 is the product.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...kernels.cuda_kernel import CudaKernel
from ...product.problem import itemsize_of
from ..runtime.engine_product import are_whole
from ..runtime.layout import Matrix, row_major_matrix
from ..runtime.memory import GRANULE, LINE_BYTES
from .dtypes import made_dtype


class Layouts(Protocol):
    """The layouts that a kernel requires of its operands."""

    def fits(self, operand: int, matrix: Matrix) -> bool:
        """Whether the kernel takes a matrix with this layout and the kernel's dtype."""
        ...

    def copy(self, operand: int, matrix: Matrix, dtype: str) -> Matrix:
        """The layout of a copy that the kernel takes."""
        ...

    def stored(self, compute: str, dtype: str) -> str | None:
        """The dtype in which the kernel stores a result of ``dtype``; None if it stores only narrower dtypes."""
        ...


@dataclass(frozen=True)
class RowMajor:
    """The layouts of kernels that take row-major matrices without gaps."""

    def fits(self, operand: int, matrix: Matrix) -> bool:  # noqa: ARG002
        return matrix.is_row_major

    def copy(self, operand: int, matrix: Matrix, dtype: str) -> Matrix:  # noqa: ARG002
        return row_major_matrix(matrix.rows, matrix.columns, dtype)

    def stored(self, compute: str, dtype: str) -> str | None:
        return _stored((), compute, dtype)


@dataclass(frozen=True)
class Boxes:
    """The layouts of kernels whose operands are tensor maps: elements are contiguous along one axis, and may have gaps
    along the other.

    The copy engine needs addresses and strides that are multiples of 16 bytes; C can also be written without the copy
    engine. With ``along_k``, a copy of an operand is contiguous along k, whatever the layout of the operand."""

    kernel: CudaKernel = field(compare=False)
    along_k: bool = False
    #: What else it depends on: layouts of several kernels may be equal.
    rules: tuple[Any, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", (*self.kernel.boxes, *self.kernel.stores))

    def fits(self, operand: int, matrix: Matrix) -> bool:
        if operand == 2:
            return matrix.columns == 1 or matrix.column == 1 or self._stores_down(matrix)
        size = itemsize_of(matrix.dtype)
        down = is_down(matrix)
        follows = matrix.row == 1 if down else (matrix.column == 1 or matrix.columns == 1)
        outer, step = (matrix.columns, matrix.column) if down else (matrix.rows, matrix.row)
        inner = matrix.rows if down else matrix.columns
        strided = outer == 1 or (step >= inner and step * size % GRANULE == 0)
        return follows and strided and matrix.aligned and self._reads(operand, down, size)

    def copy(self, operand: int, matrix: Matrix, dtype: str) -> Matrix:
        down = operand < 2 and is_down(matrix)
        size = itemsize_of(dtype)
        along_k = self.along_k and not (operand == 1 and matrix.rows == 1)  # a single row of b lies both ways
        if operand < 2 and (along_k or not self._reads(operand, down, size)):
            down = operand == 1
        inner, outer = (matrix.rows, matrix.columns) if down else (matrix.columns, matrix.rows)
        step = inner if operand == 2 or outer == 1 else _padded(inner, size)
        row, column = (1, step) if down else (step, 1)
        return Matrix(matrix.rows, matrix.columns, row, column, dtype)

    def stored(self, compute: str, dtype: str) -> str | None:
        return _stored(self.kernel.stores, compute, dtype)

    def given(self, operand: int, matrix: Matrix, step: int = 0) -> Matrix:
        """A matrix that fits, as it is passed to the kernel; the next matrix of its batch is ``step`` elements further.
        A single row of ``b`` counts as row-major and as column-major."""
        down = is_down(matrix)
        if operand == 2:
            down = matrix.column != 1 and self._stores_down(matrix)
        elif not self._reads(operand, down, itemsize_of(matrix.dtype)):
            down = not down
        return matrix._replace(next=step, down=down)

    def _stores_down(self, matrix: Matrix) -> bool:
        """Whether the kernel stores C column after column. It can do so only in boxes, and only if elements have two or
        four bytes."""
        follows = matrix.row == 1 and matrix.columns > 1 and matrix.column >= matrix.rows
        whole = matrix.aligned and are_whole(itemsize_of(matrix.dtype), matrix.rows, matrix.column)
        return follows and whole and "c_down" in self.kernel.boxes

    def _reads(self, operand: int, down: bool, size: int) -> bool:
        """Whether tensor cores can read an operand with this layout. They read elements of two and of eight bytes in
        both directions. Other elements must be contiguous along k, except elements of four bytes of A, which come from
        registers."""
        along_k = down == (operand == 1)
        either = size in (2, 8) or (size == 4 and operand == 0)
        return ("ab"[operand] + "_down" * down) in self.kernel.boxes and (either or along_k)


@dataclass(frozen=True)
class Strided:
    """The layouts of kernels that take pointers and strides. The table ``strides`` in the header of such a kernel says
    what the kernel reads without a copy.

    With ``whole`` such a kernel gets a copy of a factor whose rows or columns do not begin at multiples of 16 bytes,
    because the kernel's longest loads need such addresses."""

    kernel: CudaKernel = field(compare=False)
    whole: bool = False
    #: What else it depends on: layouts of several kernels may be equal.
    rules: tuple[Any, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", (*map(self._rule, range(3)), *self.kernel.stores))

    def fits(self, operand: int, matrix: Matrix) -> bool:
        if self.whole and operand < 2 and given_by_strides(matrix).vector_bytes < GRANULE:
            return False
        rows = matrix.columns == 1 or matrix.column == 1
        columns = matrix.rows == 1 or matrix.row == 1
        if min(matrix.row, matrix.column) < 0:
            return False
        return {"any": True, "either": rows or columns, "rows": rows, "columns": columns}[self._rule(operand)]

    def copy(self, operand: int, matrix: Matrix, dtype: str) -> Matrix:
        rule = self._rule(operand)
        down = rule == "columns" or (rule != "rows" and is_down(matrix))
        inner, outer = (matrix.rows, matrix.columns) if down else (matrix.columns, matrix.rows)
        step = inner if outer == 1 else _padded(inner, itemsize_of(dtype))
        return Matrix(matrix.rows, matrix.columns, *((1, step) if down else (step, 1)), dtype)

    def stored(self, compute: str, dtype: str) -> str | None:
        return _stored(self.kernel.stores, compute, dtype)

    def _rule(self, operand: int) -> str:
        return self.kernel.strides["abc"[operand]]


def _padded(elements: int, size: int) -> int:
    """The distance in elements from one row of a copy to the next: whole cache lines, or whole granules for short
    rows."""
    unit = LINE_BYTES if elements * size > LINE_BYTES else GRANULE
    return -(-elements * size // unit) * unit // size


def _stored(stores: Collection[str], compute: str, dtype: str) -> str | None:
    made = made_dtype(compute)
    if dtype == made or (dtype in stores and itemsize_of(compute) < 8):
        return dtype
    return made if itemsize_of(dtype) < itemsize_of(made) else None


def is_down(matrix: Matrix) -> bool:
    """Whether the elements of a column are contiguous, and not those of a row.

    >>> is_down(Matrix(4, 3, 1, 4, "float16")), is_down(Matrix(4, 3, 3, 1, "float16"))
    (True, False)
    """
    return matrix.rows > 1 and matrix.row == 1 and not (matrix.column == 1 and matrix.columns > 1)


def start_of_lines(matrix: Matrix) -> int:
    """The largest number of bytes of which the start addresses of all contiguous rows or columns are multiples, at most
    a cache line of the GPU.

    >>> start_of_lines(Matrix(4, 80, 80, 1, "float16")), start_of_lines(Matrix(4, 64, 64, 1, "float16"))
    (32, 128)
    """
    outer, step = (matrix.columns, matrix.column) if is_down(matrix) else (matrix.rows, matrix.row)
    return LINE_BYTES if outer == 1 else math.gcd(step * itemsize_of(matrix.dtype), LINE_BYTES)


def given_by_strides(matrix: Matrix, step: int = 0) -> Matrix:
    """A matrix as it is passed to a kernel by strides; the next matrix of its batch is ``step`` elements further. A
    stride that is never used is 1, so that the kernel finds contiguous elements."""
    rows, columns, row, column, dtype, alignment, *_ = matrix
    # Elements of a single row that lie apart are columns of one element each, which do follow each other.
    down = is_down(matrix) or (rows == 1 and columns > 1 and column != 1)
    if down and rows == 1:
        row = 1
    if not down and columns == 1:
        column = 1
    return Matrix(rows, columns, row, column, dtype, alignment, step, down)


def kind_of(matrix: Matrix) -> tuple[Any, ...]:
    """All properties of a matrix that determine whether it or its transpose fits, and which layout a copy has."""
    rows, columns, row, column, dtype, alignment, *_ = matrix
    size, is_aligned = itemsize_of(dtype), alignment == GRANULE
    if rows > 1 < columns and (row == 1) != (column == 1):
        inner, step = (columns, row) if column == 1 else (rows, column)
        return (
            dtype,
            is_aligned,
            row == 1,
            step * size % GRANULE == 0,
            inner * size % GRANULE == 0,
            step < inner,
            step < 0,
        )
    single = rows == 1, columns == 1, row == 1, column == 1
    whole = (n * size % GRANULE == 0 for n in (rows, columns, row, column))
    return dtype, is_aligned, *single, *whole, column < rows, row < columns, row < 0, column < 0


@functools.cache  # for each kernel of a plan
def layouts_of(kernel: CudaKernel) -> tuple[Layouts, ...]:
    """The layouts that a kernel takes, and further layouts with which the kernel may be faster."""
    if kernel.strides:
        return (Strided(kernel), Strided(kernel, whole=True)) if "padded" in kernel.strides else (Strided(kernel),)
    return (Boxes(kernel), Boxes(kernel, along_k=True)) if kernel.boxes else (RowMajor(),)
