"""Threads: nobody writes after ``run`` has returned, nothing hangs, and nobody's processors are taken away."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.cpu.codegen import mailbox as mailbox_words
from tilewright.cpu.codegen.mailbox import HAS_FUTEX
from tilewright.cpu.runtime import runner
from tilewright.cpu.runtime.runner import compiled, even_slices, grid, standby
from tilewright.cpu.runtime.threads import CompiledStandby, Crew, Team, _TeamCall, call_words
from tilewright.cpu.runtime.threads import crew as workers
from tilewright.host.limits import use_threads
from tilewright.kernels.catalog import catalog

affinity = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity masks")
futex = pytest.mark.skipif(not HAS_FUTEX, reason="this system has no futex")
two_cpus = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two processors"
)


def nap_then(seen: list[str], word: str, seconds: float = 0.05) -> None:
    time.sleep(seconds)
    seen.append(word)


class OopsError(Exception):
    pass


def oops() -> None:
    raise OopsError


# ---- jobs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_every_job_is_done_once_and_the_first_by_the_caller(count: int) -> None:
    where: dict[int, int] = {}
    Team(count).run([functools.partial(lambda i: where.update({i: threading.get_ident()}), i) for i in range(count)])
    assert sorted(where) == list(range(count))
    assert where[0] == threading.get_ident()
    assert count == 1 or threading.get_ident() not in {where[i] for i in range(1, count)}


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_is_raised_after_all_jobs_are_done(failing: int) -> None:
    seen: list[str] = []
    jobs = [functools.partial(nap_then, seen, str(i)) for i in range(3)]
    jobs[failing] = oops  # type: ignore[assignment]
    with pytest.raises(OopsError):
        Team(3).run(jobs)
    assert len(seen) == 2
    Team(3).run([functools.partial(nap_then, seen, "again", 0.0)] * 3)  # the same threads work on
    assert seen.count("again") == 3


def test_a_worker_that_exits_does_not_take_the_process_with_it() -> None:
    with pytest.raises(SystemExit):
        Team(2).run([lambda: None, lambda: sys.exit(3)])


def test_teams_within_teams() -> None:
    seen: list[str] = []
    leaf = functools.partial(nap_then, seen, "leaf", 0.0)
    Team(2).run([lambda: Team(3).run([leaf] * 3), lambda: Team(2).run([leaf] * 2)])
    assert seen == ["leaf"] * 5


def test_eight_callers_at_once_get_their_own_products() -> None:
    rng = np.random.default_rng(0)
    pairs = [(rng.integers(-4, 5, (330, 300)) * 1.0, rng.integers(-4, 5, (300, 340)) * 1.0) for _ in range(8)]
    wrong: list[int] = []

    def call(index: int) -> None:
        a, b = pairs[index]
        exact = a @ b
        if not all(np.array_equal(tw.matmul(a, b), exact) for _ in range(6)):
            wrong.append(index)

    callers = [threading.Thread(target=call, args=(index,)) for index in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert not any(caller.is_alive() for caller in callers)
    assert not wrong


# ---- whoever comes ------------------------------------------------------------------------------------------------------


def test_rally_does_the_job_here_and_on_whoever_comes() -> None:
    where: list[int] = []
    met = threading.Barrier(3)

    def job() -> None:
        where.append(threading.get_ident())
        met.wait(10)

    Team(3).rally(job)
    assert len(set(where)) == 3
    assert threading.get_ident() in where


def test_rally_waits_for_nobody_who_comes_late() -> None:
    """Workers that sleep are still being woken when a job that takes no time is done; what they find then is nothing."""
    done: list[int] = []
    for _ in range(300):
        Team(3).rally(lambda: done.append(threading.get_ident()))
    here = len(done)
    assert 300 <= here <= 900
    assert done.count(threading.get_ident()) == 300
    time.sleep(0.05)
    assert len(done) == here, "nobody began after rally had returned"


@pytest.mark.parametrize("here", [True, False])
def test_rally_raises_what_any_of_them_raised_when_all_are_done(here: bool) -> None:
    caller, seen, met = threading.get_ident(), [], threading.Barrier(2)

    def job() -> None:
        met.wait(10)
        if (threading.get_ident() == caller) == here:
            raise OopsError
        nap_then(seen, "other")

    with pytest.raises(OopsError):
        Team(2).rally(job)
    assert seen == ["other"]


class Watched:
    """The machine code in which workers wait, and how many calls were posted."""

    def __init__(self) -> None:
        self.posted = 0
        self._real = standby()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def post(self, mailbox: np.ndarray, call: np.ndarray) -> bool:
        taken = self._real.post(mailbox, call)
        self.posted += taken
        return taken


def product_of_a_team(n: int) -> tuple[functools.partial, np.ndarray, np.ndarray]:
    """A job of cpu/packed, the same in words, and where its result appears."""
    kernel = catalog()["cpu/packed"]
    assert kernel.workspace is not None
    assert kernel.counters is not None
    a, b, c = np.ones((n, n)), np.ones((n, n)), np.zeros((n, n))
    space, counters = np.zeros(kernel.workspace(n, n, n)), np.zeros(kernel.counters(n, n, n) + 2, np.int64)
    counters[-1] = 2
    code = compiled(kernel, a.dtype)
    return functools.partial(code, a, b, c, space, counters), call_words(code, a, b, c, space, counters), c


def test_a_call_in_words_and_a_mailbox_have_their_whole_length() -> None:
    """Machine code does not check where it writes."""
    assert product_of_a_team(64)[1].size == mailbox_words.WORDS
    assert (Team(2).run([lambda: None] * 2), workers.workers[0].mailbox.size) == (None, mailbox_words.MAILBOX_WORDS)
    assert workers.workers[0].address % 64 == 0


def test_workers_stand_by_for_the_next_product() -> None:
    watched, deadline = Watched(), time.monotonic() + 30  # other programs may take the worker's processor
    while watched.posted < 10 and time.monotonic() < deadline:
        job, call, c = product_of_a_team(130)
        Team(2).rally(job, call, watched)
        assert (c == 130).all()
    assert watched.posted, "not once in 30 seconds was a worker awake"
    Team(2).run([lambda: None, lambda: None])  # and they do other things at once


@affinity
@two_cpus
def test_nobody_who_stands_by_computes_where_the_caller_may_not() -> None:
    everywhere = os.sched_getaffinity(0)
    watched = Watched()
    job, call, _ = product_of_a_team(64)
    try:
        Team(2).rally(job, call, watched)
        os.sched_setaffinity(0, {min(everywhere)})
        before = watched.posted
        job, call, _ = product_of_a_team(64)
        Team(2).rally(job, call, watched)
        assert watched.posted == before
    finally:
        os.sched_setaffinity(0, everywhere)


def test_who_is_woken_wakes_others() -> None:
    """The caller wakes one of them and goes to work; each of those asleep is seated on a processor that is not taken."""
    met = threading.Barrier(8)
    seen: list[int] = []

    def job() -> None:
        met.wait(10)
        seen.append(threading.get_ident())

    Team(8).rally(job)
    assert len(set(seen)) == 8


@affinity
def test_a_seat_is_kept_until_another_is_taken() -> None:
    """Who stands by where it was seated is not to find another worker woken there."""
    own, allowed = Crew(), os.sched_getaffinity(0)
    workers = own.claim(_TeamCall(), 3)
    here = min(allowed)
    own.seat(workers, here, allowed)
    seats = [worker.seat for worker in workers]
    if None in seats:
        pytest.skip("this system forbids seating")
    assert len(set(seats)) == min(3, max(1, len(allowed) - 1))
    own.seat(workers[:1], here, allowed)
    assert workers[0].seat == seats[0], "the others' are still theirs"


# ---- mailboxes -------------------------------------------------------------------------------------------------------


def an_empty_mailbox(state: int = mailbox_words.AWAY) -> np.ndarray:
    mailbox = np.zeros(mailbox_words.MAILBOX_WORDS, np.int64)
    mailbox[mailbox_words.STATE], mailbox[mailbox_words.PROCESSOR] = state, -1
    return mailbox


def an_empty_call() -> tuple[np.ndarray, int]:
    call = np.zeros(mailbox_words.WORDS, np.int64)
    return call, call.ctypes.data


def owner(mailbox: np.ndarray, awake: bool = True, machine_code: CompiledStandby | None = None) -> threading.Thread:
    """A thread that waits in this mailbox, and has not been called back."""
    stand_by = (machine_code or standby()).stand_by
    thread = threading.Thread(target=stand_by, args=(mailbox, 0, awake), daemon=True)
    thread.start()
    return thread


def becomes(mailbox: np.ndarray, state: int) -> bool:
    deadline = time.monotonic() + 60
    while mailbox[mailbox_words.STATE] != state and time.monotonic() < deadline:
        time.sleep(1e-3)
    return bool(mailbox[mailbox_words.STATE] == state)


@pytest.fixture
def never_asleep(monkeypatch: pytest.MonkeyPatch) -> CompiledStandby:
    """As where the system has no futex."""
    monkeypatch.setattr(standby(), "sleeps", False)
    return standby()


@pytest.mark.thorough
def test_standing_by_ends(never_asleep: CompiledStandby) -> None:
    """Looks at a mailbox to which nothing is posted are bounded; where its owner cannot sleep, it then returns."""
    mailbox = an_empty_mailbox()
    standing = owner(mailbox, machine_code=never_asleep)
    standing.join(60)
    assert not standing.is_alive()
    assert mailbox[mailbox_words.STATE] == mailbox_words.AWAY


def test_a_mailbox_answers_as_its_owner_is(never_asleep: CompiledStandby) -> None:
    real, mailbox, (call, at), (other, elsewhere) = never_asleep, an_empty_mailbox(), an_empty_call(), an_empty_call()
    assert not real.post(mailbox, call), "away"
    mailbox[mailbox_words.STATE] = mailbox_words.STANDING
    assert real.post(mailbox, call)
    assert not real.post(mailbox, other), "one at a time"
    assert mailbox[mailbox_words.STATE] == at
    real.settle(mailbox, elsewhere)
    assert mailbox[mailbox_words.STATE] == at, "that of another caller"
    real.settle(mailbox, at)
    assert mailbox[mailbox_words.STATE] == mailbox_words.STANDING, "taken back"
    real.stand_by(mailbox, 0, True)
    assert mailbox[mailbox_words.STATE] == mailbox_words.AWAY


def test_what_was_posted_to_a_sleeper_is_taken_back_as_it_was() -> None:
    real, mailbox, (call, at) = standby(), an_empty_mailbox(mailbox_words.SLEEPING), an_empty_call()
    assert real.post(mailbox, call)
    assert mailbox[mailbox_words.STATE] == at + mailbox_words.SLEEPING
    real.settle(mailbox, at)
    assert mailbox[mailbox_words.STATE] == mailbox_words.SLEEPING


@futex
@pytest.mark.parametrize("awake", [True, False])
def test_an_owner_falls_asleep_is_roused_and_is_called_back(awake: bool) -> None:
    mailbox = an_empty_mailbox()
    waiting = owner(mailbox, awake)
    assert becomes(mailbox, mailbox_words.SLEEPING)
    assert standby().rouse([mailbox], -1) == [True]
    assert mailbox[mailbox_words.BELL] == mailbox_words.RING
    assert becomes(mailbox, mailbox_words.SLEEPING), "again, for nothing was posted"
    standby().call_back(mailbox)
    waiting.join(60)
    assert not waiting.is_alive()
    assert mailbox[mailbox_words.STATE] == mailbox_words.AWAY


@futex
def test_an_owner_that_was_called_back_before_it_came_returns() -> None:
    """It had looked into its inbox before the job was there, and falls asleep after it was called."""
    mailbox = an_empty_mailbox()
    standby().call_back(mailbox)
    waiting = owner(mailbox)
    waiting.join(60)
    assert not waiting.is_alive()


@pytest.mark.slow
@futex
def test_no_call_to_python_is_lost_at_any_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are given around the moment at which the worker falls asleep."""
    monkeypatch.setattr(standby(), "_looks", 2000)
    done: list[int] = []
    rng = np.random.default_rng(0)
    for number in range(2000):
        Team(2).wake(standby())
        end = time.perf_counter() + rng.uniform(0, 2e-4)
        while time.perf_counter() < end:
            pass
        Team(2).run([lambda: None, functools.partial(done.append, number)])
    assert done == list(range(2000))


