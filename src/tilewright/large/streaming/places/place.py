"""The interface of a place (a CPU or GPU that multiplies blocks in slots of its own), and the events that it records."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from ....records.timeline import Piece
from ..plan.schedule import Load, Multiply, Store

#: What a place returns for a piece of work, and by which it later knows whether that is done. All others only pass it on.
Token = Any


class Place(Protocol):
    """Where blocks are multiplied: it has the slots, and copies blocks between them and the matrices.

    ``load`` and ``multiply`` may return before their work is done: the place itself waits for the tokens that it is given. A
    store is done when ``store`` returns. Each of the three is called by a thread of its own.
    """

    def load(self, load: Load, after: Token) -> Token:
        """Load a block of an operand into a slot, after the work ``after`` that used the slot last."""

    def multiply(self, step: Multiply, needs: tuple[Token, Token], after: Token) -> Token:
        """Multiply two loaded blocks into a tile of C."""

    def store(self, store: Store, after: Token) -> Token:
        """Copy a finished tile of C to the result."""

    def close(self) -> None:
        """Wait for the work under way, and release all memory."""


# ---- what happened when ----------------------------------------------------------------------------------------------


@dataclass
class Events:
    """A list that any thread may add to; ``place`` is where, such as "cpu" or "cuda:0"."""

    place: str = "cpu"
    start_s: float = field(default_factory=time.perf_counter)
    events: list[Piece] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextlib.contextmanager
    def span(self, track: str, name: str) -> Iterator[None]:
        """Note when the ``with`` block began and ended, by the host's clock."""
        begun = self.now()
        try:
            yield
        finally:
            self.add(track, name, begun, self.now())

    def now(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self.start_s

    def add(self, track: str, name: str, start_s: float, end_s: float) -> None:
        """Note what a track did from one time to another, in seconds of the host's clock."""
        with self._lock:
            self.events.append(Piece(self.place, track, name, start_s, end_s))

    def at(self, place: str) -> Events:
        """The same list and clock, for another place."""
        return Events(place, self.start_s, self.events, self._lock)
