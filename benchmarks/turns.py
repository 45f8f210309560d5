"""Two revisions in turns: ``python benchmarks/turns.py OUT.jsonl OLD NEW [ROUNDS] [cpu|gpu] [--only REGEX]`` (5, cpu, all).

``OLD`` and ``NEW`` are checkouts, each with its machine code built or cached. Processes of both take turns. Each multiplies
the same operands: small ones, 100³ to 2,048³, thin ones, vectors, batches and every dtype, on one thread and on two;
compares every product with NumPy's; and notes the best of several samples. With ``gpu`` these are calls with small arrays of
PyTorch and CuPy on a GPU, and lists of them: the time until a call returns, beside that of torch's and CuPy's own.
``--only`` measures the cells whose names it matches, such as ``--only 'float32 2048'``.

Prints of each cell both medians, their ratio, old over new, the interval that contains the true ratio (with 99 % confidence
from 5 rounds on), and the verdict of ``tilewright compare``, for which a change within 0.5 % is none. Appends a record with
all samples to OUT. Exits with 1 where a cell became slower.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

from tilewright.lab.explain.measure import gpu_and_driver
from tilewright.lab.inputs.environment import environment
from tilewright.records.compare import Status, judge, ratio_interval

#: A change within this fraction is none.
THRESHOLD = 0.005

CODE = """
import json, re, sys, time
import numpy as np, tilewright as tw

rng, found = np.random.default_rng(0), {}

def numbers(dtype, *shape):
    if "int" in dtype:
        return rng.integers(-3, 4, shape).astype(dtype)
    x = rng.uniform(-1, 1, shape)
    return (x + 1j * rng.uniform(-1, 1, shape)).astype(dtype) if "complex" in dtype else x.astype(dtype)

def sample(name, a, b, out=None):
    if not re.search(sys.argv[1], name):
        return
    c = tw.matmul(a, b, out=out)
    with np.errstate(all="ignore"):
        wide = np.float32 if a.dtype == np.float16 else a.dtype
        assert np.allclose(c, a.astype(wide) @ b.astype(wide), rtol=1e-2, atol=1e-1), name
    runs, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < 10e-3:  # so that all threads are awake
        tw.matmul(a, b, out=out)
        runs += 1
    taken = []
    for _ in range(7):
        begun = time.perf_counter()
        for _ in range(runs):
            tw.matmul(a, b, out=out)
        taken.append((time.perf_counter() - begun) / runs)
    found[name] = min(taken)

for threads in (1, 2):
    with tw.use_threads(threads):
        for dtype in ("float32", "float64"):
            small = [(n, n, n) for n in (1, 2, 4, 8, 16, 24)] if threads == 1 else []
            for m, k, n in small + [(s, s, s) for s in (100, 200, 384, 777, 1000, 2048)] + [
                (1, 1000, 1000), (1000, 1000, 1), (1, 3000, 3000), (17, 2000, 2000), (64, 20000, 64), (1000, 16, 16)
            ]:
                out = np.empty((m, n), dtype) if m * n * k > 20000 else None
                sample(f"{dtype} {m}x{k}x{n} {threads}", numbers(dtype, m, k), numbers(dtype, k, n), out)
            for count, n in ((1000, 4), (500, 16), (500, 32), (50, 100)):
                sample(f"{dtype} batch {count}x{n} {threads}", numbers(dtype, count, n, n), numbers(dtype, count, n, n))
        for dtype in ("int8", "int16", "int32", "int64", "complex64", "complex128", "float16"):
            for n in (16, 500):
                sample(f"{dtype} {n} {threads}", numbers(dtype, n, n), numbers(dtype, n, n))
print(json.dumps(found))
"""

ON_GPU = """
import json, re, sys, time
import cupy, torch, tilewright as tw

generator, found = torch.Generator(device="cuda").manual_seed(0), {}

def numbers(dtype, *shape):
    return torch.rand(*shape, device="cuda", generator=generator).sub(0.5).to(dtype)

