"""A batch of products of one shape: a native loop computes small ones, and threads take portions of the batch."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import numpy as np

from ...product.problem import ProductShapes
from .runner import Product
from .slices import even_slices
from .small_products import Short
from .threads import Team

#: Multiply-adds of a portion of the batch: about 10 ms. Ctrl-C takes effect between two portions.
PORTION = 1 << 30
#: Threads are not equally fast on a shared machine. So each has so many portions, unless these would have fewer
#: multiply-adds than LEAST: Python code, which only one thread at a time can run, comes between two portions.
PORTIONS, LEAST = 8, 1 << 23


def as_matrices(
    shapes: ProductShapes, a: np.ndarray, b: np.ndarray, c: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Views of shape (…, m, k), (…, k, n), (…, m, n): vectors get their missing axis, a and b the axes of the batch."""
    a = a if a.ndim > 1 else a[None, :]
    b = b if b.ndim > 1 else b[:, None]
    if c.ndim != len(shapes.batch) + 2:
        c = c.reshape((1, 1)) if not shapes.result else _with_vector_axis(c, shapes)
    if shapes.batch:
        a = np.broadcast_to(a, shapes.batch + a.shape[-2:])
        b = np.broadcast_to(b, shapes.batch + b.shape[-2:])
    return a, b, c


def _with_vector_axis(c: np.ndarray, shapes: ProductShapes) -> np.ndarray:
    """A view of C with the axis of m or n that a vector operand lacks."""
    if c.ndim == len(shapes.batch):
        return c[..., None, None]
    return c[..., None, :] if shapes.result[-1] == shapes.n and shapes.m == 1 else c[..., None]


def multiply_batch(
    short: Short, product: Callable[[], Product], bands: int, a: np.ndarray, b: np.ndarray, c: np.ndarray
) -> None:
    """Multiply the arrays of ``as_matrices``; at most ``bands`` threads share the batch, cut along its longest axis.

    Each thread takes the next portion until none is left. ``short`` computes a portion in one call, or returns None; then
    ``product()`` gives the function that computes one product. Ctrl-C takes effect between two portions.
    """
    if not c.size:
        return
    if c.ndim == 2:
        _portion(short, product, a, b, c)
        return
    axis = int(np.argmax(c.shape[:-2]))
    left = deque(_portions(c.shape[axis], c.size * a.shape[-1], bands))

    def compute() -> None:
        while left:
            try:
                where = (slice(None),) * axis + (left.popleft(),)
            except IndexError:  # another thread took the last one
                return
            _portion(short, product, a[where], b[where], c[where])

    Team(bands).rally(compute, stop=left.clear)


def _portions(length: int, work: int, bands: int) -> list[slice]:
    """How ``bands`` threads cut ``length`` products, or rows of them, of so many multiply-adds in all: single products
    rather than portions of one and two; else the longer portions first, for threads do not begin the last ones together."""
    count = max(bands, min(PORTIONS * bands, work // LEAST)) if bands > 1 else 1
    count = max(count, math.ceil(work / PORTION))
    portions = even_slices(length, length if count < length <= 2 * count else count)
    return sorted(portions, key=lambda portion: portion.start - portion.stop)


def _portion(short: Short, product: Callable[[], Product], a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    if short(a, b, c, True) is not None:
        return
    run = product()
    if c.ndim == 2:
        run(a, b, c)
        return
    for index in np.ndindex(c.shape[:-2]):
        run(a[index], b[index], c[index])
