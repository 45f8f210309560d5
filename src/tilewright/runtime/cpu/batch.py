"""Many products of one shape: in one native loop where they are small, and shared among threads by bands of the batch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from ...problem import ProductShapes
from .express import Short
from .runner import Product
from .threads import Team, even_slices

#: Multiply-adds that a thread does at once: about 10 ms.
PORTION = 1 << 30


def as_matrices(
    shapes: ProductShapes, a: np.ndarray, b: np.ndarray, c: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Views with the axes (…, m, k), (…, k, n), (…, m, n), the leading ones those of the batch, that vectors left out."""
    a = a if a.ndim > 1 else a[None, :]
    b = b if b.ndim > 1 else b[:, None]
    if c.ndim != len(shapes.batch) + 2:
        c = c.reshape((1, 1)) if not shapes.result else _with_vector_axis(c, shapes)
    if shapes.batch:
        a = np.broadcast_to(a, shapes.batch + a.shape[-2:])
        b = np.broadcast_to(b, shapes.batch + b.shape[-2:])
    return a, b, c


def _with_vector_axis(c: np.ndarray, shapes: ProductShapes) -> np.ndarray:
    """A view of C with the axis of m or n that a vector operand left out."""
    if c.ndim == len(shapes.batch):
        return c[..., None, None]
    return c[..., None, :] if shapes.result[-1] == shapes.n and shapes.m == 1 else c[..., None]


def multiply_batch(
    short: Short, product: Callable[[], Product], bands: int, a: np.ndarray, b: np.ndarray, c: np.ndarray
) -> None:
    """Every product of ``as_matrices``: the batch in at most ``bands`` along its longest axis, each on a thread of its own.

    ``short`` does as many as it is given at once, or answers None; ``product()`` is what does one. A long batch is done in
    portions, between which Ctrl-C is heard.
    """
    if not c.size:
        return
    if c.ndim == 2:
        _each(short, product, a, b, c)
        return
    work = c.size * a.shape[-1]
    axis = int(np.argmax(c.shape[:-2]))
    for portion in even_slices(c.shape[axis], math.ceil(work / (PORTION * bands)) or 1):
        x, y, z = (array[(slice(None),) * axis + (portion,)] for array in (a, b, c))
        parts = [(slice(None),) * axis + (part,) for part in even_slices(z.shape[axis], bands)]
        Team(bands).run([functools.partial(_each, short, product, x[part], y[part], z[part]) for part in parts])


def _each(short: Short, product: Callable[[], Product], a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    if short(a, b, c, True) is None:
        run = product()
        for index in np.ndindex(c.shape[:-2]):
            run(a[index], b[index], c[index])