def sample(name, product, a, b, **out):
    if not re.search(sys.argv[1], name):
        return
    for c, x, y in zip(product(a, b, **out), a, b) if isinstance(a, list) else [(product(a, b, **out), a, b)]:
        c, x, y = (torch.as_tensor(t).double() for t in (c, x, y))
        assert torch.allclose(c, x @ y, rtol=2e-2, atol=2e-2), name
    taken = []
    for _ in range(25):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(200):  # fewer than fill the queue of launches
            product(a, b, **out)
        taken.append((time.perf_counter() - begun) / 200)
    found[name] = sorted(taken)[len(taken) // 2]

for dtype in (torch.float32, torch.bfloat16):
    for n in (64, 256):
        a, b = numbers(dtype, n, n), numbers(dtype, n, n)
        sample(f"torch {str(dtype)[6:]} {n}", tw.matmul, a, b)
        sample(f"torch {str(dtype)[6:]} {n}, out", tw.matmul, a, b, out=torch.empty_like(a))
        sample(f"torch.matmul {str(dtype)[6:]} {n}, out", torch.matmul, a, b, out=torch.empty_like(a))
a, b = numbers(torch.float32, 8, 64, 64), numbers(torch.float32, 8, 64, 64)
sample("torch batch 8x64, out", tw.matmul, a, b, out=torch.empty_like(a))
a, b = ([numbers(torch.bfloat16, 128, 128) for _ in range(16)] for _ in range(2))
sample("torch list 16x128", tw.matmul, a, b)
a, b = (cupy.asarray(numbers(torch.float32, 64, 64)) for _ in range(2))
sample("cupy float32 64", tw.matmul, a, b)
sample("cupy float32 64, out", tw.matmul, a, b, out=cupy.empty_like(a))
sample("cupy.matmul float32 64, out", cupy.matmul, a, b, out=cupy.empty_like(a))
print(json.dumps(found))
"""


def measured(tree: Path, code: str, only: str) -> dict[str, float]:
    """The seconds of each cell, of those whose names match ``only``, in a process of a checkout."""
    # NumPy's threads would go on spinning beside the first samples.
    variables = os.environ | {"PYTHONPATH": str(tree / "src"), "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, "-c", code, only], env=variables, capture_output=True, text=True, check=False
    )
    if process.returncode:
        sys.exit(process.stderr)
    return dict(json.loads(process.stdout))


def revision(tree: Path) -> str:
    """The commit of a checkout; the name of a folder that is none."""
    git = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(git, capture_output=True, text=True, check=False)
    return found.stdout.strip() or tree.resolve().name


def main() -> int:
    """Measure, print and append the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the file to which the record is appended")
    parser.add_argument("old", type=Path, help="a checkout")
    parser.add_argument("new", type=Path, help="a checkout")
    parser.add_argument("rounds", type=int, nargs="?", default=5, help="processes of each checkout")
    parser.add_argument("where", choices=("cpu", "gpu"), nargs="?", default="cpu")
    parser.add_argument("--only", metavar="REGEX", default="", help="the cells to measure; default: all")
    given = parser.parse_args()
    code = {"cpu": CODE, "gpu": ON_GPU}[given.where]
    samples: dict[str, list[tuple[float, float]]] = {}
    for _ in range(given.rounds):
        before, after = measured(given.old, code, given.only), measured(given.new, code, given.only)
        if not before:
            parser.error(f"--only {given.only!r}: matches no cell, such as 'float32 2048x2048x2048 1'")
        for cell, seconds in before.items():
            samples.setdefault(cell, []).append((seconds, after[cell]))
    ratios, verdicts = {}, []
    for cell, pairs in samples.items():
        olds, news = zip(*pairs, strict=True)
        before, after = statistics.median(olds), statistics.median(news)
        ratios[cell] = before / after
        low, high, _ = ratio_interval(news, olds)
        verdict, why = judge(olds, news, THRESHOLD)
        verdicts.append(verdict)
        print(
            f"{cell:28} {1e6 * before:11.2f} {1e6 * after:11.2f} µs {ratios[cell]:6.3f} ({low:.3f} to {high:.3f}) "
            f"{verdict.name}{why and f': {why}'}"
        )
    mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
    print(f"geometric mean of {len(ratios)}: {mean:.3f}")
    words = ["python", "benchmarks/turns.py", "OUT.jsonl", "OLD", "NEW", str(given.rounds), given.where]
    command = shlex.join([*words, *(["--only", given.only] if given.only else [])])
    operands = "uniform [-1, 1), small integers" if given.where == "cpu" else "uniform [-0.5, 0.5)"
    known = environment(operands=operands, command=command) | (gpu_and_driver() if given.where == "gpu" else {})
    record = {"kind": "turns", "environment": known}
    revisions = {"old": revision(given.old), "new": revision(given.new), "geometric_mean": mean}
    with given.out.open("a") as file:
        file.write(json.dumps(record | revisions | {"samples_s": samples}) + "\n")
    return 1 if Status.SLOWER in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
