"""Decides how a kernel sees the operands of one product of GPU arrays: which operands are copied first, and which
layout the result has.

``layouts`` says which layouts a kernel can read directly. A column-major matrix is the transpose of a row-major one, so
a product of two column-major operands is Cᵀ = Bᵀ·Aᵀ without any copy. Operands with other layouts are copied on the
GPU. Of the two forms C = A·B and Cᵀ = Bᵀ·Aᵀ, the form with fewer bytes to copy is computed.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ...errors import DTypeError, ShapeError
from ...product.problem import ProductShapes, combine_shapes, itemsize_of, merged_stride
from ..planning.ways import sums_dtype
from ..runtime.layout import Matrix, row_major_matrix
from ..runtime.memory import GRANULE, LINE_BYTES
from .dtypes import casts, dtype_in_memory, dtype_on_gpu, made_dtype, result_dtype
from .gpu_array import GpuArray, merged_axes
from .layouts import Layouts, is_down, kind_of

#: Parts of the workspace begin at multiples of this many bytes.
_ALIGNMENT = 256


class OrderedMatrix(NamedTuple):
    """One of the matrices A, B and C of a product, as the caller and as the kernel see it. ``original`` is the caller's
    matrix, and ``used`` is the matrix that the kernel reads or writes.

    ``steps`` are the distances in elements from one matrix of the caller to the next, along each axis of the batch;
    ``used_steps`` are the distances between the kernel's matrices. ``at`` is the byte of the workspace where the
    kernel's copies begin, or None if the kernel uses the caller's matrix. ``matrices`` is the number of matrices in the
    batch; a matrix that several products share counts once.
    """

    label: str
    original: Matrix
    used: Matrix
    steps: tuple[int, ...]
    used_steps: tuple[int, ...]
    at: int | None = None
    matrices: int = 1

    @property
    def is_copied(self) -> bool:
        """Whether the kernel reads or writes a copy."""
        return self.at is not None


class Order(NamedTuple):
    """The product as the kernel sees it: C = P·Q. If ``swapped``, P is the transpose of the caller's b, Q is the
    transpose of a, and C is transposed, too.

    ``operands`` is the dtype to which both factors are promoted, and ``dtype`` is that of the result. ``shape`` is the
    shape of the array that is allocated for a result without ``out``. If ``transposed``, the caller gets a transposed
    view of that array.
    """

    shapes: ProductShapes
    batch: tuple[int, ...]
    operands: str
    dtype: str
    compute: str
    swapped: bool
    p: OrderedMatrix
    q: OrderedMatrix
    c: OrderedMatrix
    shape: tuple[int, ...]
    transposed: bool
    workspace_bytes: int

    @property
    def copies(self) -> tuple[str, ...]:
        """The copies before and after the product, as texts with their bytes."""
        return tuple(_copy_text(place, self.swapped) for place in (self.p, self.q, self.c) if place.is_copied)

    @property
    def axes(self) -> list[tuple[int, ...]]:
        """The axes of the batch, as few as possible. Each axis is given by its length and by the distances in elements
        from one P, Q and C to the next."""
        return merged_axes(self.batch, self.p.used_steps, self.q.used_steps, self.c.used_steps)

    @property
    def mnk(self) -> tuple[int, int, int]:
        """m, n and k of the product as the kernel sees it."""
        return self.p.original.rows, self.q.original.columns, self.p.original.columns


#: Labels of operands that are copied.
Copied = frozenset[str]


class Arrangement(NamedTuple):
    """A description from which an order of operands is made: which of P, Q and C are ``copied``, and which ``layouts``
    the kernel requires of the copies.

    ``stored`` is the dtype that the kernel stores. ``sums`` is the dtype of sums that the kernel leaves to another
    kernel. Products with the same ``Operands.kind`` have the same arrangements."""

    swapped: bool
    layouts: Layouts
    compute: str
    stored: str
    sums: str | None
    copied: tuple[bool, bool, bool]
    transposed: bool


class Operands:
    """The operands of a product and its result as matrices, original and transposed, before any kernel is chosen."""

    def __init__(
        self,
        x: GpuArray,
        y: GpuArray,
        out: GpuArray | None,
        *,
        disjoint: bool,
        views: bool,
        out_dtype: str | None = None,
        has_epilogue: bool = False,
        is_gram: bool = False,
    ) -> None:
        """Describe two operands and ``out``, if any; of their addresses it only matters whether they are whole
        granules. ``disjoint`` says that ``out`` shares no byte with the operands, and ``views`` that the result may be
        a transposed view. ``out_dtype`` is the dtype of the result, if not that of the operands. ``is_gram`` says that
        b is the transpose of a, in the same memory. Raises ShapeError, DTypeError."""
        self.is_gram = is_gram
        self.shapes = shapes = combine_shapes(x.shape, y.shape)
        self.operands = dtype_on_gpu(x.dtype, y.dtype)
        self.dtype = dtype = result_dtype(self.operands, out_dtype)
        if out is not None and out.shape != shapes.result:
            raise ShapeError(f"out is {out.shape}, the product is {shapes.result}: out must have exactly this shape")
        if out is not None and not casts(dtype, out.dtype):
            raise DTypeError(
                f"out is {out.dtype}, the product is {dtype}: out must have this dtype; out_dtype chooses it"
            )
        are_matrices = len(x.shape) > 1, len(y.shape) > 1
        a, a_steps = _matrix(x, (shapes.m, shapes.k), shapes.batch, rows=are_matrices[0])
        b, b_steps = _matrix(y, (shapes.k, shapes.n), shapes.batch, columns=are_matrices[1])
        batch, m = shapes.batch, shapes.m
        if batch and not any(b_steps) and (rows := _as_one(x, out, shapes)) is not None:
            m, batch, a_steps, b_steps = m * math.prod(batch), (), (), ()
            a, views = Matrix(m, shapes.k, *rows, x.dtype, math.gcd(GRANULE, x.pointer)), False
        if out is None:
            c, c_steps = row_major_matrix(m, shapes.n, dtype), _steps(batch, m * shapes.n)
            c = c._replace(alignment=math.gcd(GRANULE, m * shapes.n * itemsize_of(dtype) if batch else 0))
        elif batch == shapes.batch:
            c, c_steps = _matrix(out, (m, shapes.n), batch, rows=are_matrices[0], columns=are_matrices[1])
        else:
            c, c_steps = row_major_matrix(m, shapes.n, out.dtype), ()
            c = c._replace(alignment=math.gcd(GRANULE, out.pointer))
        #: m, n and k, and the products of the batch, as C = A·B.
        self.sizes = m, shapes.n, shapes.k, math.prod(batch)
        self._batch, self._disjoint, self._has_epilogue = batch, disjoint, has_epilogue
        self._may_be_view = views and out is None and len(shapes.result) - len(batch) == 2
        straight = ("a", a, a_steps), ("b", b, b_steps), ("C", c, c_steps)
        transposed = ("b", b.transposed, b_steps), ("a", a.transposed, a_steps), ("C", c.transposed, c_steps)
        self._places = straight, transposed

    @property
    def kind(self) -> tuple[Any, ...]:
        """All properties on which arrangements depend, except ``copies_less``. The same properties determine whether
        two arrangements are the same order. No size is 0."""
        flags = self._disjoint, self._may_be_view, self._has_epilogue, bool(self._batch)
        return self.operands, self.dtype, flags, *(kind_of(matrix) for _, matrix, _ in self._places[False])

    def arrangement(
        self, compute: str, layouts: Layouts, swapped: bool | None, *, at_once: bool = False
    ) -> Arrangement | None:
        """The arrangement for a kernel that multiplies in ``compute`` and reads ``layouts`` directly. Returns None if
        the kernel cannot store the result.

        With ``at_once`` the kernel applies the epilogue; otherwise the kernel leaves its sums in the workspace, from
        which another kernel makes the result. ``swapped`` says whether Cᵀ = Bᵀ·Aᵀ is computed; by default Cᵀ is
        computed if that copies fewer bytes."""
        stored, sums = self._stored(compute, layouts, at_once)
        if stored is None:
            return None
        if swapped is None:
            swapped = self.copies_less(*(self._copied(change, layouts, compute, stored) for change in (True, False)))
        *factors, (_, c, _) = self._places[swapped]
        transposed = swapped and self._may_be_view and c.dtype == stored and sums is None and not layouts.fits(2, c)
        if transposed:
            c = _rows_follow(c)
        p, q = (
            x.dtype != dtype_in_memory(compute, x.dtype) or not layouts.fits(i, x)
            for i, (_, x, _) in enumerate(factors)
        )
        copied = p, q, c.dtype != stored or sums is not None or not self._disjoint or not layouts.fits(2, c)
        return Arrangement(swapped, layouts, compute, stored, sums, copied, transposed)

    def arranged(self, compute: str, layouts: Layouts, swapped: bool | None, *, at_once: bool = False) -> Order | None:
        """The order of the operands for such an arrangement, or None if the kernel cannot store the result."""
        how = self.arrangement(compute, layouts, swapped, at_once=at_once)
        return None if how is None else self.order(how)

    def order(self, how: Arrangement) -> Order:
        """The order of the operands for an arrangement."""
        batch, shape = self._batch, self.shapes.result
        (*factors, (_, c, c_steps)), layouts, compute = self._places[how.swapped], how.layouts, how.compute
        if how.transposed:
            c, shape = _rows_follow(c), (*batch, c.rows, c.columns)
        places, workspace = [], 0
        for i, (label, original, steps) in enumerate((*factors, ("C", c, c_steps))):
            if not how.copied[i]:
                places.append(OrderedMatrix(label, original, original, steps, steps))
                continue
            dtype_used = how.stored if i == 2 else dtype_in_memory(compute, original.dtype)
            used = layouts.copy(i, original, dtype_used)
            nbytes = -(-used.span_bytes // LINE_BYTES) * LINE_BYTES  # each copy begins at a whole line
            used_steps = _steps_of_copies(batch, steps, nbytes // itemsize_of(dtype_used))
            place = OrderedMatrix(label, original, used, steps, used_steps, workspace, _matrices(batch, steps))
            workspace += -(-nbytes * place.matrices // _ALIGNMENT) * _ALIGNMENT
            places.append(place)
        p, q, placed = places
        dtypes = self.operands, self.dtype, compute
        return Order(self.shapes, batch, *dtypes, how.swapped, p, q, placed, shape, how.transposed, workspace)

    def _stored(self, compute: str, layouts: Layouts, at_once: bool) -> tuple[str | None, str | None]:
        """The dtype that the kernel stores, or None if it cannot store the result; and the dtype of sums that the
        kernel leaves to another kernel, or None."""
        sums = sums_dtype(compute) if self._has_epilogue and not at_once else None
        stored = layouts.stored(compute, sums or self.dtype)
        return stored if stored in ((sums,) if sums else (self.dtype, made_dtype(compute))) else None, sums

    def copied(self, compute: str, layouts: Layouts, *, at_once: bool) -> tuple[Copied, Copied] | None:
        """The operands that must be copied for Cᵀ = Bᵀ·Aᵀ, and those for C = A·B. Returns None if the result cannot be
        stored."""
        stored, _ = self._stored(compute, layouts, at_once)
        if stored is None:
            return None
        return self._copied(True, layouts, compute, stored), self._copied(False, layouts, compute, stored)

    def _copied(self, swapped: bool, layouts: Layouts, compute: str, stored: str) -> Copied:
        """The operands that must be copied. A C that may be a view can have any layout."""
        any_c, found = swapped and self._may_be_view, set[str]()
        for i, (label, matrix, _) in enumerate(self._places[swapped]):
            used = stored if label == "C" else dtype_in_memory(compute, matrix.dtype)
            fits = matrix.dtype == used and ((label == "C" and any_c) or layouts.fits(i, matrix))
            if not fits or (label == "C" and not self._disjoint):
                found.add(label)
        return frozenset(found)

    def copies_less(self, some: Copied, others: Copied) -> bool:
        """Whether copying the operands ``some`` takes fewer bytes than copying ``others``, for all products."""
        nbytes = {label: x.nbytes * _matrices(self._batch, steps) for label, x, steps in self._places[False]}
        return sum(nbytes[label] for label in some) < sum(nbytes[label] for label in others)


def _rows_follow(c: Matrix) -> Matrix:
    """The layout of a C whose rows follow each other in memory."""
    return c._replace(row=c.columns, column=1)


def _matrices(batch: tuple[int, ...], steps: tuple[int, ...]) -> int:
    """The number of matrices in a batch; a matrix that several products share counts once."""
    return math.prod(n for n, step in zip(batch, steps, strict=True) if step)


def _steps_of_copies(batch: tuple[int, ...], steps: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The distances in elements from one copy to the next along each axis, if copies of ``size`` elements follow each
    other in memory."""
    found = []
    for i, (n, step) in enumerate(zip(batch, steps, strict=True)):
        following = _matrices(batch[i + 1 :], steps[i + 1 :])
        found.append(size * following if step and n > 1 else 0)
    return tuple(found)


