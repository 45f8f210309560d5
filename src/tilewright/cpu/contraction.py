"""Computes contractions of arrays in the host's memory: diagonals and sums of one operand, and the product of two
operands as products of matrices.

An operand is read without a copy if each group of its axes (batch, rows, columns) can be merged into one strided axis.
An operand whose axes cannot be merged is copied piece by piece, so that each copy is small and still in a cache when it
is multiplied. The order of the pieces and of the sums of pieces of k is fixed, so the bits of the result do not depend
on the number of threads.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..host.limits import get_threads
from ..product.contraction import PairLayout, Reading, pieces_of_layout
from ..product.operands import ALIGNMENT
from .permuted_copy import axis_to_share, copy_permuted
from .runtime.runner import run_in_slices, take_workspace

#: ``multiply(x, y, out, out_dtype)``: the product of matrices, or of batches of them, into ``out``.
MultiplyInto = Callable[[np.ndarray, np.ndarray, np.ndarray | None, Any], Any]

#: Elements of the parts of two vectors whose products are added: both parts are in the second cache of every machine.
INNER_ELEMENTS = 1 << 13
#: Such parts, as rows of a block, of which both copies are in the second cache.
ROWS_OF_BLOCK = 4
#: Neighbours of each operand that such a part has at least: some cache lines.
NEIGHBOURS = 64
#: The least elements that each thread multiplies or adds.
ELEMENTS_PER_THREAD = 1 << 17


def _quietly(function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Call a function of NumPy without warnings of infinities and NaN; a thread does not inherit ``numpy.errstate``."""
    with np.errstate(all="ignore"):
        function(*arguments, **options)


# ---- one operand -----------------------------------------------------------------------------------------------------


def read_operand(x: np.ndarray, reading: Reading, dtype: np.dtype) -> np.ndarray:
    """Return the operand with each of its labels once: a view, or an array of sums in ``dtype``.

    >>> trace = Reading((), "ii", "i", "i")
    >>> read_operand(np.arange(9.0).reshape(3, 3), trace, np.dtype(float))
    array(12.)
    """
    if reading.dropped:
        x = x[tuple(0 if axis in reading.dropped else slice(None) for axis in range(x.ndim))]
    if reading.labels != reading.kept:
        shape = tuple(x.shape[reading.labels.index(label)] for label in reading.kept)
        steps = list(zip(reading.labels, x.strides, strict=True))
        strides = tuple(sum(stride for each, stride in steps if each == label) for label in reading.kept)
        x = np.lib.stride_tricks.as_strided(x, shape, strides, writeable=False)
    return _summed(x, reading, dtype) if reading.summed else x


def _summed(x: np.ndarray, reading: Reading, dtype: np.dtype) -> np.ndarray:
    """The sums over the labels that nothing else has; threads share the result."""
    add: Any = np.logical_or if dtype.kind == "b" else np.add
    axes = tuple(reading.kept.index(label) for label in reading.summed)
    rest = [axis for axis in range(x.ndim) if axis not in axes]
    result = np.empty([x.shape[axis] for axis in rest], dtype)
    longest = max(rest, key=lambda axis: x.shape[axis], default=None)
    threads = _threads_for(x.size) if longest is not None else 1
    if threads < 2 or longest is None:
        _quietly(add.reduce, x, axes, dtype, result)
        return result
    of_x, of_result = (slice(None),) * longest, (slice(None),) * rest.index(longest)

    def sum_part(part: slice) -> None:
        _quietly(add.reduce, x[(*of_x, part)], axes, dtype, result[(*of_result, part)])

    run_in_slices(sum_part, x.shape[longest], threads)
    return result


# ---- two operands ----------------------------------------------------------------------------------------------------


