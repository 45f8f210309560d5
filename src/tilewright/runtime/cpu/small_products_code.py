"""The machine code of ``small_product``: it reads Python's objects and NumPy's arrays, checks them, and calls the kernel.

Every function here is compiled. ``x`` is the address of an array object; ``facts`` is the address of the numbers that are
listed below.
"""

from __future__ import annotations

import sys
from typing import Any

import numba as nb
import numpy as np

from ...codegen import objects
from .facts import (
    ALIGNED,
    AXES,
    BASE,
    BEFORE_VECTORS,
    CREATE,
    DATA,
    DTYPE,
    DTYPES,
    FLAGS,
    FOR_VECTORS,
    KERNEL,
    MOST_DTYPES,
    MOST_WORK,
    MOST_WORK_OF_BATCH,
    NDARRAY,
    NONE,
    SHAPE,
    STRIDES,
    TYPE,
    UNWRAP,
    WORDS_OF_DTYPE,
    WRITEABLE,
)

#: Overhead of a product, in multiply-adds.
WORK_OF_A_CALL = 1000
#: Multiply-adds from which the GIL is released: that costs 50 ns, and so many last a microsecond or more.
WORTH_RELEASING = 60_000
#: The same of a batch times one matrix, which threads may share as a single product; it is looked at in Python first.
MOST_WORK_BY_ONE = 3_000_000
#: The largest batch: beyond it, counts might overflow. The most axes of one whose result is allocated here.
MOST_PRODUCTS, MOST_AXES = 1 << 32, 6
NO_SIZES = (0,) * (MOST_AXES + 2)

_module = sys.modules[KERNEL.function.__module__]
#: The kernel's loop over a batch; a single product is a batch of one.
products_of_kernel = _module.batch_products
_product_by_vectors = sys.modules[FOR_VECTORS.function.__module__].streamed_product_alone


def products_of(dtype: str) -> Any:
    """The loop over a batch of products of a dtype, with the kernel for vectors where that has the dtype. Not compiled."""
    return products_with_vectors if dtype in FOR_VECTORS.dtypes else products_of_kernel.py_func


_any_njit: Any = nb.njit
_inner = _any_njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)  # called only by each other
_suits, _suits_vectors, _suits_before = (_inner(kernel.suits) for kernel in (KERNEL, FOR_VECTORS, BEFORE_VECTORS))
_better_transposed = _inner(
    getattr(_module.better_transposed, "py_func", _module.better_transposed)
)  # a plain function where JIT is disabled


def products_with_vectors(a: Any, b: Any, c: Any, count: int, step_a: int, step_b: int, step_c: int) -> None:
    """``products_of_kernel``, or a single product of a vector, or of a few, which that does not suit. Not compiled here."""
    if count == 1 and not _suits(a.shape[0], b.shape[1], a.shape[1]):
        _product_by_vectors(a, b, c)
    else:
        products_of_kernel(a, b, c, count, step_a, step_b, step_c)


@_inner
def is_for_vectors(m, n, k):
    """Whether a product that is not small is planned for the kernel for vectors."""
    return _suits_vectors(m, n, k) and not _suits_before(m, n, k)


@_inner
def is_plain_array(x, facts, flags, admitted):
    """Whether x is exactly an ndarray, with these flags, and its memory belongs to one and so cannot have been unmapped.

    ``admitted`` says that the owner of the memory was checked before.
    """
    mask, required = flags
    ndarray = objects.word(facts, NDARRAY)
    if objects.word(x, TYPE) != ndarray or objects.number(x, FLAGS) & mask != required:
        return False
    while not admitted and objects.word(x, BASE):
        x = objects.follow(x, BASE)
        if objects.word(x, TYPE) != ndarray:
            return False
    return True


@_inner
def size(x, axis):
    """The length of an axis."""
    return objects.word(objects.follow(x, SHAPE), 8 * axis)


@_inner
def stride(x, axis):
    """Bytes from one element of an axis to the next."""
    return objects.word(objects.follow(x, STRIDES), 8 * axis)


@_inner
def byte_range(x, itemsize):
    """Address of the first byte of an array's memory, and of the first byte after it."""
    low = objects.word(x, DATA)
    high = low + itemsize
    for axis in range(objects.number(x, AXES)):
        reach = (size(x, axis) - 1) * stride(x, axis)
        low += min(0, reach)
        high += max(0, reach)
    return low, high


@_inner
def disjoint(x, y, itemsize):
    """Whether the memory of two arrays is disjoint."""
    low_x, high_x = byte_range(x, itemsize)
    low_y, high_y = byte_range(y, itemsize)
    return high_x <= low_y or high_y <= low_x


