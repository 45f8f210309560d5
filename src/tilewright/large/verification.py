"""Verifies with NumPy that a matrix C is the product of A and B, by random vectors in O(n²) operations.

1. Random vectors x show in which rows to look for errors (Freivalds 1977): C·x is compared with A·(B·x). Each block of
   columns is compared separately, because an error of one element is easier to see in a shorter sum with fewer roundings.
   No element of x is near zero, so every wrong element of C counts. No two elements of x are equal, so two errors do not
   cancel, as they can if the elements are ±1.
2. In the rows with the largest differences, and in some random rows, every element is compared with A·B in float64.
3. The elements with the largest differences are computed again in wider arithmetic than that of the product, and
   compared with the guaranteed bound: |C − A·B| ≤ bound · (|A||B|). The comparison in wider arithmetic decides whether
   the product is right. This comparison is skipped if float64 is accurate enough to decide.

A product whose errors are all within the bound is never rejected. A wrong product is found if its errors change a row
of C·x clearly more than rounding changes the other rows.

The matrices can be arrays or any objects that can be read by rectangles, such as files. At no time are more elements of
A, B and C in memory than a ``Budget`` allows. A and C are read once, and B is read two or three times.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..cpu.runtime.runner import as_matrices
from ..cpu.runtime.stop import Stopped, current_stop
from ..errors import DTypeError, MemoryLimitError, ShapeError, UsageError, VerificationError
from ..gpu.arrays.host_libraries import host_library, on_host
from ..gpu.arrays.libraries import is_on_gpu
from ..host.machine import available_memory, bytes_text
from ..product.operands import NUMPY_ONLY_DTYPES, admit, asked_dtype, promoted
from ..product.precision import UNIT, promised_bound
from ..product.problem import combine_shapes

if TYPE_CHECKING:
    from ..product.array_types import Operand
    from .files import Source

# ---- what was found --------------------------------------------------------------------------------------------------

#: Verified products are reported here, at level INFO.
log = logging.getLogger("tilewright.verification")


@dataclass(frozen=True)
class Verification:
    """The result of ``verify``; ``print`` shows it in one line.

    Attributes
    ----------
    error : float
        The largest error that was found in an element of C, relative to |A||B|.
    bound : float
        The guaranteed error bound.
    where : tuple of int
        The indices in C of the element with the largest error; empty if no element was compared.
    what : str
        A description of the product.

    See Also
    --------
    verify : Returns a ``Verification``.
    """

    error: float
    bound: float
    where: tuple[int, ...] = ()
    what: str = ""

    @property
    def ok(self) -> bool:
        """Whether every error that was found is within the bound."""
        return self.error <= self.bound

    def __str__(self) -> str:
        at = f" at C{list(self.where)}" if self.where else ""
        verdict = "verified" if self.ok else "wrong"
        return f"{verdict}: {self.what}: the largest error found is {self.error:.2g}·|A||B|{at}, the bound {self.bound:.2g}"

    def report(self, name: str = "") -> None:
        """Log the result, or raise VerificationError for a wrong product.

        Parameters
        ----------
        name : str, optional
            The name of the product in the message.

        Raises
        ------
        VerificationError
            The product is wrong.
        """
        said = f"{name}: {self}" if name else str(self)
        if not self.ok:
            raise VerificationError(said, self.error, self.bound)
        log.info("%s", said)


# ---- the comparison --------------------------------------------------------------------------------------------------

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
    """A matrix that can be read by rectangles. A ``ReadableMatrix`` may have an attribute ``grain``, like a
    ``files.Source``.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows and columns."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its elements."""

    def __getitem__(self, where: tuple[Any, slice]) -> Array:
        """The elements of some rows, a slice or an array of their numbers, and of a slice of columns."""


#: Bytes for each element of a rectangle: as stored, in float64, its magnitude, and copies of both.
ELEMENT_BYTES = 48