def multiply_pair(
    layout: PairLayout,
    x: np.ndarray,
    y: np.ndarray,
    c: np.ndarray,
    dtype: np.dtype,
    multiply: MultiplyInto,
    sums: np.dtype | None = None,
) -> None:
    """Write the product of ``x`` and ``y`` into ``c``, whose axes are in the order of ``layout.output``.

    ``dtype`` is the dtype to which copied pieces of ``x`` and ``y`` are converted. ``sums`` is the dtype of the partial
    sums of a product of two vectors, which may be computed in parts."""
    batch, m, n, k = layout.batch, layout.m, layout.n, layout.k
    x = x.transpose([layout.x.index(label) for label in batch + m + k])
    y = y.transpose([layout.y.index(label) for label in batch + n + k])
    c = c.transpose([layout.output.index(label) for label in batch + m + n])
    if layout.is_elementwise:
        _multiply_elements(layout, x, y, c)
        return
    if not c.size:
        return
    if sums is not None and is_summed_by_parts(layout):
        c[...] = _inner_product(x, y, sums)
        return
    if not (layout.x_copied or layout.y_copied or layout.c_copied):
        _multiply_into(multiply, _first(layout, x), _second(layout, y), _third(layout, c))
        return
    with take_workspace(sum(_copy_bytes(layout, dtype, c.dtype))) as memory:
        _multiply_pieces(layout, x, y, c, dtype, multiply, memory)


