"""``einsum`` and related functions: sums of products over labelled axes, computed as products of matrices.

A contraction goes through four stages. First, its subscripts are parsed. Second, a plan is made (``plan_einsum``) and
cached. Third, each operand is read once: its diagonals are taken, and labels that no other operand has are summed.
Fourth, ``matmul`` multiplies two operands at a time. The module ``product.contraction`` decides how two operands are
multiplied, ``cpu.contraction`` multiplies the two operands, and ``contraction_plan`` orders the products. Arrays of
other libraries are permuted and reshaped by their own library.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import string
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ..errors import OperandError, ShapeError, UsageError
from ..gpu.arrays.host_libraries import host_library
from ..gpu.arrays.libraries import is_of_a_library, is_on_gpu
from ..product.contraction import Reading, Subscripts, parse_sublists, parse_subscripts, sizes_of, tensordot_axes
from ..product.operands import NUMPY_ONLY_DTYPES, admit, array_or_shape
from ..product.precision import check_words
from .contraction_plan import (
    ContractionPlan,
    einsum_by_numpy,
    labels_of_products,
    order_of_products,
    path_given,
    plan_of_arrays,
    readings_of,
    row_major_strides,
)
from .matmul import matmul

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from ..product.array_types import ArrayT, Operand, OutT, Path, SameT, UnknownDType

# ---- the public calls ------------------------------------------------------------------------------------------------


# Whether NumPy's arrays give an array or a scalar follows from the subscripts, which a checker cannot read.
@overload
def einsum(
    subscripts: str,
    /,
    *operands: NDArray[Any],
    out: None = None,
    optimize: Any = True,
    precision: str | float = "standard",
    memory: float | str | None = None,
) -> Any: ...
@overload
def einsum(
    subscripts: str,
    /,
    *operands: ArrayT,
    out: None = None,
    optimize: Any = True,
    precision: str | float = "standard",
    memory: float | str | None = None,
) -> ArrayT: ...
@overload
def einsum(
    *operands: Any,
    out: None = None,
    optimize: Any = True,
    precision: str | float = "standard",
    memory: float | str | None = None,
) -> Any: ...
@overload
def einsum(
    *operands: Any,
    out: OutT,
    optimize: Any = True,
    precision: str | float = "standard",
    memory: float | str | None = None,
) -> OutT: ...
def einsum(
    *operands: Any,
    out: Any = None,
    optimize: Any = True,
    precision: str | float = "standard",
    memory: float | str | None = None,
) -> Any:
    """The sum of products that subscripts describe, with the semantics of ``numpy.einsum``.

    In ``einsum("ij,jk->ik", a, b)`` each character is the label of an axis. Labels that are not in the output are
    summed. Without ``->`` the output has the labels that occur once, in alphabetical order. ``...`` stands for any
    number of further axes; these axes broadcast, and so does any axis of length 1. If an operand has the same label
    twice, the diagonal of these two axes is taken. Any character can be a label. Instead of text, lists of labels may
    be given, as in ``einsum(a, [0, 1], b, [1, 2], [0, 2])``.

    Parameters
    ----------
    *operands : str, then arrays; or arrays and lists of labels in turn
        The subscripts and the arrays. The arrays may be of NumPy or another library, on the host or a GPU.
    out : array, optional
        Receives the result, cast by NumPy's ``same_kind`` rule, and is returned. The array may have any strides and
        byte order.
    optimize : bool or str or path, default: True
        The order in which pairs of operands are multiplied: a path as ``numpy.einsum_path`` or
        ``opt_einsum.contract_path`` returns it. A bool or the name of an optimiser is accepted and ignored.
    precision : str or float, default: "standard"
        The guaranteed error bound: see ``matmul``. The bound holds for each product of two operands. With "highest",
        intermediate results also have the wider dtype.
    memory : int or str, optional
        The most memory that the call may add to this process: bytes, or a text such as "4GiB". The notes below say
        which memory is counted.

    Returns
    -------
    array, or scalar
        The contraction, or ``out`` itself if it was given. The result never shares memory with an operand. As in NumPy,
        the axes of the result may have any order in memory: the order that needs the fewest copies. A result without
        axes is a NumPy scalar if the operands are NumPy arrays.

    Raises
    ------
    UsageError
        The subscripts or the ``precision`` are invalid.
    ShapeError
        Axes with the same label have different lengths, or ``out`` has another shape.
    DTypeError
        A dtype that cannot be multiplied, or that cannot be cast to the dtype of ``out``.
    OperandError
        An operand is not a usable array, or the operands are on different devices.
    MemoryLimitError
        Even the smallest slices need more than ``memory``.

    See Also
    --------
    plan_einsum : Shows the order of products and the kernels.
    tensordot : Sums over axes that are given as numbers.
    multi_dot : Multiplies a chain of matrices.
    tilewright.torch.einsum : Contracts tensors, also inside ``torch.autocast``.

    Notes
    -----
    The dtypes are those of ``matmul``, promoted over all operands. Integers wrap around; for bool the sums and products
    are logical. Intermediate results of float16 and bfloat16 are float32. NumPy computes contractions of Python objects
    and of long double. Arrays of other libraries are permuted by their library and multiplied by ``matmul``; the
    contraction has gradients if ``matmul`` of these arrays has gradients.

    If there are three operands or more, two of them are multiplied at a time. The order of these products is found by
    ``opt_einsum`` if it is installed, and otherwise by ``numpy.einsum_path``. Each product of two operands is computed
    as a product of matrices or of batches of matrices. An operand is read in place, or copied in pieces of at most 32
    MiB; ``plan_einsum`` shows which operands are copied. A result of more than 32 MiB does not own its memory: when its
    last reference is deleted, the memory is cached for later results.

    ``memory`` bounds the intermediate results and copies of NumPy arrays together. ``memory`` does not count the
    result, the workspace of kernels, and the copies in float32 that ``matmul`` makes of bool and of 16-bit floats. To
    keep the bound, the axes of some labels are cut into slices. The sums of the slices are added in a fixed order, so
    the bits do not depend on threads.

    Examples
    --------
    >>> import numpy as np, tilewright as tw
    >>> a, b = np.arange(6.0).reshape(2, 3), np.ones((3, 4))
    >>> tw.einsum("ij,jk->k", a, b)
    array([15., 15., 15., 15.])
    >>> tw.einsum("ii", np.eye(3))
    np.float64(3.0)
    """
    short = None
    plain = out is None and memory is None and precision == "standard" and isinstance(optimize, bool | str)
    if plain and operands and type(operands[0]) is str:
        short = _short_key(operands)
        if short is not None and (way := _short_ways.get(short)) is not None:
            return way(*operands[1:])
    subscripts, arrays = _parsed(operands)
    return _contract(subscripts, arrays, out, precision, memory, short, optimize)


def plan_einsum(
    *operands: Any,
    out: Any = None,
    optimize: Any = True,
    precision: str | float = "standard",
    memory: float | str | None = None,
) -> ContractionPlan:
    """The plan of the call ``einsum`` with these arguments. Nothing is multiplied.

    Parameters
    ----------
    *operands : str, then arrays or tuples of int; or these and lists of labels in turn
        The subscripts and NumPy arrays. A tuple is a shape, and stands for a float64 array of that shape.
    out : array, optional
        The array that would receive the result.
    optimize : bool or str or path, default: True
        The order in which pairs of operands are multiplied: see ``einsum``.
    precision : str or float, default: "standard"
        The guaranteed error bound: see ``matmul``.
    memory : int or str, optional
        The most memory that the call may add to this process: bytes, or a text such as "4GiB".

    Returns
    -------
    ContractionPlan
        The same plan that ``einsum`` makes and runs. ``print`` shows the order of the products. For each product,
        ``print`` shows the subscripts, the size as a product of matrices, the operands that are copied, and the kernel.

    Raises
    ------
    OperandError
        An operand is an array of another library than NumPy.
    TilewrightError
        Any error that ``einsum`` raises before it multiplies.

    See Also
    --------
    einsum : Runs the plan.
    plan : The plan of a matrix product.
    tilewright.api.contraction_plan.ContractionPlan : The class of the result.

    Examples
    --------
    >>> import tilewright as tw
    >>> p = tw.plan_einsum("ij,jk,kl->il", (10, 20), (20, 5), (5, 300))
    >>> [str(step.subscripts) for step in p.steps], p.operations
    (['ij,jk->ik', 'ik,kl->il'], 32000)
    """
    subscripts, arrays = _parsed(tuple(_array_of_shape(x) for x in operands))
    if is_of_a_library(*arrays, out):
        raise OperandError("plan_einsum plans for NumPy's arrays: pass shapes, as tuples, for those of another library")
    admitted = [_admitted(x, number) for number, x in enumerate(arrays)]
    return plan_of_arrays(subscripts, admitted, out, precision, memory, optimize)


# With all axes summed NumPy's arrays give a scalar.
@overload
def tensordot(
    a: NDArray[Any],
    b: NDArray[Any],
    axes: Any = 2,
    *,
    out: None = None,
    precision: str | float = "standard",
    memory: float | str | None = None,
    overwrite: bool = False,
) -> Any: ...
@overload
def tensordot(
    a: ArrayT,
    b: ArrayT,
    axes: Any = 2,
    *,
    out: None = None,
    precision: str | float = "standard",
    memory: float | str | None = None,
    overwrite: bool = False,
) -> ArrayT: ...
@overload
def tensordot(
    a: Operand | Path,
    b: Operand | Path,
    axes: Any = 2,
    *,
    out: None = None,
    precision: str | float = "standard",
    memory: float | str | None = None,
    overwrite: bool = False,
) -> Any: ...
@overload
def tensordot(
    a: Operand | Path,
    b: Operand | Path,
    axes: Any = 2,
    *,
    out: OutT,
    precision: str | float = "standard",
    memory: float | str | None = None,
    overwrite: bool = False,
) -> OutT: ...
def tensordot(
    a: Any,
    b: Any,
    axes: Any = 2,
    *,
    out: Any = None,
    precision: str | float = "standard",
    memory: float | str | None = None,
    overwrite: bool = False,
) -> Any:
    """The sum of products over axes of ``a`` and ``b``, with the semantics of ``numpy.tensordot``.

    ``a``, ``b`` and ``out`` may also be paths of files, or arrays larger than memory. For files and such arrays, the
    call is ``multiply(a, b, out, axes=axes)``, which writes ``out`` block by block and returns it.

    Parameters
    ----------
    a : array, or path
        The left operand.
    b : array, or path
        The right operand.
    axes : int, or two lists of int, default: 2
        The axes that are summed. A number N means the last N axes of ``a`` and the first N of ``b``. If two lists of
        axes are given, or two axes, each axis of ``a`` is summed together with the axis of ``b`` at the same position.
        With ``axes=0`` the result is the outer product.
    out : array, or path, optional
        Receives the result, cast by NumPy's ``same_kind`` rule, and is returned. If ``out`` is a path, the file appears
        when it is complete.
    precision : str or float, default: "standard"
        The guaranteed error bound: see ``matmul``.
    memory : int or str, optional
        The most memory that the call may add to this process: bytes, or a text such as "4GiB". If ``memory`` is given,
        ``multiply`` computes the product.
    overwrite : bool, default: False
        Whether to replace an existing file ``out`` when the result is complete. If False, such a file is an error.

    Returns
    -------
    array, or scalar
        An array whose axes are first the axes of ``a`` that are not summed, and then those of ``b``; or ``out`` itself
        if it was given. Dtypes are as for ``einsum``.

    Raises
    ------
    ShapeError
        Two axes that are summed together have different lengths, or ``out`` has another shape.
    UsageError
        An operand does not have one of the ``axes``.
    TilewrightError
        Any error that ``einsum`` raises, and for files any that ``multiply`` raises.

    See Also
    --------
    einsum : Names the axes by labels.
    vecdot : Sums over one axis and broadcasts the others.
    multiply : Sums products of files over axes, with further options.

    Examples
    --------
    >>> import numpy as np, tilewright as tw
    >>> tw.tensordot(np.ones((2, 3, 4)), np.ones((4, 3, 5)), axes=([1, 2], [1, 0])).shape
    (2, 5)
    """
    if memory is not None or overwrite or any(_is_stored(x) for x in (a, b, out)):
        from ..large.multiply import multiply  # imported only here: it reads files

        return multiply(a, b, out, axes=axes, memory=memory, overwrite=overwrite, precision=precision)
    a, b = _axes_known(a, "a", 0), _axes_known(b, "b", 0)
    of_a, of_b = tensordot_axes(axes, tuple(a.shape), tuple(b.shape))
    first = list(range(a.ndim))
    second = [of_a[of_b.index(axis)] if axis in of_b else a.ndim + axis for axis in range(b.ndim)]
    rest = [label for label in [*first, *second] if label not in of_a]
    subscripts = _subscripts_of((tuple(first), tuple(second)), tuple(rest), (a.ndim, b.ndim))
    return _contract_two(subscripts, a, b, out, precision)


# Two vectors of NumPy give a scalar.
@overload
def vecdot(
    a: NDArray[Any], b: NDArray[Any], /, out: None = None, *, axis: int = -1, precision: str | float = "standard"
) -> Any: ...
@overload
def vecdot(
    a: ArrayT, b: ArrayT, /, out: None = None, *, axis: int = -1, precision: str | float = "standard"
) -> ArrayT: ...
@overload
def vecdot(
    a: Operand, b: Operand, /, out: None = None, *, axis: int = -1, precision: str | float = "standard"
) -> Any: ...
@overload
def vecdot(a: Operand, b: Operand, /, out: OutT, *, axis: int = -1, precision: str | float = "standard") -> OutT: ...
def vecdot(a: Any, b: Any, /, out: Any = None, *, axis: int = -1, precision: str | float = "standard") -> Any:
    """The dot products of vectors along an axis, as ``numpy.vecdot`` and the array API define them: ``a`` is
    conjugated.

    Parameters
    ----------
    a : array of shape (…, n)
        The left operand; ``axis`` is its axis of length n. The other axes broadcast with those of ``b``.
    b : array of shape (…, n)
        The right operand.
    out : array of shape (…), optional
        Receives the result, cast by NumPy's ``same_kind`` rule, and is returned.
    axis : int, default: -1
        The axis of each operand that is summed.
    precision : str or float, default: "standard"
        The guaranteed error bound: see ``matmul``.

    Returns
    -------
    array of shape (…), or scalar
        The dot products, or ``out`` itself if it was given. Dtypes are as for ``einsum``.

    Raises
    ------
    ShapeError
        The operands differ in n, their batches do not broadcast, or an operand is a scalar.
    UsageError
        An operand does not have ``axis``.
    TilewrightError
        Any error that ``einsum`` raises.

    See Also
    --------
    matvec : Multiplies matrices by vectors.
    vecmat : Multiplies vectors by matrices.
    matmul : Multiplies matrices.

    Examples
    --------
    >>> import numpy as np, tilewright as tw
    >>> tw.vecdot(np.array([1j, 2]), np.array([1j, 1]))
    np.complex128(3+0j)
    """
    a, b = _axes_known(a, "a"), _axes_known(b, "b")
    labels = []
    for name, x in (("a", a), ("b", b)):
        core = _axis_of(axis, x, name)
        before = [("axis", place - x.ndim + (place < core)) for place in range(x.ndim) if place != core]
        labels.append([*before[:core], "core", *before[core:]])
    _check_core("n", (a, labels[0].index("core")), (b, labels[1].index("core")))
    batch = max(([label for label in each if label != "core"] for each in labels), key=len)
    subscripts = _subscripts_of(tuple(map(tuple, labels)), tuple(batch), (a.ndim, b.ndim))
    return _contract_two(subscripts, _conjugated(a), b, out, precision)


@overload
def matvec(
    a: UnknownDType, x: NDArray[Any], /, out: None = None, *, precision: str | float = "standard"
) -> NDArray[Any]: ...
@overload
def matvec(
    a: NDArray[Any], x: UnknownDType, /, out: None = None, *, precision: str | float = "standard"
) -> NDArray[Any]: ...
@overload
def matvec(
    a: NDArray[SameT], x: NDArray[SameT], /, out: None = None, *, precision: str | float = "standard"
) -> NDArray[SameT]: ...
@overload
def matvec(
    a: NDArray[Any], x: NDArray[Any], /, out: None = None, *, precision: str | float = "standard"
) -> NDArray[Any]: ...
@overload
def matvec(a: ArrayT, x: ArrayT, /, out: None = None, *, precision: str | float = "standard") -> ArrayT: ...
@overload
def matvec(a: ArrayLike, x: ArrayLike, /, out: None = None, *, precision: str | float = "standard") -> NDArray[Any]: ...
@overload
def matvec(a: Operand, x: Operand, /, out: OutT, *, precision: str | float = "standard") -> OutT: ...
def matvec(a: Any, x: Any, /, out: Any = None, *, precision: str | float = "standard") -> Any:
    """The products of matrices and vectors, like ``numpy.matvec``.

    Parameters
    ----------
    a : array of shape (…, m, n)
        The matrices. Leading axes broadcast with those of ``x``.
    x : array of shape (…, n)
        The vectors.
    out : array of shape (…, m), optional
        Receives the result, cast by NumPy's ``same_kind`` rule, and is returned.
    precision : str or float, default: "standard"
        The guaranteed error bound: see ``matmul``.

    Returns
    -------
    array of shape (…, m)
        The products, or ``out`` itself if it was given. Dtypes are as for ``einsum``.

    Raises
    ------
    ShapeError
        The operands differ in n, their batches do not broadcast, or an operand has too few axes.
    TilewrightError
        Any error that ``einsum`` raises.

    See Also
    --------
    vecmat : Multiplies vectors by matrices.
    vecdot : Multiplies vectors by vectors.
    matmul : Multiplies matrices by matrices.

    Examples
    --------
    >>> import numpy as np, tilewright as tw
    >>> tw.matvec(np.ones((5, 2, 3)), np.ones(3)).shape
    (5, 2)
    """
    a, x = _axes_known(a, "a", 2), _axes_known(x, "x")
    _check_core("n", (a, a.ndim - 1), (x, x.ndim - 1))
    return _contract_two(parse_subscripts("...mn,...n->...m", (a.ndim, x.ndim)), a, x, out, precision)


@overload
def vecmat(
    x: UnknownDType, a: NDArray[Any], /, out: None = None, *, precision: str | float = "standard"
) -> NDArray[Any]: ...
@overload
def vecmat(
    x: NDArray[Any], a: UnknownDType, /, out: None = None, *, precision: str | float = "standard"
) -> NDArray[Any]: ...
@overload
def vecmat(
    x: NDArray[SameT], a: NDArray[SameT], /, out: None = None, *, precision: str | float = "standard"
) -> NDArray[SameT]: ...
@overload
def vecmat(
    x: NDArray[Any], a: NDArray[Any], /, out: None = None, *, precision: str | float = "standard"
) -> NDArray[Any]: ...
@overload
def vecmat(x: ArrayT, a: ArrayT, /, out: None = None, *, precision: str | float = "standard") -> ArrayT: ...
@overload
def vecmat(x: ArrayLike, a: ArrayLike, /, out: None = None, *, precision: str | float = "standard") -> NDArray[Any]: ...
@overload
def vecmat(x: Operand, a: Operand, /, out: OutT, *, precision: str | float = "standard") -> OutT: ...
def vecmat(x: Any, a: Any, /, out: Any = None, *, precision: str | float = "standard") -> Any:
    """The products of vectors and matrices, like ``numpy.vecmat``. The vectors are conjugated.

    Parameters
    ----------
    x : array of shape (…, n)
        The vectors. Leading axes broadcast with those of ``a``.
    a : array of shape (…, n, m)
        The matrices.
    out : array of shape (…, m), optional
        Receives the result, cast by NumPy's ``same_kind`` rule, and is returned.
    precision : str or float, default: "standard"
        The guaranteed error bound: see ``matmul``.

    Returns
    -------
    array of shape (…, m)
        The products, or ``out`` itself if it was given. Dtypes are as for ``einsum``.

    Raises
    ------
    ShapeError
        The operands differ in n, their batches do not broadcast, or an operand has too few axes.
    TilewrightError
        Any error that ``einsum`` raises.

    See Also
    --------
    matvec : Multiplies matrices by vectors.
    vecdot : Multiplies vectors by vectors.
    matmul : Multiplies matrices by matrices.

    Examples
    --------
    >>> import numpy as np, tilewright as tw
    >>> tw.vecmat(np.array([1j]), np.array([[1.0, 2.0]]))
    array([0.-1.j, 0.-2.j])
    """
    x, a = _axes_known(x, "x"), _axes_known(a, "a", 2)
    _check_core("n", (x, x.ndim - 1), (a, a.ndim - 2))
    return _contract_two(parse_subscripts("...n,...nm->...m", (x.ndim, a.ndim)), _conjugated(x), a, out, precision)


@overload
def multi_dot(arrays: Sequence[NDArray[Any]], *, out: None = None, precision: str | float = "standard") -> Any: ...
@overload
def multi_dot(arrays: Sequence[ArrayT], *, out: None = None, precision: str | float = "standard") -> ArrayT: ...
@overload
def multi_dot(arrays: Sequence[Operand], *, out: None = None, precision: str | float = "standard") -> Any: ...
@overload
def multi_dot(arrays: Sequence[Operand], *, out: OutT, precision: str | float = "standard") -> OutT: ...
def multi_dot(arrays: Sequence[Any], *, out: Any = None, precision: str | float = "standard") -> Any:
    """The product of a chain of matrices, in the order that takes the fewest operations, like
    ``numpy.linalg.multi_dot``.

    Parameters
    ----------
    arrays : list of arrays
        Two matrices or more. The first array may be a vector, which counts as a row; the last array may be a vector,
        which counts as a column.
    out : array, optional
        Receives the result, cast by NumPy's ``same_kind`` rule, and is returned.
    precision : str or float, default: "standard"
        The guaranteed error bound: see ``matmul``. The bound holds for each product of two matrices.

    Returns
    -------
    array, or scalar
        The product, or ``out`` itself if it was given. Dtypes are those of ``matmul``.

    Raises
    ------
    ShapeError
        Two neighbouring arrays cannot be multiplied, or an array is neither a matrix nor a vector at an end of the
        chain.
    UsageError
        There are fewer than two arrays.
    TilewrightError
        Any error that ``matmul`` raises.

    See Also
    --------
    matmul : Multiplies two matrices.
    einsum : Also finds the best order of several products.

    Notes
    -----
    The order of the products is found by dynamic programming (Cormen et al., Introduction to Algorithms, 4th ed.,
    14.2).

    Examples
    --------
    >>> import numpy as np, tilewright as tw
    >>> tw.multi_dot([np.ones((10, 100)), np.ones((100, 5)), np.ones((5, 50))]).shape
    (10, 50)
    """
    if not isinstance(arrays, Sequence) and not hasattr(arrays, "shape"):
        raise OperandError(f"arrays is a {type(arrays).__name__}: multi_dot takes a list of arrays")
    chain = [_axes_known(x, f"arrays[{number}]") for number, x in enumerate(arrays)]
    if len(chain) < 2:
        raise UsageError(f"multi_dot takes two arrays or more, got {len(chain)}")
    for number, x in enumerate(chain):
        most = (1, 2) if number in (0, len(chain) - 1) else (2,)
        if x.ndim not in most:
            rule = "a matrix or a vector" if 1 in most else "a matrix: only the first and the last may be vectors"
            raise ShapeError(f"arrays[{number}] is {tuple(x.shape)}: it must be {rule}")
    for number, (x, y) in enumerate(itertools.pairwise(chain)):
        if x.shape[-1] != y.shape[0]:
            raise ShapeError(
                f"arrays[{number}] is {tuple(x.shape)}, arrays[{number + 1}] is {tuple(y.shape)}: the first "
                "must have as many columns as the second has rows"
            )
    sides = [chain[0].shape[0] if chain[0].ndim == 2 else 1, *(x.shape[0] for x in chain[1:])]
    sides.append(chain[-1].shape[-1] if chain[-1].ndim == 2 else 1)
    best = chain_order(tuple(sides))

    def product(first: int, last: int, into: Any = None) -> Any:
        if first == last:
            return chain[first]
        cut = best[first, last]
        return matmul(product(first, cut), product(cut + 1, last), into, precision=precision)

    return product(0, len(chain) - 1, out)


@functools.lru_cache(maxsize=256)
def chain_order(sides: tuple[int, ...]) -> dict[tuple[int, int], int]:
    """Return where to split each part of a chain of matrices, so that the product of the part takes the fewest
    multiply-adds.

    Matrix i has the shape (sides[i], sides[i + 1]). A part is given by the indices of its first and last matrix. For
    each part, the result has the index of the last matrix of the part's first factor (Cormen et al., Introduction to
    Algorithms, 4th ed., 14.2).

    >>> chain_order((10, 100, 5, 50))[0, 2], chain_order((100, 5, 50, 10))[0, 2]
    (1, 0)
    """
    count = len(sides) - 1
    cost = {(i, i): 0 for i in range(count)}
    best = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            cost[i, j], best[i, j] = min(
                (cost[i, cut] + cost[cut + 1, j] + sides[i] * sides[cut + 1] * sides[j + 1], cut) for cut in range(i, j)
            )
    return best


# ---- arguments -------------------------------------------------------------------------------------------------------


def _parsed(operands: tuple[Any, ...]) -> tuple[Subscripts, tuple[Any, ...]]:
    """The subscripts and the arrays of a call of either form."""
    if not operands:
        raise UsageError("einsum needs subscripts and arrays, such as einsum('ij,jk', a, b)")
    if isinstance(operands[0], str):
        arrays = tuple(map(_with_axes, operands[1:]))
        if not arrays:
            raise UsageError(f"subscripts {operands[0]!r} need one operand or more, got none")
        # torch.compile warns of cached functions.
        parse = parse_subscripts.__wrapped__ if is_of_a_library(*arrays) else parse_subscripts
        return parse(operands[0], tuple(x.ndim for x in arrays)), arrays
    arrays = tuple(map(_with_axes, operands[: len(operands) // 2 * 2 : 2]))
    if not arrays:
        raise UsageError("einsum needs subscripts: a text first, or a list of labels after each array")
    output = operands[-1] if len(operands) % 2 else None
    return parse_sublists(operands[1::2], output, tuple(x.ndim for x in arrays)), arrays


@functools.lru_cache(maxsize=1024)
def _subscripts_of(sublists: tuple[Any, ...], output: tuple[Any, ...], axes: tuple[int, ...]) -> Subscripts:
    """``parse_sublists``, cached."""
    return parse_sublists(sublists, output, axes)


def _contract_two(subscripts: Subscripts, a: Any, b: Any, out: Any, precision: str | float) -> Any:
    """The contraction of two arrays, by the short way where there is one."""
    if out is not None or precision != "standard":
        return _contract(subscripts, (a, b), out, precision)
    short = _short_key((subscripts, a, b))
    way = None if short is None else _short_ways.get(short)
    return _contract(subscripts, (a, b), None, precision, None, short) if way is None else way(a, b)


def _with_axes(x: Any) -> Any:
    """``x``, or an array of what has no axes of its own, such as a list or a number."""
    return x if hasattr(x, "ndim") and hasattr(x, "shape") else np.asarray(x)


def _array_of_shape(x: Any) -> Any:
    """An array of float64 of a shape, with the strides of a row-major one, whose elements are never read; anything
    else as it is."""
    if not (isinstance(x, tuple) and all(isinstance(size, int) for size in x)):
        return x
    shape = array_or_shape(x, "an operand").shape  # raises for sizes that no array has
    strides = row_major_strides(
        "".join(map(chr, range(len(shape)))), dict(zip(map(chr, range(len(shape))), shape, strict=True)), 8
    )
    return np.lib.stride_tricks.as_strided(np.zeros(1), shape, tuple(strides.values())[::-1], writeable=False)


def _admitted(x: Any, number: int) -> np.ndarray:
    """An operand as a plain array of a numeric dtype. Raises OperandError and DTypeError."""
    name = f"operand {number}"
    return admit(x, name, by_numpy=True) if x.ndim else admit(np.asarray(x)[None], name, by_numpy=True)[0, ...]


def _axes_known(x: Any, name: str, least: int = 1) -> Any:
    """The argument ``name`` with axes of its own. Raises ShapeError for fewer than ``least``."""
    x = _with_axes(x)
    if x.ndim < least and name[:6] != "arrays":
        raise ShapeError(f"{name} is {tuple(x.shape)}: it must have {least} {'axis' if least == 1 else 'axes'} or more")
    return x


def _axis_of(axis: int, x: Any, name: str) -> int:
    if not isinstance(axis, int | np.integer) or not -x.ndim <= axis < x.ndim:
        raise UsageError(f"axis {axis!r}: {name} is {tuple(x.shape)}, which has no such axis")
    return int(axis) % x.ndim


def _check_core(size: str, one: tuple[Any, int], other: tuple[Any, int]) -> None:
    """Raises ShapeError unless the vectors are equally long: they do not broadcast."""
    (a, i), (b, j) = one, other
    if a.shape[i] != b.shape[j]:
        raise ShapeError(
            f"{size} mismatch: the operands are {tuple(a.shape)} and {tuple(b.shape)}: axis {i} of the first must be "
            f"as long as axis {j} of the second"
        )


def _conjugated(x: Any) -> Any:
    """The complex conjugate; itself where it is real."""
    if not is_of_a_library(x):
        return np.conjugate(x) if x.dtype.kind in "cO" else x
    return x.conj() if "complex" in str(x.dtype) else x


def _is_stored(x: Any) -> bool:
    """Whether it is the path of a file, or a file that is open."""
    return isinstance(x, (str, os.PathLike)) or hasattr(x, "fingerprint")


# ---- how a call runs -------------------------------------------------------------------------------------------------

#: The function for arrays of known subscripts, shapes, strides and dtypes.
_short_ways: dict[tuple[Any, ...], Callable[..., Any]] = {}
#: The most functions that are cached for arrays of known subscripts, shapes, strides and dtypes.
MOST_SHORT_WAYS = 4096
#: The characters that NumPy's subscripts have.
_OF_NUMPY = set(string.ascii_letters + ",->. ")


def _contract(
    subscripts: Subscripts,
    arrays: Sequence[Any],
    out: Any,
    precision: str | float,
    memory: float | str | None = None,
    short: tuple[Any, ...] | None = None,
    optimize: Any = True,
) -> Any:
    """The contraction of checked arguments; ``short`` is the key of the short way for later calls like this one."""
    if is_of_a_library(*arrays, out):
        return _contract_of_library(subscripts, arrays, out, precision, memory, path_given(optimize, len(arrays)))
    operands = [_admitted(x, number) for number, x in enumerate(arrays)]
    if any(x.dtype.name in NUMPY_ONLY_DTYPES for x in operands):
        result = einsum_by_numpy(subscripts, operands, out)
        views = out is None and isinstance(result, np.ndarray) and np.may_share_memory(result, operands[0])
        return result.copy() if views else result
    plan_ = plan_of_arrays(subscripts, operands, out, precision, memory, optimize)
    if out is None:
        if short is not None:
            _remember(short, plan_)
        result = plan_.run(operands)
        return result if result.ndim else result[()]
    target = out.view(np.ndarray)
    direct = target.dtype == plan_.dtype and target.dtype.isnative and target.flags.aligned
    if direct and not any(np.may_share_memory(target, x) for x in operands):
        plan_.run(operands, target)
    else:
        found = plan_of_arrays(subscripts, operands, None, precision, memory, optimize).run(operands)
        with np.errstate(all="ignore"):
            np.copyto(target, found, casting="same_kind")
    return out


def _short_key(operands: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The text, and what a plan depends on of each array; None if one of them is not a plain array."""
    if len(operands) == 3:
        text, a, b = operands
        if type(a) is not np.ndarray or type(b) is not np.ndarray:
            return None
        return (text, a.shape, b.shape, a.strides, b.strides, a.dtype, b.dtype)
    key: list[Any] = [operands[0]]
    for x in operands[1:]:
        if type(x) is not np.ndarray:
            return None
        key += (x.shape, x.strides, x.dtype)
    return tuple(key)


