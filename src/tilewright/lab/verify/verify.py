"""Verifies that C is A·B. C is compared with a product in wider arithmetic, within a bound from rounding-error
analysis.

A classical product in any order of summation satisfies |C − Ĉ| ≤ γ_k·(|A||B|) componentwise, γ_k = k·u/(1 − k·u)
(Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.5). A kernel that declares another bound
(the fast recursions satisfy only a normwise one) is checked against its own bound. The oracle computes in float64; its
own rounding errors are added to the bound.

- Small products are compared element by element.
- In large products whole rows and columns are compared, including the edges of C, and sums with random signs. For a sum
  with random signs, the columns of C in each block of 64 are added with random signs x, and C·x is compared with
  A·(B·x). The signs are independent of the errors E, so by Hoeffding's inequality |Σ_j E_ij·x_j| exceeds 8·‖E_i‖₂ with
  a probability of at most 3e-14.
- Every element of every C must be finite. Outputs are filled with NaN before a kernel runs, so an element that is not
  written is always found. Comparisons are written so that NaN fails them.

float32 and float64 results are compared by ``Oracle``. Complex and 16-bit results are converted to real float32 or
float64 and compared in the same way; integer results are compared exactly.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...host.cached_property import cached_property
from ..inputs.formats import FORMATS, NumberFormat

# ---- float32 and float64 ---------------------------------------------------------------------------------------------

#: The largest m·n·k of which every element is compared; 1024³ takes about 0.1 s in float64.
WHOLE = 1024**3
#: The number of rows, and of columns, of a larger product that are compared in addition to its edges.
SAMPLED = 24
#: The number of rows, and of columns, at whose 4,096 crossings the root mean square error is estimated, to within some
#: percent.
ERROR_SAMPLE = 64
#: The bound on a sum with random signs, in standard deviations.
SIGNS = 8.0
#: The number of columns of C in one sum with random signs. With fewer columns smaller errors are found; with 64, a check
#: costs a 64th of the product's operations.
BLOCK = 64


#: The reason that is given if only a sample of blocks was run and every element of C is still NaN.
NOTHING_WRITTEN = "nothing was written"

Index = slice | np.ndarray


@dataclass(frozen=True)
class Check:
    """The outcome of a verification: whether C passes, the largest error, the largest error in units of its bound, and
    the reason if C fails."""

    ok: bool
    max_abs_error: float
    error_over_bound: float
    reason: str = ""

    def as_dict(self) -> dict[str, bool | str | float | None]:
        """The outcome as plain JSON values. An infinite ratio becomes None, because JSON has no infinity."""
        worst = self.error_over_bound if math.isfinite(self.error_over_bound) else None
        return {"ok": self.ok, "reason": self.reason, "error_over_bound": worst}


@dataclass(frozen=True)
class ExactPart:
    """A part of C: an index into C, and the values of A·B and |A||B| there, as two arrays of that part's shape."""

    index: tuple[Index, Index]
    exact: np.ndarray
    magnitude: np.ndarray  # |A||B|


class ErrorSample:
    """The elements of A·B where 64 rows cross 64 columns, exact enough to measure the typical error of a C.

    The typical error is the root mean square, ‖C − A·B‖ over ‖A·B‖. The largest error is not used, because it would
    grow with the number of elements compared, and on a GPU all elements are. The rows and columns are spread evenly,
    because Strassen's error differs between the quarters of C. The exact values have at least 11 bits more than the
    operands: float64 for float32, long double for float64.

    >>> a, b = np.random.default_rng(1).uniform(-1, 1, (2, 100, 100)).astype(np.float32)
    >>> 1 < ErrorSample(a, b).rms_error((a @ b)[np.ix_(*[ErrorSample(a, b).rows] * 2)]) * 2**24 < 10
    True
    """

    def __init__(self, a: np.ndarray, b: np.ndarray) -> None:
        self.rows, self.columns = _spread(a.shape[0]), _spread(b.shape[1])
        self._wide = np.dtype(np.longdouble if a.dtype == np.float64 else np.float64)
        self._exact = a[self.rows].astype(self._wide) @ b[:, self.columns].astype(self._wide)

    def rms_error(self, part: np.ndarray) -> float | None:
        """The typical error of ``part``, which has the elements of C at these rows and columns. The typical error is
        None if A·B is zero or not finite, or if this machine has no floats wider than C's."""
        if _unit(self._wide) >= _unit(part.dtype):
            return None
        size = float(np.abs(self._exact).max(initial=0))
        if not 0 < size < np.inf:
            return None
        # Scaled first: the squares overflow or underflow long before these norms do.
        errors, exact = ((x / size).astype(np.float64) for x in (part - self._exact, self._exact))
        return float(np.linalg.norm(errors) / np.linalg.norm(exact))


