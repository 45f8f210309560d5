"""Kill workers and schedulers of a cluster until a tile is lost: ``python benchmarks/cluster_faults.py OUT.json [WORKERS]
[SCHEDULERS] [SIDE] [SEED]`` (30, 5, 4096 and 1).

A product of SIDE×2·SIDE×SIDE in float32 runs on a cluster of three processes of this machine, with a result in a file of
NumPy and in a zarr store by turns. WORKERS times a worker is killed (SIGKILL) at a random moment, from the planning on; the
product must be completed by the others, and by the process that the nanny starts if it does. SCHEDULERS times the scheduler
is killed, and the product is resumed on a new cluster. Each result must have the bits that one process computes, and nothing
else may be left. Counted are the tiles that were begun again although the journal had them. Writes a record to OUT; ends
with an AssertionError where something was lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster, WorkerPlugin

import tilewright as tw
from tilewright.errors import ClusterError
from tilewright.lab.inputs.environment import environment
from tilewright.large.files import open_matrix, whole_matrix
from tilewright.large.streaming.places.places import HostPlace
from tilewright.large.streaming.run.journal import Journal

WORKERS = 3
#: Bytes for the blocks of a worker: so few that C is cut into many tiles, whose least side in a zarr store is 1024.
MEMORY = {"c.npy": "40MiB", "c.zarr": "64MiB"}
#: A tile that a worker began, and when; a worker appends it to a file.
BEGUN = "begun.txt"


class NoteTiles(WorkerPlugin):
    """Has a worker append each tile that it begins to a file."""

    name = "note tiles"

    def __init__(self, path: Path) -> None:
        self.path = path

    def setup(self, worker: Any) -> None:
        """Called as a worker starts, or at once in one that runs."""
        del worker
        file, multiply = self.path.open("a"), HostPlace.multiply

        def noted(place: Any, step: Any, *more: Any) -> Any:
            if step.first:
                file.write(f"{step.tile.i} {step.tile.j} {time.time()}\n")
                file.flush()
            return multiply(place, step, *more)

        HostPlace.multiply = noted  # type: ignore[method-assign]


class Journalled:
    """The tiles that this process has in a journal, each with the time from which it was there. With so many of them as
    ``wanted``, ``then`` is called, before the next one is taken."""

    def __init__(self) -> None:
        self.times: dict[tuple[int, int], float] = {}
        self.wanted, self.then = 0, lambda: None
        add = Journal.add

        def noted(journal: Journal, tile: Any) -> None:
            add(journal, tile)
            self.times[tuple(tile)] = time.time()
            if len(self.times) == self.wanted:
                self.then()

        Journal.add = noted  # type: ignore[method-assign]

    def again(self, begun: Path) -> int:
        """Tiles that were begun after they were in the journal."""
        lines = [line.split() for line in begun.read_text().splitlines()]
        begun.write_text("")
        count = sum(float(at) > self.times.get((int(i), int(j)), float("inf")) for i, j, at in lines)
        assert lines, "no worker noted its tiles"
        self.times.clear()
        return count


def read(name: str) -> np.ndarray[Any, Any]:
    with contextlib.closing(open_matrix(name)) as source:
        return whole_matrix(source)


def check_result(name: str, expected: np.ndarray[Any, Any]) -> None:
    assert np.array_equal(read(name), expected), f"{name}: other bits than those of one process"
    assert not Path(f"{name}.tilewright").exists(), f"{name}: something is left"


def multiply(name: str, cluster: Any, *, resume: bool = False) -> None:
    tw.multiply(
        "a.npy", "b.npy", name, cluster=cluster, memory=MEMORY[name], device="cpu", resume=resume, overwrite=True
    )


def plan(name: str, cluster: Any) -> Any:
    options = {"memory": MEMORY[name], "device": "cpu", "overwrite": True}
    return tw.plan_multiply("a.npy", "b.npy", name, cluster=cluster, **options)


def timed(function: Callable[[], object]) -> float:
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


# ---- workers ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def local_cluster() -> Iterator[tuple[LocalCluster, Client]]:
    """A new cluster: after a worker was killed, its nanny does not always start another."""
    options = {"threads_per_worker": 1, "memory_limit": "1GiB", "dashboard_address": ":0"}
    with LocalCluster(n_workers=WORKERS, **options) as local, Client(local, set_as_default=False) as client:
        client.wait_for_workers(WORKERS, timeout=60)
        client.register_plugin(NoteTiles(Path(BEGUN).absolute()))
        yield local, client


def kill_workers(
    kills: int, rng: random.Random, expected: np.ndarray[Any, Any], journalled: Journalled
) -> dict[str, Any]:
    """As many products, in each of which a worker is killed."""
    told: dict[str, Any] = {"kills": 0, "while_computing": 0, "tiles_again": 0, "slowest_s": 0.0, "undisturbed_s": {}}
    for name in MEMORY:
        with local_cluster() as (_, client):
            told["undisturbed_s"][name] = round(timed(lambda name=name, client=client: multiply(name, client)), 2)
        journalled.again(Path(BEGUN))
    for number in range(kills):
        name = list(MEMORY)[number % len(MEMORY)]
        with local_cluster() as (local, client):
            victim = local.workers[rng.choice(sorted(local.workers))].pid
            wait_s = rng.uniform(0, told["undisturbed_s"][name])
            moment = threading.Timer(wait_s, os.kill, (victim, signal.SIGKILL))
            moment.start()
            seconds = timed(lambda name=name, client=client: multiply(name, client))
            told["kills"] += 1
            told["while_computing"] += moment.finished.is_set()
            moment.join()
        check_result(name, expected)
        told["tiles_again"] += journalled.again(Path(BEGUN))
        told["slowest_s"] = round(max(told["slowest_s"], seconds), 2)
        print("worker", name, round(wait_s, 1), round(seconds, 1), told, flush=True)
    return told


# ---- schedulers ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def cluster() -> Iterator[tuple[Client, subprocess.Popen[bytes]]]:
    """The client of a scheduler in a process of its own, and that process; all workers end with it."""
    where = Path("scheduler.json")
    where.unlink(missing_ok=True)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    file = str(where)
    scheduler_options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", file]
    worker_options = ["--nworkers", str(WORKERS), "--nthreads", "1", "--memory-limit", "1GiB", "--no-dashboard"]
    scheduler = _dask("scheduler", scheduler_options, quiet)
    while not where.exists():
        assert scheduler.poll() is None, "the scheduler did not start"
        time.sleep(0.05)
    workers = _dask("worker", ["--scheduler-file", file, *worker_options, "--death-timeout", "5"], quiet)
    try:
        with Client(scheduler_file=file, set_as_default=False, timeout=10) as client:
            client.wait_for_workers(WORKERS, timeout=60)
            client.register_plugin(NoteTiles(Path(BEGUN).absolute()))
            yield client, scheduler
    finally:
        for process in (workers, scheduler):
            process.terminate()
            process.wait(30)


def _dask(what: str, options: list[str], quiet: dict[str, Any]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", f"distributed.cli.dask_{what}", *options], **quiet)


def kill_schedulers(
    kills: int, rng: random.Random, expected: np.ndarray[Any, Any], journalled: Journalled
) -> dict[str, Any]:
    """As many products that lose their scheduler while they are computed, and are resumed on another cluster. One that was
    completed nevertheless does not count: all of its tiles had been reported, or it was cut into fewer than were planned."""
    told: dict[str, Any] = {"kills": 0, "tiles": 0, "kept": 0, "tiles_again": 0}
    while told["kills"] < kills:
        name, begun = "c.npy", Path(BEGUN)  # of many tiles, so that it cannot be complete
        with cluster() as (client, scheduler):
            tiles = len(plan(name, client).tiles)
            journalled.wanted, journalled.then = rng.randrange(1, tiles // 2), scheduler.kill
            try:
                multiply(name, client)
                completed = True
            except ClusterError as error:
                print(error, flush=True)
                completed = False
        journalled.wanted, kept = 0, len(journalled.times)
        if completed:
            check_result(name, expected)
            journalled.again(begun)
            continue
        with cluster() as (client, _):
            multiply(name, client, resume=True)
        check_result(name, expected)
        told["kills"] += 1
        told["tiles"] += tiles
        told["kept"] += kept
        told["tiles_again"] += journalled.again(begun)
        print("scheduler", name, told, flush=True)
    return told


def main(out: str, workers: str = "30", schedulers: str = "5", side: str = "4096", seed: str = "1") -> None:
    path, n, rng = Path(out).absolute(), int(side), random.Random(int(seed))
    record: dict[str, Any] = {"kind": "cluster-faults", "schema": 1, "seed": int(seed), "workers": WORKERS}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        random_numbers = np.random.default_rng(0)
        np.save("a.npy", random_numbers.standard_normal((n, 2 * n), np.float32))
        np.save("b.npy", random_numbers.standard_normal((2 * n, n), np.float32))
        tw.multiply("a.npy", "b.npy", "one.npy", device="cpu", memory=MEMORY["c.npy"])
        expected, journalled = read("one.npy"), Journalled()
        record["workers_killed"] = kill_workers(int(workers), rng, expected, journalled)
        record["schedulers_killed"] = kill_schedulers(int(schedulers), rng, expected, journalled)
        os.chdir(path.parent)
    assert not record["workers_killed"]["tiles_again"] + record["schedulers_killed"]["tiles_again"], record
    record["other_bits"] = 0  # else an assertion had failed
    command = f"python benchmarks/cluster_faults.py {' '.join([path.name, *sys.argv[2:]])}"
    record["environment"] = environment(operands=f"normal numbers, {n}×{2 * n}×{n} float32", command=command)
    path.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
