"""Computes the product of two Dask arrays as a lazy Dask array; each tile of C is computed by a chain of tasks.

The axis k is cut into layers, whose sums are added at the end. k has only one layer unless C is small and k is long
(see ``layers``). A layer is cut into segments, one for each task. A segment is cut into the parts of at most ``kc``
elements that the kernel sums. Each segment is a whole number of parts, so the bits of the result are those of
``multiply``.

A task gets the chunks of A and B that overlap its segment, and adds the product of the segment to the tile. The tiles
and segments are chosen so that one task fits its memory limit. Dask moves chunks to the tasks that read them, and
computes lost results again.
"""

from __future__ import annotations

import collections
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import dask
import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array
from dask.base import is_dask_collection, tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.system import CPU_COUNT
from dask.task_spec import List, Task, TaskRef

from ...cpu.choice import choose_adding_cpu
from ...cpu.runtime.runner import runner
from ...errors import MemoryLimitError, OperandError, ShapeError, UnavailableError
from ...host.machine import available_memory, bytes_text
from ...product.operands import admit
from ..files.array import copy_block
from ..files.checks import admit_dtype
from ..files.chunked import overlaps
from ..streaming.places.places import parse_bytes
from ..streaming.places.rates import kc_of
from ..streaming.plan.grid import Grid, longest_step, part_count, part_edge
from ..streaming.plan.kernel import dtype_in_blocks
from ..streaming.run.job import product_dtype
from .layers import add_layers, cut_layers, layers, share_layers
from .session import SHARE

if TYPE_CHECKING:
    from numpy.typing import NDArray

