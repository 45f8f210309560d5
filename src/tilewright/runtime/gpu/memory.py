"""Bytes on a GPU, as launches and copies are given them."""

from __future__ import annotations

from types import SimpleNamespace, TracebackType
from typing import Any

from ...errors import UsageError


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
        self._buffer.close()

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
