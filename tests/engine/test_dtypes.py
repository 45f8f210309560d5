"""Every dtype through the library call and through the rungs that are made for it: exact where arithmetic is, else bounded.

Integers must equal numpy's, which wrap around. Complex products are compared with products of their real and imaginary
parts in a wider dtype; float16 and bfloat16 with float32 and one rounding, bit by bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numba as nb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from support.matrices import SHAPES, Layout, every_layout, numbers, operands
from tilewright.cpu import codegen
from tilewright.cpu.runtime.runner import runner
from tilewright.errors import DTypeError
from tilewright.kernels import Kernel
from tilewright.kernels.catalog import catalog
from tilewright.lab.verify.verify import oracle

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
COMPLEX = ["complex64", "complex128"]


def rung(dtype: str) -> str:
    """The rung that is made for a dtype: the library call may take another for small products."""
    kind, size = np.dtype(dtype).kind, np.dtype(dtype).itemsize
    return {"c": "cpu/complex"}.get(kind) or ("cpu/narrow_integers" if size < 4 else "cpu/packed")


def by_rung(a: np.ndarray, b: np.ndarray, threads: int = 1, c: np.ndarray | None = None) -> np.ndarray:
    dtype = a.dtype.newbyteorder("=")
    c = np.empty((a.shape[0], b.shape[1]), dtype) if c is None else c
    c.fill(77)
    runner(catalog()[rung(dtype.name)], dtype, threads=threads)(a.astype(dtype), b.astype(dtype), c)
    return c


# ---- integers --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("dtype", INTEGERS)
@every_layout
def test_integers_equal_numpys(dtype: str, lay: Layout) -> None:
    for shape in SHAPES:
        a, b = operands(shape, dtype)
        expected = a @ b
        assert np.array_equal(tw.matmul(lay(a), lay(b)), expected), shape
        for threads in (1, 3):
            assert np.array_equal(by_rung(lay(a), lay(b), threads), expected), (shape, threads)


@pytest.mark.slow_cases("int64")
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap_at_their_extremes(dtype: str) -> None:
    limits = np.iinfo(dtype)
    for x, y in itertools.product((limits.min, limits.max, limits.max - 1, 1), repeat=2):
        for k in (1, 2, 3, 255, 256, 257, 1000):
            a, b = np.full((7, k), x, dtype), np.full((k, 130), y, dtype)
            expected = int(x) * int(y) * k % (1 << limits.bits)
            for c in (tw.matmul(a, b), by_rung(a, b)):
                assert c.dtype == dtype
                assert (c.astype(object) % (1 << limits.bits) == expected).all(), (x, y, k)


@pytest.mark.slow
@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    dtype=st.sampled_from(INTEGERS),
    shape=st.tuples(*[st.integers(0, 140)] * 3),
    steps=st.tuples(*[st.sampled_from([-2, -1, 1, 3])] * 4),
)
def test_integers_of_any_shape_into_any_c(
    dtype: str, shape: tuple[int, int, int], steps: tuple[int, int, int, int]
) -> None:
    a, b = operands(shape, dtype)
    a, b = a[:: steps[0]], b[:, :: steps[1]]
    large = np.full((3 * a.shape[0] + 2, 3 * b.shape[1] + 2), 77, dtype)
    c = large[1 : 1 + 3 * a.shape[0], 1 : 1 + 3 * b.shape[1]][:: 3 * np.sign(steps[2]), :: 3 * np.sign(steps[3])]
    by_rung(a, b, 2, c)
    assert np.array_equal(c, a @ b)
    c[...] = 77
    assert (large == 77).all(), "writes beside C"


# ---- complex numbers -------------------------------------------------------------------------------------------------


def bound_and_exact(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The real and the imaginary part in a wider dtype, and γ_2k times the sums of magnitudes, of both parts.

    Each part is a sum of 2k real products (Higham, section 3.6, without the √2 that a modulus would need).
    """
    wide = np.longdouble if a.dtype == np.complex128 else np.float64
    x, y, u, v = (part.astype(wide) for part in (a.real, a.imag, b.real, b.imag))
    unit, k = np.finfo(a.dtype).eps / 2, 2 * a.shape[1]
    gamma = k * unit / (1 - k * unit)
    exact = np.stack([x @ u - y @ v, x @ v + y @ u])
    x, y, u, v = (np.abs(part) for part in (x, y, u, v))
    return gamma * np.stack([x @ u + y @ v, x @ v + y @ u]), exact


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("dtype", COMPLEX)
@every_layout
def test_complex_parts_are_within_gamma(dtype: str, lay: Layout) -> None:
    for shape in SHAPES:
        a, b = operands(shape, dtype)
        bound, exact = bound_and_exact(a, b)
        first = by_rung(lay(a), lay(b))
        for c in (tw.matmul(lay(a), lay(b)), first):
            assert (np.abs(np.stack([c.real, c.imag]) - exact) <= bound).all(), shape
        assert first.tobytes() == by_rung(lay(a), lay(b), 3).tobytes(), (
            "the bits do not know how many threads there are"
        )