def _spread(length: int) -> np.ndarray:
    return np.unique(np.linspace(0, max(0, length - 1), min(length, ERROR_SAMPLE)).astype(np.intp))


class Oracle:
    """Verifies products of one pair of operands by comparing them with A·B in float64, all of it or samples. The
    product in float64 is computed once, at the first check."""

    def __init__(self, a: np.ndarray, b: np.ndarray, *, seed: int = 0) -> None:
        self.a, self.b = a, b
        self.k = max(1, a.shape[1])
        self._rng = np.random.default_rng(seed)
        self._error_sample: ErrorSample | None = None

    def rms_error(self, c: np.ndarray) -> float | None:
        """The typical error of a ``c`` that passes the check; see ``ErrorSample``."""
        if self._error_sample is None:
            self._error_sample = ErrorSample(self.a, self.b)
        sample = self._error_sample
        return sample.rms_error(c[np.ix_(sample.rows, sample.columns)])

    @property
    def whole(self) -> bool:
        """Whether every element is compared."""
        (m, k), n = self.a.shape, self.b.shape[1]
        return m * n * k <= WHOLE and m * n <= WHOLE // 64

    def check(self, c: np.ndarray, *, normwise: float | None = None, form: NumberFormat | None = None) -> Check:
        """Compare ``c`` (m×n, float32 or float64) with A·B.

        ``normwise`` is the factor f of a kernel whose bound is max|C − Ĉ| ≤ f·u·max|A|·max|B|. ``form`` is the number
        format of a product that rounds more than ``c``'s dtype does. A product with a ``form`` is compared by elements,
        rows and columns, and not by random signs.
        """
        if c.shape != (self.a.shape[0], self.b.shape[1]):
            return Check(False, np.inf, np.inf, f"C is {c.shape}")
        unwritten = _first_true(~np.isfinite(c))
        if unwritten is not None:
            return Check(False, np.inf, np.inf, f"C{list(unwritten)} is {c[unwritten]}: not written, or not a number")
        worst, worst_ratio = 0.0, 0.0
        for line in self._lines:
            error = np.abs(c[line.index].astype(np.float64) - line.exact)
            check = _check_part(line, error, self._bound(c.dtype, line, normwise, form))
            worst, worst_ratio = max(worst, check.max_abs_error), max(worst_ratio, check.error_over_bound)
            if not check.ok:
                return Check(False, worst, worst_ratio, check.reason)
        if form is not None:
            return Check(True, worst, worst_ratio)
        return self._check_signs(c, normwise, worst, worst_ratio)

    def check_written(self, c: np.ndarray, *, form: NumberFormat | None = None) -> Check:
        """Compare only the elements of ``c`` that are not NaN, because only some blocks of a grid were run."""
        written = ~np.isnan(c)
        rows, columns = (np.flatnonzero(written.any(axis=axis)) for axis in (1, 0))
        if not rows.size:
            return Check(False, np.inf, np.inf, NOTHING_WRITTEN)
        line = self._line(rows, columns)
        part = np.ix_(rows, columns)
        error = np.where(written[part], np.abs(c[part].astype(np.float64) - line.exact), 0)
        return _check_part(line, error, self._bound(c.dtype, line, None, form))

    def _bound(self, dtype: np.dtype, line: ExactPart, normwise: float | None, form: NumberFormat | None) -> np.ndarray:
        magnitude = line.magnitude
        if form is not None:
            relative, rounding, tiny = form.bound(self.k)
            return relative * magnitude + rounding * np.abs(line.exact) + tiny
        oracle = _gamma(self.k, np.float64) * magnitude
        tiny = self.k * float(np.finfo(dtype).smallest_subnormal)
        if normwise is None:
            return _gamma(self.k, dtype) * magnitude + oracle + tiny
        return np.full_like(magnitude, normwise * _unit(dtype) * self._largest + tiny) + oracle

    @cached_property
    def _largest(self) -> float:
        return float(np.abs(self.a).max(initial=0)) * float(np.abs(self.b).max(initial=0))

    @cached_property
    def _lines(self) -> list[ExactPart]:
        if self.whole:
            return [self._line(slice(None), slice(None))]
        m, n = self.a.shape[0], self.b.shape[1]
        return [self._line(self._sample(m), slice(None)), self._line(slice(None), self._sample(n))]

    def _sample(self, length: int) -> np.ndarray:
        """The first and the last index, the two at the middle, where blocks often meet, and random ones."""
        fixed = [0, length - 1, length // 2 - 1, length // 2]
        drawn = self._rng.integers(0, length, SAMPLED)
        return np.unique(np.clip(np.concatenate([fixed, drawn]), 0, length - 1))

    def _line(self, rows: Index, columns: Index) -> ExactPart:
        a, b = self.a[rows], self.b[:, columns]
        exact = np.zeros((a.shape[0], b.shape[1]))
        magnitude = np.zeros_like(exact)
        for part in _steps(self.a.shape[1] if exact.size else 0, a.shape[0] + b.shape[1]):
            wide_a, wide_b = a[:, part].astype(np.float64), b[part].astype(np.float64)
            exact += wide_a @ wide_b
            magnitude += np.abs(wide_a) @ np.abs(wide_b)
        return ExactPart((rows, columns), exact, magnitude)

    @cached_property
    def _signs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The signs x; and for every row and block: A·(B·x), a bound of ‖(|A||B|)_i‖₂, and |A|·(|B|·1) for the oracle's
        rounding."""
        (m, k), n = self.a.shape, self.b.shape[1]
        x = self._rng.choice([-1.0, 1.0], n)
        starts = np.arange(0, n, BLOCK)
        bx, norms, sums = (np.empty((k, starts.size)) for _ in range(3))
        for part in _steps(k, n):
            wide = self.b[part].astype(np.float64)
            bx[part] = np.add.reduceat(wide * x, starts, axis=1)
            norms[part] = np.sqrt(np.add.reduceat(wide * wide, starts, axis=1))
            sums[part] = np.add.reduceat(np.abs(wide), starts, axis=1)
        abx, row_norms, row_sums = (np.empty((m, starts.size)) for _ in range(3))
        for part in _steps(m, k):
            wide = self.a[part].astype(np.float64)
            abx[part] = wide @ bx
            np.abs(wide, out=wide)
            row_norms[part] = wide @ norms  # the triangle inequality
            row_sums[part] = wide @ sums
        return x, abx, row_norms, row_sums

    def _check_signs(self, c: np.ndarray, normwise: float | None, worst: float, ratio: float) -> Check:
        if self.whole:
            return Check(True, worst, ratio)
        x, abx, norms, sums = self._signs
        cx = np.empty_like(abx)
        for part in _steps(*c.shape):
            cx[part] = np.add.reduceat(c[part].astype(np.float64) * x, np.arange(0, x.size, BLOCK), axis=1)
        if normwise is None:
            bound = SIGNS * _gamma(self.k, c.dtype) * norms
        else:
            bound = np.full_like(norms, SIGNS * normwise * _unit(c.dtype) * self._largest * np.sqrt(BLOCK))
        bound += _gamma(self.k + BLOCK, np.float64) * sums + BLOCK * float(np.finfo(c.dtype).smallest_subnormal)
        bad = _first_true(~_within(np.abs(cx - abx), bound))
        if bad is not None:
            row, first = bad[0], bad[1] * BLOCK
            last = min(first + BLOCK, x.size) - 1
            where = f"C[{row}, {first}:{last + 1}]"
            return Check(False, worst, np.inf, f"{where} is wrong: with random signs x, C·x ≠ A·(B·x)")
        return Check(True, worst, ratio)


def _check_part(line: ExactPart, error: np.ndarray, bound: np.ndarray) -> Check:
    """Whether all errors of a part of C are within their bounds."""
    bad = _first_true(~_within(error, bound))
    worst, ratio = float(error.max(initial=0.0)), _ratio(error, bound)
    if bad is None:
        return Check(True, worst, ratio)
    where = f"C{_position(line.index, bad)}"
    return Check(False, worst, ratio, f"{where} is off by {error[bad]:.3g}, the bound is {bound[bad]:.3g}")


def _unit(dtype: np.dtype | type) -> float:
    """The unit roundoff u: half the distance from 1 to the next number."""
    return float(np.finfo(dtype).eps) / 2


def _gamma(k: int, dtype: np.dtype | type) -> float:
    ku = k * _unit(dtype)
    return ku / (1 - ku) if ku < 1 else np.inf


def _within(error: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Which errors are within their bounds. NaN is within none, and neither is an infinite error."""
    return (error <= bound) & (error < np.inf)


def _ratio(error: np.ndarray, bound: np.ndarray) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0, 0.0, error / bound)
    return float(ratio.max(initial=0.0))


