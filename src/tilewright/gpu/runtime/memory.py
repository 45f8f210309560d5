"""Memory of a GPU, for launches and copies, and page-locked memory of the host."""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Callable
from types import SimpleNamespace, TracebackType
from typing import Any

import numpy as np

from ...errors import UsageError
from .driver import call

#: Addresses and strides of whole granules of so many bytes can be moved by a GPU's copy engine.
GRANULE = 16
#: Bytes of a line of a GPU's caches.
LINE_BYTES = 128


class Owned:
    """An address, and what frees it: once, or at the end of its life."""

    def __init__(self, handle: int, free: Callable[[], object]) -> None:
        self.handle, self._free = handle, [free]

    def close(self) -> None:
        """Free it."""
        while self._free:
            self._free.pop()()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the end of the process the driver may be gone
            self.close()


class Memory:
    """Memory of a GPU; freed by ``close``, at the end of a ``with``, or with the object."""

    def __init__(self, buffer: Any, nbytes: int) -> None:
        self._buffer = buffer
        self.nbytes = nbytes

    @property
    def pointer(self) -> int:
        """The address on the GPU."""
        return int(self._buffer.handle)

    def part(self, start: int, nbytes: int) -> Memory:
        """A view of ``nbytes`` bytes from byte ``start``, which frees nothing. Raises UsageError beyond the end."""
        if not 0 <= start <= start + nbytes <= self.nbytes:
            raise UsageError(
                f"bytes {start} to {start + nbytes} do not lie within the {self.nbytes} bytes of this memory"
            )
        return Memory(SimpleNamespace(handle=self.pointer + start, close=lambda: None, whole=self), nbytes)

    def close(self) -> None:
        """Free it."""
        self._buffer.close()

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


#: Bytes of one mapping of the host's memory, as an array.
Pages = np.ndarray[Any, Any]


class HostPages:
    """Page-locked memory of the host, which GPUs access directly. Locking takes long, so memory that is given back stays
    locked for the next request of the same size. To lock and to free, a GPU must be the calling thread's current one."""

    #: Bytes that are cached at most: the chunks of four GPUs.
    MOST_CACHED = 2 << 30

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._cached: dict[int, list[Pages]] = {}
        #: Addresses of page-locked memory.
        self._locked: set[int] = set()

    def take(self, nbytes: int) -> Pages:
        """Memory of ``nbytes`` bytes until ``give_back``, in huge pages if the system has them; ``lock`` locks it."""
        with self._guard:
            if self._cached.get(nbytes):
                return self._cached[nbytes].pop()
        pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared ones are never huge
        with contextlib.suppress(OSError, AttributeError):  # no huge pages here
            pages.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(pages, np.uint8)

    def lock(self, pages: Pages) -> None:
        """Page-lock the memory for all GPUs, unless it is locked. Memory written before takes a seventh of the time."""
        address = pages.ctypes.data
        # Without ``_guard``: pages have one owner between ``take`` and ``give_back``, and ``add`` and ``remove`` are atomic.
        if address not in self._locked:
            portable = 1  # CU_MEMHOSTREGISTER_PORTABLE
            call(f"{pages.nbytes:,} bytes of page-locked memory", "cuMemHostRegister", address, pages.nbytes, portable)
            self._locked.add(address)

    def take_locked(self, nbytes: int) -> Pages:
        """Memory of ``nbytes`` bytes, written once and page-locked."""
        pages = self.take(nbytes)
        pages[:: mmap.PAGESIZE] = 0
        self.lock(pages)
        return pages

    def give_back(self, pages: Pages, *, cache: bool = True) -> None:
        """Cache the memory for the next ``take``; free it beyond a limit, or without ``cache``."""
        with self._guard:
            cached = sum(nbytes * len(of_size) for nbytes, of_size in self._cached.items())
            if cache and cached + pages.nbytes <= self.MOST_CACHED:
                self._cached.setdefault(pages.nbytes, []).append(pages)
                return
        address = pages.ctypes.data
        if address in self._locked:
            self._locked.remove(address)
            call("free page-locked memory", "cuMemHostUnregister", address)
