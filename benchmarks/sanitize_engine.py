"""Runs the GPU engine's kernels under NVIDIA's compute-sanitizer.

    python benchmarks/sanitize_engine.py OUT.jsonl [SECONDS] [--only hopper]

Needs a GPU. For each kernel and dtype, one process a tool (memcheck, racecheck, initcheck, synccheck) multiplies awkward
shapes and layouts by ``tilewright.matmul`` with this kernel alone, with each of its sets of parameters, and compares the
answers with products in float64; so do products with epilogues, and lists of matrices. A kernel that stores C by rows or by
columns computes C = A·B and Cᵀ = Bᵀ·Aᵀ in turns. Every operand, result and workspace
is an allocation of its own, whose end the tools know. What a tool says is a line of the record. Exits with 1 where there is
a finding.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import datetime
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.gpu.arrays import choose, libraries, matmul, split
from tilewright.gpu.arrays.dtypes import DTYPES
from tilewright.gpu.arrays.gpu_array import GpuArray
from tilewright.gpu.runtime.device import open_device
from tilewright.gpu.runtime.nvrtc import compiler
from tilewright.kernels.catalog import cuda_engine
from tilewright.kernels.cuda_kernel import CudaKernel, Preset
from tilewright.product.precision import COMPLEX_RESIDUES, RESIDUES
from tilewright.product.problem import itemsize_of
from tilewright.product.residues import RESIDUES_IN

TOOLS = ("memcheck", "synccheck", "initcheck", "racecheck")
#: (batch, m, n, k): next to tiles and fragments, single rows and columns, a long k, and a batch.
SHAPES = [
    (1, 1, 1, 1), (1, 31, 33, 32), (1, 65, 7, 17), (1, 5, 97, 40), (1, 129, 136, 72), (1, 1, 300, 200), (1, 128, 256, 128),
    (1, 130, 259, 35), (1, 16, 24, 3000), (3, 33, 40, 20), (40, 8, 8, 8), (1, 260, 300, 264),
]  # fmt: skip
#: How A and B lie: row after row, column after column, or in rows of a wider array at an odd element.
LAYOUTS = list(itertools.product(("rows", "columns", "wider"), repeat=2))
#: Shapes of each set of parameters, of which there are as many in any order of the list.
EACH = 3
#: Instead of a kernel: products with epilogues, and lists.
EPILOGUES, LISTS = "epilogues", "lists"
#: The dtypes of operands and what is asked of ``matmul``, by the dtype in which a kernel computes.
ASKED = {"tf32": ("float32", {"precision": "tf32"}), "float8": ("float8_e4m3fn", {}),
         "float8_fast": ("float8_e5m2", {"precision": "fast"}), "float16x2": ("float32", {}),
         "float16x1": ("float32", {"precision": "fast"}), RESIDUES: ("float64", {}),
         COMPLEX_RESIDUES: ("complex128", {})}  # fmt: skip
#: Kernels that copy 8 of the 16 bytes of an asynchronous copy at the end of an operand. memcheck says that all 16 are read;
#: for these kernels allocations are multiples of 16 bytes.
COPY_HALVES = ("cuda/dmma_copied",)
#: Seconds that one process may take, and processes at once.
MOST_S, AT_ONCE = 300, 16


# ---- arrays whose allocations the tools see --------------------------------------------------------------------------


class Plain:
    """An array on the GPU in an allocation of its own, from no pool, of a multiple of ``granule`` bytes."""

    granule = 1

    def __init__(self, shape: Any, strides: Any, dtype: str, whole: np.ndarray | int, first: int = 0) -> None:
        gpu = open_device()
        self.shape, self.strides, self.dtype = tuple(map(int, shape)), tuple(map(int, strides)), dtype
        size = itemsize_of(dtype)
        nbytes = whole.nbytes if isinstance(whole, np.ndarray) else whole * size
        self.memory = gpu.reserve(-(-nbytes // self.granule) * self.granule)
        if isinstance(whole, np.ndarray):
            padded = np.zeros(self.memory.nbytes, np.uint8)
            padded[:nbytes] = whole.reshape(-1).view(np.uint8)
            gpu.copy_to(self.memory, padded)
        self.pointer, self.first, self.whole = self.memory.pointer + first * size, first, None

    def __getitem__(self, rows: slice) -> Plain:
        """A view of some rows, or of one matrix of a batch."""
        return self._view(range(self.shape[0])[rows], self.shape[1:], self.strides)

    def __iter__(self) -> Iterator[Plain]:
        for i in range(self.shape[0]):
            yield self._view(range(i, i + 1), self.shape[1:], self.strides).reshape(self.shape[1:])

    def reshape(self, shape: tuple[int, ...]) -> Plain:
        """A view of another shape, if it is contiguous."""
        strides = [int(np.prod(shape[i + 1 :], dtype=int)) for i in range(len(shape))]
        return self._view(range(1), shape, (0, *strides)).only

    def _view(self, rows: range, shape: tuple[int, ...], strides: tuple[int, ...]) -> Plain:
        part = copy.copy(self)
        part.shape, part.strides = (len(rows), *shape), tuple(strides)
        first = rows.start * strides[0] if len(rows) else 0
        part.first, part.pointer = self.first + first, self.pointer + first * itemsize_of(self.dtype)
        part.whole = self.whole or self  # which frees the memory
        return part

    @property
    def only(self) -> Plain:
        """The one matrix of a batch."""
        self.shape, self.strides = self.shape[1:], self.strides[1:]
        return self

    def __del__(self) -> None:
        if self.whole is None:
            with open_device():
                self.memory.close()

    def numbers(self) -> np.ndarray:
        """Its elements, of a result that is contiguous one way, in float64 or complex128."""
        gpu = open_device()
        gpu.wait()
        kind = numpy_dtype(self.dtype)
        flat = gpu.get(self.memory, kind, (self.memory.nbytes // kind.itemsize,))
        seen = np.lib.stride_tricks.as_strided(
            flat[self.first :], self.shape, [step * kind.itemsize for step in self.strides]
        )
        return seen.astype(np.complex128 if kind.kind == "c" else np.float64)


class PlainLibrary(libraries.Library):
    """What ``matmul`` needs to know of these arrays."""

    name = "plain"

    def on_gpu(self, x: Any) -> bool:  # noqa: ARG002
        return True

    def view(self, x: Plain, name: str) -> GpuArray:  # noqa: ARG002
        return GpuArray(x.pointer, x.shape, x.strides, x.dtype, 0, x)

    def stream(self, device: int) -> int:  # noqa: ARG002
        return open_device().stream

    def empty(self, shape: tuple[int, ...], dtype: str, device: int) -> tuple[Plain, int]:  # noqa: ARG002
        strides = [int(np.prod(shape[i + 1 :], dtype=int)) for i in range(len(shape))]
        x = Plain(shape, strides, dtype, int(np.prod(shape, dtype=int)))
        return x, x.pointer

    def transposed(self, x: Plain) -> Plain:
        *outer, rows, columns = range(len(x.shape))
        order = *outer, columns, rows
        x.shape, x.strides = tuple(x.shape[i] for i in order), tuple(x.strides[i] for i in order)
        return x

    def hold(self, stream: int, device: int, things: Any) -> None:  # noqa: ARG002
        open_device().wait()  # operands and workspace are freed at once


def numpy_dtype(name: str) -> np.dtype:
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name, name))


def made(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, layout: str = "rows"
) -> tuple[Plain, np.ndarray]:
    """An array of small whole numbers, and the same on the host."""
    *outer, rows, columns = shape
    kind, down = numpy_dtype(dtype), layout == "columns"
    stored = (*outer, columns, rows) if down else (*outer, rows, columns + 9 * (layout == "wider"))
    values = rng.integers(-2, 3, stored).astype(np.float64)
    whole = values.astype(kind) if kind.kind != "c" else (values + 1j * rng.integers(-2, 3, stored)).astype(kind)
    view = whole.swapaxes(-1, -2) if down else whole[..., layout == "wider" :][..., :columns]
    steps = [step // kind.itemsize for step in view.strides]
    x = Plain(shape, steps, dtype, np.ascontiguousarray(whole), int(layout == "wider"))
    return x, view.astype(np.complex128 if kind.kind == "c" else np.float64)


def is_right(c: Plain, exact: np.ndarray) -> bool:
    """Whether a result is within a rounding of its dtype."""
    found = c.numbers()
    if c.dtype == "int8":
        return bool(((found - exact) % 256 == 0).all())
    unit = {"bfloat16": 2.0**-8, "float16": 2.0**-11}.get(c.dtype, 2.0**-22)
    return found.shape == exact.shape and bool((abs(found - exact) <= unit * (abs(exact) + 1e-3)).all())


# ---- what one process does -------------------------------------------------------------------------------------------


def sets_of(kernel: CudaKernel, size: int) -> Iterator[CudaKernel]:
    """The kernel with each of its sets of parameters that elements of this size may take as its only one."""
    for given in ({}, *(preset.params for preset in kernel.presets if may_take(kernel, preset, size))):
        parameters = [dataclasses.replace(p, default=given.get(p.name, p.default)) for p in kernel.parameters]
        yield dataclasses.replace(kernel, parameters=tuple(parameters), presets=())


def of_kernel(kernel: CudaKernel, compute: str) -> Iterator[bool]:
    """Multiplies, and yields whether each answer is right."""
    rng = np.random.default_rng(1)
    Plain.granule = 16 if kernel.name in COPY_HALVES else 1
    dtype, asked = ASKED.get(compute, (compute, {}))
    shapes = [each for each in SHAPES if kernel.suits is None or suits(kernel, each)]
    if not shapes:  # it is for large ones, and able to multiply all
        kernel, shapes = dataclasses.replace(kernel, suits=None), SHAPES
    if compute in RESIDUES_IN:  # which are of one product
        shapes = [each for each in shapes if each[0] == 1]
    turns = itertools.cycle(shapes)
    ways = itertools.cycle(LAYOUTS)
    tried, orders = choose._tried, itertools.cycle((False, True) if "c_down" in kernel.boxes else (None,))
    split._LEAST = {}  # of products from residues
    for alone, swapped in zip(sets_of(kernel, itemsize_of(compute)), orders):  # noqa: B905
        if swapped is not None:
            choose._tried = lambda *given, swapped=swapped, **named: in_order(list(tried(*given, **named)), swapped)
        choose.engine_on_gpu = lambda dtype, capability, alone=alone: (alone,) if dtype in alone.dtypes else ()
        matmul._plan.cache_clear()
        matmul._launches.cache_clear()
        for batch, m, n, k in itertools.islice(turns, max(EACH, -(-len(shapes) // (1 + len(kernel.presets))))):
            outer, (of_a, of_b) = (batch,) * (batch > 1), next(ways)
            (a, x), (b, y) = made(rng, (*outer, m, k), dtype, of_a), made(rng, (*outer, k, n), dtype, of_b)
            yield is_right(tw.matmul(a, b, **asked), x @ y)


def in_order(found: list[Any], swapped: bool) -> list[Any]:
    """The ways to compute Cᵀ = Bᵀ·Aᵀ, or C = A·B; all where the kernel does not store that C."""
    return [each for each in found if each[2].swapped == swapped] or found


def may_take(kernel: CudaKernel, preset: Preset, size: int) -> bool:
    """Whether a set is taken for some shape: instructions for int8 have fewer widths than those for 16 bits."""
    params = kernel.checked(preset.params)
    sizes = 1, 2, 3, 6, 12, 20, 40, 100, 300, params.get("BN", 1)
    return any(
        preset.when(m=m, n=n, k=k, size=size, triangle=False, **params)
        for m, n, k in itertools.product(sizes, sizes, (1, 4096))
    )


def suits(kernel: CudaKernel, shape: tuple[int, int, int, int]) -> bool:
    batch, m, n, k = shape
    return kernel.suits is not None and bool(kernel.suits(m=m, n=n, k=k, batch=batch))


def of_epilogues() -> Iterator[bool]:
    """Products with every part of an epilogue, into wider arrays, by whatever kernel is chosen."""
    rng = np.random.default_rng(1)
    sizes = (33, 40, 24), (129, 131, 67), (8, 24, 2000)
    for dtype, (m, n, k) in itertools.product(("bfloat16", "float32", "float64"), sizes):
        (a, x), (b, y) = made(rng, (m, k), dtype), made(rng, (k, n), dtype, "columns")
        (out, before), (bias, w) = made(rng, (m, n), dtype, "wider"), made(rng, (1, n), dtype)
        (scale_a, u), (scale_b, v) = made(rng, (m, 1), "float32"), made(rng, (1, n), "float32")
        tw.matmul(a, b, out, alpha=0.5, beta=2.0, bias=bias, scale_a=scale_a, scale_b=scale_b, activation="relu")
        exact = np.maximum(0.5 * u * (x @ y) * v + 2 * before + w, 0)
        gpu = open_device()
        gpu.wait()
        kind = numpy_dtype(dtype)
        whole = gpu.get(out.memory, kind, (m, n + 9)).astype(float)[:, 1 : n + 1]
        yield bool((abs(whole - exact) <= 2.0**-8 * (abs(exact) + 1e-3)).all())


def of_lists() -> Iterator[bool]:
    """Lists: matrices at equal distances, rows of a split array, and matrices of any shape."""
    rng = np.random.default_rng(1)
    for dtype, count in itertools.product(("bfloat16", "float16", "float32"), (1, 5)):
        pairs = [(made(rng, (m, 24), dtype), made(rng, (24, 40), dtype)) for m in rng.integers(1, 90, count)]
        c = tw.matmul([a for (a, _), _ in pairs], [b for _, (b, _) in pairs])
        yield all(is_right(z, x @ y) for z, ((_, x), (_, y)) in zip(c, pairs, strict=True))


def multiplied(name: str, compute: str) -> dict[str, Any]:
    """What a process found: how many answers, and how many of them wrong."""
    libraries._known[Plain] = PlainLibrary()
    known = {EPILOGUES: of_epilogues, LISTS: of_lists}
    answers = list(known[name]() if name in known else of_kernel(cuda_engine()[name], compute))
    return {"products": len(answers), "wrong": answers.count(False)}


# ---- all of them -----------------------------------------------------------------------------------------------------


def check(name: str, compute: str, tool: str, until: float) -> dict[str, Any]:
    """One process under one tool; under none for ``tool`` "", which compiles for the others."""
    command = [sys.executable, __file__, "--of", name, compute]
    if tool:
        command = ["compute-sanitizer", "--tool", tool, "--report-api-errors", "no", "--error-exitcode", "9", *command]
    line: dict[str, Any] = {"kind": "sanitized engine", "schema": 1, "kernel": name, "dtype": compute, "tool": tool}
    start = time.time()
    left = min(MOST_S, until - start)
    if left <= 0:
        return line | {"exit": None, "summary": [], "said": "not begun: the time was over"}
    # In a session of its own: the tool starts another process, which must end with it.
    piped: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    done = subprocess.Popen(command, **piped)
    try:
        text, _ = done.communicate(timeout=left)
    except subprocess.TimeoutExpired:
        os.killpg(done.pid, signal.SIGKILL)
        done.communicate()
        return line | {"exit": None, "summary": [], "said": f"not finished after {left:.0f} s"}
    summary = [each.strip("= ") for each in text.splitlines() if "SUMMARY" in each]
    answers = [json.loads(each) for each in text.splitlines() if each.startswith('{"products"')]
    line |= {"exit": done.returncode, "summary": summary, "seconds": round(time.time() - start, 1)}
    first = max(0, text.find("========= ", text.find("COMPUTE-SANITIZER") + 1))
    said = text[first:][:1500] if tool and done.returncode == 9 else text[-1500:]  # the first finding, or the error
    return line | (answers[0] if answers else {}) | {"said": "" if done.returncode == 0 else said}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("seconds", type=float, nargs="?", default=600)
    parser.add_argument("--of", nargs=2)
    parser.add_argument("--only", default="", help="kernels whose name has this in it")
    parser.add_argument("--tools", default=",".join(TOOLS), help="tools, joined by commas")
    given = parser.parse_args()
    if given.of:
        print(json.dumps(multiplied(*given.of)), flush=True)
        return 0
    gpu, until = open_device(), time.time() + given.seconds
    known_dtypes = {*DTYPES, *ASKED}
    kernels = [kernel for kernel in cuda_engine().values() if kernel.fits(gpu.capability)]
    jobs = [(kernel.name, dtype) for kernel in kernels for dtype in kernel.dtypes if dtype in known_dtypes]
    jobs += [(name, COMPLEX_RESIDUES) for name, dtype in jobs if dtype == RESIDUES]
    jobs = [job for job in [*jobs, (EPILOGUES, ""), (LISTS, "")] if given.only in job[0]]
    jobs.sort(key=lambda job: -len(getattr(cuda_engine().get(job[0]), "presets", ())))  # what takes longest first
    sources = {name: kernel.source_hash for name, kernel in cuda_engine().items()}
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    known = {
        "gpu": gpu.name,
        "arch": gpu.arch,
        "compiler": compiler(),
        "shapes": SHAPES,
        "kernels": sources,
        "time": now,
    }
    known |= {"command": " ".join(["python benchmarks/sanitize_engine.py OUT.jsonl", *sys.argv[2:]])}
    plain, found, running = [], [], []
    with given.out.open("w", encoding="utf-8") as file, ThreadPoolExecutor(AT_ONCE) as pool:

        def written(line: dict[str, Any]) -> dict[str, Any]:
            file.write(json.dumps(line) + "\n")
            file.flush()
            return line

        written({"kind": "sanitized engine header", "schema": 1, "environment": known})
        compiling = {pool.submit(check, *job, "", until): job for job in jobs}
        for done in as_completed(compiling):
            plain.append(written(done.result()))
            running += [pool.submit(check, *compiling[done], tool, until) for tool in given.tools.split(",")]
        for done in as_completed(running):
            found.append(written(done.result()))
    bad = [line for line in (*plain, *found) if line["exit"] or line["exit"] is None or line.get("wrong", 1)]
    print(f"{len(found)} runs under {given.tools}, {len(bad)} with a finding, a wrong answer or no end")
    for one in bad:
        print(
            one["kernel"], one["dtype"], one["tool"], one["exit"], one.get("wrong"), one["summary"], one["said"][-300:]
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