def _remember(key: tuple[Any, ...], plan_: ContractionPlan) -> None:
    """Have later calls with such arrays go the short way, past all that depends on the plan alone."""
    if len(_short_ways) >= MOST_SHORT_WAYS:
        _short_ways.clear()
    text = str(key[0])
    if plan_.by_numpy:
        if set(text) <= _OF_NUMPY:
            copies = len(plan_.readings) == 1 and not plan_.readings[0].summed  # NumPy would return a view
            _short_ways[key] = functools.partial(_copied_by_numpy if copies else np.einsum, text)
    elif len(plan_.steps) == 1 and all(each.is_whole for each in plan_.readings) and plan_.steps[0].way is not None:
        way = plan_.steps[0].way
        _short_ways[key] = way if plan_.steps[0].left == 0 else lambda a, b: way(b, a)
    else:
        _short_ways[key] = lambda *operands: _as_scalar(plan_.run(operands))


def _copied_by_numpy(text: str, x: np.ndarray) -> Any:
    """A permutation or diagonal as a new array, where NumPy gives a view."""
    return np.einsum(text, x).copy()


def _as_scalar(x: np.ndarray) -> Any:
    return x if x.ndim else x[()]


# ---- arrays of other libraries ---------------------------------------------------------------------------------------


def _contract_of_library(
    subscripts: Subscripts,
    arrays: Sequence[Any],
    out: Any,
    precision: str | float,
    memory: Any,
    path: tuple[tuple[int, int], ...] | None,
) -> Any:
    """The contraction by the library's own views, and ``matmul`` of its arrays."""
    if memory is not None:
        raise UsageError("memory bounds intermediate results of NumPy's arrays: pass numpy.asarray of the operands")
    check_words(precision, "classical")
    if out is not None and not is_on_gpu(out) and (library := host_library(out)) is not None:
        library.target(out, "out")  # raises for arrays that cannot be written
    shapes = tuple(tuple(map(int, x.shape)) for x in arrays)
    sizes = sizes_of.__wrapped__(subscripts, shapes)
    readings = readings_of(subscripts, shapes, sizes)
    path = order_of_products(subscripts, shapes)[0] if path is None else path
    left = [(_read_by_library(x, each), each.result) for x, each in zip(arrays, readings, strict=True)]
    for (i, j), (_, _, output) in zip(path, labels_of_products(subscripts, readings, path), strict=True):
        pair = left[i], left[j]
        left = [one for position, one in enumerate(left) if position not in (i, j)]
        left.append((_multiply_by_library(*pair, output, sizes, precision), output))
    result, labels = left[0]
    result = _permuted(result, [labels.index(label) for label in subscripts.output])
    if out is None:
        return result.clone() if not path and hasattr(result, "clone") else result
    if tuple(out.shape) != tuple(result.shape):
        raise ShapeError(
            f"out is {tuple(out.shape)}, the result is {tuple(result.shape)}: out must have exactly this shape"
        )
    if hasattr(out, "copy_"):
        out.copy_(result)
    else:
        try:
            out[...] = result
        except TypeError as error:
            raise OperandError(f"out is of {type(out).__name__}, which cannot be written: use the result") from error
    return out