def _first_true(bad: np.ndarray) -> tuple[int, ...] | None:
    """The index of the first true element in memory order, or None."""
    if not bad.any():
        return None
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))


def _position(index: tuple[Index, Index], inside: tuple[int, ...]) -> list[int]:
    return [int(i[at]) if isinstance(i, np.ndarray) else at for i, at in zip(index, inside, strict=True)]


def _steps(length: int, width: int, *, elements: int = 1 << 23) -> Iterator[slice]:
    """Slices of ``length`` so that a slice × ``width`` float64 array stays within 64 MiB."""
    step = max(1, elements // max(1, width))
    return (slice(start, min(length, start + step)) for start in range(0, length, step))


# ---- other dtypes ----------------------------------------------------------------------------------------------------

#: The number of random columns by which integer products are compared.
COLUMNS = 32


def oracle(a: np.ndarray, b: np.ndarray, *, seed: int = 0) -> Oracle | ComplexOracle | HalfOracle | IntegerOracle:
    """Make the oracle for the operands' dtype. The oracle has the methods ``check(c)`` and ``rms_error(c)``.

    >>> a = np.full((2, 3), 100, np.int8)
    >>> oracle(a, a.T).check(a @ a.T).ok, oracle(a, a.T).check(a @ a.T + np.int8(1)).ok
    (True, False)
    """
    if a.dtype.kind == "c":
        return ComplexOracle(a, b, seed=seed)
    if a.dtype.kind in "iu":
        return IntegerOracle(a, b, seed=seed)
    return (HalfOracle if a.dtype.name in ("float16", "bfloat16") else Oracle)(a, b, seed=seed)


def as_real(x: np.ndarray) -> np.ndarray:
    """Convert m × n complex numbers to m × 2n real ones: each real part is followed by its imaginary part.

    >>> as_real(np.array([[1 + 2j, 3 + 4j]]))
    array([[1., 2., 3., 4.]])
    """
    return np.ascontiguousarray(x).view(x.real.dtype).reshape(len(x), 2 * x.shape[1])


class ComplexOracle:
    """Verifies complex products as real ones. In [x y]·⎡u v; −v u⎤ = [xu − yv, xv + yu] each row of B appears twice,
    the second time multiplied by i."""

    def __init__(self, a: np.ndarray, b: np.ndarray, *, seed: int = 0) -> None:
        twice = np.stack([b, 1j * b], axis=1).astype(b.dtype).reshape(2 * len(b), b.shape[1])
        self._real = Oracle(as_real(a), as_real(twice), seed=seed)

    def check(self, c: np.ndarray, *, normwise: float | None = None) -> Check:
        """Compare real and imaginary parts. In the reason for a failure, real and imaginary parts count as separate
        columns."""
        return self._real.check(as_real(c), normwise=normwise)

    def rms_error(self, c: np.ndarray) -> float | None:
        """The typical error as in ``Oracle.rms_error``, over real and imaginary parts."""
        return self._real.rms_error(as_real(c))


class HalfOracle:
    """Verifies products of 16-bit floats. The bound is that of a product in float32, plus the rounding of the result to
    16 bits."""

    def __init__(self, a: np.ndarray, b: np.ndarray, *, seed: int = 0) -> None:
        self._form = dataclasses.replace(FORMATS[a.dtype.name], unit=2.0**-24)
        self._wide = Oracle(a.astype(np.float32), b.astype(np.float32), seed=seed)

    def check(self, c: np.ndarray, *, normwise: float | None = None) -> Check:  # noqa: ARG002  # no kernel of 16-bit floats has another bound
        """Compare every element within its bound, which includes the rounding to 16 bits."""
        return self._wide.check(c.astype(np.float32), form=self._form)

    def rms_error(self, c: np.ndarray) -> float | None:
        """The typical error as in ``Oracle.rms_error``."""
        return self._wide.rms_error(c.astype(np.float32))


class IntegerOracle:
    """Verifies integer products exactly, modulo a power of two: with random vectors, and if these fail, element by
    element in the first wrong row."""

    def __init__(self, a: np.ndarray, b: np.ndarray, *, seed: int = 0) -> None:
        self.a, self.b = a, b
        self._x = np.random.default_rng(seed).integers(-(1 << 63), (1 << 63) - 1, (b.shape[1], COLUMNS), endpoint=True)

    def check(self, c: np.ndarray, *, normwise: float | None = None) -> Check:  # noqa: ARG002  # integers have no error bound
        """Compare every element of ``c`` with the exact element, both modulo the range of the dtype."""
        if c.shape != (len(self.a), self.b.shape[1]):
            return Check(False, np.inf, np.inf, f"C is {c.shape}")
        abx, cx = _product_modulo(self.a, _product_modulo(self.b, self._x)), _product_modulo(c, self._x)
        wrong = np.flatnonzero((abx.astype(c.dtype) != cx.astype(c.dtype)).any(axis=1))
        if not wrong.size:
            return Check(True, 0.0, 0.0)
        row = int(wrong[0])
        exact = _product_modulo(self.a[row : row + 1], self.b)[0].astype(c.dtype)
        column = int(np.flatnonzero(c[row] != exact)[0])
        return Check(False, np.inf, np.inf, f"C[{row}, {column}] is {c[row, column]}, A·B there is {exact[column]}")

    def rms_error(self, c: np.ndarray) -> None:
        """Return None, because integer products are not rounded."""


def _product_modulo(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A·B modulo 2^64, whose lower bits are A·B modulo any smaller power of two."""
    return np.matmul(a.astype(np.int64), b.astype(np.int64))
