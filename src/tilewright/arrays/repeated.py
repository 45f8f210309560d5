"""The short way for products of GPU arrays that are like those of an earlier product.

The first product of its kind is planned, compiled and submitted. All that its launches depend on is the key under which they
are remembered: both arrays' shapes, strides, dtypes and devices, and their addresses within a granule. The next product with
that key allocates its result and makes the same launches by one call of machine code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..errors import LaunchError

if TYPE_CHECKING:
    from ..runtime.gpu.device import Device
    from .launches import Launches

#: For types of arrays, ``way(a, b)``: their product, or None if it must go the long way.
short_ways: dict[type, Callable[[Any, Any], Any]] = {}

#: The most keys of a library, and the most types.
_MOST_KEYS, _MOST_TYPES = 1024, 64


class ArrayFunctions(NamedTuple):
    """What the short way needs of a library. ``key(a, b)``: the key and both addresses, or None for arrays that only the
    long way can judge. ``pointer(x)``: the address of an array. ``stream(ordinal)``: the caller's stream on a GPU.
    ``unlike(a, b)``: whether values are stored negated or conjugated, asked where the dtype is complex."""

    key: Callable[[Any, Any], tuple[Any, int, int] | None]
    pointer: Callable[[Any], int]
    stream: Callable[[int], int]
    unlike: Callable[[Any, Any], bool]


class Allocating(Protocol):
    """A library that allocates."""

    def allocation(self, shape: tuple[int, ...], dtype: str, device: int) -> Callable[[], Any]:
        """A function that allocates such an array."""

    def transposed(self, x: Any) -> Any:
        """A view with its last two axes swapped."""


class _Repeatable(NamedTuple):
    """``run(a, b, c, workspace, stream)`` makes the launches and returns 0, or a status for ``error``; ``result`` and
    ``workspace`` allocate."""

    run: Callable[..., int]
    error: Callable[[int], Exception]
    result: Callable[[], Any]
    workspace: Callable[[], Any] | None
    ordinal: int
    transposed: Callable[[Any], Any] | None
    is_complex: bool


class RepeatedProducts:
    """The products of one library's arrays that were computed before."""

    def __init__(self, functions: ArrayFunctions) -> None:
        self._key, self._pointer, self._stream, self._unlike = functions
        self._known: dict[Any, _Repeatable] = {}
        self._types: set[type] = set()

    def product(self, a: Any, b: Any) -> Any:
        """The product; None if none like it was computed before, or if there is no memory for it. Raises LaunchError."""
        if type(b) not in self._types:
            return None
        try:
            found = self._key(a, b)
            if found is None:
                return None
            key, at_a, at_b = found
            known = self._known.get(key)
            if known is None:
                return None
            run, error, result, workspace, ordinal, transposed, is_complex = known
            if is_complex and self._unlike(a, b):
                return None
            c, at_workspace = result(), 0
            if workspace is not None:
                scratch = workspace()
                at_workspace = self._pointer(scratch)
        except (RuntimeError, MemoryError):  # no memory, or no such array: the long way says which
            return None
        status = run(at_a, at_b, self._pointer(c), at_workspace, self._stream(ordinal))
        if status:
            raise error(status)
        return c if transposed is None else transposed(c)

    def remember(self, a: Any, b: Any, launches: Launches, gpu: Device, library: Allocating) -> None:
        """Remember the product of ``a`` and ``b``, which ``launches`` computed on this GPU."""
        found = self._key(a, b)
        kinds = {type(a), type(b)}
        if found is None or len(short_ways.keys() | kinds) > _MOST_TYPES:
            return
        if len(self._known) >= _MOST_KEYS:
            self._known.clear()
        key, order, nbytes = found[0], launches.plan.order, launches.workspace_bytes
        self._known[key] = known = _Repeatable(
            lambda *given: self._recorded(key, known, launches, gpu, given),
            LaunchError,
            library.allocation(order.shape, order.dtype, gpu.ordinal),
            library.allocation((nbytes,), "uint8", gpu.ordinal) if nbytes else None,
            gpu.ordinal,
            library.transposed if order.transposed else None,
            order.dtype.startswith("complex"),
        )
        self._types |= kinds
        short_ways.update(dict.fromkeys(kinds, self.product))

    def _recorded(self, key: Any, known: _Repeatable, launches: Launches, gpu: Device, given: Sequence[int]) -> int:
        """Makes the launches of the first repetition and records them: a product that is computed once does not need it."""
        *addresses, stream = given

        def by_python(*given: int) -> int:
            with gpu:
                launches.submit(*given)
            return 0

        replay = gpu.replay(launches.submit, addresses)
        if replay is None:
            self._known[key] = known._replace(run=by_python)
        else:
            self._known[key] = known._replace(run=replay.run, error=replay.error)
        return by_python(*addresses, stream)
