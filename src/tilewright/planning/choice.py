"""The one chooser: which kernel multiplies, in which dtype, with which parameters, and why.

Every path chooses here: products of arrays on the host, of arrays on a GPU, and of blocks of matrices that are larger than
a memory. No kernel is named here: each declares its dtypes and shapes, and the first that suits, from the highest ``order``
down, is taken. A choice depends only on problem and device, so that the bits of the result do not depend on the number of
threads; with many threads ``of_many`` takes another kernel that has the same bits.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..cpu.engine.numpy_product import numpy_product
from ..cpu.runtime.machine_code import engine_code, why_numpy
from ..errors import DTypeError, UnavailableError, UsageError, did_you_mean
from ..kernels import Kernel
from ..kernels.catalog import cuda_catalog, cuda_engine, cuda_engine_for, engine
from ..product.operands import DTYPES, NUMPY_DTYPES
from ..product.problem import RESIDUES_IN, Problem, itemsize_of
from .bounds import Path, check_precision, path_bound, paths_within
from .tuned import best_params

if TYPE_CHECKING:
    from ..kernels.cuda_kernel import CudaKernel

ALGORITHMS = ("classical", "strassen")
PRECISIONS = ("standard", "highest", "ieee", "tf32", "fast", "invariant")
#: The bound of "standard", and the bits of a row of C follow from that row of A and from B alone.
INVARIANT = "invariant"
#: The environment variable with which every product of "standard" precision is invariant: any value but 0.
VARIABLE = "TILEWRIGHT_INVARIANT"

#: Words of precision that only GPUs have: the dtype of the operands, and that in which they are multiplied.
_ON_GPUS = {"tf32": ("float32", "tf32")}
#: The compute capability whose tensor cores sum as exactly as ``bounds`` says; those of others are not taken unasked.
_BOUNDED = "9.0"
#: The least m·n·k / (m·k + k·n + m·n) with which a product is faster in a narrower dtype, though its operands must be
#: converted. For squares it is a third of their side. Measured on two cores with AVX-512.
_WORTH_NARROWING = 150

#: The dtypes of float32 products that are computed from two float16 for each number, or from one, and how many these are.
SPLIT, ROUNDED = "float16x2", "float16x1"
PLANES = {SPLIT: 2, ROUNDED: 1}
#: The dtypes of float64 and complex128 products that are computed from residues with the classical bound. The kernel
#: declares the first.
RESIDUES, COMPLEX_RESIDUES = "int8x13", "complex_int8x14"

#: dtypes without kernels of their own, and the dtype in which they are computed, which represents their values exactly.
COMPUTED_IN = {"float16": "float32", "bfloat16": "float32", "bool": "float32"}
#: The dtypes in which ``precision="highest"`` computes: the product of two inputs of fewer than 27 bits is exact in them.
WIDEST = {"float16": "float64", "bfloat16": "float64", "float32": "float64", "complex64": "complex128"}

#: A product that is large for every kernel.
_LARGE = (4096, 4096, 4096)

AnyKernel = TypeVar("AnyKernel", Kernel, "CudaKernel", "Kernel | CudaKernel")


@dataclass(frozen=True, eq=False)
class Choice(Generic[AnyKernel]):
    """A kernel, the dtype it works in, all of its parameters, and the reasons for kernel and parameters; the latter as text,
    or as a function that makes it, which takes longer than the choice."""

    kernel: AnyKernel
    compute: str
    params: Mapping[str, Any]
    why: str
    reasons: str | Callable[[], str] = "the kernel's own"

    @property
    def why_params(self) -> str:
        """The reasons for the parameters."""
        return self.reasons if isinstance(self.reasons, str) else self.reasons()


def check_words(precision: str | float, algorithm: str) -> None:
    """Raises UsageError for an unknown precision or algorithm, a number that bounds no error, and for a precision that the
    algorithm does not have."""
    for name, word, known in (("algorithm", algorithm, ALGORITHMS), ("precision", precision, PRECISIONS)):
        if name == "precision" and not isinstance(word, str):
            check_precision(word)
        elif word not in known:
            number = " (or a number, which bounds the error)" if name == "precision" else ""
            raise UsageError(f"{name} {word!r} is not known: {did_you_mean(str(word), known)}{number}")
    if (is_resolved(precision) or precision == INVARIANT) and algorithm != "classical":
        raise UsageError(
            f"algorithm {algorithm!r} has a normwise error bound: precision {precision!r} is for 'classical'"
        )


@functools.cache
def are_all_invariant() -> bool:
    """Whether ``$TILEWRIGHT_INVARIANT`` asks for it; read once."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


