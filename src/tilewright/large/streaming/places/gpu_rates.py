"""The measured rates of a GPU and its link: measured once for a GPU, a kernel and a dtype, and cached on disk."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....gpu.runtime.device import Device
from ....gpu.runtime.memory import Pages
from ....gpu.runtime.split_operand import split_of_rows
from ....gpu.runtime.split_product import split_step
from ....gpu.runtime.steps import A, BufferPlace, load
from ....gpu.runtime.stream import Stream
from ....host.disk import CacheFile, fingerprint
from ....host.machine import machine
from ....kernels.cuda_kernel import CudaKernel
from ....product.plan import Choice
from ....product.precision import PLANES
from ...files.array import ArraySource
from ..plan.cuts import slot_elements
from ..plan.grid import Grid, Tile
from ..plan.schedule import Multiply
from .rates import copy_workers, read_rate
from .steps import Addresses, steps_on

#: The side m = n of the two products that are timed, and their depths k: twice as deep where operands are split, for
#: these are multiplied faster. Bytes that are copied over the link; the array that threads copy, and the bytes that
#: they copy at a time.
SIDE, DEPTHS, DEPTHS_OF_PARTS = 8192, (256, 2048), (512, 4096)
COPY_BYTES = 64 << 20
STAGED, STAGED_BYTES = (16384, 16384), 16 << 20
ROUNDS = 3
#: Bytes of the host's memory in which nothing of this need be smaller.
ROOM = 2 << 30
#: With so many processors, copies are timed while two compilations run: enough processors are left.
ROOMY = 8


@dataclass(frozen=True)
class GpuRates:
    """``flops`` are operations a second of a kernel whose waves are full; ``wave`` and ``wave_s`` are as in ``cost.Rates``.
    Bytes a second: over the link between page-locked memory and the GPU, each way; and from other memory of the host to
    page-locked memory, by the threads of one GPU (``stage_bytes``) and at most by the threads of all. ``split_s``: seconds
    of splitting a byte of float32 that was copied; 0 where operands are multiplied as they are."""

    flops: float
    wave: tuple[int, int, int]
    wave_s: float
    in_bytes: float
    out_bytes: float
    stage_bytes: float
    most_stage_bytes: float
    split_s: float = 0.0


def gpu_rates(gpu: Device, choice: Choice[CudaKernel], dtype: str, room: int) -> GpuRates:
    """The rates of ``gpu`` from the cache, or measured, in half a second and the time to compile the kernel. Measuring takes
    ``room`` bytes of the host's memory at most; rates that were measured in fewer than ROOM are not cached."""
    of_kernel = choice.kernel.source_hash, sorted(choice.params.items())
    key = fingerprint(gpu.name, gpu.pci_bus_id, *of_kernel, dtype, Path(__file__))
    file = CacheFile("rates", f"{key}.json")
    cached = file.read_as(lambda fields: GpuRates(**{**fields, "wave": tuple(fields["wave"])}))
    if cached is not None:
        return cached
    planes = PLANES.get(choice.compute, 0)
    shallow, deep = DEPTHS_OF_PARTS if planes else DEPTHS
    steps_on(gpu, choice, dtype).compile_ahead([(SIDE, SIDE, deep)])
    staged = _stage_rates(room) if machine().usable_cores >= ROOMY else None  # while the kernel compiles
    gpu.make_current()
    into, back = _link_rates(gpu, room)
    wave = _wave(gpu, choice)
    rows, columns, at_once = wave
    waves = math.ceil(math.ceil(SIDE / rows) * math.ceil(SIDE / columns) / at_once)
    shallow_s, deep_s = (_product_s(gpu, choice, dtype, depth) / waves for depth in (shallow, deep))
    s_per_k = (deep_s - shallow_s) / (deep - shallow)
    staged = staged or _stage_rates(room)
    rates = GpuRates(
        flops=2 * rows * columns * at_once / s_per_k,
        wave=wave,
        wave_s=max(0.0, shallow_s - shallow * s_per_k),
        in_bytes=into,
        out_bytes=back,
        stage_bytes=staged[0],
        most_stage_bytes=max(staged),
        split_s=_split_s(gpu, shallow, planes, room) if planes else 0.0,
    )
    if room >= ROOM:
        file.write_json(asdict(rates))
    return rates


