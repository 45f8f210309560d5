"""Time float64 products with ``precision="fast"`` beside "standard": ``record_precision.py OUT.jsonl``.

Every line is one size: both calls in turns, after ``verify`` has passed for both. Errors are those that it found.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

import tilewright as tw
from tilewright.lab.inputs.environment import environment

SIZES, SECONDS, TURNS = (1000, 2048, 4096), 18.0, 25
WORDS = ("standard", "fast")


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    rng, right = np.random.default_rng(1), True
    with Path(sys.argv[1]).open("w", encoding="utf-8") as file:
        head = environment(operands="uniform[-1,1), seed 1", command="python benchmarks/record_precision.py OUT.jsonl")
        file.write(json.dumps({"kind": "precision", "schema": 1, "environment": head}) + "\n")
        for n in SIZES:
            a, b, c = rng.uniform(-1, 1, (n, n)), rng.uniform(-1, 1, (n, n)), np.empty((n, n))
            found = {}
            for word in WORDS:
                found[word] = tw.verify(a, b, tw.matmul(a, b, out=c, precision=word), precision=word)
            samples: dict[str, list[float]] = {word: [] for word in WORDS}
            end = time.perf_counter() + SECONDS
            while len(samples["fast"]) < 3 or (time.perf_counter() < end and len(samples["fast"]) < TURNS):
                for word in WORDS:
                    start = time.perf_counter()
                    tw.matmul(a, b, out=c, precision=word)
                    samples[word].append(time.perf_counter() - start)
            ok = all(each.ok for each in found.values())
            right = right and ok
            row = {
                **{"n": n, "dtype": "float64", "threads": tw.get_threads(), "verified": ok, "samples_s": samples},
                **{"median_s": {word: statistics.median(samples[word]) for word in WORDS}},
                **{"error": {word: found[word].error for word in WORDS}},
                **{"bound": {word: found[word].bound for word in WORDS}},
            }
            file.write(json.dumps(row) + "\n")
            print(n, row["median_s"], row["error"], "ok" if ok else "WRONG")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
