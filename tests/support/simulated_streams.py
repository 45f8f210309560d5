"""A GPU's streams without a GPU: each is a thread that does in order what is asked of it, on memory of this process.

So ``large.streaming.places.gpu`` itself runs, chunks and rings and all. A wait that can never end is seen: ``abandon`` ends
it.
"""

from __future__ import annotations

import contextlib
import ctypes
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.errors import LaunchError
from tilewright.gpu.runtime.memory import Event, Memory
from tilewright.kernels.cuda_kernel import Card
from tilewright.large.files.array import ArraySource
from tilewright.large.streaming.places import gpu as gpu_module

#: Simulated GPUs multiply by themselves, whichever kernel was chosen.
ANY_KERNEL: Any = SimpleNamespace(kernel=None, params={}, compute="")


class SimulatedEvent(Event):
    def __init__(self, gpu: SimulatedDevice) -> None:
        self.reached, self._owner, self.at_s = threading.Event(), gpu, 0.0

    def wait(self) -> None:
        while not self.reached.wait(0.02):
            self._owner.go_on()

    def reach(self) -> None:
        self.at_s = time.perf_counter()
        self.reached.set()

    def since(self, earlier: Any) -> float:
        return float(self.at_s - earlier.at_s)

    def __del__(self) -> None:
        """There is nothing to give back."""


class SimulatedStream:
    """Stands for ``runtime.gpu.stream.Stream``; its handle is itself."""

    def __init__(self, gpu: SimulatedDevice) -> None:
        self.gpu, self.closed = gpu, False
        self.handle = self
        self._asked: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def ask(self, work: Callable[[], Any]) -> None:
        """To be done after a while."""
        pause_s = self.gpu.pause_s()

        def slowly() -> None:
            time.sleep(pause_s)
            work()

        self._asked.put(slowly)

    def mark(self) -> SimulatedEvent:
        assert not self.closed
        event = SimulatedEvent(self.gpu)
        self._asked.put(event.reach)
        return event

    def after(self, event: Any) -> None:
        self._asked.put(event.wait)

    def wait(self) -> None:
        self.mark().wait()

    def close(self) -> None:
        self.closed = True
        self._asked.put(None)

    def copy_in(self, to: int, source: np.ndarray) -> None:
        assert source.ctypes.data in self.gpu.pages.locked
        self.ask(lambda: ctypes.memmove(to, source.ctypes.data, source.nbytes))

    def copy_out(self, to: np.ndarray, source: int) -> None:
        assert to.ctypes.data in self.gpu.pages.locked
        self.ask(lambda: ctypes.memmove(to.ctypes.data, source, to.nbytes))

    def copy_over(self, to: int, lender: SimulatedDevice, source: int, nbytes: int) -> None:
        assert lender.has(source)
        self.gpu.copied_over += nbytes
        lender.reading.append(source)

        def copy() -> None:
            ctypes.memmove(to, source, nbytes)
            lender.reading.remove(source)

        self.ask(copy)

    def _work(self) -> None:
        while (work := self._asked.get()) is not None:
            try:
                work()
            except LaunchError:  # abandoned: the rest is not done
                continue


