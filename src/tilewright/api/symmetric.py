"""Products that are symmetric: of a matrix and its transpose, and others of which the caller knows it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Unpack, overload

from ..cpu.symmetric import check_square, product_of_complex, run_triangle
from ..errors import ShapeError, UsageError
from ..gpu.arrays.host_libraries import host_library
from ..gpu.arrays.libraries import is_of_a_library, is_on_gpu
from ..product.operands import admit
from .matmul import matmul

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from ..product.array_types import ArrayT, GramOptions, Operand, OutT, Path, ScalarT


@overload
def gram(
    a: NDArray[ScalarT], /, out: None = None, *, dtype: None = None, **options: Unpack[GramOptions]
) -> NDArray[ScalarT]: ...
@overload
def gram(a: NDArray[Any], /, out: None = None, *, dtype: DTypeLike, **options: Unpack[GramOptions]) -> NDArray[Any]: ...
@overload
def gram(a: ArrayT, /, out: None = None, *, dtype: None = None, **options: Unpack[GramOptions]) -> ArrayT: ...
@overload
def gram(
    a: ArrayLike | Path, /, out: None = None, *, dtype: DTypeLike | None = None, **options: Unpack[GramOptions]
) -> NDArray[Any]: ...
@overload
def gram(
    a: Operand | Path, /, out: OutT, *, dtype: DTypeLike | None = None, **options: Unpack[GramOptions]
) -> OutT: ...
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
    """The Gram matrix of the columns of ``a``: Aᴴ·A, or of its rows: A·Aᴴ. Matrix by matrix for a batch.

    The result equals its transpose in every bit, with ``conjugate`` its conjugate transpose, and then has a real
    diagonal. One triangle of it is computed, from 64 rows on, and copied to the other one while it is in a cache.
    ``a`` and ``out`` may be paths of files, and matrices larger than memory, as in ``multiply``: then ``a`` is read
    block by block, once if the result fits into ``memory``.

    Parameters
    ----------
    a : array of shape (…, m, n), or path
        The matrix, or a batch of them. long double and Python objects are not accepted.
    out : array of shape (…, n, n) or (…, m, m), or path, optional
        Receives the result, cast by the ``same_kind`` rule, and is returned. A file appears when it is complete.
    rows : bool, default: False
        Whether to multiply rows: A·Aᴴ.
    conjugate : bool, default: True
        Whether to conjugate: without it the result is Aᵀ·A, or A·Aᵀ.
    precision : str or float, default: "standard"
        The error that is promised: see ``matmul``. Products that are read block by block have "standard" alone.
    center : bool, default: False
        Whether to subtract the mean of each column (with ``rows`` of each row), block by block.
    ddof : int, optional
        Divides by m − ``ddof``. With ``center`` and 1 the result is the covariance of the columns, in one pass and
        without cancellation.
    memory : int or str, optional
        The most memory that the call may add to this process: bytes, or a text such as "4GiB".
    dtype : dtype or str, optional
        The dtype of the result, if not that of the operands: such as "float64" for integers.
    overwrite : bool, default: False
        Whether an existing file ``out`` is replaced when the result is complete. Otherwise it is refused.

    Returns
    -------
    array of shape (…, n, n), or (…, m, m) with ``rows``
        The Gram matrix, of the library of ``a``; ``out`` itself if it was given. Integers wrap around.

    Raises
    ------
    ShapeError
        Less than two axes, or an ``out`` of another shape.
    TilewrightError
        What ``matmul`` and ``multiply`` raise.

    Notes
    -----
    ``memory``, ``dtype``, ``center`` and ``ddof`` are for matrices of two axes on the host.

    ``matmul(a.T, a)`` computes one triangle, too, where both operands are the same memory. Arrays of other
    libraries on the host have that product. So have those on a GPU: real ones of 64 rows or more, of which kernels
    of Hopper compute one triangle, and others all of C. Complex arrays on a GPU have a general product.

    Examples
    --------
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
    a: Operand,
    beta: complex,
    c: ArrayT,
    *,
    transposed: bool = False,
    conjugate: bool = False,
    lower: bool | None = None,
) -> ArrayT:
    """C ← α·A·Aᵀ + β·C in place, as BLAS means ``syrk``, or with ``conjugate`` ``herk``: α·A·Aᴴ + β·C.

    Parameters
    ----------
    alpha : number
        The factor α; real with ``conjugate``.
    a : array of shape (n, k), or (k, n) with ``transposed``
        The matrix, of NumPy.
    beta : number
        The factor β; real with ``conjugate``. With 0 C is not read.
    c : array of shape (n, n)
        Receives the result, cast by the ``same_kind`` rule, and is returned.
    transposed : bool, default: False
        Whether the product is Aᵀ·A, or Aᴴ·A.
    conjugate : bool, default: False
        Whether to conjugate the transposed factor. The diagonal of C then becomes real.
    lower : bool, optional
        The triangle of C, with the diagonal, that is read and written: the lower or the upper one. With None C must
        be symmetric (Hermitian with ``conjugate``): its lower triangle is read, unless ``beta`` is 0, and both are
        written.

    Returns
    -------
    array of shape (n, n)
        ``c`` itself.

    Raises
    ------
    ShapeError
        An ``a`` that is no matrix, or a ``c`` of another shape.
    DTypeError
        A dtype that cannot be multiplied, or cannot be cast to that of ``c``.
    OperandError
        No usable matrix, or a ``c`` that is read-only.
    UsageError
        ``alpha`` or ``beta`` is not a number, or not real with ``conjugate``.

    Examples
    --------
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
    alpha: complex,
    a: Operand,
    b: Operand,
    beta: complex,
    c: ArrayT,
    *,
    conjugate: bool = False,
    lower: bool | None = None,
) -> ArrayT:
    """C ← α·A·B + β·C in place where the caller knows that A·B is symmetric: only one triangle is computed.

    MKL and BLAS 3.12 have it as ``gemmt`` and ``gemmtr``. If A·B is not symmetric, the triangle that is computed is
    right all the same: with ``lower`` true or false this is a product of which one half is wanted.

    Parameters
    ----------
    alpha : number
        The factor α; real with ``conjugate``.
    a : array of shape (n, k)
        The left operand, of NumPy.
    b : array of shape (k, n)
        The right operand.
    beta : number
        The factor β; real with ``conjugate``. With 0 C is not read.
    c : array of shape (n, n)
        Receives the result, cast by the ``same_kind`` rule, and is returned.
    conjugate : bool, default: False
        Whether A·B is Hermitian. The diagonal of C then becomes real.
    lower : bool, optional
        The triangle of C, with the diagonal, that is read and written: the lower or the upper one. With None C must
        be symmetric (Hermitian with ``conjugate``): its lower triangle is read, unless ``beta`` is 0, and both are
        written.

    Returns
    -------
    array of shape (n, n)
        ``c`` itself.

    Raises
    ------
    ShapeError
        A mismatch of k, a product that is not square, or a ``c`` of another shape.
    DTypeError
        A dtype that cannot be multiplied, or cannot be cast to that of ``c``.
    OperandError
        No usable matrix, or a ``c`` that is read-only.
    UsageError
        ``alpha`` or ``beta`` is not a number, or not real with ``conjugate``.

    Examples
    --------
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
