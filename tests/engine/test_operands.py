"""The door: what is let in as a matrix, what is refused and in which words, and storage on its boundary."""

from __future__ import annotations

import decimal
import itertools
import mmap
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from multiprocessing import shared_memory
from pathlib import Path, PurePosixPath
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from tilewright.errors import DTypeError, MemoryLimitError, OperandError, ReadOnlyError, ShapeError, UsageError
from tilewright.product.operands import (
    ALIGNMENT,
    DTYPES,
    NUMPY_ONLY_DTYPES,
    admit,
    admit_out,
    aligned_copy,
    aligned_empty,
    as_row_major,
    native,
    promoted,
    rows_of_batch,
    writeable_alias,
)

SQUARE = np.arange(9.0).reshape(3, 3)


class SaysArray:
    """An object of another library: holds an array, or an error to raise instead."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class SaysDlpack(SaysArray):
    """The same through DLPack alone."""

    __array__ = property()  # type: ignore[assignment]

    def __dlpack__(self, **asked: Any) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer.__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class Sparse:
    """As scipy's: a shape and a dtype, but no array to be had."""

    shape, dtype = (3, 3), np.dtype("f8")


class Compressed(Sparse):
    """As those of scipy that can be converted."""

    shape = (1000, 1000)

    def toarray(self) -> np.ndarray:
        return np.zeros(self.shape)


class Columns(SaysArray):
    """As a data frame with a column of text or of a nullable dtype."""

    def __init__(self) -> None:
        super().__init__(np.array([[1, "x", 2]] * 3, object))

    def to_numpy(self, dtype: str) -> np.ndarray:
        return SQUARE.astype(dtype)