def _stage_rates(room: int) -> list[float]:
    """Bytes a second from the host's memory to page-locked memory, by the threads of one GPU and by all processors."""
    rows, columns = STAGED
    operand = ArraySource(np.ones((max(1, min(rows, room // 2 // (4 * columns))), columns), np.float32))
    threads = copy_workers(), machine().usable_cores
    return [read_rate(operand, "float32", each, room // 4, STAGED_BYTES) for each in threads]


def _wave(gpu: Device, choice: Choice[CudaKernel]) -> tuple[int, int, int]:
    """The tile of a block, and how many blocks the GPU runs at once."""
    width, height = (side(**choice.params) for side in choice.kernel.tile)
    return height, width, gpu.sms * choice.params.get("BLOCKS", 1)


def _product_s(gpu: Device, choice: Choice[CudaKernel], dtype: str, depth: int) -> float:
    """Seconds of C += A·B with k = ``depth``, after the operands were split if they are."""
    size = np.dtype(dtype)
    slots = slot_elements(Grid(SIDE, SIDE, depth, SIDE, SIDE, depth), PLANES.get(choice.compute, 0))
    of_a, of_b, of_c = (elements * size.itemsize for elements in slots)
    steps, step = steps_on(gpu, choice, dtype), Multiply(0, Tile(0, 0), 1, 0, 0, 0, (0, 1), -1)
    with _stream_and_memory(gpu, SIDE * 64 * size.itemsize, of_a + of_b + of_c) as (stream, page, at):
        slot = Addresses(at, at + of_a, at + of_a + of_b)
        for start, elements in zip(slot, (SIDE * depth, SIDE * depth, SIDE * SIDE), strict=True):
            _fill(stream, page, start, elements * size.itemsize, size)

        def run() -> None:
            steps(step, (SIDE, SIDE, depth), slot, stream.handle)

        run()  # splits the operands, too
        return _seconds_each(stream, run)[0]


def _split_s(gpu: Device, depth: int, planes: int, room: int) -> float:
    """Seconds of splitting a byte of A or B, on average of both."""
    product = split_of_rows(SIDE, SIDE, depth, planes)
    operands = product.a, product.b
    own, parts = (max(sizes) for sizes in zip(*((x.own_bytes, x.workspace_bytes) for x in operands), strict=True))
    with _stream_and_memory(gpu, min(COPY_BYTES, room // 4), own + parts) as (stream, page, at):
        _fill(stream, page, at, own, np.dtype(np.float32))
        splits = [load(gpu, [split_step((operand, BufferPlace(A), BufferPlace(A, own)))]) for operand in operands]
        works = [functools.partial(split, at, 0, 0, 0, stream.handle) for split in splits]
        for work in works:
            work()
        return sum(_seconds_each(stream, *works)) / (2 * own)


def _fill(stream: Stream, page: Pages, start: int, nbytes: int, dtype: np.dtype[Any]) -> None:
    """Copy random numbers to memory of the GPU: it multiplies zeros faster."""
    page.view(dtype)[:] = np.random.default_rng(0).random(page.nbytes // dtype.itemsize, np.float32)
    for at in range(start, start + nbytes, page.nbytes):
        stream.copy_in(at, page[: start + nbytes - at])


def _link_rates(gpu: Device, room: int) -> tuple[float, float]:
    """Bytes a second to the GPU, and back."""
    nbytes = min(COPY_BYTES, room // 4)
    with _stream_and_memory(gpu, nbytes, nbytes) as (stream, page, at):
        in_s, out_s = _seconds_each(stream, lambda: stream.copy_in(at, page), lambda: stream.copy_out(page, at))
    return nbytes / in_s, nbytes / out_s


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