@_inner
def product_axes(x):
    """How many of an operand's axes belong to a single product; the others are those of the batch."""
    return min(2, objects.number(x, AXES))


@_inner
def batch(x, own_axes, axis):
    """Size and stride of an axis of the batch; the last axis is number 1. The stride is 0 where it broadcasts."""
    at = objects.number(x, AXES) - own_axes - axis
    length = size(x, at) if at >= 0 else 1
    return length, stride(x, at) if length > 1 else 0


@_inner
def broadcast(x, y):
    """The common size of two axes by broadcasting, −1 if there is none."""
    if x == y or y == 1:
        return x
    return y if x == 1 else -1


@_inner
def matrix(x, column):
    """Address, rows, columns and strides of an operand's first matrix; a vector is a row, or with ``column`` a column."""
    axes, data = objects.number(x, AXES), objects.follow(x, DATA)
    if axes > 1:
        return data, size(x, axes - 2), size(x, axes - 1), stride(x, axes - 2), stride(x, axes - 1)
    if column:
        return data, size(x, axes - 1), 1, stride(x, axes - 1), 0
    return data, 1, size(x, axes - 1), 0, stride(x, axes - 1)


@_inner
def moved(x, offset):
    """The matrix that begins ``offset`` bytes after x."""
    return objects.behind(x[0], offset), x[1], x[2], x[3], x[4]


@_inner
def transposed_matrix(x):
    """The transposed matrix."""
    return x[0], x[2], x[1], x[4], x[3]


