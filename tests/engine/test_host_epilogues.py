"""activation(α · scale_a · A·B · scale_b + β · out + bias) of arrays on the host: numbers, dtypes, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import DTypeError, OperandError, ShapeError, TilewrightError, UsageError

ONE = np.eye(2, dtype=np.float32)


@pytest.mark.parametrize("how", [{}, {"precision": "ieee"}, {"bias": [0, 0]}], ids=str)
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("before", [1e300, 1j, np.float16(3)], ids=str)
def test_what_is_added_keeps_its_own_dtype(before: Any, batched: bool, how: dict[str, Any]) -> None:
    out = np.full((1, 2, 2) if batched else (2, 2), before)
    a = ONE[None] if batched else ONE
    expected = (a @ ONE).astype(np.result_type(out, np.float64)) + out
    tw.matmul(a, ONE, out, beta=1, **how)
    assert np.array_equal(out, expected.astype(out.dtype))


def test_alpha_beyond_float32() -> None:
    """It is applied before the result is rounded, where the product alone would be zero or a subnormal number."""
    small = np.float32([[1e-20]])
    assert tw.matmul(small, small, alpha=1e40)[0, 0] == pytest.approx(1, rel=2e-7)
    diagonal = np.eye(4, dtype=np.float32) * np.float32(1e-18)
    out = np.empty((4, 4), np.float32)
    tw.matmul(diagonal, diagonal, out, alpha=1e50)
    assert np.allclose(out, np.eye(4) * 1e14, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gelu_of_negative_numbers(dtype: str) -> None:
    """x·(1 + erf(x/√2))/2 would cancel."""
    x = np.linspace(-8, 3, 45, dtype=dtype)[:, None]
    got = tw.matmul(x, np.ones((1, 1), dtype), activation="gelu")
    expected = [float(each) * math.erfc(-float(each) / math.sqrt(2)) / 2 for each in x[:, 0]]
    assert np.allclose(got[:, 0], expected, rtol=20 * np.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize(("options", "expected"), [
    ({"alpha": 2}, 6), ({"alpha": 1e-3}, 3e-3), ({"alpha": -1, "activation": "relu"}, 0),
    ({"activation": "gelu"}, 3 * (1 + math.erf(3 / math.sqrt(2))) / 2),
])  # fmt: skip
def test_of_two_vectors(options: dict[str, Any], expected: float) -> None:
    got = tw.matmul(np.ones(3), np.ones(3), **options)
    assert isinstance(got, np.float64)
    assert got == pytest.approx(expected)


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"bias": np.array([1j, 2])}, DTypeError, "bias is complex128, which does not combine with a product of float32"),
    ({"bias": np.array(["a", "b"])}, DTypeError, "bias is an array of dtype <U1"),
    ({"bias": np.array([0, 0], "M8[s]")}, DTypeError, r"bias is an array of dtype datetime64\[s\]"),
    ({"scale_a": np.ma.masked_array([1.0, 2], [1, 0])}, OperandError, "scale_a is a masked array"),
    ({"bias": np.ones(3)}, ShapeError, r"bias is \(3,\): it must be one number for each column of the product, \(2,\)"),
    ({"scale_b": np.ones((3, 1))}, ShapeError, r"scale_b is \(3, 1\)"),
    ({"alpha": 10**400}, UsageError, "alpha must be a real number within the range of float64"),
    ({"alpha": np.ones(2)}, UsageError, "alpha must be a real number"),
])  # fmt: skip
def test_what_is_refused_and_the_plan_refuses_it_too(
    options: dict[str, Any], error: type[TilewrightError], message: str
) -> None:
    for call in (tw.matmul, tw.plan):
        with pytest.raises(error, match=message):
            call(ONE, ONE, **options)


def test_integers_that_wrap_around_are_added_to_others() -> None:
    a = np.ones((2, 2), np.uint64)
    c = np.full((2, 2), -5, np.int64)
    assert (tw.gemm(1, a, a, 1, c) == -3).all()
