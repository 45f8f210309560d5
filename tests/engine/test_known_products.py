"""Products of a shape that was planned before: the C front computes them, as long as all is as it was."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.cpu.runtime import facts, shared_products, small_products, stop
from tilewright.cpu.runtime.shared_products import remember_shape
from tilewright.cpu.runtime.threads import Team
from tilewright.cpu.short import _sharing
from tilewright.host import limits
from tilewright.host.sources import PACKAGE
from tilewright.kernels.catalog import catalog

if small_products.c_front() is None:
    pytest.skip("there is no C front here: python -m tilewright.prebuilt", allow_module_level=True)

FLOAT = np.dtype(np.float32)


def operands(m: int, n: int, k: int, dtype: Any = FLOAT) -> tuple[np.ndarray, np.ndarray]:
    """Small whole numbers, so that every product is exact."""
    rng = np.random.default_rng(m)
    return rng.integers(-9, 9, (m, k)).astype(dtype), rng.integers(-9, 9, (k, n)).astype(dtype)


def child(script: str) -> str:
    """What a process of its own prints."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout.strip()


# ---- without Python code ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "complex64"])
def test_products_of_a_known_shape_are_computed_at_once(threads: int, dtype: str) -> None:
    a, b = operands(105, 110 + threads, 100, dtype)
    expected = tw.matmul(a, b)
    outs = [None, np.empty_like(expected), np.empty_like(expected.T).T, np.empty((210, expected.shape[1]), dtype)[::2]]
    np.testing.assert_array_equal(expected, a @ b)
    with tw.use_threads(threads):
        tw.matmul(a, b)
        tw.matmul(a, b)  # may hire workers
        for out in outs:
            for x, y in ((a, b), (a.T.copy().T, b[::-1].copy()[::-1])):
                result = small_products.multiply(x, y, out)
                assert result is not None
                assert out is None or result is out
                np.testing.assert_array_equal(result, expected)


def test_the_second_product_looks_for_no_plan() -> None:
    """Python code runs only where threads are missing, to wake them."""
    a, b = operands(101, 102, 103)
    begun: set[str] = set()
    with tw.use_threads(2):
        tw.matmul(a, b)
        sys.setprofile(lambda frame, event, _: begun.add(frame.f_code.co_name) if event == "call" else None)
        try:
            for _ in range(100):
                tw.matmul(a, b)
        finally:
            sys.setprofile(None)
    assert "matmul" in begun
    assert not begun & {"product_by_short_way", "multiply_shared", "get_threads", "take_buffer"}


def test_unusual_arrays_of_a_known_shape_go_the_long_way() -> None:
    a, b = operands(106, 106, 106)
    with tw.use_threads(2):
        expected = tw.matmul(a, b)
        assert small_products.multiply(a, b, None) is not None
        for x, y, out in (
            (a, b, a),  # overlaps
            (a, b, np.empty((106, 107), FLOAT)),
            (a, b, np.empty((106, 106))),
            (a, b.astype(np.float64), None),
            (a, b.astype(">f4"), None),
            (a[0], b, np.empty((106, 1), FLOAT)),
        ):
            assert small_products.multiply(x, y, out) is None
        assert tw.matmul(a, b, out=a) is a
        np.testing.assert_array_equal(a, expected)


def test_a_dtype_with_metadata_is_the_callers_alone() -> None:
    mine = np.dtype(np.float32, metadata={"mine": 1})
    a, b = operands(107, 106, 106)
    with tw.use_threads(2):
        for _ in range(2):
            tw.matmul(a.astype(mine), b.astype(mine))
        for _ in range(2):
            assert tw.matmul(a, b).dtype.metadata is None or small_products.multiply(a, b, None) is None


def test_the_words_of_a_call_are_those_of_machine_code() -> None:
    source = (PACKAGE / "cpu" / "native" / "front.c").read_text(encoding="utf-8")
    (words,) = re.findall(r"enum \{ (COUNTS = .*?) \}", source)
    assert words == ", ".join(f"{word.split()[0]} = {getattr(facts, word.split()[0])}" for word in words.split(", "))


# ---- the limit of threads --------------------------------------------------------------------------------------------

