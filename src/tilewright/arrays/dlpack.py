"""DLPack's capsules, read and made: by them one library passes an array to another without a copy."""

from __future__ import annotations

import ctypes
from typing import Any

from ..problem import itemsize_of
from .gpu_array import GpuArray, contiguous_strides

CUDA, CUDA_MANAGED = 2, 13
_FLOAT, _BFLOAT, _COMPLEX = 2, 4, 5
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
#: The same for a capsule that is being freed, by its address: passed as an object it would be referenced again.
_pointer_of_freed = _function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_is_unused = _function("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)


def read_capsule(capsule: Any) -> GpuArray:
    """The array in a capsule. The capsule is not marked as used; it is the ``keep`` of the array and keeps it alive.

    The dtype is NumPy's name, or the code and bits of a type that NumPy does not have.
    """
    tensor = ctypes.cast(_pointer(capsule, _NAME), ctypes.POINTER(_Managed)).contents.tensor
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else contiguous_strides(shape)
    kind = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}.get(
        tensor.code, f"code {tensor.code} "
    )
    name = f"{kind}{tensor.bits}" + (f"x{tensor.lanes}" if tensor.lanes != 1 else "")
    return GpuArray((tensor.data or 0) + tensor.byte_offset, shape, strides, name, tensor.device_id, capsule)


#: Exported arrays by the address of their structure: what it points to, and the owner, must live until they are released.
_exported: dict[int, tuple[Any, ...]] = {}


def make_capsule(pointer: int, shape: tuple[int, ...], dtype: str, device: int, owner: Any) -> Any:
    """A capsule of a row-major array of floating-point numbers, real or complex; ``owner`` lives until that is released."""
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    strides = (ctypes.c_int64 * len(shape))(*contiguous_strides(shape))
    code = _BFLOAT if dtype == "bfloat16" else _COMPLEX if dtype.startswith("complex") else _FLOAT
    bits = itemsize_of(dtype) * 8
    managed = _Managed(_DLTensor(pointer, CUDA, device, len(shape), code, bits, 1, sizes, strides, 0), None, _release)
    address = ctypes.addressof(managed)
    _exported[address] = (managed, sizes, strides, owner)
    return _new(address, _NAME, ctypes.cast(_freed, ctypes.c_void_p))


@_Deleter
def _release(address: int, exported: dict[int, tuple[Any, ...]] = _exported) -> None:
    exported.pop(address, None)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _freed(
    capsule: int,
    is_unused: Any = _is_unused,
    pointer: Any = _pointer_of_freed,
    name: bytes = _NAME,
    exported: Any = _exported,
) -> None:
    """Release the array of a capsule that is freed unused. Default arguments keep the names, which are gone at exit."""
    if is_unused(capsule, name):
        exported.pop(pointer(capsule, name), None)


for _callback in (_release, _freed):  # at exit capsules may outlive this module and still call these functions
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))
