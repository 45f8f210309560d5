"""Long steps of which a command shows its user that they are under way; a call of the library shows nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

#: What shows a step while it lasts, by its words.
Listener = Callable[[str], AbstractContextManager[None]]

_listeners: list[Listener] = []


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """While it lasts ``listener`` shows the steps; of several the last."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextlib.contextmanager
def announced(words: str) -> Iterator[None]:
    """A step that takes long, such as "compiling cpu/packed for float32".

    >>> @contextlib.contextmanager
    ... def shown(words):
    ...     print(words, "…")
    ...     yield
    >>> with listening(shown), announced("compiling"):
    ...     pass
    compiling …
    """
    with _listeners[-1](words) if _listeners else contextlib.nullcontext():
        yield
