"""The launches of ``unrolled.cu``, with their right answers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from support.twelve_kernels import Case
from tilewright.lab.explain.stored_launches import StoredLaunch

SOURCE = "unrolled.cu"
TEXT = (Path(__file__).parent / SOURCE).read_text()
_KERNEL = re.compile(r"^KERNEL\((\w+), \((\w+)<(\d+), (\d+), (\d+), (\d+)", re.MULTILINE)


def _case(entry: str, shape: str, bm: int, bn: int, bk: int, tile: int) -> Case:
    draw = np.random.default_rng(list(entry.encode()))
    a, b = (draw.integers(-4, 5, size).astype(np.float32) for size in ((bm, 2 * bk), (2 * bk, bn)))
    threads = bm * bn // (tile * tile if shape == "square" else tile)
    launch = StoredLaunch(entry, 1, threads, (a, b, np.full((bm, bn), np.nan, np.float32), bn, 2 * bk))
    return Case(entry, SOURCE, launch, {2: a @ b})


CASES = [
    _case(entry, shape, *map(int, numbers))
    for entry, shape, *numbers in _KERNEL.findall(TEXT)
]  # fmt: skip
