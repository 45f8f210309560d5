"""Predicted time of products by the engine's kernels for tensor cores, and by it the choice of tile and of parts of k.

Each block computes one tile of C after another. A step of a tile takes as long as the slowest of two: tensor cores, which
multiply, and the second-level cache, from which every block of a cluster gets its rows of A and its share of B. Blocks that
run at once form a wave; the first fill of the ring and the last stores of a tile are overhead. Where C has too few tiles,
k is cut into parts, whose sums another kernel adds in a fixed order. The rates are those of an H200.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..host.machine import seconds_text
from ..kernels.cuda_kernel import CudaKernel
from ..problem import itemsize_of

#: Multiply-adds of 16-bit numbers a second on one multiprocessor, as its power allows for long; half as many bytes, twice.
_MULTIPLIER = 2.75e12
#: Bytes a second that one multiprocessor gets from the second-level cache, by the most bytes of both operands; and of rows
#: that do not begin at multiples of a line.
_CACHE, _CACHE_ACROSS_LINES = ((40e6, 106e9), (600e6, 72e9), (math.inf, 62e9)), 50e9
#: The time of a step in a cluster, whose blocks wait for each other, over that of a block alone.
_CLUSTERED = 1.03
#: Bytes a second of the GPU's memory, in whole; of B by boxes of fewer bytes across, in proportion to the square root.
_MEMORY, _ACROSS = 3.9e12, 512
#: The share of the shorter of two times that the longer one does not hide.
_UNHIDDEN = 0.1
#: Seconds of a launch, of the fill and the stores of a tile, and of adding up parts before it moves anything.
_LAUNCH_S, _TILE_S, _ADD_S = 2.5e-6, 1e-6, 2.5e-6
#: A part of k has at least so many steps, and there are so many parts at most.
_LEAST_STEPS, _MOST_PARTS = 4, 256
#: Bytes of a line of the GPU's caches, and of k in a step.
LINE_BYTES = 128


@dataclass(frozen=True)
class BoxedShape:
    """The product as the kernel sees it. ``whole_lines``: rows of A and of B begin at multiples of 128 bytes."""

    dtype: str
    m: int
    n: int
    k: int
    batch: int
    whole_lines: bool


@dataclass(frozen=True)
class Candidate:
    """One way to compute a product: the kernel's parameters, the parts of k, and the predicted seconds."""

    params: Mapping[str, int]
    parts: int
    seconds: float


def ranked_candidates(kernel: CudaKernel, product: BoxedShape, sms: int) -> list[Candidate]:
    """Every way that the kernel's header names, the fastest first; on a GPU with ``sms`` multiprocessors.

    >>> from tilewright.catalog import cuda_engine
    >>> hopper, product = cuda_engine()["cuda/hopper"], BoxedShape("bfloat16", 4096, 4096, 4096, 1, True)
    >>> [(c.params["BN"], c.parts) for c in ranked_candidates(hopper, product, 132)][:1]
    [(256, 1)]
    """
    ways: list[dict[str, int]] = [{}, *(preset.params for preset in kernel.presets)]
    found = [
        _candidate(kernel, params, parts, product, sms)
        for params in ways
        for parts in _parts(kernel, params, product, sms)
    ]
    return sorted(found, key=lambda candidate: candidate.seconds)


def why_first(found: list[Candidate]) -> str:
    """Why the first of these candidates was chosen, with the next ones and their predicted times."""
    first, others = found[0], found[1:4]
    lost = [f"{_name(other, first)} {seconds_text(other.seconds)}" for other in others]
    return f"predicted to be the fastest, {seconds_text(first.seconds)}" + (f"; {', '.join(lost)}" if lost else "")


def _name(other: Candidate, first: Candidate) -> str:
    """What is different in a candidate."""
    changed = [f"{name}={value}" for name, value in other.params.items() if first.params[name] != value]
    if other.parts != first.parts:
        changed.append(f"{other.parts} part{'s' * (other.parts > 1)} of k")
    return ", ".join(changed)


def _steps(product: BoxedShape) -> int:
    return -(-product.k * itemsize_of(product.dtype) // LINE_BYTES)


def part_steps(steps: int, parts: int) -> int:
    """The steps of each part but the last, which may be shorter.

    >>> part_steps(10, 3), part_steps(10, 1)
    (4, 10)
    """
    return -(-steps // parts)


def _parts(kernel: CudaKernel, params: Mapping[str, int], product: BoxedShape, sms: int) -> Iterator[int]:
    yield 1
    steps, blocks = _steps(product), kernel.launch(product.m, product.n, product.k, **params).blocks * product.batch
    most = min(sms // max(1, blocks), steps // _LEAST_STEPS, _MOST_PARTS)
    for wanted in {most, most // 2}:
        if wanted > 1:
            yield -(-steps // part_steps(steps, wanted))


def _candidate(kernel: CudaKernel, given: Mapping[str, int], parts: int, product: BoxedShape, sms: int) -> Candidate:
    params = kernel.checked(given)
    m, n, k = product.m, product.n, product.k
    size = itemsize_of(product.dtype)
    blocks = kernel.launch(m, n, k, **params).blocks * product.batch * parts
    width, height = (side(m=m, n=n, k=k, **params) for side in kernel.tile)
    line = LINE_BYTES // size
    multiply_s = width * height * line / (_MULTIPLIER * 2 / size)
    moved = (height + width / params["CLUSTER"]) * LINE_BYTES
    cache = next(rate for most, rate in _CACHE if (m * k + k * n) * size * product.batch <= most)
    moved_s = moved / (cache if product.whole_lines else min(cache, _CACHE_ACROSS_LINES))
    step_s = max(multiply_s * (_CLUSTERED if params["CLUSTER"] > 1 else 1), moved_s) + moved_s / 100
    waves = -(-blocks // sms)
    tiles_s = waves * (_TILE_S + part_steps(_steps(product), parts) * step_s)
    across = min(1, math.sqrt(min(width, n) * size / _ACROSS))
    memory_s = (m * k + k * n / across + m * n) * size * product.batch / _MEMORY
    seconds = _LAUNCH_S + max(tiles_s, memory_s) + _UNHIDDEN * min(tiles_s, memory_s)
    if parts > 1:
        seconds += _ADD_S + m * n * product.batch * (4 * parts + size) / _MEMORY
    return Candidate(params, parts, seconds)
