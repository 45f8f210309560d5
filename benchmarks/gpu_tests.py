"""Runs the tests marked ``gpu``, and writes which passed into a record.

    python benchmarks/gpu_tests.py benchmarks/gpu-tests-h200.json [--workers 14]

Needs a GPU, ncu, PyTorch, CuPy and JAX, and the packages of ``pip install -e '.[lab,test]'``. Prints what pytest prints, and
exits as it does.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tilewright.gpu.runtime.device import open_device
from tilewright.lab.explain.measure import gpu_and_driver
from tilewright.lab.inputs.environment import environment


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=8, help="processes at once")
    given = parser.parse_args()
    open_device()  # raises UnavailableError where there is no GPU
    begun = time.time()
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder) / "outcomes.json"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-n", str(given.workers), "--outcomes", str(outcomes)]
        # A plugin that warns of being there beside xdist.
        code = subprocess.run([*command, "-p", "no:benchmark", "--durations", "10"], check=False).returncode
        found = json.loads(outcomes.read_text(encoding="utf-8"))
    ran = [test for test, outcome in found.items() if outcome == "ran"]
    command_line = shlex.join(["python", "benchmarks/gpu_tests.py", "OUT.json", *sys.argv[2:]])
    record = {
        "kind": "tests on a GPU",
        "schema": 1,
        "environment": environment(operands="those of each test", command=command_line) | gpu_and_driver(),
        "seconds": round(time.time() - begun),
        "exit": code,
        "others": {test: why for test, why in found.items() if why != "ran"},
        "ran": ran,
    }
    given.out.write_text(json.dumps(record, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(ran)} ran, {len(record['others'])} did not, {record['seconds']} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
