"""Interrupts products at random moments, and checks that each call ends whole.

``python benchmarks/interrupts.py [COUNT] [SEED]`` interrupts ``COUNT`` calls of a batch (4,000 by default), and a quarter as
many of each other product, in three ways: by a signal a random number of microseconds after the call began, or by a trace
function at a random bytecode, of our code or of what it calls; by exceptions set into eight calling threads; and by signals
every 200 µs for some seconds. After every call it is checked that no thread writes to ``out`` any more, that nothing but the
interrupt was raised, that no worker is claimed or lost, and that the next product is right.

Prints what was counted as one JSON object; exits with 1 where a check failed.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import math
import shlex
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.cpu.runtime.threads import crew
from tilewright.lab.inputs.environment import environment

Call = Callable[[np.ndarray], object]


class StopError(BaseException):
    """What is raised, so that nothing of ours can mistake it for an error of its own."""


# ---- what is called --------------------------------------------------------------------------------------------------


def products(seed: int = 0) -> dict[str, tuple[tuple[int, ...], Call]]:
    """The shape of ``out`` and a product into it, by name: every way in which threads share one."""
    rng = np.random.default_rng(seed)

    def operands(*shape: int) -> np.ndarray:
        return rng.uniform(-1, 1, shape)

    a, b = operands(64, 400, 50), operands(64, 50, 60)
    x, y = operands(330, 300), operands(300, 340)
    v, w = operands(1, 1500), operands(1500, 1500)
    deep, wide = operands(40, 20_000), operands(20_000, 20)
    return {
        "batch": ((64, 400, 60), lambda out: tw.matmul(a, b, out=out)),
        "matmul": ((330, 340), lambda out: tw.matmul(x, y, out=out)),
        "vector": ((1, 1500), lambda out: tw.matmul(v, w, out=out)),
        "deep": ((40, 20), lambda out: tw.matmul(deep, wide, out=out)),
        "gemm": ((330, 340), lambda out: tw.gemm(1.0, x, y, 1.0, out)),
        "gemm scaled": ((330, 340), lambda out: tw.gemm(0.5, x, y, 0.25, out)),
        "multiply": ((330, 340), lambda out: tw.multiply(x, y, out, device="cpu", memory="64MiB")),
    }


# ---- how it is interrupted -------------------------------------------------------------------------------------------


def by_signal(call: Callable[[], object], moment: float) -> None:
    """By a timer's signal, ``moment`` seconds into the call."""
    signal.setitimer(signal.ITIMER_REAL, moment)
    call()


def by_trace(call: Callable[[], object], moment: float) -> None:
    """At bytecode ``moment`` of the call."""
    bytecodes_of(call, moment)


def bytecodes_of(call: Callable[[], object], most: float = math.inf) -> int:
    """How many a call takes. One of more than ``most`` is interrupted there."""
    number = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal number
        frame.f_trace_opcodes = True
        number += event in ("opcode", "line")
        if number > most:
            raise StopError
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return number


def interrupted(call: Callable[[], object], how: Callable[..., None], moment: float) -> str:
    """How the call ended: "interrupted", "finished", or the name of another exception."""
    ended = "finished"
    try:
        how(call, moment)
    except StopError:
        ended = "interrupted"
    except BaseException as error:
        ended = f"{type(error).__name__}: {error}"
    signal.setitimer(signal.ITIMER_REAL, 0)
    return ended


def raise_in_call(_: int, frame: FrameType | None) -> None:
    """What a signal does: it raises within ``Checks.call``, and nothing in the checks around it."""
    while frame is not None:
        if frame.f_code is Checks.call.__code__:
            raise StopError
        frame = frame.f_back


signal.signal(signal.SIGALRM, raise_in_call)


# ---- what is checked -------------------------------------------------------------------------------------------------


class Checks:
    """One product, called again and again, and what was counted after each call."""

    def __init__(self, name: str) -> None:
        shape, self._product = products()[name]
        self.counts: Counter[str] = Counter()
        self._out, self._next, self._expected = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._product(self._expected)

    def call(self) -> object:
        return self._product(self._out)

    def after(self, how_it_ended: str) -> None:
        """Nothing may be written to ``out`` now; and the next product must be right."""
        self.counts[how_it_ended] += 1
        self._out.fill(np.nan)
        self._next.fill(0)
        self._product(self._next)
        self.counts["next product wrong"] += not np.allclose(self._next, self._expected, rtol=1e-9, atol=1e-9)
        self.counts["written after the call"] += not np.isnan(self._out).all()
        self._out.fill(0)  # gemm adds to it


def threads_now() -> int:
    """As the system counts them."""
    return len(list(Path("/proc/self/task").iterdir()))


