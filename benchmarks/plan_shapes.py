"""How long it takes to plan products on a GPU of shapes that the process has not seen.

    python benchmarks/plan_shapes.py OUT.jsonl [COUNT]

No GPU is needed: plans are those of an H100. COUNT (60) products of each dtype have random sizes, as layers of models with
texts of any length have: A is row-major, B the transposed of a row-major matrix. Prints the median and the longest time of
each dtype in milliseconds, and appends a record with all of them. Nothing is computed, so there is no result to verify.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from tilewright.gpu.arrays.gpu_array import GpuArray
from tilewright.gpu.arrays.matmul import plan_of_views
from tilewright.gpu.runtime.device import add_described
from tilewright.kernels.cuda_kernel import Card
from tilewright.lab.inputs.environment import environment

NAME = "NVIDIA H100 80GB HBM3"
DTYPES = ("bfloat16", "float16", "float32", "float64", "complex64", "int8", "float8_e4m3fn")
#: The first products of a kernel also prepare what all its plans share.
FIRST = 5


def operands(rng: np.random.Generator, dtype: str, ordinal: int) -> tuple[GpuArray, GpuArray]:
    """Two matrices at addresses of their own."""
    m, k, n = int(rng.integers(1, 6000)), *(int(x) for x in rng.integers(64, 4000, 2))
    return (
        GpuArray(1 << 30, (m, k), (k, 1), dtype, ordinal),
        GpuArray(1 << 40, (k, n), (1, k), dtype, ordinal),
    )


def planned(dtype: str, count: int, ordinal: int) -> list[float]:
    """The seconds of each plan."""
    rng, seconds = np.random.default_rng(17), []
    for _ in range(FIRST + count):
        a, b = operands(rng, dtype, ordinal)
        begun = time.perf_counter()
        plan_of_views(a, b)
        seconds.append(time.perf_counter() - begun)
    return seconds[FIRST:]


def main() -> None:
    """Measure, print and append the record."""
    out, count = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 60
    card = Card.of(NAME, 132, 2_619_000, 5120)
    ordinal = add_described(SimpleNamespace(capability="9.0", sms=132, name=NAME, card=card))
    found = {dtype: planned(dtype, count, ordinal) for dtype in DTYPES}
    for dtype, seconds in found.items():
        print(f"{dtype:14} median {1e3 * statistics.median(seconds):6.2f} ms, longest {1e3 * max(seconds):6.2f}")
    command = f"python benchmarks/plan_shapes.py OUT.jsonl {count}"
    record = {"kind": "plans", "gpu": NAME, "environment": environment(operands="none", command=command)}
    with out.open("a") as file:
        file.write(json.dumps(record | {"seconds": found}) + "\n")


if __name__ == "__main__":
    main()
