"""Compare the times by the model of advice with times that records have, without a GPU: ``predicted_changes.py OUT.jsonl``.

A line for each kernel and its parameters at one size: the time by the model, which the microscope's counts give, and the
median of the record. What the model says of a change is the ratio of two such times (``docs/tables/advice.py``).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tilewright.gpu.runtime.nvrtc import compiler
from tilewright.kernels.catalog import cuda_catalog
from tilewright.kernels.cuda_kernel import CudaKernel
from tilewright.lab.explain.advice import model_seconds
from tilewright.lab.explain.checked_launch import check_launch, in_boxes, operands
from tilewright.lab.explain.cuda import LeastWork, arithmetic_unit, observed_of, time_bounds
from tilewright.lab.inputs.environment import environment
from tilewright.simulator.machine.options import MAX_STEPS

HERE = Path(__file__).parent
#: The records, and the kernels of each that are compared.
RECORDS = {
    "cuda-ladder-h200": ["cuda/uncoalesced", "cuda/coalesced"],
    "cuda-block-size-h200": ["cuda/coalesced"],
    "cuda-register-rows-h200": ["cuda/register_rows"],
}
SIZE = 1024


def modelled(kernel: CudaKernel, params: dict[str, int]) -> float | None:
    """The seconds of a launch by the model; a sample of its blocks is counted."""
    p = check_launch(kernel, SIZE, SIZE, SIZE, params=params, whole=False)
    args = in_boxes(kernel, p.plain.arguments(operands(kernel, SIZE, SIZE, SIZE, 1)))
    seen = observed_of(p, args, MAX_STEPS)
    peak = arithmetic_unit(p.card, kernel.dtypes[0], kernel.precision, matrix="mma." in p.compiled.ptx).gflops
    work = LeastWork(2 * SIZE**3, 3 * 4 * SIZE**2)
    return model_seconds(time_bounds(p.card, peak, work, p.launch.blocks, seen.accesses), seen.turns)


def main(out: Path) -> None:
    made = environment(operands="seed 1") | {
        "compiler": compiler(),
        "command": "python benchmarks/predicted_changes.py OUT.jsonl",
    }
    lines = [{"kind": "predicted changes", "schema": 1, "environment": made}]
    for record, kernels in RECORDS.items():
        for text in (HERE / f"{record}.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(text)
            if row.get("kernel") not in kernels or row["n"] != SIZE:
                continue
            model = modelled(cuda_catalog()[row["kernel"]], row["params"])
            line = {"record": record, "kernel": row["kernel"], "params": row["params"], "n": SIZE}
            lines.append(line | {"model": model, "measured": row["median_s"]})
            print(lines[-1], flush=True)
    out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