@pytest.mark.parametrize("dtype", COMPLEX)
def test_the_complex_bound_can_fail(dtype: str) -> None:
    """A product by three real ones is right in modulus and wrong in its parts: so is what this rejects."""
    a, b = operands((9, 9, 30), dtype)
    a.imag *= 1e-6
    b.imag *= 1e-6
    bound, exact = bound_and_exact(a, b)
    p, q, r = a.real @ b.real, a.imag @ b.imag, (a.real + a.imag) @ (b.real + b.imag)
    assert not (np.abs(np.stack([p - q, r - p - q]) - exact) <= bound).all()


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("part", [complex(np.nan, 0), complex(0, np.nan), complex(np.inf, 0), complex(1, -np.inf)])
def test_nan_and_infinity_of_complex_numbers(dtype: str, part: complex) -> None:
    """Where the plain formula has them, in every corner of an edge tile; nowhere else."""
    for row, column in [(0, 0), (13, 6), (24, 44)]:
        a, b = operands((25, 67, 45), dtype)
        a[row, column] = part
        b[column, :3] = 0
        with np.errstate(invalid="ignore"):
            terms = np.stack([a.real[row, :, None] * b.real, -a.imag[row, :, None] * b.imag])
            cross = np.stack([a.real[row, :, None] * b.imag, a.imag[row, :, None] * b.real])
            expected = np.stack([terms.sum((0, 1)), cross.sum((0, 1))])
        c = by_rung(a, b)
        found = np.stack([c.real, c.imag])
        for same in (np.isnan, np.isposinf, np.isneginf):
            assert np.array_equal(same(found[:, row]), same(expected))
        assert np.isfinite(np.delete(found, row, axis=1)).all(), "it stays in its row"


@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_c_of_any_strides(dtype: str) -> None:
    a, b = operands((35, 53, 400), dtype)
    expected = by_rung(a, b)
    for c in (
        np.full((70, 106), 7.5, dtype)[::2, ::2],
        np.full((35, 53), 7.5, dtype)[::-1, ::-1],
        np.full((53, 35), 7.5, dtype).T,
    ):
        by_rung(a, b, 2, c)
        error = np.abs(c - expected)
        assert error.max() < 1e-4, "a column-major C is another product, rounded otherwise"


# ---- float16, bfloat16 -----------------------------------------------------------------------------------------------


@every_layout
def test_float16_is_float32_rounded_once(lay: Layout) -> None:
    for shape in SHAPES:
        a, b = operands(shape, "float16")
        wide = a.astype(np.float64) @ b.astype(np.float64)
        magnitude = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
        c = tw.matmul(lay(a), lay(b))
        assert c.dtype == np.float16
        k = max(1, shape[2])
        bound = 1.01 * k * 2.0**-24 * magnitude * (1 + 2.0**-11) + 2.0**-11 * np.abs(wide) + 2.0**-25
        assert (np.abs(c - wide) <= bound).all(), shape


def test_float16_overflows_to_infinity_as_numpys() -> None:
    a = np.array([[200, 200], [-200, -200], [1, 0]], np.float16)
    b = np.array([[200, 65504], [200, 0]], np.float16)
    with np.errstate(over="ignore"):
        assert np.array_equal(tw.matmul(a, b), [[np.inf, np.inf], [-np.inf, -np.inf], [200, 65504]])
    # What overflows on the way and comes back does not in float32.
    assert tw.matmul(np.array([[200, -200]], np.float16), np.array([[400], [400]], np.float16)) == 0


# ---- NaN, infinity and denormals, of every kernel that a plan can take ------------------------------------------------

