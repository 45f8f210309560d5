"""``precision="fast"`` and numbers: what is promised, what is chosen, and that magnitudes cannot break the promise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support.plans import make_plan
from tilewright.cpu.plan import narrowed_operands
from tilewright.errors import UsageError
from tilewright.product.precision import PATHS, fast_bound, known_paths, path_bound, paths_within, promised_bound
from tilewright.product.problem import Problem

#: A shape that is large enough for float32, and whose sides are no multiples of a tile.
SHAPE = 470, 453, 461
F32 = np.dtype(np.float32)


def operands(dtype: str = "float64", shape: tuple[int, int, int] = SHAPE) -> tuple[np.ndarray, np.ndarray]:
    rng, (m, n, k) = np.random.default_rng(3), shape
    a, b = rng.uniform(-1, 1, (m, k)), rng.uniform(-1, 1, (k, n))
    if dtype == "complex128":
        return a + 1j * rng.uniform(-1, 1, (m, k)), b - 1j * rng.uniform(-1, 1, (k, n))
    return a.astype(dtype), b.astype(dtype)


def error(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """The largest error of an element relative to |A||B|."""
    return float((np.abs(c - a @ b) / (np.abs(a) @ np.abs(b))).max())


# ---- bounds


@pytest.mark.parametrize("place", PATHS)
@pytest.mark.parametrize("k", [1, 100, 4096, 1 << 17])
def test_fast_keeps_the_bound_that_it_states(place: str, k: int) -> None:
    for dtype in PATHS[place]:
        standard = next(path.bound for path in known_paths(place, dtype, k) if path.word == "standard")
        first = paths_within("fast", place, dtype, k)[0]
        assert first.bound <= promised_bound("fast", place, dtype, dtype, k) == max(fast_bound(k), standard)


def test_wider_arithmetic_has_a_smaller_bound() -> None:
    for k in (1, 64, 4096, 1 << 16):
        assert path_bound("float64", "float64", k) < path_bound("float32", "float64", k)
        assert path_bound("float32", "float64", k) < path_bound("float32", "float32", k) + 2.0**-24
        assert path_bound("float32", "float32", k) < path_bound("float64", "float32", k)
        assert path_bound("float64", "float32", k) < path_bound("float32", "tf32", k) + k * 2.0**-26


@pytest.mark.parametrize(("precision", "compute"), [
    ("fast", "float32"), (1e-4, "float32"), (0.5, "float32"), (1e-6, "float64"), (1e-12, "float64"),
    ("standard", "float64"),
])  # fmt: skip
def test_the_cheapest_path_that_keeps_it(precision: str | float, compute: str) -> None:
    plan = make_plan(Problem(*SHAPE, "float64", precision=precision))
    assert plan.compute == compute
    assert ("otherwise" in str(plan)) == (compute == "float32")
    assert ("not chosen" in str(plan)) == (precision != "standard")


def test_a_float32_that_needs_more_than_float32() -> None:
    a, b = operands("float32")
    plan = tw.plan(a, b, precision=1e-6)
    assert plan.compute == "float64"
    np.testing.assert_array_equal(tw.matmul(a, b, precision=1e-6), tw.matmul(a, b, precision="highest"))
    assert tw.plan(a, b, precision=np.float32(1e-6)).compute == "float64"


def test_small_products_are_not_converted() -> None:
    assert make_plan(Problem(60, 60, 60, "float64", precision="fast")).compute == "float64"
    a, b = operands(shape=(20, 30, 40))
    np.testing.assert_array_equal(tw.matmul(a, b, precision="fast"), tw.matmul(a, b))


@pytest.mark.parametrize(("precision", "options", "message"), [
    (1e-20, {}, "the best bound for float64 is 5.1e-14 (precision 'standard'); ask for that or more"),
    (0, {}, "precision 0: must be a word, or a positive number"),
    (-1e-3, {}, "precision -0.001: must be a word, or a positive number"),
    (float("nan"), {}, "precision nan: must be a word, or a positive number"),
    (True, {}, "precision True: must be a word, or a positive number"),
    ("fst", {}, "did you mean fast? (or a number, which bounds the error)"),
    ("fast", {"algorithm": "strassen"}, "has a normwise error bound: precision 'fast' is for 'classical'"),
    (1e-3, {"algorithm": "strassen"}, "has a normwise error bound"),
])  # fmt: skip
def test_what_nothing_keeps_is_refused(precision: Any, options: dict[str, str], message: str) -> None:
    a, b = operands()
    for call in (tw.matmul, tw.plan):
        with pytest.raises(UsageError) as found:
            call(a, b, precision=precision, **options)
        assert message in str(found.value)


def test_no_bound_is_known_for_python_objects() -> None:
    a = np.array([[1, 2]], object)
    assert tw.matmul(a, a.T, precision="fast")[0, 0] == 5
    with pytest.raises(UsageError, match="no error bound is known for object"):
        tw.matmul(a, a.T, precision=1e-3)


# ---- float64 in float32


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_the_promise_holds(dtype: str) -> None:
    a, b = operands(dtype)
    c = tw.matmul(a, b, precision="fast")
    assert c.dtype == dtype
    narrow = "float32" if dtype == "float64" else "complex64"
    assert 2.0**-30 < error(c, a, b) <= path_bound(dtype, narrow, SHAPE[2])


@pytest.mark.parametrize(
    "exponents", [(-700, 690), (1000, -990), (-60, -60), (100, 20), (-1000, -60), (-1060, 900)], ids=str
)
def test_exponents_that_float32_does_not_have(exponents: tuple[int, int]) -> None:
    a, b = operands()
    x, y = (np.ldexp(np.where(np.abs(v) < 1e-3, 0, v), e) for v, e in zip((a, b), exponents, strict=True))
    c = tw.matmul(x, y, precision="fast")
    a, b = (np.ldexp(v, -e) for v, e in zip((x, y), exponents, strict=True))
    bound = path_bound("float64", "float32", SHAPE[2]) * (np.abs(a) @ np.abs(b))
    unit = max(-1074 - sum(exponents), -1074)
    assert (np.abs(np.ldexp(c, -sum(exponents)) - a @ b) <= bound + 2.0 ** min(unit, 0)).all()
    assert np.isfinite(c).all()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e-300, 1e300], ids=str)
def test_what_float32_cannot_multiply_is_computed_in_float64(value: float) -> None:
    """Small numbers beside large ones would be lost, and a row of them alone has an error of its own."""
    a, b = operands()
    a[7, :] = 0
    a[7, 3] = value
    assert narrowed_operands(a, b, F32) is None
    np.testing.assert_array_equal(tw.matmul(a, b, precision="fast"), tw.matmul(a, b))


def test_products_at_the_edge_of_the_range() -> None:
    """With magnitudes scaled below 1, products from 2^-126 on keep the bound."""
    for exponent, kept in ((-124, True), (-125, False)):
        a, b = np.array([[1.0, 2.0**exponent]]), np.array([[0.75], [0.75]])
        assert (narrowed_operands(a, b, F32) is not None) == kept
    assert narrowed_operands(np.zeros((2, 3)), np.zeros((3, 2)), F32) is not None
    assert narrowed_operands(np.full((2, 3), 2.0**127), np.ones((3, 2)), F32)[2] == 129  # the sum is beyond float32


@pytest.mark.parametrize("layout", ["transposed", "every second column", "big-endian", "integers"])
def test_layouts_and_dtypes(layout: str) -> None:
    a, b = operands()
    x = {
        "transposed": np.ascontiguousarray(a.T).T,
        "every second column": np.repeat(a, 2, axis=1)[:, ::2],
        "big-endian": a.astype(">f8"),
        "integers": (8 * a).astype(np.int64),
    }[layout]
    expected = tw.matmul(np.array(x, np.float64), b, precision="fast")
    np.testing.assert_array_equal(tw.matmul(x, b, precision="fast"), expected)


def test_out_batches_and_lists() -> None:
    a, b = operands()
    expected = tw.matmul(a, b, precision="fast")
    out = np.full((2 * SHAPE[0], SHAPE[1]), np.nan)[::2]
    assert tw.matmul(a, b, out=out, precision="fast") is out
    np.testing.assert_array_equal(out, expected)
    narrow = np.empty(expected.shape, np.float32)
    np.testing.assert_array_equal(tw.matmul(a, b, out=narrow, precision="fast"), expected.astype(np.float32))
    square = a[:450, :450].copy()
    product = tw.matmul(square, square, precision="fast")
    np.testing.assert_array_equal(tw.matmul(square, square, out=square, precision="fast"), product)
    batch = tw.matmul(np.stack([a, a]), b, precision="fast")
    np.testing.assert_array_equal(batch, [expected, expected])
    for c in tw.matmul([a, a], [b, b], precision="fast"):
        np.testing.assert_array_equal(c, expected)


def test_bits_do_not_depend_on_threads() -> None:
    a, b = operands(shape=(600, 610, 620))
    results = []
    for threads in (1, 2, 3):
        with tw.use_threads(threads):
            results.append(tw.matmul(a * 2.0**-200, b, precision=1e-3))
    assert all((c == results[0]).all() for c in results)


def test_scaled_operands_into_an_out_of_another_kind() -> None:
    """Magnitudes beyond float32, which "fast" scales by powers of two; the product is large enough to be computed so."""
    a = np.full((800, 800), 2.0**200)
    out = np.empty((800, 800), complex)
    tw.matmul(a, a, out, precision="fast")
    assert np.allclose(out, 800 * 2.0**400, rtol=1e-3)
    assert not out.imag.any()
