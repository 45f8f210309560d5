"""Time products of narrow dtypes beside PyTorch's on the CPU (oneDNN): ``record_narrow.py OUT.jsonl [THREADS]``.

Needs torch. THREADS are numbers such as ``1,2``, the default; on more than one, nothing else may run on the machine.
Every line is one product on as many threads for both: the library call in turns with ``torch._int_mm`` (int8, with sums of
int32) or ``torch.mm`` (bfloat16), after its result was verified: exactly for integers, by the bound of its dtype
for floats. A ratio is that of the medians.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch

import tilewright as tw
from tilewright.cpu.engine.dots import dot_instruction_here, tile_instruction_here
from tilewright.lab.bench.timing import wait_until_quiet, warm_up
from tilewright.lab.inputs.environment import environment
from tilewright.lab.inputs.formats import format_of
from tilewright.lab.verify.verify import Oracle

SHAPES = ((256,) * 3, (1000,) * 3, (1024,) * 3, (1021, 1031, 1033), (4096,) * 3)
DTYPES = ("int8", "bfloat16")
#: Turns of a product that takes less than a tenth of a second, and of a longer one.
TURNS, TURNS_OF_LONG = 41, 7
LONG = 2 * 2048**3

Operands = tuple[np.ndarray, np.ndarray, np.ndarray]


def operands(dtype: str, m: int, n: int, k: int) -> Operands:
    """A and B with every value of the dtype, or uniform in [-1, 1), and a C that no product leaves as it is."""
    rng = np.random.default_rng(1)
    if dtype == "int8":
        a, b = (rng.integers(-128, 127, shape, np.int8, endpoint=True) for shape in ((m, k), (k, n)))
        return a, b, np.full((m, n), -1, np.int32)
    name = np.dtype(getattr(ml_dtypes, dtype, dtype))
    a, b = (rng.uniform(-1, 1, shape).astype(name) for shape in ((m, k), (k, n)))
    return a, b, np.full((m, n), np.nan, name)


def tensor(x: np.ndarray) -> Any:
    """The same memory as a tensor; PyTorch does not know NumPy's bfloat16."""
    return (
        torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype.name == "bfloat16" else torch.from_numpy(x)
    )


def verified(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> bool:
    """float64 holds each sum of integers exactly."""
    if a.dtype == np.int8:
        return bool((a.astype(float) @ b.astype(float) == c).all())
    wide = (x.astype(np.float32) for x in (a, b))
    return Oracle(*wide).check(c.astype(np.float32), form=format_of(a.dtype.name)).ok


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measured(dtype: str, m: int, n: int, k: int, threads: int) -> dict[str, Any]:
    """Samples in turns; the threads of both libraries spin after a call, so each call waits until they sleep."""
    a, b, c = operands(dtype, m, n, k)
    x, y, z = tensor(a), tensor(b), tensor(np.empty_like(c))
    multiply = torch._int_mm if dtype == "int8" else torch.mm
    torch.set_num_threads(threads)
    with tw.use_threads(threads):
        out_dtype = c.dtype if dtype == "int8" else None
        runs: dict[str, Callable[[], Any]] = {
            "tilewright": lambda: tw.matmul(a, b, c, out_dtype=out_dtype),
            "torch": lambda: multiply(x, y, out=z),
        }
        runs["tilewright"]()
        ok = verified(a, b, c)
        samples: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(TURNS_OF_LONG if 2 * m * n * k > LONG else TURNS):
            for name, run in runs.items():
                if threads > 1:
                    wait_until_quiet()
                warm_up(run)
                samples[name].append(seconds(run))
    middle = {name: statistics.median(of) for name, of in samples.items()}
    what = {
        "dtype": dtype,
        "shape": [m, n, k],
        "threads": threads,
        "instruction": tile_instruction_here(dtype) or dot_instruction_here(dtype),
        "verified": ok,
    }
    rate = 2 * m * n * k / middle["tilewright"] / 1e9
    return {**what, "gops": rate, "against_torch": middle["torch"] / middle["tilewright"], "samples_s": samples}


def main() -> int:
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    right, chosen = True, sys.argv[2] if len(sys.argv) == 3 else "1,2"
    with Path(sys.argv[1]).open("w", encoding="utf-8") as file:
        words = "whole range of int8, uniform[-1,1) of floats, seed 1"
        head = environment(operands=words, command=f"python benchmarks/record_narrow.py OUT.jsonl {chosen}")
        known = {"torch": torch.__version__, "onednn": torch.backends.mkldnn.is_available()}
        file.write(json.dumps({"kind": "narrow", "schema": 1, "environment": head | known}) + "\n")
        for dtype in DTYPES:
            for shape in SHAPES:
                for threads in map(int, chosen.split(",")):
                    row = measured(dtype, *shape, threads)
                    file.write(json.dumps(row) + "\n")
                    right = right and row["verified"]
                    said = f"{dtype:8} {'×'.join(map(str, shape)):14} {threads} threads {row['gops']:6.0f} Gop/s"
                    print(
                        said,
                        f"R {row['against_torch']:5.2f}",
                        "ok" if row["verified"] else "WRONG",
                        sep="  ",
                        flush=True,
                    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
