"""Predicts the time of a product: the largest of three lower bounds, for arithmetic, for the last-level cache and for
memory.

The rates for arithmetic, cache and memory (roofs) are measured on this machine (``peaks``). The traffic of each level
of memory follows from the sizes of blocks (sources S3.1 and S1.7 of docs/sources.md). For a w × h block of C that stays
in a level over all of K, w·K + K·h elements are read and w·h are written, so larger blocks mean less traffic. For the
five loops around a register tile of MR × NR, the traffic of each level is

    arithmetic   whole tiles: m and n rounded up to MR and NR
    last cache   packed B once for each block of MC rows; packed A written and read; the tiles of C once for each KC
    memory       A once for each NC columns, B once, C once for each KC; from the last cache where all operands fit in it

The model ignores latency, cache conflicts, and all edges but those of tiles. The prediction gives the roof that limits
the product, and the product's approximate time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..host.machine import machine, seconds_text
from ..product.problem import Problem
from .runtime.peaks import bandwidth_gbs, cache_bandwidth_gbs, peak_gflops

#: Seconds of a call with the smallest product, and seconds added for waking threads: orders of magnitude.
CALL_S = 2e-7
WAKE_S = 2e-5

#: dtype → (dtype whose peak is measured, real multiply-adds in one multiply-add of the dtype).
_REAL = {
    "float32": ("float32", 1),
    "float64": ("float64", 1),
    "complex64": ("float32", 4),
    "complex128": ("float64", 4),
}


@dataclass(frozen=True)
class BlockSizes:
    """The register tile and cache blocks of a kernel. If the kernel does not cut a dimension into blocks, the block
    size of that dimension is the size of the product."""

    mr: int
    nr: int
    mc: int
    kc: int
    nc: int
    packs: bool

    @classmethod
    def of(cls, params: Mapping[str, Any], compute: str, m: int, n: int, k: int) -> BlockSizes:
        """Return the block sizes that a kernel's parameters (``mr``, ``nv``, ``mc``, ``kc``, ``nc``) give for a product
        of this shape."""
        lanes = params.get("vector_bits", 0) // 8 // np.dtype(compute).itemsize
        whole = {"mr": 1, "nr": params.get("nv", 0) * lanes or 1, "mc": m, "kc": k, "nc": n}
        sizes = {name: params.get(name, size) for name, size in whole.items()}
        counts = {name: max(1, size) if isinstance(size, int) else max(1, whole[name]) for name, size in sizes.items()}
        return cls(**counts, packs={"mc", "kc"} <= params.keys())


@dataclass(frozen=True)
class Prediction:
    """The predicted seconds for arithmetic, cache and memory, and the overhead of the call, which is added to the
    longest of these times."""

    compute_s: float
    cache_s: float
    memory_s: float
    overhead_s: float

    @property
    def seconds(self) -> float:
        """The predicted seconds: the longest time of a level, plus the overhead of the call."""
        return max(self.compute_s, self.cache_s, self.memory_s) + self.overhead_s

    @property
    def bound(self) -> str:
        """The name of the level that takes longest; "the call itself" if the overhead is longer than every level."""
        needs = {"compute": self.compute_s, "cache": self.cache_s, "memory": self.memory_s}
        longest = max(needs, key=needs.__getitem__)
        return longest if needs[longest] >= self.overhead_s else "the call itself"

    def __str__(self) -> str:
        parts = {"compute": self.compute_s, "cache": self.cache_s, "memory": self.memory_s, "call": self.overhead_s}
        return ", ".join(f"{name} {seconds_text(seconds)}" for name, seconds in parts.items())


def predict(problem: Problem, params: Mapping[str, Any], compute: str, threads: int) -> Prediction | None:
    """Return the prediction for a kernel that computes in the dtype ``compute``; None if the peak of that dtype is not
    measured."""
    if compute not in _REAL:
        return None
    real, operations = _REAL[compute]
    m, n, k = problem.m, problem.n, problem.k
    blocks = BlockSizes.of(params, compute, m, n, k)
    size = np.dtype(compute).itemsize
    tiles = math.ceil(m / blocks.mr) * blocks.mr * math.ceil(n / blocks.nr) * blocks.nr
    cached, moved = _traffic(m, n, k, blocks)
    if problem.symmetry:  # tiles that the diagonal passes through are computed, those above are not
        share = min(1.0, (1 + (blocks.mr + blocks.nr) / max(1, m)) / 2)
        tiles, cached = math.ceil(tiles * share), math.ceil(cached * share)
    least_bytes = problem.bytes_least * size // problem.itemsize
    from_memory = least_bytes > (machine().l3 or machine().l2 or 0)
    cache_gbs = cache_bandwidth_gbs("float64", threads)
    outer_gbs = bandwidth_gbs("float64", threads) if from_memory else cache_gbs
    return Prediction(
        compute_s=2 * tiles * k * operations * problem.batch / (peak_gflops(real, threads) * 1e9),
        cache_s=cached * size * problem.batch / (cache_gbs * 1e9),
        memory_s=moved * size * problem.batch / (outer_gbs * 1e9),
        overhead_s=CALL_S + (WAKE_S if threads > 1 else 0),
    )


def _traffic(m: int, n: int, k: int, blocks: BlockSizes) -> tuple[int, int]:
    """Elements moved between the last cache and the cores, and elements read from the operands or moved from and to C."""
    k_steps, a_passes = max(1, math.ceil(k / blocks.kc)), max(1, math.ceil(n / blocks.nc))
    c_elements = m * n * (2 * k_steps - 1)  # the first step writes it, the others read and write it
    moved = m * k * a_passes + k * n + c_elements
    if not blocks.packs:
        return moved, moved
    packed_a, packed_b = 2 * m * k * a_passes, k * n * (1 + math.ceil(m / blocks.mc))
    return packed_a + packed_b + c_elements, moved
