"""One kind of ``fuzz_readers.py`` under atheris, which keeps the inputs that reach new lines of ours and mutates those.

    python benchmarks/fuzz_guided.py KIND RUNS SECONDS MEBIBYTES

Prints the counts of outcomes as JSON at the end. Only one file of an input is mutated, the one that has the header.
"""

from __future__ import annotations

import collections
import importlib
import json
import os
import random
import sys
import tempfile
import time
import types
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests"), str(HERE.parent / "src"), str(HERE)]

import atheris  # noqa: E402

from support import hostile  # noqa: E402

#: The modules that read.
FILES = ("npy", "safetensors", "hdf5", "zarr", "raw", "plain", "checks", "chunked", "format", "array")
READERS = (
    "records.json_data",
    "records.bench",
    "records.timeline",
    "records.explanation",
    "kernels.header",
    "kernels.expression",
)


def instrument() -> None:
    """Every function of these modules. Not by atheris's import hook: it takes whole packages, and Numba compiles some."""
    for name in [*(f"large.files.{each}" for each in FILES), *READERS]:
        module = importlib.import_module(f"tilewright.{name}")
        for thing in vars(module).values():
            for each in [thing, *(vars(thing).values() if isinstance(thing, type) else ())]:
                if isinstance(each, types.FunctionType) and each.__module__ == module.__name__:
                    atheris.instrument_func(each)


def header_of(files: hostile.Files) -> str:
    """The file that is mutated: what describes the others, or the only one."""
    return max(files, key=lambda name: (name.endswith(("zarr.json", ".zarray", "facts.json")), name))


def main(kind: str, runs: int, limit_s: float, memory: int) -> None:
    from fuzz_readers import limit_memory

    warnings.simplefilter("ignore")
    reader, counted = hostile.READERS[kind], collections.Counter[str]()
    seeds = reader.seeds()
    template = seeds[0]
    for files in seeds:
        hostile.outcome(reader.attempt, files)
    instrument()
    limit_memory(memory)

    def one(data: bytes) -> None:
        begun = time.process_time()
        found = hostile.outcome(reader.attempt, {**template, header_of(template): data})
        if (used := time.process_time() - begun) > limit_s:
            found = f"defect: hang: {used:.1f} s of the processor for {data[:200]!r}"
        counted[found if found.startswith("defect") else found.split(":")[0]] += 1
        if sum(counted.values()) == runs:
            print(json.dumps(counted), flush=True)
            os._exit(0)

    def mutator(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            return atheris.Mutate(data, most)
        return hostile.mutate(data, header_of(template), rng)[:most]

    with tempfile.TemporaryDirectory() as corpus:
        for number, files in enumerate(seeds):
            Path(corpus, str(number)).write_bytes(files[header_of(files)])
        options = [
            "-seed=1",
            f"-runs={2 * runs}",
            f"-timeout={limit_s:g}",
            "-max_len=65536",
            "-rss_limit_mb=0",
            "-verbosity=0",
        ]
        options += [f"-artifact_prefix={corpus}/"]
        atheris.Setup([sys.argv[0], *options, corpus], one, custom_mutator=mutator)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