@dataclass(frozen=True)
class Budget:
    """The limits of the data that a comparison has in memory at the same time.

    A rectangle that is read has at most ``elements`` elements, each of which takes ELEMENT_BYTES bytes including
    intermediate results. At most the products of ``steps`` rows of B with random vectors are in memory, for ``blocks``
    blocks of columns.
    """

    elements: int = 1 << 21
    blocks: int = _BLOCKS
    steps: int = 1 << 62

    @classmethod
    def within(cls, nbytes: int, m: int, n: int, k: int) -> Budget | None:
        """Return the budget of a comparison within ``nbytes`` bytes: one half for rectangles, and the other half for
        sums. The result is None if ``nbytes`` is too small for any comparison.
        """
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
    """Return the largest error that was found in an element of C, relative to |A||B|, and the indices of the element.

    The error is infinite if the element is an infinity or NaN and IEEE arithmetic gives another value for this element.
    """
    k = a.shape[1]
    with np.errstate(all="ignore"):
        at, columns, errors = _farthest(a, b, c, _suspects(a, b, c, budget), bound, budget)
        if not errors.max() + 2 * (k + 2) * UNIT["float64"] <= bound:
            errors = _decided(a, b, c, at, columns, bound=bound, budget=budget)
    first = int(np.argmax(errors))
    return float(errors[first]), (int(at[first]), int(columns[first]))


def compare_integers(
    a: ReadableMatrix, b: ReadableMatrix, c: ReadableMatrix, budget: Budget
) -> tuple[float, tuple[int, int]]:
    """Check for random vectors X that C·X = A·(B·X), modulo 2^b, where b is the number of bits of C's integers. Returns
    an error of 0, or an infinite error and the indices of the first wrong element.
    """
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
    a: ReadableMatrix, b: ReadableMatrix, c: ReadableMatrix, at: Array, columns: Array, *, bound: float, budget: Budget
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
    """Yield rectangles of at most ``elements`` elements that together cover a part of a matrix. If possible, a
    rectangle consists of whole rows, or of whole chunks if the matrix has chunks.
    """
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


# ---- arrays ----------------------------------------------------------------------------------------------------------


def verify(a: Operand, b: Operand, c: Operand, *, precision: str | float = "standard") -> Verification:
    """Check that ``c`` is the product of ``a`` and ``b`` within the error bound that ``precision`` guarantees.

    The check takes O(n²) operations, which NumPy computes. Arrays on a GPU are copied to the host. ``matmul(…,
    verify=True)`` calls this function, and logs its result at level INFO of the logger "tilewright.verification".

    Parameters
    ----------
    a : array of shape (…, m, k) or (k,)
        The left operand: float16, bfloat16, float32, float64, complex numbers or integers, of any library, on the
        host or a GPU.
    b : array of shape (…, k, n) or (k,)
        The right operand.
    c : array of shape (…, m, n)
        The product to check, which may be an array of any library.
    precision : str or float, default: "standard"
        The guaranteed error bound: see ``matmul``.

    Returns
    -------
    Verification
        The result of the check. The attribute ``ok`` of the result is False for a wrong product.

    Raises
    ------
    ShapeError
        The operands differ in k, or ``c`` has another shape.
    DTypeError
        An operand has a dtype whose products cannot be verified, such as bool.
    UsageError
        The given ``precision`` has no error bound.

    See Also
    --------
    tilewright.large.verification.Verification : The class of the result of ``verify``.
    matmul : Can check its own result, with ``verify=True``.

    Notes
    -----
    Products with random vectors show which rows of C are suspect (Freivalds 1977). Elements of the suspect rows are
    computed again in wider arithmetic and compared with the error bound. A right product is never rejected. Products of
    integers are compared modulo 2^b, where b is the number of bits of C's integers. A wrong row of integers passes with
    a probability of at most 2^-7; a row with a single wrong element never passes. In rows of C whose row of A holds an
    infinity or a NaN, and in columns of C whose column of B holds one, only some elements are compared.

    Examples
    --------
    >>> import numpy as np, tilewright as tw
    >>> a = np.random.default_rng(1).uniform(-1, 1, (300, 300))
    >>> c = a @ a
    >>> tw.verify(a, a, c).ok
    True
    >>> c[17, 250] += 1e-9
    >>> print(tw.verify(a, a, c, precision=1e-13).where)
    (17, 250)
    """
    place = "gpu" if is_on_gpu(a, b, c) else "cpu"
    x, y, z = (admit(on_host(value), name) for value, name in ((a, "a"), (b, "b"), (c, "c")))
    shapes = combine_shapes(x.shape, y.shape)
    if z.shape != shapes.result:
        raise ShapeError(f"c is {z.shape}, the product is {shapes.result}: c must have exactly this shape")
    dtype = promoted(x.dtype, y.dtype)
    check_dtypes(dtype, z.dtype)
    bound = promised_bound(precision, place, dtype.name, z.dtype.name, shapes.k)
    x, y, z = as_matrices(shapes, x, y, z)
    found = Verification(0.0, bound, (), f"{shapes.m}×{shapes.k} · {shapes.k}×{shapes.n} {dtype}")
    if not z.size or not shapes.k:
        if len(wrong := np.argwhere(z != 0)):
            found = Verification(math.inf, bound, tuple(map(int, wrong[0])), found.what)
    else:
        for index in np.ndindex(z.shape[:-2]):
            three = x[index], y[index], z[index]
            error, where = (
                compare_integers(*three, Budget()) if dtype.kind in "iu" else compare_floats(*three, bound, Budget())
            )
            if not error <= found.error or not found.where:
                found = Verification(error, bound, (*index, *where), found.what)
    return replace(found, where=_in_result(found.where, z.shape, shapes.result))