@_inner
def broadcast_products(code, itemsize, a, b, c, axes, count):
    """All products of a batch of ``axes`` axes; one call of the kernel computes those along the last axis."""
    own_a, own_b, own_c = product_axes(a), product_axes(b), product_axes(a) + product_axes(b) - 2
    first_a, first_b, data = matrix(a, False), matrix(b, True), objects.follow(c, DATA)
    last = objects.number(c, AXES) - 1
    row, column = stride(c, last - own_b + 1) if own_a == 2 else 0, stride(c, last) if own_b == 2 else itemsize
    first_c = data, first_a[1], first_b[2], row, column
    inner, step_c = batch(c, own_c, 1)
    step_a, step_b = batch(a, own_a, 1)[1], batch(b, own_b, 1)[1]
    # A column-major C is the row-major product Cᵀ = Bᵀ·Aᵀ.
    _, m, n, _, _ = first_c
    transpose = n > 1 and column != itemsize and row == itemsize
    transpose = transpose or _better_transposed(m, n, *first_a[3:], *first_b[3:], row, itemsize)
    done = True
    for outer in range(count // inner):
        at_a = at_b = at_c = 0
        rest = outer
        for axis in range(2, axes + 1):
            length, stride_c = batch(c, own_c, axis)
            index = rest % length
            rest //= length
            at_a += index * batch(a, own_a, axis)[1]
            at_b += index * batch(b, own_b, axis)[1]
            at_c += index * stride_c
        x, y, z = moved(first_a, at_a), moved(first_b, at_b), moved(first_c, at_c)
        if transpose:
            x, y, z = transposed_matrix(y), transposed_matrix(x), transposed_matrix(z)
        steps = (inner, step_b, step_a, step_c) if transpose else (inner, step_a, step_b, step_c)
        done &= objects.call(code, itemsize, x, y, z, steps)
    return done


@_inner
def batch_count(a, b, axes):
    """The number of products in a batch; 0 if its axes do not broadcast, or the number might overflow."""
    own_a, own_b = product_axes(a), product_axes(b)
    count = 1
    for axis in range(1, axes + 1):
        length = broadcast(batch(a, own_a, axis)[0], batch(b, own_b, axis)[0])
        if length <= 0 or length > MOST_PRODUCTS // count:
            return 0
        count *= length
    return count


@_inner
def out_fits(facts, dtype, c, a, b, m, n, axes, itemsize, admitted):
    """Whether the caller's C has the flags, dtype and shape for the result, and is disjoint from the operands, whose
    elements have at most ``itemsize`` bytes, which C's have."""
    own_a, own_b = product_axes(a), product_axes(b)
    own_c = own_a + own_b - 2
    if not is_plain_array(c, facts, WRITEABLE, admitted):
        return False
    if objects.word(c, DTYPE) != objects.integer(dtype) or objects.number(c, AXES) != axes + own_c:
        return False
    if (own_a == 2 and size(c, axes) != m) or (own_b == 2 and size(c, axes + own_a - 1) != n):
        return False
    for axis in range(1, axes + 1):
        if batch(c, own_c, axis)[0] != broadcast(batch(a, own_a, axis)[0], batch(b, own_b, axis)[0]):
            return False
    return disjoint(c, a, itemsize) and disjoint(c, b, itemsize)


@_inner
def new_result(facts, dtype, a, b, m, n, axes):
    """A new array for the result, of at most MOST_AXES axes of the batch."""
    objects.new_reference(dtype)
    shape = objects.words(NO_SIZES)
    sizes = nb.carray(shape, len(NO_SIZES), np.int64)
    own_a, own_b = product_axes(a), product_axes(b)
    for axis in range(1, axes + 1):
        sizes[axes - axis] = broadcast(batch(a, own_a, axis)[0], batch(b, own_b, axis)[0])
    if own_a == 2:
        sizes[axes] = m
    if own_b == 2:
        sizes[axes + own_a - 1] = n
    axes += own_a + own_b - 2
    return objects.new_array(objects.follow(facts, CREATE), objects.follow(facts, NDARRAY), dtype, axes, shape)


@_inner
def entry_of(facts, dtype):
    """The offset of this dtype in ``facts``, 0 if it is not there."""
    for at in range(DTYPES, DTYPES + 8 * WORDS_OF_DTYPE * MOST_DTYPES, 8 * WORDS_OF_DTYPE):
        if objects.word(facts, at) == dtype:
            return at
    return 0


@_inner
def computed(facts, a, b, c, admitted, any_work):
    """The result, as a new reference; NULL, with Python's exception set, if it could not be allocated.

    Or None, as a borrowed reference: then the long way must compute the product.
    """
    none = objects.follow(facts, NONE)
    if not is_plain_array(a, facts, ALIGNED, admitted) or not is_plain_array(b, facts, ALIGNED, admitted):
        return none
    dtype = objects.word(a, DTYPE)
    at = entry_of(facts, dtype)
    if at == 0 or objects.word(b, DTYPE) != dtype or min(product_axes(a), product_axes(b)) == 0:
        return none
    code, itemsize = objects.follow(facts, at + 8), objects.word(facts, at + 16)
    (_, m, k, _, _), (_, k_of_b, n, _, _) = matrix(a, False), matrix(b, True)
    if k != k_of_b:
        return none
    own_a, own_b = product_axes(a), product_axes(b)
    axes = max(objects.number(a, AXES) - own_a, objects.number(b, AXES) - own_b)
    if not _suits(m, n, k) and (axes > 0 or objects.word(facts, at + 24) == 0 or not is_for_vectors(m, n, k)):
        return none
    count = batch_count(a, b, axes)
    work = count * (m * n * k + WORK_OF_A_CALL)
    most = objects.word(facts, MOST_WORK)
    if count > 1:
        most = MOST_WORK_BY_ONE if own_b == 2 and objects.number(b, AXES) == 2 else MOST_WORK_OF_BATCH
    if m * n * k * count == 0 or (not any_work and work > most):
        return none
    allocates = objects.integer(c) == objects.integer(none)
    if allocates:
        if axes > MOST_AXES:
            return none
        c = new_result(facts, objects.follow(a, DTYPE), a, b, m, n, axes)
        if objects.integer(c) == 0:
            return c
    elif not out_fits(facts, objects.follow(a, DTYPE), c, a, b, m, n, axes, itemsize, admitted):
        return none
    thread = objects.save_thread() if work > WORTH_RELEASING else none
    done = broadcast_products(code, itemsize, a, b, c, axes, count)
    if work > WORTH_RELEASING:
        objects.restore_thread(thread)
    if not done:
        if allocates:
            objects.drop_reference(c)
        return none
    if not allocates:
        objects.new_reference(c)
        return c
    return objects.unwrapped(objects.follow(facts, UNWRAP), c)


# Not compiled here: ``small_product`` compiles it as a C function.
def small_product(self: Any, arguments: Any, count: Any) -> Any:
    """The function that Python calls: ``self`` is the array of ``facts``, ``arguments`` points to ``count`` objects."""
    facts = objects.follow(self, DATA)
    none = objects.follow(facts, NONE)
    result = none
    if count >= 3:
        a, b, c = objects.follow(arguments, 0), objects.follow(arguments, 8), objects.follow(arguments, 16)
        result = computed(facts, a, b, c, count == 4, count > 3)
    if objects.integer(result) == objects.integer(none):
        objects.new_reference(none)
    return result
