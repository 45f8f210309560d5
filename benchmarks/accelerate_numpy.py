"""``a @ b`` with and without ``accelerate_numpy``: ``python benchmarks/accelerate_numpy.py OUT.jsonl ROUNDS THREADS``.

A process multiplies by NumPy alone, and another one after ``tilewright.accelerate_numpy()``. They take turns, because the
threads of two libraries in one process would disturb each other. Both verify each product by a random vector, and measure
the seconds of a call: the least of several runs, each of as many calls as take about 10 ms. ``pairs`` has the seconds of
both in each round, and ``r`` the median of their ratios: over 1, the accelerated call is faster. Appends a record for each
of THREADS, such as 1,2, to OUT. OpenBLAS takes the kernels that ``OPENBLAS_CORETYPE`` names.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info

import tilewright as tw
from tilewright.cpu.runtime.machine_code import describe_code
from tilewright.lab.inputs.environment import environment

CORE_TYPE = os.environ.get("OPENBLAS_CORETYPE", "")
COMMAND = " ".join(["python benchmarks/accelerate_numpy.py OUT.jsonl", *sys.argv[2:]])
if CORE_TYPE:
    COMMAND = f"OPENBLAS_CORETYPE={CORE_TYPE} {COMMAND}"
SIZES = [2, 4, 8, 16, 32, 64, 100, 128, 256, 512, 1000, 1024, 2048, 4096]
#: The largest size of each dtype: NumPy's own loops of integers and float16 take seconds for more.
LARGEST = {"float32": 4096, "float64": 4096, "complex64": 2048, "complex128": 2048}
LARGEST |= {"int8": 512, "int32": 512, "int64": 512, "float16": 256}
RUN_S, RUNS = 0.01, 7


def operands(dtype: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Two matrices: uniform numbers, or integers from −9 to 9."""
    rng = np.random.default_rng(n)
    if dtype.startswith("int"):
        return rng.integers(-9, 10, (n, n), dtype), rng.integers(-9, 10, (n, n), dtype)
    pair = (rng.uniform(-1, 1, (2, n, n)) + (1j * rng.uniform(-1, 1, (2, n, n)) if dtype[0] == "c" else 0)).astype(
        dtype
    )
    return pair[0], pair[1]


def verify(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """C·x is A·(B·x) for a random x: exactly modulo 2^bits, or up to the rounding of so many sums."""
    n = len(a)
    if a.dtype.kind == "i":
        x = np.random.default_rng(0).integers(-9, 10, n)
        difference = np.einsum("ij,j->i", c, x) - np.einsum("ij,j->i", a, np.einsum("ij,j->i", b, x))
        assert not difference.astype(a.dtype).any()
        return
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    x = np.random.default_rng(0).uniform(-1, 1, n)
    exact = np.einsum("ij,j->i", a.astype(wide), np.einsum("ij,j->i", b.astype(wide), x))
    error = abs(np.einsum("ij,j->i", c.astype(wide), x) - exact).max()
    assert error <= 64 * float(np.finfo(a.dtype).eps) * (n + 8), (a.dtype, n, error)


def measure() -> dict[str, float]:
    """The seconds of a call of each dtype and size, in this process."""
    found = {}
    for dtype, largest in LARGEST.items():
        for n in (size for size in SIZES if size <= largest):
            a, b = operands(dtype, n)
            verify(a, b, a @ b)
            begun = time.perf_counter()
            a @ b
            once = time.perf_counter() - begun
            calls, least = max(1, min(20_000, round(RUN_S / once))), math.inf
            for _ in range(RUNS if once < 0.1 else 2):
                begun = time.perf_counter()
                for _ in range(calls):
                    a @ b
                least = min(least, (time.perf_counter() - begun) / calls)
            found[f"{dtype} {n}"] = least
    return found


def measured(way: str, threads: int) -> dict[str, float]:
    """The same in a process of its own."""
    names = "TILEWRIGHT_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"
    limits = os.environ | dict.fromkeys(names, str(threads))
    done = subprocess.run([sys.executable, __file__, way], check=True, env=limits, stdout=subprocess.PIPE, text=True)
    times: dict[str, float] = json.loads(done.stdout)
    return times


def main() -> None:
    """Measure every cell in turns, and append the records."""
    if sys.argv[1] in ("plain", "accelerated"):
        if sys.argv[1] == "accelerated":
            tw.accelerate_numpy()
        print(json.dumps(measure()))
        return
    out, rounds = Path(sys.argv[1]), int(sys.argv[2])
    blas = next((pool["architecture"] for pool in threadpool_info() if pool["user_api"] == "blas"), "unknown")
    for threads in map(int, sys.argv[3].split(",")):
        both = [(measured("plain", threads), measured("accelerated", threads)) for _ in range(rounds)]
        cells = []
        for cell in both[0][0]:
            pairs = [(plain[cell], ours[cell]) for plain, ours in both]
            ratio = statistics.median(plain / ours for plain, ours in pairs)
            dtype, n = cell.split()
            cells.append({"dtype": dtype, "n": int(n), "r": ratio, "pairs": pairs})
            print(f"{threads} threads {cell:16} NumPy {min(pairs)[0] * 1e6:12.2f} µs, R {ratio:6.2f}", flush=True)
        about = {"environment": environment(operands="uniform", command=COMMAND), "machine_code": describe_code()}
        record = {"kind": "accelerated numpy", **about, "openblas_kernels": blas, "threads": threads, "cells": cells}
        with out.open("a") as file:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
