"""Measure kernels before and after what the microscope advises, beside the times by its model.

    python benchmarks/advised_changes.py OUT.jsonl        (on an H200; without OUT.jsonl only the model, without a GPU)

A line for each kernel: the advice for its dearest line, the times before and after by the model, and those measured: medians
of rounds in turns. Both kernels must leave the same numbers.
"""

from __future__ import annotations

import datetime
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.gpu.runtime.device import open_device
from tilewright.gpu.runtime.nvrtc import compile_file, compiler
from tilewright.lab.explain.advice import model_seconds
from tilewright.lab.explain.cuda import LeastWork, time_bounds
from tilewright.lab.explain.measure import gpu_and_driver
from tilewright.simulator.gpus import find_gpu

SOURCE = Path(__file__).with_name("advised_changes.cu")
ROUNDS, LAUNCHES = 9, 10


@dataclass(frozen=True)
class Case:
    """A kernel, its launch, the numbers of x and y, and the last argument."""

    kernel: str
    grid: tuple[int, int]
    block: tuple[int, int]
    dtype: str
    x: int
    y: int
    n: int

    @property
    def args(self) -> list[Any]:
        """x of ones, so that its layout does not matter, or of whole numbers where both kernels read the same."""
        x = np.ones(self.x, self.dtype)
        if self.kernel in ("transpose", "quads"):
            x[:] = np.arange(self.x) % 13
        return [x, np.zeros(self.y, "float64" if self.dtype == "float64" else "float32"), np.int32(self.n)]


BLOCKS = 132 * 16
CASES = [
    Case("transpose", (128, 128), (32, 32), "float32", 4096**2, 4096**2, 4096),
    Case("transpose", (32, 32), (32, 32), "float32", 1024**2, 1024**2, 1024),
    Case("columns", (BLOCKS, 1), (32, 32), "float32", 1 << 20, BLOCKS * 1024, 1 << 19),
    Case("double_columns", (BLOCKS, 1), (32, 32), "float64", 1 << 20, BLOCKS * 1024, 1 << 19),
    Case("rows", (1 << 11, 1), (256, 1), "float32", 1 << 24, 1 << 19, 1 << 19),
    Case("rows", (1 << 8, 1), (256, 1), "float32", 1 << 21, 1 << 16, 1 << 16),
    Case("members", (BLOCKS, 1), (256, 1), "float32", 4 << 18, BLOCKS * 256, 1 << 18),
    Case("quads", (BLOCKS, 1), (256, 1), "float32", 4 << 18, BLOCKS * 256, 1 << 18),
    Case("bytes", (BLOCKS, 1), (256, 1), "uint8", 1 << 20, BLOCKS * 256, 1 << 20),
    Case("bins", (BLOCKS, 1), (256, 1), "uint8", 1 << 20, BLOCKS * 256, 1 << 20),
]


def advised(case: Case) -> dict[str, Any]:
    """The change that saves most turns of the kernel as it is, and the times before and after it by the model."""
    card, args = find_gpu("H200"), case.args
    seen = tw.microscope(
        SOURCE, case.kernel, case.grid, case.block, args, arch="sm_90a", defines={"CHANGED": 0}, sampled=True
    )
    change = max(seen.advice, key=lambda change: change.saved_turns)
    work = LeastWork(0, args[0].nbytes + args[1].nbytes)
    bounds = time_bounds(card, None, work, case.grid[0] * case.grid[1], seen.accesses)
    predicted = [model_seconds(bounds, turns) for turns in (seen.turns, seen.turns - change.saved_turns)]
    unit, before, after = change.costs
    found = {"advice": change.text, "unit": unit, "cost": [before, after], "predicted": predicted}
    return {"kernel": case.kernel, "n": case.n, **found}


def measured(case: Case) -> tuple[float, float]:
    """Seconds of a launch before and after the change: medians of rounds in turns."""
    gpu, results, launches = open_device(), [], []
    for changed in (0, 1):
        compiled = compile_file(SOURCE, arch=gpu.arch, defines={"CHANGED": changed})
        launch = gpu.launcher(compiled, case.kernel, case.grid, case.block, 0)
        x, y, n = case.args
        on_gpu = gpu.put(x), gpu.put(y)
        launch(int(gpu.stream), on_gpu[0].pointer, on_gpu[1].pointer, n)
        results.append(gpu.get(on_gpu[1], y.dtype, y.shape))
        launches.append((launch, on_gpu, n))
    if not (results[0] == results[1]).all():
        raise SystemExit(f"{case.kernel}: the results differ")
    timer, samples = gpu.timer(), ([], [])
    for _ in range(ROUNDS):
        for of, (launch, on_gpu, n) in zip(samples, launches, strict=True):
            timer.start()
            for _ in range(LAUNCHES):
                launch(int(gpu.stream), on_gpu[0].pointer, on_gpu[1].pointer, n)
            of.append(timer.stop() / LAUNCHES)
    return statistics.median(samples[0][1:]), statistics.median(samples[1][1:])


def main(out: str | None) -> None:
    lines: list[dict[str, Any]] = []
    for case in CASES:
        line = advised(case)
        if out:
            line["measured"] = list(measured(case))
        lines.append(line)
        print(json.dumps(line, ensure_ascii=False), flush=True)
    if out:
        gpu = open_device()
        known = gpu_and_driver() | {"compiler": compiler(), "arch": gpu.arch, "date": datetime.date.today().isoformat()}
        known["command"] = "python benchmarks/advised_changes.py OUT.jsonl"
        head = {"kind": "advised changes", "schema": 1, "environment": known}
        text = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in (head, *lines))
        Path(out).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