def asked_precision(precision: str | float, *, invariant: bool = False) -> str | float:
    """The precision that is planned for: "invariant" for "standard" if that is asked for, here or by the environment.

    Raises UsageError for a precision that has no invariant products.
    """
    if precision == "standard":
        return INVARIANT if invariant or are_all_invariant() else precision
    if invariant and precision != INVARIANT:
        raise UsageError(f"precision {precision!r}: only products of 'standard' precision can be invariant")
    return precision


def is_resolved(precision: str | float) -> bool:
    """Whether the precision is "fast" or a number, which the cheapest path of ``planning.bounds`` keeps."""
    return precision == "fast" or not isinstance(precision, str)


def takes_fastest(precision: str | float) -> bool:
    """Whether all dtypes of ``computed_on_gpu`` keep this precision, so that the fastest of them is taken, not the first."""
    return is_resolved(precision) or precision in _ON_GPUS


# ---- on the CPU ------------------------------------------------------------------------------------------------------


def choose_cpu(problem: Problem, algorithm: str = "classical", operands: str = "") -> Choice[Kernel]:
    """The kernel of the highest order that is made for the shape; if none is, the highest of those for every shape.

    ``algorithm="strassen"`` takes the highest kernel with fewer multiplications; its error bound is normwise, and wider
    (``kernel.error_bound``). ``problem.precision`` is a promise about error. With "standard" every element is within the
    classical bound γ_k·(|A||B|) of the exact one, in the dtype's own unit roundoff (for narrower dtypes that of float32,
    then rounded once), and so it is with "ieee". With "highest" float16, bfloat16, float32 and complex64 are computed in
    float64 or complex128 and rounded once, at half the speed or less: the bound has float64's unit roundoff, plus that one
    rounding. With "fast" or a number the cheapest path is taken that keeps it (``planning.bounds``). float64 and complex128,
    for which there is no wider dtype, and integers, which are exact modulo their size, are computed with "highest" as with
    "standard".

    ``operands`` is their dtype, if it is narrower than that of the product. If a kernel multiplies it to such sums, it is
    taken, and computes in the dtype of the operands.

    NumPy multiplies what no kernel does (long double, Python objects), and everything where there is
    neither a built library nor a compiler (``cpu.runtime.machine_code``).

    Raises DTypeError for a dtype that this algorithm does not multiply, UsageError for an unknown precision or algorithm.

    >>> choose_cpu(Problem(8, 8, 8, "float32", precision="highest")).compute
    'float64'
    """
    check_words(problem.precision, algorithm)
    if problem.precision in _ON_GPUS:
        needed, _ = _ON_GPUS[problem.precision]
        raise UsageError(f"precision {problem.precision!r} is for arrays of {needed} on a GPU")
    return _choice(problem, algorithm, operands, engine_code() is not None)


