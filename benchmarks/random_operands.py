"""Random arrays for ``random_products.py``: any shape, dtype, order, step, direction, byte order and alignment, in memory of
their own or one that they share, which tells afterwards what was written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.product.operands import DTYPES

Shape = tuple[int, ...]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
OBJECT = np.dtype(object)
ALL = [np.dtype(kind) for kind in (*DTYPES, np.longdouble, np.clongdouble, np.longlong, BFLOAT16, OBJECT)]
COMMON = [np.dtype("float32"), np.dtype("float64")]

SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 23, 31, 32, 33, 47, 64, 65, 97, 100, 127, 129, 200]
LARGE = [65, 97, 128, 200, 256, 333, 511, 700, 1500]


def draw(rng: np.random.Generator, choices: Sequence[Any]) -> Any:
    """One of them; NumPy's ``choice`` would make an array of them."""
    return choices[int(rng.integers(len(choices)))]


# ---- shapes and dtypes -----------------------------------------------------------------------------------------------


def shapes(
    rng: np.random.Generator, most: float, *, large: bool, matrices: bool, elements: float = np.inf
) -> tuple[Shape, Shape]:
    """Of two operands whose product has at most ``most`` multiply-adds, and that have at most so many ``elements`` with the
    result: ``matrices``, or also vectors and batches."""
    batch: list[int] = []
    while True:
        m, n, k = (draw(rng, LARGE if large else SIZES) for _ in range(3))
        if not matrices and rng.random() < 0.4:
            batch = [draw(rng, [0, 1, 2, 2, 3, 5, 9]) for _ in range(rng.integers(1, 4))]
        count = int(np.prod(batch))
        if m * n * k * count <= most and (m * k + k * n + m * n) * count <= elements:
            break
    a, b = ((*broadcasting(rng, batch), *matrix) for matrix in ((m, k), (k, n)))
    if not matrices and rng.random() < 0.2:
        a = (k,)
    if not matrices and rng.random() < 0.2:
        b = (k,)
    return a, b


def broadcasting(rng: np.random.Generator, batch: list[int]) -> Shape:
    """Axes that broadcast to those of ``batch``: some of size 1, the first ones left out."""
    sizes = [1 if rng.random() < 0.25 else size for size in batch]
    return tuple(sizes[rng.integers(len(sizes) + 1) :] if rng.random() < 0.5 else sizes)


def dtypes(rng: np.random.Generator) -> tuple[np.dtype, np.dtype]:
    """Of two operands, mostly the same, and mostly native."""
    a = draw(rng, COMMON if rng.random() < 0.4 else ALL)
    b = a if rng.random() < 0.75 or a == BFLOAT16 else draw(rng, ALL)
    if BFLOAT16 in (a, b):  # NumPy promotes it with few others, and not as it multiplies them
        return BFLOAT16, BFLOAT16
    return swapped(rng, a), swapped(rng, b)


def swapped(rng: np.random.Generator, dtype: np.dtype) -> np.dtype:
    """Now and then of the other byte order."""
    return dtype.newbyteorder() if dtype.kind not in "OV" and rng.random() < 0.1 else dtype


# ---- memory ----------------------------------------------------------------------------------------------------------


class Memory:
    """What arrays lie in, with what it held before."""

    def __init__(self, rng: np.random.Generator, elements: int, dtype: np.dtype, values: str) -> None:
        with np.errstate(over="ignore"):
            filled = numbers(rng, elements, dtype, values).astype(dtype)
        self.start = 0
        if dtype == OBJECT:
            self.cells = filled
        else:
            self.start = draw(rng, [0, 0, 0, 1, dtype.itemsize])
            self.cells = np.zeros(self.start + filled.nbytes, np.uint8)
            self.cells[self.start :] = filled.view(np.uint8)
        self.before = self.cells.copy()

    def changed(self, beside: np.ndarray | None = None) -> bool:
        """Whether anything in it is different now, but for the elements of ``beside``."""
        different = self.cells != self.before
        if beside is not None and beside.size and self.holds(beside):
            first = beside.__array_interface__["data"][0] - self.cells.__array_interface__["data"][0]
            if different.itemsize < self.cells.itemsize:  # objects: one mark for each
                marks = np.ndarray(beside.shape, bool, different.data, first // 8, [x // 8 for x in beside.strides])
            else:
                marks = np.ndarray((*beside.shape, beside.itemsize), bool, different.data, first, (*beside.strides, 1))
            marks[...] = False
        return bool(np.any(different))

    def holds(self, array: np.ndarray) -> bool:
        return np.may_share_memory(array, self.cells)


def numbers(rng: np.random.Generator, size: int, dtype: np.dtype, values: str) -> np.ndarray:
    """``values`` are "any", "whole" and small, "special" (NaN and infinity among floats), or "spread" (see ``spread``)."""
    if dtype == OBJECT:
        objects = np.empty(size, object)
        objects[:] = [Fraction(int(x), 3) if values == "any" else int(x) for x in rng.integers(-9, 10, size)]
        return objects
    if dtype.kind == "b":
        return rng.random(size) < 0.3
    if dtype.kind in "iu" and values == "any":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, size, dtype.newbyteorder("="), endpoint=True)
    if dtype.kind in "iu" or values == "whole":
        floats = rng.integers(0 if dtype.kind == "u" else -3, 4, size).astype(np.float64)
    else:
        floats = spread(rng, size, dtype) if values == "spread" else rng.uniform(-1, 1, size)
        if values == "special" or (values == "spread" and rng.random() < 0.3):
            floats[rng.random(size) < 1 / (4 + size)] = draw(rng, [np.nan, np.inf, -np.inf])
    if dtype.kind != "c":
        return floats
    both = np.empty(size, np.complex128)
    both.real, both.imag = floats, floats[::-1]
    return both


