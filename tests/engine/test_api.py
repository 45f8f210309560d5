"""matmul and gemm against NumPy: every rule of shapes, dtypes, layouts and overlap, and what is refused."""

from __future__ import annotations

import functools
import itertools
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tilewright as tw
from tilewright.api import matmul as api
from tilewright.cpu import gemm
from tilewright.cpu import plan as host
from tilewright.cpu.runtime import in_process, runner, small_products
from tilewright.errors import DTypeError, OperandError, ShapeError, UsageError
from tilewright.product.operands import DTYPES

#: Pairs of shapes: every rule of array-API matmul, sizes zero and one, and sizes that no tile divides.
SHAPES = [
    ((4,), (4,)),
    ((0,), (0,)),
    ((1,), (1,)),
    ((3, 4), (4,)),
    ((0, 4), (4,)),
    ((4,), (4, 5)),
    ((4,), (4, 0)),
    ((0,), (0, 5)),
    ((3, 4), (4, 5)),
    ((1, 1), (1, 1)),
    ((0, 4), (4, 5)),
    ((3, 0), (0, 5)),
    ((3, 4), (4, 0)),
    ((0, 0), (0, 0)),
    ((33, 70), (70, 65)),
    ((1, 300), (300, 1)),
    ((7, 3, 4), (4,)),
    ((4,), (7, 4, 5)),
    ((7, 3, 4), (4, 5)),
    ((3, 4), (7, 4, 5)),
    ((7, 3, 4), (7, 4, 5)),
    ((1, 3, 4), (7, 4, 5)),
    ((2, 1, 3, 4), (7, 4, 5)),
    ((0, 3, 4), (1, 4, 5)),
    ((7, 0, 4), (7, 4, 5)),
    ((2, 0, 3, 4), (4,)),
    ((1,) * 40, (1,) * 35),
]


def filled(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
    """Uniform in [−1, 1); integers over their whole range, so that products wrap around."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype.newbyteorder("="), endpoint=True).astype(dtype)
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.4)
    values = rng.uniform(-1, 1, shape)
    return np.asarray(values + 1j * rng.uniform(-1, 1, shape) if dtype.kind == "c" else values).astype(dtype)


def assert_product(got: Any, a: np.ndarray, b: np.ndarray) -> None:
    """``got`` is what numpy.matmul gives: type, dtype and shape, the very integers, floats within γ_k·|A||B|."""
    want = np.matmul(a, b)
    assert type(got) is type(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert got.dtype.isnative
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
        return
    wide = np.clongdouble if want.dtype.kind == "c" else np.longdouble
    a, b = a.astype(want.dtype).astype(wide), b.astype(want.dtype).astype(wide)
    exact, size = np.matmul(a, b), np.matmul(abs(a), abs(b))
    assert np.all(np.abs(got - exact) <= gamma(a.shape[-1], want.dtype) * size + np.finfo(want.dtype).tiny)


def gamma(k: int, dtype: np.dtype) -> float:
    """Higham's γ; a complex product is two real ones of twice the length; half precision adds its one rounding."""
    if dtype == np.float16:
        return gamma(k, np.dtype("f4")) + np.finfo(np.float16).eps / 2
    terms = 2 * (k + 2) if dtype.kind == "c" else k
    unit = float(np.finfo(dtype).eps) / 2
    return terms * unit / (1 - terms * unit)


# ---- matmul: shapes and dtypes ---------------------------------------------------------------------------------------


@pytest.mark.slow_cases("0", "1", "0x5", "int64")
@pytest.mark.each_value
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("left", "right"), SHAPES, ids=lambda shape: "x".join(map(str, shape[-4:])))
def test_every_shape_in_every_dtype(left: tuple[int, ...], right: tuple[int, ...], dtype: str) -> None:
    a, b = filled(left, dtype, 1), filled(right, dtype, 2)
    got = tw.matmul(a, b)
    assert_product(got, a, b)
    out = np.asarray(np.full_like(got, 1))
    assert tw.matmul(a, b, out=out) is out
    np.testing.assert_array_equal(out, got)


@pytest.mark.slow_cases(
    "complex64",
    "bool-int8",
    "bool-int32",
    "bool-int64",
    "bool-float16",
    "int8-int32",
    "int8-int64",
    "int8-float16",
    "int32-int64",
)
@pytest.mark.parametrize(("left", "right"), [*itertools.combinations(DTYPES, 2)])
def test_dtypes_promote_as_numpy_promotes_them(left: str, right: str) -> None:
    a, b = filled((3, 4), left, 1), filled((4, 2), right, 2)
    assert_product(tw.matmul(a, b), a, b)
    assert_product(tw.matmul(b.T, a.T), b.T, a.T)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["longlong", "ulonglong", "intc", "uintc", ">f8", ">c8", ">i2", ">f2", ">u8"])
