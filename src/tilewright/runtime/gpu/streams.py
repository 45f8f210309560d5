"""Streams of a GPU, moments on them, and page-locked memory of the host: what copies beside computation take."""

from __future__ import annotations

import contextlib
import functools
import importlib
import mmap
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...errors import LaunchError, MemoryLimitError
from .causes import message
from .device import Device, open_device

#: Page-locked bytes that are kept for the next one who needs them, by size: the chunks of four GPUs.
MOST_KEPT_BYTES = 2 << 30

_lock = threading.Lock()
_kept: dict[int, list[np.ndarray[Any, Any]]] = {}
#: Addresses of what is page-locked.
_locked: set[int] = set()


class Moment:
    """A point of a stream; reached when all that was asked of the stream before it is done."""

    def __init__(self, streams: Streams, handle: Any) -> None:
        self._streams, self.handle = streams, handle

    def wait(self) -> None:
        """Until it is reached; other threads go on. Raises LaunchError for what stopped the GPU before."""
        self._streams.call("the GPU", "cuEventSynchronize", self.handle)

    def since(self, earlier: Moment) -> float:
        """Seconds from another moment, by the GPU's clock; both must be reached."""
        (milliseconds,) = self._streams.call("read the clock", "cuEventElapsedTime", earlier.handle, self.handle)
        return float(milliseconds) / 1000

    def __del__(self) -> None:
        self._streams.unused.append(self.handle)


@contextlib.contextmanager
def kept_current() -> Iterator[None]:
    """Within the block any GPU may become the calling thread's; after it, the one is that was before."""
    driver, before = None, None
    with contextlib.suppress(Exception):  # no driver here: nothing can change
        driver = importlib.import_module("cuda.bindings.driver")
        _, before = driver.cuCtxGetCurrent()
    try:
        yield
    finally:
        if driver is not None and before is not None:
            driver.cuCtxSetCurrent(before)


def opened(ordinal: int = 0) -> Streams:
    """That GPU, now the calling thread's; opened once: what was compiled and loaded for it stays.

    Raises UnavailableError.
    """
    gpu = _opened(ordinal)
    gpu.here()
    return gpu


@functools.cache
def _opened(ordinal: int) -> Streams:
    return Streams(ordinal)


