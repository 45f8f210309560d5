"""Contractions in turns: ``python benchmarks/contractions.py OUT.jsonl [ROUNDS] [--threads 1,2] [--only REGEX]`` (3).

Two hundred contractions of two operands: those with the patterns of the TCCG benchmark of tensor contractions (Springer and
Bientinesi, arXiv 1607.00145), and others that are drawn from a seed: permuted operands, batches, inner and outer
products, with two to six axes. ``tilewright.einsum`` takes turns with ``numpy.einsum(optimize=True)``, and, where
PyTorch is installed, with ``torch.einsum`` and ``opt_einsum`` on PyTorch's tensors, each in a process of its own,
because the threads of two libraries would disturb each other. Each result is compared with the float64 one of
``numpy.einsum`` in the same process.

R is the time of the other over that of Tilewright: above 1, Tilewright is faster. Prints for each reference and
number of threads the median of R, the share of cells with R of at least 1, the median of R of permuted operands,
wrong results, and the cells with the least R. Appends a record for each number of threads to OUT. Exits with 1 where
a result of Tilewright is wrong.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

#: Patterns of TCCG: result, first operand, second operand.
TCCG = [
    *("abc-bda-dc", "abc-dca-bd", "abcd-dbea-ec", "abcd-deca-be", "abcd-ebad-ce", "abcde-efbad-cf", "abcde-ecbfa-fd"),
    *("abcde-efcad-bf", "abcd-ea-ebcd", "abcd-eb-aecd", "abcd-ec-abed", "abcd-ed-abce", "ab-ac-cb", "ab-acd-dbc"),
    *("ab-cad-dcb", "abc-acd-db", "abc-ad-bdc", "abc-adc-bd", "abc-adc-db", "abc-adec-ebd", "abcd-aebf-dfce"),
    *("abcd-aebf-fdec", "abcd-aecf-bfde", "abcd-aecf-fbed", "abcd-aedf-bfce", "abcd-aedf-fbec", "abcd-aefb-fdce"),
    *("abcd-aefc-fbed", "abcd-eafb-fdec", "abcd-eafc-bfde", "abcd-eafd-fbec", "abcdef-dega-gfbc", "abcdef-degb-gfac"),
    *("abcdef-degc-gfab", "abcdef-dfga-gebc", "abcdef-dfgb-geac", "abcdef-dfgc-geab", "abcdef-efga-gdbc"),
    *("abcdef-efgb-gdac", "abcdef-efgc-gdab", "abcdef-gdab-efgc", "abcdef-gdac-efgb", "abcdef-gdbc-efga"),
    *(
        "abcdef-geab-dfgc",
        "abcdef-geac-dfgb",
        "abcdef-gebc-dfga",
        "abcdef-gfab-degc",
        "abcdef-gfac-degb",
        "abcdef-gfbc-dega",
    ),
]
#: How many contractions are drawn beside those of TCCG.
DRAWN = 151
#: Multiply-adds of a contraction: each takes some milliseconds.
WORK = {"product": 3e8, "batch": 1.5e8, "inner": 4e6, "outer": 4e6}
#: Seconds of a sample at least, which is shorter than other programs interrupt it, and how many are taken: the least counts.
SAMPLE_S, SAMPLES = 0.002, 8
REFERENCES = ("numpy", "torch", "opt_einsum+torch")

Cell = tuple[str, str, dict[str, int], str]  # name, subscripts, sizes, dtype


def cells() -> list[Cell]:
    """Every contraction, the same at each call."""
    rng, found = random.Random(20), []
    for number, pattern in enumerate(TCCG):
        result, first, second = pattern.split("-")
        dtype = ("float32", "float64")[number % 2]
        found.append(
            (f"tccg {pattern} {dtype}", f"{first},{second}->{result}", sized(rng, first, second, "product"), dtype)
        )
    for number in range(DRAWN):
        kind = ("product", "product", "product", "batch", "batch", "inner", "outer")[number % 7]
        subscripts = drawn(rng, kind)
        first, second = subscripts.partition("->")[0].split(",")
        dtype = rng.choice(["float32", "float32", "float64", "float64", "complex64"])
        found.append((f"{kind} {number} {subscripts} {dtype}", subscripts, sized(rng, first, second, kind), dtype))
    return found


def drawn(rng: random.Random, kind: str) -> str:
    """Subscripts with the labels of each operand and of the result in any order."""
    letters = iter("abcdefghij")

    def group(least: int, most: int) -> list[str]:
        return [next(letters) for _ in range(rng.randint(least, most))]

    batch = group(1, 2) if kind == "batch" or (kind == "outer" and rng.random() < 0.5) else []
    k = [] if kind == "outer" else group(2 if kind == "inner" else 1, 3 if kind == "inner" else 2)
    m, n = ([], []) if kind == "inner" else (group(1, 2), group(1, 2))
    terms = [batch + m + k, batch + n + k, batch + m + n]
    for term in terms:
        rng.shuffle(term)
    return "{},{}->{}".format(*map("".join, terms))


def sized(rng: random.Random, first: str, second: str, kind: str) -> dict[str, int]:
    """Sizes of the labels, within a factor of two of each other, with so many multiply-adds in all."""
    labels = sorted({*first, *second})
    weights = {label: rng.uniform(0.7, 1.4) for label in labels}
    scale = (WORK[kind] / math.prod(weights.values())) ** (1 / len(labels))
    return {label: max(2, round(scale * weights[label])) for label in labels}


def is_permuted(subscripts: str) -> bool:
    """Whether an operand does not lie as one matrix, or a batch of them."""
    inputs, _, output = subscripts.partition("->")
    for term, other in zip(inputs.split(","), reversed(inputs.split(",")), strict=True):
        batch = "".join(x for x in term if x in other and x in output)
        rest = "".join("m" if x not in other else "k" for x in term if x not in batch)
        if not term.startswith(batch) or len(re.sub(r"(.)\1*", r"\1", rest)) > 2:
            return True
    return False


def operands(cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of uniform numbers."""
    name, subscripts, sizes, dtype = cell
    rng = np.random.default_rng(sum(map(ord, name)))
    found = []
    for term in subscripts.partition("->")[0].split(","):
        x = rng.uniform(-1, 1, [sizes[label] for label in term])
        found.append((x + 1j * rng.uniform(-1, 1, x.shape) if dtype[0] == "c" else x).astype(dtype))
    return found[0], found[1]


