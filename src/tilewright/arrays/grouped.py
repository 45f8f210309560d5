"""Products of lists of arrays on a GPU. Those that lie at equal distances are multiplied as a batch, in one launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..problem import itemsize_of
from .gpu_array import GpuArray
from .libraries import Library, library_of
from .matmul import check_words_on_gpu, submit_product


def matmul_lists_on_gpu(
    a: Sequence[Any], b: Sequence[Any], precision: str, algorithm: str, one: Callable[[Any, Any], Any]
) -> list[Any]:
    """The product of each array in ``a`` and the one in ``b`` with its number, of which some may share memory; ``one``
    multiplies a pair that is no part of a batch. Raises what ``matmul_on_gpu`` raises.
    """
    check_words_on_gpu(precision, algorithm)
    library = library_of(a[0])
    arrays = *a, *b
    if library is None or not library.views or any(library_of(x) is not library or library.records(x) for x in arrays):
        return [one(x, y) for x, y in zip(a, b, strict=True)]
    xs, ys = (
        [library.view(x, f"a[{i}]") for i, x in enumerate(a)],
        [library.view(y, f"b[{i}]") for i, y in enumerate(b)],
    )
    results: list[Any] = []
    for first, stop in _runs(xs, ys):
        if stop - first == 1:
            results.append(one(a[first], b[first]))
        else:
            results += _batch(library, xs[first:stop], ys[first:stop], precision)
    return results


def _batch(library: Library, xs: list[GpuArray], ys: list[GpuArray], precision: str) -> list[Any]:
    result, launches = submit_product(library, [], (_stacked(xs), _stacked(ys), None), precision)
    result = library.answer(result)
    return list(library.transposed(result) if launches.plan.order.transposed else result)


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
