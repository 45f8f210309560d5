"""NumPy's products while the engine computes them: right, as NumPy defines them, and NumPy's own again afterwards."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.api import numpy_loops
from tilewright.cpu.native import front
from tilewright.errors import UnavailableError

DTYPES = "bBhHiIlLqQefdFD"
#: Sizes m, k, n: of each way that a product can go, and of NumPy's own.
SIZES = [
    *((1, 1, 1), (2, 3, 4), (5, 1, 7), (1, 300, 20), (40, 50, 1), (17, 64, 33), (90, 91, 92)),
    *((150, 151, 152), (330, 20, 340), (1, 5000, 1), (3, 5000, 2), (700, 1, 600), (1, 900, 800)),
]


def operand(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    dtype = np.dtype(kind)
    if dtype.kind in "iu":
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    values = rng.uniform(-1, 1, shape)
    return (values + 1j * rng.uniform(-1, 1, shape) if dtype.kind == "c" else values).astype(dtype)


def laid_out(rng: np.random.Generator, shape: tuple[int, ...], kind: str, layout: str) -> np.ndarray:
    """An array of this shape: in C order, with its last axes transposed, or with every second row, backwards."""
    *batch, rows, columns = shape
    if layout == "C":
        return operand(rng, shape, kind)
    if layout == "transposed":
        return operand(rng, (*batch, columns, rows), kind).swapaxes(-1, -2)
    return operand(rng, (*batch, 2 * rows, 3 * columns), kind)[..., ::-2, 1::3]


def check(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """C is A·B: of integers exactly, otherwise within the classical bound."""
    if c.dtype.kind in "iu":
        assert np.array_equal(c, np.einsum("...ij,...jk->...ik", a, b, optimize=False))
        return
    wide = np.complex128 if c.dtype.kind == "c" else np.float64
    exact = np.einsum("...ij,...jk->...ik", a.astype(wide), b.astype(wide))
    bound = np.einsum("...ij,...jk->...ik", abs(a).astype(float), abs(b).astype(float))
    error = abs(c.astype(wide) - exact)
    unit = np.finfo(c.dtype).eps
    assert (error <= (a.shape[-1] + 4) * unit * bound + unit).all()


@pytest.mark.slow_cases("F", "D")
@pytest.mark.parametrize("kind", DTYPES)
def test_products_are_right(kind: str) -> None:
    rng = np.random.default_rng(1)
    for m, k, n in SIZES:
        for left, right in itertools.product(("C", "transposed", "strided"), repeat=2):
            a, b = laid_out(rng, (m, k), kind, left), laid_out(rng, (k, n), kind, right)
            with tw.accelerate_numpy():
                c = a @ b
            assert c.dtype == a.dtype
            check(a, b, c)


@pytest.mark.parametrize("kind", "lfdFe")
@pytest.mark.parametrize("batches", [((6,), (6,)), ((6,), ()), ((), (6,)), ((3, 1), (2,)), ((2, 3), (3,)), ((0,), ())])
def test_batches_are_right(kind: str, batches: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    rng = np.random.default_rng(2)
    for m, k, n in [(3, 4, 5), (40, 30, 20), (1, 7, 1), (90, 91, 92), (5, 300, 6)]:
        a, b = operand(rng, (*batches[0], m, k), kind), operand(rng, (*batches[1], k, n), kind)
        target = np.full((*np.broadcast_shapes(*batches), n, m), 9, a.dtype).swapaxes(-1, -2)
        with tw.accelerate_numpy():
            c = a @ b
            assert np.matmul(a, b, out=target) is target
        check(a, b, c)
        check(a, b, target)


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("name", ["matmul", "vecdot", "matvec", "vecmat"])
def test_vectors_are_as_numpy_has_them(name: str, kind: str) -> None:
    """Also conjugated where NumPy conjugates."""
    if not hasattr(np, name):
        pytest.skip(f"this NumPy has no {name}")
    ufunc, rng = getattr(np, name), np.random.default_rng(3)
    for size in (1, 5, 60, 900):
        row, square = operand(rng, (4, size), kind), operand(rng, (size, size), kind)
        a = square if name == "matvec" else row
        b = square if name in ("vecmat", "matmul") else row
        expected = ufunc(a, b)
        with tw.accelerate_numpy():
            got = ufunc(a, b)
        if expected.dtype.kind in "iu":
            assert np.array_equal(got, expected)
        else:
            unit = np.finfo(kind).eps
            assert np.allclose(got, expected, rtol=10 * unit, atol=size * unit)


# ---- loops that a check must reject, and which loop runs ----------------------------------------------------------------

_SUITS = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)
#: ``Products`` of ``native/native.h``: addresses of A, B, C, and the 13 words of a batch.
_PRODUCTS = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 3, ctypes.POINTER(ctypes.c_int64 * 13))


class FakeSource:
    """A source of machine code that computes small products by ``multiply(a, b, c)``, on arrays of int64."""

    def __init__(self, multiply: Callable[[Any, Any, Any], object], has_memory: bool = True) -> None:
        self.calls = 0

        def products(a: int, b: int, c: int, batch: Any) -> int:
            self.calls += 1
            m, n, k, *strides, count, of_a, of_b, of_c = batch.contents
            x = self._array(a, (count, m, k), (of_a, *strides[:2]))
            y = self._array(b, (count, k, n), (of_b, *strides[2:4]))
            z = self._array(c, (count, m, n), (of_c, *strides[4:]))
            for matrices in zip(x, y, z, strict=True):
                multiply(*matrices)
            return int(has_memory)

        self._functions = _SUITS(lambda m, n, k: max(m, n, k) <= 300), _PRODUCTS(products)

    @staticmethod
    def _array(address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
        reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        return np.ndarray(shape, np.int64, (ctypes.c_char * (reach + 8)).from_address(address), 0, strides)

    def address(self, name: str) -> int:
        """As ``machine_code.CodeSource``."""
        return ctypes.cast(self._functions[name != "are_small"], ctypes.c_void_p).value or 0


def naive(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    c[...] = np.einsum("ij,jk->ik", a, b)


def seven(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    c[...] = 7


def without_last_row(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    naive(a[:-1], b, c[:-1])


def one_step_short(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    naive(a[:, :-1], b[:-1], c)


def of_transposed(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    naive(a, b, c)
    c[...] = c[::-1].copy()


WRONG = [seven, without_last_row, one_step_short, of_transposed]


@pytest.fixture
def integers() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    return rng.integers(1, 9, (5, 20, 21)), rng.integers(1, 9, (5, 21, 22))


@pytest.mark.parametrize("multiply", [naive, *WRONG])
def test_a_wrong_loop_is_rejected(
    multiply: Callable[..., None], integers: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FakeSource(multiply)
    monkeypatch.setattr(numpy_loops, "engine_code", lambda: source)
    a, b = integers
    for x, y in ((a, b), (a[0], b[0]), (a[0].T.copy().T, b[0].T.copy().T)):
        target = np.full((*x.shape[:-1], y.shape[-1]), -1)
        with tw.accelerate_numpy():
            np.matmul(x, y, out=target)
        if multiply is naive:
            check(x, y, target)
        else:
            with pytest.raises(AssertionError):
                check(x, y, target)
    assert source.calls == 3  # a batch is one call


def test_a_loop_without_memory_leaves_the_product_to_numpy(
    integers: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FakeSource(seven, has_memory=False)
    monkeypatch.setattr(numpy_loops, "engine_code", lambda: source)
    with tw.accelerate_numpy():
        check(*integers, integers[0] @ integers[1])
    assert source.calls == 1


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Whether NumPy's loops are ours: these write sevens."""
    source = FakeSource(seven)
    monkeypatch.setattr(numpy_loops, "engine_code", lambda: source)
    a = np.ones((20, 20), np.int64)
    return lambda: bool((a @ a.copy() == 7).all())


