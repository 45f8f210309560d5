"""Schemes that multiply 2×2 matrices of blocks with 7 products, as tables of terms, for any number of levels.

Each of the 7 products multiplies a signed sum of blocks of A by a signed sum of blocks of B, and its result is added
with signs to blocks of C.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: A row and a column in a grid of blocks, and a sign.
Term = tuple[int, int, int]
#: The terms of A, of B and of C.
Product = tuple[list[Term], list[Term], list[Term]]
Scheme = list[Product]

A, B, C = range(3)

#: Strassen's scheme: of those with 7 products it has the fewest terms in all, 12 of each operand. Winograd's needs fewer
#: additions because it reuses partial sums, but here partial sums are never materialised.
STRASSEN = (
    ("+11+22", "+11+22", "+11+22"),
    ("+21+22", "+11", "+21-22"),
    ("+11", "+12-22", "+12+22"),
    ("+22", "+21-11", "+11+21"),
    ("+11+12", "+22", "+12-11"),
    ("+21-11", "+11+12", "+22"),
    ("+12-22", "+21+22", "+11"),
)


def scheme_of_levels(levels: int) -> Scheme:
    """Return Strassen's scheme on ``levels`` levels: 7^levels products of blocks, in a grid of 2^levels × 2^levels
    blocks.

    >>> scheme_of_levels(0)
    [([(0, 0, 1)], [(0, 0, 1)], [(0, 0, 1)])]
    >>> scheme_of_levels(1)[1]
    ([(1, 0, 1), (1, 1, 1)], [(0, 0, 1)], [(1, 0, 1), (1, 1, -1)])
    >>> len(scheme_of_levels(2)), max(len(a) for a, b, c in scheme_of_levels(2))
    (49, 4)
    """
    if levels == 0:
        return [([(0, 0, 1)], [(0, 0, 1)], [(0, 0, 1)])]
    return [
        (_within(outer[A], row[A]), _within(outer[B], row[B]), _within(outer[C], row[C]))
        for outer in scheme_of_levels(levels - 1)
        for row in STRASSEN
    ]


def _within(outer: list[Term], text: str) -> list[Term]:
    """The quarters that ``text`` names, in each block of ``outer``; the signs are multiplied."""
    return [(2 * r + x, 2 * s + y, t * sign) for r, s, t in outer for x, y, sign in _quarters(text)]


def _quarters(text: str) -> list[Term]:
    """``"+21-22"`` → [(1, 0, 1), (1, 1, −1)]."""
    return [(int(text[at + 1]) - 1, int(text[at + 2]) - 1, int(text[at] + "1")) for at in range(0, len(text), 3)]


def coefficients(side: int) -> list[list[int]]:
    """Return the coefficients of the sums of quarters that the scheme multiplies: one row for each product, and one
    column for each of the quarters 11, 12, 21 and 22.

    >>> coefficients(A)[:3]
    [[1, 0, 0, 1], [0, 0, 1, 1], [1, 0, 0, 0]]
    """
    rows = [{2 * x + y: sign for x, y, sign in _quarters(row[side])} for row in STRASSEN]
    return [[row.get(quarter, 0) for quarter in range(4)] for row in rows]


def tables(schemes: Sequence[Scheme]) -> tuple[np.ndarray, np.ndarray]:
    """Return the products of all ``schemes``, one scheme after another, as two arrays of integers that compiled code
    reads.

    The first array has the axes [product, operand, term, (row, column, sign, first)]; ``first`` is 1 if no earlier
    product of the scheme is added to that block of C. The second array has the axes [product, operand] and holds the
    number of terms of each operand.
    """
    flat = [product for scheme in schemes for product in scheme]
    terms = np.zeros((len(flat), 3, max(len(side) for product in flat for side in product), 4), np.int64)
    counts = np.array([[len(side) for side in product] for product in flat], np.int64)
    numbers = iter(range(len(flat)))
    for scheme in schemes:
        written: set[tuple[int, int]] = set()
        for product in scheme:
            number = next(numbers)
            for side in (A, B, C):
                for t, (row, column, sign) in enumerate(product[side]):
                    terms[number, side, t] = row, column, sign, side == C and (row, column) not in written
            written |= {(row, column) for row, column, _ in product[C]}
    return terms, counts
