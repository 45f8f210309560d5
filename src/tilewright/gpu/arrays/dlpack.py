"""DLPack's capsules, read and made: by them one library passes an array to another without a copy."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .gpu_array import GpuArray, contiguous_strides

CUDA, CUDA_MANAGED = 2, 13
_BFLOAT = 4
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


_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _tensor(capsule: Any) -> _DLTensor:
    """The tensor in a capsule, in place: the structure in the capsule begins with it."""
    return ctypes.cast(_pointer(capsule, _NAME), ctypes.POINTER(_DLTensor)).contents


def read_capsule(capsule: Any) -> GpuArray:
    """The array in a capsule. The capsule is not marked as used; it is the ``keep`` of the array and keeps it alive.

    The dtype is NumPy's name, or the code and bits of a type that NumPy does not have.
    """
    tensor = _tensor(capsule)
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else contiguous_strides(shape)
    kind = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}.get(
        tensor.code, f"code {tensor.code} "
    )
    name = f"{kind}{tensor.bits}" + (f"x{tensor.lanes}" if tensor.lanes != 1 else "")
    return GpuArray((tensor.data or 0) + tensor.byte_offset, shape, strides, name, tensor.device_id, capsule)


class _Memory:
    """Memory of ``owner`` for NumPy, which keeps a reference to this object and does not read the memory."""

    def __init__(self, pointer: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: Any) -> None:
        self.__array_interface__ = {"data": (pointer, False), "shape": shape, "typestr": dtype.str, "version": 3}
        self.owner = owner


def make_capsule(pointer: int, shape: tuple[int, ...], dtype: str, device: int, owner: Any) -> Any:
    """A capsule of a row-major array; ``owner`` lives until the array is released.

    NumPy makes the capsule, as if of memory of the host; then its device is set. So NumPy's machine code releases it. A
    function of Python must not: an array may be released while an exception is raised, for which ctypes has no care. The
    exception is lost or the process ends.
    """
    is_bfloat16 = dtype == "bfloat16"  # as bits: NumPy exports no dtype of another package
    capsule = np.asarray(_Memory(pointer, shape, np.dtype("uint16" if is_bfloat16 else dtype), owner)).__dlpack__()
    tensor = _tensor(capsule)
    tensor.data, tensor.device_type, tensor.device_id = pointer, CUDA, device
    if is_bfloat16:
        tensor.code = _BFLOAT
    return capsule
