"""Announces long steps, such as compilations, so that a command can show them to its user. If the library is called
without such a command, nothing is shown."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

#: What shows a step while it lasts, by its words.
Listener = Callable[[str], AbstractContextManager[None]]

_listeners: list[Listener] = []


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within the ``with`` block, let ``listener`` show the announced steps. Of nested listeners only the innermost
    shows a step."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextlib.contextmanager
def announced(words: str) -> Iterator[None]:
    """Within the ``with`` block, announce a step that takes long, such as "compiling cpu/packed for float32".

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
