"""Multiplies very many small random matrices on a GPU, a batch or a list in one call, and compares with IEEE arithmetic.

    python benchmarks/random_small_gpu_products.py OUT.jsonl [--products 1000000] [--seconds 120] [--processes 16] [--seed 1]
    python benchmarks/random_small_gpu_products.py OUT.jsonl --only 1234 [--seed 1]

Every product of a call has numbers of its own: of both signs, between two random powers of two from the least subnormal
number on, some or most of them zero, in one of eight products an infinity or a NaN. The kernels of float32 and float64 that
split operands, round them or take residues serve larger products; here they are launched directly for small ones.

An answer is right if each element is within the bound that its ``precision`` promises of the product in wider arithmetic,
infinite or NaN where that is (of complex numbers: where that is either), and if the same call gives the same bits again.
The record has a line for each kind of product. Each wrong call is a line of its own, with the number by which ``--only``
repeats it.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import multiprocessing
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright.gpu.planning.choice import computed_on_gpu
from tilewright.gpu.runtime.layout import row_major_matrix
from tilewright.gpu.runtime.residue_product import residue_steps, residues_of_rows
from tilewright.gpu.runtime.split_product import SplitOperand, SplitProduct, split_product_steps
from tilewright.gpu.runtime.steps import load
from tilewright.kernels.catalog import cuda_engine
from tilewright.product.precision import path_bound, promised_bound
from tilewright.product.residues import CLASSICAL, RESIDUES_IN

Matrices = list[np.ndarray]
#: Products of one call, and multiply-adds of all of them, at most.
BATCH, MOST = 512, 1 << 24
#: The share of products with an infinity or a NaN.
SPECIAL = 1 / 8


@dataclass(frozen=True)
class Kind:
    """The dtype, ``precision``, the least power of two among the numbers (of "tf32" and "fast" underflow has no bound), and
    the kernel that is launched directly, with the largest lines and the least k that it gets."""

    dtype: str
    precision: str | float = "standard"
    lowest: int | None = None
    kernel: str = ""
    lines: int = 64
    least_k: int = 1


KINDS = {
    "float32": Kind("float32"),
    "float64": Kind("float64"),
    "bfloat16": Kind("bfloat16"),
    "float16": Kind("float16"),
    "float32 ieee": Kind("float32", "ieee"),
    "float32 highest": Kind("float32", "highest"),
    "float32 fast": Kind("float32", "fast", -60),
    "tf32": Kind("float32", "tf32", -60),
    "complex64": Kind("complex64"),
    "complex128": Kind("complex128"),
    "float32 split": Kind("float32", kernel="cuda/split_hopper", lines=130, least_k=129),
    "float32 rounded": Kind("float32", "fast", kernel="cuda/rounded_hopper", lines=130, least_k=129),
    "float64 residues": Kind("float64", kernel="cuda/residues_hopper", lines=130, least_k=129),
    "float64 fewer residues": Kind("float64", 1e-6, kernel="cuda/residues_hopper", lines=130, least_k=129),
    "float64 fewest residues": Kind("float64", "fast", kernel="cuda/residues_hopper", lines=130, least_k=129),
    "complex128 residues": Kind("complex128", kernel="cuda/residues_hopper", lines=130, least_k=129),
    "complex128 fewest residues": Kind("complex128", "fast", kernel="cuda/residues_hopper", lines=130, least_k=129),
}


@dataclass(frozen=True)
class Gpu:
    """``put`` makes a GPU array of a host array, ``get`` copies one back; the device, and the handle of its stream."""

    put: Callable[[np.ndarray], Any]
    get: Callable[[Any], np.ndarray]
    device: Any
    stream: int


@functools.cache
def on_torch() -> Gpu:
    """PyTorch's GPU, of this process."""
    import torch

    from tilewright.gpu.runtime.device import open_device

    torch.cuda.init()
    torch.backends.cuda.matmul.allow_tf32 = False

    def put(x: np.ndarray) -> Any:
        x = np.ascontiguousarray(x)
        if x.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(x.view(np.int16)).cuda().view(torch.bfloat16)
        return torch.from_numpy(x).cuda()

    def get(x: Any) -> np.ndarray:
        if x.dtype is torch.bfloat16:
            return x.view(torch.int16).cpu().numpy().view(ml_dtypes.bfloat16)
        return x.cpu().numpy()

    return Gpu(put, get, open_device(0), torch.cuda.current_stream().cuda_stream)


# ---- numbers and shapes ----------------------------------------------------------------------------------------------


