"""The library call: operands → problem → plan → run → answer."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .errors import DTypeError, ShapeError, UsageError
from .operands import admit, admit_out, native
from .planner import Plan, make_plan
from .problem import Layout, Problem, layout
from .run.cpu import Product, runner

#: Rows of C that ``gemm`` combines at a time take about this much memory.
_PANEL_BYTES = 64 << 20


def matmul(a: Any, b: Any, /, *, out: np.ndarray | None = None) -> Any:
    """The matrix product of ``a`` and ``b``, with the semantics of array-API ``matmul``.

    ``a`` is (…, m, k) or (k,), ``b`` is (…, k, n) or (k,); leading axes broadcast; the result is (…, m, n), without the
    axis that a vector lent. Any strides and byte order will do. dtypes promote as numpy promotes them: float32, float64,
    complex and integers (with wrap-around) have kernels; float16 is computed in float32 and rounded once; bool is the
    logical product. NaN and infinity propagate. Two vectors give a scalar.

    ``out``: an array of exactly the result's shape that receives the result, cast by the ``same_kind`` rule. It may
    overlap the operands, and be of any strides and byte order.

    Raises ShapeError (k or batch mismatch, a scalar operand, wrong ``out``), DTypeError, OperandError (no usable matrix).

    >>> import numpy as np, tilewright as tw
    >>> a = np.arange(6, dtype=np.float32).reshape(2, 3)
    >>> tw.matmul(a, a.T)
    array([[ 5., 14.],
           [14., 50.]], dtype=float32)
    """
    x, y = admit(a, "a"), admit(b, "b")
    shapes = layout(x.shape, y.shape)
    dtype = _promoted(x, y)
    target = None if out is None else admit_out(out, shapes.result, dtype)
    plan_ = make_plan(_problem(shapes, dtype))
    compute = np.dtype(plan_.compute)
    x, y = native(x, compute), native(y, compute)
    direct = target is not None and _can_write(target, compute, x, y)
    c = target if direct else np.empty(shapes.result, compute)
    assert c is not None
    _run(_prepared(plan_.kernel, compute, plan_.threads), shapes, x, y, c)
    if target is not None:
        if not direct:
            np.copyto(target, _rounded(c, dtype), casting="same_kind")
        return out
    return _rounded(c, dtype)[()]


def gemm(alpha: complex, a: Any, b: Any, beta: complex, c: np.ndarray) -> np.ndarray:
    """C ← α·A·B + β·C in place, as BLAS means it; returns ``c``.

    ``a`` is (m, k), ``b`` is (k, n), ``c`` a writeable (m, n) array of a dtype that the product casts to. With
    ``beta`` 0 C is not read: NaN in it does not survive. With ``alpha`` 0 A and B are not read. Otherwise NaN and
    infinity propagate. ``c`` may overlap the operands.

    Raises ShapeError, DTypeError, OperandError.

    >>> import numpy as np, tilewright as tw
    >>> c = np.ones((2, 2))
    >>> tw.gemm(2.0, np.eye(2), np.eye(2), 1.0, c)
    array([[3., 1.],
           [1., 3.]])
    """
    x, y = admit(a, "a"), admit(b, "b")
    for name, array in (("a", x), ("b", y)):
        if array.ndim != 2:
            raise ShapeError(f"{name} is {array.shape}: gemm takes matrices; matmul takes vectors and batches")
    shapes = layout(x.shape, y.shape)
    alpha, beta = _scalar("alpha", alpha), _scalar("beta", beta)
    dtype = _promoted(x, y)
    target = admit_out(c, shapes.result, np.result_type(dtype, *(s for s in (alpha, beta) if isinstance(s, complex))))
    if alpha == 0:
        _scale(target, beta)
    elif alpha == 1 and beta == 0:
        matmul(x, y, out=target)
    else:
        _combine(alpha, x, y, beta, target)
    return c


def plan(a: Any, b: Any, /) -> Plan:
    """What ``matmul(a, b)`` would run, and why; nothing is multiplied. Arrays, or just their shapes, which count as float64.

    >>> import tilewright as tw
    >>> print(tw.plan((3, 4), (4, 5)).problem)
    (3×4) · (4×5) float64
    """
    shapes, dtypes = [], []
    for name, value in (("a", a), ("b", b)):
        if isinstance(value, tuple) and all(isinstance(size, int) for size in value):
            shapes.append(value)
            dtypes.append(np.dtype(np.float64))
        else:
            array = admit(value, name)
            shapes.append(array.shape)
            dtypes.append(array.dtype)
    return make_plan(_problem(layout(*shapes), np.result_type(*dtypes)))


def _promoted(a: np.ndarray, b: np.ndarray) -> np.dtype:
    try:
        return np.result_type(a.dtype, b.dtype)
    except TypeError:
        raise DTypeError(f"a is {a.dtype}, b is {b.dtype}: they have no common dtype") from None


def _problem(shapes: Layout, dtype: np.dtype) -> Problem:
    batch = int(np.prod(shapes.batch, dtype=np.int64))
    return Problem(shapes.m, shapes.n, shapes.k, dtype.name, batch)


@functools.lru_cache(maxsize=256)
def _prepared(kernel: Any, dtype: np.dtype, threads: int) -> Product:
    return runner(kernel, dtype, threads=threads)


def _can_write(target: np.ndarray, compute: np.dtype, *operands: np.ndarray) -> bool:
    """Whether the kernel may write the caller's array itself: its dtype, native, aligned, apart from the operands."""
    overlaps = any(np.may_share_memory(target, x) for x in operands)
    return target.dtype == compute and target.dtype.isnative and target.flags.aligned and not overlaps


