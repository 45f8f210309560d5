"""A batch of products of one shape: a native loop computes small ones, and threads share the batch in bands."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from ...problem import ProductShapes
from .runner import Product
from .slices import even_slices
from .small_products import Short
from .threads import Team

#: Multiply-adds of a thread in a portion of the batch: about 10 ms. Ctrl-C takes effect between two portions.
PORTION = 1 << 30


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

    ``short`` computes a whole band in one call, or returns None; then ``product()`` gives the function that computes one
    product. A long batch is computed in portions, and Ctrl-C takes effect between two of them.
    """
    if not c.size:
        return
    if c.ndim == 2:
        _band(short, product, a, b, c)
        return
    work = c.size * a.shape[-1]
    axis = int(np.argmax(c.shape[:-2]))
    for portion in even_slices(c.shape[axis], math.ceil(work / (PORTION * bands)) or 1):
        x, y, z = (array[(slice(None),) * axis + (portion,)] for array in (a, b, c))
        parts = [(slice(None),) * axis + (part,) for part in even_slices(z.shape[axis], bands)]
        Team(bands).run([functools.partial(_band, short, product, x[part], y[part], z[part]) for part in parts])


def _band(short: Short, product: Callable[[], Product], a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    if short(a, b, c, True) is not None:
        return
    run = product()
    if c.ndim == 2:
        run(a, b, c)
        return
    for index in np.ndindex(c.shape[:-2]):
        run(a[index], b[index], c[index])
