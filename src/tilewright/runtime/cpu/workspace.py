"""Memory that products work in, kept from call to call: fresh memory costs a page fault every 4 KiB.

A buffer is taken and put back by one operation of a dict each. There is no lock, which an interrupt could leave taken; a
buffer that an interrupt loses is freed with its last reference.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from ...host.machine import bytes_text, machine
from ...operands import aligned_empty

#: Bytes kept in all when nobody uses them. Faulting in more takes 50 ms, and a product that needs it seconds.
MOST_KEPT_BYTES = 256 << 20

#: By identity. Others may change it at any time: it is only read as a copy.
_kept: dict[int, np.ndarray] = {}


@contextlib.contextmanager
def take_workspace(nbytes: int) -> Iterator[np.ndarray]:
    """At least ``nbytes`` uninitialised bytes on a 64-byte boundary, nobody else's until the block is left.

    Raises MemoryError, with the size, where there is not as much.

    >>> with take_workspace(100) as memory:
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


def release_workspace() -> None:
    """Give back what is kept; products at work keep theirs."""
    _kept.clear()


def _smallest_first() -> list[np.ndarray]:
    return sorted(_kept.copy().values(), key=len)


def _taken(nbytes: int) -> np.ndarray | None:
    """The smallest buffer that will do, or None; of those too small one goes, to be replaced by the larger."""
    small = None
    for memory in _smallest_first():
        if memory.size < nbytes:
            small = memory
        elif _kept.pop(id(memory), None) is not None:  # else another thread has just taken it
            return memory
    if small is not None:
        _kept.pop(id(small), None)  # before there is more: the two need not fit together
    return None


def _keep(memory: np.ndarray) -> None:
    """For the next products: the largest buffers, and as many as there can be products that do not wait for each other."""
    if memory.size > MOST_KEPT_BYTES:
        return
    _kept[id(memory)] = memory
    kept = _smallest_first()
    while len(kept) > machine().usable_cores + 1 or sum(map(len, kept)) > MOST_KEPT_BYTES:
        _kept.pop(id(kept.pop(0)), None)


def _allocated(nbytes: int) -> np.ndarray:
    try:
        return aligned_empty((nbytes,), np.uint8)
    except MemoryError:
        release_workspace()
    try:
        return aligned_empty((nbytes,), np.uint8)
    except MemoryError:
        raise MemoryError(f"this product needs a workspace of {bytes_text(nbytes)}, which cannot be had") from None
