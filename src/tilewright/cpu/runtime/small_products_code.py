"""The machine code of small products, which the C front calls: which sizes suit, and the loop over a batch.

Every function here is compiled. The C front (``cpu/native/front.c``) reads and checks the arrays.
"""

from __future__ import annotations

import sys
from typing import Any

import numba as nb
from numpy.lib.stride_tricks import as_strided

from .. import codegen
from .facts import BEFORE_VECTORS, FOR_VECTORS, KERNEL

_module = sys.modules[KERNEL.function.__module__]
#: The kernel's loop over a batch; a single product is a batch of one.
products_of_kernel = _module.batch_products
_product_by_vectors = sys.modules[FOR_VECTORS.function.__module__].streamed_product_alone

_any_njit: Any = nb.njit
_inner = _any_njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)  # called only by each other
_suits, _suits_vectors, _suits_before = (_inner(kernel.suits) for kernel in (KERNEL, FOR_VECTORS, BEFORE_VECTORS))
_better_transposed = _inner(
    getattr(_module.better_transposed, "py_func", _module.better_transposed)
)  # a plain function where JIT is disabled


def are_small(m: int, n: int, k: int) -> int:
    """Whether products of these sizes are small."""
    return int(_suits(m, n, k))


def are_small_or_of_vectors(m: int, n: int, k: int) -> int:
    """The same, or whether a single product is planned for the kernel for vectors."""
    return int(_suits(m, n, k) or (_suits_vectors(m, n, k) and not _suits_before(m, n, k)))


@_inner
def matrix(data, rows, columns, row, column):
    """The matrix at an address, with two strides in bytes."""
    return as_strided(nb.carray(data, (rows, columns)), (rows, columns), (row, column))


@_inner
def batch_operands(a, b, c, batch):
    """The first product of a batch as matrices, the number of products and the bytes from each to the next.

    It is the transposed product Cᵀ = Bᵀ·Aᵀ where C is column-major, or a column-major matrix times a vector.
    """
    m, n, k = batch[0], batch[1], batch[2]
    x, y = matrix(a, m, k, batch[3], batch[4]), matrix(b, k, n, batch[5], batch[6])
    z, count, step_x, step_y = matrix(c, m, n, batch[7], batch[8]), batch[9], batch[10], batch[11]
    row, column, itemsize = batch[7], batch[8], codegen.itemsize(z)
    transposed = n > 1 and column != itemsize and row == itemsize
    if transposed or _better_transposed(m, n, batch[3], batch[4], batch[5], batch[6], row, itemsize):
        x, y, z, step_x, step_y = y.T, x.T, z.T, step_y, step_x
    return x, y, z, count, step_x, step_y, batch[12]


def products(a: Any, b: Any, c: Any, batch: Any) -> int:
    """All products of a batch, in one call: ``batch`` points to the words of ``Batch`` in C. Returns 1, and something else
    where it found no memory."""
    x, y, z, count, step_x, step_y, step_z = batch_operands(a, b, c, batch)
    products_of_kernel(x, y, z, count, step_x, step_y, step_z)
    return 1


def products_with_vectors(a: Any, b: Any, c: Any, batch: Any) -> int:
    """``products``, or a single product of a vector, or of a few, which the kernel for small ones does not suit."""
    x, y, z, count, step_x, step_y, step_z = batch_operands(a, b, c, batch)
    if count == 1 and not _suits(x.shape[0], y.shape[1], x.shape[1]):
        _product_by_vectors(x, y, z)
    else:
        products_of_kernel(x, y, z, count, step_x, step_y, step_z)
    return 1
