"""The GPU's wrapper: what it refuses and how it says so. A stand-in plays ``cuda.core``, so that this runs without a GPU;
``record_counters.py`` launches the same refusals on a real one (``REFUSED``).
"""

from __future__ import annotations

import ctypes
import doctest
import itertools
import sys
import weakref
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.errors import LaunchError, MemoryLimitError, OperandError, TilewrightError, UnavailableError, UsageError
from tilewright.runtime.gpu import device as module
from tilewright.runtime.gpu import driver, memory
from tilewright.runtime.gpu import launch as launching
from tilewright.runtime.gpu.device import Device, gpu_at, open_device
from tilewright.runtime.gpu.launch import extent
from tilewright.runtime.gpu.memory import HostPages, Memory
from tilewright.runtime.gpu.nvrtc import Compiled

#: Bytes of the kernel's parameters.
WIDTHS = (8, 4, 4, 2)
BINARY = Compiled("k.cu", "sm_90", "", b"cubin", "")


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1


class StandEvent:
    def __init__(self, stand: Stand, **options: Any) -> None:
        self.options, self.stand, self.number = options, stand, len(stand.events)
        stand.events.append(self)
        self.is_done = False

    def sync(self) -> None:
        self.stand.note("wait for", self.number)

    def __sub__(self, earlier: StandEvent) -> float:
        self.stand.note("time", earlier.number, self.number)
        return 1.5


class StandStream:
    def __init__(self, stand: Stand, handle: int) -> None:
        self.stand, self.handle = stand, handle

    def sync(self) -> None:
        self.stand.do("sync")

    def record(self, event: StandEvent) -> None:
        self.stand.note("record", event.number, self.handle)

    def wait(self, other: Any) -> None:
        self.stand.note("order", getattr(other, "handle", None), self.handle)

    def close(self) -> None:
        self.stand.note("close", self.handle)


