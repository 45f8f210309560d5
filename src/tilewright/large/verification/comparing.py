"""The comparison of a matrix with a product, by rectangles: never more of A, B and C is in memory than a ``Budget`` has."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...product.precision import UNIT

#: Blocks of columns, and vectors for each.
_BLOCKS, _VECTORS = 8, 2
#: Rows that are compared because vectors show the largest difference there, and at random; elements that are decided.
_WORST_ROWS, _RANDOM_ROWS, _DECIDED = 16, 4, 256
#: Random vectors by which integers are compared.
_OF_INTEGERS = 8
#: Sums of so many steps of k, at least, are in memory at a time.
_LEAST_STEPS = 1024
#: The least numbers above zero: no rounding errs by less.
_LEAST = {"bfloat16": 2.0**-133, "float16": 2.0**-24, "float32": 2.0**-149, "float64": 2.0**-1074}

Array = np.ndarray


class ReadableMatrix(Protocol):
    """A matrix that can be read by rectangles. It may have a ``grain``, as a ``files.Source`` has."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its elements."""

    def __getitem__(self, where: tuple[Any, slice]) -> Array:
        """The elements of some rows, a slice or an array of their numbers, and of a slice of columns."""


#: Bytes for each element of a rectangle: as stored, in float64, its magnitude, and copies of both.
ELEMENT_BYTES = 48


