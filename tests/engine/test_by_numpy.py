"""What is left to NumPy: long double, Python objects, and everything where nothing may be compiled."""

from __future__ import annotations

import decimal
import inspect
import itertools
import os
import subprocess
import sys
import textwrap
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.cpu import plan as host
from tilewright.errors import DTypeError, ReadOnlyError, ShapeError, UsageError, how_to_install
from tilewright.product.operands import DTYPES, NUMPY_ONLY_DTYPES

#: A third of a unit in the last place of a double is lost on the way through one.
FINE = np.longdouble(1) / 3

SHAPES = [
    *(((4,), (4,)), ((0,), (0,)), ((3, 4), (4,)), ((4,), (4, 5)), ((3, 4), (4, 5)), ((0, 4), (4, 5)), ((3, 0), (0, 5))),
    *(((7, 3, 4), (4, 5)), ((7, 3, 4), (4,)), ((4,), (7, 4, 5)), ((2, 1, 3, 4), (7, 4, 5)), ((0, 3, 4), (1, 4, 5))),
]


def values(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    numbers = np.random.default_rng(seed).integers(-9, 10, shape)
    if dtype == "object":
        array = np.empty(shape, object)
        array[...] = np.vectorize(lambda x: Fraction(int(x), 7), otypes=[object])(numbers) if numbers.size else None
        return array
    return (numbers * FINE * (1 + 1j if np.dtype(dtype).kind == "c" else 1)).astype(dtype)


def assert_same(got: Any, want: Any) -> None:
    """To the bit, the dtype and the type."""
    assert type(got) is type(want)
    if isinstance(want, np.ndarray):
        assert (got.dtype, got.dtype.num, got.shape) == (want.dtype, want.dtype.num, want.shape)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", NUMPY_ONLY_DTYPES)
@pytest.mark.parametrize(("left", "right"), SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_every_shape(left: tuple[int, ...], right: tuple[int, ...], dtype: str) -> None:
    a, b = values(left, dtype, 1), values(right, dtype, 2)
    want = np.matmul(a, b)
    assert_same(tw.matmul(a, b), want)
    assert_same(tw.matmul(a, b, precision="highest"), want)
    out = np.asarray(np.full(np.shape(want), 7, dtype))[..., ::-1] if np.ndim(want) else np.array(7, dtype)
    assert tw.matmul(a, b, out) is out
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("dtype", NUMPY_ONLY_DTYPES)
@pytest.mark.parametrize("other", [*DTYPES, ">f8", *NUMPY_ONLY_DTYPES])
def test_every_other_dtype_beside_it(dtype: str, other: str) -> None:
    a, b = np.arange(12).reshape(3, 4).astype(dtype), np.arange(8).reshape(4, 2).astype(other)
    assert_same(tw.matmul(a, b), np.matmul(a, b))
    assert_same(tw.matmul(b.T, a.T), np.matmul(b.T, a.T))


def test_long_doubles_of_any_layout() -> None:
    a, b = values((6, 9), "longdouble", 1), values((9, 5), "longdouble", 2)
    want = np.matmul(a, b)
    packed = np.zeros(a.shape, [("flag", "u1"), ("value", np.longdouble)])
    packed["value"] = a
    read_only = a.copy()
    read_only.flags.writeable = False
    for arranged in (packed["value"], a.astype(a.dtype.newbyteorder()), np.asfortranarray(a), read_only, a.tolist()):
        np.testing.assert_array_equal(tw.matmul(arranged, b), np.matmul(arranged, b))
    memory = values((9, 9), "longdouble", 3)
    before = memory.copy()
    assert tw.matmul(memory, memory, memory) is memory
    np.testing.assert_array_equal(memory, np.matmul(before, before))
    assert want.dtype == np.longdouble
    narrow = np.empty((6, 5), np.float32)
    np.testing.assert_array_equal(tw.matmul(a, b, narrow), want.astype(np.float32))


def test_nan_and_infinity_without_a_warning() -> None:
    a = np.array([[np.nan, 1], [np.inf, 1]], np.longdouble)
    b = np.array([[0, 1], [1, 1]], np.longdouble)
    np.testing.assert_array_equal(tw.matmul(a, b), [[np.nan, np.nan], [np.nan, np.inf]])


# ---- Python objects --------------------------------------------------------------------------------------------------


def test_objects_multiply_by_their_own_rules() -> None:
    assert tw.matmul([[2**70]], [[3**50]])[0, 0] == 2**70 * 3**50
    assert tw.matmul([2**70, 1], [1, 2]) == 2**70 + 2
    assert type(tw.matmul([2**70, 1], [1, 2])) is int
    assert tw.matmul(np.array([Fraction(1, 3)] * 3), [1, 1, 1]) == Fraction(1)
    with pytest.raises(TypeError, match="unsupported operand type"):  # the objects' own words, as NumPy raises them
        tw.matmul(np.array([None, None]), np.eye(2))
    counts = np.eye(2, dtype=object)
    assert tw.matmul(np.eye(2), np.eye(2), counts) is counts
    assert type(counts[0, 0]) is float


@pytest.mark.slow
def test_objects_are_multiplied_on_the_calling_thread() -> None:
    """Their arithmetic may depend on it, as that of decimals does."""
    threads = set()

    class Counted:
        def __mul__(self, other: Any) -> int:
            threads.add(threading.current_thread())
            return 1

    a = np.full((64, 30, 30), Counted())
    with tw.use_threads(4):
        assert (tw.matmul(a, a) == 30).all()
        with decimal.localcontext() as context:
            context.prec = 3
            third = np.full((40, 1, 1), decimal.Decimal(1) / decimal.Decimal(3))
            assert set(tw.matmul(third, third).flat) == {decimal.Decimal("0.111")}
    assert threads == {threading.current_thread()}


def test_an_error_of_an_object_leaves_as_it_is() -> None:
    class Broken:
        def __mul__(self, other: Any) -> int:
            raise ZeroDivisionError("by its own fault")

    with pytest.raises(ZeroDivisionError, match="by its own fault"):
        tw.matmul(np.full((2, 2), Broken()), np.eye(2))


def test_gemm_of_them() -> None:
    for dtype in NUMPY_ONLY_DTYPES:
        a, b, c = values((3, 4), dtype, 1), values((4, 2), dtype, 2), values((3, 2), dtype, 3)
        for alpha, beta in itertools.product((0, 1, 2), repeat=2):
            got = c.copy()
            assert tw.gemm(alpha, a, b, beta, got) is got
            np.testing.assert_array_equal(got, alpha * np.matmul(a, b) + beta * c)
    bad = np.full((2, 2), np.nan, np.longdouble)
    np.testing.assert_array_equal(tw.gemm(1, np.eye(2), np.eye(2, dtype="longdouble"), 0, bad), np.eye(2))


def test_a_factor_is_as_fine_as_the_product() -> None:
    one = np.ones((1, 1), np.longdouble)
    assert tw.gemm(FINE, one, one, 0, one.copy())[0, 0] == FINE
    assert tw.gemm(0, one, one, FINE, one.copy())[0, 0] == FINE
    assert tw.gemm(FINE, one, one, 0, np.ones((1, 1)))[0, 0] == float(FINE)


@pytest.mark.parametrize("dtype", NUMPY_ONLY_DTYPES)
def test_the_plan_says_so(dtype: str) -> None:
    a = values((3, 4), dtype, 1)
    assert f"because    no kernel multiplies {dtype}" in str(tw.plan(a, a.T))
    with pytest.raises(DTypeError, match=f"^dtype {dtype}: on a GPU it must be float32 or float64$"):
        tw.matmul(a, a.T, device="cuda")
    with pytest.raises(UsageError, match="precision"):
        tw.matmul(a, a.T, precision="high")


# ---- how NumPy is called ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*DTYPES, *NUMPY_ONLY_DTYPES])
def test_out_may_be_given_by_position(dtype: str) -> None:
    a = np.arange(12).reshape(3, 4).astype(dtype)
    out = np.zeros((3, 3), dtype)
    assert tw.matmul(a, a.T, out) is out
    np.testing.assert_array_equal(out, np.matmul(a, a.T))
    assert inspect.signature(tw.matmul).parameters["out"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    with pytest.raises(TypeError):
        tw.matmul(a, a.T, out, "standard")


SCALARS = [*DTYPES, *NUMPY_ONLY_DTYPES[:2], "longlong", "ulonglong", "long", "ulong", "intc", "uintc", ">f8", ">i8"]


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True])
def test_two_vectors_give_a_scalar_of_numpys_type(reverse: bool) -> None:
    """Whatever was multiplied before: int64 is both long and long long, whose scalars have types of their own."""
    host.plan_alone.cache_clear()
    pairs = list(itertools.product(SCALARS, repeat=2))
    for left, right in pairs[::-1] if reverse else pairs:
        a, b = np.arange(3).astype(left), np.arange(3).astype(right)
        got, want = tw.matmul(a, b), np.matmul(a, b)
        assert type(got) is type(want), (left, right)
        assert got == want
        assert tw.matmul(a[None], b[:, None]).dtype.num == np.matmul(a[None], b[:, None]).dtype.num, (left, right)


def test_what_numpy_refuses_is_refused_by_the_same_built_in_error() -> None:
    square = np.eye(2)
    read_only = square.copy()
    read_only.flags.writeable = False
    cases: list[tuple[tuple[Any, ...], type[Exception]]] = [
        ((3, square), ShapeError),
        ((square, np.float32(3)), ShapeError),
        ((square, np.eye(3)), ShapeError),
        ((np.ones((2, 2, 2)), np.ones((3, 2, 2))), ShapeError),
        ((square, square, np.ones((3, 3))), ShapeError),
        ((square, square, np.ones((2, 2), int)), DTypeError),
        ((square, square, [[1.0]]), TypeError),
        ((square, square, read_only), ReadOnlyError),
        (("ab", square), TypeError),
        ((np.zeros((2, 2), "M8[s]"), square), TypeError),
        ((np.zeros((2, 2), "m8[s]"), square), TypeError),
        ((np.zeros((2, 2), [("x", "f4")]), square), TypeError),
    ]
    for arguments, error in cases:
        with pytest.raises(error) as ours:
            tw.matmul(*arguments)
        with pytest.raises((TypeError, ValueError)) as theirs:
            np.matmul(*arguments)
        built_in = next(kind for kind in (TypeError, ValueError) if isinstance(theirs.value, kind))
        assert isinstance(ours.value, built_in), arguments


# ---- where nothing may be compiled -----------------------------------------------------------------------------------


def uncompiled(script: str, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *(["-c", textwrap.dedent(script)] if script else ["-m", "tilewright"]), *arguments]
    environment = os.environ | {"TILEWRIGHT_COMPILE": "1", "NUMBA_DISABLE_JIT": "1"}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == code, answer.stderr
    return answer


PRODUCTS = """
    import numpy as np, tilewright as tw
    for dtype in ("float16", "float32", "float64", "complex64", "int8", "uint64", "bool", "longdouble", "object"):
        for size in (3, 200):
            a = np.random.default_rng(0).integers(-3, 4, (2, size, 5)).astype(dtype)
            b, out = a[0].T.copy(), np.zeros((2, size, size), dtype)
            want = np.matmul(a, b)
            assert np.array_equal(tw.matmul(a, b), want), dtype
            assert tw.matmul(a, b, out) is out and np.array_equal(out, want)
            tw.gemm(1, a[0], b, 1, out[0])
            assert np.array_equal(out[0], want[0] + want[0]), dtype
            tw.gemm(1, a[0], b, 0, out[0])
            assert np.array_equal(out[0], want[0]), dtype
    for options in ({}, {"precision": "highest"}, {"algorithm": "strassen"}):
        assert tw.matmul(np.eye(2, dtype="f4"), np.eye(2, dtype="f4"), **options).dtype == "f4"
    print(tw.plan((300, 300), (300, 300)))
"""


@pytest.mark.slow
def test_products_are_numpys_and_the_plan_says_so() -> None:
    said = uncompiled(PRODUCTS).stdout
    assert "  kernel     numpy: NumPy's own matmul.\n" in said
    assert "  because    $TILEWRIGHT_COMPILE is set, and $NUMBA_DISABLE_JIT is set\n" in said


NEED = f"$NUMBA_DISABLE_JIT is set: {how_to_install('lab')}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "what"),
    [
        (["bench", "ikj", "--sizes", "16"], ""),
        (["explain", "cpu/naive"], "cpu/naive "),
        (["info", "--measure"], "what measures this machine's peaks "),
        (["multiply", "a.npy", "a.npy", "-o", "c.npy", "--device", "cpu"], "what multiplies and moves blocks "),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_cannot_work_says_so_in_one_line(
    command: list[str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))  # where no peak is known
    np.save("a.npy", np.eye(3))
    answer = uncompiled("", *command, code=3)
    assert answer.stderr.startswith(f"error: {what}")
    assert answer.stderr.endswith(f"{NEED}\n")
    assert answer.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) in (["a.npy"], ["a.npy", "cache"]), "nothing was begun"


@pytest.mark.slow
def test_info_says_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    said = " ".join(uncompiled("", "info").stdout.split())
    assert "processor" in said
    assert f"what measures this machine's peaks must be compiled, and $TILEWRIGHT_COMPILE is set, and {NEED}" in said


@pytest.mark.slow
def test_numba_left_to_itself_later_is_noticed() -> None:
    """Functions that were decorated while it was forbidden to compile stay Python."""
    script = """
        import numba
        import tilewright.kernels, numpy as np, tilewright as tw
        tw.matmul(np.eye(2), np.eye(2))
        numba.config.DISABLE_JIT = 0
        assert tw.matmul(np.eye(2, dtype="f4"), np.eye(2)).sum() == 2
        print(tw.plan((3, 3), (3, 3)).kernel.name)
    """
    assert uncompiled(script).stdout.strip() == "numpy"


# ---- a sub-interpreter -------------------------------------------------------------------------------------------------

SUB_INTERPRETER = """
import faulthandler, warnings
faulthandler.dump_traceback_later(60, exit=True)
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
interpreters.run_string(interpreters.create(), '''
import warnings
warnings.simplefilter("ignore")
try:
    import numpy as np
except ImportError as error:
    print("refused by NumPy")
else:
    import tilewright as tw
    a = np.ones((300, 300), np.float32)
    print((tw.matmul(a, a) == 300).all(), "this is a sub-interpreter" in str(tw.plan(a, a)))
''')
"""


def test_a_sub_interpreter_multiplies_by_numpy() -> None:
    """Machine code that takes the GIL belongs to the first interpreter: in another one it waited for ever."""
    command = [sys.executable, "-c", SUB_INTERPRETER]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert answer.stdout.strip() in ("True True", "refused by NumPy"), answer.stderr
