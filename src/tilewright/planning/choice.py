"""The one chooser: which kernel multiplies, in which dtype, with which parameters, and why.

Every path asks here: products of arrays on the host, of arrays on a GPU, and of blocks of matrices that are larger than a
memory. No kernel is known by name: each says which dtypes and shapes it is for, and kernels are asked from the highest
``order`` down. A choice depends on the problem and the device alone, never on the number of threads, as the bits must.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..catalog import catalog, cuda_catalog
from ..engine.numpy_product import numpy_product
from ..errors import DTypeError, UsageError, did_you_mean
from ..kernels import CudaKernel, Kernel
from ..operands import DTYPES, NUMPY_DTYPES
from ..problem import Problem
from .tuned import best_params

ALGORITHMS = ("classical", "strassen")
PRECISIONS = ("standard", "highest")

#: dtypes without kernels of their own, and one that holds them exactly.
_HELD_BY = {"float16": "float32", "bfloat16": "float32", "bool": "float32"}
#: What ``precision="highest"`` computes in: with inputs of fewer than 27 bits, not even their products are rounded there.
_WIDEST = {"float16": "float64", "bfloat16": "float64", "float32": "float64", "complex64": "complex128"}

AnyKernel = TypeVar("AnyKernel", Kernel, CudaKernel, Kernel | CudaKernel)


@dataclass(frozen=True, eq=False)
class Choice(Generic[AnyKernel]):
    """A kernel, the dtype it works in, all of its parameters, and the reasons for kernel and parameters."""

    kernel: AnyKernel
    compute: str
    params: Mapping[str, Any]
    why: str
    why_params: str = "the kernel's own"


def check_words(precision: str, algorithm: str) -> None:
    """Raises UsageError for a precision or an algorithm that is not known."""
    for name, word, known in (("algorithm", algorithm, ALGORITHMS), ("precision", precision, PRECISIONS)):
        if word not in known:
            raise UsageError(f"{name} {word!r} is not known: {did_you_mean(str(word), known)}")


# ---- on the CPU ------------------------------------------------------------------------------------------------------


def choose_cpu(problem: Problem, algorithm: str = "classical") -> Choice[Kernel]:
    """The kernel of the highest order that suits the problem, and of those without a shape of their own the highest.

    ``algorithm="strassen"`` takes the highest kernel with fewer multiplications; its error bound is normwise, and wider
    (``kernel.error_bound``). ``problem.precision`` is a promise about error. With "standard" every element is within the
    classical bound γ_k·(|A||B|) of the exact one, in the dtype's own unit roundoff (that of float32 for what is narrower,
    then rounded once). With "highest" float16, bfloat16, float32 and complex64 are computed in float64 or complex128 and
    rounded once, at half the speed or less: the bound has float64's unit roundoff, plus that one rounding. float64 and
    complex128, for which nothing is wider, and integers, which are exact modulo their size, are computed as ever.

    What no kernel multiplies and NumPy does (long double, Python objects) is left to NumPy, and so is everything where
    ``$NUMBA_DISABLE_JIT`` forbids to compile.

    Raises DTypeError for a dtype that can be multiplied in none of these ways, UsageError for a word that is not known.

    >>> choose_cpu(Problem(8, 8, 8, "float32", precision="highest")).compute
    'float64'
    """
    from ..codegen.jit import jit_is_disabled  # Numba, of which a choice for a GPU has no need, takes long to import

    check_words(problem.precision, algorithm)
    return _choice(problem, algorithm, not jit_is_disabled())


@functools.lru_cache(maxsize=1024)
def _choice(problem: Problem, algorithm: str, compiles: bool) -> Choice[Kernel]:
    dtype = problem.dtype
    widest = _WIDEST.get(dtype, dtype) if problem.precision == "highest" else dtype
    if dtype in NUMPY_DTYPES and algorithm == "classical":
        return _chosen(numpy_product, dtype, f"no kernel multiplies {dtype}")
    if not compiles:
        why = "$NUMBA_DISABLE_JIT is set, so no kernel can be compiled"
        return _chosen(numpy_product, _HELD_BY.get(widest, widest), why)
    for compute in dict.fromkeys((widest, _HELD_BY.get(widest, widest))):
        kernel, why = _suiting(compute, algorithm, problem.m, problem.n, problem.k)
        if kernel is not None:
            return _chosen(kernel, compute, why)
    known = {dtype for kernel in _highest_first(algorithm) for dtype in kernel.dtypes}
    can = ", ".join(name for name in DTYPES if {name, _HELD_BY.get(name)} & known)
    raise DTypeError(f"no {'' if algorithm == 'classical' else algorithm + ' '}kernel multiplies {dtype}: {can} can be")


@functools.cache
def choose_adding_cpu(dtype: str) -> Choice[Kernel] | None:
    """The highest kernel that can add to C and takes every shape; None where none multiplies the dtype."""
    able = (kernel for kernel in _highest_first("classical") if kernel.adds and dtype in kernel.dtypes)
    kernel = next(able, None)
    return None if kernel is None else _chosen(kernel, dtype, f"the engine's highest kernel for {dtype} that adds to C")


def error_factor(kernel: Kernel, problem: Problem) -> float | None:
    """The factor of a normwise error bound; None where the classical bound holds."""
    if kernel.error_bound is None:
        return None
    given = {name: kernel.params[name] for name in kernel.tunable}
    return kernel.error_bound(problem.m, problem.n, problem.k, **given)


def _chosen(kernel: Kernel, compute: str, why: str) -> Choice[Kernel]:
    return Choice(kernel, compute, kernel.params, why)


def _suiting(compute: str, algorithm: str, m: int, n: int, k: int) -> tuple[Kernel | None, str]:
    """The kernel to take and the reason, in words."""
    able = [kernel for kernel in _highest_first(algorithm) if compute in kernel.dtypes]
    if algorithm != "classical":
        if able and error_factor(able[0], Problem(m, n, k)) is None:
            kernel, why = _suiting(compute, "classical", m, n, k)
            return kernel or able[0], f"{why}; {algorithm} gains nothing at this size"
        words = f"the engine's highest {algorithm} kernel for {compute}: fewer multiplications, a wider error bound"
        return (able[0] if able else None), words
    for kernel in able:
        if kernel.suits is not None and kernel.suits(m, n, k):
            return (
                kernel,
                f"the engine's highest kernel for {compute} that suits this shape, with the classical error bound",
            )
    why = f"the engine's highest kernel for {compute} that takes every shape; none above suits this one"
    return next((kernel for kernel in able if kernel.suits is None), None), why


@functools.cache
def _highest_first(algorithm: str) -> tuple[Kernel, ...]:
    """The engine's kernels; the ladder is for reading."""
    found = [kernel for kernel in catalog().values() if kernel.device == "cpu" and not kernel.is_rung]
    chosen = [kernel for kernel in found if (kernel.error_bound is None) == (algorithm == "classical")]
    return tuple(sorted(chosen, key=lambda kernel: -kernel.order))


