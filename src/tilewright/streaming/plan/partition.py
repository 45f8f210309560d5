"""How several places share C: each gets a part of its tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .grid import ORDERS, Tile


def rectangles(down: int, across: int, count: int) -> tuple[int, int]:
    """How many of them, down and across: as square as they get, for then a place needs the fewest rows of A and columns of
    B."""
    shapes = [(p, count // p) for p in range(1, count + 1) if count % p == 0]
    return min(shapes, key=lambda shape: (_uneven(down, across, *shape), down / shape[0] + across / shape[1]))


def strips(down: int, across: int, count: int) -> tuple[int, int]:  # noqa: ARG001
    """The simplest way: bands of whole rows of tiles; every place needs all of B."""
    return count, 1


#: Ways to share C among places: of tiles down and across, and places, into so many parts down and across.
PARTITIONS = {"rectangles": rectangles, "strips": strips}


def territories(
    down: int, across: int, count: int, order: str = "shells", partition: str = "rectangles"
) -> list[list[Tile]]:
    """The tiles of C in ``count`` parts, by one of the PARTITIONS, each part in one of the ORDERS.

    >>> [len(part) for part in territories(8, 8, 4)], territories(2, 2, 4)[3]
    ([16, 16, 16, 16], [Tile(i=1, j=1)])
    """
    p, q = PARTITIONS[partition](down, across, count)
    rows, columns = _edges(down, p), _edges(across, q)
    return [
        [
            Tile(rows[x] + i, columns[y] + j)
            for i, j in ORDERS[order](rows[x + 1] - rows[x], columns[y + 1] - columns[y])
        ]
        for x in range(p)
        for y in range(q)
    ]


def sharers(parts: Sequence[Sequence[Tile]], peers: bool = True) -> dict[str, float]:
    """How many places need the same block of A, and of B, in the middle: of ``peers``, one reads it for all of them.

    >>> sharers(territories(4, 4, 4)), sharers(territories(4, 4, 4, partition="strips"))
    ({'a': 2.0, 'b': 2.0}, {'a': 1.0, 'b': 4.0})
    """
    if not peers:
        return {"a": 1.0, "b": 1.0}
    found = {}
    for operand, number in (("a", 0), ("b", 1)):
        needed = [{tile[number] for tile in part} for part in parts]
        found[operand] = sum(map(len, needed)) / max(1, len(set().union(*needed)))
    return found


def _edges(length: int, parts: int) -> list[int]:
    return [x * length // parts for x in range(parts + 1)]


def _uneven(down: int, across: int, p: int, q: int) -> int:
    """Tiles of the largest of p×q rectangles."""
    return math.ceil(down / p) * math.ceil(across / q)