def test_other_names_and_byte_orders_of_a_dtype(dtype: str) -> None:
    a, b = filled((3, 4), dtype, 1), filled((4, 2), dtype, 2)
    assert_product(tw.matmul(a, b), a, b)


def test_lists_and_python_numbers_are_what_numpy_makes_of_them() -> None:
    got = tw.matmul([[1, 2], [3, 4]], np.ones((2, 1), np.float32))
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, [[3], [7]])
    assert tw.matmul([1, 2], (3, 4)) == 11
    assert type(tw.matmul([1, 2], (3, 4))) is np.int64
    assert type(tw.matmul([True], [True])) is np.bool


def test_the_result_is_the_callers_own() -> None:
    got = tw.matmul(np.eye(3), np.eye(3))
    assert got.flags.owndata
    assert got.flags.c_contiguous
    assert got.flags.writeable


@pytest.mark.slow
def test_a_sum_of_truths_does_not_wrap_to_false() -> None:
    for k in (256, 65536):
        assert tw.matmul(np.ones((1, k), bool), np.ones((k, 1), bool)).all()


@pytest.mark.slow
def test_float16_is_rounded_once() -> None:
    a = np.full((1, 4096), 1, np.float16)
    assert tw.matmul(a, a.T) == 4096, "summed in float16 it would stop at 2048"
    assert np.isposinf(tw.matmul(a * 60, a.T * 60)).all()


# ---- matmul: values and layouts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [1, 5, 70])
def test_nan_and_infinity_go_where_numpy_lets_them_go(size: int, special: float, dtype: str) -> None:
    for i, j in {(0, 0), (size // 2, size - 1), (size - 1, 0)}:
        a, b = filled((size, size), dtype, 1), filled((size, size), dtype, 2)
        a[i, j] = special
        b[j, i] = 0  # infinity times zero
        with np.errstate(all="ignore"):
            want = np.matmul(a, b)
        got = tw.matmul(a, b)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_array_equal(got[np.isinf(want)], want[np.isinf(want)])
        np.testing.assert_array_equal(np.isinf(got), np.isinf(want))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_nan_stays_in_its_row_of_complex_numbers(dtype: str) -> None:
    a, b = filled((6, 6), dtype, 1), filled((6, 6), dtype, 2)
    a[2, 3] = complex(np.nan, 1)
    assert np.array_equal(np.isnan(tw.matmul(a, b)).any(axis=1), np.arange(6) == 2)


def unaligned(array: np.ndarray) -> np.ndarray:
    """The same values at an odd address, as a field of packed records."""
    records = np.zeros(array.shape, [("flag", "u1"), ("value", array.dtype)])
    records["value"] = array
    return records["value"]


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


#: Another array of the same values (and of writeable memory, for use as ``out``).
LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "fortran": np.asfortranarray,
    "every other": lambda x: np.repeat(np.repeat(x, 2, axis=0), 3, axis=1)[::2, ::3],
    "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "backwards fortran": lambda x: x.T[::-1].copy()[::-1].T,
    "unaligned": unaligned,
    "other byte order": lambda x: x.astype(x.dtype.newbyteorder()),
    "padded rows": lambda x: np.concatenate([x, x], axis=1)[:, : x.shape[1]],
    "field": lambda x: np.rec.fromarrays([x, x], names="first, second")["second"].view(np.ndarray),
    "subclass": lambda x: x.copy().view(np.recarray),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "complex64", "int16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_of_operands_and_out(layout: str, dtype: str) -> None:
    arrange = LAYOUTS[layout]
    a, b = filled((37, 21), dtype, 1), filled((21, 70), dtype, 2)
    assert_product(tw.matmul(arrange(a), arrange(b)), a, b)
    assert_product(tw.matmul(read_only(arrange(a)), b), a, b)
    out = arrange(np.ones((37, 70), dtype))
    assert tw.matmul(a, b, out=out) is out
    assert_product(np.array(out, dtype, subok=False), a, b)
    c = arrange(np.ones((37, 70), dtype))
    assert tw.gemm(1, a, b, 0, c) is c
    np.testing.assert_array_equal(np.asarray(c), np.asarray(out))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "uint8"])
@pytest.mark.parametrize("view", [np.s_[3:-3, 5:-5], np.s_[::3, ::2], np.s_[-2::-3, -3::-2], np.s_[1:2, 4:70:5]])
def test_memory_around_a_strided_out_is_not_touched(view: Any, dtype: str) -> None:
    whole = filled((90, 120), dtype)
    before, part = whole.copy(), whole[view]
    a, b = filled((part.shape[0], 19), dtype, 1), filled((19, part.shape[1]), dtype, 2)
    tw.matmul(a, b, out=part)
    assert_product(part.copy(), a, b)
    outside = np.ones(whole.shape, bool)
    outside[view] = False
    np.testing.assert_array_equal(whole[outside], before[outside])
    tw.matmul(b.T, a.T, out=part.T)
    assert_product(part.copy(), a, b)
    np.testing.assert_array_equal(whole[outside], before[outside])


