"""Defines the job of a ``multiply`` on a cluster. The plan, the journal and the result are the same as on one machine,
but the workers of the cluster compute the tiles.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ClusterError, MemoryLimitError, UsageError
from ...host.machine import bytes_text
from ...product.operands import admit
from ...product.plan import Choice
from ...product.precision import dtype_of_blocks
from ...product.problem import Problem
from ..files import Sink
from ..files.array import WORKSPACE, ArraySource, copy_block, file_behind
from ..files.checks import Shape, rectangle
from ..files.chunked import overlaps
from ..files.format import locate
from ..streaming.options import Options
from ..streaming.places.place import Events
from ..streaming.places.places import choose_on_cpu
from ..streaming.places.rates import kc_of
from ..streaming.plan.cost import Cost
from ..streaming.plan.grid import Tile
from ..streaming.plan.partition import stated_regions
from ..streaming.plan.stream import StreamPlan, plan_stream
from ..streaming.run.computation import Callbacks, Computation, Product
from ..streaming.run.job import Job, check_partition, check_regions, opened_product, plan_job, refuse_overlap
from .connect import connected, wait_until_ended
from .feed import Feed, tile_operations
from .layers import layers
from .order import PlannedOrder, ProductOrder, RemotePlace, TileReport, WorkerFacts
from .placement import ClusterPlacement, check_alike, place_on, workers_of

_NO_COST = Cost([], [], [], 0, 0, 0)


@contextlib.contextmanager
def open_cluster_job(
    a: Any, b: Any, out: Any, options: Options, cluster: Any, *, only_planned: bool = False
) -> Iterator[Job]:
    """Plan a product on ``cluster`` (see ``connected``), and return its job, which is ready to run."""
    with contextlib.ExitStack() as stack:
        refuse_overlap(out, a=a, b=b)
        check_partition(options.partition)
        client = stack.enter_context(connected(cluster))
        product, arrays = _opened_on_workers(stack, client, a, b, options)
        order = _order(product, out, options, client)
        placement = _aligned(place_on(client, order), out)
        check_regions(options.partition, placement.names)
        m, n, k = product.shape
        count = 1 if _on_gpus(options) else layers(m, n, k)
        if count > 1:
            placement = _summed_by_processors(placement, product, options.precision)
        compute: Computation
        if count == 1:
            compute = _ByTiles(client, order, placement, stated_regions(options.partition) is not None)
        else:
            compute = _ByLayers(client, options, arrays, dtype_of_blocks(placement.choice.compute))
        try:
            job = plan_job(product, placement, compute, out, options, stack, only_planned=only_planned)
        except MemoryLimitError as error:
            if options.memory is not None:
                raise
            raise MemoryLimitError(
                f"{error}; a worker has {bytes_text(placement.memory)}, of which its own process takes a part: "
                "start workers with more memory"
            ) from None
        if count > 1 and not job.complete:
            job.plan = _shared_sum(job.plan, min(count, len(placement.names)), count)
        yield job


def keep_product(a: Any, b: Any, options: Options, cluster: Any) -> Any:
    """Compute the product on the workers of ``cluster``, and return it as a Dask array whose chunks stay there."""
    with contextlib.ExitStack() as stack:
        if not hasattr(cluster, "persist"):
            raise UsageError(
                f"cluster {cluster!r}: without out the result stays on the workers; give a client that stays too"
            )
        if _on_gpus(options):
            raise UsageError(
                f"device={options.device!r}: a result that stays on the workers is computed by their processors; "
                "pass out to compute it on GPUs"
            )
        client = stack.enter_context(connected(cluster))
        from .kept import product_on_workers  # needs Dask, without which the line before raises an error that says so

        product, arrays = _opened_on_workers(stack, client, a, b, options)
        choice = _chosen_on_cpu(product, options.precision)
        return product_on_workers(client, product, arrays, options.memory, choice.compute)


def _chosen_on_cpu(product: Product, precision: str | float) -> Choice[Any]:
    stored = [source.dtype.name for source in product.sources]
    return choose_on_cpu(precision, stored, product.dtype.name, product.shape[2])


def _summed_by_processors(placement: ClusterPlacement, product: Product, precision: str | float) -> ClusterPlacement:
    """The placement of a product whose layers processors sum, also where workers have GPUs: the way that keeps the
    precision, and the parts of k, are the processors'."""
    choice = _chosen_on_cpu(product, precision)
    room = dataclasses.replace(placement.room, kc=kc_of(choice.kernel, choice.compute), step=0, planes=0)
    return dataclasses.replace(placement, choice=choice, room=room)