@pytest.mark.slow
@futex
def test_sleeping_workers_take_no_processor_time() -> None:
    a = np.ones((300, 300), np.float32)
    with use_threads(4):
        tw.matmul(a, a)
        Team(4).rally(*product_of_a_team(300)[:2], standby())
    assert all(becomes(worker.mailbox, mailbox_words.SLEEPING) for worker in workers.workers[:3])

    def used() -> float:
        return sum(time.clock_gettime(time.pthread_getcpuclockid(worker.ident)) for worker in workers.workers[:3])

    time.sleep(0.05)  # they have said that they sleep, and are about to
    before = used()
    time.sleep(0.3)
    assert used() - before < 1e-4


@futex
def test_a_sleeping_worker_is_woken_by_machine_code_and_computes() -> None:
    """The caller computes nothing of this product until the worker has begun: its wake-up is what ends the wait."""
    mailbox = an_empty_mailbox()
    waiting = owner(mailbox, awake=False)
    assert becomes(mailbox, mailbox_words.SLEEPING)
    _, call, c = product_of_a_team(130)
    boxes = np.array([mailbox.ctypes.data], np.int64)
    standby().begin(call, boxes, -1)
    assert standby().post(mailbox, call)
    standby().wake(call, boxes)
    deadline = time.monotonic() + 60
    while mailbox[mailbox_words.STATE] != mailbox_words.STANDING and time.monotonic() < deadline:
        time.sleep(1e-3)
        if mailbox[mailbox_words.STATE] == mailbox_words.SLEEPING:
            break
    standby().settle(mailbox, call.ctypes.data)
    assert (c == 130).all()
    standby().call_back(mailbox)
    waiting.join(60)


