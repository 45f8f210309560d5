"""Measures how accurate products are, for every path, distribution and size: ``record_accuracy.py OUT.jsonl cpu|gpu``.

Lines of kind "accuracy" are a product of one path: the largest error of an element relative to |A||B|, to the norms of its
row and column, and to the norms of A and B, and the root mean square, all in units of the unit roundoff; the largest error
over the bound that the path promises; the kernel of ``tw.plan``; and how many parts of C a GPU did not compute from split
operands or residues. They cover sizes of uniform operands, spans of graded ones, and distributions at one size. Lines of
kind "accuracy grade" are the grades of ``lab.verify.grades``.

A path is an entry of ``cpu_paths`` or ``GPU_PATHS``.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.cpu.runtime.runner import runner
from tilewright.kernels.catalog import catalog, cuda_engine
from tilewright.lab.inputs.distributions import DISTRIBUTIONS, distributed
from tilewright.lab.inputs.environment import environment
from tilewright.lab.verify.grades import Exact, grade
from tilewright.product.precision import promised_bound

Matrix = np.ndarray
#: Binades along k of the operands by which errors over the span are measured.
SPANS = (0, 10, 20, 30, 40, 60, 80, 100)
#: What is multiplied beside the distributions with their usual numbers.
WIDER = ("lognormal:4", "graded:100")


@dataclass(frozen=True)
class Way:
    """A path: its name, its dtypes, the product of two host matrices, and what promises and explains it, if it is ours:
    ``precision``, the plan of operands, and how many parts of C were computed from the operands themselves, of how many."""

    name: str
    dtypes: tuple[str, ...]
    multiply: Callable[[Matrix, Matrix], Matrix]
    place: str = ""
    precision: str = "standard"
    plan: Callable[[Matrix, Matrix], Any] | None = None
    flagged: Callable[[Matrix, Matrix, Any], tuple[int, int] | None] = lambda a, b, plan: None


# ---- paths on the CPU ------------------------------------------------------------------------------------------------


def cpu_paths() -> list[Way]:
    """The engine, the libraries that are installed, and two kernels of Strassen's kind."""
    both = ("float32", "float64")
    ways = [_on_cpu("standard", both), _on_cpu("highest", ("float32",)), _on_cpu("fast", ("float64",))]
    for name in ("ref/openblas", "ref/mkl"):
        if name in catalog():
            ways.append(Way(name, both, _by_kernel(name)))
    ways += [Way(name, both, _by_kernel(name, leaf=64)) for name in ("cpu/strassen", "cpu/strassen_winograd")]
    return ways


def _on_cpu(precision: str, dtypes: tuple[str, ...]) -> Way:
    def multiply(a: Matrix, b: Matrix) -> Matrix:
        return tw.matmul(a, b, precision=precision)

    name = "tilewright" if precision == "standard" else f'tilewright, "{precision}"'
    return Way(name, dtypes, multiply, "cpu", precision, lambda a, b: tw.plan(a, b, precision=precision))


def _by_kernel(name: str, **params: int) -> Callable[[Matrix, Matrix], Matrix]:
    def multiply(a: Matrix, b: Matrix) -> Matrix:
        c = np.full((len(a), b.shape[1]), np.nan, a.dtype)
        runner(catalog()[name], a.dtype, threads=tw.get_threads(), params=params)(a, b, c)
        return c

    return multiply


# ---- paths on a GPU --------------------------------------------------------------------------------------------------

#: The name of the path that rounds operands to TF32.
TF32 = 'tilewright, "tf32"'
#: Words of ``precision`` and the dtypes of which they are measured. "ieee" forbids split operands and residues.
GPU_PATHS = {
    "standard": ("float32", "float64"),
    "ieee": ("float32", "float64"),
    "fast": ("float32", "float64"),
    "tf32": ("float32",),
    "highest": ("float32",),
}


@dataclass(frozen=True)
class Gpu:
    """``put`` makes a GPU array of a host matrix, ``get`` copies one back, ``empty`` makes one of so many float32 without
    values; the device, and the handle of its stream."""

    put: Callable[[Matrix], Any]
    get: Callable[[Any], Matrix]
    empty: Callable[[int], Any]
    device: Any
    stream: int