def test_a_batch_that_broadcasts_is_not_expanded() -> None:
    a = np.broadcast_to(filled((64, 8), "f8", 1), (300, 1, 64, 8))
    b = np.broadcast_to(filled((8,), "f8", 2), (8,))
    got = tw.matmul(a, b)
    assert got.shape == (300, 1, 64)
    assert (got == got[0]).all()
    assert_product(got[0, 0].copy(), a[0, 0], b)
    huge = np.broadcast_to(np.float32(1), (2**40, 0, 3))
    assert tw.matmul(huge[:5], np.ones((3, 2), np.float32)).shape == (5, 0, 2)


def test_operands_are_not_changed() -> None:
    a, b, c = filled((9, 9), "f8", 1), filled((9, 9), "f8", 2), filled((9, 9), "f8", 3)
    copies = [a.copy(), b.copy()]
    tw.matmul(a, b)
    tw.gemm(2.0, a, b, 0.5, c)
    np.testing.assert_array_equal([a, b], copies)


# ---- matmul: out -----------------------------------------------------------------------------------------------------


def test_a_scalar_product_goes_into_an_array_without_axes() -> None:
    out = np.array(7.0)
    assert tw.matmul(np.arange(3.0), np.arange(3.0), out=out) is out
    assert out == 5


@pytest.mark.slow_cases("int8-float32")
@pytest.mark.parametrize(
    ("dtype", "out_dtype"),
    [
        ("float64", "float32"),
        ("float64", "complex64"),
        ("float32", "longdouble"),
        ("int64", "int8"),
        ("int8", "float32"),
        ("bool", "float64"),
        ("bool", "float32"),
        ("float16", "float64"),
        ("complex128", "complex64"),
    ],
)
def test_out_is_cast_by_numpys_rule(dtype: str, out_dtype: str) -> None:
    a, b = filled((3, 4), dtype, 1), filled((4, 5), dtype, 2)
    got, want = np.zeros((3, 5), out_dtype), np.zeros((3, 5), out_dtype)
    assert tw.matmul(a, b, out=got) is got
    np.matmul(a, b, out=want)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("dtype", "out_dtype"), [("bool", "float32"), ("float16", "float32"), ("float32", "float64")])
def test_out_of_the_dtype_that_a_product_is_computed_in_holds_the_product(dtype: str, out_dtype: str) -> None:
    """Truths are counted in float32, and are truths again before they go into an array of it."""
    a, b = filled((3, 40), dtype, 1), filled((40, 5), dtype, 2)
    for precision in ("standard", "highest"):
        got = tw.matmul(a, b, out=np.zeros((3, 5), out_dtype), precision=precision)
        np.testing.assert_array_equal(got, tw.matmul(a, b, precision=precision).astype(out_dtype))
    c = tw.gemm(1, a, b, 0, np.zeros((3, 5), out_dtype))
    np.testing.assert_array_equal(c, tw.matmul(a, b).astype(out_dtype))


def test_an_overflow_on_the_way_into_out_does_not_warn() -> None:
    large = np.full((2, 2), 1e30)
    assert np.isposinf(tw.matmul(large, large, out=np.zeros((2, 2), "f2"))).all()


@pytest.mark.slow_cases("int32")
@pytest.mark.parametrize(
    "place",
    [
        lambda m: (m[:20, :20], m[:20, :20], m[:20, :20]),
        lambda m: (m[:20, :20], m[5:25, 5:25], m[10:30, 10:30]),
        lambda m: (m[:20, :20], m[20:, 20:], m[:20, :20].T),
        lambda m: (m[20:, :20], m[:20, :20].T, m[:20, :20]),
        lambda m: (m[:20, :20], m[20:, :20], m[:20, :20][::-1]),
        lambda m: (m[:20, ::2], m[:20, 20:], m[20:, 1::2]),
        lambda m: (m[0], m, m[1]),
        lambda m: (m, m[:, 0], m[:, 0]),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "complex64", "int32", "float16", ">f8"])
def test_out_may_overlap_the_operands(place: Callable[[np.ndarray], tuple[np.ndarray, ...]], dtype: str) -> None:
    memory = filled((40, 40), dtype)
    a, b, out = place(memory)
    a_before, b_before = a.copy(), b.copy()
    assert tw.matmul(a, b, out=out) is out
    assert_product(out.astype(out.dtype.newbyteorder("=")), a_before, b_before)


def test_out_may_overlap_a_batch() -> None:
    memory = filled((6, 5, 5), "f8")
    before = memory.copy()
    tw.matmul(memory[:5], memory[0], out=memory[1:])
    assert_product(memory[1:].copy(), before[:5], before[0])


class Stubborn(np.ndarray):
    """A subclass with ideas of its own about slices and arithmetic."""

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("a subclass has no say in the product")

    __setitem__ = __mul__ = __add__ = __getitem__  # type: ignore[assignment]


