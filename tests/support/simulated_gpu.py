"""A GPU for tests: its memory is a NumPy array, its launches are executed by the microscope, and its clock is made up.

It has the interface of ``runtime.gpu.device.Device``, so that the bench's protocol and the CUDA code that verifies results
run as they are, without a GPU. ``did`` is what was asked of it, in order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from support import ptx_alone
from tilewright.errors import LaunchError, UsageError
from tilewright.gpu.runtime.launch import Attributes, Mapped, extent
from tilewright.gpu.runtime.memory import Memory
from tilewright.gpu.runtime.nvrtc import Compiled
from tilewright.kernels.cuda_kernel import Card
from tilewright.simulator import RunOptions, simulate
from tilewright.simulator.assembly.parser import parse_ptx
from tilewright.simulator.machine.tensor_map import TensorMap

BASE = 0x10_0000_0000
parsed = functools.cache(parse_ptx)


class SimulatedGpu:
    """``seconds`` tells how long a launch of an entry takes; ``after`` is called with its name when it has run."""

    name, capability, arch = "Simulated GPU", "9.0", "sm_90a"
    sms, l2_bytes, max_shared_bytes = 1, 0, 232_448
    pci_bus_id, stream = "0000:00:00.0", 0
    #: Whether a pointer may reach to the end of the memory, as where a kernel gets distances between allocations.
    in_one_piece = False

    def __init__(self, nbytes: int = 1 << 22, seconds: Callable[[str], float] = lambda entry: 0.03) -> None:
        self.heap = np.full(nbytes, 0x5A, np.uint8)  # what nobody wrote is no number anyone expects
        self.seconds, self.after = seconds, lambda entry: None
        self.did: list[tuple[Any, ...]] = []
        self.clock_s, self.error = 0.0, ""
        self.held: dict[int, int] = {}

    @property
    def card(self) -> Card:
        return Card(self.name, self.sms)

    # ---- memory

    def memory_bytes(self) -> tuple[int, int]:
        return self.heap.size - sum(self.held.values()), self.heap.size

    def allocate(self, nbytes: int) -> Memory:
        start = 0
        for at, size in sorted(self.held.items()):
            if at - start >= nbytes:
                break
            start = -(-(at + size) // 256) * 256
        if start + nbytes > self.heap.size:
            raise LaunchError(f"{nbytes} bytes: the GPU's memory is full (CUDA_ERROR_OUT_OF_MEMORY)")
        self.held[start] = max(1, nbytes)
        self.heap[start : start + nbytes] = 0x5A
        return Memory(SimpleNamespace(handle=BASE + start, close=lambda: self.held.pop(start, None)), nbytes)

    def bytes_of(self, memory: Memory) -> np.ndarray:
        start = memory.pointer - BASE
        return self.heap[start : start + memory.nbytes]

    def put(self, array: np.ndarray) -> Memory:
        memory = self.allocate(array.nbytes)
        self.copy_to(memory, array)
        return memory

    def copy_to(self, memory: Memory, array: np.ndarray) -> None:
        self.bytes_of(memory)[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def get(self, memory: Memory, dtype: Any, shape: Any) -> np.ndarray:
        self.wait()
        return self.bytes_of(memory).view(dtype).reshape(shape).copy()

    def fill(self, memory: Memory, byte: int) -> None:
        self.did.append(("fill", memory.pointer, memory.nbytes, byte))
        self.bytes_of(memory)[:] = byte

    def copy(self, to: Memory, source: Memory) -> None:
        self.bytes_of(to)[:] = self.bytes_of(source)

    # ---- kernels

    def attributes(self, compiled: Compiled, entry: str) -> Attributes:
        return ptx_alone.attributes(compiled, entry)

    def launch(self, *launch: Any) -> None:
        self.submit(*launch)
        self.wait()

    def submit(self, *launch: Any) -> None:
        self.prepare(*launch)()

    def prepare(
        self, compiled: Compiled, entry: str, grid: Any, block: Any, args: Sequence[Any], shared_bytes: int = 0
    ) -> Callable[[], None]:
        blocks, threads = extent("grid", grid), extent("block", block)
        static = self.attributes(compiled, entry).shared_bytes
        if static + shared_bytes > self.max_shared_bytes:
            raise LaunchError(f"{entry}: too much shared memory: {static} bytes static and {shared_bytes} dynamic")

        def submit() -> None:
            self.did.append(("launch", entry, *(a.pointer for a in args if isinstance(a, Memory))))
            if self.error or entry == "hold":
                return
            self._run(compiled, entry, blocks, threads, args, shared_bytes)
            self.clock_s += self.seconds(entry)
            self.after(entry)

        return submit

    def _run(self, compiled: Compiled, entry: str, grid: Any, block: Any, args: Sequence[Any], shared: int) -> None:
        """Every pointer may reach to the end of what it points into, as on a GPU; beyond that it is an illegal address."""
        mapped = {i: a for i, a in enumerate(args) if isinstance(a, Mapped)}
        memories = {i: a for i, a in enumerate(args) if isinstance(a, Memory)} | {
            i: a.memory for i, a in mapped.items()
        }
        views = {i: self._from(a) for i, a in memories.items()}
        before = {i: view.copy() for i, view in views.items()}
        given = [before.get(i, a) for i, a in enumerate(args)]
        given = [_map(mapped[i].operand, a) if i in mapped else a for i, a in enumerate(given)]
        done = simulate(parsed(compiled.ptx), entry, grid, block, given, RunOptions(shared_bytes=shared))
        for i, view in views.items():
            after = done.arrays[i]
            assert after is not None
            after = after.reshape(-1).view(np.uint8)
            changed = before[i][: after.size] != after
            view[: after.size][changed] = after[changed]
        bad = [f for f in done.findings if f.kind in ("out of bounds", "misaligned")]
        self.error = f"{entry}: it reads or writes memory that is not there ({bad[0].text})" if bad else self.error

    def run_boxed(
        self, compiled: Compiled, entry: str, size: Any, operands: Any, structure: bytes, mapped: Any, pointers: Any
    ) -> None:
        """As ``Device.boxed_launcher`` launches it."""
        grid, block, shared = size
        views = [self._from(Memory(SimpleNamespace(handle=at), 0)) for at in (*mapped, *pointers)]
        given: list[Any] = [view.copy() for view in views]
        maps = [_map(*each) for each in zip(operands, given, strict=False)]
        arguments = [*maps, *given[len(maps) :], structure]
        done = simulate(parsed(compiled.ptx), entry, grid, block, arguments, RunOptions(shared_bytes=shared))
        for view, before, after in zip(views, given, done.arrays, strict=False):
            assert after is not None
            changed = before != after.reshape(-1).view(np.uint8)
            view[changed] = after.reshape(-1).view(np.uint8)[changed]
        assert not done.findings, done.findings[0].text

    def _from(self, memory: Memory) -> np.ndarray:
        at = memory.pointer - BASE
        if self.in_one_piece:
            return self.heap[at:]
        start = max(start for start in self.held if start <= at)
        return self.heap[at : start + self.held[start]]

    def wait(self) -> None:
        """As on a GPU, an error sticks: everything asked for later meets it too."""
        if self.error:
            raise LaunchError(self.error)

    def timer(self) -> Any:
        return SimulatedTimer(self)


def _map(operand: Any, memory: np.ndarray) -> TensorMap:
    kinds = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "tf32": "tf32", "int32": "s32", "float64": "f64"}
    kind = kinds.get(operand.dtype, "u8")
    size = {"bf16": 2, "f16": 2, "f32": 4, "tf32": 4, "s32": 4, "f64": 8}.get(kind, 1)
    elements = memory[: memory.size // size * size].view("f4" if kind == "tf32" else f"u{size}")
    # A map may promise more matrices than the memory has.
    last = (operand.rows - 1) * operand.row_bytes + operand.columns * size
    matrices = min(operand.matrices, (elements.nbytes - last) // operand.next_bytes + 1)
    shape = matrices, operand.rows, operand.columns
    strides = operand.next_bytes, operand.row_bytes, size
    return TensorMap(elements, (1, *operand.box), shape=shape, strides=strides, data_type=kind, swizzle=128)


class SimulatedTimer:
    def __init__(self, gpu: SimulatedGpu) -> None:
        self.gpu, self.began = gpu, 0.0

    def start(self) -> None:
        self.gpu.did.append(("start",))
        self.began = self.gpu.clock_s

    def stop(self) -> float:
        self.gpu.did.append(("stop",))
        self.gpu.wait()
        return self.gpu.clock_s - self.began


class NumpyCublas:
    """cuBLAS played by NumPy, on a simulated GPU; ``fails`` is what a call raises."""

    version, fails = "0.0.0", ""

    def __init__(self, gpu: SimulatedGpu) -> None:
        self.gpu = gpu

    def gemm(
        self, a: Memory, b: Memory, c: Memory, shape: tuple[int, int, int], dtype: str = "float32", precision: str = ""
    ) -> Any:
        m, n, k = shape
        if dtype not in ("float32", "float64"):
            raise UsageError(f"dtype {dtype!r}")

        def call() -> None:
            self.gpu.did.append(("launch", "cublas", a.pointer, b.pointer, c.pointer, precision))
            if self.fails:
                raise LaunchError(self.fails)
            left, right = (self.gpu.bytes_of(x).view(dtype).reshape(size) for x, size in ((a, (m, k)), (b, (k, n))))
            self.gpu.bytes_of(c)[:] = (left @ right).reshape(-1).view(np.uint8)
            self.gpu.clock_s += self.gpu.seconds("cublas")

        return call
