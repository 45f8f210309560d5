"""Launches whose operands are tensor maps: by these the copy engine of a GPU, from Hopper on, moves boxes of a matrix.

A map describes how an operand lies. It is made at the first launch; later launches only change its address.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import UsageError
from ...kernels.cuda_kernel import CudaKernel
from ...product.problem import itemsize_of
from .driver import call, driver
from .memory import GRANULE, LINE_BYTES, Memory
from .recording import RecordedLaunch, recorded_maps

#: ``launch(stream, mapped, pointers)``: the addresses of the operands that have maps, and those that the kernel gets itself.
#: A fourth argument is another structure of the same length.
BoxedLauncher = Callable[..., None]

#: Names of dtypes in the driver. Other elements travel as bytes.
_TYPES = {
    "bfloat16": "BFLOAT16",
    "float16": "FLOAT16",
    "float32": "FLOAT32",
    "float64": "FLOAT64",
    "int32": "INT32",
    "tf32": "TFLOAT32",  # rounded to nearest as it is loaded
}
#: Boxes of rows that do not begin at lines of the caches lie across two of them; to read 256 bytes at each access then takes
#: 10 to 20 % more time, on an H200, than to read what is asked for.
_SWIZZLE_128, _PROMOTION_256 = 3, 3


class BoxedOperand(NamedTuple):
    """An operand as the copy engine sees it: ``matrices`` of ``rows`` and ``columns`` as they lie in memory, the next
    row ``row_bytes`` further, the next matrix ``next_bytes``; and the rows and columns of the box that one copy moves."""

    dtype: str
    rows: int
    columns: int
    matrices: int
    row_bytes: int
    next_bytes: int
    box: tuple[int, int]

    def encoded(self, address: int) -> Any:
        """The tensor map, if the operand begins at this address."""
        d = driver()
        kind = getattr(d.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TYPES.get(self.dtype, 'UINT8')}")
        rows, columns = self.box
        (encoded,) = call(
            f"the tensor map of {self}",
            "cuTensorMapEncodeTiled",
            kind,
            3,
            address,
            [d.cuuint64_t(n) for n in (self.columns, self.rows, self.matrices)],
            [d.cuuint64_t(n) for n in (self.row_bytes, self.next_bytes)],
            [d.cuuint32_t(n) for n in (columns, rows, 1)],
            [d.cuuint32_t(1)] * 3,
            d.CUtensorMapInterleave(0),
            d.CUtensorMapSwizzle(_SWIZZLE_128),
            d.CUtensorMapL2promotion(0 if self.row_bytes % LINE_BYTES else _PROMOTION_256),
            d.CUtensorMapFloatOOBfill(0),
        )
        return encoded


class Mapped(NamedTuple):
    """An argument for a launch: memory, as the tensor map of an operand."""

    memory: Memory
    operand: BoxedOperand


def mapped_arguments(
    kernel: CudaKernel, shape: tuple[int, int, int], dtype: str, params: Mapping[str, int], operands: Sequence[Any]
) -> list[Any]:
    """A, B and C, row-major and without gaps, as a rung takes them: those that its header names in ``boxes`` as tensor maps.

    ``params`` are all of its parameters. Raises UsageError for a shape of which no tensor map can be made.
    """
    m, n, k = shape
    size, found = itemsize_of(dtype), list[Any]()
    for name, (rows, columns), memory in zip("abc", ((m, k), (k, n), (m, n)), operands, strict=True):
        if name in kernel.boxes:
            check_box_rows(kernel, shape, size)
            operand = BoxedOperand(
                dtype, rows, columns, 1, columns * size, rows * columns * size, kernel.box(name, size, params)
            )
            found.append(Mapped(memory, operand))
        else:
            found.append(memory)
    return found


def check_box_rows(kernel: CudaKernel, shape: tuple[int, int, int], itemsize: int) -> None:
    """Raises UsageError where the rows of an operand that the kernel takes as a tensor map are empty, or no multiples of 16
    bytes, as the copy engine needs them."""
    m, n, k = shape
    for name, rows, columns in (("A", m, k), ("B", k, n), ("C", m, n)):
        if name.lower() in kernel.boxes and (not rows * columns or columns * itemsize % GRANULE):
            raise UsageError(
                f"{kernel.name} takes {name} as a tensor map, whose rows must be multiples of {GRANULE} bytes and not "
                f"empty: {name} is {rows}x{columns}, its rows have {columns * itemsize} bytes"
            )


class FixedArguments:
    """The memory of the arguments of a launch that are always the same: whole numbers, addresses, tensor maps, and
    structures as their bytes."""

    def __init__(self, args: Sequence[Any]) -> None:
        self._kept, places = list[Any](), list[int]()
        for arg in args:
            if isinstance(arg, Mapped):
                kept = arg.operand.encoded(arg.memory.pointer)
                places.append(kept.getPtr())
            else:
                if isinstance(arg, bytes):
                    kept = ctypes.create_string_buffer(arg, len(arg))
                else:
                    kept = ctypes.c_int64(arg.pointer if isinstance(arg, Memory) else int(arg))
                places.append(ctypes.addressof(kept))
            self._kept.append(kept)
        self._places = (ctypes.c_void_p * len(args))(*places)
        #: Where the addresses of the arguments are, as a launch takes them.
        self.address = ctypes.addressof(self._places)


class BoxedArguments:
    """The memory of a launch's arguments: a tensor map for each operand, addresses, and a structure."""

    def __init__(
        self, operands: Sequence[BoxedOperand], structure: bytes, mapped: Sequence[int], pointers: Sequence[int]
    ) -> None:
        self._maps = [operand.encoded(at) for operand, at in zip(operands, mapped, strict=True)]
        self._at = list(mapped)
        self._pointers = (ctypes.c_uint64 * len(pointers))(*pointers)
        self._structure, self._content = ctypes.create_string_buffer(structure, len(structure)), structure
        places = [each.getPtr() for each in self._maps]
        first = ctypes.addressof(self._pointers)
        places += [*(first + 8 * i for i in range(len(pointers))), ctypes.addressof(self._structure)]
        self._places = (ctypes.c_void_p * len(places))(*places)
        #: Where the addresses of the arguments are, as a launch takes them.
        self.address = ctypes.addressof(self._places)

    def change(self, mapped: Sequence[int], pointers: Sequence[int], structure: bytes) -> None:
        """The arguments of the next launch."""
        for i, (now, then) in enumerate(zip(mapped, self._at, strict=True)):
            if now != then:
                call("a tensor map", "cuTensorMapReplaceAddress", self._maps[i], now)
                self._at[i] = now
        for i, pointer in enumerate(pointers):
            self._pointers[i] = pointer
        if structure is not self._content:
            ctypes.memmove(self._structure, structure, len(structure))
            self._content = structure

    def recorded(self, what: str, function: int, size: tuple[int, ...]) -> RecordedLaunch | None:
        """A launch with these arguments as data; None if the addresses in the tensor maps cannot be found."""
        return recorded_maps(what, function, size, self._maps, self._at, list(self._pointers), self._structure.raw)
