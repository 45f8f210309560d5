"""Multiplies random matrices on a GPU by ``tilewright.matmul``, and compares each with the product in float64.

    python benchmarks/random_gpu_products.py OUT.jsonl [--products 20000] [--seconds 200] [--processes 14] [--seed 1]

Shapes are drawn on a logarithmic scale, with sizes next to tile sizes; layouts are rows, columns, views with gaps and odd
addresses, transposed and broadcast batches; sometimes there is an ``out`` with poison around it. An answer is right if every
element is within the classical bound of its dtype, the same product gives the same bits twice, and nothing around ``out``
has changed. The record holds the number of products by dtype and by kernel, the largest error over its bound, and each wrong
product.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np

#: Dtypes, and how often each is drawn.
DTYPES = {"bfloat16": 4, "float16": 3, "float32": 4, "float64": 3}
#: Multiply-adds of a product at most.
MOST = 2e9


def sizes(rng: np.random.Generator) -> tuple[tuple[int, ...], int, int, int]:
    """A batch, m, n and k."""
    while True:
        m, n, k = (int(2 ** rng.uniform(0, top)) for top in rng.permuted([13, 11, rng.choice([9, 17])]))
        if rng.random() < 0.3:
            m, n, k = (max(1, round(x / 64) * 64 + int(rng.integers(-1, 2))) for x in (m, n, k))
        if rng.random() < 0.02:
            m, n, k = (x * int(rng.random() < 0.6) for x in (m, n, k))
        batch = tuple(int(x) for x in rng.integers(1, 5, rng.choice([0, 0, 0, 1, 1, 2])))
        if m * n * k * int(np.prod(batch)) <= MOST and (m * k + k * n + m * n) * int(np.prod(batch)) < 2e8:
            return batch, m, n, k


def laid(torch: Any, rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, generator: Any) -> Any:
    """A tensor of random numbers in a random layout."""
    *outer, rows, columns = shape
    way = rng.choice(["rows", "rows", "columns", "wider", "taller", "offset", "gaps", "outer"])
    if way == "columns":
        return laid(torch, rng, (*outer, columns, rows), dtype, generator).transpose(-1, -2)
    wide = [*outer, rows, columns]
    left = top = 0
    if way in ("wider", "offset"):
        left, wide[-1] = int(rng.integers(0, 9)), columns + int(rng.integers(8, 20))
    if way in ("taller", "outer"):
        top, wide[-2] = int(rng.integers(0, 3)), rows + 3
    if way == "gaps":
        wide[-1] = 2 * columns
    x = (torch.rand(wide, device="cuda", generator=generator, dtype=torch.float32) * 2 - 1).to(dtype)
    x = x[..., top : top + rows, ::2] if way == "gaps" else x[..., top : top + rows, left : left + columns]
    if outer and rng.random() < 0.2:
        x = x[:1].expand(outer[0], *x.shape[1:])
    return x


def worst(torch: Any, a: Any, b: Any, c: Any, dtype: str) -> float:
    """The largest error over the bound of its element."""
    unit = {"float64": 2.0**-53}.get(dtype, 2.0**-24)
    rounding = {"bfloat16": 2.0**-8, "float16": 2.0**-11}.get(dtype, 0)
    exact, sums = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    # The reference is rounded itself: of float64 its own error counts as well.
    bound = (a.shape[-1] + 2) * unit * sums * (2 if dtype == "float64" else 1) + rounding * exact.abs() + 1e-37
    least = torch.finfo(getattr(torch, dtype)).smallest_normal
    return float(((c.double() - exact).abs() / bound.clamp_min(least)).amax()) if c.numel() else 0.0


def work(seed: int, products: int, until: float) -> dict[str, Any]:
    import torch

    import tilewright as tw

    rng = np.random.default_rng(seed)
    generator = torch.Generator("cuda").manual_seed(seed)
    names, weights = list(DTYPES), np.array(list(DTYPES.values()), float)
    done: collections.Counter[str] = collections.Counter()
    kernels: collections.Counter[str] = collections.Counter()
    wrong, most = [], dict.fromkeys(DTYPES, 0.0)
    for i in range(products):
        if time.time() > until:
            break
        dtype = str(rng.choice(names, p=weights / weights.sum()))
        kind = getattr(torch, dtype)
        batch, m, n, k = sizes(rng)
        a = laid(torch, rng, (*batch, m, k), kind, generator)
        b = laid(torch, rng, (*(batch if rng.random() < 0.7 else ()), k, n), kind, generator)
        out = around = frame = None
        if rng.random() < 0.3:
            frame = torch.full((*batch, m + 2, n + 9), 7, device="cuda", dtype=kind)
            left = int(rng.integers(0, 9))
            out, around = frame[..., 1 : m + 1, left : left + n], frame.clone()
        what = {"seed": seed, "i": i, "dtype": dtype, "batch": batch, "m": m, "n": n, "k": k,
                "strides": [list(x.stride()) for x in (a, b)], "out": out is not None}  # fmt: skip
        try:
            first = tw.matmul(a, b, out=out) if out is not None else tw.matmul(a, b)
            error = worst(torch, a, b, first, dtype)
            same = torch.equal(first.clone(), tw.matmul(a, b, out=out) if out is not None else tw.matmul(a, b))
            kept = True
            if around is not None:
                around[..., 1 : m + 1, left : left + n] = first
                kept = torch.equal(frame, around)
            plan = tw.plan(a, b)
            kernels[f"{plan.kernel.name}{' in parts' * (plan.parts > 1)}"] += 1
            if not (error <= 1 and same and kept):
                wrong.append(what | {"error": error, "same": same, "kept": kept, "kernel": plan.kernel.name})
            most[dtype] = max(most[dtype], error)
        except Exception as raised:
            wrong.append(what | {"raised": repr(raised)[:300]})
            if "CUDA" in repr(raised):
                break
        done[dtype] += 1
    return {"done": done, "kernels": kernels, "wrong": wrong, "most": most}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--products", type=int, default=20000)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    import torch

    from tilewright.lab.inputs.environment import environment

    each = -(-given.products // given.processes)
    until = time.time() + given.seconds
    context = multiprocessing.get_context("spawn")
    with context.Pool(given.processes) as pool:
        parts = pool.starmap(work, [(given.seed * 1000 + i, each, until) for i in range(given.processes)])
    done = sum((part["done"] for part in parts), collections.Counter())
    kernels = sum((part["kernels"] for part in parts), collections.Counter())
    wrong = [each for part in parts for each in part["wrong"]]
    most = {dtype: max(part["most"][dtype] for part in parts) for dtype in DTYPES}
    said = "".join(f" --{name} {value}" for name, value in vars(given).items() if name != "out")
    command = f"python benchmarks/random_gpu_products.py OUT.jsonl{said}"
    header = environment(operands="uniform[-1,1)", command=command) | {"gpu": torch.cuda.get_device_name()}
    lines = [
        {"kind": "gpu products header", "schema": 1, "environment": header},
        {"kind": "gpu products", "schema": 1, "seed": given.seed, "products": done.total(), "by_dtype": done,
         "by_kernel": kernels, "error_over_bound": most, "wrong": len(wrong)},
        *({"kind": "gpu product wrong", "schema": 1, **each} for each in wrong[:200]),
    ]  # fmt: skip
    given.out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    print(f"{done.total()} products {dict(done)}, wrong {len(wrong)}, error over bound {most}\n{dict(kernels)}")
    for each in wrong[:12]:
        print(each)


if __name__ == "__main__":
    main()
