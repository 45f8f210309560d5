"""``matmul`` and ``plan``: check the operands, describe the product, choose a kernel, run it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np

from ..cpu.runtime import small_products
from ..errors import MemoryLimitError, ShapeError, TilewrightError, UsageError
from ..gpu.arrays.dtypes import dtype_name
from ..gpu.arrays.host_libraries import host_library, multiply_on_host, read_on_host
from ..gpu.arrays.libraries import is_of_a_library, is_on_gpu
from ..gpu.arrays.repeated import short_ways
from ..gpu.runtime.wake import wake_named
from ..product.epilogue import Epilogue, asked_dtypes
from ..product.operands import admit, admit_out, array_or_shape, is_gram, native, rows_of_batch
from ..product.plan import Plan
from ..product.precision import INVARIANT, are_all_invariant, asked_precision
from ..product.problem import Symmetry, combine_shapes, itemsize_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from ..product.array_types import (
        ArrayT,
        MatmulOptions,
        Operand,
        OutT,
        SameT,
        ScalarT,
        UnknownDType,
        UnknownShape,
        Vector,
    )

#: The precision, the algorithm and the device that ``gemm`` has.
_BY_GEMM = ("standard", "classical", "cpu")
#: Whether every product is invariant.
_ALL_INVARIANT = are_all_invariant()
#: The arguments of an epilogue.
_EPILOGUE = ("alpha", "beta", "bias", "activation", "scale_a", "scale_b")


# How the type of the result follows from those of the operands. First NumPy's arrays, whose dtype and number of axes may be
# unknown to a checker; two vectors give a scalar.
@overload
def matmul(
    a: UnknownDType, b: NDArray[Any], /, out: None = None, *, out_dtype: None = None, **options: Unpack[MatmulOptions]
) -> NDArray[Any]: ...
@overload
def matmul(
    a: NDArray[Any], b: UnknownDType, /, out: None = None, *, out_dtype: None = None, **options: Unpack[MatmulOptions]
) -> NDArray[Any]: ...
@overload
def matmul(  # type: ignore[overload-overlap]
    a: UnknownShape[SameT],
    b: NDArray[SameT],
    /,
    out: None = None,
    *,
    out_dtype: None = None,
    **options: Unpack[MatmulOptions],
) -> NDArray[SameT]: ...
@overload
def matmul(  # type: ignore[overload-overlap]
    a: NDArray[SameT],
    b: UnknownShape[SameT],
    /,
    out: None = None,
    *,
    out_dtype: None = None,
    **options: Unpack[MatmulOptions],
) -> NDArray[SameT]: ...
@overload
def matmul(  # type: ignore[overload-overlap]
    a: Vector[SameT], b: Vector[SameT], /, out: None = None, *, out_dtype: None = None, **options: Unpack[MatmulOptions]
) -> SameT: ...
@overload
def matmul(
    a: NDArray[SameT],
    b: NDArray[SameT],
    /,
    out: None = None,
    *,
    out_dtype: None = None,
    **options: Unpack[MatmulOptions],
) -> NDArray[SameT]: ...
@overload
def matmul(
    a: NDArray[Any],
    b: NDArray[Any],
    /,
    out: None = None,
    *,
    out_dtype: type[ScalarT] | np.dtype[ScalarT],
    **options: Unpack[MatmulOptions],
) -> NDArray[ScalarT]: ...
@overload
def matmul(
    a: NDArray[Any],
    b: NDArray[Any],
    /,
    out: None = None,
    *,
    out_dtype: DTypeLike | None = None,
    **options: Unpack[MatmulOptions],
) -> NDArray[Any]: ...
@overload
def matmul(
    a: list[ArrayT],
    b: list[ArrayT],
    /,
    out: list[ArrayT] | None = None,
    *,
    out_dtype: Any = None,
    **options: Unpack[MatmulOptions],
) -> list[ArrayT]: ...
@overload
def matmul(
    a: ArrayT, b: NDArray[Any], /, out: None = None, *, out_dtype: Any = None, **options: Unpack[MatmulOptions]
) -> ArrayT: ...
@overload
def matmul(
    a: NDArray[np.generic], b: ArrayT, /, out: None = None, *, out_dtype: Any = None, **options: Unpack[MatmulOptions]
) -> ArrayT: ...
@overload
def matmul(
    a: ArrayT, b: ArrayT, /, out: None = None, *, out_dtype: Any = None, **options: Unpack[MatmulOptions]
) -> ArrayT: ...
@overload
def matmul(
    a: ArrayLike, b: ArrayLike, /, out: None = None, *, out_dtype: Any = None, **options: Unpack[MatmulOptions]
) -> NDArray[Any]: ...
@overload
def matmul(
    a: Operand, b: Operand, /, out: OutT, *, out_dtype: Any = None, **options: Unpack[MatmulOptions]
) -> OutT: ...
def matmul(
    a: Any,
    b: Any,
    /,
    out: Any = None,
    *,
    precision: str | float = "standard",
    algorithm: str = "classical",
    device: str | None = None,
    out_dtype: Any = None,
    alpha: float = 1,
    beta: float = 0,
    bias: Any = None,
    activation: str | None = None,
    scale_a: Any = None,
    scale_b: Any = None,
    invariant: bool = False,
    verify: bool = False,
) -> Any:
    """The matrix product of ``a`` and ``b``, with the semantics of ``matmul`` in the array API standard.

    The result is an array of the operands' library: NumPy, PyTorch, CuPy, JAX or any other library with DLPack. Arrays
    on a GPU are multiplied on that GPU. If ``a`` and ``b`` are lists of arrays, each pair of arrays is multiplied, and
    the result is a list.

    Parameters
    ----------
    a : array of shape (…, m, k) or (k,), or list of arrays
        The left operand, with any strides and byte order. Leading axes broadcast with those of ``b``.
    b : array of shape (…, k, n) or (k,), or list of arrays
        The right operand.
    out : array of shape (…, m, n), optional
        Receives the result, cast by NumPy's ``same_kind`` rule, and is returned. ``out`` may overlap the operands, and
        have any strides and byte order. If the operands are lists, ``out`` is a list.
    precision : str or float, default: "standard"
        The guaranteed error bound: "standard", "ieee", "highest", "fast", "tf32" or "invariant"; or a number, the
        largest error of an element of the result relative to the same element of |A||B|. The notes below say what each
        of these values means.
    algorithm : str, default: "classical"
        "classical" or "strassen". Strassen's algorithm takes fewer multiplications. The error bound of "strassen" is
        wider and holds for the norm of the result, not for each element; ``plan`` prints this bound. "strassen" is used
        only for float32 and float64, and only for products that are large enough to gain time.
    device : str, optional
        Where to multiply arrays of the host's memory: "cpu", "cuda" (as many GPUs as make it faster), "cuda:1" or
        "cuda:0,1". GPUs multiply block by block, as ``multiply`` does, in float32 or float64. So the matrices may be
        larger than the GPU's memory.
    out_dtype : dtype or str, optional
        The dtype of the result, if not that of the operands: such as int32 for int8 operands, or float32 for bfloat16.
        The product is rounded only once, to ``out_dtype``. If ``out`` is given, the result is then cast to the dtype of
        ``out``.
    alpha : float, default: 1
        The factor α of the product.
    beta : float, default: 0
        The factor β of ``out``: ``beta`` · ``out`` is added to the product. If ``beta`` is 0, ``out`` is not read.
    bias : array of shape (n,), optional
        A vector that is added to each row of the product: one number for each column.
    activation : str, optional
        A function that is applied to each element: "relu", "gelu" (computed by erf) or "silu".
    scale_a : array of shape (m,), (m, 1) or (), or (m, ⌈k/128⌉), optional
        Factors of the rows of ``a``: one for each row, or a single number. For float8 operands on a GPU there may also
        be one factor for each row and each 128 elements of k.
    scale_b : array of shape (n,) or (), or (⌈k/128⌉, ⌈n/128⌉), optional
        Factors of the columns of ``b``: one for each column, or a single number. For float8 operands on a GPU there may
        also be one factor for each block of 128×128 elements.
    invariant : bool, default: False
        The same as ``precision="invariant"``. The environment variable ``TILEWRIGHT_INVARIANT=1`` makes every product
        with "standard" precision invariant.
    verify : bool, default: False
        Whether to check the product afterwards, in O(n²) operations on the host, and log the error: see
        ``tilewright.verify``.

    Returns
    -------
    array of shape (…, m, n)
        activation(``alpha`` · ``scale_a`` · A·B · ``scale_b`` + ``beta`` · ``out`` + ``bias``), or ``out`` itself if it
        was given. The whole formula is computed before the result is rounded once to its dtype. If an operand is a
        vector, the axis that was added to it is removed from the result. The product of two vectors is a scalar; for
        NumPy arrays it is a NumPy scalar.

    Raises
    ------
    ShapeError
        The operands differ in k, their batches do not broadcast, an operand is a scalar, or ``out`` has another shape.
    DTypeError
        A dtype that cannot be multiplied, or that cannot be cast to the requested dtype.
    OperandError
        An operand is not a usable matrix, or the operands are on different devices.
    UsageError
        An unknown ``precision`` or ``algorithm``, or an error bound that no kernel can keep.
    MemoryLimitError
        There is too little memory for the result, on the host or on a GPU.
    VerificationError
        The check by ``verify`` found the product wrong.

    See Also
    --------
    plan : Shows what this call runs, without running it.
    gemm : Computes α·A·B + β·C in place.
    grouped_matmul : Multiplies groups of rows, as in a mixture of experts.
    multiply : Multiplies files and matrices larger than memory.

    Notes
    -----
    **Dtypes.** Dtypes are promoted as the operands' library promotes them. float32, float64, complex numbers and
    integers have kernels; integers wrap around. Products of float16 are computed in float32 and rounded once. The
    product of bool matrices is the logical product. NumPy multiplies long double and Python objects (arrays or lists of
    objects, with the ``*`` and ``+`` of the objects). If no machine code was built, NumPy computes all products;
    ``plan`` reports this. Subclasses of ``numpy.ndarray`` are treated as plain arrays. A PyTorch tensor can be
    multiplied only by another tensor; the product of tensors has gradients.

    **Special values.** NaN and infinity propagate without a warning; ``numpy.errstate`` has no effect.

    **A matrix times its own transpose.** If ``b`` is the transpose of ``a`` in the same memory, and ``a`` has 64 rows
    or more, the product is known to be symmetric. Of such a product, only one triangle is computed and then copied to
    the other, except on GPUs that have no kernel for one triangle. A real result equals its transpose in every bit. For
    complex numbers use ``gram``, whose result on the host equals its conjugate transpose in every bit.

    **Precision.** "standard" guarantees the classical error bound, in the roundoff of the operands' dtype. "ieee"
    guarantees the same bound and uses only IEEE multiply-adds, even where a GPU could keep the bound faster in another
    way. "highest" computes float16, bfloat16, float32 and complex64 in float64 or complex128, and rounds once. If
    ``precision`` is a number, such as 1e-4, the fastest method is used whose bound is not above this number.

    "fast" guarantees 1.01·2⁻¹⁰ + k·2⁻²⁴, or the bound of "standard" where that is wider. With "fast", float64 products
    may be computed in float32, and float32 products on a GPU in tf32. "tf32" may round float32 operands on a GPU to 10
    bits of mantissa, so that tensor cores can multiply them. ``plan`` prints the bounds.

    **Invariant products.** Invariant products keep the bound of "standard". On one kind of machine, the bits of a row
    of the result depend only on that row of ``a`` and on ``b``. These bits do not depend on the number of rows, the
    row's position, strides, or the batch. So a request to a model gets the same answer, whichever other requests are
    computed with it. Invariant products of few rows may take longer than other products.

    **On a GPU.** The call submits the work to the caller's current stream and returns without waiting for it. The
    dtypes are float32, float64, bfloat16, float16, int8, float8 (e4m3fn, e5m2, or one of each) and the complex dtypes.
    bfloat16 and float16 are summed in float32 and rounded once. An int8 product is int8 with wrap-around, or exact with
    ``out_dtype="int32"``.

    A product of float8 is bfloat16 by default. Tensor cores keep only 13 bits of a sum of float8 products. So a tensor
    core sums 128 elements of k at a time, and these sums are added in float32. With "fast" the tensor core sums all of
    k. ``torch.compile`` traces the call; ``tilewright.torch`` has further functions for PyTorch.

    If ``a`` and ``b`` are lists of arrays of one dtype, one launch may compute up to 512 products of any shapes. One
    launch is used if it is predicted to be faster than a launch for each product. The results of one launch may share
    one allocation.

    Examples
    --------
    >>> import numpy as np, tilewright as tw
    >>> a = np.arange(6, dtype=np.float32).reshape(2, 3)
    >>> tw.matmul(a, a.T)
    array([[ 5., 14.],
           [14., 50.]], dtype=float32)
    >>> tw.matmul(a, a.T, bias=np.array([-20, 0]), activation="relu")
    array([[ 0., 14.],
           [ 0., 50.]], dtype=float32)
    """
    try:
        plain = alpha == 1 and beta == 0 and bias is activation is scale_a is scale_b is None
    except ValueError:  # of an array
        plain = False
    if invariant or (_ALL_INVARIANT and algorithm == "classical"):
        precision = asked_precision(precision, invariant=invariant)
    try:
        if precision == "standard" and algorithm == "classical" and device is None and plain and not verify:
            if out_dtype is None and (result := small_products.multiply(a, b, out)) is not None:
                return result
            if type(a) is np.ndarray:
                result = _short_way(a, b, out, out_dtype)
            else:
                way = short_ways.get(type(a)) if out_dtype is None else None
                result = None if way is None else way(a, b, out)
            if result is not None:
                return result
        if verify:
            from ..large.verification import multiply_verified  # imported only here: few products are verified

            how = {"precision": precision, "algorithm": algorithm, "device": device, "out_dtype": out_dtype}
            return multiply_verified(matmul, a, b, out, plain=plain, **how)
        epilogue = None if plain else Epilogue.of(out, alpha, beta, bias, activation, scale_a, scale_b)
        if is_list_of_matrices(a) and is_list_of_matrices(b):
            if not plain:
                raise UsageError("scales, alpha, beta, bias and activation are for two arrays, not for lists of them")
            return multiply_lists(
                matmul, a, b, out, precision=precision, algorithm=algorithm, device=device, out_dtype=out_dtype
            )
        if not (type(a) is type(b) is np.ndarray and out is None) and is_of_a_library(a, b, out):
            if is_on_gpu(a, b, out):
                if device is not None:
                    raise UsageError(f"device {device!r}: these operands are on a GPU, and are multiplied there")
                from ..gpu.arrays.matmul import matmul_on_gpu  # imported only here: products on the host do not need it

                return matmul_on_gpu(a, b, out, precision, algorithm, out_dtype, epilogue, record=_recorded)
            if (library := host_library(a, b, out)) is not None:
                options = _options(algorithm, device, out_dtype, plain, alpha, beta, bias, activation, scale_a, scale_b)
                return multiply_on_host(library, matmul, a, b, out, precision, options)
        if device is not None:
            wake_named(device)
        if out_dtype is not None or epilogue is not None:
            return _matmul_into(a, b, out, precision, algorithm, device=device, out_dtype=out_dtype, epilogue=epilogue)
        return _matmul(a, b, out, precision, algorithm, device=device)
    except (MemoryError, ValueError) as error:  # of the result, of workspace, or of a shape that no address space holds
        too_large = isinstance(error, MemoryError) or "too big" in str(error)
        if out is not None or isinstance(error, TilewrightError) or not too_large:
            raise
        raise _memory_error(a, b, out_dtype, error) from error


def _first_short_way(a: np.ndarray, b: Any, out: Any, out_dtype: Any) -> Any:
    """The short way of arrays on the host. What that needs is imported here, as products on a GPU do not need it."""
    global _short_way
    from ..cpu.short import product_by_short_way

    _short_way = product_by_short_way
    return _short_way(a, b, out, out_dtype)


_short_way = _first_short_way


def _memory_error(a: Any, b: Any, out_dtype: Any, error: Exception) -> MemoryLimitError:
    """The error that says how large the result is, and what to do."""
    dtypes = [getattr(x, "dtype", None) or np.asarray(x).dtype for x in (a, b)] if out_dtype is None else [out_dtype]
    shapes, size = combine_shapes(np.shape(a), np.shape(b)), max(itemsize_of(dtype_name(dtype)) for dtype in dtypes)
    step = "" if shapes.batch else "; tilewright.multiply(a, b, out='c.npy') writes it to a file, block by block"
    return MemoryLimitError(
        f"the product is {shapes.result}, of {math.prod(shapes.result) * size:,} bytes: {error}{step}"
    )


def _options(algorithm: str, device: str | None, out_dtype: Any, plain: bool, *epilogue: Any) -> dict[str, Any]:
    """The arguments of ``matmul`` that are not as by default; ``plain`` says that those of the ``epilogue`` are."""
    options = {} if plain else dict(zip(_EPILOGUE, epilogue, strict=True))
    others = {"algorithm": None if algorithm == "classical" else algorithm, "device": device, "out_dtype": out_dtype}
    return options | {name: value for name, value in others.items() if value is not None}


def _recorded(a: Any, b: Any, precision: str | float) -> Any:
    """A product of PyTorch's tensors that PyTorch must know of, for a gradient or a transformation."""
    from ..gpu.arrays.torch_operator import product  # imported only here: it needs PyTorch

    return product(a, b, precision)


