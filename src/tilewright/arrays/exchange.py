"""The short way in machine code, for libraries with DLPack's exchange interface for C; see ``exchange_code``."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from ..runtime.gpu.words import MATRIX_WORDS, TENSOR_WORDS, Facts, python_function
from .gpu_array import GpuArray

#: ``kDLCUDA``
_CUDA = 2
#: Words of the interface's table: its version and where its functions are.
_VERSION, _VIEW, _STREAM_OF, _WORDS = 0, 5, 6, 7


#: An object, the name of an attribute, and its usual value, an object that is always the same.
State = tuple[Any, str, Any]
_ALWAYS: State = (SimpleNamespace(usual=True), "usual", True)


class ExchangeInterface(NamedTuple):
    """Types of arrays that have the interface, its functions ``dltensor_from_py_object_no_sync`` and
    ``current_work_stream`` as addresses, and whether gradients are recorded now. While the attribute of an object is another
    than usual, in ``state``, there is no short way."""

    types: tuple[type, type]
    view: int
    stream_of: int
    grad_enabled: Callable[[], bool]
    state: State = _ALWAYS


def exchange_interface(
    first: type, second: type, grad_enabled: Callable[[], bool], state: State = _ALWAYS
) -> ExchangeInterface | None:
    """The interface of two types of one library; None without one, or in a Python without its global lock."""
    capsule = getattr(first, "__dlpack_c_exchange_api__", None)
    if capsule is None or "t" in getattr(sys, "abiflags", "") or sys.implementation.name != "cpython":
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    words = (ctypes.c_uint64 * _WORDS).from_address(pointer(capsule, b"dlpack_exchange_api"))
    if words[_VERSION] & 0xFFFF_FFFF != 1 or not words[_VIEW] or not words[_STREAM_OF]:
        return None
    return ExchangeInterface((first, second), words[_VIEW], words[_STREAM_OF], grad_enabled, state)


class ExchangedProducts:
    """Products that machine code computes: ``product(a, b)``, and by ``otherwise(*args)`` what it does not know."""

    #: The most products that are known at once.
    MOST = 1024

    def __init__(self, interface: ExchangeInterface, otherwise: Callable[..., Any]) -> None:
        self._known: dict[bytes, Any] = {}
        self._interface, self._words = interface, TENSOR_WORDS
        self._read = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(interface.view)
        #: Objects that the machine code refers to.
        bound, self._alive = _facts(interface, self._known, otherwise)
        self.product, self._learn = (python_function(name, _emit_products)(bound) for name in ("product", "learn"))

    def learn(
        self,
        arrays: tuple[Any, Any],
        views: tuple[GpuArray, GpuArray],
        known: tuple[bytes, Callable[[], Any], Callable[[], Any] | None, Callable[[int], Any]],
    ) -> None:
        """Let machine code compute the products of arrays like these, if the interface says of them what Python says.

        ``known``: the program of a ``Replay``, functions that allocate result and workspace, and one that raises an error.
        """
        if all(map(self._agrees, arrays, views)):
            if len(self._known) >= self.MOST:
                self._known.clear()
            self._learn(*arrays, known)

    def _agrees(self, x: Any, view: GpuArray) -> bool:
        """Whether the interface reads the same address, device, shape and strides."""
        words = (ctypes.c_int64 * (self._words + 2))()
        if type(x) not in self._interface.types or self._read(x, words) != 0:
            return False
        address, device, axes, shape, strides, offset = words[: self._words]
        count = axes & 0xFFFF_FFFF
        if (address, offset, device, count) != (view.pointer, 0, _CUDA | view.device << 32, len(view.shape)):
            return False
        read = [tuple((ctypes.c_int64 * count).from_address(at)) for at in (shape, strides)] if count else [(), ()]
        return read == [view.shape, view.strides]


class ListReader:
    """Reads two lists of matrices by machine code."""

    def __init__(self, interface: ExchangeInterface) -> None:
        bound, self._alive = _facts(interface, {}, None)
        self._words = MATRIX_WORDS
        #: ``read(a, b)``: the addresses of all matrices of a, then of b, as words, followed by a key of everything else; or
        #: None where only the long way can judge, which is so for all but lists of as many matrices without gradients.
        self.read: Callable[[Any, Any], bytes | None] = python_function("read", _emit_read)(bound)

    def agrees(self, data: bytes, views: Sequence[GpuArray]) -> bool:
        """Whether ``read`` says of the matrices what Python says."""
        words = np.frombuffer(data, np.int64)
        found = words[len(views) :].reshape(len(views), self._words)
        expected = [(_CUDA | x.device << 32, *x.shape, *x.strides) for x in views]
        return words[: len(views)].tolist() == [x.pointer for x in views] and bool(
            (found[:, [0, 2, 3, 4, 5]] == np.array(expected)).all()
        )


def _emit_products(module: Any) -> None:
    from ..runtime.gpu.replay_code import emit_replay  # they import the compiler
    from .exchange_code import emit_products

    emit_replay(module)
    emit_products(module)


def _emit_read(module: Any) -> None:
    from .list_code import emit_read

    emit_read(module)


def _facts(interface: ExchangeInterface, known: dict[bytes, Any], otherwise: Any) -> tuple[bytes, Any]:
    """The words of ``Facts``, and the objects to which they refer."""
    first, second = interface.types
    objects = known, "requires_grad", interface.grad_enabled, "is_neg", otherwise, False, None, *interface.state
    facts = Facts(id(first), id(second), interface.view, interface.stream_of, *map(id, objects))
    return struct.pack(f"<{len(facts)}Q", *facts), (interface, objects)
