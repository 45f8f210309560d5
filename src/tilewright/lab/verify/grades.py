"""Grades the accuracy of a product: which error bound it satisfies, and which kind of algorithm computed it.

The tests and Grade A are those of Demmel, Li, Langou, Pereira, Gates and Rubio González, "How to grade the accuracy of
an implementation of the BLAS" (BLIS Retreat 2024), in the form of NVIDIA's CUDALibrarySamples
(cuBLAS/Emulation/gemm_grading). Let u be the unit roundoff of the result's dtype, and f(n) = n for matrices of n × n
elements. A grade says within which bound the error |C − A·B| lies:

- **A**: the error is within f(n)·u·(|A||B|), element by element;
- **B**: the error is within f(n)·u·‖A_i‖‖B_j‖, with the norms of the element's row of A and column of B;
- **C**: the error is within f(n)·u·‖A‖‖B‖, with the Frobenius norms of A and B. The bound of grade C promises nothing
  about small elements.

Every bound is checked with four pairs of operands. The pair on which an algorithm fails, and the way in which it fails,
identify the kind of the algorithm:

    positive     ordinary numbers: the errors of the other pairs are compared with the errors of this pair
    graded_rows  rows of A of very different size: an algorithm that adds rows to each other satisfies the bound of the
                 largest row only
    zeros        elements of C that are sums of zeros: an algorithm that adds quarters, like Strassen's scheme, leaves
                 other numbers there (test 2 of that paper), and is called "Strassen-like"
    exponents    elements of the whole range of exponents, where the largest of A meet the smallest of B: an algorithm that
                 converts a row to whole numbers, scaled by its largest element, loses the smallest elements (test 4), and
                 is called "fixed-point"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..inputs.distributions import distributed

#: A function that multiplies two square matrices.
Product = Callable[[np.ndarray, np.ndarray], np.ndarray]
#: If a product has more multiply-adds than WHOLE, only CROSSED rows and CROSSED columns, spread evenly, are compared where
#: they cross.
WHOLE, CROSSED = 256**3, 64
#: The names of the bounds; the strictest is first.
BOUNDS = ("A", "B", "C")


@dataclass(frozen=True)
class Errors:
    """The errors of a product, in units of u: the largest error relative to |A||B|, to ‖A_i‖‖B_j‖ and to ‖A‖‖B‖; the
    root mean square error relative to the root mean square of A·B; and whether infinities and NaN are where IEEE
    arithmetic has them."""

    componentwise: float
    by_lines: float
    normwise: float
    rms: float
    as_ieee: bool = True

    def of(self, bound: str) -> float:
        """The largest error in units of u, relative to what the bound of grade ``bound`` contains besides f(n)·u:
        |A||B|, ‖A_i‖‖B_j‖ or ‖A‖‖B‖."""
        return {"A": self.componentwise, "B": self.by_lines, "C": self.normwise}[bound]


@dataclass(frozen=True)
class Grade:
    """The grade of a product. ``letter`` is "A", "B", "C" or "–"; ``algorithm`` is "classical", "fixed-point" or
    "Strassen-like". ``slope`` is the slope of log(largest componentwise error) over log(n), which is at most 1 for
    grade A. ``over`` has, for each bound, the largest ratio of an error to that bound."""

    letter: str
    algorithm: str
    slope: float
    over: dict[str, float]


def grade(product: Product, dtype: str, sizes: Sequence[int], *, seed: int = 1) -> Grade:
    """Grade ``product`` by square products with these ``sizes``.

    >>> grade(lambda a, b: a @ b, "float32", (16, 32, 64)).letter
    'A'
    """
    over = dict.fromkeys(BOUNDS, 0.0)
    largest: dict[str, dict[int, float]] = {}  # by name of the operands and size, the largest componentwise error
    adds_rows = False
    for n in sizes:
        for name, a, b in _operands(n, dtype, seed):
            c = product(a, b)
            errors = measure(a, b, c)
            largest.setdefault(name, {})[n] = errors.componentwise
            adds_rows = adds_rows or (name == "zeros" and bool(c[abs(a) @ abs(b) == 0].any()))
            for bound in BOUNDS:
                over[bound] = max(over[bound], errors.of(bound) / n if errors.as_ieee else np.inf)
    # Compared with "positive": an algorithm that is less precise for all operands is no fixed-point one.
    loses_small = any(error > max(n, 8 * largest["positive"][n]) for n, error in largest["exponents"].items())
    algorithm = "Strassen-like" if adds_rows else "fixed-point" if loses_small else "classical"
    letter = next((bound for bound in BOUNDS if over[bound] <= 1), "–")
    return Grade(letter, algorithm, _slope(largest["positive"]), over)


def _operands(n: int, dtype: str, seed: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    for name in ("positive", "graded_rows"):
        yield name, *distributed(name, (n, n, n), dtype, seed)
    yield "zeros", *_zeros(n, dtype, np.random.default_rng([seed, n]))
    yield "exponents", *_all_exponents(n, dtype, np.random.default_rng([seed, n]))


def _zeros(n: int, dtype: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """n×n operands of which n/2 elements of the product are sums of zeros: where an element of A's row is not zero, the
    element of B's column is zero."""
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, n))
    rows, columns = (rng.permutation(n)[: max(1, n // 2)] for _ in range(2))
    for row, column in zip(rows, columns, strict=True):
        of_a = np.zeros(n, bool)
        of_a[rng.permutation(n)[: int(rng.integers(1, max(2, n)))]] = True
        a[row, of_a] = 0
        b[~of_a, column] = 0
    return a.astype(dtype), b.astype(dtype)


def _all_exponents(n: int, dtype: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """n×n operands. Each row of A, and each column of B, has the numbers of the one before it, cyclically shifted by one:
    A_ip = (xs)_(i+p), B_pj = (x/s)_(p+j), with x from 1 to 2 and s of all exponents with which nothing overflows. The
    diagonal of the product is Σ x²; the other elements are larger by far."""
    most = np.finfo(dtype).maxexp // 2 - int(np.ceil(np.log2(max(2, n)))) - 2
    x = rng.uniform(1, 2, n).astype(dtype)
    scale = np.ldexp(np.ones(n, dtype), np.linspace(most, -most, n).astype(int))
    shifted = np.add.outer(np.arange(n), np.arange(n)) % n
    return (x * scale)[shifted], (x / scale)[shifted]


def measure(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Errors:
    """The errors of ``c`` as the product A·B; see ``Exact``.

    >>> a = np.eye(3, dtype=np.float32)
    >>> measure(a, a, a).componentwise
    0.0
    """
    return Exact(a, b).errors(c)


class Exact:
    """A·B, |A||B| and the norms, computed once, to measure the errors of any number of results. If a product is large,
    only a sample of its elements is compared.

    A float32 result is compared with a product in float64, and a float64 result with one in long double. Of each error,
    k times the smallest positive number of the result's dtype is not counted, because rounding near zero may lose this
    much. Products of finite operands must not overflow.
    """

    def __init__(self, a: np.ndarray, b: np.ndarray) -> None:
        self.dtype, self.k = a.dtype, a.shape[1]
        self._wide = np.dtype(np.longdouble if a.dtype == np.float64 else np.float64)
        self._rows, self._columns = _compared(a.shape[0], b.shape[1], self.k)
        x, y = a[self._rows].astype(self._wide), b[:, self._columns].astype(self._wide)
        with np.errstate(invalid="ignore", over="ignore"):
            self._exact, self._magnitude = x @ y, abs(x) @ abs(y)
        of_rows, of_columns = _norms(a).astype(self._wide), _norms(b.T).astype(self._wide)
        self._line_norms = np.outer(of_rows[self._rows], of_columns[self._columns])
        self._norm = np.sqrt((of_rows**2).sum()) * np.sqrt((of_columns**2).sum())
        self._not_finite = ~np.isfinite(a).all(1)[:, None], ~np.isfinite(b).all(0)

    def errors(self, c: np.ndarray) -> Errors:
        """Errors of ``c``, in units of the unit roundoff of its dtype."""
        exact, finite = self._exact, np.isfinite(self._exact)
        with np.errstate(invalid="ignore", over="ignore"):
            found = c[np.ix_(self._rows, self._columns)].astype(self._wide)
            error = abs(found - exact)
        rows, columns = self._not_finite
        same = finite | (found == exact) | (np.isnan(found) & np.isnan(exact))
        as_ieee = bool(same.all()) and bool(np.array_equal(~np.isfinite(c), rows | columns))
        # The least number above zero: the rounding of every product and sum may lose as much.
        least = self.k * self._wide.type(np.finfo(c.dtype).smallest_subnormal)
        error = np.maximum(0, np.where(finite, error, 0) - least)
        unit: Any = self._wide.type(np.finfo(c.dtype).eps / 2)
        exact = np.where(finite, exact, 0)
        largest = abs(exact).max(initial=0) or 1  # scaled first: the squares overflow long before these norms do
        norm = np.sqrt(((exact / largest) ** 2).sum()) or np.inf
        rms = np.sqrt(((error / largest) ** 2).sum()) / norm
        relative_to = self._magnitude, self._line_norms, np.full(error.shape, self._norm)
        componentwise, by_lines, normwise = (float(_largest(error, each, finite) / unit) for each in relative_to)
        return Errors(componentwise, by_lines, normwise, float(rms / unit), as_ieee)


def _compared(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows and columns of C that are compared: all of a small product. Of a larger product, CROSSED rows and
    columns are compared, which are spread evenly, and the two at the middle, where quarters meet."""
    if m * n * k <= WHOLE:
        return np.arange(m), np.arange(n)
    spread = (np.linspace(0, x - 1, min(x, CROSSED)).astype(np.intp) for x in (m, n))
    rows, columns = (np.unique([*each, x // 2 - 1, x // 2]) for each, x in zip(spread, (m, n), strict=True))
    return rows, columns


def _norms(x: np.ndarray) -> np.ndarray:
    """The norm of the finite elements of each row. They are scaled, so that squares neither overflow nor underflow."""
    x = np.where(np.isfinite(x), x, 0)
    largest = abs(x).max(1, initial=0, keepdims=True)
    scaled = np.divide(x, largest, out=np.zeros_like(x), where=largest > 0).astype(np.float64)
    return largest[:, 0].astype(np.longdouble) * np.sqrt((scaled * scaled).sum(1))


def _largest(error: np.ndarray, norm: np.ndarray, finite: np.ndarray) -> Any:
    """The largest error relative to its norm; an error where the norm is zero counts as infinite, and so does NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where((error == 0) | ~finite, 0, error / norm)
    return np.where(np.isnan(ratio), np.inf, ratio).max(initial=0)


def _slope(largest: dict[int, float]) -> float:
    """The slope of log(error) over log(n), by least squares; NaN for fewer than two sizes."""
    known = [(np.log(n), np.log(error)) for n, error in largest.items() if error > 0 and np.isfinite(error)]
    if len({n for n, _ in known}) < 2:
        return float("nan")
    x, y = np.array(known).T
    return float(np.polyfit(x, y, 1)[0])
