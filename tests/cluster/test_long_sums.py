"""A sum over a long k that workers share: where its layers are computed, what is moved, and how it ends early."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, Future, LocalCluster

import tilewright as tw
from tilewright.errors import ClusterError
from tilewright.large.cluster import kept, lazy
from tilewright.large.cluster.layers import layers
from tilewright.large.cluster.lazy import lazy_product
from tilewright.large.files import open_matrix

M, K, N = 60, 1 << 15, 50
rng = np.random.default_rng(3)
A, B = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((M, K), (K, N)))
WORKERS = 4


@pytest.fixture(scope="module")
def threads() -> Iterator[LocalCluster]:
    """Workers in this process, of which none takes tasks of another."""
    with (
        dask.config.set({"distributed.scheduler.work-stealing": False}),
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
    ):
        yield cluster


@pytest.fixture
def client(threads: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", A)
    np.save("b.npy", B)
    with Client(threads, set_as_default=False) as client:
        client.wait_for_workers(WORKERS, timeout=30)
        yield client


def received(dask_worker: Any) -> int:
    """Bytes that a worker has received from others."""
    return sum(each["total"] for each in dask_worker.transfer_incoming_log)


@pytest.mark.slow
def test_each_worker_adds_its_own_layers_and_only_sums_are_moved(client: Client) -> None:
    count = layers(M, N, K)
    assert count > WORKERS
    before = client.run(received)
    tw.multiply("a.npy", "b.npy", "c.npy", cluster=client)
    after = client.run(received)
    moved = sorted(after[worker] - before[worker] for worker in after)
    block = 4 * M * N
    small = 20_000  # where the parts of files lie
    assert (WORKERS - 1) * block <= sum(moved) < (WORKERS - 1) * block + small
    assert moved[-1] < 2 * block + small, "more than two sums at one worker"


@pytest.mark.slow
def test_a_worker_that_is_lost_leaves_its_layers_to_others_and_the_bits_stay(client: Client) -> None:
    with contextlib.closing(open_matrix("a.npy")) as of_a, contextlib.closing(open_matrix("b.npy")) as of_b:
        a, b = kept.file_matrix(of_a), kept.file_matrix(of_b)
    placed = lazy_product(a, b, np.dtype(np.float32), None, {"tcp://127.0.0.1:9": 1, **client.nthreads()})
    c = client.compute(placed, optimize_graph=False).result(timeout=60)
    np.testing.assert_array_equal(c, client.compute(lazy_product(a, b, np.dtype(np.float32), None)).result(timeout=60))
    tw.multiply("a.npy", "b.npy", "c.npy", cluster=client)
    np.testing.assert_array_equal(np.load("c.npy"), c)


#: Set when a task has begun, and to let it go on.
Events = tuple[threading.Event, threading.Event]


@pytest.fixture
def held_tasks(monkeypatch: pytest.MonkeyPatch) -> Events:
    """Tasks that multiply wait for the second event, at most 30 s."""
    begun, end, run = threading.Event(), threading.Event(), lazy.runner

    def waits(*what: Any, **more: Any) -> Any:
        begun.set()
        end.wait(30)
        return run(*what, **more)

    monkeypatch.setattr(lazy, "runner", waits)
    return begun, end


@pytest.mark.slow_cases("c.npy")
@pytest.mark.parametrize("out", ["c.npy", None])
def test_an_interrupt_does_not_wait_for_the_layers(out: str | None, client: Client, held_tasks: Events) -> None:
    begun, end = held_tasks
    _interrupt_when(begun)
    with pytest.raises(KeyboardInterrupt):
        tw.multiply("a.npy", "b.npy", out, cluster=client)
    assert not end.is_set()
    _check_released(client)
    end.set()


def test_an_interrupt_does_not_wait_for_an_operand_that_dask_computes(client: Client) -> None:
    begun, end = threading.Event(), threading.Event()
    _blocks.append((begun, end))
    operand = da.ones((M, K), chunks=(M, K), dtype=np.float32).map_blocks(_blocked, meta=np.empty((0, 0), np.float32))
    _interrupt_when(begun)
    with pytest.raises(KeyboardInterrupt):
        tw.multiply(operand, "b.npy", "c.npy", cluster=client)
    _check_released(client)
    end.set()


#: What the task of the last test waits for; a task on a thread of this process reads it.
_blocks: list[tuple[threading.Event, threading.Event]] = []


def _blocked(chunk: Any) -> Any:
    begun, end = _blocks[-1]
    begun.set()
    end.wait(30)
    return chunk


def _interrupt_when(begun: threading.Event) -> None:
    """Ctrl-C as soon as a task has begun."""

    def wait() -> None:
        assert begun.wait(30)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait).start()


def _check_released(client: Client) -> None:
    """The client wants no task any more, soon."""
    until = time.monotonic() + 5
    while client.futures:
        assert time.monotonic() < until, "the client still wants tasks"
        time.sleep(0.01)


def test_tasks_that_are_cancelled_with_their_scheduler_are_an_error(client: Client, held_tasks: Events) -> None:
    begun, end = held_tasks

    def cancel() -> None:
        assert begun.wait(30)
        until = time.monotonic() + 30
        while not client.futures and time.monotonic() < until:  # a task may begin before its client has noted it
            time.sleep(0.001)
        client.cancel([Future(key, client) for key in list(client.futures)])

    threading.Thread(target=cancel).start()
    with pytest.raises(ClusterError, match="the scheduler was lost or restarted"):
        tw.multiply("a.npy", "b.npy", "c.npy", cluster=client)
    end.set()