def _run(product: Product, shapes: Layout, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    a = a if a.ndim > 1 else a[None, :]
    b = b if b.ndim > 1 else b[:, None]
    full = c.reshape(shapes.batch + (shapes.m, shapes.n)) if c.ndim < 2 else _with_vector_axes(c, shapes)
    if not shapes.batch:
        product(a, b, full)
        return
    a = np.broadcast_to(a, shapes.batch + a.shape[-2:])
    b = np.broadcast_to(b, shapes.batch + b.shape[-2:])
    for index in np.ndindex(shapes.batch):
        product(a[index], b[index], full[index])


def _with_vector_axes(c: np.ndarray, shapes: Layout) -> np.ndarray:
    """A view of C with the m and n axes that a vector operand left out."""
    missing = len(shapes.batch) + 2 - c.ndim
    if not missing:
        return c
    return c[..., None, :] if shapes.result[-1] == shapes.n and shapes.m == 1 else c[..., None]


def _rounded(c: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if c.dtype == dtype:
        return c
    if dtype.kind == "b":
        return c != 0
    with np.errstate(over="ignore"):  # a float16 product may overflow to infinity, as numpy's does
        return c.astype(dtype)


def _scalar(name: str, value: Any) -> Any:
    array = np.asarray(value)
    if array.shape != () or array.dtype.kind not in "biufc":
        raise UsageError(f"{name} must be a number, got {type(value).__name__} {value!r}")
    return array.item()


def _scale(c: np.ndarray, beta: Any) -> None:
    if beta == 0:
        c[...] = 0
    elif beta != 1:
        np.multiply(c, np.asarray(beta).astype(c.dtype), out=c)


def _combine(alpha: Any, a: np.ndarray, b: np.ndarray, beta: Any, c: np.ndarray) -> None:
    """By panels of rows of C, so that the product held beside C stays small."""
    if np.may_share_memory(c, a):
        a = a.copy()
    if np.may_share_memory(c, b):
        b = b.copy()
    step = max(64, _PANEL_BYTES // max(1, c.shape[1] * c.itemsize))
    for row in range(0, c.shape[0], step):
        band = c[row : row + step]
        product = matmul(a[row : row + step], b)
        if alpha != 1:
            product = product * np.asarray(alpha).astype(np.result_type(product, alpha))
        if beta != 0:
            product = product + (band if beta == 1 else band * np.asarray(beta).astype(np.result_type(band, beta)))
        np.copyto(band, product, casting="same_kind")