def numbers(rng: np.random.Generator, shape: tuple[int, int, int], kind: Kind) -> np.ndarray:
    """Matrices of random numbers, each with a span, a share of zeros and perhaps an infinity or a NaN of its own."""
    count, dtype = shape[0], np.dtype(ml_dtypes.bfloat16 if kind.dtype == "bfloat16" else kind.dtype)
    info = ml_dtypes.finfo(dtype) if dtype.kind != "c" else np.finfo(dtype)
    lowest = kind.lowest if kind.lowest is not None else max(info.minexp, -1022) - info.nmant
    ends = rng.integers(lowest, max(4, info.maxexp // 2 - 8), (2, count, 1, 1), endpoint=True)
    low, high = ends.min(0), ends.max(0)
    low = np.where(
        rng.random((count, 1, 1)) < 0.5, np.maximum(low, high - int(rng.integers(0, 30))), low
    )  # often narrow

    def real() -> np.ndarray:
        x = np.ldexp(rng.uniform(0.5, 1, shape), rng.integers(low, high + 1, shape))
        return x * rng.choice([-1.0, 1.0], shape) * (rng.random(shape) >= rng.choice([0, 0, 0.1, 0.9], (count, 1, 1)))

    x = real() + 1j * real() if dtype.kind == "c" else real()
    for which in np.flatnonzero(rng.random(count) < SPECIAL / 2):
        x[which, rng.integers(shape[1]), rng.integers(shape[2])] = rng.choice([np.nan, np.inf, -np.inf])
    return x.astype(dtype)


def drawn(rng: np.random.Generator, kind: Kind, batch: int, most: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches of A and of B: of one shape, or for a list several of one matrix each."""
    is_list = not kind.kernel and rng.random() < 0.25
    for _ in range(int(rng.integers(2, 9)) if is_list else 1):
        m, n = (int(2 ** rng.uniform(0, np.log2(kind.lines + 1))) for _ in range(2))
        k = kind.least_k - 1 + min(int(2 ** rng.uniform(0, 8)), max(1, most // (m * n)))
        count = 1 if is_list or kind.kernel == "cuda/residues_hopper" else max(1, min(batch, most // (m * n * k)))
        yield numbers(rng, (count, m, k), kind), numbers(rng, (count, k, n), kind)


# ---- products --------------------------------------------------------------------------------------------------------


def products(gpu: Gpu, kind: Kind, a: Matrices, b: Matrices) -> tuple[Matrices, str]:
    """The products of batches, or of a list of them if there are several; and the kernel."""
    if kind.kernel:
        return [directly(gpu, kind, a[0], b[0])], kind.kernel
    if len(a) > 1:
        x, y = ([gpu.put(each[0]) for each in all_of] for all_of in (a, b))
        return [gpu.get(each)[None] for each in tw.matmul(x, y, precision=kind.precision)], "lists"
    x, y = gpu.put(a[0]), gpu.put(b[0])
    return [gpu.get(tw.matmul(x, y, precision=kind.precision))], tw.plan(x, y, precision=kind.precision).kernel.name


def directly(gpu: Gpu, kind: Kind, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """By the launches of the kernel, of any size."""
    kernel, (count, m, k), n = cuda_engine()[kind.kernel], a.shape, b.shape[2]
    if kind.kernel == "cuda/residues_hopper":
        computes = computed_on_gpu(kind.dtype, kind.precision, k=k)
        _, moduli = RESIDUES_IN.get(computes[0], (kind.dtype, CLASSICAL[kind.dtype]))
        made: Any = residues_of_rows(m, n, k, moduli, kind.dtype)
        make: Callable[..., Any] = residue_steps
    else:
        planes = 1 if kind.kernel == "cuda/rounded_hopper" else 2
        of_a, of_b, of_c = (row_major_matrix(*shape, "float32", count) for shape in ((m, k), (k, n), (m, n)))
        made = SplitProduct(
            SplitOperand(of_a, count, planes), SplitOperand(of_b.transposed, count, planes), of_c, count
        )
        make = split_product_steps
    given = gpu.put(a), gpu.put(b)
    c, workspace = (
        gpu.put(np.full((count, m, n), np.nan, a.dtype)),
        gpu.put(np.zeros(made.workspace_bytes // 4 + 1, np.float32)),
    )
    with gpu.device:
        submit = load(gpu.device, make(gpu.device.sms, kernel, {}, made))
        submit(*(x.data_ptr() for x in (*given, c, workspace)), gpu.stream)
    return gpu.get(c)


# ---- what is right ---------------------------------------------------------------------------------------------------


def worst(kind: Kind, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> float:
    """The largest error of an element over its bound; infinite where an infinity or a NaN is missing or too much."""
    wide = {"float64": np.longdouble, "complex64": np.complex128, "complex128": np.clongdouble}.get(
        kind.dtype, np.float64
    )
    k, dtype = a.shape[-1], c.dtype
    if dtype != a.dtype or c.shape != (*a.shape[:2], b.shape[2]):
        return np.inf
    with np.errstate(all="ignore"):
        x, y, found = a.astype(wide), b.astype(wide), c.astype(wide)
        exact, size = x @ y, abs(x) @ abs(y)
        info = ml_dtypes.finfo(dtype) if dtype.kind != "c" else np.finfo(dtype)
        if kind.kernel == "cuda/rounded_hopper":
            relative = path_bound("float32", "float16x1", k)
        else:
            known = "standard" if kind.precision == "ieee" else kind.precision
            relative = promised_bound(known, "gpu", kind.dtype, kind.dtype, k)
        least = (
            np.float64(info.smallest_subnormal)
            if dtype.itemsize > 2
            else max(float(info.smallest_subnormal), 2.0**-149)
        )
        bound = relative * size + (8 * k + 8 if dtype.kind == "c" else k + 2) * least
        error = abs(found - exact)
        overflows = (abs(exact) + bound >= float(info.max)) & ~np.isfinite(found)
        over = np.where(overflows, 0, error / bound)
        if dtype.kind == "c":
            over = np.where(np.isfinite(exact), over, np.where(np.isfinite(found), np.inf, 0))
        else:
            same = (found == exact) | (np.isnan(found) & np.isnan(exact))
            over = np.where(np.isfinite(exact), over, np.where(same, 0, np.inf))
    return float(np.where(np.isnan(over), np.inf, over).max(initial=0))


def one(number: int, seed: int = 1, gpu: Gpu | None = None, batch: int = BATCH, most: int = MOST) -> dict[str, Any]:
    """Call ``number`` of a seed: its kind, kernel and products, the largest error over its bound, and what is wrong."""
    name = list(KINDS)[number % len(KINDS)]
    kind, gpu = KINDS[name], gpu or on_torch()
    rng = np.random.default_rng([seed, number])
    pairs = list(drawn(rng, kind, batch, most))
    a, b = (list(each) for each in zip(*pairs, strict=True))
    line: dict[str, Any] = {"dtype": name, "number": number, "shapes": [(*x.shape, y.shape[2]) for x, y in pairs]}
    try:
        c, line["kernel"] = products(gpu, kind, a, b)
        again, _ = products(gpu, kind, a, b)
    except Exception as raised:
        return line | {"products": 0, "error_over_bound": 0.0, "raised": f"{type(raised).__name__}: {raised}"[:300]}
    found = max(worst(kind, *each) for each in zip(a, b, c, strict=True))
    same = all(x.tobytes() == y.tobytes() for x, y in zip(c, again, strict=True))
    return line | {"products": sum(len(x) for x in a), "error_over_bound": found, "same": same}


def is_right(line: dict[str, Any]) -> bool:
    """Whether every product of a call is."""
    return "raised" not in line and line["error_over_bound"] <= 1 and line["same"]


def lines_of(found: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """The lines of a record: one for each kind, and one for each wrong call."""
    lines = []
    for name, kind in KINDS.items():
        of = [each for each in found if each["dtype"] == name]
        kernels: collections.Counter[str] = collections.Counter()
        for each in of:
            kernels[each.get("kernel", "none")] += each["products"]
        lines.append({
            "kind": "small gpu products", "schema": 1, "dtype": name, "precision": kind.precision, "seed": seed,
            "products": sum(each["products"] for each in of), "calls": len(of), "by_kernel": kernels,
            "wrong": sum(not is_right(each) for each in of),
            "error_over_bound": min(1e300, max((each["error_over_bound"] for each in of), default=0.0)),
        })  # fmt: skip
    wrong = [each for each in found if not is_right(each)][:100]
    return lines + [
        {
            "kind": "small gpu product wrong",
            "schema": 1,
            **each,
            "error_over_bound": min(1e300, each["error_over_bound"]),
        }
        for each in wrong
    ]


def main() -> int:
    from tilewright.lab.inputs.environment import environment

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--products", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    asked = parser.parse_args()
    begun, found = time.perf_counter(), []
    if asked.only is not None:
        found.append(one(asked.only, asked.seed))
    else:
        with multiprocessing.get_context("spawn").Pool(asked.processes) as pool:
            calls = pool.imap_unordered(functools.partial(one, seed=asked.seed), range(asked.products))
            made = 0
            while made < asked.products and (left := begun + asked.seconds - time.perf_counter()) > 0:
                try:
                    found.append(calls.next(timeout=left))
                except multiprocessing.TimeoutError:
                    break
                made += found[-1]["products"]
    import torch

    command = shlex.join(["python", "benchmarks/random_small_gpu_products.py", "OUT.jsonl", *sys.argv[2:]])
    known = environment(operands="random", command=command) | {"gpu": torch.cuda.get_device_name()}
    known |= {"seconds": round(time.perf_counter() - begun, 1)}
    lines = [{"kind": "small gpu products header", "schema": 1, "environment": known}, *lines_of(found, asked.seed)]
    asked.out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    wrong = [line for line in lines if line["kind"] == "small gpu product wrong"]
    for line in lines[1 : 1 + len(KINDS)]:
        print(f"{line['dtype']:16} {line['products']:8} products, error {line['error_over_bound']:.3g} of its bound, "
              f"wrong {line['wrong']} of {line['calls']} calls, {dict(line['by_kernel'])}")  # fmt: skip
    for line in wrong[:12]:
        print(json.dumps(line)[:600])
    print(f"{sum(each['products'] for each in found)} products in {known['seconds']} s, {len(wrong)} wrong calls")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
