"""Where groups lie in the host's memory: what the ends of groups say of operands and result."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import OperandError, ShapeError
from ..problem import GroupedShapes

#: A part of an array: indices of its axes.
Part = tuple[Any, ...]


def parts_of_groups(shapes: GroupedShapes, offsets: Any) -> Iterator[tuple[Part, Part, Part]]:
    """The parts of a, b and the result of each group. Raises OperandError and ShapeError for ends of no groups."""
    every = slice(None)
    for g, (begin, end) in enumerate(itertools.pairwise([0, *_checked_ends(shapes, offsets)])):
        group = slice(begin, end)
        yield {
            "m": ((group,), (g,), (group,)),
            "n": ((g,), (every, group), (every, group)),
            "k": ((every, group), (group,), (g,)),
        }[shapes.divides]


def part_without_group(shapes: GroupedShapes, offsets: Any) -> Part | None:
    """The part of the result that follows the last group; None where there is none."""
    rest = slice(int(offsets[-1]) if len(offsets) else 0, None)
    return {"m": (rest,), "n": (slice(None), rest)}.get(shapes.divides)


def _checked_ends(shapes: GroupedShapes, offsets: Any) -> list[int]:
    ends = np.asarray(offsets)
    if ends.dtype.kind not in "iu" and ends.size:
        raise OperandError(f"offsets is an array of {ends.dtype}: the ends of groups must be whole numbers")
    found: list[int] = ends.tolist()
    size = {"m": shapes.m, "n": shapes.n, "k": shapes.k}[shapes.divides]
    if found != sorted(found) or (found and not 0 <= found[0] <= found[-1] <= size):
        given = f"{str(found[:6])[:-1]}, …]" if len(found) > 6 else found
        raise ShapeError(f"offsets is {given}: the ends of groups must not decrease, and be from 0 to {size}")
    return found