def _matrix(
    x: GpuArray, sizes: tuple[int, int], batch: tuple[int, ...], *, rows: bool = True, columns: bool = True
) -> tuple[Matrix, tuple[int, ...]]:
    """The layout of each matrix in an array, and the distance in elements from one matrix to the next along each axis
    of the batch.

    Without ``rows`` or ``columns`` the array has no such axis, and the matrices have one row or column.
    """
    if len(x.shape) == 2 == rows + columns:
        row, column = x.strides
        return Matrix(*sizes, row, column, x.dtype, math.gcd(GRANULE, x.pointer)), (0,) * len(batch)
    outer = len(x.shape) - rows - columns
    inner = iter(x.strides[outer:])
    steps = tuple(0 if n == 1 else step for n, step in zip(x.shape[:outer], x.strides[:outer], strict=True))
    alignment = math.gcd(GRANULE, x.pointer, *(step * itemsize_of(x.dtype) for step in steps))
    matrix = Matrix(*sizes, next(inner) if rows else 0, next(inner) if columns else 0, x.dtype, alignment)
    return matrix, (0,) * (len(batch) - outer) + steps


def _as_one(x: GpuArray, out: GpuArray | None, shapes: ProductShapes) -> tuple[int, int] | None:
    """The strides of a batch as one tall matrix in which its matrices are stacked, if all are multiplied by the same b;
    None if the layout does not allow this."""
    if len(x.shape) != len(shapes.batch) + 2 or x.shape[:-2] != shapes.batch:
        return None
    if out is not None and (len(out.shape) != len(x.shape) or not _is_contiguous(out)):
        return None
    row = merged_stride(x.shape[:-1], x.strides[:-1])
    return None if row is None else (row, x.strides[-1])


def _is_contiguous(x: GpuArray) -> bool:
    return merged_stride(x.shape, x.strides) in (0, 1)


def _steps(batch: tuple[int, ...], size: int) -> tuple[int, ...]:
    return tuple(size * math.prod(batch[i + 1 :]) for i in range(len(batch)))


def _copy_text(place: OrderedMatrix, swapped: bool) -> str:
    original = place.original.transposed if swapped else place.original
    why = f"{original.order}, {original.dtype}" if original.dtype != place.used.dtype else original.order
    if place.label == "C" and original.is_row_major and original.dtype == place.used.dtype:
        why = "it overlaps an operand"
    turned = ", transposed" if is_down(place.used) != is_down(place.original) else ""
    return f"{place.label} ({why}), {place.used.nbytes * place.matrices:,} bytes{turned}"
