"""Divides the tiles of C among several places, which are GPUs or workers of a cluster."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from .grid import ORDERS, Tile


def _rectangles(down: int, across: int, count: int) -> tuple[int, int]:
    """The number of regions down and across with which the largest region has the fewest tiles; among equals, those
    that need the fewest rows of A and columns of B."""
    shapes = [(p, count // p) for p in range(1, count + 1) if count % p == 0]
    return min(shapes, key=lambda shape: (_most_tiles(down, across, *shape), down / shape[0] + across / shape[1]))


def strips(down: int, across: int, count: int) -> tuple[int, int]:  # noqa: ARG001
    """Divide C into regions of whole rows of tiles. This division is the simplest, but every place needs all of B."""
    return count, 1


#: Ways to share C among places: each takes tiles down, tiles across and places, and returns regions down and regions across.
PARTITIONS = {"rectangles": _rectangles, "strips": strips}


def stated_regions(partition: str) -> tuple[int, int] | None:
    """Return how many rows and columns of regions a partition such as "2x3" states, or None for a named partition.

    >>> stated_regions("2x3"), stated_regions("strips")
    ((2, 3), None)
    """
    match = re.fullmatch(r"([1-9]\d{0,5})[x×]([1-9]\d{0,5})", partition)
    return (int(match[1]), int(match[2])) if match else None


def regions_of(partition: str, down: int, across: int, count: int) -> tuple[int, int]:
    """Return the best numbers of rows and columns of regions, if C has ``down`` × ``across`` tiles and there are
    ``count`` places.
    """
    return stated_regions(partition) or PARTITIONS[partition](down, across, count)


def tiles_of_regions(
    down: int, across: int, count: int, order: str = "shells", partition: str = "rectangles"
) -> list[list[Tile]]:
    """Divide the tiles of C into ``count`` regions, by one of the PARTITIONS or as stated ("2x3"). The tiles of each
    region are listed in the order ``order``, one of the ORDERS.

    >>> [len(region) for region in tiles_of_regions(8, 8, 4)], tiles_of_regions(2, 2, 4)[3]
    ([16, 16, 16, 16], [Tile(i=1, j=1)])
    """
    regions_down, regions_across = regions_of(partition, down, across, count)
    rows, columns = _edges(down, regions_down), _edges(across, regions_across)
    return [
        [
            Tile(rows[x] + i, columns[y] + j)
            for i, j in ORDERS[order](rows[x + 1] - rows[x], columns[y + 1] - columns[y])
        ]
        for x in range(regions_down)
        for y in range(regions_across)
    ]


def places_per_block(regions: Sequence[Sequence[Tile]], peers: bool = True) -> dict[str, float]:
    """Return the average number of places that share one read of a block of A, and of a block of B.

    If ``peers`` is set, one of the places that need a block reads it for all these places. Without ``peers`` every
    place reads its own copy of a block, and the number of places is 1.

    >>> places_per_block(tiles_of_regions(4, 4, 4)), places_per_block(tiles_of_regions(4, 4, 4, partition="strips"))
    ({'a': 2.0, 'b': 2.0}, {'a': 1.0, 'b': 4.0})
    """
    if not peers:
        return {"a": 1.0, "b": 1.0}
    average = {}
    for operand, axis in (("a", 0), ("b", 1)):
        needed = [{tile[axis] for tile in region} for region in regions]
        average[operand] = sum(map(len, needed)) / max(1, len(set().union(*needed)))
    return average


def _edges(length: int, regions: int) -> list[int]:
    """Where each of the regions begins, and the end of the last."""
    return [x * length // regions for x in range(regions + 1)]


def _most_tiles(down: int, across: int, p: int, q: int) -> int:
    """Tiles of the largest of p×q rectangles."""
    return math.ceil(down / p) * math.ceil(across / q)
