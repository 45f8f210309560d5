"""A first product in a new process: ``python benchmarks/cold_start.py OUT.jsonl [PAIRS]`` (11).

For each dtype a process imports NumPy and multiplies 500² by NumPy, and another one imports Tilewright, too, and multiplies
by ``tilewright.matmul``; both check the product, and take turns. Then ``pairs`` has the seconds of both, and ``over`` the
median of their differences. Appends a record for all dtypes to OUT.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tilewright.cpu.runtime.machine_code import describe_code
from tilewright.lab.inputs.environment import environment

DTYPES = ["float32", "float64", "complex64", "complex128", "int8", "int16", "int32", "int64", "float16"]
COMMAND = "python benchmarks/cold_start.py OUT.jsonl"
CODE = """
import numpy as np
{imports}
x = np.arange(250000, dtype=np.int64).reshape(500, 500)
a, b = (x % 7 - 3).astype({dtype!r}), (x % 5 - 2).astype({dtype!r})
c = {multiply}(a, b)
i, j = 123, 456
assert c[i, j] == (a[i] * b[:, j]).sum(dtype={dtype!r})
"""


def seconds(imports: str, multiply: str, dtype: str, cache: str) -> float:
    """How long a process takes that multiplies so."""
    code = CODE.format(imports=imports, multiply=multiply, dtype=dtype)
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"TILEWRIGHT_CACHE": cache})
    return time.perf_counter() - begun


def main() -> None:
    """Measure every dtype, and append the record."""
    out, pairs = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 11
    cells = []
    for dtype in DTYPES:
        taken = []
        for _ in range(pairs):
            with tempfile.TemporaryDirectory() as cache:
                numpy = seconds("", "np.matmul", dtype, cache)
                taken.append((numpy, seconds("import tilewright", "tilewright.matmul", dtype, cache)))
        over = statistics.median(ours - numpy for numpy, ours in taken)
        cells.append({"dtype": dtype, "over": over, "pairs": taken})
        print(f"{dtype:12} NumPy {min(taken)[0]:.3f} s, over it {over:+.3f} s", flush=True)
    record = {"kind": "cold start", "environment": environment(operands="integers", command=COMMAND)}
    with out.open("a") as file:
        file.write(json.dumps(record | {"machine_code": describe_code(), "cells": cells}) + "\n")


if __name__ == "__main__":
    main()
