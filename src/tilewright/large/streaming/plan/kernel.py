"""Chooses the kernel that multiplies the blocks of a product that does not fit in memory. The kernel must be able to
add to C, and must guarantee the precision.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from ....errors import UsageError
from ....gpu.planning.choice import choose_gpu, engine_on_gpu
from ....gpu.planning.ways import EngineShape, timed_ways
from ....kernels.cuda_kernel import Card, CudaKernel
from ....product.plan import AnyKernel, Choice
from ....product.precision import COMPUTED_IN, ROUNDED, SPLIT, WIDEST, blocks_bound

#: The longest side of the blocks for which the kernel's parameters are chosen. The bits of a product do not depend on these.
_SIDE = 16384
#: The parts of float32 numbers that each precision takes.
_PARTED = {"standard": SPLIT, "fast": ROUNDED}


def result_words(result: str) -> tuple[str, ...]:
    """Return the names of the precisions that are tried if ``precision`` is a number and C has the dtype ``result``,
    the cheapest first.

    >>> result_words("float32"), result_words("complex64"), result_words("int8")
    (('fast', 'standard', 'highest'), ('standard', 'highest'), ('standard',))
    """
    return ("fast",) * (result == "float32") + ("standard",) + ("highest",) * (result in WIDEST)


def dtype_in_blocks(dtype: str, precision: str | float) -> str:
    """Return the dtype in which blocks of a product of ``dtype`` are multiplied. With the precision "highest" this is a
    wider dtype, if ``dtype`` has one.

    Blocks of float16, bfloat16 and bool are multiplied in float32, as in ``matmul``, because no kernel for these dtypes
    adds to C.

    >>> dtype_in_blocks("float32", "highest"), dtype_in_blocks("float32", "ieee"), dtype_in_blocks("bool", "standard")
    ('float64', 'float32', 'float32')
    """
    wide = WIDEST.get(dtype, dtype) if precision == "highest" else dtype
    return COMPUTED_IN.get(wide, wide)


def choose_streamed(
    dtype: str, m: int, n: int, k: int, *, capability: str, sms: int, gpu: str = "", precision: str = "standard"
) -> Choice[CudaKernel]:
    """Return the kernel for blocks of C[m×n] = A[m×k]·B[k×n] on the GPU ``gpu``, which has this compute capability and
    ``sms`` multiprocessors.

    A float32 product is computed from float16 parts if the GPU has a kernel for such parts and the product is large
    enough. With ``precision`` "standard", each float32 number is split into two parts; with "fast" it is rounded to one
    part; with "ieee" parts are never used. With the precision "highest" a float32 product is computed in float64. All
    other products are computed by the last kernel of the ladder that can add to C. The choice of the kernel depends
    only on the dtype, the precision and the shape of the product, and on the GPU. Raises DTypeError if there is no
    kernel for the dtype.

    >>> choose_streamed("float32", 4096, 4096, 4096, capability="9.0", sms=132).compute
    'float16x2'
    >>> choose_streamed("float32", 4096, 4096, 4096, capability="8.0", sms=108).compute
    'float32'
    """
    dtype = dtype_in_blocks(dtype, "standard") if precision != "highest" else dtype
    if dtype == "float32" and precision in _PARTED:
        parted = _PARTED[precision]
        for kernel in engine_on_gpu(parted, capability):
            if kernel.suits is not None and kernel.suits(m=m, n=n, k=k, batch=1):
                block = EngineShape(parted, dtype, min(m, _SIDE), min(n, _SIDE), min(k, _SIDE))
                best = timed_ways(kernel, block, Card(gpu, sms)).fastest
                why = f"tensor cores of compute capability {capability} multiply float16 parts faster than float32"
                return Choice(kernel, parted, best.params, why, "predicted to be the fastest for large blocks")
    dtype = dtype_in_blocks(dtype, precision)
    return choose_gpu(dtype, m, n, k, capability=capability, sms=sms, gpu=gpu, adds=True)


def choose_within(
    precision: str | float,
    stored: Sequence[str],
    result: str,
    k: int,
    choose: Callable[[str], tuple[Choice[AnyKernel], int]],
) -> Choice[AnyKernel]:
    """Return the choice of a kernel for a named ``precision``, or, for a number, the cheapest choice whose error bound
    is at most this number.

    ``choose(word)`` returns the choice for a named precision, and the longest part of k that the kernel sums before it
    adds to C. The error bound is that of the whole product, for operands with the dtypes ``stored`` and a C with the
    dtype ``result`` (``blocks_bound``). Raises UsageError if no choice has a bound as small as the number.
    """
    if isinstance(precision, str):
        return choose(precision)[0]
    bounds: dict[str, float] = {}
    for word in result_words(result):
        choice, part = choose(word)
        bounds[word] = blocks_bound(stored, result, choice.compute, k, part)
        if bounds[word] <= precision:
            return dataclasses.replace(choice, why=f"{choice.why}; the cheapest that keeps precision {precision:g}")
    best = min(bounds, key=bounds.__getitem__)
    raise UsageError(
        f"precision {precision:g}: with k = {k:,} the best bound for C of {result} is {bounds[best]:.2g} "
        f"(precision {best!r}); ask for that or more"
    )


def word_of_choice(compute: str, result: str) -> str:
    """Return the name of the precision of a product whose blocks are multiplied in the format ``compute`` and whose C
    has the dtype ``result``.

    >>> word_of_choice("float16x1", "float32"), word_of_choice("float64", "float32"), word_of_choice("float64", "float64")
    ('fast', 'highest', 'standard')
    """
    return "fast" if compute == ROUNDED else "highest" if compute == WIDEST.get(result) else "standard"
