"""Products that threads share without Python code between them: the same bits, claims that end, and what is declined."""

from __future__ import annotations

import threading
import time
from typing import Any

import ml_dtypes  # noqa: F401  # gives NumPy the name of bfloat16
import numpy as np
import pytest

import tilewright as tw
from support.plans import make_plan
from tilewright.cpu.codegen import mailbox as mailbox_words
from tilewright.cpu.codegen.mailbox import HAS_FUTEX
from tilewright.cpu.plan import host_plan
from tilewright.cpu.runtime import facts as code
from tilewright.cpu.runtime import shared_products
from tilewright.cpu.runtime.runner import compiled, standby
from tilewright.cpu.runtime.threads import Team
from tilewright.cpu.runtime.threads import crew as workers
from tilewright.cpu.short import _sharing, product_by_short_way
from tilewright.errors import DTypeError
from tilewright.host.limits import use_threads
from tilewright.kernels.catalog import catalog
from tilewright.product.problem import Problem

futex = pytest.mark.skipif(not HAS_FUTEX, reason="this system has no futex")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers stand by for a third of a second: on a busy machine a millisecond ends before the caller goes on."""
    monkeypatch.setattr(standby(), "_looks", 300 * standby()._looks)
    Team(2).run([lambda: None] * 2)  # a worker that sleeps in machine code knows the number of before


def shared(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None, out_dtype: Any = None) -> np.ndarray:
    """The product of two threads by the short way; other programs may put the worker to sleep, so it is woken again."""
    how = _sharing(a.shape, b.shape, (a.dtype, a.dtype.num), out_dtype, 2)  # may compile
    assert how is not None
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        result = shared_products.multiply_shared(how, a, b, out)
        if result is not None:
            return result
        Team(2).wake(standby())
        time.sleep(1e-3)
    raise AssertionError("not once in 60 seconds did a worker stand by")


def alone(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with use_threads(1):
        return tw.matmul(a, b)


def operands(m: int, n: int, k: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m + n + k)
    if np.dtype(dtype).kind in "iu":
        return rng.integers(-9, 9, (m, k)).astype(dtype), rng.integers(-9, 9, (k, n)).astype(dtype)
    return rng.integers(-9, 9, (m, k)).astype(dtype) + rng.random((m, k)).astype(dtype), rng.random((k, n)).astype(
        dtype
    )


SHAPES = [(90, 95, 100), (161, 190, 200), (300, 320, 47), (400, 391, 64), (17, 3000, 111)]
OTHER_DTYPES = ["float64", "int32", "int8", "float16"]


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype"),
    [(*shape, "float32") for shape in SHAPES] + [(*SHAPES[0], dtype) for dtype in OTHER_DTYPES],
    ids=str,
)
def test_two_threads_compute_the_bits_of_one(m: int, n: int, k: int, dtype: str) -> None:
    a, b = operands(m, n, k, dtype)
    np.testing.assert_array_equal(shared(a, b), alone(a, b))


WIDER = [("int8", "int32"), ("uint8", np.int32), ("int16", np.dtype(np.int32)), ("bfloat16", "float32")]


@pytest.mark.parametrize(("dtype", "out_dtype"), WIDER, ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_sums_of_narrow_elements_go_the_short_way(dtype: str, out_dtype: Any, threads: int) -> None:
    a, b = operands(130, 140, 150, dtype)
    how = _sharing(a.shape, b.shape, (a.dtype, a.dtype.num), out_dtype, threads)
    product = tw.matmul(a, b, out_dtype=out_dtype)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(product.astype(np.float64), exact, rtol=1e-5, atol=1e-3)
    if how is None:  # no kernel here adds them so wide
        assert make_plan(Problem(130, 140, 150, dtype)).kernel.sums.get(dtype) != np.dtype(out_dtype).name
        return
    c = np.full((140, 130), 99, product.dtype).T
    by_long_way = host_plan(a.shape, b.shape, a.dtype, b.dtype, result=product.dtype)
    by_long_way.run(a, b, c)
    for out in (None, np.full_like(c, 99), np.full((130, 140), 99, product.dtype)):
        got = shared(a, b, out, out_dtype) if threads == 2 else shared_products.multiply_shared(how, a, b, out)
        assert out is None or got is out
        assert got.dtype == product.dtype
        np.testing.assert_array_equal(got, c)
    for wrong in (np.empty((130, 140), a.dtype), np.empty((130, 141), product.dtype), np.empty((130, 140), np.float64)):
        assert shared_products.multiply_shared(how, a, b, wrong) is None


@pytest.mark.parametrize("wrong", ["int99", ["int32"], object, "float128"])
def test_what_is_no_dtype_for_the_result_is_an_error_as_on_the_long_way(wrong: Any) -> None:
    a, b = operands(130, 140, 150, "int8")
    with pytest.raises(DTypeError):
        tw.matmul(a, b, out_dtype=wrong)


@pytest.mark.parametrize("dtype", ["int8", "float16", "bfloat16"])
def test_one_thread_computes_narrow_products_by_the_kernel_of_the_plan(dtype: str) -> None:
    a, b = operands(110, 120, 130, dtype)
    how = _sharing(a.shape, b.shape, (a.dtype, a.dtype.num), None, 1)
    assert how is not None
    plan = host_plan(a.shape, b.shape, a.dtype, b.dtype).within(1)
    assert how.call[mailbox_words.CODE] == compiled(plan.kernel, a.dtype).address
    with use_threads(1):
        got, expected = product_by_short_way(a, b, None), np.empty((110, 120), a.dtype)
        plan.run(a, b, expected)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "place",
    [
        lambda m, n: np.full((m, n), np.nan, np.float32),
        lambda m, n: np.full((n, m), np.nan, np.float32).T,
        lambda m, n: np.full((2 * m, n + 5), np.nan, np.float32)[::2, 5:],
    ],
    ids=["rows", "columns", "strided"],
)
def test_any_layout_of_the_operands_and_of_c(place: Any) -> None:
    a, b = operands(200, 210, 190, "float32")
    for x in (a, a.T.copy().T, np.repeat(a, 2, 0)[::2]):
        for y in (b, b.T.copy().T, b[::-1].copy()[::-1]):
            c = place(200, 210)
            assert shared(x, y, c) is c
            np.testing.assert_array_equal(c, alone(a, b))


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype"), [(28129, 1, 52, "complex64"), (20, 20670, 33, "float32"), (20670, 20, 33, "float32")]
)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_column_major_c_has_the_workspace_of_the_transposed_product(
    m: int, n: int, k: int, dtype: str, threads: int
) -> None:
    """Which may need more than the product that was planned; a kernel that has too little computes nothing."""
    rng = np.random.default_rng(5)
    a, b = (rng.uniform(-1, 1, shape).astype(dtype) for shape in ((m, k), (k, n)))
    out = np.full((n, m), np.nan, dtype).T
    with use_threads(threads):
        assert tw.matmul(a, b, out=out) is out
    np.testing.assert_allclose(out, a.astype(complex) @ b.astype(complex), atol=1e-4)


def test_what_is_unusual_is_declined() -> None:
    a, b = operands(150, 160, 140, "float32")
    shared(a, b)  # the workers stand by, or the next ones are declined for that alone
    c = np.zeros((150, 160), np.float32)
    cases: list[tuple[Any, Any, Any]] = [
        (a, b.astype(np.float64), None),
        (a, b[1:], None),
        (
            np.stack([a] * 4)[:, :112],
            b.repeat(3, 1),
            None,
        ),  # too much for one thread, and rows that lie unequally far apart
        (a[0], b[:, 0], None),
        (np.stack([a] * 2), b[:, 0], None),
        (a, b[:, 0], np.zeros((150, 1), np.float32)),
        (a, b.tolist(), None),
        (a, b, c.astype(np.float64)),
        (a, b, np.empty((150, 161), np.float32)),
        (a[:, :140], a[:140], a[:, :140]),
        (a[:, :0], b[:0], None),
        (a.astype("S4"), b.astype("S4"), None),
        (a.astype(">f4"), b.astype(">f4"), None),
    ]
    with use_threads(2):
        for x, y, out in cases:
            assert product_by_short_way(x, y, out) is None
        fixed = c.copy()
        fixed.flags.writeable = False
        assert product_by_short_way(a, b, fixed) is None
        small = np.ones((20, 20), np.float32)
        np.testing.assert_array_equal(product_by_short_way(small, small, None), alone(small, small))  # by this thread
    with use_threads(1):
        np.testing.assert_array_equal(product_by_short_way(a, b, None), alone(a, b))  # by this thread
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tilewright.cpu.short._sharing", None)
            assert product_by_short_way(a, b, None) is not None, (
                "one thread looks for no plan: that takes a microsecond"
            )


@pytest.mark.parametrize("shape", [*SHAPES, (2, 9000, 900), (300, 300, 9000)], ids=str)
def test_what_is_shared_is_what_is_planned(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    dtype = np.dtype(np.float32)
    with use_threads(2):
        plan: Any = tw.plan(np.empty((m, k), dtype), np.empty((k, n), dtype))
        how = _sharing((m, k), (k, n), (dtype, dtype.num), None, 2)
    assert how is not None
    assert how.threads == plan.threads == 2
    assert how.call[mailbox_words.CODE] == compiled(plan.kernel, dtype).address
    transposed = plan.kernel.workspace_bytes(n, m, k, "float32", 2)  # that of a column-major C
    assert how.workspace == max(plan.workspace_bytes, transposed)


def test_callers_on_many_threads() -> None:
    a, b = operands(220, 230, 240, "float32")
    expected, wrong = alone(a, b), []

    def call() -> None:
        with use_threads(2):
            for _ in range(100):
                if not np.array_equal(tw.matmul(a, b), expected):
                    wrong.append(1)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong
    assert not workers.claims


@futex
@pytest.mark.parametrize("shape", [(40, 4, 160), (2, 5, 16, 160)])
def test_a_batch_times_a_matrix_is_shared_as_one_product(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = operands(160, 160, 160, "float32")
    a, expected = a.reshape(shape), alone(a, b)
    shared(a.reshape(-1, 160), b)  # a worker stands by
    seen: list[int] = []
    multiply = shared_products.multiply_shared

    def counted(how: shared_products.Sharing, *arrays: Any) -> Any:
        seen.append(how.threads)
        return multiply(how, *arrays)

    monkeypatch.setattr(shared_products, "multiply_shared", counted)
    for threads in (2, 1):
        with use_threads(threads):
            out = np.empty((*shape[:-1], 160), np.float32)
            assert product_by_short_way(a, b, out) is out
            np.testing.assert_array_equal(out.reshape(-1, 160), expected)
            apart = product_by_short_way(a[:, 1:], b, np.empty_like(out[:, 1:]))  # by this thread
            np.testing.assert_array_equal(apart, out[:, 1:])
    assert seen == [2]


@futex
def test_products_of_a_batch_are_shared_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = operands(3 * 400, 400, 350, "float32")
    a, b = a.reshape(3, 400, 350), np.broadcast_to(b, (3, 350, 400))
    expected = [alone(a[i], b[i]) for i in range(3)]
    done: list[Any] = []
    multiply = shared_products.multiply_shared

    def seen(how: shared_products.Sharing, *arrays: np.ndarray) -> Any:
        done.append(multiply(how, *arrays))
        return done[-1]

    with use_threads(2):
        plan = host_plan(a.shape, b.shape, a.dtype, b.dtype)
        assert (plan.threads, plan.bands) == (2, 1)
        for declines in (False, True):
            monkeypatch.setattr(
                shared_products, "multiply_shared", (lambda *_: done.append(None)) if declines else seen
            )
            np.testing.assert_array_equal(tw.matmul(a, b), expected)
    assert len(done) == 6


def test_a_call_is_a_whole_number_of_cache_lines_before_its_counters() -> None:
    """Its address is even, because the state of a mailbox says by an odd number that the call runs."""
    how = shared_products.sharing(catalog()["cpu/direct"], np.dtype(np.float32), (200, 210, 190), 2)
    assert how is not None
    assert how.call.ctypes.data % 2 == 0
    assert code.OTHERS < code.COUNTERS
    assert mailbox_words.WORDS <= code.ELEMENTS


def test_small_products_that_follow_each_other_wake_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """One alone does not, nor do products with pauses between them."""
    now = 10**15

    def after(nanoseconds: int) -> bool:
        nonlocal now
        now += nanoseconds
        monkeypatch.setattr(shared_products, "wakes_all", False)
        shared_products.wake_if_many(2)
        return shared_products.wakes_all

    monkeypatch.setattr(shared_products.time, "perf_counter_ns", lambda: now)
    assert not any(after(2 * shared_products.GAP_NS) for _ in range(9))
    each = shared_products.WAKING_EACH_NS // 2  # two threads take twice as long
    assert [after(each) for _ in range(12)] == [i in (4, 13) for i in range(12)], "threads need some time to wake"


@futex
def test_a_product_thatwakes_all_wakes_more_than_it_is_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones, which one thread computes, are shared from the second on."""
    a, b = operands(100, 100, 100, "float32")
    how = _sharing(a.shape, b.shape, (a.dtype, a.dtype.num), None, 2)
    assert how is not None
    assert how.call[code.WAKES] == 0
    one = _sharing(a.shape, b.shape, (a.dtype, a.dtype.num), None, 1)
    assert one is not None
    expected, deadline = alone(a, b), time.monotonic() + 60
    while time.monotonic() < deadline:
        Team(2).wake(standby())
        time.sleep(0.5)  # longer than it stands by
        if shared_products.multiply_shared(how, a, b, None) is None:
            monkeypatch.setattr(shared_products, "wakes_all", True)
            np.testing.assert_array_equal(shared_products.multiply_shared(one, a, b, None), expected)
            assert shared_products.wakes_all, "a product of one thread leaves it to the next one that is shared"
            if (result := shared_products.multiply_shared(how, a, b, None)) is not None:
                np.testing.assert_array_equal(result, expected)
                assert not shared_products.wakes_all, "it is said once"
                return
    raise AssertionError("not once in 60 seconds was a thread woken")