def huge(shape: tuple[int, int], dtype: str) -> np.ndarray:
    """Numbers whose products overflow, an infinity, and a zero that it multiplies."""
    x = np.full(shape, np.finfo(dtype).max / 2).astype(dtype)
    x[0, 0], x[-1, -1] = np.inf, 0
    return x


@pytest.mark.slow_cases("300-longdouble")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "longdouble"])
@pytest.mark.parametrize("size", [2, 70, 300])
def test_errstate_has_no_effect_and_nothing_warns(size: int, dtype: str) -> None:
    """As matmul's docstring says; NumPy raises for the same operands."""
    a, b = huge((size, size), dtype), huge((size, size), dtype)
    narrow = np.empty((size, size), {"longdouble": "f8", "float64": "f4", "complex64": "c8"}.get(dtype, "f2"))
    calls: list[Callable[[], Any]] = [
        lambda: tw.matmul(a, b),
        lambda: tw.matmul(a, b[:, 0]),
        lambda: tw.matmul(np.stack([a, a]), b),
        lambda: tw.matmul(a, b, narrow),
        lambda: tw.gemm(2, a, b, 3, np.full_like(a, 1)),
        lambda: (
            tw.matmul(a, b, alpha=3, activation=None if dtype == "complex64" else "silu")
            if dtype != "longdouble"
            else a
        ),
        lambda: tw.matmul(a, b, precision="highest"),
    ]
    with np.errstate(all="raise"):
        with pytest.raises(FloatingPointError):
            np.multiply(a, b)
        for call in calls:
            assert not np.isfinite(call()).all()


def test_out_of_a_subclass_comes_back_as_itself() -> None:
    out = np.zeros((2, 2)).view(Stubborn)
    assert tw.matmul(np.eye(2), np.eye(2), out=out) is out
    assert tw.matmul(out, out, out=out) is out
    for beta in (1, 2):
        assert tw.gemm(2, np.eye(2), out, beta, out) is out
    np.testing.assert_array_equal(out.view(np.ndarray), 12 * np.eye(2))


# ---- properties ------------------------------------------------------------------------------------------------------


