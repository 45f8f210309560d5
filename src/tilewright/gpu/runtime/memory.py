"""Memory of a GPU, for launches and copies; page-locked memory of the host; and streams, with events and copies on
them."""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Callable
from types import SimpleNamespace, TracebackType
from typing import Any

import numpy as np

from ...errors import UsageError
from .driver import call, driver

#: Addresses and strides of whole granules of so many bytes can be moved by a GPU's copy engine.
GRANULE = 16
#: Bytes of a line of a GPU's caches.
LINE_BYTES = 128


class Owned:
    """A handle of a GPU's resource, such as an address, and the function that frees it. The function is called once: by
    ``close``, or when the object is deleted."""

    def __init__(self, handle: int, free: Callable[[], object]) -> None:
        self.handle, self._free = handle, [free]

    def close(self) -> None:
        """Free the resource."""
        while self._free:
            self._free.pop()()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the end of the process the driver may be gone
            self.close()


class Memory:
    """Memory of a GPU. The memory is freed by ``close``, at the end of a ``with`` block, or when the object is
    deleted."""

    def __init__(self, buffer: Any, nbytes: int) -> None:
        self._buffer = buffer
        self.nbytes = nbytes

    @property
    def pointer(self) -> int:
        """The address on the GPU."""
        return int(self._buffer.handle)

    def part(self, start: int, nbytes: int) -> Memory:
        """A view of ``nbytes`` bytes from byte ``start`` on. It frees nothing. Raises UsageError beyond the end."""
        if not 0 <= start <= start + nbytes <= self.nbytes:
            raise UsageError(
                f"bytes {start} to {start + nbytes} do not lie within the {self.nbytes} bytes of this memory"
            )
        # ``whole`` keeps the allocation alive.
        return Memory(SimpleNamespace(handle=self.pointer + start, close=lambda: None, whole=self), nbytes)

    def close(self) -> None:
        """Free the memory."""
        self._buffer.close()

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


#: Bytes of one mapping of the host's memory, as an array.
Pages = np.ndarray[Any, Any]


class HostPages:
    """Page-locked memory of the host, which GPUs access directly. Locking takes long, so memory that is given back
    stays locked for the next request of the same size. A GPU must be the calling thread's current one when memory is
    locked or freed."""

    #: The most bytes to cache: enough for the copy buffers of four GPUs.
    MOST_CACHED = 2 << 30

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._cached: dict[int, list[Pages]] = {}
        #: Addresses of page-locked memory.
        self._locked: set[int] = set()

    def take(self, nbytes: int) -> Pages:
        """Memory of ``nbytes`` bytes, to be used until ``give_back``. The memory is in huge pages if the system has
        them, and not yet page-locked (see ``lock``)."""
        with self._guard:
            if self._cached.get(nbytes):
                return self._cached[nbytes].pop()
        pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared ones are never huge
        with contextlib.suppress(OSError, AttributeError):  # no huge pages here
            pages.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(pages, np.uint8)

    def lock(self, pages: Pages) -> None:
        """Page-lock the memory for all GPUs, unless it is already locked. Locking is seven times as fast for pages that
        were written to before."""
        address = pages.ctypes.data
        # Without ``_guard``: pages have one owner between ``take`` and ``give_back``, and ``add`` and ``remove`` are atomic.
        if address not in self._locked:
            portable = 1  # CU_MEMHOSTREGISTER_PORTABLE
            call(f"{pages.nbytes:,} bytes of page-locked memory", "cuMemHostRegister", address, pages.nbytes, portable)
            self._locked.add(address)

    def take_locked(self, nbytes: int) -> Pages:
        """Page-locked memory of ``nbytes`` bytes. Each page was written to before it was locked, because locking is
        then faster."""
        pages = self.take(nbytes)
        pages[:: mmap.PAGESIZE] = 0
        self.lock(pages)
        return pages

    def give_back(self, pages: Pages, *, cache: bool = True) -> None:
        """Cache the memory for the next ``take``. Free the memory instead if the cache is full, or without
        ``cache``."""
        with self._guard:
            cached = sum(nbytes * len(of_size) for nbytes, of_size in self._cached.items())
            if cache and cached + pages.nbytes <= self.MOST_CACHED:
                self._cached.setdefault(pages.nbytes, []).append(pages)
                return
        address = pages.ctypes.data
        if address in self._locked:
            self._locked.remove(address)
            call("free page-locked memory", "cuMemHostUnregister", address)


# ---- streams, events and copies --------------------------------------------------------------------------------------

#: ``CU_EVENT_BLOCKING_SYNC``: a thread that waits sleeps. ``CU_STREAM_NON_BLOCKING``: work of the default stream is not
#: waited for.
_SLEEPING, _NON_BLOCKING = 1, 1
#: ``CU_STREAMLEGACY``: the default stream of all threads.
LEGACY_STREAM = 1
#: ``CUDA_ERROR_NOT_READY``
_NOT_READY = 600