def _on_gpus(options: Options) -> bool:
    """Whether GPUs are asked for; the sums of layers, and products that stay, are those of processors."""
    return options.device is not None and options.device.startswith("cuda")


def _shared_sum(plan: StreamPlan, workers: int, count: int) -> StreamPlan:
    """The plan of a product whose ``count`` layers of k are shared by so many workers."""
    grid = plan.grid
    share = plan_stream(Problem(grid.m, grid.n, math.ceil(grid.k / workers), plan.dtype), plan.room, plan.rates)
    return dataclasses.replace(plan, regions=(plan.tiles,), cost=share.cost, alone_s=None, layers=(count, workers))


def _opened_on_workers(
    stack: contextlib.ExitStack, client: Any, a: Any, b: Any, options: Options
) -> tuple[Product, list[Any]]:
    """The product of operands that workers can read, and for each operand the Dask array of its chunks, None for a file.
    Raises UsageError for ``axes`` of arrays that are not in files, and for a result that is no matrix."""
    (x, chunks_of_x), (y, chunks_of_y) = (_on_workers(stack, client, operand) for operand in (a, b))
    if options.axes is not None and not chunks_of_x is chunks_of_y is None:
        raise UsageError("axes: workers sum over axes of files alone: write the arrays to files, or leave cluster out")
    product = opened_product(stack, x, y, options.dtype, options.axes)
    if (shape := product.result_shape) != product.shape[:2]:
        raise UsageError(f"cluster: the result would be {shape}, and workers write matrices alone: leave cluster out")
    return product, [chunks_of_x, chunks_of_y]


def _on_workers(stack: contextlib.ExitStack, client: Any, operand: Any) -> tuple[Any, Any]:
    """An operand that workers can read: a file as it is, and an array in chunks on the cluster, with the Dask array of them,
    which must be referred to as long as they are read."""
    if isinstance(operand, (str, os.PathLike)) or hasattr(operand, "opener"):
        return operand, None
    if isinstance(operand, np.ndarray) and (file := file_behind(operand)) is not None:
        stack.callback(file.close)
        return file, None
    return hold(client, operand)


def _order(product: Any, out: Any, options: Options, client: Any) -> ProductOrder:
    hosts = list(workers_of(client.scheduler_info(n_workers=-1)).values())
    target = str(Path(os.fspath(out)).absolute()) if isinstance(out, (str, os.PathLike)) else None
    return ProductOrder(
        secrets.token_hex(6),
        tuple(source.opener() for source in product.sources),
        tuple(source.fingerprint() for source in product.sources),
        product.dtype,
        target,
        Options(
            memory=options.memory,
            device=options.device,
            device_memory=options.device_memory,
            precision=options.precision,
        ),
        neighbours=max(map(hosts.count, hosts), default=1),
    )


def _aligned(placement: ClusterPlacement, out: Any) -> ClusterPlacement:
    """With tiles that begin and end at multiples of the result's chunks: two workers must never write one chunk."""
    if not isinstance(out, (str, os.PathLike)):
        return placement
    grain = math.lcm(placement.room.grain, locate(os.fspath(out))[0].chunk)
    return dataclasses.replace(placement, room=dataclasses.replace(placement.room, grain=grain))


@dataclasses.dataclass(frozen=True)
class _ByTiles:
    """A product whose workers compute whole tiles; a tile is finished when its worker has written it to the disk."""

    client: Any
    order: ProductOrder
    placement: ClusterPlacement
    #: Whether the caller stated how C is shared.
    stated: bool

    def __call__(self, product: Product, plan: StreamPlan, sink: Sink, callbacks: Callbacks, events: Events) -> None:  # noqa: ARG002
        alone = dataclasses.replace(plan, regions=((),), cost=_NO_COST, choice=None, host_slots=0)
        work = PlannedOrder(self.order, alone, self.placement.kernel_fact, sink.attachment())

        def finished(report: TileReport) -> None:
            callbacks.read(report.read_bytes, str(report.place))
            if report.elements is not None:
                sink.write(plan.grid.rows(report.tile.i), plan.grid.columns(report.tile.j), report.elements)
            end_s = events.now()
            events.at(str(report.place)).add("compute", _name(report.tile), max(0.0, end_s - report.seconds), end_s)
            callbacks.finished(report.tile)
            callbacks.multiplied(tile_operations(plan.grid, report.tile))

        places = self.placement.places
        Feed(self.client, work, places, plan.regions, finished, self._admitted, kept=self.stated).run()

    def _admitted(self, facts: WorkerFacts) -> list[RemotePlace]:
        """The places of a worker that joined, if it would compute the same bits."""
        try:
            check_alike([self.placement.facts[0], facts])
        except ClusterError:
            return []
        return [RemotePlace(facts.worker, device) for device in facts.devices]


