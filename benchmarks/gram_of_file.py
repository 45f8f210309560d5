"""The Gram matrix of a file beside the general product: ``python benchmarks/gram_of_file.py OUT.jsonl FOLDER [GB
[COLUMNS]]`` (24 4096).

Writes a file of random float32 of that size into FOLDER; computes XᵀX by ``tilewright.gram`` within 2 GiB, and by
``tilewright.multiply`` of the same file, transposed and as it is, within 2 GiB. The file is dropped from the page cache
before each. Both results are compared with Xᵀ·(X·v) of a random v in float64. Appends plans, bytes, times and their ratio
to OUT, and removes the files. Exits with 1 where a result is wrong."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.lab.inputs.environment import environment
from tilewright.large.files import open_matrix
from tilewright.large.gram import gram_job
from tilewright.large.streaming.options import Options
from tilewright.large.streaming.run.job import open_job

#: Rows that are written and checked at once, and the memory of both products.
ROWS, MEMORY = 16384, "2GiB"


class Transposed:
    """A matrix in a file, read as its transpose."""

    def __init__(self, path: Path) -> None:
        self._source = open_matrix(path)
        self.shape, self.dtype = self._source.shape[::-1], self._source.dtype
        self.parallel, self.grain, self.workspace = True, self._source.grain[::-1], self._source.workspace

    def read(self, rows: slice, columns: slice, out: np.ndarray) -> None:
        self._source.read(columns, rows, out.T)

    def opener(self) -> None:
        return None

    def fingerprint(self) -> str:
        return self._source.fingerprint() + "T"

    def close(self) -> None:
        self._source.close()


def write(path: Path, rows: int, columns: int) -> None:
    """A file of random numbers, block by block."""
    x = np.lib.format.open_memmap(path, "w+", np.float32, (rows, columns))
    rng, block = np.random.default_rng(0), np.empty((ROWS, columns), np.float32)
    for top in range(0, rows, ROWS):
        rng.random(out=block, dtype=np.float32)
        x[top : top + ROWS] = block[: rows - top] - np.float32(0.5)
    x.flush()


def forget(path: Path) -> None:
    """Drop the file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def expected(path: Path, v: np.ndarray) -> np.ndarray:
    """Xᵀ·(X·v) in float64."""
    with_v, source = np.zeros(len(v)), open_matrix(path)
    rows, columns = source.shape
    for top in range(0, rows, ROWS):
        block = np.empty((min(ROWS, rows - top), columns), np.float32)
        source.read(slice(top, top + len(block)), slice(0, columns), block)
        wide = block.astype(np.float64)
        with_v += wide.T @ (wide @ v)
    source.close()
    return with_v


def main() -> int:
    out, folder = Path(sys.argv[1]), Path(sys.argv[2])
    given = [*sys.argv[3:], *("24", "4096")[len(sys.argv) - 3 :]]
    size, columns = map(float, given)
    n = int(columns)
    rows = int(size * 1e9 / (4 * n))
    path, results = folder / "gram-of-file.npy", [folder / "gram.npy", folder / "product.npy"]
    found: dict[str, Any] = {}
    try:
        write(path, rows, n)
        forget(path)
        begun = time.perf_counter()
        with gram_job(path, results[0], memory=MEMORY) as job:
            job.run()
            measured = {"seconds": time.perf_counter() - begun, "read_bytes": job.read_bytes}
            found["gram"] = {**measured, "plan": job.plan.as_dict()}
        forget(path)
        begun = time.perf_counter()
        with open_job(Transposed(path), path, results[1], Options(memory=MEMORY, device="cpu")) as product:
            product.run()
            found["general"] = {"seconds": time.perf_counter() - begun, **product.as_dict()}
        v = np.random.default_rng(1).choice([-1.0, 1.0], n)
        want = expected(path, v)
        gram, general = (np.load(each) for each in results)
        scale = math.sqrt(n) * abs(gram).max()
        errors = {"gram": abs(gram @ v - want).max() / scale, "general": abs(general @ v - want).max() / scale}
        right = np.array_equal(gram, gram.T) and max(errors.values()) < 1e-4
    finally:
        for each in (path, *results):
            each.unlink(missing_ok=True)
    ratio = found["gram"]["seconds"] / found["general"]["seconds"]
    about = {"rows": rows, "columns": n, "ratio": ratio, "errors": errors, "right": bool(right)}
    command = f"python benchmarks/gram_of_file.py OUT.jsonl FOLDER {size:g} {n}"
    record = {"kind": "gram of a file", **about, **found, "environment": environment(operands="files", command=command)}
    with out.open("a") as file:
        file.write(json.dumps(record) + "\n")
    times = {name: round(found[name]["seconds"], 1) for name in ("gram", "general")}
    print(
        f"{rows}×{n} float32, {MEMORY}: {times} s, ratio {ratio:.3f}, read as planned "
        f"{found['gram']['read_bytes'] == found['gram']['plan']['read_bytes']}, errors {errors}, right {right}"
    )
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
