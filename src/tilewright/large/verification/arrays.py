"""Products of arrays, verified."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...cpu.runtime.batch import as_matrices
from ...errors import DTypeError, ShapeError, UsageError
from ...gpu.arrays.host_copy import on_host
from ...gpu.arrays.host_libraries import host_library
from ...gpu.arrays.libraries import is_on_gpu
from ...product.operands import NUMPY_DTYPES, admit, asked_dtype, promoted
from ...product.precision import promised_bound
from ...product.problem import combine_shapes
from .comparing import Budget, compare_floats, compare_integers
from .found import Verification

Matrix = np.ndarray


def verify(a: Any, b: Any, c: Any, *, precision: str | float = "standard") -> Verification:
    """Check afterwards that ``c`` is the product of ``a`` and ``b``, as precise as ``precision`` promises.

    The arrays have the shapes and dtypes of a ``matmul`` and its result, which may come from any library: float16,
    bfloat16, float32, float64, complex numbers or integers, in the memory of the host or of a GPU. It takes O(n²) operations
    of NumPy, and copies what is on a GPU. Integers are compared modulo their size: a wrong row passes with a probability of
    at most 2^-7, and one with a single wrong element never. Of rows of A with an infinity or a NaN, and of columns that
    have them throughout, only some elements are compared.

    ``matmul(…, verify=True)`` calls it, and logs what was found at level INFO of the logger "tilewright.verification".

    Returns what was found; ``ok`` is False for a wrong product. Raises ShapeError, DTypeError, and UsageError for a
    precision that has no bound.

    >>> a = np.random.default_rng(1).uniform(-1, 1, (300, 300))
    >>> c = a @ a
    >>> verify(a, a, c).ok
    True
    >>> c[17, 250] += 1e-9
    >>> print(verify(a, a, c, precision=1e-13).where)
    (17, 250)
    """
    place = "gpu" if is_on_gpu(a, b, c) else "cpu"
    x, y, z = (admit(on_host(value), name) for value, name in ((a, "a"), (b, "b"), (c, "c")))
    shapes = combine_shapes(x.shape, y.shape)
    if z.shape != shapes.result:
        raise ShapeError(f"c is {z.shape}, the product is {shapes.result}: c must have exactly this shape")
    dtype = promoted(x.dtype, y.dtype)
    check_dtypes(dtype, z.dtype)
    bound = promised_bound(precision, place, dtype.name, z.dtype.name, shapes.k)
    x, y, z = as_matrices(shapes, x, y, z)
    found = Verification(0.0, bound, (), f"{shapes.m}×{shapes.k} · {shapes.k}×{shapes.n} {dtype}")
    if not z.size or not shapes.k:
        if len(wrong := np.argwhere(z != 0)):
            found = Verification(math.inf, bound, tuple(map(int, wrong[0])), found.what)
    else:
        for index in np.ndindex(z.shape[:-2]):
            three = x[index], y[index], z[index]
            error, where = (
                compare_integers(*three, Budget()) if dtype.kind in "iu" else compare_floats(*three, bound, Budget())
            )
            if not error <= found.error or not found.where:
                found = Verification(error, bound, (*index, *where), found.what)
    return replace(found, where=_in_result(found.where, z.shape, shapes.result))


def multiply_verified(
    product: Callable[..., Any],
    a: Any,
    b: Any,
    out: Any,
    precision: str | float,
    algorithm: str,
    plain: bool,
    **others: Any,
) -> Any:
    """``product(a, b, out, …)``, verified; what was found is logged. Raises VerificationError if it is wrong, and UsageError
    for a product without a bound for each element."""
    if not plain or algorithm != "classical":
        what = "scales, alpha, beta, bias and activation" if not plain else f"algorithm {algorithm!r}"
        raise UsageError(f"verify=True is for A·B by the classical algorithm: leave out {what}")
    if isinstance(a, list) and isinstance(b, list) and a and getattr(a[0], "ndim", 0) > 1:
        outs = [None] * len(a) if out is None else out
        if not len(a) == len(b) == len(outs):
            raise ShapeError(f"a is a list of {len(a)} arrays, b one of {len(b)}, out one of {len(outs)}: not as many")
        each = zip(a, b, outs, strict=True)
        return [multiply_verified(product, *three, precision, algorithm, plain, **others) for three in each]
    library = None if is_on_gpu(a, b) else host_library(a, b)
    x, y = (on_host(a), on_host(b)) if library is None else library.operands(a, b, precision)
    if out is not None:  # it may overlap the operands
        x, y = np.array(x), np.array(y)
    made = _verifiable(x, y, others.get("out_dtype"))
    result = product(a, b, out, precision=precision, algorithm=algorithm, **others)
    of_integers = made.kind in "iu" and out is not None  # these wrap around before they are cast to the dtype of out
    found = verify(x, y, on_host(result).astype(made) if of_integers else result, precision=precision)
    found.report()
    return result


def _in_result(where: tuple[int, ...], matrices: tuple[int, ...], result: tuple[int, ...]) -> tuple[int, ...]:
    """The index of an element of the result, where that of its matrices is ``where``: an axis for a vector is not there."""
    if not where or matrices == result:
        return where
    return tuple(map(int, np.unravel_index(np.ravel_multi_index(where, matrices), result))) if result else ()


def _verifiable(a: Any, b: Any, out_dtype: Any) -> np.dtype:
    """The dtype of a product of arrays on the host before it is cast to that of ``out``. Raises DTypeError for one that
    ``verify`` refuses."""
    dtype = promoted(*(admit(value, name, by_numpy=True).dtype for value, name in ((a, "a"), (b, "b"))))
    made = dtype if out_dtype is None else asked_dtype(out_dtype, dtype)[0]
    check_dtypes(dtype, made)
    return made


def check_dtypes(dtype: np.dtype, result: np.dtype) -> None:
    """Raises DTypeError for a product of ``dtype``, stored as ``result``, that cannot be verified."""
    if dtype.kind == "b" or dtype.name in NUMPY_DTYPES or (dtype.kind in "iu") != (result.kind in "iu"):
        what = f"products of {dtype}" if dtype == result else f"products of {dtype} as {result}"
        raise DTypeError(f"{what} cannot be verified: only integers as integers, and floating-point numbers")
