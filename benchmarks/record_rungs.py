"""Hold what ``explain`` predicts of every SIMT rung to what a GPU counts:
``python benchmarks/record_rungs.py OUT.jsonl``.

Needs a GPU and ncu. Each rung that uses no tensor core is launched with its smallest tile at ``SIZES``, and as one block, so
that no other is there to get in its way; the shared and global counters are read in three launches. The record has a line
for each, which ``test_measured_rungs.py`` holds to its claims. Exits with 1 where a result is wrong or nothing was counted.

What takes minutes, predictions of whole grids, can be made before and elsewhere, with the same compiler:
``--predict DIR`` writes them, and ``OUT.jsonl --predicted DIR`` reads them.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import multiprocessing
import sys
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tilewright.errors import UsageError
from tilewright.gpu.runtime.nvrtc import compile_kernel, compiler
from tilewright.kernels.catalog import cuda_catalog
from tilewright.kernels.cuda_kernel import CudaKernel
from tilewright.lab.explain import measure
from tilewright.lab.explain.checked_launch import operands
from tilewright.lab.explain.cuda import explain
from tilewright.lab.explain.stored_launches import StoredLaunch
from tilewright.records.explanation import Explanation, read_explanations

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.measured_rungs import GLOBAL, LAUNCHES, SHARED, compared, differences, lines_apart, rungs, shapes, smallest


def predicted(
    kernel: CudaKernel, shape: tuple[int, int, int], params: dict[str, int], folder: Path | None = None
) -> Explanation:
    """As it is kept in ``folder``, if it is; else by a sample where that is exact, and where it is not by all blocks."""
    kept = None if folder is None else kept_as(folder, kernel, shape)
    if kept is not None and kept.is_file():
        (known,) = read_explanations(kept)
        if (known.source, known.params, known.environment["compiler"]) != (kernel.source, params, compiler()):
            raise UsageError(f"{kept}: is of another source, other parameters or another compiler")
        return known
    found = explain(kernel, *shape, params=params)
    if found.run["exact"] or found.run["blocks_run"] == found.run["blocks_total"]:
        return found
    return explain(kernel, *shape, params=params, whole=True)


def kept_as(folder: Path, kernel: CudaKernel, shape: tuple[int, int, int]) -> Path:
    return folder / f"{kernel.entry}-{shape[0]}.json"


def predict(name: str, folder: Path) -> None:
    """Keep the explanations of one kernel."""
    kernel = cuda_catalog()[name]
    params = smallest(kernel)
    for shape in shapes(kernel, params):
        found = predicted(kernel, shape, params)
        kept_as(folder, kernel, shape).write_text(json.dumps(found.as_dict()), encoding="utf-8")


def rung(name: str, folder: Path | None = None) -> list[dict[str, Any]]:
    """The lines of the record for one kernel."""
    kernel = cuda_catalog()[name]
    params = smallest(kernel)
    expected = [predicted(kernel, shape, params, folder) for shape in shapes(kernel, params)]
    seen = measure.measured_together(kernel, expected, seed=1)
    again = repeated(kernel, expected)
    return [
        row(kernel, found, counted, [one[i] for one in again])
        for i, (found, counted) in enumerate(zip(expected, seen, strict=True))
    ]


def repeated(kernel: CudaKernel, expected: list[Explanation]) -> list[list[dict[str, float]]]:
    """The counters of all launches once more, as often as is missing to ``LAUNCHES``."""
    first = expected[0]
    compiled = compile_kernel(kernel, arch=first.environment["arch"], **first.params)
    once = []
    for e in expected:
        how, size = kernel.launch(e.m, e.n, e.k, **e.params), (e.m, e.n, e.k)
        args = (*operands(kernel, *size, seed=1), *size)
        once.append(StoredLaunch(compiled.entry(kernel.entry), how.grid, how.block, args, how.shared_bytes))
    found = measure.profile_launches(compiled, once * (LAUNCHES - 1), (*SHARED, *GLOBAL), lines=False)
    counters = [profile.counters for profile in found]
    return [counters[start : start + len(once)] for start in range(0, len(counters), len(once))]


def row(kernel: CudaKernel, e: Explanation, seen: dict[str, Any], again: list[dict[str, float]]) -> dict[str, Any]:
    """A line of the record; counts that are 0 are left out."""
    return {
        "kernel": e.kernel, "kernel_source": kernel.source_hash, "m": e.m, "n": e.n, "k": e.k, "params": e.params,
        "blocks": e.launch["blocks"], "threads": e.launch["threads"], "resident": e.occupancy["blocks"],
        "local_bytes": e.resources["local_bytes"], "run": e.run, "predicted_result": e.verified, "notes": e.notes,
        "predicted": e.counters, "predicted_lines": by_line(e),
        "counted": [{name: n for name, n in one.items() if n} for one in (seen["counters"], *again)],
        "counted_lines": {line: kept for line, counts in seen["by_line"].items()
                          if (kept := {unit: n for unit, n in counts.items() if unit != "executed"})},
        "result": seen["verified"],
        "environment": {name: value for name, value in seen["environment"].items() if name != "command"},
    }  # fmt: skip


def by_line(e: Explanation) -> dict[str, dict[str, int]]:
    """Source line → sectors of global memory and wavefronts of shared memory, as predicted."""
    lines: dict[str, Counter[str]] = {}
    for access in e.accesses:
        unit = {"global": "sectors", "shared": "wavefronts", "local": "local sectors"}[access.space]
        lines.setdefault(f"{access.file}:{access.line}" if access.file else str(access.line), Counter())[unit] += (
            access.cost
        )
    return {line: dict(+counts) for line, counts in sorted(lines.items()) if +counts}


def show(row: dict[str, Any]) -> None:
    shape = f"{row['m']}×{row['n']}×{row['k']}"
    params = " ".join(f"{name}={value}" for name, value in row["params"].items())
    print(f"{row['kernel']} {shape} ({params}): {row['blocks']:,} blocks of {row['threads']}, {row['run']['words']}")
    for name, ours, theirs in compared(row, (*GLOBAL, *SHARED)):
        off = " ".join(f"{more:+,}" for more in differences(row, (name,)).get(name, [])) or "="
        print(f"  {name:<75}{ours:>14,}{theirs[0]:>14,}  {off}")
    for unit in ("sectors", "wavefronts"):
        for line, (ours, count) in lines_apart(row, unit).items():
            print(f"  line {line}: {unit} {ours:,} predicted, {count:,} counted")


def record(out: Path, kernels: list[str], jobs: int, folder: Path | None) -> int:
    """Measure, print and write, kernel by kernel as they are done."""
    header = {"kind": "explain measured", "schema": 2, "launches": LAUNCHES, "environment": measure.tools() | {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": "python benchmarks/record_rungs.py OUT.jsonl",
    }}  # fmt: skip
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in kernels}
    failed = []
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        pending = {pool.submit(rung, name, folder): name for name in rows}
        for job in as_completed(pending):
            name = pending[job]
            try:
                rows[name] = job.result()
            except Exception:  # the others may still do: time on a GPU is scarce
                failed.append(f"{name}: {traceback.format_exc()}")
            for one in rows[name]:
                show(one)
            lines = [header, *itertools.chain(*rows.values())]
            out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
            sys.stdout.flush()
    failed += [f"{r['kernel']}: {r['result']['reason']}" for of in rows.values() for r in of if not r["result"]["ok"]]
    print("\n".join(failed) or "every result is right")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Hold predictions to a GPU's counters, rung by rung.")
    parser.add_argument("out", type=Path, metavar="OUT.jsonl", nargs="?")
    parser.add_argument("--jobs", type=int, default=13, help="kernels at a time; ncu counts for one at a time")
    parser.add_argument(
        "--kernel", action="append", default=[], metavar="NAME", help="such as cuda/coalesced; default all"
    )
    parser.add_argument("--predicted", type=Path, metavar="DIR", help="predictions made before, with the same compiler")
    parser.add_argument("--predict", type=Path, metavar="DIR", help="make predictions and write them; needs no GPU")
    given = parser.parse_args()
    if given.predict is None and given.out is None:
        parser.error("OUT.jsonl is missing: where to write the record")
    if given.predict is None:
        measure.check_gpu("H200")
    kernels = given.kernel or [kernel.name for kernel in rungs()]
    if given.predict is None:
        return record(given.out, kernels, given.jobs, given.predicted)
    given.predict.mkdir(parents=True, exist_ok=True)
    for name in kernels:
        predict(name, given.predict)
    return 0


if __name__ == "__main__":
    sys.exit(main())