def multiply_verified(
    product: Callable[..., Any],
    a: Any,
    b: Any,
    out: Any,
    *,
    precision: str | float,
    algorithm: str,
    plain: bool,
    **others: Any,
) -> Any:
    """Compute ``product(a, b, out, …)``, verify it and log the result.

    Raises VerificationError if the product is wrong, and UsageError if there is no error bound for each element of the
    product.
    """
    if not plain or algorithm != "classical":
        what = "scales, alpha, beta, bias and activation" if not plain else f"algorithm {algorithm!r}"
        raise UsageError(f"verify=True is for A·B by the classical algorithm: leave out {what}")
    if isinstance(a, list) and isinstance(b, list) and a and getattr(a[0], "ndim", 0) > 1:
        outs = [None] * len(a) if out is None else out
        if not len(a) == len(b) == len(outs):
            raise ShapeError(
                f"a is a list of {len(a)} arrays, b one of {len(b)}, out one of {len(outs)}: all must have the same length"
            )
        each = zip(a, b, outs, strict=True)
        others |= {"precision": precision, "algorithm": algorithm, "plain": plain}
        return [multiply_verified(product, *three, **others) for three in each]
    library = None if is_on_gpu(a, b) else host_library(a, b)
    x, y = (on_host(a), on_host(b)) if library is None else library.operands(a, b, precision)
    if out is not None:  # it may overlap the operands
        x, y = np.array(x), np.array(y)
    made = _verifiable(x, y, others.get("out_dtype"))
    result = product(a, b, out, precision=precision, algorithm=algorithm, **others)
    of_integers = made.kind in "iu" and out is not None  # these wrap around before they are cast to the dtype of out
    found = verify(x, y, on_host(result).astype(made) if of_integers else result, precision=precision)
    found.report()
    return result


def _in_result(where: tuple[int, ...], matrices: tuple[int, ...], result: tuple[int, ...]) -> tuple[int, ...]:
    """The index of an element of the result, where that of its matrices is ``where``: an axis for a vector is not there."""
    if not where or matrices == result:
        return where
    return tuple(map(int, np.unravel_index(np.ravel_multi_index(where, matrices), result))) if result else ()


def _verifiable(a: Any, b: Any, out_dtype: Any) -> np.dtype:
    """The dtype of a product of arrays on the host before it is cast to that of ``out``. Raises DTypeError for one that
    ``verify`` refuses."""
    dtype = promoted(*(admit(value, name, by_numpy=True).dtype for value, name in ((a, "a"), (b, "b"))))
    made = dtype if out_dtype is None else asked_dtype(out_dtype, dtype)[0]
    check_dtypes(dtype, made)
    return made