class Event:
    """A point of a stream. The event is reached when all work that was submitted before it is done."""

    def __init__(self, event: Any, unused: list[Any]) -> None:
        self.event, self._unused = event, unused

    def wait(self) -> None:
        """Wait until the event is reached, without the GIL. Raises LaunchError if an earlier error has stopped the
        GPU."""
        call("the GPU", "cuEventSynchronize", self.event)

    @property
    def is_reached(self) -> bool:
        """Whether all work that was submitted before this event has finished. Returns at once."""
        if driver().cuEventQuery(self.event)[0] == _NOT_READY:
            return False
        call("the GPU", "cuEventQuery", self.event)
        return True

    def since(self, earlier: Event) -> float:
        """Seconds since the event ``earlier``, by the GPU's clock. Both events must be reached."""
        return _seconds(earlier.event, self.event)

    def __del__(self) -> None:
        self._unused.append(self.event)


class Stream:
    """A queue of work for one GPU, which is done in order. ``unused`` are events of the GPU that can be used again,
    because creating an event takes longer than recording one."""

    def __init__(self, handle: int, context: Any, unused: list[Any]) -> None:
        self.handle, self._context, self._unused = handle, context, unused

    @classmethod
    def new(cls, context: Any, unused: list[Any]) -> Stream:
        """A new stream of the current GPU. The stream does not wait for any other stream."""
        (stream,) = call("make a stream", "cuStreamCreateWithPriority", _NON_BLOCKING, 0)
        return cls(int(stream), context, unused)

    def mark(self) -> Event:
        """An event at the present end of the stream. The stream's GPU must be the calling thread's current one."""
        try:
            event = self._unused.pop()
        except IndexError:
            (event,) = call("make an event", "cuEventCreate", _SLEEPING)
        call("mark a stream", "cuEventRecord", event, self.handle)
        return Event(event, self._unused)

    def after(self, event: Event) -> None:
        """Make work that is submitted from now on wait for ``event``. The host does not wait."""
        call("wait for another stream", "cuStreamWaitEvent", self.handle, event.event, 0)

    def wait(self, what: str = "the GPU") -> None:
        """Wait until all submitted work is done. Raises LaunchError for an error of that work; the message calls the
        work ``what``."""
        call(what, "cuStreamSynchronize", self.handle)

    def close(self) -> None:
        """Close the stream. Submitted work is still done, but no more work can be submitted."""
        call("close a stream", "cuStreamDestroy", self.handle)

    # ---- copies, which do not wait

    def copy_in(self, to: int, source: np.ndarray[Any, Any]) -> None:
        """Copy to the GPU from contiguous memory of the host. If that memory is not page-locked, the host waits for the
        copy."""
        call("copy to the GPU", "cuMemcpyHtoDAsync", to, source.ctypes.data, source.nbytes, self.handle)

    def copy_out(self, to: np.ndarray[Any, Any], source: int) -> None:
        """Copy from the GPU to contiguous memory of the host. If that memory is not page-locked, the host waits for the
        copy."""
        call("copy from the GPU", "cuMemcpyDtoHAsync", to.ctypes.data, source, to.nbytes, self.handle)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Copy within the GPU's memory."""
        call("copy on the GPU", "cuMemcpyDtoDAsync", to, source, nbytes, self.handle)

    def copy_over(self, to: int, context: Any, source: int, nbytes: int) -> None:
        """Copy from the memory of another GPU, whose context is ``context``."""
        call("copy between GPUs", "cuMemcpyPeerAsync", to, self._context, source, context, nbytes, self.handle)

    def fill(self, to: int, byte: int, nbytes: int) -> None:
        """Set ``nbytes`` bytes of the GPU's memory to ``byte``, from address ``to`` on."""
        call("fill memory", "cuMemsetD8Async", to, byte, nbytes, self.handle)


class Timer:
    """Measures the time between two points of a stream, by the GPU's own clock. ``stop`` polls while it waits."""

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._start, self._end = (call("create an event", "cuEventCreate", 0)[0] for _ in range(2))

    def start(self) -> None:
        """Start the clock when all work that was submitted before is done."""
        call("start the clock", "cuEventRecord", self._start, self._stream)

    def stop(self) -> float:
        """Seconds from ``start`` until all work that was submitted since is done. Waits for that work, and raises the
        same errors as ``Stream.wait``."""
        call("stop the clock", "cuEventRecord", self._end, self._stream)
        call("the GPU", "cuEventSynchronize", self._end)
        return _seconds(self._start, self._end)


def _seconds(start: Any, end: Any) -> float:
    (milliseconds,) = call("read the clock", "cuEventElapsedTime", start, end)
    return float(milliseconds) / 1000
