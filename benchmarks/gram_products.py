"""Products of a matrix and its transpose in turns: ``python benchmarks/gram_products.py OUT.jsonl [ROUNDS] [--threads 1,2]
[--only REGEX]`` (5).

``tilewright.matmul(a.T, a)`` and ``(a, a.T)``, which compute one triangle, take turns with Tilewright's general product of
the same operands (of which one is a copy), with NumPy's, which calls OpenBLAS's ``syrk`` and mirrors the triangle, and with
MKL's ``syrk`` alone, whose other triangle stays unwritten. Each library has a process of its own, because the threads of
two would disturb each other. Operands rotate where they would fit a cache. Each result is checked: it equals its transpose
(MKL's is mirrored for the check), and rows of it are within the classical bound of a float64 product.

R is the time of the other over that of Tilewright: above 1, Tilewright is faster. Appends a record for each number of
threads to OUT. Exits with 1 where a result of Tilewright is wrong."""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

#: Rows and columns of the matrix.
SHAPES = (
    (200, 200),
    (300, 300),
    (500, 500),
    (1000, 1000),
    (2000, 2000),
    (5000, 5000),
    (20000, 300),
    (5000, 1000),
    (300, 5000),
)
#: Bytes of the operands that rotate at least, seconds of a sample at least, and samples of a turn.
ROTATED, SAMPLE_S, SAMPLES = 64 << 20, 0.003, 7
#: Seconds in which threads of the library before fall asleep; MKL's would spin for 200 ms.
PAUSE_S, SPIN_MS = 0.05, "1"
#: Seconds from which two samples are enough.
LONG_S = 0.1
WAYS = ("tilewright", "general", "numpy", "mkl")


def cells() -> list[tuple[str, str, int, int]]:
    """dtype, form, rows and columns of each."""
    return [(dtype, form, *shape) for dtype in ("float32", "float64") for form in ("TN", "NT") for shape in SHAPES]


