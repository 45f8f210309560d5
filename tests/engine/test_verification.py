"""``verify``: right products pass, and wrong ones do not, however small or well hidden their errors are."""

from __future__ import annotations

import logging
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.api import matmul as api
from tilewright.cpu.plan import HostPlan
from tilewright.errors import DTypeError, ShapeError, UsageError, VerificationError

M, N, K = 700, 650, 600


def operands(dtype: Any = "float64", shape: tuple[int, int, int] = (M, N, K)) -> tuple[np.ndarray, np.ndarray]:
    rng, (m, n, k) = np.random.default_rng(5), shape
    if np.dtype(dtype).kind in "iu":
        return tuple(rng.integers(0, 100, x).astype(dtype) for x in ((m, k), (k, n)))  # type: ignore[return-value]
    a, b = (rng.uniform(-1, 1, x) for x in ((m, k), (k, n)))
    return (
        (a.astype(dtype), b.astype(dtype))
        if np.dtype(dtype).kind == "f"
        else ((a + 1j * a).astype(dtype), b.astype(dtype))
    )


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "complex64", "complex128", "int8", "int32", "uint64"]
)
def test_right_products_pass_and_wrong_ones_do_not(dtype: str) -> None:
    a, b = operands(dtype, (130, 120, 110))
    c = tw.matmul(a, b)
    found = tw.verify(a, b, c)
    assert found.ok, found
    wrong = c.copy()
    wrong[100, 119] += 1
    found = tw.verify(a, b, wrong)
    assert not found.ok
    assert found.where == (100, 119)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_wrong_element_of_a_large_product(dtype: str) -> None:
    a, b = operands(dtype)
    c = a @ b
    magnitude = (np.abs(a[[613]]) @ np.abs(b[:, [71]]))[0, 0]
    bound = tw.verify(a, b, c).bound
    for factor, right in ((0.5, True), (3, False), (1e4, False)):
        wrong = c.copy()
        wrong[613, 71] += factor * bound * magnitude
        found = tw.verify(a, b, wrong)
        assert found.ok == right, found
        assert right or found.where == (613, 71)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_errors_that_cancel(dtype: str) -> None:
    """A sum of a row or a column does not show them, and sums with signs miss them with probability 1/2."""
    a, b = operands(dtype)
    c = (a @ b).astype(dtype)
    for places in (((5, 7), (5, 8)), ((5, 7), (6, 7)), ((0, 0), (M - 1, N - 1))):
        for _ in range(5):
            wrong = c.copy()
            wrong[places[0]] += 0.25
            wrong[places[1]] -= 0.25
            assert not tw.verify(a, b, wrong).ok
    row, column = c.copy(), c.copy()
    row[17] = -row[17]
    column[:, 17] = -column[:, 17]
    assert not tw.verify(a, b, row).ok
    assert not tw.verify(a, b, column).ok


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_elements_that_were_not_written(value: float) -> None:
    a, b = operands()
    c = a @ b
    c[-1, -1] = value
    assert tw.verify(a, b, c).error > 1e-3
    c[:] = value
    assert not tw.verify(a, b, c).ok


def test_infinities_where_they_belong() -> None:
    a, b = operands()
    a[3, 4], b[9, 10], b[8, 20] = np.inf, np.nan, 1e308
    a[:, 8] = 100
    with np.errstate(all="ignore"):
        c = a @ b
    assert tw.verify(a, b, c).ok
    for place, value in (((3, 5), 1.0), ((50, 51), np.inf), ((60, 21), 5.0)):
        wrong = c.copy()
        wrong[place] = value
        assert not tw.verify(a, b, wrong).ok


def test_a_promise_that_is_not_kept() -> None:
    """The product of float32 is right for "fast", and wrong for the precision of float64."""
    a, b = operands()
    c = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float64)
    assert tw.verify(a, b, c, precision="fast").ok
    assert tw.verify(a, b, c, precision=1e-4).ok
    assert not tw.verify(a, b, c).ok


def test_batches_vectors_and_nothing() -> None:
    a, b = operands(shape=(20, 30, 40))
    batch = np.stack([a, a, a])
    c = tw.matmul(batch, b)
    assert tw.verify(batch, b, c).ok
    c[1, 2, 3] += 1e-3
    assert tw.verify(batch, b, c).where == (1, 2, 3)
    assert tw.verify(a, b[:, 0], a @ b[:, 0]).ok
    assert not tw.verify(a[0], b[:, 0], a[0] @ b[:, 0] + 1e-3).ok
    assert tw.verify(np.ones((3, 0)), np.ones((0, 2)), np.zeros((3, 2))).ok
    assert not tw.verify(np.ones((3, 0)), np.ones((0, 2)), np.ones((3, 2))).ok


