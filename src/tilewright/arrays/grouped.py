"""Products of lists of arrays on a GPU. Those that lie at equal distances are multiplied as a batch, in one launch; so are
those that differ in their number of rows, if their rows follow each other, as of a tensor that was split."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..kernels.cuda_kernel import CudaKernel
from ..planning.choice import engine_on_gpu
from ..planning.ways import EngineShape, Way, ways
from ..problem import itemsize_of
from ..runtime.gpu.boxed_product import MOST_RAGGED, BoxedProduct, Laid, prepare_ragged_product
from ..runtime.gpu.device import gpu_at
from .gpu_array import GRANULE, GpuArray, Matrix
from .layouts import Boxes, is_down
from .libraries import Library, library_of
from .matmul import check_words_on_gpu, submit_product


def matmul_lists_on_gpu(
    a: Sequence[Any],
    b: Sequence[Any],
    precision: str,
    algorithm: str,
    out_dtype: Any,
    one: Callable[[Any, Any], Any],
) -> list[Any]:
    """The product of each array in ``a`` and the one in ``b`` with its number, of which some may share memory; ``one``
    multiplies a pair that is no part of a batch. Raises what ``matmul_on_gpu`` raises.
    """
    check_words_on_gpu(precision, algorithm)
    library = library_of(a[0])
    arrays = *a, *b
    of_each_type = {type(x): x for x in arrays}.values()
    alike = library is not None and library.views and all(library_of(x) is library for x in of_each_type)
    if library is None or not alike or not all(map(library.on_gpu, arrays)) or any(map(library.records, arrays)):
        return [one(x, y) for x, y in zip(a, b, strict=True)]
    xs, ys = (
        [library.view(x, f"a[{i}]") for i, x in enumerate(a)],
        [library.view(y, f"b[{i}]") for i, y in enumerate(b)],
    )
    if len({each.device for each in (*xs, *ys)}) > 1:  # a pair on two GPUs is refused, or each pair has its own
        return [one(x, y) for x, y in zip(a, b, strict=True)]
    results: list[Any] = []
    if precision == "standard" and out_dtype is None and (kernel := _kernel_for_ragged(xs, ys)) is not None:
        for i in range(0, len(xs), MOST_RAGGED):
            results += _ragged(library, kernel, xs[i : i + MOST_RAGGED], ys[i : i + MOST_RAGGED])
        return results
    for first, stop in _runs(xs, ys):
        if stop - first == 1:
            results.append(one(a[first], b[first]))
        else:
            results += _batch(library, xs[first:stop], ys[first:stop], precision, out_dtype)
    return results


def _batch(library: Library, xs: list[GpuArray], ys: list[GpuArray], precision: str, out_dtype: Any) -> list[Any]:
    result, launches = submit_product(library, [], (_stacked(xs), _stacked(ys), None), precision, None, out_dtype)
    result = library.answer(result)
    return list(library.transposed(result) if launches.plan.order.transposed else result)


def _kernel_for_ragged(xs: list[GpuArray], ys: list[GpuArray]) -> CudaKernel | None:
    """The kernel that takes products whose rows differ in number, for these; None if they are no such."""
    filled = [x for x in xs if x.shape[0]]  # an empty array may have no address
    if len({x.shape for x in filled}) < 2 or any(len(each.shape) != 2 for each in (*xs, *ys)):
        return None
    x, y, (k, n) = filled[0], ys[0], ys[0].shape
    if x.dtype not in ("bfloat16", "float16") or (x.dtype, x.device) != (y.dtype, y.device) or not k * n:
        return None
    if any(each.shape[1] != k or each[2:5] != x[2:5] for each in filled) or any(each.shape[1] != k for each in xs):
        return None
    row_bytes, steps = x.strides[0] * itemsize_of(x.dtype), {_distance(*pair) for pair in itertools.pairwise(ys)}
    if any(one.pointer + one.shape[0] * row_bytes != then.pointer for one, then in itertools.pairwise(filled)):
        return None
    a = Matrix(sum(each.shape[0] for each in xs), k, *_strides(x), x.dtype, math.gcd(GRANULE, x.pointer))
    b = Matrix(k, n, *_strides(y), y.dtype, math.gcd(GRANULE, *(each.pointer for each in ys)))
    if len(steps) != 1 or None in steps or is_down(a):
        return None
    fitting = (Boxes(kernel) for kernel in engine_on_gpu(x.dtype, gpu_at(x.device).capability) if kernel.boxes)
    return next((boxes.kernel for boxes in fitting if boxes.fits(0, a) and boxes.fits(1, b)), None)


def _strides(x: GpuArray) -> tuple[int, int]:
    row, column = x.strides
    return row, column


def _ragged(library: Library, kernel: CudaKernel, xs: list[GpuArray], ys: list[GpuArray]) -> list[Any]:
    """The products of these, whose rows follow each other, in one launch."""
    x, y = next((each for each in xs if each.shape[0]), xs[0]), ys[0]
    gpu = gpu_at(x.device)
    rows, k, n = [each.shape[0] for each in xs], x.shape[1], y.shape[1]
    b = Matrix(k, n, *_strides(y), y.dtype)
    of_b = Laid(b.column if is_down(b) else b.row, (_distance(*ys[:2]) or 0) if len(ys) > 1 else 0, is_down(b))
    m = sum(rows)
    result, pointer = library.empty((m, n), x.dtype, x.device)
    if m:
        shape = EngineShape(x.dtype, x.dtype, m, n, k, b_across=not is_down(b))
        ranked = _whole_ways(kernel, shape, gpu.sms, gpu.name)
        best = min(ranked, key=lambda way: way.seconds * _padded_rows(rows, way.params))
        product = BoxedProduct(x.dtype, x.dtype, m, n, k, 1, Laid(x.strides[0]), of_b, Laid(n), True)
        stream = library.stream(x.device)
        with gpu:
            chosen = tuple(best.params.items())
            prepare_ragged_product(gpu, kernel, product, tuple(rows), chosen)(x.pointer, y.pointer, pointer, stream)
        library.hold(stream, x.device, (xs, ys))
    result, tops = library.answer(result), itertools.accumulate(rows, initial=0)
    return [result[top:bottom] for top, bottom in itertools.pairwise(tops)]


@functools.lru_cache(maxsize=256)  # lists of as many rows in all come again and again
def _whole_ways(kernel: CudaKernel, shape: EngineShape, sms: int, gpu: str) -> list[Way]:
    """The ways that do not cut k."""
    return [way for way in ways(kernel, shape, sms, gpu) if way.parts == 1]


def _padded_rows(rows: list[int], params: Mapping[str, int]) -> int:
    """The rows of all tiles of products with so many rows."""
    band = params["BM"] * params.get("CLUSTER", 1)
    return sum(-(-count // band) * band for count in rows)


def _stacked(arrays: list[GpuArray]) -> GpuArray:
    """Arrays at equal distances as one with another axis, which owns them all."""
    first, step = arrays[0], _distance(arrays[0], arrays[1])
    assert step is not None
    return first._replace(shape=(len(arrays), *first.shape), strides=(step, *first.strides), keep=arrays)


def _runs(xs: list[GpuArray], ys: list[GpuArray]) -> Iterator[tuple[int, int]]:
    """The ranges of numbers whose arrays lie at equal distances, each as long as possible."""
    first = 0
    steps: tuple[int | None, int | None] = None, None
    for i in range(1, len(xs) + 1):
        if i < len(xs):
            found = _distance(xs[i - 1], xs[i]), _distance(ys[i - 1], ys[i])
            if None not in found and (found == steps or i == first + 1):
                steps = found
                continue
        yield first, i
        first = i


def _distance(x: GpuArray, y: GpuArray) -> int | None:
    """The elements from one matrix to the next of the same shape and strides; None if they are not such."""
    nbytes, size = y.pointer - x.pointer, itemsize_of(x.dtype)
    alike = len(x.shape) == 2 and x[1:5] == y[1:5]
    return nbytes // size if alike and nbytes >= 0 and nbytes % size == 0 else None
