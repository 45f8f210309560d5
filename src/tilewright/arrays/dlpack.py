"""DLPack's capsules, read and made: how a library hands its arrays to another without a copy."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .gpu_array import GpuArray, contiguous_strides

CUDA, CUDA_MANAGED = 2, 13
_FLOAT = 2
_NAME = b"dltensor"


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


def _function(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_new = _function("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_pointer = _function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
#: The same of a capsule that is being freed, which as an object would come to life again.
_pointer_of_freed = _function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_is_unused = _function("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)


def read(capsule: Any) -> GpuArray:
    """The array in a capsule, which stays unused and, as long as it is kept, keeps the array.

    The dtype is by NumPy's name, or says the code and the bits of one that NumPy does not have.
    """
    tensor = ctypes.cast(_pointer(capsule, _NAME), ctypes.POINTER(_Managed)).contents.tensor
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else contiguous_strides(shape)
    kind = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}.get(
        tensor.code, f"code {tensor.code} "
    )
    name = f"{kind}{tensor.bits}" + (f"x{tensor.lanes}" if tensor.lanes != 1 else "")
    return GpuArray((tensor.data or 0) + tensor.byte_offset, shape, strides, name, tensor.device_id, capsule)


#: What somebody has a capsule's array of, by the address of the structure: it, and what it points to, must live as long.
_given: dict[int, tuple[Any, ...]] = {}


def make(pointer: int, shape: tuple[int, ...], dtype: str, device: int, owner: Any) -> Any:
    """A capsule of a row-major array of floating-point numbers; ``owner`` lives until the array is let go."""
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    strides = (ctypes.c_int64 * len(shape))(*contiguous_strides(shape))
    bits = np.dtype(dtype).itemsize * 8
    managed = _Managed(_DLTensor(pointer, CUDA, device, len(shape), _FLOAT, bits, 1, sizes, strides, 0), None, _let_go)
    address = ctypes.addressof(managed)
    _given[address] = (managed, sizes, strides, owner)
    return _new(address, _NAME, ctypes.cast(_freed, ctypes.c_void_p))


@_Deleter
def _let_go(address: int, given: dict[int, tuple[Any, ...]] = _given) -> None:
    given.pop(address, None)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _freed(
    capsule: int,
    is_unused: Any = _is_unused,
    pointer: Any = _pointer_of_freed,
    name: bytes = _NAME,
    given: Any = _given,
) -> None:
    """A capsule that nobody used has its array still. The names are its own: at exit the module has none any more."""
    if is_unused(capsule, name):
        given.pop(pointer(capsule, name), None)


for _callback in (_let_go, _freed):  # at exit capsules may outlive this module, and call what it no longer has
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))