def _compiled(
    a: Any,
    b: Any,
    /,
    out: Any = None,
    *,
    precision: str | float = "standard",
    **others: Any,
) -> Any:
    """``matmul`` as ``torch.compile`` traces it."""
    from ..gpu.arrays.torch_operator import compiled_matmul

    given = {"out": out, **others}
    return compiled_matmul(
        a, b, precision, *(name for name, value in given.items() if value not in (None, "classical"))
    )


#: ``torch.compile`` traces the function in this attribute instead of this call, because it cannot trace machine code.
matmul._torchdynamo_inline = _compiled  # type: ignore[attr-defined]


def _matmul(
    a: Any,
    b: Any,
    out: np.ndarray | None,
    precision: str | float,
    algorithm: str,
    *,
    device: str | None = None,
    wide: np.dtype | None = None,
) -> Any:
    """The long way, for every product: check and convert the operands, plan, multiply, round the result; ``wide`` is the
    dtype of the product, if it is not that of the operands."""
    from ..cpu.plan import host_plan, multiplied

    x, y = admit(a, "a", by_numpy=True), admit(b, "b", by_numpy=True)
    symmetry: Symmetry = "gram" if is_gram(x, y) and device in (None, "cpu") else ""
    plan_ = host_plan(x.shape, y.shape, x.dtype, y.dtype, precision, algorithm, wide, symmetry)
    target = None if out is None else admit_out(out, plan_.layout.result, plan_.dtype, by_numpy=True)
    if (rows := rows_of_batch(x, y, target)) is not None:
        whole = np.empty(plan_.layout.result, plan_.dtype) if target is None else target
        _matmul(rows, y, whole.reshape(len(rows), *y.shape[1:]), precision, algorithm, device=device, wide=wide)
        return whole if out is None else out
    by_blocks = None
    if device not in (None, "cpu"):
        from ..large.by_blocks import run_by_blocks

        _check_blocks(precision, device)
        by_blocks = functools.partial(run_by_blocks, algorithm=algorithm, device=device)
    result = multiplied(plan_, x, y, target, by_blocks)
    if out is not None:
        return out
    return result if result.ndim else result[()]