def spread(rng: np.random.Generator, size: int, dtype: np.dtype) -> np.ndarray:
    """Numbers of both signs between two random powers of two, with zeros of both signs: from the smallest subnormal number
    to the largest of which sums over k = 2,000 do not overflow."""
    info = ml_dtypes.finfo(dtype) if dtype.kind == "f" or dtype == BFLOAT16 else np.finfo(np.float64)
    if dtype == np.complex64:
        info = np.finfo(np.float32)
    lowest, highest = max(info.minexp, -1022) - min(info.nmant, 52), max(4, min(info.maxexp, 1024) // 2 - 8)
    low, high = sorted(int(x) for x in rng.integers(lowest, highest, 2, endpoint=True))
    floats = np.ldexp(rng.uniform(0.5, 1, size), rng.integers(low, high, size, endpoint=True))
    floats[rng.random(size) < draw(rng, [0, 0, 0.1, 0.9])] = 0
    return floats * rng.choice([-1.0, 1.0], size)


# ---- layouts ---------------------------------------------------------------------------------------------------------


class Layout:
    """Strides of an array without overlap, its first element and its extent, counted in elements."""

    def __init__(self, rng: np.random.Generator, shape: Shape) -> None:
        self.shape, self.strides, self.first, self.extent = shape, [0] * len(shape), 0, 1
        plain = rng.random() < 0.4
        axes = range(len(shape))[::-1] if plain or rng.random() < 0.5 else rng.permutation(len(shape))
        for axis in axes:
            step = self.extent * (1 if plain else draw(rng, [1, 1, 1, 2, 3]))
            self.extent = max(1, shape[axis]) * step
            if not plain and rng.random() < 0.2:
                self.first += max(0, shape[axis] - 1) * step
                step = -step
            if not plain and rng.random() < 0.3:
                self.extent += int(rng.integers(1, 5))  # part of a wider matrix
            self.strides[axis] = step

    def array(self, memory: Memory, dtype: np.dtype, at: int) -> np.ndarray:
        """In ``memory``, from its element ``at``."""
        start = memory.start + (at + self.first) * dtype.itemsize
        strides = [stride * dtype.itemsize for stride in self.strides]
        return np.ndarray(self.shape, dtype, memory.cells.data if dtype != OBJECT else memory.cells, start, strides)


def arrays(
    rng: np.random.Generator, all_shapes: Sequence[Shape], dtype: np.dtype, values: str
) -> tuple[list[np.ndarray], Memory]:
    """Arrays of any layout in one memory, where they may overlap."""
    layouts = [Layout(rng, shape) for shape in all_shapes]
    room = max(layout.extent for layout in layouts) + int(rng.integers(20)) * len(layouts)
    memory = Memory(rng, room, dtype, values)
    return [layout.array(memory, dtype, int(rng.integers(room - layout.extent + 1))) for layout in layouts], memory


def array(rng: np.random.Generator, shape: Shape, dtype: np.dtype, values: str) -> tuple[np.ndarray, Memory]:
    """An array of any layout in memory of its own."""
    (one,), memory = arrays(rng, [shape], dtype, values)
    return one, memory


def dressed(rng: np.random.Generator, operand: np.ndarray) -> Any:
    """The same values as another kind of operand, or fewer of them along an axis of stride 0; mostly itself."""
    choice = rng.random()
    if operand.size and choice < 0.06:
        axis = int(rng.integers(operand.ndim))
        return np.broadcast_to(operand[(slice(None),) * axis + (slice(0, 1),)], operand.shape)
    if choice < 0.12:
        operand.flags.writeable = False
    elif choice < 0.15 and 0 < operand.size < 500 and operand.dtype.name in ("float64", "int64", "bool", "complex128"):
        return operand.tolist()
    elif choice < 0.18 and operand.dtype.isnative:
        return operand.view(np.recarray)
    return operand


def traits(operand: Any) -> Iterator[str]:
    """What is unusual about it, in words."""
    if isinstance(operand, np.ndarray):
        yield from [
            words
            for words, there in {
                "of another byte order": not operand.dtype.isnative,
                "not aligned": not operand.flags.aligned,
                "with a negative stride": any(stride < 0 for stride in operand.strides),
                "with a stride of 0": operand.size > 0 and 0 in operand.strides,
                "not contiguous": not operand.flags.forc,
                "column-major": operand.flags.fnc,
                "read-only": not operand.flags.writeable,
                "empty": not operand.size,
            }.items()
            if there
        ]
        yield {1: "vector", 2: "matrix"}.get(operand.ndim, "batch")
    else:
        yield "list"