def sleepers_on(processors: list[int], count: int) -> list[np.ndarray]:
    """Mailboxes of owners that do not exist, and that may run on these processors."""
    sleepers = [an_empty_mailbox(mailbox_words.SLEEPING) for _ in range(count)]
    for box in sleepers:
        for processor in processors:
            box[mailbox_words.SET + processor // 64] |= np.int64(1) << (processor % 64)
    return sleepers


def posted_to(sleepers: list[np.ndarray], here: int = -1) -> tuple[np.ndarray, np.ndarray]:
    call, boxes = np.zeros(mailbox_words.WORDS, np.int64), np.array([box.ctypes.data for box in sleepers], np.int64)
    standby().begin(call, boxes, here)
    for box in sleepers:
        assert standby().post(box, call)
    return call, boxes


@futex
def test_a_caller_wakes_some_of_those_that_have_its_call() -> None:
    sleepers = sleepers_on([], 13)
    call, boxes = posted_to(sleepers)
    sleepers[1][mailbox_words.STATE] += 1 << 20  # another call
    standby().wake(call, boxes)
    assert [int(box[mailbox_words.BELL]) for box in sleepers] == [1, 0, 1, 1, 1] + [0] * 8


@futex
def test_sleepers_wake_on_processors_of_their_own() -> None:
    """Each where it ran last, but not on the caller's; when all are taken, Linux decides."""
    sleepers = sleepers_on([1, 2, 63, 64, 200], 6)
    for box, last in zip(sleepers, [63, 2, 2, 64, 1, 1], strict=True):
        box[mailbox_words.PROCESSOR] = last
    posted_to(sleepers, here=64)
    assert [int(box[mailbox_words.SEAT]) for box in sleepers] == [63, 2, 1, 200, -1, -1]


@futex
@affinity
def test_an_owner_that_was_woken_may_run_where_it_could_before() -> None:
    mailbox, everywhere = an_empty_mailbox(), os.sched_getaffinity(0)
    waiting = owner(mailbox, awake=False)
    assert becomes(mailbox, mailbox_words.SLEEPING)
    assert standby().rouse([mailbox], -1) == [True]
    assert mailbox[mailbox_words.SEAT] in everywhere
    thread, deadline = int(mailbox[mailbox_words.THREAD]), time.monotonic() + 60
    while os.sched_getaffinity(thread) != everywhere and time.monotonic() < deadline:
        time.sleep(1e-3)
    assert os.sched_getaffinity(thread) == everywhere
    standby().call_back(mailbox)
    waiting.join(60)


@affinity
def test_nothing_is_posted_to_an_owner_on_the_callers_processor() -> None:
    real, mailbox = standby(), an_empty_mailbox(mailbox_words.STANDING)
    everywhere = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(everywhere)})
        mailbox[mailbox_words.PROCESSOR] = min(everywhere)
        assert not real.post(mailbox, an_empty_call()[0])
        assert mailbox[mailbox_words.LEAVE], "it is to be woken elsewhere"
    finally:
        os.sched_setaffinity(0, everywhere)


