"""Measures the rates of a place: operations a second, and bytes a second that are copied to the place and from it."""

from __future__ import annotations

import functools
import math
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np

from ....host.machine import machine
from ....kernels import Kernel
from ....product.operands import mapped_empty
from ...files import Source
from ...files.array import array_behind
from ...files.axes import AxesSource
from ...files.positional import PIECE, write_through
from ..plan.cost import Rates

#: Share of the peak that the engine reaches between its passes over C, share of the time of such a pass that nothing hides,
#: and seconds that each piece of work takes in addition.
ENGINE_SHARE, PASS_SHARE = 0.96, 0.67
PIECE_S = 5e-4
#: Bytes a second that a processor copies in memory, and to and from files; meanwhile it multiplies nothing. The rate of
#: files was derived from the time that products lose when their blocks are in files: it includes the operating system's
#: work.
COPIED, COPIED_FROM_FILES = 8e9, 1.5e9
#: Seconds of a processor for each row of a tile that is written to a file, in addition: rows are apart on the disk. From six
#: cuts of 4000³ float64 to contiguous HDF5, with rows of 2 to 10 KiB.
ROW_S = 1.7e-5
#: A probe reads rectangles of PROBE_BYTES, at most PROBE_SHARE of a file, for about PROBE_S seconds.
PROBE_BYTES = 2 << 20
PROBE_SHARE = 1 / 64
PROBE_S = 0.15
#: A probe writes WRITE_SHARE of the result's bytes, for WRITE_S seconds at most: disks are fast for the first few hundred
#: MiB.
WRITE_SHARE = 1 / 8
WRITE_S = 0.8
#: Bytes of the largest chunk that a probe reads, and the rate that is assumed of larger ones.
LARGEST_PROBE, UNPROBED = 1 << 28, 1e8
#: Bytes of a row that a probe writes, as those of tiles are.
WRITE_ROW = 32 << 10


def host_rates(sources: Sequence[Source], out: Any, kernel: Kernel, dtype: str, threads: int, room: int) -> Rates:
    """Return the rates of the CPU with this kernel, while one thread reads blocks and the others multiply.

    No measurement takes more than ``room`` bytes of memory. Rates that cannot be measured within this limit are
    assumed.
    """
    from ....cpu.runtime.peaks import (  # imports Numba, which a product on a GPU does not need
        bandwidth_gbs,
        peak_gflops,
    )

    real = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    flops = ENGINE_SHARE * peak_gflops(real if real in ("float32", "float64") else "float32", threads) * 1e9
    if real != dtype:  # a product of complex numbers is four of real ones
        flops /= 4
    reading = min(read_rate(source, dtype, 1, room) for source in sources)
    itemsize = np.dtype(dtype).itemsize
    in_files = isinstance(out, (str, os.PathLike)) or any(array_behind(source) is None for source in sources)
    return Rates(
        flops,
        in_bytes=reading,
        out_bytes=write_rate(out, sources, dtype, room),
        latency_s=PIECE_S,
        wave_s=PASS_SHARE * 2 * itemsize / (bandwidth_gbs("float64", threads, room=room) * 1e9),
        depth=kc_of(kernel, dtype),
        copy_s=1 / (COPIED_FROM_FILES if in_files else COPIED) / threads,
        row_s=ROW_S / threads if isinstance(out, (str, os.PathLike)) else 0.0,
    )


def kc_of(kernel: Kernel, dtype: str) -> int:
    """Return KC, the largest number of elements of k that the kernel sums in registers before it adds to C."""
    cuts = kernel.blocking
    if cuts is None:
        return int(kernel.params["kc"])
    return cuts.kc if np.dtype(dtype).itemsize == 4 else cuts.kc_of_8_bytes


def result_bytes(sources: Sequence[Source], dtype: str) -> int:
    """Return the number of bytes of the result of a product."""
    return sources[0].shape[0] * sources[1].shape[1] * np.dtype(dtype).itemsize


