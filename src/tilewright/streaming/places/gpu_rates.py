"""The measured rates of a GPU and its link: measured once for a GPU, a kernel and a dtype, and cached on disk."""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ...files.array import ArraySource
from ...host.disk import CacheFile, fingerprint
from ...host.machine import machine
from ...kernels.cuda_kernel import CudaKernel
from ...planning.choice import Choice
from ...runtime.gpu.device import Device
from ...runtime.gpu.memory import Pages
from ...runtime.gpu.product import compile_ahead, prepare_gpu_product
from ...runtime.gpu.stream import Stream
from .rates import copy_workers, read_rate

#: The side m = n of the two products that are timed and their depths k; bytes that are copied over the link; the array that
#: threads copy, and the bytes that they copy at a time.
SIDE, SHALLOW, DEEP = 8192, 256, 2048
COPY_BYTES = 64 << 20
STAGED, STAGED_BYTES = (16384, 16384), 16 << 20
ROUNDS = 3
#: With so many processors, copies are timed while two compilations run: enough processors are left.
ROOMY = 8


@dataclass(frozen=True)
class GpuRates:
    """``flops`` are operations a second of a kernel whose waves are full; ``wave`` and ``wave_s`` are as in ``cost.Rates``.
    Bytes a second: over the link between page-locked memory and the GPU, each way; and from other memory of the host to
    page-locked memory, by the threads of one GPU (``stage_bytes``) and at most by the threads of all."""

    flops: float
    wave: tuple[int, int, int]
    wave_s: float
    in_bytes: float
    out_bytes: float
    stage_bytes: float
    most_stage_bytes: float


def gpu_rates(gpu: Device, choice: Choice[CudaKernel], dtype: str) -> GpuRates:
    """The rates of ``gpu`` from the cache, or measured, in half a second and the time to compile the kernel."""
    of_kernel = choice.kernel.source_hash, sorted(choice.params.items())
    key = fingerprint(gpu.name, gpu.pci_bus_id, *of_kernel, dtype, Path(__file__))
    file = CacheFile("rates", f"{key}.json")
    cached = file.read_as(lambda fields: GpuRates(**{**fields, "wave": tuple(fields["wave"])}))
    if cached is not None:
        return cached
    compile_ahead(gpu, choice.kernel, choice.params, [(SIDE, SIDE, DEEP)])
    staged = _stage_rates() if machine().usable_cores >= ROOMY else None  # while the kernel compiles
    gpu.make_current()
    into, back = _link_rates(gpu)
    wave = _wave(gpu, choice)
    rows, columns, at_once = wave
    waves = math.ceil(math.ceil(SIDE / rows) * math.ceil(SIDE / columns) / at_once)
    shallow_s, deep_s = (_product_s(gpu, choice, dtype, depth) / waves for depth in (SHALLOW, DEEP))
    s_per_k = (deep_s - shallow_s) / (DEEP - SHALLOW)
    staged = staged or _stage_rates()
    rates = GpuRates(
        flops=2 * rows * columns * at_once / s_per_k,
        wave=wave,
        wave_s=max(0.0, shallow_s - SHALLOW * s_per_k),
        in_bytes=into,
        out_bytes=back,
        stage_bytes=staged[0],
        most_stage_bytes=max(staged),
    )
    file.write_json(asdict(rates))
    return rates


def _stage_rates() -> list[float]:
    """Bytes a second from the host's memory to page-locked memory, by the threads of one GPU and by all processors."""
    operand = ArraySource(np.ones(STAGED, np.float32))
    return [
        read_rate(operand, "float32", threads, STAGED_BYTES) for threads in (copy_workers(), machine().usable_cores)
    ]


def _wave(gpu: Device, choice: Choice[CudaKernel]) -> tuple[int, int, int]:
    """The tile of a block, and how many blocks the GPU runs at once."""
    width, height = (side(**choice.params) for side in choice.kernel.tile)
    return height, width, gpu.sms * choice.params.get("BLOCKS", 1)


def _product_s(gpu: Device, choice: Choice[CudaKernel], dtype: str, depth: int) -> float:
    """Seconds of C += A·B with k = ``depth``. The operands are random numbers, because a GPU multiplies zeros faster."""
    itemsize = np.dtype(dtype).itemsize
    product = prepare_gpu_product(gpu, choice.kernel, dtype, SIDE, SIDE, depth, add=True, params=choice.params)
    numbers = np.random.default_rng(0).random((SIDE, 64), np.float32).astype(dtype)
    operand, result = SIDE * depth * itemsize, SIDE * SIDE * itemsize
    with _stream_and_memory(gpu, numbers.nbytes, 2 * operand + result) as (stream, page, at):
        page.view(dtype)[:] = numbers.reshape(-1)
        for start in range(at, at + 2 * operand + result, page.nbytes):
            stream.copy_in(start, page)

        def run() -> None:
            product(at, at + operand, at + 2 * operand, stream.handle)

        run()
        return _seconds_each(stream, run)[0]


def _link_rates(gpu: Device) -> tuple[float, float]:
    """Bytes a second to the GPU, and back."""
    with _stream_and_memory(gpu, COPY_BYTES, COPY_BYTES) as (stream, page, at):
        in_s, out_s = _seconds_each(stream, lambda: stream.copy_in(at, page), lambda: stream.copy_out(page, at))
    return COPY_BYTES / in_s, COPY_BYTES / out_s


def _seconds_each(stream: Stream, *works: Callable[[], None]) -> list[float]:
    """Median seconds of each of ``works``, which are submitted to the stream in turns, by the GPU's clock."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(ROUNDS):
        events = [stream.mark()]
        for work in works:
            work()
            events.append(stream.mark())
        events[-1].wait()
        for seconds, (begun, done) in zip(times, itertools.pairwise(events), strict=True):
            seconds.append(done.since(begun))
    return [statistics.median(seconds) for seconds in times]


@contextlib.contextmanager
def _stream_and_memory(gpu: Device, host_bytes: int, gpu_bytes: int) -> Iterator[tuple[Stream, Pages, int]]:
    """A stream, page-locked memory of the host, and the address of memory on the GPU; released at the end of the block."""
    with contextlib.ExitStack() as taken:
        stream = gpu.new_stream()
        taken.callback(stream.close)
        page = gpu.pages.take_locked(host_bytes)
        taken.callback(gpu.pages.give_back, page, cache=False)
        memory = taken.enter_context(gpu.reserve(gpu_bytes))
        yield stream, page, memory.pointer