class Stand:
    """A GPU of numbers: remembers its launches; ``fails`` maps what to do to the error it ends with."""

    def __init__(self, **fails: str) -> None:
        self.fails, self.launches, self.shared, self.calls = fails, [], [], []  # type: ignore[var-annotated]
        self.events: list[StandEvent] = []
        self.current: list[int] = []
        self.streams: list[int] = []
        self.status = Status.CUDA_SUCCESS
        self.cluster = 0  # blocks of a cluster, with which the kernel was compiled

    def do(self, what: str, result: Any = None) -> Any:
        if what in self.fails:
            raise RuntimeError(self.fails[what])
        return result

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

    def note(self, *what: Any) -> None:
        """Something asked of ``cuda.core``, which raises its errors."""
        self.calls.append(what)
        if self.status:
            raise RuntimeError(self.status.name)

    def call(self, *args: Any, answer: tuple[Any, ...] = ()) -> tuple[Any, ...]:
        """A function of the driver's bindings: returns the status, then what was asked for."""
        self.calls.append(args)
        return (self.status, *answer)

    def open(self) -> Device:
        known = SimpleNamespace(
            num_regs=40, shared_size_bytes=1024, local_size_bytes=0, max_threads_per_block=256,
            max_dynamic_shared_size_bytes=48 << 10, required_cluster_width=self.cluster,
        )  # fmt: skip
        kernel = SimpleNamespace(attributes={}, arguments_info=[(0, width) for width in WIDTHS], handle=7)
        limits = {f"max_{name}_dim_{axis}": 1024 for name in ("block", "grid") for axis in "xyz"}
        streams = itertools.count(3)
        gpu = SimpleNamespace(
            create_stream=lambda: StandStream(self, next(streams)), create_event=lambda options: StandEvent(self, **options),
            compute_capability=(9, 0), name="Stand-in", device_id=0,
            properties=SimpleNamespace(
                **limits, max_shared_memory_per_block_optin=232_448, multiprocessor_count=132, l2_cache_size=60 << 20,
                memory_clock_rate=3_201_000, global_memory_bus_width=6144,
            ),
            pci_bus_id="0000:17:00.0",
            allocate=lambda size, stream: self.do("allocate", SimpleNamespace(handle=4096, close=lambda: None)),
        )  # fmt: skip
        kernel.attributes = type("ByDevice", (), {"__getitem__": lambda _, which: known})()
        code = SimpleNamespace(get_kernel=lambda entry: self.do("load", kernel))
        core = SimpleNamespace(
            ObjectCode=SimpleNamespace(from_cubin=lambda cubin, name: code), LaunchConfig=SimpleNamespace,
            EventOptions=dict, Stream=SimpleNamespace(from_handle=lambda handle: StandStream(self, handle)),
        )  # fmt: skip
        played = SimpleNamespace(
            CUresult=Status, CUdevice=int, CUfunction=int, cuLaunchKernel=self.launched,
            CUfunction_attribute=SimpleNamespace(
                CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
                CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED=14),
            cuKernelSetAttribute=lambda *args: (self.shared.append(args), (self.status,))[1],
            cuMemcpyHtoDAsync=lambda *_: (self.status,), cuMemcpyDtoHAsync=lambda *_: (self.status,),
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
        driver.driver = launching.driver = module.driver = lambda: played  # type: ignore[assignment]
        self.core, self.played, self.gpu = core, played, gpu
        return Device(core, gpu)


@pytest.fixture(autouse=True)
def restored_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """``Stand.open`` replaces it."""
    for user in (driver, launching, module):
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


def test_more_shared_memory_is_asked_for() -> None:
    stand = Stand()
    launch(stand, shared_bytes=48 << 10)
    assert stand.shared == []
    launch(stand, shared_bytes=100 << 10)
    assert stand.shared == [(8, 100 << 10, 7, 0)]
    stand.status = Status.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(LaunchError, match="CUDA_ERROR_INVALID_VALUE"):
        launch(stand, shared_bytes=100 << 10)


@pytest.mark.parametrize(("cluster", "asked"), [(0, []), (8, []), (16, [(14, 1, 7, 0)])])
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
    assert [event.options for event in stand.events] == [{"timing_enabled": True}] * 2
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
        ("record", 0, 4), ("order", None, 5), ("wait for", 0), ("record", 1, 5), ("time", 0, 1), ("close", 5)
    ]  # fmt: skip
    assert stand.events[0].options == {"timing_enabled": True, "blocking_sync": True}
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
    assert stand.calls == [("order", 1, 7)], "0 is the default stream of all threads"
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
    stand.events[0].is_done = True
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

    def make(ordinal: int) -> Any:
        assert woken == [ordinal, "waited"], "the context was made while cuda.core was imported"
        stand.calls.append(("open", ordinal))
        return stand.gpu

    stand.core.Device, stand.gpu.set_current = make, lambda: contexts.append(55)
    waking = SimpleNamespace(join=lambda: woken.append("waited"))
    monkeypatch.setattr(module, "wake", lambda ordinal: (woken.append(ordinal), waking)[1])
    stand.played.cuCtxGetCurrent = lambda: (Status.CUDA_SUCCESS, contexts[-1])
    stand.played.cuCtxSetCurrent = lambda context: (contexts.append(context), (Status.CUDA_SUCCESS,))[1]
    monkeypatch.setitem(sys.modules, "cuda.core", stand.core)
    monkeypatch.setattr(module, "_open", {})
    gpu = gpu_at(0)
    assert contexts == [11, 55, 11], "the context that was current is current again"
    assert gpu_at(0) is gpu is open_device(0)
    assert contexts[-1] == gpu.context == 55
    assert stand.calls == [("open", 0)]


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(module, "_open", {})
    monkeypatch.setattr(module.importlib, "import_module", absent)
    with pytest.raises(UnavailableError, match=r"GPU 0 cannot be used: No module named 'cuda.core'; pip install"):
        open_device()
