"""Whatever fails on a cluster, no finished tile is computed again, the bits stay, and nothing is left on the workers.

Most faults are planted in workers that are threads of the test's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

import tilewright as tw
from support.local_cluster import local_cluster
from tilewright.errors import ClusterError, FileError, MemoryLimitError, ResumeError, UsageError
from tilewright.large.cluster import connect, feed, placement, session
from tilewright.large.cluster.order import PlannedOrder, WorkerFacts
from tilewright.large.files import create_matrix, plain
from tilewright.large.multiply import job_on
from tilewright.large.streaming.options import Options
from tilewright.large.streaming.places import places
from tilewright.large.streaming.places.places import HostPlace
from tilewright.large.streaming.plan import stream
from tilewright.large.streaming.run.journal import Journal

M, K, N = 768, 512, 768
MEMORY = "8MiB"
A, B = (np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32) for shape in ((M, K), (K, N)))
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "cluster_faults.py"


@pytest.fixture(scope="module")
def threads() -> Iterator[LocalCluster]:
    """Two workers in this process, without a limit: Dask pauses workers for what other tests of the process took, too."""
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, memory_limit=0, dashboard_address=":0"
    ) as cluster:
        yield cluster


@pytest.fixture
def client(threads: LocalCluster) -> Iterator[Client]:
    with Client(threads, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=30)
        yield client
        assert not session._sessions, "sessions are left"
        until = time.monotonic() + 5
        while client.futures:  # they are released on the client's own thread
            assert time.monotonic() < until, "the client still wants tasks"
            time.sleep(0.01)


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", A)
    np.save("b.npy", B)
    monkeypatch.setattr(feed, "LOOK_S", 0.1)


@pytest.fixture(autouse=True)
def many_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """C is cut into nine tiles or more, even where the machine's speeds suggest fewer: so that there is a middle of it."""
    every = stream.cuts
    monkeypatch.setattr(
        stream, "cuts", lambda *sizes, **small: [grid for grid in every(*sizes, **small) if math.prod(grid.tiles) >= 9]
    )


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tile takes a while."""
    multiply = HostPlace.multiply

    def slowly(*args: Any) -> None:
        time.sleep(0.05)
        multiply(*args)

    monkeypatch.setattr(HostPlace, "multiply", slowly)


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], bool]], None]:
    """``paused(until)``: after three blocks nothing is multiplied until a condition holds, at the latest after 30 s."""
    multiply, begun = HostPlace.multiply, []

    def paused(until: Callable[[], bool]) -> None:
        def waits(*args: Any) -> None:
            begun.append(None)
            end = time.monotonic() + 30
            while len(begun) > 3 and not until() and time.monotonic() < end:
                time.sleep(0.002)
            multiply(*args)

        monkeypatch.setattr(HostPlace, "multiply", waits)

    return paused


@pytest.fixture
def journalled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The tiles that are written to a journal."""
    tiles: list[tuple[int, int]] = []
    add = Journal.add

    def noted(journal: Journal, tile: Any) -> None:
        add(journal, tile)
        tiles.append(tuple(tile))

    monkeypatch.setattr(Journal, "add", noted)
    return tiles


def multiply(client: Any, **options: Any) -> None:
    tw.multiply("a.npy", "b.npy", "c.npy", cluster=client, memory=MEMORY, device="cpu", **options)


def check() -> None:
    np.testing.assert_array_equal(np.load("c.npy"), A @ B)
    assert not Path("c.npy.tilewright").exists()


def when(condition: Callable[[], bool], then: Callable[[], object]) -> threading.Thread:
    """A thread that calls ``then`` as soon as the condition holds, at the latest after 30 s."""

    def wait() -> None:
        until = time.monotonic() + 30
        while not condition() and time.monotonic() < until:
            time.sleep(0.002)
        then()

    thread = threading.Thread(target=wait)
    _started.append(thread)
    thread.start()
    return thread


#: The threads of ``when``.
_started: list[threading.Thread] = []


