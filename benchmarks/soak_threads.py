"""Products by many callers under overload, interrupts and forks: none may be wrong, and none may take long.

``python benchmarks/soak_threads.py [SECONDS] [SEED]`` runs for ``SECONDS`` (600 by default). Other processes keep every
processor busy meanwhile, half of the time. Several threads multiply matrices of many sizes, by each way in which threads
share a product, with pauses of all lengths between, so that workers stand by, fall asleep and are woken all the time; they
also run jobs that only Python can run. A timer interrupts the main thread's products at random moments, and it forks now and
then, and its children multiply, too. Every product is compared with the one of NumPy.

A watchdog prints the mailboxes of all workers and the stacks of all threads, and exits with 1, if a call takes more than
five seconds while the processors are not overloaded, or thirty while they are. Prints what was counted as one JSON object;
exits with 1 if a product was wrong.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from types import FrameType
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.cpu.codegen import crew as protocol
from tilewright.cpu.runtime.runner import standby
from tilewright.cpu.runtime.threads import Team, crew
from tilewright.lab.inputs.environment import environment

#: Seconds that a call may take while other programs keep every processor busy, and otherwise.
LIMIT_BUSY, LIMIT = 30.0, 5.0
CALLERS = 4
#: Seconds of a fit of overload, and of the quiet after it.
FIT = 5.0
#: What keeps a processor busy, until its parent ends.
BUSY = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
while os.getppid() == int(sys.argv[2]):
    sum(range(100_000))
"""

STATES = {protocol.AWAY: "away", protocol.STANDING: "standing", protocol.SLEEPING: "sleeping"}


class StopError(BaseException):
    """What an interrupt raises."""


# ---- what is called --------------------------------------------------------------------------------------------------


class Products:
    """Operands whose products are whole numbers, which every order of sums gives exactly."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        shapes = [(n, n, n) for n in (96, 130, 200, 256, 320, 420)] + [(1, 1500, 1500), (40, 20, 9000), (700, 64, 64)]
        self.cases = []
        for number, (m, n, k) in enumerate(shapes):
            dtype = ("float32", "float64")[number % 2]
            a, b = (rng.integers(-4, 5, shape).astype(dtype) for shape in ((m, k), (k, n)))
            self.cases.append((a, b, a @ b))

    def one(self, rng: np.random.Generator) -> bool:
        """A product, or jobs of Python on a team; whether it was right."""
        what = int(rng.integers(len(self.cases) + 2))
        if what >= len(self.cases):
            done: list[int] = []
            threads = int(rng.integers(2, 5))
            Team(threads).run([functools.partial(done.append, number) for number in range(threads)])
            return sorted(done) == list(range(threads))
        a, b, expected = self.cases[what]
        return bool(np.array_equal(tw.matmul(a, b, out=np.full_like(expected, np.nan)), expected))


# ---- what happens meanwhile ------------------------------------------------------------------------------------------


class Overload:
    """Processes that keep the processors busy: two on each."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", BUSY]
        where = sorted(os.sched_getaffinity(0)) * 2
        self._processes = [subprocess.Popen([*command, str(at), str(os.getpid())]) for at in where]
        self.rest()

    def rest(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGSTOP)

    def work(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


# ---- who watches -----------------------------------------------------------------------------------------------------


class Watchdog:
    """Knows since when each thread is in a call."""

    def __init__(self) -> None:
        self.since: dict[str, float] = {}
        self.longest: Counter[str] = Counter()
        self.busy = False
        self.changed = time.monotonic()
        self.overload = Overload()

    def call(self, who: str, product: functools.partial[bool]) -> bool:
        self.since[who] = start = time.monotonic()
        try:
            return product()
        finally:
            self.since.pop(who, None)
            way = "busy" if self.busy else "quiet"
            self.longest[way] = max(self.longest[way], round(1e3 * (time.monotonic() - start)))

    def look(self) -> None:
        while True:
            time.sleep(0.5)
            now = time.monotonic()
            late = [who for who, since in self.since.copy().items() if now - since > LIMIT_BUSY]
            if not self.busy and now - self.changed > LIMIT:
                late += [who for who, since in self.since.copy().items() if now - max(since, self.changed) > LIMIT]
            if late:
                print("a call takes too long:", late, mailboxes(), file=sys.stderr, flush=True)
                faulthandler.dump_traceback(all_threads=True)
                self.overload.end()
                os._exit(1)


def mailboxes() -> str:
    """The state of every worker, and whether something waits in its inbox."""
    lines = []
    for number, worker in enumerate(crew.workers):
        box = [int(word) for word in worker.mailbox]
        state = STATES.get(box[protocol.STATE]) or f"call {box[protocol.STATE]:x}"
        inbox = "empty" if worker.inbox.empty() else "not empty"
        claimed = worker in crew.claims
        bell = f"bell {box[protocol.BELL] & 0xFFFFFFFF}, called back {box[protocol.BELL] >> 32}"
        lines.append(
            f"\n  worker {number}: {state}, leave {box[protocol.LEAVE]}, {bell}, inbox {inbox}, claimed {claimed}"
        )
    return "".join(lines)


# ---- the run ---------------------------------------------------------------------------------------------------------


def interrupt(_: int, frame: FrameType | None) -> None:
    """Raises in the product, and nothing in what is around it."""
    while frame is not None:
        if frame.f_code is Products.one.__code__:
            raise StopError
        frame = frame.f_back


def child_is_right(products: Products, seed: int) -> bool:
    """Whether a forked child multiplies, and ends."""
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(60, exit=True)
        rng = np.random.default_rng(seed)
        os._exit(0 if all(products.one(rng) for _ in range(5)) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def pause(rng: np.random.Generator) -> None:
    """None, one while workers stand by, around the moment when they fall asleep, or a long one."""
    kind = int(rng.integers(4))
    if kind:
        time.sleep(float(rng.uniform(0, (1e-4, 2e-3, 1e-2)[kind - 1])))


def caller(number: int, end: float, seed: int, products: Products, watchdog: Watchdog, counts: Counter[str]) -> None:
    rng = np.random.default_rng([seed, number])
    while time.monotonic() < end:
        counts["products"] += 1
        counts["wrong"] += not watchdog.call(f"caller {number}", functools.partial(products.one, rng))
        pause(rng)


def main_caller(end: float, seed: int, products: Products, watchdog: Watchdog, counts: Counter[str]) -> None:
    rng = np.random.default_rng([seed, CALLERS])
    overload, fit = watchdog.overload, time.monotonic() + FIT
    try:
        while time.monotonic() < end:
            if time.monotonic() > fit:
                fit += FIT
                (overload.rest if watchdog.busy else overload.work)()
                watchdog.busy, watchdog.changed = not watchdog.busy, time.monotonic()
            counts["products"] += 1
            if rng.random() < 0.5:
                signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(2e-5, 2e-3)))
            try:
                counts["wrong"] += not watchdog.call("main", functools.partial(products.one, rng))
            except StopError:
                counts["interrupted"] += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            if rng.random() < 0.004:
                counts["forks"] += 1
                counts["wrong in a child"] += not watchdog.call(
                    "fork", functools.partial(child_is_right, products, int(rng.integers(1 << 30)))
                )
            pause(rng)
    finally:
        overload.end()


