"""Times ``tilewright.matmul`` of PyTorch's tensors against ``torch.matmul``, as a user calls both, and writes a record.

    python benchmarks/record_gpu_matmul.py [benchmarks/gpu-matmul-h200.jsonl]
    python benchmarks/record_gpu_matmul.py benchmarks/gpu-matmul-half-h200.jsonl half
    python benchmarks/record_gpu_matmul.py benchmarks/gpu-matmul-full-h200.jsonl full

    python benchmarks/record_gpu_matmul.py benchmarks/gpu-matmul-narrow-h200.jsonl narrow
    python benchmarks/record_gpu_matmul.py benchmarks/gpu-matmul-double-h200.jsonl double
    python benchmarks/record_gpu_matmul.py benchmarks/gpu-matmul-layers-h200.jsonl layers
    python benchmarks/record_gpu_matmul.py benchmarks/gpu-matmul-invariant-h200.jsonl invariant
    python benchmarks/record_gpu_matmul.py benchmarks/gpu-matmul-complex-h200.jsonl complex
    python benchmarks/record_gpu_matmul.py benchmarks/gpu-matmul-wide-h100.jsonl wide
    python benchmarks/record_gpu_matmul.py benchmarks/gpu-matmul-promised-h100.jsonl promised
    python benchmarks/record_gpu_matmul.py benchmarks/gpu-matmul-gram-h200.jsonl gram

The second measures bfloat16 and float16 in many shapes, also odd and thin ones and batches, the third float32 (as
``float32_ieee`` by multiply-adds alone) and float64.
The fourth measures float8 (as ``float8_fast`` summed by tensor cores alone), int8 to int32, tf32 (as ``tf32_rows`` of a
row-major B), and float32 with ``precision="fast"``, otherwise of B transposed in memory, beside ``torch._scaled_mm``,
``torch._int_mm``, ``cublasGemmEx`` for int8, which is faster, and ``torch.matmul`` with TF32 on.
The fifth, "double", measures float64, from residues where that is faster, and as ``float64_ieee`` by float64 alone.
"layers" measures products of layers of language models in bfloat16: a few or many rows by a weight that is transposed in
memory, as ``torch.nn.Linear`` has it, and "invariant" the same by ``matmul(…, invariant=True)``; "complex" complex64 and
complex128; and "wide" float32 of lognormal operands (σ = 4), whose rows and columns span too many binades for float16.
"promised" measures float64 with ``precision="fast"`` and numbers, which need fewer residues. "gram" measures A·Aᵀ, whose
result must equal its transpose in every bit, and in the same turns (``general_samples_s``) A·Bᵀ for another B of that shape.

A sample is the time of a run of calls, one after the other on the current stream, from before the first until all of their
work is done, divided by their number: so where the GPU has less to do than Python, the calls themselves are what is timed.
Both are sampled in turns, and each call has the next of several sets of operands, which together do not fit a cache. Every
answer for the first set is compared with the product in float64, element by element, by the classical bound, or the one that
was asked for; of large ones the first rows are.
TF32 is off otherwise. ``host_s`` is the time until a call returns, of both.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.gpu.runtime.cublas import _library as cublas
from tilewright.lab.inputs.environment import environment
from tilewright.product.precision import promised_bound

SIZES = (256, 512, 1000, 1024, 2048, 4096, 4097, 8192)
SAMPLES = 7
#: (batch, m, n, k) of the products by shape, and the dtypes of each set of them.
DTYPES = {
    "": ("float32", "float64"), "half": ("bfloat16", "float16"), "full": ("float32", "float32_ieee", "float64"),
    "narrow": ("float8", "float8_fast", "int8", "int8_gemm", "tf32", "tf32_rows", "float32_fast"),
    "double": ("float64_ieee", "float64"), "layers": ("bfloat16",), "invariant": ("bfloat16_invariant",),
    "complex": ("complex64", "complex128"), "wide": ("float32", "float32_ieee"),
    "promised": ("float64", "float64_1e-9", "float64_1e-6", "float64_fast"), "gram": ("bfloat16", "float32", "float64"),
}  # fmt: skip
SHAPES = [
    *((1, n, n, n) for n in (256, 512, 1024, 1536, 2048, 3072, 4096, 8192, 16384)),
    *((1, n, n, n) for n in (1537, 3000, 4095, 4097, 7777)),
    (1, 4097, 4101, 4099), (1, 16, 8192, 8192), (1, 8192, 8192, 16), (1, 8192, 16, 8192), (1, 64, 64, 65536),
    (1, 4, 14336, 4096), (1, 1, 28672, 8192), (1, 512, 512, 16384), (1, 100, 100, 100000), (1, 32, 32, 1048576),
    (1, 8192, 8192, 64), (1, 1, 8192, 8192), (1, 64, 8192, 8192),
    (64, 512, 512, 512), (4096, 32, 32, 32), (100000, 8, 8, 8),
]  # fmt: skip
#: The narrow ones: dtypes of operands, what is asked of ``matmul``, the reference, and the bound of errors: a factor of
#: |A||B|, and one for each element of k. A tensor core keeps 13 bits of a sum of 32 products of float8.
NARROW: dict[str, tuple[str, dict[str, str], str, float, float]] = {
    "float8": ("float8_e4m3fn", {}, "torch._scaled_mm", 2.0**-10, 2.0**-24),
    "float8_fast": ("float8_e4m3fn", {"precision": "fast"}, "torch._scaled_mm(use_fast_accum=True)", 0.0, 2.0**-17),
    "int8": ("int8", {"out_dtype": "int32"}, "torch._int_mm", 0.0, 0.0),
    "int8_gemm": ("int8", {"out_dtype": "int32"}, "cublasGemmEx", 0.0, 0.0),
    "tf32": ("float32", {"precision": "tf32"}, "torch.matmul with TF32", 2.0**-10, 2.0**-23),
    "tf32_rows": ("float32", {"precision": "tf32"}, "torch.matmul with TF32", 2.0**-10, 2.0**-23),
    "float32_fast": ("float32", {"precision": "fast"}, "torch.matmul with TF32", 1.01 * 2.0**-10, 2.0**-24),
}
NARROW_SHAPES = [(1, n, n, n) for n in (1024, 2048, 4096, 8192, 16384)]
DOUBLE_SHAPES = [
    *((1, n, n, n) for n in (1536, 2048, 2560, 3072, 4096, 6144, 8192, 16384)),
    *((1, n, n, n) for n in (3000, 4095, 7777)), (1, 4097, 4101, 4099), (1, 8192, 8192, 1024), (1, 2048, 2048, 32768),
]  # fmt: skip
WIDE_SHAPES = [(1, n, n, n) for n in (1024, 2048, 3000, 4096, 8192)]
GRAM_SHAPES = [
    *((1, n, n, n) for n in (512, 1024, 2048, 3072, 4096, 8192)), (1, 1000, 1000, 100000), (1, 4096, 4096, 512),
    (1, 512, 512, 16384), (16, 1024, 1024, 1024),
]  # fmt: skip
PROMISED_SHAPES = [(1, n, n, n) for n in (1024, 2048, 4096, 8192, 16384)]
#: Rows, and the shapes (n, k) of weights.
LAYERS = [
    (1, m, n, k)
    for n, k in ((4096, 4096), (7168, 2048), (12288, 4096), (11008, 4096), (4096, 11008), (10240, 8192), (8192, 28672))
    for m in (1, 16, 32, 64, 100, 128, 256, 512, 1024, 4096)
]
COMPLEX_SHAPES = [
    *((1, n, n, n) for n in (256, 512, 1000, 1024, 2048, 4096, 4097, 8192)),
    (1, 1, 8192, 8192), (1, 16, 8192, 8192), (1, 64, 64, 65536), (16, 512, 512, 512), (1000, 64, 64, 64),
]  # fmt: skip
#: Sets of operands have so many bytes together, several times what the last cache of an H200 holds.
ROTATED = 192 << 20
#: A run of calls lasts at least so long, and so many rows are verified of products of more multiply-adds than these.
LEAST_S, ROWS, MOST = 0.015, 64, 2**33


def run(call: Callable[[], Any], times: int, wait: Callable[[], None]) -> tuple[float, float]:
    """Seconds a call: until all work is done, and until the calls have returned."""
    wait()
    start = time.perf_counter()
    for _ in range(times):
        call()
    returned = time.perf_counter() - start
    wait()
    return (time.perf_counter() - start) / times, returned / times


def in_turns(
    make: Callable[[], tuple[Any, Any]], calls_for: Callable[[Any, Any], dict[str, Callable[[], Any]]]
) -> tuple[Any, Any, dict[str, Callable[[], Any]]]:
    """A first set of operands, and for each name a call that multiplies the next of as many sets as fit no cache."""
    sets = [first := make()]
    nbytes = sum(x.numel() * x.itemsize for x in first)
    sets += [make() for _ in range(-(-ROTATED // nbytes) - 1)]
    calls = [calls_for(a, b) for a, b in sets]

    def each(name: str) -> Callable[[], Any]:
        following = itertools.cycle([one[name] for one in calls]).__next__
        return lambda: following()()

    return *first, {name: each(name) for name in calls[0]}


def error_over_bound(torch: Any, a: Any, b: Any, c: Any) -> float:
    """The largest error of an element, over k·u·(|A||B|) of it; of 16-bit results over that of float32 and one rounding, and
    of complex ones, which have 2k products of reals in each part, over √2·2k·u·(|A||B|)."""
    if a.numel() * b.shape[-1] > MOST:
        a, c = a[..., :ROWS, :], c[..., :ROWS, :]
    unit, rounding = torch.finfo(c.dtype).eps / 2, 0.0
    if c.itemsize == 2:
        unit, rounding = torch.finfo(torch.float32).eps / 2, unit
    wide, products = (torch.complex128, 8**0.5) if c.is_complex() else (torch.float64, 1)
    exact = a.to(wide) @ b.to(wide)
    bound = products * a.shape[-1] * unit * (a.abs().double() @ b.abs().double()) + rounding * exact.abs()
    return float(((c.to(wide) - exact).abs() / bound.clamp_min(torch.finfo(c.dtype).tiny)).max())


def narrow_error(a: Any, b: Any, c: Any, dtype: str) -> float:
    """The largest error of the first rows over the bound of the dtype; 0 where neither is more than 0."""
    *_, once, each = NARROW[dtype]
    x, y = a[:ROWS].double(), b.double()
    exact = x @ y
    bound = (once + a.shape[1] * each) * (x.abs() @ y.abs()) + (exact.abs() * 2.0**-8 if c.itemsize == 2 else 0)
    errors = (c[:ROWS].double() - exact).abs()
    return float((errors / bound.clamp_min(1e-30)).max())


def narrow_calls(torch: Any, a: Any, b: Any, dtype: str) -> dict[str, Callable[[], Any]]:
    """Our product and the reference, for operands of one of the narrow dtypes."""
    one, says = torch.ones((), device="cuda"), NARROW[dtype][1]
    references = {
        "float8": lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16),
        "float8_fast": lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True),
        "int8": lambda: torch._int_mm(a, b),
        "int8_gemm": integer_gemm(torch, a, b) if dtype == "int8_gemm" else None,
        "tf32": lambda: torch.matmul(a, b),
        "tf32_rows": lambda: torch.matmul(a, b),
        "float32_fast": lambda: torch.matmul(a, b),
    }
    return {"tilewright": lambda: tw.matmul(a, b, **says), "torch": references[dtype]}


def integer_gemm(torch: Any, a: Any, b: Any) -> Callable[[], Any]:
    """cuBLAS's int8 product to int32, of operands whose elements follow each other along k, as it is fastest."""
    library, handle = cublas(), ctypes.c_void_p(torch.cuda.current_blas_handle())
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty(m, n, device="cuda", dtype=torch.int32)
    one, zero = ctypes.c_int(1), ctypes.c_int(0)
    transposed, plain, int8, int32, compute_32i = 1, 0, 3, 10, 72  # numbers of cublas_api.h and library_types.h

    def call() -> Any:
        status = library.cublasGemmEx(
            handle, transposed, plain, n, m, k, ctypes.byref(one),
            ctypes.c_void_p(b.data_ptr()), int8, k, ctypes.c_void_p(a.data_ptr()), int8, k,
            ctypes.byref(zero), ctypes.c_void_p(out.data_ptr()), int32, n, compute_32i, -1,
        )  # fmt: skip
        if status:
            raise SystemExit(f"cublasGemmEx: status {status}")
        return out

    if not torch.equal(call()[:ROWS], torch._int_mm(a, b)[:ROWS]):
        raise SystemExit("cublasGemmEx: wrong")
    return call