def is_right(cell: Cell, c: Any, a: np.ndarray, b: np.ndarray) -> bool:
    """Whether the result has the classical error bound, beside NumPy's in wider arithmetic."""
    _, subscripts, sizes, dtype = cell
    output = subscripts.partition("->")[2]
    k = math.prod(size for label, size in sizes.items() if label not in output)
    wide = np.complex128 if dtype[0] == "c" else np.float64
    exact = np.einsum(subscripts, a.astype(wide), b.astype(wide), optimize=True)
    limit = np.einsum(subscripts, abs(a).astype(np.float64), abs(b).astype(np.float64), optimize=True)
    unit = float(np.finfo(dtype).eps) / 2
    bound = 3 * (k + 4) * max(unit, 2.0**-53) * limit  # the reference has an error of its own where it is no wider
    return bool((abs(np.asarray(c) - exact) <= bound).all())


def function_of(way: str, subscripts: str, a: Any, b: Any) -> Any:
    """A call of one library."""
    if way == "tilewright":
        import tilewright as tw

        return lambda: tw.einsum(subscripts, a, b)
    if way == "numpy":
        return lambda: np.einsum(subscripts, a, b, optimize=True)
    import torch

    x, y = torch.from_numpy(a), torch.from_numpy(b)
    if way == "torch":
        return lambda: torch.einsum(subscripts, x, y)
    import opt_einsum

    return lambda: opt_einsum.contract(subscripts, x, y)


def measure(way: str, only: str, threads: int) -> None:
    """Read numbers of cells from stdin; answer with the seconds of each, and whether the result is right."""
    if way.endswith("torch"):
        import torch

        torch.set_num_threads(threads)
    every = cells()
    for line in sys.stdin:
        cell = every[int(line)]
        a, b = operands(cell)
        call = function_of(way, cell[1], a, b)
        right = is_right(cell, call(), a, b)
        begun = time.perf_counter()
        call()
        runs = max(1, math.ceil(SAMPLE_S / max(1e-7, time.perf_counter() - begun)))
        taken = []
        for _ in range(SAMPLES):
            begun = time.perf_counter()
            for _ in range(runs):
                call()
            taken.append((time.perf_counter() - begun) / runs)
        print(json.dumps([min(taken), right]), flush=True)


