"""The problem of a matrix product: C[m×n] = α·A[m×k]·B[k×n] + β·C, with its shape, its dtype, and the fewest
operations and bytes that it takes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..errors import OperandError, ShapeError
from .residues import REALS_PER_ELEMENT, RESIDUES_IN

Shape = tuple[int, ...]
#: What is known about C. "gram": C equals its transpose, because B is A transposed. "symmetric": C equals its transpose
#: for another reason. "hermitian": C equals its conjugate transpose. "": nothing is known.
Symmetry = Literal["", "gram", "symmetric", "hermitian"]


#: Bytes of an element of the dtypes that NumPy does not have. "tf32" is float32 of which tensor cores read 10 bits of
#: mantissa, "float8" is float8_e4m3fn or float8_e5m2, "float8_fast" the same, summed by tensor cores, which keep 13 bits.
#: "float16x2" is float32 as two float16, which lie in two matrices, "float16x1" float32 rounded to float16.
_ITEMSIZES = {
    "bfloat16": 2,
    "tf32": 4,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8": 1,
    "float8_fast": 1,
    "float16x2": 2,
    "float16x1": 2,
    **{name: residues.moduli * REALS_PER_ELEMENT[residues.dtype] for name, residues in RESIDUES_IN.items()},
}


@functools.cache  # plans ask some twenty times
def itemsize_of(dtype: str) -> int:
    """Return the bytes of an element of the named dtype.

    >>> itemsize_of("bfloat16"), itemsize_of("float64")
    (2, 8)
    """
    return _ITEMSIZES.get(dtype) or np.dtype(dtype).itemsize


@dataclass(frozen=True)
class Problem:
    """One product, or a batch of ``batch`` products of the same shape, described by plain numbers. It is hashable and
    comparable."""

    m: int
    n: int
    k: int
    dtype: str = "float64"
    batch: int = 1
    alpha: complex = 1.0
    beta: complex = 0.0
    precision: str | float = "standard"
    symmetry: Symmetry = ""

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return itemsize_of(self.dtype)

    @property
    def flops(self) -> int:
        """The number of floating-point operations of the classical algorithm. For a symmetric C, only the operations
        of one triangle and the diagonal are counted."""
        return 2 * self.k * self.batch * (self.m * (self.m + 1) // 2 if self.symmetry else self.m * self.n)

    @property
    def bytes_least(self) -> int:
        """The smallest number of bytes that must be moved: A and B are read once, C is written once and, unless β is
        0, read once."""
        c_passes = 1 if self.beta == 0 else 2
        operands = self.m * self.k + (0 if self.symmetry == "gram" else self.k * self.n)
        elements = operands + c_passes * self.m * self.n
        return elements * self.itemsize * self.batch

    @property
    def intensity(self) -> float:
        """The number of operations per byte that must be moved: the horizontal axis of a roofline plot."""
        return self.flops / self.bytes_least if self.bytes_least else 0.0

    def __str__(self) -> str:
        batch = f"{self.batch} × " if self.batch != 1 else ""
        symmetry = f", {self.symmetry}" if self.symmetry else ""
        return f"{batch}({self.m}×{self.k}) · ({self.k}×{self.n}) {self.dtype}{symmetry}"


@dataclass(frozen=True)
class ProductShapes:
    """The combined shapes of two operands of ``matmul``: one product, or a batch that broadcasts.

    ``result`` is the shape of the result that the caller gets. As the array API requires, ``result`` lacks the axis
    that was added to a vector operand.
    """

    m: int
    n: int
    k: int
    batch: Shape
    result: Shape


def combine_shapes(a: Shape, b: Shape) -> ProductShapes:
    """Combine two shapes by the rules of ``matmul`` in the array API. Raises ShapeError.

    A vector ``a`` counts as a matrix with one row, and a vector ``b`` as a matrix with one column; the result lacks
    the axis that was added to a vector. The axes before the last two axes broadcast.

    >>> combine_shapes((5, 1, 3, 4), (7, 4, 2)).result
    (5, 7, 3, 2)
    >>> combine_shapes((3, 4), (5, 2))
    Traceback (most recent call last):
        ...
    tilewright.errors.ShapeError: k mismatch: a is (3, 4), b is (5, 2): a.shape[-1] must equal b.shape[0]
    """
    for name, shape in (("a", a), ("b", b)):
        if not shape:
            raise ShapeError(f"{name} is a scalar: matmul needs at least one axis; multiply by a scalar with *")
    if len(a) == len(b) == 2 and a[1] == b[0]:
        return ProductShapes(a[0], b[1], a[1], (), (a[0], b[1]))
    a_matrix = a if len(a) > 1 else (1, *a)
    b_matrix = b if len(b) > 1 else (*b, 1)
    (m, k), (k_of_b, n) = a_matrix[-2:], b_matrix[-2:]
    if k != k_of_b:
        axis = "b.shape[-2]" if len(b) > 2 else "b.shape[0]"
        raise ShapeError(f"k mismatch: a is {a}, b is {b}: a.shape[-1] must equal {axis}")
    pairs = list(itertools.zip_longest(a_matrix[-3::-1], b_matrix[-3::-1], fillvalue=1))
    if any(x != y and 1 not in (x, y) for x, y in pairs):
        raise ShapeError(f"batch mismatch: a is {a}, b is {b}: axes before the last two must be equal, or 1, or absent")
    batch = tuple(y if x == 1 else x for x, y in reversed(pairs))
    result = batch + ((m,) if len(a) > 1 else ()) + ((n,) if len(b) > 1 else ())
    return ProductShapes(m, n, k, batch, result)


@dataclass(frozen=True)
class GroupedShapes:
    """The combined shapes of the operands of a grouped product. ``grouped_axis`` is the axis that the offsets divide
    among the groups: "m", "n" or "k", or "" for two batches. The size of the grouped axis is the total over all
    groups."""

    grouped_axis: str
    groups: int
    m: int
    n: int
    k: int
    result: Shape


def combine_grouped_shapes(a: Shape, b: Shape, offsets: Shape | None) -> GroupedShapes:
    """Combine the shapes of two operands and of the array that holds the ends of the groups. Raises ShapeError.

    >>> combine_grouped_shapes((10, 4), (3, 4, 5), (3,))
    GroupedShapes(grouped_axis='m', groups=3, m=10, n=5, k=4, result=(10, 5))
    >>> combine_grouped_shapes((4, 10), (10, 5), (3,)).result
    (3, 4, 5)
    """
    grouped_axis = {(2, 3): "m", (3, 2): "n", (2, 2): "k", (3, 3): ""}.get((len(a), len(b)))
    if grouped_axis is None:
        raise ShapeError(f"a is {a}, b is {b}: each must have two axes, or three where the first one counts groups")
    if (offsets is None) == bool(grouped_axis):
        rule = (
            "an operand of two axes needs offsets, the ends of its groups"
            if grouped_axis
            else "two batches take no offsets"
        )
        raise ShapeError(f"offsets is {'absent' if offsets is None else offsets}, a is {a}, b is {b}: {rule}")
    if offsets is not None and len(offsets) != 1:
        raise ShapeError(f"offsets is {offsets}: it must have one axis, with the end of each group")
    counts = [shape[0] for shape in (a, b) if len(shape) == 3] + list(offsets or ())
    if any(count != counts[0] for count in counts):
        ends = "" if offsets is None else f", offsets is {offsets}"
        raise ShapeError(f"a is {a}, b is {b}{ends}: they must have as many groups")
    (m, k), (k_of_b, n) = a[-2:], b[-2:]
    if k != k_of_b:
        raise ShapeError(f"k mismatch: a is {a}, b is {b}: a.shape[-1] must equal b.shape[-2]")
    return GroupedShapes(grouped_axis, counts[0], m, n, k, (m, n) if grouped_axis in ("m", "n") else (counts[0], m, n))


def merged_stride(shape: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """Return the stride of several axes that are merged into one axis. The result is None if the axes cannot be
    merged, because the stride of an outer axis is not the length times the stride of the next axis.

    >>> merged_stride((2, 3, 4), (120, 40, 10)), merged_stride((2, 3), (5, 1)), merged_stride((2, 1), (7, 3))
    (10, None, 7)
    """
    axes = [(n, stride) for n, stride in zip(shape, strides, strict=True) if n != 1]
    for (_, outer), (n, inner) in itertools.pairwise(axes):
        if outer != n * inner:
            return None
    return axes[-1][1] if axes else 0


# ---- where groups lie in the host's memory: what the ends of groups say of operands and result -----------------------

#: A part of an array, as indices of its axes.
Part = tuple[Any, ...]


def multiply_groups(
    shapes: GroupedShapes, ends: list[int], result: np.ndarray, multiply: Callable[[Part, Part, np.ndarray], object]
) -> None:
    """Compute a grouped product: ``multiply`` writes each group's product into its part of the result, and zeros are
    written into the rows or columns after the last group. ``ends`` is a result of ``checked_ends``."""
    for of_a, of_b, of_c in _group_parts(shapes, ends):
        multiply(of_a, of_b, result[of_c])
    rest = slice(ends[-1] if ends else 0, None)
    if shapes.grouped_axis != "k":
        result[(rest,) if shapes.grouped_axis == "m" else (slice(None), rest)] = 0


def _group_parts(shapes: GroupedShapes, ends: list[int]) -> Iterator[tuple[Part, Part, Part]]:
    """The parts of a, b and the result of each group."""
    every = slice(None)
    for g, (begin, end) in enumerate(itertools.pairwise([0, *ends])):
        group = slice(begin, end)
        yield {
            "m": ((group,), (g,), (group,)),
            "n": ((g,), (every, group), (every, group)),
            "k": ((every, group), (group,), (g,)),
        }[shapes.grouped_axis]


def checked_ends(shapes: GroupedShapes, offsets: Any) -> list[int]:
    """Return the ends of groups as integers. Raises OperandError or ShapeError if the ends do not describe groups."""
    ends = np.asarray(offsets)
    if ends.dtype.kind not in "iu" and ends.size:
        raise OperandError(f"offsets is an array of {ends.dtype}: the ends of groups must be whole numbers")
    found: list[int] = ends.tolist()
    size = {"m": shapes.m, "n": shapes.n, "k": shapes.k}[shapes.grouped_axis]
    if found != sorted(found) or (found and not 0 <= found[0] <= found[-1] <= size):
        given = f"{str(found[:6])[:-1]}, …]" if len(found) > 6 else found
        raise ShapeError(f"offsets is {given}: the ends of groups must not decrease, and be from 0 to {size}")
    return found