def narrow_operands(torch: Any, generator: Any, shape: tuple[int, int, int, int], dtype: str) -> tuple[Any, Any]:
    """A and B, whose elements follow each other along k; of "tf32_rows" B is row-major."""
    _, m, n, k = shape
    kind = getattr(torch, NARROW[dtype][0])
    if NARROW[dtype][0] == "int8":
        made = [torch.randint(-128, 128, (rows, k), device="cuda", generator=generator, dtype=kind) for rows in (m, n)]
    else:
        made = [torch.rand(rows, k, device="cuda", generator=generator).mul_(2).sub_(1).to(kind) for rows in (m, n)]
    return made[0], made[1].mT.contiguous() if dtype == "tf32_rows" else made[1].mT


def record(torch: Any, shape: tuple[int, int, int, int], dtype: str, what: str = "") -> dict[str, Any]:
    batch, m, n, k = shape
    generator = torch.Generator("cuda").manual_seed(n)
    if dtype in NARROW:
        a, b, calls = in_turns(
            lambda: narrow_operands(torch, generator, shape, dtype), lambda a, b: narrow_calls(torch, a, b, dtype)
        )
        worst = narrow_error(a, b, tw.matmul(a, b, **NARROW[dtype][1]), dtype)
        plan = tw.plan(a, b, **NARROW[dtype][1])
        return measured(torch, shape, dtype, calls, worst, plan) | {"reference": NARROW[dtype][2]}
    name, _, precision = dtype.partition("_")
    transposed = what in ("layers", "invariant", "gram")
    asked: str | float = float(precision) if precision[:1].isdigit() else precision or "standard"
    kind, says = getattr(torch, name), {"precision": asked}
    outer = (batch,) if batch > 1 else ()
    planes = (2,) if kind.is_complex else ()

    def uniform(*sides: int) -> Any:
        return torch.rand(*sides, device="cuda", generator=generator).mul_(2).sub_(1)

    def normal(*sides: int) -> Any:
        return torch.randn(*sides, device="cuda", generator=generator)

    def make() -> tuple[Any, Any]:
        a, b = (
            uniform(*outer, *sides, *planes) * (torch.exp(4 * normal(*sides)) if what == "wide" else 1)
            for sides in ((m, k), (n, k) if transposed else (k, n))
        )
        a, b = (torch.view_as_complex(x).to(kind) if planes else x.to(kind) for x in (a, b))
        if what == "gram":
            return a, a.mT
        return a, b.mT if transposed else b

    def calls_for(a: Any, b: Any) -> dict[str, Callable[[], Any]]:
        found = {"tilewright": lambda: tw.matmul(a, b, **says), "torch": lambda: torch.matmul(a, b)}
        if what == "gram":
            other = a.flip(-2).mT
            found["general"] = lambda: tw.matmul(a, other, **says)
        return found

    a, b, calls = in_turns(make, calls_for)
    worst = error_over_bound(torch, a, b, tw.matmul(a, b, **says))
    if what == "gram" and not torch.equal(c := tw.matmul(a, b), c.mT):
        raise SystemExit(f"{shape} {dtype}: wrong, it does not equal its transpose")
    if what == "promised":
        worst *= promised_bound("standard", "gpu", name, name, k) / promised_bound(asked, "gpu", name, name, k)
    return measured(torch, shape, dtype, calls, worst, tw.plan(a, b, **says))


