"""What happened when: the spans of each lane of each place, for the timeline."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from ....records.timeline import Piece


@dataclass
class Events:
    """A list that any thread may add to; ``place`` is where, such as "cpu" or "cuda:0"."""

    place: str = "cpu"
    start_s: float = field(default_factory=time.perf_counter)
    events: list[Piece] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextlib.contextmanager
    def span(self, lane: str, name: str) -> Iterator[None]:
        """Note when the ``with`` block began and ended, by the host's clock."""
        begun = self.now()
        try:
            yield
        finally:
            self.add(lane, name, begun, self.now())

    def now(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self.start_s

    def add(self, lane: str, name: str, start_s: float, end_s: float) -> None:
        """Note what a lane did from one time to another, in seconds of the host's clock."""
        with self._lock:
            self.events.append(Piece(self.place, lane, name, start_s, end_s))

    def at(self, place: str) -> Events:
        """The same list and clock, for another place."""
        return Events(place, self.start_s, self.events, self._lock)
