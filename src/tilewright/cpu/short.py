"""The fast path for two matrices: after one look-up in a table of plans, machine code computes the product.

``matmul`` checks, plans and runs every product in Python, which takes 15 to 40 µs. The fast path turns the plan for a
shape into a call of machine code once (``cpu/runtime/shared_products``). Later products of that shape have an overhead
of 2 to 4 µs. If the call of machine code needs no workspace, the C front remembers it, and ``small_products.multiply``
computes later products of that shape.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..host.limits import get_threads
from ..product.epilogue import asked_dtypes
from ..product.operands import GRAM_LEAST, is_gram, is_known, promoted, rows_of_batch
from ..product.problem import Symmetry
from .plan import MOST_WORK_OF_EACH, WORK_WORTH_WAKING, DTypeKey, plan_alone, short_way
from .runtime import shared_products, small_products
from .runtime.facts import MOST_WORK_OF_BATCH, OF_SHORT_WAY
from .runtime.shared_products import Sharing


def product_by_short_way(a: np.ndarray, b: np.ndarray, out: Any, out_dtype: Any = None) -> Any:
    """Return the product of two matrices, of a matrix and a vector, or of a batch and a matrix. The result is None if
    ``matmul`` must plan and run the product.

    As many threads as the plan says compute the product, if enough of them are polling, or sleep and are worth waking.
    If too few threads poll or are worth waking, the calling thread computes a small product alone. The calling thread
    also computes a batch of small products, if no other thread may be used.

    ``out_dtype`` is the dtype that the caller of ``matmul`` requested. If ``out_dtype`` is None, the product has the
    dtype of the operands.
    """
    if type(b) is not np.ndarray or a.dtype is not b.dtype:
        return None
    if a.ndim != 2 or b.ndim != 2:
        return None if out_dtype is not None else _product_of_others(a, b, out)
    if out_dtype is not None and not isinstance(out_dtype, (str, type, np.dtype)):
        return None  # it might have no hash
    shapes, key, work = (a.shape, b.shape), (a.dtype, a.dtype.num), a.size * b.shape[1]
    if work == 0:
        return None
    limit = get_threads()
    symmetry: Symmetry = "gram" if len(a) >= GRAM_LEAST and is_gram(a, b) else ""
    how = (
        _sharing(*shapes, key, out_dtype, limit, symmetry) if limit > 1 and work <= limit * MOST_WORK_OF_EACH else None
    )
    if how is not None and how.threads > 1:
        if (result := shared_products.multiply_shared(how, a, b, out)) is not None:
            return result
        if work >= WORK_WORTH_WAKING:
            return None
        shared_products.wake_if_many(how.threads)
        how = None
    if work > MOST_WORK_OF_EACH:
        return None
    if symmetry:
        how = how or _sharing(*shapes, key, out_dtype, 1, symmetry)
        return None if how is None else shared_products.multiply_shared(how, a, b, out)
    # Narrower dtypes have faster kernels at this size; for the others a look at the table would take a microsecond.
    known = small_products.multiply_any_work if out_dtype is None and a.itemsize >= 4 else small_products.take_long_way
    if (result := known(a, b, out)) is not None:
        if limit == 1:
            _remember_alone(*shapes, key)
        return result
    if how is None:
        how = _sharing(*shapes, key, out_dtype, 1)
    return None if how is None else shared_products.multiply_shared(how, a, b, out)


def _product_of_others(a: np.ndarray, b: np.ndarray, out: Any) -> np.ndarray | None:
    """The product of what are not two matrices."""
    if a.ndim + b.ndim == 3 and a.ndim and b.ndim:  # not a scalar and a batch, which the long way refuses
        return _product_of_vector(a, b, out)
    if min(a.ndim, b.ndim) < 2 or is_gram(a, b):
        return None
    return _batch_alone(a, b, out) if b.ndim > 2 else _product_of_rows(a, b, out)


def _product_of_vector(a: np.ndarray, b: np.ndarray, out: Any) -> np.ndarray | None:
    """The product of a matrix and a vector, as a matrix of one row or column."""
    if out is not None and (type(out) is not np.ndarray or out.ndim != 1):
        return None
    is_row = a.ndim == 1
    c = np.empty(b.shape[1] if is_row else a.shape[0], a.dtype) if out is None else out
    x, y, z = (a[None], b, c[None]) if is_row else (a, b[:, None], c[:, None])
    return None if product_by_short_way(x, y, z) is None else c


def _batch_alone(a: np.ndarray, b: np.ndarray, out: Any) -> np.ndarray | None:
    """A batch of small products, by this thread if no other may share it. The long way's Python code takes a fortieth of a
    millisecond, but up to 0.2 after a batch that has evicted it from the caches."""
    if a.itemsize < 4 or get_threads() > 1 or (a.ndim > 2 and a.shape[:-2] != b.shape[:-2]):
        return None
    work = max(a.size * b.shape[-1], b.size * a.shape[-2])
    return small_products.multiply_any_work(a, b, out) if work <= MOST_WORK_OF_EACH else None


def _product_of_rows(a: np.ndarray, b: np.ndarray, out: Any) -> np.ndarray | None:
    """The product of a batch and a matrix, as that of all rows and the matrix; by this thread alone where rows do not lie
    equally far apart, or no other thread may share them."""
    rows = None if out is not None and type(out) is not np.ndarray else rows_of_batch(a, b, out)
    few = a.size * b.shape[1] <= MOST_WORK_OF_BATCH
    if few and (rows is None or get_threads() == 1):
        return small_products.multiply_any_work(a, b, out)
    if rows is None:
        return None
    c = np.empty((*a.shape[:-1], b.shape[1]), a.dtype) if out is None else out
    if c.shape[-1] != b.shape[1] or product_by_short_way(rows, b, c.reshape(len(rows), b.shape[1])) is None:
        return None
    return c


@functools.lru_cache(maxsize=1024)
def _remember_alone(a: tuple[int, ...], b: tuple[int, ...], key: DTypeKey) -> None:
    """Have the C front compute products of this shape by one thread; once, for vectors come here again."""
    shared_products.remember_shape(key[0], (a[0], b[1], a[1]), 1, True, None)


@functools.lru_cache(maxsize=1024)  # as plans
def _sharing(
    a: tuple[int, ...], b: tuple[int, ...], key: DTypeKey, out_dtype: Any, limit: int, symmetry: Symmetry = ""
) -> Sharing | None:
    """The plan for at most ``limit`` threads as a call of machine code; None where that cannot run it."""
    dtype = key[0]
    if a[1] != b[0] or not is_known(dtype) or promoted(dtype, dtype) != dtype:
        return None
    asked, sums = (dtype, None) if out_dtype is None else asked_dtypes(dtype, dtype, out_dtype, None)
    plan = plan_alone(a, b, key, key, "standard", "classical", sums, symmetry).within(limit)
    if plan.working_dtype != dtype or plan.dtype != asked or plan.stored_dtype != asked:
        return None
    if plan.kernel in OF_SHORT_WAY:
        short_way(plan.kernel, dtype)  # computes it where no other thread stands by
    how, shape = plan.sharing, (plan.problem.m, plan.problem.n, plan.problem.k)
    if how is None or how.workspace or out_dtype is not None or plan.problem.symmetry != symmetry:
        return how
    if how.threads > 1 or limit == 1 or symmetry:
        alone = limit > 1 and not symmetry and dtype.itemsize >= 4 and plan.problem.flops // 2 < WORK_WORTH_WAKING
        shared_products.remember_shape(dtype, shape, limit, alone, how, bool(symmetry))
    return how
