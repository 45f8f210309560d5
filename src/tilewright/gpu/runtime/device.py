"""One GPU of this process: its facts, current context, memory, streams and kernels.

A GPU is opened once, and its kernels stay loaded. Tilewright works in the GPU's primary context, which other libraries
use, too.

A ``stream`` that is a number is the handle of any library's stream: 0 is the default stream of all threads, and a
negative number is a recording (``recording``). The driver numbers GPUs from 0. A GPU that is only described, and that
this machine does not have, gets a negative number.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import LaunchError, MemoryLimitError, UnavailableError, UsageError, how_to_install
from ...host.cached_property import cached_property
from ...kernels.cuda_kernel import Card
from .driver import DeviceFacts, call, driver, first_line, restored_context
from .launch import Attributes, BoxedLauncher, BoxedOperand, Extent, Kernels, Launcher, LaunchSize, Mapped, Submission
from .memory import LEGACY_STREAM, Event, HostPages, Memory, Owned, Stream, Timer
from .nvrtc import Compiled
from .recording import Replay, is_recording, recorded, recording_with
from .wake import wake

_opening = threading.Lock()
_devices: dict[int, Device] = {}  # by their ordinals, with descriptions of GPUs (``add_described``)
_ordinals_of_described = itertools.count(-1, -1)
_pages = HostPages()


def gpu_at(ordinal: int) -> Device:
    """The GPU with that number. The calling thread's current context does not change.

    Raises UnavailableError with the reason if there is no driver, no such GPU, or no ``cuda.bindings``.
    """
    return _devices.get(ordinal) or _opened(ordinal)


def add_described(gpu: Any) -> int:
    """Give the description of a GPU that this machine does not have a new number. Plans for a GPU with this number are
    made from the facts of the description."""
    gpu.ordinal = ordinal = next(_ordinals_of_described)
    _devices[ordinal] = gpu
    return ordinal


def open_device(ordinal: int = 0) -> Device:
    """The GPU with that number, which becomes this thread's current one.

    >>> gpu = open_device()  # doctest: +SKIP
    >>> gpu.get(gpu.put(np.arange(3)), np.int64, (3,))  # doctest: +SKIP
    array([0, 1, 2])
    """
    gpu = gpu_at(ordinal)
    gpu.make_current()
    return gpu


def _opened(ordinal: int) -> Device:
    with _opening, restored_context():
        if ordinal not in _devices:
            waking = wake(ordinal)
            try:
                driver()  # takes 0.02 s to import
                waking.join()
                call("the driver", "cuInit", 0)
                facts = DeviceFacts.of(ordinal)
                (context,) = call(f"GPU {ordinal}", "cuDevicePrimaryCtxRetain", driver().CUdevice(ordinal))
                call(f"GPU {ordinal}", "cuCtxSetCurrent", context)
                _devices[ordinal] = Device(facts, context)
            except Exception as error:  # a missing package, library, driver or device: each raises another class
                advice = f"; {how_to_install('cuda')}" if isinstance(error, ModuleNotFoundError) else ""
                raise UnavailableError(f"GPU {ordinal} cannot be used: {first_line(error)}{advice}") from None
        return _devices[ordinal]


def _check_size(array: NDArray[Any], memory: Memory) -> None:
    if array.nbytes != memory.nbytes:
        raise UsageError(f"the array has {array.nbytes} bytes, the memory on the GPU {memory.nbytes}: must be equal")


class Device:
    """A GPU, with one stream on which the methods of this object work in order. ``new_stream`` makes further streams.

    ``with gpu:`` makes ``gpu`` the thread's current GPU, and restores the previous GPU at the end. A thread that uses
    no other GPU calls ``make_current`` once. After an error that stopped a kernel, such as an illegal address, CUDA
    refuses all further work of this process on the GPU.
    """

    def __init__(self, facts: DeviceFacts, context: Any) -> None:
        self._facts, self.context = facts, context
        self._kernels = Kernels(facts)
        self._push, self._pop = driver().cuCtxPushCurrent, driver().cuCtxPopCurrent
        self._unused_events: list[Any] = []  # which every ``Stream`` of this GPU takes and every ``Event`` gives back
        self._stream = Stream.new(context, self._unused_events)
        #: Things and the events until which they stay alive, in the order in which they came.
        self._alive_until: deque[tuple[Event, Any]] = deque()
        self._guard = threading.Lock()  # of ``_alive_until``
        self.ordinal, self.name, self.capability = facts.ordinal, facts.name, facts.capability
        #: Multiprocessors, and bytes of the second-level cache.
        self.sms, self.l2_bytes = facts.sms, facts.l2_bytes
        #: Bytes of shared memory that a block can have at most, static and dynamic together.
        self.max_shared_bytes = facts.shared_bytes
        #: What predicted times depend on.
        self.card = Card.of(self.name, self.sms, facts.memory_clock, facts.memory_bits, self.capability)
        #: Page-locked memory of the host, for all GPUs.
        self.pages = _pages

    # ---- facts

    @property
    def arch(self) -> str:
        """The architecture to compile for, with the instructions that only this generation has, such as "sm_90a". GPUs
        before compute capability 9.0 have no such instructions; for them the name is, for example, "sm_80"."""
        major, minor = self.capability.split(".")
        return f"sm_{major}{minor}" + "a" * (int(major) >= 9)

    @property
    def pci_bus_id(self) -> str:
        """The GPU's address on the PCI bus, such as "0000:17:00.0", which every tool uses."""
        return self._facts.pci_bus_id

    def memory_bytes(self) -> tuple[int, int]:
        """Bytes of the GPU's memory that are free now, and bytes in all."""
        with self:
            free, total = call("its memory", "cuMemGetInfo")
        return int(free), int(total)

    @staticmethod
    def count() -> int:
        """The number of GPUs that this process sees."""
        return int(call("the GPUs", "cuDeviceGetCount")[0])

    # ---- the current context

    def make_current(self) -> None:
        """Make this GPU the calling thread's current one."""
        call("the GPU", "cuCtxSetCurrent", self.context)

    def __enter__(self) -> Device:
        # The driver's functions are called directly: what ``call`` checks takes too long for a small product.
        if self._push(self.context)[0]:
            raise LaunchError(f"GPU {self.ordinal} cannot be made the current one")
        return self

    def __exit__(self, *_: object) -> None:
        self._pop()

    # ---- streams

    @property
    def stream(self) -> int:
        """The handle of this object's own stream, for libraries that take a stream."""
        return self._stream.handle

    def new_stream(self) -> Stream:
        """A new stream, which does not wait for any other stream."""
        return Stream.new(self.context, self._unused_events)

    def wait(self, what: str = "the GPU") -> None:
        """Wait until all work of this object's own stream is done. Raises LaunchError for an error of that work."""
        self._stream.wait(what)

    def timer(self) -> Timer:
        """A clock for the work of this object's own stream."""
        return Timer(self.stream)

    def order(self, earlier: int, later: int) -> None:
        """Make work that is submitted to the stream ``later`` from now on wait for the present work of the stream
        ``earlier``. Both are handles."""
        if earlier == later:
            return
        with self:
            self._stream_of(later).after(self._stream_of(earlier).mark())

    def keep_until_now(self, stream: int, things: Any) -> None:
        """Keep ``things`` alive at least until all work that was submitted to the stream so far is done. Does not
        wait."""
        with self._guard, self:
            while self._alive_until and self._alive_until[0][0].is_reached:
                self._alive_until.popleft()
            self._alive_until.append((self._stream_of(stream).mark(), things))

    def _stream_of(self, handle: int) -> Stream:
        """The stream with that handle."""
        return Stream(handle or LEGACY_STREAM, self.context, self._unused_events)

    # ---- other GPUs

    def can_reach(self, other: Device) -> bool:
        """Whether this GPU could read the memory of the GPU ``other`` directly, over NVLink or PCIe."""
        devices = [call("the GPU", "cuDeviceGet", gpu.ordinal)[0] for gpu in (self, other)]
        return bool(call("reach a GPU", "cuDeviceCanAccessPeer", *devices)[0])

    def reach(self, other: Device) -> None:
        """Let this GPU read the memory of the GPU ``other`` directly. If the driver refuses this access, copies go
        through the host."""
        with self:
            driver().cuCtxEnablePeerAccess(other.context, 0)

    # ---- memory

    def allocate(self, nbytes: int) -> Memory:
        """Uninitialised memory of ``nbytes`` bytes. The memory is allocated and freed in the order of this object's own
        stream.

        Raises LaunchError if the GPU does not have enough memory.
        """
        what, stream = f"{nbytes:,} bytes on {self.name}", self._stream.handle
        if self._pool is None:
            return self._allocated_without_stream(what, nbytes)
        (pointer,) = call(what, "cuMemAllocFromPoolAsync", max(1, nbytes), self._pool, stream)
        return Memory(Owned(int(pointer), lambda: driver().cuMemFreeAsync(pointer, stream)), nbytes)

    def reserve(self, nbytes: int) -> Memory:
        """Uninitialised memory that does not come from a pool. Other GPUs can access the memory, and ``close`` frees it
        at once.

        This GPU must be the thread's current one when ``close`` is called. Raises MemoryLimitError if the GPU does not
        have enough memory.
        """
        free = self.memory_bytes()[0]
        if nbytes > free:
            raise MemoryLimitError(f"{nbytes:,} bytes on {self.name} are needed, {free:,} are free")
        with self:
            return self._allocated_without_stream(f"{nbytes:,} bytes on {self.name}", nbytes)

    def _allocated_without_stream(self, what: str, nbytes: int) -> Memory:
        (pointer,) = call(what, "cuMemAlloc", max(1, nbytes))
        return Memory(Owned(int(pointer), lambda: call("free memory", "cuMemFree", pointer)), nbytes)

    @cached_property
    def _pool(self) -> Any:
        """The pool from which memory is allocated in the order of a stream; None on a GPU without memory pools. Freed
        memory stays in the pool for the next request, unless another library has set the pool's release threshold."""
        if not self._facts.has_pools:
            return None
        what, d = "the memory pool", driver()
        (pool,) = call(what, "cuDeviceGetMemPool", d.CUdevice(self.ordinal))
        threshold = d.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        if int(call(what, "cuMemPoolGetAttribute", pool, threshold)[0]) == 0:
            call(what, "cuMemPoolSetAttribute", pool, threshold, d.cuuint64_t(2**64 - 1))
        return pool

    def put(self, array: NDArray[Any]) -> Memory:
        """A copy of a NumPy array on the GPU, in C order."""
        memory = self.allocate(array.nbytes)
        self.copy_to(memory, array)
        return memory

    def copy_to(self, memory: Memory, array: NDArray[Any]) -> None:
        """Copy a NumPy array into GPU memory of the same number of bytes. Raises UsageError if the sizes differ."""
        host = np.ascontiguousarray(array)
        _check_size(host, memory)
        if host.nbytes:
            self._stream.copy_in(memory.pointer, host)
        self.wait("copy to the GPU")

    def get(self, memory: Memory, dtype: Any, shape: int | Sequence[int]) -> NDArray[Any]:
        """A copy of GPU memory as a NumPy array on the host. Raises UsageError if the sizes differ."""
        host = np.empty(shape, dtype)
        _check_size(host, memory)
        if host.nbytes:
            self._stream.copy_out(host, memory.pointer)
        self.wait("copy from the GPU")
        return host

    def fill(self, memory: Memory, byte: int) -> None:
        """Set every byte of the memory to ``byte``; 0xFF turns every floating-point number into a NaN. Does not
        wait."""
        if memory.nbytes:
            self._stream.fill(memory.pointer, byte, memory.nbytes)

    def clear(self, stream: int, address: int, rows: int, row_bytes: int, step_bytes: int) -> None:
        """Set rows of ``row_bytes`` bytes, which begin ``step_bytes`` apart, to zero, on the stream with that handle.
        Does not wait."""
        if is_recording(stream):
            recording_with(stream).add(None)  # work that is no launch, so the recording cannot be repeated
            return
        call("set memory to zero", "cuMemsetD2D8Async", address, step_bytes, 0, row_bytes, rows, stream)

    def copy(self, to: Memory, source: Memory) -> None:
        """Copy GPU memory into GPU memory of the same number of bytes. Does not wait. Raises UsageError if the sizes
        differ."""
        if to.nbytes != source.nbytes:
            raise UsageError(f"{source.nbytes} bytes cannot be copied into memory of {to.nbytes}: must be equal")
        if to.nbytes:
            self._stream.copy(to.pointer, source.pointer, to.nbytes)

    # ---- kernels

    def attributes(self, compiled: Compiled, entry: str) -> Attributes:
        """The driver's facts about a kernel; the kernel is loaded if needed. Raises LaunchError if the driver refuses
        the binary."""
        return self._kernels.attributes(compiled, entry)

    def set_variable(self, compiled: Compiled, entry: str, name: str, array: NDArray[Any]) -> None:
        """Copy an array to the start of a ``__constant__`` or ``__device__`` variable of the kernel ``entry``, for all
        later launches. Raises LaunchError if the binary has no such variable, and UsageError if the variable has fewer
        bytes."""
        address, nbytes = self._kernels.variable(compiled, entry, name)
        host = np.ascontiguousarray(array)
        if host.nbytes > nbytes:
            raise UsageError(f"{compiled.name}: variable {name} has {nbytes} bytes, given {host.nbytes}")
        self._stream.copy_in(address, host)
        self.wait(f"copy to variable {name}")

    def launch(
        self, compiled: Compiled, entry: str, grid: Extent, block: Extent, args: Sequence[Any], shared_bytes: int = 0
    ) -> None:
        """Run the kernel ``entry`` once and wait until it has ended.

        ``grid`` is in blocks and ``block`` in threads; each is up to three numbers. ``shared_bytes`` are bytes of
        dynamic shared memory of a block, which may exceed 48 KiB. ``args`` are ``Memory`` for pointers, and otherwise
        numbers, which are converted to the width of the kernel's parameter. Raises LaunchError with the cause if the
        GPU refuses or stops the kernel, and UsageError or OperandError for arguments that do not fit.
        """
        self.submit(compiled, entry, grid, block, args, shared_bytes)
        self.wait(f"{compiled.name}: {entry}")

    def submit(
        self, compiled: Compiled, entry: str, grid: Extent, block: Extent, args: Sequence[Any], shared_bytes: int = 0
    ) -> None:
        """Like ``launch``, without waiting. An error that stops the kernel is raised by the next ``wait``."""
        self.prepare(compiled, entry, grid, block, args, shared_bytes)()

    def prepare(
        self, compiled: Compiled, entry: str, grid: Extent, block: Extent, args: Sequence[Any], shared_bytes: int = 0
    ) -> Submission:
        """A launch that is checked when it is prepared. Each call of the result submits the launch once, which takes
        microseconds.

        Arguments may also be ``Mapped``, or structures as their bytes; then all numbers must be integers."""
        if any(isinstance(arg, Mapped | bytes) for arg in args):
            return functools.partial(
                self._kernels.tensor_map_launcher(compiled, entry, grid, block, args, shared_bytes), self.stream
            )
        launch = self._kernels.launcher(compiled, entry, grid, block, shared_bytes)
        return functools.partial(launch, self.stream, *self._kernels.arguments(compiled, entry, args))

    def launcher(self, compiled: Compiled, entry: str, grid: Extent, block: Extent, shared_bytes: int = 0) -> Launcher:
        """A launch whose size is checked when it is prepared. Each call ``launch(stream, *args)`` submits the launch
        and does not wait.

        ``stream`` is the handle of any stream of this GPU. Arguments are not checked: an address must be an int, and a
        number must be a NumPy scalar as wide as the kernel's parameter. This GPU must be the thread's current one.
        """
        return self._kernels.launcher(compiled, entry, grid, block, shared_bytes)

    def boxed_launcher(
        self,
        compiled: Compiled,
        entry: str,
        size: LaunchSize,
        operands: Sequence[BoxedOperand],
        structure: bytes,
    ) -> BoxedLauncher:
        """A launch of a kernel that takes tensor maps of ``operands``, addresses, and a structure, which is given as
        its bytes."""
        return self._kernels.boxed_launcher(compiled, entry, size, operands, structure)

    def replay(
        self, submit: Callable[..., None], alike: Sequence[int], stream: int, early: bool = False
    ) -> Replay | None:
        """The launches of ``submit(*addresses, stream)`` as one call, for addresses that are equal to ``alike`` modulo
        4,096. The call is fastest on the ``stream`` that is given. Returns None if ``submit`` submits anything but
        launches, or if the arguments of a launch cannot be recorded.

        ``submit`` is called now, to record its launches. The launches must depend on nothing but the addresses. For
        ``early`` see ``Replay``.
        """
        try:
            with self:
                recording = recorded(submit, alike)
                return Replay(recording, alike, int(self.context), stream, early) if recording.complete else None
        except LaunchError:
            return None