def gpu_paths(gpu: Gpu, references: dict[str, Callable[[Any, Any], Any]]) -> list[Way]:
    """The words of ``precision``, and functions of other libraries."""
    put, get = gpu.put, gpu.get

    def way(precision: str, dtypes: tuple[str, ...]) -> Way:
        def plan(a: Matrix, b: Matrix) -> Any:
            return tw.plan(put(a), put(b), precision=precision)

        return Way(
            "tilewright" if precision == "standard" else f'tilewright, "{precision}"',
            dtypes,
            lambda a, b: get(tw.matmul(put(a), put(b), precision=precision)),
            "gpu",
            precision,
            plan,
            lambda a, b, plan: flagged(gpu, a, b, plan),
        )

    def of_library(name: str, call: Callable[[Any, Any], Any]) -> Way:
        return Way(name, ("float32", "float64"), lambda a, b: get(call(put(a), put(b))))

    return [way(*each) for each in GPU_PATHS.items()] + [of_library(*each) for each in references.items()]


def flagged(gpu: Gpu, a: Matrix, b: Matrix, plan: Any) -> tuple[int, int] | None:
    """How many parts of C a product from split operands or residues computes from the operands themselves, and how many
    parts there are; None for other kernels. The launches are made again, with a workspace that is read."""
    from tilewright.gpu.runtime.residue_product import residue_steps, residues_of_rows
    from tilewright.gpu.runtime.split_product import FLAGGED, LINES, allowed_excess, split_of_rows, split_product_steps
    from tilewright.gpu.runtime.steps import load

    name, params, (m, k), n = plan.kernel.name, dict(plan.params), a.shape, b.shape[1]
    planes = {"cuda/split_hopper": 2, "cuda/rounded_hopper": 1, "cuda/residues_hopper": 0}.get(name)
    if planes is None or plan.parts > 1 or a.dtype != ("float32" if planes else "float64"):
        return None
    kernel = cuda_engine()[name]
    if planes:
        made: Any = split_of_rows(m, n, k, planes)
    else:
        made = residues_of_rows(m, n, k, plan.split.a.moduli)
    result, workspace = gpu.empty(m * n * a.itemsize // 4), gpu.empty(made.workspace_bytes // 4 + 1)
    arrays = [gpu.put(a), gpu.put(b), result, workspace]
    with gpu.device:
        make: Any = split_product_steps if planes else residue_steps
        load(gpu.device, make(gpu.device.sms, kernel, params, made))(*(x.data_ptr() for x in arrays), gpu.stream)

    def words(at: int, count: int) -> Matrix:
        return np.ascontiguousarray(gpu.get(workspace[at // 4 : at // 4 + count])).view(np.int32)

    if not planes:
        first = made.a.workspace_bytes + made.b.workspace_bytes + made.residues_bytes(kernel.checked(params)["BN"])
        return int((words(first, made.parts) != 0).sum()), made.parts
    excesses, start = [], 0
    for x, lines, of_part in ((made.a, m, FLAGGED[0]), (made.b, n, FLAGGED[1])):
        each = words(start + x.planes_bytes + 4 * LINES * x.groups, -(-lines // LINES))
        excesses.append(np.maximum.reduceat(each, np.arange(0, len(each), of_part // LINES)))
        start += x.workspace_bytes
    limit = allowed_excess(k, kernel.checked(params)["CHUNK"]) if planes > 1 else 0
    return int((np.add.outer(*excesses) > limit).sum()), made.tiles


# ---- cells -----------------------------------------------------------------------------------------------------------


def cells(size: int, sizes: tuple[int, ...]) -> Iterator[tuple[str, int]]:
    """Distributions and sizes."""
    yield from (("uniform", n) for n in sizes if n != size)
    yield from ((name, size) for name in (*DISTRIBUTIONS, *WIDER))
    yield from ((f"graded:{span}", size) for span in SPANS if f"graded:{span}" not in WIDER and span != 40)


def lines_of(ways: list[Way], size: int, sizes: tuple[int, ...], graded: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """The lines of a record: products of each dtype, and grades of each path."""
    for dtype in ("float32", "float64"):
        chosen = [way for way in ways if dtype in way.dtypes]

        def prepared(cell: tuple[str, int], dtype: str = dtype) -> tuple[str, Matrix, Matrix, Exact]:
            name, n = cell
            a, b = distributed(name, (n, n, n), dtype)
            return name, a, b, Exact(a, b)

        listed = list(cells(size, sizes))
        with ThreadPoolExecutor(4) as pool:  # a few at a time: of large ones each takes a second and half a gigabyte
            for first in range(0, len(listed), 4):
                for name, a, b, exact in pool.map(prepared, listed[first : first + 4]):
                    for way in chosen:
                        yield line_of(way, name, a, b, exact)
        for way in chosen:
            found = grade(way.multiply, dtype, graded)
            known = {"kind": "accuracy grade", "schema": 1, "path": way.name, "dtype": dtype, "sizes": list(graded)}
            over = {bound: value if np.isfinite(value) else None for bound, value in found.over.items()}
            slope = found.slope if np.isfinite(found.slope) else None
            yield known | {"grade": found.letter, "algorithm": found.algorithm, "slope": slope, "over": over}


def line_of(way: Way, name: str, a: Matrix, b: Matrix, exact: Exact) -> dict[str, Any]:
    """One product of one path."""
    with np.errstate(all="ignore"):
        errors = exact.errors(way.multiply(a, b))
    (m, k), n, dtype = a.shape, b.shape[1], a.dtype.name
    line = {
        "kind": "accuracy",
        "schema": 1,
        "path": way.name,
        "dtype": dtype,
        "distribution": name,
        "m": m,
        "n": n,
        "k": k,
    }
    line |= {key: x if np.isfinite(x) else None for key, x in asdict(errors).items()}
    promise = np.inf
    if way.place:
        known = "standard" if way.precision == "ieee" else way.precision
        promise = promised_bound(known, way.place, dtype, dtype, k)
    line["over_promise"] = errors.componentwise * float(np.finfo(dtype).eps) / 2 / promise if promise < np.inf else None
    if way.plan is not None:
        line["kernel"] = (plan := way.plan(a, b)).kernel.name
        counted = way.flagged(a, b, plan)
        line |= {} if counted is None else {"flagged": counted[0], "parts": counted[1]}
    return line


def is_right(line: dict[str, Any]) -> bool:
    """Whether a product of ours keeps its promise, and has infinities and NaN where they must be; and a path with a plan
    that promises the classical bound has Grade A."""
    if line["kind"] == "accuracy grade":
        return line["path"] not in ("tilewright", 'tilewright, "ieee"', 'tilewright, "highest"') or line["grade"] == "A"
    if "kernel" not in line:
        return True
    # Subnormal numbers of TF32 have fewer bits than its bound counts on (docs/error-bounds.md).
    within = line["over_promise"] is not None and line["over_promise"] <= 1
    return bool(line["as_ieee"] and (within or (line["distribution"], line["path"]) == ("subnormal", TF32)))


def on_torch() -> tuple[list[Way], dict[str, Any]]:
    """The paths of PyTorch's tensors on its GPU, and what the record says of it."""
    import torch

    torch.cuda.init()
    torch.backends.cuda.matmul.allow_tf32 = False
    from tilewright.gpu.runtime.device import open_device

    gpu = Gpu(
        lambda x: torch.from_numpy(np.ascontiguousarray(x)).cuda(),
        lambda x: x.cpu().numpy(),
        lambda count: torch.empty(count, device="cuda"),
        open_device(0),
        torch.cuda.current_stream().cuda_stream,
    )
    ways = gpu_paths(gpu, {"torch": torch.matmul})
    return ways, {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("place", choices=["cpu", "gpu"])
    parser.add_argument("--size", type=int, help="of the products over distributions: 1024, on a GPU 4096")
    asked = parser.parse_args()
    on_gpu = asked.place == "gpu"
    ways, known = on_torch() if on_gpu else (cpu_paths(), {"threads": tw.get_threads()})
    size = asked.size or (4096 if on_gpu else 1024)
    sizes = (256, 512, 1024, 2048, 4096) if on_gpu else (64, 128, 256, 512, 1024, 2048)
    command = shlex.join(["python", "benchmarks/record_accuracy.py", "OUT.jsonl", *sys.argv[2:]])
    head = {
        "kind": "accuracy header",
        "schema": 1,
        "environment": environment(operands="seed 1", command=command) | known,
    }
    wrong = 0
    with asked.out.open("w", encoding="utf-8") as file:
        file.write(json.dumps(head) + "\n")
        for line in lines_of(ways, size, sizes, sizes[1:4] if on_gpu else sizes[:4]):
            file.write(json.dumps(line) + "\n")
            file.flush()
            right = is_right(line)
            wrong += not right
            said = [line.get(key) for key in ("dtype", "path", "distribution", "n", "kernel", "rms", "componentwise",
                                              "over_promise", "flagged", "parts", "grade", "algorithm", "over")]  # fmt: skip
            print("" if right else "WRONG", *(f"{x:.3g}" if isinstance(x, float) else x for x in said if x is not None))
    print(f"{wrong} lines are wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