def process_of(way: str, threads: int) -> subprocess.Popen[str]:
    """A process that measures cells of one library."""
    names = "TILEWRIGHT_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"
    limits = os.environ | dict.fromkeys(names, str(threads))
    command = [sys.executable, __file__, "--measure", way, "--threads", str(threads)]
    return subprocess.Popen(command, env=limits, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def asked(process: subprocess.Popen[str], number: int) -> tuple[float, bool]:
    """The seconds of a cell in a process, and whether its result is right."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{number}\n")
    process.stdin.flush()
    seconds, right = json.loads(process.stdout.readline())
    return seconds, right


def main() -> int:
    """Measure all cells in turns, print the table, append the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", help="the file to which the record is appended")
    parser.add_argument("rounds", type=int, nargs="?", default=3, help="turns of each library")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--only", metavar="REGEX", default="", help="the cells to measure; default: all")
    parser.add_argument("--measure", metavar="WAY", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(given.measure, given.only, int(given.threads))
        return 0
    from tilewright.cpu.runtime.machine_code import describe_code
    from tilewright.lab.inputs.environment import environment

    lacks = {"torch": ["torch"], "opt_einsum+torch": ["torch", "opt_einsum"]}
    ways = [w for w in REFERENCES if all(map(importlib.util.find_spec, lacks.get(w, [])))]
    chosen = [(number, cell) for number, cell in enumerate(cells()) if re.search(given.only, cell[0])]
    wrong = 0
    command = " ".join(["python benchmarks/contractions.py OUT.jsonl", *sys.argv[2:]])
    for threads in map(int, given.threads.split(",")):
        found: list[dict[str, Any]] = []
        processes = {way: process_of(way, threads) for way in ["tilewright", *ways]}
        for number, cell in chosen:
            turns = [{way: asked(process, number) for way, process in processes.items()} for _ in range(given.rounds)]
            seconds = {way: [turn[way][0] for turn in turns] for way in processes}
            r = {way: statistics.median(turn[way][0] / turn["tilewright"][0] for turn in turns) for way in ways}
            is_wrong = sorted({way for turn in turns for way in processes if not turn[way][1]})
            wrong += "tilewright" in is_wrong
            name, subscripts, sizes, dtype = cell
            about = {"cell": name, "subscripts": subscripts, "sizes": sizes, "dtype": dtype}
            permuted = is_permuted(subscripts)
            found.append(about | {"permuted": permuted, "r": r, "seconds": seconds, "wrong": is_wrong})
        for process in processes.values():
            process.stdin.close()  # type: ignore[union-attr]
            process.wait()
        show(found, ways, threads)
        if given.out is not None:
            about = {"environment": environment(operands="uniform", command=command), "machine_code": describe_code()}
            record = {"kind": "contractions", **about, "rounds": given.rounds, "threads": threads, "cells": found}
            with given.out.open("a") as file:
                file.write(json.dumps(record) + "\n")
    return int(wrong > 0)


def show(found: list[dict[str, Any]], ways: list[str], threads: int) -> None:
    """Print the table of a number of threads, and the cells with the least R."""
    for way in ways:
        r = [cell["r"][way] for cell in found]
        permuted = [cell["r"][way] for cell in found if cell["permuted"]]
        wrong = sum("tilewright" in cell["wrong"] for cell in found)
        print(
            f"{threads} threads, {way}: median R {statistics.median(r):.2f}, R ≥ 1 {sum(x >= 1 for x in r) / len(r):.0%}, "
            f"permuted {statistics.median(permuted or [math.nan]):.2f} ({len(permuted)}), {len(r)} cells, {wrong} wrong"
        )
        for cell in sorted(found, key=lambda cell: cell["r"][way])[:12]:
            ms = statistics.median(cell["seconds"]["tilewright"]) * 1e3
            print(f"    {cell['r'][way]:5.2f}  {ms:8.2f} ms  {cell['cell']}  {cell['sizes']}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
