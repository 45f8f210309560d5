"""Products from NumPy arrays to a NumPy array on GPUs: ``record_stream.py OUT.jsonl CASE…``.

Every line is one case: ``tilewright.multiply`` in turns with what it is compared to, after its result was verified, with the
plan's prediction and what the GPU's clock said of each lane. Compared are torch, ``(a.cuda() @ b.cuda()).cpu()`` of ordinary
arrays in full float32, and cuBLASXt, with the time that it takes to register them, for without that it is slower.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import ctypes
import functools
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import multiply, plan_multiply
from tilewright.gpu.runtime.cublas import _library
from tilewright.lab.inputs.environment import environment
from tilewright.large.streaming.places.place import Events
from tilewright.product.precision import fast_bound

#: Rows of C that are compared element by element, and rows that are made or read at a time.
ROWS, BAND = 48, 2048
BLOCK_OF_XT = 8192


@dataclass(frozen=True)
class Case:
    """One row of the record: a size, a dtype, the GPUs, limits of memory, and what it is compared to; from ``.npy`` to
    ``.npy`` with ``files``. With the precision "ieee" float32 is not computed from float16 parts, with "fast" from one for
    each number."""

    name: str
    n: int
    dtype: str
    device: str = "cuda:0"
    device_memory: str | None = None
    against: tuple[str, ...] = ()
    rounds: int = 2
    memory: str | None = None
    files: bool = False
    precision: str = "standard"


CASES = (
    Case("float32", 65536, "float32", against=("torch", "cublasxt")),
    Case("float32 alone", 65536, "float32", rounds=4),
    Case("float32 fast", 65536, "float32", rounds=4, precision="fast"),
    Case("float32 ieee", 65536, "float32", precision="ieee"),
    Case("float32 in 11 GB", 65536, "float32", device_memory="11GB"),
    Case("float64", 32768, "float64", against=("torch",), rounds=3),
    Case("float32 on 1", 65536, "float32"),
    Case("float32 on 2", 65536, "float32", device="cuda:0,1", rounds=3),
    Case("float32 on 4", 65536, "float32", device="cuda:0,1,2,3", rounds=3),
    Case("131072 on 4", 131072, "float32", device="cuda:0,1,2,3", rounds=1),
    Case("files", 32768, "float32", device_memory="2GiB", memory="3GiB", files=True),
    Case("rehearsal", 8192, "float32", against=("torch", "cublasxt")),
    Case("rehearsal in 300 MB", 8192, "float64", device_memory="300MB", against=("torch", "cublasxt")),
)


# ---- operands --------------------------------------------------------------------------------------------------------


def bands(n: int) -> Iterator[slice]:
    for row in range(0, n, BAND):
        yield slice(row, min(n, row + BAND))


def uniform(n: int, dtype: str, seed: int) -> np.ndarray:
    """An n×n array of [−1, 1), each band from a generator of its own, so that many threads make it."""
    array = np.empty((n, n), dtype)

    def fill(rows: slice) -> None:
        band = array[rows]
        np.random.Generator(np.random.SFC64([seed, rows.start])).random(out=band.reshape(-1), dtype=band.dtype)
        band *= 2
        band -= 1

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, bands(n)))
    return array


# ---- verified by torch, on a GPU, in float64 -------------------------------------------------------------------------


class Judge:
    """Some rows of A·B, and A·(B·x), in float64 with the bounds that rounding allows; computed once.

    γ_k is far beyond what is seen at such k, so the typical error of the rows is judged too: u·√k times their typical size
    is what roundings of random signs would sum up to if each were the largest possible.
    """

    def __init__(self, a: np.ndarray, b: np.ndarray) -> None:
        import torch

        n = len(a)
        self._n, self._unit = n, np.finfo(a.dtype).eps / 2
        self._rows = np.unique(np.linspace(0, n - 1, ROWS).astype(int))
        generator = torch.Generator("cuda").manual_seed(1)
        self._x = torch.rand(n, 1, dtype=torch.float64, device="cuda", generator=generator) * 2 - 1
        some = torch.from_numpy(a[self._rows]).cuda().double()
        exact = torch.zeros(len(self._rows), n, dtype=torch.float64, device="cuda")
        bound = torch.zeros_like(exact)
        bx, of_b = torch.empty_like(self._x), torch.empty_like(self._x)
        for rows in bands(n):
            band = torch.from_numpy(b[rows]).cuda().double()
            bx[rows], of_b[rows] = band @ self._x, band.abs() @ self._x.abs()
            exact += some[:, rows] @ band
            bound += some[:, rows].abs() @ band.abs()
        abx, of_ab = torch.empty_like(bx), torch.empty_like(bx)
        for rows in bands(n):
            band = torch.from_numpy(a[rows]).cuda().double()
            abx[rows], of_ab[rows] = band @ bx, band.abs() @ of_b
        self._exact, self._bound, self._abx, self._of_ab = exact, bound, abx, of_ab

    def over_bound(self, c: np.ndarray, precision: str) -> float:
        """The largest error in units of its bound; more than 1, or NaN, is wrong."""
        import torch

        fast = precision == "fast"
        gamma = fast_bound(self._n) if fast else self._n * self._unit / (1 - self._n * self._unit)
        found = torch.from_numpy(c[self._rows]).cuda().double()
        error = found - self._exact
        typical = (2.0**-10 if fast else self._unit * self._n**0.5) * self._exact.square().mean().sqrt()
        worst = max((error.abs() / (gamma * self._bound)).max().item(), (error.square().mean().sqrt() / typical).item())
        for rows in bands(self._n):
            of_band = torch.from_numpy(c[rows]).cuda().double() @ self._x
            ratio = ((of_band - self._abx[rows]).abs() / (gamma * self._of_ab[rows])).max().item()
            worst = ratio if not ratio <= worst else worst
        return worst


# ---- what it is compared to ------------------------------------------------------------------------------------------


def by_torch(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:  # it makes its own
    import torch

    (torch.from_numpy(a).cuda() @ torch.from_numpy(b).cuda()).cpu()


def by_cublasxt(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """Row-major C = A·B is Cᵀ = Bᵀ·Aᵀ by columns; page-locked for as long as it takes."""
    from cuda.bindings import driver

    n, xt = len(a), _xt()
    for array in (a, b, c):
        (status,) = driver.cuMemHostRegister(array.ctypes.data, array.nbytes, 0)
        assert status == driver.CUresult.CUDA_SUCCESS, status
    real = ctypes.c_float if a.dtype == np.float32 else ctypes.c_double
    gemm = xt[0].cublasXtSgemm if a.dtype == np.float32 else xt[0].cublasXtDgemm
    size, one, zero = ctypes.c_size_t(n), real(1), real(0)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (b, a, c)]
    status = gemm(
        xt[1], 0, 0, size, size, size, ctypes.byref(one), pointers[0], size, pointers[1], size, ctypes.byref(zero),
        pointers[2], size,
    )  # fmt: skip
    for array in (a, b, c):
        driver.cuMemHostUnregister(array.ctypes.data)
    assert status == 0, status


@functools.cache
def _xt() -> tuple[Any, Any]:
    cublas, handle = _library(), ctypes.c_void_p()
    assert cublas.cublasXtCreate(ctypes.byref(handle)) == 0
    assert cublas.cublasXtDeviceSelect(handle, 1, (ctypes.c_int * 1)(0)) == 0
    assert cublas.cublasXtSetBlockDim(handle, BLOCK_OF_XT) == 0
    return cublas, handle


AGAINST: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], None]] = {"torch": by_torch, "cublasxt": by_cublasxt}


# ---- one case --------------------------------------------------------------------------------------------------------


def lanes(events: Events, place: str) -> dict[str, Any]:
    """Of one place: seconds that each lane was busy, and in which nothing was computed, at the ends and between."""
    spans = sorted((e.start_s, e.end_s) for e in events.events if e.place == place and e.track == "compute")
    first = min(e.start_s for e in events.events)
    busy, end = 0.0, spans[0][0]
    for start, stop in spans:
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    others = {e.track for e in events.events if e.place == place} - {"compute"}
    return {
        "compute_s": busy,
        "before_s": spans[0][0] - first,
        "between_s": end - spans[0][0] - busy,
        "after_s": max(e.end_s for e in events.events if e.place == place) - end,
        "began_s": first,
        "busy_s": {lane: sum(e.end_s - e.start_s for e in events.events if e.track == lane) for lane in sorted(others)},
    }


def measured(case: Case, a: np.ndarray, b: np.ndarray, judge: Judge) -> dict[str, Any]:
    n, how = case.n, {"device": case.device, "device_memory": case.device_memory, "memory": case.memory}
    how["precision"] = case.precision
    c: Any = np.full((n, n), np.nan, case.dtype)
    small = a[:1024, :1024]
    if case.files:
        folder = Path(tempfile.mkdtemp())
        paths = [folder / name for name in ("a.npy", "b.npy", "c.npy")]
        for path, array in zip(paths, (a, b), strict=False):
            np.save(path, array)
        os.sync()  # or the disk is still busy with them
        a, b, c = paths
    plan = plan_multiply(a, b, c, **how)
    print(plan, flush=True)
    samples: dict[str, list[float]] = {name: [] for name in ("tilewright", *case.against)}
    multiply(small, small, device=case.device, precision=case.precision)  # compiled, and the GPU's rates known
    for _ in range(case.rounds):
        for name in samples:
            if case.files and c.exists():
                c.unlink()  # to free so much of a disk takes a second
            events, read_before = Events(), bytes_read()
            start = time.perf_counter()
            if name == "tilewright":
                multiply(a, b, c, **how, events=events)
                kept = events
            else:
                AGAINST[name](a, b, c)
            samples[name].append(time.perf_counter() - start)
            print(f"  {name:10} {samples[name][-1]:8.3f} s", flush=True)
            if name == "tilewright":
                read = bytes_read() - read_before
                result = np.load(c) if case.files else c
                error = judge.over_bound(result, case.precision)
            _tidy()
    result[-n // 3 :, -n // 3 :] *= 1.1 if case.precision == "fast" else 1.001
    c = result
    assert not judge.over_bound(c, case.precision) <= 1, "the judge would let anything pass"
    middle = {name: statistics.median(of) for name, of in samples.items()}
    places = sorted({event.place for event in kept.events})
    return {
        "kind": "stream",
        **asdict(case),
        "verified": bool(error <= 1),
        "error_over_bound": error,
        "samples_s": samples,
        "median_s": middle["tilewright"],
        "gflops": 2 * n**3 / middle["tilewright"] / 1e9,
        "ratio": {name: middle[name] / middle["tilewright"] for name in case.against},
        "kernel": plan.kernel.name,
        "predicted_s": plan.cost.total_s,
        "bytes_read": read if case.files else None,
        "least_bytes_read": plan.least_read_bytes,
        "plan": str(plan).splitlines(),
        "lanes": {place: lanes(kept, place) for place in places},
    }


def bytes_read() -> int:
    """By this process, from files, whether they lay in memory or not."""
    return int(Path("/proc/self/io").read_text().split()[1])


def gpu_facts() -> dict[str, Any]:
    import torch
    from cuda.bindings import driver

    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {"gpus": names, "torch": torch.__version__, "cuda_driver": driver.cuDriverGetVersion()[1]}


def _tidy() -> None:
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("cases", nargs="+", choices=[case.name for case in CASES])
    options = parser.parse_args()
    right, operands = True, (None, None, None)
    with options.out.open("w", encoding="utf-8") as file:
        command = f"python benchmarks/record_stream.py OUT.jsonl {' '.join(map(repr, options.cases))}"
        head = environment(operands="uniform[-1,1), seeds 1 and 2", command=command) | gpu_facts()
        file.write(json.dumps({"kind": "stream", "schema": 1, "environment": head}) + "\n")
        for case in (case for name in options.cases for case in CASES if case.name == name):
            if operands[0] != (case.n, case.dtype):
                operands = (None, None, None)
                a, b = uniform(case.n, case.dtype, 1), uniform(case.n, case.dtype, 2)
                operands = ((case.n, case.dtype), (a, b), Judge(a, b))
            row = measured(case, *operands[1], operands[2])
            file.write(json.dumps(row) + "\n")
            file.flush()
            right = right and row["verified"]
            ratios = ", ".join(f"R {value:.2f} {name}" for name, value in row["ratio"].items())
            verdict = "ok" if row["verified"] else "WRONG"
            print(case.name, f"{row['median_s']:.3f} s (predicted {row['predicted_s']:.3f})", ratios, verdict, sep="  ")
            print(row["lanes"], flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
