"""Products on Dask workers of this machine, measured: ``python benchmarks/cluster_products.py PART OUT.jsonl [--small]``.

PART is one of these; each appends records to OUT, and ends with an AssertionError where a result is wrong.

- ``beside``: 8192×32768×8192 float32 from zarr to zarr on 4 workers of one thread and 1 GiB, in turns with one process of
  two threads; then Dask's own ``a @ b`` on the same workers. The time is that of the call: workers are running, and have
  multiplied something small before.
- ``bytes``: what each worker reads, for every grid of 4 workers and several shapes, beside the formulas.
- ``simulated``: ten runs beside the simulation of their plans: bytes, tiles of each worker, order, time.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.lab.inputs.environment import environment
from tilewright.lab.scale.measured import measured_rates, replayed_run
from tilewright.lab.scale.simulate import simulate_cluster
from tilewright.large.cluster.layers import layers
from tilewright.large.files import create_matrix, open_matrix, whole_matrix
from tilewright.large.multiply import job_on
from tilewright.large.streaming.options import Options
from tilewright.large.streaming.places.place import Events
from tilewright.large.streaming.plan.grid import Tile

#: Runs of each way, in turns.
RUNS = 5
#: Seconds that Dask's own product may take.
MOST_S = 600.0
#: Shapes of ``bytes``: square, ragged, k ≫ m and n, m ≫ n, n ≫ m.
SHAPES = ((8192, 8192, 8192), (6667, 8888, 7777), (24000, 8192, 2048), (2048, 8192, 24000), (1000, 160000, 1200))
ONE = """
import sys, time, tilewright as tw
small, a, b, c, threads = sys.argv[1:]
with tw.use_threads(int(threads)):
    tw.multiply(small, small, "warm.zarr", device="cpu", overwrite=True)
    begun = time.perf_counter()
    tw.multiply(a, b, c, device="cpu", overwrite=True)
    print(time.perf_counter() - begun)