# ---- the cut ---------------------------------------------------------------------------------------------------------

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
    """The memory that one task may use, which is ``limit`` bytes. This limit includes the ``workspace(m, n)`` bytes
    that the kernel needs for an m×n tile.

    ``sizes`` are the bytes of one element of A, of B and of C. An element of A or B is counted in the dtype of the
    operand's chunks.
    """

    limit: int
    workspace: Callable[[int, int], int]
    sizes: tuple[int, int, int]

    def bytes(self, bm: int, bn: int, segment: int) -> int:
        """Return the bytes that a task needs for its panels of A and B, the tile of C before and after the task, and its
        buffers.
        """
        a, b, c = self.sizes
        buffers = (bm + bn) * min(segment, DEPTH)
        return self.workspace(bm, bn) + segment * (bm * a + bn * b) + (2 * bm * bn + buffers) * c

    def segment(self, bm: int, bn: int) -> int:
        """Return the length of the longest segment of k that fits in the memory limit for tiles of this size. The
        length is negative if even the tiles alone do not fit.
        """
        a, b, c = self.sizes
        free = self.limit - self.workspace(bm, bn) - 2 * bm * bn * c
        panels, buffers = bm * a + bn * b, (bm + bn) * c
        return max(min(DEPTH, free // (panels + buffers)), (free - DEPTH * buffers) // panels)


@dataclass(frozen=True)
class LazyCut:
    """How a product is cut: the edges of the rows and columns of its tiles, and the segments of each layer of k."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    layers: tuple[tuple[slice, ...], ...]

    @property
    def chunks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The sizes of the tiles in Dask's form: the heights of all rows of tiles, and the widths of all columns."""
        rows, columns = (tuple(y - x for x, y in itertools.pairwise(edges)) for edges in (self.rows, self.columns))
        return rows, columns


def cut_lazily(
    rows: Sequence[int], columns: Sequence[int], k: int, kc: int, memory: TaskMemory, threads: int
) -> LazyCut:
    """Choose the largest tiles that fit the memory of a task and leave enough tasks for all ``threads``.

    ``rows`` are the sizes of A's chunks along m, and ``columns`` those of B's chunks along n. m, n and k must not be 0.
    Each segment of k is a whole number of the parts of at most ``kc`` elements that the kernel sums. Raises
    MemoryLimitError, whose message says how much memory is needed, if even the smallest tiles do not fit.

    >>> memory = TaskMemory(100 << 20, lambda m, n: 11 << 20, (4, 4, 4))
    >>> cut_lazily([1000] * 8, [5000], 3000, 512, memory, threads=2).chunks
    ((2000, 2000, 2000, 2000), (1667, 1667, 1666))
    """
    m, n = sum(rows), sum(columns)
    cut_k = cut_layers(k, kc, layers(m, n, k))
    longest, part = max(layer.stop - layer.start for layer in cut_k), math.ceil(k / part_count(k, kc))
    size_a, size_b, _ = memory.sizes
    found = None
    for least in (SHORT, 1):  # segments that are not short; where memory allows no such tile, of one part at least
        for side in _sides(max(m, n)):
            edges = cut_axis(rows, side), cut_axis(columns, side)
            bm, bn = (max(y - x for x, y in itertools.pairwise(cuts)) for cuts in edges)
            fits = memory.segment(bm, bn)
            if fits < (min(longest, max(bm, bn, SHORT)) if least == SHORT else part):
                continue
            if found is not None and max(bm, bn) < SMALL_SIDE:
                break
            found = edges, min(fits, max(LONG, bm, bn, LONG_BYTES // (bm * size_a + bn * size_b)))
            if _busy(math.prod(len(cuts) - 1 for cuts in edges) * len(cut_k), threads):
                break
        if found is not None:
            (down, across), most = found
            return LazyCut(tuple(down), tuple(across), tuple(tuple(_segments(layer, most, kc)) for layer in cut_k))
    least_bytes = math.ceil(memory.bytes(min(m, GRAIN), min(n, GRAIN), part) / (1 << 20)) << 20
    raise MemoryLimitError(
        f"a task may take {bytes_text(memory.limit)}: the smallest tile of {m}×{k}×{n} needs {bytes_text(least_bytes)}; "
        "give more memory"
    )


def cut_axis(chunks: Sequence[int], most: int) -> list[int]:
    """Cut an axis into tiles of at most ``most`` elements, and return their edges.

    The edges of tiles are edges of chunks, unless such edges would need many more tiles than an even cut.

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


# ---- the product -----------------------------------------------------------------------------------------------------

#: What a worker's process takes itself, with its libraries and machine code: 190 MiB were seen.
PROCESS_BYTES = 192 << 20
#: Chunks are moved whole, also where a panel needs only a part of them, if they are so many times shorter than the panel.
WHOLE = 16

#: A piece of a chunk along an axis: the chunk's number, and what is taken of it.
Overlap = tuple[int, slice]


def matmul(x: da.Array | NDArray[Any], y: da.Array | NDArray[Any], *, memory: float | str | None = None) -> da.Array:
    """The product of two Dask arrays as a lazy Dask array.

    Nothing is computed until Dask computes the result; then Dask computes only the chunks that are needed.

    Parameters
    ----------
    x : Dask or NumPy array of shape (m, k)
        The left operand, with any dtype that ``multiply`` takes and chunks of any sizes.
    y : Dask or NumPy array of shape (k, n)
        The right operand.
    memory : int or str, optional
        The most memory that each task may take: bytes, or a text such as "1GiB". A task multiplies on one thread. The
        task needs memory for two copies of a tile of C and for panels of both operands. The default is 40 % of the
        memory per thread of the smallest worker, after the memory of the worker's process is subtracted. Without a
        ``distributed.Client`` the default is computed from this machine's free memory instead. Larger tasks move less
        data.

    Returns
    -------
    Dask array of shape (m, n)
        The product, with the dtype to which ``multiply`` promotes the operands. The chunks of the product do not depend
        on the operands' chunks; they are as large as ``memory`` allows.

    Raises
    ------
    ShapeError
        The operands differ in k, or the sizes of chunks are unknown.
    DTypeError
        An operand has a dtype that cannot be multiplied.
    OperandError
        The chunks are not NumPy arrays.
    MemoryLimitError
        ``memory`` is too small; the message says how much memory is needed at least.
    UsageError
        ``memory`` is not a number of bytes.
    UnavailableError
        Dask is not installed, or Dask's query planning for arrays is on.

    See Also
    --------
    multiply : With ``cluster``, computes a product on a cluster immediately instead of lazily.
    tilewright.matmul : Multiplies arrays in memory.

    Notes
    -----
    The bits of the result depend only on the shape, the dtype and the kernel, which is the same on processors of one
    kind. Chunks, workers, ``memory`` and lost workers do not change the bits. The bits are those of ``multiply(...,
    device="cpu")``, with one exception. If C has at most 4096² elements, and k is at least 8192 and at least 16 times
    as long as C's sides, workers share the sum over k and add their partial sums in another order than ``multiply``.

    Examples
    --------
    >>> import dask.array as da, numpy as np
    >>> from tilewright.dask import matmul
    >>> x = da.arange(6, chunks=4).astype("float32").reshape(2, 3)
    >>> c = matmul(x, x.T) + 1
    >>> c.compute()
    array([[ 6., 15.],
           [15., 51.]], dtype=float32)
    """
    if da.Array.__module__ != "dask.array.core":
        raise UnavailableError("tilewright.dask needs plain Dask arrays: set Dask's array.query-planning to False")
    x, y = dask_matrix("x", x), dask_matrix("y", y)
    if x.shape[1] != y.shape[0]:
        raise ShapeError(f"k mismatch: x is {x.shape}, y is {y.shape}: x's columns must be as many as y's rows")
    dtype = product_dtype(x.dtype, y.dtype)
    blocks = np.dtype(dtype_in_blocks(dtype.name, "standard"))
    return lazy_product(x, y, blocks, memory).astype(dtype)


def lazy_product(
    x: da.Array, y: da.Array, dtype: np.dtype, memory: float | str | None, workers: Mapping[str, int] | None = None
) -> da.Array:
    """Return the product of two Dask arrays as a lazy Dask array, computed in ``dtype``.

    ``workers`` maps the address of each worker to its number of threads. If k is cut into layers, each worker in
    ``workers`` gets consecutive layers, and Dask moves layers to another worker only if a worker is lost. Without
    ``workers``, Dask chooses the workers.
    """
    limit = None if memory is None else parse_bytes("memory", memory)
    (m, k), n = x.shape, y.shape[1]
    if 0 in (m, n, k):
        return da.zeros((m, n), dtype=dtype)
    kernel = choose_adding_cpu(dtype.name).kernel  # type: ignore[union-attr]  # blocks have one
    sizes = x.dtype.itemsize, y.dtype.itemsize, dtype.itemsize
    share, threads = _share_of_thread()
    kc = kc_of(kernel, dtype.name)

    def workspace(m: int, n: int) -> int:
        return kernel.workspace_bytes(m, n, kc, dtype.name, threads=1)

    cut = cut_lazily(x.chunks[0], y.chunks[1], k, kc, TaskMemory(limit or share, workspace, sizes), threads)
    return _array(x, y, cut, dtype, kc, workers if len(cut.layers) > 1 else None)


# ---- operands and memory ---------------------------------------------------------------------------------------------


def dask_matrix(name: str, value: Any) -> da.Array:
    """Return an operand as a Dask array. ``value`` is a Dask array or a matrix that can be converted to one; any other
    value raises an error.
    """
    array = da.asarray(value) if is_dask_collection(value) else da.from_array(admit(value, name))
    if array.ndim != 2:
        raise ShapeError(f"{name} has {array.ndim} dimensions, shape {array.shape}: a matrix has 2")
    if any(np.isnan(size) for size in array.shape):
        raise ShapeError(f"{name} has chunks of unknown sizes: call compute_chunk_sizes() on it first")
    admit_dtype(array.dtype, name)
    chunk = type(meta_from_array(array))
    if not issubclass(chunk, np.ndarray) or issubclass(chunk, np.ma.MaskedArray):
        what = f"{chunk.__module__.partition('.')[0]}.{chunk.__name__}"
        raise OperandError(f"{name} has chunks of {what}: convert them to numpy.ndarray by map_blocks")
    return array


def _share_of_thread() -> tuple[int, int]:
    """The bytes that a task may take, and how many tasks run at once: on the cluster of the current client, if there is one,
    else on this machine."""
    free = available_memory() or 1 << 30
    workers = _workers()
    if not workers:
        return int(SHARE * free / CPU_COUNT), CPU_COUNT
    shares = []
    for worker in workers:
        limit = worker["memory_limit"] or free
        shares.append(SHARE * max(limit - PROCESS_BYTES, limit / 4) / worker["nthreads"])
    return int(min(shares)), sum(worker["nthreads"] for worker in workers)


def _workers() -> list[dict[str, Any]]:
    """What the scheduler of the current client knows of its workers."""
    if "distributed" not in sys.modules:
        return []
    from distributed import Client

    try:
        client = Client.current()
    except ValueError:
        return []
    # Of an asynchronous client, only what it has been told. Some versions list five workers if not asked for all.
    return list(client.scheduler_info(n_workers=-1)["workers"].values())


# ---- graph -----------------------------------------------------------------------------------------------------------


class _Panel(NamedTuple):
    """The part of an operand that a task reads: the tasks that provide its pieces, and the layout of the pieces in the
    panel."""

    pieces: List
    layout: Layout


class _Operand:
    """The panels of an operand: for each row or column of tiles and each segment of k, the pieces of chunks that are
    needed."""

    def __init__(self, array: Any, cuts: str, graph: dict[Any, Any], least: tuple[int, int]) -> None:
        """``cuts`` is the first part of the keys of the tasks that cut chunks, which ``panel`` adds to the ``graph``;
        ``least`` are the rows and columns of the smallest panel."""
        self._array, self._cuts, self._graph = array, cuts, graph
        self._edges = [[0, *itertools.accumulate(sizes)] for sizes in array.chunks]
        self._whole = [WHOLE * max(sizes) <= side for sizes, side in zip(array.chunks, least, strict=True)]

    def panel(self, rows: slice, columns: slice) -> _Panel:
        """Return the panel of these rows and columns. Adds a task to the graph for every chunk that must be cut."""
        down, across = (self._overlaps(axis, span) for axis, span in enumerate((rows, columns)))
        refs = [self._piece(row, column) for row in down for column in across]
        shape, edges = [], []
        for span, axis, ends in zip((rows, columns), (down, across), self._edges, strict=True):
            first = ends[axis[0][0]] + axis[0][1].start - span.start
            shape.append(span.stop - span.start)
            edges.append(tuple(itertools.accumulate((part.stop - part.start for _, part in axis), initial=first)))
        return _Panel(List(*refs), Layout((shape[0], shape[1]), edges[0], edges[1]))

    def _overlaps(self, axis: int, span: slice) -> list[Overlap]:
        """The chunks along an axis that overlap a range of elements, and what is taken of each."""
        edges, whole = self._edges[axis], self._whole[axis]
        return [
            (i, slice(0, edges[i + 1] - edges[i]) if whole else slice(part.start - edges[i], part.stop - edges[i]))
            for i, part in overlaps(edges, span.start, span.stop)
        ]

    def _piece(self, row: Overlap, column: Overlap) -> TaskRef:
        (i, rows), (j, columns) = row, column
        whole = self._array.name, i, j
        if (rows.stop - rows.start, columns.stop - columns.start) == (
            self._array.chunks[0][i],
            self._array.chunks[1][j],
        ):
            return TaskRef(whole)
        key = self._cuts, i, j, rows.start, columns.start, rows.stop, columns.stop
        if key not in self._graph:
            self._graph[key] = Task(key, cut_chunk, TaskRef(whole), rows, columns)
        return TaskRef(key)


def _array(x: Any, y: Any, cut: LazyCut, dtype: np.dtype, kc: int, workers: Mapping[str, int] | None) -> da.Array:
    token = tokenize(x.name, y.name, cut.rows, cut.columns, cut.layers, dtype.str, kc)
    name = f"tilewright-matmul-{token}"
    graph: dict[Any, Any] = {}
    rows, columns = ([slice(*ends) for ends in itertools.pairwise(edges)] for edges in (cut.rows, cut.columns))
    segments = [segment for layer in cut.layers for segment in layer]
    bm, bn, depth = (min(part.stop - part.start for part in parts) for parts in (rows, columns, segments))
    a = _Operand(x, f"tilewright-cut-x-{token}", graph, (bm, depth))
    b = _Operand(y, f"tilewright-cut-y-{token}", graph, (depth, bn))
    panels_of_a = {(i, s.start): a.panel(part, s) for i, part in enumerate(rows) for s in segments}
    panels_of_b = {(s.start, j): b.panel(s, part) for j, part in enumerate(columns) for s in segments}
    tasks_of_tile, tiles = len(segments) + len(cut.layers) - 1, len(rows) * len(columns)
    where: dict[Any, str] = {}  # key of a task → the worker that should run it
    for i, j in itertools.product(range(len(rows)), range(len(columns))):
        panels = [[(panels_of_a[i, s.start], panels_of_b[s.start, j]) for s in layer] for layer in cut.layers]
        # The last task of a tile has the key of the result's chunk.
        keys = [*((f"tilewright-sum-{token}", i, j, number) for number in range(tasks_of_tile - 1)), (name, i, j)]
        of_layers = _add_tile(graph, iter(keys), panels, dtype.name, kc)
        if workers:
            placed = share_layers(len(cut.layers), i * len(columns) + j, tiles, workers)
            for key, numbers in of_layers.items():
                # Sums are added where most of their layers are; on a tie at the later worker, whose layers may be shorter.
                there = reversed(placed[numbers.start : numbers.stop])
                where[key] = collections.Counter(there).most_common(1)[0][0]
    loosely = {"workers": lambda key: where.get(key, []), "allow_other_workers": True} if where else {}
    with dask.annotate(**loosely):
        layered = HighLevelGraph.from_collections(name, graph, dependencies=[x, y])
    return da.Array(layered, name, chunks=cut.chunks, dtype=dtype, meta=np.empty((0, 0), dtype))


@dataclass(frozen=True)
class _Sum:
    """A task that returns the sum of the layers whose numbers are in the range ``numbers``."""

    task: TaskRef
    numbers: range


def _add_tile(
    graph: dict[Any, Any], keys: Iterator[Any], panels: list[list[tuple[_Panel, _Panel]]], dtype: str, kc: int
) -> dict[Any, range]:
    """Add the tasks of a tile, under these keys: a chain for each layer, whose panels of A and B are given for each segment,
    and the sums of the layers. Returns the numbers of the layers of which each task has the sum."""
    found: dict[Any, range] = {}

    def add(numbers: range, function: Callable[..., Any], *arguments: Any, **options: Any) -> TaskRef:
        key = next(keys)
        graph[key], found[key] = Task(key, function, *arguments, **options), numbers
        return TaskRef(key)

    def chain(number: int, layer: list[tuple[_Panel, _Panel]]) -> _Sum:
        numbers, total = range(number, number + 1), None
        for a, b in layer:
            total = add(numbers, add_product, total, *a, *b, dtype=dtype, kc=kc)
        assert total is not None
        return _Sum(total, numbers)

    def add_two(x: _Sum, y: _Sum) -> _Sum:
        numbers = range(x.numbers.start, y.numbers.stop)
        return _Sum(add(numbers, add_sums, x.task, y.task), numbers)

    add_layers([chain(number, layer) for number, layer in enumerate(panels)], add_two)
    return found


# ---- lazy tasks ------------------------------------------------------------------------------------------------------
# What the tasks of a product of Dask arrays do: cut a chunk, add products to a tile of C, add the sums of two layers.


Matrix = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Layout:
    """How a panel of ``shape`` is composed of pieces of chunks.

    The pieces are listed row by row. ``rows`` and ``columns`` are the edges of the pieces, counted from the first row
    and column of the panel. Pieces at the border may extend beyond the panel, so the first edge may be negative.
    """

    shape: tuple[int, int]
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def check(self, name: str, pieces: Sequence[Matrix]) -> None:
        """Raise ShapeError if a chunk has another shape than its Dask array states, which can happen after
        ``map_blocks``.
        """
        heights, widths = ([y - x for x, y in itertools.pairwise(edges)] for edges in (self.rows, self.columns))
        for piece, shape in zip(pieces, itertools.product(heights, widths), strict=True):
            if piece.shape != shape:
                raise ShapeError(f"a chunk of {name} has {piece.shape} elements where its Dask array says {shape}")

    def read(self, pieces: Sequence[Matrix], rows: slice, columns: slice, out: Matrix) -> Matrix:
        """Return a rectangle of the panel.

        The rectangle is a view if the panel has only one piece, with the dtype of ``out``. If the panel has several
        pieces or another dtype, the rectangle is copied to ``out``.
        """
        if len(pieces) == 1 and pieces[0].dtype == out.dtype and pieces[0].flags.aligned:
            return pieces[0][_moved(rows, -self.rows[0]), _moved(columns, -self.columns[0])]
        across = len(self.columns) - 1
        for i, (top, bottom) in enumerate(itertools.pairwise(self.rows)):
            high, low = max(top, rows.start), min(bottom, rows.stop)
            for j, (left, right) in enumerate(itertools.pairwise(self.columns)):
                first, last = max(left, columns.start), min(right, columns.stop)
                if high < low and first < last:
                    part = pieces[i * across + j][high - top : low - top, first - left : last - left]
                    into = _moved(slice(high, low), -rows.start), _moved(slice(first, last), -columns.start)
                    copy_block(out[into], part)
        return out


def _moved(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)


def cut_chunk(chunk: Any, rows: slice, columns: slice) -> Any:
    """Return some rows and columns of a chunk. A small part is copied, because a view would keep the whole chunk in
    memory.
    """
    part = chunk[rows, columns]
    return part if 2 * part.size > chunk.size else part.copy()


def add_product(
    total: Matrix | None, x: list[Any], of_x: Layout, y: list[Any], of_y: Layout, *, dtype: str, kc: int
) -> Matrix:
    """Return A·B, or ``total`` + A·B if ``total`` is not None, in a new array.

    ``x`` and ``y`` are the pieces of a panel of A and of a panel of B. ``kc`` is the greatest length of the parts of k
    that the kernel sums; the segments of k were cut with the same ``kc``. ``total`` is not changed, because Dask may
    run the task again with the same inputs.
    """
    x, y = [np.asarray(piece) for piece in x], [np.asarray(piece) for piece in y]
    of_x.check("x", x)
    of_y.check("y", y)
    (m, k), n = of_x.shape, of_y.shape[1]
    c = np.empty((m, n), dtype) if total is None else np.array(total, dtype, order="C")
    kernel = choose_adding_cpu(dtype).kernel  # type: ignore[union-attr]  # blocks have one
    grid = Grid(m, n, k, m, n, _step(k, kc, kc_of(kernel, dtype), whole=len(x) == len(y) == 1), kc)
    a, b = (np.empty(math.prod(shape), dtype) for shape in ((m, grid.bk), (grid.bk, n)))
    first = total is None
    for p in range(grid.steps):
        part = grid.depth(p)
        depth = part.stop - part.start
        left = of_x.read(x, slice(0, m), part, a[: m * depth].reshape(m, depth))
        right = of_y.read(y, part, slice(0, n), b[: depth * n].reshape(depth, n))
        runner(kernel, dtype, add=not first)(left, right, c)
        first = False
    return c


def _step(k: int, kc: int, own_kc: int, *, whole: bool) -> int:
    """The longest step of a segment. If this machine's kernel has another kc than the plan, each part of the plan is a step:
    then the bits are the same, unless this kernel's kc is smaller."""
    return longest_step(k, kc if own_kc != kc else k if whole else DEPTH, kc)


def add_sums(x: Matrix, y: Matrix) -> Matrix:
    """Return the sum of the tiles of two layers."""
    with np.errstate(all="ignore"):
        return np.add(x, y)
