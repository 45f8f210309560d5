"""Multiplications that are interrupted, and a limit for what may hang."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tilewright.large.streaming.run.journal import Journal


@contextlib.contextmanager
def interrupted_after(tiles: int) -> Iterator[None]:
    """Within it, a multiplication raises KeyboardInterrupt when its journal has so many new tiles."""
    add, count = Journal.add, [0]

    def call(journal: Journal, tile: Any) -> None:
        add(journal, tile)
        count[0] += 1
        if count[0] == tiles:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "add", call)
        yield


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """What takes longer raises AssertionError in the middle of it; no reader handles that as an error of a file."""

    def stop(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