def test_an_owner_that_misses_many_calls_is_to_leave() -> None:
    real, mailbox, (call, at) = standby(), an_empty_mailbox(mailbox_words.STANDING), an_empty_call()
    missed = 0
    while real.post(mailbox, call):
        real.settle(mailbox, at)
        missed += 1
        assert missed < 100
    assert missed > 1
    assert mailbox[mailbox_words.LEAVE]


@futex
def test_an_owner_that_is_to_leave_falls_asleep_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby(), "_looks", 1 << 60)
    mailbox = an_empty_mailbox()
    waiting = owner(mailbox)
    assert becomes(mailbox, mailbox_words.STANDING)
    mailbox[mailbox_words.LEAVE] = 1
    assert becomes(mailbox, mailbox_words.SLEEPING)
    standby().call_back(mailbox)
    waiting.join(60)
    assert not waiting.is_alive()


def test_a_worker_without_memory_is_an_error_of_the_call() -> None:
    """A kernel in machine code says that it found no memory; its part of C is missing."""

    class Poor(Watched):
        def failed(self, call: np.ndarray) -> bool:  # noqa: ARG002
            return True

    job, call, _ = product_of_a_team(64)
    with pytest.raises(MemoryError, match="found no memory"):
        Team(2).rally(job, call, Poor())


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("caller_s", [0.0, 0.3], ids=["waiting for the others", "at its own job"])
def test_ctrl_c_is_raised_when_nobody_writes_any_more(caller_s: float) -> None:
    seen: list[str] = []
    interrupt = functools.partial(os.kill, os.getpid(), signal.SIGINT)
    timers = [threading.Timer(after, interrupt) for after in (0.05, 0.1)]  # impatient: twice
    for timer in timers:
        timer.start()
    with pytest.raises(KeyboardInterrupt):
        Team(3).run([lambda: time.sleep(caller_s), *[functools.partial(nap_then, seen, "worker", 0.2)] * 2])
    assert seen == ["worker", "worker"]
    for timer in timers:
        timer.join()
    Team(2).run([lambda: None, functools.partial(nap_then, seen, "later", 0.0)])
    assert seen[-1] == "later"


