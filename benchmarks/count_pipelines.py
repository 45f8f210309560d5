"""Count the work of the asynchronous kernels at their larger sizes, without a GPU: ``count_pipelines.py OUT [NAME ...]``.

The microscope runs a sample of the blocks: some minutes in all. What it counts is the input of the predicted times, which
are compared with those of ``pipeline-rates-h200.jsonl``.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import tilewright as tw
from tilewright.gpu.runtime.nvrtc import compiler
from tilewright.lab.explain.cuda import work_of
from tilewright.lab.inputs.environment import environment

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from microscope.test_asynchronous_defects import tensor_map
from support import asynchronous_kernels
from support.asynchronous_kernels import ARCH, KERNELS, LARGE, MEDIUM, RANDOM, TileMap

Array = np.ndarray[Any, Any]


def no_product(operands: asynchronous_kernels.Operands, operand: str, a: Array, b: Array) -> tuple[Array, Array]:
    """In place of the right answer, which is not needed here and takes long."""
    shape = a.shape[0], b.shape[0]
    return np.zeros(shape, np.int32 if operand == "s8" else np.float32), np.zeros((1, 1))


def counted(name: str, size: str) -> dict[str, Any]:
    """A row of the record."""
    kernel = KERNELS[name]
    with mock.patch.object(asynchronous_kernels, "exact_product", no_product):
        launch = kernel.launch(size, RANDOM)
    args = [tensor_map(arg) if isinstance(arg, TileMap) else arg for arg in launch.args]
    seen = tw.microscope(
        kernel.path, kernel.entry, launch.grid, kernel.block, args, arch=ARCH, defines=kernel.defines,
        shared_bytes=kernel.shared_bytes, sampled=True, max_steps=10**10, max_bytes=10**11,
    )  # fmt: skip
    needs = seen.resources
    assert needs is not None
    assert seen.ok, [finding.text for finding in seen.findings]
    shared = needs.shared_bytes + kernel.shared_bytes
    work = work_of(seen, args, threads=kernel.block, registers=needs.registers, shared_bytes=shared)
    return {"kernel": name, "size": size, **dataclasses.asdict(work)}


def main() -> int:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    path, names = Path(sys.argv[1]), sys.argv[2:] or list(KERNELS)
    made = environment(operands="random bits") | {"compiler": compiler(), "arch": ARCH}
    made["command"] = "python benchmarks/count_pipelines.py OUT"
    with path.open("w") as file:
        file.write(json.dumps({"kind": "work of pipelines", "schema": 1, "environment": made}) + "\n")
        for name in names:
            for size in (MEDIUM, LARGE):
                row = counted(name, size)
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