def _check_blocks(precision: str | float, device: str | None) -> None:
    """Raises UsageError for a precision that products by blocks do not have."""
    if precision == INVARIANT:
        raise UsageError(
            f"device {device!r} multiplies by blocks, whose sizes depend on the shape: it has no invariant products"
        )


def _matmul_into(
    a: Any,
    b: Any,
    out: np.ndarray | None,
    precision: str | float,
    algorithm: str,
    *,
    device: str | None,
    out_dtype: Any,
    epilogue: Epilogue | None,
) -> Any:
    """The product in ``out_dtype``, after the epilogue: multiplied in a dtype that holds operands and result, and rounded
    once."""
    x, y = admit(a, "a"), admit(b, "b")
    asked, wide = asked_dtypes(x.dtype, y.dtype, out_dtype, epilogue)
    if device not in (None, "cpu") or (epilogue is not None and epilogue.has_blocks(x.shape, y.shape)):
        x, y = native(x, wide), native(y, wide)  # the kernels that add up wider sums take the operands as they are
    if epilogue is None and asked == wide:
        return _matmul(x, y, out, precision, algorithm, device=device, wide=wide)
    if epilogue is not None:
        x, y, epilogue = epilogue.scaled_operands(x, y)
        if epilogue.is_scaling and (precision, algorithm, device or "cpu", out_dtype) == (*_BY_GEMM, None):
            from ..cpu.gemm import plan_gemm, run_gemm, runs_as_gemm

            if runs_as_gemm(x, y, out, epilogue.alpha):
                admit_out(out, (x.shape[0], y.shape[1]), asked)
                plan_, s, t, target = plan_gemm(epilogue.alpha, x, y, epilogue.beta, out)
                run_gemm(plan_, s, t, x, y, target)
                return out
    product = np.asarray(_matmul(x, y, None, precision, algorithm, device=device, wide=wide))
    target = np.empty(product.shape, asked) if out is None else admit_out(out, product.shape, asked)
    with np.errstate(all="ignore"):
        if epilogue is not None:
            product = epilogue.applied(product, None if out is None else target)
        if out_dtype is not None or out is None:
            product = product.astype(asked)
        np.copyto(target, product, casting="unsafe")  # which dtypes ``out`` may have was checked
    if out is not None:
        return out
    return target if target.ndim else target[()]