@pytest.fixture(autouse=True)
def joined() -> Iterator[None]:
    """No thread of ``when`` outlives its test, even if the test fails before it joins it."""
    yield
    while _started:
        _started.pop().join()


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("where", ["_write", "flush"])
def test_a_store_that_fails_once(where: str, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the last flush fails, no later tile would bring the error to light."""
    right, calls = getattr(plain.PlainWriter, where), []

    def fails_once(*args: Any) -> None:
        calls.append(None)
        if len(calls) == 3:
            raise OSError(5, "Input/output error")
        right(*args)

    monkeypatch.setattr(plain.PlainWriter, where, fails_once)
    multiply(client)
    assert len(calls) > 3
    check()


@pytest.mark.slow
def test_a_disk_that_is_full_keeps_the_tiles(
    client: Client, journalled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    right, calls = plain.PlainWriter._write, itertools.count()

    def full(*args: Any) -> None:
        if next(calls) >= 2:
            until = time.monotonic() + 30
            while len(journalled) < 2 and time.monotonic() < until:
                time.sleep(0.002)
            raise OSError(28, "No space left on device")
        right(*args)

    with monkeypatch.context() as patched:
        patched.setattr(plain.PlainWriter, "_write", full)
        with pytest.raises(FileError, match="the disk is full") as caught:
            multiply(client)
    assert "\n" not in str(caught.value)
    kept = list(journalled)
    assert len(kept) >= 2
    multiply(client, resume=True)
    assert len(set(journalled)) == len(journalled) > len(kept), "a finished tile was computed again"
    check()


@pytest.mark.slow
def test_a_worker_that_cannot_write_leaves_its_tiles_to_the_other(
    client: Client, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    attached, bad = session._open_result, sorted(connect.workers_alive(client))[0]

    def refuse(work: PlannedOrder, stack: contextlib.ExitStack, worker: str) -> Any:
        if worker == bad:
            raise ClusterError("read-only here")
        return attached(work, stack, worker)

    monkeypatch.setattr(session, "_open_result", refuse)
    with job_on(client, "a.npy", "b.npy", "c.npy", Options(memory=MEMORY, device="cpu")) as job:
        job.run()
        assert bad not in job.measured.read_by
    check()


@pytest.mark.slow
def test_an_error_of_another_kind_names_worker_and_tile(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: Any) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(HostPlace, "multiply", wrong)
    with pytest.raises(ClusterError, match=r"worker inproc://\S+ failed at tile \(\d+, \d+\): RuntimeError: a defect"):
        multiply(client)


def test_an_operand_that_changes_meanwhile(client: Client, paused: Any, journalled: list[Any]) -> None:
    changed = threading.Event()

    def change() -> None:
        with Path("a.npy").open("r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(np.float32(9).tobytes())
        changed.set()

    paused(changed.is_set)
    changing = when(lambda: len(journalled) >= 2, change)
    with pytest.raises(ResumeError, match="a was changed while it was multiplied"):
        multiply(client)
    changing.join()
    assert not list(Path().glob("c.npy*"))


def test_too_little_memory_says_how_much_is_needed(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "LEAST_LIMIT", 1)
    with pytest.raises(MemoryError, match=r"need"):
        tw.multiply("a.npy", "b.npy", "c.npy", cluster=client, memory="1MiB", device="cpu")


@pytest.mark.parametrize("state", ["closed", "asynchronous"])
def test_a_client_that_cannot_be_used(state: str, threads: LocalCluster) -> None:
    async def use() -> None:
        async with Client(threads.scheduler_address, asynchronous=True, set_as_default=False) as client:
            with pytest.raises(UsageError, match="an asynchronous client"):
                multiply(client)

    if state == "asynchronous":
        asyncio.run(use())
        return
    with Client(threads, set_as_default=False) as client:
        pass
    with pytest.raises(ClusterError, match="connection to its scheduler is closed"):
        multiply(client)


def test_an_address_of_an_unknown_kind(threads: LocalCluster) -> None:
    with pytest.raises(UsageError, match=r"cluster 'foo://host:1': unknown address scheme"):
        multiply("foo://host:1")


# ---- workers that begin ----------------------------------------------------------------------------------------------


@pytest.fixture
def slow_to_answer(client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Workers answer when the event is set, which is longer than a silence may last."""
    facts, goes_on = session._measured_facts, threading.Event()

    def late(*args: Any) -> WorkerFacts:
        assert goes_on.wait(30)
        return facts(*args)

    monkeypatch.setattr(session, "_measured_facts", late)
    monkeypatch.setattr(placement, "ANSWER_S", 0.2)
    monkeypatch.setattr(placement, "HEARD_S", 0.01)
    yield goes_on
    goes_on.set()


def test_workers_of_which_the_scheduler_hears_are_waited_for(
    client: Client, slow_to_answer: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine, where the first product compiles for minutes."""
    moments = itertools.count()

    def heard(_: Client) -> dict[str, float]:
        moment = next(moments)
        if moment == 12:  # 12 looks take more than twice as long as a silence may
            slow_to_answer.set()
        return {"a worker": float(moment)}

    monkeypatch.setattr(placement, "last_heard", heard)
    begun = time.monotonic()
    multiply(client)
    assert time.monotonic() > begun + 2 * placement.ANSWER_S
    check()


@pytest.mark.parametrize("said", [{}, {"a worker": 7.0}])
def test_workers_that_are_silent_are_not(
    said: dict[str, float], client: Client, slow_to_answer: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "last_heard", lambda _: said)
    connect._endings.clear()
    with pytest.raises(ClusterError, match=r"no worker answered, and for 0 s nothing was heard .*: their logs say why"):
        multiply(client)


def test_what_the_scheduler_hears_of_workers_changes_and_paused_ones_are_left_out(client: Client) -> None:
    first = connect.last_heard(client)
    assert set(first) == connect.workers_alive(client)
    until = time.monotonic() + 30
    while connect.last_heard(client) == first:
        assert time.monotonic() < until
        time.sleep(0.05)

    class Paused:
        def scheduler_info(self, n_workers: int) -> dict[str, Any]:  # noqa: ARG002
            return {"workers": {"there": {"status": "paused", "last_seen": 1.0}}}

    assert connect.last_heard(Paused()) == {}


def test_workers_that_die_before_they_answer_are_given_up_with_their_end(
    client: Client, slow_to_answer: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive, looks, moments = connect.workers_alive(client), itertools.count(), itertools.count()
    monkeypatch.setattr(placement, "workers_alive", lambda _: frozenset() if next(looks) % 2 else alive)
    monkeypatch.setattr(placement, "last_heard", lambda _: {"a worker": float(next(moments))})
    monkeypatch.setattr(connect, "_endings", ["Worker process 5 was killed by signal 9"])
    with pytest.raises(
        ClusterError, match=r"[4-9] workers died before they .*: Worker process 5 was killed by signal 9"
    ):
        multiply(client)


def test_a_local_worker_that_does_not_start_says_how_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "_IGNORE_INTERRUPTS", "import os; os._exit(3)")
    with pytest.raises(ClusterError, match=r"a worker of local:1 did not start \(.*\): .*exited with status 3$"):
        multiply("local:1")


# ---- workers ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_tile_that_is_late_is_computed_elsewhere_and_never_written_afterwards(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a worker that is paused, and continues after the result was finished and changed."""
    right, paused, goes_on = HostPlace.multiply, threading.Event(), threading.Event()

    def pauses(*args: Any) -> None:
        if not paused.is_set():
            paused.set()
            assert goes_on.wait(30)
        right(*args)

    monkeypatch.setattr(HostPlace, "multiply", pauses)
    for name, seconds in (("LATE_S", 0.3), ("END_S", 0.2)):
        monkeypatch.setattr(feed, name, seconds)
    monkeypatch.setattr(session, "END_S", 0.2)
    multiply(client)
    check()
    assert session._sessions, "the paused session is there still"
    (left,) = session._sessions
    changed = np.load("c.npy", mmap_mode="r+")
    changed[:] = 7
    changed.flush()
    goes_on.set()
    assert left.ended.wait(10)
    assert (np.load("c.npy") == 7).all()


@pytest.mark.parametrize("name", ["c.npy", "c.zarr"])
def test_a_writer_of_a_finished_result_is_refused(name: str) -> None:
    sink = create_matrix(name, (4, 4), np.dtype(np.float32))
    writer = sink.attachment()()
    writer.write(slice(0, 4), slice(0, 4), np.ones((4, 4), np.float32))
    sink.finish()
    with pytest.raises(FileError, match="was finished or removed"):
        writer.write(slice(0, 4), slice(0, 4), np.zeros((4, 4), np.float32))
    writer.close()
    sink.close()


@pytest.mark.slow
@pytest.mark.parametrize("alike", [True, False])
def test_a_worker_that_joins_computes_if_its_bits_are_the_same(
    alike: bool, paused: Any, monkeypatch: pytest.MonkeyPatch, journalled: list[Any]
) -> None:
    facts, asked = session._measured_facts, []

    def others(*args: Any) -> WorkerFacts:
        found = facts(*args)
        asked.append(found.worker)
        return found if alike or len(asked) == 1 else dataclasses.replace(found, kernel="another")

    def joined() -> bool:
        return len(session._sessions if alike else asked) > 1

    monkeypatch.setattr(session, "_measured_facts", others)
    paused(joined)
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, memory_limit=0, dashboard_address=":0"
        ) as cluster,
        job_on(cluster, "a.npy", "b.npy", "c.npy", Options(memory=MEMORY, device="cpu")) as job,
    ):
        joining = when(lambda: len(journalled) >= 1, lambda: cluster.scale(2))
        job.run()
        joining.join()
        assert len(job.measured.read_by) == 1 + alike
    check()