# ---- let in ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (SQUARE, SQUARE),
        ([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]])),
        (((1.5, 2), (3, 4)), np.array([[1.5, 2], [3, 4]])),
        ([], np.empty(0)),
        (memoryview(SQUARE), SQUARE),
        (bytearray(b"\1\2"), np.array([1, 2], "u1")),
        (SaysArray(SQUARE), SQUARE),
        (SaysDlpack(SQUARE), SQUARE),
        (SQUARE.view(np.recarray), SQUARE),
        (SQUARE.astype(">f4"), SQUARE.astype("f4")),
        (np.float32(3), np.float32(3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_numpy_can_read_is_a_matrix(value: Any, expected: np.ndarray) -> None:
    array = admit(value, "a")
    assert type(array) is np.ndarray
    assert array.dtype == expected.dtype or array.dtype == ">f4"
    np.testing.assert_array_equal(array, expected)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_subclasses_count_as_plain_arrays() -> None:
    class Own(np.ndarray):
        def __matmul__(self, other: Any) -> Any:
            raise AssertionError("a subclass has no say in the product")

    for value in (np.matrix(SQUARE), SQUARE.view(Own)):
        assert type(admit(value, "a")) is np.ndarray
        assert type(tw.matmul(value, value)) is np.ndarray


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_are_not_copied(dtype: str) -> None:
    array = np.zeros((4, 3), dtype)[::-2, 1:]
    assert np.shares_memory(admit(array, "a"), array)
    assert admit(array, "a").strides == array.strides


def test_arrays_of_broadcast_arrays_are_read_without_their_warning() -> None:
    row, _ = np.broadcast_arrays(np.ones((1, 3)), SQUARE)
    np.testing.assert_array_equal(tw.matmul(row, SQUARE), np.matmul(row, SQUARE))


class OfAnotherLibrary(SaysDlpack):
    """An array of a library with DLPack and the array API; the library is the class."""

    def __array_namespace__(self, **_: Any) -> Any:
        return type(self)

    @classmethod
    def from_dlpack(cls, x: Any) -> Any:
        return cls(np.from_dlpack(x))


def test_the_product_of_another_librarys_arrays_is_one() -> None:
    a, b = OfAnotherLibrary(SQUARE), OfAnotherLibrary(SQUARE[:, :2])
    expected = SQUARE @ SQUARE[:, :2]
    for c in (tw.matmul(a, b), tw.matmul(a, SQUARE[:, :2]), tw.matmul(SQUARE, b)):
        assert isinstance(c, OfAnotherLibrary)
        np.testing.assert_array_equal(c.answer, expected)
    scaled = tw.matmul(a, b, alpha=2, out_dtype="float32")
    assert isinstance(scaled, OfAnotherLibrary)
    assert scaled.answer.dtype == np.float32
    np.testing.assert_array_equal(scaled.answer, 2 * expected)
    vector = tw.matmul(OfAnotherLibrary(SQUARE[0]), OfAnotherLibrary(SQUARE[0]))
    assert isinstance(vector, OfAnotherLibrary)
    assert vector.answer.shape == ()
    out = np.empty((3, 2))
    assert tw.matmul(a, b, out) is out
    assert type(tw.matmul(SaysDlpack(SQUARE), SQUARE)) is np.ndarray, "it cannot be asked to make an array"
    assert tw.plan(a, b).problem == tw.plan(SQUARE, SQUARE[:, :2]).problem
    assert tw.verify(a, b, tw.matmul(a, b, verify=True)).ok


# ---- refused ---------------------------------------------------------------------------------------------------------

A_FILE = "a is a {}, not an array: only tilewright.multiply reads files"
CANNOT = "which cannot be multiplied"
OBJECTS = "a must be numeric: {} gives an array of Python objects; pass its numbers, as by numpy.array(list(a))"
CONVERT = "convert it to bool, integers, float16, float32, float64, complex64 or complex128"
UNITS = "pass a.astype('int64'), which counts its units"
TEXT = "if it is of numbers, pass numpy.array(a, 'float64')"


def released() -> memoryview:
    view = memoryview(bytearray(8))
    view.release()
    return view


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: None, OperandError, "a is None, not an array"),
        (Sparse, OperandError, OBJECTS.format("Sparse")),
        (lambda: {1, 2}, OperandError, OBJECTS.format("set")),
        (lambda: {1: 2}, OperandError, OBJECTS.format("dict")),
        (lambda: (i for i in range(3)), OperandError, OBJECTS.format("generator")),
        (
            lambda: Columns(),
            OperandError,
            "a is a Columns of text, dates, nullable or mixed dtypes, so of Python objects: "
            "pass a.to_numpy('float64') of its columns of numbers",
        ),
        (
            Compressed,
            OperandError,
            "a is sparse, a Compressed: no kernel skips zeros; pass a.toarray(), 8,000,000 bytes",
        ),
        (lambda: "a.npy", OperandError, A_FILE.format("str")),
        (lambda: PurePosixPath("a.npy"), OperandError, A_FILE.format("PurePosixPath")),
        (lambda: b"text", DTypeError, f"a is a bytes of dtype |S4, {CANNOT}: {TEXT}"),
        (lambda: np.array(["x"]), DTypeError, f"a is an array of dtype <U1, {CANNOT}: {TEXT}"),
        (lambda: np.zeros(2, "M8[s]"), DTypeError, f"a is an array of dtype datetime64[s], {CANNOT}: {UNITS}"),
        (lambda: np.zeros(2, "m8[s]"), DTypeError, f"a is an array of dtype timedelta64[s], {CANNOT}: {UNITS}"),
        (lambda: np.zeros(2, "V8"), DTypeError, f"a is an array of dtype |V8, {CANNOT}: {CONVERT}"),
        (
            lambda: np.zeros(2, [("x", "<f4")]),
            DTypeError,
            f"a is an array of dtype [('x', '<f4')], {CANNOT}: pass a field, such as a['x']",
        ),
        (
            lambda: np.ma.masked_array(SQUARE),
            OperandError,
            "a is a masked array: the product would ignore its mask; pass a.filled(...)",
        ),
        (
            released,
            OperandError,
            "a cannot be used as a matrix: memoryview says operation forbidden on released memoryview object",
        ),
        (
            lambda: SaysArray(ValueError("Not a dataset (not a dataset)")),
            OperandError,
            "a cannot be used as a matrix: SaysArray says Not a dataset (not a dataset)",
        ),
        (
            lambda: SaysArray(RuntimeError("this storage\n  was freed\n")),
            OperandError,
            "a cannot be used as a matrix: SaysArray says this storage was freed",
        ),
        (lambda: SaysArray(KeyError()), OperandError, "a cannot be used as a matrix: SaysArray says KeyError"),
        (
            lambda: SaysArray(3),
            OperandError,
            "a cannot be used as a matrix: SaysArray says object __array__ method not producing an array",
        ),
        (
            lambda: SaysDlpack(BufferError("the tensor is on device cuda:0")),
            OperandError,
            "a cannot be used as a matrix: SaysDlpack says the tensor is on device cuda:0",
        ),
    ],
)
def test_what_is_no_matrix_is_refused_by_name(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as refusal:
        admit(make(), "a")
    assert str(refusal.value) == message
    assert isinstance(refusal.value, TypeError)
    with pytest.raises(error, match=r"^b ") as refusal:
        tw.matmul(SQUARE, make())
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("value", [[[1, 2], [3]], [[[]], 1]])
def test_ragged_lists_are_refused_on_one_line(value: Any) -> None:
    with pytest.raises(OperandError, match=r"^a cannot be used as a matrix: list says .+$"):
        admit(value, "a")


@pytest.mark.parametrize("dtype", NUMPY_ONLY_DTYPES)
def test_what_only_numpy_multiplies_is_let_in_where_numpy_can_do_it(dtype: str) -> None:
    array = np.ones((3, 3), dtype)
    assert np.shares_memory(admit(array, "a", by_numpy=True), array)
    if dtype in DTYPES:
        return  # long double is double here
    with pytest.raises((DTypeError, OperandError), match=r"^a "):  # where blocks of files are copied, it cannot
        admit(array, "a")
    with pytest.raises((DTypeError, OperandError), match=r"^b "):
        tw.plan_multiply(SQUARE, array)


GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "matmul.md"


def mixes() -> list[tuple[str, str, str]]:
    """The table of the guide: a dtype, another one, that of their product."""
    lines = GUIDE.read_text(encoding="utf-8").splitlines()
    start = lines.index("| bfloat16 with | product |") + 2
    rows = [line.strip("| ").split(" | ") for line in itertools.takewhile(str.strip, lines[start:])]
    return [("bfloat16", name, dtype) for names, dtype in rows for name in names.split(", ")]


@pytest.mark.parametrize(("left", "right", "expected"), mixes())
def test_bfloat16_beside_every_dtype_as_the_guide_says(left: str, right: str, expected: str) -> None:
    """The dtype of NumPy: of result_type, or where that knows none, of matmul. The values are exact."""
    kinds = [np.dtype(getattr(ml_dtypes, name, None) or name) for name in (left, right)]
    a, b = (np.arange(9).reshape(3, 3).astype(kind) for kind in kinds)
    try:
        assert np.result_type(*kinds).name == expected
    except TypeError:
        assert np.matmul(a, b).dtype.name == expected
    exact = a.astype(complex) @ b.astype(complex)
    for x, y, right_value in ((a, b, exact), (b, a, b.astype(complex) @ a.astype(complex))):
        c = tw.matmul(x, y)
        assert c.dtype.name == tw.plan(x, y).dtype.name == expected
        np.testing.assert_array_equal(c.astype(complex), right_value)
        out = np.zeros((3, 3), c.dtype)
        np.testing.assert_array_equal(tw.gemm(1, x, y, 0, out), c)
        np.testing.assert_array_equal(tw.matmul(x, y, alpha=1.0, beta=1.0, out=np.zeros_like(out)), c)
        asked = expected if expected.startswith("complex") else "float64"
        assert tw.matmul(x, y, out_dtype=asked).dtype == asked


def test_the_guide_has_every_dtype_beside_bfloat16() -> None:
    assert {right for _, right, _ in mixes()} == {*DTYPES, "bfloat16"}


def test_dtypes_that_no_dtype_holds_are_refused() -> None:
    with pytest.raises(
        DTypeError, match=r"^a is datetime64\[s\], b is float32: no dtype holds both; convert one of them$"
    ):
        promoted(np.dtype("M8[s]"), np.dtype("f4"))


@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn", "int4"])
def test_dtypes_of_ml_dtypes_are_refused_by_name(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with pytest.raises(
        DTypeError, match=f"^a is an array of dtype {name}, which cannot be multiplied: pass a.astype\\('float32'\\)$"
    ):
        tw.matmul(SQUARE.astype(getattr(ml_dtypes, name)), SQUARE)


@pytest.mark.parametrize("value", [np.array(None), np.array(3, object), decimal.Decimal(3), Fraction(1, 3)], ids=repr)
def test_a_python_object_without_axes_is_a_scalar(value: Any) -> None:
    for by_numpy in (False, True):
        with pytest.raises(ShapeError, match=r"^a is a scalar: matmul needs at least one axis"):
            admit(value, "a", by_numpy=by_numpy)
    with pytest.raises(ShapeError, match=r"^b is a scalar"):
        tw.matmul(SQUARE, value)


def test_objects_that_cannot_be_multiplied_say_so() -> None:
    for value in ([[1, None, 3]], np.array([["x", 1, 2]], object)):
        with pytest.raises(OperandError, match=r"Python objects that cannot be multiplied.*astype\('float64'\)"):
            tw.matmul(value, SQUARE)


def test_arrays_of_an_epilogue_are_refused_by_name() -> None:
    for bias, words in (
        (Compressed(), r"pass bias\.toarray\(\)"),
        (Columns(), r"pass bias\.to_numpy"),
        (["x"] * 3, "list of dtype <U1"),
    ):
        with pytest.raises(TypeError, match=f"^bias .*{words}"):
            tw.matmul(SQUARE, SQUARE, bias=bias)
    with pytest.raises(OperandError, match=r"^scale_a is a masked array: .* pass scale_a\.filled"):
        tw.matmul(SQUARE, SQUARE, scale_a=np.ma.masked_array(SQUARE[0]))


@pytest.mark.slow_cases("{'out_dtype': 'float64'}", "16777216-float16-{'alpha': 2.0}")
@pytest.mark.parametrize(
    ("n", "dtype", "options"),
    [
        *(
            (n, dtype, {})
            for n in (1 << 24, 1 << 33)
            for dtype in ("float32", "int8", "float16", "complex128", "object")
        ),
        *((1 << 24, dtype, {"alpha": 2.0}) for dtype in ("float32", "float16")),
        *((1 << 24, dtype, {"out_dtype": "float64"}) for dtype in ("float32", "int8")),
    ],
    ids=str,
)
def test_a_product_that_no_memory_holds_says_its_size_and_the_step_that_works(
    n: int, dtype: str, options: dict[str, Any]
) -> None:
    """2⁴⁸ elements are more than an address space holds, and 2⁶⁶ more than NumPy counts."""
    column, row = (np.broadcast_to(np.ones(1, dtype), shape) for shape in ((n, 1), (1, n)))
    size = n * n * (8 if "out_dtype" in options else np.dtype(dtype).itemsize)
    words = rf"the product is \({n}, {n}\), of {size:,} bytes: .*tilewright\.multiply\(a, b, out='c\.npy'\)"
    with pytest.raises(MemoryLimitError, match=words):
        tw.matmul(column, row, **options)
    with pytest.raises(MemoryLimitError, match=r"^the product is \(2, .* bytes: ") as refusal:
        tw.matmul(np.broadcast_to(column, (2, n, 1)), np.broadcast_to(row, (2, 1, n)), **options)
    assert "multiply" not in str(refusal.value), "which takes matrices alone"


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), MemoryError()])
def test_what_is_not_the_operands_fault_passes_through(interruption: BaseException) -> None:
    with pytest.raises(type(interruption)):
        admit(SaysArray(interruption), "a")