PLANNED = [
    (kernel, dtype)
    for kernel in catalog().values()
    for dtype in kernel.dtypes
    if kernel.suits is not None and dtype not in INTEGERS
]
every_planned = pytest.mark.parametrize(("kernel", "dtype"), PLANNED, ids=lambda x: getattr(x, "name", x))
Multiply = Callable[[np.ndarray, np.ndarray], np.ndarray]


def by(kernel: Kernel, dtype: str, threads: int = 1) -> Multiply:
    run = runner(kernel, np.ones(0, dtype).dtype, threads=threads)

    def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        c = np.full((a.shape[0], b.shape[1]), 77, a.dtype)
        run(a, b, c)
        return c

    return multiply


def reals(x: np.ndarray) -> np.ndarray:
    """As float64, real and imaginary parts side by side: what a position is, and where a special value has its place."""
    return x.view(x.real.dtype).astype(float) if x.dtype.kind == "c" else x.astype(float)


def formula(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``reals`` of the product: of complex numbers [x y]·[[u v], [−v u]], summed by plain loops."""
    wide = reals(b)
    if b.dtype.kind == "c":
        turned = np.stack([-b.imag, b.real], -1).reshape(wide.shape)
        wide = np.stack([wide, turned], 1).reshape(2 * b.shape[0], -1)
    with np.errstate(invalid="ignore"):
        return np.einsum("ip,pj->ij", reals(a), wide)


def small_numbers(shape: tuple[int, int], dtype: str) -> np.ndarray:
    """−2 to 2, of which a fifth are zeros; in both parts of complex numbers."""
    kind, rng = np.ones(0, dtype).dtype, np.random.default_rng(shape)
    x = rng.integers(-2, 3, (*shape, 1 + (kind.kind == "c"))).astype(kind.type(0).real.dtype)
    return x.view(kind)[..., 0]


def edges(kernel: Kernel, dtype: str) -> list[tuple[int, int, int]]:
    """Tiles that are cut off; whole ones and those of one row or one vector less; many steps of k."""
    mr, lanes = kernel.params.get("mr", 4), kernel.params["vector_bits"] // 8 // np.ones(0, dtype).itemsize
    nr = kernel.params.get("nv", 2) * lanes
    return [(mr + 1, nr + 3, 2), (4 * mr - 1, 2 * nr - 3, 2), (3, 5, 2100)]


def check_specials(multiply: Multiply, dtype: str, shape: tuple[int, int, int]) -> None:
    """In every position of A and of B in turn, or every 70th; in many at once; in operands of either order."""
    m, n, k = shape
    a, b = small_numbers((m, k), dtype), small_numbers((k, n), dtype)
    step = 1 if k < 100 else 70
    for special, order, side in itertools.product((np.nan, -np.inf), "CF", (0, 1)):
        for at in range(0, reals((a, b)[side]).size, step):
            pair = [a.copy(), b.copy()]
            pair[side].view(a.real.dtype).reshape(-1)[at] = special
            x, y = (np.array(operand, order=order) for operand in pair)
            np.testing.assert_array_equal(reals(multiply(x, y)), formula(*pair), f"{special} at {at} of {'ab'[side]}")
    rng = np.random.default_rng(0)
    for _ in range(5):
        pair = [a.copy(), b.copy()]
        for operand in pair:
            flat = operand.view(a.real.dtype).reshape(-1)
            flat[rng.integers(0, flat.size, 3)] = np.inf, -np.inf, np.nan
        np.testing.assert_array_equal(reals(multiply(*pair)), formula(*pair))


def check_denormals(multiply: Multiply, dtype: str, shape: tuple[int, int, int]) -> None:
    """Denormal operands, on either side, and denormal products of others: sums of few bits, so exact."""
    m, n, k = shape
    a, b = small_numbers((m, min(k, 20)), dtype), small_numbers((min(k, 20), n), dtype)
    least = float(ml_dtypes.finfo(a.dtype).smallest_subnormal)
    root = 2.0 ** (np.log2(least) // 2)
    for of_a, of_b in ((least, 1.0), (1.0, least), (root, least / root)):
        x, y = a * a.real.dtype.type(of_a), b * b.real.dtype.type(of_b)
        assert x.dtype == y.dtype == a.dtype
        want = formula(a, b) * least
        assert want.any()
        np.testing.assert_array_equal(reals(multiply(x, y)), want)


@pytest.mark.slow_cases("cpu/deep", "cpu/outer", "complex64", "cpu/packed", "cpu/vector", "float16")
@pytest.mark.each_value
@every_planned
def test_specials_stand_where_the_formula_has_them_and_nowhere_else(kernel: Kernel, dtype: str) -> None:
    for shape in edges(kernel, dtype):
        check_specials(by(kernel, dtype), dtype, shape)


@pytest.mark.slow_cases("cpu/deep", "cpu/vector")
@every_planned
@pytest.mark.parametrize("threads", [1, 3])
def test_denormals_are_numbers(kernel: Kernel, dtype: str, threads: int) -> None:
    for shape in edges(kernel, dtype):
        check_denormals(by(kernel, dtype, threads), dtype, shape)


def without_zeros(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Wrong: what a zero multiplies is left out."""
    terms = a[:, :, None] * b[None]
    return np.where((a[:, :, None] == 0) | (b[None] == 0), 0, terms).sum(1)


def leaking(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Wrong: what stands in a row of A or a column of B reaches its neighbour, times the zero of a padding."""
    c = a @ b
    c[:, 1:] += 0 * c[:, :-1]
    return c


def flushing(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Wrong: as a processor whose denormals were switched off."""
    c = a @ b
    return np.where(np.abs(c) < np.finfo(c.dtype).tiny, 0, c)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_these_checks_can_fail() -> None:
    shape = (7, 19, 3)
    check_specials(np.matmul, "float32", shape)
    check_denormals(np.matmul, "float32", shape)
    for wrong in (without_zeros, leaking):
        with pytest.raises(AssertionError):
            check_specials(wrong, "float32", shape)
    with pytest.raises(AssertionError):
        check_denormals(flushing, "float32", shape)


# ---- conversion, by which narrow dtypes are computed wide ------------------------------------------------------------


@pytest.fixture(scope="module", params=[128, 256, 512])
def convert(request: pytest.FixtureRequest) -> Callable[..., None]:
    row = codegen.row_converter(request.param)

    @nb.njit
    def run(x, y):
        for r in range(x.shape[0]):
            row(codegen.address(x, r, 0), x.strides[1], codegen.address(y, r, 0), y.strides[1], x.shape[1])

    return run


#: As compiled code sees them.
STORED = {np.dtype(np.float16): np.uint16, np.dtype(ml_dtypes.bfloat16): np.int16}


def steps_of(x: np.ndarray) -> list[np.ndarray]:
    return [x.copy(), np.repeat(x, 3, 1)[:, ::3], x[:, ::-1].copy()[:, ::-1]]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_every_half_float_is_widened_exactly(convert: Callable[..., None], dtype: np.dtype) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(16, -1)[:, :-3]
    for x in steps_of(bits):
        for y in steps_of(np.full(x.shape, 7, np.float32)):
            convert(x.view(STORED[dtype]), y)
            assert np.array_equal(y, bits.view(dtype).astype(np.float32), equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_float32_is_rounded_as_others_round(convert: Callable[..., None], dtype: np.dtype) -> None:
    """All patterns around ties, both signs, subnormals, overflow, infinities; a NaN stays one."""
    rng = np.random.default_rng(0)
    near = np.concatenate(
        [np.arange(1 << 16, dtype=np.uint32) << 16, np.arange(0x33000000, 0x48000000, 0x800, np.uint32)]
    )
    bits = near[:, None] + np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFF, 0x1000, 0x1001], np.uint32)
    values = np.concatenate([bits, rng.integers(0, 1 << 32, (1000, 8), np.uint32)]).view(np.float32)
    for y in steps_of(np.zeros(values.shape, dtype)):
        convert(values, y.view(STORED[dtype]))
        with np.errstate(over="ignore", invalid="ignore"):
            expected = values.astype(dtype)
        assert np.array_equal(np.isnan(y), np.isnan(values))
        number = ~np.isnan(values)
        assert np.array_equal(y[number].view(np.uint16), expected[number].view(np.uint16))


PAIRS = [("int8", "int16"), ("int16", "int8"), ("uint16", "uint8"), ("int32", "int8")]


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_integers_are_widened_and_cut_off(convert: Callable[..., None], source: str, target: str) -> None:
    x = numbers((5, 203), source)
    for like_x, y in itertools.product(steps_of(x), steps_of(np.zeros(x.shape, target))):
        convert(like_x, y)
        assert np.array_equal(y, x.astype(target))


@pytest.mark.parametrize("bits", [128, 256, 512])
@pytest.mark.parametrize("dtype", COMPLEX)
def test_rows_times_i(dtype: str, bits: int) -> None:
    times_i = codegen.row_times_i(bits)

    @nb.njit
    def run(x, y):
        times_i(codegen.offset(x, 0), codegen.offset(y, 0), x.size)

    z = numbers((1, 64), dtype)[0]
    z[3], z[8] = complex(np.nan, np.inf), complex(-0.0, 0.0)
    y = np.zeros_like(z)
    run(z.view(z.real.dtype), y.view(z.real.dtype))
    assert np.array_equal(y.real, -z.imag, equal_nan=True)
    assert np.array_equal(y.imag, z.real, equal_nan=True)
    assert np.array_equal(np.signbit(y.real), ~np.signbit(z.imag))


# ---- the oracles that the bench verifies them by ---------------------------------------------------------------------


@pytest.mark.slow_cases("int64")
@pytest.mark.parametrize("dtype", [*INTEGERS, *COMPLEX, "float16", "bfloat16"])
def test_oracles_accept_what_is_right_and_nothing_else(dtype: str) -> None:
    a, b = operands((40, 70, 50), dtype)
    if dtype == "bfloat16":
        c = (a.astype(np.float32) @ b.astype(np.float32)).astype(a.dtype)
    else:
        c = by_rung(a, b) if dtype != "float16" else tw.matmul(a, b)
    judge = oracle(a, b)
    check = judge.check(c)
    assert check.ok, check.reason
    assert check.error_over_bound < 1
    wrong = c.copy()
    wrong[39, 69] += wrong.dtype.type(1)
    assert not judge.check(wrong).ok
    assert not judge.check(c[:, :69]).ok
    swapped = c.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    assert not judge.check(swapped).ok
    rms = judge.rms_error(c)
    assert (rms is None) == (np.dtype(dtype).kind in "iu")


@pytest.mark.parametrize("dtype", COMPLEX)
def test_the_complex_oracle_looks_at_imaginary_parts(dtype: str) -> None:
    a, b = operands((40, 70, 50), dtype)
    assert not oracle(a, b).check(np.conj(by_rung(a, b))).ok
    assert not oracle(a, b).check(by_rung(a, b).real.astype(dtype)).ok


@pytest.mark.slow_cases("int64")
@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_integer_oracle_finds_the_highest_bit_and_names_the_place(dtype: str) -> None:
    """An error of half the range is lost by a column of X with an even number there; 32 columns do not all have one."""
    a, b = operands((30, 20, 10), dtype)
    c = a @ b
    place = c[17, 5].copy()
    c[17, 5] ^= c.dtype.type(np.iinfo(dtype).min if c.dtype.kind == "i" else 1 << (8 * c.itemsize - 1))
    check = oracle(a, b).check(c)
    assert not check.ok
    assert check.reason == f"C[17, 5] is {c[17, 5]}, A·B there is {place}"


# ---- results of another dtype


@pytest.mark.slow_cases("bool")
@pytest.mark.parametrize(("dtype", "asked"), [
    ("int8", "int32"), ("int8", np.float64), ("float32", np.float16), ("float64", "float32"), ("bool", "int64"),
    ("complex64", "complex128"),
])  # fmt: skip
def test_out_dtype_holds_the_product_before_it_is_rounded(dtype: str, asked: Any) -> None:
    a, b = np.full((3, 300), 10).astype(dtype), np.full((300, 4), 11).astype(dtype)
    wide = np.result_type(dtype, asked)
    expected = (a.astype(wide) @ b.astype(wide)).astype(asked)
    c = tw.matmul(a, b, out_dtype=asked)
    assert c.dtype == np.dtype(asked)
    np.testing.assert_array_equal(c, expected)
    out = np.zeros((3, 4), np.complex128)
    assert tw.matmul(a, b, out, out_dtype=asked) is out
    np.testing.assert_array_equal(out, expected)
    assert tw.plan(a, b, out_dtype=asked).problem.dtype == wide.name


@pytest.mark.parametrize(
    ("asked", "words"), [("int8", "does not cast"), ("nothing", "is not a dtype"), ("U3", "convert")]
)
def test_out_dtypes_that_are_refused(asked: str, words: str) -> None:
    for call in (tw.matmul, tw.plan):
        with pytest.raises(DTypeError, match=words):
            call(np.ones((2, 2)), np.ones((2, 2)), out_dtype=asked)