@pytest.mark.slow
def test_matmul_verified(caplog: pytest.LogCaptureFixture) -> None:
    a, b = operands()
    with caplog.at_level(logging.INFO, "tilewright.verification"):
        c = tw.matmul(a, b, verify=True)
    np.testing.assert_array_equal(c, tw.matmul(a, b))
    (line,) = caplog.messages
    assert line.startswith("verified: 700×600 · 600×650 float64: the largest error found is ")
    square = a[:600, :600].copy()
    expected = tw.matmul(square, square)
    assert tw.matmul(square, square, out=square, verify=True) is square
    np.testing.assert_array_equal(square, expected)
    assert len(tw.matmul([a, a], [b, b], verify=True, precision="fast")) == 2


def test_a_wrong_kernel_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    right = HostPlan.run

    def wrong(plan: HostPlan, x: np.ndarray, y: np.ndarray, c: np.ndarray) -> None:
        right(plan, x, y, c)
        c[610, 71] += 1e-8

    monkeypatch.setattr(HostPlan, "run", wrong)
    monkeypatch.setattr(api, "small_products", SimpleNamespace(known=lambda *_: None))
    a, b = operands()
    with pytest.raises(
        VerificationError, match=r"wrong: 700×600 · 600×650 float64: .* at C\[610, 71\], the bound "
    ) as found:
        tw.matmul(a, b, verify=True, precision=1e-12)
    assert found.value.error > found.value.bound == 1e-12
    again = pickle.loads(pickle.dumps(found.value))
    assert (again.error, again.bound, str(again)) == (found.value.error, 1e-12, str(found.value))


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"algorithm": "strassen"}, UsageError, "leave out algorithm 'strassen'"),
    ({"alpha": 2.0}, UsageError, "leave out scales, alpha, beta, bias"),
    ({"out_dtype": "complex128", "precision": 1e-30}, UsageError, "the best bound"),
])  # fmt: skip
def test_what_cannot_be_verified(options: dict[str, Any], error: type[Exception], message: str) -> None:
    a, b = operands(shape=(5, 6, 7))
    with pytest.raises(error, match=message):
        tw.matmul(a, b, verify=True, **options)
    with pytest.raises(ShapeError, match="c is"):
        tw.verify(a, b, a)
    with pytest.raises(DTypeError, match="bool cannot be verified"):
        tw.verify(a > 0, b > 0, (a > 0) @ (b > 0))


@pytest.mark.parametrize(("dtype", "wide"), [("uint16", "uint32"), ("int8", "int64"), ("int8", "float32")])
def test_integers_wrap_around_before_they_are_cast(dtype: str, wide: str) -> None:
    a = np.full((3, 3), 100, dtype)
    out = np.zeros((3, 3), wide)
    assert tw.matmul(a, a, out, verify=True) is out
    assert (out == (a @ a).astype(wide)).all()


def test_partial_sums_that_overflow() -> None:
    """Their order decides whether a sum that float32 holds is infinite."""
    a, b = np.float32([[1e19, 1e19, 1e19]]), np.float32([[2e19], [2e19], [-2e19]])
    assert tw.verify(a, b, np.float32([[np.inf]])).ok
    assert tw.verify(a, b, np.float32([[2e38]])).ok
    assert not tw.verify(a / 4, b / 4, np.float32([[np.inf]])).ok


@pytest.mark.parametrize(("a", "b", "where"), [
    (np.eye(30), np.ones(30), (3,)), (np.ones(30), np.eye(30), (3,)), (np.ones(30), np.ones(30), ()),
    (np.ones((2, 30, 30)), np.ones(30), (1, 3)),
], ids=["vector b", "vector a", "vectors", "batch"])  # fmt: skip
def test_where_is_an_index_of_the_result(a: np.ndarray, b: np.ndarray, where: tuple[int, ...]) -> None:
    c = np.array(a @ b)
    c[where] += 1
    assert tw.verify(a, b, c).where == where


@pytest.mark.parametrize(("dtype", "out"), [("bool", "bool"), ("longdouble", "longdouble")])
def test_what_cannot_be_verified_is_not_multiplied(dtype: str, out: str) -> None:
    a, c = np.ones((2, 2), dtype), np.full((2, 2), 0, out)
    with pytest.raises(DTypeError, match="cannot be verified"):
        tw.matmul(a, a, c, verify=True)
    assert not c.any()
