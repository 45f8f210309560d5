"""Cuts a long k into layers, so that several workers can share the sum of one tile of C.

k is cut only if C is small and k is long. The layers depend only on the shape of the product, and the sums of the
layers are added in a fixed tree. Therefore the bits of C depend neither on the number of workers nor on which worker
finishes first.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ..streaming.plan.grid import part_count, part_edge

Term = TypeVar("Term")

#: Elements of C from which its tiles alone keep workers busy.
LARGE_C = 4096**2
#: k is cut from this many times the longer side of C, and into so many layers at most.
LONG, MOST_LAYERS = 16, 64
#: A layer is at least THICK times as long as the longer side of C, or as THIN elements: its sum takes far longer to compute
#: than to move and add.
THICK, THIN = 4, 1024


def layers(m: int, n: int, k: int) -> int:
    """Return the number of layers of a product, a power of two: 1 unless C is small and k is much longer than C's
    sides.

    >>> layers(4096, 4096, 65536), layers(1000, 1000, 65536), layers(10, 10, 10**9), layers(4097, 4096, 10**9)
    (4, 16, 64, 1)
    """
    if not 0 < m * n <= LARGE_C or k < LONG * max(m, n):
        return 1
    most = min(MOST_LAYERS, k // (THICK * max(m, n, THIN)))
    return 1 << max(0, most.bit_length() - 1)


def cut_layers(k: int, kc: int, count: int) -> list[slice]:
    """Cut k into ``count`` ranges, the layers, or into fewer layers if k has fewer than ``count`` parts.

    A part is a range of at most ``kc`` elements of k that a kernel sums at once (see ``Grid``). Each layer is a whole
    number of parts. The numbers of parts of two layers differ by at most one, and the longer layers come first. A
    kernel that sums one layer cuts it into the same parts.

    >>> cut_layers(5000, 1000, 2)
    [slice(0, 3000, None), slice(3000, 5000, None)]
    """
    parts = part_count(k, kc)
    count = min(count, parts)
    edges = [part_edge(k, parts, part_edge(parts, count, layer)) for layer in range(count + 1)]
    return [slice(*ends) for ends in itertools.pairwise(edges)]


def share_layers(count: int, tile: int, tiles: int, workers: Mapping[str, int]) -> list[str]:
    """Return a list with a worker for each of the ``count`` layers of one tile: the worker that computes the layer.

    ``tile`` is the number of the tile among ``tiles`` tiles. ``workers`` maps each worker to its number of threads.
    Each worker gets consecutive layers, in proportion to its threads. If there are more workers than layers, different
    workers compute the same layer of different tiles.

    >>> share_layers(4, 0, 1, {"a": 1, "b": 1}), share_layers(2, 0, 2, dict.fromkeys("abcd", 1))
    (['a', 'a', 'b', 'b'], ['a', 'c'])
    """
    names, edges = list(workers), list(itertools.accumulate(workers.values()))
    middles = ((layer + (tile + 0.5) / tiles) / count * edges[-1] for layer in range(count))
    return [names[bisect.bisect_right(edges, middle)] for middle in middles]


def add_layers(terms: Sequence[Term], add: Callable[[Term, Term], Term]) -> Term:
    """Add the sums of the layers in a binary tree: first the sums of neighbouring layers, then neighbouring results,
    and so on.

    >>> add_layers("abcde", lambda x, y: f"({x}{y})")
    '(((ab)(cd))e)'
    """
    terms = list(terms)
    while len(terms) > 1:
        pairs = zip(terms[::2], terms[1::2], strict=False)
        terms = [add(x, y) for x, y in pairs] + terms[len(terms) // 2 * 2 :]
    return terms[0]