def test_ctrl_c_outranks_an_error_of_a_worker() -> None:
    def press_then_fail() -> None:
        time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.05)
        raise OopsError

    with pytest.raises(KeyboardInterrupt):
        Team(2).run([lambda: None, press_then_fail])


# ---- fork ------------------------------------------------------------------------------------------------------------

FORK = """
import os, warnings, numpy as np, tilewright as tw
warnings.simplefilter("ignore", DeprecationWarning)  # Python's own about forking with threads: the point of this test
from tilewright.host.machine import machine
from tilewright.cpu.runtime.threads import Team
a = np.random.default_rng(0).integers(-4, 5, (400, 400)) * 1.0
right = lambda: np.array_equal(tw.matmul(a, a), a @ a)
assert tw.plan(a, a).threads > 1 or machine().usable_cores == 1
Team(3).run([lambda: None] * 3)
assert right()
child = os.fork()
if child == 0:
    os._exit(0 if right() and right() else 1)
assert right()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_parent_and_child_multiply_after_a_fork() -> None:
    command = [sys.executable, "-c", FORK]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert answer.stdout.split() == ["0"]


EXIT = """
import time, numpy as np, tilewright as tw
from tilewright.cpu.runtime.runner import standby
from tilewright.cpu.runtime.threads import Team
from tilewright.cpu.runtime.threads import crew
tw.set_threads(4)
Team(4).wake(standby())
tw.matmul(np.ones((300, 300)), np.ones((300, 300)))
while {asleep} and not all(worker.mailbox[0] == 2 for worker in crew.workers):
    time.sleep(1e-3)