def _copy_bytes(layout: PairLayout, dtype: np.dtype, result: np.dtype) -> tuple[int, ...]:
    """Bytes of the copies of x, y and c, whole cache lines."""
    sizes = dict(layout.sizes) | dict(layout.cuts)
    elements = [math.prod(sizes[label] for label in layout.batch + rest) for rest in _groups(layout)]
    copied = zip(elements, (layout.x_copied, layout.y_copied, layout.c_copied), (dtype, dtype, result), strict=True)
    return tuple(-(-size * each.itemsize // ALIGNMENT) * ALIGNMENT if copy else 0 for size, copy, each in copied)


def _groups(layout: PairLayout) -> tuple[str, str, str]:
    return layout.m + layout.k, layout.n + layout.k, layout.m + layout.n


def _multiply_pieces(
    layout: PairLayout,
    x: np.ndarray,
    y: np.ndarray,
    c: np.ndarray,
    dtype: np.dtype,
    multiply: MultiplyInto,
    memory: np.ndarray,
) -> None:
    """The product piece by piece; ``memory`` holds the copies of a piece of x, of y and of c."""
    of_x, of_y, of_c = _copy_bytes(layout, dtype, c.dtype)
    places = memory[:of_x], memory[of_x : of_x + of_y], memory[of_x + of_y : of_x + of_y + of_c]
    last: list[Any] = [None, None]
    matrices: list[np.ndarray] = [x, y]
    for piece in pieces_of_layout(layout):
        parts = [
            _part(array, layout.batch + rest, piece) for array, rest in zip((x, y, c), _groups(layout), strict=True)
        ]
        for which, (group, copied) in enumerate(((layout.m, layout.x_copied), (layout.n, layout.y_copied))):
            chosen = [piece.get(label) for label in layout.batch + group + layout.k]
            if chosen != last[which]:  # otherwise the piece is that of the product before
                last[which], part = chosen, parts[which]
                if copied:
                    part = _copy(layout, part, places[which], dtype, group, copied)
                matrices[which] = (_second if which else _first)(layout, part)
        target = parts[2]
        if layout.c_copied:
            target = _empty(layout, target.shape, places[2], c.dtype, layout.m, layout.c_copied)
        first = all(not part.start for label, part in piece.items() if label in layout.k)
        product = _third(layout, target) if first or layout.c_copied else np.empty_like(_third(layout, target))
        _multiply_into(multiply, matrices[0], matrices[1], product)
        if not first:
            whole = parts[2] if layout.c_copied else _third(layout, target)
            _quietly(np.add, whole, target if layout.c_copied else product, out=whole)
        elif layout.c_copied:
            copy_permuted(parts[2], target)


def _part(array: np.ndarray, labels: str, piece: dict[str, slice]) -> np.ndarray:
    if not piece:
        return array
    where: Any = (*(piece.get(label, slice(None)) for label in labels), ...)  # with the dots a view, also of no axes
    part: np.ndarray = array[where]
    return part


def _empty(
    layout: PairLayout, shape: tuple[int, ...], place: np.ndarray, dtype: np.dtype, group: str, copied: str
) -> np.ndarray:
    """An array of axes (batch, first group, second group) over ``place``, in which ``copied`` says which group is
    last."""
    first, second = len(layout.batch), len(layout.batch) + len(group)
    swapped = copied in ("km", "kn", "nm")
    order = shape[:first] + (shape[second:] + shape[first:second] if swapped else shape[first:])
    memory = place[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(order)
    if not swapped:
        return memory
    middle = first + len(shape) - second
    return memory.transpose([*range(first), *range(middle, len(shape)), *range(first, middle)])


def _copy(
    layout: PairLayout, part: np.ndarray, place: np.ndarray, dtype: np.dtype, group: str, copied: str
) -> np.ndarray:
    """A copy of an operand, whose axes have the order of (batch, group, k)."""
    copy = _empty(layout, part.shape, place, dtype, group, copied)
    copy_permuted(copy, part)
    return copy


def _first(layout: PairLayout, x: np.ndarray) -> np.ndarray:
    """x of axes (batch, m, k) as matrices of m rows."""
    outer, inner = len(layout.batch) + layout.looped_m, len(layout.batch) + len(layout.m)
    shape = x.shape
    return x.reshape((*shape[:outer], *(1,) * layout.looped_n, math.prod(shape[outer:inner]), math.prod(shape[inner:])))


def _second(layout: PairLayout, y: np.ndarray) -> np.ndarray:
    """y of axes (batch, n, k) as matrices of n columns."""
    batch, outer = len(layout.batch), len(layout.batch) + layout.looped_n
    inner = batch + len(layout.n)
    shape = y.shape
    matrices = (math.prod(shape[outer:inner]), math.prod(shape[inner:]))
    return y.reshape((*shape[:batch], *(1,) * layout.looped_m, *shape[batch:outer], *matrices)).swapaxes(-1, -2)


def _third(layout: PairLayout, c: np.ndarray) -> np.ndarray:
    """c of axes (batch, m, n) as matrices."""
    batch, rows = len(layout.batch), len(layout.batch) + len(layout.m)
    if layout.looped_m or layout.looped_n:
        looped = [*range(batch, batch + layout.looped_m), *range(rows, rows + layout.looped_n)]
        rest = [axis for axis in range(batch, c.ndim) if axis not in looped]
        c = c.transpose([*range(batch), *looped, *rest])
    outer = batch + layout.looped_m + layout.looped_n
    inner = outer + len(layout.m) - layout.looped_m
    return c.reshape((*c.shape[:outer], math.prod(c.shape[outer:inner]), math.prod(c.shape[inner:])))


def _multiply_into(multiply: MultiplyInto, x: np.ndarray, y: np.ndarray, c: np.ndarray) -> None:
    """The product of matrices into c, of a dtype that may be wider."""
    wider = c.dtype if np.result_type(x.dtype, y.dtype) != c.dtype and np.can_cast(x.dtype, c.dtype) else None
    multiply(x, y, c, wider)


def is_summed_by_parts(layout: PairLayout) -> bool:
    """Return whether the product multiplies two vectors that are long enough for ``_inner_product``."""
    return not layout.output and layout.shape[2] > 2 * INNER_ELEMENTS


def _inner_product(x: np.ndarray, y: np.ndarray, sums: np.dtype) -> Any:
    """The sum of products of elements of two arrays of one shape, as the sum of products of parts. A part is in a cache,
    and so short that no BLAS shares it among threads. The parts, and the order in which they are added, depend on
    shapes and strides alone."""
    order = sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis]))
    x, y = x.transpose(order), y.transpose(order)
    with np.errstate(all="ignore"):
        if sums.kind == "f" and x.dtype == y.dtype == sums:
            if x.flags.c_contiguous and y.flags.c_contiguous:
                x, y = x.reshape(-1), y.reshape(-1)
                rows = x.size // INNER_ELEMENTS
                whole = rows * INNER_ELEMENTS
                dots = _dots_of_rows(x[:whole].reshape(rows, -1), y[:whole].reshape(rows, -1))
                return np.add.reduce(dots) + np.dot(x[whole:], y[whole:])
            if _has_rows(x) and _has_rows(y):
                return np.add.reduce(_dots_of_rows(x, y), axis=None)
        dots = _dots_of_blocks(x, y, sums)
        return np.logical_or.reduce(dots) if sums.kind == "b" else np.add.reduce(dots, dtype=sums)


def _has_rows(x: np.ndarray) -> bool:
    """Whether it has rows of neighbours, neither so short that each costs a call nor too long for a cache."""
    return x.ndim > 1 and x.strides[-1] == x.itemsize and NEIGHBOURS <= x.shape[-1] <= INNER_ELEMENTS


