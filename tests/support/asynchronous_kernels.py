"""The asynchronous kernels in ``microscope/asynchronous``: how each is launched at each size, and its right answer in NumPy.

Operands are drawn by a seed. WHOLE operands are small whole numbers, whose sums are exact in any order, so the right answer
is exact. RANDOM operands use all bits of their types; their right answer is that of wider arithmetic, and the bits are
those that a GPU recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ARCH = "sm_90a"
FOLDER = Path(__file__).parents[1] / "microscope" / "asynchronous"
SMALL, MEDIUM, LARGE = "small", "medium", "large"
WHOLE, RANDOM = "whole", "random"

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TileMap:
    """A tensor map of a row-major matrix: rows and columns of its box, and the bytes of its swizzle (0: none).

    ``cols`` is the number of columns that the map knows of, if it is not all of them.
    """

    array: Array
    box: tuple[int, int]
    swizzle: int = 128
    cols: int | None = None

    def in_driver_order(self) -> dict[str, Any]:
        """What cuTensorMapEncodeTiled takes, innermost dimension first; strides are in bytes."""
        (rows, cols), size = self.array.shape, self.array.itemsize
        name = {"f4": "FLOAT32", "u1": "UINT8", "i1": "UINT8", "u2": "UINT16"}[self.array.dtype.str[1:]]
        return {
            "type": name,
            "extents": [self.cols or cols, rows],
            "strides": [cols * size],
            "box": list(self.box[::-1]),
        }


@dataclass(frozen=True)
class Launch:
    """A launch: arguments are matrices, tensor maps and numbers; ``right`` gives for an argument what it must hold.

    ``bound`` gives for an argument how far each element may be off with RANDOM operands; without one it must be equal.
    """

    grid: tuple[int, ...]
    args: list[Any]
    right: dict[int, Array]
    bound: dict[int, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class AsynchronousKernel:
    """A kernel, the macros of its source, and its launches: sizes by name, and a function of size and kind of operands."""

    name: str
    source: str
    entry: str
    block: int
    sizes: Mapping[str, tuple[int, ...]]
    make: Callable[..., Launch]
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    defines: Mapping[str, object] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return FOLDER / self.source

    def launch(self, size: str = SMALL, kind: str = WHOLE) -> Launch:
        return self.make(Operands(kind, self.sizes[size]), *self.sizes[size])


# ---- number formats ---------------------------------------------------------------------------------------------------


def bf16(values: Array) -> Array:
    """float32 rounded to the nearest bf16, ties to even, as 16 bits."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def from_e4m3(bits: Array) -> Array:
    """The values of fp8 numbers with 4 bits of exponent and 3 of mantissa; NaN where all seven are set."""
    exponent, mantissa = bits >> 3 & 15, (bits & 7).astype(np.float32)
    value = np.where(exponent == 0, mantissa / 512, (8 + mantissa) * np.exp2(exponent.astype(np.float32) - 10))
    value = np.where(bits & 127 == 127, np.nan, value)
    return np.where(bits >> 7 == 1, -value, value).astype(np.float32)


@functools.cache
def _whole_e4m3() -> Array:
    """The bits of -3 … 3."""
    values = from_e4m3(np.arange(256, dtype=np.uint8))
    return np.array([int(np.flatnonzero(values == v)[0]) for v in range(-3, 4)], np.uint8)


class Operands:
    """Draws operands of one kind; each call gives bits and the values that they stand for."""

    def __init__(self, kind: str, seed: tuple[int, ...]) -> None:
        self.kind = kind
        self._random = np.random.default_rng([kind == RANDOM, *seed])

    def _whole(self, shape: tuple[int, ...]) -> Array:
        return self._random.integers(-3, 4, shape, np.int8)

    def float32(self, *shape: int) -> Array:
        if self.kind == WHOLE:
            return self._whole(shape).astype(np.float32)
        return self._random.standard_normal(shape, np.float32)

    def bf16(self, *shape: int) -> tuple[Array, Array]:
        bits = bf16(self.float32(*shape))
        return bits, from_bf16(bits)

    def tf32(self, *shape: int) -> tuple[Array, Array]:
        """float32, of which tensor cores read the upper 19 bits."""
        values = self.float32(*shape)
        return values, (values.view(np.uint32) & 0xFFFFE000).view(np.float32)

    def f16(self, *shape: int) -> tuple[Array, Array]:
        values = self.float32(*shape).astype(np.float16)
        return values.view(np.uint16), values.astype(np.float32)

    def e4m3(self, *shape: int) -> tuple[Array, Array]:
        if self.kind == WHOLE:
            bits = _whole_e4m3()[self._whole(shape) + 3]
        else:  # every number but the two NaNs
            bits = self._random.integers(0, 254, shape, np.uint8)
            bits += bits >= 127
        return bits, from_e4m3(bits)

    def s8(self, *shape: int) -> tuple[Array, Array]:
        bits = self._whole(shape) if self.kind == WHOLE else self._random.integers(-128, 128, shape, np.int8)
        return bits, bits


