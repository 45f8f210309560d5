"""Oracles for every dtype: float32 and float64 have ``Oracle``; others are compared as real floats, or exactly.

- Complex numbers: C as a real matrix is the product of A and B as real ones of twice the size, so the classical bound with
  γ_2k holds for each part, and the real oracle compares.
- float16 and bfloat16 have float32's bound, plus one rounding of the result.
- Integers are exact modulo 2^bits, and so is the comparison C·X = A·(B·X) for random X (Freivalds 1977): one column of X
  misses a wrong row with probability 1/2 at most, ``COLUMNS`` of them with 2^−COLUMNS.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ..inputs.formats import FORMATS
from .verify import Check, Oracle

#: Random columns by which integers are compared.
COLUMNS = 32


def oracle(a: np.ndarray, b: np.ndarray, *, seed: int = 0) -> Oracle | ComplexOracle | HalfOracle | IntegerOracle:
    """The oracle for the operands' dtype: ``check(c)`` and ``rms_error(c)``.

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
    """m × n complex numbers as m × 2n real ones, real and imaginary parts side by side.

    >>> as_real(np.array([[1 + 2j, 3 + 4j]]))
    array([[1., 2., 3., 4.]])
    """
    return np.ascontiguousarray(x).view(x.real.dtype).reshape(len(x), 2 * x.shape[1])


class ComplexOracle:
    """[x y]·⎡u v; −v u⎤ = [xu − yv, xv + yu]: each row of B appears twice, the second time multiplied by i."""

    def __init__(self, a: np.ndarray, b: np.ndarray, *, seed: int = 0) -> None:
        twice = np.stack([b, 1j * b], axis=1).astype(b.dtype).reshape(2 * len(b), b.shape[1])
        self._real = Oracle(as_real(a), as_real(twice), seed=seed)

    def check(self, c: np.ndarray, *, normwise: float | None = None) -> Check:
        """Check real and imaginary parts; they count as separate columns in the reason."""
        return self._real.check(as_real(c), normwise=normwise)

    def rms_error(self, c: np.ndarray) -> float | None:
        """As ``Oracle.rms_error``, over real and imaginary parts."""
        return self._real.rms_error(as_real(c))


class HalfOracle:
    """For 16-bit floats: the bound of a product in float32, and of the rounding of the result to 16 bits."""

    def __init__(self, a: np.ndarray, b: np.ndarray, *, seed: int = 0) -> None:
        self._form = dataclasses.replace(FORMATS[a.dtype.name], unit=2.0**-24)
        self._wide = Oracle(a.astype(np.float32), b.astype(np.float32), seed=seed)

    def check(self, c: np.ndarray, *, normwise: float | None = None) -> Check:  # noqa: ARG002  # no kernel of 16-bit floats has another bound
        """Compare every element with its bound, which includes the rounding to 16 bits."""
        return self._wide.check(c.astype(np.float32), form=self._form)

    def rms_error(self, c: np.ndarray) -> float | None:
        """As ``Oracle.rms_error``."""
        return self._wide.rms_error(c.astype(np.float32))


class IntegerOracle:
    """For integers: compared exactly modulo a power of two, by random vectors, and then in the first wrong row."""

    def __init__(self, a: np.ndarray, b: np.ndarray, *, seed: int = 0) -> None:
        self.a, self.b = a, b
        self._x = np.random.default_rng(seed).integers(-(1 << 63), (1 << 63) - 1, (b.shape[1], COLUMNS), endpoint=True)

    def check(self, c: np.ndarray, *, normwise: float | None = None) -> Check:  # noqa: ARG002  # integers have no error bound
        """Compare every element with the exact one in its dtype."""
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
        """None: integers are not rounded."""


def _product_modulo(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A·B modulo 2^64, whose lower bits are A·B modulo any smaller power of two."""
    return np.matmul(a.astype(np.int64), b.astype(np.int64))
