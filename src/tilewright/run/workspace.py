"""Memory that products work in, kept from call to call: fresh memory costs a page fault every 4 KiB."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import numpy as np

from ..machine import bytes_text
from ..operands import aligned_empty

#: Buffers kept when nobody uses them: one for each of so many callers at once.
_MOST_KEPT = 2

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
    with _lock:
        memory = _kept.pop() if _kept else None
    if memory is None or memory.size < nbytes:
        memory = None  # freed first: the two need not fit together
        memory = _allocated(nbytes)
    try:
        yield memory
    finally:
        with _lock:
            if len(_kept) < _MOST_KEPT:
                _kept.append(memory)


def _allocated(nbytes: int) -> np.ndarray:
    try:
        return aligned_empty((nbytes,), np.uint8)
    except MemoryError:
        raise MemoryError(f"this product needs a workspace of {bytes_text(nbytes)}, which cannot be had") from None