def poison(*shape: int, dtype: Any = np.float32) -> Array:
    """What stays where a kernel writes nothing: NaN as float32."""
    return np.frombuffer(b"\xff" * (int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape).copy()


def blocks(extent: int, tile: int) -> int:
    return -(-extent // tile)


# ---- right answers ----------------------------------------------------------------------------------------------------

#: The most that one sum of a tensor core is off, relative to the sum of magnitudes, by the bits that it keeps; and so much
#: again for each of the other sums of a product.
_KEPT = {"e4m3": 2.0**-9}


def exact_product(operands: Operands, operand: str, a: Array, b: Array) -> tuple[Array, Array | None]:
    """a·bᵀ and how far a tensor core may be off: None where it is exact, as all sums of WHOLE operands are in float32."""
    if operand == "s8":
        return np.rint(a.astype(np.float64) @ b.astype(np.float64).T).astype(np.int32), None
    if operands.kind == WHOLE:
        return a.astype(np.float32) @ b.astype(np.float32).T, None
    wide = np.float64 if a.size < 1 << 22 else np.float32
    a, b = a.astype(wide), b.astype(wide)
    return (a @ b.T).astype(np.float32), np.abs(a) @ np.abs(b).T * _KEPT.get(operand, 2.0**-14)


def product_launch(
    operands: Operands, grid: tuple[int, ...], args: list[Any], output: int, right: Array, bound: Array | None
) -> Launch:
    """A launch whose one output must equal ``right``, or with RANDOM operands be near it."""
    near = {} if bound is None else {output: bound}
    return Launch(grid, args, {output: right}, near)


# ---- the kernels ------------------------------------------------------------------------------------------------------


def _bulk_copy(operands: Operands, n: int) -> Launch:
    x = operands.float32(n)
    return Launch((blocks(n, 2048),), [x, poison(n), n], {1: 2 * x})


def _swizzled_copy(swizzle: int, operands: Operands, rows: int, cols: int) -> Launch:
    x, width = operands.float32(rows, cols), (swizzle or 128) // 4
    tile = TileMap(x, (32, width), swizzle)
    return Launch((blocks(cols, width), blocks(rows, 32)), [tile, poison(cols, rows), rows, cols], {1: x.T.copy()})


def _ring(operands: Operands, rows: int, cols: int) -> Launch:
    x = operands.float32(rows, cols)
    total = np.zeros(cols, np.float32)
    for row in x:  # in the order in which the kernel adds
        total += row
    return Launch((cols // 128,), [x, poison(cols), rows, cols], {1: total})


def _product(operand: str, operands: Operands, m: int, n: int, k: int) -> Launch:
    (a, left), (b, right) = getattr(operands, operand)(m, k), getattr(operands, operand)(n, k)
    box = 128, 128 // a.itemsize
    exact, bound = exact_product(operands, operand, left, right)
    args = [TileMap(a, box), TileMap(b, box), poison(m, n, dtype=exact.dtype), m, n, k]
    return product_launch(operands, (blocks(n, 128), blocks(m, 128)), args, 2, exact, bound)


def _row_major(operand: str, operands: Operands, m: int, n: int, k: int) -> tuple[list[Any], Array, Array | None]:
    """Arguments, right answer and bound of a product of row-major matrices in clusters of two blocks."""
    (a, left), (b, right) = getattr(operands, operand)(m, k), getattr(operands, operand)(k, n)
    exact, bound = exact_product(operands, operand, left, right.T)
    return [TileMap(a, (128, 64)), TileMap(b, (64, 64)), poison(m, n), m, n, k], exact, bound


def _multicast(operands: Operands, m: int, n: int, k: int) -> Launch:
    args, exact, bound = _row_major("bf16", operands, m, n, k)
    return product_launch(operands, (blocks(n, 128), 2 * blocks(m, 256)), args, 2, exact, bound)


def _persistent(operands: Operands, m: int, n: int, k: int, multiprocessors: int) -> Launch:
    args, exact, bound = _row_major("f16", operands, m, n, k)
    tiles = blocks(m, 256) * blocks(n, 128)
    return product_launch(operands, (min(2 * tiles, multiprocessors),), args, 2, exact, bound)


def _by_bf16(operands: Operands, m: int, n: int, k: int) -> tuple[list[Any], Array, Array | None]:
    """The tensor maps of A and Bᵀ for a tile of 64 × 128, the product and its bound."""
    (a, left), (b, right) = operands.bf16(m, k), operands.bf16(n, k)
    exact, bound = exact_product(operands, "bf16", left, right)
    return [TileMap(a, (64, 64)), TileMap(b, (128, 64))], exact, bound


def _store_epilogue(operands: Operands, m: int, n: int, k: int) -> Launch:
    maps, exact, bound = _by_bf16(operands, m, n, k)
    args = [*maps, TileMap(poison(m, n, dtype=np.uint16), (64, 64)), k]
    bound = None if bound is None else bound + np.abs(exact) / 128
    return product_launch(operands, (blocks(n, 128), blocks(m, 64)), args, 2, bf16(exact), bound)


def _stmatrix(operands: Operands, rows: int, cols: int) -> Launch:
    x, _ = operands.bf16(rows, cols)
    return Launch((cols // 64, rows // 64), [x, poison(cols, rows, dtype=np.uint16), rows, cols], {1: x.T.copy()})


def _split_k(operands: Operands, m: int, n: int, k: int) -> Launch:
    """Two slices, so that the sum does not depend on which comes first."""
    maps, exact, bound = _by_bf16(operands, m, n, k)
    args = [*maps, TileMap(np.zeros((m, n), np.float32), (64, 32)), k]
    return product_launch(operands, (blocks(n, 128), blocks(m, 64), 2), args, 2, exact, bound)


def _sizes(small: tuple[int, ...], medium: tuple[int, ...], large: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {SMALL: small, MEDIUM: medium, LARGE: large}


#: Bytes of dynamic shared memory: stages of both operands, the tile of C, the barriers.
_FOUR_STAGES = 4 * 32768 + 64
_THREE_STAGES = 3 * 24576

_SQUARES = (2048, 2048, 2048), (4096, 4096, 4096)


def _swizzled_kernel(swizzle: int) -> AsynchronousKernel:
    width = (swizzle or 128) // 4
    return AsynchronousKernel(
        f"swizzled copy {swizzle}", "swizzled_copy.cu", "swizzled_copy", 256,
        _sizes((45, 2 * width - 4), (2048, 2048), (8192, 8192)), functools.partial(_swizzled_copy, swizzle),
        defines={"SWIZZLE": swizzle},
    )  # fmt: skip


def _product_kernel(operand: str, macro: str, size: int) -> AsynchronousKernel:
    """The small one has a ragged tile of C, and five steps of k, the last of them short, in four stages."""
    small = 120, 120, (5 * 128 - 16) // size
    return AsynchronousKernel(
        f"product {operand}", "product.cu", "product", 384, _sizes(small, *_SQUARES),
        functools.partial(_product, operand), _FOUR_STAGES, defines={"OPERAND": macro},
    )  # fmt: skip


#: Every kernel by its name; the four swizzles are cases of one kernel.
KERNELS = {
    kernel.name: kernel
    for kernel in [
        AsynchronousKernel("bulk copy", "bulk_copy.cu", "bulk_copy", 128,
                           _sizes((5000,), (1 << 22,), ((1 << 27) + 64,)), _bulk_copy),
        *(_swizzled_kernel(swizzle) for swizzle in (0, 32, 64, 128)),
        AsynchronousKernel("ring", "ring.cu", "ring", 160,
                           _sizes((43, 256), (1024, 16896), (8192, 16896)), _ring),
        _product_kernel("bf16", "Bf16", 2),
        _product_kernel("tf32", "Tf32", 4),
        _product_kernel("e4m3", "E4m3", 1),
        _product_kernel("s8", "S8", 1),
        AsynchronousKernel("multicast", "multicast.cu", "multicast", 384, _sizes((250, 120, 312), *_SQUARES),
                           _multicast, _FOUR_STAGES, (1, 2, 1)),
        AsynchronousKernel("store epilogue", "store_epilogue.cu", "store_epilogue", 160,
                           _sizes((60, 120, 312), *_SQUARES), _store_epilogue, _THREE_STAGES + 16384 + 48),
        AsynchronousKernel("stmatrix", "stmatrix.cu", "stmatrix", 128,
                           _sizes((64, 128), (2048, 2048), (16384, 16384)), _stmatrix),
        AsynchronousKernel("split k", "split_k.cu", "split_k", 160,
                           _sizes((60, 120, 504), (512, 512, 8192), (1024, 1024, 16384)), _split_k,
                           _THREE_STAGES + 32768 + 48),
        AsynchronousKernel("persistent", "persistent.cu", "persistent", 384,
                           _sizes((250, 264, 312, 4), (2048, 2048, 2048, 132), (4096, 4096, 4096, 132)),
                           _persistent, _FOUR_STAGES, (2, 1, 1)),
    ]
}  # fmt: skip


def differences(kernel: AsynchronousKernel, launch: Launch, arrays: Mapping[int, Array]) -> list[str]:
    """What is wrong with the arrays that a launch left, by argument; empty where all are right."""
    said = []
    for argument, right in launch.right.items():
        found, bound = arrays[argument], launch.bound.get(argument)
        if bound is None:
            off = found != right
        else:
            values = from_bf16(found) if found.dtype == np.uint16 else found
            wanted = from_bf16(right) if right.dtype == np.uint16 else right
            off = ~(np.abs(values.astype(np.float64) - wanted) <= bound)
        if off.any():
            at = tuple(int(i) for i in np.argwhere(off)[0])
            what = f"{int(off.sum())} of {off.size} are wrong, the first {found[at]} at {at} instead of {right[at]}"
            said.append(f"{kernel.name}: argument {argument}: {what}")
    return said
