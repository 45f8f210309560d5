"""The library call: operands → problem → plan → run → result."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

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

#: The precision, the algorithm and the device that ``gemm`` has.
_BY_GEMM = ("standard", "classical", "cpu")
#: Whether every product is invariant.
_ALL_INVARIANT = are_all_invariant()
#: The arguments of an epilogue.
_EPILOGUE = ("alpha", "beta", "bias", "activation", "scale_a", "scale_b")


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
    """The matrix product of ``a`` and ``b``, with the semantics of array-API ``matmul``.

    ``a`` is (…, m, k) or (k,), ``b`` is (…, k, n) or (k,); leading axes broadcast; the result is (…, m, n), without the
    axis that was added to a vector. Any strides and byte order are accepted. dtypes promote as NumPy promotes them: float32,
    float64, complex and integers (with wrap-around) have kernels; float16 is computed in float32 and rounded once; bool is
    the logical product. long double and Python objects (arrays and lists of them, by their own ``*`` and ``+``) are
    multiplied by NumPy, and so is everything where no machine code was built; ``plan`` says so. Two vectors give a
    scalar of NumPy's type. Subclasses count as plain arrays.

    A matrix of 64 rows or more and its transpose, in the same memory, have a symmetric product: one triangle is computed,
    on a GPU where a kernel can. It equals its transpose in every bit if it is real; on the host ``gram`` promises that for
    complex numbers, too.

    NaN and infinity propagate, without a warning: ``numpy.errstate`` has no effect.

    The result has the operands' type: of tensors of PyTorch on the host it is a tensor, with gradients, of arrays of JAX, or
    of JAX and NumPy, an array of JAX, and of other arrays with ``__array_namespace__`` and DLPack one of their library.
    Their dtypes promote by the rules of their library. Tensors are multiplied by tensors alone.

    ``out``: an array of exactly the result's shape that receives the result, cast by the ``same_kind`` rule. It may
    overlap the operands, and have any strides and byte order. It may be passed by position, as to ``numpy.matmul``.

    ``out_dtype``: the dtype of the result, if not that of the operands, by name or as a dtype: such as int32 for int8,
    float32 for bfloat16, float16 for float32. The product is not rounded before; with ``out``, it is then cast to that.

    The result is activation(``alpha`` · ``scale_a`` · A·B · ``scale_b`` + ``beta`` · ``out`` + ``bias``) of real numbers,
    computed before the one rounding to the result's dtype. ``beta`` needs ``out``, and reads it unless it is 0. ``bias`` is
    one number for each column, ``scale_a`` one for each row or a single one, ``scale_b`` one for each column or a single
    one. Scales of shapes (m, ⌈k/128⌉) and (⌈k/128⌉, ⌈n/128⌉), on a GPU for float8, are those of each row and 128 of k and
    of blocks of 128×128, applied before sums are added up. ``activation`` is "relu", "gelu" (by erf) or "silu".

    ``precision`` promises an error, not instructions: "standard" is the classical bound in the dtype's own roundoff;
    "ieee" has the same bound, by IEEE multiply-adds also where a GPU could keep it faster in another way; "highest" computes
    float16, bfloat16, float32 and complex64 in float64 or complex128 and rounds once. A number, such as 1e-4, bounds the
    error of each element relative to |A||B|, and takes the fastest way whose bound is not above it; "fast" is
    1.01·2⁻¹⁰ + k·2⁻²⁴, or the bound of "standard" where that is wider: float64 may then be computed in float32, and float32
    on a GPU in tf32. ``plan`` prints the bounds. ``algorithm="strassen"`` takes fewer multiplications where the product is
    large enough to gain by it, with a wider, normwise error bound, which ``plan`` prints; it is for float32 and float64.

    ``invariant``, or ``precision="invariant"``: within the bound of "standard" the bits of a row of the result follow from
    that row of ``a`` and from ``b`` alone, on one kind of machine: not from the number of rows, their place, their strides,
    or the batch. So a request to a model gets the same answer, whichever others are computed with it. Few rows may take
    longer. ``$TILEWRIGHT_INVARIANT=1`` asks for it in every such product.

    ``verify`` checks the product afterwards, in O(n²) operations on the host, and logs the error: ``tilewright.verify``.

    Arrays on a GPU (of PyTorch, CuPy, JAX or any library with DLPack or CUDA's array interface) are multiplied there, on
    the caller's current stream, and the result is an array of the library of ``a``: float32, float64, bfloat16, float16,
    int8 and float8 (e4m3fn, e5m2, or one of each), on one GPU. Sums of bfloat16 and float16 are float32, rounded once; those
    of int8 are int8 with wrap-around, or exact with ``out_dtype="int32"``. A product of float8 is bfloat16 by default: each
    128 of k are summed by a tensor core, which keeps 13 bits, and these sums in float32; with "fast" it sums all
    of k. ``precision="tf32"`` may round float32 operands to 10 bits of mantissa, for tensor cores. The call
    returns when the work is submitted, and does not wait for it. PyTorch records gradients, and traces the call in
    ``torch.compile``; ``tilewright.torch`` has more.

    Two lists of as many arrays, each with at least two axes, are multiplied one by one, and the result is the list of the
    products; ``out`` is then a list too. On a GPU lists of one dtype take one launch for up to 512 products of any shapes,
    where that is predicted to be faster than one launch each; the results may then share one allocation.

    ``device`` is for arrays in the host's memory: "cuda" (as many GPUs as make it faster), "cuda:1" or "cuda:0,1" multiply
    them there, block by block, as ``multiply`` does, also where they are larger than a GPU's memory; in float32 or float64.

    Raises ShapeError (k or batch mismatch, a scalar operand, wrong ``out``), DTypeError, OperandError (no usable matrix, or
    operands on different devices), UsageError (an unknown ``precision`` or ``algorithm``, a bound that nothing keeps),
    MemoryLimitError (of the result's size, or a GPU's), VerificationError (a wrong product).

    >>> import numpy as np, tilewright as tw
    >>> a = np.arange(6, dtype=np.float32).reshape(2, 3)
    >>> tw.matmul(a, a.T)
    array([[ 5., 14.],
           [14., 50.]], dtype=float32)
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


#: By this attribute ``torch.compile`` finds what it traces instead of a function; it cannot trace machine code.
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
    """What ``matmul`` with these arguments would run, and why; nothing is multiplied.

    ``a``, ``b`` and ``out`` are arrays, on the host or on a GPU. A tuple of whole numbers as ``a`` or ``b`` is a shape, and
    stands for an array of float64 on the host. With ``alpha``, ``beta`` and ``out`` and nothing else, matrices on the host
    are multiplied by ``gemm(alpha, a, b, beta, out)``, and the plan is that of this call, also for dtypes that only ``gemm``
    takes. A batch times one matrix is planned as one product of all rows, where they lie equally far apart.

    ``plan_multiply`` plans products of files and of matrices larger than memory.

    Raises what the call raises before it multiplies.

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
    """Whether it is a list, not empty, of arrays with at least two axes.

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
    """The ``product`` of each pair of arrays. Raises ShapeError for lists of unequal lengths."""
    if len(a) != len(b) or (out is not None and not (isinstance(out, list) and len(out) == len(a))):
        given = "" if out is None else f", out is {f'one of {len(out)}' if isinstance(out, list) else 'no list'}"
        raise ShapeError(f"a is a list of {len(a)} arrays, b one of {len(b)}{given}: both must have the same length")

    def one(x: Any, y: Any, c: Any = None) -> Any:
        return product(x, y, c, precision=precision, algorithm=algorithm, device=device, out_dtype=out_dtype)

    if out is None and device is None and is_on_gpu(*a, *b):
        from ..gpu.arrays.lists import matmul_lists_on_gpu  # imported only here: products on the host do not need it

        return matmul_lists_on_gpu(a, b, precision, algorithm, out_dtype, one)
    return [one(x, y, c) for x, y, c in zip(a, b, [None] * len(a) if out is None else out, strict=True)]