@functools.lru_cache(maxsize=1024)
def _choice(problem: Problem, algorithm: str, operands: str, compiles: bool) -> Choice[Kernel]:
    dtype = problem.dtype
    widest = WIDEST.get(dtype, dtype) if problem.precision == "highest" else dtype
    if is_resolved(problem.precision):
        path = _cpu_path(problem, compiles)
        widest = dtype if path.word == "standard" else path.compute
    sizes = _LARGE if problem.precision == INVARIANT else (problem.m, problem.n, problem.k)
    if problem.precision == INVARIANT and (dtype in NUMPY_DTYPES or not compiles):
        reason = f"no kernel multiplies {dtype}" if dtype in NUMPY_DTYPES else why_numpy()
        raise UnavailableError(f"precision {INVARIANT!r}: products of NumPy depend on their shape; {reason}")
    if dtype in NUMPY_DTYPES and algorithm == "classical":
        return _chosen(numpy_product, dtype, f"no kernel multiplies {dtype}")
    if not compiles:
        return _chosen(numpy_product, COMPUTED_IN.get(widest, widest), why_numpy())
    if widest == dtype and (summing := _summing(operands, problem.dtype, algorithm, sizes)) is not None:
        return _chosen(summing, operands, f"the engine's fastest kernel for {operands} whose sums are {dtype}")
    for compute in dict.fromkeys((widest, COMPUTED_IN.get(widest, widest))):
        kernel, why = _suiting(compute, algorithm, *sizes)
        if kernel is not None:
            why = (
                why
                if sizes is not _LARGE
                else f"the engine's fastest kernel for large products of {compute}, of any shape"
            )
            return _chosen(kernel, compute, why)
    known = {dtype for kernel in _highest_first(algorithm) for dtype in kernel.dtypes}
    possible = ", ".join(name for name in DTYPES if {name, COMPUTED_IN.get(name)} & known)
    kernel_text = "kernel" if algorithm == "classical" else f"{algorithm} kernel"
    raise DTypeError(f"no {kernel_text} multiplies {dtype}: it must be one of {possible}")


def of_many(choice: Choice[Kernel], problem: Problem, threads: int) -> Choice[Kernel]:
    """The choice for so many threads: another kernel with the same bits, where the chosen one names one."""
    name, suits = choice.kernel.for_many or ("", None)
    if suits is None or not suits(problem.m, problem.n, problem.k, threads, itemsize_of(choice.compute)):
        return choice
    other = engine()[name]
    return _chosen(other, choice.compute, f"it has the bits of {choice.kernel.name}, and is faster with many threads")


def _summing(operands: str, dtype: str, algorithm: str, shape: tuple[int, int, int]) -> Kernel | None:
    """The highest kernel that multiplies these operands to sums of that dtype."""
    able = (kernel for kernel in _highest_first(algorithm) if kernel.sums.get(operands) == dtype)
    return next((kernel for kernel in able if kernel.suits is None or kernel.suits(*shape)), None)


def _cpu_path(problem: Problem, compiles: bool) -> Path:
    """The cheapest path that keeps the precision. A narrower dtype than that of the operands is taken only where the product
    is large enough to gain by it."""
    m, n, k = problem.m, problem.n, problem.k
    if problem.dtype in NUMPY_DTYPES and problem.precision != "fast":
        raise UsageError(f"precision {problem.precision!r}: no error bound is known for {problem.dtype}; leave it out")
    kept = paths_within(problem.precision, "cpu", problem.dtype, k)
    is_large = compiles and m * n * k >= _WORTH_NARROWING * (m * k + k * n + m * n) > 0
    return next((path for path in kept if path.word != "narrow" or is_large), kept[0])


@functools.cache
def choose_adding_cpu(dtype: str) -> Choice[Kernel] | None:
    """The highest kernel that can add to C and suits large products here; None where none multiplies the dtype.

    It multiplies every shape: ``suits`` says where it is the fastest.
    """
    able = [kernel for kernel in _highest_first("classical") if kernel.adds and dtype in kernel.dtypes]
    suiting = (kernel for kernel in able if kernel.suits is None or kernel.suits(*_LARGE))
    kernel = next(suiting, able[-1] if able else None)
    return None if kernel is None else _chosen(kernel, dtype, f"the engine's fastest kernel for {dtype} that adds to C")


