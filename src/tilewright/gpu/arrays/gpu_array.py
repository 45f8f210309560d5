"""An array on a GPU, independent of its library: an address, a shape and strides."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ...product.problem import itemsize_of
from ..runtime.layout import Matrix
from ..runtime.memory import GRANULE


class GpuArray(NamedTuple):
    """``pointer`` is the address of the first element on GPU ``device``; ``strides`` are in elements; ``keep`` is the object
    that owns the memory."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int
    keep: Any = None

    @property
    def in_granule(self) -> tuple[Any, ...]:
        """All of it but the owner, with the place of its first byte within a granule as its address."""
        return (self.pointer % GRANULE, *self[1:5])

    @property
    def extent(self) -> tuple[int, int]:
        """The address of the first byte of its elements, and the address after their last byte."""
        if 0 in self.shape:
            return self.pointer, self.pointer
        size = itemsize_of(self.dtype)
        reach = [(n - 1) * stride * size for n, stride in zip(self.shape, self.strides, strict=True)]
        low, high = sum(min(0, r) for r in reach), sum(max(0, r) for r in reach)
        return self.pointer + low, self.pointer + high + size

    def overlaps(self, other: GpuArray) -> bool:
        """Whether the ranges of addresses from first to last byte overlap; the arrays may then share a byte."""
        (low, high), (first, end) = self.extent, other.extent
        return low < end and first < high

    @property
    def transposed(self) -> GpuArray:
        """The same memory with its last two axes swapped."""
        shape, strides = ((*x[:-2], x[-1], x[-2]) for x in (self.shape, self.strides))
        return self._replace(shape=shape, strides=strides)

    @property
    def matrix(self) -> Matrix:
        """How it lies as a matrix, or as a batch of them along one axis."""
        (rows, columns), (row, column) = self.shape[-2:], self.strides[-2:]
        step = self.strides[0] if len(self.shape) == 3 and self.shape[0] > 1 else 0
        alignment = math.gcd(GRANULE, self.pointer, step * itemsize_of(self.dtype))
        return Matrix(rows, columns, row, column, self.dtype, alignment, step)

    @property
    def repeats(self) -> bool:
        """Whether several elements of the array have the same place in memory, as after a broadcast."""
        return 0 not in self.shape and any(n > 1 and not s for n, s in zip(self.shape, self.strides, strict=True))


def merged_axes(shape: tuple[int, ...], *strides: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The axes of arrays of one shape, each as its length and its stride in every array, and as few as possible: axes that
    can be merged in all arrays are one, axes of length 1 are left out.

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
