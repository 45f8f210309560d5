"""Multiplies groups of rows, such as those of a mixture of experts, in which each expert's tokens are multiplied by its
own weights."""

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
    """The products of groups of rows, columns or k, such as those of a mixture of experts.

    Group g is from ``offsets[g - 1]``, or 0, to ``offsets[g]``. Groups may be empty, and their sizes need no
    alignment. With G groups there are four forms, whose shapes are those of ``torch._grouped_mm``:

    - ``a`` (m, k), ``b`` (G, k, n): the rows of group g are multiplied by ``b[g]``; the result is (m, n). A mixture
      of experts is such a product, if its tokens are sorted by expert.
    - ``a`` (m, k), ``b`` (k, n): columns of ``a`` are multiplied by the same rows of ``b``, group by group; the
      result is (G, m, n). This is the gradient of the experts' weights.
    - ``a`` (G, m, k), ``b`` (k, n): ``a[g]`` is multiplied by the columns of group g; the result is (m, n).
    - ``a`` (G, m, k), ``b`` (G, k, n), no offsets: ``matmul``.

    Parameters
    ----------
    a : array of shape (m, k) or (G, m, k)
        The left operand.
    b : array of shape (k, n) or (G, k, n)
        The right operand.
    offsets : integer array of shape (G,), optional
        The end of each group. On a GPU it is an int32 array there.
    out : array of the result's shape, optional
        Receives the result, cast by the ``same_kind`` rule, and is returned. It must not overlap the operands.
    out_dtype : dtype or str, optional
        The dtype of the result, if not that of the operands: of 16-bit operands on a GPU "float32" as well; of
        float8 it is bfloat16, if none is given.
    scale_a : float32 array of shape (m, ⌈k/128⌉), optional
        Factors of each row and 128 of k, for groups of rows: on a GPU of float8. Both scales are given, or none.
    scale_b : float32 array of shape (G, ⌈k/128⌉, ⌈n/128⌉), optional
        Factors of blocks of 128×128.

    Returns
    -------
    array of shape (m, n) or (G, m, n)
        The products; ``out`` itself if it was given. The result is zero where no group is: in rows or columns that
        follow the last group, and for groups of k that are empty. What follows the last group is not read.

    Raises
    ------
    ShapeError
        Shapes that do not fit each other; on the host also offsets that decrease or are too large.
    DTypeError
        A dtype that cannot be multiplied, or cannot be cast to the one asked for.
    OperandError
        Arrays on different devices, or offsets that are no whole numbers.
    UsageError
        One scale without the other, or scales of groups that are not of rows.
    MemoryLimitError
        Too little memory for the result.

    Notes
    -----
    On a GPU the call does not wait for ``offsets``, so it can be captured in a CUDA graph, and makes one launch,
    whatever the sizes of groups are. Operands of bfloat16, float16, float32 and float64 have kernels. On a Hopper
    GPU those of 16 bits whose rows are multiples of 16 bytes take the tensor cores' fastest, and groups of rows of
    float8 are multiplied there, if the elements of ``a`` and of each ``b[g]`` follow each other along k. Offsets
    that decrease or are too large give undefined numbers, but nothing outside of the result is written.

    PyTorch records gradients, but not with ``out``, ``out_dtype`` or scales. On the host the groups are multiplied
    one by one, in any dtype of ``matmul``.

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