def error_factor(kernel: Kernel, problem: Problem) -> float | None:
    """The factor of a normwise error bound; None where the classical bound holds."""
    if kernel.error_bound is None:
        return None
    params = {name: kernel.params[name] for name in kernel.tunable}
    return kernel.error_bound(problem.m, problem.n, problem.k, **params)


def _chosen(kernel: Kernel, compute: str, why: str) -> Choice[Kernel]:
    return Choice(kernel, compute, kernel.params, why)


def _suiting(compute: str, algorithm: str, m: int, n: int, k: int) -> tuple[Kernel | None, str]:
    """The kernel to take, and the reason as text."""
    able = [kernel for kernel in _highest_first(algorithm) if compute in kernel.dtypes]
    if algorithm != "classical":
        if able and error_factor(able[0], Problem(m, n, k)) is None:
            kernel, why = _suiting(compute, "classical", m, n, k)
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


@functools.cache
def _highest_first(algorithm: str) -> tuple[Kernel, ...]:
    """The engine's kernels of that algorithm, highest order first; rungs of the ladder are never chosen."""
    of_algorithm = [
        kernel for kernel in engine().values() if (kernel.error_bound is None) == (algorithm == "classical")
    ]
    return tuple(sorted(of_algorithm, key=lambda kernel: -kernel.order))


# ---- on a GPU --------------------------------------------------------------------------------------------------------


def computed_on_gpu(
    dtype: str, precision: str | float, result: str = "", k: int = 1, capability: str = _BOUNDED
) -> tuple[str, ...]:
    """The dtypes in which a GPU may multiply arrays of ``dtype``, of which the first that has a kernel for the shape, and
    for the ``result``, is taken, or the fastest of those if ``takes_fastest(precision)``: with "fast" or a number those that
    keep it for this ``k`` on a GPU of that compute ``capability``, with "tf32" also its own, with "highest" the widest,
    otherwise its own, or one that holds all of its values, or those of the result. Raises UsageError for a precision that
    the dtype does not have.

    >>> computed_on_gpu("float16", "standard"), computed_on_gpu("float16", "highest"), computed_on_gpu("float32", "tf32")
    (('float16', 'float32'), ('float64',), ('tf32', 'float32'))
    """
    if is_resolved(precision):
        if dtype == "float8":
            return ("float8_fast",) if precision == "fast" else _no_bound(dtype, precision)
        kept = paths_within(precision, "gpu", dtype, k)
        lossy = [path.compute for path in kept if path.word not in ("standard", "highest")]
        word = next(path.word for path in kept if path.compute not in lossy)
        cheapest = lossy[:1] if lossy and lossy[0] in RESIDUES_IN else lossy  # more residues only take longer
        narrow = tuple(path for path in cheapest if capability == _BOUNDED or path in RESIDUES_IN)  # these are exact
        return (*narrow, *computed_on_gpu(dtype, word, result))
    if precision in _ON_GPUS:
        needed, compute = _ON_GPUS[str(precision)]
        if dtype != needed:
            raise UsageError(f"precision {precision!r} is for arrays of {needed} on a GPU, got {dtype}")
        # Its own dtype, in which no operand is rounded, keeps the bound too, but for sums of very many products.
        is_kept = path_bound(dtype, dtype, k) <= path_bound(dtype, compute, k)
        return (compute, dtype) if is_kept else (compute,)
    wider = result if result in ("float32", "float64") and dtype in ("float16", "bfloat16", "float32") else dtype
    if precision == "highest":
        return (WIDEST.get(dtype, wider),)
    return tuple(dict.fromkeys((dtype, COMPUTED_IN.get(dtype, dtype), wider)))


def _no_bound(dtype: str, precision: object) -> tuple[str, ...]:
    raise UsageError(
        f"precision {precision!r}: products of {dtype} have no such bound; they have 'standard' and 'fast'"
    )


