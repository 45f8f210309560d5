"""Row-major matrices in one piece of memory, as the results of a list of products."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

#: A function that allocates matrices in one piece of memory: a list of them, and the address of that memory. And the
#: elements from there to each of them.
Pieces = tuple[Callable[[], tuple[list[Any], int]], list[int]]


def pieces_of(
    shapes: Sequence[tuple[int, int]],
    empty: Callable[[tuple[int, ...]], tuple[Any, int]],
    split: Callable[[Any, list[int]], Sequence[Any]] | None,
) -> Pieces:
    """Matrices of these shapes. ``empty(shape)`` is an array and its address; ``split(x, heights)`` splits one by its rows
    in one call. With it, matrices of one width follow each other, else all do in their order."""
    of_width: dict[int, list[int]] = {}
    for i, (_, width) in enumerate(shapes):
        of_width.setdefault(0 if split is None else width, []).append(i)
    order = [i for numbers in of_width.values() for i in numbers]
    tops = dict(zip(order, itertools.accumulate((math.prod(shapes[i]) for i in order), initial=0), strict=False))
    total = sum(map(math.prod, shapes))
    if split is None:
        places = [(tops[i], tops[i] + math.prod(shape), shape) for i, shape in enumerate(shapes)]

        def one_by_one() -> tuple[list[Any], int]:
            x, pointer = empty((total,))
            return [x[top:end].reshape(shape) for top, end, shape in places], pointer

        return one_by_one, [top for top, *_ in places]
    parts = [(width, tops[numbers[0]], [shapes[i][0] for i in numbers]) for width, numbers in of_width.items()]
    where = sorted(range(len(order)), key=order.__getitem__)

    def by_width() -> tuple[list[Any], int]:
        x, pointer = empty((total,))
        found: list[Any] = []
        for width, top, heights in parts:
            count = sum(heights)
            found += split(x[top : top + count * width].reshape((count, width)), heights)
        return found if len(parts) == 1 else [found[i] for i in where], pointer

    return by_width, [tops[i] for i in range(len(shapes))]