@dataclasses.dataclass(frozen=True)
class _ByLayers:
    """A product with a small C and a long k, whose workers share the sum over k; C is finished when the layers are
    added."""

    client: Any
    options: Options
    arrays: Sequence[Any]
    #: The dtype in which they sum.
    dtype: str

    def __call__(self, product: Product, plan: StreamPlan, sink: Sink, callbacks: Callbacks, events: Events) -> None:  # noqa: ARG002
        from .kept import fetched, product_on_workers

        of_layers = product_on_workers(self.client, product, self.arrays, self.options.memory, self.dtype)
        c = fetched(self.client, of_layers)
        callbacks.read(sum(source.shape[0] * source.shape[1] * source.dtype.itemsize for source in product.sources), "")
        grid = plan.grid
        for tile in plan.tiles:
            rows, columns = grid.rows(tile.i), grid.columns(tile.j)
            sink.write(rows, columns, c[rows, columns])
            callbacks.multiplied(tile_operations(grid, tile))
        sink.flush()
        for tile in plan.tiles:
            callbacks.finished(tile)


def _name(tile: Tile) -> str:
    return f"C[{tile.i}, {tile.j}]"


# ---- held ------------------------------------------------------------------------------------------------------------
# Operands that the workers hold in chunks: those of a Dask array stay where they are, and an array of the client is handed
# out. A worker that needs a chunk of another fetches it from there, block by block, while it multiplies others.


#: Bytes of a chunk of an array that is handed out.
HANDED_OUT = 32 << 20
#: Chunks of others that a worker keeps while it reads rectangles of them, one after another.
KEPT = 2
#: Seconds between two tries to get a chunk, and until it counts as lost.
AGAIN_S, LOST_S = 0.05, 60.0


class Keys:
    """The keys of the chunks of an array, row by row.

    Dask does not look for keys inside a ``Keys`` object. If Dask found the keys, it would move all chunks to every
    task.
    """

    def __init__(self, keys: list[list[Any]]) -> None:
        self._keys = keys

    def at(self, row: int, column: int) -> Any:
        """Return the key of the chunk at a position."""
        return self._keys[row][column]


@dataclass(frozen=True)
class Held:
    """A matrix whose chunks are on the cluster: the edges of the rows and columns of chunks, and their keys.

    Two matrices have different ``name`` if their contents may differ.
    """

    name: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    dtype: np.dtype[Any]
    keys: Keys

    @property
    def shape(self) -> Shape:
        """The number of rows and columns."""
        return self.rows[-1], self.columns[-1]

    @property
    def largest(self) -> Shape:
        """The sides of the largest chunk."""
        height, width = (max(y - x for x, y in itertools.pairwise(edges)) for edges in (self.rows, self.columns))
        return height, width