def _threads_for(size: int) -> int:
    return max(1, min(get_threads(), size // ELEMENTS_PER_THREAD))


def _dots_of_rows(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The products of rows of real numbers, which are read where they lie."""
    dots = np.empty(x.shape[:-1], x.dtype)
    run_in_slices(
        lambda part: _quietly(np.vecdot, x[part], y[part], dots[part]),
        len(x),
        _threads_for(x.size),
    )
    return dots


def _dots_of_blocks(x: np.ndarray, y: np.ndarray, sums: np.dtype) -> np.ndarray:
    """The products of blocks, which are copied where their elements are no neighbours."""
    real = sums.kind == "f"
    places = _blocks_of_inner(x, y, ROWS_OF_BLOCK * INNER_ELEMENTS if real else INNER_ELEMENTS)
    dots = np.empty(len(places), sums)

    def in_cache(piece: np.ndarray, buffer: np.ndarray) -> np.ndarray:
        if piece.dtype == sums and (piece.flags.c_contiguous or (real and _has_rows(piece))):
            return piece
        copy = buffer[: piece.size].reshape(piece.shape)
        np.copyto(copy, piece, casting="unsafe")
        return copy

    def dot(a: np.ndarray, b: np.ndarray) -> Any:
        if real:
            return np.add.reduce(np.vecdot(a, b), axis=None)
        a, b = a.reshape(-1), b.reshape(-1)
        return np.dot(a, b) if sums.kind == "c" else np.einsum("i,i->", a, b)

    def compute(part: slice) -> None:
        most = max((math.prod(one.stop - one.start for one in place) for place in places[part]), default=0)
        buffers = np.empty((2, most), sums)
        for number in range(part.start, part.stop):
            place = places[number]
            dots[number] = dot(in_cache(x[place], buffers[0]), in_cache(y[place], buffers[1]))

    run_in_slices(functools.partial(_quietly, compute), len(places), _threads_for(x.size))
    return dots


def _even_block(length: int, most: int) -> int:
    """The length of blocks of at most ``most``, of which the last is about as long as the others."""
    return -(-length // -(-length // most))


def _blocks_of_inner(x: np.ndarray, y: np.ndarray, most: int) -> list[tuple[slice, ...]]:
    """Blocks of two arrays of about ``most`` elements at most, which have neighbours of both; axes are in the order of
    the strides of x."""
    nearest = min(range(y.ndim), key=lambda axis: abs(y.strides[axis]) if y.shape[axis] > 1 else math.inf)
    block = [1] * x.ndim
    block[nearest] = _even_block(x.shape[nearest], NEIGHBOURS)
    for axis in range(x.ndim - 1, -1, -1):
        left = max(1, most // (math.prod(block) // block[axis]))
        block[axis] = max(block[axis], _even_block(x.shape[axis], left))
    ranges = [
        [slice(low, low + each) for low in range(0, length, each)] for each, length in zip(block, x.shape, strict=True)
    ]
    return list(itertools.product(*ranges))


# ---- products of elements --------------------------------------------------------------------------------------------


def _multiply_elements(layout: PairLayout, x: np.ndarray, y: np.ndarray, c: np.ndarray) -> None:
    """The product of elements, by as many threads as pay for it; axes are (batch, m), (batch, n), (batch, m, n)."""
    batch, m, n = len(layout.batch), len(layout.m), len(layout.n)
    x = x.reshape((*x.shape, *(1,) * n)) if n else x
    y = y.reshape((*y.shape[:batch], *(1,) * m, *y.shape[batch:])) if m else y
    dtype, threads = np.result_type(x.dtype, y.dtype, c.dtype), _threads_for(c.size)
    product = functools.partial(_quietly, np.multiply, dtype=dtype, casting="unsafe")
    if threads < 2:
        product(x, y, c)
        return
    axis = axis_to_share(c, threads)

    def multiply_part(part: slice) -> None:
        where: Any = tuple(part if each == axis else slice(None) for each in range(c.ndim))
        product(x[_of(x, where)], y[_of(y, where)], c[(*where, ...)])

    run_in_slices(multiply_part, c.shape[axis], threads)


def _of(x: np.ndarray, where: tuple[Any, ...]) -> tuple[Any, ...]:
    """The part of an operand that broadcasts."""
    return (*(slice(None) if length == 1 else part for length, part in zip(x.shape, where, strict=True)), ...)