@st.composite
def operands(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays whose shapes have a product, each of its own dtype, strides, direction and alignment."""
    sizes = hnp.mutually_broadcastable_shapes(signature="(m?,k),(k,n?)->(m?,n?)", min_side=0, max_side=5, max_dims=2)
    shapes = draw(sizes).input_shapes
    return tuple(draw(arranged(shape, seed)) for seed, shape in enumerate(shapes))  # type: ignore[return-value]


@st.composite
def arranged(draw: st.DrawFn, shape: tuple[int, ...], seed: int) -> np.ndarray:
    array = filled(shape, draw(st.sampled_from(DTYPES)), seed)
    order = draw(st.permutations(range(array.ndim)))
    steps = [draw(st.sampled_from([1, 2, -1, -3])) for _ in order]
    wide = np.zeros([abs(step) * size for step, size in zip(steps, array.shape, strict=True)], array.dtype)
    view = wide.transpose(order).copy().transpose(np.argsort(order))[tuple(slice(None, None, step) for step in steps)]
    view[...] = array
    change = draw(st.sampled_from([lambda x: x, lambda x: x.astype(x.dtype.newbyteorder()), unaligned, read_only]))
    return change(view)


@pytest.mark.slow
@pytest.mark.thorough
@given(operands())
@settings(max_examples=300)
def test_matmul_is_numpys(pair: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = pair
    got = tw.matmul(a, b)
    assert_product(got, a, b)
    out = np.asarray(np.full_like(got, 1))[..., ::-1] if np.ndim(got) else np.ones((), got.dtype)
    assert tw.matmul(a, b, out=out) is out
    assert_same(out, got)


def assert_same(one: np.ndarray, other: np.ndarray) -> None:
    """To the bit. A part of a complex number is a sum of two products: strides decide which of them is rounded first."""
    tolerance = 4 * np.finfo(one.dtype).eps if one.dtype.kind == "c" else 0
    np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@given(operands())
@settings(max_examples=200)
def test_the_short_way_gives_what_the_long_way_gives(pair: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = pair
    got = tw.matmul(a, b)
    with mock.patch.object(host, "short_way", return_value=small_products.take_long_way):
        want = api._matmul(a, b, None, "standard", "classical")
    assert type(got) is type(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert_same(got, want)


# ---- gemm ------------------------------------------------------------------------------------------------------------

FACTORS = [0, 1, -1, 2.0, 0.5, -3.25, np.float32(0.1), np.int8(-7), True, np.array(1.5)]


def assert_gemm(
    alpha: Any, a: np.ndarray, b: np.ndarray, beta: Any, c: np.ndarray, gemm: Callable[..., Any] = tw.gemm
) -> None:
    """The literal formula in wide arithmetic, with the error of k + 3 roundings."""
    wide = np.clongdouble if c.dtype.kind == "c" else np.longdouble
    product, old = np.matmul(a.astype(wide), b.astype(wide)), c.astype(wide)
    size = abs(alpha) * np.matmul(abs(a.astype(wide)), abs(b.astype(wide))) + abs(beta) * abs(old)
    assert gemm(alpha, a, b, beta, c) is c
    narrow = np.result_type(a.dtype, b.dtype)
    assert np.all(np.abs(c - (wide(alpha) * product + wide(beta) * old)) <= gamma(a.shape[1] + 3, narrow) * size)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("beta", FACTORS, ids=repr)
@pytest.mark.parametrize("alpha", FACTORS, ids=repr)
def test_gemm_is_its_formula(alpha: Any, beta: Any, dtype: str) -> None:
    a, b, c = filled((13, 7), dtype, 1), filled((7, 17), dtype, 2), filled((13, 17), dtype, 3)
    exact = np.dtype(dtype).type
    assert_gemm(exact(alpha), a, b, exact(beta), c)
    assert_gemm(alpha if alpha != np.float32(0.1) else 1, a, b, 1, c)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "beta"), [(1j, 0), (2 - 1j, 1), (0, 1j), (1, 1 + 1j), (0.5 + 0j, np.complex64(2j))])
def test_complex_factors(alpha: complex, beta: complex) -> None:
    for dtype in ("complex64", "complex128"):
        a, b, c = filled((5, 7), dtype, 1), filled((7, 6), dtype, 2), filled((5, 6), dtype, 3)
        assert_gemm(alpha, a, b, beta, c)
    assert_gemm(alpha, filled((5, 7), "f8", 1), filled((7, 6), "f8", 2), beta, filled((5, 6), "c16", 3))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64"])
@pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (0, 3), (2, 1), (-1, -1), (2.0, 3.0), (300, 1), (7, 2**63 - 1)])
def test_integers_wrap_around(alpha: Any, beta: Any, dtype: str) -> None:
    a, b, c = filled((5, 7), dtype, 1), filled((7, 6), dtype, 2), filled((5, 6), dtype, 3)
    exact = int(alpha) * np.matmul(a.astype(object), b.astype(object)) + int(beta) * c.astype(object)
    tw.gemm(alpha, a, b, beta, c)
    np.testing.assert_array_equal(c, (exact & (2 ** (8 * c.itemsize) - 1)).astype(f"u{c.itemsize}").view(dtype))


def test_truths() -> None:
    a, b, c = filled((5, 7), "?", 1), filled((7, 6), "?", 2), filled((5, 6), "?", 3)
    want = np.matmul(a, b) | c
    np.testing.assert_array_equal(tw.gemm(1, a, b, 1.0, c), want)
    np.testing.assert_array_equal(tw.gemm(False, a, b, True, c), want)
    assert not tw.gemm(0, a, b, 0, c).any()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_zero_multiplies_is_not_read(bad: float, dtype: str) -> None:
    good, ones = np.full((6, 6), bad, dtype), np.ones((6, 6), dtype)
    for alpha in (1, 2.0, -0.0):
        assert np.isfinite(tw.gemm(alpha, ones, ones, 0.0, good.copy())).all()
    for beta in (0, -0.0, 1, 2):
        np.testing.assert_array_equal(tw.gemm(0.0, good, good, beta, ones.copy()), beta * ones)
    for factors in ((bad, 1.0), (1.0, bad), (0, bad), (bad, 0), (bad, bad)):
        assert not np.isfinite(tw.gemm(factors[0], ones, ones, factors[1], ones.copy())).any()
    assert not np.isfinite(tw.gemm(1.0, ones, ones, 1.0, good.copy())).any()
    assert not np.isfinite(tw.gemm(2.0, good, ones, 0, ones.copy())).any()


@pytest.mark.parametrize("alpha", [0, 1, 2.5, np.nan, np.inf])
def test_an_empty_sum_leaves_beta_c(alpha: float) -> None:
    for beta in (0, 1, -2.0):
        c = filled((3, 4), "f4")
        want = beta * c
        np.testing.assert_array_equal(tw.gemm(alpha, np.ones((3, 0), "f4"), np.ones((0, 4), "f4"), beta, c), want)
    for m, n in ((0, 4), (3, 0), (0, 0)):
        assert tw.gemm(alpha, np.ones((m, 5)), np.ones((5, n)), 2, np.ones((m, n))).shape == (m, n)


@pytest.mark.parametrize("dtype", ["float32", "int32", "complex64"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_c_of_any_layout(layout: str, dtype: str) -> None:
    a, b, old = filled((37, 21), dtype, 1), filled((21, 70), dtype, 2), filled((37, 70), dtype, 3)
    for alpha, beta in ((2, 1), (0, -1), (1, 3)):
        want, c = old.copy(), LAYOUTS[layout](old)
        tw.gemm(alpha, a, b, beta, want)
        assert tw.gemm(alpha, a, b, beta, c) is c
        np.testing.assert_allclose(np.asarray(c), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("panel", [1, 70 * 8 * 100, 64 << 20])
@pytest.mark.parametrize(
    "place",
    [
        lambda m: (m, m, m),
        lambda m: (m.T, m, m),
        lambda m: (m, m, m[::-1]),
        lambda m: (m[:100, :50], m[:50, 100:], m[50:150, 50:150]),
        lambda m: (m[:100, :50], m[:50, 100:], m[100:, :100].T),
    ],
)
def test_c_may_overlap_the_operands_and_go_by_panels(
    place: Callable[[np.ndarray], tuple[np.ndarray, ...]], panel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm, "PANEL_BYTES", panel)
    memory = filled((200, 200), "f8")
    a, b, c = place(memory)
    a, b, separate = a.copy(), b.copy(), c.copy()
    assert_gemm(0.5, a, b, -2.0, separate)
    tw.gemm(0.5, *place(memory)[:2], -2.0, c)
    np.testing.assert_allclose(c, separate, rtol=1e-12, atol=1e-12)


def test_c_of_another_dtype() -> None:
    a, b = filled((4, 5), "f8", 1), filled((5, 6), "f8", 2)
    assert tw.gemm(2, a, b, 0, np.empty((4, 6), "f4")).dtype == np.float32
    counts = filled((4, 5), "i4", 1)
    np.testing.assert_allclose(tw.gemm(0.5, counts, counts.T, 0, np.empty((4, 4))), 0.5 * np.matmul(counts, counts.T))
    np.testing.assert_array_equal(tw.gemm(2**70, np.eye(2), np.eye(2), 0, np.ones((2, 2))), 2.0**70 * np.eye(2))


# ---- gemm that adds to C where it lies -------------------------------------------------------------------------------

#: m, n, k: planned to a kernel that adds; and to one that does not, where another adds in its place.
ADDED = [(400, 380, 65), (700, 500, 3)]


def small_numbers(m: int, n: int, k: int, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A, B, C and C + A·B, exact in every dtype; that of complex numbers in both parts."""
    rng = np.random.default_rng([m, n, k])
    a, b, c = (rng.integers(-3, 4, shape) for shape in ((m, k), (k, n), (m, n)))
    unit = 1 + 1j if np.dtype(dtype).kind == "c" else 1
    sums = c + unit * unit * (a.astype(float) @ b.astype(float))
    return (a * unit).astype(dtype), (b * unit).astype(dtype), c.astype(dtype), sums.astype(dtype)


@pytest.mark.slow_cases("int32", "float64", "complex64")
@pytest.mark.each_value
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int16", "complex64", "float16"])
@pytest.mark.parametrize("shape", ADDED, ids=str)
def test_c_of_any_layout_is_added_to(shape: tuple[int, int, int], dtype: str) -> None:
    a, b, old, want = small_numbers(*shape, dtype)
    for name, arrange in LAYOUTS.items():
        c = arrange(old)
        assert tw.gemm(1, arrange(a), arrange(b), 1, c) is c
        np.testing.assert_array_equal(np.asarray(c), want, err_msg=name)
    c = np.asfortranarray(old)
    tw.gemm(True, a, b, 1.0, c)
    np.testing.assert_array_equal(c, want)
    around = np.full((shape[0] + 4, shape[1] + 40), 7, dtype)
    inside = around[2:-2, 20:-20]
    inside[...] = old
    tw.gemm(1, a, b, 1, inside)
    np.testing.assert_array_equal(inside, want)
    inside[...] = 7
    assert (around == 7).all(), "wrote beside C"


@pytest.mark.slow_cases("int64")
@pytest.mark.each_value
@pytest.mark.parametrize("dtype", ["float32", "complex128", "int64", "uint8"])
@pytest.mark.parametrize("shape", ADDED, ids=str)
def test_a_sum_with_c_needs_no_second_matrix(shape: tuple[int, int, int], dtype: str) -> None:
    a, b, c, _ = small_numbers(*shape, dtype)

    def peak(alpha: int) -> int:
        tw.gemm(alpha, a, b, 1, c)  # compiles, and leaves its workspace to the next
        tracemalloc.start()
        try:
            tw.gemm(alpha, a, b, 1, c)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(1) < c.nbytes / 4
    assert peak(2) >= c.nbytes, "the measure sees a second matrix"


@pytest.mark.slow
def test_what_is_added_has_the_same_bits_on_any_number_of_threads() -> None:
    a, b, c = filled((500, 900), "f4", 1), filled((900, 400), "f4", 2), filled((500, 400), "f4", 3)
    found = set()
    for threads in (1, 2, 3, 16):
        with tw.use_threads(threads):
            found.add(tw.gemm(1, a, b, 1, c.copy()).tobytes())
    assert len(found) == 1
    assert_gemm(1, a, b, 1, c)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_c_holds_stays_in_its_place(bad: float) -> None:
    a, b, old, want = small_numbers(400, 380, 65, "float32")
    for row, column in itertools.product((0, 5, 233, 399), (0, 15, 200, 379)):
        c = old.copy()
        c[row, column] = bad
        tw.gemm(1, a, b, 1, c)
        assert np.array_equal(c[row, column], bad, equal_nan=True)
        c[row, column] = want[row, column]
        np.testing.assert_array_equal(c, want)
        c[row, column] = bad
        np.testing.assert_array_equal(tw.gemm(1, a, b, 0, c), want - old, err_msg="with beta 0 C is not read")


@pytest.mark.parametrize(
    "place",
    [
        lambda m: (m[:400, :400], m[:400, :400], m[:400, :400]),
        lambda m: (m[:400, :400].T, m[200:600, :400], m[:400, :400]),
        lambda m: (m[:400, :50], m[:50, 100:500], m[50:450, 50:450]),
        lambda m: (m[:400, :400], m[:400, 400:], m[399::-1, :400]),
    ],
)
def test_c_that_overlaps_the_operands_is_added_to(place: Callable[[np.ndarray], tuple[np.ndarray, ...]]) -> None:
    memory = np.random.default_rng(0).integers(-3, 4, (800, 800)).astype("f8")
    a, b, c = place(memory)
    want = c + a.copy() @ b.copy()
    tw.gemm(1, a, b, 1, c)
    np.testing.assert_array_equal(c, want)


@pytest.mark.slow_cases("f4")
@pytest.mark.parametrize(
    ("a", "b", "c"), [("f4", "f4", "f8"), ("f4", "f8", "f4"), ("i4", "i4", "i8"), ("?", "?", "f4"), ("f4", "f4", "c8")]
)
def test_a_product_is_of_its_own_dtype_before_it_is_added(a: str, b: str, c: str) -> None:
    x, y, old = filled((400, 65), a, 1), filled((65, 380), b, 2), filled((400, 380), c, 3)
    got = tw.gemm(1, x, y, 1, old.copy())
    product = tw.matmul(x, y)
    np.testing.assert_array_equal(got, (product + old).astype(c))


def test_c_is_as_it_was_where_memory_is_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c, want = small_numbers(*ADDED[0], "float64")
    before = c.copy()

    def none(*_: Any) -> np.ndarray:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(runner, "aligned_empty", none)
        runner.release_workspace()
        with pytest.raises(MemoryError, match="this product needs a workspace of"):
            tw.gemm(1, a, b, 1, c)
    np.testing.assert_array_equal(c, before)
    np.testing.assert_array_equal(tw.gemm(1, a, b, 1, c), want)


# ---- what is refused --------------------------------------------------------------------------------------------------

EYE, COUNTS = np.eye(3), np.eye(3, dtype=np.int64)
TWO_AXES = "{}: gemm takes matrices; matmul takes vectors and batches"
NO_CAST = "{}: the result is {}, which does not cast to c, {}, by same_kind"
REFUSED_BY_GEMM = [
    ((1, EYE[0], EYE, 0, EYE), ShapeError, TWO_AXES.format("a is (3,)")),
    ((1, EYE, EYE[None], 0, EYE), ShapeError, TWO_AXES.format("b is (1, 3, 3)")),
    ((1, EYE, 3.0, 0, EYE), ShapeError, TWO_AXES.format("b is ()")),
    (
        (1, EYE, EYE[:2], 0, EYE),
        ShapeError,
        "k mismatch: a is (3, 3), b is (2, 3): a.shape[-1] must equal b.shape[0]",
    ),
    ((1, EYE, EYE, 0, EYE[:2]), ShapeError, "c is (2, 3), the product is (3, 3): c must have exactly this shape"),
    ((1, EYE, EYE, 0, EYE.tolist()), OperandError, "c must be a numpy.ndarray, got list"),
    ((1, EYE, EYE, 0, None), OperandError, "c must be a numpy.ndarray, got NoneType"),
    ((1, EYE, EYE, 0, read_only(EYE)), OperandError, "c is read-only: pass an array that can be written"),
    (
        (1, EYE, EYE, 0, COUNTS),
        DTypeError,
        "c has dtype int64: the product is float64, which does not cast to it by the same_kind rule",
    ),
    ((0.5, COUNTS, COUNTS, 0, COUNTS), DTypeError, NO_CAST.format("alpha is 0.5", "float64", "int64")),
    ((0, COUNTS, COUNTS, 0.5, COUNTS), DTypeError, NO_CAST.format("beta is 0.5", "float64", "int64")),
    ((1, COUNTS, COUNTS, 2**70, COUNTS), DTypeError, NO_CAST.format(f"beta is {2.0**70}", "float64", "int64")),
    ((2, EYE > 0, EYE > 0, 0, EYE > 0), DTypeError, NO_CAST.format("alpha is 2", "int64", "bool")),
    ((1j, EYE, EYE, 0, EYE), DTypeError, NO_CAST.format("alpha is 1j", "complex128", "float64")),
    ((1, EYE, EYE, np.clongdouble(1j), EYE), DTypeError, NO_CAST.format("beta is 1j", "complex128", "float64")),
    *(
        ((value, EYE, EYE, 0, EYE), UsageError, f"alpha must be a number, got {type(value).__name__}")
        for value in (None, "2", EYE, [2.0], np.ma.masked, object(), 10**400, np.datetime64(3, "s"))
    ),
]


@pytest.mark.parametrize(("arguments", "error", "message"), REFUSED_BY_GEMM)
def test_gemm_refuses_by_name(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    eye, counts = EYE.copy(), COUNTS.copy()
    with pytest.raises(error) as refusal:
        tw.gemm(*arguments)
    assert str(refusal.value) == message
    assert isinstance(refusal.value, (TypeError, ValueError))
    np.testing.assert_array_equal(EYE, eye)
    np.testing.assert_array_equal(COUNTS, counts)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (3.0, EYE, "a is a scalar: matmul needs at least one axis; multiply by a scalar with *"),
        (EYE, np.float32(3), "b is a scalar: matmul needs at least one axis; multiply by a scalar with *"),
        (np.array(3.0), EYE[None], "a is a scalar: matmul needs at least one axis; multiply by a scalar with *"),
        (EYE[None], np.array(3.0), "b is a scalar: matmul needs at least one axis; multiply by a scalar with *"),
        (EYE, EYE[:2], "k mismatch: a is (3, 3), b is (2, 3): a.shape[-1] must equal b.shape[0]"),
    ],
)
def test_matmul_refuses_by_name(a: Any, b: Any, message: str) -> None:
    with pytest.raises(ShapeError) as refusal:
        tw.matmul(a, b)
    assert str(refusal.value) == message
    assert isinstance(refusal.value, ValueError)


