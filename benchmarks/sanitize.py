"""Run every CUDA kernel under NVIDIA's compute-sanitizer at awkward shapes: ``python benchmarks/sanitize.py OUT.jsonl``.

Needs a GPU. Each kernel's launches are made by one process a tool (memcheck, racecheck, initcheck, synccheck); what the
tool says, and whether the answers were right, is a line of the record. Exits with 1 where there is a finding.
"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from tilewright.gpu.runtime.device import open_device
from tilewright.gpu.runtime.nvrtc import compile_kernel, compiler
from tilewright.kernels.catalog import cuda_catalog
from tilewright.kernels.cuda_kernel import CudaKernel
from tilewright.lab.explain import stored_launches
from tilewright.lab.explain.checked_launch import operands, verified

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SHAPES = [(1, 1, 1), (3, 2, 0), (31, 33, 32), (65, 7, 17), (5, 97, 40)]
SHAPES += [(64, 64, 64), (129, 130, 67), (130, 259, 35), (260, 300, 129)]


def check(kernel: CudaKernel, tool: str, arch: str, folder: Path) -> dict[str, object]:
    compiled = compile_kernel(kernel, arch=arch)
    cases = [(shape, operands(kernel, *shape, seed=sum(shape))) for shape in SHAPES]
    launches = []
    for shape, given in cases:
        how = kernel.launch(*shape)
        launches.append(
            stored_launches.StoredLaunch(kernel.entry, how.grid, how.block, (*given, *shape), how.shared_bytes)
        )
    spec, out = (folder / f"{kernel.entry}-{tool}{end}.npz" for end in ("", "-out"))
    stored_launches.save_launches(spec, compiled, launches)
    command = ["compute-sanitizer", "--tool", tool, "--report-api-errors", "no", "--error-exitcode", "9"]
    command += [sys.executable, "-m", "tilewright.lab.explain.stored_launches", str(spec), "--results", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = re.findall(r"=+ (ERROR SUMMARY.*|RACECHECK SUMMARY.*)", done.stdout + done.stderr)
    right = done.returncode == 0 and all(
        verified(kernel, a, b, np.load(out)[f"{i}.2"]).ok for i, (_, (a, b, _)) in enumerate(cases)
    )
    tail = "" if done.returncode == 0 else (done.stdout + done.stderr)[-1500:]
    found = {"kernel": kernel.name, "tool": tool, "exit": done.returncode, "summary": said, "right": right}
    return found | {
        "kernel_source": kernel.source_hash,
        "registers": compiled.resources[kernel.entry].registers,
        "said": tail,
    }


def main() -> int:
    gpu = open_device()
    arch = f"sm_{gpu.capability.replace('.', '')}a"
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    environment = {"gpu": gpu.name, "arch": arch, "compiler": compiler(), "shapes": SHAPES, "time": now}
    environment |= {"command": "python benchmarks/sanitize.py OUT.jsonl"}
    jobs = [(kernel, tool) for kernel in cuda_catalog().values() for tool in TOOLS]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda job: check(*job, arch, Path(folder)), jobs))
    with Path(sys.argv[1]).open("w", encoding="utf-8") as file:
        for line in ({"kind": "sanitizer", "schema": 1, "environment": environment}, *found):
            file.write(json.dumps(line) + "\n")
    bad = [f for f in found if f["exit"] or not f["right"]]
    print(f"{len(found)} runs, {len(bad)} with a finding or a wrong answer")
    for one in bad:
        print(one["kernel"], one["tool"], one["summary"], one["said"])
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