@dataclass(frozen=True)
class Budget:
    """What is in memory at a time: ``elements`` of a rectangle, each of which takes ELEMENT_BYTES with what is computed from
    it, and sums for ``blocks`` blocks of columns and ``steps`` of k."""

    elements: int = 1 << 21
    blocks: int = _BLOCKS
    steps: int = 1 << 62

    @classmethod
    def within(cls, nbytes: int, m: int, n: int, k: int) -> Budget | None:
        """The budget of a comparison in so many bytes: a half for rectangles, the other for sums. None where that is too
        little."""
        elements = min(cls.elements, nbytes // 2 // ELEMENT_BYTES)
        blocks = _BLOCKS
        while elements and blocks:
            left = nbytes // 2 - 8 * (m * blocks * (5 * _VECTORS + 1) + n * (_VECTORS + 3))
            steps = left // (8 * blocks * (_VECTORS + 1))
            if steps >= min(k, _LEAST_STEPS):
                return cls(elements, blocks, steps)
            blocks //= 2
        return None


def compare_floats(
    a: ReadableMatrix, b: ReadableMatrix, c: ReadableMatrix, bound: float, budget: Budget
) -> tuple[float, tuple[int, int]]:
    """The largest error found in a product, relative to |A||B|, and its place. The error is infinite for an element that is
    neither a number nor what IEEE arithmetic has there."""
    k = a.shape[1]
    with np.errstate(all="ignore"):
        at, columns, errors = _farthest(a, b, c, _suspects(a, b, c, budget), bound, budget)
        if not errors.max() + 2 * (k + 2) * UNIT["float64"] <= bound:
            errors = _decided(a, b, c, at, columns, bound, budget)
    first = int(np.argmax(errors))
    return float(errors[first]), (int(at[first]), int(columns[first]))


def compare_integers(
    a: ReadableMatrix, b: ReadableMatrix, c: ReadableMatrix, budget: Budget
) -> tuple[float, tuple[int, int]]:
    """0 if C·X = A·(B·X) modulo the size of C's integers, otherwise infinity; and the first wrong element."""
    x = np.random.default_rng().integers(-(1 << 63), (1 << 63) - 1, (b.shape[1], _OF_INTEGERS), endpoint=True)
    x[:, 0] |= 1  # an odd weight never makes a single error vanish
    of_c, right = _times(c, x, budget), _times(a, _times(b, x, budget), budget)
    wrong = np.flatnonzero((of_c.astype(c.dtype) != right.astype(c.dtype)).any(axis=1))
    if not wrong.size:
        return 0.0, (0, 0)
    row, exact = wrong[:1], np.zeros(b.shape[1], np.int64)
    for deep, columns in parts_to_read(b, slice(0, b.shape[0]), slice(0, b.shape[1]), budget.elements):
        exact[columns] += _product(a[row, deep], b[deep, columns])[0]
    differs = c[row, slice(0, b.shape[1])][0] != exact.astype(c.dtype)
    return math.inf, (int(row[0]), int(np.flatnonzero(differs)[0]))


def _times(matrix: ReadableMatrix, x: Array, budget: Budget) -> Array:
    """The product by some vectors of int64, modulo 2⁶⁴."""
    found = np.zeros((matrix.shape[0], x.shape[1]), np.int64)
    for rows, columns in parts_to_read(matrix, slice(0, matrix.shape[0]), slice(0, matrix.shape[1]), budget.elements):
        found[rows] += _product(matrix[rows, columns], x[columns])
    return found


def _product(x: Array, y: Array) -> Array:
    """In int64, by NumPy: what is verified was multiplied by other code."""
    return np.asarray(np.matmul(x.astype(np.int64), y.astype(np.int64)))


# ---- where to look ---------------------------------------------------------------------------------------------------


def _suspects(a: ReadableMatrix, b: ReadableMatrix, c: ReadableMatrix, budget: Budget) -> Array:
    """The rows where C·x differs most from A·(B·x), relative to |A||B|, and some others."""
    (m, _), n = a.shape, b.shape[1]
    rng = np.random.default_rng()
    x = rng.uniform(0.5, 1, (_VECTORS, n)) * rng.choice((-1.0, 1.0), (_VECTORS, n))
    usable = np.ones(n, bool)
    while True:
        differences, finite, unusable = _differences(a, b, c, x, usable, budget)
        if not (usable & unusable).any():
            break
        usable &= ~unusable  # once: they do not depend on what is usable
    worst = np.argpartition(-differences, min(_WORST_ROWS, m) - 1)[:_WORST_ROWS]
    hidden = np.flatnonzero(~finite)[:_RANDOM_ROWS]
    return np.unique(np.concatenate([worst, hidden, rng.integers(0, m, _RANDOM_ROWS)]))


def _differences(
    a: ReadableMatrix, b: ReadableMatrix, c: ReadableMatrix, x: Array, usable: Array, budget: Budget
) -> tuple[Array, Array, Array]:
    """How much C·x and A·(B·x) differ in each row; which rows of A are finite; and which columns hide all others, because
    B has an element that is not finite there, or C has them throughout. Rows that are compared have their elements too."""
    (m, k), n = a.shape, b.shape[1]
    edges = np.unique(np.linspace(0, n, min(budget.blocks, n) + 1).astype(np.intp))
    found = np.zeros((m, _VECTORS, len(edges) - 1), _sums_dtype(a, b))
    size, finite, unusable = np.zeros((m, len(edges) - 1)), np.ones(m, bool), np.zeros(n, bool)
    for deep in _cut(slice(0, k), max(1, min(budget.steps, k))):
        of_b, sizes, counts = _times_vectors(b, deep, x, edges, usable, budget, with_sizes=True)
        unusable |= counts > 0
        for rows, steps in parts_to_read(a, slice(0, m), deep, budget.elements):
            left, here = _wide(a[rows, steps]), slice(steps.start - deep.start, steps.stop - deep.start)
            found[rows] += np.tensordot(left, of_b[here], 1)
            size[rows] += np.abs(left) @ sizes[here]
            finite[rows] &= np.isfinite(left).all(axis=1)
    of_c, _, counts = _times_vectors(c, slice(0, m), x, edges, usable, budget)
    unusable |= 2 * counts > m
    off = np.empty(m)
    for rows in _cut(slice(0, m), max(1, budget.elements // found[:1].size)):
        beside, apart = size[rows, None], np.abs(of_c[rows] - found[rows])
        none = np.where(of_c[rows] == 0, 0.0, np.inf)
        off[rows] = np.where(beside > 0, apart / beside, none).max(axis=(1, 2))
    # A NaN or an infinity in C comes first, if A's row has none; otherwise the vectors show nothing there.
    off[np.isnan(off)] = np.inf
    off[~finite] = 0
    return off, finite, unusable


def _times_vectors(
    matrix: ReadableMatrix,
    rows: slice,
    x: Array,
    edges: Array,
    usable: Array,
    budget: Budget,
    *,
    with_sizes: bool = False,
) -> tuple[Array, Array, Array]:
    """Some rows of a matrix times each vector, and the sums of their magnitudes, in each block of columns; and how many
    elements of each column are not finite."""
    count = rows.stop - rows.start
    sums = np.zeros((count, len(x), len(edges) - 1), _sums_dtype(matrix, matrix))
    sizes, counts = np.zeros((count if with_sizes else 0, len(edges) - 1)), np.zeros(matrix.shape[1], np.int64)
    for band, columns in parts_to_read(matrix, rows, slice(0, matrix.shape[1]), budget.elements):
        part = _wide(matrix[band, columns])
        if not (finite := np.isfinite(part)).all():
            counts[columns] += np.count_nonzero(~finite, axis=0)
        if not usable[columns].all():
            part = np.where(usable[columns], part, 0)
        here = slice(band.start - rows.start, band.stop - rows.start)
        for block, ends in enumerate(itertools.pairwise(edges)):
            low, high = (min(max(end, columns.start), columns.stop) - columns.start for end in ends)
            if low < high:
                sums[here, :, block] += part[:, low:high] @ x[:, columns][:, low:high].T
                if with_sizes:
                    sizes[here, block] += np.abs(part[:, low:high]).sum(axis=1)
    return sums, sizes, counts


# ---- elements --------------------------------------------------------------------------------------------------------


def _farthest(
    a: ReadableMatrix, b: ReadableMatrix, c: ReadableMatrix, rows: Array, bound: float, budget: Budget
) -> tuple[Array, Array, Array]:
    """The elements of these rows that are farthest from A·B in float64: rows, columns, and errors relative to |A||B|."""
    k, n = b.shape
    wide, elements = _grain(b)[1], budget.elements // 2
    at, columns, errors = np.empty(0, np.intp), np.empty(0, np.intp), np.empty(0)
    for part in _cut(slice(0, n), max(1, elements // len(rows) // wide) * wide):
        exact = np.zeros((len(rows), part.stop - part.start), _sums_dtype(a, b))
        magnitude = np.zeros(exact.shape)
        for deep, band in parts_to_read(b, slice(0, k), part, elements):
            left, right = _wide(a[rows, deep]), _wide(b[deep, band])
            here = slice(band.start - part.start, band.stop - part.start)
            exact[:, here] += left @ right
            magnitude[:, here] += np.abs(left) @ np.abs(right)
        found = _relative(_wide(c[rows, part]), exact, magnitude, c.dtype.name, k, bound).reshape(-1)
        worst = np.argpartition(-found, min(_DECIDED, found.size) - 1)[:_DECIDED]
        at = np.concatenate([at, rows[worst // exact.shape[1]]])
        columns = np.concatenate([columns, part.start + worst % exact.shape[1]])
        errors = np.concatenate([errors, found[worst]])
    worst = np.argsort(-errors)[:_DECIDED]
    return at[worst], columns[worst], errors[worst]


def _decided(
    a: ReadableMatrix, b: ReadableMatrix, c: ReadableMatrix, at: Array, columns: Array, bound: float, budget: Budget
) -> Array:
    """The errors of some elements relative to |A||B|, in wider arithmetic."""
    k = a.shape[1]
    lines, line = np.unique(at, return_inverse=True)
    exact = _wider(np.zeros(len(at), _sums_dtype(a, b)))
    magnitude = np.abs(exact)
    span = slice(int(columns.min()) // (wide := _grain(b)[1]) * wide, int(columns.max()) + 1)
    for deep, band in parts_to_read(b, slice(0, k), span, budget.elements // 4):
        here = (columns >= band.start) & (columns < band.stop)
        right = b[deep, band][:, columns[here] - band.start].T
        left = a[lines, deep]
        for few in _cut(slice(0, right.shape[1]), max(1, budget.elements // 4 // len(at))):
            x, y = _wider(left[:, few])[line[here]], _wider(right[:, few])
            exact[here] += (x * y).sum(axis=1)
            magnitude[here] += (np.abs(x) * np.abs(y)).sum(axis=1)
    of_lines = [c[lines[[i]], slice(j, j + 1)][0, 0] for i, j in zip(line, columns.tolist(), strict=True)]
    found = _wider(np.array(of_lines, c.dtype))
    errors = _relative(found, exact, magnitude, c.dtype.name, k, bound)
    if np.finfo(exact.real.dtype).eps >= np.finfo(np.float64).eps and UNIT.get(c.dtype.name, 1) == UNIT["float64"]:
        errors = np.maximum(0, errors - 2 * k * UNIT["float64"])  # this machine has no wider arithmetic
    return errors


def _relative(c: Array, exact: Array, magnitude: Array, dtype: str, k: int, bound: float) -> Array:
    """|c − exact| over the magnitude, without what underflow allows; 0 for an infinity or a NaN where it belongs, and
    infinite for any other."""
    real = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    error = np.maximum(0, np.abs(c - exact) - 2 * (k + 1) * _LEAST[real])
    relative = np.where(error > 0, error / magnitude, 0.0)
    same = (c == exact) | (np.isnan(c) & np.isnan(exact))
    if np.iscomplexobj(c):  # which of both parts is infinite or NaN depends on the order of operations
        same |= ~np.isfinite(c) & ~np.isfinite(exact)
    # The order of additions decides whether a partial sum overflows.
    overflows = ~np.isfinite(c) & np.isfinite(exact) & ((1 + bound) * magnitude >= _largest(real))
    both = np.isfinite(c) & np.isfinite(exact)
    return np.where(same | overflows, 0.0, np.where(both & ~np.isnan(relative), relative, np.inf))


# ---- matrices --------------------------------------------------------------------------------------------------------


def parts_to_read(matrix: ReadableMatrix, rows: slice, columns: slice, elements: int) -> Iterator[tuple[slice, slice]]:
    """Rectangles of at most so many elements that cover a part of a matrix: whole rows, or whole chunks if it has any."""
    down, across = max(1, rows.stop - rows.start), max(1, columns.stop - columns.start)
    high, wide = (min(side, elements) for side in _grain(matrix))
    height = max(1, min(high, elements // wide))
    width = min(across, max(1, elements // height // wide) * wide)
    if width == across:
        height *= max(1, elements // width // height)
    return itertools.product(_cut(rows, min(height, down), high), _cut(columns, width, wide))


def _cut(part: slice, step: int, grain: int = 1) -> list[slice]:
    """Pieces of at most ``step``; if that is a multiple of the ``grain``, so are all edges but the first and the last."""
    first = part.start // grain * grain if step % grain == 0 else part.start
    edges = [part.start, *range(first + step, part.stop, step), part.stop]
    return [slice(*ends) for ends in itertools.pairwise(edges)]


def _grain(matrix: ReadableMatrix) -> tuple[int, int]:
    """Rows and columns of a chunk."""
    grain: tuple[int, int] = getattr(matrix, "grain", (1, 1))
    return grain


def _sums_dtype(a: ReadableMatrix, b: ReadableMatrix) -> np.dtype[Any]:
    """The dtype of sums in float64 or complex128."""
    return np.result_type(np.float64, *(x.dtype for x in (a, b) if x.dtype.kind == "c"))


def _largest(real: str) -> float:
    return {"float16": 65504.0, "bfloat16": 3.3895e38}.get(real) or float(np.finfo(real).max)


def _wide(x: Array) -> Array:
    """In float64 or complex128."""
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _wider(x: Array) -> Array:
    """In long double, which on most machines has more bits than float64."""
    return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)
