"""The library call: operands → problem → plan → run → answer."""

from __future__ import annotations

import functools
import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arrays.matmul import is_on_gpu
from .arrays.matmul import matmul as gpu_matmul
from .arrays.matmul import plan as gpu_plan
from .catalog import adding_kernel
from .engine.numpy_product import numpy_product
from .errors import DTypeError, ShapeError, UsageError
from .factors import factor
from .kernels import Kernel
from .operands import admit, admit_out, native, promoted
from .planning.cpu import BYTES_PER_THREAD, WORK_PER_THREAD, Plan, make_plan
from .planning.gpu import GpuPlan
from .problem import Layout, Problem, layout
from .runtime.cpu import express
from .runtime.cpu.batch import as_matrices, multiply
from .runtime.cpu.runner import Product, runner

#: Rows of C that ``gemm`` combines at a time take about this much memory.
_PANEL_BYTES = 64 << 20

#: The short way for small products; of a dtype that was not multiplied yet, it knows nothing.
_short: express.Short = express.never


def matmul(
    a: Any,
    b: Any,
    /,
    out: Any = None,
    *,
    precision: str = "standard",
    algorithm: str = "classical",
    device: str | None = None,
) -> Any:
    """The matrix product of ``a`` and ``b``, with the semantics of array-API ``matmul``.

    ``a`` is (…, m, k) or (k,), ``b`` is (…, k, n) or (k,); leading axes broadcast; the result is (…, m, n), without the
    axis that a vector lent. Any strides and byte order will do. dtypes promote as numpy promotes them: float32, float64,
    complex and integers (with wrap-around) have kernels; float16 is computed in float32 and rounded once; bool is the
    logical product. long double and Python objects (by their own ``*`` and ``+``) are left to NumPy, and so is everything
    where ``$NUMBA_DISABLE_JIT`` is set; ``plan`` says so. NaN and infinity propagate. Two vectors give a scalar of NumPy's
    type. Subclasses count as plain arrays.

    ``out``: an array of exactly the result's shape that receives the result, cast by the ``same_kind`` rule. It may
    overlap the operands, and be of any strides and byte order. It may be given by position, as to ``numpy.matmul``.

    ``precision`` promises an error, not instructions: "standard" is the classical bound in the dtype's own roundoff;
    "highest" computes float16, bfloat16, float32 and complex64 in float64 or complex128 and rounds once.
    ``algorithm="strassen"`` takes fewer multiplications where the product is large enough to gain by it, with a wider,
    normwise error bound, which ``plan`` tells; float32 and float64 have it.

    Arrays on a GPU, of PyTorch, CuPy, JAX or whatever speaks DLPack or CUDA's array interface, are multiplied there, on the
    caller's current stream, and the answer is of the library of ``a``: float32 and float64, on one GPU. The call returns
    when the work is asked for, and nothing waits. No gradient is recorded.

    ``device`` is for arrays in the host's memory: "cuda" (as many GPUs as pay), "cuda:1" or "cuda:0,1" multiply them there,
    block by block, as ``multiply`` does, also where they are larger than a GPU's memory; in float32 or float64.

    Raises ShapeError (k or batch mismatch, a scalar operand, wrong ``out``), DTypeError, OperandError (no usable matrix, or
    operands that lie apart), UsageError (a ``precision`` or ``algorithm`` that is not known), MemoryLimitError (a GPU's).

    >>> import numpy as np, tilewright as tw
    >>> a = np.arange(6, dtype=np.float32).reshape(2, 3)
    >>> tw.matmul(a, a.T)
    array([[ 5., 14.],
           [14., 50.]], dtype=float32)
    """
    if precision == "standard" and algorithm == "classical" and device is None:
        result = _short(a, b, out)
        if result is not None:
            return result
    if is_on_gpu(a, b, out):
        if device is not None:
            raise UsageError(f"device {device!r}: these operands are on a GPU, and are multiplied there")
        return gpu_matmul(a, b, out, precision, algorithm)
    return _matmul(a, b, out, precision, algorithm, device)


def _matmul(a: Any, b: Any, out: np.ndarray | None, precision: str, algorithm: str, device: str | None = None) -> Any:
    """The long way, which every product can go."""
    x, y = admit(a, "a", by_numpy=True), admit(b, "b", by_numpy=True)
    recipe = _recipe(x.shape, y.shape, (x.dtype, x.dtype.num), (y.dtype, y.dtype.num), precision, algorithm)
    target = None if out is None else admit_out(out, recipe.shapes.result, recipe.dtype, by_numpy=True)
    x, y = native(x, recipe.compute), native(y, recipe.compute)
    direct = target is not None and recipe.dtype == recipe.compute and _can_write(target, recipe.compute, x, y)
    c = target if direct else np.empty(recipe.shapes.result, recipe.made)
    assert c is not None
    if device in (None, "cpu"):
        threads, bands = recipe.sharing()
        short = _short_way(recipe.kernel, recipe.compute) if threads == 1 else express.never
        product = functools.partial(_prepared, recipe.kernel, recipe.compute, threads)
    else:
        bands, short, product = 1, express.never, functools.partial(_on_gpus, recipe, device)
    multiply(short, product, bands, *as_matrices(recipe.shapes, x, y, c))
    if target is not None:
        if not direct:
            with np.errstate(all="ignore"):  # a narrower dtype may overflow to infinity
                np.copyto(target, _rounded(c, recipe.dtype), casting="same_kind")
        return out
    result = _rounded(c, recipe.dtype)
    return result if result.ndim else result[()]


