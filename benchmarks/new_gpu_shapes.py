"""What a product costs on a GPU whose shape the process has not seen: the first calls of random shapes, beside PyTorch's.

    TILEWRIGHT_CACHE=EMPTY python benchmarks/new_gpu_shapes.py OUT.jsonl

Each case has 40 shapes in one process: texts of any length times a layer's weights, or sizes that are all random. A time is
that of the host until the product is done. Every product is compared with that of float64. The record has all times, and how
many kernels were compiled: with an archive (``python -m tilewright.prebuilt --gpu sm_90a``) none are. After that, the
first product of a process is timed for each dtype, ours with the import of this package, and PyTorch's in another process;
both after PyTorch has begun to use the GPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tilewright as tw
from tilewright.host.disk import CacheFile
from tilewright.lab.inputs.environment import environment

#: Dtype, and k and n of the weights; 0 where they are random, too. The error that is allowed, over that of |A||B|.
CASES = (
    ("bfloat16", 0, 0, 2.0**-7),
    ("bfloat16", 4096, 11008, 2.0**-7),
    ("float32", 1200, 1000, 1e-5),
    ("float64", 800, 900, 1e-13),
)
SHAPES = 40
#: Dtypes of first products, and the program of such a process: the dtype, and whose product.
FIRST = ("bfloat16", "float16", "float32", "float64", "complex64", "complex128", "int8")
PROCESS = """
import sys, time, torch
kind = getattr(torch, sys.argv[1])
a, b = ((8 * torch.randn(size, device="cuda")).to(kind) for size in ((1000, 1536), (1536, 2048)))
torch.cuda.synchronize()
begun = time.perf_counter()
if sys.argv[2] == "ours":
    import tilewright
    tilewright.matmul(a, b)
else:
    torch._int_mm(a, b) if kind is torch.int8 else a @ b
torch.cuda.synchronize()
print(time.perf_counter() - begun)
"""


def timed(product: Callable[[], Any]) -> tuple[Any, float]:
    """A product, and the seconds until it is done."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    found = product()
    torch.cuda.synchronize()
    return found, time.perf_counter() - begun


def matrix(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Random numbers from -1 to 1."""
    return (2 * torch.rand(rows, columns, device="cuda") - 1).to(dtype)


def case(name: str, k: int, n: int, allowed: float) -> dict[str, Any]:
    """The times of the first and of the third call of each shape, and of PyTorch's first one."""
    rng, dtype = np.random.default_rng(17), getattr(torch, name)
    found: dict[str, Any] = {"dtype": name, "shapes": [], "first_s": [], "third_s": [], "torch_first_s": []}
    for _ in range(SHAPES):
        m, *other = (int(size) for size in rng.integers((1, 64, 64), (6000, 4000, 4000)))
        depth, width = (k, n) if k else other
        x, w = matrix(m, depth, dtype), matrix(width, depth, dtype).T
        theirs, torch_s = timed(lambda: x @ w)  # noqa: B023
        ours, first_s = timed(lambda: tw.matmul(x, w))  # noqa: B023
        timed(lambda: tw.matmul(x, w))  # noqa: B023
        _, third_s = timed(lambda: tw.matmul(x, w))  # noqa: B023
        rows = slice(0, min(m, 64))
        exact, bound = x[rows].double() @ w.double(), x[rows].double().abs() @ w.double().abs()
        for product in (ours, theirs):
            if not bool(((product[rows].double() - exact).abs() <= allowed * bound).all()):
                raise SystemExit(f"{name} {m}×{depth}×{width}: wrong")
        for key, value in zip(list(found)[1:], ((m, depth, width), first_s, third_s, torch_s), strict=True):
            found[key].append(value)
    return found


def first_product(dtype: str, whose: str) -> float:
    """Seconds of the first product of a process, whose files are in the page cache."""
    command = [sys.executable, "-c", PROCESS, dtype, whose]
    return float(subprocess.check_output(command))


def main() -> None:
    """Measure, print and append the record."""
    timed(lambda: matrix(8, 8, torch.bfloat16) @ matrix(8, 8, torch.bfloat16))
    begun = time.perf_counter()
    timed(lambda: tw.matmul(matrix(8, 8, torch.bfloat16), matrix(8, 8, torch.bfloat16)))
    start, found = time.perf_counter() - begun, [case(*each) for each in CASES]
    for each in found:
        first, torch_first = (1e3 * np.array(each[key]) for key in ("first_s", "torch_first_s"))
        numbers = ", ".join(f"{np.quantile(first, q):.2f}" for q in (0.5, 0.9, 1))
        print(
            f"{each['dtype']:10} median, p90, longest {numbers} ms; sum {first.sum():.0f}, torch {torch_first.sum():.0f}"
        )
    firsts = {dtype: [first_product(dtype, whose) for whose in ("ours", "torch")] for dtype in FIRST}
    for dtype, (ours, theirs) in firsts.items():
        print(f"{dtype:10} first product of a process {ours:.3f} s, torch {theirs:.3f}: {ours - theirs:.3f} more")
    path = CacheFile("nvrtc", "x").path
    compiled = len(list(path.parent.glob("*.json"))) if path else 0
    print(f"the first product of the process {start:.2f} s; {compiled} kernels compiled")
    command = "python benchmarks/new_gpu_shapes.py OUT.jsonl"
    facts = {
        "kind": "new_shapes",
        "gpu": torch.cuda.get_device_name(),
        "start_s": start,
        "compiled": compiled,
        "process_s": firsts,
    }
    record = facts | {"environment": environment(operands="uniform [-1, 1)", command=command), "cases": found}
    with Path(sys.argv[1]).open("a") as file:
        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
