"""A GPU's streams without a GPU: each is a thread that does in order what is asked of it, on memory of this process.

So ``schedule.gpu`` itself runs, chunks and rings and all, and a wait that can never end is seen: ``abandon`` ends it.
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
from tilewright.files.array import ArraySource
from tilewright.runtime.gpu.streams import Moment
from tilewright.streaming.places import gpu

#: Simulated GPUs multiply by themselves, whichever kernel was chosen.
ANY_KERNEL: Any = SimpleNamespace(kernel=None, params={})


class _Moment(Moment):
    def __init__(self, streams: SimulatedStreams) -> None:
        self.reached, self._owner, self.at_s = threading.Event(), streams, 0.0

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


class SimulatedStreams:
    """Stands for ``run.streams.Streams``; every copy and product takes up to ``pause_s``, at random."""

    def __init__(self, pause_s: float = 0.0, seed: int = 0, ordinal: int = 0) -> None:
        self.device, self.ordinal = None, ordinal
        self._pause_s, self._random = pause_s, random.Random(seed)
        self._streams: list[queue.SimpleQueue[Callable[[], None] | None]] = []
        self._threads: list[threading.Thread] = []
        self._memory: dict[int, np.ndarray] = {}
        self._abandoned = False
        self.dropped: set[int] = set()
        self.locked: set[int] = set()
        self.copied_over = 0
        self._reading: list[int] = []  # from here, by other GPUs

    def abandon(self) -> None:
        """Whoever waits gets an error."""
        self._abandoned = True

    def go_on(self) -> None:
        if self._abandoned:
            raise LaunchError("abandoned")

    def end(self) -> None:
        """All threads: afterwards there is no stream."""
        for stream in self.open:
            self.drop(stream)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    @property
    def open(self) -> set[int]:
        return set(range(len(self._streams))) - self.dropped

    def has(self, address: int) -> bool:
        """Whether it lies in memory that was allocated here."""
        return any(at <= address < at + memory.nbytes for at, memory in self._memory.items())

    @property
    def held_bytes(self) -> int:
        return sum(memory.nbytes for memory in self._memory.values())

    # ---- as Streams

    def here(self) -> None:
        """Every thread is."""

    def call(self, what: str, function: str, *args: Any) -> tuple[Any, ...]:  # noqa: ARG002
        assert function == "cuStreamSynchronize"
        self.mark(*args).wait()
        return ()

    def stream(self) -> int:
        self._streams.append(queue.SimpleQueue())
        self._threads.append(threading.Thread(target=self._work, args=(self._streams[-1],), daemon=True))
        self._threads[-1].start()
        return len(self._streams) - 1

    def drop(self, stream: int) -> None:
        self.dropped.add(stream)
        self._streams[stream].put(None)

    def mark(self, stream: int) -> _Moment:
        assert stream not in self.dropped
        moment = _Moment(self)
        self._streams[stream].put(moment.reach)
        return moment

    def after(self, stream: int, moment: Any) -> None:
        self._streams[stream].put(moment.wait)

    def allocate(self, nbytes: int) -> int:
        memory = np.full(nbytes // 8 + 1, np.nan)
        self._memory[memory.ctypes.data] = memory
        return int(memory.ctypes.data)

    def release(self, pointer: int) -> None:
        memory = self._memory.pop(pointer)
        assert not any(pointer <= source < pointer + memory.nbytes for source in self._reading), "it is still read"

    def pages(self, nbytes: int) -> np.ndarray:
        memory = self._memory[self.allocate(nbytes)]
        return memory.view(np.uint8)[:nbytes]

    def lock(self, pages: np.ndarray) -> None:
        self.locked.add(pages.ctypes.data)

    def unpin(self, pages: np.ndarray) -> None:
        self.locked.discard(pages.ctypes.data)
        self.release(pages.ctypes.data)

    def copy_over(self, stream: int, to: int, other: SimulatedStreams, source: int, nbytes: int) -> None:
        assert other.has(source)
        self.copied_over += nbytes
        other._reading.append(source)

        def copy() -> None:
            ctypes.memmove(to, source, nbytes)
            other._reading.remove(source)

        self._ask(stream, copy)

    def copy_in(self, stream: int, to: int, source: np.ndarray) -> None:
        assert source.ctypes.data in self.locked
        self._ask(stream, lambda: ctypes.memmove(to, source.ctypes.data, source.nbytes))

    def copy_out(self, stream: int, to: np.ndarray, source: int) -> None:
        assert to.ctypes.data in self.locked
        self._ask(stream, lambda: ctypes.memmove(to.ctypes.data, source, to.nbytes))

    def prepared(self, _device: Any, _kernel: Any, dtype: str, *shape: int, add: bool, **_params: Any) -> Any:
        """Stands for ``run.gpu_product.prepared``."""
        m, n, k = shape

        def product(a: int, b: int, c: int, stream: int) -> None:
            x, y, z = matrix_at(a, m, k, dtype), matrix_at(b, k, n, dtype), matrix_at(c, m, n, dtype)
            self._ask(stream, lambda: np.copyto(z, x @ y + z if add else x @ y))

        return product

    def _ask(self, stream: int, work: Callable[[], Any]) -> None:
        pause = self._random.uniform(0, self._pause_s)

        def slowly() -> None:
            time.sleep(pause)
            work()

        self._streams[stream].put(slowly)

    def _work(self, asked: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while (work := asked.get()) is not None:
            try:
                work()
            except LaunchError:  # abandoned: the rest is not done
                continue


@contextlib.contextmanager
def simulated(monkeypatch: pytest.MonkeyPatch, pause_s: float = 0.0005, seed: int = 0) -> Iterator[SimulatedStreams]:
    """A GPU for ``schedule.gpu``; whoever waits for it in the end gets an error."""
    streams = SimulatedStreams(pause_s, seed)
    monkeypatch.setattr(gpu, "prepared", streams.prepared)
    try:
        yield streams
    finally:
        streams.abandon()
        streams.end()


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