def test_it_ends_with_the_block(replaced: Callable[[], bool]) -> None:
    assert not replaced()
    with tw.accelerate_numpy():
        assert replaced()
    assert not replaced()
    with pytest.raises(ZeroDivisionError), tw.accelerate_numpy():
        1 / 0  # noqa: B018
    assert not replaced()


def test_it_ends_by_a_call(replaced: Callable[[], bool]) -> None:
    acceleration = tw.accelerate_numpy()
    assert replaced()
    acceleration.undo()
    assert not replaced()
    acceleration.undo()  # does nothing
    with tw.accelerate_numpy():
        acceleration.undo()
        assert replaced()
    assert not replaced()


def test_it_nests(replaced: Callable[[], bool]) -> None:
    with tw.accelerate_numpy():
        with tw.accelerate_numpy():
            assert replaced()
        assert replaced()
    assert not replaced()
    first, second = tw.accelerate_numpy(), tw.accelerate_numpy()
    first.undo()
    assert replaced()
    second.undo()
    assert not replaced()


def test_bool_objects_and_long_double_stay_numpys() -> None:
    rng = np.random.default_rng(5)
    for kind in ("?", "O", "g", "G"):
        a = rng.integers(0, 9, (100, 100)).astype(kind)
        expected = a @ a.T
        with tw.accelerate_numpy():
            assert np.array_equal(a @ a.T, expected)


