"""Products whose C is known to be symmetric: the elements above the diagonal are not computed, but copied from below
it.

All rows of a tile are computed up to the diagonal element of the tile's last row, so a few elements above the diagonal
are computed, too. The other elements above the diagonal are copied by the thread that has just computed their mirror
images, while the mirror images are in its cache. No element is both computed and copied, so threads need not wait for
each other.

    ┌──┬──┬──┐
    │▓▓│░░│░░│    ▓ computed    ░ copied
    │▓▓│▓▓│░░│
    │▓▓│▓▓│▓▓│
    └──┴──┴──┘

If B is Aᵀ, an element and its mirror image have the same bits, whichever of them is computed: both are the same chain
of multiply-adds with exchanged factors. For complex numbers, and for a B other than Aᵀ, ``cpu/symmetric.py`` makes
mirror images near the diagonal equal.
"""

from typing import Any

import numpy as np

from ...host.machine import machine
from ...product.problem import Symmetry
from .. import codegen
from .cuts import part_start

#: Bits of a word of the call: whether the product is added to C; whether C is symmetric, or Hermitian; of these, whether
#: nothing is copied to the other side of the diagonal, because another product will be added first.
ADDS, SYMMETRIC, HERMITIAN, LOWER = 1, 2, 4, 8
#: What is known of C as such bits.
BITS: dict[Symmetry, int] = {"": 0, "gram": SYMMETRIC, "symmetric": SYMMETRIC, "hermitian": HERMITIAN}
#: Sides of squares of complex numbers that are copied, a line or more of each row.
SQUARE = 16
#: Rows that are written together: no processor prefetches many more.
STREAMS = 16

transposed = codegen.packer(machine().vector_bits or 128)


@codegen.register_jitable
def part_at(length: int, parts: int, place: int) -> int:
    """Return the number of the part that contains ``place``, when ``length`` is cut as by ``part_start``.

    >>> [part_at(7, 3, place) for place in range(7)]
    [0, 0, 0, 1, 1, 2, 2]
    """
    size, longer = length // parts, length % parts
    if place < longer * (size + 1):
        return place // (size + 1)
    return longer + (place - longer * (size + 1)) // size


def matrix_of(c: Any) -> Any:
    """Return the matrix C of a kernel's argument ``c``, which may be a tuple that begins with C."""


@codegen.overload(matrix_of)
def _matrix_of(c):
    return (lambda c: c) if hasattr(c, "ndim") else (lambda c: c[0])


def mirror(c: Any, top: int, bottom: int, left: int, right: int, conjugated: bool) -> None:
    """Copy rows ``top`` to ``bottom`` of columns ``left`` to ``right`` of C to the other side of the diagonal."""


@codegen.overload(mirror)
def _mirror(c, top, bottom, left, right, conjugated):  # noqa: ARG001  # the two below take them
    def of_complex(c, top, bottom, left, right, conjugated):
        mirror_elements(c, top, bottom, left, right, conjugated)

    def of_reals(c, top, bottom, left, right, conjugated):  # noqa: ARG001
        size = codegen.itemsize(c)
        if c.strides[1] != size or c.strides[0] < 0:
            mirror_elements(c, top, bottom, left, right, False)
        elif top < bottom and left < right:
            ld = c.strides[0] // size
            row = codegen.as_row(codegen.moved(c, (left * ld + top) * size), (right - left) * ld)
            transposed(c.T, left, right - left, top, bottom - top, row, 0, ld)

    return of_complex if c.dtype.name.startswith("complex") else of_reals


def conjugate(value: Any, conjugated: bool) -> Any:
    """Return the value, or its conjugate if ``conjugated`` is True."""


@codegen.overload(conjugate)
def _conjugate(value, conjugated):  # noqa: ARG001  # the two below take them
    def of_complex(value, conjugated):
        return np.conj(value) if conjugated else value

    return of_complex if value.name.startswith("complex") else (lambda value, conjugated: value)


@codegen.njit(nogil=True)
def mirror_elements(c, top, bottom, left, right, conjugated):
    """Copy like ``mirror``, element by element, in squares whose rows take few cache lines."""
    for i in range(top, bottom, SQUARE):
        for j in range(left, right, SQUARE):
            for column in range(j, min(right, j + SQUARE)):
                for row in range(i, min(bottom, i + SQUARE)):
                    c[column, row] = conjugate(c[row, column], conjugated)


@codegen.register_jitable
def columns_of_tile(columns: int, left: int, end: int, reals: int) -> int:
    """Return how many of a sliver's ``columns``, which begin with column ``left``, are computed in a tile whose rows
    end before ``end``.

    If ``reals`` is 0, all columns are computed. If ``reals`` is not 0, C is symmetric, each element of C has ``reals``
    packed elements, and the computed columns end with the diagonal element of the tile's last row.

    >>> columns_of_tile(64, 128, 140, 0), columns_of_tile(64, 128, 140, 1), columns_of_tile(64, 128, 140, 2)
    (64, 12, 64)
    """
    return columns if reals == 0 else min(columns, end * reals - left)


@codegen.register_jitable
def end_of_unit(m: int, tiles: int, units: int, row: int) -> int:
    """Return the end of the rows that are computed together with ``row``. The m rows are cut into ``tiles`` tiles, and
    the tiles into ``units`` units."""
    return part_start(m, tiles, part_start(tiles, units, part_at(tiles, units, part_at(m, tiles, row)) + 1))


@codegen.njit(nogil=True)
def mirror_band(c, conjugated, top, bottom, left, right, tiles, units):
    """Copy finished rows ``top`` to ``bottom`` of columns ``left`` to ``right`` to the other side of the diagonal.
    Elements whose mirror images are computed are not copied: in each unit of rows, only the elements left of the last
    row's diagonal element are copied."""
    m, column = c.shape[0], left
    far = min(bottom, max(top, end_of_unit(m, tiles, units, right - 1)))
    if far < bottom:  # every column is copied, in squares that vectors transpose
        for j in range(left, right, STREAMS):
            mirror(c, far, bottom, j, min(right, j + STREAMS), conjugated)
    while column < right:
        beyond = end_of_unit(m, tiles, units, column)
        if max(top, beyond) < far:
            mirror(c, max(top, beyond), far, column, min(right, beyond), conjugated)
        column = beyond
