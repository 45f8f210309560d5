"""``grouped_matmul``: multiplies groups of rows, such as those of a mixture of experts, in which each expert's tokens
are multiplied by its own weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ..errors import UsageError
from ..gpu.arrays.host_libraries import host_library
from ..gpu.arrays.libraries import is_of_a_library, is_on_gpu, library_by_type, library_of
from ..gpu.arrays.repeated import group_ways
from ..product.operands import admit, admit_out
from ..product.problem import Part, checked_ends, combine_grouped_shapes, multiply_groups
from .matmul import matmul

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from ..product.array_types import ArrayT, Operand, OutT, SameT, UnknownDType


@overload
def grouped_matmul(
    a: UnknownDType,
    b: NDArray[Any],
    offsets: Operand | None = None,
    *,
    out: None = None,
    out_dtype: None = None,
    scale_a: Operand | None = None,
    scale_b: Operand | None = None,
) -> NDArray[Any]: ...
@overload
def grouped_matmul(
    a: NDArray[Any],
    b: UnknownDType,
    offsets: Operand | None = None,
    *,
    out: None = None,
    out_dtype: None = None,
    scale_a: Operand | None = None,
    scale_b: Operand | None = None,
) -> NDArray[Any]: ...
@overload
def grouped_matmul(
    a: NDArray[SameT],
    b: NDArray[SameT],
    offsets: Operand | None = None,
    *,
    out: None = None,
    out_dtype: None = None,
    scale_a: Operand | None = None,
    scale_b: Operand | None = None,
) -> NDArray[SameT]: ...
@overload
def grouped_matmul(
    a: NDArray[Any],
    b: NDArray[Any],
    offsets: Operand | None = None,
    *,
    out: None = None,
    out_dtype: DTypeLike | None = None,
    scale_a: Operand | None = None,
    scale_b: Operand | None = None,
) -> NDArray[Any]: ...
@overload
def grouped_matmul(
    a: ArrayT,
    b: ArrayT,
    offsets: Operand | None = None,
    *,
    out: None = None,
    out_dtype: Any = None,
    scale_a: Operand | None = None,
    scale_b: Operand | None = None,
) -> ArrayT: ...
@overload
def grouped_matmul(
    a: Operand,
    b: Operand,
    offsets: Operand | None = None,
    *,
    out: OutT,
    out_dtype: Any = None,
    scale_a: Operand | None = None,
    scale_b: Operand | None = None,
) -> OutT: ...
def grouped_matmul(
    a: Any,
    b: Any,
    offsets: Any = None,
    *,
    out: Any = None,
    out_dtype: Any = None,
    scale_a: Any = None,
    scale_b: Any = None,
) -> Any:
    """The products of groups of rows, of columns or of parts of k, such as those of a mixture of experts.

    Group g begins at ``offsets[g - 1]``, or at 0 for the first group, and ends before ``offsets[g]``. A group may be
    empty, and its size may be any number. There are four forms of operands for G groups. The shapes of the operands are
    those of ``torch._grouped_mm``:

    - ``a`` (m, k), ``b`` (G, k, n): the rows of group g are multiplied by ``b[g]``; the result is (m, n). This form is
      the product of a mixture of experts whose tokens are sorted by expert.
    - ``a`` (m, k), ``b`` (k, n): the columns of ``a`` in group g are multiplied by the rows of ``b`` in group g; the
      result is (G, m, n). This form is the gradient of the experts' weights.
    - ``a`` (G, m, k), ``b`` (k, n): ``a[g]`` is multiplied by the columns of ``b`` in group g; the result is (m, n).
    - ``a`` (G, m, k), ``b`` (G, k, n), no offsets: the same as ``matmul``.

    Parameters
    ----------
    a : array of shape (m, k) or (G, m, k)
        The left operand.
    b : array of shape (k, n) or (G, k, n)
        The right operand.
    offsets : integer array of shape (G,), optional
        The end of each group. For operands on a GPU, ``offsets`` must be an int32 array on that GPU.
    out : array of the result's shape, optional
        Receives the result, cast by NumPy's ``same_kind`` rule, and is returned. ``out`` must not overlap the operands.
    out_dtype : dtype or str, optional
        The dtype of the result, if not that of the operands. On a GPU, "float32" is possible for 16-bit operands. The
        result of float8 operands is bfloat16 by default.
    scale_a : float32 array of shape (m, ⌈k/128⌉), optional
        For groups of rows of float8 on a GPU: one factor for each row and each 128 elements of k. ``scale_a`` must be
        given together with ``scale_b``.
    scale_b : float32 array of shape (G, ⌈k/128⌉, ⌈n/128⌉), optional
        One factor for each block of 128×128 elements of each matrix of ``b``.

    Returns
    -------
    array of shape (m, n) or (G, m, n)
        The products, or ``out`` itself if it was given. Rows or columns of the result after the last group are zero.
        Rows or columns of the operands after the last group are not read. If the groups are groups of k, the product of
        an empty group is zero, too.

    Raises
    ------
    ShapeError
        The shapes do not fit each other, or on the host the offsets decrease or are too large.
    DTypeError
        A dtype that cannot be multiplied, or that cannot be cast to the requested dtype.
    OperandError
        The arrays are on different devices, or the offsets are not integers.
    UsageError
        Only one of the two scales is given, or scales are given and the groups are not groups of rows.
    MemoryLimitError
        There is too little memory for the result.

    See Also
    --------
    matmul : Multiplies batches and lists of matrices.
    tilewright.torch.grouped_matmul : Multiplies groups of tensors, also inside ``torch.autocast``.

    Notes
    -----
    On a GPU the call does not wait for ``offsets``, so it can be captured in a CUDA graph. The call makes one launch of
    a kernel, whatever the sizes of the groups. On a GPU, there are kernels for bfloat16, float16, float32 and float64.
    On a Hopper GPU, 16-bit operands whose rows are multiples of 16 bytes use the fastest instructions of the tensor
    cores. Groups of rows of float8 need a Hopper GPU, and the elements of ``a`` and of each ``b[g]`` must be contiguous
    along k. On a GPU offsets that decrease or are too large give undefined numbers, but nothing outside the result is
    written.

    PyTorch records gradients of this function unless ``out``, ``out_dtype`` or scales are given. On the host the groups
    are multiplied one by one, in any dtype that ``matmul`` takes.

    Examples
    --------
    >>> import numpy as np, tilewright as tw
    >>> tokens = np.arange(10.0).reshape(5, 2)
    >>> experts = np.stack([np.eye(2), 10 * np.eye(2)])
    >>> tw.grouped_matmul(tokens, experts, np.array([2, 4]))
    array([[ 0.,  1.],
           [ 2.,  3.],
           [40., 50.],
           [60., 70.],
           [ 0.,  0.]])
    """
    if out is out_dtype is scale_a is scale_b is None and (way := group_ways.get(type(a))) is not None:
        again = way(a, b, offsets)
        if again is not None:
            return again
    scales = [scale_a, scale_b] if scale_a is not None or scale_b is not None else []
    if any(each is None for each in scales):
        raise UsageError("scale_a and scale_b: one of them alone has no kernel; give both")
    if not is_of_a_library(a, b, offsets, out):
        return _on_host(a, b, offsets, out, out_dtype, *scales)
    on_gpu, plain = is_on_gpu(a, b, offsets, out), out is None and out_dtype is None and not scales
    library = library_of(a) if on_gpu else library_by_type(a)
    if plain and library is not None and library.name == "torch" and (not on_gpu or _records(a, b)):
        from ..gpu.arrays.torch_grouped import grouped_product  # imported only here: it needs PyTorch

        return grouped_product(a, b, offsets)
    if on_gpu:
        from ..gpu.arrays.groups import grouped_matmul_on_gpu

        return grouped_matmul_on_gpu(a, b, offsets, out, out_dtype, *scales)
    return _on_host_of_library(a, b, offsets, out, out_dtype, *scales)


def _records(*arrays: Any) -> bool:
    """Whether a library must know what is done with one of its arrays, for a gradient."""
    return any((library := library_of(x)) is not None and library.records(x) for x in arrays)


def _on_host_of_library(a: Any, b: Any, offsets: Any, out: Any, out_dtype: Any, *scales: Any) -> Any:
    """The products of arrays of another library than NumPy, in the host's memory."""
    library = host_library(a, b, out)
    if library is None:
        return _on_host(a, b, offsets, out, out_dtype, *scales)
    for name, value in {"a": a, "b": b, "out": out}.items():
        library.refuse_recorded(value, name)
    x, y = library.operands(a, b, "standard")
    ends = None if offsets is None else library.array(offsets, "offsets")
    scales = tuple(library.array(each, "scales") for each in scales)
    computed = library.computed(a, b, x, y, out_dtype)
    if out is None:
        return library.answer(_on_host(x, y, ends, None, computed, *scales), a, b, out_dtype)
    target = library.target(out, "out")
    _on_host(x, y, ends, target, computed, *scales)
    library.written(out, target)
    return out