def _on_gpus(recipe: _Recipe, device: str | None) -> Product:
    """What multiplies matrices of the host on ``device``."""
    from .streaming.run import (
        multiply as stream,  # most programs never need it, and the first call should not wait for it
    )

    if recipe.algorithm != "classical":
        raise UsageError(f"algorithm {recipe.algorithm!r}: GPUs have the classical one")
    if recipe.compute.name not in stream.DTYPES:
        raise DTypeError(f"dtype {recipe.compute}: on a GPU it must be {' or '.join(stream.DTYPES)}")

    def product(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        stream.multiply(a, b, c, device=device)

    return product


def gemm(alpha: complex, a: Any, b: Any, beta: complex, c: np.ndarray) -> np.ndarray:
    """C ← α·A·B + β·C in place, as BLAS means it; returns ``c``.

    ``a`` is (m, k), ``b`` is (k, n), ``c`` a writeable (m, n) array of a dtype that the product casts to by the
    ``same_kind`` rule. With ``beta`` 0 C is not read: NaN in it does not survive. With ``alpha`` or k 0 A and B are not
    read. Otherwise NaN and infinity propagate, without a warning. ``c`` may overlap the operands. ``alpha`` is taken in
    the dtype of A·B and ``beta`` in C's; integers and bool take only factors that they can represent, so not 0.5.

    Raises ShapeError, DTypeError, OperandError, UsageError (``alpha`` or ``beta`` is no number).

    >>> import numpy as np, tilewright as tw
    >>> c = np.ones((2, 2))
    >>> tw.gemm(2.0, np.eye(2), np.eye(2), 1.0, c)
    array([[3., 1.],
           [1., 3.]])
    """
    x, y = admit(a, "a", by_numpy=True), admit(b, "b", by_numpy=True)
    for name, array in (("a", x), ("b", y)):
        if array.ndim != 2:
            raise ShapeError(f"{name} is {array.shape}: gemm takes matrices; matmul takes vectors and batches")
    shapes = layout(x.shape, y.shape)
    dtype = promoted(x.dtype, y.dtype)
    target = admit_out(c, shapes.result, dtype, "c", by_numpy=True)
    with np.errstate(all="ignore"):
        s, t = factor("alpha", alpha, dtype, target), factor("beta", beta, target.dtype, target)
        if s == 0 or shapes.k == 0:
            _scale(target, t)
        elif s == 1 and t == 0:
            matmul(x, y, out=target)
        elif not (s == 1 and t == 1 and _added(x, y, target)):
            _combine(s, x, y, t, target)
    return c


def plan(a: Any, b: Any, /, *, precision: str = "standard", algorithm: str = "classical") -> Plan | GpuPlan:
    """What ``matmul`` would run, and why; nothing is multiplied. Arrays, or just their shapes, which count as float64.

    A tuple of whole numbers is a shape here. Raises what ``matmul`` raises.

    >>> import tilewright as tw
    >>> print(tw.plan((3, 4), (4, 5)).problem)
    (3×4) · (4×5) float64
    """
    if is_on_gpu(a, b):
        return gpu_plan(a, b, precision, algorithm)
    shapes, dtypes = [], []
    for name, value in (("a", a), ("b", b)):
        if isinstance(value, tuple) and all(isinstance(size, numbers.Integral) for size in value):
            shapes.append(_given_shape(name, value))
            dtypes.append(np.dtype(np.float64))
        else:
            array = admit(value, name, by_numpy=True)
            shapes.append(array.shape)
            dtypes.append(array.dtype)
    problem = _problem(layout(*shapes), promoted(*dtypes), precision)
    return make_plan(problem, algorithm=algorithm)


def _given_shape(name: str, sizes: tuple[Any, ...]) -> tuple[int, ...]:
    shape = tuple(int(size) for size in sizes)
    if any(size < 0 for size in shape):
        raise ShapeError(f"{name} is {shape}: a size must be at least 0")
    return shape


def _problem(shapes: Layout, dtype: np.dtype, precision: str) -> Problem:
    return Problem(shapes.m, shapes.n, shapes.k, dtype.name, math.prod(shapes.batch), precision=precision)


@dataclass(frozen=True)
class _Recipe:
    """What the shapes and dtypes of operands decide, kept from call to call. Only the number of threads may change.

    ``made`` is ``compute`` as an array has it that is made for the product: of equal dtypes, the one that NumPy would take.
    """

    shapes: Layout
    dtype: np.dtype
    compute: np.dtype
    made: np.dtype
    problem: Problem
    algorithm: str
    kernel: Kernel
    worth_sharing: bool

    def sharing(self) -> tuple[int, int]:
        """Threads for each product, and bands of a batch: now, as the limit is now."""
        if not self.worth_sharing:
            return 1, 1
        plan_ = make_plan(self.problem, algorithm=self.algorithm)
        return plan_.threads, plan_.bands


@functools.lru_cache(maxsize=1024)
def _recipe(
    a: tuple[int, ...],
    b: tuple[int, ...],
    a_kind: tuple[np.dtype, int],
    b_kind: tuple[np.dtype, int],
    precision: str = "standard",
    algorithm: str = "classical",
) -> _Recipe:
    """Each dtype comes with its number, which tells equal ones apart: int64 is two, and the scalars of each have a type."""
    shapes = layout(a, b)
    dtype = promoted(a_kind[0], b_kind[0])
    problem = _problem(shapes, dtype, precision)
    plan_ = make_plan(problem, algorithm=algorithm)
    worth_sharing = problem.flops >= 4 * WORK_PER_THREAD or problem.bytes_least >= 2 * BYTES_PER_THREAD
    compute = np.dtype(plan_.compute)
    made = dtype if dtype == compute else compute
    return _Recipe(shapes, dtype, compute, made, problem, algorithm, plan_.kernel, worth_sharing)


@functools.lru_cache(maxsize=256)
def _prepared(kernel: Kernel, dtype: np.dtype, threads: int, add: bool = False) -> Product:
    return runner(kernel, dtype, threads=threads, add=add)


@functools.cache
def _short_way(kernel: Kernel, dtype: np.dtype) -> express.Short:
    """The short way, which this dtype goes too from now on, where its small products are planned to."""
    global _short
    if kernel is numpy_product:
        return _by_numpy
    if kernel is express.KERNEL:
        _short = express.learn(dtype, 2 * WORK_PER_THREAD)
    return _short


def _by_numpy(a: np.ndarray, b: np.ndarray, c: np.ndarray, *_: bool) -> np.ndarray:
    """A whole batch at once."""
    numpy_product.function(a, b, c)
    return c


def _can_write(target: np.ndarray, compute: np.dtype, *operands: np.ndarray) -> bool:
    """Whether the kernel may write the caller's array itself: its dtype, native, aligned, apart from the operands."""
    if target.dtype != compute or not target.dtype.isnative or not target.flags.aligned:
        return False
    return not any(np.may_share_memory(target, x) for x in operands)


def _rounded(c: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if c.dtype == dtype:
        return c
    if dtype.kind == "b":
        return c != 0
    with np.errstate(over="ignore"):  # a float16 product may overflow to infinity, as numpy's does
        return c.astype(dtype)


def _scale(c: np.ndarray, beta: np.ndarray) -> None:
    if beta == 0:
        c[...] = 0
    elif beta != 1:
        np.multiply(c, beta, out=c)


def _added(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> bool:
    """C += A·B in one pass, without a product beside C; False, and nothing done, where no kernel can."""
    recipe = _recipe(a.shape, b.shape, (a.dtype, a.dtype.num), (b.dtype, b.dtype.num))
    kernel = _adding(recipe)
    if kernel is None or recipe.dtype != recipe.compute or c.dtype != recipe.dtype or not c.size:
        return False
    a, b = native(a, recipe.compute), native(b, recipe.compute)
    if not _can_write(c, recipe.compute, a, b):
        return False
    _prepared(kernel, recipe.compute, recipe.sharing()[0], True)(a, b, c)
    return True


@functools.lru_cache(maxsize=1024)
def _adding(recipe: _Recipe) -> Kernel | None:
    """The planned kernel, if it adds. Where it does not and C is large, beside the operands and in itself, one that does."""
    m, n, k = recipe.problem.m, recipe.problem.n, recipe.problem.k
    if recipe.kernel.adds:
        return recipe.kernel
    if recipe.kernel in (express.KERNEL, numpy_product) or m * n <= k * (m + n):
        return None
    return adding_kernel(recipe.compute.name)


def _combine(alpha: np.ndarray, a: np.ndarray, b: np.ndarray, beta: np.ndarray, c: np.ndarray) -> None:
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
            product = product * alpha
        if beta != 0:
            product = product + (band if beta == 1 else band * beta)
        np.copyto(band, product, casting="same_kind")
