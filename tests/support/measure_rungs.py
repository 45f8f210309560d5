"""Hold what ``explain`` predicts of every SIMT rung to what a GPU counts:
``python tests/support/measure_rungs.py OUT.jsonl``.

Needs a GPU and ncu. Each rung that uses no tensor core is launched with its smallest tile at ``SIZES``, and as one block, so
that no other is there to get in its way; the shared and global counters are read in three launches. The record has a line
for each, which ``test_measured_rungs.py`` holds to its claims. Exits with 1 where a result is wrong or nothing was counted.

What takes minutes, predictions of whole grids, can be made before and elsewhere, with the same compiler:
``--predict DIR`` writes them, and ``OUT.jsonl --predicted DIR`` reads them.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import itertools
import json
import math
import multiprocessing
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tilewright.catalog import cuda_catalog
from tilewright.errors import UsageError
from tilewright.kernels import CudaKernel
from tilewright.lab.explain import hardware, measure
from tilewright.lab.explain.cuda import explain, operands
from tilewright.lab.explain.launched import Launch
from tilewright.records.explanation import Explanation, read_explanations
from tilewright.runtime.gpu.nvrtc import compile_kernel, compiler
from tilewright.simulator.counters.counter_names import ALL_CONFLICTS, names

SIZES = (256, 1000)
#: Depth of the one block, and how often its counters and the others' are read.
DEPTH, LAUNCHES = 256, 3
#: How the kernels call the depth of their tiles, and how many of them are under way: of equal tiles the smaller are taken.
DEPTHS = ("BK", "R", "STAGES")

GLOBAL = tuple(dict.fromkeys(
    name for kind in ("ld", "st", "cp.async") for field in names("global", kind).values() for name in field
))  # fmt: skip
SHARED = (*(name for kind in ("ld", "st") for field in names("shared", kind).values() for name in field[:1]),
          names("shared", "cp.async")["conflicts"][0], ALL_CONFLICTS)  # fmt: skip
#: Shared loads' and stores'; asynchronous copies have no counter of their wavefronts.
WAVEFRONTS = tuple(name for name in SHARED if "wavefronts" in name)


def rungs() -> list[CudaKernel]:
    """The kernels that use no tensor core."""
    return [kernel for kernel in cuda_catalog().values() if "mma." not in compile_kernel(kernel).ptx]


def smallest(kernel: CudaKernel) -> dict[str, int]:
    """Parameters with the fewest elements of C a block; of those the shallowest tile, then the nearest to the defaults."""
    tile = [name for name in kernel.params if any(name in size.names for size in kernel.grid)]

    @functools.cache
    def blocks(**sides: int) -> int:
        return math.prod(size(m=1024, n=1024, k=1, **sides) for size in kernel.grid)

    def rank(values: tuple[int, ...]) -> tuple[Any, ...]:
        chosen = dict(zip(kernel.params, values, strict=True))
        # One that is 0 is off: as far from 1 as a half is.
        away = sum(abs(math.log2((chosen[name] or 0.5) / (default or 0.5))) for name, default in kernel.params.items())
        return -blocks(**{name: chosen[name] for name in tile}), [chosen.get(name, 0) for name in DEPTHS], away, values

    def allowed(values: tuple[int, ...]) -> bool:
        try:
            kernel.checked(dict(zip(kernel.params, values, strict=True)))
        except UsageError:
            return False
        return True

    ranked = sorted(itertools.product(*(p.values for p in kernel.parameters)), key=rank)
    return dict(zip(kernel.params, next(filter(allowed, ranked)), strict=True))


def shapes(kernel: CudaKernel, params: dict[str, int]) -> list[tuple[int, int, int]]:
    """The sizes, and what one block computes."""
    width, height = (side(m=1, n=1, k=1, **params) for side in kernel.tile or kernel.block)
    if not kernel.tile and kernel.launch(width, height, 1, **params).blocks > 1:
        width, height = height, width  # without a tile, threads along x are columns of C or rows of it
    return [*((n, n, n) for n in SIZES), (height, width, DEPTH)]


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
        once.append(Launch(compiled.entry(kernel.entry), how.grid, how.block, args, how.shared_bytes))
    found = hardware.profile_launches(compiled, once * (LAUNCHES - 1), (*SHARED, *GLOBAL), lines=False)
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
        lines.setdefault(str(access.line), Counter())[unit] += access.cost
    return {line: dict(+counts) for line, counts in sorted(lines.items()) if +counts}


# ---- predicted beside counted ----------------------------------------------------------------------------------------


def compared(row: dict[str, Any], counters: tuple[str, ...]) -> Iterator[tuple[str, int, list[int]]]:
    """Counter, predicted, and counted in each launch; those that are 0 everywhere are left out."""
    for name in counters:
        ours, theirs = row["predicted"].get(name, 0), [one.get(name, 0) for one in row["counted"]]
        if ours or any(theirs):
            yield name, ours, theirs


def apart(row: dict[str, Any], counters: tuple[str, ...]) -> dict[str, list[int]]:
    """Counter → by how much each launch counted more than was predicted, of those where any did."""
    return {name: [n - ours for n in theirs] for name, ours, theirs in compared(row, counters) if set(theirs) != {ours}}


def lines_apart(row: dict[str, Any], unit: str) -> dict[str, tuple[int, int]]:
    """Source line → predicted and counted ``unit``, where they differ.

    Asynchronous copies stand at a line of the prelude in the binary, which is not counted by line: theirs are 0.
    """
    ours, theirs = row["predicted_lines"], row["counted_lines"]
    pairs = {line: tuple(by.get(line, {}).get(unit, 0) for by in (ours, theirs)) for line in {*ours, *theirs}}
    return {line: (a, b) for line, (a, b) in sorted(pairs.items()) if a != b}


def show(row: dict[str, Any]) -> None:
    shape = f"{row['m']}×{row['n']}×{row['k']}"
    params = " ".join(f"{name}={value}" for name, value in row["params"].items())
    print(f"{row['kernel']} {shape} ({params}): {row['blocks']:,} blocks of {row['threads']}, {row['run']['words']}")
    for name, ours, theirs in compared(row, (*GLOBAL, *SHARED)):
        off = " ".join(f"{more:+,}" for more in apart(row, (name,)).get(name, [])) or "="
        print(f"  {name:<75}{ours:>14,}{theirs[0]:>14,}  {off}")
    for unit in ("sectors", "wavefronts"):
        for line, (ours, count) in lines_apart(row, unit).items():
            print(f"  line {line}: {unit} {ours:,} predicted, {count:,} counted")


def record(out: Path, kernels: list[str], jobs: int, folder: Path | None) -> int:
    """Measure, print and write, kernel by kernel as they are done."""
    header = {"kind": "explain measured", "schema": 2, "launches": LAUNCHES, "environment": measure.tools() | {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": "python tests/support/measure_rungs.py OUT.jsonl",
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
