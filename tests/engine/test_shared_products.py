"""Products that threads share without Python code between them: the same bits, claims that end, and what is declined."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.catalog import catalog
from tilewright.codegen import crew
from tilewright.codegen.futex import HAS_FUTEX
from tilewright.host.limits import use_threads
from tilewright.planning.host import _sharing, shared_product
from tilewright.runtime.cpu import shared_products
from tilewright.runtime.cpu import shared_products_code as code
from tilewright.runtime.cpu.runner import compiled, standby
from tilewright.runtime.cpu.standby import address_of
from tilewright.runtime.cpu.threads import Team
from tilewright.runtime.cpu.workers import crew as workers

futex = pytest.mark.skipif(not HAS_FUTEX, reason="this system has no futex")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers stand by for a third of a second: on a busy machine a millisecond ends before the caller goes on."""
    monkeypatch.setattr(standby(), "_looks", 300 * standby()._looks)
    Team(2).run([lambda: None] * 2)  # a worker that sleeps in machine code knows the number of before


def shared(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """The product of two threads by the short way; other programs may put the worker to sleep, so it is woken again."""
    how = _sharing(a.shape, b.shape, (a.dtype, a.dtype.num), 2)  # may compile
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


def test_what_is_unusual_is_declined() -> None:
    a, b = operands(200, 210, 190, "float32")
    shared(a, b)  # the workers stand by, or the next ones are declined for that alone
    c = np.empty((200, 210), np.float32)
    small = np.ones((20, 20), np.float32)
    cases: list[tuple[Any, Any, Any]] = [
        (a, b.astype(np.float64), None),
        (a, b[1:], None),
        (a[None], b, None),
        (a, b[:, 0], None),
        (a, b.tolist(), None),
        (small, small, None),
        (a, b, c.astype(np.float64)),
        (a, b, np.empty((200, 211), np.float32)),
        (a[:, :190], a[:190], a[:, :190]),
    ]
    with use_threads(2):
        for x, y, out in cases:
            assert shared_product(x, y, out) is None
        fixed = c.copy()
        fixed.flags.writeable = False
        assert shared_product(a, b, fixed) is None
    with use_threads(1):
        np.testing.assert_array_equal(shared_product(a, b, None), alone(a, b))  # by this thread
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tilewright.planning.host._sharing", None)
            assert shared_product(a, b, None) is not None, "one thread looks for no plan: that takes a microsecond"


@pytest.mark.parametrize("shape", [*SHAPES, (2, 9000, 900), (300, 300, 9000)], ids=str)
def test_what_is_shared_is_what_is_planned(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    dtype = np.dtype(np.float32)
    with use_threads(2):
        plan: Any = tw.plan(np.empty((m, k), dtype), np.empty((k, n), dtype))
        how = _sharing((m, k), (k, n), (dtype, dtype.num), 2)
    assert how is not None
    assert how.threads == plan.threads == 2
    assert how.call[crew.CODE] == address_of(compiled(plan.kernel, dtype))
    assert how.workspace == plan.workspace_bytes


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


def test_a_call_is_a_whole_number_of_cache_lines_before_its_counters() -> None:
    """Its address is even, because the state of a mailbox says by an odd number that the call runs."""
    how = shared_products.sharing(catalog()["cpu/direct"], np.dtype(np.float32), (200, 210, 190), 2)
    assert how is not None
    assert how.call.ctypes.data % 2 == 0
    assert code.OTHERS < code.COUNTERS
    assert crew.WORDS <= code.ELEMENTS


def test_small_products_that_follow_each_other_wake_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """One alone does not, nor do products with pauses between them."""
    woken: list[int] = []
    monkeypatch.setattr(shared_products.Team, "wake", lambda team, _: woken.append(team.threads))
    now = 10**15

    def after(nanoseconds: int) -> int:
        nonlocal now
        now += nanoseconds
        before = len(woken)
        shared_products.wake_if_many(2)
        return len(woken) - before

    monkeypatch.setattr(shared_products.time, "perf_counter_ns", lambda: now)
    assert [after(2 * shared_products.GAP_NS) for _ in range(9)] == [0] * 9
    each = shared_products.WAKING_NS // 4
    assert [after(each) for _ in range(9)] == [0, 0, 0, 0, 1, 0, 0, 0, 0], "threads need some time to wake"


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


@futex
def test_a_product_wakes_as_many_sleeping_threads_as_it_is_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small product is computed by its caller alone; larger ones wake more threads, and they compute the same bits."""
    monkeypatch.setattr(standby(), "_looks", 1)
    dtype = np.dtype(np.float32)
    wakes = [_sharing((n, n), (n, n), (dtype, dtype.num), 16) for n in (128, 200, 300, 400)]
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
            if before and worker[crew.BELL] > before:
                return
            while worker[crew.STATE] != crew.SLEEPING and time.monotonic() < deadline:
                time.sleep(0.01)  # after an earlier test it may stand by for a third of a second
            before = int(worker[crew.BELL])
    raise AssertionError("not once in 60 seconds was a sleeping thread woken")
