"""Chooses the kernel for a product on the CPU, with its dtype and parameters, and gives the reasons.

No kernel is named here. Each kernel declares its dtypes and the shapes that suit it; the suitable kernel with the
highest ``order`` is chosen. The choice depends only on the problem and the machine. The bits of the result do not
depend on the number of threads: with many threads ``for_many_threads`` may take another kernel, but that kernel gives
the same bits. Kernels that exist only as steps of the optimisation ladder are never chosen.
"""

from __future__ import annotations

import functools

from ..errors import DTypeError, UnavailableError, UsageError
from ..kernels import Kernel
from ..kernels.catalog import engine
from ..product.operands import DTYPES, NUMPY_ONLY_DTYPES
from ..product.plan import Choice
from ..product.precision import (
    COMPUTED_IN,
    GPU_PRECISIONS,
    INVARIANT,
    WIDEST,
    Path,
    check_words,
    is_error_goal,
    paths_within,
)
from ..product.problem import Problem, itemsize_of
from .engine.numpy_product import numpy_product
from .runtime.machine_code import engine_code, why_numpy

#: The least m·n·k / (m·k + k·n + m·n) with which a product is faster in a narrower dtype, though its operands must be
#: converted. For squares it is a third of their side. Measured on two cores with AVX-512.
_WORTH_NARROWING = 150
#: A product that is large for every kernel.
_LARGE = (4096, 4096, 4096)


def choose_cpu(problem: Problem, algorithm: str = "classical", operands: str = "") -> Choice[Kernel]:
    """Return, of the kernels that suit the shape, the one with the highest ``order``; if none suits it, the one with
    the highest ``order`` of those that are for every shape.

    With ``algorithm="strassen"``, only kernels are considered that need fewer multiplications than the classical
    algorithm. The error bound of such a kernel is wider and holds for the norm of the result (``kernel.error_bound``).

    ``problem.precision`` is the guaranteed error bound of the product. With "standard" and "ieee" the error of each
    element is at most the classical bound γ_k·(|A||B|), where γ_k has the unit roundoff of the element's dtype. For
    dtypes narrower than float32, the bound has the unit roundoff of float32, plus one rounding. With "highest" products
    of float16, bfloat16, float32 and complex64 are computed in float64 or complex128 and rounded once, at half the
    speed or less. The bound of "highest" has the unit roundoff of float64, plus one rounding to the dtype of the
    result.

    With "fast" or a number, the product is computed in the cheapest way that keeps the bound (``product.precision``).
    With "highest", products of float64, complex128 and integers are computed as with "standard": no wider dtype exists,
    and integers are exact modulo their size.

    ``operands`` is the dtype of the operands, if it is narrower than the dtype of the product. If a kernel multiplies
    the narrower dtype and accumulates in the dtype of the product, that kernel is taken.

    NumPy multiplies dtypes without a kernel (long double, Python objects). NumPy also multiplies everything if there is
    neither a built library nor a compiler (``cpu.runtime.machine_code``).

    Raises DTypeError for a dtype that the algorithm does not multiply, and UsageError for an unknown precision or
    algorithm.

    >>> choose_cpu(Problem(8, 8, 8, "float32", precision="highest")).compute
    'float64'
    """
    check_words(problem.precision, algorithm)
    if problem.precision in GPU_PRECISIONS:
        needed, _ = GPU_PRECISIONS[problem.precision]
        raise UsageError(f"precision {problem.precision!r} is for arrays of {needed} on a GPU")
    return _choose_cpu_cached(problem, algorithm, operands, engine_code() is not None)


@functools.lru_cache(maxsize=1024)  # plans for one thread and for many ask for the same
def _choose_cpu_cached(problem: Problem, algorithm: str, operands: str, compiles: bool) -> Choice[Kernel]:
    dtype = problem.dtype
    widest = WIDEST.get(dtype, dtype) if problem.precision == "highest" else dtype
    if is_error_goal(problem.precision):
        path = _cpu_path(problem, compiles)
        widest = dtype if path.word == "standard" else path.compute
    sizes = _LARGE if problem.precision == INVARIANT else (problem.m, problem.n, problem.k)
    if problem.precision == INVARIANT and (dtype in NUMPY_ONLY_DTYPES or not compiles):
        reason = f"no kernel multiplies {dtype}" if dtype in NUMPY_ONLY_DTYPES else why_numpy()
        raise UnavailableError(f"precision {INVARIANT!r}: products of NumPy depend on their shape; {reason}")
    if dtype in NUMPY_ONLY_DTYPES and algorithm == "classical":
        return _make_choice(numpy_product, dtype, f"no kernel multiplies {dtype}")
    if not compiles:
        return _make_choice(numpy_product, COMPUTED_IN.get(widest, widest), why_numpy())
    if widest == dtype and (summing := _kernel_with_wider_sums(operands, problem.dtype, algorithm, sizes)) is not None:
        return _make_choice(summing, operands, f"the engine's fastest kernel for {operands} whose sums are {dtype}")
    for compute in dict.fromkeys((widest, COMPUTED_IN.get(widest, widest))):
        kernel, why = _best_kernel(compute, algorithm, *sizes)
        if kernel is not None:
            why = (
                why
                if sizes is not _LARGE
                else f"the engine's fastest kernel for large products of {compute}, of any shape"
            )
            return _make_choice(kernel, compute, why)
    known = {dtype for kernel in _highest_first(algorithm) for dtype in kernel.dtypes}
    possible = ", ".join(name for name in DTYPES if {name, COMPUTED_IN.get(name)} & known)
    kernel_text = "kernel" if algorithm == "classical" else f"{algorithm} kernel"
    raise DTypeError(f"no {kernel_text} multiplies {dtype}: it must be one of {possible}")


