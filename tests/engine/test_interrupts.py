"""An interrupt at any moment leaves nothing behind: no thread at work, no worker lost, nothing but the interrupt raised.

The products, the ways to interrupt them and the checks are those of ``benchmarks/interrupts.py``, here with small counts
and in a process of their own, for they take over signals and tracing.
"""

from __future__ import annotations

import _thread
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tilewright
from tilewright.cpu.runtime.interrupts import ensured, run_on_thread
from tilewright.host.cached_property import cached_property

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

SCRIPT = """
import faulthandler, json, sys
sys.path.insert(0, {folder!r})
faulthandler.dump_traceback_later(100, exit=True)
import interrupts
import tilewright
from tilewright.cpu.runtime import threads
tilewright.set_threads(4)
{planted}
counts = interrupts.{way}
print(json.dumps([counts, interrupts.failed(counts)]))
"""


def counts_of(way: str, planted: str = "") -> tuple[dict[str, int], bool]:
    script = SCRIPT.format(folder=str(BENCHMARKS), way=way, planted=planted)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    counts, failed = json.loads(done.stdout)
    return counts, failed


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [
        "every_bytecode('matmul', 29)",
        "every_bytecode('gemm', 61)",  # which claims workers; machine code shares the others
        pytest.param("every_bytecode('vector', 61)", marks=pytest.mark.further),
        pytest.param("one_caller('batch', 120, 1)", marks=pytest.mark.further),
        "storm('batch', 0.5)",
        pytest.param("storm('deep', 0.5)", marks=pytest.mark.further),
        "many_callers('batch', 80, 1)",
    ],
)
def test_an_interrupted_product_leaves_nothing_behind(way: str) -> None:
    counts, failed = counts_of(way)
    assert counts["interrupted"] > 0, counts
    assert not failed, counts


#: Clean-up as plain Python would do it, which an interrupt can skip; and workers that are not waited for.
PLANTED = {
    "clean-up in Python": (
        "one_caller('batch', 200, 1)",
        """
def ensured(body, cleanup):
    try:
        return body()
    finally:
        cleanup()
threads.ensured = ensured
""",
    ),
    "nothing waits": (
        "one_caller('batch', 100, 1)",
        """
def settle(self, real=threads._TeamCall.settle):
    self._ended = list(self._begun)
    real(self)
threads._TeamCall.settle = settle
""",
    ),
    "a claim is forgotten": (
        "every_bytecode('gemm', 61)",
        """
def claim(self, task, count, real=threads.Crew.claim):
    claimed = real(self, task, count)
    task.tried.clear()
    return claimed
threads.Crew.claim = claim
""",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_counted(name: str) -> None:
    counts, failed = counts_of(*PLANTED[name])
    assert failed, counts


# ---- what it is built on ---------------------------------------------------------------------------------------------


def test_the_clean_up_runs_until_it_has_ended_and_the_first_error_is_raised() -> None:
    calls: list[int] = []

    def cleanup() -> None:
        calls.append(len(calls))
        if len(calls) % 3:
            raise KeyboardInterrupt(len(calls))

    with pytest.raises(ZeroDivisionError):
        ensured(lambda: 1 / 0, cleanup)
    assert calls == [0, 1, 2]
    with pytest.raises(KeyboardInterrupt, match="4"):
        ensured(lambda: None, cleanup)
    assert len(calls) == 6


def test_nothing_is_leaked() -> None:
    result = object()
    before = sys.getrefcount(result)
    for _ in range(100):
        assert ensured(lambda: result, lambda: None) is result
    assert sys.getrefcount(result) == before


def test_apart_raises_what_the_function_raises_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError):
        run_on_thread(lambda: 1 / 0)
    assert run_on_thread(threading.current_thread) is not threading.current_thread()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_where_no_thread_can_be_started_the_function_runs_on_this_one(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there is no memory for a thread: nobody waits for one that never began."""

    def refused(*_: object) -> None:
        raise error("can't start new thread")

    for holder, name in ((threading.Thread, "start"), (_thread, "start_new_thread")):
        with monkeypatch.context() as patch:
            patch.setattr(holder, name, refused)
            assert run_on_thread(threading.current_thread) is threading.current_thread()
            with pytest.raises(ZeroDivisionError):
                run_on_thread(lambda: 1 / 0, stop=lambda: None)


class _WithALock:
    """As ``functools.cached_property`` of CPython before 3.12."""

    def __init__(self, compute: Callable[[Any], int]) -> None:
        self._compute, self.lock = compute, threading.RLock()

    def __get__(self, instance: Any, owner: type) -> int:
        with self.lock:
            return self._compute(instance)


@pytest.mark.parametrize(("kind", "answers"), [(cached_property, True), (_WithALock, False)])
def test_a_cached_property_answers_other_threads_after_an_interrupt_at_each_bytecode(kind: Any, answers: bool) -> None:
    class Plan:
        threads = kind(lambda self: 3)

    def interrupt(moment: int) -> bool:
        left = moment

        def trace(frame: Any, event: str, argument: Any) -> Any:
            nonlocal left
            if frame.f_code.co_name != "__get__":
                return None
            frame.f_trace_opcodes = True
            left -= event == "opcode"
            if left < 0:
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            Plan().threads  # noqa: B018
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False

    interrupts = sum(interrupt(moment) for moment in range(200))
    assert interrupts > 3
    seen: list[int] = []
    other = threading.Thread(target=lambda: seen.append(Plan().threads), daemon=True)
    other.start()
    other.join(10 if answers else 0.2)
    assert (seen == [3]) is answers
    while not answers and other.is_alive():
        Plan.__dict__["threads"].lock.release()
        other.join(0.1)


def test_no_module_takes_the_cached_property_that_has_a_lock() -> None:
    found = [
        str(path)
        for path in Path(tilewright.__file__).parent.rglob("*.py")
        if re.search(
            r"^(?!``).*(@functools\.cached_property|from functools import .*cached_property)",
            path.read_text("utf-8"),
            re.M,
        )
    ]
    assert not found
