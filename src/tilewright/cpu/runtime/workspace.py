"""Workspace of products, cached between calls: fresh memory costs a page fault every 4 KiB.

A buffer is taken and put back by one operation of a dict each. There is no lock, which an interrupt could leave taken; a
buffer that an interrupt loses is freed with its last reference.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from ...errors import MemoryLimitError
from ...host.machine import bytes_text, machine
from ...product.operands import aligned_empty

#: Bytes of unused buffers that are cached at most. Page faults for more take 50 ms, and a product that needs more, seconds.
MOST_CACHED_BYTES = 256 << 20

#: Cached buffers, by identity. Other threads may change it at any time, so only a copy is iterated over.
_cached: dict[int, np.ndarray] = {}
_NOTHING = aligned_empty((0,), np.uint8)


@contextlib.contextmanager
def take_workspace(nbytes: int) -> Iterator[np.ndarray]:
    """At least ``nbytes`` uninitialised bytes on a 64-byte boundary, for this call alone until the block is left.

    Raises MemoryLimitError, with the size, if there is not enough memory.

    >>> with take_workspace(100) as memory:
    ...     memory.size >= 100, memory.dtype.name
    (True, 'uint8')
    """
    memory = take_buffer(nbytes)
    try:
        yield memory
    finally:
        put_back_buffer(memory)


def take_buffer(nbytes: int) -> np.ndarray:
    """What ``take_workspace`` gives, until ``put_back_buffer``: it saves a microsecond. A buffer that is not put back is
    freed with its last reference."""
    if not nbytes:
        return _NOTHING
    # Mostly there is one buffer. A product that has evicted this code from the caches pays for every line of it.
    try:
        key, memory = _cached.popitem()
    except KeyError:
        return _allocated(nbytes)
    if not _cached and memory.size >= nbytes:
        return memory
    _cached[key] = memory
    taken = _taken(nbytes)
    return _allocated(nbytes) if taken is None else taken


def release_workspace() -> None:
    """Free the cached buffers; running products keep theirs."""
    _cached.clear()


def _smallest_first() -> list[np.ndarray]:
    return sorted(_cached.copy().values(), key=len)


def _taken(nbytes: int) -> np.ndarray | None:
    """The smallest cached buffer that is large enough. If there is none, None, and the largest of the others is freed."""
    small = None
    for memory in _smallest_first():
        if memory.size < nbytes:
            small = memory
        elif _cached.pop(id(memory), None) is not None:  # else another thread has just taken it
            return memory
    if small is not None:
        _cached.pop(id(small), None)  # before the new one is allocated: memory may not hold both
    return None


def put_back_buffer(memory: np.ndarray) -> None:
    """Cache a buffer for the next products: the largest stay, at most one more than there are usable cores."""
    if not 0 < memory.size <= MOST_CACHED_BYTES:
        return
    _cached[id(memory)] = memory
    if len(_cached) == 1:
        return
    cached = _smallest_first()
    while len(cached) > machine().usable_cores + 1 or sum(map(len, cached)) > MOST_CACHED_BYTES:
        _cached.pop(id(cached.pop(0)), None)


def _allocated(nbytes: int) -> np.ndarray:
    try:
        return aligned_empty((nbytes,), np.uint8)
    except MemoryError:
        release_workspace()
    try:
        return aligned_empty((nbytes,), np.uint8)
    except MemoryError:
        raise MemoryLimitError(
            f"this product needs a workspace of {bytes_text(nbytes)}, which could not be allocated"
        ) from None
