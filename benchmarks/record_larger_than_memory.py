"""Time and watch a product of files in little memory: ``record_larger_than_memory.py OUT.jsonl [N] [MEMORY]``.

``tilewright multiply`` computes N³ float32 (24576) on the CPU in MEMORY (1GiB) while its resident memory is read from the
system, and its result is verified by whole rows and columns and by random signs. In the same run, before and after it,
stands ``tilewright.matmul`` of operands in memory, half as long a side. Needs 12·N² bytes of disk, 6.8 GiB, where the system
keeps temporary files.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.lab.bench.timing import wait_until_quiet
from tilewright.lab.inputs.environment import environment
from tilewright.lab.verify.verify import Oracle
from tilewright.large.streaming.places.places import parse_bytes

SEED, TURNS = 1, 3
COMMAND = [sys.executable, "-W", "ignore", "-m", "tilewright", "multiply"]


def make(path: Path, n: int, rng: np.random.Generator) -> None:
    """Uniform in [−1, 1), written block by block."""
    out = np.lib.format.open_memmap(path, "w+", np.float32, (n, n))
    for row in range(0, n, 512):
        block = rng.random((min(512, n - row), n), np.float32)
        out[row : row + 512] = 2 * block - 1
    out.flush()


def watched(folder: Path, *arguments: str) -> tuple[float, int]:
    """Seconds of a command, and the peak of its resident memory in bytes, which the system keeps while it lives."""
    begun, peak = time.perf_counter(), 0
    process = subprocess.Popen([*COMMAND, *arguments], cwd=folder, stdout=subprocess.DEVNULL)
    status = Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        peak = max(peak, int(found[1]) << 10) if found else peak
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(process.returncode)
    return time.perf_counter() - begun, peak


def in_memory(n: int, rng: np.random.Generator) -> list[float]:
    """GFLOPS of the engine on operands in memory, each of ``TURNS``."""
    a, b = (2 * rng.random((n, n), np.float32) - 1 for _ in range(2))
    c = np.empty((n, n), np.float32)
    tw.matmul(a, b, out=c)
    rates = []
    for _ in range(TURNS):
        begun = time.perf_counter()
        tw.matmul(a, b, out=c)
        rates.append(2 * n**3 / (time.perf_counter() - begun) / 1e9)
    return rates


def measured(folder: Path, n: int, memory: str) -> dict[str, Any]:
    rng = np.random.default_rng(SEED)
    for name in "ab":
        make(folder / f"{name}.npy", n, rng)
    np.save(folder / "small.npy", np.ones((8, 8), np.float32))
    here = ("-o", "c.npy", "--device", "cpu", "--memory", memory)
    watched(folder, "small.npy", "small.npy", *here)  # whatever must be compiled is compiled here
    _, interpreter = watched(folder, "small.npy", "small.npy", *here)
    beside = in_memory(n // 2, rng)
    wait_until_quiet()
    seconds, peak = watched(folder, "a.npy", "b.npy", *here, "--json", "record.json")
    beside += in_memory(n // 2, rng)
    told = json.loads((folder / "record.json").read_text())
    check = Oracle(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in "ab"), seed=SEED).check(
        np.load(folder / "c.npy", mmap_mode="r")
    )
    rate, limit = told["measured"]["gflops"], parse_bytes("memory", memory)
    return {
        **{
            key: told[key]
            for key in ("kernel", "params", "device", "threads", "m", "n", "k", "dtype", "plan", "measured")
        },
        **{"memory_bytes": limit, "peak_bytes": peak, "interpreter_bytes": interpreter},
        **{"within_memory": peak - interpreter <= limit, "command_s": seconds},
        **{"in_memory_n": n // 2, "in_memory_gflops": beside, "rate_over_in_memory": rate / statistics.median(beside)},
        **{"planned_over_measured_s": told["plan"]["total_s"] / told["measured"]["seconds"]},
        "verified": check.as_dict(),
    }


def main() -> int:
    if not 2 <= len(sys.argv) <= 4:
        print(__doc__, file=sys.stderr)
        return 2
    given = sys.argv[2:]
    n, memory = int(given[0]) if given else 24576, given[1] if given[1:] else "1GiB"
    with tempfile.TemporaryDirectory() as folder:
        row = measured(Path(folder), n, memory)
    command = f"python benchmarks/record_larger_than_memory.py OUT.jsonl {n} {memory}"
    where = environment(operands=f"uniform[-1,1), seed {SEED}, .npy", command=command)
    record = {"kind": "larger than memory", "schema": 1, **row, "environment": where}
    Path(sys.argv[1]).write_text(json.dumps(record) + "\n", encoding="utf-8")
    beyond = (row["peak_bytes"] - row["interpreter_bytes"]) / row["memory_bytes"]
    rates = f"{row['measured']['gflops']:.0f} GFLOPS, {row['rate_over_in_memory']:.1%} of the rate in memory"
    print(f"{n}³ in {memory}: {rates}; {beyond:.1%} of the memory; {row['verified']}")
    return 0 if row["verified"]["ok"] and row["within_memory"] else 1


if __name__ == "__main__":
    sys.exit(main())
