"""Runs the tests marked ``gpu``, and writes which passed into a record.

    python benchmarks/gpu_tests.py benchmarks/gpu-tests-h200.json [--workers 14]

Needs a GPU, ncu, PyTorch, CuPy and JAX, and the packages of ``pip install -e '.[lab,test]'``. Prints what pytest prints, and
exits as it does.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from tilewright.gpu.runtime.device import open_device
from tilewright.gpu.runtime.nvrtc import compiler


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=8, help="processes at once")
    given = parser.parse_args()
    gpu, begun = open_device(), time.time()
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder) / "outcomes.json"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-n", str(given.workers), "--outcomes", str(outcomes)]
        # A plugin that warns of being there beside xdist.
        code = subprocess.run([*command, "-p", "no:benchmark", "--durations", "10"], check=False).returncode
        found = json.loads(outcomes.read_text(encoding="utf-8"))
    ran = [test for test, outcome in found.items() if outcome == "ran"]
    environment = {
        "gpu": gpu.name,
        "arch": gpu.arch,
        "compiler": compiler(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "jax", "numpy", "pytest")},
        "command": " ".join(["python benchmarks/gpu_tests.py OUT.json", *sys.argv[2:]]),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    record = {
        "kind": "tests on a GPU",
        "schema": 1,
        "environment": environment,
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
