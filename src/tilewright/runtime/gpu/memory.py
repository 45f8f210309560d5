"""Bytes on a GPU, as launches and copies are given them, and page-locked bytes of the host."""

from __future__ import annotations

import contextlib
import mmap
import threading
from types import SimpleNamespace, TracebackType
from typing import Any

import numpy as np

from ...errors import UsageError
from .driver import call


class Memory:
    """Bytes on a GPU; freed by ``close``, at the end of a ``with``, or with the object."""

    def __init__(self, buffer: Any, nbytes: int) -> None:
        self._buffer = buffer
        self.nbytes = nbytes

    @property
    def pointer(self) -> int:
        """The address on the GPU."""
        return int(self._buffer.handle)

    def part(self, start: int, nbytes: int) -> Memory:
        """``nbytes`` of these bytes from byte ``start``, which stay this memory's. Raises UsageError beyond its end."""
        if not 0 <= start <= start + nbytes <= self.nbytes:
            raise UsageError(f"bytes {start} to {start + nbytes} are not all of the {self.nbytes} bytes of this memory")
        return Memory(SimpleNamespace(handle=self.pointer + start, close=lambda: None, whole=self), nbytes)

    def close(self) -> None:
        """Frees it."""
        self._buffer.close()

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


#: Bytes of one mapping of the host's memory, as an array.
Pages = np.ndarray[Any, Any]


class HostPages:
    """Memory of the host that GPUs read and write by themselves. Locking takes long, so what is given back stays locked for
    the next user of as many bytes. A GPU must be the calling thread's current one to lock and to free."""

    #: Bytes that are cached at most: the chunks of four GPUs.
    MOST_CACHED = 2 << 30

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._cached: dict[int, list[Pages]] = {}
        #: Addresses of what is page-locked.
        self._locked: set[int] = set()

    def take(self, nbytes: int) -> Pages:
        """In huge pages where the system has them, to be locked by ``lock``; until ``give_back``."""
        with self._guard:
            if self._cached.get(nbytes):
                return self._cached[nbytes].pop()
        pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared ones are never huge
        with contextlib.suppress(OSError, AttributeError):  # no huge pages here
            pages.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(pages, np.uint8)

    def lock(self, pages: Pages) -> None:
        """Page-lock them for all GPUs, if they are not. It takes a seventh of the time once they were written."""
        address = pages.ctypes.data
        if address not in self._locked:
            portable = 1  # CU_MEMHOSTREGISTER_PORTABLE
            call(f"{pages.nbytes:,} bytes of page-locked memory", "cuMemHostRegister", address, pages.nbytes, portable)
            self._locked.add(address)

    def take_locked(self, nbytes: int) -> Pages:
        """Pages of so many bytes, touched and page-locked."""
        pages = self.take(nbytes)
        pages[:: mmap.PAGESIZE] = 0
        self.lock(pages)
        return pages

    def give_back(self, pages: Pages, *, cache: bool = True) -> None:
        """Cached as they are for the next ``take``; freed beyond a limit, or without ``cache``."""
        with self._guard:
            cached = sum(nbytes * len(of_size) for nbytes, of_size in self._cached.items())
            if cache and cached + pages.nbytes <= self.MOST_CACHED:
                self._cached.setdefault(pages.nbytes, []).append(pages)
                return
        address = pages.ctypes.data
        if address in self._locked:
            self._locked.remove(address)
            call("free page-locked memory", "cuMemHostUnregister", address)