def soak(seconds: float, seed: int = 0) -> dict[str, Any]:
    """Run for so many seconds; returns what was counted, and the longest calls in milliseconds."""
    signal.signal(signal.SIGALRM, interrupt)
    tw.set_threads(4)
    standby()._looks //= 5  # they fall asleep five times as often
    products, watchdog = Products(seed), Watchdog()
    rng = np.random.default_rng(seed)
    for _ in range(50):
        products.one(rng)
    threading.Thread(target=watchdog.look, daemon=True).start()
    end, counts = time.monotonic() + seconds, [Counter[str]() for _ in range(CALLERS + 1)]
    with_all = (end, seed, products, watchdog)
    threads = [threading.Thread(target=caller, args=(number, *with_all, counts[number])) for number in range(CALLERS)]
    for thread in threads:
        thread.start()
    main_caller(*with_all, counts[CALLERS])
    for thread in threads:
        thread.join()
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    bells = sum(int(worker.mailbox[protocol.BELL]) & 0xFFFFFFFF for worker in crew.workers)
    left = {"workers": len(crew.workers), "left claimed": len(crew.claims), "wake-ups": bells}
    return {**total, **left, "longest, ms": dict(watchdog.longest)}


def main(seconds: float = 600.0, seed: float = 0) -> int:
    counts = soak(seconds, int(seed))
    facts = environment(operands="whole numbers from -4 to 4", command=shlex.join(["python", *sys.argv]))
    print(json.dumps({"kind": "soak", "seconds": seconds, "seed": int(seed), **counts, "environment": facts}))
    return int(counts["wrong"] + counts["wrong in a child"] + counts["left claimed"] > 0)


if __name__ == "__main__":
    sys.exit(main(*map(float, sys.argv[1:])))