def test_a_matrix_times_its_transposed_is_symmetric() -> None:
    """Bit for bit NumPy's own, which computes half of it."""
    x = np.random.default_rng(6).uniform(-1, 1, (500, 300))
    for y in (x, x.astype(np.float32), x + 1j * x):
        for a, b in ((y, y.T), (y.T, y)):
            expected = a @ b
            with tw.accelerate_numpy():
                c = a @ b
            assert np.array_equal(c, c.T)
            assert np.array_equal(c, expected)


# ---- what NumPy defines -------------------------------------------------------------------------------------------------


def test_arguments_are_numpys() -> None:
    rng = np.random.default_rng(7)
    a, b = rng.uniform(-1, 1, (100, 4, 110)), rng.uniform(-1, 1, (4, 110, 120))
    axes: list[tuple[int, int]] = [(0, 2), (1, 2), (2, 0)]
    whole = rng.integers(-9, 9, (150, 150))
    with tw.accelerate_numpy():
        assert np.allclose(np.matmul(a, b, axes=axes), np.einsum("mbk,bkn->nbm", a, b))
        assert np.matmul(whole, whole, dtype=np.float32).dtype == np.float32
        with pytest.raises(TypeError):
            np.matmul(a, b, where=True)
        with pytest.raises(ValueError, match="mismatch in its core dimension"):
            np.matmul(whole, whole[1:])
        with pytest.raises(TypeError, match="Cannot cast"):
            np.matmul(a[:, 0], b[0], out=np.empty((100, 120), np.int64))
        expected = np.einsum("ij,jk->ik", whole, whole)
        assert np.matmul(whole, whole, out=whole) is whole  # it overlaps both operands
        assert np.array_equal(whole, expected)
        swapped = whole.astype(whole.dtype.newbyteorder())
        assert np.array_equal(swapped @ whole, np.einsum("ij,jk->ik", whole, whole))
        mixed = whole[:, :7].astype(np.int8) @ np.full((7, 3), 0.5)
        assert np.allclose(mixed, whole[:, :7].astype(np.int8).sum(1, keepdims=True) * 0.5)


class Tagged(np.ndarray):
    """A subclass that takes part in NumPy's protocols."""

    def __array_finalize__(self, other: object) -> None:
        self.tag = getattr(other, "tag", "new")


def test_subclasses_are_numpys() -> None:
    a = np.ones((100, 100)).view(Tagged)
    a.tag = "mine"
    with tw.accelerate_numpy(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert type(a @ np.ones((100, 100))) is Tagged
        assert type(np.asmatrix(np.ones((100, 100))) * np.asmatrix(np.ones((100, 100)))) is np.matrix
        masked = np.ma.masked_equal(np.arange(10000).reshape(100, 100), 5) @ np.ones((100, 100))
    assert masked.mask.any()


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (400, 0, 400)])
@pytest.mark.parametrize("kind", "ldFe")
def test_empty_axes_give_zeros(shape: tuple[int, int, int], kind: str) -> None:
    m, k, n = shape
    target = np.full((m, n), 9, kind)
    with tw.accelerate_numpy():
        np.matmul(np.ones((m, k), kind), np.ones((k, n), kind), out=target)
        assert (np.ones((5, m, k), kind) @ np.ones((k, n), kind)).shape == (5, m, n)
    assert not target.any()