# ---- memory that is gone ---------------------------------------------------------------------------------------------


def closed_map() -> np.ndarray:
    mapping = mmap.mmap(-1, 4096)
    array = np.ndarray((8, 8), buffer=mapping)
    mapping.close()
    return array[::2].T


def closed_shared_memory() -> np.ndarray:
    block = shared_memory.SharedMemory(create=True, size=4096)
    array = np.ndarray((8, 8), buffer=block.buf)
    block.close()
    block.unlink()
    return array


@pytest.mark.parametrize("make", [closed_map, closed_shared_memory])
def test_arrays_over_a_closed_map_are_refused_not_touched(make: Callable[[], np.ndarray]) -> None:
    dead = make()
    rows, columns = dead.shape
    left, right = np.ones((rows, 1)), np.ones((1, columns))
    calls: dict[str, Callable[[], Any]] = {
        "a": lambda: tw.matmul(dead, np.ones(columns)),
        "b": lambda: tw.matmul(np.ones(rows), dead),
        "out": lambda: tw.matmul(left, right, out=dead),
        "c": lambda: tw.gemm(1, left, right, 1, dead),
    }
    for name, call in calls.items():
        with pytest.raises(OperandError, match=f"^{name} lies in a memory map that was closed: map the file again$"):
            call()


