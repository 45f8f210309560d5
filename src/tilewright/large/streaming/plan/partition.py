"""Divides the tiles of C among several places (GPUs or workers); used by the planning of streams and clusters."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from .grid import ORDERS, Tile


def rectangles(down: int, across: int, count: int) -> tuple[int, int]:
    """The number of parts down and across with which the largest part has the fewest tiles; among equals, the parts that
    need the fewest rows of A and columns of B."""
    shapes = [(p, count // p) for p in range(1, count + 1) if count % p == 0]
    return min(shapes, key=lambda shape: (_most_tiles(down, across, *shape), down / shape[0] + across / shape[1]))


def strips(down: int, across: int, count: int) -> tuple[int, int]:  # noqa: ARG001
    """Parts of whole rows of tiles, the simplest way; every place needs all of B."""
    return count, 1


#: Ways to share C among places: each takes tiles down, tiles across and places, and returns parts down and parts across.
PARTITIONS = {"rectangles": rectangles, "strips": strips}


def stated_parts(partition: str) -> tuple[int, int] | None:
    """Parts down and across of a partition that states both; None for one that has a name.

    >>> stated_parts("2x3"), stated_parts("strips")
    ((2, 3), None)
    """
    match = re.fullmatch(r"([1-9]\d{0,5})[x×]([1-9]\d{0,5})", partition)
    return (int(match[1]), int(match[2])) if match else None


def parts_of(partition: str, down: int, across: int, count: int) -> tuple[int, int]:
    """Parts down and across, for so many tiles and places."""
    return stated_parts(partition) or PARTITIONS[partition](down, across, count)


def tiles_of_parts(
    down: int, across: int, count: int, order: str = "shells", partition: str = "rectangles"
) -> list[list[Tile]]:
    """The tiles of C in ``count`` parts, by one of the PARTITIONS or as stated ("2x3"), each part in one of the ORDERS.

    >>> [len(part) for part in tiles_of_parts(8, 8, 4)], tiles_of_parts(2, 2, 4)[3]
    ([16, 16, 16, 16], [Tile(i=1, j=1)])
    """
    parts_down, parts_across = parts_of(partition, down, across, count)
    rows, columns = _edges(down, parts_down), _edges(across, parts_across)
    return [
        [
            Tile(rows[x] + i, columns[y] + j)
            for i, j in ORDERS[order](rows[x + 1] - rows[x], columns[y + 1] - columns[y])
        ]
        for x in range(parts_down)
        for y in range(parts_across)
    ]


def places_per_block(parts: Sequence[Sequence[Tile]], peers: bool = True) -> dict[str, float]:
    """The average number of places that need a block of A, and of B: with ``peers``, one of them reads it for all. Without
    ``peers`` each place reads its own copy: 1.

    >>> places_per_block(tiles_of_parts(4, 4, 4)), places_per_block(tiles_of_parts(4, 4, 4, partition="strips"))
    ({'a': 2.0, 'b': 2.0}, {'a': 1.0, 'b': 4.0})
    """
    if not peers:
        return {"a": 1.0, "b": 1.0}
    average = {}
    for operand, axis in (("a", 0), ("b", 1)):
        needed = [{tile[axis] for tile in part} for part in parts]
        average[operand] = sum(map(len, needed)) / max(1, len(set().union(*needed)))
    return average


def _edges(length: int, parts: int) -> list[int]:
    """Where each of the parts begins, and the end of the last."""
    return [x * length // parts for x in range(parts + 1)]


def _most_tiles(down: int, across: int, p: int, q: int) -> int:
    """Tiles of the largest of p×q rectangles."""
    return math.ceil(down / p) * math.ceil(across / q)
