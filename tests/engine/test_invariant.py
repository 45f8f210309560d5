"""Products of which the bits of a row follow from that row and from B alone, on the host."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import UnavailableError, UsageError
from tilewright.product import precision
from tilewright.product.precision import asked_precision

DTYPES = ("float32", "float64", "complex64", "complex128", "float16")


def matrix(rng: np.random.Generator, rows: int, columns: int, dtype: str) -> np.ndarray:
    x = rng.uniform(-1, 1, (rows, columns))
    return (x + 1j * rng.uniform(-1, 1, x.shape)).astype(dtype) if dtype.startswith("c") else x.astype(dtype)


def again(rng: np.random.Generator, a: np.ndarray, b: np.ndarray, **says: Any) -> np.ndarray:
    """The product of rows that lie in one of several ways, with one or two threads."""
    way = rng.integers(5)
    with tw.use_threads(int(rng.integers(1, 3))):
        if way == 0:
            return np.asarray(tw.matmul(np.asfortranarray(a), b, **says))
        if way == 1:
            return np.asarray(tw.matmul(np.repeat(a, 2, axis=1)[:, ::2], b, **says))
        if way == 2:
            return np.asarray(tw.matmul(np.stack([a[::-1], a]), b, **says)[1])
        if way == 3:
            return np.asarray(tw.matmul(a, b, np.empty((b.shape[1], len(a)), a.dtype).T, **says))
        return np.asarray(tw.matmul(a[0], b, **says)[None] if len(a) == 1 else tw.matmul(a, b, **says))


def differing(rng: np.random.Generator, dtype: str, **says: Any) -> int:
    """The rows that differ of random products and of parts of them."""
    found = 0
    for _ in range(40):
        m, k, n = (int(2 ** rng.uniform(0, 9)) for _ in range(3))
        a, b = matrix(rng, m, k, dtype), matrix(rng, k, n, dtype)
        b = np.asfortranarray(b) if rng.random() < 0.5 else b
        whole = np.asarray(tw.matmul(a, b, **says))
        for _ in range(3):
            first = int(rng.integers(0, m))
            some = slice(first, first + int(rng.integers(1, m - first + 1)))
            x, y = (np.ascontiguousarray(c).view(np.uint8) for c in (whole[some], again(rng, a[some], b, **says)))
            found += int((x != y).any(axis=1).sum())
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_have_the_same_bits_whatever_is_computed_beside_them(dtype: str) -> None:
    if tw.plan((300, 300), (300, 300)).kernel.name == "numpy":
        pytest.skip("without machine code there are no invariant products")
    assert differing(np.random.default_rng(7), dtype, invariant=True) == 0


def test_this_comparison_finds_rows_that_differ() -> None:
    """Products that are not asked to be invariant take other kernels for few rows."""
    assert differing(np.random.default_rng(7), "float32") > 0


def test_plan_says_so_and_is_that_of_large_products() -> None:
    for m in (1, 7, 3000):
        plan = tw.plan(np.ones((m, 50), np.float32), np.ones((50, 60), np.float32), invariant=True)
        assert plan.problem.precision == "invariant"
        assert plan.kernel is tw.plan(np.empty((4096, 4096), np.float32), np.empty((4096, 4096), np.float32)).kernel
        assert "those of a row of C follow from that row of A" in str(plan)


def test_the_word_of_precision_is_the_same() -> None:
    rng = np.random.default_rng(1)
    a, b = matrix(rng, 9, 300, "float32"), matrix(rng, 300, 31, "float32")
    assert np.array_equal(tw.matmul(a, b, precision="invariant"), tw.matmul(a, b, invariant=True))
    assert np.allclose(tw.matmul(a, b, invariant=True), a @ b, atol=1e-4)


@pytest.mark.parametrize(
    "says", [{"precision": "fast"}, {"precision": 1e-3}, {"algorithm": "strassen"}, {"device": "cuda"}], ids=str
)
def test_what_cannot_be_invariant_is_refused(says: dict[str, Any]) -> None:
    a = np.ones((64, 64), np.float32)
    with pytest.raises(UsageError, match="invariant"):
        tw.matmul(a, a, invariant=True, **says)
    with pytest.raises(UsageError, match="invariant"):
        tw.plan(a, a, invariant=True, **says)


def test_products_of_numpy_are_refused() -> None:
    a = np.ones((4, 4), np.longdouble)
    with pytest.raises(UnavailableError, match="depend on their shape"):
        tw.matmul(a, a, invariant=True)


def test_integers_are_exact_anyway() -> None:
    a = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert np.array_equal(tw.matmul(a, a.T, invariant=True), a @ a.T)


def test_epilogue_and_dtype_of_the_result() -> None:
    rng = np.random.default_rng(2)
    a, b = matrix(rng, 40, 90, "float16"), matrix(rng, 90, 20, "float16")
    says: dict[str, Any] = {"out_dtype": "float32", "bias": np.ones(20, np.float32), "invariant": True}
    assert np.array_equal(tw.matmul(a, b, **says)[3:4], tw.matmul(a[3:4], b, **says))


def test_the_environment_asks_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
import numpy as np, tilewright as tw
rng = np.random.default_rng(3)
a, b = rng.random((200, 300), np.float32), rng.random((300, 250), np.float32)
c = tw.matmul(a, b)
assert all(np.array_equal(tw.matmul(a[i : i + 1], b)[0], c[i]) for i in range(0, 200, 9))
assert tw.plan(a, b).problem.precision == "invariant"
try:
    tw.accelerate_numpy()
except tw.errors.UnavailableError as error:
    print(error)
"""
    environment = os.environ | {precision.INVARIANT_VARIABLE: "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "TILEWRIGHT_INVARIANT is set" in done.stdout
    monkeypatch.setattr(precision, "are_all_invariant", lambda: True)
    assert asked_precision("standard") == "invariant"
    assert asked_precision("highest") == "highest"
