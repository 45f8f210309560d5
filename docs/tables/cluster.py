"""Generates the tables of products on a cluster: compared with one process, Dask's product, formulas and simulations."""

from __future__ import annotations

import json
import statistics
from typing import Any

from tilewright.host.machine import seconds_text

from .common import RECORDS, command, lines_of, linked, table

NAME = "cluster-products"


def _rows(what: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    environment, rows = lines_of(NAME)
    return environment, [row for row in rows if row["what"] == what]


def beside() -> str:
    """Return the table that compares Tilewright on a cluster with one process and with Dask's own product."""
    environment, (ours,) = _rows("cluster beside one process")
    _, (dask,) = _rows("Dask's own product")
    one, ours_s = statistics.median(ours["one_process_2_threads_s"]), statistics.median(ours["cluster_s"])
    theirs = (
        f"{dask['seconds']:.1f} s"
        if dask["seconds"]
        else f"died after {dask['after_s']:.0f} s: {_first(dask['error'])}"
    )
    peak = max(ours["peak_bytes"]) / 2**30
    cells = [
        ["method", "time"],
        ["one process, 2 threads", f"{one:.1f} s"],
        ["4 workers of one thread and 1 GiB", f"{ours_s:.1f} s, {peak:.2f} GiB at most in a worker"],
        ["Dask's `a @ b` on 4 such workers", theirs],
    ]
    shape = f"({ours['m']}×{ours['k']}) · ({ours['k']}×{ours['n']}) float32"
    return (
        f"{table(cells)}\n\nThe product {shape} reads and writes zarr arrays. The table was measured on 2 "
        f"cores of {environment['processor']}. Times are medians of {len(ours['cluster_s'])} runs each, in alternation; all "
        f"results had the same bits. R, the time of one process divided by that of the 4 workers, is {ours['R']:.2f}. "
        f"{_record(environment)}"
    )


def received() -> str:
    """Return the table of the bytes that a worker reads, compared with the formula."""
    environment, rows = _rows("bytes of each worker")
    cells = [["m × n × k", "workers p×q", "largest amount that one worker read", "formula", "read / formula"]]
    for row in rows:
        most = max(row["read_bytes"]) / 2**20
        shape = f"{row['m']} × {row['n']} × {row['k']}"
        cells.append(
            [
                shape,
                "parts of k" if row["partition"] == "layers" else row["partition"].replace("x", "×"),
                f"{most:.1f} MiB",
                f"{row['formula_bytes'] / 2**20:.1f} MiB",
                f"{row['over_formula']:.3f}",
            ]
        )
    return (
        f"{table(cells)}\n\nWith a stated partition, no worker takes tiles of another worker. Dask's work stealing "
        f"was off. "
        f"{_record(environment)}"
    )


def gpus() -> str:
    """Return the table that compares two workers with one GPU each with one process that has both GPUs."""
    name = "cluster-gpus-h200"
    (row,) = map(json.loads, (RECORDS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines())
    environment = row["environment"]
    seconds = {way: statistics.median(run["seconds"] for run in runs) for way, runs in row["runs"].items()}
    rate = 2 * row["size"] ** 3 / 1e12
    cells = [["method", "time", "TFLOPS"]]
    for way, text in (("one process", "one process, both GPUs"), ("workers", "two workers, a GPU each")):
        cells.append([text, f"{seconds[way]:.2f} s", f"{rate / seconds[way]:.1f}"])
    n = row["size"]
    return (
        f"{table(cells)}\n\nThe product of {n:,}³ float32 reads and writes `.npy` files that are in memory. The "
        f"table was measured on {len(environment['gpus'])}× {environment['gpus'][0]}. Times are medians of "
        f"{len(row['runs']['workers'])} runs "
        f"each, in alternation; every result was verified. R, the time of one process divided by that of the "
        f"workers, is "
        f"{row['R']:.3f}. "
        f"Record: {linked(name)}, made by `{command(environment)}`."
    )


def simulated() -> str:
    """Return the table that compares the times of products with simulations of their plans."""
    environment, rows = _rows("run beside its simulation")
    same = sum(row["read_bytes"] == row["replayed_bytes"] for row in rows)
    cells = [["m × n × k", "partition", "seconds", "simulated", "ratio", "at the run's pace", "ratio"]]
    for row in rows:
        cells.append(
            [
                f"{row['m']} × {row['n']} × {row['k']}",
                row["partition"].replace("x", "×"),
                f"{row['seconds']:.2f}",
                f"{row['simulated_s']:.2f}",
                f"{row['ratio']:.2f}",
                f"{row['paced_s']:.2f}",
                f"{row['paced_ratio']:.2f}",
            ]
        )
    return (
        f"{table(cells)}\n\n*Simulated* times are computed from the rates that the workers measured before the "
        f"product. Times *at the run's pace* are computed from rates that are scaled so that each simulated worker takes "
        "as long for a tile as the real worker did. *Ratio* is the time of the real product divided by the computed "
        "time in the column to the left.\n\nIn "
        f"{same} of {len(rows)} runs, every worker read exactly the bytes that its schedule states for the tiles "
        f"that it "
        f"computed. {_record(environment)}"
    )


def scaling(name: str) -> str:
    """Return the table of the time and efficiency of each size on each number of simulated workers."""
    rows = [json.loads(line) for line in (RECORDS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    counts = list(dict.fromkeys(row["workers"] for row in rows))
    cells = [["workers", *(f"{count:,}" for count in counts)]]
    for size in dict.fromkeys(row["m"] for row in rows):
        of_size = {row["workers"]: row for row in rows if row["m"] == size}
        cells.append([f"{size:,}³", *(_time_and_share(of_size[count]) for count in counts)])
    rates = rows[0]["rates"]
    made = f"Record: {linked(name)}, made by `{command(rows[0]['environment'])}`."
    return (
        f"{table(cells)}\n\nEach cell has the simulated time and the efficiency, which is the number of operations of "
        "the product divided by the number that all workers could do in that time. The products are float32. A worker has "
        f"{rates['flops'] / 1e12:g} TFLOPS and a link of {rates['link_bytes'] / 1e9:g} GB/s, and A and B are in the "
        f"workers' memory. {made}"
    )


def _time_and_share(row: dict[str, Any]) -> str:
    return f"{seconds_text(row['total_s'])}, {row['efficiency']:.0%}"


def _first(text: str) -> str:
    return text.partition("\n")[0][:100]


def _record(environment: dict[str, Any]) -> str:
    return f"Record: {linked(NAME)}, made by `{command(environment)}` and the other parts of this script."
