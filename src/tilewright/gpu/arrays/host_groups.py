"""Where groups lie in the host's memory: what the ends of groups say of operands and result."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...errors import OperandError, ShapeError
from ...product.problem import GroupedShapes

#: A part of an array: indices of its axes.
Part = tuple[Any, ...]


def multiply_groups(
    shapes: GroupedShapes, ends: list[int], result: np.ndarray, multiply: Callable[[Part, Part, np.ndarray], object]
) -> None:
    """Have each group's product written into its part of the result, by ``multiply`` of parts of a and b, and zeros into
    what follows the last group. ``ends``: of ``checked_ends``."""
    for of_a, of_b, of_c in _parts(shapes, ends):
        multiply(of_a, of_b, result[of_c])
    rest = slice(ends[-1] if ends else 0, None)
    if shapes.divides != "k":
        result[(rest,) if shapes.divides == "m" else (slice(None), rest)] = 0


def _parts(shapes: GroupedShapes, ends: list[int]) -> Iterator[tuple[Part, Part, Part]]:
    """The parts of a, b and the result of each group."""
    every = slice(None)
    for g, (begin, end) in enumerate(itertools.pairwise([0, *ends])):
        group = slice(begin, end)
        yield {
            "m": ((group,), (g,), (group,)),
            "n": ((g,), (every, group), (every, group)),
            "k": ((every, group), (group,), (g,)),
        }[shapes.divides]


def checked_ends(shapes: GroupedShapes, offsets: Any) -> list[int]:
    """The ends of groups. Raises OperandError and ShapeError for those of no groups."""
    ends = np.asarray(offsets)
    if ends.dtype.kind not in "iu" and ends.size:
        raise OperandError(f"offsets is an array of {ends.dtype}: the ends of groups must be whole numbers")
    found: list[int] = ends.tolist()
    size = {"m": shapes.m, "n": shapes.n, "k": shapes.k}[shapes.divides]
    if found != sorted(found) or (found and not 0 <= found[0] <= found[-1] <= size):
        given = f"{str(found[:6])[:-1]}, …]" if len(found) > 6 else found
        raise ShapeError(f"offsets is {given}: the ends of groups must not decrease, and be from 0 to {size}")
    return found
