"""Streams of a GPU, events on them, by ``cuda.core``, and copies on a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .driver import attempt, call


class Event:
    """A point of a stream; reached when all work that was submitted before it is done."""

    def __init__(self, event: Any, unused: list[Any]) -> None:
        self.event, self._unused = event, unused

    def wait(self) -> None:
        """Wait until it is reached, without the GIL. Raises LaunchError for an error that stopped the GPU before."""
        attempt("the GPU", self.event.sync)

    @property
    def is_reached(self) -> bool:
        """Whether all work before it is done; does not wait."""
        return bool(attempt("the GPU", lambda: self.event.is_done))

    def since(self, earlier: Event) -> float:
        """Seconds since the event ``earlier``, by the GPU's clock; both must be reached."""
        milliseconds = attempt("read the clock", lambda: self.event - earlier.event)
        return float(milliseconds) / 1000

    def __del__(self) -> None:
        self._unused.append(self.event)


class Stream:
    """Work of one GPU that is done in order. ``make_event`` and ``unused`` belong to its device: making an event takes
    longer than recording one, so events are reused. Until it is closed, launches find the stream in ``known`` by its
    handle."""

    def __init__(
        self, stream: Any, context: Any, make_event: Callable[[], Any], unused: list[Any], known: dict[int, Any]
    ) -> None:
        self._stream, self._context, self._make_event, self._unused = stream, context, make_event, unused
        self.handle, self._known = int(stream.handle), known
        known[self.handle] = stream

    def mark(self) -> Event:
        """An event at the present end of the stream."""
        try:
            event = self._unused.pop()
        except IndexError:
            event = attempt("make an event", self._make_event)
        attempt("mark a stream", self._stream.record, event)
        return Event(event, self._unused)

    def after(self, event: Event) -> None:
        """Work that is submitted from now on begins when ``event`` is reached; the host does not wait."""
        attempt("wait for another stream", self._stream.wait, event.event)

    def wait(self, what: str = "the GPU") -> None:
        """Wait until all submitted work is done. Raises LaunchError for an error of that work, which ``what`` names."""
        attempt(what, self._stream.sync)

    def close(self) -> None:
        """Close the stream: submitted work is still done, but no more can be submitted."""
        self._known.pop(self.handle, None)
        attempt("close a stream", self._stream.close)

    # ---- copies, which do not wait

    def copy_in(self, to: int, source: np.ndarray[Any, Any]) -> None:
        """Copy from contiguous memory of the host. If it is not page-locked, the host waits for the copy."""
        call("copy to the GPU", "cuMemcpyHtoDAsync", to, source.ctypes.data, source.nbytes, self.handle)

    def copy_out(self, to: np.ndarray[Any, Any], source: int) -> None:
        """Copy to contiguous memory of the host; see ``copy_in``."""
        call("copy from the GPU", "cuMemcpyDtoHAsync", to.ctypes.data, source, to.nbytes, self.handle)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Copy within the GPU's memory."""
        call("copy on the GPU", "cuMemcpyDtoDAsync", to, source, nbytes, self.handle)

    def copy_over(self, to: int, context: Any, source: int, nbytes: int) -> None:
        """Copy from the memory of another GPU, whose context is ``context``."""
        call("copy between GPUs", "cuMemcpyPeerAsync", to, self._context, source, context, nbytes, self.handle)

    def fill(self, to: int, byte: int, nbytes: int) -> None:
        """Set ``nbytes`` bytes of the GPU's memory from address ``to`` on."""
        call("fill memory", "cuMemsetD8Async", to, byte, nbytes, self.handle)


class Timer:
    """The time between two points of a stream, by the GPU's own clock. ``stop`` spins while it waits."""

    def __init__(self, stream: Any, make_event: Callable[[], Any]) -> None:
        self._stream = stream
        self._start, self._end = (attempt("create an event", make_event) for _ in range(2))

    def start(self) -> None:
        """Start the clock at the time when all work submitted before is done."""
        attempt("start the clock", self._stream.record, self._start)

    def stop(self) -> float:
        """Seconds from ``start`` until all work submitted since is done; waits for it. Raises as ``Stream.wait`` does."""
        attempt("stop the clock", self._stream.record, self._end)
        attempt("the GPU", self._end.sync)
        return float(attempt("read the clock", lambda: self._end - self._start)) / 1000