def read_rate(source: Source, dtype: str, workers: int, room: int, nbytes: int = PROBE_BYTES) -> float:
    """Measure the bytes a second that ``workers`` threads read from a matrix and convert to the product's ``dtype``.
    The measurement takes 0.2 s.

    Each read has ``nbytes`` bytes, or the size of one chunk of the file if chunks are larger. The measurement takes at
    most ``room`` bytes of memory.
    """
    if getattr(source, "by_columns", False):  # as blocks are read of it
        source = cast(AxesSource, source).transposed
    m, n = source.shape
    if not m or not n:
        return math.inf
    itemsize = np.dtype(dtype).itemsize
    height, width = source.grain  # a probe reads whole chunks, as blocks do
    if height * width * itemsize > LARGEST_PROBE:  # for such chunks the memory may be too small: that is told before
        return UNPROBED
    workers = workers if source.parallel else 1
    most = max(1, room // workers // itemsize)  # elements of a thread
    columns = min(n, max(4096, width), most)
    rows = min(m, max(height, nbytes // (columns * itemsize), 1), max(1, most // columns))
    rng = np.random.default_rng(0)
    share = PROBE_SHARE if array_behind(source) is None else 1.0
    count = max(workers, min(128 * workers, int(share * m * n / (rows * columns))))
    corners = [
        (int(rng.integers(m - rows + 1)) // height * height, int(rng.integers(n - columns + 1)) // width * width)
        for _ in range(count)
    ]
    few = min(rows, 2), columns  # compiles the code that reads rows, before the clock runs
    source.read(slice(0, few[0]), slice(0, few[1]), np.empty(few, dtype))

    outs = [mapped_empty(rows * columns, np.dtype(dtype)).reshape(rows, columns) for _ in range(workers)]
    for out in outs:
        out[:] = 1  # so that their pages are mapped
    begun = time.perf_counter()

    def read(worker: int) -> int:
        out, done = outs[worker], 0
        for row, column in corners[worker::workers]:
            source.read(slice(row, row + rows), slice(column, column + columns), out)
            done += out.nbytes
            if time.perf_counter() > begun + PROBE_S:
                break
        return done

    with ThreadPoolExecutor(workers) as pool:
        done = sum(pool.map(read, range(workers)))
    return done / (time.perf_counter() - begun)


def write_rate(out: Any, sources: Sequence[Source], dtype: str, room: int) -> float:
    """Return how many bytes of a result a second can be written. For files this rate is measured, with at most ``room``
    bytes of memory.

    For a result in memory the rate is one third of the memory's bandwidth.
    """
    if isinstance(out, (str, os.PathLike)):
        most, pitch = int(WRITE_SHARE * result_bytes(sources, dtype)), sources[1].shape[1] * np.dtype(dtype).itemsize
        folder = Path(os.fspath(out)).absolute().parent
        return _disk_rate(folder, max(PROBE_BYTES, most), max(1, pitch), min(4 * PIECE, room))
    from ....cpu.runtime.peaks import bandwidth_gbs  # imports Numba

    return bandwidth_gbs("float64", 1, room=room) * 1e9 / 3


@functools.cache  # measured once in a process
def _disk_rate(folder: Path, most: int, pitch: int, nbytes: int) -> float:
    """Bytes a second of writing ``most`` bytes, ``nbytes`` at a time, to a file in ``folder`` until they are on the disk, in
    short rows ``pitch`` bytes apart, as those of tiles are. Where nothing can be written, 1 GB/s is assumed."""
    width = max(1, min(pitch, WRITE_ROW, nbytes))
    flat = mapped_empty(max(1, min(most, nbytes) // width) * width, np.dtype(np.uint8))
    rng = np.random.default_rng(0)
    for part in np.array_split(
        flat, math.ceil(flat.size / PROBE_BYTES)
    ):  # random numbers come in an array of their own
        part[:] = rng.integers(0, 256, part.size, np.uint8)
    block = flat.reshape(-1, width)
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            begun, done = time.perf_counter(), 0
            marks = [(begun, done)]
            while done < most and time.perf_counter() < begun + WRITE_S:
                write_through(file.fileno(), block, done // width * pitch, pitch)
                done += block.nbytes
                marks.append((time.perf_counter(), done))
            os.fsync(file.fileno())
            warm_s, warm = marks[
                (len(marks) - 1) // 2
            ]  # the first half does not count: disks are faster, or slower, then
            return (done - warm) / (time.perf_counter() - warm_s)
    except OSError:
        return 1e9


def copy_workers(gpus: int = 1) -> int:
    """Return the number of threads that copy blocks for each GPU; the threads of all GPUs use about three quarters of
    the cores.

    The other cores are left to the threads that carry out the schedules.
    """
    return max(2, min(16, machine().usable_cores * 3 // 4 // gpus))
