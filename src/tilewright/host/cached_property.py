"""A property that is computed at its first use and then cached in its object, without a lock.

Before CPython 3.12, ``functools.cached_property`` has one lock for all objects of a class. An interrupt between two
bytecodes, or a fork, could leave the lock of ``functools.cached_property`` taken, and every other thread would then
wait forever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class cached_property(Generic[Value]):  # noqa: N801  # named as the one of ``functools``
    """Like ``functools.cached_property``, without its lock. If several threads use the property for the first time at
    once, each of them computes it.

    >>> class Square:
    ...     def __init__(self, side):
    ...         self.side = side
    ...     @cached_property
    ...     def area(self):
    ...         print("computed")
    ...         return self.side**2
    >>> square = Square(3)
    >>> square.area, square.area
    computed
    (9, 9)
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Value:
        if instance is None:
            return self  # type: ignore[return-value]
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