def for_many_threads(choice: Choice[Kernel], problem: Problem, threads: int) -> Choice[Kernel]:
    """Return the choice of a kernel for this number of threads. If the chosen kernel names another kernel that gives
    the same bits and is faster with many threads, the other kernel is returned."""
    name, suits = choice.kernel.for_many or ("", None)
    if suits is None or not suits(problem.m, problem.n, problem.k, threads, itemsize_of(choice.compute)):
        return choice
    other = engine()[name]
    return _make_choice(
        other, choice.compute, f"it has the bits of {choice.kernel.name}, and is faster with many threads"
    )


def _kernel_with_wider_sums(operands: str, dtype: str, algorithm: str, shape: tuple[int, int, int]) -> Kernel | None:
    """The highest kernel that multiplies these operands to sums of that dtype."""
    able = (kernel for kernel in _highest_first(algorithm) if kernel.sums.get(operands) == dtype)
    return next((kernel for kernel in able if kernel.suits is None or kernel.suits(*shape)), None)


def _cpu_path(problem: Problem, compiles: bool) -> Path:
    """The cheapest path that keeps the precision. A narrower dtype than that of the operands is taken only where the product
    is large enough to gain by it."""
    m, n, k = problem.m, problem.n, problem.k
    if problem.dtype in NUMPY_ONLY_DTYPES and problem.precision != "fast":
        raise UsageError(f"precision {problem.precision!r}: no error bound is known for {problem.dtype}; leave it out")
    kept = paths_within(problem.precision, "cpu", problem.dtype, k)
    is_large = compiles and m * n * k >= _WORTH_NARROWING * (m * k + k * n + m * n) > 0
    return next((path for path in kept if path.word != "narrow" or is_large), kept[0])


@functools.cache  # each call of ``gemm`` asks
def choose_adding_cpu(dtype: str) -> Choice[Kernel] | None:
    """Return the kernel with the highest order that can add its product to C and suits large products on this machine.
    The result is None if no kernel that adds to C multiplies the dtype.

    The returned kernel computes products of every shape; its ``suits`` only says for which shapes it is the fastest.
    """
    able = [kernel for kernel in _highest_first("classical") if kernel.adds and dtype in kernel.dtypes]
    suiting = (kernel for kernel in able if kernel.suits is None or kernel.suits(*_LARGE))
    kernel = next(suiting, able[-1] if able else None)
    return (
        None
        if kernel is None
        else _make_choice(kernel, dtype, f"the engine's fastest kernel for {dtype} that adds to C")
    )


def error_factor(kernel: Kernel, problem: Problem) -> float | None:
    """Return the factor of the kernel's error bound for the norm of the result; None if the classical bound holds."""
    if kernel.error_bound is None:
        return None
    params = {name: kernel.params[name] for name in kernel.tunable}
    return kernel.error_bound(problem.m, problem.n, problem.k, **params)


def _make_choice(kernel: Kernel, compute: str, why: str) -> Choice[Kernel]:
    return Choice(kernel, compute, kernel.params, why)


def _best_kernel(compute: str, algorithm: str, m: int, n: int, k: int) -> tuple[Kernel | None, str]:
    """The kernel to take, and the reason as text."""
    able = [kernel for kernel in _highest_first(algorithm) if compute in kernel.dtypes]
    if algorithm != "classical":
        if able and error_factor(able[0], Problem(m, n, k)) is None:
            kernel, why = _best_kernel(compute, "classical", m, n, k)
            return kernel or able[0], f"{why}; {algorithm} gains nothing at this size"
        why = f"the engine's highest {algorithm} kernel for {compute}: fewer multiplications, a wider error bound"
        return (able[0] if able else None), why
    for kernel in able:
        if kernel.suits is not None and kernel.suits(m, n, k):
            return (
                kernel,
                f"the engine's fastest kernel for {compute} that suits this shape, with the classical error bound",
            )
    why = f"the engine's kernel for {compute} that takes every shape; none that is faster suits this one"
    return next((kernel for kernel in able if kernel.suits is None), None), why


@functools.cache  # for each new shape
def _highest_first(algorithm: str) -> tuple[Kernel, ...]:
    """The engine's kernels of that algorithm, highest order first; rungs of the ladder are never chosen."""
    of_algorithm = [
        kernel for kernel in engine().values() if (kernel.error_bound is None) == (algorithm == "classical")
    ]
    return tuple(sorted(of_algorithm, key=lambda kernel: -kernel.order))
