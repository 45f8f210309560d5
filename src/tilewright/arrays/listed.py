"""Lists of products on a GPU whose matrices lie anywhere and have shapes of their own: one launch for up to 512 of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..kernels.cuda_kernel import CudaKernel
from ..kernels.sets import sets_for
from ..planning.choice import engine_on_gpu
from ..planning.tuned import best_params
from ..planning.ways import EngineShape, timed_ways
from ..problem import itemsize_of
from ..runtime.gpu.device import Device
from ..runtime.gpu.listed_product import TABLES, ListedShape, prepare_listed_product
from ..runtime.gpu.memory import GRANULE
from .gpu_array import GpuArray
from .layouts import Strided, given_by_strides
from .scattered import scattered_launches

#: A launch of a single product takes so long on the host, as measured: a GPU that is faster waits for it.
_HOST_S = 4.2e-6

#: ``submit(addresses, c, stream)``: the addresses of all A, then of all B, as int64, and of the memory for all results.
Submit = Callable[[Any, int, int], None]


def listed_launches(
    gpu: Device, xs: Sequence[GpuArray], ys: Sequence[GpuArray], tops: Sequence[int], compute: str
) -> Submit | None:
    """The launches of these products of matrices, multiplied in the dtype ``compute``; None where no kernel takes them, or
    where they are predicted to be faster one by one. ``tops``: the elements from an address to each result, which has no
    gaps."""
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
    for numbers in _alike(shapes):
        some = tuple(shapes[i] for i in numbers)
        params, seconds = _fastest(kernel, compute, some, gpu)
        predicted += seconds
        found.append((numbers, some, tuple(sorted(params.items()))))
    boxed = scattered_launches(gpu, engine, a, b)
    least = predicted if boxed is None else min(predicted, boxed[0])
    if least > _HOST_S * len(pairs) and least > _seconds_one_by_one(engine, compute, shapes, gpu):
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


def _alike(shapes: Sequence[ListedShape]) -> Iterator[list[int]]:
    """The numbers of the products of each launch, which lie alike. Products without an element are in none."""

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
    """The set of parameters of the kernel's header that is predicted to be the fastest, and the time of one launch: as that
    of a batch with as many tiles, and with as many elements."""
    m, n, k = _mean_sizes(shapes)
    tuned = best_params(kernel, gpu.name, dtype, (round(m), round(n), round(k)))
    size, card = itemsize_of(dtype), gpu.card
    layout = size, *card.facts, shapes[0].a.down, not shapes[0].b.down, False, False
    sets = sets_for(kernel, layout, tuned, card.table)
    index = np.arange(len(sets.params))
    blocks = np.array([sets.blocks(index, shape.m, shape.n, shape.k) for shape in shapes])
    part = blocks.T @ [float(shape.k) for shape in shapes] / np.maximum(1, blocks.sum(axis=0))
    one = np.ones(len(index))
    columns = {"blocks": blocks.sum(axis=0), "parts": one, "part": part, "out_size": size * one, "c_down": 0 * one}
    aligned = {"a_start": 128, "b_start": 128, "a_vector": GRANULE, "b_vector": GRANULE}
    seconds = sets.seconds(index, cut=True, m=m, n=n, k=k, batch=len(shapes), **columns, **aligned)
    best = int(seconds.argmin())
    return sets.params[best], float(seconds[best])


def _mean_sizes(shapes: Sequence[ListedShape]) -> tuple[float, float, float]:
    m, n, k = zip(*((shape.m, shape.n, shape.k) for shape in shapes), strict=True)
    return sum(m) / len(m), sum(n) / len(n), sum(k) / len(k)


def _seconds_one_by_one(engine: Sequence[CudaKernel], dtype: str, shapes: Sequence[ListedShape], gpu: Device) -> float:
    """The predicted time of as many launches, of which each is made by the kernel that is the fastest for its shape."""
    times: dict[tuple[int, int, int], float] = {}
    for m, n, k, *_ in shapes:
        if m * n * k and (m, n, k) not in times:
            product = EngineShape(dtype, dtype, m, n, k)
            fit = (kernel for kernel in engine if kernel.suits is None or kernel.suits(m=m, n=n, k=k, batch=1))
            times[m, n, k] = min(timed_ways(kernel, product, gpu.card).fastest.seconds for kernel in fit)
    return sum(max(_HOST_S, times.get(shape[:3], 0)) for shape in shapes)
