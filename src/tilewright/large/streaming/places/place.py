"""Defines the interface of a place (a CPU or GPU that multiplies blocks in its memory), and the list of events that a
place records.
"""

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
    """A CPU or GPU that multiplies blocks. A place has slots, each of which holds one block, and copies blocks between
    the slots and the matrices.

    ``load`` and ``multiply`` may return before their work is done. ``load`` and ``multiply`` return tokens, and a later
    call waits for the work of the tokens that are passed to it. When ``store`` returns, its work is done. ``load``,
    ``multiply`` and ``store`` are each called by a thread of their own.
    """

    def load(self, load: Load, after: Token) -> Token:
        """Load a block of an operand into a slot, after the earlier work ``after`` that used the slot."""

    def multiply(self, step: Multiply, needs: tuple[Token, Token], after: Token) -> Token:
        """Multiply two loaded blocks, and add the product to a tile of C."""

    def store(self, store: Store, after: Token) -> Token:
        """Copy a finished tile of C to the result."""

    def close(self) -> None:
        """Wait for the work in progress, and release all memory."""


# ---- what happened when ----------------------------------------------------------------------------------------------


@dataclass
class Events:
    """A list of the operations of one place and their times. ``place`` is the name of the place, such as "cpu" or
    "cuda:0". Any thread may add events.
    """

    place: str = "cpu"
    start_s: float = field(default_factory=time.perf_counter)
    events: list[Piece] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextlib.contextmanager
    def span(self, track: str, name: str) -> Iterator[None]:
        """Record when the ``with`` block began and ended, by the host's clock."""
        begun = self.now()
        try:
            yield
        finally:
            self.add(track, name, begun, self.now())

    def now(self) -> float:
        """Return the seconds since the recording began."""
        return time.perf_counter() - self.start_s

    def add(self, track: str, name: str, start_s: float, end_s: float) -> None:
        """Record an operation of a thread or stream (``track``) between two times, in seconds of the host's clock."""
        with self._lock:
            self.events.append(Piece(self.place, track, name, start_s, end_s))

    def at(self, place: str) -> Events:
        """Return an ``Events`` for another place, which shares the list and the clock."""
        return Events(place, self.start_s, self.events, self._lock)
