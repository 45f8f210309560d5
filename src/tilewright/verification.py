"""Whether a matrix C is the product of A and B: found out afterwards, by work of O(n²), with NumPy alone.

1. Random vectors x show where to look (Freivalds 1977): in each row C·x is compared with A·(B·x), over blocks of columns,
   because in a shorter sum an error of one element is larger beside the roundings of the others. No weight in x is near
   zero, and no two are equal, so that a wrong element counts, and two that cancel with weights of ±1 do not cancel.
2. Of the rows where these differ most, and of some random ones, every element is compared with A·B in float64.
3. Those elements that are farthest off are compared again, in wider arithmetic than the product's, with the bound that was
   promised: |C − A·B| ≤ bound · (|A||B|). This decides.

A right product is never rejected, because the bound holds for each element. A wrong one is found if the difference that its
errors make in C·x stands out from the roundings of all other rows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arrays.host_copy import on_host
from .errors import DTypeError, ShapeError, UsageError, VerificationError
from .operands import NUMPY_DTYPES, admit, promoted
from .planning.bounds import UNIT, promised_bound
from .problem import combine_shapes
from .runtime.cpu.batch import as_matrices

#: Blocks of columns, and vectors for each.
_BLOCKS, _VECTORS = 8, 2
#: Rows that are compared because vectors show the largest difference there, and at random; elements that are decided.
_WORST_ROWS, _RANDOM_ROWS, _DECIDED = 16, 4, 256
#: Random vectors by which integers are compared.
_OF_INTEGERS = 8
#: Elements of a band of rows, which is converted at a time.
_BAND = 1 << 21
#: The least numbers above zero: no rounding errs by less.
_LEAST = {"bfloat16": 2.0**-133, "float16": 2.0**-24, "float32": 2.0**-149, "float64": 2.0**-1074}

#: Verified products are reported here, at level INFO.
log = logging.getLogger("tilewright.verification")

Matrix = np.ndarray


@dataclass(frozen=True)
class Verification:
    """What was found: the largest error of an element, relative to |A||B|, and where; and the bound that was promised."""

    error: float
    bound: float
    where: tuple[int, ...] = ()
    what: str = ""

    @property
    def ok(self) -> bool:
        """Whether every error found is within the bound."""
        return self.error <= self.bound

    def __str__(self) -> str:
        at = f" at C{list(self.where)}" if self.where else ""
        verdict = "verified" if self.ok else "wrong"
        return f"{verdict}: {self.what}: the largest error found is {self.error:.2g}·|A||B|{at}, the bound {self.bound:.2g}"


def verify(a: Any, b: Any, c: Any, *, precision: str | float = "standard") -> Verification:
    """Check afterwards that ``c`` is the product of ``a`` and ``b``, as precise as ``precision`` promises.

    The arrays have the shapes and dtypes of a ``matmul`` and its result, which may come from any library: float16,
    bfloat16, float32, float64, complex numbers or integers, in the memory of the host or of a GPU. It takes O(n²) operations
    of NumPy, and copies what is on a GPU. Integers are compared modulo their size: a wrong row passes with a probability of
    at most 2^-7, and one with a single wrong element never. Of rows of A with an infinity or a NaN, and of columns that
    have them throughout, only some elements are compared.

    ``matmul(…, verify=True)`` calls it, and logs what was found at level INFO of the logger "tilewright.verification".

    Returns what was found; ``ok`` is False for a wrong product. Raises ShapeError, DTypeError, and UsageError for a
    precision that has no bound.

    >>> a = np.random.default_rng(1).uniform(-1, 1, (300, 300))
    >>> c = a @ a
    >>> verify(a, a, c).ok
    True
    >>> c[17, 250] += 1e-9
    >>> print(verify(a, a, c, precision=1e-13).where)
    (17, 250)
    """
    place = "gpu" if any(x is not y for x, y in ((x, on_host(x)) for x in (a, b, c))) else "cpu"
    x, y, z = (admit(on_host(value), name) for value, name in ((a, "a"), (b, "b"), (c, "c")))
    shapes = combine_shapes(x.shape, y.shape)
    if z.shape != shapes.result:
        raise ShapeError(f"c is {z.shape}, the product is {shapes.result}: c must have exactly this shape")
    dtype = promoted(x.dtype, y.dtype)
    if dtype.kind == "b" or dtype.name in NUMPY_DTYPES or (dtype.kind in "iu") != (z.dtype.kind in "iu"):
        what = f"products of {dtype}" if dtype == z.dtype else f"products of {dtype} as {z.dtype}"
        raise DTypeError(f"{what} cannot be verified: only integers as integers, and floating-point numbers")
    bound = promised_bound(precision, place, dtype.name, z.dtype.name, shapes.k)
    x, y, z = as_matrices(shapes, x, y, z)
    found = Verification(0.0, bound, (), f"{shapes.m}×{shapes.k} · {shapes.k}×{shapes.n} {dtype}")
    if not z.size or not shapes.k:
        wrong = np.argwhere(z != 0)
        return Verification(math.inf, bound, tuple(map(int, wrong[0])), found.what) if len(wrong) else found
    for index in np.ndindex(z.shape[:-2]):
        compare = _compare_integers if dtype.kind in "iu" else _compare_floats
        error, where = compare(x[index], y[index], z[index], bound)
        if not error <= found.error or not found.where:
            found = Verification(error, bound, (*index, *where), found.what)
    return found


def multiply_verified(
    product: Callable[..., Any],
    a: Any,
    b: Any,
    out: Any,
    precision: str | float,
    algorithm: str,
    plain: bool,
    **others: Any,
) -> Any:
    """``product(a, b, out, …)``, verified; what was found is logged. Raises VerificationError if it is wrong, and UsageError
    for a product without a bound for each element."""
    if not plain or algorithm != "classical":
        what = "scales, alpha, beta, bias and activation" if not plain else f"algorithm {algorithm!r}"
        raise UsageError(f"verify=True is for A·B by the classical algorithm: leave out {what}")
    if isinstance(a, list) and isinstance(b, list) and a and getattr(a[0], "ndim", 0) > 1:
        outs = [None] * len(a) if out is None else out
        if not len(a) == len(b) == len(outs):
            raise ShapeError(f"a is a list of {len(a)} arrays, b one of {len(b)}, out one of {len(outs)}: not as many")
        each = zip(a, b, outs, strict=True)
        return [multiply_verified(product, *three, precision, algorithm, plain, **others) for three in each]
    x, y = a, b
    if out is not None:  # it may overlap the operands
        x, y = (np.array(on_host(value)) for value in (a, b))
    result = product(a, b, out, precision=precision, algorithm=algorithm, **others)
    found = verify(x, y, result, precision=precision)
    if not found.ok:
        raise VerificationError(str(found), found.error, found.bound)
    log.info("%s", found)
    return result


def _bands(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, _BAND // max(1, columns))
    return (slice(low, min(rows, low + step)) for low in range(0, rows, step))


def _compare_floats(a: Matrix, b: Matrix, c: Matrix, bound: float) -> tuple[float, tuple[int, int]]:
    """The largest error found in a product, relative to |A||B|, and its place. The error is infinite for an element that is
    neither a number nor what IEEE arithmetic has there."""
    with np.errstate(all="ignore"):
        rows = _suspects(a, b, c)
        exact, magnitude = _product_of_rows(a[rows], b)
        of_elements = _relative(_wide(c[rows]), exact, magnitude, c.dtype.name, a.shape[1], bound)
        flat = of_elements.reshape(-1)
        count = min(_DECIDED, flat.size)
        worst = np.argpartition(-flat, count - 1)[:count]
        at, columns = rows[worst // b.shape[1]], worst % b.shape[1]
        x, y = _wider(a[at]), _wider(b[:, columns].T)
        exact, magnitude = (x * y).sum(axis=1), (np.abs(x) * np.abs(y)).sum(axis=1)
        errors = _relative(_wider(c[at, columns]), exact, magnitude, c.dtype.name, a.shape[1], bound)
        if np.finfo(x.real.dtype).eps >= np.finfo(np.float64).eps and UNIT.get(c.dtype.name, 1) == UNIT["float64"]:
            errors = np.maximum(0, errors - 2 * a.shape[1] * UNIT["float64"])  # this machine has no wider arithmetic
    first = int(np.argmax(errors))
    return float(errors[first]), (int(at[first]), int(columns[first]))


def _suspects(a: Matrix, b: Matrix, c: Matrix) -> np.ndarray:
    """The rows where C·x differs most from A·(B·x), relative to |A||B|, and some others."""
    (m, k), n = a.shape, b.shape[1]
    rng = np.random.default_rng()
    x = rng.uniform(0.5, 1, (_VECTORS, n)) * rng.choice((-1.0, 1.0), (_VECTORS, n))
    starts = np.unique(np.linspace(0, n, min(_BLOCKS, n) + 1).astype(np.intp)[:-1])
    # A column of B or C without finite numbers would hide all others. Rows that are compared have its elements too.
    x[:, ~_each_finite(b) | (2 * np.count_nonzero(~np.isfinite(_wide(c)), axis=0) > m)] = 0
    usable = x[0] != 0
    of_b = np.empty((k, _VECTORS * len(starts)), _wide(b[:0]).dtype)
    sizes = np.empty((k, len(starts)))
    for band in _bands(k, n):
        part = np.where(usable, _wide(b[band]), 0)
        of_b[band] = np.hstack([np.add.reduceat(part * weights, starts, axis=1) for weights in x])
        sizes[band] = np.add.reduceat(np.abs(part), starts, axis=1)
    differences, finite = np.empty(m), np.empty(m, bool)
    for band in _bands(m, max(n, k)):
        part, left = np.where(usable, _wide(c[band]), 0), _wide(a[band])
        of_c = np.hstack([np.add.reduceat(part * weights, starts, axis=1) for weights in x])
        size = np.tile(np.abs(left) @ sizes, _VECTORS)
        off = np.where(size > 0, np.abs(of_c - left @ of_b) / size, np.where(of_c == 0, 0.0, np.inf)).max(axis=1)
        # A NaN or an infinity in C comes first, if A's row has none; otherwise the vectors show nothing there.
        off[np.isnan(off)] = np.inf
        finite[band] = np.isfinite(left).all(axis=1)
        off[~finite[band]] = 0
        differences[band] = off
    worst = np.argpartition(-differences, min(_WORST_ROWS, m) - 1)[:_WORST_ROWS]
    hidden = np.flatnonzero(~finite)[:_RANDOM_ROWS]
    return np.unique(np.concatenate([worst, hidden, rng.integers(0, m, _RANDOM_ROWS)]))


def _each_finite(b: Matrix) -> np.ndarray:
    finite = np.ones(b.shape[1], bool)
    for band in _bands(*b.shape):
        finite &= np.isfinite(_wide(b[band])).all(axis=0)
    return finite


def _product_of_rows(a: Matrix, b: Matrix) -> tuple[np.ndarray, np.ndarray]:
    """A·B and |A||B| in float64, of few rows."""
    x = _wide(a)
    exact, magnitude = np.zeros((len(a), b.shape[1]), x.dtype), np.zeros((len(a), b.shape[1]))
    for band in _bands(*b.shape):
        part = _wide(b[band])
        exact = exact + x[:, band] @ part
        magnitude += np.abs(x[:, band]) @ np.abs(part)
    return exact, magnitude


def _relative(c: np.ndarray, exact: np.ndarray, magnitude: np.ndarray, dtype: str, k: int, bound: float) -> np.ndarray:
    """|c − exact| over the magnitude, without what underflow allows; 0 for an infinity or a NaN where it belongs, and
    infinite for any other."""
    real = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    error = np.maximum(0, np.abs(c - exact) - 2 * (k + 1) * _LEAST[real])
    relative = np.where(error > 0, error / magnitude, 0.0)
    same = (c == exact) | (np.isnan(c) & np.isnan(exact))
    if np.iscomplexobj(c):  # which of both parts is infinite or NaN depends on the order of operations
        same |= ~np.isfinite(c) & ~np.isfinite(exact)
    overflows = np.isinf(c) & np.isfinite(exact) & (np.abs(exact) + bound * magnitude >= _largest(real))
    both = np.isfinite(c) & np.isfinite(exact)
    return np.where(same | overflows, 0.0, np.where(both & ~np.isnan(relative), relative, np.inf))


def _largest(real: str) -> float:
    return {"float16": 65504.0, "bfloat16": 3.3895e38}.get(real) or float(np.finfo(real).max)


def _wide(x: np.ndarray) -> np.ndarray:
    """In float64 or complex128."""
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _wider(x: np.ndarray) -> np.ndarray:
    """In long double, which on most machines has more bits than float64."""
    return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)


def _compare_integers(a: Matrix, b: Matrix, c: Matrix, bound: float) -> tuple[float, tuple[int, int]]:  # noqa: ARG001
    """0 if C·X = A·(B·X) modulo the size of the integers, otherwise infinity; and the first wrong element."""
    x = np.random.default_rng().integers(-(1 << 63), (1 << 63) - 1, (b.shape[1], _OF_INTEGERS), endpoint=True)
    x[:, 0] |= 1  # an odd weight never makes a single error vanish
    product: Callable[..., np.ndarray] = np.matmul
    of_c = product(c.astype(np.int64), x)
    right = product(a.astype(np.int64), product(b.astype(np.int64), x))
    wrong = np.flatnonzero((of_c.astype(c.dtype) != right.astype(c.dtype)).any(axis=1))
    if not wrong.size:
        return 0.0, (0, 0)
    row = int(wrong[0])
    exact = product(a[row].astype(np.int64), b.astype(np.int64)).astype(c.dtype)
    return math.inf, (row, int(np.flatnonzero(c[row] != exact)[0]))
