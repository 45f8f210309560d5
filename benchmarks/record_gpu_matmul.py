"""Times ``tilewright.matmul`` of PyTorch's tensors against ``torch.mm``, as a user calls both, and writes a record.

    python benchmarks/record_gpu_matmul.py [benchmarks/gpu-matmul-h200.jsonl]

A sample is the time of a run of calls, one after the other on the current stream, from before the first until all of their
work is done, divided by their number: so where the GPU has less to do than Python, the calls themselves are what is timed.
Both are sampled in turns. Every answer is compared with the product in float64, element by element, by the classical bound.
TF32 is off. ``host_s`` is the time until a call returns, of both.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.lab.inputs.environment import environment

SIZES = (256, 512, 1000, 1024, 2048, 4096, 4097, 8192)
SAMPLES = 9
#: A run of calls lasts at least so long.
LEAST_S = 0.02


def run(call: Callable[[], Any], times: int, wait: Callable[[], None]) -> tuple[float, float]:
    """Seconds a call: until all work is done, and until the calls have returned."""
    wait()
    start = time.perf_counter()
    for _ in range(times):
        call()
    returned = time.perf_counter() - start
    wait()
    return (time.perf_counter() - start) / times, returned / times


def error_over_bound(torch: Any, a: Any, b: Any, c: Any) -> float:
    """The largest error of an element, over k·u·(|A||B|) of it."""
    unit = torch.finfo(c.dtype).eps / 2
    bound = a.shape[1] * unit * (a.abs().double() @ b.abs().double())
    return float(((c.double() - a.double() @ b.double()).abs() / bound).max())


def record(torch: Any, n: int, dtype: str) -> dict[str, Any]:
    generator = torch.Generator("cuda").manual_seed(n)
    kind = getattr(torch, dtype)
    a, b = (torch.rand(n, n, dtype=kind, device="cuda", generator=generator) * 2 - 1 for _ in range(2))
    calls = {"tilewright": lambda: tw.matmul(a, b), "torch": lambda: torch.mm(a, b)}
    worst = error_over_bound(torch, a, b, tw.matmul(a, b))
    if not worst <= 1:
        raise SystemExit(f"{n} {dtype}: wrong, {worst} of the bound")
    for call in calls.values():
        run(call, 20, torch.cuda.synchronize)
    once = min(run(call, 20, torch.cuda.synchronize)[0] for call in calls.values())
    times = max(2, int(LEAST_S / once))
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(SAMPLES):
        for name, call in calls.items():
            samples[name].append(run(call, times, torch.cuda.synchronize))
    ours, its = (np.median([total for total, _ in samples[name]]) for name in calls)
    plan = tw.plan(a, b)
    return {
        "kind": "gpu matmul", "schema": 1, "m": n, "n": n, "k": n, "dtype": dtype, "kernel": plan.kernel.name,
        "kernel_source": plan.kernel.source_hash,
        "params": plan.params, "why": plan.choice.why_params, "calls_a_sample": times, "error_over_bound": worst,
        "samples_s": [total for total, _ in samples["tilewright"]], "reference": "torch.mm",
        "reference_samples_s": [total for total, _ in samples["torch"]], "ratio": its / ours,
        "gflops": 2 * n**3 / ours / 1e9, "reference_gflops": 2 * n**3 / its / 1e9,
        "host_s": float(np.median([host for _, host in samples["tilewright"]])),
        "reference_host_s": float(np.median([host for _, host in samples["torch"]])),
    }  # fmt: skip


def main(path: str = "benchmarks/gpu-matmul-h200.jsonl") -> None:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    known = environment(operands="uniform[-1,1)", command="python benchmarks/record_gpu_matmul.py")
    known |= {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
    lines = [{"kind": "gpu matmul header", "schema": 1, "environment": known}]
    for dtype in ("float32", "float64"):
        for n in SIZES:
            lines.append(line := record(torch, n, dtype))
            print(f"{dtype} {n:5}: {line['gflops']:9.1f} GFLOPS, R {line['ratio']:.3f}, {line['why']}", flush=True)
    Path(path).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:2])