def _read_by_library(x: Any, reading: Reading) -> Any:
    """The operand with each label once."""
    for axis in sorted(reading.dropped, reverse=True):
        x = x[(slice(None),) * axis + (0,)]
    labels = reading.labels
    for label in reading.kept:
        while labels.count(label) > 1:  # the diagonal becomes the last axis
            first = labels.index(label)
            second = labels.index(label, first + 1)
            x = x.diagonal(0, first, second)
            labels = labels[:first] + labels[first + 1 : second] + labels[second + 1 :] + label
    axes = tuple(labels.index(label) for label in reading.summed)
    if axes:
        x = _sum_by_library(x, axes)
        labels = "".join(label for label in labels if label not in reading.summed)
    return _permuted(x, [labels.index(label) for label in reading.result])


def _sum_by_library(x: Any, axes: tuple[int, ...]) -> Any:
    """Sums in the dtype of the array; logical ones of bool."""
    if "bool" in str(x.dtype):
        for axis in sorted(axes, reverse=True):
            x = x.any(axis)
        return x
    return x.sum(axes, dtype=x.dtype)


def _permuted(x: Any, order: list[int]) -> Any:
    if order == list(range(len(order))):
        return x
    if hasattr(x, "permute"):
        return x.permute(order)
    return x.transpose(order) if hasattr(x, "transpose") else x.__array_namespace__().permute_dims(x, tuple(order))