class Streams:
    """One GPU as several lanes see it. A thread that uses it says so once by ``here``.

    >>> gpu = Streams()  # doctest: +SKIP
    >>> copies = gpu.stream()  # doctest: +SKIP
    """

    def __init__(self, ordinal: int = 0) -> None:
        self.device: Device = open_device(ordinal)
        self.ordinal = ordinal
        self._driver = importlib.import_module("cuda.bindings.driver")
        #: Events that no moment needs any more: to make one takes longer than to record it.
        self.unused: list[Any] = []
        (self._context,) = self.call("the GPU", "cuCtxGetCurrent")

    def here(self) -> None:
        """Make this GPU the calling thread's."""
        self.call("the GPU", "cuCtxSetCurrent", self._context)

    def call(self, what: str, function: str, *args: Any) -> tuple[Any, ...]:
        """A function of the driver; raises LaunchError for what it answers."""
        status, *answer = getattr(self._driver, function)(*args)
        if status != self._driver.CUresult.CUDA_SUCCESS:
            raise LaunchError(message(what, status.name))
        return tuple(answer)

    @property
    def count(self) -> int:
        """GPUs that this process sees."""
        return int(self.call("the GPUs", "cuDeviceGetCount")[0])

    # ---- streams and moments

    def stream(self) -> int:
        """A new stream, which waits for no other by itself."""
        (handle,) = self.call(
            "make a stream", "cuStreamCreate", int(self._driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        )
        return int(handle)

    def drop(self, stream: int) -> None:
        """What was asked of a stream is still done; nothing more can be."""
        self.call("drop a stream", "cuStreamDestroy", stream)

    def mark(self, stream: int) -> Moment:
        """The present end of a stream."""
        try:
            handle = self.unused.pop()
        except IndexError:
            blocking = int(
                self._driver.CUevent_flags.CU_EVENT_BLOCKING_SYNC
            )  # who waits leaves the processor to others
            (handle,) = self.call("make an event", "cuEventCreate", blocking)
        moment = Moment(self, handle)
        self.call("mark a stream", "cuEventRecord", handle, stream)
        return moment

    def after(self, stream: int, moment: Moment) -> None:
        """What is asked of ``stream`` from now on begins when ``moment`` is reached; the host does not wait."""
        self.call("wait for another stream", "cuStreamWaitEvent", stream, moment.handle, 0)

    # ---- other GPUs

    def reaches(self, other: Streams) -> bool:
        """Whether this GPU can read the other's memory by itself, over NVLink or PCIe; from now on it may."""
        devices = [self.call("the GPU", "cuDeviceGet", gpu.ordinal)[0] for gpu in (self, other)]
        if not self.call("reach a GPU", "cuDeviceCanAccessPeer", *devices)[0]:
            return False
        self.here()
        status = self._driver.cuCtxEnablePeerAccess(other._context, 0)[0]
        return status.name in ("CUDA_SUCCESS", "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED")

    def copy_over(self, stream: int, to: int, other: Streams, source: int, nbytes: int) -> None:
        """From another GPU's memory, which this one reaches; does not wait."""
        self.call("copy between GPUs", "cuMemcpyPeerAsync", to, self._context, source, other._context, nbytes, stream)

    # ---- memory

    def free_bytes(self) -> int:
        """Bytes of the GPU's memory that are free. The GPU becomes the calling thread's."""
        self.here()
        return self.device.memory_bytes()[0]

    def allocate(self, nbytes: int) -> int:
        """Memory on the GPU until ``release``. Raises MemoryLimitError where there is not as much."""
        free = self.free_bytes()
        if nbytes > free:
            raise MemoryLimitError(f"{nbytes:,} bytes on {self.device.name} are needed, {free:,} are free")
        (pointer,) = self.call(f"{nbytes:,} bytes on {self.device.name}", "cuMemAlloc", max(1, nbytes))
        return int(pointer)

    def release(self, pointer: int) -> None:
        self.call("free memory", "cuMemFree", pointer)

    def pages(self, nbytes: int) -> np.ndarray[Any, Any]:
        """Bytes of the host, in huge pages where the system has them, until ``unpin``: to be page-locked by ``lock``."""
        with _lock:
            if _kept.get(nbytes):
                return _kept[nbytes].pop()
        pages = mmap.mmap(-1, nbytes)
        with contextlib.suppress(OSError, AttributeError):  # no huge pages here
            pages.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(pages, np.uint8)

    def lock(self, pages: np.ndarray[Any, Any]) -> None:
        """Page-lock them, if they are not: then every GPU reads and writes them by itself. Once something was written
        there, it takes a seventh of the time."""
        address = pages.ctypes.data
        if address not in _locked:
            portable = 1  # CU_MEMHOSTREGISTER_PORTABLE
            self.call(
                f"{pages.nbytes:,} bytes of page-locked memory", "cuMemHostRegister", address, pages.nbytes, portable
            )
            _locked.add(address)

    def pinned(self, nbytes: int) -> np.ndarray[Any, Any]:
        """Page-locked bytes of the host, until ``unpin``."""
        pages = self.pages(nbytes)
        pages[:: mmap.PAGESIZE] = 0
        self.lock(pages)
        return pages

    def unpin(self, pages: np.ndarray[Any, Any], *, keep: bool = True) -> None:
        """Who asks for as much next gets them again, as they are; beyond a limit, or where nobody will, they are freed."""
        with _lock:
            if keep and sum(nbytes * len(kept) for nbytes, kept in _kept.items()) + pages.nbytes <= MOST_KEPT_BYTES:
                _kept.setdefault(pages.nbytes, []).append(pages)
                return
        address = pages.ctypes.data
        if address in _locked:
            _locked.remove(address)
            self.call("free page-locked memory", "cuMemHostUnregister", address)

    def copy_in(self, stream: int, to: int, source: np.ndarray[Any, Any]) -> None:
        """From page-locked, contiguous memory; does not wait."""
        self.call("copy to the GPU", "cuMemcpyHtoDAsync", to, source.ctypes.data, source.nbytes, stream)

    def copy_out(self, stream: int, to: np.ndarray[Any, Any], source: int) -> None:
        """To page-locked, contiguous memory; does not wait."""
        self.call("copy from the GPU", "cuMemcpyDtoHAsync", to.ctypes.data, source, to.nbytes, stream)
