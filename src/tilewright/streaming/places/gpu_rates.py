"""What a GPU and its link were measured to do: once for a GPU, a kernel and a dtype, and kept on disk."""

from __future__ import annotations

import contextlib
import math
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ...files.array import ArraySource
from ...host.disk import CacheFile, fingerprint
from ...host.machine import machine
from ...kernels.cuda_kernel import CudaKernel
from ...planning.choice import Choice
from ...runtime.gpu.gpu_product import prepared
from ...runtime.gpu.streams import Streams
from .rates import copy_workers, read_rate

#: Sides of the products that are timed, their two depths, and bytes that are copied: over the link, and by threads.
SIDE, SHALLOW, DEEP = 8192, 256, 2048
COPY_BYTES = 256 << 20
STAGED, STAGED_BYTES = (16384, 16384), 16 << 20
ROUNDS = 3


@dataclass(frozen=True)
class GpuRates:
    """Operations a second of a kernel whose waves are full, what a wave is and takes beside, as ``cost.Rates`` has them;
    bytes a second over the link to page-locked memory, each way, and from the host's other memory to that, by the threads
    of one GPU and by as many as there are processors."""

    flops: float
    wave: tuple[int, int, int]
    wave_s: float
    in_bytes: float
    out_bytes: float
    stage_bytes: float
    most_stage_bytes: float


def gpu_rates(gpu: Streams, choice: Choice[CudaKernel], dtype: str) -> GpuRates:
    """Measured in about 2 s, or as it was measured before."""
    of_kernel = choice.kernel.source_hash, sorted(choice.params.items())
    key = fingerprint(gpu.device.name, gpu.device.pci_bus_id, *of_kernel, dtype, Path(__file__))
    file = CacheFile("rates", f"{key}.json")
    with contextlib.suppress(ValueError, TypeError, KeyError):
        known = file.read_json()
        return GpuRates(**{**known, "wave": tuple(known["wave"])})
    gpu.here()
    wave = _wave(gpu, choice)
    rows, columns, at_once = wave
    waves = math.ceil(math.ceil(SIDE / rows) * math.ceil(SIDE / columns) / at_once)
    shallow, deep = (_seconds(gpu, choice, dtype, depth) / waves for depth in (SHALLOW, DEEP))
    for_each_k = (deep - shallow) / (DEEP - SHALLOW)
    operand = ArraySource(_numbers(STAGED))
    crowds = copy_workers(), machine().usable_cores
    staged = [read_rate(operand, "float32", workers, STAGED_BYTES) for workers in crowds]
    rates = GpuRates(
        2 * rows * columns * at_once / for_each_k,
        wave,
        max(0.0, shallow - SHALLOW * for_each_k),
        *_link(gpu),
        staged[0],
        max(staged),
    )
    file.write_json(asdict(rates))
    return rates


def _wave(gpu: Streams, choice: Choice[CudaKernel]) -> tuple[int, int, int]:
    """The tile of a block, and how many blocks the GPU runs at once."""
    width, height = (side(**choice.params) for side in choice.kernel.tile)
    return height, width, gpu.device.sms * choice.params.get("BLOCKS", 1)


def _seconds(gpu: Streams, choice: Choice[CudaKernel], dtype: str, depth: int) -> float:
    """Of C += A·B, ``depth`` long in k, with numbers in them that no GPU multiplies faster than others: zeros it does."""
    itemsize = np.dtype(dtype).itemsize
    stream = gpu.stream()
    product = prepared(gpu.device, choice.kernel, dtype, SIDE, SIDE, depth, add=True, params=choice.params)
    numbers = _numbers((SIDE, 64)).astype(dtype)
    page = gpu.pinned(numbers.nbytes)
    page.view(dtype)[:] = numbers.reshape(-1)
    operand, result = SIDE * depth * itemsize, SIDE * SIDE * itemsize
    memory = gpu.allocate(2 * operand + result)
    try:
        for at in range(memory, memory + 2 * operand + result, page.nbytes):
            gpu.copy_in(stream, at, page)
        product(memory, memory + operand, memory + 2 * operand, stream)
        times = []
        for _ in range(ROUNDS):
            begun = gpu.mark(stream)
            product(memory, memory + operand, memory + 2 * operand, stream)
            done = gpu.mark(stream)
            done.wait()
            times.append(done.since(begun))
    finally:
        gpu.release(memory)
        gpu.unpin(page, keep=False)
        gpu.drop(stream)
    return statistics.median(times)


def _numbers(shape: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(0).random(shape, np.float32)


def _link(gpu: Streams) -> tuple[float, float]:
    stream, page = gpu.stream(), gpu.pinned(COPY_BYTES)
    page[::4096] = 1
    memory = gpu.allocate(COPY_BYTES)
    try:
        times: list[tuple[float, float]] = []
        for _ in range(ROUNDS):
            begun = gpu.mark(stream)
            gpu.copy_in(stream, memory, page)
            there = gpu.mark(stream)
            gpu.copy_out(stream, page, memory)
            back = gpu.mark(stream)
            back.wait()
            times.append((there.since(begun), back.since(there)))
    finally:
        gpu.release(memory)
        gpu.unpin(page, keep=False)
        gpu.drop(stream)
    ways = [COPY_BYTES / statistics.median(way) for way in zip(*times, strict=True)]
    return ways[0], ways[1]
