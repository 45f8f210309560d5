"""Memory that products work in, kept from call to call: fresh memory costs a page fault every 4 KiB."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import numpy as np

from ..machine import bytes_text, machine
from ..operands import aligned_empty

#: Bytes kept in all when nobody uses them. Faulting in more takes 50 ms, and a product that needs it seconds.
MOST_KEPT_BYTES = 256 << 20

_lock = threading.Lock()
_kept: list[np.ndarray] = []


@contextlib.contextmanager
def workspace(nbytes: int) -> Iterator[np.ndarray]:
    """At least ``nbytes`` uninitialised bytes on a 64-byte boundary, nobody else's until the block is left.

    Raises MemoryError, with the size, where there is not as much.

    >>> with workspace(100) as memory:
    ...     memory.size >= 100, memory.dtype.name
    (True, 'uint8')
    """
    memory = _taken(nbytes)
    if memory is None:
        memory = _allocated(nbytes)
    try:
        yield memory
    finally:
        _keep(memory)


def kept_bytes() -> int:
    """Bytes that wait here for the next products."""
    with _lock:
        return sum(memory.size for memory in _kept)


def release_workspace() -> None:
    """Give back what is kept; products at work keep theirs."""
    with _lock:
        _kept.clear()


def _taken(nbytes: int) -> np.ndarray | None:
    """The smallest buffer that will do, or None; of those too small one goes, to be replaced by the larger."""
    with _lock:
        for index, memory in enumerate(_kept):  # smallest first
            if memory.size >= nbytes:
                return _kept.pop(index)
        if _kept:
            _kept.pop()  # before there is more: the two need not fit together
        return None


def _keep(memory: np.ndarray) -> None:
    """For the next products: the largest buffers, and as many as there can be products that do not wait for each other."""
    if memory.size > MOST_KEPT_BYTES:
        return
    with _lock:
        _kept.append(memory)
        _kept.sort(key=len)
        while len(_kept) > machine().usable_cores + 1 or sum(map(len, _kept)) > MOST_KEPT_BYTES:
            _kept.pop(0)


def _allocated(nbytes: int) -> np.ndarray:
    try:
        return aligned_empty((nbytes,), np.uint8)
    except MemoryError:
        release_workspace()
    try:
        return aligned_empty((nbytes,), np.uint8)
    except MemoryError:
        raise MemoryError(f"this product needs a workspace of {bytes_text(nbytes)}, which cannot be had") from None


def _renew() -> None:
    """A thread that held the lock in the parent, and may have been about to change the list, is not in the child."""
    global _lock, _kept
    _lock, _kept = threading.Lock(), []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
