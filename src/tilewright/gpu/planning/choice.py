"""The dtypes in which a GPU can compute a product, the kernels for these dtypes, and the parameters of kernels.

``gpu.arrays.choose`` compares the predicted times of the engine's kernels. Blocks of products larger than a memory are
also multiplied by rungs of the ladder, because rungs can add to C in any order of k (``choose_gpu``). This module names
no kernel: each kernel declares its dtypes and the shapes that suit it. Among the rungs, the suitable one with the
highest ``order`` is taken. ``tilewright tune`` stores the best parameters that it found for a GPU in the user's cache.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from ...errors import DTypeError, UsageError
from ...host.disk import CacheFile, fingerprint
from ...kernels.catalog import cuda_catalog, cuda_engine, cuda_engine_for
from ...kernels.cuda_kernel import Card, CudaKernel
from ...product.plan import Choice
from ...product.precision import COMPUTED_IN, GPU_PRECISIONS, WIDEST, is_error_goal, path_bound, paths_within
from ...product.residues import RESIDUES_IN

#: The only compute capability for which ``product.precision`` knows how tensor cores sum. On others a path that rounds the
#: operands must be requested by name.
_CAPABILITY_WITH_KNOWN_BOUND = "9.0"
_FOLDER = CacheFile("tuned", "")
Shape = tuple[int, int, int]


def computed_on_gpu(
    dtype: str, precision: str | float, result: str = "", k: int = 1, capability: str = _CAPABILITY_WITH_KNOWN_BOUND
) -> tuple[str, ...]:
    """The dtypes in which a GPU may multiply arrays of ``dtype``, in the order in which they are tried.

    The caller takes the first dtype that has a kernel for the shape and the ``result``; if
    ``takes_fastest(precision)``, the caller takes the fastest of these dtypes instead. The order depends on the
    precision:

    - "fast" or a number (an error bound): the dtypes that keep the bound for this ``k``, on a GPU of that compute
      ``capability``;
    - "tf32": tf32, then float32, unless the error bound of float32 for this ``k`` is wider than that of tf32;
    - "highest": the widest dtype;
    - otherwise: ``dtype``, then a dtype that holds all of its values, then the dtype of the result.

    Raises UsageError for a precision that the dtype does not have.

    >>> computed_on_gpu("float16", "standard"), computed_on_gpu("float16", "highest"), computed_on_gpu("float32", "tf32")
    (('float16', 'float32'), ('float64',), ('tf32', 'float32'))
    """
    if is_error_goal(precision):
        if dtype == "float8":
            return ("float8_fast",) if precision == "fast" else _no_bound(dtype, precision)
        kept = paths_within(precision, "gpu", dtype, k)
        lossy = [path.compute for path in kept if path.word not in ("standard", "highest")]
        word = next(path.word for path in kept if path.compute not in lossy)
        cheapest = lossy[:1] if lossy and lossy[0] in RESIDUES_IN else lossy  # more residues only take longer
        narrow = tuple(
            path for path in cheapest if capability == _CAPABILITY_WITH_KNOWN_BOUND or path in RESIDUES_IN
        )  # these are exact
        return (*narrow, *computed_on_gpu(dtype, word, result))
    if precision in GPU_PRECISIONS:
        needed, compute = GPU_PRECISIONS[str(precision)]
        if dtype != needed:
            raise UsageError(f"precision {precision!r} is for arrays of {needed} on a GPU, got {dtype}")
        # float32, in which no operand is rounded, keeps the bound of tf32 too, except for a very large k.
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


@functools.cache  # the same tuple for each plan
def engine_on_gpu(dtype: str, capability: str) -> tuple[CudaKernel, ...]:
    """The engine's kernels for a dtype, on a GPU of that compute capability."""
    return tuple(kernel for kernel in cuda_engine_for(dtype) if kernel.fits(capability))


def invariant_on_gpu(dtype: str, capability: str) -> tuple[CudaKernel, ...]:
    """The kernels of ``engine_on_gpu`` that compute invariant products; all of them give the same bits. Only the
    kernels for the newest GPUs compute invariant products."""
    return of_newest([kernel for kernel in engine_on_gpu(dtype, capability) if kernel.invariant is not None])


def of_newest(kernels: Sequence[CudaKernel]) -> tuple[CudaKernel, ...]:
    """The kernels that are for the newest GPUs."""
    newest = {float(kernel.capability.rstrip("af")): kernel.capability for kernel in kernels}
    return tuple(kernel for kernel in kernels if kernel.capability == newest[max(newest)])


def choose_gpu(
    dtype: str, m: int, n: int, k: int, *, capability: str, sms: int = 132, gpu: str = "", adds: bool = False
) -> Choice[CudaKernel]:
    """The highest rung of the ladder for C[m×n] = A[m×k]·B[k×n] of ``dtype``, for blocks of products larger than a
    memory. ``gpu`` is the name of the GPU, which has that compute capability and ``sms`` multiprocessors. With ``adds``
    only a rung that can add to C is chosen.

    The parameters are those that ``tilewright tune`` found for this GPU and size, else a preset of the kernel, else its
    defaults. Raises DTypeError if no rung multiplies the dtype.

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
        every = [*_rungs_with_pointers(), *cuda_engine().values()]
        known = sorted({dtype for kernel in every for dtype in kernel.dtypes if kernel.precision == "standard"})
        what = f"adds products of {dtype} to C" if adds else f"multiplies {dtype}"
        raise DTypeError(f"no kernel {what} on compute capability {capability}: {', '.join(known)} have kernels")
    return rest, f"the highest rung for {dtype} that compute capability {capability} has; none above suits"


def _able_on_gpu(dtype: str, capability: str) -> list[CudaKernel]:
    return [x for x in _rungs_with_pointers() if dtype in x.dtypes and x.precision == "standard" and x.fits(capability)]


def _rungs_with_pointers() -> list[CudaKernel]:
    """The rungs that take pointers and therefore suit all shapes, the highest first."""
    rungs = (kernel for kernel in cuda_catalog().values() if not kernel.boxes)
    return sorted(rungs, key=lambda kernel: -kernel.order)


# ---- parameters that were tuned -------------------------------------------------------------------------------------------


def best_params(kernel: CudaKernel, gpu: str, dtype: str, shape: Shape) -> dict[str, Any] | None:
    """The parameters that ``tilewright tune`` stored for exactly this source and a GPU of this name. Parameters are
    stored for sizes whose m, n and k round to the same powers of two as those of ``shape``. Returns None if no
    parameters were stored."""
    file = tuned_file(kernel.source_hash, gpu, dtype, shape)
    return None if file.is_absent else file.read_as(lambda stored: kernel.checked(stored["params"]))


def tuned_card(card: Card) -> Card:
    """The card, or the card without its name if nothing was tuned for it. For a card without a name, the kernels of a
    product do not search the cache of tuned parameters."""
    return card._replace(name="") if card.name and _FOLDER.is_absent else card


def tuned_file(source_hash: str, gpu: str, dtype: str, shape: Shape) -> CacheFile:
    """The file of tuned parameters for the size (m, n, k), and for all sizes whose m, n and k round to the same powers
    of two."""
    m, n, k = (round(math.log2(max(1, size))) for size in shape)
    return _file_of(source_hash, gpu, dtype, m, n, k)


@functools.lru_cache(maxsize=4096)  # a name; whether the file exists is not cached
def _file_of(source_hash: str, gpu: str, dtype: str, m: int, n: int, k: int) -> CacheFile:
    return CacheFile("tuned", f"{fingerprint(source_hash, gpu, dtype, [m, n, k])}.json")