def check_dtypes(dtype: np.dtype, result: np.dtype) -> None:
    """Raise DTypeError if a product of ``dtype``, stored as ``result``, cannot be verified."""
    if dtype.kind == "b" or dtype.name in NUMPY_ONLY_DTYPES or (dtype.kind in "iu") != (result.kind in "iu"):
        what = f"products of {dtype}" if dtype == result else f"products of {dtype} as {result}"
        raise DTypeError(f"{what} cannot be verified: only integers as integers, and floating-point numbers")


# ---- files -----------------------------------------------------------------------------------------------------------

#: What a verification takes where no limit is stated; less where a quarter of the free memory is less.
MOST_BYTES = 1 << 30


class SourceMatrix:
    """A matrix that is read while it is compared. Ctrl-C ends the comparison before the next rectangle."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.shape, self.grain, self.dtype = source.shape, source.grain, source.dtype.newbyteorder("=")

    def __getitem__(self, where: tuple[Any, slice]) -> np.ndarray[Any, Any]:
        if current_stop().asked:
            raise Stopped
        rows, columns = where
        width = columns.stop - columns.start
        if isinstance(rows, slice):
            out = np.empty((rows.stop - rows.start, width), self.dtype)
            self._source.read(rows, columns, out)
            return out
        out = np.empty((len(rows), width), self.dtype)
        for at, row in enumerate(rows.tolist()):
            self._source.read(slice(row, row + 1), columns, out[at : at + 1])
        return out


def verify_files(a: Any, b: Any, c: Any, bound: float, memory: float | str | None = None) -> Verification:
    """Check that ``c`` is the product of ``a`` and ``b``, so that no element's error exceeds ``bound``·(|A||B|).

    The matrices have the shapes (m, k), (k, n) and (m, n), and are paths of files, sources or arrays. Integers are
    compared modulo 2^b, where b is the number of bits of C's integers. ``memory`` is the largest number of bytes that
    the check may use: a number, or a text such as "4GiB". A and C are read once, and B is read twice, or three times if
    float64 is not accurate enough to decide. Raises MemoryLimitError if the limit is too small, and FileError.

    >>> a = np.random.default_rng(1).uniform(-1, 1, (300, 200))
    >>> verify_files(a, a.T, a @ a.T, 1e-13).ok
    True
    """
    # Imported here, because verifying arrays needs nothing of the engine of streams.
    from .files import open_matrix
    from .streaming.places.places import parse_bytes
    from .streaming.plan.cuts import own_bytes

    with contextlib.ExitStack() as stack:
        sources = []
        for operand in (a, b, c):
            if hasattr(operand, "read") and hasattr(operand, "fingerprint"):
                sources.append(operand)  # the caller opened it, and closes it
            else:
                sources.append(stack.enter_context(contextlib.closing(open_matrix(operand))))
        x, y, z = map(SourceMatrix, sources)
        (m, k), n = x.shape, y.shape[1]
        found = Verification(0.0, bound, (), f"{m}×{k} · {k}×{n} {z.dtype.name}")
        if not m * n:
            return found
        limit = min(MOST_BYTES, (available_memory() or MOST_BYTES) // 4)
        if memory is not None:
            limit = parse_bytes("memory", memory)
        reserved = own_bytes(limit) + 2 * max(source.workspace for source in sources)
        budget = Budget.within(limit - reserved, m, n, k)
        if budget is None:
            raise MemoryLimitError(
                f"memory is {bytes_text(limit)}: that is too little to verify ({m}×{k}) · ({k}×{n}), of which each row and "
                "column needs about 100 bytes; give more, or leave verify out"
            )
        if z.dtype.kind in "iu":
            error, where = compare_integers(x, y, z, budget)
        else:
            error, where = compare_floats(x, y, z, bound, budget)
        return Verification(error, bound, where, found.what)
