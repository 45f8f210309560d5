"""One GPU, through ``cuda.core``: memory on it, compiled kernels launched on it, and every refusal as one error.

Only what the driver says is trusted: a kernel's registers and memory are asked of it, and a launch it would refuse without
a reason (``CUDA_ERROR_INVALID_VALUE``) is refused here first, with the limit and the value.
"""

from __future__ import annotations

import importlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import LaunchError, OperandError, UnavailableError, UsageError
from .cuda import Compiled

Extent = int | Sequence[int]

#: What the driver's names of errors mean; the driver's own words follow them.
_CAUSES = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": "it reads or writes memory that is not there",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "it reads or writes at an address that is no multiple of the access",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "it takes more registers or shared memory than a multiprocessor has",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "it ran longer than this GPU, which also draws a screen, allows",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": "it has an instruction that this GPU does not know, or gives one a wrong operand",
    "CUDA_ERROR_ASSERT": "an assertion of the kernel failed",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "it was compiled for another architecture",
    "CUDA_ERROR_INVALID_IMAGE": "the driver does not know this form of binary: it may be older than the compiler",
    "CUDA_ERROR_OUT_OF_MEMORY": "the GPU's memory is full",
}


@dataclass(frozen=True)
class Attributes:
    """What the driver says of a loaded kernel: registers a thread, bytes of static shared memory a block, bytes of local
    memory a thread, and the largest block, in threads, that these allow."""

    registers: int
    shared_bytes: int
    local_bytes: int
    max_threads: int


class Memory:
    """Bytes on a GPU; freed by ``close``, at the end of a ``with``, or with the object."""

    def __init__(self, buffer: Any, nbytes: int) -> None:
        self._buffer = buffer
        self.nbytes = nbytes

    @property
    def pointer(self) -> int:
        """The address on the GPU."""
        return int(self._buffer.handle)

    def close(self) -> None:
        self._buffer.close()

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def open_device(ordinal: int = 0) -> Device:
    """The GPU of that number, made current for this thread.

    Raises UnavailableError, with the reason, where there is no driver, no such GPU, or no ``cuda.core``.

    >>> gpu = open_device()  # doctest: +SKIP
    >>> gpu.get(gpu.put(np.arange(3)), np.int64, (3,))  # doctest: +SKIP
    array([0, 1, 2])
    """
    try:
        core = importlib.import_module("cuda.core")
        driver = importlib.import_module("cuda.bindings.driver")
        device = core.Device(ordinal)
        device.set_current()
        return Device(core, driver, device)
    except Exception as error:  # a missing package, library, driver or device: each raises its own
        raise UnavailableError(f"GPU {ordinal} cannot be used: {_first_line(error)}") from None


