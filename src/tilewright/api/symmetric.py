"""Products that are symmetric: of a matrix and its transpose, and others of which the caller knows it."""

from __future__ import annotations

import os
from typing import Any

from ..cpu.symmetric import check_square, product_of_complex, run_triangle
from ..errors import ShapeError, UsageError
from ..gpu.arrays.host_libraries import host_library
from ..gpu.arrays.libraries import is_of_a_library, is_on_gpu
from ..product.operands import admit
from .matmul import matmul


def gram(
    a: Any,
    /,
    out: Any = None,
    *,
    rows: bool = False,
    conjugate: bool = True,
    precision: str | float = "standard",
    center: bool = False,
    ddof: int | None = None,
    memory: float | str | None = None,
    dtype: Any = None,
    overwrite: bool = False,
) -> Any:
    """The Gram matrix of the columns of ``a``: Aᴴ·A, or of its rows with ``rows``: A·Aᴴ. Matrix by matrix for a batch.

    ``a`` is (…, m, n), the result (…, n, n), or (…, m, m) with ``rows``; dtypes, ``out`` and ``precision`` are those of
    ``matmul``, but for long double and Python objects. Without ``conjugate`` it is Aᵀ·A, or A·Aᵀ. Integers wrap around.

    The result equals its transpose in every bit, with ``conjugate`` its conjugate transpose, and then has a real diagonal.
    One triangle of it is computed, from 64 rows on, and copied to the other one while it is in a cache; so is
    ``matmul(a.T, a)``, where both operands are the same memory. Arrays of other libraries on the host have that product. So
    have those on a GPU: real ones of 64 rows or more, of which kernels of Hopper compute one triangle, and others all of C;
    complex ones have a general product.

    ``a`` and ``out`` may be paths of files, and matrices larger than memory, as in ``multiply``: then ``a`` is read block
    by block, once if the result fits into ``memory``, and a file ``out`` appears when it is complete; an existing one is
    refused without ``overwrite``. ``dtype`` is that of the result, such as "float64" for integers. ``center`` subtracts the
    mean of each column (with ``rows`` of each row), block by block, and ``ddof`` divides by m − ``ddof``: with 1 it is the
    covariance of the columns, in one pass and without cancellation. ``memory``, ``dtype``, ``center`` and ``ddof`` are for
    matrices of two axes on the host, and "standard" precision.

    Raises ShapeError for less than two axes, and what ``matmul`` and ``multiply`` raise.

    >>> import numpy as np, tilewright as tw
    >>> tw.gram(np.array([[1., 2.], [3., 4.]]))
    array([[10., 14.],
           [14., 20.]])
    >>> tw.gram(np.array([[1j, 2.]]), rows=True)
    array([[5.+0.j]])
    """
    by_blocks = center or any(option is not None for option in (ddof, memory, dtype)) or overwrite
    if (
        by_blocks
        or isinstance(a, (str, os.PathLike))
        or isinstance(out, (str, os.PathLike))
        or hasattr(a, "fingerprint")
    ):
        if precision != "standard":
            raise UsageError(f"precision {precision!r}: a Gram matrix of blocks has only 'standard'; see dtype")
        from ..large.gram import gram_of_file  # imported only here: it reads files

        options = {"memory": memory, "dtype": dtype, "center": center, "ddof": ddof, "overwrite": overwrite}
        return gram_of_file(a, out, rows=rows, conjugate=conjugate, **options)
    is_of_library = is_of_a_library(a, out)
    x = a if is_of_library else admit(a, "a")
    if x.ndim < 2:
        raise ShapeError(f"a is {tuple(x.shape)}: gram takes matrices, of two axes or more")
    if is_of_library:
        return _of_library(x, out, rows, conjugate, precision)
    transposed = x.swapaxes(-1, -2)
    left, right = (x, transposed) if rows else (transposed, x)
    if x.dtype.kind != "c":
        return matmul(left, right, out, precision=precision)
    return product_of_complex(left, right, out, rows, conjugate, precision)