print(len(crew.workers))
"""


@pytest.mark.slow
@futex
@pytest.mark.parametrize("asleep", [True, False])
def test_an_interpreter_that_ends_leaves_its_workers_where_they_are(asleep: bool) -> None:
    command = [sys.executable, "-c", EXIT.format(asleep=asleep)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert (answer.stdout.split(), answer.stderr) == (["3"], "")


# ---- no more threads ---------------------------------------------------------------------------------------------------

REFUSED = """
import _thread, faulthandler, threading, numpy as np, tilewright as tw
from tilewright.errors import UnavailableError
from tilewright.cpu.runtime.interrupts import run_on_thread
from tilewright.cpu.runtime.threads import Team
faulthandler.dump_traceback_later(100, exit=True)
tw.set_threads(4)
start, left = threading.Thread.start, {left}
def refuse(*_):
    global left
    left -= 1
    if left < 0:
        raise RuntimeError("can't start new thread")
    start(*_)
threading.Thread.start = refuse
if {all}:
    _thread.start_new_thread = refuse
a = np.random.default_rng(0).integers(-4, 5, (700, 700)) * 1.0
batch = a[:640].reshape(64, 70, 100)
for _ in range(2):
    assert np.array_equal(tw.matmul(a, a), a @ a)
    assert np.array_equal(tw.matmul(batch, a[:100, :90]), batch @ a[:100, :90])
seen = []
Team(4).run([lambda i=i: seen.append(i) for i in range(4)])
assert sorted(seen) == list(range(4)), seen
try:
    run_on_thread(lambda: 1 / 0, stop=print)
except ZeroDivisionError:
    print("raised")
try:
    tw.multiply(a, a, device="cpu", memory="64MiB")
except UnavailableError as error:
    print(error)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("left", "every"), [(0, True), pytest.param(0, False, marks=pytest.mark.further), (2, False)])