class HeldSource:
    """A ``Source`` (see ``files.Source``) for a matrix whose chunks are on the cluster. Workers read chunks through a
    ``HeldSource``, and the client plans with it.
    """

    parallel = True

    def __init__(self, held: Held, fetch: Callable[[Any], Any] | None) -> None:
        self._held, self._fetch = held, fetch
        self.shape, self.dtype, self.grain = held.shape, held.dtype, held.largest
        self.workspace = (1 + KEPT) * held.largest[0] * held.largest[1] * held.dtype.itemsize + WORKSPACE
        self._kept: collections.OrderedDict[Any, Any] = collections.OrderedDict()
        self._lock = threading.Lock()

    def read(self, rows: slice, columns: slice, out: np.ndarray[Any, Any]) -> None:
        first, column = rectangle(self.shape, rows, columns, out)
        for r, down in overlaps(self._held.rows, first, first + out.shape[0]):
            for c, across in overlaps(self._held.columns, column, column + out.shape[1]):
                chunk = self._chunk(self._held.keys.at(r, c))
                top, left = self._held.rows[r], self._held.columns[c]
                part = chunk[down.start - top : down.stop - top, across.start - left : across.stop - left]
                into = out[down.start - first : down.stop - first, across.start - column : across.stop - column]
                copy_block(into, np.asarray(part))

    def _chunk(self, key: Any) -> Any:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        assert self._fetch is not None, "the client does not read what the workers hold"
        chunk, is_here = self._fetch(key)
        if not is_here:
            with self._lock:
                self._kept[key] = chunk
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
        return chunk

    def opener(self) -> Callable[[], HeldSource]:
        return functools.partial(open_held, self._held)

    def fingerprint(self) -> str:
        return self._held.name

    def close(self) -> None:
        self._kept.clear()


def open_held(held: Held) -> HeldSource:
    """Open a matrix whose chunks are on the cluster, in a task of the worker that reads it."""
    from distributed import get_worker

    worker: Any = get_worker()

    def fetch(key: Any) -> tuple[Any, bool]:
        """Return a chunk, and whether the chunk was on this worker already."""
        here = worker.data.get(key)
        if here is not None:
            return here, True
        return asyncio.run_coroutine_threadsafe(_from_another(worker, key), worker.loop.asyncio_loop).result(), False

    return HeldSource(held, fetch)


async def _from_another(worker: Any, key: Any) -> Any:
    """A chunk from one of the workers that hold it, which limit how many they serve at once. While none holds it, Dask may
    be computing it again."""
    from distributed.worker import get_data_from_worker

    until = time.monotonic() + LOST_S
    while time.monotonic() < until:
        holders = list((await worker.scheduler.who_has(keys=[key])).get(key, ()))
        for holder in random.sample(holders, len(holders)):
            with contextlib.suppress(OSError):
                answer = await get_data_from_worker(worker.rpc, [key], holder, who=worker.address)
                if answer["status"] == "OK" and key in answer["data"]:
                    return answer["data"][key]
        await asyncio.sleep(AGAIN_S)
    raise ClusterError(f"chunk {key} of an operand was lost with its worker, and was not computed again")


def hold(client: Any, array: Any) -> tuple[HeldSource, Any]:
    """Place the chunks of a Dask or NumPy array on the cluster, and return the array as a source and as a Dask array.

    The chunks stay on the cluster as long as a reference to the returned Dask array exists. If ``array`` is a Dask
    array that is not computed yet, ``hold`` computes it and raises its errors.
    """
    import dask.array as da
    from dask.base import is_dask_collection
    from distributed import futures_of

    if is_dask_collection(array):
        from .lazy import dask_matrix

        kept = client.persist(dask_matrix("the operand", array))
        wait_until_ended(futures_of(kept))
        edges = [(0, *itertools.accumulate(sizes)) for sizes in kept.chunks]
        keys = Keys([list(row) for row in kept.__dask_keys__()])
        return HeldSource(Held(f"dask {kept.name}", edges[0], edges[1], np.dtype(kept.dtype), keys), None), kept
    matrix = admit(array, "the operand")
    source = ArraySource(matrix)
    side = max(1, int((HANDED_OUT / source.dtype.itemsize) ** 0.5))
    rows, columns = ((*range(0, size, side), size) if size else (0, 0) for size in source.shape)
    down, across = (list(itertools.pairwise(edges)) for edges in (rows, columns))
    blocks = [np.ascontiguousarray(matrix[slice(*r), slice(*c)]) for r in down for c in across]
    futures = client.scatter(blocks, hash=False)
    width = len(across)
    keys = Keys([[future.key for future in futures[at : at + width]] for at in range(0, len(futures), width)])
    name = f"tilewright-array-{secrets.token_hex(8)}"
    graph = {(name, *divmod(at, width)): future for at, future in enumerate(futures)}
    chunks = tuple(tuple(stop - start for start, stop in parts) for parts in (down, across))
    kept = da.Array(graph, name, chunks=chunks, dtype=source.dtype)
    return HeldSource(Held(f"array {source.fingerprint()}", rows, columns, source.dtype, keys), None), kept
