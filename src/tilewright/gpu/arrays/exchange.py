"""The short way in C (``cpu/native/gpu.c``), for libraries with DLPack's exchange interface, such as PyTorch from 2.10 on.

From Python, reading what a product depends on takes as long as the rest of a short call. So the C front reads the tensors'
fields by that interface. A key is made of the words of both tensors: the places of their first bytes within a granule, then
for each its device, its number of axes and dtype, its shape and strides.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from ...cpu.native import front
from .gpu_array import GpuArray

#: ``kDLCUDA``
_CUDA = 2
#: Words of a matrix behind the addresses, in what ``read`` returns of lists.
_MATRIX_WORDS = 7


#: An object, the name of an attribute, and its usual value, an object that is always the same.
State = tuple[Any, str, Any]
_ALWAYS: State = (SimpleNamespace(usual=True), "usual", True)


class ExchangeInterface(NamedTuple):
    """Types of arrays that have the interface, the capsule with its functions, and whether gradients are recorded now. While
    the attribute of an object is another than usual, in ``state``, there is no short way."""

    types: tuple[type, type]
    functions: Any
    grad_enabled: Callable[[], bool]
    state: State = _ALWAYS


def exchange_interface(
    first: type, second: type, grad_enabled: Callable[[], bool], state: State = _ALWAYS
) -> ExchangeInterface | None:
    """The interface of two types of one library; None without one, or without the C front."""
    functions = getattr(first, "__dlpack_c_exchange_api__", None)
    if functions is None or front() is None:
        return None
    interface = ExchangeInterface((first, second), functions, grad_enabled, state)
    try:
        _reader(interface, {}, None)
    except ValueError:  # no capsule of that name, or another version
        return None
    return interface


def _reader(interface: ExchangeInterface, known: dict[bytes, Any], otherwise: Callable[..., Any] | None) -> Any:
    """The C object that reads tensors by an interface, and knows products by their keys."""
    types, *functions, state = interface
    c = front()
    assert c is not None
    return c.Exchange(*types, *functions, *state, "requires_grad", "is_neg", known, otherwise)


class ExchangedProducts:
    """Products that C computes: ``product(a, b)``, and by ``otherwise(*args)`` what it does not know."""

    #: The most products that are known at once.
    MOST = 1024

    def __init__(self, interface: ExchangeInterface, otherwise: Callable[..., Any]) -> None:
        self._known: dict[bytes, Any] = {}
        reader = _reader(interface, self._known, otherwise)
        self._key, self.product = reader.key, reader.product

    def learn(
        self,
        arrays: tuple[Any, Any],
        views: tuple[GpuArray, GpuArray],
        known: tuple[bytes, Callable[[], Any], Callable[[], Any] | None, Callable[[int], Any]],
    ) -> None:
        """Let C compute the products of arrays like these, if the interface says of them what Python says.

        ``known``: the program of a ``Replay``, functions that allocate result and workspace, and one that raises an error.
        """
        found = self._key(*arrays)
        if found is None or list(found[:2]) != [view.pointer for view in views] or not _says(found[2], views):
            return
        if len(self._known) >= self.MOST:
            self._known.clear()
        self._known[found[2]] = known


def _says(key: bytes, views: tuple[GpuArray, GpuArray]) -> bool:
    """Whether a key has the device, shape and strides of both arrays."""
    words = iter(struct.unpack(f"<{len(key) // 8}q", key)[1:])
    for view in views:
        device, axes = next(words), next(words) & 0xFFFF_FFFF
        if (device, axes) != (_CUDA | view.device << 32, len(view.shape)):
            return False
        sizes = list(zip(view.shape, view.strides, strict=True))
        if list(itertools.islice(words, 2 * axes)) != [*itertools.chain(*sizes)]:
            return False
    return True


class ListReader:
    """Reads two lists of matrices in C."""

    def __init__(self, interface: ExchangeInterface) -> None:
        #: ``read(a, b)``: the addresses of all matrices of a, then of b, as words, followed by a key of everything else; or
        #: None where only the long way can judge, which is so for all but lists of as many matrices without gradients.
        self.read: Callable[[Any, Any], bytes | None] = _reader(interface, {}, None).read

    def agrees(self, data: bytes, views: Sequence[GpuArray]) -> bool:
        """Whether ``read`` says of the matrices what Python says."""
        words = np.frombuffer(data, np.int64)
        found = words[len(views) :].reshape(len(views), _MATRIX_WORDS)
        expected = [(_CUDA | x.device << 32, *x.shape, *x.strides) for x in views]
        return words[: len(views)].tolist() == [x.pointer for x in views] and bool(
            (found[:, [0, 3, 4, 5, 6]] == np.array(expected)).all()
        )
