"""The short way for products of groups of GPU arrays that are like those of an earlier call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from .repeated import MOST_KEYS, ArrayFunctions, RepeatingLibrary, recorded_run

if TYPE_CHECKING:
    from ..runtime.device import Device

#: For types of arrays, ``way(a, b, offsets)``: the product of their groups, or None if it must go the long way.
group_ways: dict[type, Callable[[Any, Any, Any], Any]] = {}


class _KnownGroups(NamedTuple):
    """``run(a, b, c, offsets, stream)`` makes the launch and returns 0, or a status for ``error``; None before a repetition
    has recorded it."""

    submit: Callable[..., None]
    gpu: Device
    result: Callable[[], Any]
    transposed: Callable[[Any], Any] | None
    run: Callable[..., int] | None = None
    error: Callable[[int], Exception] | None = None


class RepeatedGroups:
    """The products of groups of one library's arrays that were computed before, without ``out``."""

    def __init__(self, library: RepeatingLibrary, functions: ArrayFunctions) -> None:
        self._library, self._functions = library, functions
        self._known: dict[Any, _KnownGroups] = {}

    def product(self, a: Any, b: Any, offsets: Any) -> Any:
        """The product; None if none like it was computed before, or if there is no memory for it. Raises LaunchError."""
        if type(b) not in group_ways or type(offsets) not in group_ways:
            return None
        key, pointer, stream, _ = self._functions
        try:
            found, ends = key(a, b), key(offsets, offsets)
            if found is None or ends is None:
                return None
            known = self._known.get((found[0], ends[0]))
            if known is None:
                return None
            c = known.result()
        except (RuntimeError, MemoryError, TypeError):  # no memory, or no such array: the long way says which
            return None
        given = found[1], found[2], pointer(c), ends[1], stream(known.gpu.ordinal)
        run = known.run or self._recorded((found[0], ends[0]), known, given)
        status = run(*given)
        if status and known.error is not None:
            raise known.error(status)
        return c if known.transposed is None else known.transposed(c)

    def remember(
        self,
        arrays: tuple[Any, Any, Any],
        submit: Callable[..., None],
        gpu: Device,
        result: tuple[tuple[int, ...], str],
        transposed: bool,
    ) -> None:
        """Remember that ``submit(a, b, c, offsets, stream)`` multiplies arrays like a, b and offsets on this GPU, to a
        ``result`` of this shape and dtype."""
        a, b, offsets = arrays
        found, ends = self._functions.key(a, b), self._functions.key(offsets, offsets)
        if found is None or ends is None:
            return
        if len(self._known) >= MOST_KEYS:
            self._known.clear()
        allocation = self._library.allocation(*result, gpu.ordinal)
        view = self._library.transposed if transposed else None
        self._known[found[0], ends[0]] = _KnownGroups(submit, gpu, allocation, view)
        for x in arrays:
            group_ways.setdefault(type(x), self.product)

    def _recorded(self, key: Any, known: _KnownGroups, given: tuple[int, ...]) -> Callable[..., int]:
        """What makes the launch from now on: machine code, or where it cannot be recorded what made it before."""
        *addresses, stream = given
        by_python, replay = recorded_run(known.gpu, known.submit, addresses, stream)
        run, error = (by_python, None) if replay is None else (replay.run, replay.error)
        self._known[key] = known._replace(run=run, error=error)
        return by_python  # this time: a launch that fails says why