def plan(
    a: Any,
    b: Any,
    /,
    out: Any = None,
    *,
    precision: str | float = "standard",
    algorithm: str = "classical",
    device: str | None = None,
    alpha: complex = 1.0,
    beta: complex = 0.0,
    out_dtype: Any = None,
    bias: Any = None,
    activation: str | None = None,
    scale_a: Any = None,
    scale_b: Any = None,
    invariant: bool = False,
) -> Plan:
    """The plan of the call ``matmul`` with these arguments: the kernel and the reasons for it. Nothing is multiplied.

    If only ``alpha``, ``beta`` and ``out`` are given and the matrices are on the host, the plan is that of
    ``gemm(alpha, a, b, beta, out)``, which ``matmul`` then calls. A plan of ``gemm`` also takes dtypes that only
    ``gemm`` multiplies. A batch times a single matrix is planned as one product of all rows, if the rows are equally
    spaced in memory. Use ``plan_multiply`` for matrices in files or larger than memory.

    Parameters
    ----------
    a : array of shape (…, m, k) or (k,), or tuple of int
        The left operand, on the host or on a GPU. A tuple is a shape, and stands for a float64 array of that shape on
        the host.
    b : array of shape (…, k, n) or (k,), or tuple of int
        The right operand.
    out : array of shape (…, m, n), optional
        The array that would receive the result.
    precision : str or float, default: "standard"
        The guaranteed error bound: see ``matmul``.
    algorithm : str, default: "classical"
        "classical" or "strassen": see ``matmul``.
    device : str, optional
        Where to multiply arrays of the host's memory: see ``matmul``.
    alpha : number, default: 1
        The factor α of the product.
    beta : number, default: 0
        The factor β of ``out``, which is added to the product.
    out_dtype : dtype or str, optional
        The dtype of the result, if not that of the operands.
    bias : array of shape (n,), optional
        A vector that is added to each row of the product: one number for each column.
    activation : str, optional
        A function that is applied to each element: "relu", "gelu" (computed by erf) or "silu".
    scale_a : array, optional
        Factors of the rows of ``a``: see ``matmul``.
    scale_b : array, optional
        Factors of the columns of ``b``: see ``matmul``.
    invariant : bool, default: False
        The same as ``precision="invariant"``.

    Returns
    -------
    Plan
        The same plan that ``matmul`` makes and runs. ``print`` shows the kernel, the reasons for it, threads, predicted
        time and error bound.

    Raises
    ------
    TilewrightError
        Any error that ``matmul`` raises before it multiplies.

    See Also
    --------
    matmul : Runs the plan.
    plan_einsum : The plan of a contraction.
    plan_multiply : The plan of a product of files.
    tilewright.product.plan.Plan : The class of the result.

    Examples
    --------
    >>> import tilewright as tw
    >>> print(tw.plan((3, 4), (4, 5)).problem)
    (3×4) · (4×5) float64
    """
    if invariant or algorithm == "classical":
        precision = asked_precision(precision, invariant=invariant)
    scaled = np.ndim(alpha) or np.ndim(beta) or not (alpha == 1 and beta == 0)
    finishes = not (bias is activation is scale_a is scale_b is None)
    given = (out, alpha, beta, bias, activation, scale_a, scale_b)
    if is_on_gpu(a, b, out):
        if device is not None:
            raise UsageError(f"device {device!r}: these operands are on a GPU, and are multiplied there")
        from ..gpu.arrays.matmul import plan_on_gpu

        epilogue = Epilogue.of(*given) if scaled or finishes else None
        return plan_on_gpu(a, b, out, precision, algorithm, out_dtype, epilogue)
    if is_list_of_matrices(a) and is_list_of_matrices(b):
        raise UsageError("a and b are lists of matrices: plan each of their products")
    if (library := host_library(a, b, out)) is not None:
        options = _options(algorithm, device, out_dtype, not (scaled or finishes), *given[1:])
        x, y, target, read = read_on_host(library, a, b, out, precision, options)
        return plan(x, y, target, precision=precision, **read)
    from ..cpu.plan import host_plan
    from ..large.by_blocks import plan_by_blocks

    x, y = array_or_shape(a, "a"), array_or_shape(b, "b")
    if scaled and not finishes and (precision, algorithm, device or "cpu", out_dtype) == (*_BY_GEMM, None):
        from ..cpu.gemm import ANY_C, is_planned_as_gemm, plan_gemm

        if is_planned_as_gemm(x, y, out, alpha, beta):
            return plan_gemm(alpha, x, y, beta, ANY_C if out is None else out)[0]
    dtypes, made, wide, finish = (x.dtype, y.dtype), None, None, ""
    epilogue = Epilogue.of(*given) if finishes or scaled else None
    if out_dtype is not None or epilogue is not None:
        made, wide = asked_dtypes(*dtypes, out_dtype, epilogue)
        if device not in (None, "cpu"):
            dtypes = wide, wide
    if epilogue is not None:
        epilogue.check_matrices(x.shape, y.shape)
        epilogue.check_dtype(wide or dtypes[0])
        finish = str(epilogue)
        if epilogue.has_blocks(x.shape, y.shape):
            dtypes = wide or dtypes[0], wide or dtypes[1]
            epilogue = replace(epilogue, scale_a=None, scale_b=None)
    symmetry: Symmetry = "gram" if is_gram(x, y) and device in (None, "cpu") else ""
    plan_ = host_plan(x.shape, y.shape, *dtypes, precision, algorithm, wide, symmetry)
    if epilogue is not None:
        epilogue.vectors(plan_.layout.result, plan_.dtype)
    target = None if out is None else admit_out(out, plan_.layout.result, made or plan_.dtype, by_numpy=True)
    if (rows := rows_of_batch(x, y, target if epilogue is None else None)) is not None:
        plan_ = host_plan(rows.shape, y.shape, *dtypes, precision, algorithm, wide)
    plan_ = replace(plan_, finish=finish) if finish else plan_
    if device in (None, "cpu"):
        return plan_
    _check_blocks(precision, device)
    return plan_by_blocks(plan_, algorithm, device)