#: A shape for each limit, known for that alone: of too much work to be computed unless it is known, and of few enough
#: elements for one thread on any machine.
SHAPES = {limit: (90 + i % 10, 95, 90 + i // 10) for i, limit in enumerate((*range(1, 70), 128))}


@pytest.fixture(scope="module", autouse=True)
def _remembered() -> None:
    a, b = operands(100, 100, 100)
    tw.matmul(a, b)  # the dtype is learned
    for limit, shape in SHAPES.items():
        remember_shape(FLOAT, shape, limit, alone=True, how=None)


def limits_in_c() -> list[int]:
    """The limits for which the C front knows products now: it is one."""
    ones = ((limit, np.ones((m, k), FLOAT), np.ones((k, n), FLOAT)) for limit, (m, n, k) in SHAPES.items())
    return [limit for limit, a, b in ones if small_products.multiply(a, b, None) is not None]


def test_the_c_front_has_the_limit_that_python_has() -> None:
    tw.set_threads(None)
    if limits.get_threads() in SHAPES:
        assert limits_in_c() == [limits.get_threads()]
    try:
        for count in (3, 1, 7):
            tw.set_threads(count)
            assert limits_in_c() == [count]
            with tw.use_threads(2):
                assert limits_in_c() == [2]
                with tw.use_threads(5):
                    tw.set_threads(4)
                    assert limits_in_c() == [5]
                assert limits_in_c() == [2]
            assert limits_in_c() == [4]
    finally:
        tw.set_threads(None)
    if limits.get_threads() in SHAPES:
        assert limits_in_c() == [limits.get_threads()]


def test_tasks_and_threads_have_limits_of_their_own() -> None:
    async def task(count: int) -> bool:
        with tw.use_threads(count):
            for _ in range(5):
                await asyncio.sleep(0)
                if limits_in_c() != [count] or await asyncio.to_thread(limits_in_c) != [count]:
                    return False
        return True

    async def both() -> list[bool]:
        return await asyncio.gather(task(3), task(4))

    assert asyncio.run(both()) == [True, True]
    seen: list[Any] = []
    with tw.use_threads(4):
        Team(2).run([lambda: None, lambda: seen.append(limits_in_c())])
        assert limits_in_c() == [4]
    assert seen == [[1]]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity masks")
def test_a_mask_of_one_processor_counts_at_once() -> None:
    seen: list[Any] = []

    def pinned() -> None:
        seen.append((limits.get_threads(), limits_in_c()))
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        seen.append((limits.get_threads(), limits_in_c()))

    thread = threading.Thread(target=pinned)
    thread.start()
    thread.join()
    assert seen[1] == (1, [1])
    assert all(in_c == [limit] or limit not in SHAPES for limit, in_c in seen)


# ---- runs that can be stopped, and errors ----------------------------------------------------------------------------


def test_nothing_is_shared_in_a_run_that_can_be_stopped() -> None:
    a, b = operands(108, 109, 110)
    how = _sharing(a.shape, b.shape, (FLOAT, FLOAT.num), None, 1)  # the caller is enough
    assert how is not None
    remember_shape(FLOAT, (108, 109, 110), 3, alone=False, how=how)
    with tw.use_threads(3):
        np.testing.assert_array_equal(small_products.multiply(a, b, None), a @ b)
        assert stop.stoppable(lambda: small_products.multiply(a, b, None)) is None
        np.testing.assert_array_equal(stop.stoppable(lambda: tw.matmul(a, b)), a @ b)


def test_what_is_raised_where_threads_are_woken_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an interrupt may be; no reference is lost."""
    a, b = operands(111, 109, 110)
    how = shared_products.sharing(catalog()["cpu/direct"], FLOAT, (111, 109, 110), 99, 98)
    assert how is not None
    remember_shape(FLOAT, (111, 109, 110), 99, alone=True, how=how)

    def interrupted(threads: int) -> None:
        raise KeyboardInterrupt

    with tw.use_threads(99):
        np.testing.assert_array_equal(small_products.multiply(a, b, None), a @ b)  # alone
        out = np.empty((111, 109), FLOAT)
        before = [sys.getrefcount(x) for x in (a, b, out)]
        monkeypatch.setattr(shared_products, "wake_if_many", interrupted)
        for _ in range(10):
            with pytest.raises(KeyboardInterrupt):
                small_products.multiply(a, b, out)
        monkeypatch.undo()
        assert small_products.multiply(a, b, out) is out
        assert [sys.getrefcount(x) for x in (a, b, out)] == before


# ---- many shapes, threads and processes ------------------------------------------------------------------------------

MANY = """
import itertools, numpy as np, tilewright as tw
from tilewright.cpu.runtime import small_products
from tilewright.cpu.runtime.shared_products import remember_shape
b, native, dtype = np.ones((104, 104), np.float32), 0, np.dtype(np.float32)
shapes = list(itertools.product(range(90, 104), repeat=3))
with tw.use_threads(1):
    tw.matmul(b, b.T)
    for shape in shapes:
        remember_shape(dtype, shape, 1, alone=True, how=None)
    for m, n, k in shapes:
        a = np.full((m, k), m, np.float32)
        native += small_products.multiply(a, b[:k, :n], None) is not None
        assert (tw.matmul(a, b[:k, :n]) == k * m).all()
print(native)
"""


def test_more_shapes_than_the_table_has_room_for() -> None:
    assert 1000 < int(child(MANY)) < 14**3


def test_shapes_limits_and_threads_at_random() -> None:
    shapes = list(itertools.product((97, 112, 131), repeat=3))
    pairs = [operands(*shape, dtype) for shape in shapes[:9] for dtype in ("float32", "float64")]
    products = [a @ b for a, b in pairs]
    wrong: list[Any] = []

    def call(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(300):
            i, count = rng.integers(len(pairs)), int(rng.integers(1, 4))
            out = np.empty_like(products[i]) if rng.random() < 0.5 else None
            with tw.use_threads(count):
                if not np.array_equal(tw.matmul(*pairs[i], out=out), products[i]):
                    wrong.append((i, count))

    callers = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


FORKED = """
import os, numpy as np, tilewright as tw
a = np.arange(120.0 * 120).reshape(120, 120) % 7
expected = a @ a
def right():
    with tw.use_threads(2):
        return all(np.array_equal(tw.matmul(a, a), expected) for _ in range(200))
assert right()
pid = os.fork()
if pid == 0:
    os._exit(0 if right() else 1)
assert right()
print(os.waitpid(pid, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_of_a_fork_shares_with_workers_of_its_own() -> None:
    assert child(FORKED) == "0"
