"""Measure what the time of a pipelined kernel is made of: ``record_pipeline_rates.py OUT.jsonl`` (a Hopper GPU, one minute).

Lines of the record, by ``kind``:

- "kernel": the seconds of each asynchronous kernel of the tests at each size;
- "ring": a ring with its copies or products left out, or with both: its seconds, and the median of what its blocks' clocks
  showed: cycles until the first stage is full, cycles of a step, and GHz;
- "launch": an empty kernel by blocks and threads; "latency": cycles of one bulk copy; "write", "copy": seconds.

Seconds are those of a launch in a CUDA graph of several, so that the host's speed does not matter.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.gpu.runtime.device import open_device
from tilewright.gpu.runtime.driver import call, driver
from tilewright.gpu.runtime.nvrtc import compile_file, compiler
from tilewright.lab.explain.measure import tools

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from record_asynchronous import Prepared, encoded
from support.asynchronous_kernels import ARCH, KERNELS, RANDOM, TileMap

Row = dict[str, Any]
SOURCE = Path(__file__).with_name("pipeline_rates.cu")
#: The defines of the ring, as it is in the kernels.
RING = {"GROUPS": 2, "PENDING": 1, "STAGES": 4, "LOADS": 1, "MULTIPLY": 1}
#: What the clocks of a block are, in the order of the source.
BEGIN, FILLED, END, BEGAN_NS, ENDED_NS, SM = range(6)
REPEATS = 20


def graph_seconds(submit: Callable[[], None]) -> float:
    """Seconds of a launch among ``REPEATS`` in a graph, the median of seven."""
    gpu = open_device()
    submit()
    gpu.wait("the kernel")
    mode = driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    call("capture", "cuStreamBeginCapture", gpu.stream, mode)
    for _ in range(REPEATS):
        submit()
    (graph,) = call("capture", "cuStreamEndCapture", gpu.stream)
    (executable,) = call("a graph", "cuGraphInstantiate", graph, 0)
    timer, samples = gpu.timer(), []
    for _ in range(8):
        timer.start()
        call("a graph", "cuGraphLaunch", executable, gpu.stream)
        samples.append(timer.stop() / REPEATS)
    return statistics.median(samples[1:])


@functools.cache
def function(entry: str, shared: int = 0, **defines: int) -> Any:
    """A kernel of the source, loaded."""
    found = compile_file(SOURCE, arch=ARCH, defines=defines)
    (module,) = call(entry, "cuModuleLoadData", found.cubin)
    (loaded,) = call(entry, "cuModuleGetFunction", module, entry.encode())
    attribute = driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    call(entry, "cuFuncSetAttribute", loaded, attribute, shared)
    return loaded


def launcher(loaded: Any, grid: tuple[int, ...], block: int, shared: int, *args: Any) -> Callable[[], None]:
    """A function that launches with these arguments: addresses and numbers as NumPy values, tensor maps as bytes."""
    values = [np.frombuffer(arg, np.uint8) if isinstance(arg, bytes) else np.array([arg]) for arg in args]
    addresses = np.array([value.ctypes.data for value in values], np.uint64)
    gpu = open_device()

    def submit() -> None:
        sides = [*grid, 1, 1][:3]
        call("a probe", "cuLaunchKernel", loaded, *sides, block, 1, 1, shared, gpu.stream, addresses.ctypes.data, 0)
        _ = values

    return submit


# ---- what is measured -------------------------------------------------------------------------------------------------


def kernels() -> Iterator[Row]:
    """Every asynchronous kernel at every size."""
    for kernel in KERNELS.values():
        for size in kernel.sizes:
            prepared = Prepared(kernel, kernel.launch(size, RANDOM))
            yield {"kind": "kernel", "kernel": kernel.name, "size": size, "seconds": graph_seconds(prepared.submit)}
            prepared.close()


def ring(blocks: int, steps: int, period: int, across: int, **changed: int) -> Row:
    """One ring; ``seen`` are medians over its blocks."""
    given, gpu = RING | changed, open_device()
    groups, stages = given["GROUPS"], given["STAGES"]
    shared = max(
        stages * (groups * 8192 + 16384) + 16 * stages, 90160
    )  # two blocks on a multiprocessor, as in the kernels
    rows = max(blocks, 64) if across == 0 else max(across, -(-blocks // across))
    random = np.random.default_rng(1)
    numbers = random.standard_normal((rows * 128, period * 64), np.float32).view(np.uint32) >> 16
    matrix = numbers.astype(np.uint16)
    boxes = [TileMap(matrix, (64 * groups, 64)), TileMap(matrix, (128, 64))]
    # Each operand has its own copy, as in a product.
    memory = [gpu.put(matrix), gpu.put(matrix)]
    times, sums = gpu.put(np.zeros((blocks, 6), np.int64)), gpu.put(np.zeros(1024, np.float32))
    maps = [encoded(box, each.pointer) for box, each in zip(boxes, memory, strict=True)]
    numbers_ = [np.int32(steps), np.int32(period), np.int32(across)]
    pointers = [np.uint64(times.pointer), np.uint64(sums.pointer)]
    loaded = function("ring", shared, **given)
    submit = launcher(loaded, (blocks,), 128 * groups + 128, shared, *maps, *pointers, *numbers_)
    seconds = graph_seconds(submit)
    seen = gpu.get(times, np.int64, (blocks, 6))
    for each in (*memory, times, sums):
        each.close()
    whole = seen[:, END] - seen[:, BEGIN]
    span = float(seen[:, ENDED_NS].max() - seen[:, BEGAN_NS].min())
    moved = blocks * steps * (groups * 8192 + 16384) if given["LOADS"] else 0
    return {
        "kind": "ring", **given, "blocks": blocks, "steps": steps, "period": period, "across": across,
        "seconds": seconds, "span_ns": span, "fill_cycles": float(np.median(seen[:, FILLED] - seen[:, BEGIN])),
        "step_cycles": float(np.median(seen[:, END] - seen[:, FILLED])) / steps,
        "ghz": float(np.median(whole / np.maximum(1, seen[:, ENDED_NS] - seen[:, BEGAN_NS]))),
        "sms": len(set(seen[:, SM].tolist())), "tb_per_s": moved / span / 1e3,
    }  # fmt: skip


def rings() -> Iterator[Row]:
    """Rings without copies, without products, and with both."""
    for groups, pending, blocks in itertools.product((1, 2), (0, 1), (132, 264)):
        if groups == 1 or blocks == 132:
            stages = 3 if groups == 1 else 4
            yield ring(blocks, 256, 4, 0, LOADS=0, GROUPS=groups, PENDING=pending, STAGES=stages)
    for stages in (1, 2, 3, 4, 6):  # bytes in flight, each block its own bytes: 17 MB in all
        yield ring(132, 256, 4, 0, MULTIPLY=0, STAGES=stages)
    for blocks in (1, 16, 66, 132):
        yield ring(blocks, 256, 4, 0, MULTIPLY=0, STAGES=6)
    for period in (1, 2, 8, 11, 16, 64):  # footprint: 4.3 MB each
        yield ring(132, 256, period, 0, MULTIPLY=0, STAGES=6)
    for period, across in ((32, 16), (64, 16), (64, 32), (128, 12)):  # shared by many blocks, as in a product
        for stages in (2, 4, 6):
            yield ring(132, 256, period, across, MULTIPLY=0, STAGES=stages)
    for stages in (2, 3):  # two blocks on a multiprocessor
        yield ring(264, 256, 64, 16, MULTIPLY=0, GROUPS=1, STAGES=stages)
    for blocks, across in ((132, 16), (256, 16), (1024, 32)):
        for stages in (3, 4, 6):
            yield ring(blocks, 64, 64, across, STAGES=stages)
    yield ring(256, 64, 64, 16, GROUPS=1, STAGES=3, PENDING=0)
    yield ring(2048, 64, 64, 32, GROUPS=1, STAGES=3, PENDING=0)


def launches() -> Iterator[Row]:
    """Empty kernels."""
    for blocks, threads, shared in itertools.product((1, 132, 1024, 8192, 65536), (128, 384), (0, 49152, 131136)):
        submit = launcher(function("nothing", 131136), (blocks,), threads, shared)
        row = {"kind": "launch", "blocks": blocks, "threads": threads, "shared_bytes": shared}
        yield {**row, "seconds": graph_seconds(submit)}


def latencies() -> Iterator[Row]:
    """One bulk copy after another: of lines that no one touched since 128 MB of others, and again at once."""
    gpu, count, apart = open_device(), 64, 1 << 20
    array = gpu.put(np.ones(count * apart, np.uint8))
    other = gpu.put(np.zeros(1 << 27, np.uint8))
    cycles = gpu.put(np.zeros(count, np.int64))
    half = [np.uint64(other.pointer), np.uint64(other.pointer + (1 << 26)), np.int64(1 << 22)]
    flush = launcher(function("copy"), (1056,), 256, 0, *half)
    for nbytes in (128, 1024, 4096, 8192, 16384, 32768):
        args = [np.uint64(array.pointer), np.uint64(cycles.pointer), np.int32(nbytes), np.int32(count), np.int32(apart)]
        submit = launcher(function("copy_latency", 32768), (1,), 32, 32768, *args)
        submit()
        for memory in ("HBM", "L2"):
            if memory == "HBM":
                flush()
            submit()
            gpu.wait("a copy")
            found = gpu.get(cycles, np.int64, (count,))[8:]
            yield {"kind": "latency", "bytes": nbytes, "from": memory, "cycles": float(np.median(found)),
                   "low": int(found.min()), "high": int(found.max())}  # fmt: skip
    for each in (array, other, cycles):
        each.close()


def moves() -> Iterator[Row]:
    """Tiles that are written, and plain copies."""
    gpu = open_device()
    for n in (2048, 4096, 8192):
        c = gpu.allocate(4 * n * n)
        submit = launcher(function("write_tiles"), (n // 128, n // 128), 256, 0, np.uint64(c.pointer), np.int32(n))
        seconds = graph_seconds(submit)
        c.close()
        yield {"kind": "write", "n": n, "bytes": 4 * n * n, "seconds": seconds, "tb_per_s": 4 * n * n / seconds / 1e12}
    for megabytes in (4, 16, 32, 64, 256, 1024):
        nbytes = megabytes << 20
        x, y = gpu.allocate(nbytes), gpu.allocate(nbytes)
        args = [np.uint64(x.pointer), np.uint64(y.pointer), np.int64(nbytes // 16)]
        seconds = graph_seconds(launcher(function("copy"), (1056,), 256, 0, *args))
        x.close()
        y.close()
        yield {"kind": "copy", "bytes": nbytes, "seconds": seconds, "tb_per_s": 2 * nbytes / seconds / 1e12}


def in_short(row: Row) -> str:
    """A row without its names; times in µs."""
    values = {key: 1e6 * value if key == "seconds" else value for key, value in row.items()}
    return " ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values.values())


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    environment = {**tools(), "compiler": compiler(), "arch": ARCH}
    environment["command"] = "python benchmarks/record_pipeline_rates.py OUT.jsonl"
    environment["date"] = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    rows: list[Row] = [{"kind": "pipeline rates", "schema": 1, "environment": environment}]
    failed = []
    open_device()  # makes its context the current one
    with Path(sys.argv[1]).open("w") as file:
        file.write(json.dumps(rows[0]) + "\n")
        for part in (launches, latencies, rings, moves, kernels):
            try:
                for row in part():
                    rows.append(row)
                    file.write(json.dumps(row) + "\n")
                    file.flush()
                    print(in_short(row), flush=True)
            except Exception as error:  # the other parts are still measured
                failed.append(f"{part.__name__}: {type(error).__name__}: {error}")
    wrong = [row for row in rows[1:] if "seconds" in row and not 0 < row["seconds"] < 1]
    failed += [f"no time: {row}" for row in wrong]
    print("\n".join(failed) or f"{len(rows) - 1} measurements")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