# ---- lists of matrices -----------------------------------------------------------------------------------------------


def is_list_of_matrices(value: Any) -> bool:
    """Whether ``value`` is a non-empty list of arrays that have at least two axes each.

    >>> import numpy as np
    >>> is_list_of_matrices([np.eye(2), np.eye(3)]), is_list_of_matrices([[1, 2], [3, 4]])
    (True, False)
    """
    return isinstance(value, list) and bool(value) and all(len(getattr(x, "shape", ())) > 1 for x in value)


def multiply_lists(
    product: Callable[..., Any],
    a: list[Any],
    b: list[Any],
    out: Any,
    *,
    precision: str | float,
    algorithm: str,
    device: str | None,
    out_dtype: Any,
) -> list[Any]:
    """Return the list of ``product(x, y)`` for each pair of arrays x and y of two lists. Raises ShapeError if the lists
    differ in length."""
    if len(a) != len(b) or (out is not None and not (isinstance(out, list) and len(out) == len(a))):
        given = "" if out is None else f", out is {f'one of {len(out)}' if isinstance(out, list) else 'no list'}"
        raise ShapeError(f"a is a list of {len(a)} arrays, b one of {len(b)}{given}: both must have the same length")

    def one(x: Any, y: Any, c: Any = None) -> Any:
        return product(x, y, c, precision=precision, algorithm=algorithm, device=device, out_dtype=out_dtype)

    if out is None and device is None and is_on_gpu(*a, *b):
        from ..gpu.arrays.lists import matmul_lists_on_gpu  # imported only here: products on the host do not need it

        return matmul_lists_on_gpu(a, b, precision, algorithm, out_dtype, one)
    return [one(x, y, c) for x, y, c in zip(a, b, [None] * len(a) if out is None else out, strict=True)]