# ---- on a GPU --------------------------------------------------------------------------------------------------------


def choose_gpu(
    dtype: str, m: int, n: int, k: int, *, capability: str, sms: int = 132, gpu: str = "", adds: bool = False
) -> Choice[CudaKernel]:
    """The highest rung for C[m×n] = A[m×k]·B[k×n] of ``dtype`` on a GPU of that compute capability, with ``sms``
    multiprocessors, and of that name; with ``adds`` only one that can add to C.

    What ``tilewright tune`` found for this GPU and size goes before the kernel's own presets, and these before its defaults.
    Raises DTypeError where no kernel is for the dtype.

    >>> choose_gpu("float64", 4096, 4096, 4096, capability="9.0").kernel.name
    'cuda/dgemm_tensor'
    """
    kernel, why = _suiting_gpu(dtype, m, n, k, capability, adds)
    tuned = best_params(kernel, gpu, dtype, (m, n, k)) if gpu else None
    if tuned is not None:
        return Choice(kernel, dtype, tuned, why, "found by tilewright tune for this GPU and sizes like these")
    preset = kernel.preset(m, n, k, sms)
    if preset is not None:
        words = f"the kernel's preset that gives each of {sms} multiprocessors the fairest share of this size"
        return Choice(kernel, dtype, kernel.checked(preset.params), why, words)
    return Choice(kernel, dtype, kernel.params, why, "the kernel's defaults")


def _suiting_gpu(dtype: str, m: int, n: int, k: int, capability: str, adds: bool) -> tuple[CudaKernel, str]:
    rungs = sorted(cuda_catalog().values(), key=lambda kernel: -kernel.order)
    able = [x for x in rungs if dtype in x.dtypes and x.precision == "standard" and x.fits(capability)]
    if adds:
        able = [kernel for kernel in able if kernel.adds]
    for kernel in able:
        if kernel.suits is not None and kernel.suits(m=m, n=n, k=k):
            return kernel, f"the highest rung for {dtype} that suits this shape, on compute capability {capability}"
    rest = next((kernel for kernel in able if kernel.suits is None), None)
    if rest is None:
        known = sorted({dtype for kernel in rungs for dtype in kernel.dtypes if kernel.precision == "standard"})
        what = f"adds products of {dtype} to C" if adds else f"multiplies {dtype}"
        raise DTypeError(f"no kernel {what} on compute capability {capability}: {', '.join(known)} have some")
    return rest, f"the highest rung for {dtype} that compute capability {capability} has; none above suits"
