"""Tensor maps describe how the copy engine addresses an array, and which box of the array one copy moves.

On hardware, a map is 128 bytes that the driver makes (``cuTensorMapEncodeTiled``) and whose layout is not published. In
the simulator the 128 bytes hold the same values (such as address, sizes and strides), in an order that this package
defines. A simulated kernel may therefore copy a map to shared or global memory and use the copy.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...errors import OperandError, UsageError
from .values import DTYPES, Array

#: The bytes of a map, the least alignment of a map in a structure (CUtensorMap of CUDA 12), and the first bytes of this
#: package's maps.
MAP_BYTES, MAP_ALIGN = 128, 64
_MAGIC = b"TWtenmap"
#: Magic; address; 5 sizes; 4 strides; 5 box sides; 5 element strides; rank, type, swizzle, fill.
_LAYOUT = struct.Struct("<8sQ5Q4Q5H5B4B")
#: The element types of a map, in the driver's order (CUtensorMapDataType).
TYPES = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16", "f32_ftz", "tf32", "tf32_ftz")
#: The bytes of a row of each swizzle, in the order of the modes of ``ops.descriptor.swizzled``.
SWIZZLES = (0, 128, 64, 32)
FILLS = ("zero", "nan")


@dataclass(frozen=True)
class BoxedTensor:
    """A decoded map. Sizes, strides (in bytes) and the sides of the box are in the order from the innermost dimension
    to the outermost, as in the driver and in kernels."""

    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]  # the innermost first: the size of an element
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    type: str
    swizzle: int
    fill: str

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.strides[0]

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of elements that a copy moves along each dimension. If element strides are greater than 1, a copy
        moves fewer elements than the sides of the box."""
        return tuple(-(-b // s) for b, s in zip(self.box, self.element_strides, strict=True))

    @property
    def box_bytes(self) -> int:
        """The number of bytes of a box; the copy of the box completes this number of bytes at a barrier."""
        return math.prod(self.counts) * self.itemsize

    @property
    def pitch(self) -> int:
        """The bytes from one row of a box to the next in shared memory. With a swizzle, the pitch is the swizzle's
        width, even for narrower rows."""
        return self.swizzle or self.counts[0] * self.itemsize

    @property
    def shared_bytes(self) -> int:
        """The bytes of shared memory that a box takes, including unused bytes between narrow rows."""
        return math.prod(self.counts[1:]) * self.pitch

    @classmethod
    def decode(cls, data: bytes) -> BoxedTensor | None:
        """Decode the 128 bytes of a tensor map; None if the bytes are no map."""
        magic, address, *rest = _LAYOUT.unpack_from(data)
        rank, kind, swizzle, fill = rest[19:]
        if magic != _MAGIC or not 1 <= rank <= 5:
            return None
        name = TYPES[kind]
        return cls(
            address,
            tuple(rest[:rank]),
            (element_bytes(name), *rest[5 : 4 + rank]),
            tuple(rest[9 : 9 + rank]),
            tuple(rest[14 : 14 + rank]),
            name,
            SWIZZLES[swizzle],
            FILLS[fill],
        )

    def encode(self) -> bytes:
        """The map as 128 bytes."""

        def five(values: Sequence[int], count: int = 5) -> list[int]:
            return [*values, *[0] * (count - len(values))]

        kinds = (len(self.sizes), TYPES.index(self.type), SWIZZLES.index(self.swizzle), FILLS.index(self.fill))
        numbers = (*five(self.sizes), *five(self.strides[1:], 4), *five(self.box), *five(self.element_strides))
        return _LAYOUT.pack(_MAGIC, self.address, *numbers, *kinds).ljust(MAP_BYTES, b"\0")


#: Values of ``tensormap.replace`` for types, and for swizzles by their place in SWIZZLES (PTX ISA, table 33).
_REPLACED_TYPES = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32_ftz", "f64", "bf16", "tf32", "tf32_ftz")
_REPLACED_SWIZZLES = (0, 3, 2, 1)
#: Place of the first number of each field among those of _LAYOUT, and how many there are.
_PLACES = {
    "global_address": (1, 1), "global_dim": (2, 5), "global_stride": (7, 4), "box_dim": (11, 5), "element_stride": (16, 5),
    "rank": (21, 1), "elemtype": (22, 1), "swizzle_mode": (23, 1), "fill_mode": (24, 1),
}  # fmt: skip


def edited(data: bytes, field: str, ordinal: int, value: int) -> bytes | None:
    """Change one field of the 128 bytes of a map as ``tensormap.replace`` does. Returns None if the bytes are no map,
    or if the simulator cannot run a map with this value. If all 128 bytes are zero, they count as a map whose fields
    are all still to be set, because Triton makes maps from zero bytes.

    >>> BoxedTensor.decode(edited(TensorMap(np.zeros((8, 8)), (8, 2)).encoded(0), "box_dim", 1, 4)).box
    (2, 4)
    """
    numbers = list(_LAYOUT.unpack_from(data))
    if not any(data):
        numbers[0] = _MAGIC
    if numbers[0] != _MAGIC:
        return None
    if field in ("interleave_layout", "swizzle_atomicity"):
        return data if value == 0 else None
    first, count = _PLACES[field]
    if field == "rank":
        value += 1
    elif field == "elemtype":
        value = TYPES.index(_REPLACED_TYPES[value]) if value < len(_REPLACED_TYPES) else -1
    elif field == "swizzle_mode":
        value = _REPLACED_SWIZZLES[value] if value < len(_REPLACED_SWIZZLES) else -1
    most = {"rank": 5, "fill_mode": 1, "box_dim": 256, "element_stride": 8}.get(field, (1 << 64) - 1)
    if not 0 <= ordinal < count or not 0 <= value <= most:
        return None
    numbers[first + ordinal] = value
    return _LAYOUT.pack(*numbers).ljust(MAP_BYTES, b"\0")


def element_bytes(kind: str) -> int:
    """Return the bytes of one element of a map's type."""
    return DTYPES[kind.removesuffix("_ftz")].itemsize


class TensorMap:
    """A tensor map: how the GPU's copy engine addresses an array, and which box of the array one copy moves.

    Pass a ``TensorMap`` as the argument for a kernel's parameter ``const __grid_constant__ CUtensorMap`` or for a
    pointer to such a map. A ``TensorMap`` can also be a member of a list that is passed as a structure or array.
    Elements outside the array are loaded as ``oob_fill``.

    Parameters
    ----------
    array : array
        A C-contiguous NumPy array, which the kernel may read and write like any other argument.
    box_dim : sequence of int
        The sides of the box in elements, each at most 256. The sides are in the order of the array's dimensions,
        outermost first, as in ``cuda.core``.
    shape : sequence of int, optional
        The shape of the part of the array that the map describes. The default is the whole array.
    strides : sequence of int, optional
        The strides of that part, in bytes.
    offset : int, default: 0
        The byte at which that part begins.
    element_strides : sequence of int, optional
        One number for each dimension: with s, a copy moves every s-th element of the box along that dimension.
    data_type : str, optional
        The type of the elements, if the array's dtype does not state it: "bf16" for 16-bit words, "tf32" for float32.
    swizzle : int, default: 0
        0, 32, 64 or 128: the swizzle mode of the tensor map. With a swizzle of s bytes, chunks of 16 bytes are permuted
        within rows of s bytes in shared memory.
    oob_fill : str, default: "zero"
        The value of elements outside the array: "zero" or "nan".

    Raises
    ------
    UsageError
        The map breaks a rule of the CUDA driver: an address or stride is not a multiple of 16 bytes, or the innermost
        side of the box is not a multiple of 16 bytes or is wider than the swizzle.
    OperandError
        The array is not C-contiguous, or a tensor map cannot have its dtype.

    See Also
    --------
    microscope : Runs kernels that take tensor maps.

    Examples
    --------
    >>> import numpy as np, tilewright as tw
    >>> tw.TensorMap(np.zeros((100, 64), np.float16), (32, 64), swizzle=128)
    TensorMap(float16, shape (100, 64), box (32, 64), swizzle 128)
    """

    def __init__(
        self,
        array: Array,
        box_dim: Sequence[int],
        *,
        shape: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        offset: int = 0,
        element_strides: Sequence[int] | None = None,
        data_type: str | None = None,
        swizzle: int = 0,
        oob_fill: str = "zero",
    ) -> None:
        if not isinstance(array, np.ndarray) or not array.flags.c_contiguous or not array.size:
            raise OperandError(
                "a TensorMap needs a C-contiguous NumPy array that is not empty: give the whole array, and shape and "
                "strides of the part"
            )
        self.array, self.offset = array, int(offset)
        kind = data_type or _type_of(array)
        if kind not in TYPES or element_bytes(kind) != array.itemsize:
            raise OperandError(
                f"data_type {kind!r} does not fit an array of {array.dtype}: give one of {', '.join(TYPES)}"
            )
        size = array.itemsize
        sizes = [int(n) for n in (array.shape if shape is None else shape)][::-1]
        if strides is None:
            steps = [size * math.prod(sizes[:i]) for i in range(len(sizes))]
        else:
            steps = [int(step) for step in strides][::-1]
        box = [int(n) for n in box_dim][::-1]
        every = [int(n) for n in element_strides][::-1] if element_strides is not None else [1] * len(sizes)
        every[:1] = [1]  # the innermost is ignored, as by the driver
        self.tensor = BoxedTensor(
            self.offset, tuple(sizes), tuple(steps), tuple(box), tuple(every), kind, swizzle, oob_fill
        )
        self._check()

    def _check(self) -> None:
        """Raise UsageError for what the driver refuses."""
        t, array = self.tensor, self.array
        rank = len(t.sizes)
        rules = [
            (1 <= rank <= 5, f"the rank must be from 1 to 5, given {rank}"),
            (len(t.box) == rank, f"box_dim has {len(t.box)} sides, the array {rank} dimensions"),
            (len(t.strides) == rank, f"strides has {len(t.strides)} entries, the array {rank} dimensions"),
            (len(t.element_strides) == rank, f"element_strides has {len(t.element_strides)} entries, the array {rank}"),
            (t.swizzle in SWIZZLES, f"swizzle must be 0, 32, 64 or 128, given {t.swizzle!r}"),
            (t.fill in FILLS, f"oob_fill must be 'zero' or 'nan', given {t.fill!r}"),
            (t.fill == "zero" or t.type[0] in "fbt", f"oob_fill='nan' needs floats, the array is {array.dtype}"),
            (all(1 <= n <= 1 << 32 for n in t.sizes), f"every size must be from 1 to 2^32, given {t.sizes[::-1]}"),
            (all(1 <= n <= 256 for n in t.box), f"every side of the box must be from 1 to 256, given {t.box[::-1]}"),
            (all(1 <= n <= 8 for n in t.element_strides), "every one of element_strides must be from 1 to 8"),
            (self.offset >= 0 and self.offset % 16 == 0, f"offset must be a multiple of 16 bytes, given {self.offset}"),
            (t.strides[:1] == (array.itemsize,), f"the innermost stride must be {array.itemsize} bytes"),
            (all(0 <= n < 1 << 40 and n % 16 == 0 for n in t.strides[1:]),
             f"every stride but the innermost must be a multiple of 16 bytes, given {t.strides[::-1]}"),
        ]  # fmt: skip
        for holds, text in rules:
            if not holds:
                raise UsageError(f"TensorMap: {text}")
        inner = t.box[0] * t.itemsize
        if inner % 16 or (t.swizzle and inner > t.swizzle):
            widest = f" and at most {t.swizzle} with this swizzle" if t.swizzle else ""
            raise UsageError(f"TensorMap: the box's innermost side is {inner} bytes: give a multiple of 16{widest}")
        end = self.offset + sum((n - 1) * step for n, step in zip(t.sizes, t.strides, strict=True)) + t.itemsize
        if end > array.nbytes:
            raise UsageError(f"TensorMap: shape and strides reach {end} bytes into an array of {array.nbytes}")

    def encoded(self, address: int) -> bytes:
        """Return the 128 bytes of the kernel's parameter, for an array at this address."""
        return replace(self.tensor, address=address + self.offset).encode()

    def __repr__(self) -> str:
        t = self.tensor
        swizzle = f", swizzle {t.swizzle}" if t.swizzle else ""
        return f"TensorMap({self.array.dtype}, shape {t.sizes[::-1]}, box {t.box[::-1]}{swizzle})"


def _type_of(array: Array) -> str:
    """The map's type for an array's own; types of 8 bits travel as bytes."""
    dtype: Any = array.dtype
    if dtype.name == "bfloat16":
        return "bf16"
    if dtype.itemsize == 1:
        return "u8"
    return {"i2": "u16"}.get(
        f"{dtype.kind}{dtype.itemsize}", f"{ {'i': 's'}.get(dtype.kind, dtype.kind) }{8 * dtype.itemsize}"
    )