def test_products_go_on_with_the_threads_that_the_system_starts(left: int, every: bool) -> None:
    """As under a limit of processes: no error, no wrong product, and no wait for a thread that does not exist."""
    command = [sys.executable, "-c", REFUSED.format(left=left, all=every)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 0, answer.stderr
    raised, refused = answer.stdout.splitlines()
    assert raised == "raised"
    assert refused.startswith("the system starts no more threads, and this product needs several: raise the limit")


# ---- processors ------------------------------------------------------------------------------------------------------


@affinity
def test_affinity_of_caller_and_workers() -> None:
    """A worker is woken on a processor of its own, and by the time it computes it may move as the caller may."""
    before = os.sched_getaffinity(0)
    seen: list[set[int]] = []
    Team(3).run([lambda: seen.append(os.sched_getaffinity(0))] * 3)
    assert seen == [before] * 3
    assert os.sched_getaffinity(0) == before


@affinity
@two_cpus
def test_callers_on_different_processors_keep_theirs() -> None:
    """Each caller's workers compute where that caller may, however the calls interleave."""
    everywhere = os.sched_getaffinity(0)
    wrong: list[set[int]] = []

    def call(mask: set[int]) -> None:
        os.sched_setaffinity(0, mask)
        for _ in range(200):
            seen: list[set[int]] = []
            Team(2).run([lambda: None, lambda seen=seen: seen.append(os.sched_getaffinity(0))])
            wrong.extend(s for s in seen if s != mask)

    masks = [everywhere, {min(everywhere)}, {max(everywhere)}]
    callers = [threading.Thread(target=call, args=(mask,)) for mask in masks]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert not wrong
    assert os.sched_getaffinity(0) == everywhere


@affinity
def test_one_processor_is_enough() -> None:
    before = os.sched_getaffinity(0)
    seen: list[set[int]] = []
    try:
        os.sched_setaffinity(0, {min(before)})
        Team(3).run([lambda: seen.append(os.sched_getaffinity(0))] * 3)
    finally:
        os.sched_setaffinity(0, before)
    assert seen == [{min(before)}] * 3


@affinity
def test_a_system_that_forbids_seating_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError("not in this container")

    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    seen: list[str] = []
    Team(3).run([functools.partial(nap_then, seen, "done", 0.0)] * 3)
    assert seen == ["done"] * 3


# ---- cuts ------------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(length=st.integers(1, 3000), each=st.integers(1, 1 << 31), bands=st.integers(1, 20))
@example(length=20, each=400**3, bands=2)
def test_portions_of_a_batch_partition_it(length: int, each: int, bands: int) -> None:
    portions = runner._portions(length, length * each, bands)
    assert sorted(i for portion in portions for i in range(portion.start, portion.stop)) == list(range(length))
    sizes = [portion.stop - portion.start for portion in portions]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) >= min(bands, length)
    assert max(sizes) == 1 or max(sizes) * each <= 2 * runner.PORTION
    assert set(sizes) != {1, 2} or bands == 1, "a thread with a portion of two at the end keeps the others waiting"


@settings(deadline=None)
@given(length=st.integers(0, 10_000), parts=st.integers(1, 70), grain=st.integers(1, 300))
def test_cuts_partition_exactly(length: int, parts: int, grain: int) -> None:
    slices = even_slices(length, parts, grain)
    assert slices[0].start == 0
    assert slices[-1].stop == length
    assert all(a.stop == b.start for a, b in itertools.pairwise(slices))
    assert len(slices) <= parts
    assert all(s.stop > s.start for s in slices) or length == 0
    assert all(s.stop % grain == 0 for s in slices[:-1])
    sizes = [-(-(s.stop - s.start) // grain) for s in slices]
    assert max(sizes) - min(sizes) <= 1, "nearly equal, counted in grains"


@settings(deadline=None)
@given(m=st.integers(0, 10_000), n=st.integers(0, 10_000), threads=st.integers(1, 64))
def test_grid_uses_every_thread_with_the_least_reading(m: int, n: int, threads: int) -> None:
    across, along = grid(m, n, threads)
    assert across * along == threads
    for p in (p for p in range(1, threads + 1) if threads % p == 0):
        assert along * m + across * n <= (threads // p) * m + p * n


@settings(deadline=None)
@given(
    m=st.integers(0, 300),
    n=st.integers(0, 300),
    threads=st.integers(1, 16),
    grains=st.tuples(*[st.integers(1, 70)] * 2),
)
def test_rectangles_cover_c_once(m: int, n: int, threads: int, grains: tuple[int, int]) -> None:
    covered = np.zeros((m, n), np.int8)
    across, along = grid(m, n, threads)
    for rows, columns in itertools.product(even_slices(m, across, grains[0]), even_slices(n, along, grains[1])):
        covered[rows, columns] += 1
    assert (covered == 1).all()
