"""PyTorch, CuPy and an unknown library, as far as a product asks them, with arrays on a simulated GPU that executes kernels.

``install`` puts them where the package looks: in ``sys.modules``, and in place of the driver.
"""

from __future__ import annotations

import contextlib
import functools
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from support import ptx_alone
from support.simulated_gpu import BASE, SimulatedGpu
from tilewright.errors import LaunchError
from tilewright.gpu.arrays import gpu_array, groups, host_libraries, libraries, lists, matmul, plan, repeated
from tilewright.gpu.arrays.dtypes import DTYPES, RESULTS
from tilewright.gpu.runtime.memory import Memory
from tilewright.kernels.catalog import cuda_catalog


class Gpu(SimulatedGpu):
    """Launches are done at once, each on a stream that is remembered: by NumPy, or where ``executes`` by the microscope.
    Remembers which streams waited for which, and what was kept."""

    stream, executes = 900, False

    def __init__(self, nbytes: int = 1 << 21, ordinal: int = 0) -> None:
        super().__init__(nbytes)
        self.ordinal = ordinal
        self.launches: list[tuple[str, int]] = []
        self.orders: list[tuple[int, int]] = []
        self.kept: list[Any] = []
        self.current = self.replays = 0
        self.recorded: list[Any] = []

    def __enter__(self) -> Gpu:
        self.current += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.current -= 1

    def order(self, earlier: int, later: int) -> None:
        if earlier != later:
            self.orders.append((earlier, later))

    def keep_until_now(self, stream: int, things: Any) -> None:
        self.kept.append((stream, things))

    def launcher(self, compiled: Any, entry: str, grid: Any, block: Any, shared_bytes: int = 0) -> Any:
        def launch(stream: int, *args: Any) -> None:
            if stream < 0:
                self.recorded.append((launch, args))
                return
            self.launches.append((entry, stream))
            if not self.executes and not entry.startswith(("add_", "write_pairs", "mirror")):
                self.multiplied(entry, *args)
                return
            given = [Memory(SimpleNamespace(handle=x), 0) if type(x) is int else x for x in args]
            self.prepare(compiled, entry, grid, block, given, shared_bytes)()
            self.wait()

        return launch

    def boxed_launcher(self, compiled: Any, entry: str, size: Any, operands: Any, structure: bytes) -> Any:
        """Executed by the microscope, always."""

        def launch(stream: int, mapped: Any, pointers: Any, other: bytes = structure) -> None:
            if stream < 0:
                self.recorded.append((launch, (mapped, pointers)))
                return
            self.launches.append((entry, stream))
            self.run_boxed(compiled, entry, size, operands, other, mapped, pointers)

        return launch

    def replay(self, submit: Any, alike: Any, stream: int, early: bool = False) -> Any:  # noqa: ARG002
        """Records launches by addresses that no array has, as ``Device.replay`` does, and makes them with others."""
        apart, self.recorded = 1 << 44, []
        submit(*((i + 1) * apart + address % 4096 for i, address in enumerate(alike)), -1)
        calls, self.recorded = self.recorded, []

        def run(*given: int) -> int:
            *addresses, stream = given

            def moved(value: Any) -> Any:
                if isinstance(value, tuple | list):
                    return tuple(map(moved, value))
                number = (value + apart // 2) // apart - 1 if type(value) is int else -1
                if not 0 <= number < len(addresses):
                    return value
                return addresses[number] + value - (number + 1) * apart - alike[number] % 4096

            self.replays += 1
            for launch, args in calls:
                launch(stream, *map(moved, args))
            return 0

        return SimpleNamespace(run=run, error=None)

    def clear(self, stream: int, address: int, rows: int, row_bytes: int, step_bytes: int) -> None:
        if stream < 0:
            self.recorded.append((self.clear, (address, rows, row_bytes, step_bytes)))
            return
        for row in range(rows):
            self.heap[address - BASE + row * step_bytes :][:row_bytes] = 0
        self.launches.append(("clear", stream))

    def seen(self, pointer: int, dtype: str, shape: tuple[int, int], strides: tuple[int, int]) -> np.ndarray:
        size = np.dtype(dtype).itemsize
        start = self.heap[pointer - BASE :][:size].view(dtype)
        return np.lib.stride_tricks.as_strided(start, shape, [s * size for s in strides])

    def multiplied(self, entry: str, a: int, b: int, c: int, m: int, n: int, k: int) -> None:
        dtype = cuda_catalog()[f"cuda/{entry}"].dtypes[0]
        x, y = self.seen(a, dtype, (m, k), (k, 1)), self.seen(b, dtype, (k, n), (n, 1))
        self.seen(c, dtype, (m, n), (n, 1))[...] = x @ y


class Storage:
    """Elements on the simulated GPU, as NumPy sees them: views of them are views of its heap."""

    def __init__(self, gpu: Gpu, shape: tuple[int, ...], dtype: Any) -> None:
        self.gpu, dtype = gpu, np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        try:
            self.memory = gpu.allocate(max(1, count) * dtype.itemsize)
        except LaunchError as error:
            raise OutOfMemoryError(str(error)) from None
        self.view = gpu.bytes_of(self.memory).view(dtype)[:count].reshape(shape)

    def __del__(self) -> None:
        if hasattr(self, "memory"):
            self.memory.close()


class OutOfMemoryError(RuntimeError):
    """The libraries' own."""


def address(gpu: Gpu, view: np.ndarray) -> int:
    return BASE + view.__array_interface__["data"][0] - gpu.heap.__array_interface__["data"][0]


class Array:
    """What all of them have: a view of the heap and what keeps it."""

    def __init__(self, view: np.ndarray, storage: Storage) -> None:
        self.view, self.storage, self.gpu = view, storage, storage.gpu

    @classmethod
    def of(cls, gpu: Gpu, values: np.ndarray) -> Any:
        storage = Storage(gpu, values.shape, values.dtype)
        storage.view[...] = values
        return cls(storage.view, storage)

    def like(self, view: np.ndarray) -> Any:
        return type(self)(view, self.storage)

    def __getitem__(self, index: Any) -> Any:
        return self.like(self.view[index])

    def __iter__(self) -> Any:
        return iter([self.like(each) for each in self.view])

    @property
    def shape(self) -> tuple[int, ...]:
        return self.view.shape

    def reshape(self, shape: tuple[int, ...]) -> Any:
        return self.like(self.view.reshape(shape))

    @property
    def elements(self) -> tuple[int, ...]:
        return tuple(s // self.view.itemsize for s in self.view.strides)


class Tensor(Array):
    is_cuda, requires_grad, layout = True, False, "strided"
    versions, conjugated = 0, False

    @property
    def dtype(self) -> str:
        return f"torch.{self.view.dtype}"

    def stride(self) -> tuple[int, ...]:
        return self.elements

    def data_ptr(self) -> int:
        return address(self.gpu, self.view)

    def get_device(self) -> int:
        return self.gpu.ordinal

    @property
    def device(self) -> tuple[str, int]:
        return ("cuda" if self.is_cuda else "cpu"), self.gpu.ordinal

    def is_neg(self) -> bool:
        return False

    def is_conj(self) -> bool:
        return self.conjugated

    def resolve_conj(self) -> Tensor:
        return Tensor.of(self.gpu, self.view.conj())

    def is_inference(self) -> bool:
        return False

    def transpose(self, i: int, j: int) -> Tensor:
        return self.like(self.view.swapaxes(i, j))


class CupyArray(Array):
    __module__ = "cupy"

    @property
    def dtype(self) -> np.dtype:
        return self.view.dtype

    @property
    def itemsize(self) -> int:
        return self.view.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        return self.view.strides

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=address(self.gpu, self.view))

    @property
    def device(self) -> Any:
        return SimpleNamespace(id=self.gpu.ordinal)

    def swapaxes(self, i: int, j: int) -> CupyArray:
        return self.like(self.view.swapaxes(i, j))


class Unknown(Array):
    """Speaks DLPack and nothing else; remembers the streams that it was asked for."""

    asked: list[Any]

    def __dlpack_device__(self) -> tuple[int, int]:
        return gpu_array.CUDA, self.gpu.ordinal

    def __dlpack__(self, *, stream: Any = None) -> Any:
        self.asked = [*getattr(self, "asked", []), stream]
        assert self.view.flags.c_contiguous
        return gpu_array.make_capsule(
            address(self.gpu, self.view), self.shape, self.view.dtype.name, self.gpu.ordinal, self
        )


def torch_module(gpus: list[Gpu], grad: bool = True) -> Any:
    torch: Any = ModuleType("torch")
    torch.Tensor, torch.strided = Tensor, "strided"
    for name in (*DTYPES, *RESULTS, "uint8", "int16"):
        setattr(torch, name, f"torch.{name}")
    torch._C = SimpleNamespace(
        _cuda_getCurrentRawStream=lambda device: torch.current + device,
        _cuda_getDevice=lambda: torch.gpu,
        _dynamo=SimpleNamespace(guards=SimpleNamespace(_empty_strided_cuda=lambda *x: empty_strided(*x))),
    )
    torch.current, torch.gpu = 100, 0
    torch.is_grad_enabled = lambda: torch.grad
    torch.grad = grad
    torch.device = lambda kind, number: (kind, number)
    torch.cuda = SimpleNamespace(OutOfMemoryError=OutOfMemoryError, device_count=lambda: len(gpus))
    torch.autograd = SimpleNamespace(
        graph=SimpleNamespace(increment_version=lambda x: setattr(x, "versions", x.versions + 1))
    )

    def empty(shape: Any, dtype: str, device: Any) -> Tensor:
        storage = Storage(gpus[device[1]], tuple(shape), dtype.removeprefix("torch."))
        return Tensor(storage.view, storage)

    def empty_strided(shape: Any, strides: Any, dtype: str) -> Tensor:
        x = empty(shape, dtype, (None, torch.gpu))
        assert strides == x.stride(), "of the row-major order alone"
        return x

    def split(x: Tensor, sizes: list[int]) -> list[Tensor]:
        assert sum(sizes) == x.shape[0]
        return [x.like(each) for each in np.split(x.view, np.cumsum(sizes)[:-1])]

    torch.empty, torch.unsafe_split_with_sizes = empty, split
    return torch


def cupy_module(gpus: list[Gpu]) -> Any:
    cupy: Any = ModuleType("cupy")
    chosen = [0]

    @contextlib.contextmanager
    def device(ordinal: int) -> Any:
        chosen.append(ordinal)
        yield
        chosen.pop()

    def empty(shape: Any, dtype: str) -> CupyArray:
        try:
            storage = Storage(gpus[chosen[-1]], shape, dtype)
        except OutOfMemoryError as error:
            raise MemoryError(str(error)) from None
        return CupyArray(storage.view, storage)

    cupy.ndarray, cupy.empty = CupyArray, empty
    cupy.cuda = SimpleNamespace(Device=device, get_current_stream=lambda device: SimpleNamespace(ptr=200 + device))
    return cupy


def rungs_alone(monkeypatch: Any) -> None:
    """As if the engine had no kernel of its own, so that the ladder's highest rung multiplies."""
    monkeypatch.setattr("tilewright.gpu.arrays.choose.engine_on_gpu", lambda dtype, capability: ())


def engine_alone(monkeypatch: Any, kernel: Any) -> None:
    """As if the engine had this kernel alone, also for shapes that others serve faster."""
    monkeypatch.setattr(
        "tilewright.gpu.arrays.choose.engine_on_gpu",
        lambda dtype, capability: [kernel] if dtype in kernel.dtypes and kernel.fits(capability) else [],
    )


def installed(monkeypatch: Any, nbytes: int, sms: int) -> Gpu:
    """A GPU with so much memory and so many multiprocessors, over which fake libraries are installed."""
    gpu = Gpu(nbytes)
    gpu.sms = sms
    install(monkeypatch, [gpu])
    return gpu


def install(monkeypatch: Any, gpus: list[Gpu]) -> tuple[Any, Any]:
    """Fake torch and CuPy over these GPUs; returns both modules."""
    torch, cupy = torch_module(gpus), cupy_module(gpus)
    monkeypatch.setitem(__import__("sys").modules, "torch", torch)
    monkeypatch.setitem(__import__("sys").modules, "cupy", cupy)
    for module in (lists, matmul, plan, libraries, host_libraries, groups):
        monkeypatch.setattr(module, "gpu_at", lambda ordinal: gpus[ordinal])
    # Of the real modules others are kept, so that a library of these is not met after the test.
    monkeypatch.setattr(libraries, "_known", {})
    monkeypatch.setattr(libraries, "_instance", functools.cache(libraries._instance.__wrapped__))
    ptx_alone.install(monkeypatch)
    matmul._plan.cache_clear()
    matmul._launches.cache_clear()
    groups._plan.cache_clear()
    repeated.short_ways.clear()
    repeated.finished_ways.clear()
    repeated.group_ways.clear()
    return torch, cupy
