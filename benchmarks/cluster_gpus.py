"""Workers with a GPU each, measured beside the same GPUs in one process: ``python benchmarks/cluster_gpus.py OUT.jsonl``.

A float32 product from ``.npy`` files to one, on two workers, in turns with one process that has both GPUs. On a machine
with one GPU the workers share it, each with half of what is free of its memory, which the record says. Every result is
verified in the run that is timed. The time is that of the call: workers run, and have multiplied something small before.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from record_stream import Judge, gpu_facts, uniform
from tilewright.host.machine import available_memory
from tilewright.lab.inputs.environment import environment
from tilewright.large.multiply import job_on
from tilewright.large.streaming.options import Options

WORKERS = 2
COMMAND = "python benchmarks/cluster_gpus.py OUT.jsonl"


@contextlib.contextmanager
def workers(gpus: int, memory: int) -> Iterator[Any]:
    """A client of two workers: each sees one GPU."""
    from distributed import Client, Nanny, Scheduler, SpecCluster

    spec = {
        number: {
            "cls": Nanny,
            "options": {
                "nthreads": (os.cpu_count() or WORKERS) // WORKERS,
                "memory_limit": memory,
                "env": {"CUDA_VISIBLE_DEVICES": str(number % gpus)},
            },
        }
        for number in range(WORKERS)
    }
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": ":0"}}
    with SpecCluster(workers=spec, scheduler=scheduler) as cluster, Client(cluster) as client:
        yield client


def on_one_process(gpus: int, *files: Path) -> dict[str, Any]:
    device = f"cuda:{','.join(map(str, range(gpus)))}"
    plan = tw.plan_multiply(*files, device=device, overwrite=True)
    begun = time.perf_counter()
    tw.multiply(*files, device=device, overwrite=True)
    return {"seconds": time.perf_counter() - begun, "plan": str(plan).splitlines()}


def on_workers(client: Any, device_memory: int | None, *files: Path) -> dict[str, Any]:
    options = Options(device="cuda", device_memory=device_memory, overwrite=True)
    begun = time.perf_counter()
    with job_on(client, *files, options) as job:
        opened = time.perf_counter() - begun
        job.run()
    seconds = time.perf_counter() - begun
    return {"seconds": seconds, "opened_s": opened, "plan": str(job.plan).splitlines(), "record": job.as_dict()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", type=int, default=65536)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="where the files lie (a temporary folder)")
    chosen = parser.parse_args()
    facts = gpu_facts()
    gpus, n = min(WORKERS, len(facts["gpus"])), chosen.size
    folder = Path(tempfile.mkdtemp(dir=chosen.folder))
    a, b = (uniform(n, "float32", seed) for seed in (1, 2))
    judge = Judge(a, b)
    files = [folder / name for name in ("a.npy", "b.npy", "c.npy")]
    for path, array in zip(files, (a, b), strict=False):
        np.save(path, array)
    np.save(folder / "small.npy", a[:2048, :2048])
    del a, b
    small = [folder / name for name in ("small.npy", "small.npy", "warm.npy")]
    device_memory = None if gpus == WORKERS else 60 << 30
    ways: dict[str, list[dict[str, Any]]] = {"one process": [], "workers": []}
    with workers(gpus, int(0.4 * (available_memory() or 1 << 30))) as client:
        on_one_process(gpus, *small)
        on_workers(client, device_memory, *small)
        for _ in range(chosen.rounds):
            for name, runs in ways.items():
                files[2].unlink(missing_ok=True)
                os.sync()
                runs.append(
                    on_one_process(gpus, *files) if name == "one process" else on_workers(client, device_memory, *files)
                )
                runs[-1]["error_over_bound"] = judge.over_bound(np.load(files[2], mmap_mode="r"))
                print(f"{name:12} {runs[-1]['seconds']:8.3f} s", flush=True)
                print("\n".join(runs[-1]["plan"][-9:]), runs[-1].get("opened_s"), flush=True)
    shutil.rmtree(folder)
    middle = {name: statistics.median(run["seconds"] for run in runs) for name, runs in ways.items()}
    right = all(run["error_over_bound"] <= 1 for runs in ways.values() for run in runs)
    record = {
        **{"kind": "cluster on GPUs", "schema": 1, "size": n, "workers": WORKERS, "gpus_of_all": gpus},
        **{"verified": right, "R": middle["one process"] / middle["workers"], "runs": ways},
        "environment": environment(
            operands="uniform[-1,1), seeds 1 and 2", command="python benchmarks/cluster_gpus.py OUT.jsonl"
        )
        | facts,
    }
    with chosen.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    print(f"R {record['R']:.3f}", "ok" if right else "WRONG")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
