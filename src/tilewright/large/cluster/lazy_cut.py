"""The cut of a product of Dask arrays: tiles of C and segments of k, so that one task fits the memory it may take."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...errors import MemoryLimitError
from ...host.machine import bytes_text
from ..streaming.plan.grid import Grid, longest_step, part_count, part_edge
from .layers import cut_layers, layers

#: Sides of tiles that are tried: from the longer side of C down, each SHRINK of the one before, multiples of GRAIN.
SHRINK, GRAIN = 2**-0.25, 64
#: A tile may be this small so that all threads of the cluster have work: TILES_EACH tiles at least, and no more than a tenth
#: of their time without one.
SMALL_SIDE, TILES_EACH, BUSY = 512, 2, 0.9
#: A segment has at least as many elements of k, so that copying the accumulator takes little time beside the product.
SHORT = 1024
#: It need not be longer than this or than a tile, nor have more bytes: a product begins only when they are all there.
LONG, LONG_BYTES = 4096, 64 << 20
#: Elements of k that are copied at once where chunks must be put together or converted.
DEPTH = 1024


@dataclass(frozen=True)
class TaskMemory:
    """What a task may take: ``limit`` bytes, of which ``workspace(m, n)`` are the kernel's for a tile. ``sizes`` are the
    bytes of an element: of A and of B, as their chunks have it, and of C."""

    limit: int
    workspace: Callable[[int, int], int]
    sizes: tuple[int, int, int]

    def bytes(self, bm: int, bn: int, segment: int) -> int:
        """Bytes of a task: both panels, the accumulator before and after, and the buffers for parts of the panels."""
        a, b, c = self.sizes
        buffers = (bm + bn) * min(segment, DEPTH)
        return self.workspace(bm, bn) + segment * (bm * a + bn * b) + (2 * bm * bn + buffers) * c

    def segment(self, bm: int, bn: int) -> int:
        """The longest segment for tiles of this size; negative if they do not even fit without one."""
        a, b, c = self.sizes
        free = self.limit - self.workspace(bm, bn) - 2 * bm * bn * c
        panels, buffers = bm * a + bn * b, (bm + bn) * c
        return max(min(DEPTH, free // (panels + buffers)), (free - DEPTH * buffers) // panels)


@dataclass(frozen=True)
class LazyCut:
    """Where the tiles' rows and columns begin and end, and the segments of each layer of k."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    layers: tuple[tuple[slice, ...], ...]

    @property
    def chunks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The sizes of the tiles, as Dask says them."""
        rows, columns = (tuple(y - x for x, y in itertools.pairwise(edges)) for edges in (self.rows, self.columns))
        return rows, columns


def cut_lazily(
    rows: Sequence[int], columns: Sequence[int], k: int, kc: int, memory: TaskMemory, threads: int
) -> LazyCut:
    """The largest tiles that fit and leave none of ``threads`` without work; C and k are not empty.

    ``rows`` are the sizes of A's chunks along m, ``columns`` those of B's along n. Segments of k are whole parts of at most
    ``kc`` elements, as the kernel sums them. Raises MemoryLimitError, with the least that is needed.

    >>> memory = TaskMemory(100 << 20, lambda m, n: 11 << 20, (4, 4, 4))
    >>> cut_lazily([1000] * 8, [5000], 3000, 512, memory, threads=2).chunks
    ((2000, 2000, 2000, 2000), (1667, 1667, 1666))
    """
    m, n = sum(rows), sum(columns)
    deep = cut_layers(k, kc, layers(m, n, k))
    longest, part = max(layer.stop - layer.start for layer in deep), math.ceil(k / part_count(k, kc))
    found = None
    for least in (SHORT, 1):
        for side in _sides(max(m, n)):
            edges = cut_axis(rows, side), cut_axis(columns, side)
            bm, bn = (max(y - x for x, y in itertools.pairwise(cuts)) for cuts in edges)
            fits = memory.segment(bm, bn)
            if fits < (min(longest, max(bm, bn, SHORT)) if least == SHORT else part):
                continue
            if found is not None and max(bm, bn) < SMALL_SIDE:
                break
            found = edges, min(fits, max(LONG, bm, bn, LONG_BYTES // (bm * memory.sizes[0] + bn * memory.sizes[1])))
            if _busy(math.prod(len(cuts) - 1 for cuts in edges) * len(deep), threads):
                break
        if found is not None:
            (down, across), most = found
            return LazyCut(tuple(down), tuple(across), tuple(tuple(_segments(layer, most, kc)) for layer in deep))
    least_bytes = math.ceil(memory.bytes(min(m, GRAIN), min(n, GRAIN), part) / (1 << 20)) << 20
    raise MemoryLimitError(
        f"a task may take {bytes_text(memory.limit)}: the smallest tile of {m}×{k}×{n} needs {bytes_text(least_bytes)}; "
        "give more memory"
    )


def cut_axis(chunks: Sequence[int], most: int) -> list[int]:
    """Where tiles of at most ``most`` elements begin and end: at the edges of chunks where this makes few tiles more than an
    even cut.

    >>> cut_axis([300, 300, 300], 640), cut_axis([1000, 1000], 640), cut_axis([400] * 4, 640)
    ([0, 600, 900], [0, 500, 1000, 1500, 2000], [0, 576, 1152, 1600])
    """
    length = sum(chunks)
    even = math.ceil(length / most)
    aligned = _at_chunks(chunks, most)
    if len(aligned) - 1 <= 1.25 * even:
        return aligned
    size = min(most, math.ceil(length / even / GRAIN) * GRAIN)
    return [*range(0, length, size), length]


def _at_chunks(chunks: Sequence[int], most: int) -> list[int]:
    """Neighbouring chunks together up to ``most``; a longer chunk in equal tiles."""
    edges, at = [0], 0
    for size in chunks:
        if at + size - edges[-1] > most:
            if at > edges[-1]:
                edges.append(at)
            parts = math.ceil(size / most)
            edges += [at + part_edge(size, parts, number) for number in range(1, parts)]
        at += size
    return [*edges, at]


def _sides(longest: int) -> Iterator[int]:
    """Sides of tiles, the largest first."""
    side = longest + -longest % GRAIN
    while True:
        yield side
        if side == GRAIN:
            return
        side = max(GRAIN, int(side * SHRINK) // GRAIN * GRAIN)


def _busy(tasks: int, threads: int) -> bool:
    """Whether so many equal tasks keep the threads busy."""
    return tasks >= TILES_EACH * threads and tasks >= BUSY * threads * math.ceil(tasks / threads)


def _segments(layer: slice, most: int, kc: int) -> Iterator[slice]:
    length = layer.stop - layer.start
    grid = Grid(1, 1, length, 1, 1, longest_step(length, most, kc), kc)
    for p in range(grid.steps):
        part = grid.depth(p)
        yield slice(layer.start + part.start, layer.start + part.stop)
