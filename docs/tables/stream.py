"""Generates the tables of products larger than a GPU's memory or the host's memory, and of products on several GPUs."""

from __future__ import annotations

import json
from typing import Any

from .common import RECORDS, command, lines_of, linked, table

Line = dict[str, Any]


def streams(name: str) -> str:
    """Return the table of all cases in a record of products on GPUs."""
    known, rows = lines_of(name)
    cells = [["case", "seconds", "TFLOPS", "R torch", "R cuBLASXt", "predicted", "copies waited for"]]
    for row in sorted(rows, key=lambda row: (row["files"], row["dtype"], row["device_memory"] is not None)):
        waited = max(place["between_s"] for place in row["lanes"].values()) / row["median_s"]
        cells.append(
            [
                _what(row),
                f"{row['median_s']:.2f}",
                f"{row['gflops'] / 1000:.1f}",
                *(f"{row['ratio'][name]:.2f}" if name in row["ratio"] else "–" for name in ("torch", "cublasxt")),
                f"{row['predicted_s']:.2f} s",
                f"{waited:.1%}",
            ]
        )
    gpus = known["gpus"]
    where = f"{len(gpus)}× {gpus[0]}" if len(gpus) > 1 else gpus[0]
    return (
        f"{table(cells)}\n\nEach case of the table computes a pageable NumPy array, or a file, from operands of the "
        "same kind. Times are medians. R is the time of another library divided by the time of Tilewright, in the same "
        "run. For *R torch* this library is PyTorch with `(a.cuda() @ b.cuda()).cpu()`, and for *R cuBLASXt* it is "
        "cuBLASXt, including the registration of its arrays."
        "\n\n*Copies waited for* is the part of the time in which a GPU waited for a block between two "
        "multiplications. "
        f"Every C was verified.{_by(rows)} The machine had {where}, {known['cores']} cores and PyTorch {known['torch']}. "
        f"Record: {linked(name)}, made by `{command(known)}`."
    )


def _by(rows: list[Line]) -> str:
    """Return a remark if a record does not name the kernel, because it was made before float16 parts; else nothing."""
    if all("kernel" in row for row in rows):
        return ""
    return " The table was measured before float32 was computed from float16 parts."


def _what(row: Line) -> str:
    words = f"{row['n']:,}³ {row['dtype']}"
    count = len(row["lanes"])
    if row["device_memory"]:
        words += f", {row['device_memory']} of the GPU"
    if row.get("precision") == "ieee":
        words += ", by multiply-adds"
    if row.get("precision") == "fast":
        words += ', `precision="fast"`'
    if row["files"]:
        words += f", files, {row['memory']} of the host"
    return f"{words}, {count} GPUs" if count > 1 else words


def scaling(name: str) -> str:
    """Return a sentence that says how much faster several GPUs are than one."""
    _, rows = lines_of(name)
    alone = {(row["n"], row["dtype"]): row["median_s"] for row in rows if len(row["lanes"]) == 1}
    said = [
        f"{alone[row['n'], row['dtype']] / row['median_s']:.2f}× as fast on {len(row['lanes'])} GPUs"
        for row in rows
        if len(row["lanes"]) > 1 and (row["n"], row["dtype"]) in alone
    ]
    return f"The product of 65,536³ float32 is {' and '.join(said)} as on one GPU in the same run."


def largest(name: str) -> str:
    """Return a sentence about the largest product of a record."""
    _, rows = lines_of(name)
    row = max(rows, key=lambda row: row["n"])
    return (
        f"The largest product so far is {row['n']:,}³ {row['dtype']}, three matrices of "
        f"{row['n'] ** 2 * 4 / 2**30:.0f} GiB "
        f"each. This product took {row['median_s']:.1f} s on {len(row['lanes'])} GPUs, {row['gflops'] / 1000:.0f} TFLOPS "
        f"({linked(name)})."
    )


def files(name: str) -> str:
    """Return sentences about the product of files: bytes read and the minimum, measured time and predicted time."""
    _, rows = lines_of(name)
    row = next(row for row in rows if row["files"])
    return (
        f"A product of `.npy` files, {row['n']:,}³ {row['dtype']}, used {row['memory']} of the host's memory and "
        f"{row['device_memory']} of the GPU's. The product read {row['bytes_read'] / 2**30:.1f} GiB, "
        f"{row['bytes_read'] / row['least_bytes_read']:.2f} times the minimum for memories of these sizes. The product "
        f"took {row['median_s']:.1f} s and was predicted to take {row['predicted_s']:.1f} s ({linked(name)})."
    )


def host(name: str) -> str:
    """Return sentences about a product on the CPU that is larger than its memory limit."""
    row = json.loads((RECORDS / f"{name}.jsonl").read_text(encoding="utf-8"))
    beyond = (row["peak_bytes"] - row["interpreter_bytes"]) / 2**20
    return (
        f"On a CPU with 2 cores, a product of {row['n']:,}³ {row['dtype']} (three matrices of "
        f"{row['n'] ** 2 * 4 / 2**30:.2f} GiB each) with `--memory {row['memory_bytes'] >> 20}MiB` reached "
        f"{row['measured']['gflops']:.0f} GFLOPS. This rate is {row['rate_over_in_memory']:.0%} of the engine's rate "
        f"for a product of {row['in_memory_n']:,}³ in memory in the same run. The process used at most {beyond:,.0f} "
        f"MiB more memory than an idle interpreter. The product took {row['measured']['seconds']:.1f} s and was "
        f"predicted to take {row['plan']['total_s']:.1f} s. "
        f"Record: {linked(name)}, made by `{command(row['environment'])}`."
    )


def limits(name: str) -> str:
    """Return the table of the most memory that products took, for each limit and each kind of processor."""
    lines = [json.loads(line) for line in (RECORDS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    cases = [case for line in lines for case in line["cases"]]
    machines = list(dict.fromkeys(case["machine"] for case in cases))
    cells = [["`memory`", *(f"most taken, {machine}" for machine in machines)]]
    for limit in sorted({case["limit"] for case in cases}):
        row = [f"{limit >> 20} MiB"]
        for machine in machines:
            found = [case for case in cases if (case["machine"], case["limit"]) == (machine, limit) and "rss" in case]
            row.append(f"{max(case['rss'] for case in found) / 2**20:.0f} MiB")
        cells.append(row)
    formats = list(dict.fromkeys(case["format"] for case in cases))
    return (
        f"{table(cells)}\n\nEach figure is the most memory that a product took, among "
        f"{len({tuple(case['shape']) for case in cases})} shapes in {len(formats)} file formats "
        f"({', '.join(formats)}). Operands and results were files. All rates were measured. "
        f"Record: {linked(name)}, made by `python benchmarks/memory_limits.py OUT.jsonl`."
    )