@pytest.mark.slow
def test_no_worker_is_left(paused: Any, monkeypatch: pytest.MonkeyPatch, journalled: list[Any]) -> None:
    monkeypatch.setattr(feed, "ALONE_S", 0.3)
    monkeypatch.setattr(session, "IDLE_S", 0.2)
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, memory_limit=0, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        paused(lambda: not connect.workers_alive(client))
        leaving = when(lambda: len(journalled) >= 1, lambda: cluster.scale(0))
        with pytest.raises(ClusterError, match="no worker is left that can compute this product"):
            multiply(client)
        leaving.join()
    assert Path("c.npy.tilewright/journal").exists()
    for left in list(session._sessions):  # the process of a real worker would be gone
        assert left.ended.wait(10)


@pytest.mark.slow
def test_a_task_that_comes_too_late_opens_no_session(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a product is interrupted while its first tasks are on their way."""
    monkeypatch.setattr(session, "_ended_keys", _All())
    with pytest.raises(ClusterError, match="the product has ended"):
        multiply(client)


class _All:
    def __contains__(self, key: str) -> bool:
        return True

    def append(self, key: str) -> None:
        """Holds every key already."""


@pytest.mark.slow
def test_an_interrupt_leaves_nothing_but_the_tiles(
    client: Client, paused: Any, journalled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped, stop = threading.Event(), session.Session.stop

    def stops(*args: Any) -> None:
        stopped.set()
        stop(*args)

    monkeypatch.setattr(session.Session, "stop", stops)
    paused(stopped.is_set)
    interrupting = when(lambda: len(journalled) >= 2, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        multiply(client)
    interrupting.join()
    assert not session._sessions
    multiply(client, resume=True)
    assert len(set(journalled)) == len(journalled), "a finished tile was computed again"
    check()


@pytest.mark.slow
@pytest.mark.parametrize("stopped", ["killed", pytest.param("all killed", marks=pytest.mark.thorough)])
def test_workers_that_are_killed(stopped: str, journalled: list[Any]) -> None:
    with local_cluster() as cluster, Client(cluster, set_as_default=False) as client:
        victims = sorted(client.run(os.getpid).values())[: 1 if stopped == "killed" else 2]

        def kill() -> None:
            for victim in victims:
                os.kill(victim, signal.SIGKILL)

        killing = when(lambda: len(journalled) >= 2, kill)
        multiply(client)
        killing.join()
    assert len(set(journalled)) == len(journalled), "a finished tile was computed again"
    check()


@pytest.mark.slow
@pytest.mark.thorough
def test_ctrl_c_in_a_terminal_ends_the_command_in_a_line() -> None:
    """A terminal sends it to all processes of the command, also to the workers."""
    for name in ("a.npy", "b.npy"):
        np.save(name, np.ones((3072, 3072), np.float32))
    command = [sys.executable, "-W", "ignore", "-m", "tilewright", "multiply", "a.npy", "b.npy", "-o", "c.npy"]
    process = subprocess.Popen(
        [*command, "--memory", "36MiB", "--cluster", "local:2"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    journal = Path("c.npy.tilewright/journal")
    interrupting = when(
        lambda: journal.exists() and journal.read_bytes().count(b"\n") > 2,
        lambda: os.killpg(process.pid, signal.SIGINT),
    )
    said = process.communicate(timeout=60)[1]
    interrupting.join()
    assert process.returncode == 130
    assert "tiles are finished and kept; --resume continues" in said
    assert "Traceback" not in said


def test_workers_with_too_little_memory_are_named_as_the_cause(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "LEAST_LIMIT", 1)
    with pytest.raises(MemoryLimitError, match="threads and buffers take") as refused:
        tw.multiply("a.npy", "b.npy", "c.npy", cluster=client, memory="1MiB")
    taken = float(str(refused.value).partition("buffers take ")[2].partition(" MiB")[0])
    monkeypatch.setattr(session, "_block_memory", lambda *_: int(taken * 2**20) + (200 << 10))
    with pytest.raises(MemoryLimitError, match=r"a worker has \S+ [GM]iB, .*: start workers with more memory"):
        tw.multiply("a.npy", "b.npy", "c.npy", cluster=client)


@pytest.mark.slow
def test_a_worker_of_this_machine_gets_no_interrupt_from_its_first_moment() -> None:
    """One that comes while its Python starts would end it."""
    mine = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with connect.connected("local:1") as client:
        (pid,) = client.run(os.getpid).values()
        status = Path(f"/proc/{pid}/status").read_text()
    (blocked,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigBlk"))
    assert blocked & 1 << (signal.SIGINT - 1)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mine


# ---- the benchmark ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_workers_and_schedulers_of_the_benchmark(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", str(SCRIPT), "record.json", "1", "1", "1024"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["workers_killed"]["kills"] == 1
    assert record["schedulers_killed"]["kills"] == 1
    assert 0 < record["schedulers_killed"]["kept"] < record["schedulers_killed"]["tiles"]


def test_the_committed_record_is_of_thirty_workers_and_five_schedulers() -> None:
    record = json.loads(SCRIPT.with_name("cluster-faults.json").read_text())
    workers, schedulers = record["workers_killed"], record["schedulers_killed"]
    assert (workers["kills"], schedulers["kills"]) == (30, 5)
    assert workers["tiles_again"] == schedulers["tiles_again"] == record["other_bits"] == 0
    assert workers["while_computing"] >= 20
