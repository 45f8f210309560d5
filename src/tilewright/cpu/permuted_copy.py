"""Copies between arrays of different strides, in an order that uses all of a cache line before the line is evicted.

``np.copyto`` writes elements in the order of the target's memory. If elements that are adjacent in the source are far
apart in the target, each element that is read loads a cache line whose other elements are needed much later. So
``copy_permuted`` writes the target in blocks. Along the inner axes, a block has only as many elements as the caches
have lines.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from ..host.limits import get_threads
from .runtime.runner import run_in_slices

#: Elements inside the axis of the source's neighbours that are copied as they are, and those of a block if there are
#: more. Each is a cache line: a thousand of them are in the second cache of every machine, and use few pages.
MOST_LINES, BLOCK_LINES = 4096, 1024
#: The least bytes that each thread copies.
BYTES_PER_THREAD = 512 << 10


def copy_permuted(target: np.ndarray, source: np.ndarray) -> None:
    """Copy ``source`` to ``target``, which has the same shape. Both arrays may have any strides and dtypes. The copy
    uses as many threads as make it faster.

    >>> source, target = np.arange(24.0).reshape(2, 3, 4), np.empty((4, 3, 2))
    >>> copy_permuted(target, source.T)
    >>> bool((target == source.T).all())
    True
    """
    threads = min(get_threads(), target.nbytes // BYTES_PER_THREAD) if target.nbytes >= 2 * BYTES_PER_THREAD else 1
    order = sorted(range(target.ndim), key=lambda axis: -abs(target.strides[axis]))
    target, source = target.transpose(order), source.transpose(order)
    if threads < 2:
        _copy_in_blocks(target, source)
        return
    axis = axis_to_share(target, threads)
    before = (slice(None),) * axis
    run_in_slices(
        lambda part: _copy_in_blocks(target[(*before, part)], source[(*before, part)]), target.shape[axis], threads
    )


def axis_to_share(target: np.ndarray, threads: int) -> int:
    """Return the axis along which threads divide an array that they write: the outermost axis that has several indices
    for each thread."""
    order = sorted(range(target.ndim), key=lambda axis: -abs(target.strides[axis]))
    return next((axis for axis in order if target.shape[axis] >= 2 * threads), int(np.argmax(target.shape)))


def _copy_in_blocks(target: np.ndarray, source: np.ndarray) -> None:
    """The copy by this thread; axes of the target are in the order of its strides."""
    long = [axis for axis, length in enumerate(source.shape) if length > 1 and source.strides[axis]]
    nearest = min(long, key=lambda axis: abs(source.strides[axis]), default=-1)
    if nearest < 0 or math.prod(target.shape[nearest + 1 :]) <= MOST_LINES:
        np.copyto(target, source, casting="unsafe")
        return
    left, ranges = BLOCK_LINES, []
    for length in reversed(target.shape[nearest + 1 :]):
        block = min(length, max(1, left))
        left //= block
        ranges.append([slice(low, low + block) for low in range(0, length, block)])
    whole = (slice(None),) * (nearest + 1)
    for parts in itertools.product(*reversed(ranges)):
        where = whole + parts
        np.copyto(target[where], source[where], casting="unsafe")
