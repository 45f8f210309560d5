"""Measure the kernels of the ladder on this machine, and print what each changes and how much faster it is than its parent.

    python examples/learn_the_ladder.py [SIZE] [RUNG ...]

The script needs the extra `lab`. SIZE is n of n × n matrices; the default is 500. RUNG is the name of a kernel, such as
ikj; the default is all kernels of the ladder for the CPU. Every result is verified before its time counts.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import tilewright as tw


def measure(rungs: list[str], size: int) -> dict[str, dict[str, Any]]:
    """Kernel → its record: `tilewright bench` writes one JSON object a line."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "records.jsonl"
        options = ["--sizes", str(size), "--threads", "1", "--against", "none", "--json", str(file)]
        subprocess.run([sys.executable, "-m", "tilewright", "bench", *rungs, *options], check=True, capture_output=True)
        records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {record["kernel"]: record for record in records}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the rungs of the ladder, one after another.")
    parser.add_argument("size", nargs="?", type=int, default=500)
    parser.add_argument("rungs", nargs="*")
    asked = parser.parse_args()

    # tw.ladder() has every kernel by name. The parent of a kernel is the kernel that it improves on.
    ladder = {name: kernel for name, kernel in tw.ladder().items() if kernel.is_rung}
    names = [name for name in ladder if not asked.rungs or name.removeprefix("cpu/") in asked.rungs]
    if not names:
        parser.error(f"rungs: known are {', '.join(name.removeprefix('cpu/') for name in ladder)}")
    found = measure(names, asked.size)

    print(f"C = A·B in float32, {asked.size}×{asked.size}, on 1 thread\n")
    for name in names:
        kernel, rate = ladder[name], found[name]["gflops"]
        if rate is None:  # over the time limit, or no memory for it
            print(f"{name:<24} {found[name]['reason']}")
            continue
        before = found.get(kernel.parent or "", {}).get("gflops")
        gain = f"{rate / before:.2f} times {kernel.parent}" if before else ""
        print(f"{name:<24} {rate:8.1f} GFLOPS   {gain}")
        print(textwrap.indent(textwrap.fill(kernel.idea, 76), "    "))
        print(f"    {kernel.path.name}\n")


if __name__ == "__main__":
    main()
