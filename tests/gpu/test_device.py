"""The GPU's wrapper: what it refuses and how it says so. A stand-in plays the driver, so that this runs without a GPU;
``record_counters.py`` launches the same refusals on a real one (``REFUSED``).
"""

from __future__ import annotations

import ctypes
import doctest
import itertools
import weakref
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.errors import LaunchError, MemoryLimitError, OperandError, TilewrightError, UnavailableError, UsageError
from tilewright.gpu.runtime import device as module
from tilewright.gpu.runtime import driver, memory
from tilewright.gpu.runtime import launch as launching
from tilewright.gpu.runtime import memory as streaming
from tilewright.gpu.runtime.device import Device, gpu_at, open_device
from tilewright.gpu.runtime.driver import DeviceFacts
from tilewright.gpu.runtime.launch import extent
from tilewright.gpu.runtime.memory import HostPages, Memory
from tilewright.gpu.runtime.nvrtc import Compiled

#: Bytes of the kernel's parameters.
WIDTHS = (8, 4, 4, 2)
BINARY = Compiled("k.cu", "sm_90", "", b"cubin", "")


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1


class Stand:
    """A GPU of numbers: remembers its launches; ``fails`` maps what to do to the error it ends with."""

    def __init__(self, **fails: str) -> None:
        self.fails, self.launches, self.shared, self.calls = fails, [], [], []  # type: ignore[var-annotated]
        self.events: list[int] = []
        self.reached: set[int] = set()
        self.current: list[int] = []
        self.streams: list[int] = []
        self.status = Status.CUDA_SUCCESS
        self.cluster = 0  # blocks of a cluster, with which the kernel was compiled

    def do(self, what: str, *answer: Any) -> tuple[Any, ...]:
        """A function of the driver's bindings: the error that it is to fail with, or what was asked for."""
        return (SimpleNamespace(name=self.fails[what]),) if what in self.fails else (Status.CUDA_SUCCESS, *answer)

    def launched(self, _function: int, *given: int) -> tuple[Any]:
        """The driver's ``cuLaunchKernel``: a size, a stream, and where the addresses of the arguments are."""
        *size, shared_bytes, stream, address, _ = given
        if "launch" in self.fails:
            return (SimpleNamespace(name=self.fails["launch"]),)
        places = (ctypes.c_void_p * len(WIDTHS)).from_address(address)
        args = [int.from_bytes(ctypes.string_at(at, width), "little") for at, width in zip(places, WIDTHS, strict=True)]
        self.streams.append(stream)
        config = SimpleNamespace(grid=tuple(size[:3]), block=tuple(size[3:]), shmem_size=shared_bytes)
        self.launches.append((config, tuple(args)))
        return (Status.CUDA_SUCCESS,)

    def new_event(self, flags: int) -> tuple[Any, int]:
        self.events.append(flags)
        return Status.CUDA_SUCCESS, len(self.events) - 1

    def call(self, *args: Any, answer: tuple[Any, ...] = ()) -> tuple[Any, ...]:
        """A function of the driver's bindings: returns the status, then what was asked for."""
        self.calls.append(args)
        return (self.status, *answer)

    def open(self) -> Device:
        attributes = dict(  # noqa: C408
            NUM_REGS=40, SHARED_SIZE_BYTES=1024, LOCAL_SIZE_BYTES=0, MAX_THREADS_PER_BLOCK=256,
            MAX_DYNAMIC_SHARED_SIZE_BYTES=48 << 10, REQUIRED_CLUSTER_WIDTH=self.cluster,
        )  # fmt: skip
        streams = itertools.count(3)
        named = {f"CU_FUNC_ATTRIBUTE_{name}": name for name in (*attributes, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED")}
        facts = DeviceFacts(
            0,
            "Stand-in",
            "9.0",
            132,
            60 << 20,
            232_448,
            (1024,) * 3,
            (1024,) * 3,
            3_201_000,
            6144,
            "0000:17:00.0",
            True,
        )
        played = SimpleNamespace(
            CUresult=Status, CUdevice=int, CUfunction=int, cuLaunchKernel=self.launched, cuuint64_t=int,
            CUfunction_attribute=SimpleNamespace(**named),
            CUmemPool_attribute=SimpleNamespace(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD=4),
            cuLibraryLoadData=lambda code, *_: self.do("load", code),
            cuLibraryGetKernel=lambda library, name: (Status.CUDA_SUCCESS, 7),
            cuLibraryGetGlobal=lambda library, name: self.do(f"find {name.decode()}", 512, 8),
            cuKernelGetAttribute=lambda name, kernel, device: (Status.CUDA_SUCCESS, attributes[name]),
            cuKernelGetParamInfo=lambda kernel, i: (0, 0, WIDTHS[i]) if i < len(WIDTHS) else (1, 0, 0),
            cuKernelSetAttribute=lambda *args: (self.shared.append(args), (self.status,))[1],
            cuStreamCreateWithPriority=lambda flags, priority: (Status.CUDA_SUCCESS, next(streams)),
            cuStreamSynchronize=lambda stream: self.do("sync"),
            cuStreamWaitEvent=lambda stream, event, flags: self.call("order", event, stream),
            cuStreamDestroy=lambda stream: self.call("close", stream),
            cuEventCreate=self.new_event,
            cuEventRecord=lambda event, stream: self.call("record", event, stream),
            cuEventSynchronize=lambda event: self.call("wait for", event),
            cuEventQuery=lambda event: (0 if event in self.reached else 600,),
            cuEventElapsedTime=lambda start, end: self.call("time", start, end, answer=(1.5,)),
            cuDeviceGetMemPool=lambda device: (Status.CUDA_SUCCESS, 20),
            cuMemPoolGetAttribute=lambda pool, name: (Status.CUDA_SUCCESS, 1),
            cuMemAllocFromPoolAsync=lambda nbytes, pool, stream: self.do("allocate", 4096),
            cuMemFreeAsync=lambda pointer, stream: (Status.CUDA_SUCCESS,),
            cuMemcpyHtoDAsync=lambda *to: self.call("copy in", *to), cuMemcpyDtoHAsync=lambda *_: (self.status,),
            cuMemsetD8Async=lambda *args: self.call("fill", *args),
            cuMemcpyDtoDAsync=lambda *args: self.call("copy", *args),
            cuMemGetInfo=lambda: self.call("memory", answer=(30, 40)),
            cuMemAlloc=lambda nbytes: self.call("reserve", nbytes, answer=(8192,)),
            cuMemFree=lambda pointer: self.call("free", pointer),
            cuMemHostRegister=lambda *args: self.call("lock", *args),
            cuMemHostUnregister=lambda *args: self.call("unlock", *args),
            cuCtxGetCurrent=lambda: (Status.CUDA_SUCCESS, 55),
            cuCtxPushCurrent=lambda context: (self.current.append(context), (Status.CUDA_SUCCESS,))[1],
            cuCtxPopCurrent=lambda: self.current.pop(),
            cuDeviceGet=lambda ordinal: (Status.CUDA_SUCCESS, ordinal),
            cuDeviceCanAccessPeer=lambda *devices: self.call("can reach", *devices, answer=(1,)),
            cuCtxEnablePeerAccess=lambda *args: self.call("reach", *args),
        )  # fmt: skip
        driver.driver = launching.driver = module.driver = streaming.driver = lambda: played  # type: ignore[assignment]
        self.played, self.facts = played, facts
        return Device(facts, 55)


@pytest.fixture(autouse=True)
def restored_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """``Stand.open`` replaces it."""
    for user in (driver, launching, module, streaming):
        monkeypatch.setattr(user, "driver", user.driver)


def launch(stand: Stand, args: Any = (None, 1, 2.0, 3), grid: Any = 2, block: Any = 64, shared_bytes: int = 0) -> Any:
    gpu = stand.open()
    given = [gpu.allocate(16) if value is None else value for value in args]
    gpu.launch(BINARY, "k", grid, block, given, shared_bytes)
    return stand.launches[-1]


@pytest.mark.parametrize("which", [module, launching, memory, driver])
def test_doctests(which: Any) -> None:
    assert doctest.testmod(which).failed == 0


def test_arguments_take_the_width_of_the_parameter() -> None:
    config, args = launch(Stand(), (None, -1, 0.5, np.float16(1)), (2, 3), (32, 2))
    assert (config.grid, config.block, config.shmem_size) == ((2, 3, 1), (32, 2, 1), 0)
    assert args == (4096, 0xFFFFFFFF, np.float32(0.5).view(np.uint32), np.float16(1).view(np.uint16))


@pytest.mark.parametrize(
    ("args", "kind", "words"),
    [
        ((None, 1, 2), UsageError, "k takes 4 arguments, given 3"),
        ((None, None, 2.0, 3), OperandError, "argument 1 is memory, but the kernel takes 4 bytes there"),
        ((None, 1 << 32, 2.0, 3), OperandError, "argument 1 is 4294967296: the kernel takes 4 bytes"),
        ((None, 1, 2.0, -32769), OperandError, "argument 3 is -32769: the kernel takes 2 bytes"),
        ((None, np.zeros(3), 2.0, 3), OperandError, "argument 1 is a ndarray"),
        ((None, "1", 2.0, 3), OperandError, "argument 1 is a str"),
    ],
)
def test_arguments_that_do_not_fit(args: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        launch(Stand(), args)


def test_constants_of_a_kernel() -> None:
    stand = Stand(**{"find absent": "CUDA_ERROR_NOT_FOUND"})
    gpu = stand.open()
    gpu.set_variable(BINARY, "k", "factor", np.ones(2, np.float32))
    ((what, address, _, nbytes, _),) = stand.calls
    assert (what, address, nbytes) == ("copy in", 512, 8)
    with pytest.raises(UsageError, match="factor has 8 bytes, given 12"):
        gpu.set_variable(BINARY, "k", "factor", np.ones(3, np.float32))
    with pytest.raises(LaunchError, match=r"k, variable absent: .*CUDA_ERROR_NOT_FOUND"):
        gpu.set_variable(BINARY, "k", "absent", np.ones(1, np.float32))


def test_more_shared_memory_is_asked_for() -> None:
    stand = Stand()
    launch(stand, shared_bytes=48 << 10)
    assert stand.shared == []
    launch(stand, shared_bytes=100 << 10)
    assert stand.shared == [("MAX_DYNAMIC_SHARED_SIZE_BYTES", 100 << 10, 7, 0)]
    stand.status = Status.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(LaunchError, match="CUDA_ERROR_INVALID_VALUE"):
        launch(stand, shared_bytes=100 << 10)


@pytest.mark.parametrize(
    ("cluster", "asked"), [(0, []), (8, []), (16, [("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1, 7, 0)])]
)
def test_clusters_that_not_every_card_takes_are_asked_for(cluster: int, asked: list[tuple[int, ...]]) -> None:
    stand = Stand()
    stand.cluster = cluster
    launch(stand)
    assert stand.shared == asked


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"block": 257}, "257 threads are too many: with 40 registers each, .* a block can have 256"),
        ({"grid": (1, 1025)}, r"a grid can be at most \(1024, 1024, 1024\)"),
        ({"shared_bytes": 231_425}, "too much shared memory: 1024 bytes static and 231425 dynamic, .* can have 232448"),
    ],
)
def test_launches_that_are_refused_here(how: dict[str, Any], words: str) -> None:
    stand = Stand()
    with pytest.raises(LaunchError, match=words):
        launch(stand, **how)
    assert stand.launches == []


@pytest.mark.parametrize(
    ("step", "error", "words"),
    [
        ("sync", "CUDA_ERROR_ILLEGAL_ADDRESS: words", "k.cu: k: it reads or writes memory that is not there .CUDA_ERR"),
        ("sync", "CUDA_ERROR_MISALIGNED_ADDRESS", "no multiple of the access"),
        ("launch", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", r"k, \(2, 1, 1\) blocks of \(64, 1, 1\) threads, .*: it takes"),
        ("launch", "CUDA_ERROR_NEW: of a later driver", "dynamic shared memory: CUDA_ERROR_NEW: of a later driver"),
        ("load", "CUDA_ERROR_NO_BINARY_FOR_GPU", "compiled for sm_90, on compute capability 9.0: .* another architecture"),
        ("load", "CUDA_ERROR_NOT_FOUND: no such kernel", "k.cu: k, .*: CUDA_ERROR_NOT_FOUND"),
        ("allocate", "CUDA_ERROR_OUT_OF_MEMORY", "16 bytes on Stand-in: the GPU's memory is full"),
    ],
)  # fmt: skip
def test_every_failure_is_one_error(step: str, error: str, words: str) -> None:
    with pytest.raises(LaunchError, match=words) as raised:
        launch(Stand(**{step: error}))
    assert isinstance(raised.value, TilewrightError)


def test_copies_of_another_size_are_refused() -> None:
    gpu = Stand().open()
    with gpu.allocate(16) as memory:
        assert isinstance(memory, Memory)
        gpu.copy_to(memory, np.zeros((2, 2), np.float32))
        assert gpu.get(memory, np.float32, (2, 2)).shape == (2, 2)
        with pytest.raises(UsageError, match="the array has 20 bytes, the memory on the GPU 16"):
            gpu.copy_to(memory, np.zeros(5, np.float32))
        with pytest.raises(UsageError, match="the array has 12 bytes"):
            gpu.get(memory, np.float32, 3)


def test_a_copy_that_fails() -> None:
    stand = Stand()
    gpu = stand.open()
    memory = gpu.allocate(4)
    stand.status = Status.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(LaunchError, match="copy to the GPU: CUDA_ERROR_INVALID_VALUE"):
        gpu.copy_to(memory, np.zeros(1, np.float32))
    with pytest.raises(LaunchError, match="copy from the GPU: CUDA_ERROR_INVALID_VALUE"):
        gpu.get(memory, np.float32, 1)


def test_parts_of_memory() -> None:
    gpu = Stand().open()
    whole = gpu.allocate(100)
    part = whole.part(10, 20)
    assert (part.pointer, part.nbytes) == (whole.pointer + 10, 20)
    assert part.part(20, 0).pointer == whole.pointer + 30
    for start, nbytes in ((-1, 5), (0, 101), (90, 11), (5, -1)):
        with pytest.raises(UsageError, match="not lie within the 100 bytes"):
            whole.part(start, nbytes)
    part.close()  # does not free what it does not own


def test_fill_and_copy_are_queued() -> None:
    stand = Stand()
    gpu = stand.open()
    memory = gpu.allocate(100)
    gpu.fill(memory.part(8, 16), 0xFF)
    gpu.copy(memory.part(0, 4), memory.part(96, 4))
    gpu.fill(memory.part(0, 0), 0)
    assert stand.calls == [("fill", 4104, 0xFF, 16, 3), ("copy", 4096, 4192, 4, 3)]
    with pytest.raises(UsageError, match="8 bytes cannot be copied into memory of 4"):
        gpu.copy(memory.part(0, 4), memory.part(0, 8))
    stand.status = Status.CUDA_ERROR_INVALID_VALUE
    for refused in (lambda: gpu.fill(memory, 0), lambda: gpu.copy(memory, memory), gpu.memory_bytes):
        with pytest.raises(LaunchError, match="CUDA_ERROR_INVALID_VALUE"):
            refused()


def test_a_prepared_launch_is_checked_once_and_made_as_often_as_wanted() -> None:
    stand = Stand()
    gpu = stand.open()
    submit = gpu.prepare(BINARY, "k", 2, 64, (gpu.allocate(16), 1, 2.0, 3))
    assert stand.launches == []
    submit()
    submit()
    assert len(stand.launches) == 2
    assert stand.launches[0] == stand.launches[1]
    stand.fails["launch"] = "CUDA_ERROR_ILLEGAL_ADDRESS"
    with pytest.raises(LaunchError, match="memory that is not there"):
        submit()
    with pytest.raises(LaunchError, match="257 threads are too many"):
        gpu.prepare(BINARY, "k", 2, 257, (gpu.allocate(16), 1, 2.0, 3))


def test_the_timer_asks_the_gpus_own_clock() -> None:
    stand = Stand()
    timer = stand.open().timer()
    assert stand.events == [0, 0], "a thread that waits for them spins"
    timer.start()
    assert timer.stop() == 1.5e-3
    assert stand.calls == [("record", 0, 3), ("record", 1, 3), ("wait for", 1), ("time", 0, 1)]
    stand.status = Status.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(LaunchError, match="CUDA_ERROR_INVALID_VALUE"):
        timer.stop()


def test_streams_and_events() -> None:
    stand = Stand()
    gpu = stand.open()
    first, second = gpu.new_stream(), gpu.new_stream()
    assert (first.handle, second.handle) == (4, 5)
    event = first.mark()
    second.after(event)
    event.wait()
    assert second.mark().since(event) == 1.5e-3
    second.close()
    assert stand.calls == [
        ("record", 0, 4), ("order", 0, 5), ("wait for", 0), ("record", 1, 5), ("time", 0, 1), ("close", 5)
    ]  # fmt: skip
    assert stand.events[0] == 1, "a thread that waits for it sleeps"
    first.mark()
    assert len(stand.events) == 2, "an event that nobody needs any more is used again"
    stand.status = Status.CUDA_ERROR_INVALID_VALUE
    for refused in (first.mark, event.wait, lambda: second.after(event), lambda: event.since(event), first.close):
        with pytest.raises(LaunchError, match="CUDA_ERROR_INVALID_VALUE"):
            refused()


def test_launches_go_to_the_stream_with_a_handle() -> None:
    stand = Stand()
    gpu = stand.open()
    stream = gpu.new_stream()
    launch = gpu.launcher(BINARY, "k", 2, 64)
    for handle in (stream.handle, 99, 0):
        launch(handle, 1, 2, 3, np.int16(-4))
    assert stand.streams == [4, 99, 0]
    assert stand.launches[-1][1] == (1, 2, 3, 0xFFFC)


def test_streams_of_libraries_are_ordered_while_the_gpu_is_current() -> None:
    stand = Stand()
    gpu = stand.open()
    gpu.order(7, 7)
    assert stand.calls == []
    gpu.order(0, 7)
    assert stand.calls == [("record", 0, 1), ("order", 0, 7)], "1 is the default stream of all threads"
    assert stand.current == []


def test_things_live_until_their_stream_is_done() -> None:
    class Thing:
        pass

    stand = Stand()
    gpu, things = stand.open(), [Thing(), Thing()]
    alive = list(map(weakref.ref, things))
    for stream in (7, 0):
        gpu.keep_until_now(stream, things.pop())
    assert stand.calls == [("record", 0, 7), ("record", 1, 1)]
    assert all(thing() for thing in alive)
    stand.reached.add(0)
    gpu.keep_until_now(7, None)
    assert [thing() is None for thing in alive] == [False, True]


def test_asking_whether_another_gpu_is_reached_changes_nothing() -> None:
    stand = Stand()
    gpu, other = stand.open(), stand.open()
    other.ordinal = 1
    assert gpu.can_reach(other)
    assert stand.calls == [("can reach", 0, 1)]
    gpu.reach(other)
    assert stand.calls[1:] == [("reach", 55, 0)]
    assert stand.current == []


def test_reserved_memory() -> None:
    stand = Stand()
    gpu = stand.open()
    with gpu.reserve(20) as memory:
        assert (memory.pointer, memory.nbytes) == (8192, 20)
    assert stand.calls == [("memory",), ("reserve", 20), ("free", 8192)]
    with pytest.raises(MemoryLimitError, match="31 bytes on Stand-in are needed, 30 are free"):
        gpu.reserve(31)


def test_pages_are_locked_once_and_cached_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand()
    stand.open()
    pages = HostPages()
    first = pages.take(1 << 16)
    first[:] = 7
    address = first.ctypes.data
    for _ in range(2):
        pages.lock(first)
    assert stand.calls == [("lock", address, 1 << 16, 1)]
    pages.give_back(first)
    assert pages.take(1 << 15).nbytes == 1 << 15, "others are of another size"
    again = pages.take_locked(1 << 16)
    assert (again.ctypes.data, len(stand.calls)) == (address, 1), "locked still"
    monkeypatch.setattr(HostPages, "MOST_CACHED", (1 << 16) - 1)
    pages.give_back(again)
    assert stand.calls[1:] == [("unlock", address)]
    other = pages.take_locked(100)
    pages.give_back(other, cache=False)
    assert [call[0] for call in stand.calls[2:]] == ["lock", "unlock"]
    stand.status = Status.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(LaunchError, match="100 bytes of page-locked memory: CUDA_ERROR_INVALID_VALUE"):
        pages.take_locked(100)


def test_facts() -> None:
    gpu = Stand().open()
    assert (gpu.sms, gpu.l2_bytes, gpu.pci_bus_id, gpu.stream) == (132, 60 << 20, "0000:17:00.0", 3)
    assert gpu.memory_bytes() == (30, 40)


@pytest.mark.parametrize(
    ("capability", "arch"),
    [("7.5", "sm_75"), ("8.0", "sm_80"), ("9.0", "sm_90a"), ("10.0", "sm_100a"), ("12.1", "sm_121a")],
)
def test_what_to_compile_for(capability: str, arch: str) -> None:
    gpu = Stand().open()
    gpu.capability = capability
    assert gpu.arch == arch


@pytest.mark.parametrize("value", [(), (1, 2, 3, 4), 0, (2, -1), 1.5, (2.5, 1)])
def test_extents_that_are_none(value: Any) -> None:
    with pytest.raises(UsageError, match="grid must be one to three positive numbers"):
        extent("grid", value)


def test_a_gpu_is_opened_once_and_the_context_before_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand()
    stand.open()
    contexts, woken = [11], []

    def retained(ordinal: int) -> tuple[Any, int]:
        assert woken == [ordinal, "waited"], "the context was made while the bindings were imported"
        stand.calls.append(("open", ordinal))
        return Status.CUDA_SUCCESS, 55

    waking = SimpleNamespace(join=lambda: woken.append("waited"))
    monkeypatch.setattr(module, "wake", lambda ordinal: (woken.append(ordinal), waking)[1])
    monkeypatch.setattr(DeviceFacts, "of", lambda ordinal: stand.facts)
    stand.played.cuInit, stand.played.cuDevicePrimaryCtxRetain = lambda flags: (Status.CUDA_SUCCESS,), retained
    stand.played.cuCtxGetCurrent = lambda: (Status.CUDA_SUCCESS, contexts[-1])
    stand.played.cuCtxSetCurrent = lambda context: (contexts.append(context), (Status.CUDA_SUCCESS,))[1]
    monkeypatch.setattr(module, "_devices", {})
    gpu = gpu_at(0)
    assert contexts == [11, 55, 11], "the context that was current is current again"
    assert gpu_at(0) is gpu is open_device(0)
    assert contexts[-1] == gpu.context == 55
    assert stand.calls == [("open", 0)]


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(module, "_devices", {})
    monkeypatch.setattr(driver.importlib, "import_module", absent)
    driver.driver.cache_clear()
    with pytest.raises(UnavailableError, match=r"GPU 0 cannot be used: No module named 'cuda.bindings.+; pip install"):
        open_device()