"""


@contextlib.contextmanager
def workers(count: int, memory: str, *, stealing: bool = True) -> Iterator[Any]:
    """A client of so many workers with one thread each; without ``stealing``, Dask moves no task to an idle worker."""
    import dask
    from distributed import Client, LocalCluster

    dask.config.set({"distributed.scheduler.work-stealing": stealing})
    local = LocalCluster(n_workers=count, threads_per_worker=1, memory_limit=memory, dashboard_address=":0")
    with local, Client(local) as client:
        yield client


def make(path: str, shape: tuple[int, int], seed: int) -> str:
    """A matrix of random numbers in a file."""
    rng, sink = np.random.default_rng(seed), create_matrix(path, shape, np.float32)
    with contextlib.closing(sink):
        for row in range(0, shape[0], 1024):
            rows = slice(row, min(shape[0], row + 1024))
            sink.write(rows, slice(0, shape[1]), rng.standard_normal((rows.stop - row, shape[1]), np.float32))
        sink.finish()
    return path


def whole(path: str) -> np.ndarray[Any, Any]:
    """A matrix of a file, in memory."""
    with contextlib.closing(open_matrix(path)) as source:
        return whole_matrix(source)


def run_on(client: Any, a: str, b: str, c: str, **options: Any) -> dict[str, Any]:
    """One product on the cluster: its record, when each tile ended on which worker, and the seconds of the whole call."""
    events, begun = Events(), time.perf_counter()
    with job_on(client, a, b, c, Options(overwrite=True, **options)) as job:
        job.run(events=events)
    seconds = time.perf_counter() - begun
    tiles = [(event.end_s, event.place, event.name) for event in sorted(events.events, key=lambda event: event.end_s)]
    return {"seconds": seconds, "job": job, "tiles": tiles}


def peak_bytes() -> int:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def beside(small: bool) -> Iterator[dict[str, Any]]:
    m, k, n = (1024, 4096, 1024) if small else (8192, 32768, 8192)
    a, b, tiny = make("a.zarr", (m, k), 1), make("b.zarr", (k, n), 2), make("tiny.zarr", (512, 512), 3)
    ours, one, peaks = [], [], []
    with workers(4, "1GiB") as client:
        tw.multiply(tiny, tiny, "warm.zarr", cluster=client, overwrite=True)
        for _ in range(1 if small else RUNS):
            answer = subprocess.run(
                [sys.executable, "-c", ONE, tiny, a, b, "one.zarr", "2"], capture_output=True, text=True, check=True
            )
            one.append(float(answer.stdout))
            measured = run_on(client, a, b, "c.zarr")
            ours.append(measured["seconds"])
        peaks = sorted(client.run(peak_bytes).values())
        record = measured["job"].as_dict()
    assert np.array_equal(whole("c.zarr"), whole("one.zarr")), "the cluster computed other bits than one process"
    yield {
        **{"what": "cluster beside one process", "m": m, "k": k, "n": n, "workers": 4, "memory_limit": "1GiB"},
        **{"cluster_s": ours, "one_process_2_threads_s": one},
        **{"R": statistics.median(one) / statistics.median(ours), "peak_bytes": peaks, "last": record},
    }
    yield {
        "what": "Dask's own product",
        "m": m,
        "k": k,
        "n": n,
        "workers": 4,
        "memory_limit": "1GiB",
        **dask_alone(a, b),
    }


def dask_alone(a: str, b: str) -> dict[str, Any]:
    """The same product by Dask's ``a @ b``, on workers of the same kind."""
    import dask.array as da

    begun = time.perf_counter()
    try:
        with workers(4, "1GiB") as client:
            product = da.from_zarr(a) @ da.from_zarr(b)
            begun = time.perf_counter()
            future = client.compute(product.to_zarr("d.zarr", overwrite=True, compute=False))
            future.result(timeout=MOST_S)
            seconds = time.perf_counter() - begun
    except BaseException as error:  # what it died of is the result
        if isinstance(error, KeyboardInterrupt):
            raise
        return {
            "seconds": None,
            "after_s": time.perf_counter() - begun,
            "error": f"{type(error).__name__}: {error}"[:300],
        }
    same = np.allclose(whole("d.zarr"), whole("c.zarr"), rtol=1e-3, atol=1e-1)
    return {"seconds": seconds, "right": bool(same)}


def formula_bytes(m: int, n: int, k: int, down: int, across: int) -> float:
    """Bytes of A and B that each of down×across workers reads at least once: m·k/down + k·n/across."""
    return 4 * (m * k / down + k * n / across)


def each_grid(small: bool) -> Iterator[dict[str, Any]]:
    # Each worker has its own share: neither tiles (the partition is stated) nor layers are taken from others.
    with workers(4, "2GiB", stealing=False) as client:
        for m, k, n in SHAPES[:1] if small else SHAPES:
            a, b = make("a.npy", (m, k), 4), make("b.npy", (k, n), 5)
            expected = tw.multiply(a, b, device="cpu")
            for partition in ("1x4", "2x2", "4x1") if layers(m, n, k) == 1 else ("layers",):
                before = client.run(moved_bytes)
                job = run_on(client, a, b, "c.npy", partition="rectangles" if partition == "layers" else partition)[
                    "job"
                ]
                after = client.run(moved_bytes)
                found = {"what": "bytes of each worker", "m": m, "k": k, "n": n, "partition": partition}
                if partition == "layers":
                    assert np.abs(np.load("c.npy") - expected).max() < 1e-5 * k, "wrong sums of layers"
                    moved = [{name: after[x][name] - before[x][name] for name in after[x]} for x in after]
                    read = [each["read"] + each["received"] for each in moved]
                    # Each of 4 workers reads its layers, and of their sums 3 are moved in all.
                    formula = 4 * (m + n) * k / 4
                    yield {**found, "read_bytes": read, "formula_bytes": formula, "over_formula": max(read) / formula}
                    yield {**found, "what": "bytes of layers", "moved": moved, "least_moved": 3 * 4 * m * n}
                    continue
                assert np.array_equal(np.load("c.npy"), expected), f"{partition}: other bits than those of one process"
                down, across = map(int, partition.split("x"))
                read = sorted(job.measured.read_by.values())
                formula = formula_bytes(m, n, k, down, across)
                yield {
                    **{**found, "read_bytes": read, "formula_bytes": formula, "over_formula": max(read) / formula},
                    **{"tiles": list(job.plan.grid.tiles), "planned_bytes": planned_bytes(job.plan)},
                }


