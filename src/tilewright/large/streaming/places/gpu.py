"""A GPU as a place: blocks come through page-locked memory, on streams of their own, while others are multiplied.

The operands may lie in any memory, or in files: threads copy chunks of a block to page-locked ones, which the GPU fetches by
itself. The GPU's streams wait for each other without a thread; a thread waits only for a chunk that is still being fetched.

    threads     A to chunks │ B to chunks │ A to chunks │ …
    copy in        chunks to slot │ chunks to slot │ chunks to slot │ …
    compute                         C = A·B           │ C += A·B      │ …
    copy out                                                           C to chunks │
    threads                                                              chunks to result

Copies in take turns on several streams, so that a block that waits for its slot does not delay the rest of the block before
it. One thread hands out chunks in the order of the loads: so a load that waits for its slot never holds a chunk that an
earlier load, which must be done before that slot is free, still needs. A block that another GPU has is copied directly from
that GPU (``peers``).
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from ....gpu.runtime.device import Device
from ....gpu.runtime.stream import Event, Stream
from ....kernels.cuda_kernel import CudaKernel
from ....product.plan import Choice
from ...files import Sink
from ..plan.cuts import slot_elements
from ..plan.grid import Grid, Tile
from ..plan.schedule import Load, Multiply, Store
from ..plan.stream import StreamPlan
from .cached_sources import CachedSources
from .chunks import Chunks, Ring, pieces, shaped
from .events import Events
from .peers import LentBlock, Peers
from .steps import Addresses, steps_on

STREAMS_IN = 4
#: The fewest bytes of a part, where a block is divided among all threads: some 3,000 parts a second can be handed out.
LEAST_PART = 4 << 20
#: Slots begin at multiples of so many bytes, which kernels need for wide accesses.
SLOT_ALIGNMENT = 256


class GpuPlace:
    """Slots in a GPU's memory; ``sources`` reads A and B, ``sink`` writes C; ``workers`` threads copy to and from chunks.
    ``peers`` are the GPUs, this one included, that copy blocks of the same product from each other."""

    def __init__(
        self,
        plan: StreamPlan,
        sources: CachedSources,
        sink: Sink,
        *,
        gpu: Device,
        choice: Choice[CudaKernel],
        workers: int = 8,
        chunks: Chunks | None = None,
        events: Events | None = None,
        peers: Peers | None = None,
    ) -> None:
        self._grid, self._sources, self._gpu = plan.grid, sources, gpu
        self._sink = sink
        self._dtype = np.dtype(plan.dtype)
        self._steps = steps_on(gpu, choice, plan.dtype)
        self._steps.compile_ahead(_block_shapes(plan.grid))
        gpu.make_current()
        self._events = _GpuEvents(gpu, events or Events())
        chunks = chunks or Chunks()
        self._chunk, self._workers = chunks.size, workers
        with contextlib.ExitStack() as taken:  # releases what was taken if a later step fails
            memory = gpu.reserve(plan.place_bytes + sum(plan.slots) * SLOT_ALIGNMENT)
            taken.callback(memory.close)
            self._memory = memory.pointer
            self._slots = self._addresses(plan)
            self._compute, self._out, *self._in = [gpu.new_stream() for _ in range(2 + STREAMS_IN)]
            for stream in (self._compute, self._out, *self._in):
                taken.callback(stream.close)
            self._rings = []
            for count in (chunks.incoming, chunks.outgoing):
                self._rings.append(Ring(gpu.pages, count, chunks.size))
                taken.callback(self._rings[-1].close)
            self._taken = taken.pop_all()
        self._pool = ThreadPoolExecutor(workers, "copies", initializer=gpu.make_current)
        self._peer_pool = ThreadPoolExecutor(1, "copies over", initializer=gpu.make_current)
        self._peers = peers or Peers()
        self._peers.join(self._pool, self._peer_pool, self._idle)
        self._issued: list[Future[Event]] = []
        self._threads = threading.local()

    # ---- the three lanes

    def load(self, load: Load, after: Event | None) -> Future[Event]:
        self._make_current()
        block, stream = load.block, self._in[load.number % STREAMS_IN]
        if load.number >= STREAMS_IN:  # waits until this stream's previous load is submitted
            self._issued[load.number - STREAMS_IN].result()
        address, nbytes = self._slots[block.operand, load.slot], self._grid.elements(block) * self._dtype.itemsize
        own, lender, readers = self._peers.take(block, self._gpu, address, nbytes)
        try:
            if after is not None:
                stream.after(after)
            for reader in readers:
                stream.after(reader.result())
            begun = stream.mark()
            if lender is None:
                self._stage(load, own, stream)
            else:
                self._peer_pool.submit(self._copy_over, lender, own, stream)
        except BaseException as error:  # raised again by this lane
            own.refuse(error)
            raise
        lane = "copy in" if lender is None else "copy over"
        self._events.add(lane, f"{block.operand.upper()}[{block.row}, {block.column}]", begun, own.done)
        self._issued.append(own.done)
        return own.done

    def multiply(self, step: Multiply, needs: tuple[Future[Event], Future[Event]], after: None) -> Event:  # noqa: ARG002
        self._make_current()
        for block in needs:
            self._compute.after(block.result())
        m, n = self._grid.size(step.tile)
        depth = self._grid.depth(step.p)
        begun = self._compute.mark()
        at = Addresses(self._slots["a", step.a], self._slots["b", step.b], self._slots["c", step.c])
        self._steps(step, (m, n, depth.stop - depth.start), at, self._compute.handle)
        done = self._compute.mark()
        self._events.add("compute", f"C[{step.tile.i}, {step.tile.j}] step {step.p}", begun, _done_future(done))
        return done

    def store(self, store: Store, after: Event) -> None:
        self._make_current()
        rows, columns = self._grid.rows(store.tile.i), self._grid.columns(store.tile.j)
        self._out.after(after)
        begun = self._out.mark()
        address, jobs = self._slots["c", store.c], []
        for part in pieces(rows, columns, self._dtype.itemsize, self._chunk):
            staged = shaped(chunk := self._rings[1].take(), self._dtype, *part)
            self._gpu.pages.lock(chunk)
            self._out.copy_out(staged, address)
            fetched = self._out.mark()
            job = self._pool.submit(self._copy_out, *part, staged, fetched)
            self._rings[1].give(chunk, job)
            jobs.append(job)
            address += staged.nbytes
        self._events.add("copy out", f"C[{store.tile.i}, {store.tile.j}]", begun, _done_future(self._out.mark()))
        for job in jobs:
            job.result()

    def close(self) -> None:
        """Wait for all work under way, also for copies from this GPU to others, and release everything."""
        try:
            self._peers.settle()
            self._gpu.make_current()
            self._events.report()
        finally:
            self._taken.close()

    # ---- by the threads that copy

    def _stage(self, load: Load, own: LentBlock, stream: Stream) -> None:
        """Submit a job for each part of the block, with a chunk, to the threads that copy."""
        self._sources.begin(load)
        size = min(self._chunk, max(LEAST_PART, own.nbytes // self._workers))
        parts = list(pieces(*self._grid.where(load.block), self._dtype.itemsize, size))
        address, left, jobs = own.address, itertools.count(1 - len(parts)), []
        for part in parts:
            chunk = self._rings[0].take()
            jobs.append(self._pool.submit(self._copy_in, load, *part, chunk, own, address, stream, left))
            self._rings[0].give(chunk, jobs[-1])
            address += shaped(chunk, self._dtype, *part).nbytes
        self._sources.began(load, jobs)

    def _copy_in(
        self,
        load: Load,
        rows: slice,
        columns: slice,
        chunk: np.ndarray[Any, Any],
        own: LentBlock,
        address: int,
        stream: Stream,
        left: Iterator[int],
    ) -> Event:
        try:
            staged = shaped(chunk, self._dtype, rows, columns)
            with self._events.host.span("stage in", f"{load.block.operand.upper()} rows {rows.start}"):
                self._sources.read(load, rows, columns, staged)
            self._gpu.pages.lock(chunk)
            stream.copy_in(address, staged)
            copied = stream.mark()
            if next(left) == 0:  # the last copy to be submitted: all others are before this mark
                own.arrived(stream.mark())
        except BaseException as error:  # raised again where a GPU needs the block
            own.refuse(error)
            raise
        return copied

    def _copy_over(self, lender: LentBlock, own: LentBlock, stream: Stream) -> None:
        try:
            stream.after(lender.done.result())
            stream.copy_over(own.address, lender.gpu.context, lender.address, own.nbytes)
            own.arrived(stream.mark())
        except BaseException as error:  # raised again where the block is needed
            own.refuse(error)

    def _copy_out(self, rows: slice, columns: slice, staged: np.ndarray[Any, Any], fetched: Event) -> None:
        fetched.wait()
        with self._events.host.span("stage out", f"C rows {rows.start}"):
            self._sink.write(rows, columns, staged)

    # ---- helpers

    def _idle(self) -> None:
        self._gpu.make_current()
        for stream in (*self._in, self._compute, self._out):
            stream.wait()

    def _addresses(self, plan: StreamPlan) -> dict[tuple[str, int], int]:
        at, addresses = self._memory, {}
        sizes = slot_elements(plan.grid, plan.room.planes)
        for operand, elements, count in zip("abc", sizes, plan.slots, strict=True):
            for slot in range(count):
                addresses[operand, slot] = at
                at += math.ceil(elements * plan.itemsize / SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        return addresses

    def _make_current(self) -> None:
        if not getattr(self._threads, "current", False):
            self._gpu.make_current()
            self._threads.current = True


class _GpuEvents:
    """Spans between events of streams, added to the host's events, in seconds of the host's clock, when all work is done."""

    def __init__(self, gpu: Device, host: Events) -> None:
        self.host = host
        self._gpu = gpu
        self._zero, self._zero_s = self._now()
        self._spans: list[tuple[str, str, Event, Future[Event]]] = []

    def add(self, lane: str, name: str, begun: Event, end: Future[Event]) -> None:
        self._spans.append((lane, name, begun, end))

    def report(self) -> None:
        """Add all spans that ended to the host's events; the GPU must be idle."""
        # A host that is busy learns late of an event: the earlier reading is nearer, and no span ends after this one.
        last, last_s = self._now()
        zero_s = min(self._zero_s, last_s - last.since(self._zero))
        for lane, name, begun, end in self._spans:
            if end.done() and end.exception() is None:
                at = (zero_s + event.since(self._zero) for event in (begun, end.result()))
                self.host.add(lane, name, *at)

    def _now(self) -> tuple[Event, float]:
        """An event of this moment, and the host's clock when it knows of the event."""
        stream = self._gpu.new_stream()
        event = stream.mark()
        event.wait()
        stream.close()
        return event, self.host.now()


def _block_shapes(grid: Grid) -> Iterator[tuple[int, int, int]]:
    """The shapes (m, n, k) of a plan's products: all but the last tiles and steps have the same."""
    down, across = grid.tiles
    sizes = {grid.size(Tile(i, j)) for i in {0, max(0, down - 1)} for j in {0, max(0, across - 1)}}
    return ((m, n, depth) for m, n in sizes for depth in grid.depths())


def _done_future(event: Event) -> Future[Event]:
    job: Future[Event] = Future()
    job.set_result(event)
    return job