def outcome(a: np.ndarray, b: np.ndarray) -> set[str]:
    """What NumPy warns of for a product."""
    with warnings.catch_warnings(record=True) as caught, np.errstate(all="warn"):
        warnings.simplefilter("always")
        a @ b
    return {str(warning.message).partition(" encountered")[0] for warning in caught}


@pytest.mark.parametrize("kind", "fdFDe")
@pytest.mark.parametrize("n", [90, 150, 400])
def test_floating_point_errors_are_reported(kind: str, n: int) -> None:
    rng = np.random.default_rng(8)
    a, b = operand(rng, (n, n), kind), operand(rng, (n, n), kind)
    large, infinite, nan = a.copy(), a.copy(), a.copy()
    large[0], infinite[1, 1], nan[1, 1] = np.finfo(kind).max, np.inf, np.nan
    zero = b.copy()
    zero[1] = 0
    with tw.accelerate_numpy(), tw.use_threads(1):
        with np.errstate(all="raise"):
            a @ b
            if np.dtype(kind).kind != "c":  # infinity times a complex number has a NaN
                infinite @ b
        assert not outcome(nan, b)
        assert "overflow" in outcome(large, 3 * abs(b))
        assert "invalid value" in outcome(infinite, zero)
        with np.errstate(over="raise"), pytest.raises(FloatingPointError):
            large @ (3 * abs(b))


def test_integers_raise_no_floating_point_errors() -> None:
    with tw.accelerate_numpy(), np.errstate(all="raise"):
        for kind in "bBhHiIlLqQ":
            for n in (5, 50, 400):
                x = operand(np.random.default_rng(n), (n, n), kind)
                x @ x


# ---- threads, exceptions, processes -------------------------------------------------------------------------------------