def measured(
    torch: Any,
    shape: tuple[int, int, int, int],
    dtype: str,
    calls: dict[str, Callable[[], Any]],
    worst: float,
    plan: Any,
) -> dict[str, Any]:
    """The line of a record for two calls, ours and the reference's, of which ours has an error of ``worst`` bounds."""
    batch, m, n, k = shape
    if not worst <= 1:
        raise SystemExit(f"{shape} {dtype}: wrong, {worst} of the bound")
    for call in calls.values():
        run(call, 20, torch.cuda.synchronize)
    once = min(run(call, 20, torch.cuda.synchronize)[0] for call in calls.values())
    times = max(2, int(LEAST_S / once))
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(SAMPLES):
        for name, call in calls.items():
            samples[name].append(run(call, times, torch.cuda.synchronize))
    ours, its = (np.median([total for total, _ in samples[name]]) for name in ("tilewright", "torch"))
    general = {"general_samples_s": [total for total, _ in samples["general"]]} if "general" in samples else {}
    return general | {
        "kind": "gpu matmul", "schema": 1, "batch": batch, "m": m, "n": n, "k": k, "dtype": dtype,
        "kernel": plan.kernel.name, "kernel_source": plan.kernel.source_hash,
        "params": plan.params, "why": plan.choice.why_params, "calls_a_sample": times, "error_over_bound": worst,
        "samples_s": [total for total, _ in samples["tilewright"]], "reference": "torch.matmul",
        "reference_samples_s": [total for total, _ in samples["torch"]], "ratio": its / ours,
        "gflops": plan.problem.flops / ours / 1e9, "reference_gflops": plan.problem.flops / its / 1e9,
        "parts": plan.parts, "predicted_s": plan.predicted_s,
        "host_s": float(np.median([host for _, host in samples["tilewright"]])),
        "reference_host_s": float(np.median([host for _, host in samples["torch"]])),
    }  # fmt: skip


def main(path: str = "benchmarks/gpu-matmul-h200.jsonl", what: str = "") -> None:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = what == "narrow"
    known = environment(
        operands=f"{'lognormal:4' if what == 'wide' else 'uniform[-1,1)'}, the next of several sets at each call",
        command=f"python benchmarks/record_gpu_matmul.py OUT.jsonl {what}".strip(),
    )
    known |= {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
    lines = [{"kind": "gpu matmul header", "schema": 1, "environment": known}]
    for dtype in DTYPES[what]:
        of_sets = {
            "narrow": NARROW_SHAPES,
            "double": DOUBLE_SHAPES,
            "layers": LAYERS,
            "invariant": LAYERS,
            "complex": COMPLEX_SHAPES,
            "wide": WIDE_SHAPES,
            "promised": PROMISED_SHAPES,
            "gram": GRAM_SHAPES,
            "": [(1, n, n, n) for n in SIZES],
        }
        shapes = of_sets.get(what, SHAPES)
        for shape in shapes:
            lines.append(line := record(torch, shape, dtype, what))
            print(
                f"{dtype} {shape}: {line['gflops']:9.1f} GFLOPS, R {line['ratio']:.3f}, {line['why'][:60]}", flush=True
            )
    Path(path).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:3])
