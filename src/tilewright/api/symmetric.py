"""Symmetric products: a matrix times its transpose, and products that the caller declares to be symmetric."""

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
    """The Gram matrix of the columns of ``a``: Aᴴ·A; or of its rows: A·Aᴴ. If ``a`` is a batch, the result has a Gram
    matrix for each matrix of the batch.

    The result equals its transpose in every bit. With ``conjugate`` the result equals its conjugate transpose, and has
    a real diagonal. If the result has 64 rows or more, only one triangle is computed; each part of this triangle is
    copied to the other triangle while the part is in a cache.

    ``a`` and ``out`` may also be paths of files, or matrices larger than memory, as in ``multiply``. A file, or a
    matrix larger than memory, is read block by block, and only once if the result fits into ``memory``.

    Parameters
    ----------
    a : array of shape (…, m, n), or path
        The matrix, or a batch of matrices. long double and Python objects are not accepted.
    out : array of shape (…, n, n) or (…, m, m), or path, optional
        Receives the result, cast by NumPy's ``same_kind`` rule, and is returned. If ``out`` is a path, the file appears
        when it is complete.
    rows : bool, default: False
        Whether to multiply rows: A·Aᴴ.
    conjugate : bool, default: True
        Whether to conjugate the transposed factor. If False, the result is Aᵀ·A, or A·Aᵀ with ``rows``.
    precision : str or float, default: "standard"
        The guaranteed error bound: see ``matmul``. If ``a`` is read block by block, only "standard" is possible.
    center : bool, default: False
        Whether to subtract the mean of each column, or with ``rows`` of each row. The mean is subtracted block by
        block.
    ddof : int, optional
        If ``ddof`` is given, the result is divided by m − ``ddof``. With ``center=True`` and ``ddof=1`` the result is
        the covariance of the columns, computed in one pass and without cancellation.
    memory : int or str, optional
        The most memory that the call may add to this process: bytes, or a text such as "4GiB".
    dtype : dtype or str, optional
        The dtype of the result, if not that of the operands: such as "float64" for integers.
    overwrite : bool, default: False
        Whether to replace an existing file ``out`` when the result is complete. If False, such a file is an error.

    Returns
    -------
    array of shape (…, n, n), or (…, m, m) with ``rows``
        The Gram matrix, as an array of the library of ``a``; or ``out`` itself if it was given. Integers wrap around.

    Raises
    ------
    ShapeError
        ``a`` has fewer than two axes, or ``out`` has another shape.
    TilewrightError
        Any error that ``matmul`` or ``multiply`` raises.

    See Also
    --------
    syrk : Computes α·A·Aᵀ + β·C in place.
    gemmt : Computes a product that is known to be symmetric.
    matmul : Also detects a matrix times its own transpose.
    tilewright.torch.gram : The Gram matrix of a tensor, with gradients.

    Notes
    -----
    The options ``memory``, ``dtype``, ``center`` and ``ddof`` need a matrix of two axes on the host.

    ``matmul(a.T, a)`` also computes only one triangle, if both operands are the same memory. For arrays of other
    libraries on the host, and for real arrays on a GPU, ``gram`` calls ``matmul`` with ``a`` and its transpose. On a
    Hopper GPU, kernels compute one triangle of a result of 64 rows or more; other GPUs compute all of C. For complex
    arrays on a GPU, all elements of the result are computed.

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
    """C ← α·A·Aᵀ + β·C in place, as ``syrk`` in BLAS. With ``conjugate`` the function is ``herk``: C ← α·A·Aᴴ + β·C.

    Parameters
    ----------
    alpha : number
        The factor α. With ``conjugate``, α must be real.
    a : array of shape (n, k), or (k, n) with ``transposed``
        The matrix, a NumPy array.
    beta : number
        The factor β. With ``conjugate``, β must be real. If β is 0, C is not read.
    c : array of shape (n, n)
        Receives the result, cast by NumPy's ``same_kind`` rule, and is returned.
    transposed : bool, default: False
        Whether the product is Aᵀ·A, or with ``conjugate`` Aᴴ·A.
    conjugate : bool, default: False
        Whether to conjugate the transposed factor. With ``conjugate`` the diagonal of C becomes real.
    lower : bool, optional
        The triangle of C, with the diagonal, that is read and written: the lower one if True, the upper one if False.
        If None, both triangles are written, and C must be symmetric, or Hermitian with ``conjugate``; unless ``beta``
        is 0, the lower triangle of C is read.

    Returns
    -------
    array of shape (n, n)
        ``c`` itself.

    Raises
    ------
    ShapeError
        ``a`` is not a matrix, or ``c`` has another shape.
    DTypeError
        A dtype that cannot be multiplied, or that cannot be cast to the dtype of ``c``.
    OperandError
        An operand is not a usable matrix, or ``c`` is read-only.
    UsageError
        ``alpha`` or ``beta`` is not a number, or not real with ``conjugate``.

    See Also
    --------
    gram : Returns the Gram matrix as a new array.
    gemmt : Multiplies two different matrices whose product is symmetric.
    gemm : Computes all of C.

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
    """C ← α·A·B + β·C in place for a product A·B that is known to be symmetric: only one triangle is computed.

    In MKL this function is ``gemmt``, and in BLAS 3.12 ``gemmtr``. If A·B is not symmetric, the computed triangle is
    still right. So with ``lower`` True or False, this function computes one triangle of any square product.

    Parameters
    ----------
    alpha : number
        The factor α. With ``conjugate``, α must be real.
    a : array of shape (n, k)
        The left operand, a NumPy array.
    b : array of shape (k, n)
        The right operand.
    beta : number
        The factor β. With ``conjugate``, β must be real. If β is 0, C is not read.
    c : array of shape (n, n)
        Receives the result, cast by NumPy's ``same_kind`` rule, and is returned.
    conjugate : bool, default: False
        Whether A·B is Hermitian instead of symmetric. With ``conjugate`` the diagonal of C becomes real.
    lower : bool, optional
        The triangle of C, with the diagonal, that is read and written: the lower one if True, the upper one if False.
        If None, both triangles are written, and C must be symmetric, or Hermitian with ``conjugate``; unless ``beta``
        is 0, the lower triangle of C is read.

    Returns
    -------
    array of shape (n, n)
        ``c`` itself.

    Raises
    ------
    ShapeError
        The operands differ in k, the product is not square, or ``c`` has another shape.
    DTypeError
        A dtype that cannot be multiplied, or that cannot be cast to the dtype of ``c``.
    OperandError
        An operand is not a usable matrix, or ``c`` is read-only.
    UsageError
        ``alpha`` or ``beta`` is not a number, or not real with ``conjugate``.

    See Also
    --------
    syrk : Multiplies a matrix by its own transpose.
    gram : Returns the Gram matrix as a new array.
    gemm : Computes all of C.

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
