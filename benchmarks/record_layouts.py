"""Time layouts of operands, and batches, for which ``tilewright bench`` has no words: ``record_layouts.py OUT.jsonl``.

Every line is one product: the library call beside ``np.matmul(out=)``, in turns, after its result was verified. For layouts
the call on C-ordered operands is timed in the same turns. ``$OPENBLAS_CORETYPE`` chooses OpenBLAS's kernels: it takes older
ones for a processor that it does not know.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.lab.bench.timing import wait_until_quiet, warm_up
from tilewright.lab.inputs.environment import environment
from tilewright.lab.verify.verify import Oracle

N, TURNS = 1024, 25
#: Each makes an operand with the same numbers as the C-ordered one that it is given.
LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "C order": np.ascontiguousarray,
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "Fortran order": np.asfortranarray,
    "every second row": lambda x: np.repeat(x, 2, axis=0)[::2],
    "reversed": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
}
BATCHES = (
    (10_000, 8, 8, 8),
    (2000, 16, 16, 16),
    (2000, 32, 32, 32),
    (1000, 64, 64, 64),
    (300, 100, 100, 100),
    (100, 200, 200, 200),
    (20, 400, 400, 400),
    (5, 700, 700, 700),
)
#: Batches that are multiplied by one matrix.
BY_ONE = ((32, 128, 768, 768), (64, 17, 512, 512), (256, 1, 512, 512), (1000, 8, 32, 32))

Case = tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray]


def cases() -> Iterator[Case]:
    """What is measured, its operands, and an ``out`` full of NaN."""
    rng = np.random.default_rng(1)
    for dtype in ("float32", "float64"):
        a, b = (rng.uniform(-1, 1, (N, N)).astype(dtype) for _ in range(2))
        for name, laid in LAYOUTS.items():
            yield {"layout": name, "shape": [N, N, N], "dtype": dtype}, laid(a), laid(b), np.full((N, N), np.nan, dtype)
        for sizes in (*BATCHES, *BY_ONE):
            batch, m, n, k = sizes
            of_b, name = ((k, n), "batch × matrix") if sizes in BY_ONE else ((batch, k, n), "batch")
            x, y = (rng.uniform(-1, 1, shape).astype(dtype) for shape in ((batch, m, k), of_b))
            yield {"layout": name, "shape": sizes, "dtype": dtype}, x, y, np.full((batch, m, n), np.nan, dtype)


def verified(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> bool:
    """Every matrix, or of a batch every hundredth."""
    if c.ndim == 2:
        return Oracle(a, b).check(c).ok
    b = np.broadcast_to(b, (len(a), *b.shape[-2:]))
    return bool(np.isfinite(c).all()) and all(Oracle(a[i], b[i]).check(c[i]).ok for i in range(0, len(c), 100))


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measured(what: dict[str, Any], a: np.ndarray, b: np.ndarray, c: np.ndarray, threads: int) -> dict[str, Any]:
    """Samples in turns; numpy's threads spin after a call, so each waits until they sleep."""
    plain = (np.ascontiguousarray(a), np.ascontiguousarray(b), np.empty(c.shape, c.dtype))
    with tw.use_threads(threads):
        tw.matmul(a, b, out=c)
        runs = {
            "tilewright": lambda: tw.matmul(a, b, out=c),
            "C order": lambda: tw.matmul(plain[0], plain[1], out=plain[2]),
            "numpy": lambda: np.matmul(a, b, out=plain[2]),
        }
        ok = verified(a, b, c)
        samples: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(TURNS):
            for name, run in runs.items():
                wait_until_quiet()
                warm_up(run)
                samples[name].append(seconds(run))
    middle = {name: statistics.median(of) for name, of in samples.items()}
    against = {
        "against_numpy": middle["numpy"] / middle["tilewright"],
        "against_c_order": middle["C order"] / middle["tilewright"],
    }
    return {**what, "threads": threads, "verified": ok, **against, "samples_s": samples}


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    import threadpoolctl

    right = True
    with Path(sys.argv[1]).open("w", encoding="utf-8") as file:
        core = os.environ.get("OPENBLAS_CORETYPE")
        command = f"{f'OPENBLAS_CORETYPE={core} ' * bool(core)}python benchmarks/record_layouts.py OUT.jsonl"
        head = environment(operands="uniform[-1,1), seed 1", command=command)
        file.write(json.dumps({"kind": "layouts", "schema": 1, "environment": head}) + "\n")
        for what, a, b, c in cases():
            for threads in (1, 2):
                with threadpoolctl.threadpool_limits(threads, "blas"):
                    row = measured(what, a, b, c, threads)
                file.write(json.dumps(row) + "\n")
                right = right and row["verified"]
                said = f"{row['dtype']:8} {row['layout']:17} {'×'.join(map(str, row['shape'])):16} {threads} threads"
                ratios = f"R {row['against_numpy']:5.2f}  C order {row['against_c_order']:5.2f}"
                print(said, ratios, "ok" if row["verified"] else "WRONG", sep="  ")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
