"""Arrays on a GPU in three forms: as an address, a shape and strides, independent of their library; as DLPack capsules;
and as the array that is returned for operands of an unknown library.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...errors import OperandError
from ...product.problem import itemsize_of
from ..runtime.layout import Matrix
from ..runtime.memory import GRANULE, Memory

if TYPE_CHECKING:
    from ..runtime.device import Device


class GpuArray(NamedTuple):
    """An array on a GPU. ``pointer`` is the address of the array's first element on GPU ``device``; ``strides`` are in
    elements; ``keep`` is the object that owns the memory."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int
    keep: Any = None

    @property
    def layout(self) -> tuple[tuple[int, ...], str, int]:
        """Strides, dtype and device."""
        return self.strides, self.dtype, self.device

    @property
    def in_granule(self) -> tuple[Any, ...]:
        """All properties of the array except its owner. Instead of the address there is its remainder modulo 16
        bytes."""
        return (self.pointer % GRANULE, *self[1:5])

    @property
    def extent(self) -> tuple[int, int]:
        """The address of the first byte of the array's elements, and the address after their last byte."""
        if 0 in self.shape:
            return self.pointer, self.pointer
        size = itemsize_of(self.dtype)
        reach = [(n - 1) * stride * size for n, stride in zip(self.shape, self.strides, strict=True)]
        low, high = sum(min(0, r) for r in reach), sum(max(0, r) for r in reach)
        return self.pointer + low, self.pointer + high + size

    def overlaps(self, other: GpuArray) -> bool:
        """Whether the address ranges of the two arrays, from first to last byte, overlap. If the ranges overlap, the
        arrays may share a byte."""
        (low, high), (first, end) = self.extent, other.extent
        return low < end and first < high

    @property
    def transposed(self) -> GpuArray:
        """The array with its last two axes swapped, in the same memory."""
        shape, strides = ((*x[:-2], x[-1], x[-2]) for x in (self.shape, self.strides))
        return self._replace(shape=shape, strides=strides)

    def is_transpose_of(self, other: GpuArray) -> bool:
        """Whether this is the transpose of ``other``, matrix by matrix, in the same memory. Returns False if the
        address is not known."""
        if not self.pointer or self.pointer != other.pointer or min(len(self.shape), len(other.shape)) < 2:
            return False
        return self.in_granule == other.transposed.in_granule

    @property
    def matrix(self) -> Matrix:
        """The layout of the array as a matrix, or as a batch of matrices along one axis."""
        (rows, columns), (row, column) = self.shape[-2:], self.strides[-2:]
        step = self.strides[0] if len(self.shape) == 3 and self.shape[0] > 1 else 0
        alignment = math.gcd(GRANULE, self.pointer, step * itemsize_of(self.dtype))
        return Matrix(rows, columns, row, column, self.dtype, alignment, step)

    @property
    def repeats(self) -> bool:
        """Whether several elements of the array share the same memory, as after a broadcast."""
        return 0 not in self.shape and any(n > 1 and not s for n, s in zip(self.shape, self.strides, strict=True))


def merged_axes(shape: tuple[int, ...], *strides: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The axes of arrays of the same shape, as few as possible; each axis is given by its length and its strides in all
    arrays. Axes that can be merged in all arrays become one axis, and axes of length 1 are left out.

    >>> merged_axes((2, 3, 4), (12, 4, 1), (24, 8, 2)), merged_axes((2, 3), (3, 1), (0, 1))
    ([(24, 1, 2)], [(2, 3, 0), (3, 1, 1)])
    """
    axes: list[tuple[int, ...]] = []
    for n, *steps in zip(shape, *strides, strict=True):
        if n == 1:
            continue
        if axes and all(outer == n * inner for outer, inner in zip(axes[-1][1:], steps, strict=True)):
            axes[-1] = (axes[-1][0] * n, *steps)
        else:
            axes.append((n, *steps))
    return axes


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of C order, in elements."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


# ---- DLPack's capsules, by which one library passes an array to another without a copy -------------------------------

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
    """The array in a DLPack capsule. The capsule is not marked as used. The capsule is the ``keep`` of the array, and
    keeps the memory alive.

    The dtype is a NumPy name, or the code and bits of a type that NumPy does not have.
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
    """A DLPack capsule of a row-major array. ``owner`` is kept alive until the array is released.

    NumPy makes the capsule as if the memory were the host's; then the device in the capsule is changed. So NumPy's
    machine code releases the array. A Python function must not release the array. An array may be released while an
    exception is raised, and ctypes does not handle a call in that state: the exception would be lost, or the process
    would end.
    """
    is_bfloat16 = dtype == "bfloat16"  # as bits: NumPy exports no dtype of another package
    capsule = np.asarray(_Memory(pointer, shape, np.dtype("uint16" if is_bfloat16 else dtype), owner)).__dlpack__()
    tensor = _tensor(capsule)
    tensor.data, tensor.device_type, tensor.device_id = pointer, CUDA, device
    if is_bfloat16:
        tensor.code = _BFLOAT
    return capsule


# ---- the result for arrays of an unknown library ---------------------------------------------------------------------


class GpuMatrix:
    """A row-major array on a GPU. Other libraries can import the array without a copy, for example by
    ``torch.from_dlpack(c)``.

    The work that fills the array may still be running. A stream for which the array is imported by DLPack waits for
    that work.
    """

    def __init__(self, gpu: Device, memory: Memory, shape: tuple[int, ...], dtype: str, stream: int) -> None:
        self._gpu, self._memory, self._stream = gpu, memory, stream
        self._readers: set[int] = set()
        self.shape, self._dtype = shape, dtype

    def __repr__(self) -> str:
        return f"GpuMatrix(shape={self.shape}, dtype={self.dtype}, GPU {self._gpu.ordinal})"

    @property
    def dtype(self) -> Any:
        """The NumPy dtype; for bfloat16, which NumPy does not have, its name."""
        return self._dtype if self._dtype == "bfloat16" else np.dtype(self._dtype)

    @property
    def pointer(self) -> int:
        """The address of the first element on the GPU."""
        return self._memory.pointer

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._dtype == "bfloat16":
            raise AttributeError("CUDA's array interface has no bfloat16; DLPack has")
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer if math.prod(self.shape) else 0, False),
            "version": 3,
            "stream": self._stream,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self._gpu.ordinal

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"{self!r} is exported without a copy, on its own GPU")
        if stream != -1:
            self._gpu.order(self._stream, stream or 0)
            self._readers.add(stream or 0)
        return make_capsule(self.pointer, self.shape, self._dtype, self._gpu.ordinal, self)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise OperandError(
            f"{self!r} lies on a GPU: import it into a library, such as torch.from_dlpack(c).cpu().numpy()"
        )

    def __del__(self) -> None:
        for stream in self._readers:  # their work must end before this memory is used again
            self._gpu.order(stream, self._stream)
        self._memory.close()