def _on_host(a: Any, b: Any, offsets: Any, out: Any, out_dtype: Any, *scales: Any) -> Any:
    x, y = admit(a, "a"), admit(b, "b")
    shapes = combine_grouped_shapes(x.shape, y.shape, None if offsets is None else np.shape(offsets))
    if offsets is None:
        return matmul(x, y, out, out_dtype=out_dtype)
    if scales and shapes.grouped_axis != "m":
        raise UsageError(f"scale_a and scale_b are for groups of rows, here groups divide {shapes.grouped_axis}")
    ends = checked_ends(shapes, offsets)
    nothing = matmul(np.empty((0, 0), x.dtype), np.empty((0, 0), y.dtype), out_dtype=out_dtype)
    result = np.empty(shapes.result, nothing.dtype) if out is None else admit_out(out, shapes.result, nothing.dtype)

    def multiply(of_a: Part, of_b: Part, c: np.ndarray) -> None:
        given = {"scale_a": scales[0][of_a], "scale_b": scales[1][of_b]} if scales else {}
        matmul(x[of_a], y[of_b], c, out_dtype=out_dtype, **given)

    multiply_groups(shapes, ends, result, multiply)
    return result if out is None else out


def _compiled(a: Any, b: Any, offsets: Any = None, **others: Any) -> Any:
    """``grouped_matmul`` as ``torch.compile`` traces it."""
    from ..gpu.arrays.torch_grouped import grouped_product

    given = [name for name, value in others.items() if value is not None]
    if given:
        raise UsageError(
            f"{given[0]}: inside torch.compile grouped_matmul takes a, b and offsets alone; call it outside"
        )
    return grouped_product(a, b, offsets)


#: ``torch.compile`` traces the function in this attribute instead of this call.
grouped_matmul._torchdynamo_inline = _compiled  # type: ignore[attr-defined]
