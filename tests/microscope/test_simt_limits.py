"""The microscope's edges: interrupts and limits, samples of what is too big to run, launches that are none."""

# ruff: noqa: E501 - a row of a table is a line

from __future__ import annotations

import _thread
import threading
import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from support.ptx_kernels import COUNT, NOTHING, add_one, floats, kernel
from tilewright.errors import UsageError
from tilewright.simulator import RunOptions, simulate
from tilewright.simulator.assembly.parser import parse_ptx

# ---- interrupts, progress, limits ------------------------------------------------------------------------------------


def test_progress_is_told_often_and_of_the_end() -> None:
    calls: list[tuple[float, int, int]] = []
    simulate(COUNT, "k", 40, 1024, [np.zeros(40960, np.uint32), 6000], RunOptions(progress=lambda done, total: calls.append((time.monotonic(), done, total))))  # fmt: skip
    assert calls[0][1:] == (0, 40)
    assert calls[-1][1:] == (40, 40)
    assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)
    assert len({done for _, done, _ in calls}) > 2  # after each batch at least
    assert max(b[0] - a[0] for a, b in pairwise(calls)) < 1  # 0.1 s on an idle machine


@pytest.mark.slow_cases("signal")
@pytest.mark.parametrize("how", ["progress", "signal"])
def test_an_interrupt_leaves_nothing_behind(how: str) -> None:
    module, x = parse_ptx(COUNT), np.zeros(16384, np.uint32)
    held, handling = x.copy(), np.geterr()

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    timer = threading.Timer(0.3 if how == "signal" else 60, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        simulate(module, "k", 16, 1024, [x, 100_000_000], RunOptions(progress=interrupt if how == "progress" else None))
    timer.cancel()
    assert np.array_equal(x, held)
    assert np.geterr() == handling
    again = simulate(module, "k", 16, 1024, [x, 7])
    assert again.arrays[0] is not None
    assert not again.findings
    assert (again.arrays[0] == 7).all()


def test_too_many_steps_end_the_run_in_words() -> None:
    run = simulate(COUNT, "k", 1, 32, [np.zeros(32, np.uint32), 1 << 30], RunOptions(max_steps=5000))
    assert not run.complete
    assert 5000 < run.steps < 5100
    assert [f.kind for f in run.findings] == ["step limit"]
    assert "still running after 5,000 steps (max_steps): an endless loop, or a limit too low" in run.findings[0].text


def test_a_loop_that_changes_nothing_is_endless_at_once() -> None:
    run = simulate(kernel("", "AGAIN: bra AGAIN;"), "k", 1, 32, [])
    assert run.steps < 1_000_000
    assert "nothing that they read changes any more" in run.findings[0].text
    assert "PTX line" in run.findings[0].text


def test_a_kernel_that_waits_for_a_clock_ends() -> None:
    body = "mov.u32 %r4, %clock; AGAIN: mov.u32 %r5, %clock; sub.u32 %r5, %r5, %r4; setp.lt.u32 %p1, %r5, 1000; @%p1 bra AGAIN;"
    assert simulate(kernel("", body), "k", 1, 32, []).complete


def test_too_much_memory_is_refused_in_words() -> None:
    with pytest.raises(UsageError, match=r"needs 76 MiB, more than max_bytes, which is 1 MiB .*or a larger max_bytes"):
        add_one(floats(), np.zeros(2_000_000, np.float32), 64, max_bytes=1 << 20)


# ---- samples of what is too big to run -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_sample_of_a_big_problem_touches_little() -> None:
    """C is 8192 × 8192: its shadow in full would be 2.4 GB."""
    n = 8192 * 8192
    x, y = np.zeros(n, np.float32), np.zeros(n, np.float32)
    started: list[float] = []
    start = time.monotonic()
    run = add_one(x, y, n, grid=n // 256, block=256, blocks=18, outputs=[1], max_bytes=1 << 29,
                  progress=lambda *_: started.append(time.monotonic()))  # fmt: skip
    assert started[0] - start < 3
    assert not run.findings
    assert run.sampled
    assert run.arrays[1] is not None
    assert run.arrays[1].sum() == 18 * 256
    with pytest.raises(UsageError, match="more than max_bytes"):
        add_one(x, y, n, grid=n // 256, block=256, max_bytes=1 << 29)


def test_arrays_that_are_only_read_are_used_in_place() -> None:
    x, y = floats(), np.zeros(64, np.float32)
    x.flags.writeable = y.flags.writeable = False
    run = add_one(x, y, 64)
    assert run.arrays[0] is x
    assert not y.any()
    assert np.array_equal(run.arrays[1], x + 1)


def test_a_store_to_an_operand_that_nothing_told_of_spares_the_array() -> None:
    """The address comes out of memory, so that the text does not tell what is written."""
    body = """ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [at]; st.global.u64 [%rd2], %rd1; ld.global.u64 %rd3, [%rd2];
st.global.u32 [%rd3], 7;"""
    x = np.ones(4, np.int32)
    run = simulate(kernel(".param .u64 x, .param .u64 at", body), "k", 1, 1, [x, np.zeros(1, np.uint64)])
    assert run.arrays[0] is not None
    assert run.arrays[0].tolist() == [7, 1, 1, 1]
    assert x.tolist() == [1, 1, 1, 1]


def test_an_array_given_twice_is_one() -> None:
    x = floats()
    run = add_one(x, x, 64)
    assert np.array_equal(run.arrays[0], x + 1)
    assert np.array_equal(run.arrays[1], x + 1)


def test_out_of_bounds_stays_exact_without_a_copy() -> None:
    """Even where the bytes beyond the operand are those of the array it is a part of."""
    whole = floats(128)
    run = add_one(whole[:48], np.zeros(64, np.float32), 49)
    assert [f.kind for f in run.findings] == ["out of bounds"]
    assert "byte 192 of argument 0 (float32, shape (48,), 192 bytes), 4 beyond its end" in run.findings[0].text


# ---- launches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 31, 33, 95, (5, 7, 3), 1024])
def test_any_number_of_threads(block: Any) -> None:
    threads = int(np.prod(block))
    x = floats(2 * threads)
    if isinstance(block, int):
        run = add_one(x, np.zeros_like(x), x.size, block=block, outputs=[1])
        assert np.array_equal(run.arrays[1], x + 1)
        assert not run.findings
    else:
        assert simulate(NOTHING, "k", 2, block, []).complete


@pytest.mark.parametrize("grid", [2**31 - 1, (2**31 - 1, 65535, 65535)])
def test_the_largest_grids_can_be_sampled(grid: Any) -> None:
    total = int(np.prod(np.array(grid, object)))
    run = simulate(NOTHING, "k", grid, 64, [], RunOptions(blocks=5))
    assert (run.blocks_run, run.blocks_total) == (5, total)
    with pytest.raises(UsageError, match="too many to run all"):
        simulate(NOTHING, "k", grid, 64, [])
    last = kernel(".param .u64 x", "ld.param.u64 %rd1, [x]; st.global.u32 [%rd1], %r1;")
    run = simulate(last, "k", 2**31 - 1, 1, [np.zeros(1, np.uint32)], RunOptions(blocks=[2**31 - 2]))
    assert run.arrays[0].tolist() == [2**31 - 2]


LAUNCHES: list[tuple[dict[str, Any], str]] = [
    *(({"grid": g}, "grid must be one to three positive numbers") for g in (0, -1, 2.5, "2", (1, 2, 3, 4), (), None, True, float("nan"), {1})),
    *(({"block": b}, "block must be one to three positive numbers") for b in (0, -32, 1.5, "32", (1, None))),
    ({"grid": 2**31}, "larger than"), ({"grid": (1, 70000)}, "larger than"), ({"block": (1, 1, 65)}, "larger than"),
    ({"block": 1025}, "at most 1024"),
    *(({"blocks": b}, "blocks must be") for b in (0, -1, 1.5, "1", [], [2], [-1], [[0]], True, [0.5])),
    *(({"shared_bytes": s}, "shared_bytes must be a whole number") for s in (-1, 1.5, "1", None)),
    ({"shared_bytes": 1 << 20}, "no GPU has more than 232,448"),
    *(({"outputs": o}, "outputs") for o in ([2], [9], [-1], ["a"], [1.0], 1, None)),
    *(({"max_steps": m}, "max_steps must be a whole number") for m in (0, "a", None)),
    *(({"max_bytes": m}, "max_bytes must be a whole number") for m in (0, 1.5)),
    ({"max_bytes": 1}, "more than max_bytes"), ({"progress": 3}, "progress must be a function"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "words"), LAUNCHES, ids=lambda value: str(value)[:40])
def test_no_launch(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        add_one(floats(), floats(), 64, **options)