def moved_bytes(dask_worker: Any) -> dict[str, int]:
    """What a worker read of files as chunks, and received from others, since it began."""
    from tilewright.large.cluster import kept

    received = sum(each["total"] for each in dask_worker.transfer_incoming_log)

    return {"read": kept.read.count, "received": received}


def planned_bytes(plan: Any) -> list[int]:
    """Bytes of A and B that each part of a plan loads."""
    return [sum(plan._loaded(part).values()) * plan.itemsize for part in plan.regions]


def simulated(small: bool) -> Iterator[dict[str, Any]]:
    shapes = itertools.product((6144, 8192), (8192, 16384), (6144, 8192))
    runs = [(shape, "rectangles") for shape in shapes] + [((8192, 8192, 8192), "4x1"), ((8192, 8192, 8192), "1x4")]
    with workers(4, "1GiB") as client:
        tiny = make("tiny.npy", (512, 512), 3)
        tw.multiply(tiny, tiny, "warm.npy", cluster=client, overwrite=True)
        for (m, k, n), partition in runs[:1] if small else runs:
            a, b = make("a.npy", (m, k), 6), make("b.npy", (k, n), 7)
            measured = run_on(client, a, b, "c.npy", partition=partition, memory="128MiB")
            job = measured["job"]
            names = [str(name) for name in job.plan.devices]
            numbers = {name: number for number, name in enumerate(names)}
            stored = [(end_s, numbers[place], tile_of(name)) for end_s, place, name in measured["tiles"]]
            model = simulate_cluster(job.plan, job.rates)
            times = [[end_s for end_s, worker, _ in stored if worker == x] for x in range(len(names))]
            paced = measured_rates(job.plan, job.rates, times)
            again = simulate_cluster(job.plan, paced.rates, start_s=paced.start_s)
            replayed = replayed_run(job.plan, stored, len(names))
            yield {
                **{"what": "run beside its simulation", "m": m, "k": k, "n": n, "partition": partition},
                **{
                    "seconds": job.measured.seconds,
                    "simulated_s": model.total_s,
                    "ratio": job.measured.seconds / model.total_s,
                },
                **{"paced_s": again.total_s, "paced_ratio": job.measured.seconds / again.total_s},
                **{
                    "tiles": list(job.plan.grid.tiles),
                    "read_bytes": [job.measured.read_by.get(name, 0) for name in names],
                },
                **{"replayed_bytes": [worker.received_bytes for worker in replayed]},
                **{"simulated_bytes": [worker.received_bytes for worker in model.workers]},
                **{"stored": stored, "simulated": [list(each) for each in model.events if each.what == "stored"]},
            }


def tile_of(name: str) -> Tile:
    """The tile of an event that is called "C[2, 3]"."""
    i, j = name.removeprefix("C[").removesuffix("]").split(", ")
    return Tile(int(i), int(j))


PARTS = {"beside": beside, "bytes": each_grid, "simulated": simulated}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--small", action="store_true", help="the least of each, to see whether it runs")
    chosen = parser.parse_args()
    facts = environment(operands="files")  # before the folder changes: the script's path is relative to it
    out = chosen.out.absolute()
    with tempfile.TemporaryDirectory(dir=out.parent) as folder, contextlib.chdir(folder):
        if not out.exists():
            append(out, {"environment": facts})
        for record in PARTS[chosen.part](chosen.small):
            append(out, record)
            print({name: value for name, value in record.items() if name != "last"}, flush=True)


def append(out: Path, record: dict[str, Any]) -> None:
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return (
        os.fspath(value) if isinstance(value, os.PathLike) else value.item() if hasattr(value, "item") else str(value)
    )


if __name__ == "__main__":
    main()