@functools.cache
def engine_on_gpu(dtype: str, capability: str) -> tuple[CudaKernel, ...]:
    """The engine's kernels for a dtype on a GPU of that compute capability."""
    return tuple(kernel for kernel in cuda_engine_for(dtype) if kernel.fits(capability))


@functools.cache
def invariant_on_gpu(dtype: str, capability: str) -> tuple[CudaKernel, ...]:
    """Those of ``engine_on_gpu`` that make invariant products, all with the same bits: they are for the newest GPUs."""
    return of_newest([kernel for kernel in engine_on_gpu(dtype, capability) if kernel.invariant is not None])


def of_newest(kernels: Sequence[CudaKernel]) -> tuple[CudaKernel, ...]:
    """The kernels that are for the newest GPUs."""
    newest = {float(kernel.capability.rstrip("af")): kernel.capability for kernel in kernels}
    return tuple(kernel for kernel in kernels if kernel.capability == newest[max(newest)])


def choose_gpu(
    dtype: str, m: int, n: int, k: int, *, capability: str, sms: int = 132, gpu: str = "", adds: bool = False
) -> Choice[CudaKernel]:
    """The highest rung for C[m×n] = A[m×k]·B[k×n] of ``dtype`` on the GPU named ``gpu``, of that compute capability and with
    ``sms`` multiprocessors; with ``adds`` only one that can add to C.

    Its parameters are those that ``tilewright tune`` found for this GPU and size; otherwise a preset of the kernel;
    otherwise its defaults. Raises DTypeError where no kernel is for the dtype.

    >>> choose_gpu("float64", 4096, 4096, 4096, capability="9.0").kernel.name
    'cuda/dgemm_tensor'
    """
    kernel, why = _suiting_gpu(dtype, m, n, k, capability, adds)
    tuned = best_params(kernel, gpu, dtype, (m, n, k)) if gpu else None
    if tuned is not None:
        return Choice(kernel, dtype, tuned, why, "found by tilewright tune for this GPU and sizes like these")
    preset = kernel.preset(m, n, k, sms)
    if preset is not None:
        why_preset = f"the kernel's preset that gives each of {sms} multiprocessors the fairest share of this size"
        return Choice(kernel, dtype, kernel.checked(preset.params), why, why_preset)
    return Choice(kernel, dtype, kernel.params, why, "the kernel's defaults")


def _suiting_gpu(dtype: str, m: int, n: int, k: int, capability: str, adds: bool) -> tuple[CudaKernel, str]:
    able = [kernel for kernel in _able_on_gpu(dtype, capability) if kernel.adds or not adds]
    for kernel in able:
        if kernel.suits is not None and kernel.suits(m=m, n=n, k=k):
            return kernel, f"the highest rung for {dtype} that suits this shape, on compute capability {capability}"
    rest = next((kernel for kernel in able if kernel.suits is None), None)
    if rest is None:
        every = [*_on_gpus(), *cuda_engine().values()]
        known = sorted({dtype for kernel in every for dtype in kernel.dtypes if kernel.precision == "standard"})
        what = f"adds products of {dtype} to C" if adds else f"multiplies {dtype}"
        raise DTypeError(f"no kernel {what} on compute capability {capability}: {', '.join(known)} have kernels")
    return rest, f"the highest rung for {dtype} that compute capability {capability} has; none above suits"


def _able_on_gpu(dtype: str, capability: str) -> list[CudaKernel]:
    return [x for x in _on_gpus() if dtype in x.dtypes and x.precision == "standard" and x.fits(capability)]


def _on_gpus() -> list[CudaKernel]:
    """The rungs that take pointers, as all shapes need, the highest first."""
    rungs = (kernel for kernel in cuda_catalog().values() if not kernel.boxes)
    return sorted(rungs, key=lambda kernel: -kernel.order)