class Device:
    """A GPU and one stream on it, in which everything happens in order. Made by :func:`open_device`.

    After a kernel was stopped (an illegal address, say) CUDA refuses everything else that this process asks of the GPU.
    """

    def __init__(self, core: Any, driver: Any, device: Any) -> None:
        self._core, self._driver, self._device = core, driver, device
        self._stream = device.create_stream()
        self._kernels: dict[tuple[bytes, str], Any] = {}
        major, minor = device.compute_capability
        self.name = str(device.name)
        self.capability = f"{major}.{minor}"
        limits = device.properties
        self._limits = {
            "block": (limits.max_block_dim_x, limits.max_block_dim_y, limits.max_block_dim_z),
            "grid": (limits.max_grid_dim_x, limits.max_grid_dim_y, limits.max_grid_dim_z),
        }
        #: Bytes of shared memory that a block can have at most, static and dynamic together.
        self.max_shared_bytes = int(limits.max_shared_memory_per_block_optin)

    # ---- memory

    def allocate(self, nbytes: int) -> Memory:
        """Memory of ``nbytes`` bytes, with anything in it. Raises LaunchError where the GPU has not as much."""
        what = f"{nbytes:,} bytes on {self.name}"
        return Memory(self._try(what, self._device.allocate, max(1, nbytes), stream=self._stream), nbytes)

    def put(self, array: NDArray[Any]) -> Memory:
        """A copy of a NumPy array on the GPU, in C order."""
        memory = self.allocate(array.nbytes)
        self.copy_to(memory, array)
        return memory

    def copy_to(self, memory: Memory, array: NDArray[Any]) -> None:
        """Copy a NumPy array into memory of as many bytes. Raises UsageError where the sizes differ."""
        host = np.ascontiguousarray(array)
        if host.nbytes != memory.nbytes:
            raise UsageError(f"the array has {host.nbytes} bytes, the memory on the GPU {memory.nbytes}: give as many")
        if host.nbytes:
            copy = self._driver.cuMemcpyHtoDAsync
            self._call("copy to the GPU", copy, memory.pointer, host.ctypes.data, host.nbytes, self._stream.handle)
        self.wait("copy to the GPU")

    def get(self, memory: Memory, dtype: Any, shape: int | Sequence[int]) -> NDArray[Any]:
        """What is in memory now, as a NumPy array. Raises UsageError where the sizes differ."""
        host = np.empty(shape, dtype)
        if host.nbytes != memory.nbytes:
            raise UsageError(f"the array has {host.nbytes} bytes, the memory on the GPU {memory.nbytes}: give as many")
        if host.nbytes:
            copy = self._driver.cuMemcpyDtoHAsync
            self._call("copy from the GPU", copy, host.ctypes.data, memory.pointer, host.nbytes, self._stream.handle)
        self.wait("copy from the GPU")
        return host

    # ---- kernels

    def attributes(self, compiled: Compiled, entry: str) -> Attributes:
        """What the driver says of a kernel; loads it first. Raises LaunchError where the driver refuses the binary."""
        kernel = self._load(compiled, entry)
        known = self._try(f"{compiled.name}: {entry}", lambda: kernel.attributes[self._device])
        return Attributes(known.num_regs, known.shared_size_bytes, known.local_size_bytes, known.max_threads_per_block)

    def launch(
        self, compiled: Compiled, entry: str, grid: Extent, block: Extent, args: Sequence[Any], shared_bytes: int = 0
    ) -> None:
        """Run kernel ``entry`` once and wait until it has ended.

        ``grid`` in blocks, ``block`` in threads, each up to three numbers; ``shared_bytes`` of dynamic shared memory a
        block, also beyond 48 KiB. ``args``: ``Memory`` where the kernel takes a pointer, else numbers, whose width is the
        parameter's. Raises LaunchError with the cause where the GPU refuses or stops it, UsageError and OperandError for
        arguments that do not fit.
        """
        self.submit(compiled, entry, grid, block, args, shared_bytes)
        self.wait(f"{compiled.name}: {entry}")

    def submit(
        self, compiled: Compiled, entry: str, grid: Extent, block: Extent, args: Sequence[Any], shared_bytes: int = 0
    ) -> None:
        """As ``launch``, but without waiting: what stops the kernel is raised by the next ``wait``."""
        blocks, threads = extent("grid", grid), extent("block", block)
        shape = f"{blocks} blocks of {threads} threads, {shared_bytes} bytes of dynamic shared memory"
        what = f"{compiled.name}: {entry}, {shape}"
        kernel = self._load(compiled, entry)
        self._check(what, self.attributes(compiled, entry), blocks, threads, shared_bytes)
        if shared_bytes > kernel.attributes[self._device].max_dynamic_shared_size_bytes:
            self._allow_shared(what, kernel, shared_bytes)
        sizes = [size for _, size in self._try(what, lambda: kernel.arguments_info)]
        if len(sizes) != len(args):
            raise UsageError(f"{compiled.name}: {entry} takes {len(sizes)} arguments, given {len(args)}")
        given = [_argument(i, size, value) for i, (size, value) in enumerate(zip(sizes, args, strict=True))]
        config = self._core.LaunchConfig(grid=blocks, block=threads, shmem_size=shared_bytes)
        self._try(what, self._core.launch, self._stream, config, kernel, *given)

    def wait(self, what: str = "the GPU") -> None:
        """Until everything asked for is done. Raises LaunchError for what went wrong meanwhile."""
        self._try(what, self._stream.sync)

    def _load(self, compiled: Compiled, entry: str) -> Any:
        key = (compiled.cubin, entry)
        if key not in self._kernels:

            def load() -> Any:
                return self._core.ObjectCode.from_cubin(compiled.cubin, name=compiled.name).get_kernel(entry)

            what = f"{compiled.name}: {entry}, compiled for {compiled.arch}, on compute capability {self.capability}"
            self._kernels[key] = self._try(what, load)
        return self._kernels[key]

    def _check(self, what: str, has: Attributes, grid: Sequence[int], block: Sequence[int], shared_bytes: int) -> None:
        """Refuse what the driver would refuse without saying why."""
        for name, sizes in (("grid", grid), ("block", block)):
            if any(size > most for size, most in zip(sizes, self._limits[name], strict=True)):
                raise LaunchError(f"{what}: a {name} can be at most {self._limits[name]}")
        threads = math.prod(block)
        if threads > has.max_threads:
            raise LaunchError(
                f"{what}: {threads} threads are too many: with {has.registers} registers each, and within the kernel's "
                f"own launch bounds, a block can have {has.max_threads}"
            )
        if has.shared_bytes + shared_bytes > self.max_shared_bytes:
            raise LaunchError(
                f"{what}: too much shared memory: {has.shared_bytes} bytes static and {shared_bytes} dynamic, "
                f"a block on {self.name} can have {self.max_shared_bytes}"
            )

    def _allow_shared(self, what: str, kernel: Any, shared_bytes: int) -> None:
        """More than 48 KiB of shared memory must be asked for before the launch."""
        driver = self._driver
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        handle = driver.CUdevice(self._device.device_id)
        self._call(what, driver.cuKernelSetAttribute, attribute, shared_bytes, kernel.handle, handle)

    # ---- errors

    def _call(self, what: str, function: Any, *args: Any) -> None:
        """A function of the driver's own bindings, which return the error."""
        status, *_ = self._try(what, function, *args)
        if status != self._driver.CUresult.CUDA_SUCCESS:
            raise LaunchError(_message(what, status.name))

    def _try(self, what: str, function: Any, *args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except Exception as error:  # cuda.core's own class, not public
            raise LaunchError(_message(what, _first_line(error))) from None


def extent(name: str, value: Extent) -> tuple[int, int, int]:
    """One to three positive numbers as three. Raises UsageError for anything else.

    >>> extent("grid", 7), extent("block", (32, 8))
    ((7, 1, 1), (32, 8, 1))
    """
    given = tuple(value) if isinstance(value, Sequence) else (value,)
    if not 1 <= len(given) <= 3 or any(size != int(size) or size < 1 for size in given):
        raise UsageError(f"{name} must be one to three positive numbers, given {value!r}")
    x, y, z = (*map(int, given), 1, 1)[:3]
    return x, y, z


def _argument(index: int, size: int, value: Any) -> Any:
    """An argument as ``cuda.core`` takes it: an address as an int, a number as the unsigned integer with its bits."""
    name = f"argument {index}"
    if isinstance(value, Memory):
        if size != 8:
            raise OperandError(f"{name} is memory, but the kernel takes {size} bytes there: give a number")
        return value.pointer
    if isinstance(value, np.generic) and value.dtype.kind in "iufb" and value.itemsize == size:
        return np.frombuffer(value.tobytes(), f"u{size}")[0]
    if isinstance(value, bool | int | np.integer | np.bool_) and size in (1, 2, 4, 8):
        low = -(1 << 8 * size - 1)
        if not low <= int(value) < 1 << 8 * size:
            raise OperandError(f"{name} is {value}: the kernel takes {size} bytes there, which cannot hold it")
        return np.dtype(f"u{size}").type(int(value) & (1 << 8 * size) - 1)
    if isinstance(value, float | np.floating) and size in (2, 4, 8):
        return np.frombuffer(struct.pack({2: "e", 4: "f", 8: "d"}[size], float(value)), f"u{size}")[0]
    raise OperandError(
        f"{name} is a {type(value).__name__}, and the kernel takes {size} bytes there: give memory or a number"
    )


def _message(what: str, words: str) -> str:
    cause = next((meaning for name, meaning in _CAUSES.items() if name in words), "")
    return f"{what}: {cause} ({words})" if cause else f"{what}: {words}"


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines and lines[0] else type(error).__name__
