"""Grades of products: each kind of algorithm gets its own, and what no bound holds for gets none."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.cpu.runtime.runner import runner
from tilewright.errors import UsageError
from tilewright.kernels.catalog import catalog
from tilewright.lab.inputs.distributions import DISTRIBUTIONS, distributed
from tilewright.lab.verify.grades import grade, measure

SIZES = (16, 32, 64, 128)


def strassen(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    c = np.full((len(a), b.shape[1]), np.nan, a.dtype)
    runner(catalog()["cpu/strassen"], a.dtype, threads=1, params={"leaf": 16})(a, b, c)
    return c


def fixed_point(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whole numbers of as many bits as the dtype has, scaled by the largest element of each row of A and column of B."""
    bits = np.finfo(a.dtype).nmant + 1
    (x, of_rows), (y, of_columns) = (whole_numbers(each, axis, bits) for each, axis in ((a, 1), (b, 0)))
    return (x.astype(np.longdouble) @ y.astype(np.longdouble) * of_rows * of_columns).astype(a.dtype)


def whole_numbers(x: np.ndarray, axis: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    _, exponent = np.frexp(abs(x).max(axis, keepdims=True).astype(np.longdouble))
    scale = np.ldexp(np.longdouble(1), exponent - bits)
    return np.rint(x / scale), scale


@pytest.mark.slow_cases("wrong", "tilewright")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("product", "letter", "algorithm"), [
    (np.matmul, "A", "classical"), (tw.matmul, "A", "classical"), (fixed_point, "B", "fixed-point"),
    (strassen, "C", "Strassen-like"),
    (lambda a, b: tw.matmul(a, b) * a.dtype.type(1.001), "–", "classical"),
], ids=["numpy", "tilewright", "fixed point", "strassen", "wrong"])  # fmt: skip
def test_every_algorithm_gets_its_grade(product: object, letter: str, algorithm: str, dtype: str) -> None:
    found = grade(product, dtype, SIZES)  # type: ignore[arg-type]
    assert (found.letter, found.algorithm) == (letter, algorithm), found


def test_an_infinity_in_the_wrong_place_and_a_missing_one_have_no_grade() -> None:
    a, b = distributed("infinity", (20, 30, 10), "float32")
    with np.errstate(invalid="ignore"):
        c = a @ b
    assert measure(a, b, c).as_ieee
    finite = np.nan_to_num(c)
    c[0, 0] = np.nan
    assert not measure(a, b, c).as_ieee
    assert not measure(a, b, finite).as_ieee


def test_errors_are_in_units_of_the_dtype() -> None:
    a, b = distributed("uniform", (300, 200, 400), "float64")  # too large to be compared whole
    c = tw.matmul(a, b)
    before = measure(a, b, c)
    assert 0.2 < before.rms < 20
    assert 0 < before.normwise < before.by_lines < before.componentwise < 20
    c[0, 0] += 1000 * 2.0**-53 * (abs(a[0]) @ abs(b[:, 0]))
    assert 990 < measure(a, b, c).componentwise < 1010


@pytest.mark.slow_cases(
    "float32",
    "nan",
    "normal",
    "graded",
    "positive",
    "huge_row",
    "infinity",
    "lognormal",
    "subnormal",
    "cancelling",
    "graded:100",
    "graded_rows",
    "vandermonde",
    "lognormal:4",
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [*DISTRIBUTIONS, "lognormal:4", "graded:100"])
def test_the_engine_keeps_the_classical_bound_for_every_distribution(name: str, dtype: str) -> None:
    a, b = distributed(name, (40, 33, 64), dtype)
    with np.errstate(all="ignore"):
        errors = measure(a, b, tw.matmul(a, b))
    assert errors.as_ieee
    assert errors.componentwise <= 64
    assert np.isfinite(a).all() == (name not in ("infinity", "nan"))


@pytest.mark.parametrize("name", ["unifrom", "uniform:3", "graded:wide"])
def test_an_unknown_distribution_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="distribution"):
        distributed(name, (2, 2, 2), "float32")