def test_threads_that_were_woken_stand_by() -> None:
    a, b = operands(130, 140, 150, "float32")
    how = shared_products.sharing(catalog()["cpu/direct"], np.dtype(np.float32), (130, 140, 150), 2)
    assert how is not None
    expected, deadline = alone(a, b), time.monotonic() + 60
    while time.monotonic() < deadline:
        Team(2).wake(standby())
        time.sleep(0.01)
        if (result := shared_products.multiply_shared(how, a, b, None)) is not None:
            np.testing.assert_array_equal(result, expected)
            return
    raise AssertionError("not once in 60 seconds did a woken thread stand by")


def test_the_threads_that_stand_by_compute_the_bits_of_one() -> None:
    """A small product is planned for 99 threads, and does not wait until all of them stand by; a larger one is not shared
    by fewer."""
    a, b = operands(200, 210, 190, "float32")
    shared(a, b)
    expected, dtype, shape = alone(a, b), np.dtype(np.float32), (200, 210, 190)
    few, all_ = (shared_products.sharing(catalog()["cpu/direct"], dtype, shape, 99, least) for least in (1, None))
    assert few is not None
    assert all_ is not None
    deadline = time.monotonic() + 60
    while (result := shared_products.multiply_shared(few, a, b, None)) is None and time.monotonic() < deadline:
        tw.matmul(a, b)
    np.testing.assert_array_equal(result, expected)
    assert shared_products.multiply_shared(all_, a, b, None) is None


@pytest.mark.slow
@futex
def test_a_product_wakes_as_many_sleeping_threads_as_it_is_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small product is computed by its caller alone; larger ones wake more threads, and they compute the same bits."""
    monkeypatch.setattr(standby(), "_looks", 1)
    dtype = np.dtype(np.float32)
    wakes = [_sharing((n, n), (n, n), (dtype, dtype.num), None, 16) for n in (128, 200, 300, 400)]
    counts = [int(how.call[code.WAKES]) for how in wakes if how is not None]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == 15
    a, b = operands(300, 320, 310, "float32")
    expected, before, deadline = alone(a, b), 0, time.monotonic() + 60
    with use_threads(2):
        while time.monotonic() < deadline:
            np.testing.assert_array_equal(tw.matmul(a, b), expected)
            if not workers.workers:
                continue
            worker = workers.workers[0].mailbox
            if before and worker[mailbox_words.BELL] > before:
                return
            while worker[mailbox_words.STATE] != mailbox_words.SLEEPING and time.monotonic() < deadline:
                time.sleep(0.01)  # after an earlier test it may stand by for a third of a second
            before = int(worker[mailbox_words.BELL])
    raise AssertionError("not once in 60 seconds was a sleeping thread woken")