def _of_library(a: Any, out: Any, rows: bool, conjugate: bool, precision: str | float) -> Any:
    """The Gram matrix of an array of another library, by that library's own views."""
    if out is not None:
        c = _of_library(a, None, rows, conjugate, precision)
        out[...] = c
        return out
    is_complex = "complex" in str(a.dtype)
    library = None if is_on_gpu(a) else host_library(a)
    if library is not None and is_complex and not getattr(a, "requires_grad", False):
        return library.answer(gram(library.array(a, "a"), rows=rows, conjugate=conjugate, precision=precision), a, a)
    adjoint = a.mT if hasattr(a, "mT") else a.swapaxes(-1, -2)
    if conjugate and is_complex:
        adjoint = adjoint.conj()
    return matmul(a, adjoint, precision=precision) if rows else matmul(adjoint, a, precision=precision)


def syrk(
    alpha: complex,
    a: Any,
    beta: complex,
    c: Any,
    *,
    transposed: bool = False,
    conjugate: bool = False,
    lower: bool | None = None,
) -> Any:
    """C ← α·A·Aᵀ + β·C in place, as BLAS means ``syrk``, or with ``conjugate`` ``herk``: α·A·Aᴴ; returns ``c``.

    ``a`` is (n, k), with ``transposed`` (k, n) and the product Aᵀ·A or Aᴴ·A; ``c`` is (n, n), a writeable array of a dtype
    to which the product casts by the ``same_kind`` rule. With ``lower`` true or false only that triangle of C, with the
    diagonal, is read and written. With None C must be symmetric (Hermitian with ``conjugate``): its lower triangle is read,
    unless ``beta`` is 0, and both are written. With ``conjugate`` α and β are real, and the diagonal becomes real.

    Raises ShapeError, DTypeError, OperandError, UsageError as ``gemm``.

    >>> import numpy as np, tilewright as tw
    >>> tw.syrk(2.0, np.array([[1.], [2.]]), 0.0, np.zeros((2, 2)), lower=True)
    array([[2., 0.],
           [4., 8.]])
    """
    x = admit(a, "a")
    if x.ndim != 2:
        raise ShapeError(f"a is {x.shape}: syrk takes a matrix")
    x = x.T if transposed else x
    y = x.T
    if conjugate and x.dtype.kind == "c":
        x, y = (x.conj(), y) if transposed else (x, y.conj())
    run_triangle(alpha, x, y, beta, c, lower, "hermitian" if conjugate else "gram")
    return c


def gemmt(
    alpha: complex, a: Any, b: Any, beta: complex, c: Any, *, conjugate: bool = False, lower: bool | None = None
) -> Any:
    """C ← α·A·B + β·C in place where the caller knows that A·B is symmetric, or with ``conjugate`` Hermitian: only one
    triangle is computed; returns ``c``. MKL and BLAS 3.12 have it as ``gemmt`` and ``gemmtr``.

    ``a`` is (n, k), ``b`` (k, n) and ``c`` (n, n); the other arguments are those of ``syrk``. If A·B is not symmetric, the
    triangle that is computed is right all the same: with ``lower`` true or false this is a product of which one half is
    wanted.

    Raises ShapeError, DTypeError, OperandError, UsageError as ``gemm``.

    >>> import numpy as np, tilewright as tw
    >>> a, weights = np.array([[1., 2.], [3., 4.]]), np.array([[1.], [10.]])
    >>> tw.gemmt(1.0, a, weights * a.T, 0.0, np.empty((2, 2)))
    array([[ 41.,  83.],
           [ 83., 169.]])
    """
    x, y = admit(a, "a"), admit(b, "b")
    check_square(x, y)
    run_triangle(alpha, x, y, beta, c, lower, "hermitian" if conjugate else "symmetric")
    return c


__all__ = ["gemmt", "gram", "syrk"]