# ---- many callers ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_callers_on_many_threads_do_not_meet(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Also at the first call, where it compiles: every kernel is compiled anew here, by all of them at once."""
    from tilewright.cpu.runtime import machine_code

    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(machine_code, "engine_code", functools.cache(in_process.Compiler))
    host._runner.cache_clear()
    start, failures = threading.Barrier(8), []

    def call(seed: int) -> None:
        try:
            start.wait()
            for dtype, size in itertools.product(("float32", "int32"), (1, 30 + seed, 300)):
                a, b = filled((size, 40), dtype, seed), filled((40, size), dtype, seed + 1)
                assert_product(tw.matmul(a, b), a, b)
                c = np.zeros((size, size), dtype)
                tw.gemm(2, a, b, 1, c)
        except BaseException as failure:
            failures.append(failure)

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not failures


def test_callers_on_many_threads_share_the_workers() -> None:
    a, b = filled((512, 256), "f4", 1), filled((256, 512), "f4", 2)
    expected, wrong = tw.matmul(a, b), []

    def call() -> None:
        for _ in range(5):
            wrong.append(not np.array_equal(tw.matmul(a, b), expected))

    callers = [threading.Thread(target=call) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == [False] * 40


# ---- on a GPU, of arrays that are not there --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shapes", [((30, 20), (20, 10)), ((30,), (30, 4)), ((3, 4, 5), (5, 6)), ((5,), (5,)), ((2, 0), (0, 3))]
)
def test_a_device_multiplies_every_matrix(shapes: tuple[tuple[int, ...], ...], monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.large import multiply as large

    asked = []

    def multiply(a: Any, b: Any, c: Any, *, device: str, precision: str) -> None:
        asked.append((device, precision))
        c[...] = a @ b

    monkeypatch.setattr(large, "multiply", multiply)
    a, b = (np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for shape in shapes)
    for dtype in ("float32", "float64"):
        found, wanted = tw.matmul(a.astype(dtype), b.astype(dtype), device="cuda:1"), a.astype(dtype) @ b.astype(dtype)
        assert type(found) is type(wanted)
        assert np.array_equal(found, wanted)
    assert set(asked) == {("cuda:1", "standard")}


@pytest.mark.parametrize(
    ("dtype", "given", "error", "words"),
    [
        ("complex64", {}, DTypeError, "dtype complex64: on a GPU it must be float32 or float64"),
        ("int32", {}, DTypeError, "dtype int32"),
        ("float32", {"algorithm": "strassen"}, UsageError, "GPUs have only 'classical'"),
        ("float32", {"device": "gpu"}, UsageError, "device 'gpu'"),
    ],
)
def test_what_a_device_does_not_do(dtype: str, given: dict[str, str], error: type[Exception], words: str) -> None:
    a = np.ones((200, 200), dtype)
    with pytest.raises(error, match=words):
        tw.matmul(a, a, **{"device": "cuda", **given})


def test_the_cpu_is_a_device() -> None:
    a = np.arange(6.0).reshape(2, 3)
    assert np.array_equal(tw.matmul(a, a.T, device="cpu"), a @ a.T)