def counted(checks: Sequence[Checks], before: int) -> dict[str, int]:
    """All counts, and what is left in the process when all calls have ended."""
    total: Counter[str] = Counter()
    for each in checks:
        total.update(each.counts)
    time.sleep(0.05)
    left = {"workers left claimed": len(crew.claims), "threads before": before, "threads after": threads_now()}
    return dict(total) | left


def failed(counts: Mapping[str, int]) -> bool:
    """Whether anything was counted that may not happen."""
    fine = {"interrupted", "finished", "threads before", "threads after"}
    return any(number for what, number in counts.items() if what not in fine) or (
        counts["threads after"] > counts["threads before"]
    )


# ---- the ways to interrupt -------------------------------------------------------------------------------------------


def one_caller(name: str, count: int, seed: int) -> dict[str, int]:
    """``count`` calls of a product from the main thread, half interrupted by signals and half at bytecodes."""
    rng = np.random.default_rng(seed)
    checks = Checks(name)
    for _ in range(20):
        checks.call()
    begun = time.perf_counter()
    checks.call()
    lasts, bytecodes = time.perf_counter() - begun, bytecodes_of(checks.call)
    before = threads_now()
    for number in range(count):
        if number % 2:
            checks.after(interrupted(checks.call, by_signal, rng.uniform(20e-6, max(2e-3, 1.2 * lasts))))
        else:
            checks.after(interrupted(checks.call, by_trace, int(rng.integers(bytecodes))))
    return counted([checks], before)


def every_bytecode(name: str, step: int = 1) -> dict[str, int]:
    """A call of a product for each of its bytecodes, or each ``step`` of them, interrupted there."""
    checks = Checks(name)
    for _ in range(20):
        checks.call()
    before = threads_now()
    for moment in range(0, bytecodes_of(checks.call), step):
        checks.after(interrupted(checks.call, by_trace, moment))
    return counted([checks], before)


def storm(name: str, seconds: float) -> dict[str, int]:
    """Calls of a product from the main thread, with a signal every 200 µs."""
    checks = Checks(name)
    for _ in range(20):
        checks.call()
    before, end = threads_now(), time.perf_counter() + seconds
    while time.perf_counter() < end:
        ended = "finished"
        try:
            signal.setitimer(signal.ITIMER_REAL, 2e-4, 2e-4)
            checks.call()
        except StopError:
            ended = "interrupted"
        except BaseException as error:
            ended = f"{type(error).__name__}: {error}"
        signal.setitimer(signal.ITIMER_REAL, 0)
        checks.after(ended)
    return counted([checks], before)


def many_callers(name: str, count: int, seed: int, callers: int = 8) -> dict[str, int]:
    """``count`` calls in all from several threads at once, into which exceptions are set from outside."""
    checks = [Checks(name) for _ in range(callers)]
    calling: list[int | None] = [None] * callers
    aimed = [False] * callers

    def work(number: int) -> None:
        for _ in range(count // callers):
            ended = "finished"
            while True:
                try:
                    if calling[number] is None and ended == "finished":
                        calling[number] = threading.get_ident()
                        checks[number].call()
                    calling[number] = None
                    while aimed[number]:
                        time.sleep(1e-5)
                    time.sleep(0)  # raises here what was set in the last moment
                    break
                except StopError:
                    ended = "interrupted"
                except BaseException as error:
                    ended = f"{type(error).__name__}: {error}"
            checks[number].after(ended)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(callers)]

    def run(interrupts: bool) -> None:
        rng = np.random.default_rng(seed)
        while any(thread.is_alive() for thread in threads):
            time.sleep(float(rng.uniform(20e-6, 2e-3)))
            number = int(rng.integers(callers))
            aimed[number] = True
            ident = calling[number]
            if ident is not None and interrupts:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(StopError))
            aimed[number] = False

    crowd = [threading.Thread(target=each.call) for each in checks for _ in range(2)]  # all workers that there can be
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    before = threads_now()
    for thread in threads:
        thread.start()
    run(interrupts=True)
    return counted(checks, max(before, tw.get_threads() * callers + 1))


def main(count: int = 4000, seed: int = 0) -> int:
    faulthandler.dump_traceback_later(1800, exit=True)  # a hang is an answer too
    tw.set_threads(4)
    rows = []
    for name in products():
        share = count if name == "batch" else max(1, count // 4)
        for way, counts in (
            ("one caller", one_caller(name, share, seed)),
            ("eight callers", many_callers(name, share, seed)),
            ("storm", storm(name, 5.0)),
        ):
            rows.append({"product": name, "way": way, **counts, "failed": failed(counts)})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    facts = environment(operands="uniform [-1, 1)", command=shlex.join(["python", *sys.argv]))
    print(json.dumps({"kind": "interrupts", "count": count, "seed": seed, "environment": facts, "rows": rows}))
    return int(any(row["failed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
