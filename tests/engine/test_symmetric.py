"""Symmetric products on the host: of a matrix and its transpose, into a triangle, and of which the caller knows it."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.cpu import symmetric
from tilewright.cpu.choice import choose_adding_cpu
from tilewright.cpu.engine.triangle import part_at
from tilewright.cpu.plan import HostPlan, mirror_lower
from tilewright.cpu.runtime.runner import runner
from tilewright.errors import DTypeError, OperandError, ShapeError, UsageError
from tilewright.kernels.catalog import catalog
from tilewright.product.operands import is_gram

DTYPES = ("float32", "float64", "complex64", "complex128", "float16", "int8", "uint16", "int32", "int64", "bool")
ROUNDOFF = {"float32": 2.0**-24, "complex64": 2.0**-24, "float16": 2.0**-11}
POISON = 77


def matrix(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, *shape])
    x = rng.uniform(-1, 1, shape)
    if dtype.startswith("c"):
        return (x + 1j * rng.uniform(-1, 1, shape)).astype(dtype)
    if dtype == "bool":
        return x > 0.9
    return (x * 100).astype(dtype) if np.dtype(dtype).kind in "iu" else x.astype(dtype)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype({"c": np.complex128, "f": np.float64}.get(x.dtype.kind, x.dtype))


def wrong_elements(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> int:
    """How many elements of C are not within the classical bound of A·B."""
    exact, k = wide(a) @ wide(b), a.shape[-1]
    if c.dtype.kind in "biu":
        return int((c != exact).sum())
    unit = ROUNDOFF.get(c.dtype.name, 2.0**-53)
    bound = (2 * k + 4) * unit * (abs(wide(a)) @ abs(wide(b)))
    return int((~(abs(wide(c) - exact) <= bound)).sum())


def is_symmetric(c: np.ndarray, hermitian: bool = False) -> bool:
    other = c.swapaxes(-1, -2)
    return np.array_equal(c, other.conj() if hermitian else other)


def says_triangle(a: np.ndarray, b: np.ndarray) -> bool:
    return "triangle" in str(tw.plan(a, b))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_matrix_times_its_transpose_is_symmetric_and_has_the_bits_of_the_general_product(
    dtype: str, threads: int
) -> None:
    for shape in [(64, 64), (65, 70), (129, 257), (300, 64), (333, 500), (100, 1100), (3, 100, 50)]:
        a = matrix(shape, dtype)
        with tw.use_threads(threads):
            c = tw.matmul(a, a.swapaxes(-1, -2))
            general = tw.matmul(a, a.swapaxes(-1, -2).copy(order="K"))
        assert wrong_elements(c, a, a.swapaxes(-1, -2)) == 0
        if np.dtype(dtype).kind != "c":  # of these mirror images are sums in another order
            assert np.array_equal(c, general)
        assert is_symmetric(c)
        if tw.plan((9, 9), (9, 9)).kernel.name != "numpy":
            assert says_triangle(a, a.swapaxes(-1, -2))
            assert not says_triangle(a, a.swapaxes(-1, -2).copy())


def test_the_checks_of_this_file_reject_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    a = matrix((200, 100), "float64")
    c = tw.matmul(a, a.T)
    c[3, 190] = np.nextafter(c[3, 190], 9)
    assert not is_symmetric(c)
    assert wrong_elements(c, a, a.T) == 0
    c[190, 3] = np.nan
    assert wrong_elements(c, a, a.T) == 1

    def only_a_triangle(self: HostPlan, x: np.ndarray, y: np.ndarray, c: np.ndarray) -> None:
        c[...] = np.tril(x @ y)

    monkeypatch.setattr(HostPlan, "run", only_a_triangle)
    z = matrix((100, 70), "complex128")
    assert wrong_elements(tw.matmul(z, z.T), z, z.T) > 4000


def test_what_counts_as_the_same_memory() -> None:
    a = matrix((100, 200), "float64")
    assert is_gram(a, a.T)
    assert is_gram(a[::2, ::-1][:64][::-1].copy(), a) is False
    some = a[::-1, ::2]
    assert is_gram(some, some.T)
    assert not is_gram(some, some[::-1].T)
    assert not is_gram(a[:, :150], a[:, 50:].T)
    assert not is_gram(a, a.T.astype(np.float32))
    batch = matrix((4, 80, 60), "float32")
    assert is_gram(batch, batch.swapaxes(1, 2))
    assert not is_gram(batch, batch[::-1].swapaxes(1, 2))


@pytest.mark.parametrize("order", ["C", "F", "strided", "reversed"])
def test_results_of_any_strides(order: str) -> None:
    a = matrix((150, 90), "float32")
    big = np.full((300, 450), POISON, np.float32)
    out = {"C": big[:150, :150], "F": big.T[:150, :150], "strided": big[::2, ::3], "reversed": big[149::-1, 149::-1]}[
        order
    ]
    assert tw.matmul(a, a.T, out) is out
    assert np.array_equal(out, tw.matmul(a, a.T.copy()))
    assert (big == POISON).sum() == big.size - out.size


@pytest.mark.parametrize("dtype", ["float64", "complex64", "complex128", "int16"])
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("conjugate", [False, True])
def test_gram(dtype: str, rows: bool, conjugate: bool) -> None:
    for shape in [(1, 5), (40, 30), (90, 210), (2, 70, 80)]:
        a = matrix(shape, dtype)
        adjoint = a.swapaxes(-1, -2).conj() if conjugate else a.swapaxes(-1, -2)
        c = tw.gram(a, rows=rows, conjugate=conjugate)
        assert wrong_elements(c, *((a, adjoint) if rows else (adjoint, a))) == 0
        assert is_symmetric(c, conjugate)
        out = np.full(c.shape, POISON, c.dtype)
        assert tw.gram(a, out, rows=rows, conjugate=conjugate) is out
        assert np.array_equal(out, c)


def test_gram_of_what_are_no_matrices() -> None:
    with pytest.raises(ShapeError, match="gram takes matrices"):
        tw.gram(np.ones(3))
    with pytest.raises(OperandError, match="a is None"):
        tw.gram(None)
    with pytest.raises(ShapeError, match="exactly this shape"):
        tw.gram(np.ones((3, 4)), np.ones((3, 3)))
    assert tw.gram(np.ones((0, 3))).tolist() == np.zeros((3, 3)).tolist()
    assert tw.gram(np.ones((3, 0))).shape == (0, 0)


def test_infinity_and_nan_spread_as_in_the_general_product() -> None:
    a = matrix((200, 300), "float64")
    a[70, 5], a[130, 9] = np.inf, np.nan
    np.testing.assert_array_equal(tw.matmul(a, a.T), tw.matmul(a, a.T.copy()))


# ---- C ← α·A·B + β·C -------------------------------------------------------------------------------------------------


def expected(alpha: complex, p: np.ndarray, beta: complex, c: np.ndarray, lower: bool | None) -> np.ndarray:
    whole = alpha * p + (beta * c if beta else 0)
    if lower is None:
        return whole
    inside = np.tri(len(c), dtype=bool) if lower else np.tri(len(c), dtype=bool).T
    return np.where(inside, whole, c)


@pytest.mark.parametrize("n", [5, 150])
@pytest.mark.parametrize("lower", [None, True, False])
@pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (-0.5, 2)])
def test_syrk_and_gemmt(n: int, lower: bool | None, alpha: float, beta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symmetric, "_PANEL", 64)
    for dtype, conjugate in [("float64", False), ("complex128", False), ("complex128", True)]:
        a, start = matrix((n, 70), dtype), matrix((n, n), dtype, seed=1)
        start = start + (start.T.conj() if conjugate else start.T)
        adjoint = a.T.conj() if conjugate else a.T
        for transposed in (False, True):
            c = start.copy()
            if beta == 0:
                c[:] = np.nan if lower is None else POISON
            want = expected(alpha, a @ adjoint, beta, c, lower)
            given = adjoint.copy() if transposed else a
            assert tw.syrk(alpha, given, beta, c, transposed=transposed, conjugate=conjugate, lower=lower) is c
            np.testing.assert_allclose(c, want, rtol=0, atol=1e-12 * (70 + 4 * abs(beta)))
            if lower is not None:
                other = ~np.tri(n, dtype=bool) if lower else ~np.tri(n, dtype=bool).T
                assert np.array_equal(c[other], want[other])
            else:
                assert is_symmetric(c, conjugate)
        weighted = np.linspace(1, 2, 70)[:, None] * adjoint
        c = start.copy()
        want = expected(alpha, a @ weighted, beta, c, lower)
        tw.gemmt(alpha, a, weighted, beta, c, conjugate=conjugate, lower=lower)
        np.testing.assert_allclose(c, want, rtol=0, atol=1e-12 * (140 + 4 * abs(beta)))
        assert lower is not None or is_symmetric(c, conjugate)


def test_c_may_overlap_the_operand() -> None:
    a = matrix((80, 80), "float64")
    want = a @ a.T
    np.testing.assert_allclose(tw.syrk(1, a, 0, a), want, atol=1e-12)


def test_what_syrk_and_gemmt_refuse() -> None:
    a, c = np.ones((3, 4)), np.ones((3, 3))
    with pytest.raises(ShapeError, match="exactly this shape"):
        tw.syrk(1, a, 0, np.ones((4, 4)))
    with pytest.raises(ShapeError, match="syrk takes a matrix"):
        tw.syrk(1, np.ones(3), 0, c)
    with pytest.raises(ShapeError, match=r"must be \(n, k\) and \(k, n\)"):
        tw.gemmt(1, a, a, 0, c)
    with pytest.raises(UsageError, match="lower must be"):
        tw.syrk(1, a, 0, c, lower="yes")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="alpha is 1j"):
        tw.syrk(1j, a.astype(complex), 0, c.astype(complex), conjugate=True)
    with pytest.raises(DTypeError, match="same_kind"):
        tw.syrk(1, a, 0, c.astype(int))


# ---- parts of it -----------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 200), st.data())
def test_each_place_is_in_its_part(length: int, data: Any) -> None:
    parts = data.draw(st.integers(1, length))
    starts = [length // parts * i + min(i, length % parts) for i in range(parts + 1)]
    for place in range(length):
        part = part_at(length, parts, place)
        assert starts[part] <= place < starts[part + 1]


def test_near_the_diagonal_the_lower_side_counts() -> None:
    rng = np.random.default_rng(3)
    c = rng.uniform(size=(300, 300)) + 1j * rng.uniform(size=(300, 300))
    far = np.subtract.outer(np.arange(300), np.arange(300)) < -120
    lower = np.tril(c)
    whole = lower + np.tril(c, -1).T.conj()
    c[far] = whole[far]
    np.fill_diagonal(whole.imag, 0)
    mirror_lower(c, True, near=True)
    assert np.array_equal(c, whole)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int8", "int16"])
@pytest.mark.parametrize("n", [70, 720])
def test_sums_below_the_diagonal_are_mirrored_by_the_last_product(dtype: str, n: int) -> None:
    choice = choose_adding_cpu(dtype)
    assert choice is not None
    # Far from what a block of rows on the diagonal has.
    below, far = np.tri(n, dtype=bool), np.triu(np.ones((n, n), bool), 512)
    for kernel in (choice.kernel, catalog()["cpu/direct"]):
        if dtype not in kernel.dtypes:
            continue
        x, y = matrix((40, n), dtype), matrix((30, n), dtype, 1)
        run = functools.partial(runner, kernel, np.dtype(dtype), threads=2, symmetry="gram")
        c = np.full((n, n), POISON, dtype)
        run(mirrored=False)(x.T, x, c)
        assert not wrong_elements(np.where(below, c, x.T @ x), x.T, x)
        assert (c[far] == POISON).all()
        if kernel.adds:
            run(add=True)(y.T, y, c)
            if c.dtype.kind == "c":
                mirror_lower(c, False, near=True)
            both = np.concatenate([x, y])
            assert not wrong_elements(c, both.T, both)
            assert is_symmetric(c)
