"""Matrices of float32 as two matrices of float16, or one: how the parts lie in memory, and how accurate their product is.

``split_bound`` is the bound of the error, which ``docs/accuracy.md`` derives.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ...host.cached_property import cached_property
from ...product.problem import itemsize_of
from .boxes import BoxedOperand
from .layout import Matrix, row_major_matrix
from .memory import GRANULE

#: Lines that a cluster splits, which have one excess.
LINES = 32
#: The most blocks of a cluster, and those of lines longer than the last number: more blocks hold more of them at once.
_MOST_PARTS, _MOST_OF_LONG, _LONG = 8, 16, 6144
#: Rows and columns of a part of C that is flagged or not.
FLAGGED = 64, 128
#: The matrices and both parts of their workspace begin at multiples of so many bytes.
_ALIGNMENT = 256
#: ``Operand`` in the source of the kernel that splits.
OPERAND = struct.Struct("<6q6i")
#: The largest of the excesses of a row of A and a column of B together that is ever allowed.
_MOST_EXCESS = 12
#: The same where numbers are split into two of TF32, so that nothing underflows: no product is below 2^(-28 - WIDEST). Their
#: sums are promoted after so many of k.
WIDEST, WIDE_STEP = 72, 32
#: Lines of A and B are counted in whole tiles of so many, by the number of planes.
_TILE = {1: 256, 2: 128}


@dataclass(frozen=True)
class Lines:
    """The rows of A or the columns of B, called lines, as the rows of a matrix: B is the transpose of its own."""

    matrix: Matrix

    @property
    def lines(self) -> int:
        """The number of lines."""
        return self.matrix.rows

    @property
    def k(self) -> int:
        """Elements of a line."""
        return self.matrix.columns

    @cached_property
    def along(self) -> bool:
        """Whether elements of a line are nearer to each other in memory than those of neighbouring lines; so they are in
        what is made of them."""
        x = self.matrix
        return abs(x.column) <= abs(x.row) if min(x.rows, x.columns) > 1 else x.columns > 1

    @cached_property
    def is_whole(self) -> bool:
        """Whether the neighbours in 16 bytes can be read at once."""
        x = self.matrix
        inner, outer = (x.column, x.row) if self.along else (x.row, x.column)
        each = GRANULE // itemsize_of(x.dtype)
        return inner == 1 and x.aligned and outer % each == 0 and x.next % each == 0


def as_they_lie(a: Lines, b: Lines, c: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """A, B and C for a kernel that multiplies some parts of C from the operands themselves."""
    of_a, of_b = a.matrix, b.matrix.transposed
    return (
        of_a._replace(down=of_a.row == 1 != of_a.column),
        of_b._replace(down=of_b.row == 1 != of_b.column),
        c._replace(column=1),
    )


@dataclass(frozen=True)
class SplitOperand(Lines):
    """Lines of ``matrices`` of float32, one if all products have the same. ``planes``: the matrices of float16, two with the
    high and the low parts, or one with the high parts alone."""

    matrices: int = 1
    planes: int = 2

    @cached_property
    def pitch(self) -> int:
        """Elements from one row of a plane to the next: a multiple of 64 bytes."""
        return -(-(self.k if self.along else self.lines) // 32) * 32

    @cached_property
    def plane(self) -> int:
        """Elements of a plane."""
        return self.pitch * (self.lines if self.along else self.k)

    @cached_property
    def groups(self) -> int:
        """Groups of 32 lines, each of which has one excess; there are whole tiles of them."""
        tile = _TILE[self.planes]
        return -(-self.lines // tile) * tile // LINES

    @cached_property
    def words(self) -> int:
        """Words of four bytes of what is found of a matrix: exponents and excesses."""
        return self.groups * (LINES + 1)

    @property
    def own_bytes(self) -> int:
        """Bytes of the matrices themselves, without gaps, up to where the parts may begin behind them."""
        return -(-4 * self.lines * self.k * self.matrices // _ALIGNMENT) * _ALIGNMENT

    @cached_property
    def planes_bytes(self) -> int:
        """Bytes of the planes of all matrices."""
        return -(-2 * self.planes * self.plane * self.matrices // _ALIGNMENT) * _ALIGNMENT

    @cached_property
    def workspace_bytes(self) -> int:
        """Bytes of the planes, and of what is found."""
        return self.planes_bytes + -(-4 * self.words * self.matrices // _ALIGNMENT) * _ALIGNMENT

    @cached_property
    def blocks(self) -> int:
        """Blocks that split each line."""
        return min(_MOST_OF_LONG if self.k > _LONG else _MOST_PARTS, 1 << max(0, (self.k // 128).bit_length() - 1))

    def packed(self, parts: int) -> bytes:
        """``Operand`` in the source of the kernel, if each line is split by so many blocks."""
        part = -(-self.k // (parts * 128)) * 128
        sizes = self.lines, self.k, self.matrices, self.groups, part, self.groups * self.matrices * parts
        x = self.matrix
        return OPERAND.pack(x.row, x.column, x.next, self.pitch, self.plane, self.words, *sizes)

    def boxed(self, box: tuple[int, int]) -> BoxedOperand:
        """Its planes as the copy engine sees them: of each matrix the high parts, then the low ones."""
        rows, columns = (self.lines, self.k) if self.along else (self.k, self.lines)
        return BoxedOperand("float16", rows, columns, self.planes * self.matrices, 2 * self.pitch, 2 * self.plane, box)


@dataclass(frozen=True)
class SplitProduct:
    """C = A·B for each product of a batch, in float32. With ``add`` the products are added to C, with one more rounding."""

    a: SplitOperand
    b: SplitOperand
    c: Matrix
    batch: int = 1
    add: bool = False

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the planes of both operands, and of what is found of them."""
        return self.a.workspace_bytes + self.b.workspace_bytes

    @property
    def tiles(self) -> int:
        """Parts of C that may be flagged."""
        rows, columns = FLAGGED
        return -(-self.a.lines // rows) * -(-self.b.lines // columns) * self.batch


def split_of_rows(m: int, n: int, k: int, planes: int = 2, add: bool = False) -> SplitProduct:
    """The product of A[m×k] and B[k×n] as they lie row by row, without gaps."""
    a, b, c = (row_major_matrix(*shape, "float32") for shape in ((m, k), (k, n), (m, n)))
    return SplitProduct(SplitOperand(a, planes=planes), SplitOperand(b.transposed, planes=planes), c, add=add)


def split_bound(k: int, steps: int, excess: int = 0) -> float:
    """The bound of |C - Ĉ| in units of 2^-24·|A||B|, componentwise, where the excesses of a row of A and a column of B are
    ``excess`` together, and sums of high parts are promoted after ``steps`` steps of 64 of k.

    >>> split_bound(4096, 2) < 150 < split_bound(4096, 2, 5) < 4096
    True
    """
    wide, promotions = 2.0**excess, -(-k // (64 * steps))
    represented = 4 + 8 * wide
    high = 4 * steps * (8 * wide + 2)
    cross = k / 8 * 20 * wide / 2048
    return 1.01 * (represented + high + cross + promotions + 1)


def wide_bound(k: int) -> float:
    """The same where numbers are split into two of TF32, for excesses up to ``WIDEST`` together.

    >>> wide_bound(128) < 90, wide_bound(4096) < 220
    (True, True)
    """
    represented, each, promotions = 8, 6, -(-k // WIDE_STEP)
    return 1.01 * (represented + 3 * WIDE_STEP / 8 * each + promotions)


def allowed_excess(k: int, steps: int) -> int:
    """The largest excess with which the classical bound k·2^-24·|A||B| holds; -1 if it does not even without.

    >>> allowed_excess(64, 2), allowed_excess(128, 2), allowed_excess(4096, 2)
    (-1, 0, 5)
    """
    return max((t for t in range(_MOST_EXCESS) if split_bound(k, steps, t) <= k), default=-1)