def operands(dtype: str, form: str, rows: int, columns: int) -> list[np.ndarray]:
    """Matrices whose columns (TN) or rows (NT) are multiplied."""
    shape = (rows, columns) if form == "TN" else (columns, rows)
    count = max(1, min(64, ROTATED // (rows * columns * np.dtype(dtype).itemsize)))
    return [np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype) for seed in range(count)]


def is_right(c: np.ndarray, a: np.ndarray, form: str) -> bool:
    """Whether it is symmetric, and some of its rows are within the bound."""
    x = a.T if form == "TN" else a
    some = np.unique(np.linspace(0, len(x) - 1, 5).astype(int))
    exact, limit = x[some].astype(np.float64) @ x.T.astype(np.float64), abs(x[some]) @ abs(x.T)
    unit = float(np.finfo(a.dtype).eps) / 2
    return np.array_equal(c, c.T) and bool((abs(c[some] - exact) <= 2 * x.shape[1] * unit * limit).all())


def call_of(way: str, form: str) -> Callable[[np.ndarray, np.ndarray], Any]:
    """A call of one library, with a matrix and a copy of it."""
    if way == "mkl":
        return syrk_of_mkl(form)
    if way == "numpy":
        return (lambda a, _: a.T @ a) if form == "TN" else (lambda a, _: a @ a.T)
    import tilewright as tw

    if way == "general":
        return (lambda a, b: tw.matmul(a.T, b)) if form == "TN" else (lambda a, b: tw.matmul(a, b.T))
    return (lambda a, _: tw.matmul(a.T, a)) if form == "TN" else (lambda a, _: tw.matmul(a, a.T))


def syrk_of_mkl(form: str) -> Callable[[np.ndarray, np.ndarray], Any]:
    """MKL's ``cblas_?syrk`` into the lower triangle of a new array."""
    from tilewright.kernels.ref._cblas import libraries_of_prefix

    library = ctypes.CDLL(str(libraries_of_prefix("mkl_rt")[0]))
    row_major, lower, transposed = 101, 122, {"TN": 112, "NT": 111}[form]

    def syrk(a: np.ndarray, _: np.ndarray) -> np.ndarray:
        n, k = a.shape[::-1] if form == "TN" else a.shape
        c, scalar = np.empty((n, n), a.dtype), ctypes.c_float if a.itemsize == 4 else ctypes.c_double
        function = library.cblas_ssyrk if a.itemsize == 4 else library.cblas_dsyrk
        of_a, of_c = ctypes.c_void_p(a.ctypes.data), ctypes.c_void_p(c.ctypes.data)
        function(row_major, lower, transposed, n, k, scalar(1), of_a, a.shape[1], scalar(0), of_c, n)
        return c

    return syrk


def measure(way: str) -> None:
    """Read numbers of cells from stdin; answer with the seconds of some samples, and whether the result is right."""
    for line in sys.stdin:
        dtype, form, rows, columns = cells()[int(line)]
        given = operands(dtype, form, rows, columns)
        time.sleep(PAUSE_S)
        copies, call = [x.copy() for x in given], call_of(way, form)
        c = call(given[0], copies[0])
        begun = time.perf_counter()
        call(given[0], copies[0])
        took = time.perf_counter() - begun
        runs = max(1, math.ceil(SAMPLE_S / took))
        taken, number = [], 0
        for _ in range(SAMPLES if took < LONG_S else 2):
            begun = time.perf_counter()
            for _ in range(runs):
                call(given[number % len(given)], copies[number % len(given)])
                number += 1
            taken.append((time.perf_counter() - begun) / runs)
        whole = np.tril(c) + np.tril(c, -1).T if way == "mkl" else c
        print(
            json.dumps([taken, is_right(whole, given[0], form)]), flush=True
        )  # last: NumPy's threads would spin meanwhile


def main() -> int:
    """Measure all cells in turns, print the table, append the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("rounds", type=int, nargs="?", default=5)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--only", metavar="REGEX", default="")
    parser.add_argument("--measure", metavar="WAY", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(given.measure)
        return 0
    from tilewright.cpu.runtime.machine_code import describe_code
    from tilewright.kernels.ref._cblas import libraries_of_prefix
    from tilewright.lab.inputs.environment import environment

    ways = [way for way in WAYS if way != "mkl" or libraries_of_prefix("mkl_rt")]
    command, wrong = " ".join(["python benchmarks/gram_products.py OUT.jsonl", *sys.argv[2:]]), 0
    names = "TILEWRIGHT_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"
    for threads in map(int, given.threads.split(",")):
        limits = os.environ | dict.fromkeys(names, str(threads)) | {"KMP_BLOCKTIME": SPIN_MS}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": limits}
        processes = {way: subprocess.Popen([sys.executable, __file__, "--measure", way], **pipes) for way in ways}
        found: list[dict[str, Any]] = []
        for number, cell in enumerate(cells()):
            name = f"{cell[0]} {cell[1]} {cell[2]}x{cell[3]}"
            if not re.search(given.only, name):
                continue
            turns: list[dict[str, list[float]]] = []
            is_wrong = set()
            for _ in range(given.rounds):
                turn = {}
                for way, process in processes.items():
                    process.stdin.write(f"{number}\n")
                    process.stdin.flush()
                    turn[way], right = json.loads(process.stdout.readline())
                    is_wrong |= set() if right else {way}
                turns.append(turn)
            wrong += "tilewright" in is_wrong
            own = [statistics.median(turn["tilewright"]) for turn in turns]
            r = {
                way: statistics.median(statistics.median(turn[way]) / x for turn, x in zip(turns, own, strict=True))
                for way in ways
            }
            best = {way: min(map(min, (turn[way] for turn in turns))) for way in ways}
            found.append({"cell": name, "r": r, "best_s": best, "seconds": turns, "wrong": sorted(is_wrong)})
            texts = [f"{way} {r[way]:.2f} ({best[way] / best['tilewright']:.2f})" for way in ways[1:]]
            print(
                f"{threads} {name:24} {statistics.median(own) * 1e3:9.3f} ms  R {', '.join(texts)} {is_wrong or ''}",
                flush=True,
            )
        for process in processes.values():
            process.stdin.close()
            process.wait()
        about = {"environment": environment(operands="uniform", command=command), "machine_code": describe_code()}
        if given.out is not None:
            record = {"kind": "gram products", **about, "rounds": given.rounds, "threads": threads, "cells": found}
            with given.out.open("a") as file:
                file.write(json.dumps(record) + "\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
