"""Measure loads that several blocks share, by where the blocks are: ``record_near_blocks.py OUT.jsonl`` (a Hopper GPU).

A line for each shape and each size of clusters that only keep blocks together (``near``): the bytes that are read at least
once (``distinct_bytes``), those that all blocks read, and the seconds of a launch in a CUDA graph of several, each of other
operands. What the blocks have read is verified by the sum of the first words of all tiles.
"""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from record_pipeline_rates import graph_seconds
from tilewright.gpu.runtime.device import open_device
from tilewright.gpu.runtime.nvrtc import compile_file, compiler
from tilewright.kernels.cuda_kernel import blocks_at_once
from tilewright.lab.explain.measure import tools

SOURCE = Path(__file__).with_name("near_blocks.cu")
#: m, n and k of a product in 16 bits, its tiles, and stages of 64 of k.
SHAPES = [
    (512, 512, 16384, 128, 128, 6), (512, 512, 16384, 64, 128, 8), (256, 256, 65536, 64, 64, 12),
    (1024, 512, 24576, 128, 128, 6), (448, 1856, 7360, 64, 128, 8),
]  # fmt: skip
NEAR = (1, 2, 4, 8, 16)
#: Sets of operands in turns, more than a cache holds together.
SETS = 8


def record(shape: tuple[int, int, int, int, int, int], near: int) -> dict[str, Any]:
    gpu = open_device()
    m, n, k, tile_m, tile_n, stages = shape
    rows, columns, all_steps = -(-m // tile_m), -(-n // tile_n), -(-k // 64)
    rows = -(-rows // 4) * 4 if rows * columns > 16 else rows
    parts = max(1, blocks_at_once(gpu.sms, {"NEAR": near}) // (rows * columns))
    steps = -(-all_steps // parts)
    blocks = -(-all_steps // steps) * rows * columns
    sizes = {"BYTES_A": tile_m * 128, "BYTES_B": tile_n * 128}
    source = compile_file(SOURCE, arch=gpu.arch, defines={"NEAR": near, "STAGES": stages, **sizes})
    grid, shared = -(-blocks // near) * near, stages * sum(sizes.values())
    launch = gpu.launcher(source, "near_blocks", grid, 32, shared)
    rng = np.random.default_rng(k)
    a, b = (
        rng.integers(0, 2**32, (SETS, all_steps, count, size // 4), np.uint32)
        for count, size in ((rows, sizes["BYTES_A"]), (columns, sizes["BYTES_B"]))
    )
    on_gpu = [gpu.put(x) for x in (a, b)]
    sums = gpu.put(np.zeros(grid, np.uint32))
    numbers = [np.int32(x) for x in (rows, columns, blocks, steps, all_steps)]

    def submit(which: int = 0) -> None:
        at = (memory.pointer + which * x[0].nbytes for memory, x in zip(on_gpu, (a, b), strict=True))
        launch(int(gpu.stream), *at, sums.pointer, *numbers)

    submit()
    found = gpu.get(sums, np.uint32, (grid,))[:blocks]
    for tile in range(blocks):
        part, inside = divmod(tile, rows * columns)
        band, within = divmod(inside, 4 * columns)
        some = slice(part * steps, (part + 1) * steps)
        words = np.concatenate([a[0, some, band * 4 + within % 4, 0], b[0, some, within // 4, 0]])
        if words.sum(dtype=np.uint32) != found[tile]:
            raise SystemExit(f"{shape}, {near} blocks near each other: tile {tile} was not read")
    turn = iter(range(10**6))
    seconds = graph_seconds(lambda: submit(next(turn) % SETS))
    read = blocks * steps * sum(sizes.values())
    line = {"kind": "near blocks", "m": m, "n": n, "k": k, "tile": [tile_m, tile_n], "near": near, "blocks": blocks}
    distinct = a[0].nbytes + b[0].nbytes
    return line | {
        "parts": blocks // (rows * columns),
        "distinct_bytes": distinct,
        "read_bytes": read,
        "seconds": seconds,
    }


def main(path: str) -> None:
    gpu = open_device()
    known = tools() | {
        "gpu": gpu.name, "compiler": compiler(), "arch": gpu.arch, "date": datetime.date.today().isoformat(),
        "command": "python benchmarks/record_near_blocks.py OUT.jsonl",
    }  # fmt: skip
    lines: list[dict[str, Any]] = [{"kind": "near blocks header", "schema": 1, "environment": known}]
    for shape in SHAPES:
        for near in NEAR:
            lines.append(line := record(shape, near))
            rate = line["distinct_bytes"] / line["seconds"] / 1e12
            print(f"{shape} near {near}: {line['seconds'] * 1e6:.1f} µs, {rate:.2f} TB/s", flush=True)
    Path(path).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