def _reshaped(x: Any, shape: tuple[int, ...]) -> Any:
    return x.reshape(shape) if hasattr(x, "reshape") else x.__array_namespace__().reshape(x, shape)


def _multiply_by_library(
    one: tuple[Any, str], other: tuple[Any, str], output: str, sizes: dict[str, int], precision: str | float
) -> Any:
    """The product of two arrays with the axes of ``output``."""
    (x, of_x), (y, of_y) = one, other
    batch = "".join(label for label in of_x if label in of_y and label in output)
    m = "".join(label for label in of_x if label not in of_y)
    n = "".join(label for label in of_y if label not in of_x)
    k = "".join(label for label in of_x if label in of_y and label not in output)
    groups = {
        name: tuple(sizes[label] for label in group) for name, group in zip("bmnk", (batch, m, n, k), strict=True)
    }
    b, rows, columns, depth = (math.prod(groups[name]) for name in "bmnk")
    x = _permuted(x, [of_x.index(label) for label in batch + m + k])
    y = _permuted(y, [of_y.index(label) for label in batch + k + n])
    outer = (b,) if batch else ()
    x, y = _reshaped(x, (*outer, rows, depth)), _reshaped(y, (*outer, depth, columns))
    c = matmul(x, y, precision=precision) if k else x * y
    c = _reshaped(c, groups["b"] + groups["m"] + groups["n"])
    return _permuted(c, [(batch + m + n).index(label) for label in output])
