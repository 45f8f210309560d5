"""How a length is cut into parts, one for each thread."""

from __future__ import annotations

import itertools
import math


def even_slices(length: int, parts: int, grain: int = 1) -> list[slice]:
    """At most ``parts`` consecutive slices of nearly equal length, all but the last a multiple of ``grain`` long.

    >>> even_slices(10, 3), even_slices(10, 2, grain=4)
    ([slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)], [slice(0, 4, None), slice(4, 10, None)])
    """
    grains = max(1, math.ceil(length / grain))
    parts = min(parts, grains)
    edges = [min(length, (grains * part // parts) * grain) for part in range(parts)] + [length]
    return [slice(low, high) for low, high in itertools.pairwise(edges)]