def test_a_closed_memmap_is_refused_and_an_open_one_used(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "a.bin", "f8", "w+", shape=(3, 3))
    mapped[:] = SQUARE
    answer = tw.matmul(mapped, SQUARE)
    assert type(answer) is np.ndarray
    np.testing.assert_array_equal(answer, SQUARE @ SQUARE)
    assert tw.matmul(SQUARE, SQUARE, out=mapped) is mapped
    mapped._mmap.close()
    with pytest.raises(OperandError, match="closed"):
        tw.matmul(mapped, SQUARE)


@pytest.mark.skipif(not hasattr(mmap.mmap, "resize") or sys.platform != "linux", reason="only Linux moves a map")
def test_a_map_that_was_resized_is_refused() -> None:
    mapping = mmap.mmap(-1, 8 * mmap.PAGESIZE)
    array = np.ndarray((8 * mmap.PAGESIZE // 8,), buffer=mapping)
    assert admit(array, "a").size
    mapping.resize(mmap.PAGESIZE)
    with pytest.raises(OperandError, match="resized"):
        admit(array, "a")
    assert admit(array[:8], "a").size == 8 or pytest.fail("what is still mapped can be used")


# ---- out -------------------------------------------------------------------------------------------------------------


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        ([[0.0] * 3] * 3, OperandError, "out must be a numpy.ndarray, got list"),
        ((SQUARE,), OperandError, "out must be a numpy.ndarray, got tuple"),
        (np.float64(1), OperandError, "out must be a numpy.ndarray, got float64"),
        (np.ma.masked_array(SQUARE), OperandError, "out must be a numpy.ndarray, got MaskedArray"),
        (np.empty((3, 2)), ShapeError, "out is (3, 2), the product is (3, 3): out must have exactly this shape"),
        (np.empty((1, 3, 3)), ShapeError, "out is (1, 3, 3), the product is (3, 3): out must have exactly this shape"),
        (read_only(SQUARE), ReadOnlyError, "out is read-only: pass an array that can be written"),
        (np.broadcast_to(SQUARE[0], (3, 3)), ReadOnlyError, "out is read-only: pass an array that can be written"),
        (
            np.lib.stride_tricks.as_strided(np.zeros(3), (3, 3), (0, 8)),
            OperandError,
            "out has strides (0, 8): several of its elements share one place in memory; pass a copy",
        ),
        *(
            (
                np.empty((3, 3), dtype),
                DTypeError,
                f"out has dtype {np.dtype(dtype)}: the product is float64, which does not cast to it by the same_kind rule",
            )
            for dtype in ("i8", "?", "M8[s]", "U40", "V8")
        ),
    ],
)
def test_what_cannot_receive_the_product_is_refused(out: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as refusal:
        tw.matmul(SQUARE, SQUARE, out=out)
    assert str(refusal.value) == message
    with pytest.raises(error) as refusal:
        admit_out(out, (3, 3), np.dtype("f8"), "c")
    assert str(refusal.value) == message.replace("out ", "c ")


# ---- storage ---------------------------------------------------------------------------------------------------------


@given(
    st.one_of(st.integers(0, 300), st.lists(st.integers(0, 9), max_size=4).map(tuple)),
    st.sampled_from([*DTYPES, "longdouble", ">f8"]),
)
def test_storage_begins_on_its_boundary(shape: Any, dtype: str) -> None:
    array = aligned_empty(shape, dtype)
    assert array.shape == np.empty(shape).shape
    assert array.dtype == np.dtype(dtype)
    assert array.ctypes.data % ALIGNMENT == 0 or not array.size
    assert array.flags.c_contiguous
    assert array.flags.writeable
    array[...] = 1
    copy = aligned_copy(array.T, "complex128")
    np.testing.assert_array_equal(copy, np.ones(array.T.shape, "c16"))
    assert copy.flags.c_contiguous
    assert copy.ctypes.data % ALIGNMENT == 0 or not copy.size


@pytest.mark.parametrize(
    ("shape", "dtype", "error", "message"),
    [
        (-3, "f8", UsageError, "shape must be sizes from 0 that an address space holds, got (-3,)"),
        ((-3, -4), "f8", UsageError, "shape must be sizes from 0 that an address space holds, got (-3, -4)"),
        (
            (2**40, 2**40),
            "f8",
            UsageError,
            f"shape must be sizes from 0 that an address space holds, got {(2**40,) * 2}",
        ),
        (2.5, "f8", UsageError, "shape must be a size or a tuple of sizes, got float"),
        ("33", "f8", UsageError, "shape must be a size or a tuple of sizes, got str"),
        (None, "f8", UsageError, "shape must be a size or a tuple of sizes, got NoneType"),
        (3, object, DTypeError, "dtype must be of plain bytes, got object"),
        (3, "S0", DTypeError, "dtype must be of plain bytes, got |S0"),
    ],
)
def test_storage_that_cannot_be(shape: Any, dtype: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as refusal:
        aligned_empty(shape, dtype)
    assert str(refusal.value) == message


def test_conversions_copy_only_what_they_must() -> None:
    f8 = np.dtype("f8")
    assert native(SQUARE, f8) is SQUARE
    assert as_row_major(SQUARE) is SQUARE
    assert writeable_alias(SQUARE) is SQUARE
    unaligned = np.zeros(SQUARE.nbytes + 1, "u1")[1:].view("f8").reshape(3, 3)
    unaligned[:] = SQUARE
    for other in (SQUARE.astype(">f8"), SQUARE.astype("i4"), unaligned):
        converted = native(other, f8)
        assert converted.dtype.isnative
        assert converted.flags.aligned
        np.testing.assert_array_equal(converted, SQUARE)
    assert as_row_major(SQUARE.T).flags.c_contiguous


@pytest.mark.parametrize("view", [np.s_[:], np.s_[::-1, ::-2], np.s_[1:, :0], np.s_[None, 0]])
def test_an_alias_is_the_same_memory_without_the_mark(view: Any) -> None:
    source = read_only(SQUARE)[view]
    alias = writeable_alias(source)
    assert alias.flags.writeable
    assert (alias.shape, alias.dtype) == (source.shape, source.dtype)
    assert alias.ctypes.data == source.ctypes.data
    assert not source.flags.writeable
    del source
    np.testing.assert_array_equal(alias, SQUARE[view])


def test_the_door_needs_no_compiler() -> None:
    command = "import sys, tilewright.product.operands; sys.exit('numba' in sys.modules or 'llvmlite' in sys.modules)"
    subprocess.run([sys.executable, "-c", command], check=True)


@pytest.mark.parametrize(("strides", "shares"), [
    ((8, 8), True), ((4, 16), True), ((24, 0), True), ((-24, 8), True),
    ((16, 24), False), ((8, 24), False), ((-32, 8), False), ((16, 40), False),
])  # fmt: skip
def test_an_out_whose_elements_share_memory(strides: tuple[int, int], shares: bool) -> None:
    memory = np.zeros(40)[10:]
    out = np.lib.stride_tricks.as_strided(memory, (3, 4), strides)
    if shares:
        with pytest.raises(OperandError, match="share one place in memory"):
            tw.matmul(np.ones((3, 2)), np.ones((2, 4)), out)
    else:
        tw.matmul(np.ones((3, 2)), np.ones((2, 4)), out)
        assert (out == 2).all()


@pytest.mark.parametrize("options", [
    {"precision": [1e-3]}, {"precision": np.array(1e-3)}, {"precision": 10**400}, {"precision": None},
    {"algorithm": []}, {"device": 1}, {"device": ""},
], ids=str)  # fmt: skip
def test_words_of_a_wrong_type(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        tw.matmul(np.eye(2), np.eye(2), **options)


def test_shapes_of_a_plan_that_no_memory_holds() -> None:
    with pytest.raises(ShapeError, match="fewer than 2"):
        tw.plan((2**62, 2**62), (2**62, 2**62))
    with pytest.raises(UsageError, match="lists"):
        tw.plan([np.eye(2), np.eye(3)], [np.eye(2), np.eye(3)])


# ---- a batch as one product ------------------------------------------------------------------------------------------


def test_rows_of_a_batch_are_one_matrix_where_they_lie_equally_far_apart() -> None:
    a, b, c = np.arange(120.0).reshape(2, 3, 5, 4), np.ones((4, 6)), np.empty((2, 3, 5, 6))
    rows = rows_of_batch(a, b, c)
    assert rows is not None
    assert rows.base is not None
    assert np.shares_memory(rows, a)
    np.testing.assert_array_equal(rows, a.reshape(30, 4))
    wide = np.empty((2, 3, 5, 20))[..., 3:7]
    assert rows_of_batch(wide, b, c) is not None, "rows that are parts of longer ones"
    assert rows_of_batch(a, b[:, 0], c[..., 0]) is not None, "a vector"
    apart = [
        (a[:, :, ::2], b, c[:, :, ::2]),
        (a, b, np.empty((2, 3, 6, 6))[:, :, :5]),
        (a.transpose(1, 0, 2, 3), b, c.transpose(1, 0, 2, 3)),
        (np.broadcast_to(a[:1], a.shape), b, c),
    ]
    assert [rows_of_batch(*arrays) for arrays in apart] == [None] * 4
    other = [
        (a, np.ones((3, 4, 6)), c),
        (a, b[:3], c),
        (a[0, 0], b, c),
        (a[:0], b, c[:0]),
        (a, b, c.reshape(3, 2, 5, 6)),
    ]
    assert [rows_of_batch(*arrays) for arrays in other] == [None] * 5


@pytest.mark.slow_cases("1-shape1-float16", "1-shape1-longdouble", "2-shape1-float16", "2-shape1-longdouble")
@pytest.mark.parametrize("dtype", ["float32", "int8", "float16", "bool", "longdouble"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (40, 70, 90), (3, 1, 700)])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_batch_times_a_matrix_or_a_vector(dtype: str, shape: tuple[int, ...], threads: int) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.integers(0, 3, s).astype(dtype) for s in (shape, (shape[-1], 350)))
    apart = np.empty((*shape[:-2], shape[-2] + 1, shape[-1]), dtype)[..., :-1, :]
    apart[...] = a
    expected = np.matmul(a, b)
    with tw.use_threads(threads):
        for x in (a, apart):
            c = tw.matmul(x, b)
            np.testing.assert_array_equal(c, expected)
            assert (c.dtype, c.base) == (expected.dtype, None)
            out = np.empty(expected.shape, expected.dtype)
            assert tw.matmul(x, b, out=out) is out
            np.testing.assert_array_equal(out, expected)
            np.testing.assert_array_equal(tw.matmul(x, b[:, 0]), expected[..., 0])


@pytest.mark.parametrize(
    ("a", "b"), [((1, 1, 1), (1, 0)), ((2, 3, 4), (4, 0)), ((0, 3, 4), (4, 5)), ((2, 3, 0), (0, 5))]
)
def test_an_empty_batch_times_a_matrix(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = np.ones(a), np.ones(b)
    for out in (None, np.full((*a[:-1], b[1]), np.nan)):
        np.testing.assert_array_equal(tw.matmul(x, y, out=out), np.matmul(x, y))
    tw.plan(x, y)


def test_a_batch_that_overlaps_its_result_or_has_a_wrong_one() -> None:
    a, b = np.random.default_rng(3).integers(-9, 9, (30, 20, 300)).astype(np.float64), np.eye(300)[::-1].copy()
    expected = a @ b
    with pytest.raises(ShapeError):
        tw.matmul(a, b, out=np.empty((20, 30, 300)))
    assert tw.matmul(a, b, out=a) is a
    np.testing.assert_array_equal(a, expected)


def test_a_batch_times_a_matrix_is_planned_as_one_product() -> None:
    assert str(tw.plan((40, 64, 64), (64, 64)).problem) == "(2560×64) · (64×64) float64"
    apart = np.empty((40, 70, 64))[:, :64]
    assert tw.plan((40, 64, 64), (64, 64), apart).problem.batch == tw.plan(apart, (64, 64)).problem.batch == 40
    assert str(tw.plan((40, 64, 64), (40, 64, 64)).problem) == "40 × (64×64) · (64×64) float64"