def test_products_made_by_the_engine_are_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    """They must not come back to it without end."""
    calls = []

    def by_numpy(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        calls.append(a.shape)
        return np.matmul(a, b, out=c)

    monkeypatch.setattr(numpy_loops, "matmul", by_numpy)
    a = np.random.default_rng(9).uniform(-1, 1, (400, 400))
    with tw.accelerate_numpy():
        check(a, a, a @ a)
    assert calls == [(400, 400)]


def test_threads_multiply_while_others_begin_and_end_it() -> None:
    rng = np.random.default_rng(10)
    pairs = [(operand(rng, (n, n), kind), operand(rng, (n, n), kind)) for n in (9, 70, 200, 350) for kind in "dl"]
    expected, failed, stop = [a @ b for a, b in pairs], [], threading.Event()

    def multiply() -> None:
        while not stop.is_set():
            for (a, b), c in zip(pairs, expected, strict=True):
                if not np.allclose(a @ b, c):
                    failed.append(a.dtype)

    def toggle() -> None:
        while not stop.is_set():
            with tw.accelerate_numpy():
                time.sleep(0.001)

    threads = [threading.Thread(target=target) for target in (multiply, multiply, multiply, toggle, toggle)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failed
    assert numpy_loops._count == 0


def raising(error: BaseException) -> Callable[..., None]:
    def product(*arrays: np.ndarray) -> None:
        raise error

    return product


def test_where_the_engine_has_no_memory_numpy_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_loops, "matmul", raising(MemoryError()))
    a = np.random.default_rng(11).uniform(-1, 1, (400, 400))
    with tw.accelerate_numpy():
        check(a, a, a @ a)


@pytest.mark.parametrize("error", [KeyboardInterrupt("now"), ValueError("wrong")])
def test_other_exceptions_arrive(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_loops, "matmul", raising(error))
    a = np.ones((400, 400))

    def multiply() -> None:
        a @ a
        for _ in range(1000):
            len(())

    with tw.accelerate_numpy():
        with pytest.raises(type(error), match=str(error)):
            multiply()
        seen: list[type] = []

        def on_thread() -> None:
            try:
                multiply()
            except BaseException as arrived:
                seen.append(type(arrived))

        thread = threading.Thread(target=on_thread)
        thread.start()
        thread.join()
    assert seen == [type(error)]


class AlarmError(Exception):
    """What the handler of a signal raises."""


@pytest.fixture
def alarm() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise AlarmError("ringing")

    before = signal.signal(signal.SIGALRM, ring)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.thorough
@pytest.mark.usefixtures("alarm")
def test_an_interrupt_ends_a_long_product() -> None:
    a = np.random.default_rng(12).uniform(-1, 1, (4000, 4000))
    with tw.accelerate_numpy():
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(AlarmError, match="ringing"):
            [a @ a for _ in range(100)]
        check(a[:300, :300], a[:300, :300], a[:300, :300] @ a[:300, :300])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_multiplies() -> None:
    a = np.random.default_rng(13).uniform(-1, 1, (600, 600))
    with tw.accelerate_numpy():
        expected = a @ a
        child = os.fork()
        if child == 0:
            with tw.accelerate_numpy():
                os._exit(0 if np.allclose(a @ a, expected) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def run(code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command, known = [sys.executable, "-c", code, *arguments], os.environ | variables
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=known)


def test_a_process_may_end_while_it_holds() -> None:
    """With a thread that goes on multiplying, by NumPy's loops at the end. If OpenBLAS has threads of its own then, it may
    wait for one of them forever: a job takes the place of the word that ends it."""
    code = """
import atexit, threading, numpy as np, tilewright as tw
a = np.ones((400, 400))
class AtEnd:
    def __del__(self):
        print((a @ a)[0, 0])
kept = AtEnd()
kept.itself = kept
atexit.register(lambda: print((a @ a)[0, 1]))
def forever():
    while True:
        a @ a
tw.accelerate_numpy()
threading.Thread(target=forever, daemon=True).start()
print((a @ a)[1, 0])
"""
    done = run(code, OPENBLAS_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["400.0"] * len(done.stdout.split())
    assert len(done.stdout.split()) >= 2


@pytest.mark.parametrize(("missing", "named"), [("front", "C front"), ("engine_code", "machine code")])
def test_without_machine_code_it_says_what_to_do(missing: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_loops, missing, lambda: None)
    with pytest.raises(UnavailableError, match=rf"{named}.*python -m tilewright\.prebuilt"):
        tw.accelerate_numpy()
    assert numpy_loops._count == 0


@pytest.mark.parametrize(
    "arguments", [(np.matmul, 4, 12), (np.matmul, 0, 13), (np.matmul, 0, 99), (len, 0, 12), (np.sin, 0, 7)]
)
def test_only_loops_of_products_are_replaced(arguments: tuple[Any, int, int]) -> None:
    native = front()
    assert native is not None
    with tw.accelerate_numpy():
        pass  # the engine is set
    ufunc, number, kind = arguments
    with pytest.raises(ValueError, match="no loop"):
        native.replace_loop(ufunc, number, kind, 0, bytes(80))


# ---- programs -----------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
import numpy as np
import beside
from tilewright.api import numpy_loops
assert __name__ == "__main__" and numpy_loops._count == 1
print(sys.argv[1:], (np.ones((200, 200)) @ np.ones((200, 200)))[3, 4])
raise SystemExit(5)
"""


@pytest.mark.parametrize("is_module", [False, True])
def test_a_program_runs_without_the_command_lines_libraries(tmp_path: Path, is_module: bool) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("")
    without = "import sys; sys.modules['typer'] = None; from tilewright.__main__ import main; main()"
    named = ["-m", "program"] if is_module else [str(tmp_path / "program.py")]
    command = [sys.executable, "-c", without, "run", *named, "x", "--y"]
    where = tmp_path if is_module else Path.cwd()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=where)
    assert done.returncode == 5, done.stderr
    assert done.stdout == "['x', '--y'] 200.0\n"


@pytest.mark.parametrize(
    ("arguments", "message"), [(["-m"], "usage: tilewright run"), (["--fast"], "usage: "), (["no.py"], "no file no.py")]
)
def test_a_program_that_is_not_there(arguments: list[str], message: str) -> None:
    done = run("from tilewright.__main__ import main; main()", "run", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
