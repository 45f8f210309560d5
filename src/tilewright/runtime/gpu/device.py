"""One GPU, through ``cuda.core``: memory on it, compiled kernels launched on it, and every refusal as one error.

Only what the driver says is trusted: a kernel's registers and memory are asked of it, and a launch it would refuse without
a reason (``CUDA_ERROR_INVALID_VALUE``) is refused here first, with the limit and the value.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import LaunchError, UnavailableError, UsageError
from .arguments import Extent, argument, extent
from .causes import first_line, message
from .memory import Memory
from .nvrtc import Compiled

#: A launch, or a call of a library, that was checked once and is asked for again at each call.
Submission = Callable[[], None]
#: The same of any stream and arguments: ``launcher`` says what a call is given.
Launcher = Callable[..., None]

#: ``CU_STREAM_LEGACY``
_LEGACY_STREAM = 1


@dataclass(frozen=True)
class Attributes:
    """What the driver says of a loaded kernel: registers a thread, bytes of static shared memory a block, bytes of local
    memory a thread, and the largest block, in threads, that these allow."""

    registers: int
    shared_bytes: int
    local_bytes: int
    max_threads: int


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
        raise UnavailableError(f"GPU {ordinal} cannot be used: {first_line(error)}") from None


class Device:
    """A GPU and one stream on it, in which everything happens in order. Made by :func:`open_device`.

    After a kernel was stopped (an illegal address, say) CUDA refuses everything else that this process asks of the GPU.
    """

    def __init__(self, core: Any, driver: Any, device: Any) -> None:
        self._core, self._driver, self._device = core, driver, device
        self._stream = device.create_stream()
        self._kernels: dict[tuple[bytes, str], Any] = {}
        self._streams: dict[int, Any] = {}
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

    # ---- facts

    @property
    def arch(self) -> str:
        """What to compile for, with the instructions that only this generation has: "sm_90a"; before 9.0 as "sm_80"."""
        major, minor = self.capability.split(".")
        return f"sm_{major}{minor}" + "a" * (int(major) >= 9)

    @property
    def sms(self) -> int:
        """Multiprocessors."""
        return int(self._device.properties.multiprocessor_count)

    @property
    def l2_bytes(self) -> int:
        return int(self._device.properties.l2_cache_size)

    @property
    def pci_bus_id(self) -> str:
        """Where it is plugged in, such as "0000:17:00.0": the one name that every tool knows it by."""
        return str(self._device.pci_bus_id)

    @property
    def stream(self) -> int:
        """The handle of the stream, for libraries that take one."""
        return int(self._stream.handle)

    def memory_bytes(self) -> tuple[int, int]:
        """Bytes of its memory that are free now, and all."""
        free, total = self._call("its memory", self._driver.cuMemGetInfo)
        return int(free), int(total)

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

    def fill(self, memory: Memory, byte: int) -> None:
        """Set every byte; 0xFF makes a NaN of every floating-point number. Does not wait."""
        if memory.nbytes:
            fill = self._driver.cuMemsetD8Async
            self._call("fill memory", fill, memory.pointer, byte, memory.nbytes, self._stream.handle)

    def copy(self, to: Memory, source: Memory) -> None:
        """Copy memory into memory of as many bytes, on the GPU; does not wait. Raises UsageError where the sizes differ."""
        if to.nbytes != source.nbytes:
            raise UsageError(f"{source.nbytes} bytes cannot be copied into memory of {to.nbytes}: give as many")
        if to.nbytes:
            copy = self._driver.cuMemcpyDtoDAsync
            self._call("copy on the GPU", copy, to.pointer, source.pointer, to.nbytes, self._stream.handle)

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
        self.prepare(compiled, entry, grid, block, args, shared_bytes)()

    def prepare(
        self, compiled: Compiled, entry: str, grid: Extent, block: Extent, args: Sequence[Any], shared_bytes: int = 0
    ) -> Submission:
        """A launch that is checked now: each call of it is one ``submit``, and costs microseconds."""
        what, kernel, config = self._ready(compiled, entry, grid, block, shared_bytes)
        sizes = [size for _, size in self._try(what, lambda: kernel.arguments_info)]
        if len(sizes) != len(args):
            raise UsageError(f"{compiled.name}: {entry} takes {len(sizes)} arguments, given {len(args)}")
        given = [argument(i, size, value) for i, (size, value) in enumerate(zip(sizes, args, strict=True))]
        return functools.partial(self._try, what, self._core.launch, self._stream, config, kernel, *given)

    def launcher(self, compiled: Compiled, entry: str, grid: Extent, block: Extent, shared_bytes: int = 0) -> Launcher:
        """A launch that is checked now, of what each call is given: ``launch(stream, *args)``, which does not wait.

        ``stream`` is the handle of any stream of this GPU. An address is an int, a number is NumPy's, as wide as the kernel
        takes it: they are not checked. This GPU must be the thread's current one.
        """
        what, kernel, config = self._ready(compiled, entry, grid, block, shared_bytes)
        run, streams = self._core.launch, self._streams

        def launch(stream: int, *args: Any) -> None:
            try:
                run(streams.get(stream) or self._stream_of(stream), config, kernel, *args)
            except Exception as error:  # as in _try, of which a call more is a microsecond
                raise LaunchError(message(what, first_line(error))) from None

        return launch

    def _ready(
        self, compiled: Compiled, entry: str, grid: Extent, block: Extent, shared_bytes: int
    ) -> tuple[str, Any, Any]:
        """What is launched, in words; the kernel, loaded; and how, as ``cuda.core`` has it. Refuses what cannot be."""
        blocks, threads = extent("grid", grid), extent("block", block)
        shape = f"{blocks} blocks of {threads} threads, {shared_bytes} bytes of dynamic shared memory"
        what = f"{compiled.name}: {entry}, {shape}"
        kernel = self._load(compiled, entry)
        self._check(what, self.attributes(compiled, entry), blocks, threads, shared_bytes)
        if shared_bytes > kernel.attributes[self._device].max_dynamic_shared_size_bytes:
            self._allow_shared(what, kernel, shared_bytes)
        return what, kernel, self._core.LaunchConfig(grid=blocks, block=threads, shmem_size=shared_bytes)

    def _stream_of(self, handle: int) -> Any:
        """Somebody's stream as ``cuda.core`` has it; 0 is the default one of all threads, whatever bindings take it for."""
        self._streams[handle] = self._core.Stream.from_handle(handle or _LEGACY_STREAM)
        return self._streams[handle]

    def wait(self, what: str = "the GPU") -> None:
        """Until everything asked for is done. Raises LaunchError for what went wrong meanwhile."""
        self._try(what, self._stream.sync)

    def timer(self) -> Timer:
        return Timer(self._call, self._driver, self._stream.handle)

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

    def _call(self, what: str, function: Any, *args: Any) -> tuple[Any, ...]:
        """A function of the driver's own bindings, which return the error, and then what was asked for."""
        status, *answer = self._try(what, function, *args)
        if status != self._driver.CUresult.CUDA_SUCCESS:
            raise LaunchError(message(what, status.name))
        return tuple(answer)

    def _try(self, what: str, function: Any, *args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except Exception as error:  # cuda.core's own class, not public
            raise LaunchError(message(what, first_line(error))) from None


class Timer:
    """The time between two moments of a stream, by the GPU's own clock. Made by ``Device.timer``."""

    def __init__(self, call: Callable[..., tuple[Any, ...]], driver: Any, stream: Any) -> None:
        self._call, self._driver, self._stream = call, driver, stream
        self._start, self._end = (call("create an event", driver.cuEventCreate, 0)[0] for _ in range(2))

    def start(self) -> None:
        """From here: when all that was submitted before is done."""
        self._call("start the clock", self._driver.cuEventRecord, self._start, self._stream)

    def stop(self) -> float:
        """Seconds from ``start`` until all that was submitted since is done; waits for that. Raises what ``wait`` does."""
        self._call("stop the clock", self._driver.cuEventRecord, self._end, self._stream)
        self._call("the GPU", self._driver.cuEventSynchronize, self._end)
        (milliseconds,) = self._call("read the clock", self._driver.cuEventElapsedTime, self._start, self._end)
        return float(milliseconds) / 1000
