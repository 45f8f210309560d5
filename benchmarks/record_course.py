"""Count what the course says of every rung, without a GPU: ``python benchmarks/record_course.py OUT.jsonl``.

A line for each rung. Of a CUDA kernel: what the microscope counts in a product, its registers, and the warps that are
resident on a multiprocessor. Of a kernel for the CPU: the instructions of its inner loop, compiled for this processor. The
record holds the hash of each source, with which the documents check that it is of the code that they show.
"""

from __future__ import annotations

import itertools
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tilewright.gpu.runtime.nvrtc import compiler
from tilewright.kernels.catalog import catalog, cuda_catalog
from tilewright.lab.explain.cpu_counts import inner_loop
from tilewright.lab.explain.cuda import explain
from tilewright.lab.inputs.environment import environment

#: m and n of the course's products on a GPU, and a shorter k than theirs, on which reads for a multiply-add do not depend.
#: Blocks of persistent kernels take different numbers of tiles, so a sample of them is not exact: these are counted with a
#: smaller m and n, where each block has one tile.
SIZE, PERSISTENT, DEPTH = 4096, 512, 512


def counted(name: str) -> dict[str, Any]:
    """The line of a CUDA rung."""
    kernel = cuda_catalog()[name]
    m = n = PERSISTENT if kernel.persistent else SIZE
    found = explain(kernel, m, n, DEPTH)
    if not found.verified["ok"] or found.defects:
        raise RuntimeError(f"{name}: {found.verified}; {found.defects}")
    counters = {counter: n for counter, n in found.counters.items() if "_st." not in counter}  # no table has stores
    return {
        "kernel": name,
        "source": kernel.source_hash,
        "m": m,
        "n": n,
        "k": DEPTH,
        "registers": found.resources["registers"],
        "warps": found.occupancy["warps"],
        "blocks": found.occupancy["blocks"],
        "conflicts": sum(access.conflicts for access in found.accesses),
        "counters": counters,
        "approximate": [counter for counter in counters if counter in found.approximate],
    }


def compiled(name: str) -> dict[str, Any]:
    """The line of a rung on the CPU; recursions have no loop of their own."""
    kernel = catalog()[name]
    loop = inner_loop(kernel, "float32")
    return {"kernel": name, "source": kernel.source_hash, "loop": loop and asdict(loop)}


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    head = environment(operands="uniform[-1,1)", command="python benchmarks/record_course.py OUT.jsonl")
    head |= {"nvrtc": compiler(), "assumed_gpu": "H200"}
    rungs = [kernel.name for kernel in catalog().values() if kernel.is_rung]
    with Path(sys.argv[1]).open("w", encoding="utf-8") as file, ProcessPoolExecutor(2) as pool:
        file.write(json.dumps({"kind": "course", "schema": 1, "environment": head}) + "\n")
        for line in itertools.chain(map(compiled, rungs), pool.map(counted, cuda_catalog())):
            file.write(json.dumps(line) + "\n")
            file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
