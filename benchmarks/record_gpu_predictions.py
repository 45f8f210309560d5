"""Measures products of random shapes on a GPU beside the times that their plans predict, and beside PyTorch's.

    python benchmarks/record_gpu_predictions.py OUT.jsonl [--cells 120] [--seconds 120] [--seed 1]

The models were fitted to other records; these shapes are drawn at random: cubes, three sides of their own, thin, deep and
flat ones, batches, half of them of whole lines, in every dtype. Times are taken as ``record_gpu_matmul.py`` takes them, of
another set of operands at each call. The last lines of the output are the shares of cells within 15 and 25 %, of those in
which the GPU and not the call takes the time.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from record_gpu_matmul import in_turns, run
from tilewright.lab.inputs.environment import environment

#: What is asked of ``matmul`` for operands of a dtype, by name; PyTorch has no plain product of the last three.
ASKED: dict[str, tuple[str, dict[str, str]]] = {
    "bfloat16": ("bfloat16", {}), "float16": ("float16", {}), "float32": ("float32", {}), "float64": ("float64", {}),
    "tf32": ("float32", {"precision": "tf32"}), "complex64": ("complex64", {}), "complex128": ("complex128", {}),
    "float8": ("float8_e4m3fn", {}), "float8_fast": ("float8_e5m2", {"precision": "fast"}),
    "int8": ("int8", {"out_dtype": "int32"}),
}  # fmt: skip
WEIGHTS = np.array([5, 3, 5, 4, 2, 1, 1, 2, 1, 2], float)
#: Samples, the least seconds of one, the longest product, and the most elements of an array.
SAMPLES, LEAST_S, MOST_S, MOST_ELEMENTS = 5, 0.008, 0.02, 2**29

Cell = tuple[str, int, int, int, int, bool]


def sizes(rng: np.random.Generator) -> tuple[int, int, int, int]:
    """A batch, m, n and k."""

    def one(low: float, high: float) -> int:
        size = int(2 ** rng.uniform(np.log2(low), np.log2(high)))
        return -(-size // 64) * 64 if whole else size

    whole = rng.random() < 0.5
    way = rng.integers(7)
    if way < 2:
        side = one(256, 12288)
        return 1, side, side, side
    if way == 2:
        return 1, one(256, 12288), one(256, 12288), one(256, 12288)
    thin = int(2 ** rng.uniform(0, 7))
    if way == 3:
        return 1, *((thin, one(1024, 28672)) if rng.random() < 0.7 else (one(1024, 28672), thin)), one(1024, 16384)
    if way == 4:
        return 1, one(32, 1024), one(32, 1024), one(8192, 2**18)
    if way == 5:
        return 1, one(1024, 12288), one(1024, 12288), thin
    return int(2 ** rng.uniform(2, 10)), one(32, 1024), one(32, 1024), one(32, 1024)


def cells(count: int, seed: int) -> list[Cell]:
    """Dtype, batch, m, n, k, and whether B is transposed in memory."""
    rng = np.random.default_rng(seed)
    found: list[Cell] = []
    while len(found) < count:
        dtype = str(rng.choice(list(ASKED), p=WEIGHTS / WEIGHTS.sum()))
        batch, m, n, k = sizes(rng)
        rate = 2e13 if dtype in ("float64", "float32", "complex64", "complex128") else 2e14
        if batch * max(m * k, k * n, m * n) < MOST_ELEMENTS and batch * m * n * k / rate < MOST_S:
            found.append((dtype, batch, m, n, k, bool(rng.random() < 0.3)))
    return found


def operands(torch: Any, generator: Any, cell: Cell) -> tuple[Any, Any]:
    dtype, batch, m, n, k, transposed = cell
    kind = getattr(torch, ASKED[dtype][0])
    outer, made = (batch,) if batch > 1 else (), []
    for sides in ((m, k), (n, k) if transposed else (k, n)):
        if dtype == "int8":
            x = torch.randint(-128, 128, (*outer, *sides), device="cuda", generator=generator, dtype=kind)
        else:
            wide = torch.float32 if kind.itemsize < 4 else kind
            x = torch.randn(*outer, *sides, device="cuda", generator=generator, dtype=wide).to(kind)
        made.append(x)
    return made[0], made[1].mT if transposed else made[1]


def compile_ahead(cell: Cell) -> None:
    """Multiply once in a process of its own, which leaves the compiled kernels in the cache."""
    import torch

    torch.cuda.set_per_process_memory_fraction(0.06)
    try:
        a, b = operands(torch, torch.Generator("cuda").manual_seed(1), cell)
        tw.matmul(a, b, **ASKED[cell[0]][1])
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()


def record(torch: Any, cell: Cell) -> dict[str, Any]:
    """The line of one cell."""
    dtype, batch, m, n, k, transposed = cell
    asked, generator = ASKED[dtype][1], torch.Generator("cuda").manual_seed(n)

    def calls_for(a: Any, b: Any) -> dict[str, Callable[[], Any]]:
        calls: dict[str, Callable[[], Any]] = {"tilewright": functools.partial(tw.matmul, a, b, **asked)}
        if dtype not in ("float8", "float8_fast", "int8"):
            calls["torch"] = functools.partial(torch.matmul, a, b)
        return calls

    a, b, calls = in_turns(lambda: operands(torch, generator, cell), calls_for)
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    plan = tw.plan(a, b, **asked)
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for call in calls.values():
        run(call, 3, torch.cuda.synchronize)
    once = min(run(call, 5, torch.cuda.synchronize)[0] for call in calls.values())
    times = max(2, int(LEAST_S / once))
    for _ in range(SAMPLES):
        for name, call in calls.items():
            samples[name].append(run(call, times, torch.cuda.synchronize))
    medians = {name: np.median([total for total, _ in found]) for name, found in samples.items()}
    return {
        "kind": "gpu prediction", "schema": 1, "dtype": dtype, "batch": batch, "m": m, "n": n, "k": k,
        "transposed": transposed, "kernel": plan.kernel.name, "kernel_source": plan.kernel.source_hash,
        "params": dict(plan.params), "parts": plan.parts, "swapped": plan.swapped, "copies": list(plan.copies),
        "predicted_s": plan.predicted_s, "samples_s": [total for total, _ in samples["tilewright"]],
        "host_s": float(np.median([host for _, host in samples["tilewright"]])),
        "reference_samples_s": [total for total, _ in samples.get("torch", [])],
        "ratio": float(medians["torch"] / medians["tilewright"]) if "torch" in medians else None,
    }  # fmt: skip


def told(lines: list[dict[str, Any]]) -> list[str]:
    """The shares of predictions that are near, of all cells that the call does not limit and by dtype; and R."""
    found = []
    near = [
        (line["dtype"], line["predicted_s"] / np.median(line["samples_s"]) - 1)
        for line in lines
        if line["predicted_s"] and np.median(line["samples_s"]) > 1.5 * line["host_s"]
    ]
    for dtype in ("all", *dict.fromkeys(dtype for dtype, _ in near)):
        errors = np.array([error for name, error in near if dtype in ("all", name)])
        ratios = [line["ratio"] for line in lines if line["ratio"] and dtype in ("all", line["dtype"])]
        beside = (
            f"; R {np.exp(np.mean(np.log(ratios))):.2f} of {len(ratios)}, least {min(ratios):.2f}" if ratios else ""
        )
        within = " and ".join(f"{np.mean(abs(errors) <= share):.0%} within {share:.0%}" for share in (0.15, 0.25))
        found.append(f"{dtype:12} {len(errors):4} cells, {within}{beside}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--cells", type=int, default=120)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    until, todo = time.time() + given.seconds, cells(given.cells, given.seed)
    with multiprocessing.get_context("spawn").Pool(12) as pool:
        waiting = pool.map_async(compile_ahead, todo, 1)
        waiting.wait(0.4 * given.seconds)
    import torch

    known = environment(
        operands="randn, int8 uniform",
        command=f"python benchmarks/record_gpu_predictions.py OUT.jsonl --cells {given.cells} --seed {given.seed}",
    )
    known |= {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
    lines: list[dict[str, Any]] = []
    for cell in todo:
        if time.time() > until:
            break
        try:
            lines.append(record(torch, cell))
        except Exception as error:
            print(f"{cell}: {type(error).__name__}: {str(error).splitlines()[0][:200]}", flush=True)
    header = {"kind": "gpu prediction header", "schema": 1, "environment": known}
    given.out.write_text("".join(json.dumps(line) + "\n" for line in (header, *lines)), encoding="utf-8")
    far = sorted(lines, key=lambda line: -abs(np.log(line["predicted_s"] / np.median(line["samples_s"]))))
    for line in far[:12]:
        shape = "{dtype} {batch}x {m}x{k}x{n}".format(**line)
        measured = np.median(line["samples_s"])
        ratio = f", R {line['ratio']:.2f}" if line["ratio"] else ""
        times = (line["predicted_s"], measured, line["host_s"])
        predicted, took, host = (f"{seconds * 1e6:.1f} µs" for seconds in times)
        print(
            f"{shape}{' transposed' * line['transposed']}: {line['kernel']} in {line['parts']}, "
            f"predicted {predicted}, measured {took}, host {host}{ratio}"
        )
    print("\n".join(told(lines)))


if __name__ == "__main__":
    main()