class SimulatedPages:
    """Stands for ``runtime.gpu.memory.HostPages``."""

    def __init__(self) -> None:
        self.taken: dict[int, np.ndarray] = {}
        self.locked: set[int] = set()

    def take(self, nbytes: int) -> np.ndarray:
        pages = np.full(nbytes // 8 + 1, np.nan).view(np.uint8)[:nbytes]
        self.taken[pages.ctypes.data] = pages
        return pages

    def lock(self, pages: np.ndarray) -> None:
        self.locked.add(pages.ctypes.data)

    def take_locked(self, nbytes: int) -> np.ndarray:
        pages = self.take(nbytes)
        self.lock(pages)
        return pages

    def give_back(self, pages: np.ndarray, cache: bool = True) -> None:  # noqa: ARG002
        self.locked.discard(pages.ctypes.data)
        del self.taken[pages.ctypes.data]


class SimulatedDevice:
    """Stands for ``runtime.gpu.device.Device``; every copy and product takes up to ``pause_s``, at random."""

    name, capability, sms = "simulated", "9.0", 132

    def __init__(self, pause_s: float = 0.0, seed: int = 0, ordinal: int = 0) -> None:
        self.ordinal, self.context, self.pages = ordinal, self, SimulatedPages()
        self._pause_s, self._random = pause_s, random.Random(seed)
        self._streams: list[SimulatedStream] = []
        self._memory: dict[int, np.ndarray] = {}
        self._abandoned = False
        self.copied_over = 0
        self.reading: list[int] = []  # from here, by other GPUs

    @property
    def card(self) -> Card:
        return Card(self.name, self.sms)

    def abandon(self) -> None:
        """Every wait ends with an error."""
        self._abandoned = True

    def go_on(self) -> None:
        if self._abandoned:
            raise LaunchError("abandoned")

    def pause_s(self) -> float:
        return self._random.uniform(0, self._pause_s)

    def end(self) -> None:
        """All threads: afterwards there is no stream."""
        for stream in self._streams:
            stream.close()
            stream.thread.join(10)
            assert not stream.thread.is_alive()

    @property
    def open(self) -> int:
        """Streams that are."""
        return sum(not stream.closed for stream in self._streams)

    def has(self, address: int) -> bool:
        """Whether it lies in memory that was reserved here."""
        return any(at <= address < at + memory.nbytes for at, memory in self._memory.items())

    @property
    def held_bytes(self) -> int:
        """Here, and in the host's pages."""
        return sum(memory.nbytes for memory in (*self._memory.values(), *self.pages.taken.values()))

    # ---- as Device

    def make_current(self) -> None:
        """Every thread's is."""

    def new_stream(self) -> SimulatedStream:
        self._streams.append(SimulatedStream(self))
        return self._streams[-1]

    def reserve(self, nbytes: int) -> Memory:
        memory = np.full(nbytes // 8 + 1, np.nan)
        pointer = int(memory.ctypes.data)
        self._memory[pointer] = memory
        return Memory(SimpleNamespace(handle=pointer, close=lambda: self._release(pointer)), nbytes)

    def _release(self, pointer: int) -> None:
        memory = self._memory.pop(pointer)
        assert not any(pointer <= source < pointer + memory.nbytes for source in self.reading), "it is still read"

    def prepared(self, _device: Any, _kernel: Any, dtype: str, *shape: int, add: bool, **_params: Any) -> Any:
        """Stands for ``gpu.runtime.product.prepare_gpu_product``."""
        m, n, k = shape

        def product(a: int, b: int, c: int, stream: SimulatedStream) -> None:
            x, y, z = matrix_at(a, m, k, dtype), matrix_at(b, k, n, dtype), matrix_at(c, m, n, dtype)
            stream.ask(lambda: np.copyto(z, x @ y + z if add else x @ y))

        return product


@contextlib.contextmanager
def simulated(monkeypatch: pytest.MonkeyPatch, pause_s: float = 0.0005, seed: int = 0) -> Iterator[SimulatedDevice]:
    """A GPU for ``large.streaming.places.gpu``; whoever waits for it in the end gets an error."""
    device = SimulatedDevice(pause_s, seed)
    monkeypatch.setattr(gpu_module, "prepare_gpu_product", device.prepared)
    monkeypatch.setattr(gpu_module, "compile_ahead", lambda *_: None)
    try:
        yield device
    finally:
        device.abandon()
        device.end()


def failing_after(reads: int) -> type[ArraySource]:
    """Sources that together read so often, and then raise OSError: the disk is gone."""

    class Failing(ArraySource):
        left = reads

        def read(self, rows: slice, columns: slice, out: np.ndarray) -> None:
            if not Failing.left:
                raise OSError("the disk is gone")
            Failing.left -= 1
            super().read(rows, columns, out)

    return Failing


def matrix_at(address: int, rows: int, columns: int, dtype: str) -> np.ndarray:
    nbytes = rows * columns * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype).reshape(rows, columns)
