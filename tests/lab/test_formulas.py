"""Formulas as the sources write them, against their own numbers and against an H200's counters of five kernels."""

from __future__ import annotations

import doctest
import json
from pathlib import Path

import pytest

from support import source_formulas
from support.source_formulas import (
    load_requests,
    load_sectors,
    rereads,
    shared_loads,
    store_sectors,
    tiled_load_sectors,
)
from tilewright.lab.explain import cuda
from tilewright.lab.explain.cuda import operations_per_access

FIVE = json.loads((Path(__file__).parents[1] / "data" / "five-kernels-h200.json").read_text())["kernels"]


def test_doctests() -> None:
    assert doctest.testmod(cuda).failed == doctest.testmod(source_formulas).failed == 0


def test_s0_3() -> None:
    assert (load_sectors(32, 32, 32), store_sectors(32, 32)) == (5120, 128)


def test_formulas_are_what_the_hardware_counts() -> None:
    n = (64, 64, 64)
    naive, swapped, tiled = (FIVE[name]["global"] for name in ("naive", "swapped", "tiled"))
    assert (naive["load_requests"], naive["load_sectors"]) == (load_requests(*n), load_sectors(*n))
    assert naive["store_sectors"] == tiled["store_sectors"] == store_sectors(64, 64)
    assert swapped["load_sectors"] == load_sectors(*n, a=32, b=1)
    assert swapped["store_sectors"] == store_sectors(64, 64, each=32)
    assert tiled["load_sectors"] == tiled_load_sectors(*n, tile_m=32, tile_n=32)
    assert FIVE["tile2d"]["global"]["load_sectors"] == tiled_load_sectors(*n, tile_m=64, tile_n=64)


def test_s0_5_and_s0_7() -> None:
    assert rereads(4096, 32) == 4 * rereads(4096, 128)
    m = n = k = 1024
    assert shared_loads(m, n, k) == m * n // 32 * k * 2
    assert shared_loads(m, n, k, per_thread=2) == (m * n // 2) // 32 * k * 3
    counts = [shared_loads(m, n, k, per_thread=e) for e in (1, 2, 4, 8, 16, 32)]
    assert counts == sorted(counts, reverse=True)  # S0.8: every doubling saves, ever less


def test_s3() -> None:
    assert operations_per_access(16, 64) == pytest.approx(2 / (1 / 16 + 1 / 64))
    assert operations_per_access(32, 64, 10**9) == pytest.approx(operations_per_access(32, 64))
    assert operations_per_access(32, 32) > operations_per_access(16, 64)  # a square block of the same area is best
