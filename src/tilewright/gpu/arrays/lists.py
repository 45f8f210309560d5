"""Products of lists of arrays on a GPU, in as few launches as possible. There are four kinds of lists:

- batch: the matrices have the same shape and are equally spaced in memory;
- ragged: the matrices differ in their number of rows and follow one another in memory, as after a split of a tensor;
- listed: the matrices have any addresses and shapes; kernels that take lists multiply them (``gpu/kernels/lists.cuh``);
- scattered: the matrices have any addresses and differ only in their number of rows; kernels whose operands are tensor
  maps multiply them.

The pairs of all other lists are multiplied one by one, and so are the pairs of lists for which this is predicted to be
faster. The way in which a list was multiplied is remembered for similar lists (``repeated``).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...kernels.cuda_kernel import CudaKernel
from ...product.problem import itemsize_of
from ..planning.choice import best_params, engine_on_gpu
from ..planning.sets import sets_for
from ..planning.ways import EngineShape, Way, timed_ways, whole_ways
from ..runtime.device import Device, gpu_at
from ..runtime.engine_product import (
    MOST_RAGGED,
    TABLES,
    EngineProduct,
    ListedShape,
    prepare_listed_product,
    prepare_ragged_product,
    prepare_scattered_product,
)
from ..runtime.layout import Matrix, row_major_matrix
from ..runtime.memory import GRANULE
from .gpu_array import GpuArray
from .layouts import Boxes, Strided, given_by_strides, is_down
from .libraries import Library, library_of, memory_error
from .matmul import check_words_on_gpu, submit_product
from .repeated import ListProduct


@dataclass(frozen=True)
class ListCall:
    """The products ``xs[i]·ys[i]`` of arrays of one library. ``one(x, y)`` multiplies a single pair."""

    library: Library
    xs: list[GpuArray]
    ys: list[GpuArray]
    precision: str | float
    out_dtype: Any
    one: Callable[[Any, Any], Any]

    def part(self, some: slice) -> ListCall:
        """The same call for only a part of its products."""
        return replace(self, xs=self.xs[some], ys=self.ys[some])


def matmul_lists_on_gpu(
    a: Sequence[Any],
    b: Sequence[Any],
    precision: str | float,
    algorithm: str,
    out_dtype: Any,
    one: Callable[[Any, Any], Any],
) -> list[Any]:
    """The list of a[i]·b[i] for every i. The results may be views of one allocation. ``one(x, y)`` multiplies a single
    pair. Raises any error of ``matmul_on_gpu``.
    """
    check_words_on_gpu(precision, algorithm)
    library = library_of(a[0])
    asked = "tf32" if precision == "tf32" and out_dtype is None else None
    if asked and library is not None and library.lists is not None:  # of "standard" the caller has tried this short way
        again = library.lists.products(a, b, None, asked)
        if again is not None:
            return again
    arrays = *a, *b
    of_each_type = {type(x): x for x in arrays}.values()
    one_library = library is not None and library.views and all(library_of(x) is library for x in of_each_type)
    if library is None or not one_library or not all(map(library.on_gpu, arrays)) or any(map(library.records, arrays)):
        return [one(x, y) for x, y in zip(a, b, strict=True)]
    xs, ys = (
        [library.view(x, f"a[{i}]") for i, x in enumerate(a)],
        [library.view(y, f"b[{i}]") for i, y in enumerate(b)],
    )
    if len({each.device for each in (*xs, *ys)}) > 1:  # ``one`` refuses a pair on two GPUs; other pairs go one by one
        return [one(x, y) for x, y in zip(a, b, strict=True)]
    # Keep the copies of operands that are stored conjugated alive until everything is submitted.
    kept = [each.keep for each in (*xs, *ys)]
    xs, ys = [x._replace(keep=None) for x in xs], [y._replace(keep=None) for y in ys]
    call = ListCall(library, xs, ys, precision, out_dtype, one)
    plain = precision == "standard" and out_dtype is None
    compute = xs[0].dtype if plain else "tf32" if asked and xs[0].dtype == "float32" else ""
    # Copies have accidental addresses: the choice of the kernel, and so the bits, must not depend on them.
    copied = xs[0].dtype.startswith("complex") and any(
        owner is not None and owner is not x for owner, x in zip(kept, arrays, strict=True)
    )
    ranges = [(i, i + 1) for i in range(len(xs))] if copied else list(_equally_spaced_ranges(xs, ys))
    multiply, needs_same_distances = _ragged_product(library, xs, ys) if plain else None, True
    if multiply is None and len(ranges) == 1 and len(xs) > 1:
        multiply = functools.partial(_batch, call)
    if multiply is None and compute:
        multiply, needs_same_distances = _listed_product(library, xs, ys, compute), False
    if multiply is None:
        multiply = functools.partial(_one_by_one, call, ranges)
        needs_same_distances = len(ranges) < len(xs)
    results = multiply(a, b, np.array([each.pointer for each in (*xs, *ys)]))
    library.hold(library.stream(xs[0].device), xs[0].device, kept)
    if compute and library.lists is not None and not compute.startswith("complex"):
        library.lists.remember(list(a), list(b), (*xs, *ys), multiply, needs_same_distances, asked)
    return results


def _one_by_one(
    call: ListCall, ranges: list[tuple[int, int]], a: Sequence[Any], b: Sequence[Any], addresses: Any
) -> list[Any]:
    """The products of similar matrices; the matrices of each of the ``ranges`` are multiplied as a batch."""
    results, both = [], addresses.reshape(2, -1)
    for first, stop in ranges:
        some = slice(first, stop)
        if stop - first == 1:
            results.append(call.one(a[first], b[first]))
        else:
            results += _batch(call.part(some), a[some], b[some], both[:, some].reshape(-1))
    return results


def _listed_product(library: Library, xs: list[GpuArray], ys: list[GpuArray], compute: str) -> ListProduct | None:
    """The products of similar matrices at any addresses, computed in the dtype ``compute``, in few launches; None if
    multiplying them one by one is faster."""
    first, shapes = xs[0], [(x.shape[0], y.shape[-1]) for x, y in zip(xs, ys, strict=True)]
    if len(xs) == 1 or any(len(each.shape) != 2 for each in (*xs, *ys)):
        return None
    allocate, tops = library.pieces(shapes, first.dtype, first.device)
    submit = listed_launches(gpu_at(first.device), xs, ys, tops, compute)
    if submit is None:
        return None

    def run(a: Sequence[Any], b: Sequence[Any], addresses: Any) -> list[Any]:  # noqa: ARG001
        try:
            results, c = allocate()
        except MemoryError as error:
            nbytes = sum(map(math.prod, shapes)) * itemsize_of(first.dtype)
            raise memory_error(nbytes, first.device, error) from None
        submit(addresses, c, library.stream(first.device))
        return results

    return run


def _batch(call: ListCall, a: Sequence[Any], b: Sequence[Any], addresses: Any) -> list[Any]:
    """The products of similar matrices at equal distances in memory, in one launch."""
    library, count = call.library, len(call.xs)
    x, y = (
        _stacked(side)._replace(pointer=int(at), keep=kept)
        for side, at, kept in zip((call.xs, call.ys), addresses[::count], (a, b), strict=True)
    )
    result, launches = submit_product(library, [], (x, y, None), call.precision, out_dtype=call.out_dtype)
    result = library.answer(result)
    return list(library.transposed(result) if launches.plan.order.transposed else result)


def _ragged_product(library: Library, xs: list[GpuArray], ys: list[GpuArray]) -> ListProduct | None:
    """The products of similar matrices whose rows follow each other in memory, with one launch for each ``MOST_RAGGED``
    products; None for other matrices."""
    kernel = _kernel_for_ragged(xs, ys)
    if kernel is None:
        return None
    ranges = [slice(i, i + MOST_RAGGED) for i in range(0, len(xs), MOST_RAGGED)]
    products = [_ragged(library, kernel, xs[some], ys[some]) for some in ranges]

    def run(a: Sequence[Any], b: Sequence[Any], addresses: Any) -> list[Any]:  # noqa: ARG001
        both = addresses.reshape(2, -1)
        return [c for multiply, some in zip(products, ranges, strict=True) for c in multiply(both[:, some])]

    return run


def _kernel_for_ragged(xs: list[GpuArray], ys: list[GpuArray]) -> CudaKernel | None:
    """The kernel for a ragged list (see the top of the file); None if this list is not one."""
    filled = [x for x in xs if x.shape[0]]  # an empty array may have no address
    if len({x.shape for x in filled}) < 2 or any(len(each.shape) != 2 for each in (*xs, *ys)):
        return None
    x, y, (k, n) = filled[0], ys[0], ys[0].shape
    if x.dtype not in ("bfloat16", "float16") or (x.dtype, x.device) != (y.dtype, y.device) or not k * n:
        return None
    if any(each.shape[1] != k or each.layout != x.layout for each in filled) or any(each.shape[1] != k for each in xs):
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


def _ragged(library: Library, kernel: CudaKernel, xs: list[GpuArray], ys: list[GpuArray]) -> Callable[[Any], list[Any]]:
    """``multiply_range(addresses)``: the products of similar matrices, whose rows follow each other in memory, in one
    launch."""
    filled = next((i for i, each in enumerate(xs) if each.shape[0]), 0)
    x, y = xs[filled], ys[0]
    gpu = gpu_at(x.device)
    rows, k, n = [each.shape[0] for each in xs], x.shape[1], y.shape[1]
    b = Matrix(k, n, *_strides(y), y.dtype)
    of_b = Boxes(kernel).given(1, b, (_distance(*ys[:2]) or 0) if len(ys) > 1 else 0)
    m, multiply = sum(rows), None
    if m:
        shape = EngineShape(x.dtype, x.dtype, m, n, k, b_across=not of_b.down)
        ranked = whole_ways(kernel, shape, gpu.card)
        best = min(ranked, key=lambda way: way.seconds * padded_rows(rows, way.params))
        a = Matrix(m, k, *_strides(x), x.dtype)
        product = EngineProduct(x.dtype, a, of_b, row_major_matrix(m, n, x.dtype))
        with gpu:
            multiply = prepare_ragged_product(gpu, kernel, product, tuple(rows), tuple(best.params.items()))
    tops = [0, *itertools.accumulate(rows)]

    def multiply_range(addresses: Any) -> list[Any]:
        result, c = library.empty((m, n), x.dtype, x.device)
        if multiply is not None:
            with gpu:
                multiply(int(addresses[0, filled]), int(addresses[1, 0]), c, library.stream(x.device))
        result = library.answer(result)
        return [result[top:bottom] for top, bottom in itertools.pairwise(tops)]

    return multiply_range


def _stacked(arrays: list[GpuArray]) -> GpuArray:
    """Arrays at equal distances as one array with one more axis, which owns all of them."""
    first, step = arrays[0], _distance(arrays[0], arrays[1])
    assert step is not None
    return first._replace(shape=(len(arrays), *first.shape), strides=(step, *first.strides), keep=arrays)


def _equally_spaced_ranges(xs: list[GpuArray], ys: list[GpuArray]) -> Iterator[tuple[int, int]]:
    """The ranges of array numbers in which the arrays are at equal distances in memory, each as long as possible."""
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
    """The distance in elements from one matrix to the next of the same shape and strides; None if the shapes or strides
    differ."""
    nbytes, size = y.pointer - x.pointer, itemsize_of(x.dtype)
    same_layout = len(x.shape) == 2 and (x.shape, x.layout) == (y.shape, y.layout)
    return nbytes // size if same_layout and nbytes >= 0 and nbytes % size == 0 else None


# ---- listed ----------------------------------------------------------------------------------------------------------
# Lists of products on a GPU whose matrices lie anywhere and have shapes of their own: one launch for up to 512 of them.


#: Measured host time of one launch: separate products cannot take less than this each.
LAUNCH_HOST_S = 4.2e-6

#: ``submit(addresses, c, stream)``: the addresses of all A, then of all B, as int64, and of the memory for all results.
Submit = Callable[[Any, int, int], None]


def listed_launches(
    gpu: Device, xs: Sequence[GpuArray], ys: Sequence[GpuArray], tops: Sequence[int], compute: str
) -> Submit | None:
    """The launches of these products of matrices, which are multiplied in the dtype ``compute``. ``tops`` has, for each
    result, its distance in elements from a common address; the results have no gaps.

    Returns None if no kernel takes the matrices, or if multiplying them one by one is predicted to be faster."""
    pairs, dtype = list(zip(xs, ys, strict=True)), xs[0].dtype
    if any(x.shape[1] != y.shape[0] for x, y in pairs):
        return None
    if len({(x.dtype, x.device) for x in (*xs, *ys)}) > 1:
        return None
    engine = engine_on_gpu(compute, gpu.capability)
    a, b = [x.matrix for x in xs], [y.matrix for y in ys]
    takes = (Strided(kernel) for kernel in engine if "lists" in kernel.strides)
    kernel = next(
        (t.kernel for t in takes if all(t.fits(0, p) and t.fits(1, q) for p, q in zip(a, b, strict=True))), None
    )
    if kernel is None:
        return None
    size = itemsize_of(dtype)
    shapes = [
        ListedShape(p.rows, q.columns, p.columns, given_by_strides(p), given_by_strides(q), top * size)
        for p, q, top in zip(a, b, tops, strict=True)
    ]
    found, predicted = [], 0.0
    for numbers in _launch_groups(shapes):
        some = tuple(shapes[i] for i in numbers)
        params, seconds = _fastest(kernel, compute, some, gpu)
        predicted += seconds
        found.append((numbers, some, tuple(sorted(params.items()))))
    boxed = scattered_launches(gpu, engine, a, b)
    least = predicted if boxed is None else min(predicted, boxed[0])
    if least > LAUNCH_HOST_S * len(pairs) and least > _seconds_one_by_one(engine, compute, shapes, gpu):
        return None

    def submit(addresses: Any, c: int, stream: int) -> None:
        both = addresses.reshape(2, -1)
        with gpu:
            for numbers, some, chosen in found:
                run = prepare_listed_product(gpu, kernel, compute, some, chosen, dtype)
                run(both[:, numbers] if len(numbers) < len(pairs) else both, c, stream)

    if boxed is None or boxed[0] > predicted:
        return submit
    boxes = boxed[1]

    def submit_boxes(addresses: Any, c: int, stream: int) -> None:
        if not boxes(addresses, c, stream):
            submit(addresses, c, stream)

    return submit_boxes


def _launch_groups(shapes: Sequence[ListedShape]) -> Iterator[list[int]]:
    """The numbers of the products of each launch, whose matrices have the same layouts. A product without elements is
    in no launch."""

    def lies(i: int) -> tuple[bool, bool]:
        return shapes[i].a.down, shapes[i].b.down

    filled = [i for i, shape in enumerate(shapes) if shape.m * shape.n]
    for _, numbers in itertools.groupby(sorted(filled, key=lies), lies):
        found = list(numbers)
        for i in range(0, len(found), TABLES[-1]):
            yield found[i : i + TABLES[-1]]


def _fastest(
    kernel: CudaKernel, dtype: str, shapes: Sequence[ListedShape], gpu: Device
) -> tuple[Mapping[str, int], float]:
    """The set of parameters of the kernel's header that is predicted to be the fastest, and the predicted time of one
    launch. The time is that of a batch with as many tiles and as many elements."""
    m, n, k = _mean_sizes(shapes)
    tuned = best_params(kernel, gpu.name, dtype, (round(m), round(n), round(k)))
    size, card = itemsize_of(dtype), gpu.card
    layout = size, *card.facts, shapes[0].a.down, not shapes[0].b.down, False, False, False
    sets = sets_for(kernel, layout, tuned, card.table)
    index = np.arange(len(sets.params))
    blocks = np.array([sets.blocks(index, shape.m, shape.n, shape.k) for shape in shapes])
    mean_k = blocks.T @ [float(shape.k) for shape in shapes] / np.maximum(1, blocks.sum(axis=0))
    one = np.ones(len(index))
    columns = {"blocks": blocks.sum(axis=0), "parts": one, "part": mean_k, "out_size": size * one, "c_down": 0 * one}
    aligned = {"a_start": 128, "b_start": 128, "a_vector": GRANULE, "b_vector": GRANULE}
    seconds = sets.seconds(index, cut=True, m=m, n=n, k=k, batch=len(shapes), **columns, **aligned)
    best = int(seconds.argmin())
    return sets.params[best], float(seconds[best])


def _mean_sizes(shapes: Sequence[ListedShape]) -> tuple[float, float, float]:
    m, n, k = zip(*((shape.m, shape.n, shape.k) for shape in shapes), strict=True)
    return sum(m) / len(m), sum(n) / len(n), sum(k) / len(k)


def _seconds_one_by_one(engine: Sequence[CudaKernel], dtype: str, shapes: Sequence[ListedShape], gpu: Device) -> float:
    """The predicted time of one launch for each product, by the kernel that is the fastest for its shape."""
    times: dict[tuple[int, int, int], float] = {}
    for m, n, k, *_ in shapes:
        if m * n * k and (m, n, k) not in times:
            product = EngineShape(dtype, dtype, m, n, k)
            fit = (kernel for kernel in engine if kernel.suits is None or kernel.suits(m=m, n=n, k=k, batch=1))
            times[m, n, k] = min(timed_ways(kernel, product, gpu.card).fastest.seconds for kernel in fit)
    return sum(max(LAUNCH_HOST_S, times.get(shape[:3], 0)) for shape in shapes)


# ---- scattered lists: boxes read matrices at any addresses -----------------------------------------------------------

#: ``submit(addresses, c, stream)``: whether the matrices were near enough to each other; else nothing was submitted.
SubmitBoxes = Callable[[Any, int, int], bool]


def scattered_launches(
    gpu: Device, engine: Sequence[CudaKernel], a: Sequence[Matrix], b: Sequence[Matrix]
) -> tuple[float, SubmitBoxes] | None:
    """The launches of these products, whose results follow one another without gaps, and their predicted time. Returns
    None if the matrices differ in more than the rows of A, or if no kernel whose operands are tensor maps takes
    them."""
    filled, y = [x for x in a if x.rows], b[0]
    if not filled or any(each[1:] != filled[0][1:] for each in filled) or any(each != y for each in b):
        return None
    x = filled[0]._replace(rows=max(each.rows for each in filled))
    if itemsize_of(x.dtype) != 2 or not y.rows * y.columns or x.rows == 1 or is_down(x):
        return None
    fitting = (Boxes(kernel) for kernel in engine if kernel.boxes)
    kernel = next((boxes.kernel for boxes in fitting if boxes.fits(0, x) and boxes.fits(1, y)), None)
    if kernel is None:
        return None
    rows, of_b = [each.rows for each in a], Boxes(kernel).given(1, y)
    way = min(
        whole_ways(kernel, EngineShape(x.dtype, x.dtype, x.rows, y.columns, y.rows), gpu.card),
        key=lambda way: _scattered_seconds(kernel, way, rows, y, gpu),
    )
    launches = []
    for first in range(0, len(rows), MOST_RAGGED):
        some = tuple(rows[first : first + MOST_RAGGED])
        if any(some):
            m, n = sum(some), y.columns
            c = row_major_matrix(m, n, x.dtype)._replace(alignment=math.gcd(GRANULE, n * 2))
            product = EngineProduct(x.dtype, x._replace(rows=m), of_b, c)
            launches.append((first, some, sum(rows[:first]) * n * 2, product))

    def submit(addresses: Any, c: int, stream: int) -> bool:
        both = addresses.reshape(2, -1)
        with gpu:
            for first, some, at, product in launches:
                run = prepare_scattered_product(gpu, kernel, product, some, tuple(way.params.items()))
                if not run(both[:, first : first + len(some)], c + at, stream):
                    return False
        return True

    return _scattered_seconds(kernel, way, rows, y, gpu), submit


def padded_rows(rows: Sequence[int], params: Mapping[str, int]) -> int:
    """The total number of rows of products with these numbers of rows, if the rows of each product are filled up to
    whole tiles."""
    band = params["BM"] * params.get("CLUSTER", 1)
    return sum(-(-count // band) * band for count in rows)


def _scattered_seconds(kernel: CudaKernel, way: Way, rows: Sequence[int], b: Matrix, gpu: Device) -> float:
    """The predicted time of one launch, which is that of a batch with as many rows of tiles."""
    mean = -(-padded_rows(rows, way.params) // len(rows))
    shape = EngineShape(b.dtype, b.dtype, mean, b.columns, b.rows, len(rows))
    return next(each.seconds for each in whole_ways(kernel, shape, gpu.card) if each.params == way.params)
